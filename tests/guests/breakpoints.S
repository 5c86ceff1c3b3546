# breakpoints - DR0 to DR7: on code, on data, with the trap flag and general detect
.include "guest.inc"
.include "debug.inc"

# DATA control, hits, "fact", instruction
.macro ON_DATA control, count, fact, instruction:vararg
    WATCH0 "offset watched", L0|\control
    \instruction
data_\@:
    UNWATCH
    EXPECT [hits], \count, "\fact"
.if \count
    HIT 0, data_\@, B0, "\fact: behind it"
.endif
.endm

main:
    GATE EXC_DB, debug
    call code
    call data_sizes
    call instructions
    call repeated
    call shadows
    call others
    ret

code:
    mov dword ptr [handler_flags], FLAG_R
    mov ecx, 3
    WATCH0 "offset c1", L0
    nop
c1: inc ebx
    loop c1
    UNWATCH
    EXPECT [hits], 3, "code: a loop meets its breakpoint each time"
    HIT 0, c1, B0, "before the instruction"
    mov eax, [hit_flags]
    and eax, FLAG_R
    EXPECT eax, 0, "with RF clear in the frame, whose setting lets it run"
    WATCH0 "offset c2", G0
c2: nop
    UNWATCH
    EXPECT [hits], 1, "enabled globally, the same"
    WATCH0 "offset c3", 0
c3: nop
    EXPECT [hits], 0, "not enabled, nothing"
    WATCH0 "offset c4+1", L0
c4: mov eax, 0x12345678
    UNWATCH
    EXPECT [hits], 0, "only the first byte of an instruction counts"
    WATCH0 "offset c5", L0
    jmp c5
c5: UNWATCH
    HIT 0, c5, B0, "at a jump's target"
    WATCH0 "offset c6", L0
c6: mov eax, [0x1E00000]         # a page that nobody has touched
    UNWATCH
    EXPECT [hits], 1, "once, though the instruction looks its page up"
    ret

data_sizes:
    mov dword ptr [handler_flags], 0
    ON_DATA WRITES0, 1, "data: a write", mov byte ptr [watched], 1
    ON_DATA WRITES0, 0, "a read of what is watched for writes", mov al, [watched]
    ON_DATA ACCESSES0, 1, "a read of what is watched for both", mov al, [watched]
    ON_DATA ACCESSES0, 1, "a write", mov [watched], al
    ON_DATA WRITES0, 0, "one byte further", mov [watched+1], al
    ON_DATA WRITES0, 1, "a doubleword over it", mov [watched-3], eax
    ON_DATA WRITES0, 0, "a doubleword below it", mov [watched-4], eax
    ON_DATA WRITES0|TWO0, 1, "two bytes: the second", mov [watched+1], al
    ON_DATA WRITES0|TWO0, 0, "the third", mov [watched+2], al
    ON_DATA WRITES0|FOUR0, 1, "four bytes: the last", mov [watched+3], al
    ON_DATA WRITES0|FOUR0, 0, "the next", mov [watched+4], al
    ret

instructions:
    ON_DATA WRITES0|FOUR0, 1, "read-modify-write", inc dword ptr [watched]
    ON_DATA WRITES0|FOUR0, 1, "xchg", xchg [watched], eax
    ON_DATA ACCESSES0|FOUR0, 1, "add from memory", add eax, [watched]
    ON_DATA ACCESSES0|FOUR0, 1, "push from memory", push dword ptr [watched]
    ON_DATA WRITES0|FOUR0, 1, "pop to memory", pop dword ptr [watched]
    fninit
    fld1
    ON_DATA WRITES0|FOUR0, 1, "an x87 store", fstp qword ptr [watched]
    ON_DATA ACCESSES0|FOUR0, 0, "lea", lea eax, [watched]
    mov esi, offset watched
    ON_DATA ACCESSES0|FOUR0, 1, "lodsd", lodsd
    lea edi, [esp-4]
    WATCH0 edi, L0|WRITES0|FOUR0
    call d1
d1: UNWATCH
    HIT 0, d1, B0, "call pushes its return address"
    pop eax
    mov dword ptr [resume_at], offset d3
    WATCH0 "offset watched", L0|ACCESSES0|FOUR0
    mov ecx, 0
    mov eax, 1
    cdq
d2: div ecx
d3: UNWATCH
    EXPECT [hits], 0, "an instruction that faults traps nothing"
    ret

repeated:
    mov esi, offset text
    mov edi, offset watched-2
    mov ecx, 6
    WATCH0 "offset watched", L0|WRITES0|TWO0
r1: rep movsb
r2: UNWATCH
    EXPECT [hits], 2, "rep movsb: once for each iteration that meets it"
    HIT 0, r1, B0, "behind the iteration"
    EXPECT [hit_counts], 3, "with three to go"
    EXPECT ecx, 0, "and it goes on to its end"
    EXPECT [watched], 0x66656463, "having moved all"
    ret

shadows:
    mov eax, ss
    mov [watched], eax
    mov dword ptr [handler_flags], FLAG_R
.ifndef QEMU
    WATCH0 "offset watched", L0|ACCESSES0|TWO0
    mov ss, [watched]
    nop
s1: UNWATCH
    EXPECT [hits], 1, "mov ss from what is watched traps"
    HIT 0, s1, B0, "behind the next instruction"
    WATCH0 "offset s2", L0
    mov eax, ss
    mov ss, ax
s2: nop
    UNWATCH
    xor eax, eax                 # AMD's processors report it, others do not
    cpuid
    xor eax, eax
    cmp ecx, 0x444D4163          # "cAMD"
    sete al
    EXPECT [hits], eax, "a breakpoint on code right behind mov ss is not met, but on AMD's processors"
.endif
.ifndef QEMU
    WATCH0 "offset watched", L0|WRITES0|FOUR0
    mov eax, offset watched+4
    mov dr1, eax
    mov eax, L0|L1|WRITES0|FOUR0|WRITES1|FOUR1
    mov dr7, eax
    mov [watched+2], eax
s3: UNWATCH
    EXPECT [hits], 1, "two breakpoints at once trap once"
    HIT 0, s3, B0|B1, "both"
    WATCH0 "offset watched", L0|WRITES0|FOUR0
    pushfd
    or dword ptr [esp], FLAG_T
    popfd
    mov [watched], eax
s4: pushfd
    and dword ptr [esp], ~FLAG_T
    popfd
    UNWATCH
    HIT 0, s4, B0|BS, "with TF too: one trap says both"
.endif
    ret

others:
.ifndef QEMU
    WATCH0 0, GD
o1: mov eax, dr0
o2: EXPECT [hits], 1, "general detect: reading a debug register"
    HIT 0, o1, BD, "is a fault, with the registers open in its handler"
    mov eax, dr7
    and eax, GD
    EXPECT eax, 0, "and behind it"
.endif
    mov eax, 0x12345678
    mov dr1, eax
    xor eax, eax
    mov eax, dr1
    EXPECT eax, 0x12345678, "DR1 can be read back"
    mov eax, 0x3
    mov dr6, eax
    mov eax, dr6
    and eax, 0xE00F
    EXPECT eax, 3, "and DR6"
    xor eax, eax
    mov dr6, eax
    USER_TRY mov eax, dr7
    EXPECT_FAULT EXC_GP, 0, "ring 3 may not"
    ret

.data
.align 16
text:      .ascii "abcdefgh"
.align 16
           .long 0
watched:   .skip 16
