//! Tests what a guest sees after instructions that invalidate translations.

use crate::support::long_mode::*;
use tollgate_memory::{GuestMemory, Region, RegionKind};
use tollgate_monitor::VcpuStop;
use tollgate_test_support::Computer;
use tollgate_x86::PhysicalAddress;

/// Physical addresses of two interrupt descriptor tables. At the start, the first small page leads
/// to the first table.
const TABLES: [u64; 2] = [SMALL_RAM[0], 0x31_0000];
/// Offsets in a program of the two tables' handlers of #DB.
const HANDLERS_OF_DEBUG: [u64; 2] = [256, 320];

/// Writes an interrupt gate of the kernel's code segment.
fn put_gate(memory: &mut GuestMemory, table: u64, vector: u64, handler: u64) {
    let (low, high) = (handler & 0xffff, handler >> 16 & 0xffff);
    let gate = low | u64::from(CODE_64) << 16 | 0x8e << 40 | high << 48;
    let address = PhysicalAddress(table + vector * 16);
    memory.write_u64(address, gate);
    memory.write_u64(address.offset(8), handler >> 32);
}

/// Runs a program whose interrupt descriptor table is in the first small page. The program sets TF
/// twice and makes the page lead to the other table before the second time. Returns how often the
/// two tables' handlers of #DB ran.
fn traps_by_table(program: &[u8]) -> [u64; 2] {
    let vcpu = run_prepared(program, |state, memory| {
        for (table, handler) in TABLES.into_iter().zip(HANDLERS_OF_DEBUG) {
            put_gate(memory, table, 1, CODE + handler);
        }
        state.idtr.base = SMALL;
        // The descriptor of INVPCID names the first small page, which a breakpoint may watch.
        memory.write_u64(PhysicalAddress(DATA + 8), SMALL);
    });
    [vcpu.state().gpr[8], vcpu.state().gpr[9]]
}

/// Makes a program for [`traps_by_table`] from the code that runs first and the code that
/// invalidates.
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
            // This trap makes the page of the table known.
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "nop",
            "mov qword ptr [0x7000], 0x310007",
            "mov eax, 0x20008",
            "mov dr0, rax",
            // DR7: L0, reads and writes, 8 bytes.
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

/// mov eax, `number`; ret
const fn routine(number: u8) -> [u8; 6] {
    [0xb8, number, 0, 0, 0, 0xc3]
}

/// Puts memory with a routine at the page of a physical address.
fn put_region(vcpu: &mut Computer<Bench>, start: PhysicalAddress, code: &[u8]) {
    let memory = vcpu.memory_mut();
    let block = memory.new_block(0x1000).unwrap();
    assert!(memory.write_block(block, 0, code).unwrap());
    let region = Region {
        start,
        bytes: 0x1000,
        kind: RegionKind::Ram,
        block: Some((block, 0)),
    };
    memory.set_region(region).unwrap();
}

#[test]
fn code_of_a_region_is_seen_instead_of_what_it_hides() {
    let place = PhysicalAddress(DATA + 0x1000);
    let code = guest_code!(
        exchanged,
        "mov ebx, 0x21000",
        "mov edx, 0x11000",
        "2:",
        "call rbx",
        "call rdx",
        "mov rsi, [0x21000]",
        "out 0xf4, al",
        "jmp 2b",
    );
    let mut vcpu = vcpu(code, |_, memory| {
        memory.write(place, &routine(1));
        // lea ecx, [rax + rax*2]; ret
        memory.write(PhysicalAddress(CODE + 0x1000), &[0x8d, 0x0c, 0x40, 0xc3]);
    });
    let round = |vcpu: &mut Computer<Bench>| {
        assert!(matches!(vcpu.run(), VcpuStop::Requested(_)));
        let gpr = vcpu.state().gpr;
        (gpr[0], gpr[1], gpr[6] >> 8 & 0xff)
    };
    assert_eq!([(); 3].map(|()| round(&mut vcpu)), [(1, 3, 1); 3]);
    put_region(&mut vcpu, place, &routine(2));
    assert_eq!([(); 2].map(|()| round(&mut vcpu)), [(2, 6, 2); 2]);
}

#[test]
fn code_is_seen_where_there_was_no_memory_when_it_was_run_before() {
    let place = PhysicalAddress(0x200_0000);
    let mut vcpu = vcpu(
        guest_code!(nowhere, "mov ebx, 0x1002000", "call rbx", "out 0xf4, al",),
        |_, memory| {
            memory.write_u64(PhysicalAddress(SMALL_TABLE + 16), place.0 | 7);
        },
    );
    assert!(matches!(vcpu.run(), VcpuStop::Requested(_)));
    // Without memory FFh is read, which is an invalid opcode.
    assert_eq!(caught(&mut vcpu).vector, 6);
    put_region(&mut vcpu, place, &routine(2));
    vcpu.change_state(|state| state.rip = CODE);
    assert!(matches!(vcpu.run(), VcpuStop::Requested(_)));
    assert_eq!(vcpu.state().gpr[0], 2, "{}", vcpu.dump());
}
