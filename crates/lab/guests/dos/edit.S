# EDIT.COM FILE: an editor. Displays the file, appends typed characters to it, and writes the file when
# Escape is pressed. Draws by INT 10h as editors of the time did: each key moves the cursor.
.include "layout.inc"

.set TEXT, 0x4000
.set TEXT_BYTES, 0x6000
.set VIDEO, 0x10
.set SET_CURSOR, 0x02            # functions of INT 10h, in AH
.set GET_CURSOR, 0x03
.set SCROLL_UP, 0x06
.set TELETYPE, 0x0E
.set STATUS_ROW, 24
.set TEXT_ROWS, 24
.set COLUMNS, 80
.set BRIGHT, 0x70
.set PLAIN, 0x07

.section .start, "ax"
.code16
    cld
    mov si, ARGUMENTS
    SKIP_SPACES
    mov dx, si
3:  lodsb                        # the name must end with a zero
    cmp al, ' '
    ja 3b
    mov byte ptr [si-1], 0
    mov [name], dx
    mov ax, DOS_OPEN << 8
    int 0x21
    jc fail
    mov bx, ax
    mov ah, DOS_READ
    mov dx, TEXT
    mov cx, TEXT_BYTES
    int 0x21
    jc fail
    mov [length], ax
    mov ah, DOS_CLOSE
    int 0x21
    call clear
    mov si, TEXT
    mov cx, [length]
    jcxz keys
4:  lodsb
    call show
    loop 4b

keys:
    call show_status
    mov ah, DOS_READ_KEY
    int 0x21
    cmp al, ESCAPE
    je save
    cmp al, BACKSPACE
    je rub_out
    cmp word ptr [length], TEXT_BYTES - 2
    jae keys
    cmp al, CARRIAGE_RETURN
    jne 1f
    call append
    mov al, LINE_FEED
1:  call append
    jmp keys
rub_out:
    mov bx, [length]
    test bx, bx
    jz keys
    cmp byte ptr TEXT[bx-1], LINE_FEED
    je keys                      # the cursor stays in the line
    dec word ptr [length]
    mov al, BACKSPACE
    call show
    mov al, ' '
    call show
    mov al, BACKSPACE
    call show
    jmp keys

append:                          # AL is the character to append
    mov bx, [length]
    mov TEXT[bx], al
    inc word ptr [length]
show:                            # shows AL at the cursor; the last row belongs to the status
    push cx
    push ax
    mov ah, TELETYPE
    mov bx, PLAIN
    int VIDEO
    mov ah, GET_CURSOR
    xor bh, bh
    int VIDEO
    cmp dh, TEXT_ROWS
    jb 1f
    mov ax, SCROLL_UP << 8 | 1
    mov bh, PLAIN
    xor cx, cx
    mov dx, (TEXT_ROWS - 1) << 8 | (COLUMNS - 1)
    int VIDEO
    mov dx, (TEXT_ROWS - 1) << 8
    call set_cursor
1:  pop ax
    pop cx
    ret
set_cursor:                      # DH is the row, DL the column
    mov ah, SET_CURSOR
    xor bh, bh
    int VIDEO
    ret
clear:
    mov ax, SCROLL_UP << 8
    mov bh, PLAIN
    xor cx, cx
    mov dx, STATUS_ROW << 8 | (COLUMNS - 1)
    int VIDEO
    xor dx, dx
    jmp set_cursor

show_status:                     # shows the number of bytes in the last row; the cursor stays
    mov ah, GET_CURSOR
    xor bh, bh
    int VIDEO
    push dx
    mov dx, STATUS_ROW << 8
    call set_cursor
    mov ax, [length]
    mov bx, 10
    mov cx, 5                    # the number of digits
1:  xor dx, dx
    div bx
    push dx
    loop 1b
    mov cx, 5
2:  pop ax
    add al, '0'
    mov ah, TELETYPE
    mov bx, BRIGHT
    int VIDEO
    loop 2b
    pop dx
    jmp set_cursor

save:
    mov ah, DOS_CREATE
    xor cx, cx
    mov dx, [name]
    int 0x21
    jc fail
    mov bx, ax
    mov ah, DOS_WRITE
    mov cx, [length]
    mov dx, TEXT
    int 0x21
    jc fail
    mov ah, DOS_CLOSE
    int 0x21
    call clear
    mov ax, DOS_EXIT << 8
    int 0x21
fail:
    mov ah, DOS_PRINT
    mov dx, offset refused
    int 0x21
    mov ax, DOS_EXIT << 8 | 1
    int 0x21

refused: .ascii "edit: DOS refuses the file\r\n$"

.section .program_data, "aw"
    .balign 2
name: .word 0
length: .word 0
