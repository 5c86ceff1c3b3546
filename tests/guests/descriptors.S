# descriptors - instructions that look at descriptors and system registers
.include "guest.inc"

.set SEGMENT, FREE               # what is looked at: rewritten for each fact
.set LOCAL, FREE+8

# System descriptor types, one bit each: which LAR and LSL accept (volume 2).
.set LAR_TYPES, 0x1A3E           # TSS, LDT, call and task gates
.set LSL_TYPES, 0x0A0E           # TSS and LDT
# Code and data types: which VERR and VERW accept.
.set VERR_TYPES, 0xCCFF
.set VERW_TYPES, 0x00CC
.set CONFORMING_TYPES, 0xF000

main:
    xor eax, eax
    lldt ax
    call probing
    call tables
    call status_word
    call pointers
    call bounds
    call accessed
    ret

probing:
    mov dword ptr [cpl], 0
    call probe_all
    EXPECT [wrong_lar], 0, "lar of every type, DPL and RPL, present or not, from ring 0"
    EXPECT [wrong_lsl], 0, "lsl"
    EXPECT [wrong_verr], 0, "verr"
    EXPECT [wrong_verw], 0, "verw"
    mov dword ptr [cpl], 3
    ENTER_RING3
    call probe_all
    int LEAVE_RING3
    EXPECT [wrong_lar], 0, "lar from ring 3"
    EXPECT [wrong_lsl], 0, "lsl from ring 3"
    EXPECT [wrong_verr], 0, "verr from ring 3"
    EXPECT [wrong_verw], 0, "verw from ring 3"
    DESCRIPTOR SEGMENT, 0, 0xFFFFF, 0xF2|SEG_BIG|SEG_PAGES|0x1000
    mov ecx, SEGMENT
    mov eax, 0x55555555
    lar ax, cx
    EXPECT eax, 0x5555F200, "lar of a word keeps the upper half"
    lsl ax, cx
    EXPECT eax, 0x5555FFFF, "so does lsl"
    mov [value], ecx
    lar eax, word ptr [value]
    and eax, 0xF0FF00
    EXPECT eax, 0xD0F200, "lar takes its selector from memory"
    mov eax, 0x77777777
    mov ecx, 0x100
    lar eax, ecx
    EXPECT_FLAGS FLAG_Z, 0, "a selector beyond the table"
    EXPECT eax, 0x77777777, "leaves the register"
    mov ecx, 0x14
    stc
    lsl eax, ecx
    EXPECT_FLAGS FLAG_Z|FLAG_C, FLAG_C, "as does one of an LDT that is not there, and other flags"
    ret

# Every descriptor type with every DPL, present and not, through both RPLs.
probe_all:
    mov dword ptr [wrong_lar], 0
    mov dword ptr [wrong_lsl], 0
    mov dword ptr [wrong_verr], 0
    mov dword ptr [wrong_verw], 0
    mov dword ptr [gdt+SEGMENT], 0x0000ABCD
    xor ebx, ebx                 # the access byte
1:  mov eax, ebx
    shl eax, 8
    or eax, 0x12045678 & 0xFF0F00FF
    mov [gdt+SEGMENT+4], eax
    xor esi, esi
2:  call probe
    xor esi, 3
    jnz 2b
    inc bl
    jnz 1b
    ret

# ebx: access byte, esi: RPL. Sets the counts of wrong answers.
probe:
    mov ecx, ebx                 # may it be seen?
    shr ecx, 5
    and ecx, 3                   # DPL
    mov edx, 1
    cmp ecx, [cpl]
    jb 1f
    cmp ecx, esi
    jae 2f
1:  xor edx, edx
2:  mov ecx, ebx
    and ecx, 15
    test bl, 0x10
    jz 3f
    mov eax, CONFORMING_TYPES
    bt eax, ecx
    jnc 4f
    mov edx, 1
    jmp 4f
3:  mov eax, LAR_TYPES
    bt eax, ecx
    sbb eax, eax
    and eax, edx
    mov [want_lar], eax
    mov eax, LSL_TYPES
    bt eax, ecx
    sbb eax, eax
    and eax, edx
    mov [want_lsl], eax
    mov dword ptr [want_verr], 0
    mov dword ptr [want_verw], 0
    jmp 5f
4:  mov [want_lar], edx
    mov [want_lsl], edx
    mov eax, VERR_TYPES
    bt eax, ecx
    sbb eax, eax
    and eax, edx
    mov [want_verr], eax
    mov eax, VERW_TYPES
    bt eax, ecx
    sbb eax, eax
    and eax, edx
    mov [want_verw], eax
5:  lea ecx, [esi+SEGMENT]
    mov edi, 0x13572468
    mov eax, edi
    lar eax, ecx
    setz dl
    movzx edx, dl
    xor edx, [want_lar]
    add [wrong_lar], edx
    cmp dword ptr [want_lar], 0
    je 6f
    mov edi, [gdt+SEGMENT+4]
    and edi, 0xF0FF00
    and eax, 0xFFF0FF00
6:  xor eax, edi
    or [wrong_lar], eax
    mov edi, 0x13572468
    mov eax, edi
    lsl eax, ecx
    setz dl
    movzx edx, dl
    xor edx, [want_lsl]
    add [wrong_lsl], edx
    cmp dword ptr [want_lsl], 0
    je 7f
    mov edi, 0x4ABCD
7:  xor eax, edi
    or [wrong_lsl], eax
    .irp which, verr, verw
    \which cx
    setz dl
    movzx edx, dl
    xor edx, [want_\which]
    add [wrong_\which], edx
    .endr
    ret

tables:
    mov dword ptr [value], -1
    mov dword ptr [value+4], -1
    sgdt [value]
    movzx eax, word ptr [value]
    EXPECT eax, 255, "sgdt stores the limit"
    EXPECT [value+2], "offset gdt", "and the base"
    movzx eax, word ptr [value+6]
    EXPECT eax, 0xFFFF, "in six bytes"
    data16 sidt [value]
    mov eax, [value+2]
    and eax, 0xFFFFFF
    EXPECT eax, "offset idt", "sidt with 16-bit operands stores 24 bits of it"
    movzx eax, word ptr [value]
    EXPECT eax, 256*8-1, "and the limit"
    mov word ptr [value], 256*8-1
    mov eax, offset idt
    or eax, 0xAB000000
    mov [value+2], eax
    data16 lidt [value]
    sidt [value]
    EXPECT [value+2], "offset idt", "lidt with 16-bit operands loads 24 bits"
    TRY .byte 0x0F, 0x01, 0xC0   # the register form is no sgdt
    EXPECT_FAULT EXC_UD, 0, "sgdt of a register does not exist"
    DESCRIPTOR LOCAL, 0x1000, 7, SEG_LDT
    mov eax, LOCAL
    lldt ax
    mov eax, 0x55555555
    sldt ax
    EXPECT eax, 0x55550000|LOCAL, "sldt of a word keeps the upper half"
    sldt eax
    EXPECT eax, LOCAL, "of a doubleword it clears it"
    mov dword ptr [value], -1
    sldt [value]
    EXPECT [value], 0xFFFF0000|LOCAL, "memory gets two bytes"
    str [value]
    EXPECT [value], 0xFFFF0000|TSS, "from str too"
    mov eax, 0x55555555
    str ax
    EXPECT eax, 0x55550000|TSS, "which knows both registers"
    xor eax, eax
    lldt ax
    mov eax, 4                   # null, in the LDT that is not there
    TRY lldt ax
    EXPECT_FAULT EXC_GP, 4, "lldt from an LDT"
    mov eax, TSS|4
    TRY ltr ax
    EXPECT_FAULT EXC_GP, TSS|4, "ltr from an LDT"
.ifndef QEMU                     # which accepts it
    xor eax, eax
    TRY ltr ax
    EXPECT_FAULT EXC_GP, 0, "ltr of the null selector"
.endif
    DESCRIPTOR LOCAL, 0x1000, 7, 0x02
    mov eax, LOCAL
    TRY lldt ax
    EXPECT_FAULT EXC_NP, LOCAL, "lldt of an absent LDT"
    DESCRIPTOR LOCAL, tss, 103, 0x09
    TRY ltr ax
    EXPECT_FAULT EXC_NP, LOCAL, "ltr of an absent TSS"
    movzx ecx, byte ptr [gdt+LOCAL+5]
    EXPECT ecx, 0x09, "which is not made busy"
    DESCRIPTOR LOCAL, tss, 103, 0x89
    mov eax, LOCAL|3
    ltr ax
    movzx ecx, byte ptr [gdt+LOCAL+5]
    EXPECT ecx, 0x8B, "ltr makes one busy"
    str eax
    EXPECT eax, LOCAL|3, "and keeps the RPL"
    DESCRIPTOR TSS, tss, TSS_SIZE-1, SEG_TSS
    mov eax, TSS
    ltr ax
    ret

status_word:
    mov eax, 0x55555555
    smsw ax
    movzx ecx, ax
    shr eax, 16
    EXPECT eax, 0x5555, "smsw of a word keeps the upper half"
    mov edx, cr0
    movzx edx, dx
    EXPECT ecx, edx, "and stores cr0's lower"
    smsw eax
    mov edx, cr0
    EXPECT eax, edx, "smsw of a doubleword stores all of cr0"
    mov dword ptr [value], -1
    smsw [value]
    or edx, 0xFFFF0000
    EXPECT [value], edx, "in memory it takes two bytes"
    mov edi, cr0
    mov eax, edi
    or eax, CR0_NE|CR0_WP|CR0_AM
    mov cr0, eax
    mov esi, eax
    mov ax, CR0_MP|CR0_EM|CR0_TS
    lmsw ax
    mov ecx, cr0
    or esi, CR0_MP|CR0_EM|CR0_TS
    EXPECT ecx, esi, "lmsw sets MP, EM and TS; it does not clear PE"
    mov ax, 0xFFFF-CR0_MP-CR0_EM-CR0_TS
    lmsw ax
    mov ecx, cr0
    and esi, ~(CR0_MP|CR0_EM|CR0_TS)
    EXPECT ecx, esi, "it clears these three and nothing else"
    mov word ptr [value], CR0_TS
    lmsw [value]
    mov ecx, cr0
    clts
    mov edx, cr0
    mov cr0, edi
    and ecx, CR0_TS
    EXPECT ecx, CR0_TS, "it takes memory too"
    and edx, CR0_TS
    EXPECT edx, 0, "clts clears TS"
    ret

pointers:
    mov dword ptr [value], 0x12345678
    mov word ptr [value+4], DATA
    .irp which, lds, les, lfs, lgs
    xor ecx, ecx
    \which ecx, [value]
    EXPECT ecx, 0x12345678, "\which loads its register"
    .endr
    mov ecx, gs
    EXPECT ecx, DATA, "and its segment"
    mov ecx, -1
    mov word ptr [value+2], DATA
    lfs cx, [value]
    EXPECT ecx, 0xFFFF5678, "with 16-bit operands it keeps the upper half"
    mov word ptr [value+4], DATA|3
    mov edi, esp
    TRY lss esp, [value]
    EXPECT_FAULT EXC_GP, DATA, "lss of another RPL"
    EXPECT_ESP edi, "leaves esp"
    mov [value], esp
    mov word ptr [value+4], DATA
    lss esp, [value]
    EXPECT_ESP edi, "lss loads both"
    mov word ptr [value+4], 0
    TRY lss esp, [value]
    EXPECT_FAULT EXC_GP, 0, "lss of the null selector"
    mov ecx, 0x99
    lfs ecx, [value]
    EXPECT ecx, edi, "lfs of it is allowed"
    mov ecx, fs
    EXPECT ecx, 0, "and empties fs"
    mov ecx, -1
    mov cx, ds
    EXPECT ecx, 0xFFFF0000|DATA, "mov of a segment to a word keeps the upper half"
    mov ecx, 0xABCD0000|DATA
    mov fs, ecx
    mov ecx, fs
    EXPECT ecx, DATA, "loading takes the lower"
    xor ecx, ecx
    mov fs, ecx
    mov gs, ecx
    ret

bounds:
    mov dword ptr [value], -3
    mov dword ptr [value+4], 7
    mov ecx, 7
    TRY bound ecx, [value]
    EXPECT_NO_FAULT "bound allows the upper bound"
    inc ecx
    TRY bound ecx, [value]
    EXPECT_FAULT EXC_BR, 0, "and nothing above"
    mov dword ptr [value], 0x0007FFFD
    mov ecx, 0xFFFFFFFC
    TRY bound cx, [value]
    EXPECT_FAULT EXC_BR, 0, "words are compared as words"
    inc ecx
    TRY bound cx, [value]
    EXPECT_NO_FAULT "with their sign"
    TRY .byte 0x62, 0xC1         # bound eax, ecx
    EXPECT_FAULT EXC_UD, 0, "bound has no register form"
    xor eax, eax
    TRY into
    EXPECT_NO_FAULT "into without overflow goes on"
    mov al, 0x7F
    inc al
    mov dword ptr [fault_vector], NONE
    mov dword ptr [resume_at], offset 2f
    into
1:  nop
2:  EXPECT [fault_vector], EXC_OF, "with overflow it traps"
    EXPECT [fault_eip], "offset 1b", "behind itself"
    mov dword ptr [resume_at], offset 2f
    int3
1:  nop
2:  EXPECT [fault_vector], EXC_BP, "int3 traps"
    EXPECT [fault_eip], "offset 1b", "behind itself too"
    ret

.macro ACCESSED fact, instruction:vararg
    mov byte ptr [gdt+(SEGMENT)+5], SEG_CODE
    \instruction
1:  movzx eax, byte ptr [gdt+(SEGMENT)+5]
    EXPECT eax, SEG_CODE|1, "\fact"
.endm
accessed:
    DESCRIPTOR SEGMENT, 0, 0xFFFFF, SEG_CODE|SEG_BIG|SEG_PAGES
.ifndef QEMU
    ACCESSED "jmp sets code's accessed bit", jmp SEGMENT:offset 1f
    jmp CODE:offset 1f
1:  GATE 0x83, iret_only, 0x8E, SEGMENT
    ACCESSED "an interrupt does", int 0x83
.endif
    mov ecx, SEGMENT
    ACCESSED "loading a data register does", mov fs, ecx
    mov byte ptr [gdt+SEGMENT+5], 0xFA
    TRY jmp SEGMENT:0
    movzx eax, byte ptr [gdt+SEGMENT+5]
    EXPECT eax, 0xFA, "a transfer that is refused does not"
    mov ecx, SEGMENT
    verr cx
    lar eax, ecx
    movzx eax, byte ptr [gdt+SEGMENT+5]
    EXPECT eax, 0xFA, "nor do verr and lar"
    call locked_table
    ret
iret_only:
    iretd

# The GDT in a read-only page, with WP.
.set DIRECTORY, 0x400000
.set TABLE, 0x401000
locked_table:
    cld
    mov edi, DIRECTORY
    xor eax, eax
    mov ecx, 1024
    rep stosd
    mov dword ptr [DIRECTORY], TABLE+7
    mov eax, 7
    mov ecx, 1024
1:  stosd
    add eax, 4096
    loop 1b
    mov ebx, offset gdt
    shr ebx, 12
    and dword ptr TABLE[ebx*4], ~2
    mov byte ptr [gdt+SEGMENT+5], 0xF2
    mov byte ptr [gdt+(DATA3&~7)+5], 0xF3
    mov eax, DIRECTORY
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG|CR0_WP
    mov cr0, eax
    mov ecx, SEGMENT
    mov edx, DATA3
    mov fs, edx
    TRY mov fs, ecx
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "an accessed bit in a read-only page"
    mov eax, fs
    EXPECT eax, DATA3, "leaves the register"
    mov ecx, SEGMENT|3
    USER_TRY mov gs, ecx
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "from ring 3 it is the supervisor's access"
    mov eax, cr0
    and eax, ~CR0_WP
    mov cr0, eax
    mov byte ptr [gdt+SEGMENT+5], 0xF3
    or eax, CR0_WP
    mov cr0, eax
    TRY mov fs, ecx
    EXPECT_NO_FAULT "a bit that is set needs no write"
    mov eax, cr0
    and eax, ~(CR0_PG|CR0_WP)
    mov cr0, eax
    ret

.bss
.align 4
value:      .skip 8
cpl:        .skip 4
want_lar:   .skip 4
want_lsl:   .skip 4
want_verr:  .skip 4
want_verw:  .skip 4
wrong_lar:  .skip 4
wrong_lsl:  .skip 4
wrong_verr: .skip 4
wrong_verw: .skip 4
