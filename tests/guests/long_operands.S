# long_operands - 64-bit arithmetic, bit strings, exchanges, string instructions, and sixteen vector registers
.include "guest.inc"
.include "long.inc"

.set VALUE, 0x1122334455667788
.set STRINGS, 0x600000

long_main:
    call arithmetic
    call bits
    call exchanges
    call strings
    call vectors
    ret

arithmetic:
    mov rax, 0xFFFFFFFFFFFFFFFF
    mov r9, 0xFFFFFFFFFFFFFFFE
    mul r9
    EXPECT64 rax, 2, "mul gives 128 bits"
    EXPECT64 rdx, 0xFFFFFFFFFFFFFFFD, "the upper in rdx"
    div r9
    EXPECT64 rax, 0xFFFFFFFFFFFFFFFF, "div takes 128 bits"
    EXPECT64 rdx, 0, "nothing remains"
    mov rax, -7
    cqo
    EXPECT64 rdx, -1, "cqo extends rax"
    mov r8d, 2
    idiv r8
    EXPECT64 rax, -3, "idiv rounds to zero"
    EXPECT64 rdx, -1, "with the dividend's sign"
    mov edx, 2
    TRY64 div r8
    EXPECT_FAULT64 EXC_DE, 0, "a quotient of 65 bits is #DE"
    EXPECT64 rax, -3, "rax stays"
    EXPECT64 rdx, 2, "rdx too"
    mov rdx, 0x8000000000000000
    imul rcx, rdx, -1
    EXPECT_FLAGS64 FLAG_C|FLAG_O, FLAG_C|FLAG_O, "imul of 64 bits overflows"
    EXPECT64 rcx, 0x8000000000000000, "to what it was"
    mov eax, 0x80000000
    cdqe
    EXPECT64 rax, 0xFFFFFFFF80000000, "cdqe extends eax"
    movsxd rbx, dword ptr [negative]
    EXPECT64 rbx, -2, "movsxd extends 32 bits"
    mov rbx, -1
    .byte 0x63, 0x1C, 0x25       # movsxd ebx, [negative]
    .long negative
    EXPECT64 rbx, 0xFFFFFFFE, "without REX.W it is a move"
    stc
    mov rax, 0x7FFFFFFFFFFFFFFF
    adc rax, 0
    EXPECT_FLAGS64 FLAGS_ARITH, FLAG_O|FLAG_S|FLAG_P|FLAG_A, "flags of a sum of 64 bits"
    mov rax, 0x0123456789ABCDEF
    bswap rax
    EXPECT64 rax, 0xEFCDAB8967452301, "bswap of 64 bits"
    bswap eax
    EXPECT64 rax, 0x1234567, "of 32 clears the rest"
    mov rdx, 0x8000000000000001
    mov cl, 64 + 4
    mov rax, rdx
    shl rax, cl
    EXPECT64 rax, 0x10, "64-bit shifts count to 63"
    mov eax, 1
    mov cl, 36
    shl rax, cl
    EXPECT64 rax, 0x1000000000, "beyond 31"
    mov rax, rdx
    sar rax, 63
    EXPECT64 rax, -1, "sar by 63"
    mov rax, rdx
    rol rax, 1
    EXPECT64 rax, 3, "rol of 64 bits"
    clc
    mov rax, rdx
    rcr rax, 1
    EXPECT64 rax, 0x4000000000000000, "rcr through carry"
    EXPECT_FLAGS64 FLAG_C, FLAG_C, "which gets the bit"
    mov r8, 0x0FEDCBA987654321
    shld rdx, r8, 40
    EXPECT64 rdx, 0x10FEDCBA987, "shld of 64 bits"
    ret

bits:
    mov rax, -64*8               # bits from buffer, below it
    mov qword ptr [buffer], 0
    mov qword ptr [buffer-8], 0
    mov rcx, 0x140000041         # 64-bit offset: 28000008h bytes above
    mov rdx, offset buffer - 0x28000008
    bts [rdx], rcx
    EXPECT_FLAGS64 FLAG_C, 0, "bts with a bit offset of 64 bits finds a 0"
    EXPECT64 [buffer], 2, "far from its base, and sets it"
    mov rcx, -63
    bts [buffer], rcx
    EXPECT64 [buffer-8], 2, "below it too"
    mov ecx, 65
    mov r8, 2
    btr r8, rcx
    EXPECT64 r8, 0, "a register takes the offset modulo 64"
    mov ecx, 33
    btc r8d, ecx
    EXPECT64 r8, 2, "one of 32 bits modulo 32"
    bt qword ptr [buffer-8], 65
    EXPECT_FLAGS64 FLAG_C, FLAG_C, "and so does an immediate with memory"
    mov rax, 0x0000010000000000
    bsf rcx, rax
    EXPECT64 rcx, 40, "bsf of 64 bits"
    bsr r9, rax
    EXPECT64 r9, 40, "bsr too"
    UNLESS_OFFERED HAS_POPCNT, 1f
    popcnt r10, [negative]
    EXPECT64 r10, 63, "popcnt of 64 bits"
1:  ret

exchanges:
    mov r8, 0x1111
    mov r9, 0x2222
    xchg r8, r9
    EXPECT64 r8, 0x2222, "xchg of new registers"
    xchg r15, rax                # 49h 97h
    mov r15d, 1
    mov rax, 2
    .byte 0x49, 0x97
    EXPECT64 r15, 2, "49h 97h is xchg rax, r15"
    mov r8d, 7
    mov eax, 5
    .byte 0x41, 0x90
    EXPECT64 rax, 7, "41h 90h is xchg r8d, eax"
    UNLESS_OFFERED HAS_CMPXCHG16B, 1f
    mov qword ptr [pair], 1
    mov qword ptr [pair+8], 2
    mov rax, 1
    mov rdx, 2
    mov rbx, 0x1111111111111111
    mov rcx, 0x2222222222222222
    lock cmpxchg16b [pair]
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "cmpxchg16b compares 16 bytes"
    EXPECT64 [pair], 0x1111111111111111, "stores rbx"
    EXPECT64 [pair+8], 0x2222222222222222, "and rcx"
    cmpxchg16b [pair]
    EXPECT_FLAGS64 FLAG_Z, 0, "and if they differ"
    EXPECT64 rax, 0x1111111111111111, "loads rax"
    EXPECT64 rdx, 0x2222222222222222, "and rdx"
    TRY64 cmpxchg16b [pair+8]
    EXPECT_FAULT64 EXC_GP, 0, "which wants them aligned"
1:  mov rax, 0x1111111111111111
    mov [pair], rax
    mov rbx, rax
    mov rcx, 0x2222222222222222
    mov [pair+8], rcx
    mov rax, 0xAAAAAAAA11111111
    mov rdx, 0xBBBBBBBB11111111
    cmpxchg8b [pair]
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "cmpxchg8b compares edx:eax"
    EXPECT64 [pair], 0x2222222211111111, "and stores ecx:ebx"
    mov rdx, 1
    cmpxchg8b [pair]
    EXPECT64 rdx, 0x22222222, "or loads edx and clears the rest"
    EXPECT64 rax, 0x11111111, "of rax too"
    mov r11, 0x2222222222222222
    mov rax, [pair+8]
    lock cmpxchg [pair+8], r9
    EXPECT64 [pair+8], 0x1111, "cmpxchg of 64 bits"
    lock xadd [pair+8], r9
    EXPECT64 [pair+8], 0x2222, "xadd of 64 bits"
    xchg [pair+8], r14
    EXPECT64 r14, 0x2222, "xchg with memory"
    ret

strings:
    cld
    mov rdi, STRINGS + TOP
    mov rax, VALUE
    mov ecx, 600
    rep stosq
    EXPECT64 rdi, STRINGS+TOP+4800, "rep stosq at the top moves rdi by 8 each"
    EXPECT64 rcx, 0, "and counts rcx down"
    EXPECT64 [STRINGS+4792], VALUE, "to the last"
    mov rsi, STRINGS + TOP
    mov edi, STRINGS + 0x4000
    mov ecx, 599
    rep movsq
    EXPECT64 rsi, STRINGS+TOP+4792, "rep movsq"
    EXPECT64 [STRINGS+0x4000+4784], VALUE, "copies"
    EXPECT64 [STRINGS+0x4000+4792], 0, "no more"
    mov rsi, STRINGS + TOP
    mov edi, STRINGS + 0x4000
    mov ecx, 1000
    repe cmpsq
    EXPECT64 rcx, 400, "repe cmpsq ends at the difference"
    lodsq
    EXPECT64 rax, 0, "lodsq loads 8 bytes"
    mov rsi, 0xAAAAAAAA00000000 + STRINGS
    mov rdi, 0xBBBBBBBB00000000 + STRINGS + 0x8000
    mov rcx, 0xCCCCCCCC00000003
    .byte 0x67
    rep movsb
    EXPECT64 rcx, 0, "with 67h rep counts ecx and clears the rest"
    EXPECT64 rsi, STRINGS+3, "of rsi too"
    EXPECT64 rdi, STRINGS+0x8003, "and of rdi"
    EXPECT64 [STRINGS+0x8000], VALUE&0xFFFFFF, "and copies as much"
    mov edi, STRINGS + 0x8000
    mov rcx, -1
    mov al, 0
    repne scasb
    EXPECT64 rcx, -5, "repne scasb counts 64 bits"
    std
    mov rdi, STRINGS + TOP + 8
    stosd
    cld
    EXPECT64 rdi, STRINGS+TOP+4, "std moves down"
    WRMSR64 GS_BASE, 0xFFFFFFFF80000000
    mov esi, STRINGS
    mov edi, STRINGS + 0x8000
    .byte 0x65
    movsq
    EXPECT64 [STRINGS+0x8000], VALUE, "gs: gives movsq's source its base"
    WRMSR64 GS_BASE, 0
    ret

vectors:
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    mov rax, 0x0101010101010101 * \number
    movq xmm\number, rax
    punpcklqdq xmm\number, xmm\number
    .endr
    movdqa xmm3, xmm12
    paddb xmm3, xmm15
    movq rax, xmm3
    EXPECT64 rax, 0x1B1B1B1B1B1B1B1B, "xmm12 and xmm15"
    movdqu [buffer], xmm11
    EXPECT64 [buffer+8], 0x0B0B0B0B0B0B0B0B, "xmm11 is stored"
    mov r9, offset buffer
    paddq xmm14, [r9]
    movq r10, xmm14
    EXPECT64 r10, 0x1919191919191919, "xmm14 adds what r9 shows"
    movd r10d, xmm14
    EXPECT64 r10, 0x19191919, "movd gives 32 bits"
    mov r8, 0x4000000000000
    cvtsi2sd xmm8, r8
    addsd xmm8, xmm8
    cvttsd2si rax, xmm8
    EXPECT64 rax, 0x8000000000000, "conversions of 64 bits"
    pmovmskb r12d, xmm8
    EXPECT64 r12, 0, "pmovmskb to r12d"
    fninit
fld_one:
    fld1
    fxsave [image]
    EXPECT64 [image+160+16*10], 0x0A0A0A0A0A0A0A0A, "fxsave stores xmm10"
    EXPECT64 [image+160+16*15+8], 0x0F0F0F0F0F0F0F0F, "and xmm15"
    fxsave64 [image+512]
    EXPECT64 [image+512+160+16*13], 0x0D0D0D0D0D0D0D0D, "fxsave64 too"
.ifndef QEMU
    cmp byte ptr [vendor_is_amd], 0
    jne 1f                       # AMD's keep it for exceptions only
    EXPECT64 [image+512+8], fld_one, "with 64 bits of the last x87 instruction's address"
.endif
1:  not qword ptr [image+160+16*10]
    fxrstor [image]
    movq rax, xmm10
    EXPECT64 rax, 0xF5F5F5F5F5F5F5F5, "fxrstor loads xmm10"
    fxrstor64 [image+512]
    movq rax, xmm10
    EXPECT64 rax, 0x0A0A0A0A0A0A0A0A, "fxrstor64 too"
    mov eax, 1
    cpuid
    bt ecx, 26
    jnc 1f
    mov rax, cr4
    bts rax, 18
    mov cr4, rax
    xor ecx, ecx
    mov edx, 0
    mov eax, 3
    xsetbv
    mov edi, offset image
    mov ecx, 1024 / 8
    xor eax, eax
    rep stosq
    mov eax, 3
    xsave64 [image]
    EXPECT64 [image+160+16*9], 0x0909090909090909, "xsave64 stores xmm9"
    EXPECT64 [image+512], 3, "and tells what it stored"
    not qword ptr [image+160+16*9]
    mov eax, 2
    xor edx, edx
    xrstor64 [image]
    movq rax, xmm9
    EXPECT64 rax, 0xF6F6F6F6F6F6F6F6, "xrstor64 loads it"
    mov rax, cr4
    btr rax, 18
    mov cr4, rax
1:  ret

.data
.align 8
negative: .quad 0xFFFFFFFFFFFFFFFE
.bss
.align 64
image:     .skip 1024
           .skip 16
buffer:    .skip 16
pair:      .skip 32
.text
