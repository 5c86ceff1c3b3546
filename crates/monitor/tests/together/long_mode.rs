//! Tests small 64-bit programs that a vCPU runs with almost no machine around it.

use crate::support::long_mode::*;
use tollgate_exits::ExitKind;
use tollgate_x86::{PhysicalAddress, SegmentRegister};

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;

/// The first address that is not canonical.
const HOLE: u64 = 0x0000_8000_0000_0000;

#[test]
fn sixteen_registers_of_64_bits_take_part_in_arithmetic() {
    let vcpu = run(guest_code!(
        arithmetic,
        "mov rax, 0x1122334455667788",
        "mov r8, rax",
        "mov r9, 0x1000000000000001",
        "add r8, r9",
        "mov r10, r8",
        "sub r10, 1",
        "lea r11, [r8 + r9*2 + 5]",
        "imul r12, r9, 3",
        "mov r13, -1",
        "xor r13, r8",
        "mov r14, 7",
        "shl r14, 60",
        "mov r15, r14",
        "sar r15, 4",
        "bswap rax",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RAX], 0x8877_6655_4433_2211);
    assert_eq!(gpr[8], 0x2122_3344_5566_7789);
    assert_eq!(gpr[10], 0x2122_3344_5566_7788);
    assert_eq!(gpr[11], gpr[8] + 0x2000_0000_0000_0002 + 5);
    assert_eq!(gpr[12], 0x3000_0000_0000_0003);
    assert_eq!(gpr[13], !gpr[8]);
    assert_eq!(gpr[14], 0x7000_0000_0000_0000);
    assert_eq!(gpr[15], 0x0700_0000_0000_0000);
}

#[test]
fn results_of_32_bits_clear_the_upper_half_and_smaller_ones_leave_it() {
    let vcpu = run(guest_code!(
        halves,
        "mov rax, -1",
        "mov r8, -1",
        "mov r9, -1",
        "mov r10, -1",
        "mov rsi, -1",
        "mov rbp, -1",
        "mov r11, -1",
        "mov eax, eax",
        "mov r8d, r8d",
        "mov r9w, 0x1234",
        "mov r10b, 0x56",
        "mov sil, 0x78",
        "mov bpl, 0x9a",
        "add r11d, 2",
        "mov rbx, 0x1234",
        "mov cl, bh",
        "mov ah, bl",
        "mov r12, -1",
        "mov r13d, 3",
        "cmp r13d, 3",
        "cmovne r12d, r13d",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RAX], 0xffff_34ff);
    assert_eq!(gpr[8], 0xffff_ffff);
    assert_eq!(gpr[9], 0xffff_ffff_ffff_1234);
    assert_eq!(gpr[10], 0xffff_ffff_ffff_ff56);
    assert_eq!(gpr[RSI], 0xffff_ffff_ffff_ff78);
    assert_eq!(gpr[5], 0xffff_ffff_ffff_ff9a);
    assert_eq!(gpr[11], 1);
    assert_eq!(gpr[RCX] & 0xff, 0x12);
    // A 32-bit conditional move whose condition is false clears the upper half, too.
    assert_eq!(gpr[12], 0xffff_ffff);
}

#[test]
fn every_register_may_form_an_address() {
    let mut vcpu = run(guest_code!(
        addressing,
        "mov r12d, 0x20000",
        "mov r13d, 0x20100",
        "mov r8d, 4",
        "mov rax, 0x0123456789abcdef",
        "mov [r12], rax",
        "mov [r13], eax",
        "mov [r12 + r8*8], rax",
        "mov r15, [r12 + r8*8]",
        "mov r9d, [r13]",
        "mov r10w, [r12 + 2]",
        "mov r11b, [r12 + 7]",
        "inc qword ptr [r13 + r8*2 + 0x10]",
        "add [r12 + 0x40], r15",
        "xchg r15, [r12 + 0x40]",
        "mov rbx, -0x10",
        "mov rdx, [r12 + rbx + 0x10]",
        "movsxd rcx, dword ptr [r13]",
        "movzx esi, byte ptr [r12 + 7]",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[15], 0x0123_4567_89ab_cdef);
    assert_eq!(gpr[9], 0x89ab_cdef);
    assert_eq!(gpr[10] & 0xffff, 0x89ab);
    assert_eq!(gpr[11] & 0xff, 0x01);
    assert_eq!(gpr[RDX], 0x0123_4567_89ab_cdef);
    assert_eq!(gpr[RCX], 0xffff_ffff_89ab_cdef);
    assert_eq!(gpr[RSI], 1);
    assert_eq!(read_u64(&mut vcpu, DATA + 0x118), 1);
    assert_eq!(read_u64(&mut vcpu, DATA + 0x40), 0x0123_4567_89ab_cdef);
}

#[test]
fn an_address_of_32_bits_wraps_and_one_of_64_does_not() {
    let vcpu = run(guest_code!(
        address_size,
        "mov rbx, 0xffffffff00020000",
        "mov dword ptr [0x20000], 77",
        "mov eax, [ebx]",
        "lea rcx, [ebx + 8]",
        "lea rdx, [rbx + 8]",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RAX], 77);
    assert_eq!(gpr[RCX], 0x2_0008);
    assert_eq!(gpr[RDX], 0xffff_ffff_0002_0008);
}

#[test]
fn pushes_and_calls_move_eight_bytes() {
    let mut vcpu = run(guest_code!(
        stack,
        "mov r8, 0x1111222233334444",
        "push r8",
        "push -2",
        "push 0x12345678",
        ".byte 0x66, 0x6a, 0x55",
        "pop ax",
        "pop rbx",
        "pop rcx",
        "pop r15",
        "call 2f",
        "mov rdx, rsp",
        "push r15",
        "pop qword ptr [0x20000]",
        "push qword ptr [0x20000]",
        "pop r9",
        "lea r10, [rip + 3f]",
        "call r10",
        "mov [0x20008], r10",
        "call qword ptr [0x20008]",
        "out 0xf4, al",
        "2:",
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 0x20",
        "mov rsi, [rbp + 8]",
        "leave",
        "ret",
        "3:",
        "inc r14",
        "push 1",
        "push 2",
        "push r10",
        "mov rdi, [rsp]",
        "add rsp, 24",
        "ret",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RAX] & 0xffff, 0x55);
    assert_eq!(gpr[RBX], 0x1234_5678);
    assert_eq!(gpr[RCX], -2i64 as u64);
    assert_eq!(gpr[15], 0x1111_2222_3333_4444);
    assert_eq!(gpr[9], gpr[15]);
    assert_eq!(gpr[RDX], STACK);
    assert_eq!(gpr[RSP], STACK);
    assert_eq!(gpr[14], 2);
    assert_eq!(gpr[RDI], gpr[10]);
    assert!(gpr[RSI] > CODE && gpr[RSI] < CODE + 0x100);
    assert_eq!(read_u64(&mut vcpu, DATA), gpr[15]);
}

#[test]
fn data_relative_to_the_instruction_pointer_is_found_at_either_end_of_memory() {
    let vcpu = run(guest_code!(
        rip_relative,
        "mov rax, [rip + 5f]",
        "lea rbx, [rip + 5f]",
        "mov dword ptr [rip + 6f], 0x12345678",
        "add byte ptr [rip + 6f + 3], 1",
        "mov ecx, [rip + 6f]",
        "lea rdx, [rip + 3f]",
        "mov rsi, 0xffffffff80000000",
        "add rdx, rsi",
        "jmp rdx",
        "3:",
        "mov r8, [rip + 5f]",
        "lea r9, [rip + 5f]",
        "jmp 4f",
        ".balign 4096",
        "5: .quad 0x1122334455667788",
        "6: .quad 0",
        "4: call 7f",
        "out 0xf4, al",
        "7: mov r10, [rsp]",
        "ret",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RAX], 0x1122_3344_5566_7788);
    assert_eq!(gpr[8], gpr[RAX]);
    assert_eq!(gpr[RCX], 0x1334_5678);
    assert_eq!(gpr[9], gpr[RBX] + KERNEL);
    assert!(gpr[10] > KERNEL + CODE);
}

#[test]
fn the_upper_half_of_memory_is_reached_through_pages_of_every_size() {
    let mut vcpu = run(guest_code!(
        upper_half,
        "mov r8, 0xffff888000020000",
        "mov r9, 0xffffffff80020000",
        "mov eax, 0x600d",
        "mov [r8], rax",
        "mov rbx, [r9]",
        "inc qword ptr [r9 + 8]",
        "mov rcx, [r8 + 8]",
        "mov rdx, [0x20000]",
        "mov rsp, 0xffff888000060000",
        "push rdx",
        "pop rsi",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RBX], 0x600d);
    assert_eq!(gpr[RCX], 1);
    assert_eq!(gpr[RDX], 0x600d);
    assert_eq!(gpr[RSI], 0x600d);
    assert_eq!(read_u64(&mut vcpu, 0x6_0000 - 8), 0x600d);
}

#[test]
fn only_fs_and_gs_have_a_base_and_it_has_64_bits() {
    let vcpu = run_with(
        guest_code!(
            bases,
            "mov qword ptr [0x20010], 5",
            "mov rax, fs:[0x10]",
            "mov rbx, ds:[0x20010]",
            "mov rcx, es:[0x20010]",
            "mov r8d, 0x10",
            "mov rdx, gs:[r8]",
            "mov rsi, gs:[r8 - 0x20]",
            "rdfsbase r9",
            "mov r10, 0xffff888000020008",
            "wrgsbase r10",
            "mov rdi, gs:[8]",
            "out 0xf4, al",
        ),
        |state, memory| {
            state.segment_mut(SegmentRegister::Fs).base = DIRECT + DATA;
            state.segment_mut(SegmentRegister::Gs).base = DATA;
            for register in [
                SegmentRegister::Ds,
                SegmentRegister::Es,
                SegmentRegister::Ss,
            ] {
                state.segment_mut(register).base = 0x1000;
            }
            memory.write_u64(PhysicalAddress(DATA - 0x10), 9);
        },
    );
    let gpr = vcpu.state().gpr;
    assert_eq!(
        [gpr[RAX], gpr[RBX], gpr[RCX], gpr[RDX], gpr[RSI], gpr[RDI]],
        [5, 5, 5, 5, 9, 5]
    );
    assert_eq!(gpr[9], DIRECT + DATA);
}

#[test]
fn the_bases_of_fs_and_gs_are_read_and_written_without_exits() {
    let vcpu = run_prepared(
        guest_code!(
            bases_without_exits,
            "mov ebx, 1000",
            "mov rsi, rsp",
            "mov rsp, 0xffff888000020008",
            "2:",
            "wrgsbase rsp",
            "rdgsbase r8",
            "inc rsp",
            "wrfsbase esp",
            "rdfsbase rdi",
            "rdfsbase r9d",
            "dec ebx",
            "jnz 2b",
            "mov rdx, rsp",
            "mov rsp, rsi",
            "out 0xf4, al",
        ),
        |state, _| state.cr4 |= 1 << 16,
    );
    let gpr = vcpu.state().gpr;
    let last = 0xffff_8880_0002_0008 + 999;
    assert_eq!([gpr[8], gpr[RDX]], [last, last + 1]);
    assert_eq!([gpr[RDI], gpr[9]], [(last + 1) & 0xffff_ffff; 2]);
    assert_eq!(vcpu.state().segment(SegmentRegister::Gs).base, last);
    assert_eq!(vcpu.exit_counts().get(ExitKind::OtherInstruction), 0);
}

#[test]
fn a_base_that_is_not_canonical_is_refused_in_the_middle_of_a_block() {
    let vcpu = run_prepared(
        guest_code!(
            odd_base,
            "mov r8, 0x123456789",
            "wrgsbase r8",
            "mov r9, 0x0000800000000000",
            "inc rax",
            "wrgsbase r9",
            "hlt",
            ".balign 64",
            // #GP ends here.
            "pop rcx",
            "pop rsi",
            "rdgsbase rdi",
            "out 0xf4, al",
        ),
        |state, memory| {
            state.cr4 |= 1 << 16;
            set_gate(memory, 13, KERNEL + CODE + 64);
        },
    );
    let gpr = vcpu.state().gpr;
    // Error code 0, and the address of the second WRGSBASE.
    assert_eq!(
        [gpr[RCX], gpr[RSI] & 0xff, gpr[RDI]],
        [0, 28, 0x1_2345_6789]
    );
}

#[test]
fn access_to_the_bases_is_undefined_without_the_bit_in_cr4() {
    let vcpu = run_prepared(
        guest_code!(
            no_bases,
            "mov r8, cr4",
            "or r8, 0x10000",
            "mov cr4, r8",
            "mov ebx, 2",
            "jmp 2f",
            ".balign 16",
            "2:",
            "rdgsbase rdi",
            "inc edx",
            "and r8, -0x10001",
            "mov cr4, r8",
            "jmp 2b",
            ".balign 64",
            // #UD ends here.
            "out 0xf4, al",
        ),
        |_, memory| set_gate(memory, 6, KERNEL + CODE + 64),
    );
    assert_eq!(vcpu.state().gpr[RDX] as u32, 1);
}

#[test]
fn a_data_segment_left_with_a_base_moves_neither_alignment_nor_the_pointer_of_the_x87() {
    let mut vcpu = run_with(
        guest_code!(
            stale_base,
            "fninit",
            "mov r10d, 0x20010",
            "fld qword ptr [r10]",
            "fnstenv [r10 + 0x20]",
            "mov r10, 0xffff910012345670",
            "movaps xmm12, [r10]",
            "out 0xf4, al",
        ),
        |state, _| state.segment_mut(SegmentRegister::Ds).base = 8,
    );
    // The data pointer of FNSTENV lies at offset 20 (SDM volume 1, figure 8-9).
    let pointer = vcpu.memory_mut().read_u32(PhysicalAddress(DATA + 0x44));
    assert_eq!(pointer, 0x20010);
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error), (14, Some(0)));
}

#[test]
fn instructions_of_the_x87_without_a_memory_operand_leave_its_data_pointer_alone() {
    let mut vcpu = run(guest_code!(
        data_pointer,
        "mov r10d, 0x20010",
        // The pointers are read immediately, and after other instructions.
        "fninit",
        "fld qword ptr [r10]",
        "fnstenv [r10 + 0x20]",
        "fld qword ptr [r10 + 8]",
        "fld1",
        "fxch",
        "fstp st(0)",
        "fnstenv [r10 + 0x40]",
        // The registers have been saved and restored in between.
        "fchs",
        "fnstenv [r10 + 0x60]",
        "fninit",
        "fldz",
        "fnstenv [r10 + 0x80]",
        "out 0xf4, al",
    ));
    // The data pointer lies at offset 20, the opcode at 18 (SDM volume 1, figure 8-9).
    let mut pointer = |image: u64| {
        let image = DATA + 0x10 + image;
        let opcode = vcpu.memory_mut().read_u32(PhysicalAddress(image + 16)) >> 16;
        let pointer = vcpu.memory_mut().read_u32(PhysicalAddress(image + 20));
        (opcode, pointer)
    };
    assert_eq!(pointer(0x20), (0x502, 0x20010));
    assert_eq!(pointer(0x40), (0x5d8, 0x20018));
    assert_eq!(pointer(0x60), (0x1e0, 0x20018));
    assert_eq!(pointer(0x80), (0x1ee, 0));
}

#[test]
fn a_page_fault_names_all_64_bits_of_its_address() {
    let mut vcpu = run(guest_code!(
        page_fault,
        "mov r8, 0xffff910012345678",
        "mov eax, 1",
        "add [r8 + rax*8], r8",
        "out 0xf4, al",
    ));
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error, found.at), (14, Some(2), 15));
    assert_eq!(found.rsp, STACK);
    assert_eq!(vcpu.state().cr2, 0xffff_9100_1234_5680);
    assert_eq!(vcpu.state().gpr[RAX], 1);
}

#[test]
fn a_store_to_a_read_only_page_faults_and_a_load_does_not() {
    let mut vcpu = run_with(
        guest_code!(
            read_only,
            "mov rax, [0x1003008]",
            "mov [0x1003008], rbx",
            "out 0xf4, al",
        ),
        |_, memory| {
            memory.write_u64(PhysicalAddress(READ_ONLY_RAM + 8), 3);
        },
    );
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error, found.at), (14, Some(3), 8));
    assert_eq!(vcpu.state().gpr[RAX], 3);
}

#[test]
fn user_code_does_not_reach_supervisor_pages() {
    let mut vcpu = run_with(
        guest_code!(
            user_fault,
            "mov rax, [0x20000]",
            "mov rbx, 0xffffffff80020000",
            "mov rax, [rbx]",
            "out 0xf4, al",
        ),
        |state, _| as_user(state),
    );
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error, found.at), (14, Some(5), 15));
    assert_eq!(found.rsp, STACK);
    assert_eq!(vcpu.state().gpr[RSP], KERNEL_STACK - 7 * 8);
}

fn fault_of(code: &[u8]) -> Caught {
    caught(&mut run_with(code, |state, _| {
        state.gpr[RBX] = HOLE;
        state.gpr[RCX] = 0x7fff_ffff_ffff;
        state.gpr[8] = 0x8000_0000_0000_0000;
        state.gpr[9] = 0xffff_7fff_ffff_ffff;
    }))
}

#[test]
fn loads_and_stores_beyond_the_canonical_addresses_are_general_protection_faults() {
    let loads: [&[u8]; 10] = [
        guest_code!(hole_1, "mov rax, [rbx]", "out 0xf4, al"),
        guest_code!(hole_2, "mov [rbx + 8], al", "out 0xf4, al"),
        guest_code!(hole_3, "add [r8], r9", "out 0xf4, al"),
        guest_code!(hole_4, "mov ax, [r9 - 1]", "out 0xf4, al"),
        guest_code!(hole_5, "movups xmm9, [r8]", "out 0xf4, al"),
        guest_code!(hole_6, "lock inc qword ptr [rbx]", "out 0xf4, al"),
        guest_code!(hole_7, "push qword ptr [rbx]", "out 0xf4, al"),
        guest_code!(hole_8, "call [rbx]", "out 0xf4, al"),
        guest_code!(hole_9, "jmp [r9]", "out 0xf4, al"),
        guest_code!(hole_10, "cmpxchg [r8 + rcx], rdx", "out 0xf4, al"),
    ];
    for (number, code) in loads.into_iter().enumerate() {
        let found = fault_of(code);
        let expected = Caught {
            vector: 13,
            error: Some(0),
            at: 0,
            rsp: STACK,
        };
        assert_eq!(found, expected, "number {number}");
    }
}

#[test]
fn an_access_whose_last_byte_is_not_canonical_faults_before_its_page_does() {
    let found = fault_of(guest_code!(hole_end, "mov rax, [rcx - 3]", "out 0xf4, al"));
    assert_eq!((found.vector, found.error, found.at), (13, Some(0), 0));
    // All of the access is canonical, so the page faults.
    let found = fault_of(guest_code!(
        no_hole_end,
        "mov rax, [rcx - 7]",
        "out 0xf4, al"
    ));
    assert_eq!((found.vector, found.error, found.at), (14, Some(0), 0));
}

#[test]
fn accesses_through_the_stack_registers_beyond_the_canonical_addresses_are_stack_faults() {
    let codes: [&[u8]; 7] = [
        guest_code!(stack_hole_1, "mov rsp, rbx", "push rax", "out 0xf4, al"),
        guest_code!(stack_hole_2, "mov rsp, rbx", "pop rax", "out 0xf4, al"),
        guest_code!(
            stack_hole_3,
            "mov rbp, rbx",
            "mov rax, [rbp]",
            "out 0xf4, al"
        ),
        guest_code!(
            stack_hole_4,
            "mov rsp, r8",
            "mov [rsp + 8], rax",
            "out 0xf4, al"
        ),
        guest_code!(stack_hole_5, "mov rsp, rbx", "ret", "out 0xf4, al"),
        guest_code!(stack_hole_6, "mov rsp, r8", "call rax", "out 0xf4, al"),
        guest_code!(stack_hole_7, "mov rbp, rbx", "leave", "out 0xf4, al"),
    ];
    for (number, code) in codes.into_iter().enumerate() {
        // The handler must have a valid stack.
        let mut vcpu = run_with(code, |state, memory| {
            as_user(state);
            state.gpr[RBX] = HOLE + 8;
            state.gpr[8] = 0x8000_0000_0000_0000;
            state.gpr[RAX] = CODE;
            memory.write_u64(PhysicalAddress(DATA), 0);
        });
        let found = caught(&mut vcpu);
        assert_eq!(
            (found.vector, found.error, found.at),
            (12, Some(0), 3),
            "number {number}"
        );
    }
}

#[test]
fn a_call_beyond_the_canonical_addresses_stores_no_return_address() {
    let codes: [&[u8]; 3] = [
        guest_code!(call_hole_1, "call rbx", "out 0xf4, al"),
        guest_code!(call_hole_2, "call qword ptr [rsp - 16]", "out 0xf4, al"),
        guest_code!(call_hole_3, "call qword ptr [rsp - 8]", "out 0xf4, al"),
    ];
    for (number, code) in codes.into_iter().enumerate() {
        let mut vcpu = run_with(code, |state, memory| {
            as_user(state);
            state.gpr[RBX] = HOLE;
            memory.write_u64(PhysicalAddress(STACK - 16), HOLE + 1);
            memory.write_u64(PhysicalAddress(STACK - 8), HOLE + 2);
        });
        let found = caught(&mut vcpu);
        let expected = Caught {
            vector: 13,
            error: Some(0),
            at: 0,
            rsp: STACK,
        };
        assert_eq!(found, expected, "number {number}");
        assert_eq!(read_u64(&mut vcpu, STACK - 8), HOLE + 2, "number {number}");
    }
}

#[test]
fn a_jump_beyond_the_canonical_addresses_faults_where_it_stands() {
    let codes: [&[u8]; 3] = [
        guest_code!(jump_hole_1, "jmp rbx", "out 0xf4, al"),
        guest_code!(jump_hole_2, "call r8", "out 0xf4, al"),
        guest_code!(jump_hole_3, "jmp qword ptr [0x20000]", "out 0xf4, al"),
    ];
    for (number, code) in codes.into_iter().enumerate() {
        let mut vcpu = run_with(code, |state, memory| {
            state.gpr[RBX] = HOLE;
            state.gpr[8] = 0x8000_0000_0000_0000;
            memory.write_u64(PhysicalAddress(DATA), HOLE);
        });
        let found = caught(&mut vcpu);
        let expected = Caught {
            vector: 13,
            error: Some(0),
            at: 0,
            rsp: STACK,
        };
        assert_eq!(found, expected, "number {number}");
    }
    let found = fault_of(guest_code!(return_hole, "push rbx", "ret", "out 0xf4, al"));
    assert_eq!((found.vector, found.at, found.rsp), (13, 1, STACK - 8));
}

#[test]
fn branch_targets_that_share_their_low_half_are_told_apart() {
    let vcpu = run(guest_code!(
        low_half,
        "mov r8, 0xffffffff80000000",
        "mov r9d, 100",
        "2:",
        "lea rax, [rip + 3f]",
        "and eax, 0xfffff",
        "call rax",
        "or rax, r8",
        "call rax",
        "dec r9",
        "jnz 2b",
        "out 0xf4, al",
        "3:",
        "lea rbx, [rip]",
        "sar rbx, 63",
        "lea rsi, [rsi + rbx*2 + 1]",
        "inc rdi",
        "ret",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RDI], 200);
    // One count goes up in the lower half, one goes down in the upper half.
    assert_eq!(gpr[RSI], 0);
}

#[test]
fn code_that_writes_itself_is_seen_through_another_address() {
    let vcpu = run(guest_code!(
        self_modifying,
        "mov r8, 0xffff888000000000",
        "lea rbx, [rip + 3f]",
        "mov r9d, 10",
        "2:",
        "call 3f",
        "inc byte ptr [rbx + r8 + 1]",
        "mov [rip + 4f + 2], r9",
        "call 4f",
        "dec r9",
        "jnz 2b",
        "out 0xf4, al",
        "3:",
        "mov eax, 1",
        "add ecx, eax",
        "ret",
        "4:",
        "movabs rax, 0x1111111111111111",
        "add rdx, rax",
        "ret",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RCX], 55);
    assert_eq!(gpr[RDX], 55);
}

#[test]
fn a_system_call_goes_to_the_kernel_and_back() {
    let vcpu = run_with(
        guest_code!(
            system_call,
            // Code of the user program.
            "mov eax, 39",
            "stc",
            "syscall",
            "mov rsi, rax",
            "mov rdi, rcx",
            "setc bl",
            "out 0xf4, al",
            ".balign 64",
            // The kernel's entry, at CODE + 64.
            "swapgs",
            "mov gs:[8], rsp",
            "mov rsp, gs:[0]",
            "push rcx",
            "push r11",
            "mov r12, cs",
            "add eax, 3",
            "pop r11",
            "pop rcx",
            "mov rsp, gs:[8]",
            "swapgs",
            "sysretq",
        ),
        |state, memory| {
            as_user(state);
            state.star = 0x001b_0008 << 32;
            state.lstar = KERNEL + CODE + 64;
            state.sfmask = 0x4_7700;
            state.kernel_gs_base = KERNEL + DATA;
            memory.write_u64(PhysicalAddress(DATA), KERNEL + KERNEL_STACK);
        },
    );
    let state = vcpu.state();
    assert_eq!(state.gpr[RSI], 42);
    assert_eq!(state.gpr[RDI], CODE + 8);
    assert_eq!(state.gpr[RBX] & 0xff, 1);
    assert_eq!(state.gpr[12], u64::from(CODE_64));
    assert_eq!(state.gpr[RSP], STACK);
    assert_eq!(state.cpl(), 3);
    assert_eq!(state.kernel_gs_base, KERNEL + DATA);
    assert_eq!(state.segment(SegmentRegister::Cs).selector.0, CODE_64_USER);
}

#[test]
fn an_interrupt_aligns_the_stack_and_its_return_restores_it() {
    let mut vcpu = run_prepared(
        guest_code!(
            interrupt,
            "sub rsp, 4",
            "mov r8, 0x123456789",
            "sti",
            "mov al, 0x40",
            "out 0xf5, al",
            "nop",
            "mov r9, rsp",
            "out 0xf4, al",
            ".balign 64",
            "mov r10, rsp",
            "inc r8",
            "iretq",
        ),
        |_, memory| set_gate(memory, 0x40, KERNEL + CODE + 64),
    );
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[8], 0x1_2345_678a);
    assert_eq!(gpr[9], STACK - 4);
    assert_eq!(gpr[10], STACK - 16 - 40);
    assert_eq!(read_u64(&mut vcpu, gpr[10] + 24), STACK - 4);
    assert_eq!(read_u64(&mut vcpu, gpr[10] + 8), u64::from(CODE_64));
}

#[test]
fn an_interrupt_of_user_code_switches_to_the_stack_of_the_task_state_segment() {
    let vcpu = run_prepared(
        guest_code!(
            user_interrupt,
            "mov r8d, 7",
            "int 0x41",
            "mov r9, rsp",
            "out 0xf4, al",
            ".balign 64",
            "mov r10, rsp",
            "mov r11, cs",
            "inc r8",
            "iretq",
        ),
        |state, memory| {
            as_user(state);
            set_gate(memory, 0x41, CODE + 64);
            let gate = PhysicalAddress(0xa000 + 0x41 * 16);
            let low = memory.read_u64(gate);
            memory.write_u64(gate, low | 0x60 << 40);
        },
    );
    let state = vcpu.state();
    assert_eq!(state.gpr[8], 8);
    assert_eq!(state.gpr[9], STACK);
    assert_eq!(state.gpr[10], KERNEL_STACK - 40);
    assert_eq!(state.gpr[11], u64::from(CODE_64));
    assert_eq!(state.cpl(), 3);
}

#[test]
fn compatibility_code_has_32_bits_and_leaves_the_new_registers_alone() {
    let vcpu = run(guest_code!(
        compatibility,
        "mov r8, 0x123456789abcdef0",
        "mov r15, -1",
        "mov rax, 0x1111111122222222",
        "push 0x40",
        "lea rbx, [rip + 2f]",
        "push rbx",
        "retfq",
        "3:",
        "mov r9, rax",
        "mov r10, [0x20000]",
        "out 0xf4, al",
        ".code32",
        "2:",
        // In 64-bit code this byte is a prefix.
        "inc eax",
        "push 0x12345678",
        "pop ecx",
        "mov dword ptr [0x20000], eax",
        "mov edx, 0xffffffff",
        "mov esi, [edx + 0x20001]",
        "call 4f",
        ".byte 0xea",
        ".long 0x10000 + (3b - tollgate_test_compatibility_start)",
        ".short 8",
        "4: inc edi",
        "ret",
        ".code64",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[8], 0x1234_5678_9abc_def0);
    assert_eq!(gpr[15], u64::MAX);
    assert_eq!(gpr[9] & 0xffff_ffff, 0x2222_2223);
    assert_eq!(gpr[10], 0x2222_2223);
    assert_eq!(gpr[RCX], 0x1234_5678);
    assert_eq!(gpr[RSI], 0x2222_2223);
    assert_eq!(gpr[RDI], 1);
    assert_eq!(gpr[RSP], STACK);
}

#[test]
fn vector_registers_8_to_15_work_in_memory_and_among_themselves() {
    let mut vcpu = run(guest_code!(
        vectors,
        "mov r8d, 0x20000",
        "mov rax, 0x0000000200000001",
        "movq xmm8, rax",
        "movdqa xmm15, xmm8",
        "paddd xmm15, xmm8",
        "movaps [r8], xmm15",
        "movdqu [r8 + 0x11], xmm15",
        "paddd xmm8, [r8]",
        "movq rbx, xmm8",
        "cvtsi2sd xmm9, rax",
        "cvttsd2si rcx, xmm9",
        "pextrq rdx, xmm15, 0",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RBX], 0x0000_0006_0000_0003);
    assert_eq!(gpr[RCX], gpr[RAX]);
    assert_eq!(gpr[RDX], 0x0000_0004_0000_0002);
    assert_eq!(read_u64(&mut vcpu, DATA), gpr[RDX]);
    assert_eq!(read_u64(&mut vcpu, DATA + 0x11), gpr[RDX]);
}

#[test]
fn a_misaligned_vector_operand_is_a_general_protection_fault() {
    let found = fault_of(guest_code!(
        misaligned,
        "mov r10d, 0x20008",
        "movaps xmm12, [r10]",
        "out 0xf4, al",
    ));
    assert_eq!((found.vector, found.error, found.at), (13, Some(0), 6));
}

#[test]
fn repeated_string_instructions_count_in_64_bits_and_move_quadwords() {
    let mut vcpu = run(guest_code!(
        strings,
        "mov rdi, 0xffff888000020000",
        "mov rax, 0x0102030405060708",
        "mov ecx, 1000",
        "rep stosq",
        "mov rsi, 0xffffffff80020000",
        "mov rdi, 0x21f00",
        "mov ecx, 1000",
        "rep movsq",
        "mov r8, rdi",
        "mov edi, 0x20000",
        "mov esi, 0x21f00",
        "mov qword ptr [0x22000], 1",
        "mov ecx, 1000",
        "repe cmpsq",
        "mov rbx, rcx",
        "mov rsi, 0x20000",
        "lodsq",
        "mov rdi, 0x20000",
        "scasq",
        "sete dl",
        "movsb",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[8], 0x2_1f00 + 8000);
    assert_eq!(gpr[RBX], 1000 - 33);
    assert_eq!(gpr[RDX] & 0xff, 1);
    assert_eq!(gpr[RDI], DATA + 9);
    assert_eq!(
        read_u64(&mut vcpu, DATA + 0x1f00 + 7992),
        0x0102_0304_0506_0708
    );
}

#[test]
fn sixteen_bytes_are_compared_and_exchanged_at_once() {
    let mut vcpu = run(guest_code!(
        exchange,
        "mov r8d, 0x20000",
        "mov qword ptr [r8], 1",
        "mov qword ptr [r8 + 8], 2",
        "mov eax, 1",
        "mov edx, 2",
        "mov rbx, 0x333333333",
        "mov rcx, 0x444444444",
        "lock cmpxchg16b [r8]",
        "sete r9b",
        "cmpxchg16b [r8]",
        "sete r10b",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!((gpr[9] & 0xff, gpr[10] & 0xff), (1, 0));
    assert_eq!((gpr[RAX], gpr[RDX]), (0x3_3333_3333, 0x4_4444_4444));
    assert_eq!(read_u64(&mut vcpu, DATA), 0x3_3333_3333);
    assert_eq!(read_u64(&mut vcpu, DATA + 8), 0x4_4444_4444);
    let found = fault_of(guest_code!(
        exchange_misaligned,
        "mov r10d, 0x20008",
        "cmpxchg16b [r10]",
        "out 0xf4, al",
    ));
    assert_eq!((found.vector, found.error, found.at), (13, Some(0), 6));
}

#[test]
fn an_access_across_pages_that_lie_apart_is_whole() {
    let mut vcpu = run(guest_code!(
        straddling,
        "mov r8d, 0x1001000",
        "mov rax, 0x1122334455667788",
        "mov [r8 - 3], rax",
        "mov rbx, [r8 - 3]",
        "add qword ptr [r8 - 3], 1",
        "mov rcx, [r8 - 3]",
        "movq xmm10, rax",
        "movdqu [r8 - 0x10 + 1], xmm10",
        "mov rsi, [r8 - 0x10 + 1]",
        "lea rsp, [r8 + 4]",
        "push rax",
        "pop rdx",
        "push qword ptr [r8 - 15]",
        "call 2f",
        "2: out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[RBX], 0x1122_3344_5566_7788);
    assert_eq!(gpr[RCX], 0x1122_3344_5566_7789);
    assert_eq!(gpr[RDX], gpr[RAX]);
    assert_eq!(gpr[RSI], gpr[RAX]);
    // The value that the call pushed.
    assert_eq!(read_u64(&mut vcpu, small(0xff4).0) >> 16, 1);
}

#[test]
fn an_access_into_a_page_that_is_missing_faults_with_its_address_and_changes_nothing() {
    let mut vcpu = run(guest_code!(
        straddling_fault,
        "mov r8d, 0x1002000",
        "mov qword ptr [r8 - 8], 5",
        "mov [r8 - 4], r8",
        "out 0xf4, al",
    ));
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error, found.at), (14, Some(2), 14));
    assert_eq!(vcpu.state().cr2, SMALL + 0x2000);
    assert_eq!(read_u64(&mut vcpu, small(0x1ff8).0), 5);
}

#[test]
fn a_device_sees_one_access_of_eight_bytes() {
    let vcpu = run_prepared(
        guest_code!(
            device,
            "mov r8d, 0x1004000",
            "mov rax, [r8 + 0x10]",
            "mov r9, 0x0102030405060708",
            "mov [r8 + 8], r9",
            "mov [r8 + 0x20], r9d",
            "push qword ptr [r8]",
            "pop rbx",
            "out 0xf4, al",
        ),
        |_, _| {},
    );
    let bench = vcpu.platform();
    assert_eq!(vcpu.state().gpr[RAX], 0x5a5a_5a5a_5a5a_5a5a);
    assert_eq!(vcpu.state().gpr[RBX], 0x5a5a_5a5a_5a5a_5a5a);
    assert_eq!(bench.device_accesses, [8, 8, 4, 8]);
    assert_eq!(bench.device_written, [8, 7, 6, 5, 4, 3, 2, 1, 8, 7, 6, 5]);
}

#[test]
fn multiplication_and_division_take_128_bits() {
    let mut vcpu = run(guest_code!(
        division,
        "mov rax, 0x1234567890abcdef",
        "mov r8, 0x100000000",
        "mul r8",
        "mov r9, rdx",
        "mov r10, rax",
        "div r8",
        "mov r11, rax",
        "mov rax, -100",
        "cqo",
        "mov r12d, 7",
        "idiv r12",
        "mov rbx, rdx",
        "xor edx, edx",
        "xor r13d, r13d",
        "div r13",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!(gpr[9], 0x1234_5678);
    assert_eq!(gpr[10], 0x90ab_cdef_0000_0000);
    assert_eq!(gpr[11], 0x1234_5678_90ab_cdef);
    assert_eq!(gpr[RAX], -14i64 as u64);
    assert_eq!(gpr[RBX], -2i64 as u64);
    assert_eq!(caught(&mut vcpu).vector, 0);
}

#[test]
fn loops_count_in_rcx_or_with_a_prefix_in_ecx() {
    let vcpu = run(guest_code!(
        loops,
        "mov rcx, 0x100000003",
        "2: inc eax",
        "addr32 loop 2b",
        "mov r8, rcx",
        "mov ecx, 5",
        "3: inc ebx",
        "loop 3b",
        "jrcxz 4f",
        "ud2",
        "4: mov rcx, 0x100000000",
        "jrcxz 5f",
        "jecxz 6f",
        "5: ud2",
        "6: out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!((gpr[RAX], gpr[RBX], gpr[8]), (3, 5, 0));
}

#[test]
fn bit_strings_reach_far_behind_their_address() {
    let mut vcpu = run(guest_code!(
        bits,
        "mov r8d, 0x20100",
        "mov r9, -0x801",
        "bts qword ptr [r8], r9",
        "mov r10d, 0x847",
        "lock bts qword ptr [r8], r10",
        "bt qword ptr [r8], r9",
        "setc al",
        "out 0xf4, al",
    ));
    assert_eq!(vcpu.state().gpr[RAX] & 0xff, 1);
    assert_eq!(read_u64(&mut vcpu, DATA - 8), 1 << 63);
    assert_eq!(read_u64(&mut vcpu, DATA + 0x208), 1 << 7);
}

#[test]
fn an_absolute_address_of_64_bits_goes_with_the_accumulator() {
    let mut vcpu = run(guest_code!(
        absolute,
        "mov rax, 0x1122334455667788",
        "movabs [0xffff888000020000], rax",
        "xor eax, eax",
        "movabs al, [0xffffffff80020003]",
        "out 0xf4, al",
    ));
    assert_eq!(vcpu.state().gpr[RAX], 0x55);
    assert_eq!(read_u64(&mut vcpu, DATA), 0x1122_3344_5566_7788);
}

#[test]
fn a_page_that_moves_is_found_at_its_new_place_after_invlpg() {
    let mut vcpu = run(guest_code!(
        moving,
        "mov r8d, 0x1000000",
        "mov qword ptr [r8], 1",
        "mov qword ptr [0x7000], 0x304007",
        "invlpg [r8]",
        "mov qword ptr [r8], 2",
        "mov rax, 0x305007",
        "mov [0x7000], rax",
        "mov rax, cr3",
        "mov cr3, rax",
        "mov qword ptr [r8], 3",
        // The 2-MiB page in the kernel's half, whose entries are global.
        "mov r9, 0xffffffff80200000",
        "mov rbx, [r9 + 0x104000]",
        "mov rax, 0x400183",
        "mov [0x5008], rax",
        "invlpg [r9]",
        "mov rcx, [r9 + 0x104000]",
        "out 0xf4, al",
    ));
    assert_eq!(read_u64(&mut vcpu, 0x30_0000), 1);
    assert_eq!(read_u64(&mut vcpu, 0x30_4000), 2);
    assert_eq!(read_u64(&mut vcpu, 0x30_5000), 3);
    assert_eq!((vcpu.state().gpr[RBX], vcpu.state().gpr[RCX]), (2, 0));
}

#[test]
fn the_trap_flag_strikes_behind_each_instruction() {
    let vcpu = run_prepared(
        guest_code!(
            trap,
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "inc r9",
            "lea r10, [r9 + 1]",
            "push r10",
            "pop r11",
            "out 0xf4, al",
            ".balign 64",
            "inc r8",
            "iretq",
        ),
        |_, memory| set_gate(memory, 1, CODE + 64),
    );
    assert_eq!(vcpu.state().gpr[8], 4);
    assert_eq!(vcpu.state().gpr[11], 2);
}

#[test]
fn a_breakpoint_watches_addresses_of_64_bits() {
    let vcpu = run_prepared(
        guest_code!(
            breakpoint,
            "mov rbx, 0xffff888000020000",
            "mov [rbx], rax",
            "mov [0x20000], rax",
            "mov [rbx + 7], al",
            "mov [rbx + 8], al",
            "out 0xf4, al",
            ".balign 64",
            "inc r8",
            "iretq",
        ),
        |state, memory| {
            set_gate(memory, 1, CODE + 64);
            state.dr[0] = DIRECT + DATA;
            // DR7: L0, writes, 8 bytes.
            state.dr[7] = 0x400 | 1 | 0b1001 << 16;
        },
    );
    assert_eq!(vcpu.state().gpr[8], 2);
}
