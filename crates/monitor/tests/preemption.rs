//! The monitor's long pieces of work stop for an interrupt at each of their points, and what the
//! guest computes stays the same: however often its handler runs in between, and voids what the work
//! has come to.

#[path = "long_mode_support/mod.rs"]
mod support;

use support::*;
use tollgate_engine::preemption::Interruptible;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::memory_access::MemoryAccess;
use tollgate_monitor::shadow_tables::ShadowChoices;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::Computer;
use tollgate_x86::{CpuState, Flags, PhysicalAddress};

/// Where the handlers lie, and what they count in.
const HANDLER: u64 = 0x1_8000;
const COUNTER: u64 = 0x1_9000;
const VECTOR: u8 = 0x30;
/// Pages of the program's, whose contents are compared: small ones, where they lie, and the first
/// one's number in the page table.
const PAGES: u64 = 24;
const RAM: u64 = 0x40_0000;
const FIRST: u64 = 16;

/// Interrupts whenever the monitor asks what is due.
struct Interrupting {
    waits: bool,
    stop: Option<StopRequest>,
}

impl BareMachine for Interrupting {
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        if port == 0xf4 {
            self.stop = Some(StopRequest::DebugExit(value as u8));
        }
    }

    fn advance(&mut self) {
        self.waits = true;
    }

    fn interrupt_pending(&mut self) -> bool {
        self.waits
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        std::mem::take(&mut self.waits).then_some(VECTOR)
    }

    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

/// Adds to each of the program's pages and reads small ones, in blocks long and short, again and
/// again.
fn program() -> &'static [u8] {
    guest_code!(
        pages,
        "mov r12d, 40",
        "xor r13d, r13d",
        "2: mov ebx, 0x1010000",
        "mov r14d, 24",
        "3: inc qword ptr [rbx]",
        "mov rax, [rbx]",
        "mov [rbx + 8], r12",
        "add r13, rax",
        "rol r13, 3",
        "lea rcx, [r13 + rax*2]",
        "xor rcx, rbx",
        "mov [rbx + 16], rcx",
        "imul r13, r13, 33",
        "test eax, 1",
        "jz 4f",
        "add r13, 7",
        "4: add rbx, 4096",
        "dec r14d",
        "jnz 3b",
        "mov ebx, 0x1000000",
        "add r13, [rbx]",
        "inc qword ptr [rbx + 8]",
        "add r13, [rbx + 0x1000]",
        "add r13, [rbx + 0x3000]",
        ".rept 30",
        "add r13, r12",
        "rol r13, 5",
        "xor r13, r14",
        ".endr",
        "dec r12d",
        "jnz 2b",
        "out 0xf4, al",
    )
}

/// Counts, and loads CR3 as it is: nothing that is not global holds any more.
fn voiding_handler() -> &'static [u8] {
    guest_code!(
        voiding,
        "push rax",
        "mov rax, cr3",
        "mov cr3, rax",
        "inc qword ptr [0x19000]",
        "pop rax",
        "iretq",
    )
}

/// Only counts.
fn counting_handler() -> &'static [u8] {
    guest_code!(counting, "inc qword ptr [0x19000]", "iretq")
}

/// Runs the program, and makes a request at every so many points.
fn run(
    choice: Interruptible,
    every: u64,
    handler: &[u8],
    access: MemoryAccess,
) -> Computer<Interrupting> {
    let setup = |state: &mut CpuState, memory: &mut GuestMemory| {
        as_user(state);
        state.flags |= Flags::IF.bits();
        memory.write(PhysicalAddress(HANDLER), handler);
        set_gate(memory, VECTOR, HANDLER);
        for page in 0..PAGES {
            let entry = SMALL_TABLE + (FIRST + page) * 8;
            memory.write_u64(PhysicalAddress(entry), (RAM + page * 4096) | 7);
        }
    };
    let machine = Interrupting {
        waits: false,
        stop: None,
    };
    let mut vcpu = vcpu_in(machine, program(), setup);
    vcpu.set_memory_access(access);
    vcpu.set_verify_shadow(true);
    // Loads of CR3 void what they may.
    vcpu.set_shadow_choices(ShadowChoices {
        compares_entries: false,
        ..ShadowChoices::default()
    });
    vcpu.set_interruptible(choice);
    vcpu.force_requests(every);
    let stop = vcpu.run();
    let ended = matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_)));
    assert!(ended, "{stop:?}\n{}", vcpu.dump());
    vcpu
}

/// Registers and memory as the program left them.
fn result(vcpu: &mut Computer<Interrupting>) -> (String, Vec<u8>) {
    let mut bytes = vec![0; (PAGES * 4096) as usize];
    let memory = vcpu.memory_mut();
    assert!(memory.read(PhysicalAddress(RAM), &mut bytes));
    let mut small = vec![0; 4096];
    assert!(memory.read(PhysicalAddress(SMALL_RAM[0]), &mut small));
    bytes.extend(small);
    (vcpu.dump(), bytes)
}

fn interrupts(vcpu: &mut Computer<Interrupting>) -> u64 {
    vcpu.memory_mut().read_u64(PhysicalAddress(COUNTER))
}

fn stops(vcpu: &Computer<Interrupting>, section: &str) -> u64 {
    let stops = vcpu.stops();
    stops.iter().find(|row| row.0 == section).unwrap().1
}

#[test]
fn a_program_is_the_same_whatever_stops_for_interrupts() {
    for access in [MemoryAccess::Checked, MemoryAccess::Direct] {
        for handler in [counting_handler(), voiding_handler()] {
            let mut off = run(Interruptible::Off, 1, handler, access);
            assert_eq!(off.stops().iter().map(|row| row.1).sum::<u64>(), 0);
            let expected = result(&mut off);
            for every in 1..=8 {
                let mut vcpu = run(Interruptible::Restart, every, handler, access);
                assert_eq!(result(&mut vcpu), expected, "{access:?}, every {every}");
                let stopped: u64 = vcpu.stops().iter().map(|row| row.1).sum();
                assert!(stopped > 0);
                assert!(
                    interrupts(&mut vcpu) > stopped / 2,
                    "{access:?}, every {every}"
                );
            }
        }
    }
}

#[test]
fn blocks_end_where_a_request_finds_them() {
    let mut vcpu = run(
        Interruptible::Restart,
        1,
        counting_handler(),
        MemoryAccess::Checked,
    );
    assert!(stops(&vcpu, "translate") > 100);
    // Each has an instruction at least, so that there is an end to it.
    let translations = vcpu.engine_counts().translations;
    assert!(stops(&vcpu, "translate") <= translations);
    assert!(interrupts(&mut vcpu) >= stops(&vcpu, "translate"));
}

#[test]
fn windows_are_mapped_bit_by_bit() {
    let vcpu = run(
        Interruptible::Restart,
        1,
        voiding_handler(),
        MemoryAccess::Direct,
    );
    // The process may have no place for windows.
    if vcpu
        .exit_counts()
        .get(tollgate_exits::ExitKind::WindowFault)
        > 0
    {
        assert!(stops(&vcpu, "map-window") > 0, "{:?}", vcpu.stops());
        assert!(stops(&vcpu, "compare-window") > 0, "{:?}", vcpu.stops());
    }
}
