# The work of COMPARE.COM as a 32-bit program for Linux, which writes the result.
        .text
        .globl  _start
_start:
        movl    $ROUNDS, round
1:      movl    $buffer, %edi
        call    compute
        decl    round
        jnz     1b
        movl    %eax, result
        movl    $4, %eax
        movl    $1, %ebx
        movl    $result, %ecx
        movl    $4, %edx
        int     $0x80
        movl    $1, %eax
        xorl    %ebx, %ebx
        int     $0x80

        .include "compute.inc"

        .bss
        .balign 16
round:  .long   0
result: .long   0
        .balign 16
buffer: .skip   SIZE
