# The end of every workload: prints the counters, and ends the run.
.include "layout.inc"
.include "program.inc"

.section .program, "ax"
.code16

.set SCREEN_BYTES, 80*25*2
.set KEY_BYTES, 6                # an entry has a name, a segment and an offset

.global report
report:
    cli                          # so that a tick is in all counters or in none
    mov bx, offset keys
    mov di, offset values
1:  mov ax, [bx+2]
    or ax, ax
    jz 2f
    mov si, [bx+4]
    push ds
    mov ds, ax
    movsw
    movsw
    pop ds
    add bx, KEY_BYTES
    jmp 1b
2:  sti
    mov ax, [checksum]
    stosw
    xor ax, ax
    stosw
    push ds
    mov ax, SCREEN
    mov ds, ax
    xor si, si
    mov cx, SCREEN_BYTES
    mov ax, 0xFFFF
    call LIBRARY:crc
    pop ds
    stosw
    xor ax, ax
    stosw

    SAY "done "
    mov bx, [options+WORKLOAD]
    shl bx, 1
    mov dx, workloads[bx]
    mov ah, 0x09
    int 0x21
    mov si, offset keys
    mov di, offset values
3:  SAY " "
    mov dx, [si]
    mov ah, 0x09
    int 0x21
    SAY "="
    mov ax, [di]
    mov dx, [di+2]
    call print_number
    add di, 4
    add si, KEY_BYTES
    cmp si, offset keys_end
    jne 3b
    SAY "\r\n"
    mov al, EXIT_SUCCESS
    out DEBUG_EXIT, al
4:  jmp 4b

# --- numbers ------------------------------------------------------------------------
.global print_number
print_number:                    # prints DX:AX in decimal; AX and DX are lost
    push bx
    push cx
    push di
    mov bx, 10
    xor cx, cx                   # puts the digits on the stack
1:  mov di, ax                   # divide the high word by ten, then the remainder with the low word
    mov ax, dx
    xor dx, dx
    div bx
    xchg ax, di
    div bx
    push dx
    inc cx
    mov dx, di
    mov di, ax
    or di, dx
    jnz 1b
2:  pop dx
    add dl, '0'
    mov ah, 0x02
    int 0x21
    loop 2b
    pop di
    pop cx
    pop bx
    ret

# --- the values of the report -----------------------------------------------------------
# KEY name, segment, counter: a line of the report; without a segment `report` computes the value.
.macro KEY name, segment=0, counter=0
    .pushsection .program, 1
key_\@: .ascii "\name\()$"
    .popsection
    .word key_\@, \segment, \counter
.endm
    .balign 2
keys:
    KEY "ticks", BIOS, tally_ticks
    KEY "int1c", BIOS, tally_1c
    KEY "hook1c", RESIDENT, tally_hook_1c
    KEY "int16", BIOS, tally_16
    KEY "hook16", RESIDENT, tally_hook_16
    KEY "polls", BIOS, tally_polls
    KEY "idles", RESIDENT, tally_idles
    KEY "int21", DOS, tally_21
    KEY "hook21", RESIDENT, tally_hook_21
    KEY "sectors", BIOS, tally_sectors
    KEY "typed", BIOS, tally_typed
    KEY "printed", BIOS, tally_printed
    KEY "bytes", DOS, tally_bytes
    KEY "rounds", RESIDENT, tally_rounds
    KEY "checksum"
    KEY "screen"
keys_end:
.set VALUE_BYTES, (keys_end - keys) / KEY_BYTES * 4
workloads: .word name_idle, name_copy_type, name_mix, name_compute, name_flags, name_echo
name_idle: .ascii "idle$"
name_copy_type: .ascii "copy-type$"
name_mix: .ascii "mix$"
name_compute: .ascii "compute$"
name_flags: .ascii "flags$"
name_echo: .ascii "echo$"

.section .program_data, "aw"
    .balign 4
values: .skip VALUE_BYTES
