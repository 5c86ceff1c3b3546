# The worst case of `tollgate lab icache`: many instructions in a row, each of which accesses the local APIC
# once in a round, so that a dictionary that holds fewer instructions has dropped each before it is executed
# again. 64-bit code if WIDE is defined, otherwise 32-bit code. The host enters with the address of the
# parameters in EBP (RBP): the registers' linear address, and the number of rounds. Interrupts are off, and
# there is no stack.
#
# At the end the parameters contain the number of accesses, counted by reading a register that contains
# one, and the cycles.

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
# The offset of a register that can contain any byte (SDM volume 3, table 11-1).
        .set    TASK_PRIORITY, 0x80
# Three times the entries of the dictionary.
        .set    SITES, 3 * 4096

        .text
        .globl _start
_start:
        mov     ecx, [PARAMETERS + P_ROUNDS]
        mov     APIC, [PARAMETERS + P_APIC]
        add     APIC, TASK_PRIORITY
        mov     dword ptr [APIC], 1
        xor     edi, edi
        lfence
        rdtsc
        mov     [PARAMETERS + P_CYCLES], eax
        mov     [PARAMETERS + P_CYCLES + 4], edx
1:
        .rept   SITES
        add     edi, [APIC]
        .endr
        dec     ecx
        jnz     1b
        lfence
        rdtsc
        sub     eax, [PARAMETERS + P_CYCLES]
        sbb     edx, [PARAMETERS + P_CYCLES + 4]
        mov     [PARAMETERS + P_CYCLES], eax
        mov     [PARAMETERS + P_CYCLES + 4], edx
        mov     [PARAMETERS + P_SUM], edi
        mov     dword ptr [APIC], 0
        mov     eax, 1
        out     0xf4, al
        hlt
