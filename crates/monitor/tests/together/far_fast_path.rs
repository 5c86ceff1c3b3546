//! Tests far JMP, CALL and RET within a privilege level, which a fast path executes: what it leaves
//! to the monitor, and that it notices what the guest writes between two of them. Each program also
//! runs instruction by instruction, where the monitor executes them, and must have the same result.
//! All emitted code is verified.

use crate::support::long_mode::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, SegmentRegister, Selector};

const RBX: usize = 3;
const RSI: usize = 6;
/// The addresses of the GDTs of the 64-bit guest and of the 32-bit guest.
const LONG_GDT: u64 = 0x8000;
const GDT: u64 = 0x2_1000;
const IDT: u64 = 0x2_3000;
/// Address of the far pointers.
const POINTERS: u64 = DATA + 0x800;

/// The number of far transfers that were exits, and of those that a fast path made.
fn made(vcpu: &Computer<Bench>) -> [u64; 2] {
    [
        vcpu.exit_counts().get(ExitKind::FarTransfer),
        vcpu.counts().fast_path(FastPath::Far),
    ]
}

/// Sets up a 32-bit kernel without paging. Its code segments are 10h, 20h (conforming) and 28h;
/// those of programs are 43h and 4Bh, and 23h as well.
fn narrow(state: &mut CpuState, memory: &mut GuestMemory) {
    *state = flat_state(CODE);
    state.gpr[4] = STACK;
    (state.gdtr.base, state.gdtr.limit) = (GDT, 0x57);
    (state.idtr.base, state.idtr.limit) = (IDT, 0xff);
    let descriptors = [
        0,
        0,
        0x00cf_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_9f00_0000_ffff,
        0x00cf_9b00_0000_ffff,
        0,
        0x00cf_f300_0000_ffff,
        0x00cf_fb00_0000_ffff,
        0x00cf_fb00_0000_ffff,
    ];
    for (index, descriptor) in descriptors.into_iter().enumerate() {
        memory.write_u64(PhysicalAddress(GDT + index as u64 * 8), descriptor);
    }
    for vector in 0..32 {
        let gate = (0xc000 + vector * 8) | 0x10 << 16 | 0x8e00 << 32;
        memory.write_u64(PhysicalAddress(IDT + vector * 8), gate);
    }
    let target = CODE + 256;
    for (at, selector) in [(0, 0x10u64), (8, 0x28), (16, 0x20)] {
        memory.write_u64(PhysicalAddress(POINTERS + at), target | selector << 32);
    }
}

/// Executes several CALLs, JMPs and RETs in `$rounds` rounds, with `$change` in each round. EDI
/// combines what the callee finds on its stack, and ESI counts its calls. EBX is 1 in the last
/// round.
macro_rules! narrow_calls {
    ($name:ident, $rounds:literal, [$($change:literal),*] $(,)?) => {
        guest_code!(
            $name,
            ".code32",
            concat!("mov ebx, ", $rounds),
            "2:",
            $($change,)*
            "stc",
            // call 10h:10100h
            ".byte 0x9a, 0, 1, 1, 0, 0x10, 0",
            "adc edi, ebx",
            "call fword ptr [0x20808]",
            "call fword ptr [0x20810]",
            "push 7",
            "push 7",
            // call 28h:10140h, which removes two values from the stack.
            ".byte 0x9a, 0x40, 1, 1, 0, 0x28, 0",
            // jmp 10h:10180h
            ".byte 0xea, 0x80, 1, 1, 0, 0x10, 0",
            "3:",
            "dec ebx",
            "jnz 2b",
            "mov eax, cs",
            "out 0xf4, al",
            concat!(".org tollgate_test_", stringify!($name), "_start + 256"),
            "inc esi",
            "lahf",
            "rol edi, 5",
            "xor edi, eax",
            "xor edi, [esp]",
            "rol edi, 5",
            "xor edi, [esp + 4]",
            "mov ecx, cs",
            "add edi, ecx",
            "add edi, esp",
            ".byte 0xcb",
            concat!(".org tollgate_test_", stringify!($name), "_start + 320"),
            "inc esi",
            "mov ecx, cs",
            "add edi, ecx",
            ".byte 0xca, 8, 0",
            concat!(".org tollgate_test_", stringify!($name), "_start + 384"),
            "inc esi",
            "mov ecx, cs",
            "add edi, ecx",
            "jmp 3b",
            ".code64",
        )
    };
}

#[test]
fn a_32_bit_kernel_s_far_transfers_take_no_exit_once_each_has_been_made() {
    let vcpu = run_with(narrow_calls!(n_many, "500", []), narrow);
    let [exits, fast_paths] = made(&vcpu);
    assert!(
        exits < 40 && exits + fast_paths == 4500,
        "{exits} {fast_paths}"
    );
    assert_eq!(vcpu.state().gpr[RSI], 2500);
    assert_eq!(vcpu.state().gpr[4], STACK);
    assert!(vcpu.exit_counts().total() < 200, "{:?}", vcpu.exit_counts());
}

/// Executes far CALL and RET of a program at level 3, to 43h and 4Bh.
#[test]
fn neither_do_those_of_a_program() {
    let code = guest_code!(
        n_program,
        ".code32",
        "mov ebx, 500",
        "2:",
        ".byte 0x9a, 0, 1, 1, 0, 0x43, 0",
        ".byte 0x9a, 0, 1, 1, 0, 0x4b, 0",
        "dec ebx",
        "jnz 2b",
        "out 0xf4, al",
        ".org tollgate_test_n_program_start + 256",
        "inc esi",
        "xor edi, [esp]",
        "rol edi, 5",
        "xor edi, [esp + 4]",
        "mov ecx, cs",
        "add edi, ecx",
        ".byte 0xcb",
        ".code64",
    );
    let vcpu = run_with(code, |state, memory| {
        narrow(state, memory);
        for register in SegmentRegister::ALL {
            state.segment_mut(register).selector = Selector(0x3b);
            state.segment_mut(register).attributes = Attributes::from_bits_retain(0xc0f3);
        }
        let code = state.segment_mut(SegmentRegister::Cs);
        code.selector = Selector(0x43);
        code.attributes = Attributes::from_bits_retain(0xc0fb);
        state.flags |= 0x3000;
    });
    let [exits, fast_paths] = made(&vcpu);
    assert!(
        exits < 20 && exits + fast_paths == 2000,
        "{exits} {fast_paths}"
    );
    assert_eq!(vcpu.state().gpr[RSI], 1000);
}

#[test]
fn what_is_written_to_a_code_descriptor_counts_at_the_next_transfer() {
    // Segment 28h changes its limit, and loses its accessed bit, which a load sets again.
    let code = narrow_calls!(
        n_rewritten,
        "400",
        [
            "mov eax, ebx",
            "and eax, 1",
            "xor al, 0xcf",
            "mov [0x2102e], al",
            "mov eax, ebx",
            "shr eax, 1",
            "and eax, 1",
            "or eax, 0x9a",
            "mov [0x2102d], al",
            "xor edi, [0x21028]",
            "xor edi, [0x2102c]"
        ],
    );
    let mut vcpu = run_with(code, narrow);
    assert_eq!(vcpu.state().gpr[RSI], 2000);
    assert_eq!(read_u64(&mut vcpu, GDT + 0x28) >> 40 & 0xff, 0x9b);
}

#[test]
fn another_descriptor_table_is_another_code_segment() {
    let code = narrow_calls!(
        n_tables,
        "300",
        ["xor word ptr [0x20902], 0x1000 ^ 0x5000", "lgdt [0x20900]"],
    );
    let mut vcpu = run_with(code, |state, memory| {
        narrow(state, memory);
        memory.write_u64(PhysicalAddress(DATA + 0x900), GDT << 16 | 0x57);
        for at in (0..0x58).step_by(8) {
            let value = memory.read_u64(PhysicalAddress(GDT + at));
            memory.write_u64(PhysicalAddress(0x2_5000 + at), value);
        }
        // In the other table, segment 28h is not marked as accessed.
        memory.write(PhysicalAddress(0x2_502d), &[0x9a]);
    });
    assert_eq!(vcpu.state().gpr[RSI], 1500);
    assert_eq!(read_u64(&mut vcpu, 0x2_5028) >> 40 & 0xff, 0x9b);
}

/// Vector and error code that the 300th round's call of 28h raises after `$change`. ESP and EIP
/// must be those before the instruction.
macro_rules! narrow_refused {
    ($name:ident, [$($change:literal),*]) => {{
        let code = narrow_calls!($name, "300", ["cmp ebx, 1", "jne 4f", $($change,)* "4:"]);
        let mut vcpu = run_with(code, narrow);
        let esp = vcpu.state().gpr[4];
        let [vector, error, eip] = [0, 4, 8].map(|at| read_u64(&mut vcpu, esp + at) & 0xffff_ffff);
        assert_eq!(esp + 20, STACK);
        // call fword ptr [20808h]
        let bytes = read_u64(&mut vcpu, eip);
        assert_eq!(bytes & 0xffff_ffff_ffff, 0x0002_0808_1dff);
        (vector, error)
    }};
}

#[test]
fn a_far_call_that_faults_changes_nothing() {
    assert_eq!(
        narrow_refused!(n_absent, ["and byte ptr [0x2102d], 0x7f"]),
        (11, 0x28)
    );
    assert_eq!(
        narrow_refused!(n_data, ["mov byte ptr [0x2102d], 0x93"]),
        (13, 0x28)
    );
    assert_eq!(
        narrow_refused!(n_level, ["or byte ptr [0x2102d], 0x60"]),
        (13, 0x28)
    );
    assert_eq!(
        narrow_refused!(n_null, ["mov word ptr [0x2080c], 0"]),
        (13, 0)
    );
    assert_eq!(
        narrow_refused!(n_beyond, ["mov word ptr [0x2080c], 0x58"]),
        (13, 0x58)
    );
    // The RPL is above the level.
    assert_eq!(
        narrow_refused!(n_rpl, ["or byte ptr [0x2080c], 3"]),
        (13, 0x28)
    );
    // Base 0, limit FFFFh.
    let found = narrow_refused!(n_limit, ["mov byte ptr [0x2102e], 0x40"]);
    assert_eq!(found, (13, 0));
}

#[test]
fn a_call_by_a_gate_is_the_monitor_s() {
    let code = narrow_calls!(n_gate, "200", []);
    let vcpu = run_with(code, |state, memory| {
        narrow(state, memory);
        // Selector 30h is a call gate to 28h:10100h; the offset in the far pointer is ignored.
        memory.write_u64(PhysicalAddress(GDT + 0x30), 0x0001_8c00_0028_0100);
        memory.write_u64(PhysicalAddress(POINTERS + 8), 0x30 << 32 | 0x1234_5678);
    });
    assert_eq!(vcpu.state().gpr[RSI], 1000);
    let [exits, fast_paths] = made(&vcpu);
    assert!(exits >= 200, "{exits} {fast_paths}");
}

#[test]
fn no_transfer_is_lost_or_made_twice_however_often_the_guest_is_interrupted() {
    let mut vcpu = vcpu(narrow_calls!(n_kicked, "2000000", []), narrow);
    vcpu.run_kicked();
    let [rbx, rsi] = [RBX, RSI].map(|register| vcpu.state().gpr[register]);
    assert_eq!([rbx, rsi], [0, 10_000_000], "{}", vcpu.dump());
    assert_ne!(vcpu.exit_counts().get(ExitKind::Interrupted), 0);
}

/// Executes far transfers of 64-bit code as [`narrow_calls`] does for 32-bit code: by m16:32 and
/// m16:64, RETF and RETFQ.
macro_rules! long_calls {
    ($name:ident, $rounds:literal, [$($change:literal),*] $(,)?) => {
        guest_code!(
            $name,
            concat!("mov ebx, ", $rounds),
            "mov r8d, 0x20800",
            "2:",
            "mov eax, ebx",
            "and eax, 0x3f",
            "lea rsp, [rax + 0x5ff00]",
            $($change,)*
            "stc",
            // call far dword [r8]
            ".byte 0x41, 0xff, 0x18",
            "adc rdi, rbx",
            // call far qword [r8 + 16]
            ".byte 0x49, 0xff, 0x58, 16",
            // jmp far qword [r8 + 32]
            ".byte 0x49, 0xff, 0x68, 32",
            "3:",
            "dec ebx",
            "jnz 2b",
            "mov eax, cs",
            "out 0xf4, al",
            concat!(".org tollgate_test_", stringify!($name), "_start + 256"),
            "inc esi",
            "lahf",
            "rol rdi, 5",
            "xor rdi, rax",
            "xor rdi, [rsp]",
            "mov ecx, cs",
            "add rdi, rcx",
            "add rdi, rsp",
            ".byte 0xcb",
            concat!(".org tollgate_test_", stringify!($name), "_start + 320"),
            "inc esi",
            "xor rdi, [rsp]",
            "rol rdi, 5",
            "xor rdi, [rsp + 8]",
            "mov ecx, cs",
            "add rdi, rcx",
            ".byte 0x48, 0xca, 16, 0",
            concat!(".org tollgate_test_", stringify!($name), "_start + 384"),
            "inc esi",
            "mov ecx, cs",
            "add rdi, rcx",
            "jmp 3b",
        )
    };
}

/// Makes segment 48h another segment of 64-bit code.
fn long(state: &mut CpuState, memory: &mut GuestMemory) {
    state.gdtr.limit = 0x4f;
    memory.write_u64(PhysicalAddress(LONG_GDT + 0x48), 0x00af_9b00_0000_ffff);
    let mut put = |at: u64, value: u64| memory.write_u64(PhysicalAddress(POINTERS + at), value);
    put(0, (CODE + 256) | 0x48 << 32);
    put(16, CODE + 320);
    put(24, 0x48);
    put(32, CODE + 384);
    put(40, 0x08);
}

/// Whether m16:64 has a 64-bit offset on this host's processor, as on Intel's.
fn has_wide_pointers() -> bool {
    let maker = std::arch::x86_64::__cpuid(0);
    maker.ebx == u32::from_le_bytes(*b"Genu")
}

#[test]
fn a_64_bit_kernel_s_far_transfers_take_no_exit_once_each_has_been_made() {
    // AMD's processors ignore REX.W and read m16:32, so the pointer has its selector at that place,
    // too.
    let vcpu = run_with(long_calls!(l_many, "500", []), |state, memory| {
        long(state, memory);
        if !has_wide_pointers() {
            let mut put = |at: u64, value: u64| {
                memory.write_u64(PhysicalAddress(POINTERS + at), value);
            };
            put(16, (CODE + 256) | 0x48 << 32);
            put(32, (CODE + 384) | 0x08 << 32);
        }
    });
    let [exits, fast_paths] = made(&vcpu);
    assert!(
        exits < 40 && exits + fast_paths == 2500,
        "{exits} {fast_paths}"
    );
    assert_eq!(vcpu.state().gpr[RSI], 1500);
}

#[test]
fn a_64_bit_call_that_faults_changes_nothing() {
    // #NP of the segment, and a stack that is not present.
    for (code, vector, error) in [
        (
            long_calls!(
                l_absent,
                "300",
                ["cmp ebx, 1", "jne 4f", "and byte ptr [0x804d], 0x7f", "4:"]
            ),
            11,
            0x48,
        ),
        (
            long_calls!(
                l_stack,
                "300",
                ["cmp ebx, 1", "jne 4f", "mov esp, 0x1002ff8", "4:"]
            ),
            14,
            2,
        ),
        (
            long_calls!(
                l_canonical,
                "300",
                ["cmp ebx, 1", "jne 4f", "mov rsp, 0x800000000004", "4:"]
            ),
            12,
            0,
        ),
    ] {
        let mut vcpu = run_with(code, |state, memory| {
            long(state, memory);
            if !has_wide_pointers() {
                let mut put = |at: u64, value: u64| {
                    memory.write_u64(PhysicalAddress(POINTERS + at), value);
                };
                put(16, (CODE + 256) | 0x48 << 32);
                put(32, (CODE + 384) | 0x08 << 32);
            }
            // The stack for exceptions is present.
            memory.write_u64(PhysicalAddress(0x9044), STACK - 0x4000);
            for vector in 8..15u64 {
                memory.write(PhysicalAddress(0xa000 + vector * 16 + 4), &[5]);
            }
        });
        let found = caught(&mut vcpu);
        assert_eq!((found.vector, found.error), (vector, Some(error)));
        assert_eq!(vcpu.state().gpr[RSI], 299 * 3);
        assert_eq!(read_u64(&mut vcpu, CODE + found.at) & 0xff_ffff, 0x18_ff41);
    }
}

#[test]
fn no_transfer_of_64_bit_code_is_lost_or_made_twice() {
    let mut vcpu = vcpu(long_calls!(l_kicked, "2000000", []), |state, memory| {
        long(state, memory);
        if !has_wide_pointers() {
            let mut put = |at: u64, value: u64| {
                memory.write_u64(PhysicalAddress(POINTERS + at), value);
            };
            put(16, (CODE + 256) | 0x48 << 32);
            put(32, (CODE + 384) | 0x08 << 32);
        }
    });
    vcpu.run_kicked();
    let [rbx, rsi] = [RBX, RSI].map(|register| vcpu.state().gpr[register]);
    assert_eq!([rbx, rsi], [0, 6_000_000], "{}", vcpu.dump());
}
