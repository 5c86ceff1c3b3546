# paging - two-level page tables with 4 KiB and 4 MiB pages
#
# The first 8 MiB are mapped onto themselves for all rings; the pages under test
# are at WINDOW, whose one page table the test rewrites.
.include "guest.inc"
.include "window.inc"

.set LARGE_FRAME, 0x800000

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
.macro FLUSH
    mov eax, cr3
    mov cr3, eax
.endm

main:
    MAKE_TABLES P|W|U
    CR0_SET CR0_PG
    call mapping
    call faults
    call accessed_and_dirty
    call user
    call fetching
    call strings
    call large_pages
    CR0_CLEAR CR0_PG
    EXPECT [FRAME_A], 0xA0A0A0A0, "with paging off again addresses are physical"
    ret

mapping:
    mov dword ptr [FRAME_A], 0x11111111
    mov dword ptr [FRAME_B], 0x22222222
    PTE 0, FRAME_A+(P|W)
    PTE 1, FRAME_B+(P|W)
    EXPECT [WINDOW], 0x11111111, "a page shows its frame"
    mov dword ptr [WINDOW+8], 0x33333333
    EXPECT [FRAME_A+8], 0x33333333, "a store through a page reaches its frame"
    PTE 0, FRAME_B+(P|W)
    EXPECT [WINDOW], 0x22222222, "invlpg makes a changed entry take effect"
    mov dword ptr [TABLE], FRAME_A + (P|W)
    FLUSH
    EXPECT [WINDOW], 0x11111111, "so does loading cr3"
    mov dword ptr [TABLE+8], FRAME_A + (P|W)
    EXPECT [WINDOW+0x2000], 0x11111111, "an entry made present needs no invalidation"
    mov dword ptr [WINDOW+0xFFE], 0xDDCCBBAA
    movzx eax, word ptr [FRAME_A+0xFFE]
    EXPECT eax, 0xBBAA, "a store across two pages reaches the first frame"
    movzx eax, word ptr [FRAME_B]
    EXPECT eax, 0xDDCC, "and the second"
    mov eax, [WINDOW+0xFFD]
    shr eax, 8
    EXPECT eax, 0xCCBBAA, "and is read back whole"
    mov dword ptr [FRAME_B], 0x22222222
    mov dword ptr [OTHER_TABLE], FRAME_B + (P|W)
    mov dword ptr [WINDOW_PDE], OTHER_TABLE + (P|W|U)
    FLUSH
    EXPECT [WINDOW], 0x22222222, "a directory entry can be exchanged"
    mov dword ptr [WINDOW_PDE], TABLE + (P|W|U)
    FLUSH
    ret

faults:
    PTE 3, 0
    TRY mov eax, [WINDOW+0x3123]
    EXPECT_FAULT EXC_PF, 0, "reading a page that is not present"
    EXPECT [fault_cr2], WINDOW+0x3123, "cr2 holds the address to the byte"
    TRY mov byte ptr [WINDOW+0x3FFF], 1
    EXPECT_FAULT EXC_PF, PF_WRITE, "writing a page that is not present"
    EXPECT [fault_cr2], WINDOW+0x3FFF, "cr2 holds that address"
.ifndef QEMU
    TRY inc dword ptr [WINDOW+0x3000]
    EXPECT_FAULT EXC_PF, PF_WRITE, "read-modify-write of an absent page is a write"
.endif
    TRY mov eax, [0x50000000]
    EXPECT_FAULT EXC_PF, 0, "reading where the directory has no entry"
    PTE 4, FRAME_A+P
    TRY mov dword ptr [WINDOW+0x4010], 1
    EXPECT_NO_FAULT "with WP clear ring 0 writes read-only pages"
    CR0_SET CR0_WP
    TRY mov dword ptr [WINDOW+0x4010], 2
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "with WP set it faults"
    EXPECT [FRAME_A+0x10], 1, "and nothing was stored"
    TRY inc dword ptr [WINDOW+0x4010]
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "read-modify-write of a read-only page"
    TRY mov eax, [WINDOW+0x4010]
    EXPECT_NO_FAULT "reading it is allowed"
    mov dword ptr [WINDOW_PDE], TABLE + (P|U)
    FLUSH
    TRY mov dword ptr [WINDOW+0x10], 2
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "a read-only directory entry covers its table"
    mov dword ptr [WINDOW_PDE], TABLE + (P|W|U)
    CR0_CLEAR CR0_WP
    FLUSH
    PTE 2, FRAME_A+(P|W)
    mov dword ptr [FRAME_A+0xFFC], 0x77777777
    TRY mov dword ptr [WINDOW+0x2FFE], 0x12345678
    EXPECT_FAULT EXC_PF, PF_WRITE, "a store whose second page is absent"
    EXPECT [fault_cr2], WINDOW+0x3000, "cr2 names the second page's first byte"
    EXPECT [FRAME_A+0xFFC], 0x77777777, "the first page is untouched"
    mov ecx, 5
    stc
    TRY adc ecx, [WINDOW+0x3000]
    EXPECT ecx, 5, "a faulting adc leaves its register"
    EXPECT_FLAGS FLAG_C, FLAG_C, "and the carry"
    ret

accessed_and_dirty:
    PTE 5, FRAME_A+(P|W)
    mov dword ptr [WINDOW_PDE], TABLE + (P|W|U)
    FLUSH
    mov eax, [WINDOW+0x5000]
    EXPECT [TABLE+20], FRAME_A+(P|W|A), "a read sets A in the table entry"
    EXPECT [WINDOW_PDE], TABLE+(P|W|U|A), "and in the directory entry"
    mov [WINDOW+0x5020], eax
    EXPECT [TABLE+20], FRAME_A+(P|W|A|D), "a write after it sets D"
    EXPECT [WINDOW_PDE], TABLE+(P|W|U|A), "a directory entry gets no D"
    PTE 5, FRAME_A+(P|W)
    mov [WINDOW+0x5020], eax
    EXPECT [TABLE+20], FRAME_A+(P|W|A|D), "cleared and invalidated, a write sets both again"
    PTE 5, FRAME_A+(P|W|A)
    mov eax, [WINDOW+0x5000]
    EXPECT [TABLE+20], FRAME_A+(P|W|A), "a read leaves D clear"
    add dword ptr [WINDOW+0x5024], 0
    EXPECT [TABLE+20], FRAME_A+(P|W|A|D), "adding zero is a write"
    PTE 5, FRAME_A+P
    CR0_SET CR0_WP
    TRY mov [WINDOW+0x5000], eax
    and dword ptr [TABLE+20], ~A
    EXPECT [TABLE+20], FRAME_A+P, "a refused write sets no D"
    CR0_CLEAR CR0_WP
    ret

user:
    PTE 6, FRAME_A+(P|W)
    PTE 7, FRAME_A+(P|U)
    PTE 8, FRAME_A+(P|W|U)
    USER_TRY mov eax, [WINDOW+0x6004]
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_USER, "ring 3 reading a supervisor page"
    EXPECT [fault_cr2], WINDOW+0x6004, "cr2 holds its address"
    USER_TRY mov [WINDOW+0x6000], eax
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE|PF_USER, "ring 3 writing a supervisor page"
    USER_TRY mov eax, [WINDOW+0x3000]
    EXPECT_FAULT EXC_PF, PF_USER, "ring 3 reading an absent page"
    USER_TRY mov [WINDOW+0x3000], eax
    EXPECT_FAULT EXC_PF, PF_USER|PF_WRITE, "ring 3 writing an absent page"
    USER_TRY mov [WINDOW+0x7000], eax
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE|PF_USER, "ring 3 writing a read-only page, WP or not"
    USER_TRY mov eax, [WINDOW+0x7000]
    EXPECT_NO_FAULT "ring 3 may read it"
    USER_TRY mov dword ptr [WINDOW+0x8000], 0xA0A0A0A0
    EXPECT_NO_FAULT "ring 3 writes its own page"
    EXPECT [FRAME_A], 0xA0A0A0A0, "and the frame has it"
    mov ecx, WINDOW + 0x9000     # page 8 is there, page 9 is not
    USER_TRY mov [ecx-2], eax
    EXPECT_FAULT EXC_PF, PF_USER|PF_WRITE, "ring 3 storing across into an absent page"
    ENTER_RING3
    mov esp, ecx
    push eax
    push [esp]
    pop eax
    pop eax
    mov ecx, esp
    int LEAVE_RING3
    EXPECT ecx, WINDOW+0x9000, "a user stack just below an absent page works"
    mov ecx, WINDOW + 0x8000
    PTE 7, 0
    ENTER_RING3
    mov esp, ecx
    TRY push eax
    int LEAVE_RING3
    EXPECT [fault_vector], EXC_PF, "a push below the stack's page faults"
    EXPECT [fault_esp], WINDOW+0x8000, "and esp is unchanged"
    EXPECT [fault_cr2], WINDOW+0x7FFC, "cr2 holds the slot's address"
    mov dword ptr [WINDOW_PDE], TABLE + (P|W)
    FLUSH
    USER_TRY mov eax, [WINDOW+0x8000]
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_USER, "a supervisor directory entry covers its table"
    mov dword ptr [WINDOW_PDE], TABLE + (P|W|U)
    FLUSH
    CR0_SET CR0_WP
    PTE 7, FRAME_A+(P|U)
    TRY mov [WINDOW+0x7000], eax
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "with WP ring 0 respects a user page's read-only"
    CR0_CLEAR CR0_WP
    ret

fetching:
    PTE 3, 0
    mov ecx, WINDOW + 0x3040
    TRY jmp ecx
    EXPECT [fault_vector], EXC_PF, "jumping to an absent page faults"
    EXPECT [fault_error], 0, "without an instruction-fetch bit, as NX is off"
    EXPECT [fault_eip], WINDOW+0x3040, "at the target"
    EXPECT [fault_cr2], WINDOW+0x3040, "which cr2 holds too"
    mov ecx, WINDOW + 0x6000
    USER_TRY jmp ecx
    EXPECT [fault_error], PF_PRESENT|PF_USER, "ring 3 jumping into a supervisor page"
    PTE 2, FRAME_A + (P|W|U)     # mov eax, imm32; ret - split over two pages
    mov word ptr [FRAME_A+0xFFE], 0x44B8
    mov ecx, WINDOW + 0x2FFE
    TRY call ecx
    EXPECT [fault_eip], WINDOW+0x2FFE, "an instruction whose second page is absent faults at its start"
    EXPECT [fault_cr2], WINDOW+0x3000, "cr2 names the second page"
    add esp, 4                   # what the call pushed
    PTE 3, FRAME_B+(P|W)
    mov dword ptr [FRAME_B], 0xC3112233
    xor eax, eax
    call ecx
    EXPECT eax, 0x11223344, "an instruction runs across two pages"
    mov byte ptr [FRAME_B+2], 0x99
    call ecx
    EXPECT eax, 0x99223344, "and again after its second page was written"
    PTE 3, FRAME_A+(P|W)
    mov dword ptr [FRAME_A], 0xC3556677
    call ecx
    EXPECT eax, 0x55667744, "and after its second page was remapped"
    mov dword ptr [FRAME_A], 0xA0A0A0A0
    ret

strings:
    PTE 10, FRAME_B+(P|W)
    PTE 11, 0
    mov esi, FRAME_A
    mov edi, WINDOW + 0xAFF0
    mov ecx, 64
    TRY rep movsb
    EXPECT_FAULT EXC_PF, PF_WRITE, "rep movsb running into an absent page"
    EXPECT ecx, 48, "ecx counts what is left"
    EXPECT edi, WINDOW+0xB000, "edi is at the faulting byte"
    EXPECT esi, FRAME_A+16, "esi is at its source"
    PTE 11, FRAME_B+(P|W)
    rep movsb
    EXPECT ecx, 0, "and it can be resumed"
    PTE 11, 0
    mov edi, WINDOW + 0xAFF2
    mov ecx, 8
    mov eax, 0x55AA55AA
    TRY rep stosd
    EXPECT ecx, 5, "rep stosd stops at the element that straddles"
    EXPECT edi, WINDOW+0xAFFE, "before storing any of it"
    EXPECT [fault_cr2], WINDOW+0xB000, "with cr2 at the absent page"
    ret

large_pages:
    mov dword ptr [LARGE_PDE], OTHER_TABLE + (P|W|PS)
    mov dword ptr [OTHER_TABLE+4], FRAME_A + (P|W)
    EXPECT [LARGE+0x1000], 0xA0A0A0A0, "without PSE bit 7 of a directory entry means nothing"
    mov eax, cr4
    or eax, CR4_PSE
    mov cr4, eax
    mov dword ptr [LARGE_PDE], LARGE_FRAME + (P|W|PS)
    FLUSH
    mov eax, [LARGE+0x123000]
    EXPECT [LARGE_PDE], LARGE_FRAME+(P|W|PS|A), "a read in a 4 MiB page sets A in the directory entry"
    mov dword ptr [LARGE+0x3FFFFC], 0xFEDCBA98
    EXPECT [LARGE_PDE], LARGE_FRAME+(P|W|PS|A|D), "and a write D"
    USER_TRY mov eax, [LARGE+0x200000]
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_USER, "it is the supervisor's alone"
    mov dword ptr [LARGE_PDE], (P|W|PS)   # now the first 4 MiB
    invlpg [LARGE+0x3FF000]
    mov eax, [main]
    EXPECT [LARGE+main], eax, "invlpg anywhere in a 4 MiB page drops all of it"
    mov dword ptr [LARGE_PDE], LARGE_FRAME + (P|PS)
    FLUSH
    EXPECT [LARGE+0x3FFFFC], 0xFEDCBA98, "its last word was stored"
    CR0_SET CR0_WP
    TRY mov [LARGE+0x1000], eax
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "a read-only 4 MiB page"
    CR0_CLEAR CR0_WP
    ret
