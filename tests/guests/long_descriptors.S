# long_descriptors - tables with 64-bit bases, descriptors of 16 bytes, call gates, LAR, and opcodes that 64-bit mode does not have
.include "guest.inc"
.include "long.inc"

.set LOCAL, FREE64               # LDT, TSS or call gate, 16 bytes

long_main:
    mov qword ptr [FRAME_A], 0xA
    call bytes_16
    call call_gates
    call looks
    call invalid
    ret

bytes_16:
    sgdt [buffer]
    movzx eax, word ptr [buffer]
    EXPECT64 rax, 0xFF, "sgdt stores the limit"
    EXPECT64 [buffer+2], gdt, "and 64 bits of base"
    mov rax, offset gdt+TOP      # the same table in the upper half
    mov [buffer+2], rax
    lgdt [buffer]
    mov qword ptr [buffer+2], 0
    sgdt [buffer]
    EXPECT64 [buffer+2], gdt+TOP, "lgdt loads 64 bits of base"
    mov eax, DATA64
    TRY64 mov ss, eax
    EXPECT_NO_FAULT64 "from which segments are loaded"
    lgdt [gdt64_pointer]
    mov rax, offset local_table+TOP # an LDT in the upper half
    mov rbx, 0x000082000000000F
    mov rcx, rax
    and ecx, 0xFFFFFF
    shl rcx, 16
    or rbx, rcx
    mov rcx, rax
    shr rcx, 24
    and ecx, 0xFF
    shl rcx, 56
    or rbx, rcx
    mov [gdt+LOCAL], rbx
    shr rax, 32
    mov [gdt+LOCAL+8], rax
    mov eax, LOCAL
    TRY64 lldt ax
    EXPECT_NO_FAULT64 "lldt takes a descriptor of 16 bytes"
    mov eax, 8|4
    mov fs, eax
    RDMSR64 FS_BASE
    EXPECT64 rax, 0x500000, "and reads the table at 64 bits of address"
    mov rax, fs:[0]
    EXPECT64 rax, 0xA, "fs has the base of its descriptor"
    xor eax, eax
    mov fs, eax
    lldt ax
    str ecx
    EXPECT64 rcx, TSS64, "str stores the task register's selector"
    mov eax, TSS64
    TRY64 ltr ax
    EXPECT_FAULT64 EXC_GP, TSS64, "a busy TSS is not loaded again"
    mov rax, [gdt+TSS64]
    bt rax, 41
    EXPECT_FLAGS64 FLAG_C, FLAG_C, "ltr has marked it busy"
    DESCRIPTOR64 LOCAL+8, 0x1F0000000000
    DESCRIPTOR64 LOCAL, 0x0000890000000067
    mov eax, LOCAL
    TRY64 ltr ax
    EXPECT_FAULT64 EXC_GP, LOCAL, "the type in the upper half must be 0"
    DESCRIPTOR64 LOCAL+8, 0
.ifndef QEMU
    DESCRIPTOR64 LOCAL, 0x0000810000000067
    TRY64 ltr ax
    EXPECT_FAULT64 EXC_GP, LOCAL, "a 16-bit TSS is none in long mode"
.endif
    mov eax, 0xF8                # whose upper half is beyond the limit
    DESCRIPTOR64 0xF8, 0x0000890000000067
    TRY64 ltr ax
    EXPECT_FAULT64 EXC_GP, 0xF8, "both halves lie within the table"
    ret

call_gates:                      # 64-bit gate at LOCAL to `through`
    mov rax, offset through
    movzx ecx, ax
    or ecx, CODE64 << 16
    mov [gdt+LOCAL], ecx
    mov ecx, eax
    and ecx, 0xFFFF0000
    or ecx, 0xEC00
    mov [gdt+LOCAL+4], ecx
    mov qword ptr [gdt+LOCAL+8], 0
    mov rbx, rsp
    call fword ptr [gate_pointer]
1:  EXPECT64 [seen_rip], 1b, "a call gate pushes 64 bits of rip"
    EXPECT64 [seen_cs], CODE64, "and of cs"
    EXPECT_RSP64 rbx, "retfq goes back"
    ENTER_RING3_64
    call fword ptr [gate_pointer3]
2:  int LEAVE_RING3
    EXPECT64 [seen_rip], 2b, "from ring 3 too"
    EXPECT64 [seen_cs], CODE64_3, "with its cs"
    EXPECT64 [seen_rsp], user_stack_top, "its rsp"
    EXPECT64 [back_ss], DATA3, "and ss"
    EXPECT64 [seen_ss], 0, "ss is null inside"
    mov byte ptr [gdt+LOCAL+13], 1
    TRY64 call fword ptr [gate_pointer]
    EXPECT_FAULT64 EXC_GP, LOCAL, "the type in its upper half must be 0"
    mov byte ptr [gdt+LOCAL+13], 0
.ifndef QEMU
    mov dword ptr [gdt+LOCAL+8], 0x8000
    TRY64 call fword ptr [gate_pointer]
    EXPECT_FAULT64 EXC_GP, 0, "and its address canonical"
    mov dword ptr [gdt+LOCAL+8], 0
.endif
    mov word ptr [gdt+LOCAL+2], CODE
    TRY64 call fword ptr [gate_pointer]
    EXPECT_FAULT64 EXC_GP, CODE, "it leads to 64-bit code alone"
    ret
through:
    mov rax, [rsp]
    mov [seen_rip], rax
    mov rax, [rsp+8]
    mov [seen_cs], rax
    mov rax, [rsp+16]
    mov [seen_rsp], rax
    mov rax, [rsp+24]
    mov [back_ss], rax
    mov eax, ss
    mov [seen_ss], rax
    retfq

looks:
    mov ecx, CODE64
    mov rax, -1
    lar rax, rcx
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "lar reads a code segment"
    and eax, 0x00E0FE00
    EXPECT64 rax, 0x00A09A00, "L among its rights"
    mov ecx, DATA64
    lsl rax, rcx
    EXPECT64 rax, 0xFFFFFFFF, "lsl to 64 bits gives 32"
    mov ecx, TSS64
    lsl rax, rcx
    EXPECT64 rax, 0x67, "and the limit of a TSS"
.ifndef QEMU                     # LAR: types in IA-32e mode
    DESCRIPTOR64 LOCAL, 0x0000810000000067
    mov ecx, LOCAL
    lar eax, ecx
    EXPECT_FLAGS64 FLAG_Z, 0, "a 16-bit TSS has no rights in long mode"
    DESCRIPTOR64 LOCAL, 0x0000850000000067
    lar eax, ecx
    EXPECT_FLAGS64 FLAG_Z, 0, "nor has a task gate"
    verr cx
    EXPECT_FLAGS64 FLAG_Z, 0, "nor is it read"
.endif
    ret

.macro UNDEFINED fact, bytes:vararg
    TRY64 .byte \bytes
    EXPECT_FAULT64 EXC_UD, 0, "\fact"
.endm
invalid:
    UNDEFINED "push es", 0x06
    UNDEFINED "pop es", 0x07
    UNDEFINED "push cs", 0x0E
    UNDEFINED "push ss", 0x16
    UNDEFINED "pop ss", 0x17
    UNDEFINED "push ds", 0x1E
    UNDEFINED "pop ds", 0x1F
    UNDEFINED "daa", 0x27
    UNDEFINED "das", 0x2F
    UNDEFINED "aaa", 0x37
    UNDEFINED "aas", 0x3F
    UNDEFINED "pusha", 0x60
    UNDEFINED "popa", 0x61
    UNDEFINED "82h", 0x82, 0xC0, 1
    UNDEFINED "far call", 0x9A, 0, 0, 0, 0, 8, 0
    UNDEFINED "into", 0xCE
    UNDEFINED "aam", 0xD4, 0x0A
    UNDEFINED "aad", 0xD5, 0x0A
    UNDEFINED "salc", 0xD6
    UNDEFINED "far jump", 0xEA, 0, 0, 0, 0, 8, 0
    UNDEFINED "a bound or EVEX of registers", 0x62, 0xC8, 0x90, 0x90, 0x90, 0x90
.ifndef QEMU
    UNDEFINED "lock mov", 0xF0, 0x48, 0x89, 0x03
.endif
    UNDEFINED "mov cs", 0x8E, 0xC8
    UNDEFINED "mov to a segment 6", 0x8E, 0xF0
    UNDEFINED "cr1", 0x0F, 0x20, 0xC8
    UNDEFINED "cr9", 0x44, 0x0F, 0x20, 0xC8
    UNDEFINED "dr8", 0x44, 0x0F, 0x21, 0xC0
    UNDEFINED "ud1", 0x0F, 0xB9, 0xC0
    UNDEFINED "lds is VEX", 0xC5, 0xF8, 0x0B
    TRY64 push fs
    EXPECT_NO_FAULT64 "push fs is there"
    TRY64 pop fs
    EXPECT_NO_FAULT64 "pop fs too"
    TRY64 .byte 0xC8, 0, 0, 0, 0xC9
    EXPECT_NO_FAULT64 "and enter"
    ret

.data
.align 8
gate_pointer:  .long 0
               .word LOCAL
gate_pointer3: .long 0
               .word LOCAL|3
.align 8
local_table:   .quad 0
               .quad 0x0040F2500000FFFF # base 500000h
.bss
.align 16
buffer: .skip 16
.irp name, seen_rsp, seen_rip, seen_cs, seen_ss, back_ss
\name: .skip 8
.endr
.text
