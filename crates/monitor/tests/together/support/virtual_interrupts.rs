//! Guests in several modes, and a machine that raises interrupts on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, Flags, PhysicalAddress, Segment, SegmentRegister};

/// Address of the program.
pub const CODE: u64 = 0x1_0000;
/// Address of the handler of vectors 20h and 1, which ends the run.
pub const HANDLER: u64 = 0x2_0000;
/// Address of the handler of vector 60h, which returns.
pub const RETURNS: u64 = 0x2_0010;
const IDT: u64 = 0x3_0000;
const GDT: u64 = 0x3_1000;
/// Top of the stack: an offset in its segment, which has base 0.
pub const STACK: u64 = 0x8000;
/// Address of the device's register.
pub const DEVICE: u32 = 0xf000_0000;

/// Ports that end the run, raise the interrupt, and withdraw it.
pub const END: u8 = 0xf4;
pub const RAISE: u8 = 0xf5;
pub const WITHDRAW: u8 = 0xf6;

/// A machine that raises vector 20h on request.
#[derive(Default)]
pub struct Bench {
    pub interrupt: bool,
    /// Another thread may set this: the interrupt is then there when the monitor asks next.
    pub outside: Arc<AtomicBool>,
    pub delivered: u64,
    stop: Option<StopRequest>,
}

impl BareMachine for Bench {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        match port as u8 {
            END => self.stop = Some(StopRequest::DebugExit(value as u8)),
            RAISE => self.interrupt = true,
            WITHDRAW => self.interrupt = false,
            _ => {}
        }
    }
    /// A read raises the interrupt, too.
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        self.interrupt = true;
        data.fill(0);
    }
    fn memory_write(&mut self, _address: PhysicalAddress, _data: &[u8]) {
        self.interrupt = true;
    }
    fn interrupt_pending(&mut self) -> bool {
        self.interrupt
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.delivered += 1;
        std::mem::take(&mut self.interrupt).then_some(0x20)
    }
    fn now(&self) -> tollgate_platform::GuestTime {
        tollgate_platform::GuestTime(0)
    }
    fn advance(&mut self) {
        self.interrupt |= self.outside.swap(false, Ordering::SeqCst);
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

/// The modes in which the instructions need no exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestMode {
    /// 32-bit code in flat segments at CPL 0.
    Flat,
    /// 16-bit code in segments of 64 KiB at CPL 0.
    Protected16,
    Real,
    /// V86 mode with IOPL 3.
    Virtual8086,
}

pub const MODES: [GuestMode; 4] = [
    GuestMode::Flat,
    GuestMode::Protected16,
    GuestMode::Real,
    GuestMode::Virtual8086,
];

impl GuestMode {
    fn state(self) -> CpuState {
        let mut state = flat_state(CODE);
        state.gdtr = TableRegister {
            base: GDT,
            limit: 0x1f,
        };
        state.idtr = TableRegister {
            base: IDT,
            limit: 0x7ff,
        };
        let level = if self == GuestMode::Virtual8086 { 3 } else { 0 };
        match self {
            GuestMode::Flat => {}
            GuestMode::Protected16 => {
                state.rip = 0;
                for register in SegmentRegister::ALL {
                    let segment = state.segment_mut(register);
                    segment.limit = 0xffff;
                    segment.attributes = tollgate_x86::Attributes::from_bits_retain(0x93);
                }
                let code = state.segment_mut(SegmentRegister::Cs);
                code.base = CODE;
                code.attributes = tollgate_x86::Attributes::from_bits_retain(0x9b);
            }
            GuestMode::Real | GuestMode::Virtual8086 => {
                state.rip = 0;
                for register in SegmentRegister::ALL {
                    *state.segment_mut(register) = Segment::real_mode(0, level);
                }
                let code = Segment::real_mode((CODE >> 4) as u16, level);
                *state.segment_mut(SegmentRegister::Cs) = code;
            }
        }
        match self {
            GuestMode::Real => {
                state.cr0 &= !1;
                state.idtr.base = 0;
                state.idtr.limit = 0x3ff;
            }
            GuestMode::Virtual8086 => state.flags |= (Flags::VM | Flags::IOPL).bits(),
            _ => {}
        }
        state.gpr[4] = STACK;
        state
    }

    /// Size of a value in an interrupt's frame, in bytes.
    pub fn word(self) -> usize {
        if self == GuestMode::Flat { 4 } else { 2 }
    }

    /// The linear address of the EIP in a frame.
    pub fn linear(self, rip: u64) -> u64 {
        if self == GuestMode::Flat {
            rip
        } else {
            CODE + rip
        }
    }
}

fn prepare(memory: &mut GuestMemory) {
    let mut put = |at: u64, bytes: &[u8]| memory.write(PhysicalAddress(at), bytes);
    put(HANDLER, &[0xe6, END]);
    put(RETURNS, &[0xcf]);
    let descriptors: [u64; 2] = [0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
    for (index, descriptor) in descriptors.iter().enumerate() {
        put(GDT + 0x10 + 8 * index as u64, &descriptor.to_le_bytes());
    }
    for (vector, handler) in [(1, HANDLER), (0x20, HANDLER), (0x60, RETURNS)] {
        let gate = handler & 0xffff | 0x10 << 16 | 0x8e << 40 | handler >> 16 << 48;
        put(IDT + vector * 8, &gate.to_le_bytes());
        let pointer = handler >> 4 << 16;
        put(vector * 4, &(pointer as u32).to_le_bytes());
    }
}

/// All settings for the instructions; they must give the guest the same results.
pub fn arms() -> [VirtualInterrupts; 3] {
    let on = VirtualInterrupts::default();
    [
        on,
        VirtualInterrupts {
            request: false,
            ..on
        },
        VirtualInterrupts { flag: false, ..on },
    ]
}

/// A vCPU before a program; the code after the program ends the run.
pub fn vcpu_with(
    mode: GuestMode,
    code: &[u8],
    arm: VirtualInterrupts,
    change: impl FnOnce(&mut CpuState, &mut GuestMemory),
) -> Computer<Bench> {
    let mut memory = GuestMemory::new(4 << 20).unwrap();
    prepare(&mut memory);
    memory.write(PhysicalAddress(CODE), &[code, &[0xe6, END]].concat());
    let mut state = mode.state();
    change(&mut state, &mut memory);
    let mut vcpu = Computer::new(state, memory, Bench::default(), 1 << 20, true).unwrap();
    vcpu.change_settings(|settings| settings.virtual_interrupts = arm);
    vcpu
}

/// Runs to the end while another thread raises interrupts, rarely enough that the guest makes
/// progress. Returns how many came.
pub fn run_interrupted(vcpu: &mut Computer<Bench>) -> u64 {
    let outside = Arc::clone(&vcpu.platform().outside);
    let stop = vcpu.run_beside(|kick| {
        // Signals that the thread does not take in time would queue up.
        if !outside.swap(true, Ordering::SeqCst) {
            kick.kick();
        }
        std::thread::sleep(Duration::from_micros(20));
    });
    assert_ended(vcpu, &stop);
    vcpu.platform().delivered
}

/// Runs the program to its end.
pub fn run(vcpu: &mut Computer<Bench>) {
    let stop = vcpu.run();
    assert_ended(vcpu, &stop);
}

fn assert_ended(vcpu: &Computer<Bench>, stop: &VcpuStop) {
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        vcpu.dump()
    );
}

/// Runs the program to its end, one instruction after the other.
pub fn step(vcpu: &mut Computer<Bench>) {
    loop {
        match vcpu.step_one() {
            Ok(()) => {}
            Err(VcpuStop::Requested(StopRequest::DebugExit(_))) => return,
            Err(stop) => panic!("{stop:?}\n{}", vcpu.dump()),
        }
    }
}

/// How many bytes of the program had run when the handler that ended the run was entered.
pub fn interrupted_at(mode: GuestMode, vcpu: &mut Computer<Bench>) -> u64 {
    assert_eq!(
        vcpu.state().cs().base + vcpu.state().rip,
        HANDLER + 2,
        "{}",
        vcpu.dump()
    );
    let mut frame = [0; 4];
    let top = PhysicalAddress(vcpu.state().gpr[4] & 0xffff);
    vcpu.memory_mut().read(top, &mut frame[..mode.word()]);
    mode.linear(u64::from(u32::from_le_bytes(frame))) - CODE
}

/// The number of exits of each of the six kinds.
pub fn sensitive_exits(vcpu: &Computer<Bench>) -> [u64; 6] {
    [
        ExitKind::Cli,
        ExitKind::Sti,
        ExitKind::Pushf,
        ExitKind::Popf,
        ExitKind::SoftwareInterrupt,
        ExitKind::Iret,
    ]
    .map(|kind| vcpu.exit_counts().get(kind))
}

/// The registers that a guest can see, and its memory.
pub fn end_state(vcpu: &mut Computer<Bench>) -> (String, Vec<u8>) {
    // Only memory below the hole for devices is compared.
    let mut memory = vec![0; 0xa_0000];
    assert!(vcpu.memory_mut().read(PhysicalAddress(0), &mut memory));
    (vcpu.dump(), memory)
}
