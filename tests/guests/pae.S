# pae - three-level page tables with 64-bit entries, and no-execute
#
# The first 4 MiB are mapped onto themselves for all rings by 2 MiB pages; the
# pages under test are at WINDOW.
.include "guest.inc"

.set POINTERS, 0x400000          # the four page-directory pointers
.set LOW_DIRECTORY, 0x401000
.set DIRECTORY, 0x402000         # of WINDOW
.set TABLE, 0x403000
.set OTHER_DIRECTORY, 0x404000
.set FRAME_A, 0x500000
.set FRAME_B, 0x501000
.set WINDOW, 0x80000000
.set LARGE, WINDOW+0x200000      # a 2 MiB page
.set LARGE_FRAME, 0x800000

.set P, 1
.set W, 2
.set U, 4
.set A, 0x20
.set D, 0x40
.set PS, 0x80
.set XD, 0x80000000              # bit 63, in the upper half
.set BIT_40, 0x100
.ifdef QEMU                      # which leaves the P bit out
.set RESERVED_BIT, PF_RESERVED
.else
.set RESERVED_BIT, PF_PRESENT|PF_RESERVED
.endif
.set EFER, 0xC0000080
.set EFER_NXE, 0x800

.macro PTE number, low, high=0
    mov dword ptr [TABLE+8*\number+4], \high
    mov dword ptr [TABLE+8*\number], \low
    invlpg [WINDOW+4096*\number]
.endm
.macro FLUSH
    mov eax, cr3
    mov cr3, eax
.endm

main:
    mov eax, 1
    cpuid
    shr edx, 6
    and edx, 1
    EXPECT edx, 1, "cpuid offers PAE"
    mov eax, 0x80000001
    cpuid
    shr edx, 20
    and edx, 1
    EXPECT edx, 1, "cpuid offers NX"
    cld
    mov edi, POINTERS
    mov ecx, 5 * 1024
    xor eax, eax
    rep stosd
    mov dword ptr [POINTERS], LOW_DIRECTORY + P
    mov dword ptr [POINTERS+2*8], DIRECTORY + P
    mov edi, LOW_DIRECTORY
    mov eax, P|W|U|PS
1:  mov [edi], eax
    add edi, 8
    add eax, 0x200000
    cmp eax, 8 << 20
    jb 1b
    mov dword ptr [DIRECTORY], TABLE + (P|W|U)
    mov eax, cr4
    or eax, CR4_PAE
    mov cr4, eax
    mov eax, POINTERS
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    call without_nxe
    mov ecx, EFER
    rdmsr
    or eax, EFER_NXE
    wrmsr
    call mapping
    call no_execute
    call large_pages
    call pointers
    mov eax, cr0
    and eax, ~CR0_PG
    mov cr0, eax
    EXPECT [FRAME_A], 0x31313131, "with paging off again addresses are physical"
    ret

without_nxe:
    mov dword ptr [FRAME_A], 0x31313131
    PTE 0, FRAME_A+(P|W)
    EXPECT [WINDOW], 0x31313131, "a page shows its frame"
    PTE 0, FRAME_A+(P|W), XD
    TRY mov eax, [WINDOW]
    EXPECT_FAULT EXC_PF, RESERVED_BIT, "with EFER.NXE clear bit 63 is reserved"
    EXPECT [fault_cr2], WINDOW, "cr2 holds the address"
    PTE 0, 0
    mov ecx, WINDOW
    TRY jmp ecx
    EXPECT [fault_error], 0, "and fetches are not told from reads"
    ret

mapping:
    mov dword ptr [FRAME_B], 0x42424242
    PTE 1, FRAME_A+(P|W)
    EXPECT [WINDOW+0x1000], 0x31313131, "a page shows its frame with NXE too"
    EXPECT [TABLE+8], FRAME_A+(P|W|A), "a read sets A"
    EXPECT [DIRECTORY], TABLE+(P|W|U|A), "in the directory entry too"
.ifndef QEMU
    EXPECT [POINTERS+2*8], DIRECTORY+P, "but not in the pointer"
.endif
    mov dword ptr [WINDOW+0x1004], 1
    EXPECT [TABLE+8], FRAME_A+(P|W|A|D), "a write sets D"
    PTE 1, FRAME_B+(P|W)
    EXPECT [WINDOW+0x1000], 0x42424242, "invlpg makes a changed entry take effect"
    PTE 2, 0
    TRY mov [WINDOW+0x2FFC], eax
    EXPECT_FAULT EXC_PF, PF_WRITE, "writing a page that is not present"
    EXPECT [fault_cr2], WINDOW+0x2FFC, "cr2 holds its address"
    TRY mov eax, [0x40000000]
    EXPECT_FAULT EXC_PF, 0, "reading where the pointer is not present"
    USER_TRY mov eax, [WINDOW+0x1000]
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_USER, "ring 3 reading a supervisor page"
    PTE 2, P|W, 1 << 20
    TRY mov eax, [WINDOW+0x2000]
    EXPECT_FAULT EXC_PF, RESERVED_BIT, "an address bit beyond the processor's is reserved"
    mov dword ptr [TABLE+8*2+4], 0
    ret

no_execute:
    mov byte ptr [FRAME_A+0x10], 0xC3    # ret
    PTE 3, FRAME_A+(P|W|U), XD
    EXPECT [WINDOW+0x3000], 0x31313131, "a no-execute page can be read"
    mov dword ptr [WINDOW+0x3020], 0x77
    EXPECT [FRAME_A+0x20], 0x77, "and written"
    mov ecx, WINDOW + 0x3010
    TRY jmp ecx
    EXPECT [fault_vector], EXC_PF, "but not executed"
    EXPECT [fault_error], PF_PRESENT|PF_FETCH, "the error code says: fetch, present"
    EXPECT [fault_eip], WINDOW+0x3010, "eip is at the target"
    EXPECT [fault_cr2], WINDOW+0x3010, "and so is cr2"
    USER_TRY jmp ecx
    EXPECT [fault_error], PF_PRESENT|PF_FETCH|PF_USER, "from ring 3 the error code adds: user"
    PTE 4, 0
    mov ecx, WINDOW + 0x4000
    TRY jmp ecx
    EXPECT [fault_error], PF_FETCH, "fetching from an absent page"
    PTE 3, FRAME_A+(P|W)
    mov ecx, WINDOW + 0x3010
    call ecx
    EXPECT [TABLE+8*3], FRAME_A+(P|W|A), "without NX the page runs, and the fetch set A"
    PTE 4, FRAME_B+(P|W), XD
    mov word ptr [FRAME_A+0xFFE], 0x00B8  # mov eax, imm32 runs into page 4
    mov ecx, WINDOW + 0x3FFE
    TRY jmp ecx
    EXPECT [fault_error], PF_PRESENT|PF_FETCH, "an instruction that runs into a no-execute page"
    EXPECT [fault_eip], WINDOW+0x3FFE, "faults at its start"
    EXPECT [fault_cr2], WINDOW+0x4000, "with cr2 at the second page"
    mov edi, FRAME_A + 0x20      # code that makes its own page no-execute
    mov esi, offset closing
    mov ecx, closing_end - closing
    rep movsb
    PTE 3, FRAME_A+(P|W|U)
    mov ecx, WINDOW + 0x3020
    TRY jmp ecx
    EXPECT [fault_error], PF_PRESENT|PF_FETCH, "code that makes its own page no-execute"
    EXPECT [fault_eip], "WINDOW+0x3020+closing_end-closing-1", "ends there"
    PTE 3, FRAME_A+(P|W|U)
    mov ecx, WINDOW + 0x3010
    mov ebx, 2
1:  ENTER_RING3
    TRY call ecx
    int LEAVE_RING3
    dec ebx
    jnz 1b
    EXPECT_NO_FAULT "ring 3 runs a page of its own"
    PTE 3, FRAME_A+(P|W)
    call ecx
    ENTER_RING3
    mov edx, esp
    TRY call ecx
    mov esp, edx
    int LEAVE_RING3
    EXPECT [fault_error], PF_PRESENT|PF_FETCH|PF_USER, "but no more once it is the supervisor's"
    PTE 3, FRAME_A+(P|W|U)
    mov dword ptr [DIRECTORY+4], XD
    FLUSH
    mov ecx, WINDOW + 0x3010
    TRY jmp ecx
    EXPECT [fault_error], PF_PRESENT|PF_FETCH, "no-execute in a directory entry covers its table"
    mov dword ptr [DIRECTORY+4], 0
    FLUSH
    call ecx
    ret

closing:
    mov dword ptr [TABLE+8*3+4], XD
    invlpg [WINDOW+0x3000]
    nop
closing_end:

large_pages:
    mov dword ptr [DIRECTORY+8], LARGE_FRAME + (P|W|PS)
    FLUSH
    mov eax, [LARGE+0x1000]
    EXPECT [DIRECTORY+8], LARGE_FRAME+(P|W|PS|A), "a read in a 2 MiB page sets A"
    mov dword ptr [LARGE+0x1FFFFC], 0x64646464
    EXPECT [DIRECTORY+8], LARGE_FRAME+(P|W|PS|A|D), "and a write D"
    mov dword ptr [DIRECTORY+8], P|W|PS
    invlpg [LARGE]
    mov eax, [main]
    EXPECT [LARGE+main], eax, "invlpg drops all of a 2 MiB page"
    mov dword ptr [DIRECTORY+8], LARGE_FRAME + (P|PS)
    mov dword ptr [DIRECTORY+12], XD
    invlpg [LARGE+0x1000]
    EXPECT [LARGE+0x1FFFFC], 0x64646464, "its last word was stored"
    mov ecx, LARGE + 0x100
    TRY jmp ecx
    EXPECT [fault_error], PF_PRESENT|PF_FETCH, "a 2 MiB page can be no-execute"
    mov dword ptr [DIRECTORY+8], LARGE_FRAME + (P|W|PS|0x2000)
    FLUSH
    TRY mov eax, [LARGE]
    EXPECT_FAULT EXC_PF, RESERVED_BIT, "low address bits of a 2 MiB page are reserved"
    mov dword ptr [DIRECTORY+8], 0
    FLUSH
    ret

pointers:
    PTE 1, FRAME_A+(P|W)
    mov dword ptr [OTHER_DIRECTORY], TABLE + (P|W)
    mov dword ptr [POINTERS+3*8], OTHER_DIRECTORY + P
.ifndef QEMU
    TRY mov eax, [0xC0001000]
    EXPECT_FAULT EXC_PF, 0, "a new pointer counts for nothing before cr3 is loaded"
.endif
    FLUSH
    EXPECT [0xC0001000], 0x31313131, "loading cr3 loads the pointers"
.ifndef QEMU
    mov dword ptr [POINTERS+3*8], 0
    invlpg [0xC0001000]
    EXPECT [0xC0001000], 0x31313131, "a pointer once loaded stays"
    mov dword ptr [POINTERS+3*8], OTHER_DIRECTORY + (P|W)
    mov eax, cr3
    TRY mov cr3, eax
    EXPECT_FAULT EXC_GP, 0, "a pointer with reserved bits is refused when cr3 is loaded"
    EXPECT [0xC0001000], 0x31313131, "and the old ones stay"
.endif
.ifndef QEMU                     # volume 3, 4.4.1: what else loads them, and what does not
    mov dword ptr [POINTERS+3*8], 0
    FLUSH
    .macro LOADS fact, instructions:vararg
    mov dword ptr [POINTERS+3*8], OTHER_DIRECTORY + P
    \instructions
    TRY mov ecx, [0xC0001000]
    EXPECT_NO_FAULT "\fact loads the pointers"
    mov dword ptr [POINTERS+3*8], 0
    FLUSH
    .endm
    mov eax, cr4
    xor eax, CR4_PGE
    LOADS "changing CR4.PGE", mov cr4, eax
    mov eax, cr4
    xor eax, CR4_PGE|CR4_PSE
    LOADS "changing CR4.PSE", mov cr4, eax
    mov eax, cr4
    mov dword ptr [POINTERS+3*8], OTHER_DIRECTORY + P
    mov cr4, eax
    mov eax, cr0
    xor eax, CR0_WP
    mov cr0, eax
    xor eax, CR0_WP
    mov cr0, eax
    mov ecx, EFER
    rdmsr
    wrmsr
    TRY mov ecx, [0xC0001000]
    EXPECT_FAULT EXC_PF, 0, "writing the same CR4, CR0.WP or EFER does not"
    mov dword ptr [POINTERS+3*8], OTHER_DIRECTORY + (P|W)
    mov eax, cr4
    xor eax, CR4_PGE
    mov edx, eax
    TRY mov cr4, eax
    EXPECT_FAULT EXC_GP, 0, "a pointer with reserved bits is refused by CR4"
    mov eax, cr4
    xor eax, edx
    and eax, CR4_PGE
    EXPECT eax, CR4_PGE, "which then keeps its value"
    mov dword ptr [POINTERS+3*8], 0x1E0          # not present: nothing is reserved
    mov eax, cr3
    TRY mov cr3, eax
    EXPECT_NO_FAULT "one that is not present may hold anything"
.endif
    mov dword ptr [POINTERS+3*8], 0
    mov eax, POINTERS            # the table of pointers need not start a page
    lea esi, [eax]
    lea edi, [eax+0x720]
    mov ecx, 8
    rep movsd
    add eax, 0x720
    mov cr3, eax
    EXPECT [WINDOW+0x1000], 0x31313131, "the pointers may lie at any multiple of 32"
    TRY mov eax, [0xC0001000]
    EXPECT_FAULT EXC_PF, 0, "a pointer can be taken away"
    ret
