# priority - which of several faults comes, and what a fault leaves as it was
.include "guest.inc"

.set APIC, 0xFEE00000
.set APIC_EOI, APIC+0xB0
.set APIC_SPURIOUS, APIC+0xF0
.set APIC_COMMAND, APIC+0x300
.set TO_SELF, 0x40000
.set IRQ_VECTOR, 0x61
.set SHORT_CODE, FREE
.set SHORT_DATA, FREE + 8        # its last byte is the window's first page's
.set WINDOW_CODE, FREE + 16

.set DIRECTORY, 0x400000
.set TABLES, 0x401000
.set WINDOW, 0x600000            # the second page is absent
.set ABSENT, WINDOW+0x1000
.set READ_ONLY, WINDOW+0x2000
.set WINDOW_PTE, TABLES+(WINDOW>>12)*4
.set P, 1
.set W, 2
.set U, 4

main:
    call start_paging
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
    mov dword ptr [APIC_SPURIOUS], 0x1FF
    GATE IRQ_VECTOR, interrupt
    DESCRIPTOR SHORT_DATA, WINDOW, 0xFFF, SEG_DATA|SEG_BIG
    DESCRIPTOR WINDOW_CODE, WINDOW, 0xFFF, SEG_CODE|SEG_BIG
    call lengths
    call limits_first
    call classes
    call interrupt_first
    call untouched_stack
    call untouched_memory
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
    mov dword ptr [WINDOW_PTE+4], 0
    mov dword ptr [WINDOW_PTE+8], READ_ONLY|P|U
    mov eax, DIRECTORY
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG|CR0_WP|CR0_NE|CR0_MP
    mov cr0, eax
    ret
interrupt:
    push eax
    mov eax, [esp+4]
    mov [taken_at], eax
    mov eax, [fault_vector]
    mov [vector_before], eax
    mov dword ptr [APIC_EOI], 0
    pop eax
    iretd

# RUN_AT address, bytes...: puts code there and calls it; after a fault the code after the call
# runs.
.macro RUN_AT address, bytes:vararg
    mov esi, offset code_\@
    mov edi, \address
    mov ecx, offset code_end_\@ - code_\@
    rep movsb
    mov dword ptr [try_eip], \address
    mov dword ptr [resume_at], offset done_\@
    mov dword ptr [fault_vector], NONE
    mov [esp_now], esp
    mov ecx, \address
    call ecx
done_\@:
    mov esp, [esp_now]
    mov dword ptr [resume_at], 0
    .pushsection .rodata
code_\@:
    .byte \bytes
code_end_\@:
    .popsection
.endm
.set RET, 0xC3
.set NOP, 0x90
.set ES_, 0x26
lengths:
    RUN_AT WINDOW, ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_, NOP, RET
    EXPECT_NO_FAULT "an instruction may have 15 bytes"
    RUN_AT WINDOW, ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_, NOP, RET
    EXPECT_FAULT EXC_GP, 0, "but not 16"
    RUN_AT WINDOW, ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_, 0x0F, 0x0B
    EXPECT_FAULT EXC_GP, 0, "not even if it is undefined"
    RUN_AT WINDOW, ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_, 0x81, 0x05, 0,0,0,0, 1,0,0,0, RET
    EXPECT_FAULT EXC_GP, 0, "nor with an immediate that makes it longer"
.ifndef QEMU
    RUN_AT WINDOW+0x1000-15, ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_
    EXPECT_FAULT EXC_GP, 0, "15 prefixes at a page's end are too long already"
.endif
    RUN_AT WINDOW+0x1000-14, ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_,ES_
    EXPECT_FAULT EXC_PF, 0, "14 are not: the next byte's page is absent"
    EXPECT [fault_cr2], ABSENT, "which cr2 names"
    RUN_AT WINDOW+0xFFF, 0xF0
    EXPECT_FAULT EXC_PF, 0, "a lock prefix before an absent page: the fetch comes first"
    RUN_AT WINDOW+0xFFE, 0x0F, 0x0B
    EXPECT_FAULT EXC_UD, 0, "what is complete before it needs no more bytes"
    ret

limits_first:
.ifndef QEMU
    # A call into the segment: EIP is an offset in the window.
    mov word ptr [WINDOW+0xFFE], 0x05B0          # mov al, 5: the last bytes
    mov dword ptr [fault_vector], NONE
    mov dword ptr [resume_at], offset l1
    mov [esp_now], esp
    jmp WINDOW_CODE:0xFFE
l1: EXPECT [fault_vector], EXC_GP, "running over the code segment's limit"
    EXPECT [fault_eip], 0x1000, "faults behind the last instruction"
    EXPECT [fault_error], 0, "as a limit, though the page is absent too"
    mov byte ptr [WINDOW+0xFFF], 0xB0            # mov al, ..., half of it
    mov dword ptr [resume_at], offset l2
    jmp WINDOW_CODE:0xFFF
l2: EXPECT [fault_vector], EXC_GP, "an instruction across the limit"
    EXPECT [fault_eip], 0xFFF, "faults at its start"
    mov eax, SHORT_DATA
    mov fs, eax
    TRY mov eax, fs:[0x1000]
    EXPECT_FAULT EXC_GP, 0, "a data segment's limit comes before the absent page"
    TRY mov eax, fs:[0xFFD]
    EXPECT_FAULT EXC_GP, 0, "so it does for an operand that crosses both"
.endif
    mov edi, WINDOW+0xFFE
    TRY mov eax, [edi]
    EXPECT_FAULT EXC_PF, 0, "without it the absent page is found"
    EXPECT [fault_cr2], ABSENT, "at its first byte"
    ret

classes:
    mov eax, cr0
    or eax, CR0_TS
    mov cr0, eax
    TRY fld dword ptr [ABSENT]
    EXPECT_FAULT EXC_NM, 0, "#NM comes before its operand's page fault"
    TRY movaps xmm0, [ABSENT+1]
    EXPECT_FAULT EXC_NM, 0, "and before misalignment"
    TRY .byte 0x0F, 0x0B
    EXPECT_FAULT EXC_UD, 0, "#UD is none of its business"
.ifndef QEMU
    USER_TRY .byte 0xF0, 0xFA    # lock cli
    EXPECT_FAULT EXC_UD, 0, "#UD comes before #GP"
.endif
    clts
.ifndef QEMU
    TRY movaps xmm0, [ABSENT+1]
    EXPECT_FAULT EXC_GP, 0, "misalignment before the page fault"
.endif
    xor eax, eax
    xor edx, edx
    TRY div dword ptr [ABSENT]
    EXPECT_FAULT EXC_PF, 0, "an operand's page fault before #DE"
    mov eax, 5
    TRY bound eax, [ABSENT]
    EXPECT_FAULT EXC_PF, 0, "and before #BR"
    USER_TRY mov eax, cr0
    EXPECT_FAULT EXC_GP, 0, "ring 3: mov from cr0"
    USER_TRY lgdt [ABSENT]
    EXPECT_FAULT EXC_GP, 0, "privilege before the operand"
    USER_TRY invlpg [ABSENT]
    EXPECT_FAULT EXC_GP, 0, "and before an address that is not used"
    USER_TRY hlt
    EXPECT_FAULT EXC_GP, 0, "ring 3 may not hlt"
    fninit
    fld1
    fldz
    push 0x0000033B              # zero divide unmasked
    fldcw [esp]
    pop eax
    fdivp st(1), st              # 1/0
.ifndef QEMU
    TRY fld dword ptr [ABSENT]
    EXPECT_FAULT EXC_MF, 0, "a pending x87 error before the page fault"
.endif
    fninit
    ret

interrupt_first:
    mov dword ptr [APIC_COMMAND], TO_SELF|IRQ_VECTOR
    mov dword ptr [fault_vector], NONE
    mov dword ptr [resume_at], offset i1
    push FLAG_I|2
    push CODE
    push ABSENT+0x10
    iretd
i1: cli
    EXPECT [taken_at], ABSENT+0x10, "an interrupt that waits comes before the fetch faults"
    EXPECT [vector_before], NONE, "which has not yet"
    EXPECT [fault_vector], EXC_PF, "but does then"
    EXPECT [fault_eip], ABSENT+0x10, "at the same place"
    mov dword ptr [APIC_COMMAND], TO_SELF|IRQ_VECTOR
    mov dword ptr [fault_vector], NONE
    mov dword ptr [resume_at], offset i3
    push FLAG_I|2
    push CODE
    push offset i2
    iretd
i2: ud2
i3: cli
    EXPECT [taken_at], "offset i2", "and before an undefined instruction"
    EXPECT [vector_before], NONE, "that it has not seen"
    EXPECT [fault_vector], EXC_UD, "and that comes then"
    ret

# STACK_FAULT esp, error, cr2, "fact", instruction: in ring 3, on such a stack.
.macro STACK_FAULT pointer, error, address, fact, instruction:vararg
    ENTER_RING3
    mov esp, \pointer
    TRY \instruction
    int LEAVE_RING3
    EXPECT_FAULT EXC_PF, \error, "\fact"
    EXPECT [fault_cr2], \address, "\fact: cr2"
    EXPECT [fault_esp], \pointer, "\fact: esp is as it was"
.endm
.set GOOD, WINDOW+0x100
.set LOW_END, READ_ONLY+0x1000+16            # four doublewords fit
untouched_stack:
    mov eax, 0x12345678
    STACK_FAULT READ_ONLY+8, PF_PRESENT|PF_WRITE|PF_USER, READ_ONLY+4, "push", push eax
    STACK_FAULT GOOD, PF_USER, ABSENT, "push from an absent page", push dword ptr [ABSENT]
    STACK_FAULT ABSENT+8, PF_WRITE|PF_USER, ABSENT+4, "push from memory to one", push dword ptr [WINDOW]
    STACK_FAULT ABSENT, PF_USER, ABSENT, "pop", pop eax
    EXPECT eax, 0x12345678, "whose register is as it was"
    STACK_FAULT GOOD, PF_WRITE|PF_USER, ABSENT+8, "pop to an absent page", pop dword ptr [ABSENT+8]
    STACK_FAULT ABSENT+8, PF_WRITE|PF_USER, ABSENT+4, "call", call untouched_stack
    STACK_FAULT GOOD, PF_USER, ABSENT, "call through an absent page", call dword ptr [ABSENT]
    STACK_FAULT ABSENT, PF_USER, ABSENT, "ret", ret
.ifndef QEMU
    STACK_FAULT ABSENT, PF_USER, ABSENT, "retf", retf
    STACK_FAULT ABSENT, PF_USER, ABSENT, "iret", iretd
    STACK_FAULT LOW_END, PF_PRESENT|PF_WRITE|PF_USER, READ_ONLY+0xFFC, "pushad", pushad
.endif
    STACK_FAULT ABSENT-16, PF_USER, ABSENT, "popad", popad
    STACK_FAULT ABSENT+8, PF_WRITE|PF_USER, ABSENT+4, "pushfd", pushfd
    STACK_FAULT ABSENT, PF_USER, ABSENT, "popfd", popfd
    STACK_FAULT ABSENT+8, PF_WRITE|PF_USER, ABSENT+4, "push of a segment", push ds
    STACK_FAULT ABSENT, PF_USER, ABSENT, "pop of a segment", pop ds
    mov ebp, 0x9ABCDEF0
    STACK_FAULT ABSENT+8, PF_WRITE|PF_USER, ABSENT+4, "enter", enter 8, 0
    EXPECT ebp, 0x9ABCDEF0, "which leaves ebp too"
    mov ebp, ABSENT+0x10
    STACK_FAULT GOOD, PF_USER, ABSENT+0x10, "leave", leave
    EXPECT ebp, ABSENT+0x10, "which leaves ebp too"
    ENTER_RING3
    mov esp, GOOD
    mov dword ptr [resume_at], offset u1
    call ABSENT+0x20
u1: int LEAVE_RING3
    EXPECT [fault_eip], ABSENT+0x20, "a call to an absent page has been made when its target faults"
    EXPECT [fault_esp], GOOD-4, "with its return address pushed"
    ret

# KEEPS error, "fact", instruction: faults at the page and leaves eax, edx and the flags.
.macro KEEPS error, fact, instruction:vararg
    mov eax, 0x11223344
    mov edx, 0x55667788
    push FLAG_C|FLAG_Z|2
    popfd
    TRY \instruction
    EXPECT_FLAGS FLAGS_ARITH, FLAG_C|FLAG_Z, "\fact: the flags are as they were"
    EXPECT_FAULT EXC_PF, \error, "\fact"
    EXPECT eax, 0x11223344, "\fact: eax too"
    EXPECT edx, 0x55667788, "\fact: and edx"
.endm
untouched_memory:
    KEEPS PF_PRESENT|PF_WRITE, "xchg", xchg [READ_ONLY], eax
    KEEPS PF_PRESENT|PF_WRITE, "xadd", xadd [READ_ONLY], eax
.ifndef QEMU
    mov ebp, 5
    KEEPS PF_PRESENT|PF_WRITE, "cmpxchg that compares unequal", cmpxchg [READ_ONLY], edx
    KEEPS PF_PRESENT|PF_WRITE, "cmpxchg8b", cmpxchg8b [READ_ONLY]
    KEEPS PF_PRESENT|PF_WRITE, "inc", inc dword ptr [READ_ONLY]
    KEEPS PF_PRESENT|PF_WRITE, "bts", bts dword ptr [READ_ONLY], 3
    KEEPS PF_PRESENT|PF_WRITE, "bts of a register's bit", bts dword ptr [READ_ONLY], ebp
    KEEPS PF_PRESENT|PF_WRITE, "shl by cl", shl dword ptr [READ_ONLY], 1
.endif
    KEEPS PF_PRESENT|PF_WRITE, "setc", setc byte ptr [READ_ONLY]
    KEEPS 0, "mul", mul dword ptr [ABSENT]
    KEEPS 0, "imul", imul eax, [ABSENT], 3
    KEEPS 0, "add", add eax, [ABSENT]
    KEEPS 0, "cmp", cmp eax, [ABSENT]
    KEEPS 0, "cmovnc, whose condition does not hold", cmovnc eax, [ABSENT]
    KEEPS 0, "les", les eax, [ABSENT-2]
    KEEPS 0, "bsf", bsf eax, [ABSENT]
    mov ebx, ABSENT
    KEEPS 0, "xlat", xlatb
    mov esi, WINDOW
    mov edi, READ_ONLY
    KEEPS PF_PRESENT|PF_WRITE, "movsd", movsd
    KEEPS PF_PRESENT|PF_WRITE, "stosb", stosb
    mov ecx, 5
    KEEPS PF_PRESENT|PF_WRITE, "rep movsd", rep movsd
    EXPECT ecx, 5, "which has moved nothing"
    mov edi, ABSENT
    KEEPS 0, "cmpsd", cmpsd
    EXPECT esi, WINDOW, "esi stays"
    EXPECT edi, ABSENT, "and edi"
    mov esi, ABSENT
    KEEPS 0, "lodsd", lodsd
    EXPECT esi, ABSENT, "esi stays"
    fninit
    fld1
    KEEPS PF_PRESENT|PF_WRITE, "fstp", fstp qword ptr [READ_ONLY]
    fnstsw ax
    and eax, 0x3800
    EXPECT eax, 0x3800, "which has popped nothing"
    KEEPS 0, "fadd", fadd qword ptr [ABSENT]
    KEEPS 0, "fild", fild dword ptr [ABSENT]
    fnstsw ax
    and eax, 0x3800
    EXPECT eax, 0x3800, "which has pushed nothing"
    fninit
    ret

.bss
.align 4
taken_at:      .skip 4
vector_before: .skip 4
