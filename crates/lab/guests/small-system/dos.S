# The system's services, called by INT 21h: dispatch, console, vectors. Files are in dos-files.S.
#
# A caller's registers are on its stack and are changed there. A service that fails sets the carry
# in the flags that IRET restores, and returns a code in AX.
.include "layout.inc"
.include "dos.inc"

.section .dos, "ax"
.code16

.set OPEN_LINES, 0xEC             # the 8259's mask: timer, keyboard and serial port enabled

.global dos_start
dos_start:                       # the BIOS jumps here; interrupts are off
    mov ax, cs
    mov ds, ax
    xor ax, ax
    mov es, ax
    mov word ptr es:[0x21*4], offset dos_service
    mov es:[0x21*4+2], cs
    mov word ptr es:[0x28*4], offset idle
    mov es:[0x28*4+2], cs
    call format_disk
    call RESIDENT:install_hooks
    mov word ptr [tally_21], 0   # from here on the counters count every call and every tick
    mov al, OPEN_LINES
    out PIC_MASK, al
    sti
    jmp PROGRAM:program_start

.global dos_service
dos_service:
    sti
    cld
    push ax
    push bx
    push cx
    push dx
    push si
    push di
    push bp
    push ds
    push es
    mov bp, sp
    mov bx, cs
    mov ds, bx
    TALLY tally_21
    and byte ptr CALLER_FLAGS[bp], ~CARRY & 0xFF
    mov bx, offset functions
1:  cmp byte ptr [bx], 0
    je 2f
    cmp ah, [bx]
    je 3f
    add bx, 3
    jmp 1b
2:  mov ax, ERROR_NO_SUCH_FUNCTION
    call fail_call
    jmp 4f
3:  call [bx+1]
4:  pop es
    pop ds
    pop bp
    pop di
    pop si
    pop dx
    pop cx
    pop bx
    pop ax
    iret

.macro FUNCTION number, label
    .byte \number
    .word offset \label
.endm
functions:                       # each is called with BP pointing to the caller's registers and DS = DOS
    FUNCTION 0x02, print_character
    FUNCTION 0x09, print_string
    FUNCTION 0x0A, read_line
    FUNCTION 0x25, set_vector
    FUNCTION 0x35, get_vector
    FUNCTION 0x3C, create_file
    FUNCTION 0x3D, open_file
    FUNCTION 0x3E, close_file
    FUNCTION 0x3F, read_file
    FUNCTION 0x40, write_file
    .byte 0

.global fail_call
fail_call:                       # AX is the error code
    mov CALLER_AX[bp], ax
    or byte ptr CALLER_FLAGS[bp], CARRY
    ret

idle:                            # INT 28h: the end of the chain of hooks
    iret

# --- console ----------------------------------------------------------------------
print_character:                 # writes DL
    mov al, dl
.global console_output
console_output:                  # writes AL
    mov ah, 0x0E
    int 0x10
    ret
print_string:                    # writes the text at DS:DX, up to a dollar sign
    mov ds, CALLER_DS[bp]
    mov si, dx
1:  lodsb
    cmp al, '$'
    je 2f
    call console_output
    jmp 1b
2:  ret

# AH=0Ah: DS:DX points to a buffer: its size, then the length and the line with its Enter.
read_line:
    mov ds, CALLER_DS[bp]
    mov si, dx
    xor bx, bx                   # the number of characters so far
1:  mov ah, 1                    # nothing was typed, so resident programs may run
    int 0x16
    jnz 2f
    int 0x28
    jmp 1b
2:  mov ah, 0
    int 0x16
    cmp al, '\r'
    je 4f
    cmp al, 8
    je 3f
    cmp al, ' '
    jb 1b
    mov cl, [si]
    xor ch, ch
    dec cx
    cmp bx, cx
    jae 1b
    mov [bx+si+2], al
    inc bx
    call console_output
    jmp 1b
3:  or bx, bx
    jz 1b
    dec bx
    call console_output          # erase: back, blank, back
    mov al, ' '
    call console_output
    mov al, 8
    call console_output
    jmp 1b
4:  mov [si+1], bl
    mov [bx+si+2], al
    call console_output
    ret

# --- vectors ----------------------------------------------------------------------
set_vector:                      # AL is the vector, DS:DX the handler
    xor bx, bx
    mov es, bx
    mov bl, al
    shl bx, 1
    shl bx, 1
    mov ax, CALLER_DS[bp]
    pushf
    cli                          # no handler may see a half-written vector
    mov es:[bx], dx
    mov es:[bx+2], ax
    popf
    ret
get_vector:                      # returns in ES:BX the handler of vector AL
    xor bx, bx
    mov es, bx
    mov bl, al
    shl bx, 1
    shl bx, 1
    pushf
    cli
    mov ax, es:[bx]
    mov dx, es:[bx+2]
    popf
    mov CALLER_BX[bp], ax
    mov CALLER_ES[bp], dx
    ret

.section .dos_data, "aw"
.global tally_21, tally_bytes
    .balign 4
tally_21: .long 0
tally_bytes: .long 0
