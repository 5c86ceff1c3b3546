# long_extensions - BMI, AVX, AVX2 and FMA with 64-bit operands and sixteen registers, as far as CPUID offers them
.include "guest.inc"
.include "long.inc"

long_main:
    mov eax, 7
    xor ecx, ecx
    cpuid
    mov [leaf_7_ebx], rbx
    call scalar
    call bmi
    bt qword ptr [cpuid_1_ecx], 26
    jnc 1f
    bt qword ptr [cpuid_1_ecx], 28
    jnc 1f
    SET_XCR0 1
    mov rax, cr4
    and eax, ~CR4_OSXSAVE
    mov cr4, rax
    call without_xcr0
    mov rax, cr4
    or eax, CR4_OSXSAVE
    mov cr4, rax
    SET_XCR0 3
    TRY64 vpxor xmm8, xmm8, xmm8
    EXPECT_FAULT64 EXC_UD, 0, "without AVX in XCR0 VEX is undefined"
    SET_XCR0 7
    call avx
    call avx2
    call images
1:  ret

# IF_OFFERED register, bit, label: go on if CPUID has it, else to the label.
.macro IF_OFFERED leaf, bit, otherwise
    bt qword ptr [\leaf], \bit
    jnc \otherwise
.endm

scalar:
    mov r9, 0x0123456789ABCDEF
    mov [memory], r9
    IF_OFFERED cpuid_1_ecx, 22, 1f
    movbe r10, [memory]
    EXPECT64 r10, 0xEFCDAB8967452301, "movbe loads 64 bits"
    movbe [memory+8], r9d
    EXPECT64 [memory+8], 0xEFCDAB89, "and stores 32"
1:  IF_OFFERED cpuid_1_ecx, 23, 1f
    mov r11, -1
    popcnt r11, r9
    EXPECT64 r11, 32, "popcnt counts 64 bits"
    mov r11, -1
    popcnt r11d, r9d
    EXPECT64 r11, 20, "or 32"
1:  IF_OFFERED cpuid_1_ecx, 20, 1f
    mov r8, 0xFFFFFFFF12345678
    crc32 r8, r9
    EXPECT64 r8, 0xA3D207BE, "crc32 of 64 bits clears the upper half"
    mov eax, 0
    crc32 eax, r9b
    EXPECT64 rax, 0xBD23943E, "crc32 of r9b"
1:  IF_OFFERED leaf_7_ebx, 19, 1f
    mov rax, -1
    mov rdx, 1
    xor ecx, ecx
    adcx rax, rdx
    EXPECT64 rax, 0, "adcx of 64 bits"
    EXPECT_FLAGS64 FLAG_C|FLAG_O, FLAG_C, "sets CF alone"
    mov rax, -1
    xor ecx, ecx
    adox rax, rdx
    EXPECT_FLAGS64 FLAG_C|FLAG_O, FLAG_O, "adox OF alone"
1:  ret

bmi:
    mov r9, 0x0123456789ABCDEF
    IF_OFFERED leaf_7_ebx, 3, 1f
    mov r10, 0xFF00FF00FF00FF00
    andn r11, r10, r9
    EXPECT64 r11, 0x0023006700AB00EF, "andn"
    mov ecx, 0x1410              # 20 bits from bit 16
    bextr rax, r9, rcx
    EXPECT64 rax, 0x789AB, "bextr"
    blsr r8, r9
    EXPECT64 r8, 0x0123456789ABCDEE, "blsr"
    blsi r8, qword ptr [memory]
    EXPECT64 r8, 1, "blsi of memory"
    xor eax, eax
    tzcnt rax, rax
    EXPECT64 rax, 64, "tzcnt of zero"
1:  IF_OFFERED leaf_7_ebx, 8, 1f
    mov rdx, 0xFFFFFFFFFFFFFFFF
    mulx r14, r13, r9
    EXPECT64 r14, 0x0123456789ABCDEE, "mulx: upper half"
    EXPECT64 r13, 0xFEDCBA9876543211, "lower half"
    mov r10, 0xFF00FF00FF00FF00
    pext r11, r9, r10
    EXPECT64 r11, 0x014589CD, "pext"
    pdep r11, r11, r10
    EXPECT64 r11, 0x010045008900CD00, "pdep"
    rorx r12, r9, 36
    EXPECT64 r12, 0x789ABCDEF0123456, "rorx"
    mov r8d, 36
    shlx r12, r9, r8
    EXPECT64 r12, 0x9ABCDEF000000000, "shlx"
    sarx r12, [memory], r8
    EXPECT64 r12, 0x123456, "sarx of memory"
    bzhi r12, r9, r8
    EXPECT64 r12, 0x789ABCDEF, "bzhi"
1:  ret

without_xcr0:
    TRY64 vpxor xmm8, xmm8, xmm8
    EXPECT_FAULT64 EXC_UD, 0, "without CR4.OSXSAVE VEX is undefined"
    xor ecx, ecx
    TRY64 xgetbv
    EXPECT_FAULT64 EXC_UD, 0, "xgetbv too"
    ret

avx:
    vmovdqu ymm9, [pattern]
    vmovdqa ymm14, ymm9
    vmovdqu [memory], ymm14
    EXPECT64 [memory], 0x0706050403020100, "ymm9 and ymm14: bytes 0 to 7"
    EXPECT64 [memory+24], 0x1F1E1D1C1B1A1918, "bytes 24 to 31"
    vpaddb xmm15, xmm14, xmm9
    vmovdqu [memory], ymm15
    EXPECT64 [memory], 0x0E0C0A0806040200, "vpaddb of 128 bits"
    EXPECT64 [memory+16], 0, "clears the upper half"
    paddb xmm14, xmm9
    vmovdqu [memory], ymm14
    EXPECT64 [memory+16], 0x1716151413121110, "the old form does not"
    mov r12, offset pattern
    mov r13d, 8
    vmovups ymm8, [r12+r13*2-16]
    vextractf128 [memory], ymm8, 1
    EXPECT64 [memory], 0x1716151413121110, "vextractf128 with r12 and r13"
    vbroadcastsd ymm10, [r12+8]
    vmovupd [memory], ymm10
    EXPECT64 [memory+24], 0x0F0E0D0C0B0A0908, "vbroadcastsd"
    vmovq r8, xmm10
    EXPECT64 r8, 0x0F0E0D0C0B0A0908, "vmovq to r8"
    vpextrq r9, xmm8, 1
    EXPECT64 r9, 0x0F0E0D0C0B0A0908, "vpextrq to r9"
    mov r10, 0x1122334455667788
    vpinsrq xmm11, xmm8, r10, 0
    vmovq rax, xmm11
    EXPECT64 rax, 0x1122334455667788, "vpinsrq from r10"
    vmovdqu ymm12, [rip+pattern]
    vpmovmskb r15d, xmm12
    EXPECT64 r15, 0, "vpmovmskb to r15d"
    vcvtsi2sd xmm13, xmm13, r10
    vcvttsd2si r11, xmm13
    EXPECT64 r11, 0x1122334455667800, "conversions of 64 bits round to 53"
    mov rbx, WINDOW+0xFF0        # the second page missing
    PTE64 0, FRAME_A+(P|W)
    PTE64 1, 0
    TRY64 vmovdqu ymm9, [rbx]
    EXPECT_FAULT64 EXC_PF, 0, "a load of 32 bytes into a missing page"
    vmovdqu [memory], ymm9
    EXPECT64 [memory+8], 0x0F0E0D0C0B0A0908, "changes nothing"
    TRY64 vmovaps ymm9, [rbx+8]
.ifndef QEMU
    EXPECT_FAULT64 EXC_GP, 0, "vmovaps wants 32 bytes aligned"
.endif
    vpcmpeqd xmm1, xmm1, xmm1
    mov qword ptr [memory], 0
    vmovups ymm2, [mask_low]
    mov rbx, WINDOW+0xFF0
    TRY64 vmaskmovps [rbx], ymm2, ymm9
    EXPECT_NO_FAULT64 "what a mask leaves out is not touched"
    EXPECT64 [FRAME_A+0xFF0], 0x0706050403020100, "what it lets pass is stored"
.ifndef QEMU
    TRY64 vmaskmovps ymm3, ymm2, [rbx]
    EXPECT_NO_FAULT64 "nor is it loaded"
.endif
    vzeroupper
    vmovdqu [memory], ymm9
    EXPECT64 [memory+16], 0, "vzeroupper clears ymm9's upper half"
    EXPECT64 [memory+8], 0x0F0E0D0C0B0A0908, "and not its lower"
    vzeroall
    vmovdqu [memory], ymm9
    EXPECT64 [memory+8], 0, "vzeroall that too"
    TRY64 .byte 0x48, 0xC5, 0xF8, 0x77
    EXPECT_FAULT64 EXC_UD, 0, "REX before VEX is undefined"
    TRY64 .byte 0x66, 0xC5, 0xF8, 0x77
    EXPECT_FAULT64 EXC_UD, 0, "66h too"
    ret

avx2:
    IF_OFFERED leaf_7_ebx, 5, 1f
    vmovdqu ymm9, [pattern]
    vpaddq ymm10, ymm9, ymm9
    vmovdqu [memory], ymm10
    EXPECT64 [memory+24], 0x3E3C3A3836343230, "vpaddq of 256 bits"
    vpermq ymm11, ymm9, 0x1B
    vmovdqu [memory], ymm11
    EXPECT64 [memory], 0x1F1E1D1C1B1A1918, "vpermq"
    vpmovmskb eax, ymm9
    EXPECT64 rax, 0, "vpmovmskb of 256 bits"
    vmovdqu ymm12, [indices]     # 64-bit indices, from the upper half
    vpcmpeqq ymm13, ymm13, ymm13
    mov r14, offset table+TOP
    vpgatherqq ymm15, [r14+ymm12*8], ymm13
    vmovdqu [memory], ymm15
    EXPECT64 [memory], 0x33, "vpgatherqq: the first"
    EXPECT64 [memory+8], 0x11, "the second"
    EXPECT64 [memory+16], 0x44, "the third"
    EXPECT64 [memory+24], 0x22, "the last"
    vmovdqu [memory], ymm13
    EXPECT64 [memory+24], 0, "and its mask is used up"
1:  IF_OFFERED cpuid_1_ecx, 12, 1f
    mov rax, 0x4008000000000000  # 3.0
    vmovq xmm8, rax
    vmovq xmm9, rax
    vmovq xmm10, rax
    vfmadd231sd xmm8, xmm9, xmm10
    vmovq rax, xmm8
    EXPECT64 rax, 0x4028000000000000, "vfmadd231sd: 3 times 3 and 3"
1:  ret

images:
    fninit
    fld1                         # else "in use" is the processor's choice: volume 1, 13.6
    vmovdqu ymm9, [pattern]
    mov eax, 7
    xor edx, edx
    xsave64 [image]
    EXPECT64 [image+512], 7, "xsave64 tells three components"
    EXPECT64 [image+160+16*9], 0x0706050403020100, "the lower half of ymm9"
    EXPECT64 [image+576+16*9+8], 0x1F1E1D1C1B1A1918, "its upper half"
    vzeroall
    mov eax, 4
    xrstor64 [image]
    vmovdqu [memory], ymm9
    EXPECT64 [memory+24], 0x1F1E1D1C1B1A1918, "xrstor64 of AVX alone loads the upper"
    EXPECT64 [memory], 0, "alone"
    mov eax, 6
    xrstor64 [image]
    vmovdqu [memory], ymm9
    EXPECT64 [memory], 0x0706050403020100, "and with SSE both"
    mov qword ptr [image+512], 1
    mov eax, 6
    xrstor64 [image]
    vmovdqu [memory], ymm9
    EXPECT64 [memory+24], 0, "what the image does not have becomes zero"
    fninit
    ret

.data
.align 64
pattern:
    .byte 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    .byte 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
mask_low: .quad -1, -1, 0, 0
indices:  .quad 2, 0, 3, 1
table:    .quad 0x11, 0x22, 0x33, 0x44
.bss
.align 64
image:      .skip 1024
memory:     .skip 64
leaf_7_ebx: .skip 8
.text
