//! Tests INT n and INT3 that a fast path delivers: what the fast path leaves to the monitor, that
//! it notices what the guest writes between two of them, and that no instruction is ever seen half
//! done. Each program also runs instruction by instruction, where the monitor delivers them, and
//! must have the same result. All emitted code is verified.

use crate::support::long_mode::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

const RBX: usize = 3;
const RSP: usize = 4;
const RBP: usize = 5;
const RSI: usize = 6;

/// Addresses of the gates, which have 16 bytes each, and of the TSS of the 64-bit guest.
const IDT: u64 = 0xa000;
const TASK: u64 = 0x9000;
/// Addresses of the handler of vector 80h, and of the program that it serves.
const HANDLER: u64 = CODE + 256;

/// The number of interrupts that were exits, and of those that a fast path delivered.
fn delivered(vcpu: &Computer<Bench>) -> [u64; 2] {
    [
        vcpu.exit_counts().get(ExitKind::SoftwareInterrupt),
        vcpu.counts().fast_path(FastPath::Interrupt),
    ]
}

/// Makes gate 80h lead to [`HANDLER`], also for programs.
fn with_gate(state: &mut CpuState, memory: &mut GuestMemory) {
    set_gate(memory, 0x80, HANDLER);
    memory.write(PhysicalAddress(IDT + 0x805), &[0xee]);
    // The fifth interrupt stack, in addition to RSP0.
    memory.write_u64(PhysicalAddress(TASK + 0x44), STACK - 0x4000);
    state.flags |= 0x200;
}

/// Sets up gate 80h, and makes the program run at level 3 without data segments.
fn with_program(state: &mut CpuState, memory: &mut GuestMemory) {
    with_gate(state, memory);
    as_user(state);
    state.flags &= !0x3000;
    for register in [
        SegmentRegister::Ds,
        SegmentRegister::Es,
        SegmentRegister::Fs,
        SegmentRegister::Gs,
    ] {
        *state.segment_mut(register) = Segment::null(Selector(0));
    }
}

/// Executes `$rounds` interrupts with different RFLAGS, RSP and registers, by code of level 0 or 3.
/// The handler combines its frame into RDI and counts in RSI. In the last round RBX is 1.
/// `$program` runs before each interrupt, `$handler` before each return.
macro_rules! rounds {
    ($name:ident, $rounds:literal, [$($program:literal),*], [$($handler:literal),*] $(,)?) => {
        guest_code!(
            $name,
            concat!("mov ebx, ", $rounds),
            "xor esi, esi",
            "2:",
            "mov eax, ebx",
            "and eax, 0x3f",
            "lea rsp, [rax*2 + 0x5ff00]",
            // The flags PF, ZF, SF, DF, OF and CF in turn.
            "imul eax, ebx, 0x1357",
            "and eax, 0xcd5",
            "or eax, 0x202",
            "push rax",
            "popfq",
            $($program,)*
            "int 0x80",
            "lahf",
            "movzx eax, ah",
            "rol rbp, 7",
            "add rbp, rax",
            "dec ebx",
            "jnz 2b",
            "mov edx, 0x77",
            "int 0x80",
            concat!(".org tollgate_test_", stringify!($name), "_start + 256"),
            "cmp edx, 0x77",
            "je 9f",
            "inc esi",
            "mov rax, rsp",
            "rol rdi, 5",
            "xor rdi, rax",
            "rol rdi, 5",
            "xor rdi, [rsp]",
            "rol rdi, 5",
            "xor rdi, [rsp + 8]",
            "rol rdi, 5",
            "xor rdi, [rsp + 16]",
            "rol rdi, 5",
            "xor rdi, [rsp + 24]",
            "rol rdi, 5",
            "xor rdi, [rsp + 32]",
            "mov eax, ss",
            "add rdi, rax",
            "mov eax, cs",
            "add rdi, rax",
            "pushfq",
            "pop rax",
            "rol rdi, 5",
            "xor rdi, rax",
            $($handler,)*
            "iretq",
            "9: mov al, 1",
            "out 0xf4, al",
        )
    };
}

#[test]
fn a_kernel_s_own_interrupts_take_no_exit_once_one_has_been_delivered() {
    let vcpu = run_with(rounds!(own, "1000", [], []), with_gate);
    let [exits, fast_paths] = delivered(&vcpu);
    assert!(
        exits <= 6 && exits + fast_paths == 1001,
        "{exits} {fast_paths}"
    );
    assert_eq!(vcpu.state().gpr[RSI], 1000);
}

#[test]
fn neither_do_those_of_its_programs() {
    let vcpu = run_with(rounds!(programs, "1000", [], []), with_program);
    let [exits, fast_paths] = delivered(&vcpu);
    assert!(
        exits <= 6 && exits + fast_paths == 1001,
        "{exits} {fast_paths}"
    );
    assert_eq!(vcpu.state().gpr[RSI], 1000);
    assert!(vcpu.exit_counts().total() < 200, "{:?}", vcpu.exit_counts());
}

#[test]
fn a_breakpoint_instruction_is_delivered_like_an_interrupt() {
    let vcpu = run_with(
        rounds!(gate_breakpoint, "500", ["int3"], []),
        |state, memory| {
            with_program(state, memory);
            set_gate(memory, 3, HANDLER);
            memory.write(PhysicalAddress(IDT + 0x35), &[0xee]);
        },
    );
    let [exits, fast_paths] = delivered(&vcpu);
    assert!(
        exits <= 10 && exits + fast_paths == 1001,
        "{exits} {fast_paths}"
    );
    assert_eq!(vcpu.state().gpr[RSI], 1000);
}

#[test]
fn what_the_guest_writes_to_gate_and_task_counts_at_the_next_interrupt() {
    // Interrupt and trap gates, with an interrupt stack and without, and another RSP0, which are
    // written through another linear page than that of the tables: the supervisor's alias of all
    // memory.
    let code = rounds!(
        rewritten,
        "600",
        [],
        [
            "mov rcx, 0xffffffff80000000",
            "mov eax, ebx",
            "shr eax, 1",
            "and eax, 1",
            "or al, 0xee",
            "mov [rcx + 0xa805], al",
            "mov eax, ebx",
            "shr eax, 2",
            "and eax, 1",
            "imul eax, eax, 5",
            "mov [rcx + 0xa804], al",
            "mov eax, ebx",
            "and eax, 0x38",
            "neg rax",
            "add rax, 0x70000",
            "mov [rcx + 0x9004], rax"
        ],
    );
    for setup in [with_gate, with_program] {
        let vcpu = run_with(code, setup);
        assert_eq!(vcpu.state().gpr[RSI], 600);
    }
}

#[test]
fn what_is_written_back_is_known_again() {
    // The gate is a trap gate in every 16th round.
    let code = rounds!(
        mostly,
        "1000",
        [],
        [
            "mov eax, ebx",
            "and eax, 15",
            "cmp eax, 1",
            "mov al, 0xee",
            "jne 3f",
            "mov al, 0xef",
            "3: mov [0xa805], al"
        ],
    );
    let vcpu = run_with(code, |state, memory| {
        with_gate(state, memory);
        state.gpr[RBP] = 1;
    });
    let [exits, fast_paths] = delivered(&vcpu);
    assert!(
        exits < 150 && exits + fast_paths == 1001,
        "{exits} {fast_paths}"
    );
}

#[test]
fn other_tables_are_other_handlers() {
    // IDTR and TR change to other tables in every round.
    let code = rounds!(
        tables,
        "400",
        [],
        [
            "xor dword ptr [0x20802], 0xa000 ^ 0x29000",
            "lidt [0x20800]",
            "mov eax, 0x30",
            "test ebx, 1",
            "jz 3f",
            "mov eax, 0x48",
            "3: mov byte ptr [0x8035], 0x89",
            "mov byte ptr [0x804d], 0x89",
            "ltr ax"
        ],
    );
    let vcpu = run_with(code, |state, memory| {
        with_program(state, memory);
        let address = |at: u64| PhysicalAddress(at);
        memory.write_u64(address(0x2_0800), IDT << 16 | 0xfff);
        for at in (0..0x1000).step_by(8) {
            let value = memory.read_u64(address(IDT + at));
            memory.write_u64(address(0x2_9000 + at), value);
        }
        // In the other tables the gate is a trap gate, and the other TSS has another stack.
        memory.write(address(0x2_9805), &[0xef]);
        memory.write_u64(address(0x8048), 0x0000_8902_b000_0067);
        memory.write_u64(address(0x8050), 0);
        state.gdtr.limit = 0x57;
        memory.write_u64(address(0x2_b004), STACK - 0x8008);
    });
    assert_eq!(vcpu.state().gpr[RSI], 400);
}

/// The exception and the number of completed rounds of a program whose 300th interrupt finds the
/// kernel's tables as `$change`, run in the handler before, has left them.
macro_rules! refused {
    ($name:ident, [$($change:literal),*]) => {{
        let code = rounds!($name, "300", [], ["cmp ebx, 2", "jne 3f", $($change,)* "3:"]);
        let mut vcpu = run_with(code, |state, memory| {
            with_program(state, memory);
            // The stack for exceptions is present.
            for vector in 8..15u64 {
                memory.write(PhysicalAddress(IDT + vector * 16 + 4), &[5]);
            }
        });
        assert_eq!(vcpu.state().gpr[RSI], 299);
        let found = caught(&mut vcpu);
        (found.vector, found.error)
    }};
}

#[test]
fn an_interrupt_that_faults_changes_nothing() {
    // These are #GP of the gate, which programs may not use or which is not a gate; #NP; #GP and
    // #NP of the gate's code segment.
    let found = refused!(private, ["mov byte ptr [0xa805], 0x8e"]);
    assert_eq!(found, (13, Some(0x402)));
    let found = refused!(no_gate, ["mov byte ptr [0xa805], 0xe9"]);
    assert_eq!(found, (13, Some(0x402)));
    let found = refused!(absent_gate, ["mov byte ptr [0xa805], 0x6e"]);
    assert_eq!(found, (11, Some(0x402)));
    // The other vectors use another descriptor, because this one must fail.
    let found = refused!(not_code, ["mov byte ptr [0xa802], 0x10"]);
    assert_eq!(found, (13, Some(0x10)));
    let found = refused!(gate_beyond, ["mov byte ptr [0xa802], 0x60"]);
    assert_eq!(found, (13, Some(0x60)));
    // A stack that is not present, is read-only, or is at a non-canonical address.
    let found = refused!(no_stack, ["mov qword ptr [0x9004], 0x1002ff8"]);
    assert_eq!(found, (14, Some(2)));
    let found = refused!(gate_straddling, ["mov qword ptr [0x9004], 0x1003010"]);
    assert_eq!(found, (14, Some(3)));
    let found = refused!(
        gate_not_canonical,
        ["mov rax, 0x800000000000", "mov [0x9004], rax"]
    );
    assert_eq!(found, (12, Some(0)));
}

#[test]
fn frames_that_two_pages_hold_are_whole() {
    let code = rounds!(
        gate_two_pages,
        "300",
        ["lea rsp, [rbx*8 + 0x1000c00]"],
        [
            "mov eax, ebx",
            "and eax, 0x1f",
            "lea rax, [rax*4 + 0x1000fe0]",
            "mov [0x9004], rax"
        ],
    );
    for setup in [with_gate, with_program] {
        let vcpu = run_with(code, |state, memory| {
            setup(state, memory);
            // RSP0 and RSP are in the two small pages, which are apart in RAM.
            let top = SMALL + 0x1010;
            memory.write_u64(PhysicalAddress(TASK + 4), top);
        });
        assert_eq!(vcpu.state().gpr[RSI], 300);
    }
}

#[test]
fn flags_that_an_interrupt_clears_or_keeps_are_the_monitor_s() {
    // NT and AC need an exit; ID and IOPL do not.
    for (flags, is_fast_path) in [(0x4000, false), (0x4_0000, false), (0x20_3000, true)] {
        let code = rounds!(unusual, "300", ["pushfq", "or [rsp], r9", "popfq"], []);
        let vcpu = run_with(code, |state, memory| {
            with_gate(state, memory);
            state.gpr[9] = flags;
        });
        let [exits, fast_paths] = delivered(&vcpu);
        assert_eq!(
            fast_paths > 250,
            is_fast_path,
            "{flags:#x}: {exits} {fast_paths}"
        );
        assert_eq!(vcpu.state().gpr[RSI], 300);
    }
}

#[test]
fn no_interrupt_is_lost_or_done_twice_however_often_the_guest_is_interrupted() {
    let code = rounds!(gate_kicked, "4000000", [], []);
    for setup in [with_gate, with_program] {
        let mut vcpu = vcpu(code, setup);
        vcpu.run_kicked();
        let [rbx, rsi] = [RBX, RSI].map(|register| vcpu.state().gpr[register]);
        assert_eq!([rbx, rsi], [0, 4_000_000], "{}", vcpu.dump());
        assert_ne!(vcpu.exit_counts().get(ExitKind::Interrupted), 0);
    }
}

/// Addresses of the tables of the 32-bit guest.
const NARROW_GDT: u64 = 0x2_1000;
const NARROW_IDT: u64 = 0x2_3000;
const NARROW_TASK: u64 = 0x2_4000;

/// Sets up a 32-bit program without paging, whose kernel's data segment is 18h. 28h is another data
/// segment, 30h is not present, and 38h is a 16-bit segment. The kernel has a stack for each.
fn narrow(state: &mut CpuState, memory: &mut GuestMemory) {
    *state = flat_state(CODE);
    state.gpr[RSP] = STACK;
    (state.gdtr.base, state.gdtr.limit) = (NARROW_GDT, 0x4f);
    (state.idtr.base, state.idtr.limit) = (NARROW_IDT, 0x407);
    let descriptors = [
        0,
        0,
        0x00cf_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_f300_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_1300_0000_ffff,
        0x008f_9300_0000_ffff,
        0x00cf_fb00_0000_ffff,
    ];
    for (index, descriptor) in descriptors.into_iter().enumerate() {
        memory.write_u64(PhysicalAddress(NARROW_GDT + index as u64 * 8), descriptor);
    }
    for vector in 0..=128 {
        let (handler, rights) = match vector {
            128 => (HANDLER, 0xee00),
            _ => (0xc000 + vector * 8, 0x8e00),
        };
        let gate = handler & 0xffff | 0x10 << 16 | rights << 32 | handler >> 16 << 48;
        memory.write_u64(PhysicalAddress(NARROW_IDT + vector * 8), gate);
    }
    state.tr = Segment {
        base: NARROW_TASK,
        limit: 0x67,
        selector: Selector(0x48),
        attributes: Attributes::from_bits_retain(0x8b),
    };
    memory.write_u64(PhysicalAddress(NARROW_TASK + 4), 0x18 << 32 | KERNEL_STACK);
    for register in SegmentRegister::ALL {
        state.segment_mut(register).selector = Selector(0x23);
        state.segment_mut(register).attributes = Attributes::from_bits_retain(0xc0f3);
    }
    let code = state.segment_mut(SegmentRegister::Cs);
    code.selector = Selector(0x43);
    code.attributes = Attributes::from_bits_retain(0xc0fb);
    state.flags |= 0x200;
}

/// Executes interrupts of a 32-bit program, as [`rounds`] does. The handler uses the program's data
/// segment.
macro_rules! narrow_rounds {
    ($name:ident, $rounds:literal, [$($handler:literal),*] $(,)?) => {
        guest_code!(
            $name,
            ".code32",
            concat!("mov ebx, ", $rounds),
            "xor esi, esi",
            "2:",
            "mov eax, ebx",
            "and eax, 0x3f",
            "lea esp, [eax*2 + 0x5ff00]",
            "imul eax, ebx, 0x1357",
            "and eax, 0xcd5",
            "or eax, 0x202",
            "push eax",
            "popfd",
            "int 0x80",
            "lahf",
            "movzx eax, ah",
            "rol ebp, 7",
            "add ebp, eax",
            "dec ebx",
            "jnz 2b",
            "mov edx, 0x77",
            "int 0x80",
            concat!(".org tollgate_test_", stringify!($name), "_start + 256"),
            "cmp edx, 0x77",
            "je 9f",
            "inc esi",
            "mov eax, esp",
            "rol edi, 5",
            "xor edi, eax",
            "rol edi, 5",
            "xor edi, [esp]",
            "rol edi, 5",
            "xor edi, [esp + 4]",
            "rol edi, 5",
            "xor edi, [esp + 8]",
            "rol edi, 5",
            "xor edi, [esp + 12]",
            "rol edi, 5",
            "xor edi, [esp + 16]",
            "mov eax, ss",
            "add edi, eax",
            "mov eax, cs",
            "add edi, eax",
            "pushfd",
            "pop eax",
            "rol edi, 5",
            "xor edi, eax",
            $($handler,)*
            "iretd",
            "9: mov al, 1",
            "out 0xf4, al",
            ".code64",
        )
    };
}

#[test]
fn a_32_bit_program_s_interrupts_take_no_exit_once_one_has_been_delivered() {
    let vcpu = run_with(narrow_rounds!(narrow_many, "1000", []), narrow);
    let [exits, fast_paths] = delivered(&vcpu);
    assert!(
        exits <= 6 && exits + fast_paths == 1001,
        "{exits} {fast_paths}"
    );
    assert_eq!(vcpu.state().gpr[RSI], 1000);
    assert!(vcpu.exit_counts().total() < 200, "{:?}", vcpu.exit_counts());
}

#[test]
fn what_a_32_bit_kernel_writes_to_gate_and_task_counts_at_the_next_interrupt() {
    // Interrupt and trap gates, two stack segments, and another ESP0.
    let code = narrow_rounds!(
        narrow_rewritten,
        "800",
        [
            "mov eax, ebx",
            "shr eax, 1",
            "and eax, 1",
            "or al, 0xee",
            "mov [0x23405], al",
            "mov eax, ebx",
            "shr eax, 3",
            "and eax, 0x10",
            "add eax, 0x18",
            "mov [0x24008], ax",
            "mov eax, ebx",
            "and eax, 0x3f",
            "neg eax",
            "add eax, 0x70000",
            "mov [0x24004], eax"
        ],
    );
    let vcpu = run_with(code, narrow);
    assert_eq!(vcpu.state().gpr[RSI], 800);
    let [exits, fast_paths] = delivered(&vcpu);
    assert!(fast_paths > 200, "{exits} {fast_paths}");
}

/// Vector and error code of the exception in a 32-bit program, as [`refused`] finds it.
macro_rules! narrow_refused {
    ($name:ident, [$($change:literal),*]) => {{
        let code = narrow_rounds!($name, "300", ["cmp ebx, 2", "jne 3f", $($change,)* "3:"]);
        let vcpu = run_prepared(code, |state, memory| {
            narrow(state, memory);
            // Exceptions use another task's stack, because this task's stack must fail.
            for vector in 10..15u64 {
                let gate = NARROW_IDT + vector * 8;
                memory.write_u64(PhysicalAddress(gate), 0x0000_8500_0050_0000);
            }
            memory.write_u64(PhysicalAddress(NARROW_GDT + 0x50), 0x0000_8902_5000_0067);
            memory.write_u64(PhysicalAddress(NARROW_GDT + 0x48), 0x0000_8b02_4000_0067);
            state.gdtr.limit = 0x57;
            let mut put = |at: u64, value: u64| {
                memory.write(PhysicalAddress(0x2_5000 + at), &(value as u32).to_le_bytes());
            };
            // mov al, 1; out 0xf4, al
            put(0x20, 0x2_6000);
            put(0x24, 2);
            put(0x38, 0x6_8000);
            for (at, selector) in [(0x48, 0x28), (0x4c, 0x10), (0x50, 0x28), (0x54, 0x28)] {
                put(at, selector);
            }
            memory.write(PhysicalAddress(0x2_6000), &[0xb0, 1, 0xe6, 0xf4, 0xf4]);
        });
        let mut vcpu = vcpu;
        assert_eq!(read_u64(&mut vcpu, NARROW_TASK + 0x40) as u32, 299);
        assert_eq!(vcpu.state().tr.selector.0, 0x50, "{}", vcpu.dump());
        // The old task is exactly before the instruction, and the error code is on the new stack.
        let eip = read_u64(&mut vcpu, NARROW_TASK + 0x20) as u32;
        let bytes = read_u64(&mut vcpu, u64::from(eip)) & 0xffff;
        assert_eq!(bytes, 0x80cd);
        read_u64(&mut vcpu, 0x6_7ffc) as u32
    }};
}

#[test]
fn a_32_bit_program_s_interrupt_that_faults_changes_nothing() {
    assert_eq!(
        narrow_refused!(n_private, ["mov byte ptr [0x23405], 0x8e"]),
        0x402
    );
    assert_eq!(
        narrow_refused!(n_gate_absent, ["mov byte ptr [0x23405], 0x6e"]),
        0x402
    );
    assert_eq!(
        narrow_refused!(n_task, ["mov word ptr [0x24008], 0x30"]),
        0x30
    );
    assert_eq!(
        narrow_refused!(n_gate_level, ["mov word ptr [0x24008], 0x23"]),
        0x20
    );
    assert_eq!(
        narrow_refused!(n_gate_null, ["mov word ptr [0x24008], 0"]),
        0
    );
    assert_eq!(
        narrow_refused!(n_gone, ["and byte ptr [0x2101d], 0x7f"]),
        0x18
    );
}

#[test]
fn a_16_bit_stack_of_the_kernel_is_the_monitor_s() {
    let code = narrow_rounds!(narrow_stack, "200", ["mov word ptr [0x24008], 0x38"],);
    let vcpu = run_with(code, narrow);
    let [exits, fast_paths] = delivered(&vcpu);
    assert!(fast_paths == 0, "{exits} {fast_paths}");
    assert_eq!(vcpu.state().gpr[RSI], 200);
}

#[test]
fn no_interrupt_of_a_32_bit_program_is_lost_or_done_twice() {
    let mut vcpu = vcpu(narrow_rounds!(narrow_kicked, "4000000", []), narrow);
    vcpu.run_kicked();
    let [rbx, rsi] = [RBX, RSI].map(|register| vcpu.state().gpr[register]);
    assert_eq!([rbx, rsi], [0, 4_000_000], "{}", vcpu.dump());
    assert_ne!(vcpu.exit_counts().get(ExitKind::Interrupted), 0);
}
