# Routines that several programs for DOS call.
.include "layout.inc"
.include "program.inc"

.section .program, "ax"
.code16

.global print_number
print_number:                    # prints DX:AX in decimal, DX below 10; AX and DX are lost
    push bx
    push cx
    mov bx, 10
    xor cx, cx                   # puts the digits on the stack
1:  div bx
    push dx
    inc cx
    xor dx, dx
    test ax, ax
    jnz 1b
2:  pop dx
    add dl, '0'
    mov ah, 0x02
    int 0x21
    loop 2b
    pop cx
    pop bx
    ret

.global add_to_checksum
add_to_checksum:                 # adds CX bytes from SI
    mov ax, [checksum]
    CALL_LIBRARY crc
    mov [checksum], ax
    ret

.global finish
finish:                          # prints the checksum and ends the program
    SAY "checksum "
    mov ax, [checksum]
    xor dx, dx
    call print_number
    SAY "\r\n"
    mov ax, DOS_EXIT << 8
    int 0x21

.section .program_data, "aw"
    .balign 2
checksum: .word 0xFFFF
