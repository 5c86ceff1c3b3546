# The work in 16-bit code of each kind, one after the other: in real mode, as a V86 task with paging, and in
# 16-bit segments of protected mode at level 0 without paging and at level 3 with it. Writes for each its
# name, the least cycles of a round and the result, in hexadecimal, to COM1. A timer interrupts all of it a
# thousand times a second, as a system's would.
.intel_syntax noprefix
.set PLACE_CODE, 0x10000         # where the 16-bit code, its data and its stack lie
.set PLACE_DATA, 0x20000
.set PLACE_STACK, 0x30000
.set PLACE_IDT, 0x40000
.set PLACE_DIRECTORY, 0x41000
.set PLACE_TABLE, 0x42000
.set STACK_BYTES, 0x1000
.set BASE, 0

.set CODE, 0x08                  # selectors
.set DATA, 0x10
.set CODE16, 0x18
.set DATA16, 0x20
.set STACK16, 0x28
.set TSS, 0x30
.set USER_CODE16, 0x3B
.set USER_DATA16, 0x43
.set USER_STACK16, 0x4B

.set FLAG_I, 0x200
.set FLAG_IOPL, 0x3000
.set FLAG_VM, 0x20000
.set CR0_PG, 0x80000000
.set PAGE_FOR_ALL, 7             # present, writable, accessible at level 3
.set VECTOR_TIMER, 0x20
.set VECTOR_DONE, 0x30
.set PIC_COMMAND, 0x20
.set PIC_MASK, 0x21
.set TIMER_DIVISOR, 1193         # 1000 Hz
.set COM1, 0x3F8
.set DEBUG_EXIT, 0xF4
.set EXIT_CODE, 0x10

.section .multiboot, "a"
    .balign 4
    .long 0x1BADB002, 0, -0x1BADB002

.text
.code32
.globl start
start:
    cli
    cld
    mov esp, offset stack_top
    lgdt [gdt_pointer]
    jmp CODE:1f
1:  call load_flat
    mov esi, offset code16
    mov edi, PLACE_CODE
    mov ecx, offset code16_end - code16
    rep movsb
    mov edi, PLACE_IDT           # gates of the timer and of the end of a run at level 3
    mov ecx, 0x1000 / 4
    xor eax, eax
    rep stosd
    mov eax, offset timer
    mov ebx, VECTOR_TIMER
    call set_gate
    mov eax, offset done
    mov ebx, VECTOR_DONE
    call set_gate
    lidt [idt_pointer]
    mov word ptr [VECTOR_TIMER*4], offset real_timer - code16
    mov word ptr [VECTOR_TIMER*4+2], PLACE_CODE >> 4
    mov eax, offset tss
    mov [gdt+TSS+2], ax
    shr eax, 16
    mov [gdt+TSS+4], al
    mov [gdt+TSS+7], ah
    mov ax, TSS
    ltr ax
    mov edi, PLACE_TABLE         # the first 4 MiB are mapped to themselves
    mov eax, PAGE_FOR_ALL
2:  stosd
    add eax, 0x1000
    cmp eax, 0x400000 + PAGE_FOR_ALL
    jne 2b
    mov edi, PLACE_DIRECTORY
    mov ecx, 0x1000 / 4
    xor eax, eax
    rep stosd
    mov dword ptr [PLACE_DIRECTORY], PLACE_TABLE + PAGE_FOR_ALL
    mov eax, PLACE_DIRECTORY
    mov cr3, eax
    mov al, 0x11                 # the timer is line 0
    out PIC_COMMAND, al
    mov al, VECTOR_TIMER
    out PIC_MASK, al
    mov al, 4
    out PIC_MASK, al
    mov al, 1
    out PIC_MASK, al
    mov al, 0xFE
    out PIC_MASK, al
    mov al, 0xFF
    out 0xA1, al
    mov al, 0x34
    out 0x43, al
    mov al, TIMER_DIVISOR & 0xFF
    out 0x40, al
    mov al, TIMER_DIVISOR >> 8
    out 0x40, al

# --- real mode
    mov dword ptr [then], offset real_done
    lidt [real_idt_pointer]
    mov eax, DATA16
    mov ds, eax
    mov es, eax
    mov eax, STACK16
    mov ss, eax
    jmp CODE16:enter_real-code16
real_done:
    lidt [idt_pointer]
    mov esi, offset name_real
    call report

# --- 16-bit segments at level 0, without paging
    mov dword ptr [then], offset level_0_done
    mov eax, DATA16
    mov ds, eax
    mov es, eax
    mov eax, STACK16
    mov ss, eax
    mov esp, STACK_BYTES
    jmp CODE16:begin_level_0-code16
level_0_done:
    mov esi, offset name_level_0
    call report

# --- a V86 task
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    jmp 1f
1:  mov dword ptr [then], offset v86_done
    push 0                       # GS, FS
    push 0
    push PLACE_DATA >> 4         # DS, ES
    push PLACE_DATA >> 4
    push PLACE_STACK >> 4        # SS:ESP
    push STACK_BYTES
    push FLAG_VM | FLAG_IOPL | FLAG_I | 2
    push PLACE_CODE >> 4
    push offset begin_at_3-code16
    iretd
v86_done:
    mov esi, offset name_v86
    call report

# --- 16-bit segments at level 3, with paging
    mov dword ptr [then], offset level_3_done
    mov eax, USER_DATA16
    mov ds, eax
    mov es, eax
    push USER_STACK16
    push STACK_BYTES
    push FLAG_IOPL | FLAG_I | 2
    push USER_CODE16
    push offset begin_at_3-code16
    iretd
level_3_done:
    mov esi, offset name_level_3
    call report
    mov al, EXIT_CODE
    out DEBUG_EXIT, al
1:  hlt
    jmp 1b

# A run has ended: continues at [then] with flat segments.
done:
    cli
    call load_flat
    jmp [then]

load_flat:                       # the caller's stack becomes that of this program
    mov eax, DATA
    mov ds, eax
    mov es, eax
    pop ecx
    mov ss, eax
    mov esp, offset stack_top
    jmp ecx

set_gate:                        # vector EBX, handler EAX; level 3 may call it
    mov word ptr [PLACE_IDT+ebx*8], ax
    mov dword ptr [PLACE_IDT+ebx*8+2], 0xEE000000 | CODE
    shr eax, 16
    mov word ptr [PLACE_IDT+ebx*8+6], ax
    ret

timer:                           # in all of protected mode; uses no data segment
    push eax
    mov al, 0x20
    out PIC_COMMAND, al
    pop eax
    iretd

report:                          # name ESI, figures of the data segment
1:  lodsb
    test al, al
    jz 2f
    call print
    jmp 1b
2:  mov ebx, [PLACE_DATA+LEAST]
    call hexadecimal
    mov al, ' '
    call print
    mov ebx, [PLACE_DATA+RESULT]
    call hexadecimal
    mov al, '\n'
print:                           # AL
    mov ah, al
    mov dx, COM1 + 5
1:  in al, dx
    test al, 0x20
    jz 1b
    mov dx, COM1
    mov al, ah
    out dx, al
    ret

hexadecimal:                     # EBX
    mov ecx, 8
1:  rol ebx, 4
    mov eax, ebx
    and eax, 15
    mov al, digits[eax]
    call print
    loop 1b
    ret

.data
    .balign 16
gdt:
    .quad 0
    .quad 0x00CF9B000000FFFF     # flat code and data
    .quad 0x00CF93000000FFFF
    .quad 0x00009B010000FFFF     # 16-bit code, data and stack, level 0
    .quad 0x000093020000FFFF
    .quad 0x000093030000FFFF
    .quad 0x0000890000000067
    .quad 0x0000FB010000FFFF     # level 3
    .quad 0x0000F3020000FFFF
    .quad 0x0000F3030000FFFF
gdt_end:
gdt_pointer:
    .word gdt_end - gdt - 1
    .long gdt
idt_pointer:
    .word 0x7FF
    .long PLACE_IDT
real_idt_pointer:
    .word 0x3FF
    .long 0
    .balign 4
tss:
    .long 0, stack_top, DATA
    .skip 0x66 - 12
    .word 0x68
then: .long 0
digits: .ascii "0123456789abcdef"
name_real: .asciz "real "
name_v86: .asciz "v86 "
name_level_0: .asciz "level-0 "
name_level_3: .asciz "level-3 "

    .balign 16
code16:
.code16
.set A_SI, si
.set A_DI, di
.set A_BX, bx
.set A_BP, bp
.set A_SP, sp
.include "work.inc"
enter_real:
    mov eax, cr0
    and al, 0xFE
    mov cr0, eax
    .byte 0xEA                   # jmp PLACE_CODE:begin_real
    .word begin_real - code16, PLACE_CODE >> 4
begin_real:
    mov ax, PLACE_DATA >> 4
    mov ds, ax
    mov es, ax
    mov ax, PLACE_STACK >> 4
    mov ss, ax
    mov sp, STACK_BYTES
    sti
    call time_rounds
    cli
    mov eax, cr0
    or al, 1
    mov cr0, eax
    jmp leave_16
begin_level_0:
    sti
    call time_rounds
    cli
leave_16:
    .byte 0x66, 0xEA             # jmp CODE:done
    .long done
    .word CODE
begin_at_3:
    call time_rounds
    int VECTOR_DONE
real_timer:
    push ax
    mov al, 0x20
    out PIC_COMMAND, al
    pop ax
    iret
code16_end:

.bss
    .balign 4096
    .skip 4096
stack_top:
