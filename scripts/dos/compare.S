# COMPARE.COM: writes to COM1 when it begins and ends to compute and to write to the screen, for a program
# with a clock. It is assembled with ROUNDS and LINES.
        .code16
        .text
        .globl  _start
_start:
        movb    $'P', %al
        call    say
        movb    $'c', %al
        call    say
        movl    $ROUNDS, round
1:      movl    $buffer, %edi
        call    compute
        decl    round
        jnz     1b
        movl    %eax, %ebp
        movb    $'C', %al
        call    say
        # Prints the result, in hexadecimal digits.
        movw    $8, %cx
2:      roll    $4, %ebp
        movl    %ebp, %eax
        andb    $15, %al
        addb    $'0', %al
        cmpb    $'9', %al
        jbe     3f
        addb    $39, %al
3:      call    say
        loop    2b
        movb    $'s', %al
        call    say
        movw    $LINES, %di
4:      movw    $80, %si
5:      movw    $0x0e00 + 'x', %ax
        movw    $7, %bx
        int     $0x10
        decw    %si
        jnz     5b
        decw    %di
        jnz     4b
        movb    $'S', %al
        call    say
        movw    $0x4c00, %ax
        int     $0x21

# Sends AL.
say:
        pushw   %ax
        movw    $0x3fd, %dx
1:      inb     %dx, %al
        testb   $0x20, %al
        jz      1b
        popw    %ax
        movw    $0x3f8, %dx
        outb    %al, %dx
        ret

        .include "compute.inc"

        .balign 4
round:  .long   0
        .balign 16
buffer:
