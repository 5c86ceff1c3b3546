//! Tests interrupts and NMIs that arrive during the instruction that loads SS: its operand is a
//! device's register, and reading that register raises them.

use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, PhysicalAddress};

const CODE: u64 = 0x10000;
const HANDLER: u64 = 0x20000;
const IDT: u64 = 0x30000;
const GDT: u64 = 0x31000;
const STACK: u64 = 0x8000;
const DATA_SELECTOR: u16 = 0x18;
const INTERRUPT_FLAG: u64 = 0x200;

/// The event that the device raises when it is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Raises {
    Interrupt,
    Nmi,
}

struct Bench {
    raises: Raises,
    interrupt: bool,
    nmi: bool,
    stop: Option<StopRequest>,
}

impl BareMachine for Bench {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, _port: u16, _size: u8, value: u32) {
        self.stop = Some(StopRequest::DebugExit(value as u8));
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        match self.raises {
            Raises::Interrupt => self.interrupt = true,
            Raises::Nmi => self.nmi = true,
        }
        for (byte, value) in data.iter_mut().zip(DATA_SELECTOR.to_le_bytes()) {
            *byte = value;
        }
    }
    fn interrupt_pending(&mut self) -> bool {
        self.interrupt
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        std::mem::take(&mut self.interrupt).then_some(0x20)
    }
    fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.nmi)
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

/// Runs flat 32-bit code with interrupts on. Returns how many of its bytes had run when the handler
/// was entered.
fn interrupted_behind(raises: Raises, code: &[u8]) -> u64 {
    run_to_handler(raises, code, |_| {}).0
}

/// Runs the code on a processor that is prepared further. Returns the bytes that had run, and DR6.
fn run_to_handler(raises: Raises, code: &[u8], prepare: impl FnOnce(&mut CpuState)) -> (u64, u64) {
    let mut state = flat_state(CODE);
    state.flags = INTERRUPT_FLAG;
    state.gpr[4] = STACK;
    state.gdtr = TableRegister {
        base: GDT,
        limit: 0x1f,
    };
    state.idtr = TableRegister {
        base: IDT,
        limit: 0x7ff,
    };
    prepare(&mut state);
    let mut memory = GuestMemory::new(4 << 20).unwrap();
    memory.write(PhysicalAddress(CODE), code);
    memory.write(PhysicalAddress(HANDLER), &[0xe6, 0xf4]); // out 0xf4, al
    let descriptors: [u64; 2] = [0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
    for (descriptor, place) in descriptors.iter().zip([0x10, 0x18]) {
        memory.write(PhysicalAddress(GDT + place), &descriptor.to_le_bytes());
    }
    let gate: u64 = 0x0002_8e00_0010_0000;
    for vector in [1, 2, 0x20] {
        memory.write(PhysicalAddress(IDT + vector * 8), &gate.to_le_bytes());
    }
    let bench = Bench {
        raises,
        interrupt: false,
        nmi: false,
        stop: None,
    };
    let mut vcpu = Computer::new(state, memory, bench, 1 << 20, true).unwrap();
    let stop = vcpu.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        vcpu.dump()
    );
    let mut frame = [0; 4];
    let top = PhysicalAddress(vcpu.state().gpr[4]);
    vcpu.memory_mut().read(top, &mut frame);
    let ran = u64::from(u32::from_le_bytes(frame)).wrapping_sub(CODE);
    (ran, vcpu.state().dr[6] & 0xf)
}

/// Code that loads a segment register from the device at F0000000h, followed by three more
/// instructions.
fn load(register: u8) -> Vec<u8> {
    let mut code = vec![0x8e, 5 | register << 3, 0, 0, 0, 0xf0];
    code.extend([0x41, 0x42, 0x43, 0xeb, 0xfe]); // inc ecx; inc edx; inc ebx; jmp $
    code
}

const DS: u8 = 3;
const SS: u8 = 2;

#[test]
fn an_interrupt_that_comes_while_ds_is_loaded_is_taken_behind_it() {
    assert_eq!(interrupted_behind(Raises::Interrupt, &load(DS)), 6);
    assert_eq!(interrupted_behind(Raises::Nmi, &load(DS)), 6);
}

#[test]
fn an_interrupt_that_comes_while_ss_is_loaded_waits_for_one_more_instruction() {
    assert_eq!(interrupted_behind(Raises::Interrupt, &load(SS)), 7);
}

#[test]
fn an_nmi_that_comes_while_ss_is_loaded_waits_for_one_more_instruction() {
    assert_eq!(interrupted_behind(Raises::Nmi, &load(SS)), 7);
}

#[test]
fn a_second_load_of_ss_in_a_row_holds_nothing_off() {
    // A mov ss, ax between the load and the next instruction.
    let mut code = load(SS);
    code.splice(6..6, [0x8e, 0xd0]);
    code.splice(0..0, [0xb8, 0x18, 0, 0, 0]); // mov eax, 18h
    assert_eq!(interrupted_behind(Raises::Interrupt, &code), 5 + 6 + 2);
    assert_eq!(interrupted_behind(Raises::Nmi, &code), 5 + 6 + 2);
}

#[test]
fn a_breakpoint_that_mov_ss_puts_off_joins_the_debug_exception_of_icebp() {
    // mov ss, [selector]; the selector follows the code.
    let mut code = vec![0x8e, 0x15];
    code.extend((CODE as u32 + 9).to_le_bytes());
    code.extend([0xf1, 0xeb, 0xfe, 0x18, 0]); // int1; jmp $; the selector
    let (ran, hits) = run_to_handler(Raises::Interrupt, &code, |state| {
        state.dr[0] = CODE + 9;
        // DR7: L0, reads and writes, 2 bytes.
        state.dr[7] = 0x400 | 1 | 0b0111 << 16;
    });
    assert_eq!((ran, hits), (7, 1));
}
