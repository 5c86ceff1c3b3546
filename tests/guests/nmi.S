# nmi - the non-maskable interrupt: held until IRET, before others, and out of HLT
#
# The local APIC sends it to its own processor.
.include "guest.inc"

.set APIC, 0xFEE00000
.set APIC_ID, APIC+0x20
.set APIC_PRIORITY, APIC+0x80
.set APIC_EOI, APIC+0xB0
.set APIC_SPURIOUS, APIC+0xF0
.set APIC_COMMAND, APIC+0x300
.set APIC_COMMAND_HIGH, APIC+0x310
.set APIC_LVT_LINT0, APIC+0x350
.set MASKED, 0x10000
.set TO_SELF, 0x40000
.set DELIVER_NMI, 0x400
.set VECTOR, 0x61
.set INT_VECTOR, 0x40

.macro SEND_NMI
    mov dword ptr [APIC_COMMAND], DELIVER_NMI
.endm

main:
    GATE VECTOR, interrupt
    GATE 2, nmi
    GATE INT_VECTOR, software
    mov dword ptr [APIC_SPURIOUS], 0x1FF
    mov eax, [APIC_ID]
    mov [APIC_COMMAND_HIGH], eax
    call held
    call wakes
    ret

interrupt:
    push eax
    mov eax, [clock]
    mov [taken_time], eax
    inc dword ptr [clock]
    mov dword ptr [APIC_EOI], 0
    pop eax
software:
    iretd
nmi:
    pushad
    inc dword ptr [nmi_count]
    mov eax, [esp+32]
    mov [nmi_eip], eax
    mov eax, [esp+40]
    mov [nmi_flags], eax
    mov eax, [clock]
    mov [nmi_time], eax
    inc dword ptr [clock]
    xor eax, eax
    xchg eax, [in_nmi]
    test eax, eax
    jz 1f
    call eax
1:  popad
    iretd
# Long enough for an NMI to arrive, if it may.
.macro AWAIT_NMI
    mov ecx, 2000
1:  loop 1b
.endm
held:
    mov dword ptr [nmi_count], 0
    mov dword ptr [in_nmi], offset send_two
    cli
    SEND_NMI
    AWAIT_NMI
    EXPECT [count_inside], 1, "an nmi's handler is not interrupted by another"
    EXPECT [nmi_count], 2, "of those sent meanwhile one comes behind its iret"
    mov eax, [nmi_flags]
    and eax, FLAG_I
    EXPECT eax, 0, "interrupts were off all the time"
    mov dword ptr [nmi_count], 0
    mov dword ptr [in_nmi], offset send_and_int
    SEND_NMI
    AWAIT_NMI
    EXPECT [count_inside], 1, "an interrupt's handler inside it is not interrupted either"
    EXPECT [count_behind], 2, "but any iret lets them in"
    mov dword ptr [nmi_count], 0
    mov dword ptr [in_nmi], offset send_and_fault
    SEND_NMI
    AWAIT_NMI
    EXPECT [count_inside], 2, "so does the return from a fault"
.ifndef QEMU
    mov dword ptr [nmi_count], 0
    mov dword ptr [in_nmi], offset send_and_bad_iret
    SEND_NMI
    AWAIT_NMI
    EXPECT [fault_vector], EXC_GP, "an iret that faults"
    EXPECT [count_inside], 1, "behind an nmi that waits"
    EXPECT [nmi_count], 2, "lets it in"
.endif
    mov dword ptr [clock], 1
    mov dword ptr [in_nmi], offset send_both
    SEND_NMI
    AWAIT_NMI
    sti
    nop
    nop
    cli
    EXPECT [nmi_time], 2, "of an nmi and an interrupt that wait"
    EXPECT [taken_time], 3, "the nmi comes first"
    ret
send_two:
    SEND_NMI
    SEND_NMI
    AWAIT_NMI
    mov eax, [nmi_count]
    mov [count_inside], eax
    ret
send_and_int:
    SEND_NMI
    AWAIT_NMI
    mov eax, [nmi_count]
    mov [count_inside], eax
    int INT_VECTOR
    AWAIT_NMI
    mov eax, [nmi_count]
    mov [count_behind], eax
    ret
send_and_fault:
    SEND_NMI
    TRY ud2
    AWAIT_NMI
    mov eax, [nmi_count]
    mov [count_inside], eax
    ret
send_and_bad_iret:
    SEND_NMI
    AWAIT_NMI
    mov eax, [nmi_count]
    mov [count_inside], eax
    pushfd
    push 0xFFF8
    push offset 1f
    TRY iretd
    add esp, 12
1:  ret
send_both:
    mov dword ptr [APIC_COMMAND], TO_SELF|VECTOR
    SEND_NMI
    or dword ptr [esp+4+40], FLAG_I
    ret

# LINT0 as an NMI: the 8254 wakes a processor that does not listen to interrupts.
wakes:
    mov dword ptr [nmi_count], 0
    mov dword ptr [in_nmi], offset silence
    mov dword ptr [APIC_LVT_LINT0], DELIVER_NMI
    call start_timer
    cli
    hlt
n1: EXPECT [nmi_count], 1, "an nmi wakes hlt with interrupts off"
    EXPECT [nmi_eip], "offset n1", "and returns behind it"
    # A pending interrupt that the task priority holds back does not wake.
    mov dword ptr [clock], 1
    mov dword ptr [taken_time], 0
    mov dword ptr [in_nmi], offset silence
    mov dword ptr [APIC_PRIORITY], 0xF0
    mov dword ptr [APIC_COMMAND], TO_SELF|VECTOR
    call start_timer
    sti
    hlt
n2: cli
    EXPECT [nmi_eip], "offset n2", "an interrupt held back by its priority does not wake from hlt"
    EXPECT [taken_time], 0, "nor come then"
    sti
    mov dword ptr [APIC_PRIORITY], 0
    nop
    nop
    cli
    EXPECT [taken_time], 2, "but when the priority falls"
    mov dword ptr [APIC_LVT_LINT0], MASKED
    ret
start_timer:
    mov al, 0xFE
    out PIC1+1, al
    mov al, 0x30                 # counter 0, mode 0
    out 0x43, al
    mov al, 0xFF
    out 0x40, al
    mov al, 0x20
    out 0x40, al
    ret
silence:
    call init_pics               # forgets the request: the next one is an edge again
    ret

.bss
.align 4
clock:        .skip 4
taken_time:   .skip 4
nmi_count:    .skip 4
nmi_eip:      .skip 4
nmi_flags:    .skip 4
nmi_time:     .skip 4
in_nmi:       .skip 4            # what the handler does
count_inside: .skip 4
count_behind: .skip 4
