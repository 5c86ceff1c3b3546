# hpet - the high-precision event timer: its table, its counter, and three ways of its interrupts
.include "guest.inc"
.include "acpi.inc"

.set TABLE, 0x54455048           # "HPET"
.set HPET, 0xFED00000
.set PERIOD, HPET+4
.set CONFIGURATION, HPET+0x10
.set STATUS, HPET+0x20
.set COUNTER, HPET+0xF0
.set TIMER0, HPET+0x100
.set TIMER1, HPET+0x120
.set TIMER2, HPET+0x140
.set VALUE, 8                    # of a comparator
.set ENABLED, 1
.set REPLACES, 2
.set LEVEL, 2
.set INTERRUPTS, 4
.set PERIODIC, 8
.set SETS_VALUE, 0x40
.set LINE20, 20<<9
.set MILLISECOND, 100000         # counts

.set APIC, 0xFEE00000
.set APIC_ID, APIC+0x20
.set EOI, APIC+0xB0
.set SPURIOUS, APIC+0xF0
.set IO_INDEX, 0xFEC00000
.set IO_DATA, 0xFEC00010
.set IO_LINE20, 0x10+2*20
.set IO_LEVEL, 0x8000
.set VECTOR, 0x61

# AT timer, counts: its comparator is that far ahead.
.macro AT timer, counts
    mov eax, [COUNTER]
    add eax, \counts
    mov dword ptr [\timer+VALUE+4], 0
    mov dword ptr [\timer+VALUE], eax
.endm
.macro RESTART                   # the counter begins with 0
    mov dword ptr [CONFIGURATION], 0
    mov dword ptr [COUNTER], 0
    mov dword ptr [COUNTER+4], 0
    mov dword ptr [arrived], 0
.endm

main:
    mov eax, TABLE
    call find_table
    test ebx, ebx
    jnz 1f
    EXPECT ebx, 1, "there is an HPET table"
    ret
1:  GATE IRQ_BASE, line0
    GATE IRQ_BASE+8, line8
    GATE VECTOR, line20
    call identification
    call counting
    call replacement
    call periods
    call levels
    mov dword ptr [CONFIGURATION], 0
    ret

identification:
    EXPECT [ebx], TABLE, "there is an HPET table"
    EXPECT [ebx+44], HPET, "it names the registers' address"
    mov eax, [HPET]
    EXPECT [ebx+36], eax, "it repeats the identification"
    EXPECT [PERIOD], 10000000, "a count takes 10 ns"
    mov eax, [HPET]
    and eax, 0xA000
    EXPECT eax, 0xA000, "the counter has 64 bits, and lines 0 and 8 can be replaced"
    ret

counting:
    RESTART
    mov ecx, 1000
1:  mov eax, [COUNTER]
    loop 1b
    EXPECT eax, 0, "the counter stands still until it is enabled"
    mov dword ptr [COUNTER], -MILLISECOND
    mov dword ptr [CONFIGURATION], ENABLED
    mov ecx, [COUNTER]
2:  mov eax, [COUNTER]
    cmp eax, ecx
    mov ecx, eax
    jae 2b
    EXPECT [COUNTER+4], 1, "its lower half carries into its upper half"
    mov dword ptr [CONFIGURATION], 0
    mov ecx, [COUNTER]
    mov eax, [COUNTER]
    sub eax, ecx
    EXPECT eax, 0, "it stops where it is"
    ret

replacement:
    # The 8254's line, every millisecond.
    mov al, 0x34
    out 0x43, al
    mov al, 1193182/1000 & 0xFF
    out 0x40, al
    mov al, 1193182/1000 >> 8
    out 0x40, al
    RESTART
    mov dword ptr [TIMER0], 0
    mov dword ptr [CONFIGURATION], ENABLED|REPLACES
    mov al, 0xFA                 # line 0 and the cascade
    out PIC1+1, al
    mov al, 0xFE                 # line 8
    out PIC1+0x81, al
    sti
    nop
    mov dword ptr [arrived], 0
1:  cmp dword ptr [COUNTER], 5*MILLISECOND
    jb 1b
    EXPECT [arrived], 0, "the 8254 is cut off its line"
    AT TIMER0, MILLISECOND
    mov dword ptr [TIMER0], INTERRUPTS
2:  cmp dword ptr [arrived], 0
    je 2b
    EXPECT [arrived], 1, "comparator 0 has line 0, once"
    mov dword ptr [TIMER0], 0
    AT TIMER1, MILLISECOND
    mov dword ptr [TIMER1], INTERRUPTS
3:  cmp dword ptr [arrived8], 0
    je 3b
    EXPECT [arrived8], 1, "comparator 1 has line 8"
    mov dword ptr [TIMER1], 0
    cli
    ret

periods:
    # The 8254's output is low until it has a count: it must not interrupt once its line is back.
    mov al, 0x30
    out 0x43, al
    RESTART
    mov dword ptr [TIMER0], INTERRUPTS|PERIODIC|SETS_VALUE
    mov dword ptr [TIMER0+VALUE], 2*MILLISECOND
    mov dword ptr [TIMER0+VALUE], MILLISECOND
    mov dword ptr [CONFIGURATION], ENABLED|REPLACES
    sti
1:  cmp dword ptr [arrived], 5
    jb 1b
    cli
    mov eax, [COUNTER]
    cmp eax, 6*MILLISECOND
    sbb eax, eax
    EXPECT eax, 0, "five interrupts of a period take it five times"
    mov eax, [TIMER0+VALUE]
    xor edx, edx
    mov ecx, MILLISECOND
    div ecx
    EXPECT edx, 0, "the comparator goes on by the period"
    mov dword ptr [TIMER0], 0
    ret

levels:
    test dword ptr [TIMER2+4], 1<<20
    jz 2f
    RESTART
    mov al, 0xFF
    out PIC1+1, al
    mov dword ptr [SPURIOUS], 0x1FF
    mov eax, [APIC_ID]
    mov dword ptr [IO_INDEX], IO_LINE20+1
    mov [IO_DATA], eax
    mov dword ptr [IO_INDEX], IO_LINE20
    mov dword ptr [IO_DATA], IO_LEVEL|VECTOR
    mov dword ptr [CONFIGURATION], ENABLED
    AT TIMER2, MILLISECOND
    mov dword ptr [TIMER2], LEVEL|INTERRUPTS|LINE20
    sti
1:  cmp dword ptr [arrived], 3
    jb 1b
    nop
    cli
    EXPECT [status_inside], 4, "a level's comparator is told by the status"
    EXPECT [arrived], 3, "a level interrupts until its status is cleared"
    EXPECT [STATUS], 0, "and not after"
    mov dword ptr [TIMER2], 0
2:  ret

line0:
    push eax
    inc dword ptr [arrived]
    mov al, PIC_EOI
    out PIC1, al
    pop eax
    iretd
line8:
    push eax
    inc dword ptr [arrived8]
    mov al, PIC_EOI
    out PIC1+0x80, al
    out PIC1, al
    pop eax
    iretd
line20:
    push eax
    inc dword ptr [arrived]
    mov eax, [STATUS]
    mov [status_inside], eax
    cmp dword ptr [arrived], 3
    jb 1f
    mov dword ptr [STATUS], 4
1:  mov dword ptr [EOI], 0
    pop eax
    iretd

.bss
.align 4
arrived: .skip 4
arrived8: .skip 4
status_inside: .skip 4
