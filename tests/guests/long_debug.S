# long_debug - debug registers of 64 bits: breakpoints at any address, eight bytes of data, single step across modes
.include "guest.inc"
.include "long.inc"

.set EXECUTE, 0
.set WRITE, 1
.set ACCESS, 3
.set LEN1, 0
.set LEN8, 2
.set LEN4, 3
.set DR6_B0, 1
.set DR6_BS, 0x4000
.set DR6_ALWAYS, 0xFFFF0FF0

long_main:
    GATE64 EXC_DB, debug, 0x8E, 1
    mov qword ptr [tss64+TSS64_IST1], 0x700000
    PTE64 0, FRAME_A+(P|W|U)
    PTE64 1, FRAME_B+(P|W|U)
    call registers
    call code
    call data
    call steps
    xor eax, eax
    mov dr7, rax
    ret

debug:
    push rax
    inc qword ptr [count]
    mov rax, [rsp+8]
    mov [seen_rip], rax
    cmp qword ptr [count], 2
    jne 1f
    mov [second_rip], rax
1:  mov rax, [rsp+16]
    mov [seen_cs], rax
    mov rax, dr6
    mov [seen_dr6], rax
    xor eax, eax
    mov dr6, rax
    or dword ptr [rsp+24], FLAG_R
    pop rax
    iretq

# ARM address, type, length: breakpoint 0
.macro ARM address, type, length
    mov rax, \address
    mov dr0, rax
    mov eax, 0x402|(\type)<<16|(\length)<<18
    mov dr7, rax
    mov qword ptr [count], 0
.endm
.macro DISARM
    push rax
    mov eax, 0x400
    mov dr7, rax
    pop rax
.endm

registers:
    mov rax, 0xFFFF923456789ABC
    mov dr3, rax
    mov rcx, dr3
    EXPECT_SAME64 rcx, rax, "dr3 holds 64 bits"
    mov r9, 0x0000712345678000
    mov dr1, r9
    mov r10, dr1
    EXPECT_SAME64 r10, r9, "moves know the new registers"
    mov rax, 1 << 32
    TRY64 mov dr7, rax
    EXPECT_FAULT64 EXC_GP, 0, "the upper half of dr7 is reserved"
    TRY64 mov dr6, rax
    EXPECT_FAULT64 EXC_GP, 0, "and that of dr6"
    USER_TRY64 mov rax, dr0
    EXPECT_FAULT64 EXC_GP, 0, "ring 3 reads none"
    mov rax, dr7
    shr rax, 11
    EXPECT64 rax, 0, "dr7 reads as zeros above"
    ret

code:
    mov byte ptr [FRAME_A], 0x90
    mov byte ptr [FRAME_A+1], 0xC3
    mov rbx, WINDOW
    call rbx
    ARM WINDOW+1, EXECUTE, LEN1
    call rbx
    DISARM
    EXPECT64 [count], 1, "a breakpoint on code strikes once, with RF"
    EXPECT64 [seen_rip], WINDOW+1, "before the instruction"
    EXPECT64 [seen_dr6], DR6_ALWAYS|DR6_B0, "dr6 tells which"
    ARM (WINDOW+1)&0xFFFFFFFF, EXECUTE, LEN1
    call rbx
    DISARM
    EXPECT64 [count], 0, "all 64 bits of the address are compared"
    mov rbx, FRAME_A+TOP
    ARM WINDOW+1, EXECUTE, LEN1
    call rbx
    DISARM
    EXPECT64 [count], 0, "the linear address, not the frame"
    ARM FRAME_A+TOP, EXECUTE, LEN1
    call rbx
    DISARM
    EXPECT64 [count], 1, "at the top as well"
    mov rbx, WINDOW
    ARM WINDOW, EXECUTE, LEN1
    ENTER_RING3_64
    call rbx
    int LEAVE_RING3
    DISARM
    EXPECT64 [count], 1, "in ring 3"
    EXPECT64 [seen_cs], CODE64_3, "too"
    ret

data:
    mov rbx, WINDOW+0x100
    ARM WINDOW+0x100, WRITE, LEN8
    mov rcx, [rbx]
    mov byte ptr [rbx+8], 1
    mov byte ptr [rbx-1], 1
    EXPECT64 [count], 0, "a read and writes beside it are none"
    mov byte ptr [rbx+7], 1
1:  EXPECT64 [count], 1, "a write of the last of eight bytes"
    EXPECT64 [seen_rip], 1b, "strikes behind the instruction"
    mov qword ptr [rbx-4], 1
    EXPECT64 [count], 2, "one that overlaps them"
    push rbx
    lea rax, [rbx+8]
    xchg rsp, rax
    push rcx
    xchg rsp, rax
    pop rbx
    EXPECT64 [count], 3, "a push"
    mov rdi, rbx
    mov ecx, 2
    xor eax, eax
    rep stosd
    EXPECT64 [count], 5, "rep stosd each time, in a page where code has run"
    mov rax, offset FRAME_A+0x100+TOP
    mov [rax], rax
    EXPECT64 [count], 5, "not by another address of the frame"
    lock inc qword ptr [rbx]
    EXPECT64 [count], 6, "lock inc"
    mov rdi, WINDOW+0x1100       # a page without code
    ARM WINDOW+0x1100, WRITE, LEN8
    mov ecx, 2
    rep stosd
    EXPECT64 [count], 2, "rep stosd in a page where no code has run"
    ARM WINDOW+0x1FFC, ACCESS, LEN4
    mov rbx, WINDOW+0x1FF8
    mov rax, [rbx]
    DISARM
    EXPECT64 [count], 1, "a read of eight bytes that ends in four watched"
    ret

steps:
    mov qword ptr [count], 0
    push FLAG_T|2
    popfq
    lea rax, [rip]               # 1
    push 2                       # 2
    popfq                        # 3: TF is cleared behind it
    EXPECT64 [count], 3, "TF strikes in 64-bit mode"
    EXPECT64 [seen_dr6], DR6_ALWAYS|DR6_BS, "dr6 tells BS"
    mov qword ptr [count], 0
    mov [kernel_rsp], rsp
    push DATA3
    push offset user_stack_top
    push FLAG_T|2
    push CODE3
    push offset narrow
    iretq
.code32
narrow:
    inc eax                      # 1: 40h, one byte here
    inc eax                      # 2
    push CODE64_3                # 3
    push offset wide             # 4
    retf                         # 5
.code64
wide:
    .byte 0x40, 0x90             # 6: a prefix here
    int LEAVE_RING3
    EXPECT64 [count], 6, "from compatibility mode to 64-bit mode by a far return"
    EXPECT64 [seen_cs], CODE64_3, "the last in the other"
    WRMSR64 0xC0000081, (CODE3<<48)|(CODE64<<32)
    WRMSR64_ADDRESS 0xC0000082, entered
    WRMSR64 0xC0000084, FLAG_T
    RDMSR64 EFER
    or eax, EFER_SCE
    xor edx, edx
    wrmsr
    mov qword ptr [count], 0
    ENTER_RING3_64
    push FLAG_T|2
    popfq
    nop                          # 1
    syscall                      # FMASK clears TF
2:  push 2                       # 2 behind sysretq, which brings it back; 3
    popfq                        # 4
    int LEAVE_RING3
    EXPECT64 [inside], 1, "syscall's mask lets no step into the entry"
    EXPECT64 [count], 4, "sysretq brings TF back"
    EXPECT64 [second_rip], 2b, "which strikes at once, as if syscall had ended"
    ret
entered:
    mov rax, [count]
    mov [inside], rax
    sysretq

.bss
.align 8
.irp name, count, seen_rip, seen_cs, seen_dr6, inside, second_rip
\name: .skip 8
.endr
.text
