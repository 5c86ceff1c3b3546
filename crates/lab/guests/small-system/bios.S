# The BIOS: the start of the system, its vectors, and the timer. Each of its services has a
# separate file.
.include "layout.inc"

.section .bios, "ax"
.code16

# VECTOR number, handler: a line of the table that bios_start installs.
.macro VECTOR number, handler
    .word (\number)*4, offset \handler
.endm

.global bios_start
bios_start:                      # entered in real mode or as a virtual-8086 task, with IF clear
    cli
    cld
    mov ax, PROGRAM
    mov ss, ax
    mov sp, 0xFFFE
    mov ax, cs
    mov ds, ax
    xor ax, ax
    mov es, ax
    xor di, di                   # a vector without a handler returns
    mov cx, 256
1:  mov ax, offset nothing
    stosw
    mov ax, cs
    stosw
    loop 1b
    mov si, offset vectors
2:  lodsw
    mov di, ax
    movsw
    mov ax, cs
    stosw
    cmp si, offset vectors_end
    jne 2b
    call keyboard_start
    call serial_start
    call screen_start
    mov al, 0x36                 # channel 0: both bytes, square wave
    out TIMER_CONTROL, al
    mov ax, PARAMETERS
    mov ds, ax
    mov ax, ds:[DIVISOR]
    out TIMER_CHANNEL_0, al
    mov al, ah
    out TIMER_CHANNEL_0, al
    jmp DOS:dos_start

vectors:
    VECTOR 0x08, timer_interrupt
    VECTOR 0x09, keyboard_interrupt
    VECTOR 0x0C, serial_interrupt
    VECTOR 0x10, screen_service
    VECTOR 0x13, disk_service
    VECTOR 0x16, keyboard_service
    VECTOR 0x1A, clock_service
    VECTOR 0x1C, user_tick
vectors_end:

nothing:
    iret

# --- IRQ 0 ----------------------------------------------------------------------
.set TICK_COUNT, 0x6C            # in BIOS_DATA
.set MIDNIGHT_PASSED, 0x70
.set TICKS_OF_A_DAY, 0x1800B0

timer_interrupt:
    sti
    push ds
    push ax
    push dx
    mov ax, BIOS_DATA
    mov ds, ax
    inc word ptr ds:[TICK_COUNT]
    jnz 1f
    inc word ptr ds:[TICK_COUNT+2]
1:  cmp word ptr ds:[TICK_COUNT+2], TICKS_OF_A_DAY >> 16
    jne 2f
    cmp word ptr ds:[TICK_COUNT], TICKS_OF_A_DAY & 0xFFFF
    jne 2f
    mov word ptr ds:[TICK_COUNT], 0
    mov word ptr ds:[TICK_COUNT+2], 0
    mov byte ptr ds:[MIDNIGHT_PASSED], 1
2:  TALLY tally_ticks, cs
    int 0x1C                     # calls the hooks of programs
    cli
    mov al, END_OF_INTERRUPT
    out PIC_COMMAND, al
    pop dx
    pop ax
    pop ds
    iret

user_tick:                       # INT 1Ch: the end of the chain of hooks
    TALLY tally_1c, cs
    iret

# --- INT 1Ah: AH=0 returns the ticks since midnight in CX:DX; AL: midnight has passed ------
clock_service:
    sti
    push ds
    push ax
    mov ax, BIOS_DATA
    mov ds, ax
    pop ax
    or ah, ah
    jnz 1f
    cli
    mov al, ds:[MIDNIGHT_PASSED]
    mov byte ptr ds:[MIDNIGHT_PASSED], 0
    mov cx, ds:[TICK_COUNT+2]
    mov dx, ds:[TICK_COUNT]
    sti
1:  pop ds
    iret

# --- counters for the report at the end ---------------------------------------------
.section .bios_data, "aw"
.global tally_ticks, tally_1c, tally_16, tally_polls, tally_sectors, tally_typed
.global tally_printed
    .balign 4
tally_ticks: .long 0
tally_1c: .long 0
tally_16: .long 0
tally_polls: .long 0
tally_sectors: .long 0
tally_typed: .long 0
tally_printed: .long 0
