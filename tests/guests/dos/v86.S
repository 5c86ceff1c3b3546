# V86.COM stays in memory and has DOS go on as its virtual-8086 task, in the way of a memory manager of a 386: at
# IOPL 0, with paging, and with no port open to the task. CLI, STI, PUSHF, POPF, INT n, IRET and HLT are #GP, and so
# are IN, OUT, INS and OUTS, with prefixes: the monitor does what they ask for. The task's interrupt flag is the
# processor's while it runs. The master 8259's interrupts come at 50h and up, away from the exceptions, and
# are handed to the task's own vectors. Ports E0F0h and up tell what was emulated.
.include "com.inc"

.set CODE_16, 0x08               # selectors; the first three begin where the program does
.set CODE, 0x10
.set DATA, 0x18
.set MEMORY, 0x20
.set TASK, 0x28

.set MASTER, 0x50                # its interrupts here
.set MASTER_OF_DOS, 0x08         # and in DOS
.set SLAVE, 0x70

.set FLAG_T, 0x100
.set FLAG_I, 0x200
.set FLAG_NT, 0x4000
.set FLAG_IOPL, 0x3000
.set FLAG_VM, 0x20000
.set FLAGS_16, 0x4FD5            # what POPF and IRET of 16 bits may change
.set FLAGS_32, 0x244FD5          # and those of 32
.set FLAG_DOWN, 0x400

.set COUNTERS, 0xE0F0
.set COUNTER_KINDS, 10

# The frame, from EBP.
.set FRAME_EDI, 0
.set FRAME_ESI, 4
.set FRAME_EBX, 16
.set FRAME_EDX, 20
.set FRAME_ECX, 24
.set FRAME_EAX, 28
.set FRAME_VECTOR, 32
.set FRAME_ERROR, 36
.set FRAME_EIP, 40
.set FRAME_CS, 44
.set FRAME_EFLAGS, 48
.set FRAME_ESP, 52
.set FRAME_SS, 56
.set FRAME_ES, 60
.set FRAME_DS, 64
.set FRAME_FS, 68
.set FRAME_GS, 72

.text
    jmp install

# --- the monitor --------------------------------------------------------------------------
.code32
.macro STUB vector, has_error
    .balign 16
    .ifb \has_error
    push 0
    .endif
    push \vector
    jmp entry
.endm
    .balign 16
stubs:                           # 16 bytes each
    .irp vector, 0, 1, 2, 3, 4, 5, 6, 7
    STUB \vector
    .endr
    STUB 8, yes
    STUB 9
    .irp vector, 10, 11, 12, 13, 14
    STUB \vector, yes
    .endr
    STUB 15
    STUB 16
    STUB 17, yes
    STUB 18
    STUB 19
.set EXCEPTIONS, 20
    .irp line, 0, 1, 2, 3, 4, 5, 6, 7
    STUB MASTER+\line
    .endr
    .irp line, 0, 1, 2, 3, 4, 5, 6, 7
    STUB SLAVE+\line
    .endr

entry:
    pushad
    mov ebp, esp
    mov eax, DATA
    mov ds, eax
    mov eax, MEMORY
    mov es, eax
    cld
    mov eax, [ebp+FRAME_VECTOR]
    test dword ptr [ebp+FRAME_EFLAGS], FLAG_VM
    jz in_monitor
    cmp eax, MASTER
    jae interrupt
    cmp eax, 13
    je protection
    cmp eax, 7                   # division, debug, breakpoint, overflow, bound, opcode, no coprocessor
    ja unexpected
    call reflect
    jmp resume
in_monitor:                      # only while the task waits in HLT
    cmp eax, MASTER
    jb unexpected
    mov [arrived], eax
resume:
    popad
    add esp, 8
    iretd

interrupt:
    inc dword ptr [count_irq]
    call reflect_line
    jmp resume
reflect_line:                    # EAX as the 8259 gives it
    cmp eax, SLAVE
    jae reflect
    sub eax, MASTER - MASTER_OF_DOS
reflect:                         # into the task's vector EAX
    push eax
    mov eax, [ebp+FRAME_EFLAGS]
    or eax, FLAG_IOPL            # as a task sees it
    call push_word
    mov eax, [ebp+FRAME_CS]
    call push_word
    mov eax, [ebp+FRAME_EIP]
    call push_word
    pop eax
    and dword ptr [ebp+FRAME_EFLAGS], ~(FLAG_T | FLAG_I)
    movzx ecx, word ptr es:[eax*4]
    mov [ebp+FRAME_EIP], ecx
    movzx ecx, word ptr es:[eax*4+2]
    mov [ebp+FRAME_CS], ecx
    ret

push_word:                       # AX on the task's stack
    sub word ptr [ebp+FRAME_ESP], 2
    call top_of_stack
    mov es:[ecx], ax
    ret
pop_word:                        # AX; the rest of EAX is 0
    call top_of_stack
    movzx eax, word ptr es:[ecx]
    add word ptr [ebp+FRAME_ESP], 2
    ret
push_long:
    ror eax, 16
    call push_word
    ror eax, 16
    jmp push_word
pop_long:
    call pop_word
    push eax
    call pop_word
    shl eax, 16
    pop ecx
    or eax, ecx
    ret
top_of_stack:                    # ECX its address; EDX is lost
    movzx ecx, word ptr [ebp+FRAME_SS]
    shl ecx, 4
    movzx edx, word ptr [ebp+FRAME_ESP]
    add ecx, edx
    ret

protection:                      # which instruction is it? ESI goes along its bytes
    movzx esi, word ptr [ebp+FRAME_CS]
    shl esi, 4
    movzx eax, word ptr [ebp+FRAME_EIP]
    add esi, eax
    mov [begin], esi
    mov dword ptr [is_wide], 0
    mov dword ptr [is_repeated], 0
    mov dword ptr [has_wide_addresses], 0
    mov eax, [ebp+FRAME_DS]
    mov [source], eax
1:  movzx eax, byte ptr es:[esi]
    inc esi
    cmp al, 0x66
    jne 2f
    mov dword ptr [is_wide], 1
    jmp 1b
2:  cmp al, 0x67
    jne 2f
    mov dword ptr [has_wide_addresses], 1
    jmp 1b
2:  mov ecx, eax
    and ecx, 0xFE
    cmp cl, 0xF2
    jne 2f
    mov dword ptr [is_repeated], 1
    jmp 1b
2:  .irp prefix, 0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65
    cmp al, \prefix
    .if \prefix == 0x26
    mov ecx, [ebp+FRAME_ES]
    .elseif \prefix == 0x2E
    mov ecx, [ebp+FRAME_CS]
    .elseif \prefix == 0x36
    mov ecx, [ebp+FRAME_SS]
    .elseif \prefix == 0x3E
    mov ecx, [ebp+FRAME_DS]
    .elseif \prefix == 0x64
    mov ecx, [ebp+FRAME_FS]
    .else
    mov ecx, [ebp+FRAME_GS]
    .endif
    je other_segment
    .endr
    mov ebx, offset instructions
3:  movzx ecx, byte ptr [ebx]
    test ecx, ecx
    jz unexpected
    cmp cl, al
    je 4f
    add ebx, 5
    jmp 3b
4:  jmp [ebx+1]
other_segment:
    mov [source], ecx
    jmp 1b

.macro INSTRUCTION opcode, handler
    .byte \opcode
    .long \handler
.endm
instructions:
    INSTRUCTION 0xFA, emulate_cli
    INSTRUCTION 0xFB, emulate_sti
    INSTRUCTION 0x9C, emulate_pushf
    INSTRUCTION 0x9D, emulate_popf
    INSTRUCTION 0xCD, emulate_int
    INSTRUCTION 0xCF, emulate_iret
    INSTRUCTION 0xF4, emulate_hlt
    INSTRUCTION 0xE4, in_byte_fixed
    INSTRUCTION 0xE5, in_wide_fixed
    INSTRUCTION 0xEC, in_byte
    INSTRUCTION 0xED, in_wide
    INSTRUCTION 0xE6, out_byte_fixed
    INSTRUCTION 0xE7, out_wide_fixed
    INSTRUCTION 0xEE, out_byte
    INSTRUCTION 0xEF, out_wide
    INSTRUCTION 0x6C, ins_byte
    INSTRUCTION 0x6D, ins_wide
    INSTRUCTION 0x6E, outs_byte
    INSTRUCTION 0x6F, outs_wide
    .byte 0

done:                            # the task goes on at ESI
    sub esi, [begin]
    add word ptr [ebp+FRAME_EIP], si
    jmp resume

emulate_cli:
    inc dword ptr [count_cli]
    and dword ptr [ebp+FRAME_EFLAGS], ~FLAG_I
    jmp done
emulate_sti:
    inc dword ptr [count_sti]
    or dword ptr [ebp+FRAME_EFLAGS], FLAG_I
    jmp done
emulate_pushf:
    inc dword ptr [count_pushf]
    mov eax, [ebp+FRAME_EFLAGS]
    or eax, FLAG_IOPL
    and eax, ~FLAG_VM
    cmp dword ptr [is_wide], 0
    jne 1f
    call push_word
    jmp done
1:  call push_long
    jmp done
emulate_popf:
    inc dword ptr [count_popf]
    call pop_flags
    jmp done
pop_flags:
    cmp dword ptr [is_wide], 0
    jne 1f
    call pop_word
    mov ecx, FLAGS_16
    jmp 2f
1:  call pop_long
    mov ecx, FLAGS_32
2:  or ecx, FLAG_I
    and eax, ecx
    not ecx
    and [ebp+FRAME_EFLAGS], ecx
    or [ebp+FRAME_EFLAGS], eax
    ret
emulate_int:
    inc dword ptr [count_int]
    movzx eax, byte ptr es:[esi]
    inc esi
    sub esi, [begin]
    add word ptr [ebp+FRAME_EIP], si
    call reflect
    jmp resume
emulate_iret:
    inc dword ptr [count_iret]
    cmp dword ptr [is_wide], 0
    jne 1f
    call pop_word
    mov [ebp+FRAME_EIP], eax
    call pop_word
    mov [ebp+FRAME_CS], eax
    jmp 2f
1:  call pop_long
    mov [ebp+FRAME_EIP], eax
    call pop_long
    movzx eax, ax
    mov [ebp+FRAME_CS], eax
2:  call pop_flags
    jmp resume
emulate_hlt:                     # waits here, with the task's flag; then its handler
    inc dword ptr [count_hlt]
    sub esi, [begin]
    add word ptr [ebp+FRAME_EIP], si
    test dword ptr [ebp+FRAME_EFLAGS], FLAG_I
    jz unexpected                # for ever
    mov dword ptr [arrived], 0
1:  sti
    hlt
    cli
    mov eax, [arrived]
    test eax, eax
    jz 1b
    inc dword ptr [count_irq]
    call reflect_line
    jmp resume

# --- ports ----------------------------------------------------------------------------------
in_byte_fixed:
    movzx edx, byte ptr es:[esi]
    inc esi
    jmp 1f
in_byte:
    movzx edx, word ptr [ebp+FRAME_EDX]
1:  inc dword ptr [count_in]
    in al, dx
    mov [ebp+FRAME_EAX], al
    jmp done
in_wide_fixed:
    movzx edx, byte ptr es:[esi]
    inc esi
    jmp 1f
in_wide:
    movzx edx, word ptr [ebp+FRAME_EDX]
1:  inc dword ptr [count_in]
    cmp dword ptr [is_wide], 0
    jne 2f
    in ax, dx
    mov [ebp+FRAME_EAX], ax
    jmp done
2:  mov ecx, edx
    sub ecx, COUNTERS
    cmp ecx, COUNTER_KINDS
    jb 3f
    in eax, dx
    jmp 4f
3:  mov eax, counts[ecx*4]
4:  mov [ebp+FRAME_EAX], eax
    jmp done
out_byte_fixed:
    movzx edx, byte ptr es:[esi]
    inc esi
    jmp 1f
out_byte:
    movzx edx, word ptr [ebp+FRAME_EDX]
1:  inc dword ptr [count_out]
    mov al, [ebp+FRAME_EAX]
    out dx, al
    jmp done
out_wide_fixed:
    movzx edx, byte ptr es:[esi]
    inc esi
    jmp 1f
out_wide:
    movzx edx, word ptr [ebp+FRAME_EDX]
1:  inc dword ptr [count_out]
    mov eax, [ebp+FRAME_EAX]
    cmp dword ptr [is_wide], 0
    jne 2f
    out dx, ax
    jmp done
2:  out dx, eax
    jmp done

# Strings, element by element: EDX the port, EBX the element's bytes.
ins_byte:
    mov ebx, 1
    jmp 1f
ins_wide:
    call bytes_of_wide
1:  inc dword ptr [count_in]
    movzx edx, word ptr [ebp+FRAME_EDX]
    call count_elements
2:  dec dword ptr [left]
    js done
    mov edi, [ebp+FRAME_EDI]
    call address
    mov ecx, [ebp+FRAME_ES]
    shl ecx, 4
    add edi, ecx
    cmp ebx, 2
    je 3f
    ja 4f
    in al, dx
    mov es:[edi], al
    jmp 5f
3:  in ax, dx
    mov es:[edi], ax
    jmp 5f
4:  in eax, dx
    mov es:[edi], eax
5:  lea ecx, [ebp+FRAME_EDI]
    call advance
    jmp 2b
outs_byte:
    mov ebx, 1
    jmp 1f
outs_wide:
    call bytes_of_wide
1:  inc dword ptr [count_out]
    movzx edx, word ptr [ebp+FRAME_EDX]
    call count_elements
2:  dec dword ptr [left]
    js done
    mov edi, [ebp+FRAME_ESI]
    call address
    mov ecx, [source]
    shl ecx, 4
    add edi, ecx
    mov eax, es:[edi]
    cmp ebx, 2
    je 3f
    ja 4f
    out dx, al
    jmp 5f
3:  out dx, ax
    jmp 5f
4:  out dx, eax
5:  lea ecx, [ebp+FRAME_ESI]
    call advance
    jmp 2b
bytes_of_wide:
    mov ebx, [is_wide]
    lea ebx, [ebx*2+2]
    ret
count_elements:                  # how many there are, all of which are moved now
    mov dword ptr [left], 1
    cmp dword ptr [is_repeated], 0
    je 2f
    mov eax, [ebp+FRAME_ECX]
    mov dword ptr [ebp+FRAME_ECX], 0
    cmp dword ptr [has_wide_addresses], 0
    jne 1f
    mov [ebp+FRAME_ECX], eax
    mov word ptr [ebp+FRAME_ECX], 0
    movzx eax, ax
1:  mov [left], eax
2:  ret
address:                         # EDI as far as addresses go
    cmp dword ptr [has_wide_addresses], 0
    jne 1f
    movzx edi, di
1:  ret
advance:                         # the index at ECX by an element
    mov eax, ebx
    test dword ptr [ebp+FRAME_EFLAGS], FLAG_DOWN
    jz 1f
    neg eax
1:  cmp dword ptr [has_wide_addresses], 0
    jne 2f
    add [ecx], ax
    ret
2:  add [ecx], eax
    ret

# --- what the monitor cannot do: "V86 vector CS:EIP" in the corner of the screen, and the end -------
unexpected:
    mov edi, 0xB8000
    mov eax, [ebp+FRAME_VECTOR]
    call put_hexadecimal
    mov eax, [ebp+FRAME_CS]
    call put_hexadecimal
    mov eax, [ebp+FRAME_EIP]
    call put_hexadecimal
1:  cli
    hlt
    jmp 1b
put_hexadecimal:                 # EAX and a space
    mov edx, eax
    mov ecx, 8
1:  rol edx, 4
    mov al, dl
    and al, 0x0F
    add al, '0'
    cmp al, '9'
    jbe 2f
    add al, 'A' - '0' - 10
2:  mov ah, 0x4F
    mov es:[edi], ax
    add edi, 2
    loop 1b
    add edi, 2
    ret

.macro COUNTS names:vararg
counts:
    .irp name, \names
count_\name: .long 0
    .endr
.endm
    .balign 4
    COUNTS cli, sti, pushf, popf, int, iret, in, out, hlt, irq
arrived: .long 0
begin: .long 0
is_wide: .long 0
is_repeated: .long 0
left: .long 0
has_wide_addresses: .long 0
source: .long 0                  # the segment that OUTS reads

    .balign 8
gdt:
    .quad 0
    .quad 0x00009A000000FFFF     # CODE_16, at the program
    .quad 0x00409A000000FFFF     # CODE, likewise
    .quad 0x004092000000FFFF     # DATA, likewise
    .quad 0x00CF92000000FFFF     # MEMORY
    .word tss_end - tss - 1, 0, 0x8900, 0        # TASK
.set GDT_BYTES, . - gdt
gdt_pointer: .word GDT_BYTES - 1
    .long 0
idt_pointer: .word 256*8 - 1
    .long 0
idt_of_dos: .word 0x3FF
    .long 0

    .balign 4
tss:
    .long 0, stack_top, DATA
    .skip 102 - 12
    .word io_map - tss
io_map:
    .fill 0x10000 / 8 + 1, 1, 0xFF       # no port is the task's
tss_end:
    .balign 8
idt: .skip 256*8
    .skip 2048
stack_top:
tables: .skip 3 * 4096           # a page directory and a page table, each in a page
resident_end:

# --- from DOS to there -------------------------------------------------------------------------
.code16
.set PAGE_FOR_ALL, 7             # present, writable, user
install:
    smsw ax
    test al, 1
    jz 1f
    SAY "not in real mode\r\n"
    EXIT 1
1:  cli
    cld
    xor ebx, ebx
    mov bx, cs
    shl ebx, 4                   # where the program lies
    mov di, offset gdt + CODE_16
    call set_base
    mov di, offset gdt + CODE
    call set_base
    mov di, offset gdt + DATA
    call set_base
    push ebx
    add ebx, offset tss
    mov di, offset gdt + TASK
    call set_base
    pop ebx
    lea eax, [ebx + gdt]
    mov [gdt_pointer+2], eax
    lea eax, [ebx + idt]
    mov [idt_pointer+2], eax

    mov si, offset stubs         # gates: exceptions, and both controllers' lines
    mov di, offset idt
    mov cx, EXCEPTIONS
    call set_gates
    mov di, offset idt + MASTER * 8
    mov cx, 8
    call set_gates
    mov di, offset idt + SLAVE * 8
    mov cx, 8
    call set_gates
    or byte ptr [idt + 3*8 + 5], 0x60    # INT3 and INTO may come from the task
    or byte ptr [idt + 4*8 + 5], 0x60

    lea eax, [ebx + tables + 0xFFF]      # the directory, and 4 MiB where they are
    and eax, ~0xFFF
    mov cr3, eax
    mov edi, eax
    sub edi, ebx
    lea edx, [eax + 0x1000 + PAGE_FOR_ALL]
    mov [di], edx
    add di, 4
    mov cx, 1023
    xor eax, eax
2:  mov [di], eax
    add di, 4
    loop 2b
    mov eax, PAGE_FOR_ALL
    mov cx, 1024
3:  mov [di], eax
    add di, 4
    add eax, 0x1000
    loop 3b

    in al, 0x21                  # the master's interrupts away from the exceptions
    mov ah, al
    mov al, 0x11
    out 0x20, al
    mov al, MASTER
    out 0x21, al
    mov al, 4
    out 0x21, al
    mov al, 1
    out 0x21, al
    mov al, ah
    out 0x21, al

    xor ecx, ecx
    mov cx, cs
    xor edx, edx
    mov dx, sp
    lgdt [gdt_pointer]
    lidt [idt_pointer]
    mov eax, cr0
    or eax, 0x80000001
    mov cr0, eax
    .byte 0x66, 0xEA             # jmp CODE:to_the_task
    .long to_the_task
    .word CODE
.code32
to_the_task:
    mov eax, DATA
    mov ds, eax
    mov ss, eax
    mov esp, offset stack_top
    mov ax, TASK
    ltr ax
    push ecx                     # GS, FS, DS, ES
    push ecx
    push ecx
    push ecx
    push ecx                     # SS:ESP
    push edx
    push FLAG_VM | FLAG_I | 2
    push ecx
    push offset in_the_task
    iretd
.code16
in_the_task:
    SAY "DOS is a task now\r\n"
    mov dx, offset resident_end + 15
    shr dx, 4
    mov ax, DOS_STAY_RESIDENT << 8
    int 0x21

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
