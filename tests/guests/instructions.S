# instructions - instructions whose results or flags are easily got wrong
#
# Expected values are worked out by hand from the manual's descriptions.
.include "guest.inc"

main:
    call loops
    call bit_strings
    call decimal
    call exchanges
    call rotates
    call arithmetic
    call conditions
    call transfers
    call flags
    ret

loops:
    mov ecx, 0x50003
    xor eax, eax
1:  inc eax
    .byte 0x67                   # loop that counts in cx
    loop 1b
    EXPECT eax, 3, "loop with a 16-bit counter looks at cx"
    EXPECT ecx, 0x50000, "and leaves the rest of ecx"
    mov eax, 1
    jcxz 1f
    xor eax, eax
1:  EXPECT eax, 1, "jcxz is taken, cx being 0"
    jecxz 1f
    xor eax, eax
1:  EXPECT eax, 0, "jecxz is not, ecx being 50000h"
    mov ecx, 10
    xor eax, eax
1:  inc eax
    cmp eax, 4
    loopne 1b
    EXPECT ecx, 6, "loopne ends when equal"
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "and changes no flag"
    mov ecx, 3
    xor eax, eax
1:  test eax, eax
    loope 1b
    EXPECT ecx, 0, "loope ends with its count"
    mov ecx, 5
1:  cmp ecx, 3
    loope 1b
    EXPECT ecx, 4, "or when not equal"
    xor ecx, ecx
    mov eax, 3
1:  dec eax
    jz 2f
    loop 1b                      # from 0 it wraps
2:  EXPECT ecx, 0xFFFFFFFE, "loop decrements before it looks"
    ret

bit_strings:
    mov edi, offset data + 256
    pushad
    cld
    xor eax, eax
    lea edi, [edi-256]
    mov ecx, 128
    rep stosd
    popad
    mov ecx, 1000
    bts [edi], ecx
    EXPECT_FLAGS FLAG_C, 0, "bts of a clear bit"
    EXPECT [edi+124], 0x100, "bit 1000 lies 31 words up"
    mov ecx, -1
    bts [edi], ecx
    EXPECT [edi-4], 0x80000000, "bit -1 lies in the word below"
    bt [edi], ecx
    EXPECT_FLAGS FLAG_C, FLAG_C, "bt finds it"
    mov cx, -17
    bts word ptr [edi], cx
    EXPECT [edi-4], 0x80008000, "16-bit offsets are signed too"
    btr word ptr [edi], cx
    EXPECT [edi-4], 0x80000000, "btr clears"
    mov dword ptr [edi], 0
    bts dword ptr [edi], 35
    EXPECT [edi], 8, "an immediate offset counts modulo 32"
    mov eax, 1
    mov ecx, 33
    btc eax, ecx
    EXPECT eax, 3, "so does one into a register"
    lock btr dword ptr [edi], 3
    EXPECT_FLAGS FLAG_C, FLAG_C, "lock btr"
    ret

decimal:
    mov eax, 0x79
    add al, 0x35
    daa
    EXPECT eax, 0x14, "daa: 79 + 35"
    EXPECT_FLAGS FLAG_C|FLAG_A, FLAG_C|FLAG_A, "carries"
    mov eax, 0x35
    sub al, 0x47
    das
    EXPECT eax, 0x88, "das: 35 - 47"
    EXPECT_FLAGS FLAG_C, FLAG_C, "borrows"
    mov eax, '9'
    add al, '5'
    aaa
    EXPECT eax, 0x0104, "aaa: '9' + '5'"
    mov eax, 0x0238
    sub al, '9'
    aas
    EXPECT eax, 0x0109, "aas: '8' - '9' borrows from ah"
    mov eax, 63
    aam
    EXPECT eax, 0x0603, "aam: 63"
    aad
    EXPECT eax, 63, "aad takes it back"
    aam 16
    EXPECT eax, 0x030F, "aam 16"
    aad 16
    EXPECT eax, 0x3F, "aad 16"
    TRY aam 0
    EXPECT_FAULT EXC_DE, 0, "aam 0 divides by zero"
    ret

exchanges:
    mov dword ptr [data], 0x11111111
    mov dword ptr [data+4], 0x22222222
    mov eax, 0x11111111
    mov edx, 0x22222222
    mov ebx, 0x33333333
    mov ecx, 0x44444444
    cmpxchg8b [data]
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "cmpxchg8b of equal values"
    EXPECT [data+4], 0x44444444, "stores ecx:ebx"
    lock cmpxchg8b [data]
    EXPECT_FLAGS FLAG_Z, 0, "of others"
    EXPECT edx, 0x44444444, "loads edx:eax"
    TRY .byte 0x0F, 0xC7, 0xC8   # cmpxchg8b eax
    EXPECT_FAULT EXC_UD, 0, "it has no register form"
    mov eax, 5
    mov ecx, 7
    xadd eax, ecx
    EXPECT eax, 12, "xadd: the sum"
    EXPECT ecx, 5, "and the old value"
    bswap ecx
    EXPECT ecx, 0x05000000, "bswap"
    mov eax, 1
    mov ecx, 9
    mov edx, 2
    cmpxchg ecx, edx
    EXPECT eax, 9, "cmpxchg loads what differed"
    cmpxchg ecx, edx
    EXPECT ecx, 2, "and stores when it is equal"
    mov dword ptr [data], 0x600DF00D
    mov dword ptr [data+4], DATA
    les ebx, [data]
    EXPECT ebx, 0x600DF00D, "les"
    lds bx, [data+2]             # 600Dh, DATA
    EXPECT ebx, 0x600D600D, "16-bit lds"
    ret

rotates:
    mov eax, 0x80000001
    clc
    rcl eax, 1
    EXPECT eax, 2, "rcl by 1 brings the carry in"
    EXPECT_FLAGS FLAG_C|FLAG_O, FLAG_C|FLAG_O, "and the top bit out"
    rcr eax, 1
    EXPECT eax, 0x80000001, "rcr takes it back"
    mov cl, 33
    stc
    rcl eax, cl
    EXPECT eax, 3, "a count is taken modulo 32"
    mov eax, 0xA5
    stc
    rcl al, 9
    EXPECT eax, 0xA5, "rcl of a byte by 9 changes nothing"
    EXPECT_FLAGS FLAG_C, FLAG_C, "nor the carry"
    mov eax, 0x8001
    clc
    rcl ax, 5
    EXPECT eax, 0x28, "rcl of a word by 5"
    xor eax, eax
    mov cl, 32
    stc
    shl eax, cl
    EXPECT_FLAGS FLAG_C|FLAG_Z, FLAG_C|FLAG_Z, "a shift by 32 leaves the flags"
    mov eax, 0x80000000
    sar eax, 31
    EXPECT eax, -1, "sar"
    mov cl, 4
    mov dword ptr [data], 0x12345678
    ror dword ptr [data], cl
    EXPECT [data], 0x81234567, "ror of memory by cl"
    ret

arithmetic:
    mov eax, -1
    mov edx, -1
    mul edx
    EXPECT edx, 0xFFFFFFFE, "mul: the upper half"
    EXPECT_FLAGS FLAG_C|FLAG_O, FLAG_C|FLAG_O, "which sets carry and overflow"
    mov eax, -7
    cdq
    mov ecx, 2
    idiv ecx
    EXPECT eax, -3, "idiv truncates towards zero"
    EXPECT edx, -1, "and its remainder has the dividend's sign"
    mov eax, 0x1234
    mov cl, 0x56
    div cl
    EXPECT eax, 0x1036, "8-bit div: ah remainder, al quotient"
    imul ecx, eax, 0x10000
    EXPECT ecx, 0x10360000, "imul that fits"
    EXPECT_FLAGS FLAG_C|FLAG_O, 0, "sets neither"
    mov eax, 0xFFFFFFFF
    add eax, 1
    mov eax, 0
    adc eax, 0
    EXPECT eax, 1, "mov between add and adc keeps the carry"
    xor eax, eax
    sub eax, 1
    sbb edx, edx
    EXPECT edx, -1, "sbb of a register with itself spreads the carry"
    mov eax, 0x80000000
    neg eax
    EXPECT_FLAGS FLAGS_ARITH, FLAG_C|FLAG_O|FLAG_S|FLAG_P, "neg of the most negative number"
    ret

# CASE flags, expected: which of o b e be s p l le hold (bits 0-7), and that
# their opposites do not.
.macro CONDITION cc, bit
    push [esp]                   # the flags under test
    popfd
    set\cc al
    movzx eax, al
    shl eax, \bit
    or edx, eax
.endm
.macro CASE flags, expected
    push \flags|2
    xor edx, edx
    CONDITION o, 0
    CONDITION b, 1
    CONDITION e, 2
    CONDITION be, 3
    CONDITION s, 4
    CONDITION p, 5
    CONDITION l, 6
    CONDITION le, 7
    EXPECT edx, \expected, "conditions with flags \flags"
    xor edx, edx
    CONDITION no, 0
    CONDITION ae, 1
    CONDITION ne, 2
    CONDITION a, 3
    CONDITION ns, 4
    CONDITION np, 5
    CONDITION ge, 6
    CONDITION g, 7
    EXPECT edx, 0xFF-\expected, "and their opposites"
    pop eax
.endm
conditions:
    CASE 0, 0
    CASE FLAG_C, 0x0A
    CASE FLAG_Z, 0x8C
    CASE FLAG_S, 0xD0
    CASE FLAG_O, 0xC1
    CASE FLAG_S|FLAG_O, 0x11
    CASE FLAG_P, 0x20
    mov eax, 1
    cmp eax, 2
    mov ecx, 10
    mov dword ptr [data], 20
    cmovl ecx, [data]
    EXPECT ecx, 20, "cmov from memory"
    cmovg ecx, eax
    EXPECT ecx, 20, "cmov not taken"
    ret

transfers:
    mov eax, offset 1f
    jmp eax
    mov eax, 0
1:  mov dword ptr [data], offset 2f
    mov ecx, 1
    jmp [data+ecx*4-4]
    mov eax, 0
2:  EXPECT eax, "offset 1b", "jumps through a register and through memory"
    mov edx, esp
    push offset returns_8
    call [esp]
    EXPECT_ESP edx, "call through [esp], and ret n"
    push offset 1f
    ret
1:  push 0x5555
    call returns_4
    EXPECT_ESP edx, "ret n releases what was pushed before"
    ret
returns_8:
    ret 4
returns_4:
    ret 4

flags:
    mov ah, 0xD5
    sahf
    EXPECT_FLAGS FLAGS_ARITH&~FLAG_O, FLAG_S|FLAG_Z|FLAG_A|FLAG_P|FLAG_C, "sahf"
    mov ah, 0
    lahf
    movzx eax, ah
    EXPECT eax, 0xD7, "lahf, with bit 1 set"
    push -1 & ~(FLAG_T|FLAG_I|FLAG_VM|FLAG_NT|FLAG_R|FLAG_AC|0x3F<<19)
    popfd
    pushfd
    pop eax
    cld
    push 2
    popfd
    and eax, 0x8FFF
    EXPECT eax, 0xCD7, "bits 3, 5 and 15 read as 0, bit 1 as 1"
    mov ah, 0xD5
    sahf
    mov ecx, 1000                # flags live through memory accesses
    mov edi, offset data
1:  mov eax, [edi]
    mov [edi+4], eax
    push eax
    pop [edi+8]
    lea edi, [edi+1]
    xchg [edi], eax
    bswap eax
    not eax
    mov byte ptr [edi], 3
    movzx eax, word ptr [esp]
    lea ecx, [ecx-1]
    jecxz 2f
    jmp 1b
2:  EXPECT_FLAGS FLAGS_ARITH&~FLAG_O, FLAG_S|FLAG_Z|FLAG_A|FLAG_P|FLAG_C, "flags live through a thousand loads and stores"
    cmc
    EXPECT_FLAGS FLAG_C, 0, "cmc"
    ret

.bss
.align 4096
data:   .skip 8192
