//! Tests the guest's vector and x87 registers across calls from fast paths to functions of the
//! monitor that use the host's registers: the registers and the guest's rounding settings are
//! unchanged after the call, without an exit. Each program also runs instruction by instruction,
//! and must have the same result.

use crate::support::long_mode::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_test_support::memory_access;

const RDI: usize = 7;
// Offsets of registers in the save area.
const ST0: usize = 32;
const XMM5: usize = 160 + 5 * 16;
const MXCSR: usize = 24;

#[test]
fn a_miss_keeps_them_and_exits_not() {
    let vcpu = run_with(
        guest_code!(
            vector_miss,
            "mov ebx, 20",
            "xor edi, edi",
            "2:",
            "movd xmm5, ebx",
            "mov esi, [0x1000000]",
            "invlpg [0x1000000]",
            "movd xmm6, ebx",
            "add edi, [0x1000000]",
            "movd eax, xmm5",
            "movd edx, xmm6",
            "add edi, eax",
            "add edi, edx",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        with_small_pages,
    );
    assert_eq!(vcpu.state().gpr[RDI], 20 + 20 * 21);
    let [exits, fast_paths] = counts(&vcpu, ExitKind::TlbMissRead, FastPath::ReadMiss);
    let looks_up = memory_access() == MemoryAccess::Checked;
    assert!(
        !looks_up || exits == 0 && fast_paths >= 20,
        "{exits} {fast_paths}"
    );
}

#[test]
fn rounding_and_the_stack_of_x87_are_the_guests_behind_a_call() {
    let vcpu = run_with(
        guest_code!(
            rounding,
            "mov ebx, 50",
            "xor edi, edi",
            "mov dword ptr [0x6000], 0x7f80", // MXCSR: towards zero
            "ldmxcsr [0x6000]",
            "mov word ptr [0x6008], 0xf7f", // x87: towards zero
            "mov rax, 0x400e000000000000",  // 3.75
            "movq xmm5, rax",
            "mov [0x6010], rax",
            "2:",
            "fninit",
            "fldcw [0x6008]",
            "fld qword ptr [0x6010]",
            "mov ecx, 0xc0000102", // IA32_KERNEL_GS_BASE
            "rdmsr",
            "out 0x80, al",
            "cvtsd2si eax, xmm5",
            "add edi, eax",
            "invlpg [0x1000000]",
            "fistp dword ptr [0x6018]",
            "add edi, [0x6018]",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[RDI], 50 * 6);
    assert_eq!(counts(&vcpu, ExitKind::Msr, FastPath::Msr), [0, 50]);
    let [_, fast_paths] = counts(&vcpu, ExitKind::Invlpg, FastPath::Invlpg);
    assert!(fast_paths >= 49, "{fast_paths}");
    let area = &vcpu.state().vector.0;
    // The flag of inexact results is set.
    assert_eq!(area[MXCSR..MXCSR + 4], 0x7fa0_u32.to_le_bytes());
}

/// Values that a call has stored must not come back when the registers are initial at the next
/// exit, for which XSAVEC stores nothing.
#[test]
fn registers_that_became_initial_behind_a_call_are_so_at_the_exit() {
    let vcpu = run_with(
        guest_code!(
            initial_again,
            "mov eax, 0x5a5a5a5a",
            "movd xmm5, eax",
            "fld1",
            "mov ecx, 0xc0000102",
            "rdmsr",
            "fninit",
            "pxor xmm5, xmm5",
            "mov ecx, 0xc0000102",
            "rdmsr",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(counts(&vcpu, ExitKind::Msr, FastPath::Msr), [0, 2]);
    let area = &vcpu.state().vector.0;
    assert_eq!(area[XMM5..XMM5 + 16], [0; 16]);
    // FNINIT does not change the contents of the registers; whether XSAVEC stores them depends on
    // whether the host considers them initial.
    let one = [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f];
    assert!(area[ST0..ST0 + 10] == one || area[ST0..ST0 + 10] == [0; 10]);
}
