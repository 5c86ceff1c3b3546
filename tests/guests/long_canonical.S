# long_canonical - addresses that are not canonical, in every kind of access, and the edges of those that are
#
# Pages lie at both edges of the hole, at the top and at zero.
.include "guest.inc"
.include "long.inc"

.set HOLE, 0x0000800000000000    # the first byte of the hole
.set ABOVE, 0xFFFF800000000000   # the first byte above it
.set LOW_PAGE, HOLE-0x1000
.set PDPT_EDGE, FREE_TABLES
.set PD_EDGE, FREE_TABLES+0x1000
.set TABLE_EDGE, FREE_TABLES+0x2000 # first page: FRAME_B, last: FRAME_A
.set LAST_PAGE, 0xFFFFFFFFFFFFF000
.set LANDING, 0x8000
.ifdef QEMU                      # which has no #SS for such addresses
.set STACK_FAULT, EXC_GP
.else
.set STACK_FAULT, EXC_SS
.endif
.set MARK, 0x5555555555555555

long_main:
    GATE64 EXC_GP, stubs64+16*EXC_GP, 0x8E, 1
    GATE64 EXC_SS, stubs64+16*EXC_SS, 0x8E, 1
    mov qword ptr [tss64+TSS64_IST1], offset ring0_stack_top - 1024
    mov qword ptr [PML4+8*255], PDPT_EDGE+(P|W|U)
    mov qword ptr [PML4+8*256], PDPT_EDGE+(P|W|U)
    mov qword ptr [PDPT_EDGE+8*511], PD_EDGE+(P|W|U)
    mov qword ptr [PDPT_EDGE], PD_EDGE+(P|W|U)
    mov qword ptr [PD_EDGE+8*511], TABLE_EDGE+(P|W|U)
    mov qword ptr [PD_EDGE], TABLE_EDGE+(P|W|U)
    mov qword ptr [PDPT_TOP+8*511], PD_EDGE+(P|W|U)
    mov qword ptr [TABLE_EDGE+8*511], FRAME_A+(P|W|U)
    mov qword ptr [TABLE_EDGE], FRAME_B+(P|W|U)
    mov rax, cr3
    mov cr3, rax
    mov eax, 0xC0DE
    mov cr2, rax
    call accesses
    call edges
    call stacks
    call branches
    call tables
    call harmless
    mov rax, cr2
    EXPECT64 rax, 0xC0DE, "nothing of this changed cr2"
    ret

# IN_HOLE "fact", instruction with an address by rbx
.macro IN_HOLE fact, instruction:vararg
    mov rbx, HOLE
    mov rax, MARK
    TRY64 \instruction
    EXPECT_FAULT64 EXC_GP, 0, "\fact"
    EXPECT64 rax, MARK, "\fact: rax stays"
    EXPECT64 rbx, HOLE, "\fact: rbx too"
.endm
accesses:
    IN_HOLE "a load", mov rax, [rbx]
    IN_HOLE "a load of one byte", mov al, [rbx]
    IN_HOLE "a load of 32 bits", mov eax, [rbx+0x7FFFFFFF]
    IN_HOLE "a store", mov [rbx], rax
    IN_HOLE "a store of an immediate", mov byte ptr [rbx], 1
    IN_HOLE "read, modify, write", add [rbx], rax
    IN_HOLE "with lock", lock xadd [rbx], rax
    IN_HOLE "an exchange", xchg [rbx], rax
    UNLESS_OFFERED HAS_CMPXCHG16B, 1f
    IN_HOLE "cmpxchg16b", cmpxchg16b [rbx]
1:
    IN_HOLE "push of memory", push [rbx]
    IN_HOLE "pop to memory", pop [rbx]
    IN_HOLE "a conditional move that does not move", cmovne rax, [rbx]
    IN_HOLE "a bit test", bt [rbx], eax
    IN_HOLE "x87", fld qword ptr [rbx]
    IN_HOLE "SSE", movups xmm0, [rbx]
    IN_HOLE "fxsave", fxsave [rbx]
    IN_HOLE "a jump through memory", jmp [rbx]
    IN_HOLE "a far jump through memory", jmp fword ptr [rbx]
    IN_HOLE "sgdt", sgdt [rbx]
    IN_HOLE "lidt", lidt [rbx]
    IN_HOLE "xlat", xlatb
.ifndef QEMU
    IN_HOLE "clflush", clflush [rbx]
.endif
    IN_HOLE "an index reaches it", mov rax, [rax+rbx]
    IN_HOLE "fs with no base", mov rax, fs:[rbx]
    mov rbx, HOLE-1
    mov rcx, 1
    TRY64 mov rax, [rbx+rcx]
    EXPECT_FAULT64 EXC_GP, 0, "a sum of two canonical numbers"
    mov rbx, 0x4000000000000000
    TRY64 mov rax, [rbx+0x10]
    EXPECT_FAULT64 EXC_GP, 0, "bit 62 alone"
    mov rbx, 0x8000000000000000 + FRAME_A
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_GP, 0, "bit 63 alone"
    mov rbx, 0x0001000000000000
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_GP, 0, "bit 48 alone"
    mov rbx, 0xFFFEFFFFFFFFF000
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_GP, 0, "bit 48 clear among ones"
    TRY64 movabs al, [0x1234567812345678]
    EXPECT_FAULT64 EXC_GP, 0, "an offset of 64 bits"
    WRMSR64 FS_BASE, HOLE-0x1000
    TRY64 mov rax, fs:[0x1000]
    EXPECT_FAULT64 EXC_GP, 0, "the base of fs counts"
    mov rcx, ABOVE - HOLE + 0x1000
    TRY64 mov rax, fs:[rcx]
    EXPECT_NO_FAULT64 "an offset may be what it likes if the sum is canonical"
    WRMSR64 FS_BASE, 0
    mov rcx, 1 << 51             # a bit offset: 256 TiB on
    mov rax, MARK
    TRY64 bts [FRAME_A], rcx
    EXPECT_FAULT64 EXC_GP, 0, "a bit offset leads there"
    mov rbx, HOLE
    USER_TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_GP, 0, "ring 3 gets the same"
    ret

edges:
    mov rax, 0x8877665544332211
    mov rbx, HOLE-8
    mov [rbx], rax
    EXPECT_SAME64 [FRAME_A+0xFF8], rax, "the last 8 bytes below are memory"
    mov byte ptr [rbx+7], 0x99
    EXPECT64 [FRAME_A+0xFF8], 0x9977665544332211, "the last byte too"
    TRY64 mov rcx, [rbx+1]
    EXPECT_FAULT64 EXC_GP, 0, "one byte of 8 beyond is one too many"
    TRY64 mov cx, [rbx+7]
    EXPECT_FAULT64 EXC_GP, 0, "one of two as well"
    TRY64 mov [rbx+4], rax
    EXPECT_FAULT64 EXC_GP, 0, "a store the same"
    EXPECT64 [FRAME_A+0xFF8], 0x9977665544332211, "which stores nothing"
    TRY64 movups xmm1, [rbx-4]
    EXPECT_FAULT64 EXC_GP, 0, "16 bytes"
    mov rbx, ABOVE
    mov [rbx], rax
    EXPECT_SAME64 [FRAME_B], rax, "the first 8 bytes above are memory"
    TRY64 mov rcx, [rbx-1]
    EXPECT_FAULT64 EXC_GP, 0, "those that begin in the hole are not"
    cld
    mov rsi, HOLE-5
    mov edi, FRAME_C
    mov ecx, 20
    TRY64 rep movsb
    EXPECT_FAULT64 EXC_GP, 0, "rep movsb runs into it"
    EXPECT64 rcx, 15, "behind the last byte"
    EXPECT64 rsi, HOLE, "rsi stands at the hole"
    EXPECT64 rdi, FRAME_C+5, "rdi after what was stored"
    mov rdi, HOLE-12
    mov ecx, 3
    mov rax, MARK
    TRY64 rep stosq
    EXPECT_FAULT64 EXC_GP, 0, "rep stosq does not split its last"
    EXPECT64 rcx, 2, "and has stored one"
    EXPECT64 rdi, HOLE-4, "rdi tells"
    mov rbx, -8                  # the top
    mov [rbx], rax
    EXPECT_SAME64 [FRAME_A+0xFF8], rax, "the last 8 bytes of all are memory"
    TRY64 mov rcx, [rbx+4]
    cmp qword ptr [fault_vector], NONE
    je 1f
    EXPECT_FAULT64 EXC_GP, 0, "an access over the top faults or wraps"
    jmp 2f
1:  shr rcx, 32
    mov eax, [0]
    EXPECT_SAME64 rcx, rax, "an access over the top faults or wraps"
2:  ret

# ON rsp, fault, "fact", instruction
.macro ON stack, fault, fact, instruction:vararg
    mov [rsp_copy], rsp
    mov rsp, \stack
    TRY64 \instruction
    mov rsp, [rsp_copy]
    EXPECT_FAULT64 \fault, 0, "\fact"
    EXPECT64 [fault_esp], \stack, "\fact: rsp stays"
.endm
stacks:
    mov rax, MARK
    mov rbp, rsp
    mov r12, HOLE
    mov r13, HOLE
    ON HOLE+8, STACK_FAULT, "push", push rax
    ON ABOVE, STACK_FAULT, "push below the upper half", push rax
    ON HOLE+7, STACK_FAULT, "push across the edge", push rax
    ON HOLE, STACK_FAULT, "pop", pop rax
    ON HOLE-4, STACK_FAULT, "pop across the edge", pop rax
    ON HOLE+8, STACK_FAULT, "pushfq", pushfq
    ON HOLE, STACK_FAULT, "popfq", popfq
    ON HOLE, STACK_FAULT, "ret", ret
    ON HOLE, STACK_FAULT, "iretq", iretq
    ON HOLE+8, STACK_FAULT, "call", call branches
    ON HOLE+8, STACK_FAULT, "push fs", push fs
    ON HOLE+8, STACK_FAULT, "enter", enter 0, 0
    ON HOLE, STACK_FAULT, "[rsp]", mov rax, [rsp]
    ON HOLE-8, STACK_FAULT, "[rsp+8]", mov [rsp+8], rax
    ON HOLE, EXC_GP, "fs:[rsp]", mov rax, fs:[rsp]
    EXPECT64 rax, MARK, "rax came through"
    mov rcx, rbp
    mov rbp, HOLE
    TRY64 mov rax, [rbp]
    EXPECT_FAULT64 STACK_FAULT, 0, "[rbp]"
    TRY64 mov rax, [rbp+rax*1]
    EXPECT_FAULT64 STACK_FAULT, 0, "[rbp + index]"
    xor eax, eax
    TRY64 mov rax, [rax+rbp]
    EXPECT_FAULT64 EXC_GP, 0, "rbp as an index is no stack"
    TRY64 leave
    EXPECT_FAULT64 STACK_FAULT, 0, "leave"
    mov rbp, rcx
    EXPECT_RSP64 rbp, "leave changed nothing"
    TRY64 mov rax, [r12]
    EXPECT_FAULT64 EXC_GP, 0, "r12 is no stack"
    TRY64 mov rax, [r13]
    EXPECT_FAULT64 EXC_GP, 0, "r13 is none"
    mov rsp, HOLE
    push rcx
    pop rax
    mov rsp, rbp
    EXPECT_SAME64 rax, rcx, "a stack ends exactly at the hole"
    ret

branches:
.ifndef QEMU                     # which goes there first
    mov rbx, HOLE
    mov rbp, rsp
    TRY64 jmp rbx
    EXPECT_FAULT64 EXC_GP, 0, "jmp faults itself"
    TRY64 call rbx
    EXPECT_FAULT64 EXC_GP, 0, "call too"
    EXPECT_SAME64 [fault_esp], rbp, "and pushes nothing"
    mov [FRAME_C], rbx
    TRY64 jmp qword ptr [FRAME_C]
    EXPECT_FAULT64 EXC_GP, 0, "jmp through memory"
    push rbx
    mov r8, rsp
    TRY64 ret
    EXPECT_FAULT64 EXC_GP, 0, "ret"
    EXPECT_SAME64 [fault_esp], r8, "which pops nothing"
    TRY64 ret 8
    EXPECT_FAULT64 EXC_GP, 0, "ret 8"
    mov rsp, rbp
    push CODE64
    push rbx
    mov r8, rsp
    TRY64 retfq
    EXPECT_FAULT64 EXC_GP, 0, "retfq"
    EXPECT_SAME64 [fault_esp], r8, "which pops nothing either"
    mov rsp, rbp
    push DATA64
    push rbp
    pushfq
    push CODE64
    push rbx
    mov r8, rsp
    TRY64 iretq
    EXPECT_FAULT64 EXC_GP, 0, "iretq"
    EXPECT_SAME64 [fault_esp], r8, "nor does iretq"
    mov rsp, rbp
.endif
    mov rbx, HOLE-4              # runs into the hole
    mov dword ptr [rbx], 0x90909090
    mov rax, offset 1f
    mov [resume_at], rax
    mov qword ptr [fault_vector], NONE
    jmp rbx
1:  EXPECT64 [fault_vector], EXC_GP, "code runs into the hole"
    EXPECT64 [fault_eip], HOLE, "and faults there"
    mov byte ptr [rbx+3], 0xB8   # mov eax, imm32
    mov rax, offset 2f
    mov [resume_at], rax
    mov qword ptr [fault_vector], NONE
    jmp rbx
2:  EXPECT64 [fault_vector], EXC_GP, "an instruction lies across the edge"
    EXPECT64 [fault_eip], HOLE-1, "and faults at its beginning"
    mov rbx, -6
    mov byte ptr [rbx], 0x90
    mov byte ptr [rbx+1], 0xE9   # jmp to LANDING; rip wraps to 0 behind it
    mov dword ptr [rbx+2], LANDING
    mov byte ptr [LANDING], 0xC3
    TRY64 call rbx
    EXPECT_NO_FAULT64 "a jump at the very top reaches low memory"
    mov rbx, ABOVE
    mov byte ptr [rbx], 0xC3
    TRY64 call rbx
    EXPECT_NO_FAULT64 "code runs at the first byte above the hole"
    ret

tables:
.ifndef QEMU                     # which does not look
    mov rax, HOLE
    mov [pseudo+2], rax
    mov word ptr [pseudo], 0xFFF
    TRY64 lgdt [pseudo]
    EXPECT_FAULT64 EXC_GP, 0, "lgdt with such a base"
    TRY64 lidt [pseudo]
    EXPECT_FAULT64 EXC_GP, 0, "lidt"
    DESCRIPTOR64 FREE64, 0x0000820000000FFF
    DESCRIPTOR64 FREE64+8, 0x8000
    mov eax, FREE64
    TRY64 lldt ax
    EXPECT_FAULT64 EXC_GP, FREE64, "lldt"
    DESCRIPTOR64 FREE64, 0x0000890000000FFF
    TRY64 ltr ax
    EXPECT_FAULT64 EXC_GP, FREE64, "ltr"
    .macro BAD_MSR msr, name
    mov ecx, \msr
    mov edx, HOLE >> 32
    xor eax, eax
    TRY64 wrmsr
    EXPECT_FAULT64 EXC_GP, 0, "wrmsr \name"
    .endm
    BAD_MSR FS_BASE, "fs.base"
    BAD_MSR GS_BASE, "gs.base"
    BAD_MSR KERNEL_GS_BASE, "kernel gs.base"
    BAD_MSR 0xC0000082, "LSTAR"
    cmp byte ptr [vendor_is_amd], 0
    jne 1f                       # whose have 32 bits
    BAD_MSR 0x175, "SYSENTER_ESP"
    BAD_MSR 0x176, "SYSENTER_EIP"
1:
.endif
    RDMSR64 FS_BASE
    EXPECT64 rax, 0, "the base is as it was"
    ret

harmless:
    mov rbx, HOLE
    lea rax, [rbx+1]
    EXPECT64 rax, HOLE+1, "lea computes what it likes"
    TRY64 prefetcht0 [rbx]
    EXPECT_NO_FAULT64 "prefetch does nothing"
    TRY64 nop dword ptr [rbx]
    EXPECT_NO_FAULT64 "nor does a long nop"
    TRY64 invlpg [rbx]
    EXPECT_NO_FAULT64 "nor invlpg"
    ret


.bss
.align 8
rsp_copy: .skip 8
pseudo:   .skip 16
.text
