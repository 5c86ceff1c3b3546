# umip - CR4.UMIP: system registers are hidden from ring 3 and from virtual-8086 tasks
.include "guest.inc"
.include "real.inc"
.include "virtual.inc"

.set CR4_UMIP, 0x800

main:
    sldt ax
    EXPECT_FLAGS 0, 0, "ring 0 stores the system registers"
    xor eax, eax
    cpuid
    cmp eax, 7
    jb 1f
    mov eax, 7
    xor ecx, ecx
    cpuid
    test ecx, 1 << 2
    jnz 2f
1:  mov eax, cr4
    or eax, CR4_UMIP
    TRY mov cr4, eax
    EXPECT_FAULT EXC_GP, 0, "CR4.UMIP is reserved, as cpuid does not offer it"
    ret
2:  call place_real
    .irp vector, 3, 6, 13
    GATE \vector, catch_\vector, 0xEE
    .endr
    call task_without
    mov eax, cr4
    or eax, CR4_UMIP
    mov cr4, eax
    call task_with
    .irp vector, 6, 13
    GATE \vector, own_\vector
    .endr
    call rings
    mov eax, cr4
    and eax, ~CR4_UMIP
    mov cr4, eax
    USER_TRY smsw eax
    EXPECT_NO_FAULT "without UMIP ring 3 reads them again"
    ret

task_without:
    LEAVES 0x3000, EXC_BP, "without UMIP smsw runs in a task", smsw ax
    LEAVES 0x3000, EXC_BP, "sgdt runs", sgdt [0x100]
    LEAVES 0x3000, EXC_BP, "sidt runs", sidt [0x100]
    LEAVES 0x3000, EXC_UD, "sldt is undefined", sldt ax
    LEAVES 0x3000, EXC_UD, "str is undefined", str ax
    ret

task_with:
    REFUSED 0x3000, "with UMIP smsw in a task", smsw ax
    REFUSED 0x3000, "sgdt", sgdt [0x100]
    REFUSED 0x3000, "sidt", sidt [0x100]
    REFUSED 0, "smsw at IOPL 0 too", smsw ax
    LEAVES 0x3000, EXC_UD, "sldt is undefined as before", sldt ax
    LEAVES 0x3000, EXC_UD, "str too", str ax
    ret

rings:
    mov dword ptr [buffer], 0x12345678
    .irp instruction, sgdt, sidt, sldt, str, smsw
    mov ecx, offset buffer
    USER_TRY \instruction [ecx]
    EXPECT_FAULT EXC_GP, 0, "ring 3: \instruction to memory is refused"
    EXPECT [buffer], 0x12345678, "and stores nothing"
    .endr
    .irp instruction, sldt, str, smsw
    mov eax, 0x12345678
    USER_TRY \instruction eax
    EXPECT_FAULT EXC_GP, 0, "ring 3: \instruction to a register is refused"
    EXPECT eax, 0x12345678, "and loads nothing"
    .endr
    xor ecx, ecx
    USER_TRY smsw [ecx-1]
    EXPECT_FAULT EXC_GP, 0, "before the operand is looked at"
    mov eax, DATA3
    USER_TRY verr ax
    EXPECT_NO_FAULT "verr is none of them"
    USER_TRY lar ecx, eax
    EXPECT_NO_FAULT "nor is lar"
    TRY sgdt [buffer]
    EXPECT_NO_FAULT "ring 0 does all: sgdt"
    TRY sidt [buffer]
    EXPECT_NO_FAULT "sidt"
    TRY sldt ax
    EXPECT_NO_FAULT "sldt"
    TRY str ax
    EXPECT_NO_FAULT "str"
    TRY smsw ax
    EXPECT_NO_FAULT "smsw"
    ret

own_6:
    push 0
    push EXC_UD
    jmp exception
own_13:
    push EXC_GP
    jmp exception
CATCH_ALL 3, 6, 13
END_OF_FACTS

.bss
.align 4
buffer: .skip 16
