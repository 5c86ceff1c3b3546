# Resident programs that hook vectors, as such programs did at the time: a meter that counts
# the calls of INT 16h, INT 1Ch and INT 21h and passes them on to the previous handler, and a
# typist that types a script whenever DOS waits for a key.
.include "layout.inc"

.section .resident, "ax"
.code16

# HOOK number, handler, previous: installs a handler by DOS's own functions.
.macro HOOK number, handler, previous
    mov ax, 0x3500 | \number
    int 0x21
    mov [\previous], bx
    mov [\previous+2], es
    mov dx, offset \handler
    mov ax, 0x2500 | \number
    int 0x21
.endm

.global install_hooks
install_hooks:                   # DOS calls this
    push ds
    mov ax, cs
    mov ds, ax
    HOOK 0x28, typist, previous_28
    HOOK 0x16, hook_16, previous_16
    HOOK 0x1C, hook_1c, previous_1c
    HOOK 0x21, hook_21, previous_21
    call choose_script
    pop ds
    retf

# --- the meter -------------------------------------------------------------------------
hook_16:                         # jumps to the previous handler
    TALLY tally_hook_16, cs
    jmp far ptr cs:[previous_16]

hook_1c:                         # calls the previous handler first
    pushf
    call far ptr cs:[previous_1c]
    TALLY tally_hook_1c, cs
    iret

hook_21:                         # calls the previous handler, and passes on the carry of its answer
    TALLY tally_hook_21, cs
    pushf
    call far ptr cs:[previous_21]
    push bp
    mov bp, sp
    jc 1f
    and byte ptr [bp+6], ~CARRY & 0xFF
    pop bp
    iret
1:  or byte ptr [bp+6], CARRY
    pop bp
    iret

# --- the typist -------------------------------------------------------------------------
.set BUSY, 3                     # 8042: a byte waits in either direction
.set COMMAND_TYPE, 0xD2          # the next byte comes out as if from the keyboard
.set RELEASED, 0x80

typist:                          # the handler of INT 28h
    TALLY tally_idles, cs
    push ax
    push bx
    push cx
    push dx
    push di
    push ds
    push es
    mov ax, cs
    mov ds, ax
    mov bx, [script]
    or bx, bx
    jz 9f
    cmp word ptr [ticks_to_wait], 0
    jne 3f
1:  in al, KEYBOARD_COMMAND
    test al, BUSY
    jnz 9f
    mov al, [key_down]           # each key's press is followed by its release
    mov byte ptr [key_down], 0
    or al, al
    jz 2f
    or al, RELEASED
    jmp 4f
2:  mov al, [bx]
    or al, al
    jz 5f
    inc word ptr [script]
    mov cx, BIOS                 # which key is it?
    mov es, cx
    mov di, offset plain_keys
    mov cx, offset KEYS
    repne scasb
    mov ax, di
    sub ax, offset plain_keys + 1
    mov [key_down], al
4:  mov ah, al
    mov al, COMMAND_TYPE
    out KEYBOARD_COMMAND, al
6:  in al, KEYBOARD_COMMAND
    test al, BUSY & ~1           # it must read the command first
    jnz 6b
    mov al, ah
    out KEYBOARD_DATA, al
9:  pop es
    pop ds
    pop di
    pop dx
    pop cx
    pop bx
    pop ax
    jmp far ptr cs:[previous_28]
3:  mov ah, 0                    # DX, the low word of the time, is sufficient
    int 0x1A
    cmp word ptr [waiting], 0
    jne 7f
    mov word ptr [waiting], 1
    mov [waiting_since], dx
7:  sub dx, [waiting_since]
    cmp dx, [ticks_to_wait]
    jb 9b
    mov word ptr [ticks_to_wait], 0
    jmp 9b
5:  add word ptr [tally_rounds], 1       # a round is typed: another one follows, or the end
    adc word ptr [tally_rounds+2], 0
    mov ax, [round]
    mov [script], ax
    dec word ptr [rounds_left]
    jnz 9b
    mov word ptr [round], 0
    mov word ptr [script], offset script_exit
    jmp 9b

choose_script:
    mov ax, PARAMETERS
    mov es, ax
    mov ax, es:[ROUNDS]
    mov [rounds_left], ax
    mov bx, es:[WORKLOAD]
    shl bx, 1
    mov ax, scripts[bx]
    mov [script], ax
    mov [round], ax
    cmp bx, WORKLOAD_IDLE*2
    jne 1f
    mov ax, es:[TICKS]
    mov [ticks_to_wait], ax
1:  ret

# A round of each workload: only lower-case letters, digits, space, dot and Enter.
    .balign 2
scripts: .word script_exit, script_copy_type, script_mix, script_compute, 0, 0
script_exit: .asciz "exit\r"
script_copy_type:
    .ascii "copy letter.txt first.txt\r"
    .ascii "type first.txt\r"
    .ascii "copy report.txt second.txt\r"
    .asciz "type second.txt\r"
script_mix:
    .ascii "copy report.txt draft.txt\r"
    .ascii "calc\r"
    .asciz "type draft.txt\r"
script_compute: .asciz "compute\r"

.section .resident_data, "aw"
    .balign 4
previous_16: .long 0
previous_1c: .long 0
previous_21: .long 0
previous_28: .long 0
script: .word 0                  # the address of the next character; 0: there is nothing to type
round: .word 0                   # the address where the script begins again
rounds_left: .word 0
ticks_to_wait: .word 0
waiting: .word 0                 # whether the time of the last tick is known
waiting_since: .word 0
key_down: .byte 0
.global tally_hook_16, tally_hook_1c, tally_hook_21, tally_idles, tally_rounds
    .balign 4
tally_hook_16: .long 0
tally_hook_1c: .long 0
tally_hook_21: .long 0
tally_idles: .long 0
tally_rounds: .long 0
