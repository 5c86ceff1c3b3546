# frames - page faults of the processor's own accesses, and the flags in frames
#
# Tables and inner stacks are reached with the supervisor's rights whatever the CPL is;
# a fault there leaves the instruction undone, and it can be resumed.
.include "guest.inc"

.set DIRECTORY, 0x400000
.set TABLES, 0x401000            # two
.set CODE1, FREE|1
.set DATA1, (FREE+8)|1
.set GATE1, (FREE+16)|3          # call gate to ring 1, two parameters
.set LOCAL, FREE+24
.set CODE_DATA3, FREE+32
.set IN_LDT, 0x08|7
.set STACK1, 0x600800            # ring 1's stack: frames cross from 600000h down
.set NEW_IDT, 0x610000 - 0x82*8 - 4         # gate 82h lies across 610000h
.set NEW_GDT, 0x620000 - GATE1 + 3 - 4      # the call gate lies across 620000h
.set NEW_TSS, 0x630000 - TSS_ESP1 - 2       # ESP1 lies across 630000h
.set NEW_LDT, 0x640000 - 8 - 4
.set USER_STACK, 0x650000
.set P, 1
.set W, 2
.set U, 4

.macro PAGE address, bits
    push eax
    push ecx
    mov eax, \address
    and eax, ~0xFFF
    mov ecx, eax
    shr ecx, 10
    or eax, \bits
    mov TABLES[ecx], eax
    invlpg [\address]
    pop ecx
    pop eax
.endm
# FAULTS error, cr2, "fact": what the last USER_TRY raised; nothing else may have changed.
.macro FAULTS error, address, fact
    EXPECT_FAULT EXC_PF, \error, "\fact"
    EXPECT [fault_cr2], \address, "cr2 (\fact)"
    EXPECT [fault_cs], CODE3, "cs (\fact)"
    EXPECT [fault_esp], "offset user_stack_top", "esp (\fact)"
.endm

main:
    cld
    mov edi, DIRECTORY
    mov ecx, 3*1024
    xor eax, eax
    rep stosd
    mov edi, TABLES
    mov eax, P|W|U
1:  stosd
    add eax, 4096
    cmp eax, 8 << 20
    jb 1b
    mov dword ptr [DIRECTORY], TABLES + (P|W|U)
    mov dword ptr [DIRECTORY+4], TABLES + 4096 + (P|W|U)
    mov eax, DIRECTORY
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    DESCRIPTOR CODE1, 0, 0xFFFFF, SEG_CODE|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR DATA1, 0, 0xFFFFF, SEG_DATA|0x20|SEG_BIG|SEG_PAGES
    mov eax, offset ring1
    mov [gdt+(GATE1&~7)], ax
    mov word ptr [gdt+(GATE1&~7)+2], CODE1
    mov word ptr [gdt+(GATE1&~7)+4], 0xEC02
    shr eax, 16
    mov [gdt+(GATE1&~7)+6], ax
    mov dword ptr [tss+TSS_ESP1], 0x600008
    mov word ptr [tss+TSS_SS1], DATA1
    call inner_stacks
    call tables
    call returns
    call flags
    call alignment
    call resume_flag
    ret

# Into ring 1, whose stack has eight bytes in one page and the rest below.
inner_stacks:
    GATE 0x82, ring1, 0xEE, CODE1
    mov dword ptr [0x600000], 0x11111111
    mov dword ptr [0x600004], 0x22222222
    PAGE 0x5FF000, 0
    USER_TRY int 0x82
    FAULTS PF_WRITE, 0x5FFFFC, "int n whose inner stack is half absent"
.ifndef QEMU                     # which pushes what it can, and the manual lets it
    EXPECT [0x600004], 0x22222222, "nothing was pushed"
.endif
    USER_TRY call GATE1:0
    EXPECT [fault_vector], EXC_PF, "a call gate with the same"
    EXPECT [fault_error], PF_WRITE, "is the supervisor's write"
    EXPECT [fault_esp], "offset user_stack_top", "esp stays"
.ifndef QEMU
    EXPECT [0x600000], 0x11111111, "nothing was pushed then"
.endif
    PAGE 0x5FF000, P
    mov eax, cr0
    or eax, CR0_WP
    mov cr0, eax
    USER_TRY int 0x82
    EXPECT [fault_error], PF_WRITE|PF_PRESENT, "a read-only inner stack"
    mov eax, cr0
    and eax, ~CR0_WP
    mov cr0, eax
    PAGE 0x5FF000, (P|W)
    USER_TRY int 0x82
    EXPECT_NO_FAULT "given back, though the supervisor's alone, it serves"
    EXPECT [0x600004], DATA3, "and has ss"
    EXPECT [0x600000], "offset user_stack_top", "and esp"
    PAGE 0x5FF000, (P|W|U)
.ifndef QEMU                     # which reads parameters as the supervisor
    PAGE USER_STACK, 0           # of the parameters, one is absent
    ENTER_RING3
    mov esp, USER_STACK-4
    TRY call GATE1:0
    int LEAVE_RING3
    EXPECT_FAULT EXC_PF, PF_USER, "a call gate's parameter that is absent"
    EXPECT [fault_cr2], USER_STACK, "is read as the caller reads"
.endif
    PAGE USER_STACK, (P|W|U)
    ret
ring1:                           # back to ring 3
    iretd

# PROBE page, error, cr2, "name", instruction: with that page absent, then the
# supervisor's, which changes nothing for the processor's own accesses.
.macro PROBE page, address, name, instruction:vararg
    PAGE \page, 0
    USER_TRY \instruction
    FAULTS 0, \address, "\name that is absent"
    PAGE \page, (P|W)
    USER_TRY \instruction
    mov eax, [fault_vector]
    EXPECT eax, NONE, "\name that is the supervisor's"
.endm
tables:
    mov esi, offset idt          # copies across page boundaries
    mov edi, NEW_IDT
    mov ecx, 256*8
    rep movsb
    mov word ptr [seen], 256*8-1
    mov dword ptr [seen+2], NEW_IDT
    lidt [seen]
    PAGE 0x610000, 0             # gate 82h and all above; #PF's is below
    USER_TRY int 0x82
    FAULTS 0, 0x610000, "an IDT whose gate is half absent"
    PAGE 0x610000, (P|W)
    USER_TRY int 0x82
    EXPECT_NO_FAULT "and that is the supervisor's"
    PAGE 0x610000, (P|W|U)
    lidt [idt_pointer]
    mov esi, offset gdt
    mov edi, NEW_GDT
    mov ecx, 32*8
    rep movsb
    mov word ptr [seen], 32*8-1
    mov dword ptr [seen+2], NEW_GDT
    lgdt [seen]
    PAGE 0x620000, 0
    mov ecx, GATE1
    USER_TRY lar eax, ecx
    FAULTS 0, 0x620000, "lar of a descriptor that is half absent"
    PAGE 0x620000, (P|W)
    USER_TRY lar eax, ecx
    EXPECT_NO_FAULT "and that is the supervisor's"
    PAGE 0x61F000, (P|W)
    mov ecx, CODE_DATA3|3
    PAGE 0x620000, 0
    USER_TRY mov fs, ecx
    EXPECT_FAULT EXC_PF, 0, "loading a segment from a table that is absent"
    PAGE 0x620000, (P|W|U)
    PAGE 0x61F000, (P|W|U)
    lgdt [gdt_pointer]
    mov dword ptr [NEW_LDT+8], 0x0000FFFF
    mov dword ptr [NEW_LDT+12], 0x00CFF200
    DESCRIPTOR LOCAL, NEW_LDT, 15, SEG_LDT
    mov eax, LOCAL
    lldt ax
    mov ecx, IN_LDT
    PROBE 0x640000, 0x640000, "an LDT", mov fs, ecx
    xor eax, eax
    mov fs, eax
    lldt ax
    mov esi, offset tss
    mov edi, NEW_TSS
    mov ecx, TSS_SIZE
    rep movsb
    DESCRIPTOR TSS, NEW_TSS, TSS_SIZE-1, SEG_TSS
    mov eax, TSS
    ltr ax
    PAGE 0x630000, 0
    mov dword ptr [fault_vector], NONE
    USER_TRY int 0x82
    FAULTS 0, 0x630000, "a TSS whose inner stack pointer is half absent"
    PAGE 0x630000, (P|W)
    USER_TRY int 0x82
    EXPECT_NO_FAULT "and given back"
    DESCRIPTOR TSS, tss, TSS_SIZE-1, SEG_TSS
    mov eax, TSS
    ltr ax
    ret

.macro CROSSING name, instruction:vararg
    ENTER_RING3
    mov esp, USER_STACK-4
    TRY \instruction
    int LEAVE_RING3
    EXPECT_FAULT EXC_PF, PF_USER, "\name into an absent page"
    EXPECT [fault_cr2], USER_STACK, "cr2 (\name)"
    EXPECT [fault_esp], USER_STACK-4, "esp (\name)"
.endm
returns:                         # pops that cross into an absent page
    PAGE USER_STACK, 0
.ifndef QEMU                     # which reads far frames as the supervisor
    CROSSING "a far return", lret
    CROSSING "an iret", iretd
.endif
    CROSSING "popa", popad
    PAGE USER_STACK, (P|W|U)
    ret

# AT_FAULT "fact", expected: flags in the frame of the last fault.
.set ABSENT, 0x660000
.macro AT_FAULT fact, expected
    EXPECT [fault_vector], EXC_PF, "a fault (\fact)"
    mov eax, [fault_flags]
    and eax, FLAGS_ARITH
    EXPECT eax, \expected, "\fact"
.endm
flags:
    PAGE ABSENT, 0
    mov edi, ABSENT
    mov ecx, 0x7FFFFFFF
    mov dword ptr [resume_at], offset 1f
    add ecx, 1                   # these flags are dead: the next add sets all
    add [edi], ecx
1:  AT_FAULT "flags of an add that nobody reads", FLAG_O|FLAG_S|FLAG_A|FLAG_P
    mov ecx, -1
    mov dword ptr [resume_at], offset 1f
    add ecx, 1
    mov [edi], ecx
    xor edx, edx
1:  AT_FAULT "before a store", FLAG_C|FLAG_Z|FLAG_A|FLAG_P
    mov ecx, 3
    mov dword ptr [resume_at], offset 1f
    sub ecx, 4
    inc dword ptr [edi]
    add ecx, ecx
1:  AT_FAULT "an inc, which would keep the carry", FLAG_C|FLAG_S|FLAG_A|FLAG_P
    mov dword ptr [resume_at], offset 1f
    xor ecx, ecx
    push [edi]
    add esp, 4
1:  mov eax, [fault_flags]
    and eax, FLAGS_ARITH&~FLAG_A
    EXPECT eax, FLAG_Z|FLAG_P, "a push from memory"
    mov ecx, 1
    mov dword ptr [resume_at], offset 1f
    stc
    dec ecx
    rep movsd                    # no time: goes on
    jnz 1f
    mov ecx, 1
    movsd
1:  AT_FAULT "a string instruction", FLAG_C|FLAG_Z|FLAG_P
    mov esi, offset seen
    mov dword ptr [resume_at], offset 1f
    cmp esi, esi
    cmp byte ptr [edi], 1
1:  AT_FAULT "a compare that did not take place", FLAG_Z|FLAG_P
    mov dword ptr [resume_at], offset 1f
    mov al, 0x80
    shl al, 1
    setc byte ptr [edi]
1:  mov eax, [fault_flags]
    and eax, FLAG_C|FLAG_Z|FLAG_P|FLAG_O
    EXPECT eax, FLAG_C|FLAG_Z|FLAG_P|FLAG_O, "a setc"
    mov dword ptr [resume_at], offset 1f
    cmp ecx, ecx
    jmp [edi]
1:  AT_FAULT "a jump through memory", FLAG_Z|FLAG_P
    mov dword ptr [resume_at], offset 1f
    mov ecx, 1
    cmp ecx, 2
    jmp edi
1:  AT_FAULT "a jump to nowhere", FLAG_C|FLAG_S|FLAG_A|FLAG_P
    std
    TRY mov eax, [edi]
    cld
    mov eax, [fault_flags]
    and eax, FLAG_D
    EXPECT eax, FLAG_D, "DF is in the frame"
    ret

alignment:                       # comes before paging
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
    TRY movaps xmm0, [ABSENT+4]
    EXPECT_FAULT EXC_GP, 0, "movaps of an absent page, and not aligned"
    TRY movaps [ABSENT-8], xmm0
    EXPECT_FAULT EXC_GP, 0, "across into one"
    TRY addps xmm0, [ABSENT+8]
    EXPECT_FAULT EXC_GP, 0, "addps of one"
    TRY movaps xmm0, [ABSENT+16]
    EXPECT_FAULT EXC_PF, 0, "movaps that is aligned"
    TRY movups xmm0, [ABSENT+4]
    EXPECT_FAULT EXC_PF, 0, "movups that need not be"
    TRY fxsave [ABSENT+8]
    EXPECT_FAULT EXC_GP, 0, "fxsave"
    mov eax, cr0
    or eax, CR0_NE
    mov cr0, eax
    .irp instruction, fld, fst
    fninit
    mov word ptr [seen], 0
    fldcw [seen]
    fldz
    fld1
    fdiv st, st(1)               # divides by zero: waits
    TRY \instruction qword ptr [ABSENT]
.ifndef QEMU                     # which asks for the page first
    EXPECT_FAULT EXC_MF, 0, "an x87 error that waits comes before the page of \instruction"
.endif
    .endr
    TRY fnstcw [ABSENT]
    EXPECT_FAULT EXC_PF, PF_WRITE, "but not before that of fnstcw"
    fninit
    TRY fld qword ptr [ABSENT]
    EXPECT_FAULT EXC_PF, 0, "nor if none waits"
    ret

# RF: set in the frames of faults, not of traps, and gone after one instruction.
resume_flag:
    GATE 0x83, keep_flags
.ifndef QEMU                     # which does not know RF
    TRY mov eax, [ABSENT]
    mov eax, [fault_flags]
    and eax, FLAG_R
    EXPECT eax, FLAG_R, "a fault's frame has RF"
    TRY ud2
    mov eax, [fault_flags]
    and eax, FLAG_R
    EXPECT eax, FLAG_R, "every fault's"
    mov dword ptr [resume_at], offset 1f
    int3
1:  mov eax, [fault_flags]
    and eax, FLAG_R
    EXPECT eax, 0, "a trap's does not"
    push FLAG_R|2
    push CODE
    push offset 1f
    iretd
1:  nop
    int 0x83
    mov eax, [seen]
    and eax, FLAG_R
    EXPECT eax, 0, "iret sets RF for one instruction only"
    push FLAG_R|2
    push CODE
    push offset 1f
    iretd
1:  int 0x83
    mov eax, [seen]
    and eax, FLAG_R
    EXPECT eax, 0, "int n clears it before it stores its frame"
    mov dword ptr [resume_at], offset 2f
    push FLAG_R|2
    push CODE
    push offset 1f
    iretd
1:  int3
2:  mov eax, [fault_flags]
    and eax, FLAG_R
    EXPECT eax, 0, "so does int3"
.endif
    push FLAG_R|2
    popfd
    int 0x83
    mov eax, [seen]
    and eax, FLAG_R
    EXPECT eax, 0, "popf does not set it"
    ret
keep_flags:
    push [esp+8]
    pop [seen]
    iretd

.bss
.align 4
seen:      .skip 8
