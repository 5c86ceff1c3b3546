# HOOKS.COM ROUNDS TICKS FILE: a resident program that experiments install in DOS. It hooks the vectors
# that programs of the time hooked, counts the calls and passes them on, and types the scan codes in FILE
# whenever DOS or a program waits for a key (INT 28h, INT 16h): ROUNDS times, each after TICKS ticks of the
# clock. It sets marks in the monitor's statistics (docs/reference/hypercalls.md) at the start of the first
# round and at the end of the last one; then it writes its counts to the serial port. A second call restarts
# the resident program. With zero rounds it types nothing, and copies each displayed character to the serial
# port.
.include "layout.inc"

.set BIOS_DATA, 0x40
.set KEYS_HEAD, 0x1A             # its pointers to the next key to read and to write
.set KEYS_TAIL, 0x1C
.set TICK_COUNT, 0x6C
.set KEYBOARD_DATA, 0x60
.set KEYBOARD_COMMAND, 0x64      # status when read
.set BUSY, 3                     # a byte waits in either direction
.set COMMAND_TYPE, 0xD2          # the next byte comes out as if from the keyboard
.set COM1, 0x3F8
.set COM1_LINE_STATUS, 0x3FD
.set TRANSMITTER_EMPTY, 0x20
.set TELETYPE, 0x0E
.set IS_KEY_THERE, 1             # a function of INT 16h; function 11h is the one for longer keyboards
.set MARK, 0x544F4C03            # a hypercall: sets a mark whose name is in EBX, ECX, EDX and ESI

.set RESTS, 0                    # the states of the typist
.set BEGINS, 1
.set TYPES, 2

.set SCRIPT_BYTES, 4096

.section .start, "ax"
.code16
    jmp install
signature: .ascii "tollgate hooks 1"
.set SIGNATURE_BYTES, . - signature

# COUNT: counts one more call of the vector.
.macro COUNT number
    add dword ptr cs:[tally_\number], 1
.endm
.macro HOOK number
hook_\number:
    COUNT \number
    jmp far ptr cs:[previous_\number]
.endm
    HOOK 13
    HOOK 1a
    HOOK 1c
    HOOK 21

hook_16:
    COUNT 16
    push ax
    and ah, 0xEF
    jz 2f
    cmp ah, IS_KEY_THERE
    pop ax
    jne 1f
    add dword ptr cs:[tally_polls], 1
1:  jmp far ptr cs:[previous_16]
2:  cmp byte ptr cs:[state], RESTS
    je 4f
    push ds                      # a program waits for a key by the BIOS: it waits as DOS does
    mov ax, BIOS_DATA
    mov ds, ax
3:  sti
    mov ax, ds:[KEYS_HEAD]
    cmp ax, ds:[KEYS_TAIL]
    jne 5f
    int 0x28
    cmp byte ptr cs:[state], RESTS
    jne 3b
5:  pop ds
4:  pop ax
    jmp far ptr cs:[previous_16]

hook_10:
    COUNT 10
    cmp ah, TELETYPE
    jne 1f
    cmp byte ptr cs:[echoes], 0
    jne 2f
1:  jmp far ptr cs:[previous_10]
2:  push ax                      # the character is displayed first
    pushf
    call far ptr cs:[previous_10]
    pop ax
    call put_serial
    push ax
    mov al, LINE_FEED
    call put_serial
    pop ax
    iret

# --- the typist: DOS waits for a key ------------------------------------------------------
hook_28:
    COUNT 28
    cmp byte ptr cs:[state], RESTS
    je 9f
    pushad
    push ds
    push es
    mov ax, cs
    mov ds, ax
    mov ax, BIOS_DATA
    mov es, ax
    cld
    cmp byte ptr [state], BEGINS
    jne 1f
    push es
    mov ax, ds
    mov es, ax
    mov di, offset tallies
    mov cx, (tallies_end - tallies) / 2
    xor ax, ax
    rep stosw
    pop es
    mov ax, es:[TICK_COUNT]
    mov [since], ax
    mov byte ptr [state], TYPES
    mov ebx, 0x69676562          # "begin"
    mov ecx, 0x6E
    call set_mark
1:  mov ax, es:[TICK_COUNT]
    sub ax, [since]
    cmp ax, [ticks]
    jb 8f
    mov bx, [next]
    cmp bx, [script_end]
    jae 2f
    mov ax, es:[KEYS_HEAD]       # the earlier keys were read
    cmp ax, es:[KEYS_TAIL]
    jne 8f
    in al, KEYBOARD_COMMAND
    test al, BUSY
    jnz 8f
    inc word ptr [next]
    add dword ptr [tally_typed], 1
    mov al, COMMAND_TYPE
    out KEYBOARD_COMMAND, al
3:  in al, KEYBOARD_COMMAND
    test al, BUSY & ~1           # it must read the command first
    jnz 3b
    mov al, [bx]
    out KEYBOARD_DATA, al
    jmp 8f
2:  add dword ptr [tally_rounds], 1
    mov word ptr [next], offset script
    mov ax, es:[TICK_COUNT]
    mov [since], ax
    dec word ptr [rounds_left]
    jnz 8f
    mov byte ptr [state], RESTS
    mov ebx, 0x646E65            # "end"
    xor ecx, ecx
    call set_mark
    call report
8:  pop es
    pop ds
    popad
9:  jmp far ptr cs:[previous_28]

set_mark:                        # the first parts of the name are in EBX and ECX
    xor edx, edx
    xor esi, esi
    mov eax, MARK
    vmcall
    ret

report:                          # writes a line to the serial port
    mov si, offset keys
1:  lodsw                        # the address of the counter
    mov bx, ax
    call put_name
    test bx, bx
    jz 4f
    mov edx, [bx]
    mov cx, 8
2:  rol edx, 4
    mov al, dl
    and al, 0x0F
    add al, '0'
    cmp al, '9'
    jbe 3f
    add al, 'A' - '0' - 10
3:  call put_serial
    loop 2b
    jmp 1b
4:  ret
put_name:                        # writes the text at SI up to a zero, and leaves SI after it
    lodsb
    test al, al
    jz 4b
    call put_serial
    jmp put_name
put_serial:                      # writes AL
    push dx
    push ax
    mov dx, COM1_LINE_STATUS
1:  in al, dx
    test al, TRANSMITTER_EMPTY
    jz 1b
    mov dx, COM1
    pop ax
    out dx, al
    pop dx
    ret

.macro KEY counter, name
    .word tally_\counter
    .asciz " \name="
.endm
keys:
    KEY rounds, "done rounds"
    KEY typed, typed
    KEY polls, polls
    KEY 10, int10
    KEY 13, int13
    KEY 16, int16
    KEY 1a, int1a
    KEY 1c, int1c
    KEY 21, int21
    KEY 28, int28
    .word 0
    .asciz "\r\n"

# --- installation, whose code is not needed afterwards -----------------------------------
.section .program, "ax"
.code16
# TAKE number: installs a handler by DOS's own functions.
.macro TAKE number
    mov ax, DOS_GET_VECTOR << 8 | 0x\number
    int 0x21
    mov [previous_\number], bx
    mov [previous_\number+2], es
    mov dx, offset hook_\number
    mov ax, DOS_SET_VECTOR << 8 | 0x\number
    int 0x21
.endm

install:
    cld
    mov ax, DOS_GET_VECTOR << 8 | 0x28
    int 0x21
    mov si, offset signature     # are our handlers installed already?
    mov di, si
    mov cx, SIGNATURE_BYTES
    repe cmpsb
    je 1f
    mov byte ptr [is_new], 1
    TAKE 10
    TAKE 13
    TAKE 16
    TAKE 1a
    TAKE 1c
    TAKE 21
    TAKE 28
    mov ax, cs
    mov es, ax
1:  mov si, ARGUMENTS
    call number
    mov es:[rounds_left], ax
    call number
    mov es:[ticks], ax
    SKIP_SPACES
    mov word ptr es:[next], offset script
    mov word ptr es:[script_end], offset script
    cmp byte ptr [si], '-'       # there is nothing to type
    je 4f
    mov dx, si
3:  lodsb
    cmp al, ' '
    ja 3b
    mov byte ptr [si-1], 0
    mov ax, DOS_OPEN << 8
    int 0x21
    jc fail
    mov bx, ax
    mov ah, DOS_READ
    mov dx, offset script
    mov cx, SCRIPT_BYTES
    push es
    pop ds
    int 0x21
    push cs
    pop ds
    jc fail
    add es:[script_end], ax
    mov ah, DOS_CLOSE
    int 0x21
4:  cmp word ptr es:[rounds_left], 0
    je 5f
    mov byte ptr es:[state], BEGINS
    jmp 6f
5:  mov byte ptr es:[echoes], 1
6:  cmp byte ptr [is_new], 0
    je 7f
    mov es, [0x2C]               # the segment of the environment
    mov ah, DOS_FREE
    int 0x21
    mov dx, offset resident_end + 15
    shr dx, 4                    # the size in paragraphs
    mov ax, DOS_STAY_RESIDENT << 8
    int 0x21
7:  mov ax, DOS_EXIT << 8
    int 0x21
fail:
    mov ah, DOS_PRINT
    mov dx, offset refused
    int 0x21
    mov ax, DOS_EXIT << 8 | 1
    int 0x21

number:                          # parses a number at SI into AX, and leaves SI after it
    SKIP_SPACES
    xor bx, bx
3:  lodsb
    sub al, '0'
    cmp al, 9
    ja 4f
    xor ah, ah
    xchg ax, bx
    mov cx, 10
    mul cx
    add bx, ax
    jmp 3b
4:  dec si
    mov ax, bx
    ret

refused: .ascii "hooks: DOS refuses the file\r\n$"

.section .program_data, "aw"
    .balign 4
tallies:
    .irp number, 10, 13, 16, 1a, 1c, 21, 28
tally_\number: .long 0
    .endr
tally_polls: .long 0
tally_typed: .long 0
tally_rounds: .long 0
tallies_end:
    .irp number, 10, 13, 16, 1a, 1c, 21, 28
previous_\number: .long 0
    .endr
since: .word 0                   # the time when the round began
ticks: .word 0
rounds_left: .word 0
next: .word 0                    # the address of the scan code that is typed next
script_end: .word 0
state: .byte RESTS
echoes: .byte 0
is_new: .byte 0
script: .skip SCRIPT_BYTES
resident_end:
