# fpu - x87, MMX and SSE: values, saved states, and when they may not run
.include "guest.inc"

.set MASK_ALL, 0x037F            # x87 control word after FNINIT
.set UNMASK_ZERO_DIVIDE, 0x037B
.set MXCSR_DEFAULT, 0x1F80
.set MXCSR_UNMASK_ZERO_DIVIDE, 0x1D80

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
# DOUBLE low, high, "fact": pop st(0) and compare its double precision value.
.macro DOUBLE low, high, fact
    fstp qword ptr [data]
    EXPECT [data+4], \high, "\fact (high)"
    EXPECT [data], \low, "\fact (low)"
.endm
.macro WORD operand, expected, fact
    movzx eax, word ptr \operand
    EXPECT eax, \expected, "\fact"
.endm

main:
    CR0_CLEAR CR0_EM|CR0_TS
    CR0_SET CR0_MP|CR0_NE
    call values
    call environment
    call saved_state
    call x87_exceptions
    call mmx
    call sse
    call fx_state
    call sse_exceptions
    call unavailable
    ret

values:
    fninit
    fnstcw [data]
    WORD [data], MASK_ALL, "fninit masks all exceptions"
    fnstsw ax
    movzx eax, ax
    EXPECT eax, 0, "and clears the status"
    fld1
    fild dword ptr [three]
    fdivp st(1), st
    DOUBLE 0x55555555, 0x3FD55555, "1/3"
    fild dword ptr [three]
    fld1
    fsubp st(1), st              # 2
    fsqrt
    DOUBLE 0x667F3BCD, 0x3FF6A09E, "the square root of 2"
    fldpi
    DOUBLE 0x54442D18, 0x400921FB, "pi"
    fldpi
    fstp tbyte ptr [data]
    EXPECT [data+4], 0xC90FDAA2, "pi in 80 bits: the significand's top"
    EXPECT [data], 0x2168C235, "its bottom"
    WORD [data+8], 0x4000, "and the exponent"
    fild dword ptr [three]
    fchs
    fistp qword ptr [data]
    EXPECT [data], -3, "fild, fchs, fistp"
    EXPECT [data+4], -1, "64 bits wide"
    fldpi
    fld1
    fcomi st, st(1)
    EXPECT_FLAGS FLAG_C|FLAG_Z|FLAG_P, FLAG_C, "fcomi: 1 is below pi"
    fcompp
    fnstsw ax
    and eax, 0x4500
    EXPECT eax, 0x0100, "fcompp says so in the status word"
    mov word ptr [data], MASK_ALL|0xC00  # round towards zero
    fldpi
    fchs
    fld st
    fistp dword ptr [data+4]
    fldcw [data]
    fistp dword ptr [data+8]
    EXPECT [data+4], -3, "-pi rounds to nearest"
    mov word ptr [data], MASK_ALL|0x400
    fldcw [data]
    fldpi
    fchs
    fistp dword ptr [data+8]
    EXPECT [data+8], -4, "and down, if so asked"
    fninit
    fild dword ptr [three]
    fbstp [data]
    EXPECT [data], 3, "fbstp stores decimal digits"
    xor eax, eax
    fld1
    fldz
    cmp eax, 0
    fcmove st, st(1)
    DOUBLE 0, 0x3FF00000, "fcmove"
    ret

environment:
    fninit
    fld1
last_operation:
    fld qword ptr [one]
    fnstenv [data]
    WORD [data], MASK_ALL, "fnstenv: control word"
    WORD [data+4], 6<<11, "status word with its stack top"
    WORD [data+8], 0x0FFF, "tag word: two registers in use"
.ifndef QEMU
    EXPECT [data+12], "offset last_operation", "the last instruction's address"
    WORD [data+16], CODE, "its cs"
    EXPECT [data+20], "offset one", "its operand's address"
    WORD [data+24], DATA, "and segment"
.endif
    fnstcw [data+100]
    WORD [data+100], MASK_ALL, "exceptions stay masked behind it"
    .byte 0x66
    fnstenv [data]
    WORD [data], MASK_ALL, "the 16-bit layout: control word"
    WORD [data+2], 6<<11, "status word"
    WORD [data+4], 0x0FFF, "tag word"
    .byte 0x66
    fldenv [data]
    fnstenv [data]
    mov word ptr [data], MASK_ALL|0xC00
    mov word ptr [data+4], 5<<11|0x4700
    fldenv [data]
    fnstcw [data+100]
    WORD [data+100], MASK_ALL|0xC00, "fldenv loads the control word"
    fnstsw ax
    movzx eax, ax
    EXPECT eax, 5<<11|0x4700, "and the status word"
    ret

saved_state:
    fninit
    fldpi
    fld1
    fnsave [data]
    WORD [data+8], 0x0FFF, "fnsave: tag word"
    EXPECT [data+28+4], 0x80000000, "st(0) comes first"
    EXPECT [data+38+4], 0xC90FDAA2, "then st(1)"
    fnstenv [data+200]
    WORD [data+208], 0xFFFF, "fnsave leaves the stack empty"
    frstor [data]
    faddp st(1), st
    DOUBLE 0xAA22168C, 0x401090FD, "frstor brings it back: pi + 1"
    .byte 0x66
    fnsave [data]
    .byte 0x66
    frstor [data]
    fninit
    ret

x87_exceptions:
    mov word ptr [data], UNMASK_ZERO_DIVIDE
    fldcw [data]
    fld1
    fldz
    TRY fdivp st(1), st
    EXPECT_NO_FAULT "dividing by zero is noted"
    TRY fwait
    EXPECT_FAULT EXC_MF, 0, "and raised at the next fwait"
.ifndef QEMU
    TRY fld1
    EXPECT_FAULT EXC_MF, 0, "or the next operation"
.endif
    TRY fnstsw ax
    EXPECT_NO_FAULT "but not where there is no wait"
    and eax, 0x8084
    EXPECT eax, 0x8084, "the status word tells it"
    fnclex
    TRY fwait
    EXPECT_NO_FAULT "until it is cleared"
    fninit
    ret

mmx:
    mov eax, 0x01FF7F80
    movd mm0, eax
    movq mm1, mm0
    paddb mm0, mm1
    movd eax, mm0
    EXPECT eax, 0x02FEFE00, "paddb adds bytes"
    pmaddwd mm1, mm1
    fxsave [data]
    WORD [data+4], 0xFF, "an MMX instruction marks all registers used"
    emms
    fnstenv [data]
    WORD [data+8], 0xFFFF, "emms marks them free"
    fninit
    ret

sse:
    mov eax, cr4
    and eax, ~(CR4_OSFXSR|CR4_OSXMMEXCPT)
    mov cr4, eax
    TRY xorps xmm0, xmm0
    EXPECT_FAULT EXC_UD, 0, "without CR4.OSFXSR there is no SSE"
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
    TRY xorps xmm0, xmm0
    EXPECT_NO_FAULT "with it there is"
    stmxcsr [data]
    mov dword ptr [data], MXCSR_DEFAULT
    ldmxcsr [data]
    movups xmm1, [floats]
    movaps xmm2, xmm1
    addps xmm2, xmm1
    movups [data+1], xmm2
    EXPECT [data+1+12], 0x41000000, "addps: 4 + 4 is 8"
    movapd xmm3, [doubles]
    mulpd xmm3, xmm3
    movapd [data], xmm3
    EXPECT [data+4], 0x40020000, "mulpd: 1.5 squared"
    cvttsd2si eax, [doubles+8]
    EXPECT eax, 2, "cvttsd2si"
    pshufd xmm4, xmm1, 0x1B
    movd eax, xmm4
    EXPECT eax, 0x40800000, "pshufd reverses"
    movq [data+16], xmm1
    movnti [data+24], eax
    EXPECT [data+20], 0x40000000, "movq"
    comiss xmm1, [floats+4]
    EXPECT_FLAGS FLAGS_ARITH, FLAG_C, "comiss sets the flags"
.ifndef QEMU
    TRY movaps xmm0, [floats+4]
    EXPECT_FAULT EXC_GP, 0, "movaps from an unaligned address"
    TRY movdqa [data+8], xmm0
    EXPECT_FAULT EXC_GP, 0, "movdqa to one"
    TRY addps xmm0, [floats+4]
    EXPECT_FAULT EXC_GP, 0, "any unaligned 16-byte operand"
.endif
    TRY movups xmm0, [floats+4]
    EXPECT_NO_FAULT "movups takes it"
    ret

fx_state:
    fninit
    mov dword ptr [data], MXCSR_DEFAULT
    ldmxcsr [data]
    fldpi
    movups xmm7, [floats]
    mov edi, offset data
    mov ecx, 512 / 4
    mov eax, 0x5A5A5A5A
    rep stosd
    fxsave [data]
    WORD [data], MASK_ALL, "fxsave: control word"
    WORD [data+2], 7<<11, "status word"
    WORD [data+4], 0x80, "a bit for each register in use"
    EXPECT [data+24], MXCSR_DEFAULT, "MXCSR"
    EXPECT [data+36], 0xC90FDAA2, "st(0)"
    EXPECT [data+160+7*16], 0x3F800000, "xmm7"
    EXPECT [data+508], 0x5A5A5A5A, "the last bytes are the program's"
    fninit
    xorps xmm7, xmm7
    fxrstor [data]
    movd eax, xmm7
    EXPECT eax, 0x3F800000, "fxrstor brings xmm7 back"
    DOUBLE 0x54442D18, 0x400921FB, "and st(0)"
.ifndef QEMU
    TRY fxsave [data+8]
    EXPECT_FAULT EXC_GP, 0, "fxsave to an unaligned address"
    mov dword ptr [data+24], 0x10000
    TRY fxrstor [data]
    EXPECT_FAULT EXC_GP, 0, "fxrstor of reserved MXCSR bits"
    mov dword ptr [data], 0x10000
    TRY ldmxcsr [data]
    EXPECT_FAULT EXC_GP, 0, "and ldmxcsr of them"
.endif
    ret

sse_exceptions:
    mov dword ptr [data], MXCSR_DEFAULT
    ldmxcsr [data]
    mov eax, 0x3F800000
    movd xmm0, eax
    xorps xmm1, xmm1
    TRY divss xmm0, xmm1
    EXPECT_NO_FAULT "a masked division by zero"
    movd eax, xmm0
    EXPECT eax, 0x7F800000, "gives infinity"
    stmxcsr [data]
    EXPECT [data], MXCSR_DEFAULT|4, "and is noted in MXCSR"
.ifndef QEMU
    mov dword ptr [data], MXCSR_UNMASK_ZERO_DIVIDE
    ldmxcsr [data]
    mov eax, 0x3F800000
    movd xmm0, eax
    TRY divss xmm0, xmm1
    EXPECT_FAULT EXC_UD, 0, "unmasked, without CR4.OSXMMEXCPT, it is #UD"
    mov eax, cr4
    or eax, CR4_OSXMMEXCPT
    mov cr4, eax
    TRY divss xmm0, xmm1
    EXPECT_FAULT EXC_XM, 0, "with it, #XM"
    movd eax, xmm0
    EXPECT eax, 0x3F800000, "and the destination is unchanged"
    mov dword ptr [data], MXCSR_DEFAULT
    ldmxcsr [data]
.endif
    ret

.macro UNAVAILABLE exception, fact, instruction:vararg
    TRY \instruction
    EXPECT_FAULT \exception, 0, "\fact"
.endm
unavailable:
    fninit
    CR0_SET CR0_TS
    UNAVAILABLE EXC_NM, "with CR0.TS x87 raises #NM", fld1
    UNAVAILABLE EXC_NM, "so does fnstcw", fnstcw [data]
    UNAVAILABLE EXC_NM, "MMX", movd mm0, eax
    UNAVAILABLE EXC_NM, "SSE", addps xmm0, xmm0
    UNAVAILABLE EXC_NM, "fxsave", fxsave [data]
    UNAVAILABLE EXC_NM, "and fwait, with CR0.MP", fwait
    TRY mov eax, [data]
    EXPECT_NO_FAULT "nothing else does"
    TRY prefetchnta [data]
    EXPECT_NO_FAULT "not even prefetch"
    CR0_CLEAR CR0_MP
    TRY fwait
    EXPECT_NO_FAULT "without CR0.MP fwait does not"
    clts
    TRY fld1
    EXPECT_NO_FAULT "clts ends it"
    CR0_SET CR0_EM
    UNAVAILABLE EXC_NM, "with CR0.EM x87 raises #NM", fld1
    UNAVAILABLE EXC_UD, "and SSE #UD", addps xmm0, xmm0
    UNAVAILABLE EXC_UD, "as does MMX", movd mm0, eax
    TRY fwait
    EXPECT_NO_FAULT "fwait does not mind"
    CR0_CLEAR CR0_EM
    fninit
    ret

.section .rodata
.align 16
floats:  .float 1, 2, 3, 4, 5
.align 16
doubles: .double 1.5, 2.75
one:     .double 1
three:   .long 3
.bss
.align 16
data:    .skip 1024
