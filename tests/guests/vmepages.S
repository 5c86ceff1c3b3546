# vmepages - paging below the instructions of a virtual-8086 task with a virtual
# interrupt flag: the bitmap in the TSS, the task's vector table, its stack
.include "guest.inc"
.include "real.inc"
.include "virtual.inc"

.set OWN, 0x60                   # a vector whose bit is clear: the task's own
.set PAGE_PRESENT, 1
.set PAGE_WRITABLE, 2
.set PAGE_USER, 4
.set PAGE_ACCESSED, 0x20
.set OPEN, PAGE_PRESENT|PAGE_WRITABLE|PAGE_USER

main:
    HAVE_VME
    call place_real
    .att_syntax
    movl $handler-real+REAL*65536, OWN*4
    .intel_syntax noprefix
    .irp vector, 3, 13, 14
    GATE \vector, catch_\vector, 0xEE
    .endr
    mov edi, offset page_table   # the first 4 MiB, where they are
    mov eax, OPEN
1:  stosd
    add eax, 0x1000
    cmp eax, 0x400000
    jb 1b
    mov eax, offset page_table
    or eax, OPEN
    mov [page_directory], eax
    mov eax, offset page_directory
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG|CR0_WP
    mov cr0, eax
    mov esi, offset tss          # the TSS and its bitmap on two pages
    mov edi, offset split_tss
    mov ecx, TSS_SIZE
    rep movsb
    mov word ptr [split_tss+TSS_IO_MAP], TSS_SIZE+32
    DESCRIPTOR TSS, split_tss, TSS_SIZE+32, SEG_TSS
    mov eax, TSS
    ltr ax
    CR4_SET CR4_VME
    call vector_table
    call bitmap
    call stack
    mov eax, cr0
    and eax, ~CR0_PG
    mov cr0, eax
    ret

# PAGE address, rights: change its entry.
.macro PAGE address, rights
    mov eax, offset \address
    mov ecx, \rights
    call set_page
.endm
set_page:                        # (eax, ecx)
    and eax, 0xFFFFF000
    mov edx, eax
    shr edx, 12
    or ecx, eax
    mov page_table[edx*4], ecx
    invlpg [eax]
    ret
# FAULTS flags, address, error, "fact", instruction: a page fault, with all as it was.
.macro FAULTS flags, address, error, fact, instruction:vararg
    V86 \flags, \instruction
    mov eax, cr2
    and eax, ~within
    mov ebx, offset \address
    EXPECT eax, ebx, "\fact is a page fault"
    mov eax, [seen_error]
    mov dword ptr [seen_error], 0
    EXPECT eax, \error, "of this kind"
    push \flags
    call what_changed
    EXPECT eax, EXC_PF, "that changes nothing"
.endm

.set within, 0
vector_table:
    .set within, 3               # whichever half of a vector is read first
    PAGE 0, 0
    .irp iopl, 0, 3
    FAULTS \iopl<<12|FLAG_VIF, OWN*4, 0, "int n without the page of the vectors, at IOPL \iopl", int OWN
    .endr
    .set within, 0
    PAGE 0, PAGE_PRESENT
    RUNS FLAG_VIF, 0, "the vector table may be the supervisor's, since the processor itself reads it", int OWN
    FRAME_PUSHED 0x3202, "and the interrupt is the task's"
    mov eax, [page_table]
    and eax, PAGE_ACCESSED
    EXPECT eax, PAGE_ACCESSED, "which sets the accessed bit"
    PAGE 0, OPEN
    ret

bitmap:
    PAGE split_bitmap, PAGE_WRITABLE
    .irp iopl, 0, 3
    FAULTS \iopl<<12|FLAG_VIF, split_bitmap+OWN/8, 0, "int n without the bitmap's page, at IOPL \iopl", int OWN
    .endr
    RUNS FLAG_VIF, 0, "which cli does not need", cli
    PAGE split_bitmap, PAGE_PRESENT
    RUNS FLAG_VIF, 0, "it may be the supervisor's and read-only", int OWN
    mov eax, offset split_bitmap
    shr eax, 12
    mov eax, page_table[eax*4]
    and eax, 0x60
    EXPECT eax, PAGE_ACCESSED, "reading it sets A but not D"
    mov word ptr [split_tss+TSS_IO_MAP], 12+32
    PAGE split_bitmap, 0
    RUNS FLAG_VIF, 0, "a bitmap on the other page does not need this one", int OWN
    mov word ptr [split_tss+TSS_IO_MAP], TSS_SIZE+32
    PAGE split_bitmap, OPEN
    or byte ptr [split_bitmap+OWN/8], 1<<(OWN&7)
    PAGE 0, 0
    REFUSED FLAG_VIF, "int n with its bit set needs no vector and", int OWN
    and byte ptr [split_bitmap+OWN/8], ~(1<<(OWN&7))
    PAGE 0, OPEN
    ret

.set BELOW, TASK_STACK-0x1000    # the page where the task's pushes go
stack:
    mov dword ptr [TASK_STACK-8], -1
    mov dword ptr [TASK_STACK-4], -1
    PAGE BELOW, 0
    FAULTS FLAG_VIF, TASK_STACK-2, PF_WRITE|PF_USER, "pushf without the stack's page", pushf
    FAULTS FLAG_VIF, TASK_STACK-2, PF_WRITE|PF_USER, "int n without it", int OWN
    PAGE BELOW, PAGE_PRESENT|PAGE_USER
    FAULTS FLAG_VIF, TASK_STACK-2, PF_PRESENT|PF_WRITE|PF_USER, "int n with a read-only stack", int OWN
    PAGE BELOW, PAGE_PRESENT|PAGE_WRITABLE
    FAULTS FLAG_VIF, TASK_STACK-2, PF_PRESENT|PF_WRITE|PF_USER, "int n with the supervisor's stack", int OWN
    PAGE BELOW, OPEN
    mov eax, [TASK_STACK-8]
    and eax, [TASK_STACK-4]
    EXPECT eax, -1, "none of them has pushed anything"
    PAGE TASK_STACK, 0
    FAULTS FLAG_VIF, TASK_STACK, PF_USER, "popf without the stack's page", popf
    FAULTS FLAG_VIF|FLAG_I, TASK_STACK, PF_USER, "iret without it", iret
    FAULTS FLAG_VIP, TASK_STACK, PF_USER, "with VIP set too, before IF is seen,", iret
    PAGE TASK_STACK, OPEN
    ret

    TASK_CODE
handler:
    int3
    END_OF_TASK_CODE

CATCH_ALL 3, 13, 14
END_OF_FACTS

.bss
.align 4096
page_directory: .skip 4096
page_table:     .skip 4096
                .skip 4096-TSS_SIZE
split_tss:      .skip TSS_SIZE
split_bitmap:   .skip 4096
