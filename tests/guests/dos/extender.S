# EXTENDER.COM runs a part of itself in 32-bit protected mode, as DOS extenders have programs do: it fills a MiB of
# memory above the first, adds it up, waits for three ticks of the clock, and writes a file, all from there. For
# INT 21h and for interrupts it goes back to real mode and returns.
.include "com.inc"

.set CODE_16, 0x08               # selectors; the first three begin where the program does
.set CODE, 0x10
.set DATA, 0x18
.set MEMORY, 0x20

.set MASTER, 0x08                # interrupts where real mode has them: no exception is expected
.set SLAVE, 0x70

.set EXTENDED, 0x200000          # the MiB
.set EXTENDED_WORDS, 0x40000
.set TICK_COUNT, 0x46C
.set SWITCH_A20_ON, 0x2401       # INT 15h

.text
    smsw ax
    test al, 1
    jz 1f
    SAY "not in real mode\r\n"
    EXIT 1
1:  SAY "extender: begins\r\n"
    mov ax, SWITCH_A20_ON
    int 0x15
    cli
    cld
    xor ebx, ebx
    mov bx, cs
    mov [back+3], bx             # far jumps to real mode
    shl ebx, 4
    mov [base], ebx
    .irp descriptor, CODE_16, CODE, DATA
    mov di, offset gdt + \descriptor
    call set_base
    .endr
    lea eax, [ebx + gdt]
    mov [gdt_pointer+2], eax
    lea eax, [ebx + idt]
    mov [idt_pointer+2], eax
    mov si, offset stubs
    mov di, offset idt + MASTER * 8
    mov cx, 8
    call set_gates
    mov di, offset idt + SLAVE * 8
    mov cx, 8
    call set_gates
    mov [real_stack], sp
    mov word ptr [continue], offset main
    jmp to_protected

finished:                        # in real mode
    sti
    SAY "extender: ends\r\n"
    EXIT 0

set_base:                        # of the descriptor at DI: EBX
    mov [di+2], bx
    mov eax, ebx
    shr eax, 16
    mov [di+4], al
    mov [di+7], ah
    ret
set_gates:                       # CX interrupt gates at DI for the stubs from SI on
    mov [di], si
    mov word ptr [di+2], CODE
    mov word ptr [di+4], 0x8E00
    mov word ptr [di+6], 0
    add si, 16
    add di, 8
    loop set_gates
    ret
# --- between the modes -------------------------------------------------------------------------
to_protected:                    # from real mode with interrupts off: goes on at [continue]
    lgdt [gdt_pointer]
    lidt [idt_pointer]
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xEA             # jmp CODE:in_protected
    .long in_protected
    .word CODE

protected_16:                    # from protected mode, in 16-bit code
    mov eax, cr0
    and al, 0xFE
    mov cr0, eax
back:
    .byte 0xEA                   # jmp SEGMENT:in_real
    .word in_real
    .word 0
in_real:
    mov ax, cs
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov sp, [real_stack]
    lidt [idt_of_dos]
    jmp word ptr [continue_real]

real_call:                       # what protected mode asked for: INT [vector] with [registers]
    mov bl, [vector]
    mov byte ptr [1f+1], bl
    jmp 3f                       # the byte is code that was changed
3:  mov eax, [registers]
    mov ebx, [registers+4]
    mov ecx, [registers+8]
    mov edx, [registers+12]
1:  int 0
    cli
    mov [registers], eax
    pushfd
    pop dword ptr [flags]
    mov word ptr [continue], offset called
    jmp to_protected

.code32
in_protected:
    mov ax, DATA
    mov ds, ax
    mov ss, ax
    mov ax, MEMORY
    mov es, ax
    mov esp, [stack]
    jmp [continue]

# CALL_REAL: INT [vector] in real mode with [registers], from protected mode with interrupts off.
call_real:
    pushad
    push dword ptr [stack]
    mov [stack], esp
    mov dword ptr [continue_real], offset real_call
    .byte 0xEA                   # jmp CODE_16:protected_16
    .long protected_16
    .word CODE_16
called:
    pop dword ptr [stack]
    popad
    ret

.macro STUB vector
    .balign 16
    push \vector
    jmp interrupt
.endm
    .balign 16
stubs:
    .irp line, 0, 1, 2, 3, 4, 5, 6, 7
    STUB MASTER+\line
    .endr
    .irp line, 0, 1, 2, 3, 4, 5, 6, 7
    STUB SLAVE+\line
    .endr
interrupt:                       # DOS's own handler in real mode
    push eax
    mov eax, [esp+4]
    mov [vector], al
    call call_real
    inc dword ptr [interrupts]
    pop eax
    add esp, 4
    iretd

# --- the program ---------------------------------------------------------------------------------
dos:                             # INT 21h with EAX, EBX, ECX and EDX; EAX, and CF if it failed
    mov byte ptr [vector], 0x21
    mov [registers], eax
    mov [registers+4], ebx
    mov [registers+8], ecx
    mov [registers+12], edx
    call call_real
    mov eax, [registers]
    bt dword ptr [flags], 0
    ret

.macro PRINT text
    mov edx, offset text_\@
    mov eax, DOS_PRINT << 8
    call dos
    .pushsection .data
text_\@: .ascii "\text"
    .byte '$'
    .popsection
.endm
.macro EXPECT condition, text
    j\condition 1f
    PRINT "extender: \text\r\n"
    jmp leave
1:
.endm

main:
    PRINT "extender: in protected mode\r\n"
    mov edi, EXTENDED            # numbers from 0 on in 1 MiB, beyond what real mode reaches
    xor eax, eax
    mov ecx, EXTENDED_WORDS
2:  mov es:[edi+eax*4], eax
    inc eax
    loop 2b
    xor ebx, ebx
    mov esi, EXTENDED
    mov ecx, EXTENDED_WORDS
3:  add ebx, es:[esi]
    add esi, 4
    loop 3b
    cmp ebx, 0xFFFE0000          # 40000h x 3FFFFh / 2, of which 32 bits
    EXPECT e, "the sum is wrong"
    PRINT "extender: the sum is right\r\n"

    mov dword ptr [interrupts], 0
    mov ebx, es:[TICK_COUNT]
    sti
4:  mov eax, es:[TICK_COUNT]
    sub eax, ebx
    cmp eax, 3
    jb 4b
    cli
    cmp dword ptr [interrupts], 3
    EXPECT ae, "the clock ticks by itself"
    PRINT "extender: three ticks\r\n"

    mov eax, DOS_CREATE << 8
    xor ecx, ecx
    mov edx, offset name
    call dos
    EXPECT nc, "no file"
    movzx ebx, ax
    mov eax, DOS_WRITE << 8
    mov ecx, offset written_end - written
    mov edx, offset written
    call dos
    EXPECT nc, "nothing written"
    mov eax, DOS_CLOSE << 8
    call dos
leave:
    mov dword ptr [continue_real], offset finished
    .byte 0xEA
    .long protected_16
    .word CODE_16

.data
    .balign 8
gdt:
    .quad 0
    .quad 0x00009A000000FFFF     # CODE_16, at the program
    .quad 0x00409A000000FFFF     # CODE, likewise
    .quad 0x004092000000FFFF     # DATA, likewise
    .quad 0x00CF92000000FFFF     # MEMORY
.set GDT_BYTES, . - gdt
gdt_pointer: .word GDT_BYTES - 1
    .long 0
idt_pointer: .word 256*8 - 1
    .long 0
idt_of_dos: .word 0x3FF
    .long 0
    .balign 4
base: .long 0
stack: .long stack_top
continue: .long 0                # in protected mode
continue_real: .long 0
registers: .long 0, 0, 0, 0
flags: .long 0
interrupts: .long 0
real_stack: .word 0
vector: .byte 0
name: .asciz "EXTENDED.TXT"
written: .ascii "written from protected mode\r\n"
written_end:
    .balign 8
idt: .skip 256*8
    .skip 2048
stack_top:
