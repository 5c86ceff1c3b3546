# ports - breakpoints on ports (CR4.DE): which accesses meet them, when they strike, what DR6 says
.include "guest.inc"
.include "debug.inc"

.set PORT, 0x80                  # POST codes: free to read and write

.macro WATCH_PORT port, control
    WATCH0 "\port", "\control"
    mov edx, PORT
.endm
# ON_PORT control, port, hits, "fact", instruction: breakpoint 0 is there.
.macro ON_PORT control, port, count, fact, instruction:vararg
    WATCH_PORT "\port", PORTS0|\control
    \instruction
port_\@:
    UNWATCH
    EXPECT [hits], \count, "\fact"
.if \count
    HIT 0, port_\@, B0, "\fact: behind it"
.endif
.endm

main:
    mov eax, 1
    cpuid
    and edx, 4
    EXPECT edx, 4, "cpuid offers debugging extensions"
    test edx, edx
    jz 1f
    GATE EXC_DB, debug
    call names
    mov eax, cr4
    or eax, CR4_DE
    mov cr4, eax
    call no_names
    call accesses
    call repeated
    call together
    call refused
    call disabled
1:  ret

names:
    mov eax, 0x6005
    mov dr6, eax
    .byte 0x0F, 0x21, 0xE1       # mov ecx, dr4
    and ecx, 0xE00F
    EXPECT ecx, 0x6005, "without CR4.DE dr4 is dr6"
    mov eax, 0x700
    .byte 0x0F, 0x23, 0xE8       # mov dr5, eax
    mov ecx, dr7
    EXPECT ecx, 0x700, "and dr5 is dr7"
    xor eax, eax
    mov dr6, eax
    mov dr7, eax
    ret

no_names:
    .irp modrm, 0xE0, 0xE8
    TRY .byte 0x0F, 0x21, \modrm
    EXPECT_FAULT EXC_UD, 0, "with it reading them (\modrm) is undefined"
    TRY .byte 0x0F, 0x23, \modrm
    EXPECT_FAULT EXC_UD, 0, "and writing"
    .endr
    ret

accesses:
    ON_PORT L0, PORT, 1, "in al", in al, PORT
    ON_PORT G0, PORT, 1, "enabled globally", in al, PORT
    ON_PORT 0, PORT, 0, "not enabled", in al, PORT
    ON_PORT L0, PORT, 1, "in al from dx", in al, dx
    ON_PORT L0, PORT, 1, "out", out PORT, al
    ON_PORT L0, PORT, 1, "out of a word", out dx, ax
    ON_PORT L0, PORT, 1, "out of a doubleword", out dx, eax
    ON_PORT L0, PORT, 0, "the next port", in al, PORT+1
    ON_PORT L0, PORT, 1, "a word whose second port it is", in ax, PORT-1
    ON_PORT L0, PORT, 0, "a word below it", in ax, PORT-2
    ON_PORT L0, PORT, 1, "a doubleword whose last port it is", in eax, PORT-3
    ON_PORT L0|TWO0, PORT, 1, "two ports: the second", in al, PORT+1
    ON_PORT L0|TWO0, PORT, 0, "the third", in al, PORT+2
    ON_PORT L0|FOUR0, PORT, 1, "four ports: the last", in al, PORT+3
    ON_PORT L0|FOUR0, PORT, 0, "the fifth", in al, PORT+4
    ON_PORT L0|FOUR0, PORT+3, 1, "the range begins at a multiple of its length", in al, PORT
    ON_PORT L0|FOUR0, PORT, 0, "memory with that number is none", mov al, [PORT]
    ON_PORT L0|FOUR0, "offset beyond", 0, "nor is code", jmp beyond
beyond:
    mov eax, 0x11223344
    out PORT, al
    WATCH_PORT PORT, L0|PORTS0
    mov eax, 0x55667788
    in al, PORT
    UNWATCH
    mov ecx, [hit_values]
    EXPECT ecx, eax, "the handler finds what was read in eax"
    ret

repeated:
    mov edi, offset buffer
    ON_PORT L0, PORT, 1, "ins", insb
    mov esi, offset buffer
    ON_PORT L0, PORT, 1, "outs", outsb
.ifndef QEMU
    mov ecx, 3
    WATCH_PORT PORT, L0|PORTS0
p1: rep insb
p2: UNWATCH
    EXPECT [hits], 3, "rep insb: once for each iteration"
    HIT 0, p1, B0, "between the iterations"
    EXPECT [hit_counts], 2, "with two to go"
    HIT 2, p2, B0, "and behind the last"
    mov ecx, 2
    WATCH_PORT PORT, L0|PORTS0
p3: rep outsb
p4: UNWATCH
    EXPECT [hits], 2, "rep outsb"
    HIT 0, p3, B0, "between them"
    HIT 1, p4, B0, "and behind"
.endif
    xor ecx, ecx
    WATCH_PORT PORT, L0|PORTS0
    rep outsb
    UNWATCH
    EXPECT [hits], 0, "rep outsb without an iteration"
    ret

together:
.ifndef QEMU
    mov esi, offset buffer
    mov dr1, esi
    WATCH_PORT PORT, L0|PORTS0|L1|ACCESSES1
    outsb
t1: UNWATCH
    EXPECT [hits], 1, "outs from what is watched to a port that is"
    HIT 0, t1, B0|B1, "one trap says both"
    WATCH_PORT PORT, L0|PORTS0
    pushfd
    or dword ptr [esp], FLAG_T
    popfd
    in al, dx
t2: pushfd
    and dword ptr [esp], ~FLAG_T
    popfd
    UNWATCH
    HIT 0, t2, B0|BS, "with TF too: one trap says both"
    mov byte ptr [keeps_status], 1
    mov esi, offset buffer
    WATCH_PORT PORT, L0|PORTS0|L1|ACCESSES1
    in al, dx
t3: mov al, [esi]
t4: UNWATCH
    HIT 0, t3, B0, "the first of two traps"
    HIT 1, t4, B1, "the second clears what it has not met, though nobody else did"
    WATCH_PORT PORT, L0|PORTS0
    in al, dx
    pushfd
    or dword ptr [esp], FLAG_T
    popfd
    nop
t5: pushfd
    and dword ptr [esp], ~FLAG_T
    popfd
    in al, dx
t6: UNWATCH
    HIT 1, t5, BS, "a single step clears it too"
    EXPECT [hits], 6, "four steps and two breakpoints"
    HIT 5, t6, B0|BS, "but BS stays until software clears it"
    mov byte ptr [keeps_status], 0
    xor eax, eax
    mov dr6, eax
.endif
    ret

refused:
    WATCH_PORT PORT, L0|PORTS0
    USER_TRY in al, dx
    EXPECT_FAULT EXC_GP, 0, "an access without permission is refused"
    UNWATCH
    EXPECT [hits], 0, "and meets nothing"
    mov eax, dr6
    and eax, 0xE00F
    EXPECT eax, 0, "as DR6 shows"
    ret

disabled:
    mov eax, cr4
    and eax, ~CR4_DE
    mov cr4, eax
    .byte 0x0F, 0x21, 0xE1       # mov ecx, dr4
    mov eax, dr6
    EXPECT ecx, eax, "without CR4.DE dr4 is dr6 again"
    ret

.bss
.align 4
buffer:       .skip 16
