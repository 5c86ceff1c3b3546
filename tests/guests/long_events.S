# long_events - interrupts that come by themselves in 64-bit mode: shadows, single step, timer, CR8, NMI
.include "guest.inc"
.include "long.inc"

.set TIMER, IRQ_BASE
.set APIC, 0xFEE00000
.set APIC_VECTOR, 0x61
.set IST_TOP, 0x700000

.macro APIC_WRITE register, value
    mov eax, APIC + \register
    mov dword ptr [rax], \value
.endm
.macro LET_ONE_IN                # a tick's handler masks the line again
    mov al, 0xFE
    out PIC1 + 1, al
.endm
.macro SET_FLAGS value
    push \value
    popfq
.endm

long_main:
    mov qword ptr [tss64+TSS64_IST1+8*4], IST_TOP
    call shadow
    call single_step
    call timer
    call local_apic
    ret

shadow:
    cli
    call init_timer
    GATE64 TIMER, tick
    LET_ONE_IN
    sti
    hlt
    cli
    EXPECT64 [ticks], 1, "sti; hlt wakes by a tick, behind the hlt"
    call await_tick
    sti
    nop
after_nop:
    nop
    cli
    EXPECT64 [tick_rip], after_nop, "sti holds interrupts off for one instruction"
    call await_tick
    sti
    cli
    EXPECT64 [ticks], 2, "sti; cli lets none in"
    push FLAG_I|2
    popfq
after_popfq:
    cli
    EXPECT64 [tick_rip], after_popfq, "popfq has no shadow"
    ret
init_timer:
    mov dword ptr [ticks], 0
    mov al, 0x34
    out 0x43, al
    mov ax, 12000                # some 100 a second
    out 0x40, al
    mov al, ah
    out 0x40, al
    ret
await_tick:                      # until the line waits for us
    mov al, 0x0A
    out PIC1, al
    in al, PIC1
    test al, 1
    jz await_tick
    LET_ONE_IN
    ret
tick:
    push rax
    mov rax, [rsp+8]
    mov [tick_rip], rax
    mov rax, [rsp+16]
    mov [tick_cs], rax
    inc dword ptr [ticks]
    mov al, 0xFF
    out PIC1 + 1, al
    mov al, PIC_EOI
    out PIC1, al
    pop rax
    iretq

single_step:
    GATE64 EXC_DB, stepped
    mov dword ptr [steps], 0
    mov r8, 5
    SET_FLAGS FLAG_T|2
    inc r8                       # 1
    push r8                      # 2
    pop r9                       # 3
    mov r10, 0x1122334455667788  # 4
step_last:
    SET_FLAGS 2                  # 5, 6
    EXPECT64 [steps], 6, "TF strikes behind each instruction"
    EXPECT64 r9, 6, "which is done"
    mov ecx, 3
    mov esi, FRAME_A
    mov edi, FRAME_B
    mov dword ptr [steps], 0
    SET_FLAGS FLAG_T|2
    rep movsq                    # 1 to 3
    SET_FLAGS 2                  # 4, 5
    EXPECT64 [steps], 5, "and behind each turn of rep movsq"
    GATE64 EXC_DB, stubs64+16*EXC_DB
    ret
stepped:
    inc dword ptr [steps]
    iretq

timer:
    call init_timer
    mov ecx, 3
1:  LET_ONE_IN
    sti
    hlt
    cli
    loop 1b
    EXPECT64 [ticks], 3, "hlt in 64-bit mode waits for the timer"
    LET_ONE_IN
    mov rbx, [ticks]
    push DATA3
    push offset user_stack_top
    push FLAG_I|2
    push CODE64_3
    push offset 2f
    mov [kernel_rsp], rsp
    iretq
2:  pause
    cmp [ticks], rbx
    je 2b
    int LEAVE_RING3
    add rsp, 40
    EXPECT64 [tick_cs], CODE64_3, "a tick comes in ring 3 too"
    ret

.macro SEND value
    APIC_WRITE 0x300, \value
    mov ecx, 2000
7:  loop 7b
.endm
local_apic:
    GATE64 APIC_VECTOR, apic_interrupt
    GATE64 2, nmi, 0x8E, 5
    APIC_WRITE 0xF0, 0x1FF
    mov edx, APIC
    mov rax, 5
    mov cr8, rax
    mov eax, [rdx+0x80]
    EXPECT64 rax, 0x50, "cr8 is the local APIC's task priority"
    mov dword ptr [rdx+0x80], 0x30
    mov rax, cr8
    EXPECT64 rax, 3, "in both directions"
.ifndef QEMU
    mov eax, 0x10
    TRY64 mov cr8, rax
    EXPECT_FAULT64 EXC_GP, 0, "it has four bits"
.endif
    mov eax, 6
    mov cr8, rax
    sti
    SEND 0x40000|APIC_VECTOR
    EXPECT64 [arrived], 0, "an interrupt of its class waits"
    mov eax, 5
    mov cr8, rax
    nop
    nop
    EXPECT64 [arrived], 1, "until cr8 is lowered"
    cli
    xor eax, eax
    mov cr8, rax
    SEND 0x40400                 # NMI
    EXPECT64 [nmis], 1, "an NMI comes with IF clear"
    EXPECT64 [nmi_rsp], IST_TOP-40-16, "on the stack of its own"
    EXPECT64 [nested], 1, "and another waits for iretq"
    ret
apic_interrupt:
    push rax
    inc dword ptr [arrived]
    APIC_WRITE 0xB0, 0
    pop rax
    iretq
nmi:
    push rax
    push rcx
    mov [nmi_rsp], rsp
    cmp dword ptr [sent], 0
    jne 1f
    inc dword ptr [sent]
    SEND 0x40400                 # waits
    mov rax, [nmis]
    inc rax
    mov [nested], rax
    jmp 2f
1:  inc dword ptr [nmis]
2:  pop rcx
    pop rax
    iretq

.bss
.align 8
tick_rip: .skip 8
tick_cs:  .skip 8
.irp name, ticks, steps, arrived, nmis, nmi_rsp, nested, sent
\name: .skip 8
.endr
.text
