# A 32-bit monitor that runs the small system as its virtual-8086 task, as monitors for the
# 80386 did: CLI, STI, PUSHF, POPF, INT n and IRET of the task raise #GP at IOPL 0 and are
# emulated with an interrupt flag of the task; hardware interrupts are passed to the task's
# vectors when this flag is set, and wait until then. With IOPL 3 the task uses the processor's
# flag, and with CR4.VME the processor keeps the task's flag in EFLAGS.VIF.
#
# The monitor acknowledges interrupts at the real 8259 immediately. The task's end of interrupt
# goes to a controller that the monitor emulates, with pending interrupts and those in service.
# (At the real one, it would end the interrupt with the highest priority, which may be one that
# the task has not seen yet.) A task with IOPL 3 uses the real 8259, because the monitor would
# not learn when the task's flag is set again. The task may use all other ports except
# isa-debug-exit.
#
# The loader enters at monitor_start.
.include "layout.inc"

.set CODE, 0x08
.set DATA, 0x10
.set TSS, 0x18

.set FLAG_T, 0x100
.set FLAG_I, 0x200
.set FLAG_IOPL, 0x3000
.set FLAG_VM, 0x20000
.set FLAG_VIF, 0x80000
.set FLAG_VIP, 0x100000
.set FLAGS_OF_TASK, 0x4DD5       # the flags that POPF and IRET may change, except IF

.set SPECIFIC_END, 0x60          # ends the interrupt of the line in the low bits
.set CASCADE, 2                  # the line of the master that the slave uses

.set CR0_PG, 0x80000000
.set CR4_VME, 1
.set CPUID_VME, 2                # leaf 1, EDX

.set PAGE_FOR_ALL, 7             # present, writable, accessible to user code
.set PAGE_OF_MONITOR, 3
.set TASK_PAGES, 0x100           # the pages of the first MiB

# Offsets from EBP in the frame, after PUSHAD.
.set FRAME_EAX, 28
.set FRAME_VECTOR, 32
.set FRAME_EIP, 40
.set FRAME_CS, 44
.set FRAME_EFLAGS, 48
.set FRAME_ESP, 52
.set FRAME_SS, 56

.section .monitor, "ax"
.code32
.global monitor_start
monitor_start:
    lgdt [gdt_pointer]
    mov eax, offset tss
    mov [gdt+TSS+2], ax
    shr eax, 16
    mov [gdt+TSS+4], al
    mov [gdt+TSS+7], ah
    mov ax, TSS
    ltr ax
    mov esi, offset stubs        # an interrupt gate for each vector
    mov edi, offset idt
1:  mov eax, [esi]               # address and vector of the stub
    movzx ebx, byte ptr [esi+4]
    lea edi, idt[ebx*8]
    mov [edi], ax
    mov dword ptr [edi+2], 0x8E000000 | CODE
    shr eax, 16
    mov [edi+6], ax
    add esi, 5
    cmp esi, offset stubs_end
    jne 1b
    lidt [idt_pointer]

    mov edi, offset page_table   # identity mapping of 4 MiB; the task may access the first MiB
    mov eax, PAGE_FOR_ALL
3:  stosd
    add eax, 0x1000
    cmp eax, TASK_PAGES*0x1000 + PAGE_FOR_ALL
    jne 3b
    sub eax, PAGE_FOR_ALL - PAGE_OF_MONITOR
4:  stosd
    add eax, 0x1000
    cmp eax, 0x400000 + PAGE_OF_MONITOR
    jne 4b
    mov eax, offset page_table + PAGE_FOR_ALL
    mov [page_directory], eax
    mov eax, offset page_directory
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    jmp 5f
5:  mov ebx, FLAG_VM | FLAG_I | 2
    cmp dword ptr [parameters+MODE], MODE_V86_IOPL3
    jne 6f
    mov ebx, FLAG_VM | FLAG_IOPL | 2
    mov byte ptr [io_map + PIC_COMMAND / 8], 0
6:  cmp dword ptr [parameters+MODE], MODE_V86_VME
    jne 7f
    push ebx
    mov eax, 1
    cpuid
    pop ebx
    mov esi, offset text_no_vme
    test edx, CPUID_VME
    jz fail
    mov eax, cr4
    or eax, CR4_VME
    mov cr4, eax
7:  push 0                       # GS, FS, DS, ES
    push 0
    push 0
    push 0
    push 0                       # SS:ESP
    push 0
    push ebx
    push BIOS
    push offset bios_start
    iretd

# --- entries ---------------------------------------------------------------------
# STUB vector [, "has an error code"]: its entry, and its line in the table.
.macro STUB vector, has_error
    .pushsection .monitor, 1
    .long stub_\@
    .byte \vector
    .popsection
stub_\@:
    .ifb \has_error
    push 0
    .endif
    push \vector
    .if \vector >= MONITOR_IRQ
    jmp interrupt
    .elseif \vector == 13
    jmp protection
    .else
    jmp exception
    .endif
.endm
    .pushsection .monitor, 1
stubs:
    .popsection
    .irp vector, 0, 1, 2, 3, 4, 5, 6, 7, 9, 16, 18, 19
    STUB \vector
    .endr
    .irp vector, 8, 10, 11, 12, 13, 14, 17
    STUB \vector, yes
    .endr
    .irp line, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    STUB MONITOR_IRQ+\line
    .endr

    .pushsection .monitor, 1
stubs_end:
    .popsection

# ENTER_MONITOR: EBP points to the frame, and the task's flag is fetched; or reports what the monitor
# itself did wrong.
.macro ENTER_MONITOR
    pushad
    mov ebp, esp
    mov eax, DATA
    mov ds, eax
    mov es, eax
    cld
    test dword ptr [ebp+FRAME_EFLAGS], FLAG_VM
    jz unexpected
    call fetch_flag
.endm

interrupt:                       # the interrupt of an IRQ
    ENTER_MONITOR
    inc dword ptr [tally_irq]
    mov eax, [ebp+FRAME_VECTOR]
    sub eax, MONITOR_IRQ
    bts [pending], eax
    cmp dword ptr [parameters+MODE], MODE_V86_IOPL3
    je resume                    # its flag is set, or the interrupt came during this
    or al, SPECIFIC_END          # end the interrupt of this line; one of the slave is ended in both 8259s
    cmp al, SPECIFIC_END | 8
    jb 1f
    sub al, 8
    out SLAVE_COMMAND, al
    mov al, SPECIFIC_END | CASCADE
1:  out PIC_COMMAND, al
    cmp dword ptr [task_flag], 0
    jne resume
    inc dword ptr [tally_deferred]
    jmp resume

exception:
    ENTER_MONITOR
    mov eax, [ebp+FRAME_VECTOR]
    test eax, eax                # the task itself handles errors of a division
    jnz unexpected
    call reflect
    jmp resume

protection:                      # #GP: the instruction decides
    ENTER_MONITOR
    movzx ebx, word ptr [ebp+FRAME_CS]
    shl ebx, 4
    movzx eax, word ptr [ebp+FRAME_EIP]
    add ebx, eax
    mov al, [ebx]
    cmp al, 0xCD
    je emulate_int
    cmp al, 0xCF
    je emulate_iret
    cmp al, 0xFA
    je emulate_cli
    cmp al, 0xFB
    je emulate_sti
    cmp al, 0x9C
    je emulate_pushf
    cmp al, 0x9D
    je emulate_popf
    cmp word ptr [ebx], PIC_COMMAND << 8 | 0xE6
    je emulate_end_of_interrupt
    cmp word ptr [ebx], DEBUG_EXIT << 8 | 0xE6
    je leave
    jmp unexpected

# Returns to the task. If an interrupt is pending and may be delivered, its handler runs first.
resume:
    cmp dword ptr [task_flag], 0
    je 1f
    call next_interrupt
    jz 1f
    btr [pending], eax
    cmp dword ptr [parameters+MODE], MODE_V86_IOPL3
    je 2f
    bts [in_service], eax
2:  add eax, 0x08                # the vector by the PC's numbering of lines
    cmp eax, 0x10
    jb 3f
    add eax, 0x70 - 0x10
3:  call reflect
1:  call store_flag
    popad
    add esp, 8
    iretd
next_interrupt:                  # returns in EAX the line with the highest priority; ZF if there is none
    bsf ecx, [pending]
    jz 1f
    mov eax, ecx
    bsf ecx, [in_service]
    jz 2f
    cmp eax, ecx                 # only lines above the one in service
    jb 2f
    cmp eax, eax
1:  ret
2:  test esp, esp
    ret

# --- the task's interrupt flag ------------------------------------------------------
# `task_flag` is 0 or FLAG_I while the monitor runs; while the task runs, the mode decides where it
# is kept.
fetch_flag:
    mov eax, [virtual_flag]
    cmp dword ptr [parameters+MODE], MODE_V86
    je 2f
    mov eax, [ebp+FRAME_EFLAGS]
    cmp dword ptr [parameters+MODE], MODE_V86_IOPL3
    je 1f
    shr eax, 10                  # shift VIF to the position of IF
1:  and eax, FLAG_I
2:  mov [task_flag], eax
    ret
store_flag:
    mov eax, [task_flag]
    cmp dword ptr [parameters+MODE], MODE_V86
    je 2f
    cmp dword ptr [parameters+MODE], MODE_V86_IOPL3
    je 1f
    and dword ptr [ebp+FRAME_EFLAGS], ~(FLAG_VIF | FLAG_VIP)
    shl eax, 10
    or [ebp+FRAME_EFLAGS], eax
    call next_interrupt
    jz 3f
    or dword ptr [ebp+FRAME_EFLAGS], FLAG_VIP
    ret
1:  and dword ptr [ebp+FRAME_EFLAGS], ~FLAG_I
    or [ebp+FRAME_EFLAGS], eax
    ret
2:  mov [virtual_flag], eax
3:  ret

# --- instructions ------------------------------------------------------------------
emulate_cli:
    inc dword ptr [tally_cli]
    mov dword ptr [task_flag], 0
    inc word ptr [ebp+FRAME_EIP]
    jmp resume
emulate_sti:
    inc dword ptr [tally_sti]
    mov dword ptr [task_flag], FLAG_I
    inc word ptr [ebp+FRAME_EIP]
    jmp resume
emulate_pushf:
    inc dword ptr [tally_pushf]
    call flags_as_seen
    call push_word
    inc word ptr [ebp+FRAME_EIP]
    jmp resume
emulate_popf:
    inc dword ptr [tally_popf]
    call pop_word
    call set_flags
    inc word ptr [ebp+FRAME_EIP]
    jmp resume
emulate_int:
    inc dword ptr [tally_int]
    add word ptr [ebp+FRAME_EIP], 2
    movzx eax, byte ptr [ebx+1]
    call reflect
    jmp resume
emulate_iret:
    inc dword ptr [tally_iret]
    call pop_word
    mov [ebp+FRAME_EIP], eax
    call pop_word
    mov [ebp+FRAME_CS], eax
    call pop_word
    call set_flags
    jmp resume

emulate_end_of_interrupt:        # OUT 20h, AL
    inc dword ptr [tally_eoi]
    cmp byte ptr [ebp+FRAME_EAX], END_OF_INTERRUPT
    jne unexpected               # the task does not program the controllers
    bsf eax, [in_service]
    jz 1f
    btr [in_service], eax
1:  add word ptr [ebp+FRAME_EIP], 2
    jmp resume

reflect:                         # continues at the task's vector EAX
    push eax
    call flags_as_seen
    call push_word
    mov eax, [ebp+FRAME_CS]
    call push_word
    mov eax, [ebp+FRAME_EIP]
    call push_word
    pop eax
    and dword ptr [ebp+FRAME_EFLAGS], ~FLAG_T
    mov dword ptr [task_flag], 0
    movzx ecx, word ptr [eax*4]
    mov [ebp+FRAME_EIP], ecx
    movzx ecx, word ptr [eax*4+2]
    mov [ebp+FRAME_CS], ecx
    ret
flags_as_seen:                   # returns the flags in EAX with the task's IF, and IOPL 3
    mov eax, [ebp+FRAME_EFLAGS]
    and eax, ~FLAG_I & 0xFFFF
    or eax, FLAG_IOPL
    or eax, [task_flag]
    ret
set_flags:                       # sets the flags from EAX
    mov ecx, eax
    and ecx, FLAG_I
    mov [task_flag], ecx
    and eax, FLAGS_OF_TASK
    and dword ptr [ebp+FRAME_EFLAGS], ~FLAGS_OF_TASK
    or [ebp+FRAME_EFLAGS], eax
    ret
push_word:                       # pushes AX on the task's stack
    sub word ptr [ebp+FRAME_ESP], 2
    call stack_top_of_task
    mov [ecx], ax
    ret
pop_word:                        # returns the word in EAX
    call stack_top_of_task
    movzx eax, word ptr [ecx]
    add word ptr [ebp+FRAME_ESP], 2
    ret
stack_top_of_task:               # returns its address in ECX; EDX is lost
    movzx ecx, word ptr [ebp+FRAME_SS]
    shl ecx, 4
    movzx edx, word ptr [ebp+FRAME_ESP]
    add ecx, edx
    ret

# --- the end --------------------------------------------------------------------------
leave:                           # the task writes AL to isa-debug-exit
    mov esi, offset text_monitor
    call put_text
    mov ebx, offset tallies
1:  mov esi, [ebx]
    call put_text
    mov eax, [ebx+4]
    mov eax, [eax]
    call put_decimal
    add ebx, 8
    cmp ebx, offset tallies_end
    jne 1b
    mov esi, offset text_line_end
    call put_text
    mov al, [ebp+FRAME_EAX]
    out DEBUG_EXIT, al
2:  jmp 2b

unexpected:
    mov esi, offset text_unexpected
    call put_text
    mov eax, [ebp+FRAME_VECTOR]
    call put_decimal
    mov esi, offset text_at
    call put_text
    mov eax, [ebp+FRAME_CS]
    call put_decimal
    mov al, ':'
    call put_character
    mov eax, [ebp+FRAME_EIP]
    call put_decimal
    mov esi, offset text_line_end
    jmp fail

# --- data -------------------------------------------------------------------------------
.macro TALLY_OF name
    .pushsection .monitor, 2
text_\name: .asciz " \name="
    .popsection
    .long text_\name, tally_\name
.endm
    .balign 4
tallies:
    .irp name, cli, sti, pushf, popf, int, iret, irq, deferred, eoi
    TALLY_OF \name
    .endr
tallies_end:
text_monitor: .asciz "monitor"
text_line_end: .asciz "\r\n"
text_unexpected: .asciz "error: the monitor cannot handle exception "
text_at: .asciz " at "
text_no_vme: .asciz "error: this processor has no CR4.VME\r\n"

    .balign 8
gdt:
    .quad 0
    .quad 0x00CF9A000000FFFF     # CODE
    .quad 0x00CF92000000FFFF     # DATA
    .word tss_end - tss - 1, 0, 0x8900, 0        # TSS
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .long gdt
idt_pointer:
    .word 256*8 - 1
    .long idt

.set REDIRECTION_BYTES, 32       # all zero: with VME the task handles each INT n itself
.set OPEN_PORTS, 0x400
    .balign 4
tss:
    .long 0, monitor_stack_top, DATA
    .skip 102 - 12
    .word io_map - tss
    .skip REDIRECTION_BYTES
io_map:
    .skip PIC_COMMAND / 8
    .byte 1 << (PIC_COMMAND % 8)
    .skip DEBUG_EXIT / 8 - PIC_COMMAND / 8 - 1
    .byte 1 << (DEBUG_EXIT % 8)
    .skip (OPEN_PORTS - DEBUG_EXIT) / 8
    .byte 0xFF
tss_end:

.section .bss, "aw", @nobits
    .balign 4096
page_directory: .skip 4096
page_table: .skip 4096
idt: .skip 256*8
    .skip 4096
monitor_stack_top:
    .irp name, cli, sti, pushf, popf, int, iret, irq, deferred, eoi
tally_\name: .skip 4
    .endr
pending: .skip 4                 # one bit for each line
in_service: .skip 4              # set until the task ends the interrupt
task_flag: .skip 4
virtual_flag: .skip 4
