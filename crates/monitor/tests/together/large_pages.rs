//! Tests what one miss in a large page of the guest fills, and what it must not fill.

use crate::support::long_mode::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_test_support::Computer;

const RSI: usize = 6;

fn misses(vcpu: &Computer<Bench>) -> u64 {
    let counts = vcpu.exit_counts();
    [
        ExitKind::TlbMissRead,
        ExitKind::TlbMissWrite,
        ExitKind::StringInstruction,
    ]
    .map(|kind| counts.get(kind))
    .into_iter()
    .sum::<u64>()
        + vcpu.counts().fast_path(FastPath::ReadMiss)
        + vcpu.counts().fast_path(FastPath::WriteMiss)
}

#[test]
fn a_miss_fills_the_pages_around_it() {
    // The program uses 256 pages, one after the other.
    let store = guest_code!(
        store_pages,
        "mov rbx, 0xffffffff80200000",
        "mov ecx, 256",
        "2: mov [rbx], rcx",
        "add rsi, [rbx]",
        "add rbx, 4096",
        "dec ecx",
        "jnz 2b",
        "out 0xf4, al",
    );
    let fill = guest_code!(
        fill_pages,
        "mov edi, 0x200000",
        "mov r8d, 256",
        "2: mov eax, r8d",
        "mov ecx, 512",
        "rep stosq",
        "add rsi, [rdi - 8]",
        "dec r8d",
        "jnz 2b",
        "out 0xf4, al",
    );
    for code in [store, fill] {
        let vcpu = run_with(code, |_, _| {});
        assert!(misses(&vcpu) < 60, "{:?}", vcpu.exit_counts());
        assert_eq!(vcpu.state().gpr[RSI], 256 * 257 / 2);
    }
}

#[test]
fn small_pages_are_filled_one_by_one() {
    // Nothing is known about the pages that follow these small pages, one of which is not present.
    let mut vcpu = run_with(
        guest_code!(
            small_pages,
            "mov rbx, 0x1000000",
            "mov dword ptr [rbx], 7",
            "mov dword ptr [rbx + 4096], 8",
            "mov dword ptr [rbx + 8192], 9",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error), (14, Some(2)));
    assert_eq!(read_u64(&mut vcpu, SMALL_RAM[0]), 7);
    assert_eq!(read_u64(&mut vcpu, SMALL_RAM[1]), 8);
}

#[test]
fn code_around_a_page_that_is_stored_to_is_still_watched() {
    // One routine is in the page after the one that is stored to first; another one, in the next
    // page, is written later. Both are changed through another large page.
    let vcpu = run_with(
        guest_code!(
            watched_large,
            "mov r8d, 0x201000",
            "mov r9d, 0x202000",
            "mov r10, 0xffffffff80200000",
            "mov ebx, 100",
            "2:",
            // mov eax, EBX; ret
            "mov byte ptr [r10 + 0x1000], 0xb8",
            "mov [r10 + 0x1001], ebx",
            "mov byte ptr [r10 + 0x1005], 0xc3",
            "mov qword ptr [r10], 1",
            "call r8",
            "add rsi, rax",
            "mov byte ptr [r10 + 0x2000], 0xb8",
            "mov [r10 + 0x2001], ebx",
            "mov byte ptr [r10 + 0x2005], 0xc3",
            "mov qword ptr [r10 + 0x3000], 1",
            "call r9",
            "add rsi, rax",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[RSI], 100 * 101);
}

#[test]
fn a_large_page_that_the_guest_protects_faults_at_every_page() {
    // After INVLPG of one address of the large page, the other pages that a miss has filled must be
    // gone, too.
    let mut vcpu = run_with(
        guest_code!(
            protected,
            "mov rbx, 0xffffffff80200000",
            "mov [rbx], rcx",
            "mov [rbx + 0x3000], rcx",
            // Entry 1 of the page directory at 5000h: writes are forbidden.
            "and byte ptr [0x5008], 0xfd",
            "invlpg [rbx + 0x7000]",
            "mov rcx, [rbx + 0x5000]",
            "mov [rbx + 0x4000], rcx",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error), (14, Some(3)));
    assert_eq!(vcpu.state().cr2, KERNEL + 0x20_4000);
}
