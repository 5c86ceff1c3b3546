# faults - exceptions while an event is delivered: error codes, double faults, CR2
.include "guest.inc"

.set APIC, 0xFEE00000
.set APIC_EOI, APIC+0xB0
.set APIC_SPURIOUS, APIC+0xF0
.set APIC_COMMAND, APIC+0x300
.set TO_SELF, 0x40000
.set IRQ_VECTOR, 0x61
.set INT_VECTOR, 0x50

.set CODE1, FREE | 1             # ring 1
.set DATA1, (FREE + 8) | 1
.set ABSENT_CODE, FREE + 16
.set ABSENT_DATA, FREE + 24
.set READ_ONLY, FREE + 32
.set SHORT_CODE, FREE + 40
.set SHORT_DATA, FREE + 48
.set FAR_CODE, FREE + 56         # its descriptor is in the window's GDT only
.set BEYOND, 0x100               # behind the GDT

# The error codes' EXT bit, which QEMU leaves clear.
.ifdef QEMU
.set EXT, 0
.else
.set EXT, 1
.endif

.set DIRECTORY, 0x400000
.set TABLES, 0x401000
.set WINDOW, 0x600000            # two pages, mapped and unmapped
.set WINDOW_PTE, TABLES+(WINDOW>>12)*4
.set P, 1
.set W, 2
.set U, 4

.macro MAP page
    mov dword ptr [WINDOW_PTE+4*\page], WINDOW+4096*\page+(P|W|U)
    invlpg [WINDOW+4096*\page]
.endm
.macro UNMAP page
    mov dword ptr [WINDOW_PTE+4*\page], 0
    invlpg [WINDOW+4096*\page]
.endm
# The vector's own stub again.
.macro DEFAULT_GATE vector
    push [stub_table+4*\vector]
    push 0x8E<<24|CODE<<8|\vector
    call set_gate
.endm
.macro ABSENT_GATE vector
    and byte ptr [idt+8*\vector+5], 0x7F
.endm

main:
    call start_paging
    mov dword ptr [APIC_SPURIOUS], 0x1FF
    DESCRIPTOR CODE1, 0, 0xFFFFF, SEG_CODE|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR DATA1, 0, 0xFFFFF, SEG_DATA|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR ABSENT_CODE, 0, 0xFFFFF, 0x1A|SEG_BIG|SEG_PAGES
    DESCRIPTOR ABSENT_DATA, 0, 0xFFFFF, 0x12|SEG_BIG|SEG_PAGES
    DESCRIPTOR READ_ONLY, 0, 0xFFFFF, 0x90|SEG_BIG|SEG_PAGES
    DESCRIPTOR SHORT_CODE, 0, 0xFFF, SEG_CODE|SEG_BIG
    DESCRIPTOR SHORT_DATA, 0, 0xF, SEG_DATA|SEG_BIG
    call gates
    call double
    call unmapped_tables
    call inner_stacks
    ret

start_paging:
    mov edi, DIRECTORY
    mov ecx, 1024
    xor eax, eax
    rep stosd
    mov edi, TABLES
    mov eax, P|W|U
    mov ecx, 2048
1:  stosd
    add eax, 4096
    loop 1b
    mov dword ptr [DIRECTORY], TABLES|P|W|U
    mov dword ptr [DIRECTORY+4], TABLES+4096+(P|W|U)
    mov dword ptr [DIRECTORY+(0xFEC00000>>22)*4], 0x403000|P|W
    mov edi, 0x403000
    mov eax, 0xFEC00000|P|W|0x18
    mov ecx, 1024
1:  stosd
    add eax, 4096
    loop 1b
    mov eax, DIRECTORY
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    ret

# BOTH selector, vector, code, "fact": INT n and an exception through such a gate. The
# error code names the same selector; its lowest bit tells the exception.
.macro BOTH selector, vector, code, fact
    GATE INT_VECTOR, exception, 0x8E, \selector
    TRY int INT_VECTOR
    EXPECT_FAULT \vector, \code, "int n: \fact"
    GATE EXC_UD, exception, 0x8E, \selector
    TRY ud2
    EXPECT_FAULT \vector, \code|EXT, "an exception: \fact"
    DEFAULT_GATE EXC_UD
.endm
gates:
    BOTH 0, EXC_GP, 0, "a gate with a null selector"
    BOTH BEYOND, EXC_GP, BEYOND, "one beyond the GDT"
    BOTH 0x0C, EXC_GP, 0x0C, "one in a missing LDT"
    BOTH DATA, EXC_GP, DATA, "one of a data segment"
    BOTH TSS, EXC_GP, TSS, "one of a TSS"
    BOTH ABSENT_CODE, EXC_NP, ABSENT_CODE, "one of an absent segment"
    BOTH CODE3, EXC_GP, CODE3&~3, "one of an outer ring"
.ifndef QEMU
    BOTH SHORT_CODE, EXC_GP, 0, "an entry beyond its segment's limit"
.endif
    ABSENT_GATE EXC_UD
    TRY ud2
    EXPECT_FAULT EXC_NP, EXC_UD*8+2+EXT, "an exception: an absent gate"
    DEFAULT_GATE EXC_UD
    ABSENT_GATE EXC_BR
    mov eax, 5
    TRY bound eax, [limits]
    EXPECT_FAULT EXC_NP, EXC_BR*8+2+EXT, "bound: an absent gate"
    ABSENT_GATE EXC_BP
    TRY int3
    EXPECT_FAULT EXC_NP, EXC_BP*8+2, "int3: an absent gate"
    DEFAULT_GATE EXC_BP
    ABSENT_GATE EXC_OF
    mov al, 0x7F
    add al, 1
    TRY into
    EXPECT_FAULT EXC_NP, EXC_OF*8+2, "into: an absent gate"
    DEFAULT_GATE EXC_OF
    GATE EXC_UD, exception, 0x80
    TRY ud2
    EXPECT_FAULT EXC_GP, EXC_UD*8+2+EXT, "an exception: an entry that is no gate"
    DEFAULT_GATE EXC_UD
    # An interrupt from outside: between instructions, so no TRY.
    ABSENT_GATE IRQ_VECTOR
    mov dword ptr [resume_at], offset g2
    mov dword ptr [APIC_COMMAND], TO_SELF|IRQ_VECTOR
    sti
    nop
g1: nop
g2: cli
    EXPECT [fault_vector], EXC_NP, "an interrupt: an absent gate"
    EXPECT [fault_error], IRQ_VECTOR*8+2+EXT, "its error code says external"
    EXPECT [fault_eip], "offset g1", "and its frame where the interrupt came"
    mov dword ptr [APIC_EOI], 0
    mov word ptr [table_pointer], IRQ_VECTOR*8+6
    mov dword ptr [table_pointer+2], offset idt
    lidt [table_pointer]
    mov dword ptr [resume_at], offset g4
    mov dword ptr [APIC_COMMAND], TO_SELF|IRQ_VECTOR
    sti
    nop
g3: nop
g4: cli
    lidt [idt_pointer]
    EXPECT [fault_vector], EXC_GP, "an interrupt: beyond the IDT's limit"
    EXPECT [fault_error], IRQ_VECTOR*8+2+EXT, "with its vector in the error code"
    mov dword ptr [APIC_EOI], 0
    USER_TRY int INT_VECTOR
    EXPECT_FAULT EXC_GP, INT_VECTOR*8+2, "ring 3: int n through ring 0's gate"
    USER_TRY int3
    EXPECT_FAULT EXC_GP, EXC_BP*8+2, "int3"
    mov al, 0x7F
    add al, 1
    USER_TRY into
    EXPECT_FAULT EXC_GP, EXC_OF*8+2, "and into"
    USER_TRY int 14
    EXPECT_FAULT EXC_GP, 14*8+2, "int 14 is no page fault"
    DEFAULT_GATE EXC_BR
    mov eax, 5
    USER_TRY bound eax, [limits]
    EXPECT_FAULT EXC_BR, 0, "bound is an exception, which asks for no privilege"
    ret

double:
    ABSENT_GATE EXC_GP
    mov eax, 0xFFF8
    TRY mov ds, eax
    EXPECT_FAULT EXC_DF, 0, "#NP while #GP is delivered is a double fault"
    DEFAULT_GATE EXC_GP
    ABSENT_GATE EXC_NP
    ABSENT_GATE INT_VECTOR
    TRY int INT_VECTOR
    EXPECT_FAULT EXC_DF, 0, "#NP while #NP is delivered"
    DEFAULT_GATE EXC_NP
    ABSENT_GATE EXC_DE
    xor ecx, ecx
    TRY div ecx
    EXPECT_FAULT EXC_DF, 0, "#NP while #DE is delivered"
    DEFAULT_GATE EXC_DE
    ABSENT_GATE EXC_PF
    UNMAP 0
    TRY mov [WINDOW+0x123], eax
    EXPECT_FAULT EXC_DF, 0, "#NP while #PF is delivered"
    EXPECT [fault_cr2], WINDOW+0x123, "with cr2 that of the page fault"
    DEFAULT_GATE EXC_PF
    ABSENT_GATE EXC_NM
    mov eax, cr0
    or eax, CR0_TS
    mov cr0, eax
    TRY fld1
    EXPECT_FAULT EXC_NP, EXC_NM*8+2+EXT, "#NP while #NM is delivered is #NP"
    clts
    DEFAULT_GATE EXC_NM
    ABSENT_GATE EXC_UD
    GATE EXC_NP, exception, 0x8E, DATA
    TRY ud2
    EXPECT_FAULT EXC_DF, 0, "#UD, #NP, #GP: a double fault"
    DEFAULT_GATE EXC_UD
    DEFAULT_GATE EXC_NP
    MAP 0
    ret

# The IDT across two pages, of which one is absent.
.macro IDT_SPLIT entries
    mov esi, offset idt
    mov edi, WINDOW+0x1000-8*\entries
    mov [table_pointer+2], edi
    mov word ptr [table_pointer], 256*8-1
    mov ecx, 512
    rep movsd
    lidt [table_pointer]
.endm
unmapped_tables:
    MAP 0
    MAP 1
    IDT_SPLIT 14                 # the page fault's gate is the second page's first
    UNMAP 0
    mov eax, 0xFFF8
    TRY mov ds, eax
    EXPECT_FAULT EXC_PF, 0, "a page fault while #GP is delivered is a page fault"
    EXPECT [fault_cr2], WINDOW+0x1000-8, "with cr2 at the gate"
    TRY ud2
    EXPECT_FAULT EXC_PF, 0, "the same with #UD"
    EXPECT [fault_cr2], WINDOW+0x1000-8*8, "and its gate"
    USER_TRY ud2
    EXPECT_FAULT EXC_PF, 0, "from ring 3 too it is the supervisor's access"
    TRY int3
    EXPECT_FAULT EXC_PF, 0, "int3: the page fault is int3's own"
    MAP 0
    lidt [idt_pointer]
    IDT_SPLIT 13                 # those of #GP and #PF are in the second page
    UNMAP 1
    TRY mov [WINDOW+0x1000], eax
    EXPECT_FAULT EXC_DF, 0, "a page fault while #PF is delivered is a double fault"
    EXPECT [fault_cr2], WINDOW+0x1008, "with cr2 that of the second one"
    TRY int INT_VECTOR
    EXPECT_FAULT EXC_DF, 0, "int n, #PF, #PF too"
    mov eax, 0xFFF8
    TRY mov ds, eax
    EXPECT_FAULT EXC_DF, 0, "#GP, #PF, #PF too"
    lidt [idt_pointer]
    MAP 1
    # The GDT's copy, whose last descriptors lie in an absent page.
    mov esi, offset gdt
    mov edi, WINDOW+0x1000-FAR_CODE
    mov [table_pointer+2], edi
    mov word ptr [table_pointer], 32*8-1
    mov ecx, 64
    rep movsd
    lgdt [table_pointer]
    UNMAP 1
    GATE INT_VECTOR, exception, 0x8E, FAR_CODE
    TRY int INT_VECTOR
    EXPECT_FAULT EXC_PF, 0, "the code segment's descriptor in an absent page"
    EXPECT [fault_cr2], WINDOW+0x1000, "whose address is in cr2"
    lgdt [gdt_pointer]
    MAP 1
    ret

# Stacks of inner rings that are no good. What comes of them is caught in ring 1.
.macro RING1_STUB vector
ring1_\vector:
    push \vector
    jmp ring1
.endm
    RING1_STUB 8
    RING1_STUB 10
    RING1_STUB 11
    RING1_STUB 12
    RING1_STUB 13
    RING1_STUB 14
ring1:
    mov eax, DATA3
    mov ds, eax
    mov es, eax
    pop dword ptr [fault_vector]
    pop dword ptr [fault_error]
    pop dword ptr [fault_eip]
    pop dword ptr [fault_cs]
    add esp, 4
    pop dword ptr [fault_esp]
    mov word ptr [tss+TSS_SS0], DATA
    mov dword ptr [tss+TSS_ESP0], offset ring0_stack_top
    int LEAVE_RING3
    jmp [resume_at]

# FROM_RING3 instruction: its event goes through a gate into ring 0.
.macro FROM_RING3 instruction:vararg
    mov dword ptr [resume_at], offset from_done_\@
    mov dword ptr [try_eip], offset from_\@
    ENTER_RING3
from_\@:
    \instruction
    ud2
from_done_\@:
    mov dword ptr [resume_at], 0
.endm
# STACK0 ss, vector, code, "fact"
.macro STACK0 selector, vector, code, fact
    mov word ptr [tss+TSS_SS0], \selector
    FROM_RING3 int INT_VECTOR
    EXPECT_FAULT \vector, \code, "int n: ring 0's stack \fact"
    mov word ptr [tss+TSS_SS0], \selector
    FROM_RING3 ud2
    EXPECT_FAULT \vector, \code|EXT, "an exception: ring 0's stack \fact"
.endm
inner_stacks:
    mov dword ptr [tss+TSS_ESP1], offset ring1_stack_top
    mov word ptr [tss+TSS_SS1], DATA1
    GATE INT_VECTOR, exception, 0xEE
    .irp vector, 8, 10, 11, 12, 13, 14
    GATE \vector, ring1_\vector, 0x8E, CODE1
    .endr
    STACK0 0, EXC_TS, 0, "null"
    STACK0 BEYOND, EXC_TS, BEYOND, "beyond the GDT"
    STACK0 DATA3, EXC_TS, DATA3&~3, "another ring's"
    STACK0 DATA|1, EXC_TS, DATA, "with another ring's RPL"
    STACK0 CODE, EXC_TS, CODE, "a code segment"
    STACK0 READ_ONLY, EXC_TS, READ_ONLY, "read-only"
.ifndef QEMU
    STACK0 ABSENT_DATA, EXC_SS, ABSENT_DATA, "absent"
    mov dword ptr [tss+TSS_ESP0], 0x10
    STACK0 SHORT_DATA, EXC_SS, SHORT_DATA, "too small"
.endif
    EXPECT [fault_cs], CODE3, "the frame is that of the program"
    EXPECT [fault_esp], "offset user_stack_top", "with its stack"
    UNMAP 0
    mov dword ptr [tss+TSS_ESP0], WINDOW+0x1000
    FROM_RING3 ud2
    EXPECT_FAULT EXC_PF, PF_WRITE, "ring 0's stack in an absent page: a supervisor's write"
    mov eax, cr2
    EXPECT eax, WINDOW+0xFFC, "at the first thing pushed"
    mov dword ptr [tss+TSS_ESP0], WINDOW+0x1000
    FROM_RING3 int INT_VECTOR
    EXPECT_FAULT EXC_PF, PF_WRITE, "int n too"
    MAP 0
    UNMAP 1
    mov dword ptr [tss+TSS_ESP0], WINDOW+0x2000
    mov eax, 0xFFF8
    FROM_RING3 mov fs, eax
    EXPECT [fault_vector], EXC_GP, "#GP into ring 1 needs no stack of ring 0"
    GATE EXC_GP, exception
    mov dword ptr [tss+TSS_ESP0], WINDOW+0x2000
    mov eax, 0xFFF8
    FROM_RING3 mov fs, eax
    EXPECT_FAULT EXC_PF, PF_WRITE, "into ring 0, the page fault is served"
    MAP 1
    .irp vector, 8, 10, 11, 12, 13, 14
    DEFAULT_GATE \vector
    .endr
    ret

.data
.align 4
limits:    .long 10, 20
.bss
.align 4
table_pointer: .skip 8
             .skip 4096
ring1_stack_top: .skip 4
