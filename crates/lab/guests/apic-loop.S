# The kernel of `tollgate lab icache`: accesses the local APIC's registers in a loop; 64-bit code if WIDE
# is defined, otherwise 32-bit code. The host enters with the address of the parameters in EBP (RBP): the
# registers' linear address, and the number of rounds. Interrupts are off, and there is no stack.
#
# At the end the parameters contain the sum of the values read from the version register, and the cycles.

        .intel_syntax noprefix
.ifdef WIDE
        .code64
        .set    APIC, rbx
        .set    PARAMETERS, rbp
.else
        .set    APIC, ebx
        .set    PARAMETERS, ebp
.endif
        .set    P_APIC, 0
        .set    P_ROUNDS, 8
        .set    P_SUM, 64
        .set    P_CYCLES, 72
# Offsets of registers (SDM volume 3, table 11-1).
        .set    VERSION, 0x30
        .set    TASK_PRIORITY, 0x80
        .set    END_OF_INTERRUPT, 0xb0
        .set    LOCAL_VECTOR_TIMER, 0x320
        .set    DIVIDE_CONFIGURATION, 0x3e0

        .text
        .globl _start
_start:
        mov     ecx, [PARAMETERS + P_ROUNDS]
        mov     APIC, [PARAMETERS + P_APIC]
        xor     edi, edi
        lfence
        rdtsc
        mov     [PARAMETERS + P_CYCLES], eax
        mov     [PARAMETERS + P_CYCLES + 4], edx
1:      mov     eax, [APIC + VERSION]
        movzx   edx, al
        add     edi, edx
        mov     eax, [APIC + TASK_PRIORITY]
        mov     [APIC + TASK_PRIORITY], eax
        mov     edx, [APIC + LOCAL_VECTOR_TIMER]
        mov     esi, [APIC + DIVIDE_CONFIGURATION]
        mov     dword ptr [APIC + END_OF_INTERRUPT], 0
        dec     ecx
        jnz     1b
        lfence
        rdtsc
        sub     eax, [PARAMETERS + P_CYCLES]
        sbb     edx, [PARAMETERS + P_CYCLES + 4]
        mov     [PARAMETERS + P_CYCLES], eax
        mov     [PARAMETERS + P_CYCLES + 4], edx
        mov     [PARAMETERS + P_SUM], edi
        mov     eax, 1
        out     0xf4, al
        hlt
