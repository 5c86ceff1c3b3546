# The command interpreter: a prompt, its commands, and the loop of `echo`.
.include "layout.inc"
.include "program.inc"

.section .program, "ax"
.code16

.set LINE_ROOM, 64

.global program_start
program_start:                   # DOS jumps here; interrupts are on
    mov ax, cs
    mov ds, ax
    mov es, ax
    push ds
    mov ax, PARAMETERS
    mov ds, ax
    xor si, si
    mov di, offset options
    mov cx, PARAMETER_BYTES / 2
    rep movsw
    pop ds
    call make_files
    mov bx, [options+WORKLOAD]
    cmp bx, WORKLOAD_FLAGS
    je do_flags
    cmp bx, WORKLOAD_ECHO
    je do_echo
prompt:
    SAY "A>"
    call read_command
    SAY "\n"
    mov si, offset line
    call next_word
    or bx, bx
    jz prompt
    mov bp, offset commands
1:  mov di, [bp]                 # the name
    or di, di
    jz 3f
    mov si, bx
2:  lodsb
    cmp al, [di]
    jne 4f
    inc di
    or al, al
    jnz 2b
    call [bp+2]
    jmp prompt
4:  add bp, 4
    jmp 1b
3:  SAY "Bad command or file name\r\n"
    jmp prompt

read_command:                    # reads a line into `line`, zero-terminated
    mov dx, offset line_room
    mov ah, 0x0A
    int 0x21
    mov bl, [line_length]
    xor bh, bh
    mov byte ptr line[bx], 0
    ret
next_word:                       # returns in BX the zero-terminated word at SI, or 0, and leaves SI after it
    lodsb
    cmp al, ' '
    je next_word
    lea bx, [si-1]
    or al, al
    jz 3f
1:  lodsb
    or al, al
    jz 2f
    cmp al, ' '
    jne 1b
    mov byte ptr [si-1], 0
    ret
2:  dec si
    ret
3:  dec si
    xor bx, bx
    ret
argument:                        # returns the next word in BX; the word must exist
    call next_word
    or bx, bx
    jz fail_argument
    ret
fail_argument:
    SAY "error: a command lacks a file name\r\n"
    jmp fail_program

.macro COMMAND name, label
    .pushsection .program, 1
name_\@: .asciz "\name"
    .popsection
    .word name_\@, \label
.endm
    .balign 2
commands:
    COMMAND "copy", do_copy
    COMMAND "type", do_type
    COMMAND "calc", do_calc
    COMMAND "compute", do_compute
    COMMAND "exit", do_exit
    .word 0

do_exit:
    add sp, 2
    jmp report

# --- files ------------------------------------------------------------------------
# CHECKED: calls INT 21h, which must not fail.
.macro CHECKED
    int 0x21
    jc fail_disk
.endm
fail_disk:
    push ax
    SAY "error: DOS refused with code "
    pop ax
    xor dx, dx
    call print_number
    SAY "\r\n"
.global fail_program
fail_program:
    mov al, EXIT_FAILURE
    out DEBUG_EXIT, al
1:  jmp 1b

do_copy:                         # SI points to the arguments
    call argument
    mov dx, bx
    mov ax, 0x3D00
    CHECKED
    mov [source], ax
    call argument
    mov dx, bx
    xor cx, cx
    mov ah, 0x3C
    CHECKED
    mov [target], ax
1:  mov bx, [source]
    call read_buffer
    jz 2f
    mov cx, ax
    mov bx, [target]
    mov dx, BUFFER
    mov ah, 0x40
    CHECKED
    jmp 1b
2:  mov ah, 0x3E
    CHECKED
    mov bx, [target]
    mov ah, 0x3E
    CHECKED
    SAY "        1 file(s) copied\r\n"
    ret

do_type:
    call argument
    mov dx, bx
    mov ax, 0x3D00
    CHECKED
    mov [source], ax
1:  mov bx, [source]
    call read_buffer
    jz 2f
    mov cx, ax
    push cx
    mov si, BUFFER
    call add_to_checksum
    pop cx
    mov dx, BUFFER
    mov bx, 1
    mov ah, 0x40
    CHECKED
    jmp 1b
2:  mov ah, 0x3E
    CHECKED
    ret

read_buffer:                     # reads from handle BX: AX bytes, ZF if there are none
    mov cx, BUFFER_BYTES
    mov dx, BUFFER
    mov ah, 0x3F
    CHECKED
    or ax, ax
    ret

.global add_to_checksum
add_to_checksum:                 # adds CX bytes from SI
    mov ax, [checksum]
    call LIBRARY:crc
    mov [checksum], ax
    ret

# The files that exist from the start: numbered lines of text.
.set LETTER_LINES, 60
.set REPORT_LINES, 24
make_files:
    mov dx, offset name_letter
    mov bp, LETTER_LINES
    call make_file
    mov dx, offset name_report
    mov bp, REPORT_LINES
make_file:                       # DX is the name, BP the number of lines
    xor cx, cx
    mov ah, 0x3C
    CHECKED
    mov bx, ax
    xor si, si                   # the number of the line
1:  push si
    mov di, BUFFER
    mov ax, si
    mov cl, 10
    div cl
    add ax, '0' | '0' << 8
    stosw
    mov al, ' '
    stosb
    and si, 3                    # the sentences alternate
    shl si, 1
    mov si, sentences[si]
2:  lodsb
    stosb
    cmp al, '\n'
    jne 2b
    mov cx, di
    sub cx, BUFFER
    mov dx, BUFFER
    mov ah, 0x40
    CHECKED
    pop si
    inc si
    cmp si, bp
    jne 1b
    mov ah, 0x3E
    CHECKED
    ret

# --- echo -------------------------------------------------------------------------
do_echo:
    mov cx, [options+LINES]
1:  push cx
    SAY "> "
    call read_command
    SAY "\necho: "
    mov dx, offset line
    mov cl, [line_length]
    xor ch, ch
    mov bx, 1
    mov ah, 0x40
    CHECKED
    mov si, offset line
    mov cl, [line_length]
    xor ch, ch
    call add_to_checksum
    SAY "\r\n"
    mov ax, 1
    call count_rounds
    pop cx
    loop 1b
    jmp report

.global count_rounds
count_rounds:                    # adds AX
    push es
    mov bx, RESIDENT
    mov es, bx
    add es:[tally_rounds], ax
    adc word ptr es:[tally_rounds+2], 0
    pop es
    ret

# --- data -------------------------------------------------------------------------
.section .program_data, "aw"
.global checksum, options
    .balign 4
options: .skip PARAMETER_BYTES   # a copy of the parameters
checksum: .word 0xFFFF
source: .word 0
target: .word 0
line_room: .byte LINE_ROOM
line_length: .byte 0
line: .skip LINE_ROOM + 1
name_letter: .asciz "letter.txt"
name_report: .asciz "report.txt"
    .balign 2
sentences: .word sentence_0, sentence_1, sentence_2, sentence_3
sentence_0: .ascii "A handler that found another before it hands the call on.\r\n"
sentence_1: .ascii "Who waits for a key asks again and again.\r\n"
sentence_2: .ascii "The clock ticks eighteen times a second, and a little more.\r\n"
sentence_3: .ascii "Nothing is lost while the flag is down; it comes later.\r\n"
