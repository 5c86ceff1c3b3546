# lines - level and edge triggering, nesting and ends of interrupt, at both controllers
#
# The first serial port's line 4 is high while its transmitter is empty and that
# interrupt is enabled, until the identification register is read.
.include "guest.inc"

.set APIC, 0xFEE00000
.set APIC_ID, APIC+0x20
.set PRIORITY, APIC+0x80
.set PROCESSOR_PRIORITY, APIC+0xA0
.set EOI, APIC+0xB0
.set SPURIOUS, APIC+0xF0
.set IN_SERVICE, APIC+0x100
.set TRIGGER, APIC+0x180
.set REQUESTED, APIC+0x200
.set ERROR, APIC+0x280
.set COMMAND, APIC+0x300
.set LVT_TIMER, APIC+0x320
.set LVT_LINT0, APIC+0x350
.set MASKED, 0x10000
.set LEVEL, 0x8000
.set REMOTE, 0x4000              # remote IRR
.set EXTERNAL, 0x700
.set TO_SELF, 0x40000
.set IO_INDEX, 0xFEC00000
.set IO_DATA, 0xFEC00010
.set IO_LINE4, 0x10+2*4
.set ELCR, 0x4D0

.set VECTOR, 0x61
.set HIGH_VECTOR, 0x81
.set COM1_ENABLE, COM1+1
.set COM1_IDENTIFY, COM1+2
.set COM1_MODEM, COM1+4
.set TRANSMITTER, 2

.macro OUTB port, value
    mov dx, \port
    mov al, \value
    out dx, al
.endm
.macro SERIAL_ON                 # once all that was printed has left
    mov dx, COM1_LINE_STATUS
1:  in al, dx
    not al
    test al, 0x60
    jnz 1b
    OUTB COM1_ENABLE, TRANSMITTER
.endm
.macro SERIAL_OFF
    OUTB COM1_ENABLE, 0
.endm
.macro LINE4 value
    mov dword ptr [IO_INDEX], IO_LINE4
    mov dword ptr [IO_DATA], \value
.endm
.macro BANK_BIT bank, vector
    bt dword ptr [\bank+(\vector/32)*16], \vector%32
.endm
.macro LISTEN
    sti
    nop
    nop
    nop
    cli
.endm
.macro LISTEN_TO lines
    mov al, ~(\lines)&0xFF
    out PIC1+1, al
.endm
# CASE served: forget what came; the handler reads the identification from that
# interrupt on.
.macro CASE served
    mov dword ptr [arrived], 0
    mov dword ptr [serve_from], \served
.endm

main:
    mov dword ptr [SPURIOUS], 0x1FF
    GATE VECTOR, apic_handler
    GATE HIGH_VECTOR, high_handler
    GATE IRQ_BASE+4, pic_handler
    GATE IRQ_BASE, timer
    OUTB COM1_MODEM, 8
    mov dword ptr [LVT_LINT0], EXTERNAL
    mov eax, [APIC_ID]
    mov dword ptr [IO_INDEX], IO_LINE4+1
    mov [IO_DATA], eax
    call io_apic_level
    call io_apic_edge
    call pic_level
    call pic_edge
    call nesting
    call ends
.ifndef QEMU
    call disabled
.endif
    ret

# Reads the identification register, which lowers the line, if it is time to.
serve:
    inc dword ptr [arrived]
    mov eax, [arrived]
    cmp eax, 10                  # enough is enough
    jae 1f
    cmp eax, [serve_from]
    jb 2f
1:  mov dx, COM1_IDENTIFY
    in al, dx
2:  ret
apic_handler:
    pushad
    mov dword ptr [IO_INDEX], IO_LINE4
    mov eax, [IO_DATA]
    mov [entry_inside], eax
    BANK_BIT TRIGGER, VECTOR
    setc byte ptr [trigger_inside]
    call serve
    mov dword ptr [EOI], 0
    popad
    iretd
pic_handler:
    pushad
    call serve
    mov eax, [inside]
    test eax, eax
    jz 1f
    call eax
1:  mov al, PIC_EOI
    out PIC1, al
    popad
    iretd
high_handler:
    push eax
    inc dword ptr [high]
    mov eax, [arrived]
    mov [arrived_before_high], eax
    mov eax, [PROCESSOR_PRIORITY]
    mov [priority_inside], eax
    mov dword ptr [EOI], 0
    pop eax
    iretd
timer:
    push eax
    inc dword ptr [ticks]
    mov al, 0xFF
    out PIC1+1, al
    mov al, PIC_EOI
    out PIC1, al
    pop eax
    iretd

io_apic_level:
    CASE 3
    LINE4 LEVEL|VECTOR
    SERIAL_ON
    BANK_BIT REQUESTED, VECTOR
    sbb ebx, ebx
    mov dword ptr [IO_INDEX], IO_LINE4
    mov esi, [IO_DATA]
    and esi, REMOTE
    LISTEN
    SERIAL_OFF
    EXPECT ebx, -1, "I/O APIC, level: a high line requests"
    EXPECT esi, REMOTE, "its entry shows that the local APIC has accepted"
    EXPECT [arrived], 3, "while the line is high it comes again after each EOI"
    mov eax, [entry_inside]
    and eax, REMOTE
    EXPECT eax, REMOTE, "which ends the acceptance that the handler still sees"
    movzx eax, byte ptr [trigger_inside]
    EXPECT eax, 1, "the trigger mode register says level"
    mov eax, [IO_DATA]
    and eax, REMOTE
    EXPECT eax, 0, "and it is over when the line is low"
    CASE 1
    LINE4 LEVEL|MASKED|VECTOR
    SERIAL_ON
    LISTEN
    mov ebx, [arrived]
    LINE4 LEVEL|VECTOR
    LISTEN
    SERIAL_OFF
    EXPECT ebx, 0, "masked, it waits"
    EXPECT [arrived], 1, "and comes when it is unmasked, for the line is still high"
    ret

io_apic_edge:
    CASE 100
    LINE4 VECTOR
    SERIAL_ON
    LISTEN
    SERIAL_OFF
    EXPECT [arrived], 1, "I/O APIC, edge: a line that stays high comes once"
    movzx eax, byte ptr [trigger_inside]
    EXPECT eax, 0, "the trigger mode register says edge"
    SERIAL_ON
    LISTEN
    SERIAL_OFF
    EXPECT [arrived], 2, "the next edge comes"
    LINE4 MASKED
    mov dx, COM1_IDENTIFY
    in al, dx
    ret

pic_level:
    call init_pics               # forgets the edges of what came before
    OUTB ELCR, 0x10
    in al, dx
    movzx eax, al
    EXPECT eax, 0x10, "8259: the edge/level register can be read back"
    CASE 3
    LISTEN_TO 0x10
    SERIAL_ON
    LISTEN
    SERIAL_OFF
    EXPECT [arrived], 3, "8259, level: while the line is high it comes again after each EOI"
    CASE 1
    SERIAL_ON
    SERIAL_OFF
    LISTEN
    EXPECT [arrived], 0, "a request that has gone away is none"
    OUTB ELCR, 0
    ret
pic_edge:
    call init_pics
    LISTEN_TO 0x10
    CASE 100
    SERIAL_ON
    LISTEN
    SERIAL_OFF
    EXPECT [arrived], 1, "8259, edge: a line that stays high comes once"
    SERIAL_ON
    LISTEN
    SERIAL_OFF
    EXPECT [arrived], 2, "the next edge comes"
    mov dx, COM1_IDENTIFY
    in al, dx
    ret

# Line 0 is the 8254's; it is above line 4.
start_timer:
    OUTB 0x43, 0x30
    OUTB 0x40, 0
    OUTB 0x40, 4
    ret
await_timer:
    mov al, 0x0A                 # read the requests
    out PIC1, al
1:  in al, PIC1
    test al, 1
    jz 1b
    ret
nesting:
    CASE 1
    mov dword ptr [ticks], 0
    mov dword ptr [inside], offset timer_inside
    LISTEN_TO 0x11
    SERIAL_ON
    LISTEN
    SERIAL_OFF
    EXPECT [arrived], 1, "8259: line 4's handler"
    EXPECT [ticks_inside], 1, "is interrupted by line 0"
    mov dword ptr [inside], 0
    mov al, 0xFF
    out PIC1+1, al
    # The local APIC's classes: 81h over 61h, and the 8259's ExtINT over nothing.
    mov dword ptr [high], 0
    CASE 1
    mov dword ptr [COMMAND], TO_SELF|VECTOR
    mov dword ptr [COMMAND], TO_SELF|HIGH_VECTOR
    LISTEN
    EXPECT [high], 1, "local APIC: both come"
    EXPECT [arrived_before_high], 0, "the higher class first"
    mov eax, [priority_inside]
    and eax, 0xF0
    EXPECT eax, HIGH_VECTOR&0xF0, "whose class is the processor's priority"
    CASE 1
    mov dword ptr [high], 0
    mov dword ptr [PRIORITY], HIGH_VECTOR
    LISTEN_TO 0x10
    mov dword ptr [COMMAND], TO_SELF|HIGH_VECTOR
    SERIAL_ON
    LISTEN
    SERIAL_OFF
    EXPECT [high], 0, "the task priority holds its own class back"
    EXPECT [arrived], 1, "but not the 8259's interrupts"
    mov dword ptr [PRIORITY], 0
    LISTEN
    EXPECT [high], 1, "which come when it falls"
    mov al, 0xFF
    out PIC1+1, al
    ret
timer_inside:
    push edx
    call start_timer
    call await_timer
    LISTEN
    mov eax, [ticks]
    mov [ticks_inside], eax
    mov al, 0xEF
    out PIC1+1, al
    pop edx
    ret

# A handler that calls for the end of everything at once.
ends:
    GATE VECTOR, low_without_end
    GATE HIGH_VECTOR, high_without_end
    mov dword ptr [COMMAND], TO_SELF|VECTOR
    LISTEN
    EXPECT [both_inside], 3, "two nested interrupts are both in service"
    BANK_BIT IN_SERVICE, HIGH_VECTOR
    EXPECT_FLAGS FLAG_C, FLAG_C, "until their EOIs"
    mov dword ptr [EOI], 0
    BANK_BIT IN_SERVICE, HIGH_VECTOR
    EXPECT_FLAGS FLAG_C, 0, "the first ends the higher"
    BANK_BIT IN_SERVICE, VECTOR
    EXPECT_FLAGS FLAG_C, FLAG_C, "and not the lower"
    EXPECT [PROCESSOR_PRIORITY], VECTOR&0xF0, "whose class is left as the priority"
    mov dword ptr [EOI], 0
    EXPECT [PROCESSOR_PRIORITY], 0, "the second ends that"
    mov dword ptr [EOI], 0
    EXPECT [PROCESSOR_PRIORITY], 0, "and one more does nothing"
    GATE VECTOR, apic_handler
    GATE HIGH_VECTOR, high_handler
    ret
low_without_end:
    mov dword ptr [COMMAND], TO_SELF|HIGH_VECTOR
    LISTEN
    iretd
high_without_end:
    pushad
    xor eax, eax
    BANK_BIT IN_SERVICE, VECTOR
    adc eax, eax
    BANK_BIT IN_SERVICE, HIGH_VECTOR
    adc eax, eax
    mov [both_inside], eax
    popad
    iretd

disabled:
    CASE 1
    mov dword ptr [ERROR], 0
    mov dword ptr [COMMAND], TO_SELF|5
    mov dword ptr [ERROR], 0
    mov eax, [ERROR]
    and eax, 0x20
    EXPECT eax, 0x20, "sending a vector below 16 is an error"
    mov dword ptr [ERROR], 0
    EXPECT [ERROR], 0, "until the register is written again"
    mov dword ptr [LVT_TIMER], VECTOR
    mov dword ptr [SPURIOUS], 0xFF
    mov eax, [LVT_TIMER]
    and eax, MASKED
    EXPECT eax, MASKED, "disabling the local APIC masks its table"
    mov dword ptr [LVT_TIMER], VECTOR
    mov eax, [LVT_TIMER]
    and eax, MASKED
    EXPECT eax, MASKED, "which cannot be unmasked then"
    LISTEN_TO 0x10
    SERIAL_ON
    LISTEN
    mov ebx, [arrived]
    mov dword ptr [SPURIOUS], 0x1FF
    mov esi, [LVT_LINT0]
    and esi, MASKED
    mov dword ptr [LVT_LINT0], EXTERNAL
    LISTEN
    SERIAL_OFF
    EXPECT ebx, 0, "nor do the 8259's interrupts come"
    EXPECT esi, MASKED, "enabling it leaves the table masked"
    EXPECT [arrived], 1, "until it is written"
    mov al, 0xFF
    out PIC1+1, al
    ret

.bss
.align 4
arrived:      .skip 4
serve_from:   .skip 4
entry_inside: .skip 4
trigger_inside: .skip 4
inside:       .skip 4
high:         .skip 4
arrived_before_high: .skip 4
priority_inside: .skip 4
ticks:        .skip 4
ticks_inside: .skip 4
both_inside:  .skip 4
