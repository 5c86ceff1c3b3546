# x2apic - the local APIC's registers as MSRs
.include "guest.inc"

.set APIC, 0xFEE00000
.set APIC_VERSION, APIC+0x30
.set APIC_BASE_MSR, 0x1B
.set ENABLED, 0x800
.set X2APIC, 0x400
.set TSC_DEADLINE_MSR, 0x6E0

.set ID, 0x802
.set VERSION, 0x803
.set PRIORITY, 0x808
.set PROCESSOR_PRIORITY, 0x80A
.set EOI, 0x80B
.set LOGICAL, 0x80D
.set FORMAT, 0x80E
.set SPURIOUS, 0x80F
.set IN_SERVICE, 0x810
.set REQUESTED, 0x820
.set ERRORS, 0x828
.set COMMAND, 0x830
.set COMMAND_HIGH, 0x831
.set LVT_TIMER, 0x832
.set INITIAL, 0x838
.set CURRENT, 0x839
.set DIVIDE, 0x83E
.set SELF, 0x83F
.set MASKED, 0x10000
.set DEADLINE, 0x40000
.set TO_SELF, 0x40000

.set FIRST_VECTOR, 0x41
.set TIMER_VECTOR, 0x50

.macro READ index
    mov ecx, \index
    rdmsr
.endm
.macro WRITE index, value, high=0
    mov ecx, \index
    mov eax, \value
    mov edx, \high
    wrmsr
.endm
.macro REFUSES_READ index, fact
    mov ecx, \index
    TRY rdmsr
    EXPECT_FAULT EXC_GP, 0, "\fact"
.endm
.macro REFUSES_WRITE index, value, high, fact
    mov ecx, \index
    mov eax, \value
    mov edx, \high
    TRY wrmsr
    EXPECT_FAULT EXC_GP, 0, "\fact"
.endm
.macro SOME_INTERRUPTS_LATER
    sti
    nop
    nop
    cli
.endm

main:
    mov eax, 1
    cpuid
    bt ecx, 21
    jc 1f
    EXPECT 0, 0, "x2APIC mode is not offered"
    ret
1:  GATE FIRST_VECTOR, interrupt
    GATE TIMER_VECTOR, interrupt
    READ APIC_BASE_MSR
    mov [base], eax
    REFUSES_READ ID, "in xAPIC mode there is no ID register among the MSRs"
    REFUSES_WRITE PRIORITY, 0, 0, "nor a task priority"
    mov eax, [APIC_VERSION]
    mov [version], eax

    mov eax, [base]
    xor eax, ENABLED | X2APIC
    mov ecx, APIC_BASE_MSR
    xor edx, edx
    TRY wrmsr
    EXPECT_FAULT EXC_GP, 0, "x2APIC mode of a disabled APIC is invalid"
    mov eax, [base]
    or eax, X2APIC
    wrmsr
    READ APIC_BASE_MSR
    mov ebx, [base]
    or ebx, X2APIC
    EXPECT eax, ebx, "IA32_APIC_BASE: x2APIC mode"

    READ ID
    EXPECT eax, 0, "the identifier has 32 bits"
    READ VERSION
    EXPECT eax, [version], "the version is that of the page"
    READ LOGICAL
    EXPECT eax, 1, "processor 0 of cluster 0"
    EXPECT edx, 0, "registers of 32 bits read as zero above"
    REFUSES_READ FORMAT, "there is no destination format"
    REFUSES_READ COMMAND_HIGH, "nor an upper half of the command register"
    REFUSES_READ EOI, "EOI cannot be read"
    REFUSES_READ SELF, "nor SELF IPI"
    REFUSES_READ 0x800, "the first of the range is reserved"
    REFUSES_READ 0x840, "as is what comes behind the last register"
    REFUSES_WRITE ID, 0, 0, "the identifier cannot be written"
    REFUSES_WRITE VERSION, 0, 0, "nor the version"
    REFUSES_WRITE CURRENT, 0, 0, "nor the current count"
    REFUSES_WRITE PRIORITY, 0x100, 0, "reserved bits of the task priority"
    REFUSES_WRITE PRIORITY, 0, 1, "and of its upper half"
    REFUSES_WRITE EOI, 1, 0, "EOI takes zero alone"
    REFUSES_WRITE ERRORS, 1, 0, "as does the error status"
    REFUSES_WRITE COMMAND, 0x100000 | FIRST_VECTOR, 0, "a reserved bit of the command"

    mov ecx, 100
2:  push ecx
    WRITE PRIORITY, 0x35
    READ PRIORITY
    pop ecx
    loop 2b
    EXPECT eax, 0x35, "the task priority is kept"
    READ PROCESSOR_PRIORITY
    EXPECT eax, 0x35, "and is the processor's"
    WRITE PRIORITY, 0

    WRITE SPURIOUS, 0x1FF
    mov dword ptr [came], 0
    WRITE SELF, FIRST_VECTOR
    READ REQUESTED+FIRST_VECTOR/32
    bt eax, FIRST_VECTOR % 32
    EXPECT_FLAGS FLAG_C, FLAG_C, "SELF IPI requests the vector"
    SOME_INTERRUPTS_LATER
    EXPECT [came], 1, "which comes once let in"
    WRITE COMMAND, TO_SELF | FIRST_VECTOR
    SOME_INTERRUPTS_LATER
    EXPECT [came], 2, "a command with the shorthand"
    WRITE COMMAND, FIRST_VECTOR, 0
    SOME_INTERRUPTS_LATER
    EXPECT [came], 3, "to identifier 0"
    WRITE COMMAND, FIRST_VECTOR, -1
    SOME_INTERRUPTS_LATER
    EXPECT [came], 4, "to all"
    WRITE COMMAND, FIRST_VECTOR | 0x800, 1
    SOME_INTERRUPTS_LATER
    EXPECT [came], 5, "to the logical identifier"
    WRITE COMMAND, FIRST_VECTOR, 7
    READ COMMAND
    EXPECT edx, 7, "the command register has 64 bits"
    SOME_INTERRUPTS_LATER
    EXPECT [came], 5, "nothing comes of a command to others"
    sti
    WRITE SELF, FIRST_VECTOR
    nop
    cli
    EXPECT [came], 6, "with interrupts on it comes at once"
    READ IN_SERVICE+FIRST_VECTOR/32
    EXPECT eax, 0, "EOI by MSR has ended it"

    WRITE DIVIDE, 0xB
    WRITE LVT_TIMER, TIMER_VECTOR
    mov dword ptr [came], 0
    WRITE INITIAL, 1000
    sti
3:  cmp dword ptr [came], 0
    je 3b
    cli
    EXPECT [came], 1, "the timer interrupts"

    mov eax, 1
    cpuid
    bt ecx, 24
    jnc 5f
    WRITE LVT_TIMER, DEADLINE | TIMER_VECTOR
    mov dword ptr [came], 0
    mov esi, 3
4:  rdtsc
    add eax, 200000
    adc edx, 0
    mov ecx, TSC_DEADLINE_MSR
    wrmsr
    mov edi, eax
    mov ebp, edx
    mov ebx, [came]
    sti
6:  cmp [came], ebx
    je 6b
    cli
    rdtsc
    sub eax, edi
    sbb edx, ebp
    EXPECT edx, 0, "the deadline's interrupt is not early"
    dec esi
    jnz 4b
    READ TSC_DEADLINE_MSR
    EXPECT eax, 0, "and disarms it"
    rdtsc                        # far away, then nearer, then passed
    add edx, 1
    mov ecx, TSC_DEADLINE_MSR
    wrmsr
    xor eax, eax
    mov edx, eax
    inc eax
    mov ecx, TSC_DEADLINE_MSR
    wrmsr
    SOME_INTERRUPTS_LATER
    EXPECT [came], 4, "a deadline that has passed interrupts at once"

5:  mov ecx, APIC_BASE_MSR
    mov eax, [base]
    xor edx, edx
    TRY wrmsr
    EXPECT_FAULT EXC_GP, 0, "there is no way back to xAPIC mode"
    mov eax, [base]
    and eax, ~ENABLED
    wrmsr
    REFUSES_READ ID, "disabled, it has no registers"
    mov ecx, APIC_BASE_MSR
    mov eax, [base]
    or eax, X2APIC
    xor edx, edx
    TRY wrmsr
    EXPECT_FAULT EXC_GP, 0, "from disabled to x2APIC mode there is no way"
    mov eax, [base]
    wrmsr
    mov eax, [APIC_VERSION]
    EXPECT eax, [version], "to xAPIC mode there is"
    ret

interrupt:
    push eax
    push ecx
    push edx
    inc dword ptr [came]
    WRITE EOI, 0
    pop edx
    pop ecx
    pop eax
    iret

.data
.balign 4
base: .long 0
version: .long 0
came: .long 0
