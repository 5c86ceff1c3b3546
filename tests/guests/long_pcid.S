# long_pcid - process-context identifiers: CR4.PCIDE, CR3 with them, INVPCID
.include "guest.inc"
.include "long.inc"

.set CR4_PCIDE, 0x20000
.set HAS_PCID, 17                # CPUID leaf 1, ecx
.set KEEP, 0x8000000000000000    # bit 63 of what is written to cr3
.set OTHER_PML4, FREE_TABLES
.set OTHER_PDPT, FREE_TABLES+0x1000
.set OTHER_PD, FREE_TABLES+0x2000
.set OTHER_TABLE, FREE_TABLES+0x3000
.set IN_A, 0xAAAAAAAAAAAAAAAA
.set IN_B, 0xBBBBBBBBBBBBBBBB
.set IN_C, 0xCCCCCCCCCCCCCCCC

# SPACE value: load cr3.
.macro SPACE value
    mov rax, \value
    mov cr3, rax
.endm
# TRY_SPACE value
.macro TRY_SPACE value
    mov rax, \value
    TRY64 mov cr3, rax
.endm
# DESCRIBE identifier, address: INVPCID's descriptor.
.macro DESCRIBE identifier, address=0
    push rax
    mov rax, \identifier
    mov [described], rax
    mov rax, \address
    mov [described+8], rax
    pop rax
.endm
# INVALIDATE type, identifier, address; rcx and rdx change.
.macro INVALIDATE type, identifier=0, address=0
    DESCRIBE \identifier, \address
    mov rcx, \type
    mov edx, offset described
    TRY64 invpcid rcx, [rdx]
.endm
.macro REFUSED type, identifier, address, fact
    INVALIDATE \type, \identifier, \address
    EXPECT_FAULT64 EXC_GP, 0, "\fact"
.endm
# SHOW entry, frame: a table's entry, and nothing is dropped.
.macro SHOW entry, frame, rights=P|W
    mov qword ptr [\entry], \frame+(\rights)
.endm

long_main:
    mov rax, IN_A
    mov [FRAME_A], rax
    mov rax, IN_B
    mov [FRAME_B], rax
    mov rax, IN_C
    mov [FRAME_C], rax
    mov eax, 7
    xor ecx, ecx
    cpuid
    bt ebx, 10
    mov rbx, WINDOW
    jnc not_offered
    UNLESS_OFFERED HAS_PCID, not_offered
    mov rax, cr4
    or rax, CR4_PGE
    mov cr4, rax
    call other_space
    call without
    call enable
    call in_compatibility_mode
    call spaces
    call global
    call refused
    call operands
    call disable
    ret

not_offered:
    INVALIDATE 0
    EXPECT_FAULT64 EXC_UD, 0, "where CPUID does not offer it invpcid is undefined"
.ifndef QEMU                     # which takes both
    mov rax, cr4
    or rax, CR4_PCIDE
    TRY64 mov cr4, rax
    EXPECT_FAULT64 EXC_GP, 0, "and identifiers cannot be switched on"
    TRY_SPACE PML4|KEEP
    EXPECT_FAULT64 EXC_GP, 0, "bit 63 of cr3 is reserved"
.endif
    ret

other_space:                     # the same tables but for WINDOW
    mov esi, PML4
    mov edi, OTHER_PML4
    mov ecx, 512
    cld
    rep movsq
    mov qword ptr [OTHER_PML4+8*PML4_OF_WINDOW], OTHER_PDPT+(P|W|U)
    mov qword ptr [OTHER_PDPT], OTHER_PD+(P|W|U)
    mov qword ptr [OTHER_PD], OTHER_TABLE+(P|W|U)
    SHOW OTHER_TABLE, FRAME_B
    SHOW TABLE, FRAME_A
    ret

without:
    TRY_SPACE PML4|KEEP
    EXPECT_FAULT64 EXC_GP, 0, "without identifiers bit 63 of cr3 is reserved"
    REFUSED 0, 1, WINDOW, "invpcid of an address knows no identifier but 0"
    REFUSED 1, 1, 0, "nor does that of an identifier"
    mov rax, [rbx]
    SHOW TABLE, FRAME_C
    INVALIDATE 0, 0, WINDOW
    EXPECT_NO_FAULT64 "which it does know"
    EXPECT64 [rbx], IN_C, "and it drops the page"
    SHOW TABLE, FRAME_A
    INVALIDATE 1, 0
    EXPECT64 [rbx], IN_A, "so does type 1"
    SHOW TABLE, FRAME_C
    INVALIDATE 3, 5
    EXPECT64 [rbx], IN_C, "and type 3, which asks for no identifier"
    SHOW TABLE, FRAME_A
    INVALIDATE 2, 0xFFF
    EXPECT64 [rbx], IN_A, "and type 2"
    ret

enable:
    mov rcx, cr4
    or rcx, CR4_PCIDE
    SPACE PML4|0x10                # PCD
    TRY64 mov cr4, rcx
    EXPECT_FAULT64 EXC_GP, 0, "identifiers are not switched on with PCD set in cr3"
    SPACE PML4|0x800
    TRY64 mov cr4, rcx
    EXPECT_FAULT64 EXC_GP, 0, "nor with any other of the low 12 bits"
    SPACE PML4
    TRY64 mov cr4, rcx
    EXPECT_NO_FAULT64 "but with none"
    mov rax, cr4
    EXPECT_SAME64 rax, rcx, "which cr4 tells"
    SPACE PML4|0x10
    TRY64 mov cr4, rcx
    EXPECT_NO_FAULT64 "once they are, the low bits do not matter"
    SPACE PML4|5|KEEP
    mov rax, cr3
    EXPECT64 rax, PML4|5, "cr3 holds the identifier, and no bit 63"
    TRY_SPACE PML4|1<<62
    EXPECT_FAULT64 EXC_GP, 0, "bit 62 is reserved"
    mov rax, cr0
    btr rax, 31
    TRY64 mov cr0, rax
    EXPECT_FAULT64 EXC_GP, 0, "paging is not left"
    ret

in_compatibility_mode:
    mov rbp, rsp
    jmp fword ptr [to_compatibility]
.code32
compatibility:
    mov eax, DATA
    mov ds, eax
    mov ss, eax
    mov esp, ebp
    mov eax, cr0
    and eax, ~CR0_PG
    TRY mov cr0, eax
    EXPECT_FAULT EXC_GP, 0, "nor by compatibility code, which may without identifiers"
    mov eax, cr3
    EXPECT eax, PML4|5, "which reads cr3 with the identifier"
    mov eax, PML4|6
    mov cr3, eax
    mov eax, cr3
    EXPECT eax, PML4|6, "and loads another"
    mov dword ptr [described], 6
    mov dword ptr [described+8], 0
    mov dword ptr [described+12], 1
    mov eax, 1
    TRY invpcid eax, [described]
    EXPECT [fault_vector], NONE, "invpcid is there, with a type of 32 bits"
    jmp CODE64:1f
.code64
1:  mov eax, DATA64
    mov ss, eax
    mov rsp, rbp
    mov rbx, WINDOW
    ret

spaces:
    SPACE PML4|1
    EXPECT64 [rbx], IN_A, "one address space shows its page"
    SPACE OTHER_PML4|2
    EXPECT64 [rbx], IN_B, "the other its own"
    mov edx, 100
    xor esi, esi
    mov rdi, IN_A
    mov rbp, IN_B
1:  SPACE PML4|1|KEEP
    cmp [rbx], rdi
    setne al
    movzx eax, al
    or esi, eax
    SPACE OTHER_PML4|2|KEEP
    cmp [rbx], rbp
    setne al
    movzx eax, al
    or esi, eax
    dec edx
    jnz 1b
    EXPECT64 rsi, 0, "so they do a hundred times while their translations are kept"
    SHOW TABLE, FRAME_C
    INVALIDATE 0, 1, WINDOW
    SPACE PML4|1|KEEP
    EXPECT64 [rbx], IN_C, "type 0 drops a page of an identifier that is not loaded"
    SHOW TABLE, FRAME_A
    INVALIDATE 0, 1, WINDOW
    EXPECT64 [rbx], IN_A, "and of the one that is"
    SPACE OTHER_PML4|2|KEEP
    mov rax, [rbx]
    SHOW TABLE, FRAME_C
    SHOW OTHER_TABLE, FRAME_C
    INVALIDATE 1, 1
    SPACE PML4|1|KEEP
    EXPECT64 [rbx], IN_C, "type 1 drops all of an identifier that is not loaded"
    INVALIDATE 1, 2
    SPACE OTHER_PML4|2|KEEP
    EXPECT64 [rbx], IN_C, "and of the other"
    SHOW OTHER_TABLE, FRAME_B
    INVALIDATE 1, 2
    EXPECT64 [rbx], IN_B, "while it is loaded, too"
    SHOW TABLE, FRAME_A
    SPACE PML4|1
    EXPECT64 [rbx], IN_A, "a load without bit 63 drops those of its identifier"
    SPACE OTHER_PML4|2|KEEP
    mov rax, [rbx]
    SHOW TABLE, FRAME_B
    SHOW OTHER_TABLE, FRAME_A
    INVALIDATE 3, 0xFFF
    EXPECT64 [rbx], IN_A, "type 3 drops those of all identifiers"
    SPACE PML4|1|KEEP
    EXPECT64 [rbx], IN_B, "each of them"
    mov rax, PML4|1|KEEP
    SHOW TABLE, FRAME_C
    invlpg [rbx]
    mov cr3, rax
    EXPECT64 [rbx], IN_C, "what invlpg dropped is not there again when translations are kept"
    SPACE OTHER_PML4|1             # the same identifier
    EXPECT64 [rbx], IN_A, "an identifier may be given to another address space"
    SPACE PML4|1
    EXPECT64 [rbx], IN_C, "and back"
    ret

global:
    SHOW TABLE, FRAME_A, P|W|G
    invlpg [rbx]
    mov rax, [rbx]
    SHOW TABLE, FRAME_B, P|W|G
    invlpg [rbx]
    EXPECT64 [rbx], IN_B, "invlpg drops a global page"
    SHOW TABLE, FRAME_A, P|W|G
    INVALIDATE 2
    EXPECT64 [rbx], IN_A, "so does type 2"
    SHOW TABLE, FRAME_B, P|W|G
    SPACE OTHER_PML4|2|KEEP
    mov rax, [rbx]
    INVALIDATE 2, 0xFFF
    SPACE PML4|1|KEEP
    EXPECT64 [rbx], IN_B, "whatever is loaded"
    mov rcx, cr4
    SHOW TABLE, FRAME_A, P|W|G
    mov rax, rcx
    btr rax, 7                   # PGE
    mov cr4, rax
    mov cr4, rcx
    EXPECT64 [rbx], IN_A, "and a change of CR4.PGE"
    ret

refused:
    REFUSED 4, 1, 0, "there is no type 4"
    REFUSED 1<<32|1, 1, 0, "all 64 bits of the type count"
    REFUSED 0, 0x1001, WINDOW, "bit 12 of the descriptor is reserved"
    REFUSED 1, 1<<63, 0, "and bit 63"
    REFUSED 2, 0x1000, 0, "for type 2 as well"
    REFUSED 3, 1<<32, 0, "and for type 3"
    REFUSED 0, 1, 1<<47, "type 0 wants a canonical address"
    REFUSED 0, 2, 1<<63, "whatever the identifier"
    INVALIDATE 1, 1, 1<<47
    EXPECT_NO_FAULT64 "the others want none"
    DESCRIBE 1
    mov ecx, 1
    USER_TRY64 invpcid rcx, [described]
    EXPECT_FAULT64 EXC_GP, 0, "in ring 3 it is refused"
    TRY64 .byte 0x66, 0x0F, 0x38, 0x82, 0xC8
    EXPECT_FAULT64 EXC_UD, 0, "a register is no descriptor"
    TRY64 .byte 0xF0, 0x66, 0x0F, 0x38, 0x82, 0x0A
    EXPECT_FAULT64 EXC_UD, 0, "lock is undefined"
    ret

operands:
    PTE64 1, 0
    mov ecx, 3
    TRY64 invpcid rcx, [rbx+0x1000]
    EXPECT_FAULT64 EXC_PF, 0, "the descriptor is read: it may be missing"
    EXPECT64 [fault_cr2], WINDOW+0x1000, "at this address"
    PTE64 0, FRAME_A+(P|W)
    TRY64 invpcid rcx, [rbx+0xFF1]
    EXPECT_FAULT64 EXC_PF, 0, "in part"
    EXPECT64 [fault_cr2], WINDOW+0x1000, "all 16 bytes of it"
    mov rdx, 0x7FFFFFFFFFF8
    TRY64 invpcid rcx, [rdx]
    EXPECT_FAULT64 EXC_GP, 0, "or not be canonical"
    mov rbp, rdx
    TRY64 invpcid rcx, [rbp]
    EXPECT_FAULT64 EXC_SS, 0, "through rbp that is a stack fault"
    DESCRIBE 1
    mov r9d, 1
    mov r12d, offset described-0x40
    mov r13d, 8
    TRY64 invpcid r9, [r12+r13*8]
    EXPECT_NO_FAULT64 "any register may hold the type and the address"
    EXPECT64 r9, 1, "and none changes"
    ret

disable:
    SHOW TABLE, FRAME_A, P|W|G
    SPACE PML4|3
    mov rax, [rbx]
    SHOW TABLE, FRAME_B, P|W|G
    mov rax, cr4
    and rax, ~CR4_PCIDE
    TRY64 mov cr4, rax
    EXPECT_NO_FAULT64 "identifiers are switched off with one loaded"
    EXPECT64 [rbx], IN_B, "which drops everything, global pages too"
    mov rax, cr3
    EXPECT64 rax, PML4|3, "cr3 stays"
    TRY_SPACE PML4|3|KEEP
    EXPECT_FAULT64 EXC_GP, 0, "bit 63 is reserved again"
    mov rcx, cr4
    or rcx, CR4_PCIDE
    TRY64 mov cr4, rcx
    EXPECT_FAULT64 EXC_GP, 0, "and they are not switched on again as it is"
    SPACE PML4
    TRY64 mov cr4, rcx
    EXPECT_NO_FAULT64 "but with identifier 0"
    and rcx, ~CR4_PCIDE
    mov cr4, rcx
    ret

.data
to_compatibility: .long compatibility
                  .word CODE
.bss
.align 16
described:        .skip 16
