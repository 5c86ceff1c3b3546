//! Tests accesses to near registers of devices: made in translated code, they have the results of
//! the general path, and work that they make due is done after the instruction. Each program
//! without interrupts also runs instruction by instruction, by the general path, and must have the
//! same result. All emitted code is verified.

use crate::support::fast_path_time::assert_timed_apart;
use crate::support::long_mode::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::Computer;
use tollgate_x86::{CpuState, Flags, PhysicalAddress};

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSP: usize = 4;
const RDI: usize = 7;
const R8: usize = 8;

/// The fifth small page, which leads to the device.
const DEVICE: u64 = SMALL + 0x4000;

/// Runs a program in a machine whose near registers exist.
fn run_in_blocks(code: &[u8], setup: impl Fn(&mut CpuState, &mut GuestMemory)) -> Computer<Bench> {
    let mut running = vcpu(code, &setup);
    running.platform_mut().shows_word = true;
    running.run();
    running
}

/// Runs a program in blocks, and again instruction by instruction, which lets no interrupts in.
fn run_near(code: &[u8], setup: impl Fn(&mut CpuState, &mut GuestMemory)) -> Computer<Bench> {
    let running = run_in_blocks(code, &setup);
    let mut stepping = vcpu(code, &setup);
    stepping.platform_mut().shows_word = true;
    let mut steps = 0;
    while stepping.step_one().is_ok() {
        steps += 1;
        assert!(
            steps < 100_000,
            "the program never ends\n{}",
            stepping.dump()
        );
    }
    assert_eq!(running.dump(), stepping.dump());
    assert_same_vectors(&running, &stepping);
    assert_eq!(running.platform().word, stepping.platform().word);
    running
}

fn fast_paths(vcpu: &Computer<Bench>) -> [u64; 4] {
    [
        FastPath::PortIn,
        FastPath::PortOut,
        FastPath::MmioRead,
        FastPath::MmioWrite,
    ]
    .map(|fast_path| vcpu.counts().fast_path(fast_path))
}

#[test]
fn accesses_to_near_ports_take_no_exit_whatever_their_size() {
    let vcpu = run_near(
        guest_code!(
            near_ports,
            "mov ebx, 1000",
            "2:",
            "mov rax, 0x1122334455667788",
            "mov edx, 0xffff0100",
            "out dx, eax",
            "mov eax, 0x99",
            "inc edx",
            "out dx, al",
            "mov ax, 0xabcd",
            "inc edx",
            "out dx, ax",
            "mov rax, -1",
            "dec edx",
            "in al, dx",
            "mov rdi, rax",
            "in ax, dx",
            "mov r8, rax",
            "dec edx",
            "in eax, dx",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let state = vcpu.state();
    assert_eq!(vcpu.platform().word, 0xabcd_9988);
    assert_eq!(state.gpr[RAX], 0xabcd_9988);
    assert_eq!(state.gpr[RDI], 0xffff_ffff_ffff_ff99);
    assert_eq!(state.gpr[R8], 0xffff_ffff_ffff_cd99);
    assert_eq!(state.gpr[RDX], 0xffff_0100);
    assert_eq!(fast_paths(&vcpu), [3000, 3000, 0, 0]);
    assert_eq!(vcpu.exit_counts().get(ExitKind::PortIn), 0);
    assert_eq!(vcpu.exit_counts().get(ExitKind::PortOut), 1);
    assert!(vcpu.exit_counts().total() < 50, "{:?}", vcpu.exit_counts());
    assert_timed_apart(&vcpu, &[ExitKind::PortIn, ExitKind::PortOut]);
}

#[test]
fn a_near_access_leaves_flags_and_all_other_registers_alone() {
    let vcpu = run_near(
        guest_code!(
            near_registers,
            "mov eax, 0x80",
            "mov ecx, 1",
            "mov ebx, 3",
            "mov ebp, 5",
            "mov esi, 6",
            "mov edi, 7",
            "mov r8d, 8",
            "mov r9d, 9",
            "mov r10d, 10",
            "mov r11d, 11",
            "mov r12d, 12",
            "mov r13d, 13",
            "mov r14d, 14",
            "mov r15d, 15",
            "mov edx, 0x100",
            // The flags OF, CF, ZF and PF.
            "add al, 0x80",
            "out dx, al",
            "in al, dx",
            "pushfq",
            "pop qword ptr [0x20000]",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let mut vcpu = vcpu;
    let flags = Flags::from_bits_retain(read_u64(&mut vcpu, DATA)) & Flags::ARITHMETIC;
    assert_eq!(flags, Flags::OF | Flags::CF | Flags::ZF | Flags::PF);
    let gpr = vcpu.state().gpr;
    assert_eq!(
        (gpr[RCX], gpr[RDX], gpr[RBX], gpr[RSP]),
        (1, 0x100, 3, STACK)
    );
    assert_eq!(gpr[5..], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(fast_paths(&vcpu)[..2], [1, 1]);
}

#[test]
fn an_interrupt_that_a_near_write_causes_comes_behind_it() {
    for shadow in [false, true] {
        let behind = guest_code!(
            near_interrupt,
            "mov edx, 0x104",
            "mov al, 0x40",
            "sti",
            "nop",
            "out dx, al",
            "inc ecx",
            "out 0xf4, al",
        );
        let shadowed = guest_code!(
            near_interrupt_in_shadow,
            "mov edx, 0x104",
            "mov al, 0x40",
            "nop",
            "sti",
            "out dx, al",
            "inc ecx",
            "out 0xf4, al",
        );
        let mut vcpu = run_in_blocks(if shadow { shadowed } else { behind }, |_, _| {});
        assert_eq!(fast_paths(&vcpu), [0, 1, 0, 0]);
        let caught = caught(&mut vcpu);
        assert_eq!((caught.vector, caught.at, caught.rsp), (0x40, 10, STACK));
        assert_eq!(vcpu.state().gpr[RCX], 0);
    }
}

#[test]
fn an_interrupt_that_a_near_write_causes_waits_until_it_is_let_in() {
    let mut vcpu = run_in_blocks(
        guest_code!(
            near_interrupt_waits,
            "mov edx, 0x104",
            "mov al, 0x40",
            "out dx, al",
            "mov edx, 0x100",
            "in al, dx",
            "inc ecx",
            "sti",
            "inc ecx",
            "inc ecx",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(fast_paths(&vcpu), [1, 1, 0, 0]);
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.at, caught.rsp), (0x40, 19, STACK));
    assert_eq!(vcpu.state().gpr[RCX], 2);
}

#[test]
fn while_vector_registers_are_in_use_a_near_access_exits() {
    let vcpu = run_near(
        guest_code!(
            near_vectors,
            "mov ebx, 100",
            "mov edx, 0x100",
            "2:",
            "movd xmm15, ebx",
            "mov eax, ebx",
            "out dx, al",
            "movd ecx, xmm15",
            "add edi, ecx",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.state().gpr[RDI], 5050);
    assert_eq!(
        fast_paths(&vcpu)[1] + vcpu.exit_counts().get(ExitKind::PortOut),
        101
    );
}

#[test]
fn programs_reach_near_ports_if_their_level_allows_it() {
    let code = guest_code!(
        near_user,
        "mov edx, 0x100",
        "mov eax, 0x12345678",
        "out dx, eax",
        "in ax, dx",
        "out 0xf4, al",
    );
    let vcpu = run_near(code, |state, _| as_user(state));
    assert_eq!(vcpu.platform().word, 0x1234_5678);
    assert_eq!(fast_paths(&vcpu), [1, 1, 0, 0]);
    let mut vcpu = run_near(code, |state, memory| {
        as_user(state);
        state.flags &= !0x3000;
        // The I/O permission bitmap begins beyond the limit of the TSS.
        memory.write_u64(PhysicalAddress(0x9060), u64::MAX << 48);
    });
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (13, Some(0), 10));
    assert_eq!(fast_paths(&vcpu), [0; 4]);
}

#[test]
fn a_page_of_near_registers_is_accessed_without_an_exit() {
    let vcpu = run_near(
        guest_code!(
            near_page,
            "mov rbx, 0x1004000",
            "mov r14d, 1000",
            "2:",
            "mov dword ptr [rbx], 0x87654321",
            "mov rcx, -1",
            "mov ecx, [rbx]",
            "add rdi, rcx",
            "lea r9, [rcx + 1]",
            "mov [rbx], r9d",
            "mov rbp, -1",
            "mov ebp, [rbx]",
            "mov r8, -1",
            "mov r8d, [rbx]",
            "stc",
            "mov eax, [rbx]",
            "sbb rax, 0",
            "dec r14",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RDI], 1000 * 0x8765_4321);
    assert_eq!(
        [gpr[RAX], gpr[5], gpr[R8]],
        [0x8765_4321, 0x8765_4322, 0x8765_4322]
    );
    let [_, _, reads, writes] = fast_paths(&vcpu);
    assert!(reads > 3900 && writes > 1900, "{reads} {writes}");
    assert_timed_apart(&vcpu, &[ExitKind::MmioRead, ExitKind::MmioWrite]);
    assert!(vcpu.exit_counts().total() < 200, "{:?}", vcpu.exit_counts());
}

#[test]
fn an_interrupt_that_a_store_to_a_near_register_causes_comes_behind_it() {
    let mut vcpu = run_in_blocks(
        guest_code!(
            near_page_interrupt,
            "mov rbx, 0x1004000",
            "mov al, 0x40",
            "movzx eax, al",
            "mov ecx, 4",
            "2:",
            // The last write goes to the register that raises the interrupt.
            "xor edx, edx",
            "cmp ecx, 1",
            "sete dl",
            "shl edx, 4",
            "sti",
            "nop",
            "mov [rbx + rdx], eax",
            "dec ecx",
            "jmp 2b",
        ),
        |_, _| {},
    );
    assert_eq!(fast_paths(&vcpu), [0, 0, 0, 2]);
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.rsp), (0x40, STACK));
    assert_eq!(vcpu.state().gpr[RCX], 1);
}

#[test]
fn accesses_that_are_not_aligned_are_made_by_the_general_path() {
    let vcpu = run_near(
        guest_code!(
            near_page_misaligned,
            "mov rbx, 0x1004000",
            "mov r14d, 10",
            "2:",
            "mov eax, [rbx]",
            "mov eax, [rbx + 1]",
            "dec r14",
            "jnz 2b",
            "mov rbx, 0x1004001",
            "mov r14d, 10",
            "3:",
            "mov eax, [rbx]",
            "dec r14",
            "jnz 3b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let [_, _, reads, _] = fast_paths(&vcpu);
    // All aligned accesses are near, except the first one of each translation; with direct access
    // there are two translations.
    assert!((8..=9).contains(&reads), "{reads}");
    assert_eq!(vcpu.platform().device_accesses, [4; 20]);
    assert_eq!(vcpu.state().gpr[RAX], 0x5a5a_5a5a);
}

#[test]
fn what_the_page_leads_to_is_another_page_after_an_invlpg_or_a_load_of_cr3() {
    for reload in [false, true] {
        let with_invlpg = guest_code!(
            near_page_moves,
            "mov rbx, 0x1004000",
            "mov r14d, 100",
            "mov dword ptr [0x300000], 7",
            "2:",
            "mov dword ptr [rbx], 5",
            "mov ecx, [rbx]",
            "add rdi, rcx",
            // The program makes the page lead to RAM and back.
            "mov eax, 0xfe300000",
            "xor [0x7020], rax",
            "invlpg [rbx]",
            "dec r14",
            "jnz 2b",
            "out 0xf4, al",
        );
        let with_reload = guest_code!(
            near_page_moves_with_space,
            "mov rbx, 0x1004000",
            "mov r14d, 100",
            "mov dword ptr [0x300000], 7",
            "2:",
            "mov dword ptr [rbx], 5",
            "mov ecx, [rbx]",
            "add rdi, rcx",
            "mov eax, 0xfe300000",
            "xor [0x7020], rax",
            "mov rax, cr3",
            "mov cr3, rax",
            "dec r14",
            "jnz 2b",
            "out 0xf4, al",
        );
        let mut vcpu = run_near(if reload { with_reload } else { with_invlpg }, |_, _| {});
        assert_eq!(vcpu.state().gpr[RDI], 500);
        assert_eq!(vcpu.platform().word, 5);
        assert_eq!(read_u64(&mut vcpu, 0x30_0000) as u32, 5);
    }
}

#[test]
fn a_store_to_a_page_that_has_become_read_only_faults() {
    let mut vcpu = run_near(
        guest_code!(
            near_page_read_only,
            "mov rbx, 0x1004000",
            "mov r14d, 10",
            "2:",
            "mov [rbx], r14d",
            "dec r14",
            "jnz 3f",
            "and byte ptr [0x7020], ~2",
            "invlpg [rbx]",
            "3:",
            "mov ecx, [rbx]",
            "jmp 2b",
        ),
        |_, _| {},
    );
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error), (14, Some(3)));
    assert_eq!(vcpu.platform().word, 1);
    assert_eq!(vcpu.state().gpr[RCX], 1);
}

#[test]
fn a_page_without_the_device_s_rights_is_no_program_s() {
    let code = guest_code!(
        near_page_of_kernel,
        "mov rbx, 0x1004000",
        "mov eax, [rbx]",
        "mov eax, [rbx]",
        "out 0xf4, al",
    );
    // Programs may access the device here, and do so by the general path.
    let vcpu = run_near(code, |state, _| as_user(state));
    assert_eq!(fast_paths(&vcpu), [0; 4]);
    let mut vcpu = run_near(code, |state, memory| {
        as_user(state);
        memory.write_u64(PhysicalAddress(SMALL_TABLE + 4 * 8), NEAR | 3);
    });
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error), (14, Some(5)));
    assert_eq!(DEVICE, 0x100_4000);
}

fn msr_counts(vcpu: &Computer<Bench>) -> [u64; 2] {
    let exits = vcpu.exit_counts().get(ExitKind::Msr);
    [exits, vcpu.counts().fast_path(FastPath::Msr)]
}

#[test]
fn near_model_specific_registers_take_no_exit() {
    let vcpu = run_near(
        guest_code!(
            near_msr,
            "mov ebx, 1000",
            "2:",
            "mov ecx, 0x808",
            "mov rax, -2",
            "mov rdx, 0x1111111100000000",
            "stc",
            "wrmsr",
            "adc rdi, 0",
            "mov rdx, -1",
            "rdmsr",
            "add rdi, rax",
            "add rdi, rdx",
            "dec ebx",
            "jnz 2b",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let gpr = vcpu.state().gpr;
    assert_eq!(vcpu.platform().word, 0xffff_fffe);
    assert_eq!((gpr[RAX], gpr[RDX]), (0xffff_fffe, 0));
    assert_eq!(gpr[RDI], 1000 * 0xffff_ffff);
    assert_eq!(msr_counts(&vcpu), [0, 2000]);
    assert_timed_apart(&vcpu, &[ExitKind::Msr]);
}

#[test]
fn a_value_that_a_near_register_refuses_is_a_fault_at_the_instruction() {
    let mut vcpu = run_near(
        guest_code!(
            refused_msr,
            "mov ecx, 0x808",
            "xor eax, eax",
            "mov edx, 1",
            "wrmsr",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (13, Some(0), 12));
    assert_eq!(msr_counts(&vcpu)[1], 0);
}

#[test]
fn programs_do_not_reach_near_model_specific_registers() {
    let code = guest_code!(user_msr, "mov ecx, 0x808", "rdmsr", "out 0xf4, al",);
    let mut vcpu = run_near(code, |state, _| as_user(state));
    let caught = caught(&mut vcpu);
    assert_eq!((caught.vector, caught.error, caught.at), (13, Some(0), 5));
}

#[test]
fn an_interrupt_that_a_write_of_a_near_register_causes_comes_behind_it() {
    for shadow in [false, true] {
        let behind = guest_code!(
            msr_interrupt,
            "mov ecx, 0x83f",
            "mov eax, 0x40",
            "xor edx, edx",
            "sti",
            "nop",
            "wrmsr",
            "inc ecx",
            "out 0xf4, al",
        );
        let shadowed = guest_code!(
            msr_interrupt_in_shadow,
            "mov ecx, 0x83f",
            "mov eax, 0x40",
            "xor edx, edx",
            "nop",
            "sti",
            "wrmsr",
            "inc ecx",
            "out 0xf4, al",
        );
        let mut vcpu = run_in_blocks(if shadow { shadowed } else { behind }, |_, _| {});
        assert_eq!(msr_counts(&vcpu), [0, 1]);
        let caught = caught(&mut vcpu);
        assert_eq!((caught.vector, caught.at, caught.rsp), (0x40, 16, STACK));
        assert_eq!(vcpu.state().gpr[RCX], 0x83f);
    }
}

#[test]
fn a_deadline_is_written_without_an_exit_as_the_guests_counter_has_it() {
    let vcpu = run_near(
        guest_code!(
            deadline,
            // The guest's counter is 500 ticks ahead.
            "mov ecx, 0x3b",
            "mov eax, 500",
            "xor edx, edx",
            "wrmsr",
            "mov ecx, 0x6e0",
            "mov eax, 5000",
            "wrmsr",
            "xor edi, edi",
            "rdmsr",
            "mov ebx, eax",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    assert_eq!(vcpu.platform().deadline, 4500);
    assert_eq!(vcpu.state().gpr[RBX], 5000);
    // Accesses to the counter itself, and reads of the deadline, are left to the monitor.
    assert_eq!(msr_counts(&vcpu), [2, 1]);
}
