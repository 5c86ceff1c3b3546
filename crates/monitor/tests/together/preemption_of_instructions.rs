//! Tests that instructions which the monitor executes for a long time stop for an interrupt at each
//! of their checkpoints without changing what the guest computes: string instructions, INVLPG in a
//! large page, a hypercall for a range, loads of CR3, and the work for code that becomes active
//! again.

use crate::support::long_mode::interrupting::{Interrupting, VECTOR};
use crate::support::long_mode::spaces::{entry, make_empty_space, map, table};
use crate::support::long_mode::*;
use std::hash::{DefaultHasher, Hash, Hasher};
use tollgate_engine::preemption::Interruptible;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_platform::StopRequest;
use tollgate_test_support::Computer;
use tollgate_x86::{CpuState, Flags, PhysicalAddress};

const HANDLER: u64 = 0x1_8000;
const COUNTER: u64 = 0x1_9000;

/// Address of small pages in two spaces. Each space has its own, and two sets of them in turn.
const SMALL_PAGES: u64 = 0x5500_0000_0000;
const COUNT: u64 = 100;
/// Physical address of these pages, by space.
const SMALL_PAGES_RAM: [u64; 2] = [0xb0_0000, 0xc0_0000];
/// Distance between the two sets.
const OTHER_SET: u64 = 0x8_0000;
/// Address of code of the first space in small pages.
const CODE_PAGES: u64 = SMALL_PAGES + 0x20_0000;
const CODE_PAGES_RAM: u64 = 0x48_0000;
const CODE_COUNT: u64 = 8;
/// Physical addresses to which a large page leads in turn. Its entry is at 3038h.
const LARGE_RAM: [u64; 2] = [0xe0_0000, 0x60_0000];

/// Uses pages, makes them lead elsewhere, and uses them again.
fn program() -> &'static [u8] {
    guest_code!(
        instructions,
        "mov r12d, 4",
        "xor r13d, r13d",
        "jmp 2f",
        // Reads ECX pages from RBX on, and increments a count in each.
        "use_pages:",
        "add r13, [rbx]",
        "rol r13, 7",
        "inc qword ptr [rbx + 8]",
        "add rbx, 4096",
        "dec ecx",
        "jnz use_pages",
        "ret",
        // Calls each page of code.
        "call_pages:",
        "mov rbx, 0x550000200000",
        "mov ecx, 8",
        "3: call rbx",
        "add rbx, 4096",
        "dec ecx",
        "jnz 3b",
        "ret",
        "2:",
        // INVLPG in a large page, of which many pages were used.
        "mov ebx, 0xe00000",
        "mov ecx, 200",
        "call use_pages",
        "xor qword ptr [0x3038], 0x800000",
        "invlpg [0xe10000]",
        "mov ebx, 0xe00000",
        "mov ecx, 200",
        "call use_pages",
        // A hypercall for a range: the page table selects the other set of small pages.
        "mov rdi, [0x20000]",
        "mov ecx, 100",
        "4: xor qword ptr [rdi + rcx*8 - 8], 0x80000",
        "dec ecx",
        "jnz 4b",
        "mov eax, 0x544f4c02",
        "mov rbx, 0x550000000000",
        "mov ecx, 100",
        "vmcall",
        "mov ecx, 100",
        "call use_pages",
        // Loads another space, in which every third page of the first one's is changed, and
        // returns.
        "mov rax, [0x20010]",
        "mov cr3, rax",
        "mov rbx, 0x550000000000",
        "mov ecx, 100",
        "call use_pages",
        "mov ecx, 99",
        "5: xor qword ptr [rdi + rcx*8], 0x80000",
        "sub ecx, 3",
        "jnz 5b",
        "mov rax, [0x20008]",
        "mov cr3, rax",
        "mov rbx, 0x550000000000",
        "mov ecx, 100",
        "call use_pages",
        // Code becomes inactive and active again.
        "call call_pages",
        "mov eax, 0x544f4c02",
        "mov rbx, 0x550000200000",
        "mov ecx, 8",
        "vmcall",
        "call call_pages",
        // String instructions over pages about which nothing is known.
        "mov rax, cr3",
        "mov cr3, rax",
        "mov rsi, 0x550000000000",
        "mov edi, 0x400000",
        "mov ecx, 80000",
        "rep movsb",
        "mov rsi, 0x550000000000",
        "mov edi, 0x400000",
        "mov ecx, 80000",
        "repe cmpsb",
        "add r13, rcx",
        "mov edi, 0x420100",
        "mov ecx, 9000",
        "mov rax, r13",
        "rep stosq",
        "mov edi, 0x440000",
        "mov ecx, 80000",
        "mov al, 0x5b",
        "repne scasb",
        "add r13, rcx",
        "dec r12d",
        "jnz 2b",
        "out 0xf4, al",
    )
}

/// Counts, and does nothing else.
fn counting_handler() -> &'static [u8] {
    guest_code!(interrupted_counting, "inc qword ptr [0x19000]", "iretq")
}

/// Counts, and loads CR3 with its present value.
fn loading_handler() -> &'static [u8] {
    guest_code!(
        loading,
        "push rax",
        "mov rax, cr3",
        "mov cr3, rax",
        "inc qword ptr [0x19000]",
        "pop rax",
        "iretq",
    )
}

/// Counts, and uses pages that are perhaps being invalidated: small ones, and the large one.
fn using_handler() -> &'static [u8] {
    guest_code!(
        using,
        "push rax",
        "push rbx",
        "push rcx",
        "mov rbx, 0x550000000000",
        "mov ecx, 70",
        "2: mov rax, [rbx]",
        "add rbx, 4096",
        "dec ecx",
        "jnz 2b",
        "mov ebx, 0xe00000",
        "mov ecx, 70",
        "3: mov rax, [rbx]",
        "add rbx, 8192",
        "dec ecx",
        "jnz 3b",
        "inc qword ptr [0x19000]",
        "pop rcx",
        "pop rbx",
        "pop rax",
        "iretq",
    )
}

/// Counts, and invalidates a page that nothing uses, a range, and all pages that are not global.
fn invalidating_handler() -> &'static [u8] {
    guest_code!(
        interrupted_invalidating,
        "push rax",
        "push rbx",
        "push rcx",
        "invlpg [0xd00000]",
        "mov eax, 0x544f4c02",
        "mov rbx, 0x550000000000",
        "mov ecx, 100",
        "vmcall",
        "inc qword ptr [0x19000]",
        "pop rcx",
        "pop rbx",
        "pop rax",
        "iretq",
    )
}

/// The function in each page of code.
fn function() -> &'static [u8] {
    guest_code!(
        function,
        "add r13, 5",
        "rol r13, 9",
        "xor r13, rbx",
        "jmp 2f",
        "nop",
        "2: imul r13, r13, 33",
        "ret",
    )
}

fn set_up(state: &mut CpuState, memory: &mut GuestMemory, handler: &[u8]) {
    state.flags |= Flags::IF.bits();
    memory.write(PhysicalAddress(HANDLER), handler);
    set_gate(memory, VECTOR, HANDLER);
    for (space, ram) in (0..).zip(SMALL_PAGES_RAM) {
        make_empty_space(memory, space);
        let pages: Vec<u64> = (0..COUNT).map(|page| ram + page * 4096).collect();
        map(memory, space, SMALL_PAGES, &pages);
        for page in pages {
            for address in [page, page + OTHER_SET] {
                memory.write_u64(PhysicalAddress(address), address * 3);
            }
        }
    }
    for page in 0..CODE_COUNT {
        let ram = CODE_PAGES_RAM + page * 4096;
        map(memory, 0, CODE_PAGES + page * 4096, &[ram]);
        memory.write(PhysicalAddress(ram), function());
    }
    for ram in LARGE_RAM {
        for page in 0..512 {
            let address = ram + page * 4096;
            memory.write_u64(PhysicalAddress(address), address * 5);
        }
    }
    let entries = entry(memory, 0, SMALL_PAGES).0;
    for (index, value) in (0..).zip([entries, table(0), table(1)]) {
        memory.write_u64(PhysicalAddress(DATA + index * 8), value);
    }
    state.cr3 = table(0);
}

/// How the program is run.
#[derive(Clone, Copy, Debug)]
struct Setting {
    choice: Interruptible,
    /// A request is made at every checkpoint whose number is a multiple of this.
    every: u64,
    access: MemoryAccess,
}

fn run(setting: Setting, handler: &[u8]) -> Computer<Interrupting> {
    let setup = |state: &mut CpuState, memory: &mut GuestMemory| set_up(state, memory, handler);
    let mut vcpu = vcpu_in(Interrupting::default(), program(), setup);
    vcpu.change_settings(|settings| settings.memory_access = setting.access);
    vcpu.set_verify_shadow(true);
    vcpu.change_settings(|settings| settings.interruptible = setting.choice);
    vcpu.force_requests(setting.every);
    let stop = vcpu.run();
    let ended = matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_)));
    assert!(ended, "{stop:?}\n{}", vcpu.dump());
    vcpu
}

/// Registers and memory after the program.
fn result(vcpu: &mut Computer<Interrupting>) -> (String, u64) {
    let mut hasher = DefaultHasher::new();
    for (first, end) in [(0x40_0000, 0x80_0000), (0xb0_0000, 0x100_0000)] {
        let mut bytes = vec![0; end - first];
        let memory = vcpu.memory_mut();
        assert!(memory.read(PhysicalAddress(first as u64), &mut bytes));
        bytes.hash(&mut hasher);
    }
    (vcpu.dump(), hasher.finish())
}

fn stopped(vcpu: &Computer<Interrupting>, section: &str) -> u64 {
    let stops = vcpu.counts().stops;
    let row = stops.stopped.iter().find(|row| row.0 == section);
    row.unwrap().1
}

const SECTIONS: [&str; 4] = ["string", "invalidate", "load-space", "link"];

#[test]
fn a_program_is_the_same_wherever_its_instructions_stop() {
    let handlers = [
        counting_handler(),
        loading_handler(),
        using_handler(),
        invalidating_handler(),
    ];
    for access in [MemoryAccess::Checked, MemoryAccess::Direct] {
        for (number, handler) in (0..).zip(handlers) {
            let of = |choice, every| Setting {
                choice,
                every,
                access,
            };
            let mut off = run(of(Interruptible::Off, 1), handler);
            for section in SECTIONS {
                assert_eq!(stopped(&off, section), 0);
            }
            let expected = result(&mut off);
            for choice in [Interruptible::Restart, Interruptible::Resume] {
                for every in [1, 2, 3, 7] {
                    let setting = of(choice, every);
                    let mut vcpu = run(setting, handler);
                    let what = format!("{setting:?}, handler {number}");
                    assert_eq!(result(&mut vcpu), expected, "{what}");
                    let count = SECTIONS.map(|section| stopped(&vcpu, section));
                    assert!(every != 1 || !count.contains(&0), "{what}: {count:?}");
                    let interrupts = vcpu.memory_mut().read_u64(PhysicalAddress(COUNTER));
                    assert!(interrupts >= count.iter().sum(), "{what}");
                }
            }
        }
    }
}

#[test]
fn nothing_stops_while_interrupts_are_off() {
    let setting = Setting {
        choice: Interruptible::Restart,
        every: 1,
        access: MemoryAccess::Checked,
    };
    let setup = |state: &mut CpuState, memory: &mut GuestMemory| {
        set_up(state, memory, counting_handler());
        state.flags &= !Flags::IF.bits();
    };
    let mut vcpu = vcpu_in(Interrupting::default(), program(), setup);
    vcpu.change_settings(|settings| settings.interruptible = setting.choice);
    vcpu.force_requests(setting.every);
    let stop = vcpu.run();
    assert!(matches!(stop, VcpuStop::Requested(_)), "{stop:?}");
    for section in SECTIONS {
        assert_eq!(stopped(&vcpu, section), 0, "{section}");
    }
    assert_eq!(vcpu.memory_mut().read_u64(PhysicalAddress(COUNTER)), 0);
}
