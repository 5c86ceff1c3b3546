# The loader: multiboot's 32-bit entry. It parses the command line, copies the system's parts
# to their addresses, and enters the system in real mode or starts the monitor.
.include "layout.inc"

.section .multiboot, "a"
header:
    .long 0x1BADB002             # the header has addresses, because this is not an ELF file
    .long 1 << 16
    .long -(0x1BADB002 + (1 << 16))
    .long header, header, image_end, bss_end, start

.section .loader, "ax"
.code32
.set HAS_COMMAND_LINE, 4         # in the flags of multiboot's information
.set COMMAND_LINE, 16
.set CODE, 0x08
.set DATA, 0x10
.set CODE16, 0x18
.set DATA16, 0x20

start:
    mov esp, offset stack_top
    cld
    cli
    lgdt [gdt_pointer]
    jmp CODE:1f
1:  mov eax, DATA
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov esi, offset no_command_line
    test byte ptr [ebx], HAS_COMMAND_LINE
    jz 2f
    mov esi, [ebx+COMMAND_LINE]
2:  call read_command_line
    mov eax, 1193182             # the divisor of a tick rate; 18.2 Hz is 65536, which is written as 0
    xor edx, edx
    mov ecx, [rate]
    jecxz 3f
    div ecx
    mov [parameters+DIVISOR], eax
3:  xor edi, edi                 # clear the memory that firmware has used
    mov ecx, LOW_MEMORY_END / 4
    xor eax, eax
    rep stosd
    .irp part, bios, dos, resident, program, library
    mov esi, offset image_\part
    mov ecx, offset size_\part
    mov edi, offset place_\part
    rep movsb
    .endr
    mov esi, offset parameters
    mov edi, PARAMETERS*16
    mov ecx, PARAMETER_BYTES
    rep movsb

# The vectors of the 8259s: in real mode the PC's usual ones; for the monitor, vectors that do not
# overlap the exceptions.
    mov bx, 0x7008
    cmp dword ptr [parameters+MODE], MODE_REAL
    je 4f
    mov bx, MONITOR_SLAVE_IRQ << 8 | MONITOR_IRQ
4:  mov al, 0x11
    out PIC_COMMAND, al
    out SLAVE_COMMAND, al
    mov al, bl
    out PIC_MASK, al
    mov al, bh
    out SLAVE_MASK, al
    mov al, 4
    out PIC_MASK, al
    mov al, 2
    out SLAVE_MASK, al
    mov al, 1
    out PIC_MASK, al
    out SLAVE_MASK, al
    mov al, 0xFF
    out PIC_MASK, al
    out SLAVE_MASK, al
    cmp dword ptr [parameters+MODE], MODE_REAL
    jne monitor_start

    lidt [real_idt_pointer]
    mov eax, DATA16              # load segments that real mode can use
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    mov ss, eax
    jmp CODE16:leave_protected_mode

.section .bios, "ax"
.code16
leave_protected_mode:
    mov eax, cr0
    and al, ~1
    mov cr0, eax
    jmp BIOS:bios_start

# --- the command line: words KEY=VALUE; other words, such as the image's name, are ignored --
.section .loader, "ax"
.code32
# The fields of an entry of `keys`: its name, its reader, and
.set KEY_READER, 4
.set KEY_DESTINATION, 8
.set KEY_LEAST, 12               # the allowed range, or the allowed names
.set KEY_MOST, 16
.set KEY_BYTES, 20

read_command_line:               # ESI points to the zero-terminated line
1:  lodsb
    cmp al, ' '
    je 1b
    test al, al
    jz 8f
    dec esi
    mov [word_start], esi
    mov ebx, offset keys
2:  mov edi, [ebx]               # the key's name
    mov esi, [word_start]
3:  mov al, [edi]
    test al, al
    jz 5f
    cmp al, [esi]
    jne 4f
    inc esi
    inc edi
    jmp 3b
4:  add ebx, KEY_BYTES
    cmp ebx, offset keys_end
    jne 2b
    mov esi, [word_start]        # not a key: skipped, unless it looks like one
6:  lodsb
    cmp al, '='
    je unknown_word
    test al, al
    jz 8f
    cmp al, ' '
    jne 6b
    jmp 1b
5:  call [ebx+KEY_READER]
    cmp byte ptr [esi], 0
    je 8f
    cmp byte ptr [esi], ' '
    jne wrong_value
    jmp 1b
8:  cmp dword ptr [parameters+WORKLOAD], -1
    je no_workload
    ret

read_number:                     # ESI is the text, EBX the key
    xor eax, eax
    xor ecx, ecx                 # the number of digits
1:  movzx edx, byte ptr [esi]
    sub edx, '0'
    cmp edx, 9
    ja 2f
    inc esi
    inc ecx
    cmp ecx, 10
    ja wrong_value
    cmp eax, 429496729
    jae wrong_value
    lea eax, [eax+eax*4]
    lea eax, [edx+eax*2]
    jmp 1b
2:  jecxz wrong_value_jump
    cmp eax, [ebx+KEY_LEAST]
    jb wrong_value
    cmp eax, [ebx+KEY_MOST]
    ja wrong_value
    mov edx, [ebx+KEY_DESTINATION]
    mov [edx], eax
    ret
wrong_value_jump:
    jmp wrong_value

read_name:                       # ESI is the text, EBX the key; the value is the name's index
    mov edx, [ebx+KEY_LEAST]
    xor ecx, ecx
1:  mov edi, [edx+ecx*4]
    test edi, edi
    jz wrong_value
    push esi
2:  mov al, [edi]
    test al, al
    jz 3f
    cmp al, [esi]
    jne 4f
    inc esi
    inc edi
    jmp 2b
3:  cmp byte ptr [esi], ' '
    je 5f
    cmp byte ptr [esi], 0
    je 5f
4:  pop esi
    inc ecx
    jmp 1b
5:  add esp, 4
    mov edx, [ebx+KEY_DESTINATION]
    mov [edx], ecx
    ret

unknown_word:
    mov ebx, offset text_unknown
    jmp fail_with_word
wrong_value:
    mov ebx, offset text_wrong
fail_with_word:
    mov esi, ebx
    call put_text
    mov esi, [word_start]
1:  lodsb
    cmp al, ' '
    jbe 2f
    call put_character
    jmp 1b
2:  mov esi, offset text_end
    jmp fail
no_workload:
    mov esi, offset text_no_workload
.global fail
fail:                            # ESI is the reason, a line
    call put_text
    mov al, EXIT_FAILURE
    out DEBUG_EXIT, al
1:  hlt
    jmp 1b

# --- printing, for the loader and the monitor; all registers except ESI are kept -----------
.global put_text, put_character, put_decimal
put_text:                        # writes the zero-terminated text at ESI
    push eax
1:  lodsb
    test al, al
    jz 2f
    call put_character
    jmp 1b
2:  pop eax
    ret
put_character:                   # writes AL
    push edx
    push eax
    mov edx, COM1_LINE_STATUS
1:  in al, dx
    test al, TRANSMITTER_EMPTY
    jz 1b
    mov edx, COM1
    mov al, [esp]
    out dx, al
    pop eax
    pop edx
    ret
put_decimal:                     # writes EAX
    pushad
    mov ebx, 10
    xor ecx, ecx
1:  xor edx, edx
    div ebx
    push edx
    inc ecx
    test eax, eax
    jnz 1b
2:  pop eax
    add al, '0'
    call put_character
    loop 2b
    popad
    ret

# --- data ----------------------------------------------------------------------
    .balign 8
gdt:
    .quad 0
    .quad 0x00CF9A000000FFFF     # CODE
    .quad 0x00CF92000000FFFF     # DATA
    .word 0xFFFF, BIOS << 4, 0x9A00, 0           # CODE16: the BIOS
    .quad 0x000092000000FFFF     # DATA16
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .long gdt
real_idt_pointer:
    .word 0x3FF
    .long 0

.set place_bios, BIOS*16
.set place_dos, DOS*16
.set place_resident, RESIDENT*16
.set place_program, PROGRAM*16
.set place_library, LIBRARY*16

.global parameters
    .balign 4
parameters:
    .long -1, MODE_REAL, 40, 1, 1, 100000, 0
rate: .long 0
word_start: .long 0

# KEY name, reader, destination, least or names, most
.macro KEY name, reader, destination, least, most=0
    .long name_\@, \reader, \destination, \least, \most
    .pushsection .loader, 1
name_\@: .asciz "\name="
    .popsection
.endm
keys:
    KEY "workload", read_name, parameters+WORKLOAD, workload_names
    KEY "mode", read_name, parameters+MODE, mode_names
    KEY "rate", read_number, rate, 19, 5000
    KEY "ticks", read_number, parameters+TICKS, 1, 65535
    KEY "rounds", read_number, parameters+ROUNDS, 1, 65535
    KEY "count", read_number, parameters+COUNT, 1, 1000000000
    KEY "lines", read_number, parameters+LINES, 1, 65535
keys_end:
workload_names:
    .irp name, idle, copy_type, mix, compute, flags, echo
    .long name_\name
    .endr
    .long 0
mode_names:
    .long name_real, name_v86, name_v86_iopl3, name_v86_vme, 0
name_idle: .asciz "idle"
name_copy_type: .asciz "copy-type"
name_mix: .asciz "mix"
name_compute: .asciz "compute"
name_flags: .asciz "flags"
name_echo: .asciz "echo"
name_real: .asciz "real"
name_v86: .asciz "v86"
name_v86_iopl3: .asciz "v86-iopl3"
name_v86_vme: .asciz "v86-vme"
text_unknown: .asciz "error: no such option: "
text_wrong: .asciz "error: wrong value: "
text_no_workload: .ascii "error: workload=NAME is missing"
text_end: .asciz "\r\n"
no_command_line: .byte 0

.section .bss, "aw", @nobits
    .skip 4096
stack_top:
