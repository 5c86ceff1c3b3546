# interrupts - 8259, 8254, HLT, STI, INT n, and the exceptions' frames
.include "guest.inc"

.set PIT0, 0x40
.set PIT_COMMAND, 0x43
.set OCW3_READ_IRR, 0x0A
.set OCW3_READ_ISR, 0x0B

# UNMASK / MASK: the first controller's line 0 alone, or nothing.
.macro UNMASK
    mov al, 0xFE
    out PIC1+1, al
.endm
.macro MASK
    mov al, 0xFF
    out PIC1+1, al
.endm

main:
    GATE IRQ_BASE, timer
    mov al, 0x34                 # channel 0, mode 2, 1193182 / 1193 = 1 kHz
    out PIT_COMMAND, al
    mov al, 1193 & 0xFF
    out PIT0, al
    mov al, 1193 >> 8
    out PIT0, al
    call waiting
    call shadow
    call controller
    call nesting
    MASK
    call software
    call exceptions
    call single_step
    call gates
    ret

# The timer's handler. It notes where it interrupted, and does what `in_timer`
# asks for.
timer:
    pushad
    inc dword ptr [ticks]
    mov eax, [esp+32]
    mov [tick_eip], eax
    cmp dword ptr [first_eip], 0
    jne 1f
    mov [first_eip], eax
1:  mov eax, [esp+40]
    mov [tick_flags], eax
    pushfd
    pop [flags_in_timer]
    mov al, OCW3_READ_ISR
    out PIC1, al
    in al, PIC1
    movzx eax, al
    mov [isr_in_timer], eax
    cmp dword ptr [in_timer], 0
    je 1f
    call [in_timer]
1:  mov al, PIC_EOI
    out PIC1, al
    popad
    iretd

# Some milliseconds' wait which needs no interrupt: reads of an idle port.
delay:
    push eax
    push ecx
    mov ecx, 20000
1:  in al, 0x80
    mov al, OCW3_READ_IRR
    out PIC1, al
    in al, PIC1
    test al, 1
    jnz 2f
    loop 1b
2:  pop ecx
    pop eax
    ret

# Returns once line 0 requests an interrupt (which is off or masked). Where that one
# comes is noted in `first_eip`: if the host stops here for long the next follows at once.
await_request:
    push eax
    mov dword ptr [first_eip], 0
    mov al, OCW3_READ_IRR
    out PIC1, al
1:  in al, PIC1
    test al, 1
    jz 1b
    pop eax
    ret

waiting:
    mov dword ptr [ticks], 0
    UNMASK
    mov ecx, 50
1:  mov eax, [ticks]
    sti
    hlt
halted:
    cli
    cmp [ticks], eax
    je 2f
    cmp dword ptr [tick_eip], offset halted
    jne 2f
    loop 1b
2:  EXPECT ecx, 0, "each of 50 hlt waits for a tick"
    EXPECT [tick_eip], "offset halted", "hlt is left by an interrupt, which returns behind it"
    mov eax, [tick_flags]
    and eax, FLAG_I
    EXPECT eax, FLAG_I, "the handler's frame shows interrupts on"
    mov eax, [flags_in_timer]
    and eax, FLAG_I
    EXPECT eax, 0, "they are off in the handler"
    EXPECT [isr_in_timer], 1, "where line 0 is in service"
    mov ecx, [ticks]
    add ecx, 10
    sti
2:  cmp [ticks], ecx
    jb 2b
    cli
    ret

shadow:
    call await_request
    mov ecx, [ticks]
    call delay
    EXPECT [ticks], ecx, "cli holds a pending interrupt off"
    sti
    nop
after_shadow:
    cli
    EXPECT [first_eip], "offset after_shadow", "sti holds interrupts off for one instruction"
    call await_request
    mov ecx, [ticks]
    sti
    cli
    EXPECT [ticks], ecx, "so sti and cli together let none in"
    sti
    sti
after_second_sti:
    nop
    cli
    EXPECT [first_eip], "offset after_second_sti", "a second sti does not prolong it"
    call await_request
    pushfd
    or dword ptr [esp], FLAG_I
    popfd
after_popf:
    nop
    cli
    EXPECT [first_eip], "offset after_popf", "popf lets interrupts in at once"
    call await_request
    pushfd
    or dword ptr [esp], FLAG_I
    push CODE
    push offset after_iret
    iretd
    nop
after_iret:
    nop
    cli
    EXPECT [first_eip], "offset after_iret", "iret lets interrupts in at its target"
    call await_request
    sti
    hlt
after_hlt:
    cli
    EXPECT [first_eip], "offset after_hlt", "an interrupt pending at sti and hlt is taken behind hlt"
    call await_request
    mov ecx, 2
    sti
1:  loop 1b                      # the interrupt comes before it branches again
    cli
.ifndef QEMU
    EXPECT [first_eip], "offset 1b", "a branch can stand in sti's shadow"
.endif
    EXPECT ecx, 0, "and its loop ends as it should"
    ret

controller:
    MASK
    call await_request
    mov ecx, [ticks]
    sti
    call delay
    nop
    EXPECT [ticks], ecx, "a masked line stays pending"
    UNMASK
1:  cmp [ticks], ecx
    je 1b
    cli
    cmp [ticks], ecx
    EXPECT_FLAGS FLAG_Z, 0, "and comes when it is unmasked"
    in al, PIC1+1
    movzx eax, al
    EXPECT eax, 0xFE, "the mask can be read back"
    MASK
    in al, PIC2+1
    movzx eax, al
    EXPECT eax, 0xFF, "so can the second controller's"
    UNMASK
    ret

nesting:
    mov dword ptr [in_timer], offset without_eoi
    call await_request
    sti
    nop
    cli
    EXPECT [nested], 0, "before its EOI a line does not interrupt its own handler"
    mov dword ptr [in_timer], offset with_eoi
    call await_request
    sti
    nop
    cli
    EXPECT [nested], 1, "after it, it does"
    mov dword ptr [in_timer], 0
    ret
without_eoi:
    mov dword ptr [in_timer], 0
    mov ecx, [ticks]
    sti
    call delay
    nop
    cli
    mov eax, [ticks]
    sub eax, ecx
    mov [nested], eax
    ret
with_eoi:
    mov dword ptr [in_timer], 0
    mov al, PIC_EOI
    out PIC1, al
    mov ecx, [ticks]
    sti
1:  cmp [ticks], ecx
    je 1b
    cli
    mov dword ptr [nested], 1
    ret

# INT n: the frame that the handler finds.
.macro AT_RETURN label, fact
    EXPECT [fault_eip], "offset \label", "\fact"
.endm
catch:                           # keeps the frame and returns
    pop [fault_eip]
    pop [fault_cs]
    pop [fault_flags]
    pushfd
    pop [flags_in_timer]
    push [fault_flags]
    push [fault_cs]
    push [fault_eip]
    iretd

software:
    GATE 0x40, catch
    GATE 0x41, catch, 0x8F
    push FLAG_I|FLAG_C|FLAG_D|2
    popfd
    int 0x40
after_int:
    pushfd
    cli
    cld
    AT_RETURN after_int, "int n returns behind itself"
    EXPECT [fault_cs], CODE, "its frame holds cs"
    mov eax, [fault_flags]
    and eax, FLAG_I|FLAG_C|FLAG_D
    EXPECT eax, FLAG_I|FLAG_C|FLAG_D, "and the flags"
    pop eax
    and eax, FLAG_I|FLAG_C|FLAG_D
    EXPECT eax, FLAG_I|FLAG_C|FLAG_D, "which come back"
    mov eax, [flags_in_timer]
    and eax, FLAG_I|FLAG_C
    EXPECT eax, FLAG_C, "an interrupt gate clears only the interrupt flag"
    push FLAG_I|FLAG_NT|2
    popfd
    int 0x41
    cli
    push 2
    popfd
    mov eax, [flags_in_timer]
    and eax, FLAG_I|FLAG_NT
    EXPECT eax, FLAG_I, "a trap gate leaves it, and clears NT"
    GATE EXC_BP, catch, 0x8F
    int3
after_int3:
    AT_RETURN after_int3, "int3 returns behind itself"
    int 3
after_int_3:
    AT_RETURN after_int_3, "so does its two-byte form"
    GATE EXC_OF, catch, 0x8F
    mov al, 0x7F
    add al, 1
    into
after_into:
    AT_RETURN after_into, "so does into after an overflow"
    mov dword ptr [fault_eip], 0
    xor eax, eax
    into
    EXPECT [fault_eip], 0, "into without overflow does nothing"
    ret

exceptions:
    xor ecx, ecx
    mov eax, 7
    cdq
    TRY div ecx
    EXPECT_FAULT EXC_DE, 0, "dividing by zero"
    EXPECT eax, 7, "leaves the dividend"
    mov ax, 0x1000
    mov cl, 1
    TRY div cl
    EXPECT_FAULT EXC_DE, 0, "a quotient that does not fit"
    mov eax, 0x80000000
    cdq
    mov ecx, -1
    TRY idiv ecx
    EXPECT_FAULT EXC_DE, 0, "the most negative number divided by -1"
    stc
    TRY ud2
    EXPECT_FAULT EXC_UD, 0, "ud2"
    EXPECT_FLAGS FLAG_C, FLAG_C, "an exception's return restores the flags"
    mov eax, 0xFFF8
    TRY mov ds, eax
    EXPECT_FAULT EXC_GP, 0xFFF8, "a selector beyond the GDT: its index is the error code"
    mov eax, 0xFFFF
    TRY mov es, eax
    EXPECT_FAULT EXC_GP, 0xFFFC, "without the RPL"
    mov eax, 5
    TRY bound eax, [limits]
    EXPECT_FAULT EXC_BR, 0, "bound outside its limits"
.ifndef QEMU
    mov eax, CR0_PG|0x10
    TRY mov cr0, eax
    EXPECT_FAULT EXC_GP, 0, "paging without protection"
.endif
    TRY .byte 0xF0, 0x90         # lock nop
    EXPECT_FAULT EXC_UD, 0, "lock where there is nothing to lock"
    ret

single_step:
    GATE EXC_DB, step
    mov dword ptr [ticks], 0
    pushfd
    or dword ptr [esp], FLAG_T
    popfd                        # the first trap comes after the next instruction
stepped:
    nop
    mov eax, 1
    and dword ptr [limits], 0    # a memory operand
    pushfd
    and dword ptr [esp], ~FLAG_T
    popfd                        # traps once more: TF was set when it began
    nop
    EXPECT [ticks], 6, "TF traps after each instruction"
    EXPECT [tick_eip], "offset stepped+1", "popf that sets TF does not trap itself"
    ret
step:
    cmp dword ptr [ticks], 0
    jne 1f
    push eax
    mov eax, [esp+4]
    mov [tick_eip], eax
    pop eax
1:  inc dword ptr [ticks]
    iretd

gates:
    mov byte ptr [idt+0x50*8+5], 0x0E
    TRY int 0x50
    EXPECT_FAULT EXC_NP, 0x50*8+2, "a gate that is not present"
    mov word ptr [idt_short], 0x48*8-1
    mov dword ptr [idt_short+2], offset idt
    lidt [idt_short]
    TRY int 0x48
    EXPECT_FAULT EXC_GP, 0x48*8+2, "a vector beyond the IDT's limit"
    lidt [idt_pointer]
    mov byte ptr [idt+0x50*8+5], 0x89
    TRY int 0x50
    EXPECT_FAULT EXC_GP, 0x50*8+2, "an IDT entry that is no gate"
    GATE EXC_UD, nest
    TRY ud2
    EXPECT [fault_vector], EXC_DE, "an exception inside an exception's handler"
    EXPECT ebx, 0x600D, "both return"
    mov byte ptr [idt+EXC_UD*8+5], 0x0E
    TRY ud2
    EXPECT [fault_vector], EXC_NP, "an exception whose gate is not present becomes #NP"
    mov byte ptr [idt+EXC_NP*8+5], 0x0E
    TRY ud2
    EXPECT [fault_vector], EXC_DF, "and if that gate is missing too, a double fault"
    EXPECT [fault_error], 0, "with error code 0"
    ret
nest:
    push ecx
    xor ecx, ecx
    push [resume_at]
    TRY div ecx
    pop [resume_at]
    pop ecx
    mov ebx, 0x600D
    push eax
    mov eax, [resume_at]
    mov [esp+4], eax
    pop eax
    iretd

.data
.align 4
limits:    .long 10, 20
.bss
idt_short: .skip 8
ticks:     .skip 4
tick_eip:  .skip 4
first_eip: .skip 4
tick_flags: .skip 4
flags_in_timer: .skip 4
isr_in_timer: .skip 4
in_timer:  .skip 4
nested:    .skip 4
