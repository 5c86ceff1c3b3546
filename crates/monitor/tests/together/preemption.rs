//! Tests that the monitor's interruptible work stops for an interrupt at each of its checkpoints
//! without changing what the guest computes, however often the guest's handler runs in between and
//! voids what the work has done.

use crate::support::long_mode::interrupting::{Interrupting, VECTOR};
use crate::support::long_mode::*;
use tollgate_engine::preemption::Interruptible;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_monitor::shadow_tables::ShadowChoices;
use tollgate_platform::StopRequest;
use tollgate_test_support::Computer;
use tollgate_x86::{CpuState, Flags, PhysicalAddress};

/// Addresses of the handlers and of their count.
const HANDLER: u64 = 0x1_8000;
const COUNTER: u64 = 0x1_9000;
/// Address of code of the program to which handlers divert it.
const DETOUR: u64 = 0x1_a000;
/// The program's pages, whose contents are compared: how many small pages there are, where they
/// are, and the index of the first one in the page table.
const PAGES: u64 = 24;
const RAM: u64 = 0x40_0000;
const FIRST: u64 = 16;

/// Adds to each of the program's pages and reads small ones, in short and long blocks, repeatedly.
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

/// Counts, and loads CR3 with its present value, which voids everything that is not global.
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

/// Counts, and does nothing else.
fn counting_handler() -> &'static [u8] {
    guest_code!(counting, "inc qword ptr [0x19000]", "iretq")
}

/// Counts, and for every fourth interrupt returns to another place, with the interrupted address on
/// the program's stack, as when the handler of a signal is called, or another task runs.
fn diverting_handler() -> &'static [u8] {
    guest_code!(
        diverting,
        "push rax",
        "inc qword ptr [0x19000]",
        "test qword ptr [0x19000], 3",
        "jnz 2f",
        "push rcx",
        "mov rax, [rsp + 40]",
        "sub rax, 8",
        "mov [rsp + 40], rax",
        "mov rcx, [rsp + 16]",
        "mov [rax], rcx",
        "mov qword ptr [rsp + 16], 0x1a000",
        "pop rcx",
        "2: pop rax",
        "iretq",
    )
}

/// Works for a while, and resumes the program where it was interrupted, without the monitor.
fn detour() -> &'static [u8] {
    guest_code!(
        detour,
        "pushfq",
        "push rax",
        "push rcx",
        "mov ecx, 40",
        "2: add rax, rcx",
        "imul rax, rax, 7",
        "dec ecx",
        "jnz 2b",
        "pop rcx",
        "pop rax",
        "popfq",
        "ret",
    )
}

/// Does not return to the place where the program was interrupted the second time.
fn leaving_handler() -> &'static [u8] {
    guest_code!(
        leaving,
        "inc qword ptr [0x19000]",
        "cmp qword ptr [0x19000], 2",
        "jnz 2f",
        "mov qword ptr [rsp], 0x1a000",
        "2: iretq",
    )
}

/// Makes the monitor work 10,000 times, and ends.
fn other_task() -> &'static [u8] {
    guest_code!(
        other_task,
        "mov ecx, 10000",
        "2: out 0x80, al",
        "dec ecx",
        "jnz 2b",
        "out 0xf4, al",
    )
}

/// How the program is run.
#[derive(Clone, Copy, Debug)]
struct Setting {
    choice: Interruptible,
    /// A request is made at every checkpoint whose number is a multiple of this.
    every: u64,
    access: MemoryAccess,
}

/// A handler, and the code at [`DETOUR`].
#[derive(Clone, Copy)]
struct Handler {
    code: &'static [u8],
    detour: &'static [u8],
}

impl Handler {
    fn of(code: &'static [u8]) -> Self {
        let detour = detour();
        Self { code, detour }
    }
}

/// Runs the program with these settings and this handler.
fn run(setting: Setting, handler: Handler) -> Computer<Interrupting> {
    let setup = |state: &mut CpuState, memory: &mut GuestMemory| {
        as_user(state);
        state.flags |= Flags::IF.bits();
        memory.write(PhysicalAddress(HANDLER), handler.code);
        memory.write(PhysicalAddress(DETOUR), handler.detour);
        set_gate(memory, VECTOR, HANDLER);
        for page in 0..PAGES {
            let entry = SMALL_TABLE + (FIRST + page) * 8;
            memory.write_u64(PhysicalAddress(entry), (RAM + page * 4096) | 7);
        }
    };
    let mut vcpu = vcpu_in(Interrupting::default(), program(), setup);
    vcpu.change_settings(|settings| settings.memory_access = setting.access);
    vcpu.set_verify_shadow(true);
    // Loads of CR3 void everything that they may void.
    vcpu.change_settings(|settings| {
        settings.shadow = ShadowChoices {
            compares_entries: false,
            ..ShadowChoices::default()
        }
    });
    vcpu.change_settings(|settings| settings.interruptible = setting.choice);
    vcpu.force_requests(setting.every);
    let stop = vcpu.run();
    let ended = matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_)));
    assert!(ended, "{stop:?}\n{}", vcpu.dump());
    vcpu
}

/// Registers and memory after the program.
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

fn of_section(rows: &[(&'static str, u64)], section: &str) -> u64 {
    rows.iter().find(|row| row.0 == section).unwrap().1
}

fn sum(rows: &[(&'static str, u64)]) -> u64 {
    rows.iter().map(|row| row.1).sum()
}

/// Whether accesses are direct; the process may have no room for windows.
fn has_windows(vcpu: &Computer<Interrupting>) -> bool {
    let faults = vcpu.exit_counts().get(ExitKind::WindowFault);
    faults > 0
}

const STOPPING: [Interruptible; 2] = [Interruptible::Restart, Interruptible::Resume];

#[test]
fn a_program_is_the_same_whatever_stops_for_interrupts() {
    for access in [MemoryAccess::Checked, MemoryAccess::Direct] {
        for handler in [counting_handler(), voiding_handler(), diverting_handler()] {
            let of = |choice, every| Setting {
                choice,
                every,
                access,
            };
            let mut off = run(of(Interruptible::Off, 1), Handler::of(handler));
            assert_eq!(sum(&off.counts().stops.stopped), 0);
            let expected = result(&mut off);
            for choice in STOPPING {
                for every in 1..=8 {
                    let setting = of(choice, every);
                    let mut vcpu = run(setting, Handler::of(handler));
                    assert_eq!(result(&mut vcpu), expected, "{setting:?}");
                    let stopped = sum(&vcpu.counts().stops.stopped);
                    assert!(stopped > 0);
                    assert!(interrupts(&mut vcpu) > stopped / 2, "{setting:?}");
                }
            }
        }
    }
}

#[test]
fn blocks_end_where_a_request_finds_them() {
    let setting = Setting {
        choice: Interruptible::Restart,
        every: 1,
        access: MemoryAccess::Checked,
    };
    let mut vcpu = run(setting, Handler::of(counting_handler()));
    let stops = vcpu.counts().stops;
    let stopped = of_section(&stops.stopped, "translate");
    // There is a checkpoint at every fourth instruction of a block.
    assert!(stopped > 50, "{stopped}");
    // Each piece of work has translated at least one instruction, or is done to its end the next
    // time, so the number of stops is limited.
    assert!(stopped <= 2 * vcpu.counts().engine.translations);
    assert!(interrupts(&mut vcpu) >= stopped);
    // No work is resumed.
    assert_eq!((sum(&stops.resumed), stops.dropped), (0, 0));
}

#[test]
fn windows_are_mapped_bit_by_bit() {
    let setting = Setting {
        choice: Interruptible::Restart,
        every: 1,
        access: MemoryAccess::Direct,
    };
    let vcpu = run(setting, Handler::of(voiding_handler()));
    if has_windows(&vcpu) {
        let stops = vcpu.counts().stops;
        for section in ["map-window", "compare-window"] {
            assert!(of_section(&stops.stopped, section) > 0, "{stops:?}");
        }
    }
}

#[test]
fn work_goes_on_where_it_stopped_when_the_handler_has_returned() {
    for access in [MemoryAccess::Checked, MemoryAccess::Direct] {
        let setting = Setting {
            choice: Interruptible::Resume,
            every: 2,
            access,
        };
        for handler in [counting_handler(), voiding_handler()] {
            let vcpu = run(setting, Handler::of(handler));
            let stops = vcpu.counts().stops;
            assert!(of_section(&stops.resumed, "translate") > 20, "{stops:?}");
            if has_windows(&vcpu) {
                assert!(of_section(&stops.resumed, "map-window") > 0, "{stops:?}");
            }
            // A block without shared look-ups, to whose start only the guest may return, may have
            // been given up and cut short, once each: the program has few, in up to two forms of
            // direct access. Work for blocks in a handler, which lets no interrupts in, has not
            // stopped.
            let (stopped, resumed) = (sum(&stops.stopped), sum(&stops.resumed));
            assert!(resumed + stops.dropped <= stopped, "{stops:?}");
            assert!(resumed + stops.dropped + 8 >= stopped, "{stops:?}");
            assert_eq!(stops.dropped, 0, "{stops:?}");
        }
    }
}

#[test]
fn a_program_that_goes_another_way_costs_no_more_than_what_was_left() {
    let setting = Setting {
        choice: Interruptible::Resume,
        every: 1,
        access: MemoryAccess::Direct,
    };
    let vcpu = run(setting, Handler::of(diverting_handler()));
    let stops = vcpu.counts().stops;
    assert!(sum(&stops.resumed) > 0 && stops.dropped > 0, "{stops:?}");
}

#[test]
fn work_that_is_never_come_back_to_is_dropped() {
    // The program is interrupted as it begins, and at the first checkpoint.
    let setting = Setting {
        choice: Interruptible::Resume,
        every: u64::MAX,
        access: MemoryAccess::Checked,
    };
    let handler = Handler {
        code: leaving_handler(),
        detour: other_task(),
    };
    let mut vcpu = run(setting, handler);
    assert_eq!(interrupts(&mut vcpu), 2);
    let stops = vcpu.counts().stops;
    let counts = (sum(&stops.stopped), sum(&stops.resumed), stops.dropped);
    assert_eq!(counts, (1, 0, 1), "{stops:?}");
}
