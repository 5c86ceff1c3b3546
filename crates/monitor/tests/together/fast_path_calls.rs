//! Tests instructions that translated code executes by calling a function of the monitor: their
//! results, when the exit must be taken, and that no void data is used after them. Each program
//! also runs instruction by instruction, and must have the same result. All emitted code is
//! verified.

use crate::support::fast_path_time::assert_timed_apart;
use crate::support::long_mode::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_test_support::{Computer, flat_state, memory_access};
use tollgate_x86::{CpuState, PhysicalAddress};

const RAX: usize = 0;
const RBX: usize = 3;
const RSI: usize = 6;
const RDI: usize = 7;

fn invalidations(vcpu: &Computer<Bench>) -> [u64; 2] {
    counts(vcpu, ExitKind::Invlpg, FastPath::Invlpg)
}

fn of_registers(vcpu: &Computer<Bench>) -> [u64; 2] {
    counts(vcpu, ExitKind::Msr, FastPath::Msr)
}

fn of_control(vcpu: &Computer<Bench>) -> [u64; 2] {
    counts(vcpu, ExitKind::ControlRegister, FastPath::ControlRegister)
}

#[test]
fn an_invalidated_page_of_data_is_looked_up_anew_without_an_exit() {
    let vcpu = run_with(
        guest_code!(
            invalidated_data,
            "mov ebx, 1000",
            "xor edi, edi",
            "mov rsi, [0x7000]", // the entries of both small pages
            "mov rdx, [0x7008]",
            "2:",
            "xchg rsi, rdx",
            "mov [0x7000], rsi",
            "stc",
            "invlpg [0x1000000]",
            "adc rdi, [0x1000000]",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        with_small_pages,
    );
    assert_eq!(vcpu.state().gpr[RDI], 1000 * 2 + 500 + 500 * 2 - 1000);
    let [exits, fast_paths] = invalidations(&vcpu);
    assert!(exits < 3, "{exits}");
    assert!(fast_paths > 990, "{fast_paths}");
    assert_timed_apart(&vcpu, &[ExitKind::Invlpg]);
}

#[test]
fn an_invalidated_page_of_code_takes_an_exit_and_the_new_code_runs() {
    let vcpu = run_with(
        guest_code!(
            invalidated_code,
            "mov ebx, 10",
            "xor edi, edi",
            "mov rsi, [0x7000]",
            "mov rdx, [0x7008]",
            "mov ecx, 0x1000000",
            "2:",
            "xchg rsi, rdx",
            "mov [0x7000], rsi",
            "invlpg [rcx]",
            "call rcx",
            "add rdi, rax",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, memory| {
            for (number, page) in (1..).zip(SMALL_RAM) {
                // mov eax, number; ret
                let code = [0xb8, number, 0, 0, 0, 0xc3];
                memory.write(PhysicalAddress(page), &code);
            }
        },
    );
    assert_eq!(vcpu.state().gpr[RDI], 5 + 5 * 2);
    let [exits, fast_paths] = invalidations(&vcpu);
    // Before the first call nothing was fetched from the page.
    assert!(fast_paths <= 1, "{fast_paths}");
    assert!(exits >= 9, "{exits}");
}

#[test]
fn an_invalidation_in_a_large_page_reaches_all_of_it() {
    let vcpu = run_with(
        guest_code!(
            invalidated_large,
            "mov rsi, [0x5010]", // the entries of 4 MiB and of 6 MiB
            "mov rdx, [0x5018]",
            "mov rcx, 0xffffffff80400000",
            "mov ebx, 10",
            "xor edi, edi",
            "2:",
            "xchg rsi, rdx",
            "mov [0x5010], rsi",
            "mov rax, [rcx+0x1ff000]", // either
            "invlpg [rcx+0x3000]",
            "add rdi, [rcx]",
            "add rdi, [rcx+0x1ff000]",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, memory| {
            for (number, large) in [(1, 0x40_0000), (0x100, 0x60_0000)] {
                memory.write_u64(PhysicalAddress(large), number);
                memory.write_u64(PhysicalAddress(large + 0x1f_f000), number * 2);
            }
        },
    );
    assert_eq!(vcpu.state().gpr[RDI], 5 * 3 + 5 * 0x300);
}

#[test]
fn an_invalidation_by_a_program_is_general_protection() {
    let mut vcpu = run_with(
        guest_code!(invalidated_by_user, "invlpg [0x1000000]", "out 0xf4, al"),
        |state, _| as_user(state),
    );
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (13, Some(0), 0));
}

#[test]
fn registers_of_plain_state_are_read_and_written_without_an_exit() {
    let vcpu = run_with(
        guest_code!(
            plain_registers,
            "mov ebx, 100",
            "xor edi, edi",
            "2:",
            "mov ecx, 0xc0000100", // IA32_FS_BASE: 1000000h, then behind it
            "xor edx, edx",
            "mov eax, 0x1000000",
            "wrmsr",
            "add rdi, fs:[0]",
            "add eax, 0x1000",
            "wrmsr",
            "add rdi, fs:[0]",
            "inc ecx", // IA32_GS_BASE
            "mov edx, 0xffff8880",
            "xor eax, eax",
            "wrmsr",
            "mov esi, gs:[0x300000]",
            "add rdi, rsi",
            "xor edx, edx",
            "stc",
            "rdmsr",
            "adc rdi, rdx",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        with_small_pages,
    );
    assert_eq!(vcpu.state().gpr[RDI], 100 * (1 + 2 + 1 + 1 + 0xffff_8880));
    assert_eq!(vcpu.state().gpr[RAX], 0);
    assert_eq!(of_registers(&vcpu), [0, 400]);
    assert_timed_apart(&vcpu, &[ExitKind::Msr]);
}

#[test]
fn a_base_that_is_not_canonical_is_refused_and_nothing_is_changed() {
    let mut vcpu = run_with(
        guest_code!(
            refused_base,
            "mov ecx, 0xc0000102",
            "mov eax, 0x1234",
            "xor edx, edx",
            "wrmsr",
            "mov edx, 0x8000",
            "3: wrmsr",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (13, Some(0), 19));
    assert_eq!(vcpu.state().kernel_gs_base, 0x1234);
    assert_eq!(of_registers(&vcpu), [1, 1]);
}

#[test]
fn a_program_has_no_access_to_registers() {
    let mut vcpu = run_with(
        guest_code!(user_reads, "mov ecx, 0xc0000100", "rdmsr", "out 0xf4, al"),
        |state, _| as_user(state),
    );
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (13, Some(0), 5));
}

#[test]
fn a_register_that_is_not_there_faults() {
    let mut vcpu = run_with(
        guest_code!(
            absent_register,
            "mov ecx, 0x12345678",
            "rdmsr",
            "out 0xf4, al"
        ),
        |_, _| {},
    );
    assert_eq!(caught(&mut vcpu).vector, 13);
}

#[test]
fn system_calls_go_where_the_register_written_last_says() {
    let vcpu = run_with(
        guest_code!(
            moved_system_call,
            "mov ecx, 0xc0000081", // IA32_STAR
            "xor eax, eax",
            "mov edx, 0x00180008",
            "wrmsr",
            "mov ecx, 0xc0000084", // IA32_FMASK
            "mov eax, 0x47fd5",
            "xor edx, edx",
            "wrmsr",
            "mov ebx, 30",
            "xor edi, edi",
            "lea rsi, [rip+7f]",
            "lea rbp, [rip+8f]",
            "2:",
            "xchg rsi, rbp",
            "mov eax, esi",
            "xor edx, edx",
            "mov ecx, 0xc0000082", // IA32_LSTAR
            "wrmsr",
            "syscall",
            "syscall",
            "syscall",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            "7: add edi, 1; jmp rcx",
            "8: add edi, 0x100; jmp rcx",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[RDI], 45 + 45 * 0x100);
    assert_eq!(of_registers(&vcpu)[1], 32);
}

#[test]
fn vector_registers_survive_what_needs_the_host_s() {
    let vcpu = run_with(
        guest_code!(
            around_vectors,
            "mov ebx, 50",
            "xor edi, edi",
            "2:",
            "movd xmm3, ebx",
            "pslldq xmm3, 4",
            "mov ecx, 0xc0000102",
            "rdmsr",
            "rdmsr",
            "invlpg [0x1000000]",
            "psrldq xmm3, 4",
            "movd esi, xmm3",
            "add edi, esi",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[RDI], 50 * 51 / 2);
}

#[test]
fn control_registers_that_stay_as_they_are_take_no_exit() {
    let vcpu = run_with(
        guest_code!(
            same_control,
            "mov ebx, 100",
            "2:",
            "mov rax, cr0",
            "mov cr0, rax",
            "mov rsi, cr4",
            "mov cr4, rsi",
            "mov r9d, ebx",
            "mov cr2, r9",
            "mov rdi, cr2",
            "clts",
            "wbinvd",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(of_control(&vcpu), [0, 300]);
    assert_eq!(vcpu.exit_counts().get(ExitKind::OtherInstruction), 0);
    assert_eq!((vcpu.state().cr2, vcpu.state().gpr[RDI]), (1, 1));
    assert_timed_apart(&vcpu, &[ExitKind::ControlRegister]);
}

#[test]
fn control_registers_that_change_take_effect() {
    let mut vcpu = run_with(
        guest_code!(
            changed_control,
            "mov rsi, [0x7000]",
            "mov rdx, [0x7008]",
            "mov rdi, [0x1000000]",
            "mov [0x7000], rdx",
            "mov rax, cr4",
            "xor eax, 0x80", // PGE
            "mov cr4, rax",
            "add rdi, [0x1000000]",
            "mov rax, cr0",
            "or eax, 8", // TS
            "mov cr0, rax",
            "clts",
            "fninit",
            "mov cr0, rax",
            "3: fninit",
            "out 0xf4, al",
        ),
        with_small_pages,
    );
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error), (7, None));
    assert_eq!(vcpu.state().gpr[RDI], 3);
    assert_eq!(of_control(&vcpu)[1], 0);
}

#[test]
fn clts_and_wbinvd_of_a_program_are_general_protection() {
    for code in [[0x0f, 0x06], [0x0f, 0x09], [0x0f, 0x08]] {
        let mut vcpu = run_with(&code, |state, _| as_user(state));
        let caught = caught(&mut vcpu);
        assert_eq!((caught.vector, caught.error, caught.at), (13, Some(0), 0));
    }
}

#[test]
fn a_load_of_the_same_table_takes_no_exit() {
    let vcpu = run_with(
        guest_code!(
            same_tables,
            "sgdt [0x20000]",
            "sidt [0x20010]",
            "mov ebx, 100",
            "2:",
            "lgdt [0x20000]",
            "lidt [0x20010]",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let [exits, fast_paths] = counts(&vcpu, ExitKind::OtherInstruction, FastPath::Other);
    assert!(fast_paths >= 198, "{fast_paths}");
    // The first instruction fills the page of the operands.
    assert!(exits <= 4, "{exits}");
}

#[test]
fn an_interrupt_goes_through_the_table_that_was_loaded_last() {
    let vcpu = run_with(
        guest_code!(
            other_interrupts,
            "sidt [0x20000]",
            // A second table begins one gate further on: its INT 40h is the INT 41h of the first
            // one.
            "mov rax, [0x20002]",
            "mov cx, [0x20000]",
            "mov [0x20010], cx",
            "lea rdx, [rax + 16]",
            "mov [0x20012], rdx",
            "lea rdx, [rip + 4f]",
            "call 6f",
            "lea rdx, [rip + 5f]",
            "add rax, 16",
            "call 6f",
            "mov ebx, 30",
            "xor edi, edi",
            "2:",
            "lidt [0x20010]",
            "int 0x40",
            "lidt [0x20000]",
            "int 0x40",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            "4: inc edi",
            "iretq",
            "5: add edi, 0x100",
            "iretq",
            // Writes a gate for vector 40h at RAX, which leads to RDX.
            "6:",
            "mov rsi, rdx",
            "mov [rax + 0x400], dx",
            "mov ecx, cs",
            "mov [rax + 0x402], cx",
            "mov word ptr [rax + 0x404], 0x8e00",
            "shr rsi, 16",
            "mov [rax + 0x406], si",
            "shr rsi, 16",
            "mov [rax + 0x408], rsi",
            "ret",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[RDI], 30 * 0x101, "{}", vcpu.dump());
    let [exits, fast_paths] = counts(&vcpu, ExitKind::OtherInstruction, FastPath::Other);
    assert!(fast_paths >= 58, "{fast_paths}");
    assert!(exits <= 4, "{exits}");
}

/// Sets up a 32-bit kernel without paging, with a descriptor table in which segment 18h is flat and
/// 20h begins at 22000h, and another table in which 20h begins at 22008h.
fn as_kernel(state: &mut CpuState, memory: &mut GuestMemory) {
    *state = flat_state(CODE);
    state.gpr[4] = STACK;
    (state.gdtr.base, state.gdtr.limit) = (0x2_1000, 0x27);
    for (table, base) in [(0x2_1000, 0x2000), (0x2_1800, 0x2008)] {
        let descriptors = [
            0,
            0,
            0x00cf_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x00cf_9302_0000_ffff | base << 16,
        ];
        for (index, descriptor) in descriptors.into_iter().enumerate() {
            memory.write_u64(PhysicalAddress(table + index as u64 * 8), descriptor);
        }
        let pointer = 0x2_3000 + (table & 0x800);
        memory.write_u64(PhysicalAddress(pointer), 0x27 | table << 16);
    }
    memory.write_u64(PhysicalAddress(0x2_2000), 1);
    memory.write_u64(PhysicalAddress(0x2_2008), 0x100);
}

#[test]
fn segments_are_loaded_from_the_table_that_was_loaded_last() {
    let vcpu = run_with(
        guest_code!(
            call_other_table,
            ".code32",
            "mov ebx, 20",
            "xor edi, edi",
            "mov esi, 0x23000",
            "mov eax, 0x20",
            "2:",
            "lgdt [esi]",
            "mov fs, eax",
            "add edi, fs:[0]",
            "lgdt [esi]",
            "mov fs, eax",
            "add edi, fs:[0]",
            "xor esi, 0x800",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            ".code64",
        ),
        as_kernel,
    );
    assert_eq!(vcpu.state().gpr[RDI], 20 + 20 * 0x100);
    let [_, fast_paths] = counts(&vcpu, ExitKind::OtherInstruction, FastPath::Other);
    assert!(fast_paths >= 38, "{fast_paths}");
}

#[test]
fn a_32_bit_kernel_reads_and_writes_registers_without_an_exit() {
    let vcpu = run_with(
        guest_code!(
            narrow_registers,
            ".code32",
            "mov ebx, 100",
            "xor edi, edi",
            "mov ecx, 0x174", // IA32_SYSENTER_CS
            "2:",
            "mov eax, ebx",
            "mov edx, ebx",
            "wrmsr",
            "rdmsr",
            "add edi, eax",
            "mov esi, edx",
            "invlpg [edi]",
            "mov cr2, edi",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
            ".code64",
        ),
        as_kernel,
    );
    assert_eq!(vcpu.state().gpr[RDI], 100 * 101 / 2);
    assert_eq!((vcpu.state().gpr[RSI], vcpu.state().gpr[RBX]), (0, 0));
    assert_eq!(vcpu.state().sysenter_cs, 1);
    assert_eq!(of_registers(&vcpu), [0, 200]);
    assert_eq!(vcpu.state().cr2, 100 * 101 / 2);
}

#[test]
fn the_trap_flag_strikes_behind_each() {
    let mut vcpu = run_with(
        guest_code!(
            trapped,
            "pushfq",
            "or dword ptr [rsp], 0x100",
            "mov ecx, 0xc0000100",
            "popfq",
            "rdmsr",
            "nop",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let caught = caught(&mut vcpu);
    // The trap comes after RDMSR: the POPF that sets TF does not trap itself.
    assert_eq!((caught.vector, caught.at), (1, 16));
}

/// Whether operands are looked up. Operands that are accessed directly have no misses.
fn looks_up() -> bool {
    memory_access() == MemoryAccess::Checked
}

fn misses(vcpu: &Computer<Bench>) -> [[u64; 2]; 2] {
    [
        counts(vcpu, ExitKind::TlbMissRead, FastPath::ReadMiss),
        counts(vcpu, ExitKind::TlbMissWrite, FastPath::WriteMiss),
    ]
}

#[test]
fn pages_are_filled_without_an_exit_and_flags_and_registers_stay() {
    let vcpu = run_with(
        guest_code!(
            filled_pages,
            "mov ebx, 100",
            "xor edi, edi",
            "xor r8d, r8d",
            "mov r11d, 7",
            "2:",
            "stc",
            "invlpg [0x1000000]",
            "adc [0x1000000], r11",
            "invlpg [0x1001000]",
            "stc",
            "mov rax, [0x1001000]",
            "adc rdi, rax",
            "add r8, r11",
            "dec ebx",
            "jnz 2b",
            "mov rsi, [0x1000000]",
            "out 0xf4, al",
        ),
        with_small_pages,
    );
    let state = vcpu.state();
    assert_eq!((state.gpr[RDI], state.gpr[RSI]), (300, 801));
    assert_eq!((state.gpr[8], state.gpr[11]), (700, 7));
    let [[read_exits, reads], [write_exits, writes]] = misses(&vcpu);
    assert_eq!((read_exits, write_exits), (0, 0));
    assert!(
        !looks_up() || reads >= 100 && writes >= 100,
        "{reads} {writes}"
    );
    if looks_up() {
        assert_timed_apart(&vcpu, &[ExitKind::TlbMissRead, ExitKind::TlbMissWrite]);
    }
}

#[test]
fn a_miss_that_is_a_page_fault_is_delivered_before_its_instruction() {
    let mut vcpu = run_with(
        guest_code!(
            faulting_miss,
            "mov eax, 5",
            "stc",
            "3: adc [0x1002000], rax",
            "out 0xf4, al",
        ),
        with_small_pages,
    );
    let state = vcpu.state();
    assert_eq!((state.cr2, state.gpr[RAX]), (0x100_2000, 5));
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (14, Some(2), 6));
}

#[test]
fn a_walk_that_changes_code_in_a_page_table_has_the_new_code_run() {
    let vcpu = run_with(
        guest_code!(
            table_with_code,
            // mov al, 7; ret. All bytes except the first are in the page-table entry of SMALL +
            // 5000h.
            "mov byte ptr [0x7027], 0xb0",
            "mov dword ptr [0x7028], 0x30c307",
            "mov dword ptr [0x702c], 0",
            "mov ecx, 0x7027",
            "call rcx",
            "call rcx",
            "movzx esi, al",
            "mov edx, [0x1005000]", // sets the accessed bit
            "call rcx",
            "movzx edi, al",
            "mov [0x1005000], edx", // and the dirty one
            "call rcx",
            "movzx eax, al",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let gpr = vcpu.state().gpr;
    assert_eq!([gpr[RSI], gpr[RDI], gpr[RAX]], [7, 0x27, 0x67]);
}

fn others(vcpu: &Computer<Bench>) -> [u64; 2] {
    counts(vcpu, ExitKind::OtherInstruction, FastPath::Other)
}

#[test]
fn what_reads_descriptors_and_system_registers_gives_what_the_monitor_gives() {
    let vcpu = run_with(
        guest_code!(
            reading,
            "mov ebx, 40",
            "xor edi, edi",
            "2:",
            "mov eax, 0x10", // data of level 0
            "stc",
            "verw ax",
            "setz sil",
            "adc rdi, 0",
            "mov eax, 0x8", // code cannot be written
            "verw ax",
            "setz r9b",
            "verr ax",
            "setz r10b",
            "lar ecx, eax",
            "lsl r11d, eax",
            "mov eax, 0x1000", // beyond the table
            "lar edx, eax",
            "setz r12b",
            "mov [0x20010], ax",
            "mov word ptr [0x20010], 0x23",
            "lsl r13, [0x20010]",
            "mov rbp, rsp",
            "lar esp, r13d", // not there
            "mov rsp, rbp",
            "sgdt [0x20020]",
            "sidt [0x20030]",
            "sldt r14d",
            "str [0x20040]",
            "str r15",
            "smsw ecx",
            "mov rax, dr7",
            "mov rbp, dr0",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let state = vcpu.state();
    assert_eq!(state.gpr[RDI], 40);
    assert_eq!(state.gpr[RSI] & 0xff, 1);
    assert_eq!(
        [
            state.gpr[9] & 0xff,
            state.gpr[10] & 0xff,
            state.gpr[12] & 0xff
        ],
        [0, 1, 0]
    );
    assert_eq!((state.gpr[11], state.gpr[13]), (0xffff_ffff, 0xffff_ffff));
    assert_eq!((state.gpr[15], state.gpr[RAX]), (0x30, 0x400));
    let [exits, fast_paths] = others(&vcpu);
    assert!(exits < 20, "{exits}");
    // SLDT and STR to a register need no call at all, nor does SMSW.
    assert!(fast_paths >= 40 * 10, "{fast_paths}");
    assert_eq!(of_control(&vcpu), [0, 80]);
}

#[test]
fn stored_system_registers_have_the_width_of_the_register_and_keep_the_flags() {
    let vcpu = run_with(
        guest_code!(
            widths,
            "mov ebx, 40",
            "2:",
            "mov rsi, -1",
            "mov rdi, rsi",
            "mov r8, rsi",
            "mov r9, rsi",
            "mov r10, rsi",
            "mov r11, rsi",
            "mov r13, rsi",
            "stc",
            "smsw si",
            "smsw edi",
            "smsw r8",
            "str r9w",
            "str r10d",
            "sldt r11w",
            "sldt r13",
            "mov rbp, rsp",
            "str rsp",
            "mov r14, rsp",
            "mov rsp, rbp",
            "setc al",
            "movzx eax, al",
            "mov rcx, cr0",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let gpr = &vcpu.state().gpr;
    let ones = u64::MAX << 16;
    assert_eq!(gpr[RSI], ones | gpr[1] & 0xffff);
    assert_eq!([gpr[RDI], gpr[8]], [gpr[1], gpr[1]]);
    assert_eq!([gpr[9], gpr[10], gpr[14]], [ones | 0x30, 0x30, 0x30]);
    assert_eq!([gpr[11], gpr[13], gpr[RAX]], [ones, 0, 1]);
    assert_eq!(others(&vcpu), [0, 0]);
    assert_eq!(of_control(&vcpu), [0, 0]);
}

#[test]
fn rights_and_limits_load_the_width_of_the_register_or_nothing() {
    let vcpu = run_with(
        guest_code!(
            probes,
            "mov ebx, 40",
            "2:",
            "mov eax, 0x10",
            "mov edx, 0x1000", // beyond the table
            "mov rsi, -1",
            "mov rdi, rsi",
            "mov r8, rsi",
            "mov r9, rsi",
            "mov r10, rsi",
            "lar si, ax",
            "lar edi, eax",
            "lsl r8w, ax",
            "lsl r9, eax",
            "lsl r10d, edx",
            "stc",
            "lar r11d, edx",
            "setc cl",
            "setz ch",
            "verw ax",
            "setc r14b",
            "setz r15b",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let gpr = &vcpu.state().gpr;
    let ones = u64::MAX << 16;
    assert_eq!([gpr[RSI], gpr[RDI]], [ones | 0x9300, 0x00c0_9300]);
    assert_eq!([gpr[8], gpr[9], gpr[10]], [u64::MAX, 0xffff_ffff, u64::MAX]);
    assert_eq!([gpr[1], gpr[14], gpr[15]], [1, 1, 1]);
    let [exits, fast_paths] = others(&vcpu);
    // The page of the table is looked up once.
    assert!(exits < 3, "{exits}");
    assert_eq!(exits + fast_paths, 40 * 7);
}

#[test]
fn registers_that_are_written_as_they_are_take_no_exit() {
    let vcpu = run_with(
        guest_code!(
            written_as_they_are,
            "mov ebx, 100",
            "2:",
            "mov rax, dr7",
            "mov dr7, rax",
            "smsw ecx",
            "lmsw cx",
            "xor edx, edx",
            "lldt dx",
            "mov rsi, dr6",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(of_control(&vcpu), [0, 400]);
    // LDTR is not null in this start state, which shows only in its attributes.
    assert_eq!(others(&vcpu), [1, 99]);
    assert_timed_apart(&vcpu, &[ExitKind::OtherInstruction]);
    assert_eq!(vcpu.state().gpr[RSI], 0xffff_0ff0);
}

#[test]
fn registers_that_are_written_anew_are_the_exit_s() {
    let vcpu = run_with(
        guest_code!(
            written_anew,
            "mov ebx, 100",
            "mov edx, 2",
            "2:",
            "xor dword ptr [0x20050], 0x10",
            "mov eax, [0x20050]",
            "mov dr7, rax", // LE0 or nothing, which no address meets
            "mov rsi, dr7",
            "add rdi, rsi",
            "smsw ecx",
            "xor ecx, 2", // MP
            "lmsw cx",
            "smsw r8d",
            "add r9, r8",
            "xor ecx, r8d",
            "or r10d, ecx",
            "xor edx, 2", // a null selector is kept as it is
            "lldt dx",
            "sldt r11d",
            "cmp edx, r11d",
            "jne 3f",
            "dec ebx",
            "jnz 2b",
            "3:",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let state = vcpu.state();
    assert_eq!(state.gpr[RBX], 0);
    assert_eq!(state.gpr[RDI], 100 * 0x400 + 50 * 0x10);
    assert_eq!(state.gpr[10] & 2, 0);
    let [exits, _] = of_control(&vcpu);
    assert!(exits >= 200, "{exits}");
}

#[test]
fn tables_are_stored_where_the_operand_says() {
    let vcpu = run_with(
        guest_code!(
            stored_tables,
            "mov ebx, 100",
            "2:",
            "lea rsi, [rbx + 0x20000]",
            "stc",
            "sgdt [rsi]",
            "setc al",
            "mov rdi, [rsi + 2]",
            "movzx ecx, word ptr [rsi]",
            "sidt [rsp - 64]",
            "mov rdx, [rsp - 62]",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let state = vcpu.state();
    assert_eq!(state.gpr[RDI], state.gdtr.base);
    assert_eq!(state.gpr[1], u64::from(state.gdtr.limit));
    assert_eq!(state.gpr[2], state.idtr.base);
    assert_eq!(state.gpr[RAX] & 0xff, 1);
    let [exits, fast_paths] = others(&vcpu);
    assert!(exits < 10, "{exits}");
    assert!(fast_paths > 190, "{fast_paths}");
}

#[test]
fn a_program_probes_descriptors_without_an_exit() {
    let vcpu = run_with(
        guest_code!(
            probing,
            "mov ebx, 40",
            "2:",
            "mov eax, 0x23",
            "verw ax",
            "setz sil",
            "mov eax, 0x10", // of level 0
            "verr ax",
            "setz dil",
            "lsl ecx, eax",
            "setz dl",
            "sgdt [0x20020]",
            "str ax",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |state, _| as_user(state),
    );
    let gpr = vcpu.state().gpr;
    assert_eq!([gpr[RSI] & 0xff, gpr[RDI] & 0xff, gpr[2] & 0xff], [1, 0, 0]);
    assert_eq!(gpr[RAX], 0x30);
    assert!(others(&vcpu)[1] >= 40 * 4);
}

#[test]
fn a_page_fault_of_an_operand_is_the_exit_s() {
    let mut vcpu = run_with(
        guest_code!(
            absent_operand,
            "mov eax, 1",
            "stc",
            "sgdt [0x1002000]",
            "out 0xf4, al"
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[RAX], 1);
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (14, Some(2), 6));
}

#[test]
fn a_program_reads_the_extended_control_registers_without_an_exit() {
    let vcpu = run_with(
        guest_code!(
            extended_control,
            "mov ebx, 40",
            "xor edi, edi",
            "2:",
            "xor ecx, ecx",
            "stc",
            "xgetbv",
            "adc edi, eax",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |state, _| as_user(state),
    );
    let gpr = vcpu.state().gpr;
    assert_eq!((gpr[RDI], gpr[2]), (40 * 8, 0));
    assert_eq!(others(&vcpu), [0, 40]);
    assert_timed_apart(&vcpu, &[ExitKind::OtherInstruction]);
}

#[test]
fn an_extended_control_register_that_is_not_there_faults() {
    let mut vcpu = run_with(
        guest_code!(no_extended_control, "mov ecx, 2", "xgetbv", "out 0xf4, al"),
        |_, _| {},
    );
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (13, Some(0), 5));
}
