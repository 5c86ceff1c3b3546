# The keyboard: IRQ 1 from the 8042 and IRQ 4 from the 16550 fill the ring buffer of the BIOS data
# area, and INT 16h empties it.
.include "layout.inc"

.section .bios, "ax"
.code16

# Offsets in BIOS_DATA, as on a PC. The ring buffer has 16 words, with ASCII in the low byte and the
# scan code in the high byte.
.set SHIFTS, 0x17
.set SHIFT_DOWN, 0x03            # the bits of both Shift keys
.set RING_HEAD, 0x1A
.set RING_TAIL, 0x1C
.set RING, 0x1E
.set RING_END, 0x3E

.set COMMAND_WRITE_CONFIGURATION, 0x60
.set COMMAND_ENABLE_KEYBOARD, 0xAE
.set CONFIGURATION, 0x65         # interrupt, system flag, auxiliary port off, translation
.set OUTPUT_FULL, 1
.set INPUT_FULL, 2
.set SCAN_LEFT_SHIFT, 0x2A
.set SCAN_RIGHT_SHIFT, 0x36
.set RELEASED, 0x80

# --- scan codes of set 1 ------------------------------------------------------------
.global plain_keys
plain_keys:
    .byte 0, 27
    .ascii "1234567890-="
    .byte 8, 9
    .ascii "qwertyuiop[]"
    .byte 13, 0
    .ascii "asdfghjkl;'`"
    .byte 0
    .ascii "\\zxcvbnm,./"
    .byte 0
    .ascii "*"
    .byte 0
    .ascii " "
plain_keys_end:
.global KEYS
.set KEYS, plain_keys_end - plain_keys
shifted_keys:
    .byte 0, 27
    .ascii "!@#$%^&*()_+"
    .byte 8, 0
    .ascii "QWERTYUIOP{}"
    .byte 13, 0
    .ascii "ASDFGHJKL:\"~"
    .byte 0
    .ascii "|ZXCVBNM<>?"
    .byte 0
    .ascii "*"
    .byte 0
    .ascii " "

# --- start --------------------------------------------------------------------
.global keyboard_start, serial_start
keyboard_start:
    push ds
    mov ax, BIOS_DATA
    mov ds, ax
    mov word ptr ds:[RING_HEAD], RING
    mov word ptr ds:[RING_TAIL], RING
    pop ds
    mov al, COMMAND_WRITE_CONFIGURATION
    out KEYBOARD_COMMAND, al
    call wait_for_controller
    mov al, CONFIGURATION
    out KEYBOARD_DATA, al
    call wait_for_controller
    mov al, COMMAND_ENABLE_KEYBOARD
    out KEYBOARD_COMMAND, al
    call wait_for_controller
1:  in al, KEYBOARD_COMMAND      # drop old bytes
    test al, OUTPUT_FULL
    jz 2f
    in al, KEYBOARD_DATA
    jmp 1b
2:  ret
wait_for_controller:
    in al, KEYBOARD_COMMAND
    test al, INPUT_FULL
    jnz wait_for_controller
    ret

serial_start:
    mov dx, COM1_LINE_CONTROL    # 115200 baud, 8N1
    mov al, 0x83
    out dx, al
    mov dx, COM1
    mov al, 1
    out dx, al
    inc dx
    mov al, 0
    out dx, al
    mov dx, COM1_LINE_CONTROL
    mov al, 3
    out dx, al
    mov dx, COM1_MODEM_CONTROL   # OUT2 enables its interrupt
    mov al, 0x0B
    out dx, al
    mov dx, COM1_INTERRUPT_ENABLE
    mov al, 1
    out dx, al
    ret

# --- IRQ 1 ----------------------------------------------------------------------
.global keyboard_interrupt
keyboard_interrupt:
    sti
    push ax
    push bx
    push ds
    mov ax, BIOS_DATA
    mov ds, ax
    in al, KEYBOARD_DATA
    mov ah, al
    and al, 0x7F
    cmp al, SCAN_LEFT_SHIFT
    mov bl, 2
    je 1f
    cmp al, SCAN_RIGHT_SHIFT
    mov bl, 1
    jne 3f
1:  test ah, RELEASED
    jnz 2f
    or ds:[SHIFTS], bl
    jmp 9f
2:  not bl
    and ds:[SHIFTS], bl
    jmp 9f
3:  test ah, RELEASED
    jnz 9f
    cmp al, KEYS
    jae 9f
    mov bx, offset plain_keys
    test byte ptr ds:[SHIFTS], SHIFT_DOWN
    jz 4f
    mov bx, offset shifted_keys
4:  cs xlatb
    or al, al
    jz 9f
    cli
    call put_into_ring
9:  cli
    mov al, END_OF_INTERRUPT
    out PIC_COMMAND, al
    pop ds
    pop bx
    pop ax
    iret

# --- IRQ 4: a line feed from the host means Enter -----------------------------------
.global serial_interrupt
serial_interrupt:
    sti
    push ax
    push bx
    push dx
    push ds
    mov ax, BIOS_DATA
    mov ds, ax
1:  mov dx, COM1_LINE_STATUS
    in al, dx
    test al, DATA_READY
    jz 9f
    cli
    call next_in_ring            # no room: the byte stays in the 16550 until INT 16h
    cmp bx, ds:[RING_HEAD]       # has made room
    jne 2f
    mov dx, COM1_INTERRUPT_ENABLE
    mov al, 0
    out dx, al
    jmp 9f
2:  mov dx, COM1
    in al, dx
    xor ah, ah
    cmp al, '\n'
    jne 3f
    mov al, '\r'
3:  call put_into_ring
    sti
    jmp 1b
9:  cli
    mov al, END_OF_INTERRUPT
    out PIC_COMMAND, al
    pop ds
    pop dx
    pop bx
    pop ax
    iret

# --- the ring; interrupts are off, DS is BIOS_DATA -----------------------------------
next_in_ring:                    # returns in BX the next position of the tail
    mov bx, ds:[RING_TAIL]
    add bx, 2
    cmp bx, RING_END
    jne 1f
    mov bx, RING
1:  ret
put_into_ring:                   # puts AX into the ring, or drops it if the ring is full; BX is lost
    call next_in_ring
    cmp bx, ds:[RING_HEAD]
    je 1f
    xchg bx, ds:[RING_TAIL]
    mov [bx], ax
1:  ret

# --- INT 16h ----------------------------------------------------------------------
# AH=0 waits for a key and returns it in AX. AH=1 looks for a key: ZF if there is none, else AX.
# AH=2 returns the shift keys in AL.
.global keyboard_service
keyboard_service:
    sti
    push ds
    push bx
    mov bx, BIOS_DATA
    mov ds, bx
    TALLY tally_16, cs
    or ah, ah
    jz 1f
    dec ah
    jz 3f
    dec ah
    jnz 9f
    mov al, ds:[SHIFTS]
    jmp 9f
1:  sti                          # interrupts must be able to come in
    nop
    cli
    mov bx, ds:[RING_HEAD]
    cmp bx, ds:[RING_TAIL]
    je 1b
    mov ax, [bx]
    add bx, 2
    cmp bx, RING_END
    jne 2f
    mov bx, RING
2:  mov ds:[RING_HEAD], bx
    TALLY tally_typed, cs
    push ax                      # there is room again for bytes that the 16550 holds
    push dx
    mov dx, COM1_INTERRUPT_ENABLE
    mov al, 1
    out dx, al
    pop dx
    pop ax
9:  pop bx
    pop ds
    iret
3:  TALLY tally_polls, cs
    cli
    mov bx, ds:[RING_HEAD]
    cmp bx, ds:[RING_TAIL]
    mov ax, [bx]
    sti
    pop bx
    pop ds
    retf 2                       # return with the flags of the comparison
