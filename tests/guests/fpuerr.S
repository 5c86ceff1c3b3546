# fpuerr - unmasked errors: x87 through #MF and through interrupt 13, SSE through #XM
.include "guest.inc"

.set IRQ13, IRQ_BASE + 13
.set FPU_PORT, 0xF0
.set FCW, 0x037F                 # everything masked
.set INVALID, 1
.set DENORMAL, 2
.set ZERO_DIVIDE, 4
.set OVERFLOW, 8
.set UNDERFLOW, 0x10
.set PRECISION, 0x20
.set SUMMARY, 0x80
.set BUSY, 0x8000
.set MXCSR, 0x1F80

.macro CR0_SET bits
    mov eax, cr0
    or eax, \bits
    mov cr0, eax
.endm
.macro CR0_CLEAR bits
    mov eax, cr0
    and eax, ~(\bits)
    mov cr0, eax
.endm
# UNMASK errors: a fresh x87 that reports these.
.macro UNMASK errors
    fninit
    mov word ptr [control], FCW & ~(\errors)
    fldcw [control]
.endm
# A division by zero, unmasked: pending, with 1 and 0 still on the stack.
.macro PENDING
    UNMASK ZERO_DIVIDE
    fld1
    fldz
divide_\@:
    fdivp st(1), st
    mov dword ptr [divided_at], offset divide_\@
.endm
.macro STATUS mask, expected, fact
    fnstsw ax
    and eax, \mask
    EXPECT eax, \expected, "\fact"
.endm

main:
    CR0_SET CR0_NE|CR0_MP
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
.ifndef QEMU                     # it raises no #MF but at fwait, and knows no #XM
    call each
    call line_13
    call ignored
    call sse
.endif
    call waits
    call images
    ret

# EACH error, "fact", instruction (on what was loaded before): it completes, and the
# next wait faults.
.macro EACH error, fact, instruction:vararg
    TRY \instruction
    EXPECT_NO_FAULT "\fact"
    STATUS \error|SUMMARY|BUSY, \error|SUMMARY|BUSY, "\fact: the status word has it, with ES and B"
    TRY fwait
    EXPECT_FAULT EXC_MF, 0, "\fact: the next wait is #MF"
.endm
each:
    UNMASK INVALID
    fldz
    fldz
    EACH INVALID, "0/0", fdivp st(1), st
    STATUS 0x3800, 0x3000, "which leaves both operands"
    UNMASK INVALID
    EACH INVALID|0x40, "an empty stack", fstp dword ptr [scratch]
    UNMASK INVALID
    mov dword ptr [scratch], 0x12345678
    fld qword ptr [huge]
    EACH INVALID, "a number that is no integer", fistp dword ptr [scratch]
    EXPECT [scratch], 0x12345678, "nothing is stored"
    STATUS 0x3800, 0x3800, "nor popped"
    UNMASK DENORMAL
    EACH DENORMAL, "a denormal operand", fld dword ptr [tiny]
    UNMASK ZERO_DIVIDE
    fld1
    fldz
    EACH ZERO_DIVIDE, "1/0", fdivp st(1), st
    UNMASK OVERFLOW
    fld qword ptr [huge]
    mov dword ptr [scratch], 0x12345678
    EACH OVERFLOW, "too large to be stored", fstp dword ptr [scratch]
    EXPECT [scratch], 0x12345678, "which is not"
    UNMASK UNDERFLOW
    fld qword ptr [small]
    EACH UNDERFLOW, "too small to be stored", fstp dword ptr [scratch]
    UNMASK PRECISION
    fldpi
    EACH PRECISION, "a result that is rounded", fstp dword ptr [scratch]
    EXPECT [scratch], 0x40490FDB, "is stored nevertheless"
    fninit
    fld1
    fldz
    fdivp st(1), st
    TRY fwait
    EXPECT_NO_FAULT "masked, nothing waits for anything"
    mov word ptr [control], FCW & ~ZERO_DIVIDE
    TRY fldcw [control]
    EXPECT_NO_FAULT "fldcw may unmask an error that has happened"
    STATUS SUMMARY, SUMMARY, "which sets ES"
    TRY fwait
    EXPECT_FAULT EXC_MF, 0, "and makes the next wait fault"
    fninit
    ret

.macro WAITS fact, instruction:vararg
    TRY \instruction
    EXPECT_FAULT EXC_MF, 0, "\fact waits"
.endm
.macro WAITS_NOT fact, instruction:vararg
    PENDING
    TRY \instruction
    EXPECT_NO_FAULT "\fact does not wait"
.endm
waits:
    PENDING
.ifndef QEMU
    WAITS "fld", fld1
    WAITS "fld from memory", fld dword ptr [scratch]
    WAITS "fstp", fstp dword ptr [scratch]
    WAITS "fadd", faddp st(1), st
    WAITS "fldcw", fldcw [control]
    WAITS "fldenv", fldenv [image]
    WAITS "frstor", frstor [image]
    WAITS "an MMX instruction", movd mm0, eax
    WAITS "emms", emms
    WAITS "cvtpi2ps", cvtpi2ps xmm0, mm0
    STATUS 0x3800, 0x3000, "and nothing has changed the stack"
.endif
    WAITS "fwait", fwait
    TRY addps xmm0, xmm1
    EXPECT_NO_FAULT "an SSE instruction is no business of the x87's"
    WAITS_NOT "fnstsw", fnstsw ax
    WAITS_NOT "fnstcw", fnstcw [scratch]
    WAITS_NOT "fnstenv", fnstenv [image]
    EXPECT [image+12], [divided_at], "whose image names the instruction that failed"
    WAITS_NOT "fxsave", fxsave [fx_image]
    WAITS_NOT "fxrstor", fxrstor [fx_image]
    WAITS_NOT "fnclex", fnclex
    STATUS SUMMARY|BUSY|ZERO_DIVIDE, 0, "but clears the error"
    WAITS_NOT "fninit", fninit
    WAITS_NOT "fnsave", fnsave [image]
    PENDING
    CR0_SET CR0_TS
    TRY fwait
    EXPECT_FAULT EXC_NM, 0, "#NM comes before #MF"
    clts
    mov dword ptr [resume_at], offset w1
    fwait
w1: fnstenv [image]
    EXPECT [image+12], [divided_at], "in the handler fnstenv names the failed instruction, not the one that waited"
    fninit
    ret

images:
    PENDING
    fnsave [image]
    mov eax, [image+4]
    and eax, SUMMARY|ZERO_DIVIDE
    EXPECT eax, SUMMARY|ZERO_DIVIDE, "an image of fnsave holds the pending error"
    TRY fwait
    EXPECT_NO_FAULT "which fnsave has cleared"
    TRY frstor [image]
    EXPECT_NO_FAULT "frstor loads it"
    STATUS SUMMARY, SUMMARY, "and it is pending again"
    TRY fwait
    EXPECT_FAULT EXC_MF, 0, "for the next wait"
    fninit
    PENDING
    fxsave [fx_image]
    fninit
    TRY fxrstor [fx_image]
    TRY fwait
    EXPECT_FAULT EXC_MF, 0, "fxrstor brings one back too"
    fninit
    ret

# CR0.NE clear: the error is an interrupt of the second 8259.
fpu_interrupt:
    pushad
    inc dword ptr [interrupts]
    mov eax, [esp+32]
    mov [interrupted_at], eax
    out FPU_PORT, al
    mov al, PIC_EOI
    out PIC2, al
    out PIC1, al
    xor eax, eax
    xchg eax, [in_interrupt]
    test eax, eax
    jz 1f
    call eax
1:  fnclex
    popad
    iretd
timer:
    push eax
    inc dword ptr [ticks]
    mov eax, [esp+4]
    mov [ticked_at], eax
    mov al, 0xDF                 # now listen to line 13
    out PIC2+1, al
    mov al, 0xFB
    out PIC1+1, al
    mov al, PIC_EOI
    out PIC1, al
    pop eax
    iretd
line_13:
    GATE IRQ13, fpu_interrupt
    GATE IRQ_BASE, timer
    CR0_CLEAR CR0_NE
    mov al, 0xDF
    out PIC2+1, al
    mov al, 0xFB
    out PIC1+1, al
    mov dword ptr [interrupts], 0
    mov dword ptr [fault_vector], NONE
    PENDING
    sti
    nop
n1: fwait
    nop
    nop
    cli
    EXPECT [interrupts], 1, "with NE clear the wait is interrupt 13"
    EXPECT [interrupted_at], "offset n1", "which finds eip at the waiting instruction"
    EXPECT [fault_vector], NONE, "and not #MF"
    STATUS SUMMARY, 0, "its handler has cleared the error"
    PENDING
    sti
n2: fld1
    nop
    cli
    EXPECT [interrupts], 2, "another error, another interrupt"
    EXPECT [interrupted_at], "offset n2", "at the next instruction that waits"
    PENDING
    sti
n3: fld dword ptr [scratch]
    nop
    cli
    EXPECT [interrupts], 3, "of whatever kind"
    PENDING
    sti
n4: frstor [image]
    nop
    cli
    EXPECT [interrupts], 4, "frstor too"
    EXPECT [interrupted_at], "offset n4", "which is done when its handler returns"
    fninit
    # Line 13 is masked until the timer's handler enables it.
    mov dword ptr [interrupts], 0
    mov al, 0xFF
    out PIC2+1, al
    mov al, 0xFE
    out PIC1+1, al
    mov al, 0x30
    out 0x43, al
    mov al, 0
    out 0x40, al
    mov al, 0x10
    out 0x40, al
    PENDING
    sti
n5: fwait
    nop
    cli
    EXPECT [ticks], 1, "the processor stands still until an interrupt comes"
    EXPECT [ticked_at], "offset n5", "any interrupt"
    EXPECT [interrupts], 1, "and after it still waits for its own"
    fninit
    mov al, 0xDF
    out PIC2+1, al
    mov al, 0xFB
    out PIC1+1, al
    ret

# IGNNE#: after the write to port F0h the handler may use the x87.
ignored:
    mov dword ptr [interrupts], 0
    mov dword ptr [in_interrupt], offset compute
    PENDING
    sti
    nop
    fwait
    nop
    cli
    EXPECT [interrupts], 1, "a handler that has written port F0h is not interrupted"
    EXPECT [scratch], 0x40490FDB, "where it computes"
    EXPECT [status_inside], SUMMARY|ZERO_DIVIDE, "with the error still pending"
    PENDING
    sti
    nop
    fwait
    nop
    cli
    EXPECT [interrupts], 2, "the next error is not ignored"
    fninit
    CR0_SET CR0_NE
    mov al, 0xFF
    out PIC1+1, al
    out PIC2+1, al
    ret
compute:
    fstp st(0)
    fldpi
    fstp dword ptr [scratch]
    fnstsw ax
    and eax, SUMMARY|ZERO_DIVIDE
    mov [status_inside], eax
    fwait
    ret

# SSE: the instruction itself faults.
.macro XM flag, fact, instruction:vararg
    mov dword ptr [scratch], MXCSR & ~(\flag<<7)
    ldmxcsr [scratch]
    movups xmm0, [left]
    TRY \instruction
    EXPECT_FAULT EXC_XM, 0, "\fact"
    stmxcsr [scratch]
    mov eax, [scratch]
    and eax, \flag
    EXPECT eax, \flag, "\fact: MXCSR says so"
    movups [scratch], xmm0
    EXPECT [scratch+12], 0x3F800000, "\fact: the destination is as it was"
.endm
sse:
    mov eax, cr4
    or eax, CR4_OSXMMEXCPT
    mov cr4, eax
    movups xmm1, [zero_low]
    XM ZERO_DIVIDE, "divps", divps xmm0, xmm1
    movups xmm1, [quiet]
    XM INVALID, "maxps of a NaN", maxps xmm0, xmm1
    XM INVALID, "cvttss2si", cvttss2si eax, xmm1
    movups xmm1, [denormals]
    XM DENORMAL, "addps of a denormal", addps xmm0, xmm1
    movups xmm1, [third]
    XM PRECISION, "mulps that rounds", mulps xmm1, [third]
    movups xmm1, [largest]
    XM OVERFLOW, "mulps that overflows", mulps xmm1, xmm1
    movups xmm1, [least]
    XM UNDERFLOW, "mulps that underflows", mulps xmm1, xmm1
    mov dword ptr [scratch], MXCSR & ~(ZERO_DIVIDE<<7) | ZERO_DIVIDE
    TRY ldmxcsr [scratch]
    EXPECT_NO_FAULT "a flag that is loaded raises nothing"
    movups xmm0, [left]
    TRY addps xmm0, xmm0
    EXPECT_NO_FAULT "nor does it later"
    mov eax, cr4
    and eax, ~CR4_OSXMMEXCPT
    mov cr4, eax
    movups xmm1, [zero_low]
    TRY divps xmm0, xmm1
    EXPECT_FAULT EXC_UD, 0, "without CR4.OSXMMEXCPT it is #UD"
    mov dword ptr [scratch], MXCSR
    ldmxcsr [scratch]
    ret

.data
.align 16
left:       .long 0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000
zero_low:   .long 0, 0x3F800000, 0x3F800000, 0x3F800000
quiet:      .long 0x7FC00000, 0x3F800000, 0x3F800000, 0x3F800000
denormals:  .long 1, 0x3F800000, 0x3F800000, 0x3F800000
third:      .long 0x3EAAAAAB, 0x3F800000, 0x3F800000, 0x3F800000
largest:    .long 0x7F7FFFFF, 0x3F800000, 0x3F800000, 0x3F800000
least:      .long 0x00800000, 0x3F800000, 0x3F800000, 0x3F800000
huge:       .quad 0x7FE0000000000000
small:      .quad 0x0010000000000000
tiny:       .long 1
.bss
.align 16
fx_image:   .skip 512
image:      .skip 108
.align 16
scratch:    .skip 16
control:    .skip 4
divided_at: .skip 4
interrupts: .skip 4
interrupted_at: .skip 4
in_interrupt:   .skip 4
status_inside:  .skip 4
ticks:      .skip 4
ticked_at:  .skip 4
