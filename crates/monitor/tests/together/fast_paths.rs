//! Tests fast paths: their results, when the monitor must execute the instruction, and that no
//! instruction is ever seen half done. Each program also runs instruction by instruction, and must
//! have the same result. All emitted code is verified.

use crate::support::long_mode::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

const RAX: usize = 0;
const RBX: usize = 3;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;

/// Addresses of the kernel's tables.
const GDT: u64 = 0x2_1000;
const IDT: u64 = 0x2_3000;
/// Address of segment 20h, and so of its first value.
const BASE: u64 = 0x2_2000;
/// Address of the handlers that end a run.
const HANDLERS: u64 = 0xc000;

/// Sets up a 32-bit kernel without paging. Segment 18h is flat, 20h has a base, 2Bh is the
/// programs' data, 30h is not present, 38h is code that cannot be read, and 43h is the programs'
/// code.
fn as_kernel(state: &mut CpuState, memory: &mut GuestMemory) {
    *state = flat_state(CODE);
    state.gpr[RSP] = STACK;
    state.cr4 = 0x600;
    (state.gdtr.base, state.gdtr.limit) = (GDT, 0x47);
    (state.idtr.base, state.idtr.limit) = (IDT, 0xff);
    let descriptors = [
        0,
        0,
        0x00cf_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_9302_2000_ffff,
        0x00cf_f300_0000_ffff,
        0x00cf_1300_0000_ffff,
        0x00cf_9900_0000_ffff,
        0x00cf_fb00_0000_ffff,
    ];
    for (index, descriptor) in descriptors.into_iter().enumerate() {
        memory.write_u64(PhysicalAddress(GDT + index as u64 * 8), descriptor);
    }
    for vector in 0..32 {
        let gate = (HANDLERS + vector * 8) | 0x10 << 16 | 0x8e00 << 32;
        memory.write_u64(PhysicalAddress(IDT + vector * 8), gate);
    }
    memory.write_u64(PhysicalAddress(BASE), 7);
}

/// Vector, error code, EIP and ESP of the exception that ended a run.
fn caught_in_kernel(vcpu: &mut Computer<Bench>) -> [u64; 4] {
    let rsp = vcpu.state().gpr[RSP];
    let [vector, error, eip] = [0, 4, 8].map(|at| read_u64(vcpu, rsp + at) & 0xffff_ffff);
    [vector, error, eip - CODE, rsp + 20]
}

fn loads(vcpu: &Computer<Bench>) -> [u64; 2] {
    [
        vcpu.exit_counts().get(ExitKind::SegmentLoad),
        vcpu.counts().fast_path(FastPath::LoadSegment),
    ]
}

#[test]
fn a_kernel_s_loads_of_segment_registers_take_no_exit_once_each_has_been_done() {
    let vcpu = run_with(
        guest_code!(
            kernel_loads,
            ".code32",
            "mov ebx, 1000",
            "xor esi, esi",
            "mov fs, si",
            "2:",
            // PUSH and POP of 32 bits, as when a kernel is entered and left; the assembler would
            // choose 16 bits.
            ".byte 0x0f, 0xa0",
            ".byte 0x06",
            ".byte 0x1e",
            "mov eax, 0x20",
            "stc",
            "mov fs, eax",
            "adc edi, fs:[0]",
            "mov edx, 0x2b",
            "mov ds, edx",
            "mov es, edx",
            ".byte 0x1f",
            ".byte 0x07",
            ".byte 0x0f, 0xa1",
            "dec ebx",
            "jnz 2b",
            "mov ax, ds",
            "out 0xf4, al",
            ".code64",
        ),
        as_kernel,
    );
    let [exits, fast_paths] = loads(&vcpu);
    assert!(exits < 20, "{exits}");
    assert!(fast_paths > 5900, "{fast_paths}");
    assert_eq!(vcpu.state().gpr[RDI], 8000);
    assert_eq!(vcpu.state().gpr[RSP], STACK);
    assert_eq!(vcpu.state().gpr[RAX] & 0xffff, 0x18);
    assert!(!vcpu.state().segment(SegmentRegister::Fs).is_usable());
    assert!(vcpu.exit_counts().total() < 200, "{:?}", vcpu.exit_counts());
}

#[test]
fn a_descriptor_that_is_written_counts_from_the_next_load_on() {
    let vcpu = run_with(
        guest_code!(
            written_descriptor,
            ".code32",
            "mov ebx, 1000",
            "2:",
            // The base is 22000h, 22001h, 22002h and 22003h in turn.
            "mov eax, ebx",
            "and eax, 3",
            "mov byte ptr [0x21022], al",
            "mov eax, 0x20",
            "mov gs, eax",
            "movzx eax, byte ptr gs:[0]",
            "add edi, eax",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            ".code64",
        ),
        |state, memory| {
            as_kernel(state, memory);
            memory.write_u64(PhysicalAddress(BASE), 0x0403_0201);
        },
    );
    assert_eq!(vcpu.state().gpr[RDI], 2500);
}

#[test]
fn another_descriptor_table_is_another_segment() {
    let vcpu = run_with(
        guest_code!(
            other_table,
            ".code32",
            "mov ebx, 100",
            "2:",
            "mov eax, 0x20",
            "mov gs, eax",
            "add edi, gs:[0]",
            // Every other time GDTR points to the table in which segment 20h has the other base.
            "xor word ptr [0x20802], 0x1000 ^ 0x1008",
            "lgdt [0x20800]",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            ".code64",
        ),
        |state, memory| {
            as_kernel(state, memory);
            memory.write_u64(PhysicalAddress(DATA + 0x800), GDT << 16 | 0x47);
            // The descriptor of segment 28h follows. It is flat, so the load reads address 0.
            memory.write_u64(PhysicalAddress(0), 1);
        },
    );
    assert_eq!(vcpu.state().gpr[RDI], 50 * 8);
}

/// Executes 100 loads that complete, then a load of `$last` by POP, which faults.
macro_rules! faulting_pop {
    ($name:ident, $last:literal) => {
        guest_code!(
            $name,
            ".code32",
            "mov ebx, 100",
            "2:",
            "mov eax, 0x20",
            "cmp ebx, 1",
            "jne 3f",
            concat!("mov eax, ", $last),
            "3:",
            "push eax",
            "nop",
            ".balign 32",
            ".byte 0x0f, 0xa1",
            "add edi, fs:[0]",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            ".code64",
        )
    };
}

#[test]
fn a_load_that_faults_changes_nothing() {
    // A segment that is not present raises #NP; code that cannot be read raises #GP, and so does a
    // selector beyond the table.
    for (code, vector, error) in [
        (faulting_pop!(not_present, "0x30"), 11, 0x30),
        (faulting_pop!(unreadable, "0x38"), 13, 0x38),
        (faulting_pop!(beyond, "0x53"), 13, 0x50),
    ] {
        let mut vcpu = run_with(code, as_kernel);
        let found = caught_in_kernel(&mut vcpu);
        assert_eq!(found, [vector, error, 0x20, STACK - 4]);
        assert_eq!(vcpu.state().gpr[RDI], 99 * 7);
        assert_eq!(vcpu.state().segment(SegmentRegister::Fs).selector.0, 0x20);
    }
}

#[test]
fn a_descriptor_that_is_made_unusable_faults_at_the_next_load() {
    let mut vcpu = run_with(
        guest_code!(
            unusable,
            ".code32",
            "mov ebx, 100",
            "2:",
            "cmp ebx, 1",
            "jne 3f",
            "and byte ptr [0x21025], 0x7f",
            "3:",
            "mov eax, 0x20",
            ".balign 32",
            "mov ds, eax",
            "mov eax, 0x18",
            "mov ds, eax",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            ".code64",
        ),
        as_kernel,
    );
    let found = caught_in_kernel(&mut vcpu);
    assert_eq!(found, [11, 0x20, 0x20, STACK]);
}

#[test]
fn x87_instructions_note_the_segment_of_their_operand() {
    // The next instruction loads the segment that the memo is about.
    let mut vcpu = run_with(
        guest_code!(
            x87_note,
            ".code32",
            "mov ebx, 100",
            "2:",
            "mov eax, 0x20",
            "mov fs, eax",
            "fild dword ptr fs:[0]",
            "mov eax, 0x2b",
            "mov fs, eax",
            "fnstenv [0x20400]",
            "fninit",
            "mov eax, [0x20418]",
            "cmp ax, 0x20",
            "jne 3f",
            "inc edi",
            "3:",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            ".code64",
        ),
        as_kernel,
    );
    let selector = read_u64(&mut vcpu, DATA + 0x418) & 0xffff;
    // Processors that no longer save these selectors store zero (SDM volume 1, 8.1.8).
    let expected = if selector == 0 { 0 } else { 100 };
    assert_eq!(vcpu.state().gpr[RDI], expected);
}

#[test]
fn no_load_is_lost_or_done_twice_however_often_the_guest_is_interrupted() {
    let code = guest_code!(
        kicked_loads,
        ".code32",
        "mov ebx, 4000000",
        "xor ecx, ecx",
        "mov fs, cx",
        "2:",
        ".byte 0x0f, 0xa0",
        "mov eax, 0x20",
        "stc",
        "mov fs, eax",
        "adc edi, fs:[0]",
        ".byte 0x0f, 0xa1",
        "adc esi, 1",
        "dec dword ptr [0x20000]",
        "dec ebx",
        "jnz 2b",
        "out 0xf4, al",
        ".code64",
    );
    let mut vcpu = vcpu(code, as_kernel);
    vcpu.run_kicked();
    assert_eq!(vcpu.state().gpr[RBX], 0, "{}", vcpu.dump());
    assert_eq!(vcpu.state().gpr[RDI], 32_000_000);
    assert_eq!(vcpu.state().gpr[RSI], 4_000_000);
    assert_eq!(vcpu.state().gpr[RSP], STACK);
    assert_ne!(vcpu.exit_counts().get(ExitKind::Interrupted), 0);
}

fn cpuids(vcpu: &Computer<Bench>) -> [u64; 2] {
    [
        vcpu.exit_counts().get(ExitKind::Cpuid),
        vcpu.counts().fast_path(FastPath::Cpuid),
    ]
}

#[test]
fn cpuid_takes_no_exit_once_a_leaf_has_been_asked_for() {
    let vcpu = run_with(
        guest_code!(
            many_fast_paths,
            "mov esi, 10",
            "2:",
            "mov r12d, 0x10",
            "3:",
            "mov edi, 2",
            "4:",
            // Basic and extended leaves, with subleaves 0 to 2. CF is live.
            "mov eax, r12d",
            "dec eax",
            "mov ecx, edi",
            "stc",
            "cpuid",
            "adc r8, rax",
            "adc r9, rbx",
            "rol r9, 1",
            "add r10, rcx",
            "rol r10, 3",
            "xor r11, rdx",
            "rol r11, 5",
            "lea eax, [r12 + 0x7fffffff]",
            "mov ecx, edi",
            "cpuid",
            "xor r8, rax",
            "rol r8, 7",
            "add r9, rbx",
            "add r10, rcx",
            "add r11, rdx",
            "dec edi",
            "jns 4b",
            "dec r12d",
            "jnz 3b",
            "dec esi",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let [exits, fast_paths] = cpuids(&vcpu);
    assert_eq!(exits + fast_paths, 10 * 0x10 * 3 * 2);
    // Some leaves replace others in the table, but few.
    assert!(exits < fast_paths / 2, "{exits} {fast_paths}");
}

#[test]
fn what_cpuid_says_of_osxsave_follows_cr4() {
    let vcpu = run_with(
        guest_code!(
            osxsave,
            "mov esi, 100",
            "2:",
            "mov rax, cr4",
            "btc rax, 18",
            "mov cr4, rax",
            "mov r9d, 10",
            "3:",
            "mov eax, 1",
            "cpuid",
            "bt ecx, 27",
            "adc r8, 0",
            "dec r9d",
            "jnz 3b",
            "dec esi",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[8], 500);
    let [exits, fast_paths] = cpuids(&vcpu);
    assert_eq!(exits + fast_paths, 1000);
    assert!(exits <= 120, "{exits}");
}

#[test]
fn writes_of_registers_that_cpuid_does_not_show_forget_no_answer() {
    let vcpu = run_with(
        guest_code!(
            other_registers,
            "mov esi, 100",
            "2:",
            // IA32_KERNEL_GS_BASE.
            "mov ecx, 0xc0000102",
            "rdmsr",
            "wrmsr",
            "mov eax, 1",
            "cpuid",
            "add r8, rdx",
            "dec esi",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let [exits, fast_paths] = cpuids(&vcpu);
    assert_eq!(exits + fast_paths, 100);
    assert!(exits <= 2, "{exits}");
}

#[test]
fn cpuid_says_how_large_the_area_is_that_xcr0_enables() {
    let vcpu = run_with(
        guest_code!(
            area_size,
            "mov esi, 20",
            "2:",
            "mov eax, esi",
            "and eax, 1",
            "lea eax, [rax*4 + 3]",
            "xor edx, edx",
            "xor ecx, ecx",
            "xsetbv",
            "mov eax, 0xd",
            "xor ecx, ecx",
            "cpuid",
            "add r8, rbx",
            "dec esi",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[8], 10 * (576 + 832));
}

/// Sets up a kernel like that of [`as_kernel`], which its program enters by SYSENTER.
fn with_program(state: &mut CpuState, memory: &mut GuestMemory) {
    as_kernel(state, memory);
    state.sysenter_cs = 0x10;
    state.sysenter_esp = KERNEL_STACK;
    state.sysenter_eip = CODE + 192;
    state.tr = Segment {
        base: 0x2_4000,
        limit: 0x67,
        selector: Selector(0x48),
        attributes: Attributes::from_bits_retain(0x8b),
    };
    memory.write_u64(PhysicalAddress(0x2_4004), 0x18 << 32 | KERNEL_STACK);
}

/// Executes `$rounds` calls of a program, each of which returns by IRETD after the kernel has
/// executed the given code. EDI is 1 in the last round. EBP combines the flags that the program
/// finds, and ESI counts the returns.
macro_rules! returns {
    ($name:ident, $rounds:literal, $($kernel:literal),* $(,)?) => {
        guest_code!(
            $name,
            ".code32",
            "mov eax, 0x2b",
            "mov ds, eax",
            "mov es, eax",
            "push 0x2b",
            "push 0x60000",
            "push 2",
            "push 0x43",
            "push 0x10000 + 64",
            "iretd",
            ".balign 64",
            concat!("mov ebx, ", $rounds),
            "xor esi, esi",
            "2: std",
            "sysenter",
            ".balign 64",
            "pushfd",
            "pop eax",
            "cld",
            "rol ebp, 1",
            "add ebp, eax",
            "inc esi",
            "dec ebx",
            "jnz 2b",
            "mov eax, fs",
            "mov edi, 1",
            "sysenter",
            ".balign 64",
            "cmp edi, 1",
            "je 4f",
            "add dword ptr [0x20000], 1",
            "push 0x2b",
            "push 0x60000",
            // The flags CF, PF, AF, ZF, SF, IF, DF and OF in turn.
            "mov eax, ebx",
            "imul eax, eax, 0x1357",
            "and eax, 0xed5",
            "or eax, 2",
            "push eax",
            "push 0x43",
            "push 0x10000 + 128",
            $($kernel,)*
            "iretd",
            "4: out 0xf4, al",
            ".code64",
        )
    };
}

fn returns_done(vcpu: &Computer<Bench>) -> [u64; 2] {
    [
        vcpu.exit_counts().get(ExitKind::Iret),
        vcpu.counts().fast_path(FastPath::Return),
    ]
}

#[test]
fn a_kernel_s_return_to_its_program_takes_no_exit_once_one_has_been_done() {
    let mut vcpu = run_with(returns!(many_returns, "1000",), with_program);
    let [exits, fast_paths] = returns_done(&vcpu);
    assert!(
        exits <= 6 && exits + fast_paths == 1001,
        "{exits} {fast_paths}"
    );
    assert_eq!([vcpu.state().gpr[RSI], vcpu.state().gpr[RDI]], [1000, 1]);
    assert_eq!(read_u64(&mut vcpu, DATA) & 0xffff_ffff, 1000);
}

#[test]
fn the_resume_flag_of_a_frame_needs_no_exit_either() {
    let code = returns!(resume_flag, "1000", "bts dword ptr [esp + 8], 16");
    let vcpu = run_with(code, with_program);
    assert!(returns_done(&vcpu)[0] <= 6, "{:?}", returns_done(&vcpu));
}

#[test]
fn frames_with_unusual_flags_are_the_monitor_s() {
    // The flags ID, AC and IOPL.
    for code in [
        returns!(identification, "300", "bts dword ptr [esp + 8], 21"),
        returns!(alignment_check, "300", "bts dword ptr [esp + 8], 18"),
        returns!(io_privilege, "300", "or dword ptr [esp + 8], 0x3000"),
    ] {
        let vcpu = run_with(code, with_program);
        assert!(returns_done(&vcpu)[0] >= 300, "{:?}", returns_done(&vcpu));
        assert_eq!(vcpu.state().gpr[RSI], 300);
    }
}

#[test]
fn a_data_segment_of_the_kernel_is_taken_away() {
    let code = returns!(
        kernel_segment,
        "300",
        "mov eax, 0x18",
        "test ebx, 1",
        "jz 3f",
        "mov fs, eax",
        "3:"
    );
    let vcpu = run_with(code, with_program);
    assert!(returns_done(&vcpu)[0] >= 150, "{:?}", returns_done(&vcpu));
    assert_eq!(vcpu.state().gpr[RAX] & 0xffff, 0);
}

#[test]
fn a_return_to_code_that_is_not_present_any_more_faults() {
    let code = returns!(
        absent_code,
        "300",
        "cmp ebx, 1",
        "jne 3f",
        "and byte ptr [0x21045], 0x7f",
        "3:"
    );
    let mut vcpu = run_with(code, with_program);
    let [vector, error, _, _] = caught_in_kernel(&mut vcpu);
    assert_eq!([vector, error], [11, 0x40]);
    assert_eq!(vcpu.state().gpr[RSI], 299);
}

#[test]
fn an_interrupt_that_waits_comes_before_the_program_s_next_instruction() {
    let code = returns!(
        waiting_interrupt,
        "100",
        "and dword ptr [esp + 8], 0xfffffdff",
        "cmp ebx, 1",
        "jne 3f",
        "mov al, 31",
        "out 0xf5, al",
        "or dword ptr [esp + 8], 0x200",
        "3:"
    );
    let mut vcpu = run_prepared(code, with_program);
    let rsp = vcpu.state().gpr[RSP];
    let [vector, eip, esp] = [0, 4, 16].map(|at| read_u64(&mut vcpu, rsp + at) & 0xffff_ffff);
    assert_eq!([vector, eip, esp], [31, CODE + 128, STACK]);
    assert_eq!(vcpu.state().gpr[RSI], 99);
}

#[test]
fn no_return_is_lost_or_done_twice_however_often_the_guest_is_interrupted() {
    let code = returns!(kicked_returns, "1000000",);
    let mut vcpu = vcpu(code, with_program);
    vcpu.run_kicked();
    assert_eq!(vcpu.state().gpr[RDI], 1, "{}", vcpu.dump());
    assert_eq!(vcpu.state().gpr[RSI], 1_000_000);
    assert_eq!(read_u64(&mut vcpu, DATA) & 0xffff_ffff, 1_000_000);
    assert_ne!(vcpu.exit_counts().get(ExitKind::Interrupted), 0);
}

#[test]
fn vector_registers_are_loaded_without_an_exit() {
    let vcpu = run_with(
        guest_code!(
            vector_loads,
            "fld1",
            "mov ebx, 1",
            "vmovd xmm0, ebx",
            "vpbroadcastd ymm0, xmm0",
            "vpxor ymm1, ymm1, ymm1",
            "mov ebx, 600",
            "2:",
            // An exit saves the registers.
            "out 0x80, al",
            "vpaddd ymm1, ymm1, ymm0",
            "stc",
            "out 0x80, al",
            "fadd st(0), st(0)",
            "adc rsi, 0",
            "mov eax, ebx",
            "and eax, 15",
            "jne 3f",
            "fninit",
            "fld1",
            "3:",
            // Some registers become initial, and are used again.
            "mov eax, ebx",
            "and eax, 63",
            "jne 4f",
            "vmovd edi, xmm1",
            "add rbp, rdi",
            "vzeroall",
            "out 0x80, al",
            "mov eax, 1",
            "vmovd xmm0, eax",
            "out 0x80, al",
            "vpbroadcastd ymm0, xmm0",
            "4:",
            "dec ebx",
            "jnz 2b",
            "vextracti128 xmm2, ymm1, 1",
            "vmovd edi, xmm2",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[RSI], 600);
    assert_eq!(vcpu.state().gpr[RDI], 63);
    assert_eq!(vcpu.exit_counts().get(ExitKind::VectorLoad), 0);
    assert!(vcpu.counts().fast_path(FastPath::Vectors) > 1200);
}
