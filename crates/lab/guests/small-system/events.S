# The workload `flags`: the costs of the most frequent events in a 16-bit system. Only this part
# needs more than an 8086: the time-stamp counter and 32-bit registers.
.include "layout.inc"
.include "program.inc"

.section .program, "ax"
.code16

.set EVENT_VECTOR, 0x60

# MEASURE instruction, another: runs both COUNT times; EDX:EAX is the number of cycles.
.macro MEASURE first, second
    mov ecx, [options+COUNT]
    call start_clock
    .balign 64
1:  \first
    \second
    dec ecx
    jnz 1b
    call read_clock
.endm
# EVENT name, instruction, another: prints the cost of one pair without that of the empty loop.
.macro EVENT name, first, second
    MEASURE "\first", "\second"
    call cost_of_one
    push eax
    SAY "event \name "
    pop eax
    mov edx, eax
    shr edx, 16
    call print_number
    SAY "\r\n"
.endm

.global do_flags
do_flags:
    mov dx, offset event_handler
    mov ax, 0x2500 | EVENT_VECTOR
    int 0x21
    MEASURE
    mov [empty_loop], eax
    mov [empty_loop+4], edx
    EVENT int-iret, "int EVENT_VECTOR"
    EVENT far-call, "call LIBRARY:nothing_far"
    EVENT cli-sti, cli, sti
    EVENT pushf-popf, pushf, popf
    mov ax, [options+COUNT]
    call count_rounds
    mov ax, [options+COUNT+2]
    push es
    mov bx, RESIDENT
    mov es, bx
    add es:[tally_rounds+2], ax
    pop es
    jmp report

    .balign 16
event_handler:
    iret

start_clock:
    rdtsc
    mov [started], eax
    mov [started+4], edx
    ret
read_clock:                      # returns in EDX:EAX the cycles since then
    rdtsc
    sub eax, [started]
    sbb edx, [started+4]
    ret
cost_of_one:                     # EDX:EAX cycles of a whole loop: those of one pair in EAX
    sub eax, [empty_loop]
    sbb edx, [empty_loop+4]
    jc 1f
    mov ecx, [options+COUNT]
    mov ebx, ecx
    shr ebx, 1
    add eax, ebx
    adc edx, 0
    div ecx
    ret
1:  xor eax, eax                 # less time than the empty loop
    ret

.section .program_data, "aw"
    .balign 4
started: .quad 0
empty_loop: .quad 0
