# long_registers - sixteen registers of 64 bits in every role, and 64-bit addresses
.include "guest.inc"
.include "long.inc"

.set VALUE, 0x1122334455667788

long_main:
    call each_register
    call stack_pointer
    call byte_registers
    call addresses
    call counters
    ret

.macro ALL_REGISTERS operation
    \operation rax, eax, ax, al
    \operation rcx, ecx, cx, cl
    \operation rdx, edx, dx, dl
    \operation rbx, ebx, bx, bl
    \operation rbp, ebp, bp, bpl
    \operation rsi, esi, si, sil
    \operation rdi, edi, di, dil
    \operation r8, r8d, r8w, r8b
    \operation r9, r9d, r9w, r9b
    \operation r10, r10d, r10w, r10b
    \operation r11, r11d, r11w, r11b
    \operation r12, r12d, r12w, r12b
    \operation r13, r13d, r13w, r13b
    \operation r14, r14d, r14w, r14b
    \operation r15, r15d, r15w, r15b
.endm
.macro ONE_REGISTER r64, r32, r16, r8
    mov \r64, VALUE
    add \r64, \r64
    EXPECT64 \r64, 0x22446688AACCEF10, "\r64 has 64 bits"
    sub \r32, 0x10
    EXPECT64 \r64, 0xAACCEF00, "\r32 clears the rest"
    mov \r64, VALUE
    inc \r16
    dec \r8
    EXPECT64 \r64, 0x1122334455667788, "\r16 and \r8 leave it"
    mov \r8, 0xEF
    EXPECT64 \r64, 0x11223344556677EF, "\r8 is the lowest byte"
    mov qword ptr [buffer], 0
    mov [buffer], \r8
    mov [buffer+2], \r16
    mov [buffer+4], \r32
    EXPECT64 [buffer], 0x556677EF77EF00EF, "stores of each size from \r64"
    push \r64
    neg \r64
    pop [buffer]
    EXPECT64 [buffer], 0x11223344556677EF, "push \r64"
    push qword ptr [buffer]
    pop \r64
    EXPECT64 \r64, 0x11223344556677EF, "pop \r64"
    mov \r64, offset operands + 0x100
    cmp qword ptr [\r64-0x100], 0x12
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "[\r64 + 32 bits]"
    sub \r64, 0x80
    cmp qword ptr [\r64-0x80], 0x12
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "[\r64 + 8 bits]"
    mov \r64, offset operands
    cmp qword ptr [\r64], 0x12
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "[\r64]"
    mov \r32, 3
    cmp dword ptr [operands+\r64*8], 0x45
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "\r64*8 as an index"
    mov \r64, [marked]
    cmp byte ptr [\r32], 0x12
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "[\r32] by 67h"
    mov \r64, -2
    cmp byte ptr [operands+16+\r64*4], 0x23
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "a negative index in \r64"
    mov \r64, offset 1f
    jmp \r64
    mov \r64, 0
1:  mov \r64, offset 2f
    call \r64
2:  pop \r64
    EXPECT64 \r64, 2b, "jmp and call by \r64"
    mov \r64, 0x80
    bswap \r64
    shl \r64, 1
    setc \r8
    movzx \r32, \r8
    EXPECT64 \r64, 1, "bswap, shl, setc and movzx of \r64"
.endm
each_register:
    mov [saved_rbp], rbp
    ALL_REGISTERS ONE_REGISTER
    mov rbp, [saved_rbp]
    ret

stack_pointer:
    mov rbx, rsp
    push rsp
    pop rax
    EXPECT_SAME64 rax, rbx, "push rsp pushes the value before it"
    push rbx
    pop rsp
    EXPECT_RSP64 rbx, "pop rsp takes the value popped"
    push 7
    push qword ptr [rsp]
    pop rax
    EXPECT64 rax, 7, "push [rsp] reads before it moves"
    push 0
    pop qword ptr [rsp]
    pop rax
    EXPECT64 rax, 0, "pop [rsp] writes behind the move"
    EXPECT_RSP64 rbx, "all is popped"
    mov rax, [rsp-8]
    mov qword ptr [rsp-8], 9
    push qword ptr [rsp-8]
    mov eax, 1
    mov rcx, [rsp+rax*8-8]
    add rsp, 8
    EXPECT64 rcx, 9, "rsp is a base with any index"
    mov rax, [rsp]
    mov r12, rsp
    mov rdx, [r12]
    EXPECT_SAME64 rax, rdx, "so is r12, which shares its encoding"
    lea r13, [rsp+8]
    mov rdx, [r13-8]
    EXPECT_SAME64 rax, rdx, "and r13, which shares that of rbp"
    mov esp, esp
    EXPECT_RSP64 rbx, "mov esp, esp clears zeros"
    mov rbp, 0x5555
    enter 16, 0
    lea rcx, [rbx-8]
    EXPECT_SAME64 rbp, rcx, "enter pushes 8 bytes"
    lea rcx, [rbx-24]
    EXPECT_RSP64 rcx, "and makes room"
    leave
    EXPECT64 rbp, 0x5555, "leave pops 8 bytes"
    EXPECT_RSP64 rbx, "and gives it back"
    mov rax, offset 1f
    push rax
    sub rsp, 16
    mov rax, [rsp+16]
    mov [rsp], rax
    ret 16
1:  EXPECT64 [rsp], 1b, "ret 16 leaves what lies behind"
    add rsp, 8
    ret

byte_registers:
    mov rax, 0x1111111111111111
    mov [rsp_copy], rsp
    mov rsi, 0x2222222222222222
    mov ah, 0x33
    mov sil, 0x44
    EXPECT64 rax, 0x1111111111113311, "ah without a prefix"
    EXPECT64 rsi, 0x2222222222222244, "sil with one"
    add ah, al
    EXPECT64 rax, 0x1111111111114411, "ah and al"
    mov rbx, 0x5500
    mov rcx, 0x66
    xchg bh, cl
    EXPECT64 rbx, 0x6600, "xchg bh, cl"
    EXPECT64 rcx, 0x55, "gives cl that of bh"
    mov [buffer], bh
    movzx edx, byte ptr [buffer]
    EXPECT64 rdx, 0x66, "bh is stored"
    mov r9d, 0x77
    xchg r9b, sil
    EXPECT64 r9, 0x44, "xchg r9b, sil"
    movzx r10d, sil
    EXPECT64 r10, 0x77, "movzx from sil"
    movsx r11, dil
    mov rdi, 0x80
    movsx r11, dil
    EXPECT64 r11, -128, "movsx to 64 bits"
    mov eax, 0x8000
    movsx ecx, ah
    EXPECT64 rcx, 0xFFFFFF80, "movsx from ah to 32 bits"
    mov rbx, rsp
    mov spl, 0
    mov rcx, rsp
    mov rsp, rbx
    and rbx, ~0xFF
    EXPECT_SAME64 rcx, rbx, "spl is the lowest byte of rsp"
    mov bpl, 0x5A
    cmp bpl, 0x5A
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "bpl that of rbp"
    .byte 0x48, 0x40, 0xB4, 0x12 # only the last of two prefixes counts
    cmp spl, 0x12
    mov rsp, [rsp_copy]
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "the last of several REX prefixes counts"
    mov rax, 0x1122334455667788
    .byte 0x48, 0x66, 0x05, 0x01, 0x00 # REX before 66h: add ax, 1
    EXPECT64 rax, 0x1122334455667789, "one that is not last of all does not"
    ret

addresses:
    mov rax, 0x8877665544332211
    movabs [buffer], rax
    xor eax, eax
    movabs rax, [buffer]
    EXPECT64 rax, 0x8877665544332211, "mov rax with an address of 64 bits"
    movabs eax, [buffer+4]
    EXPECT64 rax, 0x88776655, "mov eax too"
    movabs al, [buffer+TOP]
    EXPECT64 rax, 0x88776611, "at the top too"
    movabs [buffer+TOP+1], ax
    EXPECT64 [buffer], 0x8877665544661111, "stores go there"
    .byte 0x67, 0x48, 0xA1       # addr32 mov rax, [32 bits]
    .long buffer
    EXPECT64 rax, 0x8877665544661111, "67h makes it one of 32 bits"
    mov rax, [buffer+TOP]
    EXPECT64 rax, 0x8877665544661111, "a displacement of 32 bits is sign-extended"
    mov rbx, 0x100000000
    lea rax, [ebx+7]
    EXPECT64 rax, 7, "lea with 67h computes 32 bits"
    lea eax, [rbx+7]
    EXPECT64 rax, 7, "lea eax keeps 32 bits"
    lea rax, [rbx+rbx*8-1]
    EXPECT64 rax, 0x8FFFFFFFF, "lea rax all"
    lea ax, [rbx+0x1234]
    EXPECT64 rax, 0x8FFFF1234, "lea ax 16"
    mov ebx, 0xFFFFFFFF
    mov eax, [ebx+buffer+1]
    EXPECT64 rax, 0x44661111, "with 67h an address wraps at 4 GiB"
    mov rbx, -1
    mov eax, [rbx+buffer+1]
    EXPECT64 rax, 0x44661111, "without it at 2 to the 64th"
    WRMSR64 FS_BASE, 0xFFFFFFFF80000000
    mov rax, fs:[buffer]
    EXPECT64 rax, 0x8877665544661111, "fs has a base of 64 bits"
    mov ebx, 0xFFFFFFFF
    mov eax, fs:[ebx+buffer+1]
    EXPECT64 rax, 0x44661111, "which is added behind the cut of 67h"
    WRMSR64 FS_BASE, 0
    ret

counters:
    mov rcx, 0x100000000
    jrcxz 1f
    jecxz 2f
1:  xor ecx, ecx
2:  EXPECT64 rcx, 0x100000000, "jrcxz looks at 64 bits, jecxz at 32"
    mov rcx, 0x100000001
    loop 1f
    xor ecx, ecx
1:  EXPECT64 rcx, 0x100000000, "loop counts 64 bits"
    mov rcx, 0x5500000002
    mov rax, 0
1:  inc eax
    .byte 0x67
    loop 1b
    EXPECT64 rax, 2, "with 67h it counts ecx"
    EXPECT64 rcx, 0, "and clears the rest"
    ret

.data
.align 8
operands: .quad 0x12, 0x23, 0x34, 0x45
marked:   .quad 0xABCDEF0100000000 + operands
.bss
.align 16
buffer:    .skip 16
saved_rbp: .skip 8
rsp_copy:  .skip 8
.text
