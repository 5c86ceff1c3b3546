# trap - the trap flag: after which instructions it traps, which it skips, and in what order
.include "guest.inc"

.set APIC, 0xFEE00000
.set APIC_SPURIOUS, APIC+0xF0
.set APIC_EOI, APIC+0xB0
.set APIC_COMMAND, APIC+0x300
.set TO_SELF, 0x40000
.set SELF_VECTOR, 0x61
.set INT_VECTOR, 0x40
.set DR6_BS, 0x4000
.set MAX_STEPS, 16
.set FAST_CODE0, FREE            # SYSENTER's four
.set FAST_DATA0, FREE+8

# STEPS_BEGIN ... STEPS_END: the instructions between are traced. `steps` counts the traps;
# `step_eips` and the other arrays keep what each trap found. The last trap is that of the POPFD
# that ends the trace, after the three instructions of STEPS_END itself.
.macro STEPS_BEGIN
    mov dword ptr [steps], 0
    pushfd
    or dword ptr [esp], FLAG_T
    popfd
.endm
.macro STEPS_END
    pushfd
    and dword ptr [esp], ~FLAG_T
    popfd
    sub dword ptr [steps], 3
.endm
.macro EXPECT_STEP number, label, fact
    EXPECT [step_eips+4*\number], "offset \label", "\fact"
.endm

main:
    GATE EXC_DB, step
    GATE INT_VECTOR, plain_return
    GATE EXC_BP, plain_return
    GATE EXC_OF, plain_return
    call plain
    call stack_segment
    call software
    call returns
    call repeated
    call faults
    call order
    call rings
    call resume_flag
    ret

step:
    pushad
    mov ebx, [steps]
    inc dword ptr [steps]
    cmp ebx, MAX_STEPS
    jae 1f
    mov eax, [esp+32]
    mov step_eips[ebx*4], eax
    mov eax, [esp+36]
    mov step_cs[ebx*4], eax
    mov eax, [esp+40]
    mov step_flags[ebx*4], eax
    mov step_counts[ebx*4], ecx
    mov eax, [clock]
    mov step_times[ebx*4], eax
    inc dword ptr [clock]
1:  cmp dword ptr [end_trace], 0
    je 2f
    and dword ptr [esp+40], ~FLAG_T
2:  popad
    iretd
plain_return:
    nop
    iretd

plain:
    xor eax, eax
    mov dr6, eax
    STEPS_BEGIN
    nop
p1: mov eax, [scratch]
p2: jmp p4
p3: ud2
p4: call p6
p5: jmp p7
p6: ret
p7: fld1
p8: STEPS_END
    fstp st(0)
    EXPECT [steps], 7, "one trap for each instruction"
    EXPECT_STEP 0, p1, "which finds eip at the next one"
    EXPECT_STEP 1, p2, "behind one with a memory operand"
    EXPECT_STEP 2, p4, "a jump's target"
    EXPECT_STEP 3, p6, "a call's"
    EXPECT_STEP 4, p5, "a return's"
    EXPECT_STEP 6, p8, "and behind one of the x87's"
    mov eax, [step_flags]
    and eax, FLAG_T|FLAG_R
    EXPECT eax, FLAG_T, "the frame shows TF set and RF clear"
    mov eax, dr6
    and eax, 0xE00F
    EXPECT eax, DR6_BS, "DR6 says single step and nothing else"
.ifndef QEMU
    STEPS_BEGIN
    sti
p9: cli
p10:
    STEPS_END
    EXPECT_STEP 0, p9, "sti does not hold the trap off"
    EXPECT_STEP 1, p10, "nor does cli"
    STEPS_BEGIN
    hlt
p11:
    STEPS_END
    EXPECT_STEP 0, p11, "a trap wakes from hlt, with interrupts off"
.endif
    ret

stack_segment:
    mov eax, ss
    STEPS_BEGIN
    mov ss, ax
s1: nop
s2: push ss
s3: pop ss
s4: nop
s5: STEPS_END
.ifndef QEMU
    EXPECT [steps], 3, "mov ss and pop ss put their trap off"
    EXPECT_STEP 0, s2, "until behind the next instruction"
    EXPECT_STEP 1, s3, "which then traps once"
    EXPECT_STEP 2, s5, "as it does behind pop ss"
.endif
.ifndef QEMU
    mov [far_pointer], esp
    mov word ptr [far_pointer+4], ss
    STEPS_BEGIN
    lss esp, [far_pointer]
s6: nop
s7: STEPS_END
    EXPECT_STEP 0, s6, "lss does not"
.endif
    mov eax, ss
    STEPS_BEGIN
    mov ds, ax
s8: STEPS_END
    EXPECT_STEP 0, s8, "nor does mov ds"
    mov eax, ss
    STEPS_BEGIN
    mov ss, ax
    int INT_VECTOR
s9: nop
s10:
    STEPS_END
.ifndef QEMU
    EXPECT_STEP 0, s10, "mov ss and int n: no trap, neither before nor in the handler"
.endif
    ret

software:
    STEPS_BEGIN
    int INT_VECTOR
i1: nop
i2: STEPS_END
    EXPECT [steps], 1, "int n itself does not trap, nor its handler"
    EXPECT_STEP 0, i2, "but the instruction it returns to does"
    STEPS_BEGIN
    int3
    nop
i3: STEPS_END
    EXPECT_STEP 0, i3, "the same with int3"
    mov al, 0x7F
    add al, 1
    STEPS_BEGIN
    into
    nop
i4: STEPS_END
    EXPECT_STEP 0, i4, "and into"
    xor eax, eax
    STEPS_BEGIN
    into
i5: nop
i6: STEPS_END
    EXPECT_STEP 0, i5, "an into that does nothing traps as any instruction"
.ifndef QEMU
    xor eax, eax
    mov dr6, eax
    mov dword ptr [steps], 0
    .byte 0xF1                   # INT1
i7: EXPECT [steps], 1, "int1 raises a debug exception"
    EXPECT_STEP 0, i7, "which returns behind it"
    mov eax, dr6
    and eax, 0xE00F
    EXPECT eax, 0, "and leaves DR6 alone"
.endif
    ret

returns:
    STEPS_BEGIN
    pushfd
    push CODE
    push offset r1
    and dword ptr [esp+8], ~FLAG_T
    iretd
    ud2
r1: EXPECT [steps], 5, "iret that clears TF still traps"
    EXPECT_STEP 4, r1, "at its target"
    mov dword ptr [steps], 0
    pushfd
    or dword ptr [esp], FLAG_T
    push CODE
    push offset r2
    iretd
    ud2
r2: nop
r3: STEPS_END
    EXPECT [steps], 1, "iret that sets TF does not"
    EXPECT_STEP 0, r3, "but the first instruction behind it"
    STEPS_BEGIN
    jmp CODE:offset r4
r4: push CODE
    push offset r6
r5: retf
r6: STEPS_END
    EXPECT_STEP 0, r4, "a far jump traps at its target"
    EXPECT_STEP 3, r6, "a far return too"
    ret

# REPEATED "instruction", count, traps, "its name"
.macro REPEATED count, traps, name, instruction:vararg
    mov esi, offset text
    mov edi, offset copy
    mov edx, 0x80
    mov ecx, \count
    xor eax, eax
    cld
    STEPS_BEGIN
rep_\@:
    \instruction
rep_behind_\@:
    STEPS_END
    EXPECT [steps], \traps, "\name: a trap for each iteration"
    EXPECT_STEP "(\traps-1)", rep_behind_\@, "\name: the last one behind it"
.if \traps > 1
    EXPECT_STEP "(\traps-2)", rep_\@, "\name: the others at it"
    EXPECT [step_counts], \count-1, "\name: with one less to do"
.endif
.endm
repeated:
.ifndef QEMU
    REPEATED 4, 4, "rep movsb", rep movsb
    EXPECT [copy], 0x64636261, "and moves the same bytes"
    mov eax, [step_flags]
    and eax, FLAG_R|FLAG_T
    EXPECT eax, FLAG_R|FLAG_T, "between iterations the frame shows RF set"
    mov eax, [step_flags+12]
    and eax, FLAG_R|FLAG_T
    EXPECT eax, FLAG_T, "behind the last one clear"
    REPEATED 3, 3, "rep stosd", rep stosd
    REPEATED 3, 3, "rep lodsw", rep lodsw
    REPEATED 3, 3, "rep outsb", rep outsb
    REPEATED 2, 2, "rep insb", rep insb
    mov dword ptr [copy], 0x58636261
    REPEATED 8, 4, "repe cmpsb", repe cmpsb
    EXPECT ecx, 4, "which ends at the difference"
.endif
    REPEATED 0, 1, "rep movsd with nothing to do", rep movsd
    REPEATED 1, 1, "rep movsd once", rep movsd
    ret

faults:
    mov dword ptr [steps], 0
    mov dword ptr [resume_at], offset f2
    mov dword ptr [try_eip], offset f1
    pushfd
    or dword ptr [esp], FLAG_T
    popfd
f1: ud2
f2: nop
f3: STEPS_END
    EXPECT_FAULT EXC_UD, 0, "a faulting instruction"
    EXPECT_STEP 0, f3, "does not trap, nor does its handler"
.ifndef QEMU
    mov eax, [fault_flags]
    and eax, FLAG_T|FLAG_R
    EXPECT eax, FLAG_T|FLAG_R, "whose frame shows TF and RF"
.endif
    ret

order:
    GATE SELF_VECTOR, self_interrupt
    mov dword ptr [APIC_SPURIOUS], 0x1FF
    mov dword ptr [clock], 1
    sti
    STEPS_BEGIN
    mov dword ptr [APIC_COMMAND], TO_SELF|SELF_VECTOR
o1: nop
o2: nop
    STEPS_END
    cli
    EXPECT_STEP 0, o1, "the instruction that sends an interrupt traps"
    mov eax, [self_time]
    cmp eax, [step_times]
    EXPECT_FLAGS FLAG_C|FLAG_Z, 0, "before the interrupt comes"
    mov eax, [self_flags]
    and eax, FLAG_T
    EXPECT eax, FLAG_T, "which finds TF set in its frame"
    ret
self_interrupt:
    push eax
    mov eax, [clock]
    mov [self_time], eax
    inc dword ptr [clock]
    mov eax, [esp+12]
    mov [self_flags], eax
    mov dword ptr [APIC_EOI], 0
    pop eax
    iretd

rings:
    mov dword ptr [steps], 0
    mov dword ptr [end_trace], 1
    pushfd
    or dword ptr [esp], FLAG_T
    pop [scratch]
    mov [kernel_esp], esp
    push DATA3
    pop ds
    push DATA3
    pop es
    push DATA3
    push offset user_stack_top
    push [scratch]
    push CODE3
    push offset g1
    iretd
g1: nop
g2: int LEAVE_RING3
    EXPECT [steps], 1, "iret to ring 3 with TF: one trap"
    EXPECT_STEP 0, g2, "behind the first instruction there"
    EXPECT [step_cs], CODE3, "in ring 3"
.ifndef QEMU
    USER_TRY .byte 0xF1
    EXPECT [steps], 2, "int1 asks for no privilege of its gate"
.endif
    mov eax, 1
    cpuid
    bt edx, 11
    jnc 1f
    call sysenter_trap
1:  mov dword ptr [end_trace], 0
    ret
sysenter_trap:
    DESCRIPTOR FAST_CODE0, 0, 0xFFFFF, SEG_CODE|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_DATA0, 0, 0xFFFFF, SEG_DATA|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_DATA0+8, 0, 0xFFFFF, SEG_CODE|SEG_RING3|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_DATA0+16, 0, 0xFFFFF, SEG_DATA|SEG_RING3|SEG_BIG|SEG_PAGES
    mov ecx, 0x174
    xor edx, edx
    mov eax, FAST_CODE0
    wrmsr
    inc ecx
    mov eax, offset fast_stack_top
    wrmsr
    inc ecx
    mov eax, offset fast_entry
    wrmsr
    mov dword ptr [steps], 0
    mov [kernel_esp], esp
    push DATA3
    pop ds
    push DATA3
    pop es
    push DATA3
    push offset user_stack_top
    push [scratch]               # with TF
    push CODE3
    push offset g3
    iretd
g3: sysenter
fast_entry:
    mov esp, [kernel_esp]
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov ss, eax
    EXPECT [steps], 1, "sysenter traps"
    EXPECT_STEP 0, fast_entry, "at the kernel's entry"
    EXPECT [step_cs], FAST_CODE0, "in ring 0"
    ret

# RF: IRET loads it, the next instruction clears it, and only frames show it.
resume_flag:
    GATE INT_VECTOR, keep_flags
    pushfd
    or dword ptr [esp], FLAG_R
    push CODE
    push offset 1f
    iretd
1:  nop
    int INT_VECTOR
    mov eax, [step_flags]
    and eax, FLAG_R
.ifndef QEMU
    EXPECT eax, 0, "an instruction that completes clears RF"
.endif
    push FLAG_R|2
    popfd
    int INT_VECTOR
    mov eax, [step_flags]
    and eax, FLAG_R
    EXPECT eax, 0, "popfd does not set it"
    ret
keep_flags:
    push [esp+8]
    pop [step_flags]
    iretd

.data
.align 4
text:      .ascii "abcdefghijklmnop"
.bss
.align 4
copy:        .skip 32
scratch:     .skip 4
far_pointer: .skip 8
steps:       .skip 4
end_trace:   .skip 4
clock:       .skip 4
self_time:   .skip 4
self_flags:  .skip 4
step_eips:   .skip 4*MAX_STEPS
step_cs:     .skip 4*MAX_STEPS
step_flags:  .skip 4*MAX_STEPS
step_counts: .skip 4*MAX_STEPS
step_times:  .skip 4*MAX_STEPS
             .skip 512
fast_stack_top: .skip 16
