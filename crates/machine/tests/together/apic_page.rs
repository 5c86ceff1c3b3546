//! Tests of a guest that moves the local APIC's page: over RAM its registers appear at the next
//! access, and the RAM appears again when the page has moved away.

use std::io;
use tollgate_machine::config::VmConfig;
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{Platform, StopRequest};
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::PhysicalAddress;
use tollgate_x86::local_apic_msrs::{APIC_BASE, APIC_DEFAULT_ADDRESS};

const RAM: u64 = 4 << 20;
const CODE: u64 = 0x1_0000;
/// A page of RAM.
const PAGE: u32 = 0x2_0000;
/// The address where the guest stores the values that it has read.
const RESULTS: u64 = 0x3_0000;
/// The APIC's page after reset.
const RESET_PAGE: u32 = APIC_DEFAULT_ADDRESS as u32;
/// The value of IA32_APIC_BASE for an enabled APIC of the bootstrap processor.
const ENABLED: u32 = 0x900;
/// The value with the APIC disabled.
const DISABLED: u32 = 0x100;
/// The offset of the version register, and the register's value.
const VERSION: u32 = 0x30;
const VERSION_VALUE: u32 = 0x5_0014;
/// The offset of the task priority register.
const TASK_PRIORITY: u32 = 0x80;

/// A program of 32-bit code, assembled step by step.
#[derive(Default)]
struct Program(Vec<u8>);

impl Program {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// mov ecx, 1Bh; mov eax, base; xor edx, edx; wrmsr
    fn set_base(self, base: u32) -> Self {
        self.bytes(&[0xb9, 0x1b, 0, 0, 0, 0xb8])
            .bytes(&base.to_le_bytes())
            .bytes(&[0x31, 0xd2, 0x0f, 0x30])
    }

    /// mov eax, [address]; mov [edi], eax; add edi, 4
    fn load(self, address: u32) -> Self {
        self.bytes(&[0xa1])
            .bytes(&address.to_le_bytes())
            .bytes(&[0x89, 0x07, 0x83, 0xc7, 4])
    }

    /// mov dword [address], value
    fn store(self, address: u32, value: u32) -> Self {
        self.bytes(&[0xc7, 0x05])
            .bytes(&address.to_le_bytes())
            .bytes(&value.to_le_bytes())
    }

    /// Runs the program. Its loads must read `results`.
    fn run(self, results: &[u32]) {
        // mov al, 10h; out F4h, al
        let code = self.bytes(&[0xb0, 0x10, 0xe6, 0xf4]).0;
        let mut memory = GuestMemory::new(RAM).unwrap();
        memory.write(PhysicalAddress(CODE), &code);
        let pc = Pc::new(&VmConfig::default(), memory.clone(), Box::new(io::sink()));
        let mut state = flat_state(CODE);
        state.gpr[7] = RESULTS;
        let mut vcpu = Computer::new(state, memory.clone(), pc, 1 << 20, true).unwrap();
        let stop = vcpu.run();
        assert_eq!(stop, VcpuStop::Requested(StopRequest::DebugExit(0x10)));
        let read: Vec<u32> = (0..results.len() as u64)
            .map(|index| memory.read_u32(PhysicalAddress(RESULTS + 4 * index)))
            .collect();
        assert_eq!(read, results);
    }
}

#[test]
fn the_page_hides_ram_and_gives_it_back() {
    Program::default()
        .store(PAGE + VERSION, 0x1111_1111)
        .load(PAGE + VERSION)
        .load(RESET_PAGE + VERSION)
        .set_base(PAGE | ENABLED)
        .load(PAGE + VERSION)
        .load(RESET_PAGE + VERSION)
        .store(PAGE + TASK_PRIORITY, 0x40)
        .load(PAGE + TASK_PRIORITY)
        .set_base(RESET_PAGE | ENABLED)
        .load(PAGE + VERSION)
        .load(PAGE + TASK_PRIORITY)
        .load(RESET_PAGE + TASK_PRIORITY)
        .run(&[
            0x1111_1111,
            VERSION_VALUE,
            VERSION_VALUE,
            u32::MAX,
            0x40,
            0x1111_1111,
            0,
            0x40,
        ]);
}

#[test]
fn a_page_that_moves_over_ram_uncovers_what_it_leaves() {
    Program::default()
        .store(PAGE + VERSION, 0x1111_1111)
        .store(PAGE + 0x1000 + VERSION, 0x2222_2222)
        .set_base(PAGE | ENABLED)
        .set_base((PAGE + 0x1000) | ENABLED)
        .load(PAGE + VERSION)
        .load(PAGE + 0x1000 + VERSION)
        .run(&[0x1111_1111, VERSION_VALUE]);
}

#[test]
fn a_disabled_apic_hides_nothing() {
    Program::default()
        .store(PAGE + VERSION, 0x1111_1111)
        .set_base(PAGE | ENABLED)
        .load(PAGE + VERSION)
        .set_base(PAGE | DISABLED)
        .load(PAGE + VERSION)
        .store(PAGE + VERSION, 0x3333_3333)
        .load(PAGE + VERSION)
        .set_base(PAGE | ENABLED)
        .load(PAGE + VERSION)
        .set_base(RESET_PAGE | ENABLED)
        .load(PAGE + VERSION)
        .run(&[
            VERSION_VALUE,
            0x1111_1111,
            0x3333_3333,
            VERSION_VALUE,
            0x3333_3333,
        ]);
}

#[test]
fn a_reset_uncovers_ram_and_a_restored_machine_hides_it() {
    let machine = || {
        let memory = GuestMemory::new(RAM).unwrap();
        let pc = Pc::new(&VmConfig::default(), memory.clone(), Box::new(io::sink()));
        (pc, memory)
    };
    let is_ram = |memory: &GuestMemory| memory.read(PhysicalAddress(PAGE.into()), &mut [0; 4]);
    let (mut pc, memory) = machine();
    assert!(is_ram(&memory));
    let base = u64::from(PAGE | ENABLED);
    assert_eq!(pc.msr_write(APIC_BASE, base), Some(true));
    assert!(!is_ram(&memory));
    let saved = pc.save().unwrap();
    pc.reset();
    assert!(is_ram(&memory));

    let (mut other, memory) = machine();
    other.restore(saved).unwrap();
    assert!(!is_ram(&memory));
    assert_eq!(other.msr_read(APIC_BASE), Some(base));
}
