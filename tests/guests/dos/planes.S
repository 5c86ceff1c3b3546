# PLANES.COM draws in mode 12h, of 16 colours in four planes, in the ways of programs of its time: bands by
# set/reset and REP STOSB, a copy of the upper lines by the latches in write mode 1, a diagonal whose points are
# set by AND, OR, XCHG and XOR under the bit mask, lines that come from memory by REP MOVSB and single MOVSB. Then it
# reads a plane back and compares. All of that ROUNDS times; then it waits for a key.
.include "com.inc"

.set ROUNDS, 40
.set LINE, 80                    # bytes
.set BAND, 30                    # lines of each colour
.set COPIED, 100                 # lines, to behind line 380
.set SPRITE, 8                   # bytes of each of 16 lines, from X = 320, Y = 200 on
.set SPRITE_AT, 200 * LINE + 40

.set GRAPHICS, 0x3CE
.set SET_RESET, 0
.set ENABLE_SET_RESET, 1
.set READ_MAP, 4
.set MODE, 5
.set BIT_MASK, 8

# SET register, value: of the graphics controller. AX and DX are lost.
.macro SET register, value
    mov dx, GRAPHICS
    mov ax, (\value) << 8 | \register
    out dx, ax
.endm

.text
    mov ax, 0x0012
    int 0x10
    cld
    mov ax, 0xA000
    mov es, ax
    mov byte ptr [rounds], ROUNDS

again:
    SET MODE, 0
    SET BIT_MASK, 0xFF
    SET ENABLE_SET_RESET, 0x0F
    xor di, di
    xor bl, bl
1:  mov ah, bl
    mov al, SET_RESET
    out dx, ax
    mov cx, BAND * LINE
    rep stosb
    inc bl
    cmp bl, 16
    jb 1b

    SET MODE, 1
    push ds
    push es
    pop ds
    xor si, si
    mov di, 380 * LINE
    mov cx, COPIED * LINE
    rep movsb
    pop ds

    # Points in white: X = Y.
    SET MODE, 0
    SET SET_RESET, 0x0F
    xor bx, bx
2:  mov cl, bl
    and cl, 7
    mov ah, 0x80
    shr ah, cl
    mov al, BIT_MASK
    mov dx, GRAPHICS
    out dx, ax
    imul di, bx, LINE
    mov ax, bx
    shr ax, 3
    add di, ax
    mov al, 0xFF
    mov cl, bl
    and cl, 3
    jz 3f
    dec cl
    jz 4f
    dec cl
    jz 5f
    xor es:[di], al
    jmp 6f
3:  and es:[di], al
    jmp 6f
4:  or es:[di], al
    jmp 6f
5:  xchg es:[di], al
6:  inc bx
    cmp bx, 480
    jb 2b

    # Lines of memory, in all planes.
    SET BIT_MASK, 0xFF
    SET ENABLE_SET_RESET, 0
    mov di, SPRITE_AT
    mov bl, 8
7:  mov si, offset pattern
    mov cx, SPRITE
    rep movsb
    add di, LINE - SPRITE
    mov si, offset pattern
    mov cx, SPRITE
8:  movsb
    loop 8b
    add di, LINE - SPRITE
    dec bl
    jnz 7b

    # Back to memory from plane 3, and compared there and here.
    SET READ_MAP, 3
    push ds
    push es
    pop ds
    pop es
    mov si, SPRITE_AT
    mov di, offset copy
    mov cx, SPRITE
    rep movsb
    mov si, SPRITE_AT + LINE
    mov di, offset copy
    mov cx, SPRITE
    repe cmpsb
    push ds
    push es
    pop ds
    pop es
    jne wrong
    push es
    push ds
    pop es
    mov si, offset copy
    mov di, offset pattern
    mov cx, SPRITE
    repe cmpsb
    pop es
    jne wrong

    dec byte ptr [rounds]
    jnz again

    mov ah, 0
    int 0x16
    mov ax, 0x0003
    int 0x10
    SAY "planes: drawn\r\n"
    EXIT 0
wrong:
    mov ax, 0x0003
    int 0x10
    SAY "planes: something else was read\r\n"
    EXIT 1

.data
rounds: .byte 0
pattern: .byte 0xAA, 0x55, 0xF0, 0x0F, 0xFF, 0x00, 0x81, 0x3C
.bss
copy: .skip SPRITE
