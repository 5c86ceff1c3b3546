//! Tests that an instruction that is executed out of line is decoded the first time, not at each
//! exit, and is decoded again when its bytes have changed.

use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, PhysicalAddress};

/// Size of guest RAM in bytes. Devices begin after RAM.
const RAM: u64 = 4 << 20;
/// Address of the device's memory.
const DEVICE: u32 = 0xe000_0000;
/// Address of the programs.
const CODE: u64 = 0x1_0000;
/// OUT to a port, which ends the run.
const END: [u8; 2] = [0xe6, 0xf4];
/// Number of rounds of each loop.
const ROUNDS: u64 = 100;

/// A device that reads as zero and records what is written to it. The machine stops when the guest
/// writes to a port.
#[derive(Default)]
struct Device {
    stop: Option<StopRequest>,
    reads: u64,
    written: Vec<u32>,
}

impl BareMachine for Device {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, _port: u16, _size: u8, value: u32) {
        self.stop = Some(StopRequest::DebugExit(value as u8));
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        self.reads += 1;
        data.fill(0);
    }
    fn memory_write(&mut self, _address: PhysicalAddress, data: &[u8]) {
        let mut value = [0; 4];
        value[..data.len()].copy_from_slice(data);
        self.written.push(u32::from_le_bytes(value));
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

/// A state at `CODE` in which ESI points to the device, ECX is the number of rounds, ESP points to
/// plain memory, and all other registers are zero.
fn state() -> CpuState {
    let mut state = flat_state(CODE);
    state.gpr = [0; 16];
    state.gpr[1] = ROUNDS;
    state.gpr[4] = 0x2_0000;
    state.gpr[6] = u64::from(DEVICE);
    state
}

/// Runs pieces of code, each with its address, until the guest writes to a port.
fn run(state: CpuState, pieces: &[(u64, &[u8])]) -> Computer<Device> {
    let mut memory = GuestMemory::new(RAM).unwrap();
    for (address, bytes) in pieces {
        assert!(memory.write(PhysicalAddress(*address), bytes));
    }
    let mut vcpu = Computer::new(state, memory, Device::default(), 1 << 20, true).unwrap();
    let stop = vcpu.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        vcpu.dump()
    );
    vcpu
}

#[test]
fn a_loop_of_device_accesses_decodes_each_of_its_instructions_once() {
    // again: mov eax,[esi]; mov [esi+4],ecx; push [esi]; pop eax; loop again
    let body = [0x8b, 0x06, 0x89, 0x4e, 4, 0xff, 0x36, 0x58, 0xe2, 0xf6];
    let vcpu = run(state(), &[(CODE, &body), (CODE + 10, &END)]);
    assert_eq!(vcpu.platform().reads, 2 * ROUNDS);
    assert_eq!(vcpu.platform().written.len() as u64, ROUNDS);
    assert_eq!(vcpu.exit_counts().get(ExitKind::MmioRead), 2 * ROUNDS);
    assert_eq!(vcpu.exit_counts().get(ExitKind::MmioWrite), ROUNDS);
    assert_eq!(vcpu.counts().engine.decoded_at_exits, 3);
}

#[test]
fn an_instruction_in_two_pages_is_decoded_once() {
    // mov eax,[esi+0], whose displacement lies in the next page; loop back to it
    let start = CODE + 0xffd;
    let body = [0x8b, 0x86, 0, 0, 0, 0, 0xe2, 0xf8];
    let mut state = state();
    state.rip = start;
    let vcpu = run(state, &[(start, &body), (start + 8, &END)]);
    assert_eq!(vcpu.platform().reads, ROUNDS);
    assert_eq!(vcpu.counts().engine.decoded_at_exits, 1);
}

#[test]
fn a_loop_of_page_faults_decodes_the_faulting_instruction_once() {
    const IDT: u64 = 0x3000;
    const HANDLER: u64 = 0x4000;
    const DIRECTORY: u64 = 0x5000;
    let mut state = state();
    state.cr0 |= 1 << 31;
    state.cr3 = DIRECTORY;
    // CR4.PSE.
    state.cr4 |= 0x10;
    state.idtr = TableRegister {
        base: IDT,
        limit: 0x7ff,
    };
    state.gdtr = TableRegister {
        base: 0x6000,
        limit: 0x1f,
    };
    // A present, writable page of 4 MiB; nothing else is mapped.
    let directory = 0x83_u32.to_le_bytes();
    // A 32-bit interrupt gate through selector 10h.
    let gate = (HANDLER | 0x10 << 16 | 0x8e00 << 32).to_le_bytes();
    let flat_code = 0x00cf_9b00_0000_ffff_u64.to_le_bytes();
    // again: mov eax,[esi]; loop again
    let body = [0x8b, 0x06, 0xe2, 0xfc];
    // add dword [esp+4],2; add esp,4; iret
    let handler = [0x83, 0x44, 0x24, 4, 2, 0x83, 0xc4, 4, 0xcf];
    let vcpu = run(
        state,
        &[
            (CODE, &body),
            (CODE + 4, &END),
            (HANDLER, &handler),
            (IDT + 14 * 8, &gate),
            (DIRECTORY, &directory),
            (0x6010, &flat_code),
        ],
    );
    assert_eq!(vcpu.exit_counts().get(ExitKind::GuestPageFault), ROUNDS);
    assert_eq!(vcpu.counts().engine.decoded_at_exits, 1);
}

#[test]
fn an_operand_that_is_patched_between_two_device_accesses_is_the_new_one() {
    // patched: mov dword [esi],0; jmp next; next: inc dword [patched+2]; loop patched
    let body = [0xc7, 0x06, 0, 0, 0, 0, 0xeb, 0x58];
    let operand = (CODE as u32 + 2).to_le_bytes();
    let mut behind = vec![0xff, 0x05];
    behind.extend(operand);
    behind.extend([0xe2, (-0x68_i32) as u8]);
    behind.extend(END);
    let vcpu = run(state(), &[(CODE, &body), (CODE + 0x60, &behind)]);
    let expected: Vec<u32> = (0..ROUNDS as u32).collect();
    assert_eq!(vcpu.platform().written, expected);
}

#[test]
fn an_instruction_that_becomes_another_and_back_is_executed_as_it_stands() {
    // patched: mov eax,[esi], and each other time mov [esi],eax; jmp next;
    // next: mov eax,ecx; xor byte [patched],2; loop patched
    let body = [0x8b, 0x06, 0xeb, 0x5c];
    let patched = (CODE as u32).to_le_bytes();
    let mut behind = vec![0x89, 0xc8, 0x80, 0x35];
    behind.extend(patched);
    behind.push(2);
    behind.extend([0xe2, (-0x6b_i32) as u8]);
    behind.extend(END);
    let vcpu = run(state(), &[(CODE, &body), (CODE + 0x60, &behind)]);
    assert_eq!(vcpu.platform().reads, ROUNDS / 2);
    // Before the second round EAX holds 100, before the fourth 98.
    let expected: Vec<u32> = (1..=ROUNDS as u32).rev().step_by(2).collect();
    assert_eq!(vcpu.platform().written, expected);
}
