# The disk: sectors in memory, which INT 13h presents as a diskette with one side.
.include "layout.inc"

.section .bios, "ax"
.code16

.set FUNCTION_READ, 2
.set FUNCTION_WRITE, 3
.set STATUS_BAD_COMMAND, 0x01
.set STATUS_NO_SUCH_SECTOR, 0x04

# AH=2 reads, AH=3 writes AL sectors from track CH, sector CL (1..8), side DH, drive DL, to or from
# ES:BX. The carry that IRET returns says whether AH holds an error.
.global disk_service
disk_service:
    sti
    cld
    push bp
    mov bp, sp
    push bx
    push cx
    push dx
    push si
    push di
    push ds
    push es
    cmp ah, FUNCTION_READ
    je 1f
    cmp ah, FUNCTION_WRITE
    je 1f
    mov ah, STATUS_BAD_COMMAND
    jmp 8f
1:  or dx, dx                    # drive A, side 0
    jnz 7f
    cmp ch, TRACKS
    jae 7f
    dec cl
    cmp cl, SECTORS_PER_TRACK
    jae 7f
    push ax                      # the number of the first sector, in SI
    mov al, SECTORS_PER_TRACK
    mul ch
    xor ch, ch
    add ax, cx
    mov si, ax
    pop ax
    mov cl, al
    add cx, si
    cmp cx, TRACKS*SECTORS_PER_TRACK
    ja 7f
    mov dx, ax                   # DH is the function, DL the number of remaining sectors
    mov di, bx
2:  or dl, dl
    jz 6f
    mov ax, SECTOR / 16          # the segment of the sector
    push dx
    mul si
    pop dx
    add ax, DISK
    mov cx, SECTOR / 2
    push si
    cmp dh, FUNCTION_WRITE
    je 3f
    mov ds, ax
    xor si, si
    rep movsw
    jmp 4f
3:  push es                      # copy from the caller's memory to the disk
    push es
    pop ds
    mov es, ax
    mov si, di
    xor di, di
    rep movsw
    mov di, si
    pop es
4:  pop si
    TALLY tally_sectors, cs
    inc si
    dec dl
    jmp 2b
6:  mov ah, 0
    and byte ptr [bp+6], ~CARRY & 0xFF
    jmp 9f
7:  mov ah, STATUS_NO_SUCH_SECTOR
8:  or byte ptr [bp+6], CARRY
9:  pop es
    pop ds
    pop di
    pop si
    pop dx
    pop cx
    pop bx
    pop bp
    iret
