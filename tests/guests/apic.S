# apic - the local APIC and the I/O APIC
.include "guest.inc"
.include "acpi.inc"

.set APIC, 0xFEE00000
.set ID, APIC+0x20
.set VERSION, APIC+0x30
.set PRIORITY, APIC+0x80         # task priority
.set PROCESSOR_PRIORITY, APIC+0xA0
.set EOI, APIC+0xB0
.set SPURIOUS, APIC+0xF0
.set IN_SERVICE, APIC+0x100
.set REQUESTED, APIC+0x200
.set COMMAND, APIC+0x300
.set COMMAND_HIGH, APIC+0x310
.set LVT_TIMER, APIC+0x320
.set LVT_LINT0, APIC+0x350
.set INITIAL, APIC+0x380
.set CURRENT, APIC+0x390
.set DIVIDE, APIC+0x3E0
.set MASKED, 0x10000
.set PERIODIC, 0x20000
.set DEADLINE, 0x40000
.set TO_SELF, 0x40000
.set DELIVER_NMI, 0x400
.set EXTERNAL, 0x700

.set IO_INDEX, 0xFEC00000
.set IO_DATA, 0xFEC00010
.set IO_VERSION, 1
.set IO_REDIRECTION, 0x10

.set APIC_BASE_MSR, 0x1B
.set TSC_DEADLINE_MSR, 0x6E0

.set LOW_VECTOR, 0x41            # two of one priority class,
.set SAME_VECTOR, 0x46
.set HIGH_VECTOR, 0x65           # one of a higher
.set TIMER_VECTOR, 0x50
.set LINE_VECTOR, 0x70

.macro SEND vector
    mov dword ptr [COMMAND], TO_SELF|\vector
.endm
# CF = the vector's bit in a bank of eight registers.
.macro BANK_BIT bank, vector
    bt dword ptr [\bank+(\vector/32)*16], \vector%32
.endm
.macro IO_WRITE register, value
    mov dword ptr [IO_INDEX], \register
    mov dword ptr [IO_DATA], \value
.endm
.macro SOME_INTERRUPTS_LATER     # long enough for what was sent to arrive
    sti
    nop
    nop
    cli
.endm

main:
    mov eax, 1
    cpuid
    mov [features], ecx
    shr edx, 9
    and edx, 1
    EXPECT edx, 1, "cpuid offers a local APIC"
    mov ecx, APIC_BASE_MSR
    rdmsr
    and eax, 0xFFFFF900
    EXPECT eax, APIC|0x900, "it lies at FEE00000h, enabled, on the boot processor"
    mov eax, [VERSION]           # the registers must be read as a whole
    and eax, 0xF0
    EXPECT eax, 0x10, "its version is an integrated one's"
    .irp vector, LOW_VECTOR, SAME_VECTOR, HIGH_VECTOR, TIMER_VECTOR, LINE_VECTOR
    GATE \vector, handler_\vector
    .endr
    GATE 2, nmi
    GATE IRQ_BASE, pic_handler
    GATE 0xFF, spurious
    mov dword ptr [SPURIOUS], 0x1FF
    EXPECT [SPURIOUS], 0x1FF, "software enables it"
    mov dword ptr [PRIORITY], 0
    call self
    call priorities
    call timer
    call tsc_deadline
    call virtual_wire
    call io_apic
    ret

# Each handler appends its vector to `order`, lets `inside` do more, and ends.
.macro HANDLER vector
handler_\vector:
    pushad
    shl dword ptr [order], 8
    mov byte ptr [order], \vector
    inc dword ptr [arrived]
    BANK_BIT IN_SERVICE, \vector
    setc byte ptr [was_in_service]
    xor eax, eax
    xchg eax, [inside]
    test eax, eax
    jz 1f
    call eax
1:  mov dword ptr [EOI], 0
    popad
    iretd
.endm
    HANDLER LOW_VECTOR
    HANDLER SAME_VECTOR
    HANDLER HIGH_VECTOR
    HANDLER TIMER_VECTOR
    HANDLER LINE_VECTOR
nmi:
    inc dword ptr [nmis]
spurious:                        # asks for no EOI
    iretd
pic_handler:
    push eax
    inc dword ptr [from_pic]
    mov al, PIC_EOI
    out PIC1, al
    pop eax
    iretd

self:
    SEND LOW_VECTOR
    BANK_BIT REQUESTED, LOW_VECTOR
    EXPECT_FLAGS FLAG_C, FLAG_C, "an interrupt sent to itself is requested"
    EXPECT [arrived], 0, "and waits for IF"
    SOME_INTERRUPTS_LATER
    EXPECT [order], LOW_VECTOR, "then it comes"
    movzx eax, byte ptr [was_in_service]
    EXPECT eax, 1, "its handler finds it in service"
    BANK_BIT IN_SERVICE, LOW_VECTOR
    EXPECT_FLAGS FLAG_C, 0, "until the EOI"
    BANK_BIT REQUESTED, LOW_VECTOR
    EXPECT_FLAGS FLAG_C, 0, "and it is no longer requested"
    mov dword ptr [arrived], 0
    SEND LOW_VECTOR
    SEND LOW_VECTOR
    SOME_INTERRUPTS_LATER
    EXPECT [arrived], 1, "sent twice before it is taken, it comes once"
    mov eax, [ID]
    mov [COMMAND_HIGH], eax
    mov dword ptr [COMMAND], DELIVER_NMI
    nop
    mov ecx, 1000                # an NMI needs no IF, but time
1:  cmp dword ptr [nmis], 0
    jne 2f
    loop 1b
2:  EXPECT [nmis], 1, "an NMI sent to its own number arrives with IF clear"
    ret

priorities:
    mov dword ptr [order], 0
    SEND LOW_VECTOR
    SEND HIGH_VECTOR
    SEND SAME_VECTOR
    SOME_INTERRUPTS_LATER
    EXPECT [order], HIGH_VECTOR<<16|SAME_VECTOR<<8|LOW_VECTOR, "the higher vector comes first"
    mov dword ptr [order], 0
    mov dword ptr [PRIORITY], 0x4F
    EXPECT [PROCESSOR_PRIORITY], 0x4F, "with nothing in service the processor's priority is the task's"
    SEND SAME_VECTOR
    SEND HIGH_VECTOR
    SOME_INTERRUPTS_LATER
    EXPECT [order], HIGH_VECTOR, "the task priority holds its class and below off"
    sti
    mov dword ptr [PRIORITY], 0x30
    nop
    cli
    EXPECT [order], HIGH_VECTOR<<8|SAME_VECTOR, "lowering it lets them in"
    mov dword ptr [PRIORITY], 0
    mov dword ptr [order], 0
    mov dword ptr [inside], offset send_more
    SEND LOW_VECTOR
    SOME_INTERRUPTS_LATER
    EXPECT [order_inside], LOW_VECTOR<<8|HIGH_VECTOR, "a higher class interrupts a handler, its own does not"
    EXPECT [priority_inside], 0x40, "whose class is the processor's priority"
    EXPECT [order], LOW_VECTOR<<16|HIGH_VECTOR<<8|SAME_VECTOR, "its own class follows the EOI"
    ret
send_more:
    mov eax, [PROCESSOR_PRIORITY]
    and eax, 0xF0
    mov [priority_inside], eax
    SEND SAME_VECTOR
    SEND HIGH_VECTOR
    SOME_INTERRUPTS_LATER
    mov eax, [order]
    mov [order_inside], eax
    ret

# AWAIT n: sleeps until n interrupts have arrived.
.macro AWAIT number
1:  cmp dword ptr [arrived], \number
    jae 2f
    sti
    hlt
    cli
    jmp 1b
2:
.endm
timer:
    mov dword ptr [DIVIDE], 0x0B                 # by 1
    mov dword ptr [LVT_TIMER], TIMER_VECTOR
    mov dword ptr [arrived], 0
    mov dword ptr [INITIAL], 1000000
    AWAIT 1
    EXPECT [CURRENT], 0, "a one-shot timer stops at 0"
    mov ecx, 100000
    sti
1:  loop 1b
    cli
    EXPECT [arrived], 1, "having interrupted once"
    mov dword ptr [LVT_TIMER], PERIODIC|TIMER_VECTOR
    mov dword ptr [INITIAL], 1000000
    mov dword ptr [arrived], 0
    AWAIT 10
    cmp dword ptr [CURRENT], 1000001
    EXPECT_FLAGS FLAG_C, FLAG_C, "a periodic timer interrupts again and again"
    mov dword ptr [LVT_TIMER], PERIODIC|MASKED|TIMER_VECTOR
    SOME_INTERRUPTS_LATER                        # what was under way
    mov dword ptr [arrived], 0
    mov ecx, [CURRENT]
1:  cmp [CURRENT], ecx
    je 1b
    mov ecx, 1000000
    sti
1:  loop 1b
    cli
    EXPECT [arrived], 0, "masked, it counts but does not interrupt"
    mov dword ptr [INITIAL], 0
    EXPECT [CURRENT], 0, "an initial count of 0 stops it"
    ret

tsc_deadline:
    bt dword ptr [features], 24
    jc 1f
    SAY "note no TSC deadline: cpuid does not offer it\n"
    ret
1:  mov dword ptr [LVT_TIMER], DEADLINE|TIMER_VECTOR
    mov dword ptr [arrived], 0
    mfence
    rdtsc
    add eax, 5000000
    adc edx, 0
    mov esi, eax
    mov edi, edx
    mov ecx, TSC_DEADLINE_MSR
    wrmsr
    rdmsr
    EXPECT eax, esi, "the deadline can be read back"
    AWAIT 1
    rdtsc
    sub eax, esi
    sbb edx, edi
    EXPECT_FLAGS FLAG_C, 0, "its interrupt comes when the TSC has passed it"
    mov ecx, TSC_DEADLINE_MSR
    rdmsr
    or eax, edx
    EXPECT eax, 0, "and then it reads as 0"
    mov dword ptr [arrived], 0
    rdtsc
    wrmsr                        # already past
    SOME_INTERRUPTS_LATER
    AWAIT 1
    EXPECT [arrived], 1, "a deadline in the past interrupts at once"
    rdtsc
    add edx, 1
    wrmsr
    xor eax, eax
    xor edx, edx
    wrmsr
    rdmsr
    EXPECT eax, 0, "writing 0 disarms it"
    mov dword ptr [LVT_TIMER], MASKED
    ret

.macro START_8254
    mov al, 0x34
    out 0x43, al
    mov al, 1193 & 0xFF
    out 0x40, al
    mov al, 1193 >> 8
    out 0x40, al
.endm
virtual_wire:
    mov dword ptr [LVT_TIMER], MASKED
    mov dword ptr [LVT_LINT0], EXTERNAL
    START_8254
    mov al, 0xFE
    out PIC1+1, al
    mov dword ptr [from_pic], 0
1:  sti
    hlt
    cli
    cmp dword ptr [from_pic], 5
    jb 1b
    mov dword ptr [LVT_LINT0], EXTERNAL|MASKED
    SOME_INTERRUPTS_LATER
    mov eax, [from_pic]
    cmp eax, 5
    EXPECT_FLAGS FLAG_C, 0, "the 8259's interrupts come through LINT0"
    mov ecx, 5000000
    sti
2:  loop 2b
    cli
    EXPECT [from_pic], eax, "unless it is masked"
    mov al, 0xFF
    out PIC1+1, al
    ret

io_apic:
    mov dword ptr [IO_INDEX], IO_VERSION
    mov eax, [IO_DATA]
    shr eax, 16
    and eax, 0xFF
    EXPECT eax, 23, "the I/O APIC has 24 lines"
    call timer_line
    lea esi, [eax*2+IO_REDIRECTION]
    lea edi, [esi+1]
    mov eax, [ID]
    IO_WRITE edi, eax
    IO_WRITE esi, LINE_VECTOR
    mov [IO_INDEX], esi
    EXPECT [IO_DATA], LINE_VECTOR, "a redirection can be read back"
    mov dword ptr [arrived], 0
    mov dword ptr [order], 0
    AWAIT 10
    movzx eax, byte ptr [order]
    EXPECT eax, LINE_VECTOR, "the 8254's interrupts come through it with their vector"
    IO_WRITE esi, MASKED|LINE_VECTOR
    SOME_INTERRUPTS_LATER
    mov dword ptr [arrived], 0
    mov ecx, 5000000
    sti
1:  loop 1b
    cli
    EXPECT [arrived], 0, "a masked line is silent"
    IO_WRITE esi, LINE_VECTOR
    AWAIT 1
    EXPECT_FLAGS 0, 0, "and unmasked it speaks again"
    IO_WRITE esi, MASKED
    ret

# eax = the I/O APIC's line for ISA interrupt 0: 0 unless the MADT overrides it.
timer_line:
    mov eax, MADT
    call find_table
    xor eax, eax
    test ebx, ebx
    jz 3f
    mov ecx, [ebx+4]
    add ecx, ebx                 # its end
    add ebx, 44
1:  cmp ebx, ecx
    jae 3f
    cmp byte ptr [ebx], 2        # interrupt source override
    jne 2f
    cmp byte ptr [ebx+3], 0
    jne 2f
    mov eax, [ebx+4]
2:  movzx edx, byte ptr [ebx+1]
    add ebx, edx
    jmp 1b
3:  ret

.bss
.align 4
features:        .skip 4
arrived:         .skip 4
order:           .skip 4         # the last four vectors, the latest lowest
inside:          .skip 4
order_inside:    .skip 4
priority_inside: .skip 4
was_in_service:  .skip 4
nmis:            .skip 4
from_pic:        .skip 4
