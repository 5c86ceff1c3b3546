//! What a guest sees behind instructions that invalidate translations.

#[path = "long_mode_support/mod.rs"]
mod support;

use std::os::unix::fs::FileExt;
use support::*;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_x86::PhysicalAddress;

/// Physical addresses of two interrupt descriptor tables, of which the first small page shows
/// the first one at the start.
const TABLES: [u64; 2] = [SMALL_RAM[0], 0x31_0000];
/// Where the two tables' handlers of #DB begin in a program.
const HANDLERS_OF_DEBUG: [u64; 2] = [256, 320];

/// Writes an interrupt gate of the kernel's code segment.
fn put_gate(memory: &mut GuestMemory, table: u64, vector: u64, handler: u64) {
    let (low, high) = (handler & 0xffff, handler >> 16 & 0xffff);
    let gate = low | u64::from(CODE_64) << 16 | 0x8e << 40 | high << 48;
    let address = PhysicalAddress(table + vector * 16);
    memory.write_u64(address, gate);
    memory.write_u64(address.offset(8), handler >> 32);
}

/// Runs a program whose interrupt descriptor table lies in the first small page. It sets TF
/// twice and makes the page show the other table before the second time. Returns how often
/// the two tables' handlers of #DB ran.
fn traps_by_table(program: &[u8]) -> [u64; 2] {
    let vcpu = run_prepared(program, |state, memory| {
        for (table, handler) in TABLES.into_iter().zip(HANDLERS_OF_DEBUG) {
            put_gate(memory, table, 1, CODE + handler);
        }
        state.idtr.base = SMALL;
        // The descriptor of INVPCID: the first small page, which a breakpoint may watch.
        memory.write_u64(PhysicalAddress(DATA + 8), SMALL);
    });
    [vcpu.state().gpr[8], vcpu.state().gpr[9]]
}

/// A program for [`traps_by_table`]: what runs in front, and what invalidates.
macro_rules! trapped {
    ($name:ident, [$($before:expr),*], [$($invalidates:expr),+]) => {
        traps_by_table(guest_code!(
            $name,
            "1:",
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "nop",
            "mov esi, 0x7000",
            "mov edi, 0x1000000",
            "mov ebp, 0x310007",
            "mov [rsi], rbp",
            $($before,)*
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            $($invalidates,)+
            "out 0xf4, al",
            ".skip 256 - (. - 1b), 0xf4",
            "inc r8",
            "and qword ptr [rsp + 16], -0x101",
            "iretq",
            ".skip 320 - (. - 1b), 0xf4",
            "inc r9",
            "and qword ptr [rsp + 16], -0x101",
            "iretq",
        ))
    };
}

#[test]
fn the_trap_behind_invlpg_goes_through_the_table_that_the_page_shows_now() {
    assert_eq!(trapped!(after_invlpg, [], ["invlpg [rdi]"]), [1, 1]);
}

#[test]
fn the_trap_behind_a_load_of_cr3_goes_through_the_table_that_the_page_shows_now() {
    let traps = trapped!(after_cr3, ["mov rax, cr3"], ["mov cr3, rax"]);
    assert_eq!(traps, [1, 1]);
}

#[test]
fn the_trap_behind_a_change_of_cr0_goes_through_the_table_that_the_page_shows_now() {
    let traps = trapped!(
        after_cr0,
        ["mov rax, cr0", "xor rax, 0x10000"],
        ["mov cr0, rax"]
    );
    assert_eq!(traps, [1, 1]);
}

#[test]
fn the_trap_behind_a_change_of_cr4_goes_through_the_table_that_the_page_shows_now() {
    let traps = trapped!(
        after_cr4,
        ["mov rax, cr4", "xor rax, 0x80"],
        ["mov cr4, rax"]
    );
    assert_eq!(traps, [1, 1]);
}

#[test]
fn the_trap_behind_a_change_of_no_execute_goes_through_the_table_that_the_page_shows_now() {
    let traps = trapped!(
        after_efer,
        ["mov ecx, 0xc0000080", "rdmsr", "xor eax, 0x800"],
        ["wrmsr"]
    );
    assert_eq!(traps, [1, 1]);
}

#[test]
fn the_trap_behind_invpcid_goes_through_the_table_that_the_page_shows_now() {
    let traps = trapped!(
        after_invpcid,
        ["xor eax, eax", "mov ebx, 0x20000"],
        ["invpcid rax, [rbx]"]
    );
    assert_eq!(traps, [1, 1]);
}

#[test]
fn a_breakpoint_that_invpcid_meets_is_reported_through_the_table_that_the_page_shows_now() {
    let vcpu = run_prepared(
        guest_code!(
            watched,
            "1:",
            // The table's page becomes known.
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "nop",
            "mov qword ptr [0x7000], 0x310007",
            "mov eax, 0x20008",
            "mov dr0, rax",
            // L0, reads and writes, 8 bytes.
            "mov eax, 0xb0401",
            "mov dr7, rax",
            "xor eax, eax",
            "mov ebx, 0x20000",
            "invpcid rax, [rbx]",
            "out 0xf4, al",
            ".skip 256 - (. - 1b), 0xf4",
            "inc r8",
            "and qword ptr [rsp + 16], -0x101",
            "iretq",
            ".skip 320 - (. - 1b), 0xf4",
            "inc r9",
            "iretq",
        ),
        |state, memory| {
            for (table, handler) in TABLES.into_iter().zip(HANDLERS_OF_DEBUG) {
                put_gate(memory, table, 1, CODE + handler);
            }
            state.idtr.base = SMALL;
            memory.write_u64(PhysicalAddress(DATA + 8), SMALL);
        },
    );
    assert_eq!((vcpu.state().gpr[8], vcpu.state().gpr[9]), (1, 1));
}

#[test]
fn the_frame_of_the_trap_behind_invlpg_is_stored_where_the_stack_lies_now() {
    let mut vcpu = run_prepared(
        guest_code!(
            moved_stack,
            "1:",
            "mov esi, 0x7000",
            "mov edi, 0x1000000",
            "lea rbx, [rip + 2f]",
            "lea rsp, [rdi + 0x800]",
            "mov ebp, 0x310007",
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "mov [rsi], rbp",
            "invlpg [rdi]",
            "2:",
            "out 0xf4, al",
            ".skip 256 - (. - 1b), 0xf4",
            "inc r8",
            "cmp r8, 2",
            "jb 3f",
            "and qword ptr [rsp + 16], -0x101",
            "3:",
            "iretq",
        ),
        |_, memory| set_gate(memory, 1, CODE + HANDLERS_OF_DEBUG[0]),
    );
    let behind_invlpg = vcpu.state().gpr[3];
    let frame = 0x7d8;
    assert_eq!(read_u64(&mut vcpu, 0x31_0000 + frame), behind_invlpg);
    assert_ne!(read_u64(&mut vcpu, SMALL_RAM[0] + frame), behind_invlpg);
}

#[test]
fn code_that_a_machine_exchanges_is_seen_once_its_physical_page_is_forgotten() {
    // mov eax, 1 or 2; ret
    let routine = |number| [0xb8, number, 0, 0, 0, 0xc3];
    let place = DATA + 0x1000;
    let code = guest_code!(
        exchanged,
        "mov ebx, 0x21000",
        "2:",
        "call rbx",
        "mov edx, 0x11000",
        "call rdx",
        "out 0xf4, al",
        "jmp 2b",
    );
    let mut vcpu = vcpu(code, |_, memory| {
        memory.write(PhysicalAddress(place), &routine(1));
        // lea ecx, [rax + rax*2]; ret, with a link of its own.
        memory.write(PhysicalAddress(CODE + 0x1000), &[0x8d, 0x0c, 0x40, 0xc3]);
    });
    let mut results = Vec::new();
    for round in 0..6 {
        if round == 3 {
            // Another memory answers there: nobody has stored anything.
            let file = vcpu.memory_mut().ram().fd().try_clone_to_owned().unwrap();
            let file = std::fs::File::from(file);
            file.write_all_at(&routine(2), place).unwrap();
        }
        if round == 4 {
            vcpu.forget_physical(PhysicalAddress(place), PhysicalAddress(place + 0xfff));
        }
        assert!(matches!(vcpu.run(), VcpuStop::Requested(_)));
        results.push((vcpu.state().gpr[0], vcpu.state().gpr[1]));
    }
    let (old, new) = ((1, 3), (2, 6));
    // A processor may show the new code in the fourth round already.
    assert_eq!(results[..3], [old, old, old]);
    assert_eq!(results[4..], [new, new]);
}
