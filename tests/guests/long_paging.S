# long_paging - four-level page tables: rights, A and D bits, page sizes, reserved bits, and tables in the upper half
.include "guest.inc"
.include "long.inc"

.set LARGE, WINDOW+0x200000      # a 2 MiB page
.set LARGE_FRAME, 0x800000
.set HUGE, WINDOW+0x40000000     # a 1 GiB page
.set RECURSIVE, 300              # this entry of the PML4 shows the PML4
.set TABLES, 0xFFFF000000000000|RECURSIVE<<39 # so the tables themselves are here
.set OTHER_PML4, FREE_TABLES
.set OTHER_PDPT, FREE_TABLES+0x1000
.set OTHER_PD, FREE_TABLES+0x2000
.set OTHER_TABLE, FREE_TABLES+0x3000
.ifdef QEMU                      # which leaves the P bit out
.set RESERVED, PF_RESERVED
.else
.set RESERVED, PF_PRESENT|PF_RESERVED
.endif

.macro FLUSH
    mov rax, cr3
    mov cr3, rax
.endm
# SET entry, value: a table's entry, and flush all that is not global.
.macro SET entry, value
    mov rax, \value
    mov [\entry], rax
    FLUSH
.endm

# CALL_WINDOW: call rbx, which may fault at its target.
.macro CALL_WINDOW
    mov rbp, rsp
    TRY64 call rbx
    mov rsp, rbp
.endm

long_main:
    mov rax, 0xAAAAAAAAAAAAAAAA
    mov [FRAME_A], rax
    mov rax, 0xBBBBBBBBBBBBBBBB
    mov [FRAME_B], rax
    mov rax, cr0
    bts rax, 16                  # WP
    mov cr0, rax
    call rights
    call upper_levels
    call accessed
    call no_execute
    call reserved
    call large
    call huge
    call global
    call aliases
    call recursive
    call spaces
    ret

rights:
    mov rbx, WINDOW
    PTE64 0, 0
    TRY64 mov rax, [rbx+0x123]
    EXPECT_FAULT64 EXC_PF, 0, "a page that is not present"
    EXPECT64 [fault_cr2], WINDOW+0x123, "cr2 has 64 bits"
    TRY64 mov [rbx+8], rax
    EXPECT_FAULT64 EXC_PF, PF_WRITE, "a store there"
    PTE64 0, FRAME_A+P
    EXPECT64 [TABLE], FRAME_A+P, "nothing is accessed yet"
    mov rax, [rbx]
    EXPECT64 rax, 0xAAAAAAAAAAAAAAAA, "a page shows its frame"
    TRY64 mov [rbx], rax
    EXPECT_FAULT64 EXC_PF, PF_PRESENT|PF_WRITE, "a page without W is not written"
    USER_TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, PF_PRESENT|PF_USER, "nor read by ring 3 without U"
    PTE64 0, FRAME_A+(P|U)
    USER_TRY64 mov rax, [rbx]
    EXPECT_NO_FAULT64 "but with U"
    USER_TRY64 mov [rbx], rax
    EXPECT_FAULT64 EXC_PF, PF_PRESENT|PF_WRITE|PF_USER, "a store wants W too"
    mov rax, cr0
    btr rax, 16
    mov cr0, rax
    TRY64 mov byte ptr [rbx+1], 0x11
    EXPECT_NO_FAULT64 "without CR0.WP ring 0 writes it"
    EXPECT64 [FRAME_A], 0xAAAAAAAAAAAA11AA, "so it does"
    USER_TRY64 mov [rbx], rax
    EXPECT_FAULT64 EXC_PF, PF_PRESENT|PF_WRITE|PF_USER, "ring 3 does not"
    mov rax, cr0
    bts rax, 16
    mov cr0, rax
    TRY64 mov byte ptr [rbx+1], 0x22
    EXPECT_FAULT64 EXC_PF, PF_PRESENT|PF_WRITE, "with it ring 0 does not"
    PTE64 0, FRAME_A+(P|W|U)
    PTE64 1, 0
    mov rax, -1
    TRY64 mov [rbx+0xFFC], rax
    EXPECT_FAULT64 EXC_PF, PF_WRITE, "a store into two pages faults in the second"
    EXPECT64 [fault_cr2], WINDOW+0x1000, "at its beginning"
    EXPECT64 [FRAME_A+0xFF8], 0, "and stores nothing in the first"
    PTE64 1, FRAME_B+(P|W|U)
    mov [rbx+0xFFC], rax
    EXPECT64 [FRAME_A+0xFF8], 0xFFFFFFFF00000000, "then four bytes"
    EXPECT64 [FRAME_B], 0xBBBBBBBBFFFFFFFF, "in each"
    mov rax, 0xBBBBBBBBBBBBBBBB
    mov [FRAME_B], rax
    mov rbx, 0x0000123456789000
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, 0, "an address far away in the lower half"
    EXPECT_SAME64 [fault_cr2], rbx, "has a cr2 as far"
    mov rbx, 0xFFFFC90000ABCDEF
    TRY64 mov [rbx], rax
    EXPECT_FAULT64 EXC_PF, PF_WRITE, "one in the upper half"
    EXPECT_SAME64 [fault_cr2], rbx, "too"
    ret

# LEVELS "name", entry, value: rights of the entry count for all below it.
.macro LEVELS name, entry, value
    SET \entry, \value+(P|W)
    USER_TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, PF_PRESENT|PF_USER, "U counts in the \name"
    SET \entry, \value+(P|U)
    TRY64 mov [rbx+8], rax
    EXPECT_FAULT64 EXC_PF, PF_PRESENT|PF_WRITE, "W counts in the \name"
    SET \entry, \value+(P|W|U)|XD
    CALL_WINDOW
    EXPECT64 [fault_error], PF_PRESENT|PF_FETCH, "XD counts in the \name"
    SET \entry, 0
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, 0, "P counts in the \name"
    SET \entry, \value+(P|W|U)
    TRY64 mov [rbx+8], rax
    EXPECT_NO_FAULT64 "with all the \name lets it pass"
    EXPECT64 [\entry], \value+(P|W|U|A), "and has A but no D"
.endm
upper_levels:
    PTE64 0, FRAME_A+(P|W|U)
    mov rbx, WINDOW
    mov byte ptr [FRAME_A], 0xC3
    LEVELS "PML4", PML4+8*PML4_OF_WINDOW, PDPT_WINDOW
    LEVELS "PDPT", PDPT_WINDOW, PD_WINDOW
    LEVELS "directory", PD_WINDOW, TABLE
    ret

accessed:
    mov rbx, WINDOW
    PTE64 0, FRAME_A+(P|W|U)
    prefetcht0 [rbx]
    mov rax, [rbx]
    EXPECT64 [TABLE], FRAME_A+(P|W|U|A), "a read sets A"
    mov [rbx], rax
    EXPECT64 [TABLE], FRAME_A+(P|W|U|A|D), "a write sets D"
    PTE64 0, FRAME_A+(P|W|U|A)
    TRY64 cmp [rbx], rax
    EXPECT64 [TABLE], FRAME_A+(P|W|U|A), "cmp does not set D"
    xor ecx, ecx
    lock cmpxchg [rbx], rcx      # rax equals
    EXPECT64 [TABLE], FRAME_A+(P|W|U|A|D), "cmpxchg does"
    PTE64 0, FRAME_A+(P|W)
    USER_TRY64 mov [rbx], rax
    EXPECT64 [TABLE], FRAME_A+(P|W), "an access refused sets neither"
    PTE64 0, FRAME_A+(P|W|U)|0x7F0000000000E00
    mov [rbx], rax
    EXPECT64 [TABLE], FRAME_A+(P|W|U|A|D)|0x7F0000000000E00, "bits 9-11 and 52-58 are the guest's"
    ret

no_execute:
    mov rbx, WINDOW
    mov byte ptr [FRAME_A], 0xC3 # ret
    PTE64 0, FRAME_A+(P|W|U)
    CALL_WINDOW
    EXPECT_NO_FAULT64 "a page without XD is executed"
    PTE64 0, FRAME_A+(P|W|U)|XD
    mov rax, [rbx]
    CALL_WINDOW
    EXPECT64 [fault_vector], EXC_PF, "one with XD is read but not executed"
    EXPECT64 [fault_error], PF_PRESENT|PF_FETCH, "its error code tells the fetch"
    EXPECT64 [fault_eip], WINDOW, "the fault is at the target"
    EXPECT64 [fault_cr2], WINDOW, "which cr2 holds too"
    RDMSR64 EFER
    btr eax, 11
    xor edx, edx
    wrmsr
    FLUSH
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, RESERVED, "without EFER.NXE bit 63 is reserved"
    RDMSR64 EFER
    bts eax, 11
    xor edx, edx
    wrmsr
    FLUSH
    TRY64 mov rax, [rbx]
    EXPECT_NO_FAULT64 "and not with it"
    PTE64 0, 0
    CALL_WINDOW
    EXPECT64 [fault_error], PF_FETCH, "a fetch of a page that is not present says so with NXE"
    mov byte ptr [FRAME_A+0xFFF], 0xB8 # mov eax, imm32 into the next page
    mov dword ptr [FRAME_B], 0xC3000000
    mov byte ptr [FRAME_B+4], 0xC3
    PTE64 0, FRAME_A+(P|W|U)
    PTE64 1, FRAME_B+(P|W|U)|XD
    add rbx, 0xFFF
    CALL_WINDOW
    EXPECT64 [fault_eip], WINDOW+0xFFF, "an instruction that ends in a page with XD"
    EXPECT64 [fault_cr2], WINDOW+0x1000, "faults with that page's address"
    ret

.macro RESERVED_IN name, entry, value
    SET \entry, \value
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, RESERVED, "\name"
    USER_TRY64 mov [rbx], rax
    EXPECT_FAULT64 EXC_PF, RESERVED|PF_WRITE|PF_USER, "\name: the error code tells the access too"
.endm
reserved:
    mov rbx, WINDOW
    PTE64 0, FRAME_A+(P|W|U)
    RESERVED_IN "bit 51 of an entry", TABLE, FRAME_A+(P|W|U)|1<<51
    SET TABLE, FRAME_A+(P|W|U)
    RESERVED_IN "PS in the PML4", PML4+8*PML4_OF_WINDOW, PDPT_WINDOW+(P|W|U|PS)
    SET PML4+8*PML4_OF_WINDOW, PDPT_WINDOW+(P|W|U)
    RESERVED_IN "bit 51 of a directory's entry", PD_WINDOW, TABLE+(P|W|U)|1<<51
    SET PD_WINDOW, TABLE+(P|W|U)
    mov rbx, LARGE
    RESERVED_IN "bit 13 of a 2 MiB page's", PD_WINDOW+8, LARGE_FRAME+0x2000+(P|W|U|PS)
    SET PD_WINDOW+8, LARGE_FRAME+0x2000+(W|U|PS)
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, 0, "in an entry that is not present nothing is reserved"
    mov eax, 0x80000008
    cpuid
    movzx ecx, al
    cmp cl, 52
    je 1f
    mov rax, FRAME_A+(P|W|U)
    bts rax, rcx
    mov [TABLE], rax
    mov rbx, WINDOW
    invlpg [rbx]
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, RESERVED, "the first bit beyond it is reserved"
.ifndef QEMU                     # which takes it
    mov rax, cr3
    bts rax, rcx
    TRY64 mov cr3, rax
    EXPECT_FAULT64 EXC_GP, 0, "in cr3 as well"
.endif
1:  mov rax, PML4
    mov cr3, rax
    PTE64 0, FRAME_A+(P|W|U)
    ret

large:
    mov rax, 0x1212121212121212
    mov [LARGE_FRAME+0x123450], rax
    SET PD_WINDOW+8, LARGE_FRAME+(P|W|PS)
    mov rbx, LARGE
    mov rax, [rbx+0x123450]
    EXPECT64 rax, 0x1212121212121212, "a 2 MiB page shows its frame"
    EXPECT64 [PD_WINDOW+8], LARGE_FRAME+(P|W|PS|A), "a read sets A in its entry"
    mov [rbx+0x1FFFF8], rax
    EXPECT64 [PD_WINDOW+8], LARGE_FRAME+(P|W|PS|A|D), "a write sets D"
    USER_TRY64 mov rax, [rbx+0x1000]
    EXPECT_FAULT64 EXC_PF, PF_PRESENT|PF_USER, "its U counts"
    EXPECT64 [fault_cr2], LARGE+0x1000, "and cr2 tells the byte"
    mov rax, [rbx+0x3000]
    mov rax, 0x3434343434343434
    mov [LARGE_FRAME+0x200000+0x123450], rax
    mov rax, LARGE_FRAME+0x200000+(P|W|U|PS)
    mov [PD_WINDOW+8], rax
    invlpg [rbx+0x3000]
    mov rax, [rbx+0x123450]
    EXPECT64 rax, 0x3434343434343434, "invlpg anywhere in it drops all of it"
    mov qword ptr [PD_WINDOW+8], OTHER_TABLE+(P|W|U)
    mov qword ptr [OTHER_TABLE+8], FRAME_B+(P|W|U)
    invlpg [rbx+0x1000]
    invlpg [rbx+0x2000]
    mov rax, 0xBBBBBBBBBBBBBBBB
    mov [FRAME_B], rax
    mov rax, [rbx+0x1000]
    EXPECT64 rax, 0xBBBBBBBBBBBBBBBB, "a table in its place shows 4 KiB pages"
    TRY64 mov rax, [rbx+0x2000]
    EXPECT_FAULT64 EXC_PF, 0, "of which others are not present"
    ret

huge:
    mov eax, 0x80000001
    cpuid
    mov rbx, HUGE
    bt edx, 26
    jnc 1f
    SET PDPT_WINDOW+8, (P|W|U|PS)
    mov rax, [rbx+LARGE_FRAME+0x123450]
    EXPECT64 rax, 0x1212121212121212, "a 1 GiB page shows its frame"
    EXPECT64 [PDPT_WINDOW+8], P|W|U|PS|A, "a read sets A in its entry"
    mov [rbx+FRAME_A], rax
    EXPECT64 [PDPT_WINDOW+8], P|W|U|PS|A|D, "a write sets D"
    EXPECT64 [FRAME_A], 0x1212121212121212, "and reaches the frame"
    mov rax, [rbx+FRAME_B]
    mov qword ptr [PDPT_WINDOW+8], 0
    invlpg [rbx+0x3FFFF000]
    TRY64 mov rax, [rbx+FRAME_B]
    EXPECT_FAULT64 EXC_PF, 0, "invlpg anywhere in it drops all of it, 1 GiB"
    RESERVED_IN "bit 13 of a 1 GiB page's", PDPT_WINDOW+8, 0x2000+(P|W|U|PS)
    jmp 2f
1:  SET PDPT_WINDOW+8, (P|W|U|PS)
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, RESERVED, "PS is reserved where there are no 1 GiB pages"
2:  SET PDPT_WINDOW+8, 0
    mov rax, 0xAAAAAAAAAAAAAAAA
    mov [FRAME_A], rax
    ret

global:
    mov rax, cr4
    or rax, CR4_PGE
    mov cr4, rax
    mov rbx, WINDOW
    PTE64 0, FRAME_A+(P|W|G)
    mov rax, [rbx]
    mov qword ptr [TABLE], FRAME_B+(P|W|G)
    invlpg [rbx]
    mov rax, [rbx]
    EXPECT64 rax, 0xBBBBBBBBBBBBBBBB, "invlpg drops a global page"
    mov qword ptr [TABLE], FRAME_A+(P|W|G)
    mov rax, cr4
    and rax, ~CR4_PGE
    mov cr4, rax
    mov rax, [rbx]
    EXPECT64 rax, 0xAAAAAAAAAAAAAAAA, "clearing CR4.PGE drops all"
    mov qword ptr [TABLE], FRAME_B+(P|W|G)
    FLUSH
    mov rax, [rbx]
    EXPECT64 rax, 0xBBBBBBBBBBBBBBBB, "without PGE no page is global"
    ret

aliases:
    PTE64 3, FRAME_A+(P|W)
    PTE64 4, FRAME_A+(P|W)
    mov rbx, WINDOW+0x3000
    mov rcx, FRAME_A+TOP
    mov rax, 0x1010101010101010
    mov [rbx], rax
    EXPECT_SAME64 [rbx+0x1000], rax, "a frame at two addresses is one"
    EXPECT_SAME64 [rcx], rax, "at a third in the upper half too"
    EXPECT_SAME64 [FRAME_A], rax, "and in the lower"
    not qword ptr [rcx]
    not rax
    EXPECT_SAME64 [rbx], rax, "the other way too"
    mov rdx, TABLE+TOP           # the table by its address in the upper half
    mov qword ptr [rdx+8*3], FRAME_B+(P|W)
    invlpg [rbx]
    EXPECT64 [rbx], 0xBBBBBBBBBBBBBBBB, "an entry changed through the upper half counts"
    EXPECT_SAME64 [rbx+0x1000], rax, "for its page alone"
    mov rsi, FRAME_A+TOP-8
    push qword ptr [rsi+8]
    pop qword ptr [rbx]
    EXPECT_SAME64 [FRAME_B], rax, "push and pop between them"
    ret

recursive:
    SET PML4+8*RECURSIVE, PML4+(P|W)
    mov rbx, TABLES|RECURSIVE<<30|RECURSIVE<<21|RECURSIVE<<12
    EXPECT64 [rbx+8*RECURSIVE], PML4+(P|W|A), "the PML4 shows itself"
    mov rbx, TABLES|PML4_OF_WINDOW<<30 # the table of WINDOW
    mov rax, [rbx+8*3]
    and rax, ~(A|D)
    EXPECT64 rax, FRAME_B+(P|W), "and the last table of an address"
    mov qword ptr [rbx+8*5], FRAME_C+(P|W)
    mov qword ptr [FRAME_C], 0x77
    mov rcx, WINDOW+0x5000
    EXPECT64 [rcx], 0x77, "an entry made there is a page"
    mov qword ptr [rcx], 0x78
    EXPECT64 [rbx+8*5], FRAME_C+(P|W|A|D), "whose A and D are seen there"
    mov qword ptr [rbx+8*5], 0
    invlpg [rcx]
    TRY64 mov rax, [rcx]
    EXPECT_FAULT64 EXC_PF, 0, "and which goes by it too"
    EXPECT64 [PD_WINDOW], TABLE+(P|W|U|A|D), "a directory's entry that served as a page's has D"
    ret

spaces:
    mov esi, PML4                # the same but for WINDOW
    mov edi, OTHER_PML4
    mov ecx, 512
    cld
    rep movsq
    mov qword ptr [OTHER_PML4+8*PML4_OF_WINDOW], OTHER_PDPT+(P|W|U)
    mov qword ptr [OTHER_PDPT], OTHER_PD+(P|W|U)
    mov qword ptr [OTHER_PD], OTHER_TABLE+(P|W|U)
    mov qword ptr [OTHER_TABLE], FRAME_C+(P|W|U)
    mov qword ptr [FRAME_C], 0x79
    PTE64 0, FRAME_A+(P|W)
    mov rbx, WINDOW
    mov rcx, [FRAME_A]
    mov edx, 100
    xor esi, esi
1:  mov eax, OTHER_PML4
    mov cr3, rax
    cmp qword ptr [rbx], 0x79
    setne al
    or esi, eax
    and esi, 0xFF
    mov eax, PML4
    mov cr3, rax
    cmp [rbx], rcx
    setne al
    movzx eax, al
    or esi, eax
    dec edx
    jnz 1b
    and esi, 1
    EXPECT64 rsi, 0, "each address space has its own page there"
    mov rax, cr3
    EXPECT64 rax, PML4, "cr3 is read as it was written"
    ret
