# long_stacks - page faults of 64-bit stack instructions, in ring 3, of the processor's own pushes, and amid interrupts
#
# The stack's two pages are missing or read-only; the handler, on its own stack,
# brings them, and the instruction begins again.
.include "guest.inc"
.include "long.inc"

.set MIDDLE, WINDOW+0x1000
.set HANDLERS, 0x700000          # the top of the #PF handler's stack
.set TIMER, IRQ_BASE

long_main:
    mov qword ptr [tss64+TSS64_IST1], HANDLERS
    GATE64 EXC_PF, missing, 0x8E, 1
    call pushes
    call inner
    call storm
    ret

missing:
    push rax
    inc qword ptr [fault_count]
    mov rax, [rsp+8]
    mov [seen_error], rax
    mov rax, [rsp+16]
    mov [seen_rip], rax
    mov rax, [rsp+40]
    mov [seen_rsp], rax
    mov rax, cr2
    mov [seen_cr2], rax
    mov qword ptr [TABLE], FRAME_A+(P|W|U)
    mov qword ptr [TABLE+8], FRAME_B+(P|W|U)
    mov rax, WINDOW
    invlpg [rax]
    invlpg [rax+0x1000]
    pop rax
    add rsp, 8
    iretq

# STACK "name", rsp, first fault's address, error code, instruction: in ring 0 and
# ring 3, with both pages missing or the one at hand read-only.
.macro STACK name, stack, address, error, instruction:vararg
    mov rax, \stack
    mov [stack_at], rax
    mov r15d, offset code_\@
    call try_stack
    EXPECT64 [seen_cr2], \address, "\name: cr2"
    EXPECT64 [seen_error], \error, "\name: the error code, in ring 3"
    EXPECT64 [wrong], 0, "\name: rip and rsp at the fault, and the same result"
    jmp next_\@
code_\@:
    \instruction
    jmp qword ptr [case_end]
next_\@:
.endm

# r15: code. Runs it at stack_at with the pages missing and with them there, in
# both rings; `wrong` has a bit for each that differs.
try_stack:
    mov qword ptr [wrong], 0
    mov qword ptr [TABLE], 0
    mov qword ptr [TABLE+8], 0
    call in_ring0
    mov [first_rsp], r11
    mov [first_rax], rax
    call faulted
    call in_ring0                # all is there
    cmp [first_rsp], r11
    je 1f
    or byte ptr [wrong], 2
1:  cmp [first_rax], rax
    je 2f
    or byte ptr [wrong], 4
2:  mov qword ptr [TABLE], 0
    mov qword ptr [TABLE+8], 0
    call in_ring3
    cmp [first_rsp], r11
    je 3f
    or byte ptr [wrong], 8
3:  cmp [first_rax], rax
    je 4f
    or byte ptr [wrong], 16
4:
faulted:                         # once or twice, the last at the instruction with its rsp
    cmp qword ptr [fault_count], 1
    jae 1f
    or byte ptr [wrong], 32
1:  cmp [seen_rip], r15
    je 2f
    or byte ptr [wrong], 64
2:  mov rax, [stack_at]
    cmp [seen_rsp], rax
    je 3f
    or byte ptr [wrong], 128
3:  ret
prepare:
    push rdi
    cld
    mov edi, FRAME_A             # what is popped: canonical addresses of `landing`
    mov ecx, 0x2000 / 8
    mov eax, offset landing
    rep stosq
    pop rdi
    mov qword ptr [fault_count], 0
    mov rax, WINDOW
    invlpg [rax]
    invlpg [rax+0x1000]
    mov rax, 0x1111111111111111
    mov rcx, 0x2222222222222222
    mov rbp, [stack_at]
    mov qword ptr [case_end], offset case_done
    ret
in_ring0:
    mov [kernel_rbp], rbp
    call prepare
    mov [case_rsp], rsp
    mov rsp, [stack_at]
    jmp r15
in_ring3:
    mov [kernel_rbp], rbp
    call prepare
    mov [case_rsp], rsp
    mov [kernel_rsp], rsp
    push DATA3
    push qword ptr [stack_at]
    push 2
    push CODE64_3
    push r15
    iretq
landing:                         # where RET leads
case_done:
    mov r11, rsp
    mov ebx, cs
    test bl, 3
    jz 1f
    int LEAVE_RING3
1:  mov rsp, [case_rsp]
    mov rbp, [kernel_rbp]
    ret

.set MISSING_WRITE, PF_WRITE|PF_USER
.set MISSING_READ, PF_USER
.ifdef QEMU                      # which reads first
.set MISSING_BOTH, MISSING_READ
.else
.set MISSING_BOTH, MISSING_WRITE
.endif
pushes:
    STACK "push", MIDDLE+8, MIDDLE, MISSING_WRITE, push rcx
    STACK "push of 32 bits sign-extended", MIDDLE+8, MIDDLE, MISSING_WRITE, push -5
    STACK "push across pages", MIDDLE+4, MIDDLE-4, MISSING_WRITE, push rcx
    STACK "push of 16 bits", MIDDLE+2, MIDDLE, MISSING_WRITE, push cx
    STACK "pop", MIDDLE, MIDDLE, MISSING_READ, pop rax
    STACK "pop across pages", MIDDLE-4, MIDDLE-4, MISSING_READ, pop rcx
    STACK "pushfq", MIDDLE+8, MIDDLE, MISSING_WRITE, pushfq
    STACK "call", MIDDLE+8, MIDDLE, MISSING_WRITE, call case_done
    STACK "ret", MIDDLE, MIDDLE, MISSING_READ, ret
    STACK "ret 8", MIDDLE, MIDDLE, MISSING_READ, ret 8
    STACK "leave", MIDDLE, MIDDLE, MISSING_READ, leave
    STACK "enter", MIDDLE+8, MIDDLE, MISSING_WRITE, enter 8, 0
    STACK "push fs", MIDDLE+8, MIDDLE, MISSING_WRITE, push fs
    STACK "a load by rsp", MIDDLE, MIDDLE+8, MISSING_READ, mov rax, [rsp+8]
    STACK "a store by rsp", MIDDLE, MIDDLE-8, MISSING_WRITE, mov [rsp-8], rcx
    STACK "add to [rsp]", MIDDLE, MIDDLE, MISSING_BOTH, add [rsp], rcx
    STACK "xchg with [rsp]", MIDDLE, MIDDLE, MISSING_BOTH, xchg [rsp], rcx
    ret

inner:                           # pushes of the processor's own, onto rsp0 in the window
    GATE64 0x40, noted, 0xEE
    mov rax, MIDDLE+0x18
    mov [tss64+TSS64_RSP0], rax
    mov qword ptr [TABLE], 0
    mov qword ptr [TABLE+8], 0
    mov rax, WINDOW
    invlpg [rax]
    invlpg [rax+0x1000]
    mov qword ptr [fault_count], 0
    ENTER_RING3_64
int_40:
    int 0x40
    int LEAVE_RING3
    EXPECT64 [seen_rip], int_40, "the processor's pushes fault at the INT"
    EXPECT64 [noted_rsp], MIDDLE+0x10-40, "which then has its frame over both pages"
    EXPECT64 [seen_rsp], user_stack_top, "ring 3's rsp is in the fault's frame"
    EXPECT64 [seen_error], PF_WRITE, "the error code tells no user: it was the processor"
    cmp qword ptr [fault_count], 1
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "and one fault brings both"
    mov qword ptr [tss64+TSS64_RSP0], offset ring0_stack_top
    mov [case_rsp], rsp          # IRETQ from a missing page
    mov qword ptr [TABLE+8], 0
    mov rax, MIDDLE+0x100
    invlpg [rax]
    mov qword ptr [FRAME_B+0x100], offset 1f
    mov qword ptr [FRAME_B+0x108], CODE64
    mov qword ptr [FRAME_B+0x110], 2
    mov [FRAME_B+0x118], rsp
    mov qword ptr [FRAME_B+0x120], DATA64
    mov rsp, rax
iret_there:
    iretq
1:  EXPECT64 [seen_rip], iret_there, "iretq faults where its frame is missing"
    EXPECT_RSP64 [case_rsp], "and then returns"
    ret
noted:
    mov [noted_rsp], rsp
    iretq

storm:                           # a tick every 200 us through code that uses all registers
    GATE64 TIMER, tick
    mov al, 0x34
    out 0x43, al
    mov al, 240
    out 0x40, al
    mov al, 0
    out 0x40, al
    mov al, 0xFE
    out PIC1 + 1, al
    mov qword ptr [ticks], 0
    mov [case_rsp], rsp
    mov [kernel_rsp], rsp
    push DATA3
    mov rax, MIDDLE
    push rax
    push FLAG_I|2
    push CODE64_3
    push offset turning
    iretq
turning:                         # ring 3; each register stays a function of r15
    xor r15d, r15d
    mov rbp, 0x9E3779B97F4A7C15
    xor ebx, ebx
1:  inc r15
    mov rax, r15
    imul rax, rbp
    mov rcx, rax
    rol rcx, 7
    mov rdx, rcx
    xor rdx, rax
    lea rsi, [rdx+rcx*4+5]
    mov rdi, rsi
    bswap rdi
    push rdi
    mov r8, rax
    movq xmm9, rcx
    sub r8, rdi
    lea r9, [r8*2+r15]
    push r9
    mov r10, r9
    not r10
    xor r11d, r11d
    call 2f
    mov r13, r12
    ror r13, 13
    mov r14, r13
    add r14, [rsp]
    movq r11, xmm9
    cmp r11, rcx
    jne 3f
    pop r12
    cmp r12, r9
    jne 3f
    pop r12
    cmp r12, rdi
    jne 3f
    sub r14, r9                  # all the way back
    rol r14, 13
    not r14
    sub r14, r15
    mov r12, r8
    add r12, r8
    cmp r14, r12
    jne 3f
    bswap rdi
    sub rdi, 5
    lea r12, [rcx*4]
    sub rdi, r12
    xor rdi, rax
    ror rdi, 7
    cmp rdi, rax
    jne 3f
    cmp qword ptr [ticks], 500
    jb 1b
    inc ebx
3:  int LEAVE_RING3
    mov al, 0xFF
    out PIC1 + 1, al
    EXPECT64 rbx, 1, "500 ticks amid code of ring 3 leave every register as it was"
    EXPECT_RSP64 [case_rsp], "and the stack"
    ret
2:  mov r12, r10
    ret
tick:
    push rax
    inc qword ptr [ticks]
    mov al, PIC_EOI
    out PIC1, al
    pop rax
    iretq

.bss
.align 8
.irp name, fault_count, seen_error, seen_rip, seen_rsp, seen_cr2, stack_at, case_end
\name: .skip 8
.endr
.irp name, case_rsp, kernel_rbp, first_rsp, first_rax, wrong, noted_rsp, ticks
\name: .skip 8
.endr
.text
