# TSR.COM stays in memory. It hooks INT 16h, where it makes a "q" of each "z" that is typed and counts the keys
# that it has changed (AH = EEh: AX the count), and INT 21h, where it puts a star before what function 9 prints.
.include "com.inc"

.text
    jmp install

hook_16:
    cmp ah, 0xEE
    je answer
    push ax
    and ah, 0xEF                 # 10h is 0 of longer keyboards
    test ah, ah
    pop ax
    jz 1f
    jmp far ptr cs:[previous_16]
1:  pushf
    call far ptr cs:[previous_16]
    cmp al, 'z'
    jne 2f
    mov al, 'q'
    inc word ptr cs:[changed]
2:  iret
answer:
    mov ax, cs:[changed]
    iret

hook_21:
    cmp ah, DOS_PRINT
    jne 3f
    push ax
    push dx
    mov dl, '*'
    mov ah, 0x02
    pushf
    call far ptr cs:[previous_21]
    pop dx
    pop ax
3:  jmp far ptr cs:[previous_21]

previous_16: .long 0
previous_21: .long 0
changed: .word 0
resident_end:

.macro HOOK number
    mov ax, DOS_GET_VECTOR << 8 | 0x\number
    int 0x21
    mov [previous_\number], bx
    mov [previous_\number+2], es
    mov dx, offset hook_\number
    mov ax, DOS_SET_VECTOR << 8 | 0x\number
    int 0x21
.endm
install:
    HOOK 16
    HOOK 21
    mov dx, offset resident_end + 15
    shr dx, 4
    mov ax, DOS_STAY_RESIDENT << 8
    int 0x21
