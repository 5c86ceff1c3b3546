# gates - far transfers, their privilege checks, error codes and stack switches
#
# QEMU's TCG checks no limits when it transfers, raises other exceptions for stacks that
# are not present (volume 2, CALL, RET, IRET): those facts are
# left out for it.
.include "guest.inc"

.set CODE1, FREE|1
.set DATA1, (FREE+8)|1
.set CONFORMING, FREE+16         # DPL 0
.set CODE1_RPL, CODE|1
.set CODE3_RPL0, CODE3&~3
.set CONFORMING3, (FREE+24)|3
.set GATE32, (FREE+32)|3         # what is tested: rewritten for each fact
.set ABSENT_CODE, FREE+40
.set SEGMENT, FREE+48            # a descriptor that is rewritten too
.set STACK16_0, FREE+56          # ring 0's, 16-bit
.set TASK, FREE+64               # a busy TSS
.set EXPAND_CODE, FREE+72        # execute-only
.set STACK16_3, (FREE+80)|3      # ring 3's, 16-bit
.set BEYOND, 0x100               # outside the GDT

# CALL_GATE target selector, target offset, DPL, parameters [, type]
.macro CALL_GATE code, target, dpl, parameters, type=0x8C
    mov eax, offset \target
    mov [gdt+(GATE32&0xFFF8)], ax
    mov word ptr [gdt+(GATE32&0xFFF8)+2], \code
    mov word ptr [gdt+(GATE32&0xFFF8)+4], (\type)<<8|(\dpl)<<13|(\parameters)
    shr eax, 16
    mov [gdt+(GATE32&0xFFF8)+6], ax
.endm
.macro REFUSED vector, error, fact, instruction:vararg
    TRY \instruction
    EXPECT_FAULT \vector, (\error)&~3, "\fact"
.endm
.macro USER_REFUSED vector, error, fact, instruction:vararg
    USER_TRY \instruction
    EXPECT_FAULT \vector, (\error)&~3, "\fact"
    EXPECT [fault_esp], "offset user_stack_top", "esp stays (\fact)"
.endm
# RETURN_REFUSED vector, error, fact, lret or iretd, words (last pushed first): in ring 0
.macro RETURN_REFUSED vector, error, fact, instruction, words:vararg
    mov ebx, esp
    .irp word, \words
    push \word
    .endr
    mov ebp, esp
    TRY \instruction
    sub ebp, esp
    mov esp, ebx
    EXPECT_FAULT \vector, (\error)&~3, "\fact"
    EXPECT ebp, 0, "and leaves esp (\fact)"
.endm

main:
    DESCRIPTOR CODE1, 0, 0xFFFFF, SEG_CODE|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR DATA1, 0, 0xFFFFF, SEG_DATA|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR CONFORMING, 0, 0xFFFFF, 0x9E|SEG_BIG|SEG_PAGES
    DESCRIPTOR CONFORMING3, 0, 0xFFFFF, 0xFE|SEG_BIG|SEG_PAGES
    DESCRIPTOR ABSENT_CODE, 0, 0xFFFFF, 0x1A|SEG_BIG|SEG_PAGES
    DESCRIPTOR STACK16_0, ring0_stack_top-0x8000, 0xFFFF, SEG_DATA
    DESCRIPTOR STACK16_3, user_stack_top-0x8000, 0xFFFF, SEG_DATA|SEG_RING3
    DESCRIPTOR TASK, seen, 0x67, 0x8B
    DESCRIPTOR EXPAND_CODE, 0, 0xFFFFF, 0x98|SEG_BIG|SEG_PAGES
    mov dword ptr [tss+TSS_ESP1], offset ring1_stack_top
    mov word ptr [tss+TSS_SS1], DATA1
    call direct
    call through_gates
    call parameters
    call narrow_gates
    call inner_stacks
    call returns
    call returns_outward
    ret

direct:
    REFUSED EXC_GP, 0, "jmp to the null selector with an RPL", jmp 3:0
    REFUSED EXC_GP, BEYOND, "jmp beyond the GDT", jmp BEYOND:0
    REFUSED EXC_GP, 0x4C, "jmp into an LDT that is not there", jmp 0x4C:0
    REFUSED EXC_GP, DATA, "call to data", call DATA:0
    REFUSED EXC_GP, CODE3, "jmp to an outer ring's code", jmp CODE3:0
    REFUSED EXC_GP, CODE, "jmp with an RPL above CPL", jmp CODE1_RPL:0
    REFUSED EXC_GP, TASK, "jmp to a busy task", jmp TASK:0
    REFUSED EXC_GP, TASK, "call of a busy task", call TASK:0
    REFUSED EXC_NP, ABSENT_CODE, "jmp to code that is not present", jmp ABSENT_CODE:0
    REFUSED EXC_GP, CONFORMING3, "jmp outward to conforming code", jmp CONFORMING3:0
    DESCRIPTOR SEGMENT, 0, 0, 0x82
    REFUSED EXC_GP, SEGMENT, "jmp to an LDT", jmp SEGMENT:0
    DESCRIPTOR SEGMENT, 0, 0, 0x8E
    REFUSED EXC_GP, SEGMENT, "jmp to an interrupt gate", jmp SEGMENT:0
    DESCRIPTOR SEGMENT, 0, 0, 0x80
    REFUSED EXC_GP, SEGMENT, "jmp to a reserved type", jmp SEGMENT:0
    USER_REFUSED EXC_GP, CODE, "ring 3: call to ring 0's code", call CODE:0
    USER_REFUSED EXC_GP, CODE1, "ring 3: jmp to ring 1's code", jmp CODE1:0
    USER_REFUSED EXC_GP, ABSENT_CODE, "ring 3: privilege comes before presence", jmp ABSENT_CODE:0
    DESCRIPTOR SEGMENT, 0, 0x67, 0x89
    USER_REFUSED EXC_GP, SEGMENT, "ring 3: jmp to ring 0's task", jmp SEGMENT:0
    ENTER_RING3
    jmp CONFORMING:offset 1f
1:  mov ecx, cs
    jmp CODE3_RPL0:offset 1f       # a lower RPL does not matter
1:  mov edx, cs
    int LEAVE_RING3
    EXPECT ecx, CONFORMING|3, "conforming code of ring 0 runs in ring 3"
    EXPECT edx, CODE3, "cs gets the CPL, whatever the selector's RPL"
    jmp EXPAND_CODE:offset 1f
1:  mov ecx, cs
    jmp CODE:offset 1f
1:  EXPECT ecx, EXPAND_CODE, "execute-only code runs"
    ret

through_gates:
    CALL_GATE CODE, gated, 0, 0
    USER_REFUSED EXC_GP, GATE32, "a gate above the CPL", call GATE32:0
    CALL_GATE CODE, gated, 2, 0
    REFUSED EXC_GP, GATE32, "a gate above the RPL", call GATE32:0
    CALL_GATE CODE, gated, 3, 0, 0x0C
    REFUSED EXC_NP, GATE32, "a gate that is not present", call GATE32:0
    USER_REFUSED EXC_NP, GATE32, "from ring 3 too", jmp GATE32:0
    CALL_GATE 0, gated, 3, 0
    REFUSED EXC_GP, 0, "a gate to the null selector", call GATE32:0
    CALL_GATE BEYOND, gated, 3, 0
    REFUSED EXC_GP, BEYOND, "a gate beyond the GDT", call GATE32:0
    CALL_GATE DATA, gated, 3, 0
    REFUSED EXC_GP, DATA, "a gate to data", call GATE32:0
    CALL_GATE ABSENT_CODE, gated, 3, 0
    REFUSED EXC_NP, ABSENT_CODE, "a gate to absent code", call GATE32:0
    CALL_GATE CODE3, gated, 3, 0
    REFUSED EXC_GP, CODE3, "a gate outward", call GATE32:0
    CALL_GATE CODE1, gated, 3, 0
    REFUSED EXC_GP, CODE1, "a gate to ring 1 from ring 0", jmp GATE32:0
    CALL_GATE CONFORMING3, gated, 3, 0
    REFUSED EXC_GP, CONFORMING3, "a gate to an outer ring's conforming code", call GATE32:0
    CALL_GATE CODE|3, jumped, 3, 5
    mov ecx, 0
    mov ebx, esp
    jmp GATE32:0x12345678
jumped:
    EXPECT_ESP ebx, "jmp through a gate pushes nothing"
    mov ecx, cs
    EXPECT ecx, CODE, "and its selector's RPL does not count"
    CALL_GATE CODE, 1f, 3, 5
    call GATE32:0
1:  pop edx
    pop ecx
    EXPECT ecx, CODE, "call through a gate within a ring pushes cs"
    EXPECT_ESP ebx, "and copies no parameters"
    CALL_GATE CONFORMING, 1f, 3, 5
    ENTER_RING3
    call GATE32:0
1:  mov ecx, cs
    mov edx, esp
    int LEAVE_RING3
.ifndef QEMU                     # which sets the RPL to the code's DPL
    EXPECT ecx, CONFORMING|3, "a gate to conforming code keeps the ring"
.endif
    EXPECT edx, "offset user_stack_top-8", "and the stack"
    CALL_GATE CONFORMING, 1f, 3, 0
    ENTER_RING3
    jmp GATE32:0
1:  mov ecx, cs
    int LEAVE_RING3
    EXPECT ecx, CONFORMING|3, "jmp through one may also"
    ret

# A gate with every number of parameters: 0 to 31, each in its place.
parameters:
    mov dword ptr [seen_wrong], 0
    mov dword ptr [count], 0
1:  mov eax, [count]
    CALL_GATE CODE, counted, 3, 0
    mov eax, [count]
    or [gdt+(GATE32&0xFFF8)+4], al
    ENTER_RING3
    mov ecx, 31
2:  push ecx                     # 31 lies highest, 1 on top
    loop 2b
    call GATE32:0
    mov ebx, esp
    int LEAVE_RING3
    sub ebx, offset user_stack_top-31*4
    or [seen_wrong], ebx
    inc dword ptr [count]
    cmp dword ptr [count], 32
    jb 1b
    EXPECT [seen_wrong], 0, "a call gate copies 0 to 31 parameters"
    ret
counted:
    mov ecx, [count]
    mov eax, esp
    lea edx, [eax+ecx*4+16]      # eip, cs, parameters, esp, ss
    sub edx, offset ring0_stack_top
    or [seen_wrong], edx
    mov edx, [eax+ecx*4+8]
    sub edx, offset user_stack_top-31*4
    or [seen_wrong], edx
    mov edx, [eax+ecx*4+12]
    sub edx, DATA3
    or [seen_wrong], edx
1:  jecxz 2f
    mov edx, [eax+ecx*4+4]
    sub edx, ecx
    or [seen_wrong], edx
    dec ecx
    jmp 1b
2:  mov ecx, [count]             # go back without releasing them
    push [eax+ecx*4+12]
    push [eax+ecx*4+8]
    push [eax+4]
    push [eax]
    lret

narrow_gates:
    DESCRIPTOR SEGMENT, gated16-0x100, 0xFFFF, SEG_CODE|SEG_BIG
    CALL_GATE SEGMENT, 0xFFFF0100, 3, 2, 0x84
.ifdef QEMU                      # which takes all 32 bits
    mov word ptr [gdt+(GATE32&0xFFF8)+6], 0
.endif
    ENTER_RING3
    push 0x22221111
    call GATE32:0
narrow_return:
    EXPECT_ESP [kernel_esp], "a 16-bit gate was taken"
    mov eax, offset narrow_return
    movzx eax, ax
    EXPECT [seen], eax, "it pushes ip"
    EXPECT [seen+4], CODE3, "cs"
    EXPECT [seen+8], 0x1111, "word parameters, the lowest first"
    EXPECT [seen+12], 0x2222, "in their order"
    mov eax, offset user_stack_top-4
    movzx eax, ax
    EXPECT [seen+16], eax, "sp"
    EXPECT [seen+20], DATA3, "and ss"
    EXPECT [seen_esp], "offset ring0_stack_top-12", "in twelve bytes"
    ret
gated16:
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov [seen_esp], esp
    .irp n, 0, 2, 4, 6, 8, 10
    movzx eax, word ptr [esp+\n]
    mov [seen+2*\n], eax
    .endr
    mov esp, [kernel_esp]
    jmp CODE:narrow_return

# Into ring 1, whose stack the TSS names; exceptions go on to ring 0's.
.macro NEW_STACK selector, pointer=ring1_stack_top
    mov word ptr [tss+TSS_SS1], \selector
    mov dword ptr [tss+TSS_ESP1], offset \pointer
.endm
.macro INNER vector, error, fact
    USER_REFUSED \vector, \error, "call gate: \fact", call GATE32:0
    USER_REFUSED \vector, \error, "int n: \fact", int 0x83
.endm
inner_stacks:
    CALL_GATE CODE1, gated, 3, 0
    GATE 0x83, gated, 0xEE, CODE1
    NEW_STACK 0
    INNER EXC_TS, 0, "a null inner stack"
    NEW_STACK BEYOND|1
    INNER EXC_TS, BEYOND, "one beyond the GDT"
    NEW_STACK DATA1-1
    INNER EXC_TS, DATA1, "one with another RPL"
    NEW_STACK DATA|1
    INNER EXC_TS, DATA, "one with another DPL"
    NEW_STACK CODE1
    INNER EXC_TS, CODE1, "code for a stack"
    DESCRIPTOR SEGMENT, 0, 0xFFFFF, 0xB0|SEG_BIG|SEG_PAGES
    NEW_STACK SEGMENT|1
    INNER EXC_TS, SEGMENT, "a read-only stack"
    DESCRIPTOR SEGMENT, 0, 0xFFFFF, 0x32|SEG_BIG|SEG_PAGES
.ifndef QEMU
    INNER EXC_SS, SEGMENT, "an inner stack that is not present"
    DESCRIPTOR SEGMENT, 0, 0xFFF, 0xB2|SEG_BIG
    NEW_STACK SEGMENT|1, 15
    INNER EXC_SS, SEGMENT, "an inner stack without room"
    NEW_STACK SEGMENT|1, 0x1001
    INNER EXC_SS, SEGMENT, "an inner stack beyond its limit"
.endif
    NEW_STACK DATA1
    DESCRIPTOR TSS, tss, 16, SEG_TSS
    mov eax, TSS
    ltr ax
    INNER EXC_TS, TSS, "a TSS too short"
    DESCRIPTOR TSS, tss, TSS_SIZE-1, SEG_TSS
    ltr ax
    DESCRIPTOR SEGMENT, 0, 0xFFF, 0xBA|SEG_BIG
    CALL_GATE SEGMENT, gated, 3, 0
    GATE 0x83, gated, 0xEE, SEGMENT
.ifndef QEMU
    INNER EXC_GP, 0, "an entry beyond the code's limit"
.endif
    DESCRIPTOR SEGMENT, 0, 0xFFFFF, 0x3A|SEG_BIG|SEG_PAGES
    INNER EXC_NP, SEGMENT, "inner code that is not present"
    GATE 0x83, gated, 0xEE, 0
    USER_REFUSED EXC_GP, 0, "int n to the null selector", int 0x83
    GATE 0x83, gated, 0xEE, DATA
    USER_REFUSED EXC_GP, DATA, "int n to data", int 0x83
    GATE 0x83, gated, 0xEE, CODE3
    TRY int 0x83
    EXPECT_FAULT EXC_GP, CODE3&~3, "int n outward"
    mov byte ptr [idt+0x83*8+5], 0x6E
    TRY int 0x83
    EXPECT_FAULT EXC_NP, 0x83*8+2, "int n through an absent gate"
    mov byte ptr [idt+0x83*8+5], 0xEC
    TRY int 0x83
    EXPECT_FAULT EXC_GP, 0x83*8+2, "int n through a call gate"
gated:
    ret

returns:
    RETURN_REFUSED EXC_GP, 0, "retf to the null selector", lret, 0, 0
    RETURN_REFUSED EXC_GP, BEYOND, "retf beyond the GDT", lret, BEYOND, 0
    RETURN_REFUSED EXC_GP, DATA, "retf to data", lret, DATA, 0
    RETURN_REFUSED EXC_GP, CODE3, "retf to an outer ring without its RPL", lret, CODE3&~3, 0
    RETURN_REFUSED EXC_GP, CODE, "retf with an RPL above the code's", lret, CODE|3, 0
    RETURN_REFUSED EXC_GP, CONFORMING3, "retf to outer conforming code", lret, CONFORMING3&~3, 0
    RETURN_REFUSED EXC_NP, ABSENT_CODE, "retf to absent code", lret, ABSENT_CODE, 0
    RETURN_REFUSED EXC_GP, 0, "retf to a null stack", lret, 3, 0, CODE3, 0
    RETURN_REFUSED EXC_GP, DATA, "retf to ring 0's stack", lret, DATA, 0, CODE3, 0
    RETURN_REFUSED EXC_GP, CODE3, "retf to code for a stack", lret, CODE3, 0, CODE3, 0
    RETURN_REFUSED EXC_GP, DATA3, "retf to a stack with another RPL", lret, DATA3-1, 0, CODE3, 0
.ifndef QEMU
    DESCRIPTOR SEGMENT, 0, 0xFFFFF, 0x72|SEG_BIG|SEG_PAGES
    RETURN_REFUSED EXC_SS, SEGMENT, "retf to an absent stack", lret, SEGMENT|3, 0, CODE3, 0
    DESCRIPTOR SEGMENT, 0, 0xFFF, SEG_CODE|SEG_BIG
    RETURN_REFUSED EXC_GP, 0, "retf beyond the limit", lret, SEGMENT, 0x1000
.endif
    RETURN_REFUSED EXC_GP, DATA, "iret to data", iretd, 2, DATA, 0
    RETURN_REFUSED EXC_NP, ABSENT_CODE, "iret to absent code", iretd, 2, ABSENT_CODE, 0
    RETURN_REFUSED EXC_GP, 0, "iret to a null stack", iretd, 0, 0, 2, CODE3, 0
    RETURN_REFUSED EXC_GP, DATA, "iret to ring 0's stack", iretd, DATA, 0, 2, CODE3, 0
.ifndef QEMU
    RETURN_REFUSED EXC_GP, 0, "iret beyond the limit", iretd, 2, SEGMENT, 0x1000
.endif
    mov word ptr [tss], 0
    push FLAG_NT|2
    popfd
    TRY iretd
    push 2
    popfd
    EXPECT_FAULT EXC_TS, 0, "iret from a task without a link"
    ret

returns_outward:
    mov ebx, esp
    mov eax, DATA3
    mov es, eax
    mov eax, CONFORMING
    mov fs, eax
    mov eax, CODE
    mov gs, eax
    mov [kernel_esp], esp
    push DATA3
    push offset user_stack_top
    push 0x77                    # released here
    push CODE3
    push offset 1f
    lret 4
1:  mov esi, esp
    mov ecx, ds
    mov edx, es
    mov ebp, fs
    mov edi, gs
    mov eax, DATA3
    mov ds, eax
    int LEAVE_RING3
    EXPECT esi, "offset user_stack_top+4", "retf n outward releases on both stacks"
    EXPECT ecx, 0, "ring 0's data segment is emptied"
    EXPECT edx, DATA3, "ring 3's stays"
    EXPECT ebp, CONFORMING, "and so does conforming code"
    EXPECT edi, 0, "other code of ring 0 does not"
    mov [kernel_esp], esp
    push DATA1
    push offset ring1_stack_top
    push CODE1
    push offset 1f
    lret
1:  mov esi, cs
    mov edi, ss
    mov eax, DATA3
    mov ds, eax
    int LEAVE_RING3
    EXPECT esi, CODE1, "retf to ring 1"
    EXPECT edi, DATA1, "with its stack"
    mov [kernel_esp], esp
    push STACK16_3
    push 0x12348000
    push CODE3
    push offset 1f
    lret
1:  push 0x33445566
    movzx esi, sp
    int LEAVE_RING3
    EXPECT esi, 0x7FFC, "retf to a 16-bit stack takes sp"
    EXPECT [user_stack_top-4], 0x33445566, "and that works"
    xor eax, eax
    mov fs, eax
    mov gs, eax
    ret

.bss
.align 4
seen:      .skip 0x68
seen_esp:  .skip 4
seen_wrong: .skip 4
count:     .skip 4
           .skip 1024
ring1_stack_top:
