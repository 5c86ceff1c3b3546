# RPN.COM SOURCE PROGRAM: a compiler. The source consists of numbers and the words + - * / and . (which
# prints a number), with operators after their operands; the output is a .COM program. The arithmetic is
# unsigned with 16 bits.
.include "layout.inc"

.set SOURCE, 0x4000
.set SOURCE_BYTES, 0x2000
.set OUTPUT, 0x8000              # the program, in the form that it will have from 100h on

.section .start, "ax"
.code16
    cld
    mov si, ARGUMENTS
    call next_name
    push dx
    call next_name
    mov [program], dx
    pop dx
    mov ax, DOS_OPEN << 8
    int 0x21
    jc fail
    mov bx, ax
    mov ah, DOS_READ
    mov dx, SOURCE
    mov cx, SOURCE_BYTES
    int 0x21
    jc fail
    mov si, SOURCE
    add si, ax
    mov byte ptr [si], 0         # the end of the source
    mov ah, DOS_CLOSE
    int 0x21

    mov si, offset run_time      # it precedes every program
    mov di, OUTPUT
    mov cx, offset run_time_end - run_time
    rep movsb
    mov si, SOURCE
compile:
    lodsb
    test al, al
    jz complete
    cmp al, ' '
    jbe compile
    cmp al, '0'
    jb 1f
    cmp al, '9'
    jbe number
1:  mov bx, offset words
2:  mov cl, [bx]                 # the bytes are: the word, the length of its code, its code
    test cl, cl
    jz fail
    cmp cl, al
    mov cl, [bx+1]
    lea bx, [bx+2]
    je 3f
    add bl, cl
    adc bh, 0
    jmp 2b
3:  xor ch, ch
    push si
    mov si, bx
    rep movsb
    pop si
    cmp al, '.'
    jne compile
    mov al, 0xE8                 # a call: the run-time code prints AX
    stosb
    mov ax, OUTPUT + (show_number - run_time) - 2
    sub ax, di
    stosw
    jmp compile
number:
    xor bx, bx
1:  sub al, '0'
    xor ah, ah
    xchg ax, bx
    mov cx, 10
    mul cx
    add bx, ax
    lodsb
    cmp al, '0'
    jb 2f
    cmp al, '9'
    jbe 1b
2:  dec si
    mov al, 0xB8                 # mov ax, number
    stosb
    mov ax, bx
    stosw
    mov al, 0x50                 # push ax
    stosb
    jmp compile
complete:
    mov si, offset ending
    mov cx, offset ending_end - ending
    rep movsb
    mov ah, DOS_CREATE
    xor cx, cx
    mov dx, [program]
    int 0x21
    jc fail
    mov bx, ax
    mov cx, di
    mov dx, OUTPUT
    sub cx, dx
    mov ah, DOS_WRITE
    int 0x21
    jc fail
    mov ah, DOS_CLOSE
    int 0x21
    mov ax, DOS_EXIT << 8
    int 0x21
fail:
    mov ah, DOS_PRINT
    mov dx, offset refused
    int 0x21
    mov ax, DOS_EXIT << 8 | 1
    int 0x21

next_name:                       # returns in DX the zero-terminated name at SI, and leaves SI after it
    SKIP_SPACES
    mov dx, si
3:  lodsb
    cmp al, ' '
    ja 3b
    mov byte ptr [si-1], 0
    ret

refused: .ascii "rpn: wrong source, or DOS refuses a file\r\n$"

# CODE character, instructions: defines the code of a word.
.macro CODE character, first, second=, third=, fourth=, fifth=
    .ascii "\character"
    .byte 4f - 3f
3:  \first
    \second
    \third
    \fourth
    \fifth
4:
.endm
words:
    CODE "+", "pop bx", "pop ax", "add ax, bx", "push ax"
    CODE "-", "pop bx", "pop ax", "sub ax, bx", "push ax"
    CODE "*", "pop bx", "pop ax", "mul bx", "push ax"
    CODE "/", "pop bx", "pop ax", "xor dx, dx", "div bx", "push ax"
    CODE ".", "pop ax"
    .byte 0

run_time:
    jmp run_time_end
show_number:                     # prints AX and a space
    mov bx, 10
    xor cx, cx
1:  xor dx, dx
    div bx
    push dx
    inc cx
    test ax, ax
    jnz 1b
2:  pop dx
    add dl, '0'
    mov ah, 0x02
    int 0x21
    loop 2b
    mov dl, ' '
    mov ah, 0x02
    int 0x21
    ret
run_time_end:
ending:
    mov ax, DOS_EXIT << 8
    int 0x21
ending_end:

.section .program_data, "aw"
    .balign 2
program: .word 0
