# The option ROM of `--guest-hooks dos`: handlers for INT 10h, 13h, 16h and 1Ah that are installed before any
# program. The hooks of programs therefore run first and pass calls on to these handlers, as they would to the
# BIOS. The handlers execute the most frequent calls of DOS programs fast, and pass all others on to the handlers
# that they found.
#
#   INT 16h   Functions 0 and 10h wait for a key in HLT, and then pass the call on. Functions 1 and 11h answer
#             without the BIOS if there is no key. A program that asks POLLS times within a tick of the clock,
#             without output, disk accesses or keys in between, waits for the next interrupt. It waits again if
#             AGAIN more questions find no key. (DOS asks hundreds of times while it works, for Ctrl-C.)
#   INT 10h   In text modes of page 0 these functions are executed here: set the cursor (2), get the cursor (3),
#             and write a character and advance (0Eh), unless the screen scrolls.
#   INT 13h   The call is passed on; an access to a disk shows that the program works.
#   INT 1Ah   Function 0, which returns the time, is executed here.
#
# Firmware calls `initialize` while the ROM is still writable, and the vectors found then are stored in it.
# Variables that change later are in a KiB that is taken from the top of the memory below 640 KiB.
.intel_syntax noprefix
.code16

.set POLLS, 1024
.set AGAIN, 64

# The vectors, and the BIOS data area from linear address 400h on.
.set VECTOR_10, 0x10 * 4
.set VECTOR_13, 0x13 * 4
.set VECTOR_16, 0x16 * 4
.set VECTOR_1A, 0x1A * 4
.set BIOS_DATA, 0x40             # segment
.set MEMORY_KIB, 0x13
.set KEYS_HEAD, 0x1A
.set KEYS_TAIL, 0x1C
.set VIDEO_MODE, 0x49
.set COLUMNS, 0x4A
.set CURSOR, 0x50                # of page 0: column, row
.set CURSOR_SHAPE, 0x60
.set PAGE, 0x62
.set CRT_PORT, 0x63
.set TICKS, 0x6C
.set MIDNIGHT, 0x70
.set LAST_ROW, 0x84
.set COLOUR_TEXT, 0xB800
.set CURSOR_HIGH, 0x0E           # registers of the CRT controller
.set CURSOR_LOW, 0x0F

.set FLAGS, 4                    # on the stack after the return address
.set FLAG_C, 0x01
.set FLAG_Z, 0x40
.set FLAG_I, 0x200

# Offsets in the KiB of these hooks.
.set POLLED, 0                   # empty answers since the last activity
.set POLLED_AT, 2                # the tick in which they were counted

.text
    .byte 0x55, 0xAA, ROM_BYTES / 512
    jmp initialize
    .ascii "Tollgate hooks for DOS"

initialize:                      # far call from firmware
    pushf
    cli
    push ax
    push ds
    push es
    push cs
    pop es
    xor ax, ax
    mov ds, ax
    .macro HOOK number, handler
    mov ax, [VECTOR_\number]
    mov es:[previous_\number], ax
    mov ax, [VECTOR_\number+2]
    mov es:[previous_\number+2], ax
    mov word ptr [VECTOR_\number], offset \handler
    mov [VECTOR_\number+2], es
    .endm
    HOOK 10, video
    HOOK 13, disk
    HOOK 16, keyboard
    HOOK 1A, clock
    mov ax, BIOS_DATA
    mov ds, ax
    dec word ptr [MEMORY_KIB]
    mov ax, [MEMORY_KIB]
    shl ax, 6
    mov es:[own_segment], ax
    mov ds, ax
    mov word ptr [POLLED], 0
    mov word ptr [POLLED_AT], 0
    pop es
    pop ds
    pop ax
    popf
    retf

previous_10: .long 0
previous_13: .long 0
previous_16: .long 0
previous_1A: .long 0
own_segment: .word 0

# SOMEBODY_WORKS resets the count of empty answers. It preserves all registers and flags.
.macro SOMEBODY_WORKS
    push ds
    mov ds, cs:[own_segment]
    mov word ptr [POLLED], 0
    pop ds
.endm

# --- INT 13h: disks -------------------------------------------------------------------------
disk:
    SOMEBODY_WORKS
    jmp far ptr cs:[previous_13]

# --- INT 16h: the keyboard --------------------------------------------------------------------
keyboard:
    push ds
    push ax
    mov ax, BIOS_DATA
    mov ds, ax
    pop ax
    test ah, 0xEF                # 0 and 10h: take a key
    jz take
    push ax
    and ah, 0xEF                 # 1 and 11h: is there a key?
    cmp ah, 1
    pop ax
    je ask
on_to_previous:
    pop ds
    jmp far ptr cs:[previous_16]

take:
    push ax
1:  mov ax, [KEYS_HEAD]
    cmp ax, [KEYS_TAIL]
    jne 2f
    sti                          # an interrupt that arrives before HLT ends the HLT
    hlt
    cli
    jmp 1b
2:  mov ds, cs:[own_segment]
    mov word ptr [POLLED], 0
    pop ax
    jmp on_to_previous

ask:
    push ax
    mov ax, [KEYS_HEAD]
    cmp ax, [KEYS_TAIL]
    jne key_is_there
    push bx
    mov ax, [TICKS]
    mov ds, cs:[own_segment]
    mov bx, [POLLED]
    inc bx
    cmp ax, [POLLED_AT]
    je 1f
    mov [POLLED_AT], ax
    cmp bx, POLLS - AGAIN        # a program that waited for the last tick may wait again
    ja 1f
    mov bx, 1
1:  mov [POLLED], bx
    cmp bx, POLLS
    jb 3f
    mov word ptr [POLLED], POLLS - AGAIN
    push bp
    mov bp, sp
    test word ptr [bp + 8 + FLAGS], FLAG_I
    pop bp
    jz 3f                        # no interrupt would end the wait
    sti
    hlt
    cli
3:  pop bx
    mov ax, BIOS_DATA
    mov ds, ax
    mov ax, [KEYS_HEAD]
    cmp ax, [KEYS_TAIL]
    jne key_is_there
    pop ax
    pop ds
    push bp
    mov bp, sp
    or byte ptr [bp + 2 + FLAGS], FLAG_Z
    pop bp
    iret
key_is_there:
    mov ds, cs:[own_segment]
    mov word ptr [POLLED], 0
    pop ax
    jmp on_to_previous

# --- INT 1Ah: the clock -------------------------------------------------------------------------
clock:
    test ah, ah
    jnz 1f
    push ds
    mov cx, BIOS_DATA
    mov ds, cx
    mov cx, [TICKS+2]            # interrupts are disabled
    mov dx, [TICKS]
    mov al, [MIDNIGHT]
    mov byte ptr [MIDNIGHT], 0
    pop ds
    push bp
    mov bp, sp
    and byte ptr [bp + 2 + FLAGS], ~FLAG_C & 0xFF
    pop bp
    iret
1:  jmp far ptr cs:[previous_1A]

# --- INT 10h: the screen --------------------------------------------------------------------------
video:
    push ds
    push ax
    mov ds, cs:[own_segment]
    mov word ptr [POLLED], 0
    mov ax, BIOS_DATA
    mov ds, ax
    mov al, [VIDEO_MODE]
    and al, 0x7E                 # modes 2 and 3: colour text
    cmp al, 2
    jne 1f
    cmp byte ptr [PAGE], 0
    jne 1f
    pop ax
    cmp ah, 0x0E
    je teletype
    test bh, bh                  # the page
    jnz 2f
    cmp ah, 0x02
    je move_cursor
    cmp ah, 0x03
    je tell_cursor
    jmp 2f
1:  pop ax
2:  pop ds
    jmp far ptr cs:[previous_10]

move_cursor:                     # DH row, DL column
    cmp dl, [COLUMNS]
    jae 2b
    cmp dh, [LAST_ROW]
    ja 2b
    push ax
    push dx
    mov [CURSOR], dx
    call show_cursor
    pop dx
    pop ax
    pop ds
    iret
tell_cursor:
    mov dx, [CURSOR]
    mov cx, [CURSOR_SHAPE]
    pop ds
    iret

teletype:                        # AL
    push ax
    push dx
    mov dx, [CURSOR]
    cmp al, 0x0D
    je 4f
    cmp al, 0x0A
    je 5f
    cmp al, 0x08
    jbe 9f                       # backspace, bell, and characters that are rarely printed
    inc dl                       # the column after it
    cmp dl, [COLUMNS]
    jae 9f                       # the line wraps
    push bx
    push es
    call place
    mov bx, COLOUR_TEXT
    mov es, bx
    mov bx, dx
    mov es:[bx-2], al
    pop es
    pop bx
    mov dx, [CURSOR]
    inc dl
    jmp 6f
4:  xor dl, dl
    jmp 6f
5:  inc dh
    cmp dh, [LAST_ROW]
    ja 9f                        # the screen scrolls
6:  mov [CURSOR], dx
    call show_cursor
    pop dx
    pop ax
    pop ds
    iret
9:  pop dx
    pop ax
    jmp 2b

place:                           # takes row and column in DX, returns the offset in the page in DX
    push ax
    mov al, dh
    mul byte ptr [COLUMNS]
    xor dh, dh
    add dx, ax
    shl dx, 1
    pop ax
    ret

show_cursor:                     # takes the position in DX, changes AX and DX
    push bx
    call place
    mov bx, dx
    shr bx, 1
    mov dx, [CRT_PORT]
    mov ah, bh
    mov al, CURSOR_HIGH
    out dx, ax
    mov ah, bl
    mov al, CURSOR_LOW
    out dx, ax
    pop bx
    ret

.set ROM_BYTES, 1024             # the last byte is a checksum
    .org ROM_BYTES - 1
    .byte 0
