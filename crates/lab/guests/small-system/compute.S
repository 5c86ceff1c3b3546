# Arithmetic with 16 bits: the commands `calc` and `compute`, and the library whose routines they
# call by far calls.
.include "layout.inc"
.include "program.inc"

.section .program, "ax"
.code16

# A sheet of pseudo-random figures: the total of each row, and the share of each cell in it
# in thousandths. Prints the totals of every fourth row.
.global do_calc
do_calc:
    mov di, SHEET
    mov cx, SHEET_ROWS*SHEET_COLUMNS
1:  call random
    and ax, 0x0FFF
    inc ax
    stosw
    loop 1b
    mov si, SHEET
    mov di, SHARES
    mov bp, SHEET_ROWS
2:  push si
    mov cx, SHEET_COLUMNS
    xor bx, bx
3:  lodsw
    add bx, ax                   # 16 figures of 12 bits cannot overflow
    loop 3b
    pop si
    mov cx, SHEET_COLUMNS
4:  lodsw
    mov dx, 1000
    CALL_LIBRARY multiply_divide
    stosw
    loop 4b
    test bp, 3
    jnz 5f
    mov ax, bx
    xor dx, dx
    call print_number
    SAY " "
5:  dec bp
    jnz 2b
    SAY "\r\n"
    mov si, SHARES
    mov cx, SHEET_ROWS*SHEET_COLUMNS*2
    jmp add_to_checksum

# Finds primes with a sieve, sorts numbers with Shell's sort, and computes common divisors of
# neighbours.
.global do_compute
do_compute:
    call sieve
    push ax
    call fill_and_sort
    mov si, NUMBERS
    mov bp, NUMBERS_COUNT - 1
    xor di, di
1:  lodsw
    mov bx, [si]
    CALL_LIBRARY common_divisor
    add di, ax
    dec bp
    jnz 1b
    SAY "primes "
    pop ax
    xor dx, dx
    call print_number
    SAY ", divisors "
    mov ax, di
    xor dx, dx
    call print_number
    SAY "\r\n"
    mov si, NUMBERS
    mov cx, NUMBERS_COUNT*2
    call add_to_checksum
    mov si, SIEVE
    mov cx, SIEVE_BYTES
    jmp add_to_checksum

sieve:                           # SIEVE[n] = 1 if n is prime; AX is the number of primes
    mov di, SIEVE
    mov ax, 0x0101
    mov cx, SIEVE_BYTES / 2
    rep stosw
    mov word ptr [SIEVE], 0      # 0 and 1 are not prime
    xor cx, cx
    mov si, 2
1:  cmp byte ptr SIEVE[si], 0
    je 3f
    inc cx
    mov di, si
2:  add di, si
    cmp di, SIEVE_BYTES
    jae 3f
    mov byte ptr SIEVE[di], 0
    jmp 2b
3:  inc si
    cmp si, SIEVE_BYTES
    jb 1b
    mov ax, cx
    ret

fill_and_sort:
    mov di, NUMBERS
    mov cx, NUMBERS_COUNT
1:  call random
    stosw
    loop 1b
    mov dx, NUMBERS_COUNT        # the gap in bytes: half of the table, a quarter, ...
2:  mov si, dx
3:  mov ax, NUMBERS[si]
    mov bx, si
4:  mov di, bx
    sub di, dx
    jb 5f
    cmp NUMBERS[di], ax
    jbe 5f
    mov cx, NUMBERS[di]
    mov NUMBERS[bx], cx
    mov bx, di
    jmp 4b
5:  mov NUMBERS[bx], ax
    add si, 2
    cmp si, NUMBERS_COUNT*2
    jb 3b
    shr dx, 1
    cmp dx, 2
    jae 2b
    ret

random:                          # returns a number in AX; keeps BX, CX and DX
    mov ax, [seed]
    CALL_LIBRARY next_random
    mov [seed], ax
    ret

.section .program_data, "aw"
    .balign 2
seed: .word 1

# --- the library; DS belongs to the caller -------------------------------------------------
.section .library, "ax"
.code16
.global crc, next_random, multiply_divide, common_divisor, nothing_far

    .balign 16
nothing_far:
    retf

crc:                             # continues the checksum AX over CX bytes from SI, with polynomial 1021h
    push bx
    jcxz 4f
1:  xor ah, [si]
    inc si
    mov bx, 8
2:  shl ax, 1
    jnc 3f
    xor ax, 0x1021
3:  dec bx
    jnz 2b
    loop 1b
4:  pop bx
    retf

next_random:                     # returns AX * 25173 + 13849
    push dx
    mov dx, 25173
    mul dx
    add ax, 13849
    pop dx
    retf

multiply_divide:                 # returns AX * DX / BX, rounded down; DX is lost
    mul dx
    div bx
    retf

common_divisor:                  # the common divisor of AX and BX, by Euclid's algorithm; BX is lost
    push dx
1:  or bx, bx
    jz 2f
    xor dx, dx
    div bx
    mov ax, bx
    mov bx, dx
    jmp 1b
2:  pop dx
    retf
