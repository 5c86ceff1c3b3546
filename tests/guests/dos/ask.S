# ASK.COM prints how many keys TSR.COM has changed.
.include "com.inc"

.text
    mov ah, 0xEE
    int 0x16
    add al, '0'
    mov [count], al
    mov dx, offset answer
    mov ah, DOS_PRINT
    int 0x21
    EXIT 0

.data
answer: .ascii "changed "
count: .ascii "? keys\r\n$"
