# tlb - what translations mean after their tables have changed
#
# The first 8 MiB are mapped onto themselves for all rings; the pages under test are at
# WINDOW (4 KiB pages) and LARGE (a 4 MiB page). Where the manual lets a processor keep
# an old translation, nothing is asked before it is invalidated.
.include "guest.inc"

.set DIRECTORY, 0x400000         # two address spaces
.set DIRECTORY2, 0x401000
.set LOW_TABLES, 0x402000        # two, shared
.set TABLE, 0x404000             # the window's, shared
.set TABLE2, 0x405000
.set FRAME_A, 0x500000
.set FRAME_B, 0x510000
.set FRAME_C, 0x520000
.set WINDOW, 0x40000000
.set WINDOW_PDE, (WINDOW >> 22) * 4
.set LARGE, 0x40400000
.set LARGE_PDE, WINDOW_PDE + 4
.set PRIVATE, 0x40800000         # another table in each address space
.set PRIVATE_PDE, WINDOW_PDE + 8
.set SELF, 0xFFC00000            # the directory as a table of itself
.set NOWHERE, 0xF0000000         # no RAM, no device: above the PCI bus's windows
.set APIC_VERSION, 0xFEE00030

.set P, 1
.set W, 2
.set U, 4
.set A, 0x20
.set D, 0x40
.set PS, 0x80
.set G, 0x100
.set RET, 0xC3

.macro PTE number, value
    mov dword ptr [TABLE+4*\number], \value
    invlpg [WINDOW+4096*\number]
.endm
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
.macro CR4_FLIP bits
    mov eax, cr4
    xor eax, \bits
    mov cr4, eax
.endm
.macro SPACE directory
    mov eax, \directory
    mov cr3, eax
.endm

main:
    cld
    mov edi, DIRECTORY
    mov ecx, 6 * 1024
    xor eax, eax
    rep stosd
    mov edi, LOW_TABLES
    mov eax, P|W|U
1:  stosd
    add eax, 4096
    cmp eax, 8 << 20
    jb 1b
    .irp directory, DIRECTORY, DIRECTORY2
    mov dword ptr [\directory], LOW_TABLES + (P|W|U)
    mov dword ptr [\directory+4], LOW_TABLES + 4096 + (P|W|U)
    mov dword ptr [\directory+WINDOW_PDE], TABLE + (P|W|U)
    mov dword ptr [\directory+4092], \directory + (P|W)
    .endr
    mov dword ptr [FRAME_A], 0xAAAAAAAA
    mov dword ptr [FRAME_B], 0xBBBBBBBB
    mov dword ptr [FRAME_C], 0xCCCCCCCC
    SPACE DIRECTORY
    CR0_SET CR0_PG
    CR4_FLIP CR4_PSE
    call accessed_and_dirty
    call permissions
    call flushes
    call spaces
    call self_mapped
    call large
    call own_page
    call fetches
    call outside
    CR0_CLEAR CR0_PG
    call a20
    ret

accessed_and_dirty:
    PTE 0, FRAME_A+(P|W)
    mov eax, [WINDOW]
    mov dword ptr [WINDOW], eax
    PTE 0, FRAME_A+(P|W|D)
    mov eax, [WINDOW]
    EXPECT [TABLE], FRAME_A+(P|W|A|D), "A cleared and invalidated is set by the next read"
    PTE 0, FRAME_A+(P|W|A)
    mov [WINDOW+4], eax
    EXPECT [TABLE], FRAME_A+(P|W|A|D), "D cleared and invalidated is set by the next write"
    PTE 0, FRAME_A+(P|W)
    cmp [WINDOW], eax
    EXPECT [TABLE], FRAME_A+(P|W|A), "cmp sets A alone"
    PTE 0, FRAME_A+(P|W)
    mov eax, 1
    xor ecx, ecx
    cmpxchg [WINDOW], ecx
    EXPECT [TABLE], FRAME_A+(P|W|A|D), "cmpxchg sets D though it stores what was there"
    PTE 0, FRAME_A+(P|W)
    mov ecx, 5
    bt [WINDOW], ecx
    EXPECT [TABLE], FRAME_A+(P|W|A), "bt sets A alone"
    PTE 0, FRAME_A+(P|W)
    push [WINDOW]
    pop eax
    EXPECT [TABLE], FRAME_A+(P|W|A), "a push from memory sets A alone there"
    PTE 0, FRAME_A+(P|W)
    push eax
    pop [WINDOW]
    EXPECT [TABLE], FRAME_A+(P|W|A|D), "and a pop to memory both"
    PTE 0, FRAME_A+(P|W)
    PTE 1, FRAME_B+(P|W)
    mov eax, [WINDOW+0xFFE]
    EXPECT [TABLE], FRAME_A+(P|W|A), "a read across two pages sets A in the first"
    EXPECT [TABLE+4], FRAME_B+(P|W|A), "and in the second"
    mov [WINDOW+0xFFE], eax
    EXPECT [TABLE], FRAME_A+(P|W|A|D), "a write across them D in the first"
    EXPECT [TABLE+4], FRAME_B+(P|W|A|D), "and in the second"
    PTE 2, FRAME_A+(P|W)
    USER_TRY mov eax, [WINDOW+0x2000]
    EXPECT [TABLE+8], FRAME_A+(P|W), "a refused read sets nothing in the page's entry"
    PTE 2, FRAME_A+(P|U)
    USER_TRY mov [WINDOW+0x2000], eax
    mov eax, [TABLE+8]
    and eax, D
    EXPECT eax, 0, "nor a refused write D"
    PTE 2, FRAME_A+(P|W)
    mov esi, WINDOW
    prefetcht0 [WINDOW+0x2000]
    lea eax, [WINDOW+0x2000]
    xor ecx, ecx
    mov edi, WINDOW+0x2000
    rep stosb
    EXPECT [TABLE+8], FRAME_A+(P|W), "a string instruction that repeats no time touches nothing"
    mov eax, [SELF+(WINDOW>>10)+8]
    EXPECT [TABLE+8], FRAME_A+(P|W), "looking at an entry sets nothing in it"
    ret

permissions:
    PTE 0, FRAME_A+P
    CR0_SET CR0_WP
    mov eax, [WINDOW]
    TRY mov [WINDOW+4], eax
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "a write to a read-only page"
    mov dword ptr [TABLE], FRAME_A+(P|W)         # and no invalidation
    TRY mov dword ptr [WINDOW+4], 0x11           # one fault is allowed, if the
    TRY mov dword ptr [WINDOW+4], 0x12           # old entry was kept; it drops it
    EXPECT_NO_FAULT "made writable, the page can be written after a fault at most"
    PTE 0, FRAME_A+P
    CR0_CLEAR CR0_WP
    mov [WINDOW+4], eax
    CR0_SET CR0_WP
    TRY mov [WINDOW+4], eax
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "setting WP binds ring 0 at once"
    CR0_CLEAR CR0_WP
    PTE 0, FRAME_A+(P|W)
    mov [WINDOW], eax
    mov dword ptr [WINDOW], 0xAAAAAAAA
    USER_TRY mov eax, [WINDOW]
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_USER, "what ring 0 has just used stays closed to ring 3"
    mov dword ptr [TABLE], FRAME_A+(P|W|U)
    USER_TRY mov eax, [WINDOW]
    USER_TRY mov eax, [WINDOW]
    EXPECT_NO_FAULT "opened to ring 3, after a fault at most"
    PTE 0, FRAME_A+(P|W)
    USER_TRY mov eax, [WINDOW]
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_USER, "closed and invalidated it is closed"
    PTE 0, 0
    TRY mov eax, [WINDOW]
    EXPECT_FAULT EXC_PF, 0, "taken away and invalidated it is away"
    ret

.macro SHOWS frame, fact
    EXPECT [WINDOW], 0x\frame\frame\frame\frame\frame\frame\frame\frame, "\fact"
.endm
flushes:
    PTE 0, FRAME_A+(P|W)
    SHOWS A, "a page"
    mov dword ptr [TABLE], FRAME_B + (P|W|G)
    SPACE DIRECTORY
    SHOWS B, "loading cr3 drops a page"
    mov dword ptr [TABLE], FRAME_C + (P|W|G)
    SPACE DIRECTORY
    SHOWS C, "a global one too while CR4.PGE is clear"
    CR4_FLIP CR4_PGE
    mov eax, [WINDOW]
    PTE 0, FRAME_A+(P|W|G)
    SHOWS A, "invlpg drops a global page"
    mov dword ptr [TABLE], FRAME_B + (P|W|G)
    CR4_FLIP CR4_PGE
    SHOWS B, "clearing CR4.PGE drops it"
    CR4_FLIP CR4_PGE
    mov eax, [WINDOW]
    mov dword ptr [TABLE], FRAME_C + (P|W|G)
    CR4_FLIP CR4_PSE
    SHOWS C, "and changing CR4.PSE"
    mov dword ptr [TABLE], FRAME_A + (P|W|G)
    CR0_CLEAR CR0_PG
    CR0_SET CR0_PG
    SHOWS A, "and turning paging off and on"
    CR4_FLIP CR4_PSE|CR4_PGE
    PTE 0, FRAME_A+(P|W)
    push DATA3                   # limits and rights do not matter to invlpg
    pop fs
    TRY invlpg fs:[0xFFFFF000]
    EXPECT_NO_FAULT "invlpg of an address that is not mapped"
    xor eax, eax
    mov fs, eax
    TRY invlpg fs:[0]
    EXPECT_NO_FAULT "even through an empty segment register"
    TRY .byte 0x0F, 0x01, 0xFB
    EXPECT_FAULT EXC_UD, 0, "invlpg of a register does not exist"
    ret

spaces:
    mov dword ptr [DIRECTORY+PRIVATE_PDE], TABLE2 + (P|W)
    mov dword ptr [DIRECTORY2+PRIVATE_PDE], TABLE + (P|W)
    mov dword ptr [TABLE2], FRAME_B + (P|W)
    PTE 0, FRAME_A+(P|W)
    EXPECT [PRIVATE], 0xBBBBBBBB, "a page of one address space"
    mov ecx, [WINDOW]
    SPACE DIRECTORY2
    EXPECT [PRIVATE], 0xAAAAAAAA, "is another in the next"
    SHOWS A, "where both share a table they see the same"
    mov dword ptr [TABLE], FRAME_C + (P|W)
    invlpg [WINDOW]
    SHOWS C, "a change under one"
    EXPECT [TABLE], FRAME_C+(P|W|A), "sets its A"
    SPACE DIRECTORY
    SHOWS C, "is there in the other"
    mov dword ptr [TABLE2], FRAME_C + (P|W)
    invlpg [PRIVATE]
    EXPECT [PRIVATE], 0xCCCCCCCC, "a change in a table of its own"
    SPACE DIRECTORY2
    mov dword ptr [TABLE2], FRAME_A + (P|W)      # while it is not loaded
    mov dword ptr [TABLE], 0
    SPACE DIRECTORY
    EXPECT [PRIVATE], 0xAAAAAAAA, "a change made while another space is loaded"
    TRY mov eax, [WINDOW]
    EXPECT_FAULT EXC_PF, 0, "and a page taken away meanwhile"
    ret

self_mapped:
    mov dword ptr [SELF+(WINDOW>>10)], FRAME_B + (P|W)
    EXPECT [TABLE], FRAME_B+(P|W), "a directory that is its own table shows the tables"
    invlpg [WINDOW]
    SHOWS B, "and changes them"
    EXPECT [SELF+(WINDOW>>10)], FRAME_B+(P|W|A), "A appears there"
    mov dword ptr [SELF+(WINDOW>>10)], FRAME_C + (P|W)
    invlpg [WINDOW]
    mov [WINDOW+8], eax
    EXPECT [SELF+(WINDOW>>10)], FRAME_C+(P|W|A|D), "and D"
    EXPECT [SELF+0x3FF000+(WINDOW>>20)], TABLE+(P|W|U|A|D), "the directory shows itself"
    mov dword ptr [SELF+0x3FF000+(WINDOW>>20)], TABLE2 + (P|W)
    SPACE DIRECTORY
    SHOWS A, "and exchanges a table of its own"
    mov dword ptr [SELF+0x3FF000+(WINDOW>>20)], TABLE + (P|W|U)
    SPACE DIRECTORY
    mov eax, [DIRECTORY+4092]
    and eax, A|D
    EXPECT eax, A|D, "used as a page's, its entry has A and D"
    ret

large:
    mov dword ptr [DIRECTORY+LARGE_PDE], 0x400000 + (P|W|PS)
    EXPECT [LARGE+FRAME_B-0x400000], 0xBBBBBBBB, "a large page"
    mov dword ptr [TABLE2+0x110*4], FRAME_C + (P|W)
    mov dword ptr [DIRECTORY+LARGE_PDE], TABLE2 + (P|W)
    invlpg [LARGE]
    EXPECT [LARGE+FRAME_B-0x400000], 0xCCCCCCCC, "invlpg at its start, and it is a table"
    mov dword ptr [DIRECTORY+LARGE_PDE], 0x400000 + (P|W|PS)
    invlpg [LARGE+FRAME_B-0x400000]
    EXPECT [LARGE+FRAME_B-0x400000], 0xBBBBBBBB, "and a large page again"
    EXPECT [LARGE+FRAME_C-0x400000], 0xCCCCCCCC, "all of it"
    mov dword ptr [DIRECTORY+LARGE_PDE], 0x400000 + (P|W|PS)
    invlpg [LARGE]
    mov [LARGE+FRAME_B-0x400000+16], eax
    EXPECT [DIRECTORY+LARGE_PDE], 0x400000+(P|W|PS|A|D), "D cleared is set again there too"
    mov dword ptr [DIRECTORY+LARGE_PDE], 0x600000 + (P|W|PS)
    invlpg [LARGE]
    TRY mov eax, [LARGE]
    EXPECT [fault_vector], EXC_PF, "address bit 21 of a 4 MiB page is reserved"
    mov eax, [fault_error]
    and eax, PF_RESERVED
    EXPECT eax, PF_RESERVED, "as the error code says"
.ifndef QEMU
    EXPECT [fault_error], PF_RESERVED|PF_PRESENT, "together with present"
.endif
    mov dword ptr [DIRECTORY+LARGE_PDE], 0
    invlpg [LARGE]
    ret

# Code that changes where it is itself.
own_page:
    PTE 0, FRAME_A+(P|W)
    PTE 1, FRAME_B+(P|W)
    mov edi, FRAME_A+0x100
    mov esi, offset moving
    mov ecx, moving_end - moving
    rep movsb
    mov edi, FRAME_B+0x100
    mov ecx, 0x40
    mov al, 0x42                 # inc edx
    rep stosb
    mov byte ptr [edi], RET
    mov eax, FRAME_B + (P|W)
    xor edx, edx
    mov ecx, WINDOW + 0x100
    call ecx
    EXPECT edx, 0x40-(moving_invalidated-moving), "code that exchanges its own page goes on in the new one"
    PTE 0, FRAME_A+(P|W)
    xor eax, eax
    mov ecx, WINDOW + 0x100
    mov [esp_now], esp
    TRY call ecx
    mov esp, [esp_now]
    EXPECT [fault_vector], EXC_PF, "and faults if it took it away"
    EXPECT [fault_cr2], "WINDOW+0x100+moving_invalidated-moving", "right behind the invlpg"
    PTE 0, FRAME_A+(P|W)
    mov dword ptr [DIRECTORY+PRIVATE_PDE], TABLE + (P|W)
    mov dword ptr [DIRECTORY2+PRIVATE_PDE], TABLE2 + (P|W)
    mov dword ptr [TABLE2], FRAME_B + (P|W)
    mov edi, FRAME_A+0x100
    mov dword ptr [edi], 0xD8220F  # mov cr3, eax
    mov byte ptr [edi+3], RET
    SPACE DIRECTORY
    mov ecx, PRIVATE + 0x100
    mov eax, DIRECTORY
    call ecx
    xor edx, edx
    mov eax, DIRECTORY2
    call ecx
    EXPECT edx, 0x3D, "loading cr3 exchanges the code that follows"
    xor edx, edx
    mov eax, DIRECTORY
    lea ebx, [ecx]
    SPACE DIRECTORY
    mov eax, DIRECTORY2
    call ebx
    EXPECT edx, 0x3D, "every time"
    SPACE DIRECTORY
    ret
moving:
    mov [TABLE], eax
    invlpg [WINDOW+0x100]
moving_invalidated:
    nop
    ret
moving_end:

# AT_END bytes: jump to code that ends where an absent page begins.
.macro AT_END opcodes:vararg
    mov edi, FRAME_A + 0x1000
    jmp 2f
1:  .byte \opcodes
2:  mov esi, offset 1b
    mov ecx, offset 2b
    sub ecx, esi
    sub edi, ecx
    mov edx, edi
    rep movsb
    sub edx, FRAME_A - WINDOW
    TRY jmp edx
.endm
fetches:
    PTE 0, FRAME_A+(P|W)
    PTE 1, 0
    AT_END 0x0F, 0x0B
    EXPECT [fault_vector], EXC_UD, "an undefined instruction that ends a page is undefined"
    AT_END 0xFE, 0xF8
    EXPECT [fault_vector], EXC_UD, "so is one whose ModRM byte makes it so"
    AT_END 0xF0, 0x90
    EXPECT [fault_vector], EXC_UD, "and a lock that is not allowed"
    AT_END 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66
    EXPECT [fault_vector], EXC_PF, "fourteen prefixes want the next page"
    EXPECT [fault_cr2], WINDOW+0x1000, "and say so"
.ifndef QEMU
    AT_END 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66
    EXPECT [fault_vector], EXC_GP, "fifteen are too long already"
.endif
.ifndef QEMU                     # which knows no limits
    DESCRIPTOR FREE, WINDOW, 0xFFF, SEG_CODE|SEG_BIG
    mov dword ptr [FRAME_A+0xFFC], 0xB8909090    # nops, and mov eax, imm32
    mov dword ptr [fault_vector], NONE
    mov dword ptr [resume_at], offset 1f
    jmp FREE:0xFFC
1:  EXPECT [fault_vector], EXC_GP, "an instruction across code's limit wants no next page"
    EXPECT [fault_eip], 0xFFF, "and faults where it begins"
.endif
    mov edi, WINDOW + 1
    mov al, 0x66
    mov ecx, 14
    rep stosb
    mov byte ptr [edi], 0x90
    mov ecx, WINDOW + 1
    TRY call ecx
    EXPECT_NO_FAULT "an instruction may have fifteen bytes"
    mov byte ptr [WINDOW], 0x66
    dec ecx
    mov [esp_now], esp
    TRY call ecx
    mov esp, [esp_now]
    EXPECT [fault_vector], EXC_GP, "but not sixteen"
    EXPECT [fault_error], 0, "with error code 0"
    mov edi, FRAME_A
    mov byte ptr [edi+0xFFF], 0x90
    mov ecx, WINDOW + 0xFFF
    TRY jmp ecx
    EXPECT [fault_vector], EXC_PF, "running off into an absent page faults"
    EXPECT [fault_eip], WINDOW+0x1000, "there and not before"
    ret

outside:
.ifndef QEMU
    PTE 0, NOWHERE+(P|W)
    EXPECT [WINDOW+0x10], -1, "where there is no RAM all bits read as one"
    mov dword ptr [WINDOW+0x10], 0
    EXPECT [WINDOW+0x10], -1, "and writes are lost"
    mov ecx, WINDOW
    TRY jmp ecx
    EXPECT [fault_vector], EXC_UD, "code there is undefined"
    mov dword ptr [DIRECTORY+PRIVATE_PDE], NOWHERE + (P|W)
    invlpg [PRIVATE]
    EXPECT [PRIVATE], -1, "a table without RAM maps everything to the top"
    mov dword ptr [PRIVATE], 0
.endif
    mov dword ptr [DIRECTORY+PRIVATE_PDE], 0
    CR0_CLEAR CR0_PG
    mov ecx, [APIC_VERSION]
    CR0_SET CR0_PG
    PTE 0, (APIC_VERSION&0xFFFFF000)+(P|W)
    EXPECT [WINDOW+0x30], ecx, "a device can be mapped anywhere"
    PTE 0, FRAME_A+(P|W)
    mov dword ptr [WINDOW+0x30], 0x30303030
    EXPECT [WINDOW+0x30], 0x30303030, "and taken away again"
    ret

# Code for low memory: with A20 off the guest's own addresses are masked too.
.set LOW_CODE, 0x8000
a20:
    mov esi, offset without_a20
    mov edi, LOW_CODE
    mov ecx, offset without_a20_end
    sub ecx, esi
    rep movsb
    mov eax, LOW_CODE
    mov esi, 0x700500
    mov dword ptr [0x600500], 0x66666666
    mov dword ptr [esi], 0x77777777
    push ebp
    mov ebp, esp
    mov esp, LOW_CODE
    mov ebx, 0x300000
    mov dword ptr [0x200000], 0x20202020
    mov dword ptr [ebx], 0x30303030
    call eax
    mov esp, ebp
    pop ebp
    EXPECT ecx, 0x20202020, "without A20 address bit 20 is zero"
    EXPECT edx, 0x66666666, "at every address"
    EXPECT [0x200004], 0x44444444, "for stores too"
    EXPECT [0x300000], 0x30303030, "with it again all is as before"
    EXPECT [0x600500], 0x66666666, "everywhere"
    ret
without_a20:
    in al, 0x92
    and al, 0xFC
    out 0x92, al
    mov ecx, [ebx]
    mov edx, [esi]
    mov dword ptr [ebx+4], 0x44444444
    or al, 2
    out 0x92, al
    ret
without_a20_end:
