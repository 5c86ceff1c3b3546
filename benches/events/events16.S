# events16 - single events of 16-bit code in real mode
.include "guest.inc"
.include "real.inc"
.include "events.inc"

.set LOW_STACK, 0x4000
.set RESULTS, 0x5000             # the results of all events, one after the other
.set EACH, 4 * (SAMPLES + WARM + BATCHES + 1)
.set CODE16, FREE
.set DATA16, FREE+8
.set RETURNING, 0x60             # its handler returns immediately

.set events, 0
# REAL_MODE name, "instructions": measures an event in real mode; fs holds RESULTS.
.macro REAL_MODE name, instructions
    .set base, events * EACH
    mov ebp, SAMPLES+WARM
1:  READ_COUNTER
    mov esi, eax
    \instructions
    READ_COUNTER
    sub eax, esi
    mov fs:[ebp*4+base], eax
    dec ebp
    jnz 1b
    mov edi, BATCHES
2:  READ_COUNTER
    mov esi, eax
    mov ebp, BATCH
3:  \instructions
    dec ebp
    jnz 3b
    READ_COUNTER
    sub eax, esi
    mov fs:[edi*4+base+SAMPLES*4], eax
    dec edi
    jnz 2b
    .set events, events + 1
    .pushsection .rodata
name_\@:
    .asciz "event \name"
    .popsection
    .pushsection .names, "a"
    .long name_\@
    .popsection
.endm
.section .names, "a"
first_name:
.text

main:
    DESCRIPTOR CODE16, REAL*16, 0xFFFF, SEG_CODE
    DESCRIPTOR DATA16, 0, 0xFFFF, SEG_DATA
    call place_real
    mov [kernel_esp], esp
    jmp CODE16:0

real_over:                       # protected mode again
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    mov ss, eax
    mov esp, [kernel_esp]
    lidt [idt_pointer]
    xor ebx, ebx
1:  mov esi, RESULTS*16          # the form that `print_results` expects
    imul eax, ebx, EACH
    add esi, eax
    mov edi, offset results
    mov ecx, EACH / 4
    rep movsd
    mov edi, [first_name+ebx*4]
    push ebx
    call print_results
    pop ebx
    inc ebx
    .att_syntax
    cmpl $event_count, %ebx
    .intel_syntax noprefix
    jb 1b
    ret

    .code16
real:                            # offset 0 of REAL, still in protected mode
    mov ax, DATA16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov fs, ax
    mov gs, ax
    lidt cs:[REAL_IDT]
    mov eax, cr0
    and al, ~CR0_PE
    mov cr0, eax
    .att_syntax
    ljmp $REAL, $1f-real
    .intel_syntax noprefix
    .set REAL_IDT, 0x40
    .org real + REAL_IDT
    .word 0x3FF
    .long 0
1:  mov ax, NOTES
    mov gs, ax
    mov ax, LOW_STACK
    mov ss, ax
    mov esp, 0x1000
    xor ax, ax
    mov es, ax
    mov ds, ax
    mov ax, RESULTS
    mov fs, ax
    .att_syntax
    movw $returning-real, %es:RETURNING*4
    movw $undefined-real, %es:EXC_UD*4
    .intel_syntax noprefix
    mov word ptr es:[RETURNING*4+2], REAL
    mov word ptr es:[EXC_UD*4+2], REAL
    REAL_MODE "no-op", ""
    REAL_MODE "cpuid", "xor eax, eax; cpuid"
    REAL_MODE "int-iret", "int RETURNING"
    REAL_MODE "far-call-ret", "call REAL:far_return-real"
    REAL_MODE "mov-ds", "xor ax, ax; mov ds, ax"
    REAL_MODE "push-pop-ds", "push ds; pop ds"
    REAL_MODE "cli-sti-cli", "cli; sti; cli"
    REAL_MODE "pushf-popf", "pushf; popf"
    REAL_MODE "in-80h", "in al, 0x80"
    REAL_MODE "out-80h", "out 0x80, al"
    REAL_MODE "in-21h", "in al, 0x21"
    REAL_MODE "out-21h", "mov al, 0xFB; out 0x21, al"
    REAL_MODE "in-61h", "in al, 0x61"
    REAL_MODE "in-uart-lsr", "mov dx, UART_LSR; in al, dx"
    REAL_MODE "out-uart-scr", "mov dx, UART_SCR; out dx, al"
    REAL_MODE "in-pm-timer", "mov dx, PM_TIMER; in eax, dx"
    REAL_MODE "mov-from-cr0", "mov eax, cr0"
    REAL_MODE "ud2-iret", "ud2"
    mov eax, cr0
    or al, CR0_PE
    mov cr0, eax
    .byte 0x66, 0xEA             # a far jump with a 32-bit offset
    .long real_over
    .word CODE

returning:
    iret
far_return:
    retf
undefined:
    push bp
    mov bp, sp
    add word ptr [bp+2], 2
    pop bp
    iret
real_end:
    .code32

.set event_count, events
END_OF_FACTS
PRINTER puts, put_hex
