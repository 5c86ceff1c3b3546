# alignment - #AC: CR0.AM and EFLAGS.AC in ring 3
.include "guest.inc"

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
.macro FAULTS fact, instruction:vararg
.ifndef QEMU
    USER_TRY \instruction
    EXPECT_FAULT EXC_AC, 0, "\fact"
.endif
.endm
.macro PASSES fact, instruction:vararg
    USER_TRY \instruction
    EXPECT_NO_FAULT "\fact"
.endm
# The same on a ring 3 stack that is `by` bytes off; esp stays if it faults.
.macro STACK_FAULTS by, fact, instruction:vararg
.ifndef QEMU
    ENTER_RING3
    sub esp, 64+\by
    TRY \instruction
    int LEAVE_RING3
    EXPECT_FAULT EXC_AC, 0, "\fact"
    EXPECT [fault_esp], "offset user_stack_top-64-\by", "\fact: esp is as it was"
.endif
.endm

main:
    fninit
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
    CR0_SET CR0_AM|CR0_NE
    pushfd
    or dword ptr [esp], FLAG_AC
    popfd
    mov ebx, offset data
    call general
    call stacks
    call strings
    call floating
    call unchecked
    ret

general:
    FAULTS "a doubleword one byte off", mov eax, [ebx+1]
    FAULTS "two bytes off", mov eax, [ebx+2]
    FAULTS "three", mov eax, [ebx+3]
    FAULTS "a word one byte off", mov ax, [ebx+1]
    PASSES "a word at a multiple of two", mov ax, [ebx+2]
    PASSES "a doubleword at a multiple of four", mov eax, [ebx+4]
    PASSES "bytes lie anywhere", mov al, [ebx+3]
    FAULTS "a store", mov [ebx+1], eax
    FAULTS "an absolute address", mov eax, [data+2]
    FAULTS "a store of an immediate", mov word ptr [ebx+1], 5
    mov dword ptr [data], 0x11111111
    mov dword ptr [data+4], 0x11111111
    FAULTS "a read-modify-write", add dword ptr [ebx+2], 1
    EXPECT [data], 0x11111111, "which leaves its operand"
    FAULTS "one with lock", lock xadd [ebx+2], eax
    FAULTS "xchg", xchg [ebx+2], eax
    FAULTS "cmpxchg8b four bytes off", cmpxchg8b [ebx+4]
    PASSES "at a multiple of eight", cmpxchg8b [ebx+8]
    FAULTS "a bit string", bts dword ptr [ebx+2], 3
    xor ecx, ecx
    FAULTS "with the bit in a register", bt [ebx+2], ecx
    FAULTS "a move whose condition does not hold", cmovc eax, [ebx+2]
    FAULTS "a multiplication", imul eax, [ebx+2], 3
    FAULTS "movzx of a word", movzx eax, word ptr [ebx+1]
    FAULTS "an indirect jump", jmp dword ptr [ebx+2]
    PASSES "lea makes no access", lea eax, [ebx+1]
    PASSES "xlat reads a byte", xlatb
    stc
    mov eax, 0x5A5A5A5A
    FAULTS "a load", mov eax, [ebx+1]
    EXPECT_FLAGS FLAG_C, FLAG_C, "leaves the flags"
    EXPECT eax, 0x5A5A5A5A, "and its register"
    ret

stacks:
    STACK_FAULTS 1, "push", push eax
    STACK_FAULTS 2, "pop", pop eax
    STACK_FAULTS 2, "call", call stacks
    STACK_FAULTS 2, "ret", ret
    STACK_FAULTS 2, "pushad", pushad
    STACK_FAULTS 2, "popad", popad
    STACK_FAULTS 2, "pushfd", pushfd
    STACK_FAULTS 2, "iret", iretd
    STACK_FAULTS 2, "enter", enter 0, 0
    # A word on Intel's processors, a doubleword on others.
    STACK_FAULTS 1, "push of a segment", push ds
    STACK_FAULTS 1, "push of a word", pushw 5
    ENTER_RING3
    sub esp, 66
    TRY pushw 5
    int LEAVE_RING3
    EXPECT_NO_FAULT "a word on a stack at a multiple of two"
    ret

strings:
    lea esi, [data+2]
    lea edi, [data+32]
    FAULTS "movsd from two bytes off", movsd
    EXPECT esi, "offset data+2", "esi is as it was"
    FAULTS "lodsd", lodsd
    FAULTS "cmpsd", cmpsd
    mov ecx, 3
    FAULTS "rep movsd", rep movsd
    EXPECT ecx, 3, "ecx too"
    PASSES "rep movsb", rep movsb
    lea edi, [data+33]
    FAULTS "stosd to one byte off", stosd
    FAULTS "scasw", scasw
    mov ecx, 2
    FAULTS "rep stosw", rep stosw
    ret

floating:
    FAULTS "fld of 32 bits", fld dword ptr [ebx+2]
    FAULTS "of 64 bits, four bytes off", fld qword ptr [ebx+4]
    FAULTS "of 80 bits, four bytes off", fld tbyte ptr [ebx+4]
    PASSES "at a multiple of eight", fld tbyte ptr [ebx+8]
    fninit
    FAULTS "fild of 16 bits", fild word ptr [ebx+1]
    FAULTS "fnstcw", fnstcw [ebx+1]
    FAULTS "fldcw", fldcw [ebx+1]
    FAULTS "fnstenv two bytes off", fnstenv [ebx+2]
    FAULTS "movq", movq mm0, [ebx+4]
    FAULTS "movss", movss xmm0, [ebx+2]
    FAULTS "movsd of SSE2", movsd xmm0, qword ptr [ebx+4]
    FAULTS "mulsd", mulsd xmm0, qword ptr [ebx+4]
    PASSES "movups asks for none", movups xmm0, [ebx+1]
    PASSES "nor does movdqu", movdqu xmm0, [ebx+4]
.ifndef QEMU
    USER_TRY movaps xmm0, [ebx+4]
    EXPECT_FAULT EXC_GP, 0, "movaps is #GP, with AC as without"
.endif
    fninit
    ret

unchecked:
    TRY mov eax, [ebx+1]
    EXPECT_NO_FAULT "ring 0 is not checked"
    mov dword ptr [tss+TSS_ESP0], offset ring0_stack_top-1
    USER_TRY int LEAVE_RING3
    mov dword ptr [tss+TSS_ESP0], offset ring0_stack_top
    EXPECT_NO_FAULT "nor are ring 3's interrupts, whose frame is ring 0's"
    CR0_CLEAR CR0_AM
    PASSES "without CR0.AM nothing is checked", mov eax, [ebx+1]
    CR0_SET CR0_AM
    FAULTS "with it again", mov eax, [ebx+1]
    pushfd
    and dword ptr [esp], ~FLAG_AC
    popfd
    PASSES "without EFLAGS.AC nothing is", mov eax, [ebx+1]
.ifndef QEMU
    ENTER_RING3
    mov eax, [ebx+1]
    pushfd
    or dword ptr [esp], FLAG_AC
    popfd
    TRY mov eax, [ebx+1]
    int LEAVE_RING3
    EXPECT_FAULT EXC_AC, 0, "popfd in ring 3 turns it on"
    mov eax, [fault_flags]
    and eax, FLAG_AC
    EXPECT eax, FLAG_AC, "and the frame shows it"
.endif
    ret

.data
.align 16
data:      .skip 64
