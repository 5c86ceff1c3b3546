# The console, called by INT 10h: a text page in memory, 80 by 25 characters with attributes,
# and the serial port, which sends the same text.
.include "layout.inc"

.section .bios, "ax"
.code16

.set COLUMNS, 80
.set ROWS, 25
.set BLANK, 0x0720               # a space, grey on black
.set CURSOR, 0x50                # in BIOS_DATA: the column in the low byte, the row in the high byte

.global screen_start
screen_start:
    push es
    mov ax, SCREEN
    mov es, ax
    xor di, di
    mov ax, BLANK
    mov cx, COLUMNS*ROWS
    rep stosw
    pop es
    ret

# --- INT 10h: AH=0Eh writes AL like a terminal; AH=3 reads the cursor into DX --------------
.global screen_service
screen_service:
    sti
    cld
    push es
    push ds
    push dx
    push cx
    push bx
    push si
    push di
    push ax
    mov bx, BIOS_DATA
    mov ds, bx
    mov bx, SCREEN
    mov es, bx
    cmp ah, 0x0E
    je 1f
    cmp ah, 3
    jne 9f
    mov di, sp
    mov dx, ds:[CURSOR]
    mov ss:[di+10], dx           # store it as the DX that is restored
    jmp 9f
1:  TALLY tally_printed, cs
    push ax
    call write_to_page
    pop ax
    call write_to_line
9:  pop ax
    pop di
    pop si
    pop bx
    pop cx
    pop dx
    pop ds
    pop es
    iret

write_to_page:                   # writes AL to the page
    mov dx, ds:[CURSOR]
    cmp al, '\r'
    je 2f
    cmp al, '\n'
    je 3f
    cmp al, 8
    je 4f
    mov bl, al
    call cell_of_cursor
    mov al, bl
    mov ah, BLANK >> 8
    stosw
    inc dl
    cmp dl, COLUMNS
    jb 9f
    mov dl, 0
    jmp 3f
2:  mov dl, 0
    jmp 9f
4:  or dl, dl
    jz 9f
    dec dl
    jmp 9f
3:  inc dh
    cmp dh, ROWS
    jb 9f
    dec dh
    call scroll
9:  mov ds:[CURSOR], dx
    ret
cell_of_cursor:                  # returns in DI the cell of row and column in DX
    mov al, COLUMNS
    mul dh
    xor ch, ch
    mov cl, dl
    add ax, cx
    shl ax, 1
    mov di, ax
    ret
scroll:
    push ds
    mov ax, es
    mov ds, ax
    mov si, COLUMNS*2
    xor di, di
    mov cx, COLUMNS*(ROWS-1)
    rep movsw
    mov ax, BLANK
    mov cx, COLUMNS
    rep stosw
    pop ds
    ret

write_to_line:                   # writes AL to the serial port
    mov ah, al
    mov dx, COM1_LINE_STATUS
1:  in al, dx
    test al, TRANSMITTER_EMPTY
    jz 1b
    mov dx, COM1
    mov al, ah
    out dx, al
    ret
