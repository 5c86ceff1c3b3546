# MODE.COM prints in which mode of the processor DOS runs, and under V86.COM what that has emulated so far.
.include "com.inc"

.set COUNTERS, 0xE0F0            # ports that V86.COM answers itself, one for each counter

.text
    smsw ax
    test al, 1
    jnz 1f
    SAY "real mode\r\n"
    EXIT 0
1:  SAY "virtual-8086 mode:"
    mov si, offset names
    mov bx, COUNTERS
2:  cmp byte ptr [si], '$'
    je 4f
    mov dx, si
    mov ah, DOS_PRINT
    int 0x21
3:  lodsb
    cmp al, '$'
    jne 3b
    mov dx, bx
    in eax, dx
    inc bx
    call print_number
    jmp 2b
4:  SAY "\r\n"
    EXIT 0

print_number:                    # EAX in decimal
    mov ecx, 10
    xor di, di
5:  xor edx, edx
    div ecx
    push dx
    inc di
    test eax, eax
    jnz 5b
6:  pop dx
    add dl, '0'
    mov ah, 0x02
    int 0x21
    dec di
    jnz 6b
    ret

.data
names: .ascii " cli $ sti $ pushf $ popf $ int $\r\niret $ in $ out $ hlt $ irq $$"
