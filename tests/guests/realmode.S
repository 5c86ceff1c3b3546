# realmode - 16-bit code in real mode, entered from protected mode and left again
#
# Its facts are noted in low memory and reported once protected mode is back.
.include "guest.inc"
.include "real.inc"

.set SCRATCH, 0x3000
.set LOW_STACK, 0x4000
.set CODE16, FREE
.set DATA16, FREE+8
.set NOTED_TICKS, 0x8018           # in NOTES

# VECTOR n, label: hook it, with es = 0.
.macro VECTOR number, label
    .att_syntax
    movw $\label-real, %es:\number*4
    .intel_syntax noprefix
    mov word ptr es:[\number*4+2], REAL
.endm

main:
    DESCRIPTOR CODE16, REAL*16, 0xFFFF, SEG_CODE
    DESCRIPTOR DATA16, 0, 0xFFFF, SEG_DATA
    call place_real
    mov al, 0x34                 # the 8254's channel 0: 1 kHz
    out 0x43, al
    mov al, 1193 & 0xFF
    out 0x40, al
    mov al, 1193 >> 8
    out 0x40, al
    mov [kernel_esp], esp
    mov eax, 0x7F7F7F7F
    mov [high_word], eax
    .att_syntax
    movl $moved-real+REAL*65536, high_table+0x60*4
    .intel_syntax noprefix
    jmp CODE16:0

real_over:                       # back in protected mode
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    mov ss, eax
    mov esp, [kernel_esp]
    lidt [idt_pointer]
    call report_facts
    EXPECT [high_word], 0x12345678, "a store through a large segment arrived above 1 MiB"
    ret

    .code16
real:                            # offset 0 of REAL, still protected
    mov ax, DATA16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov gs, ax                   # fs alone keeps its 4 GiB
    lidt cs:[REAL_IDT]
    mov eax, cr0
    and al, ~CR0_PE
    mov cr0, eax
    .att_syntax
    ljmp $REAL, $1f-real
    .intel_syntax noprefix
    .set REAL_IDT, 0x40
    .org real + REAL_IDT
    .word 0x3FF
    .long 0
1:  mov ax, NOTES
    mov gs, ax
    mov ax, LOW_STACK
    mov ss, ax
    mov esp, 0x1000
    xor ax, ax
    mov es, ax
    mov ds, ax
    VECTOR 0, vector0
    VECTOR 6, vector6
    VECTOR 12, vector12
    VECTOR 13, vector13
    VECTOR IRQ_BASE, tick
    VECTOR 0x60, service

# Segments.
    xor eax, eax
    mov ax, cs
    FACT eax, REAL, "cs holds what the far jump loaded"
    smsw ax
    and ax, CR0_PE
    FACT eax, 0, "protection is off"
    mov ax, SCRATCH
    mov ds, ax
    mov dword ptr ds:[0x20], 0x01020304
    dec ax
    mov es, ax
    mov eax, es:[0x30]
    FACT eax, 0x01020304, "a segment begins at 16 times its selector"
    mov bx, 0xFFFF
    mov si, 0x21
    mov eax, [bx+si]
    FACT eax, 0x01020304, "a 16-bit address wraps at 64 KiB"
    mov ax, 0xFFFF
    mov es, ax
    mov eax, es:[0x10]
    FACT eax, 0x1BADB002, "segment FFFFh reaches beyond 1 MiB, A20 being on"
    mov edi, offset high_word
    mov eax, fs:[edi]
    FACT eax, 0x7F7F7F7F, "a segment that kept its 4 GiB is read by a 32-bit address"
    mov dword ptr fs:[edi], 0x12345678
    movzx edi, si
    mov eax, [edi-1]
    FACT eax, 0x01020304, "32-bit addresses work within 64 KiB as well"
.ifndef QEMU
    mov edi, 0x10000
    TRY16 mov eax, [edi]
    FAULT16 EXC_GP, "beyond them they fault"
    TRY16 mov ax, ds:[0xFFFF]
    FAULT16 EXC_GP, "so does a word at FFFFh"
    mov bp, 0xFFFF
    TRY16 mov ax, [bp]
    FAULT16 EXC_SS, "and one in the stack segment"
.endif

# Interrupts and exceptions.
    push 0x0202|FLAG_C|FLAG_D
    popf
    int 0x60
after_int:
    pushf
    cld
    cli
    pop cx
    movzx ecx, cx
    and ecx, FLAG_I|FLAG_C|FLAG_D
    FACT ecx, FLAG_I|FLAG_C|FLAG_D, "iret restores the flags"
    mov eax, gs:[NOTED_FLAGS]
    and eax, FLAG_I|FLAG_C|FLAG_D
    FACT eax, FLAG_I|FLAG_C|FLAG_D, "int n pushes the flags"
    mov eax, gs:[NOTED_CS]
    FACT eax, REAL, "cs"
    xor eax, eax
    OFFSET ax, after_int
    sub ax, gs:[NOTED_IP]
    FACT eax, 0, "and ip behind itself"
    mov eax, gs:[NOTED_VECTOR]
    and eax, FLAG_I|FLAG_T
    FACT eax, 0, "its handler runs with interrupts off"
    movzx eax, sp
    FACT eax, 0x1000, "and everything is off the stack again"
    xor cx, cx
    TRY16 div cx
    FAULT16 EXC_DE, "dividing by zero"
    TRY16 ud2
    FAULT16 EXC_UD, "ud2"
    TRY16 sldt ax
    FAULT16 EXC_UD, "sldt is undefined in real mode"
    TRY16 lar ax, cx
    FAULT16 EXC_UD, "so is lar"
    TRY16 .byte 0x63, 0xC8       # arpl ax, cx
    FAULT16 EXC_UD, "so is arpl"
    mov al, 0xFE                 # timer interrupts, as the controllers stand
    out PIC1+1, al
    sti
    hlt
    cli
    mov al, 0xFF
    out PIC1+1, al
    mov eax, gs:[NOTED_TICKS]
    and eax, 0x80000000
    FACT eax, 0x80000000, "hlt is left by a timer interrupt through the vector table"
.ifndef QEMU
    OFFSET ax, step
    mov fs:[4], ax
    mov word ptr fs:[6], REAL
    mov dword ptr gs:[NOTED_TICKS], 0
    xor si, si
    mov cx, 3
    pushf
    pop ax
    or ax, FLAG_T
    push ax
    popf
    rep lodsb                    # three traps
    int 0x60                     # none
    nop                          # one, and five until TF is clear
    pushf
    pop ax
    and ax, ~FLAG_T
    push ax
    popf
    nop
    mov eax, gs:[NOTED_TICKS]
    FACT eax, 9, "single steps: each iteration of rep lodsb, but not int n"
.endif
    pushf
    or word ptr [esp], 0x3000
    popf
    pushf
    pop ax
    movzx eax, ax
    and eax, 0xB000
    FACT eax, 0x3000, "popf can set IOPL"
    mov ax, SCRATCH              # a vector table elsewhere
    mov es, ax
    VECTOR 0x60, moved
    mov word ptr ds:[0x10], 0x3FF
    mov dword ptr ds:[0x12], SCRATCH*16
    lidt ds:[0x10]
    xor eax, eax
    int 0x60
    lidt cs:[REAL_IDT]
    FACT eax, 0x4D4F5645, "lidt moves the vector table"
    xor eax, eax
    data32 lidt cs:[high_idt-real]
    int 0x60
    lidt cs:[REAL_IDT]
    FACT eax, 0x4D4F5645, "above 1 MiB too"
    mov word ptr ds:[0x10], 0x60*4+3
    mov dword ptr ds:[0x12], 0
    lidt ds:[0x10]
    TRY16 int 0x60
    mov eax, gs:[NOTED_VECTOR]
    and eax, FLAG_I|FLAG_T       # where `service` notes its flags
    FACT eax, 0, "a vector that ends at the table's limit is found"
    dec word ptr ds:[0x10]
    lidt ds:[0x10]
    mov sp, 0x1000
    TRY16 int 0x60
    lidt cs:[REAL_IDT]
    FAULT16 EXC_GP, "one that ends behind it is general protection"
    movzx eax, sp
    FACT eax, 0x1000, "and pushes nothing of its own"
    xor ax, ax
    mov es, ax

# String instructions.
    mov ax, SCRATCH
    mov es, ax
    mov ecx, 0xABCD0004
    mov esi, 0x12340020
    mov edi, 0x56780100
    rep movsb
    FACT ecx, 0xABCD0000, "rep counts in cx, and ecx keeps its upper half"
    FACT esi, 0x12340024, "so does esi"
    FACT edi, 0x56780104, "and edi"
    mov eax, ds:[0x100]
    FACT eax, 0x01020304, "the bytes arrived"
    mov byte ptr ds:[0xFFFF], 0x77
    mov byte ptr ds:[0], 0x88
    mov esi, 0x1234FFFF
    lodsb
    mov ah, al
    lodsb
    movzx eax, ax
    FACT eax, 0x7788, "lodsb wraps from FFFFh to 0"
    FACT esi, 0x12340001, "without touching esi's upper half"
    std
    mov di, 1
    mov cx, 3
    mov al, 0x99
    rep stosb
    cld
    movzx edi, di
    FACT edi, 0xFFFE, "rep stosb wraps downwards"
    mov al, ds:[0xFFFF]
    movzx eax, al
    FACT eax, 0x99, "and stores on the other side"

# Stack, calls, loops.
    mov esp, 0x7777000A
    pusha
    mov ds:[0x50], esp
    popa
    mov eax, ds:[0x50]
    FACT eax, 0x7777FFFA, "pusha wraps a 16-bit stack, and esp keeps its upper half"
    FACT esp, 0x7777000A, "popa wraps back"
    mov esp, 0x1000
    mov bp, 0x4242
    enter 8, 1
    mov eax, [bp]
    movzx ecx, sp
    leave
    and eax, 0xFFFF
    FACT eax, 0x4242, "enter pushes bp"
    FACT ecx, 0x1000-2-2-8, "and makes its frame"
    movzx eax, sp
    FACT eax, 0x1000, "leave undoes it"
    push cs
    call far_routine             # with the cs pushed before, a far call
    FACT eax, 0xFAFAFAFA, "retf returns to a near call with cs pushed by hand"
    OFFSET ax, far_routine
    mov ds:[0x40], ax
    mov word ptr ds:[0x42], REAL
    xor eax, eax
    call dword ptr ds:[0x40]
    FACT eax, 0xFAFAFAFA, "a far call through memory"
    mov word ptr ds:[0xFFF0], 0x20EB     # jmp short to FFF0h+22h
    mov dword ptr ds:[0x12], 0x55B8      # mov ax, 55h
    mov byte ptr ds:[0x15], 0xCB         # retf
    xor eax, eax
    call SCRATCH:0xFFF0
    FACT eax, 0x55, "a short jump wraps at 64 KiB"
    mov ecx, 0x50003
    xor eax, eax
1:  inc eax
    loop 1b
    FACT eax, 3, "loop counts in cx"
    mov eax, 1
    jcxz 1f
    dec eax
1:  FACT eax, 1, "jcxz looks at cx"
    mov eax, 2
    .byte 0x67
    jcxz 1f                      # with the prefix: jecxz
    dec eax
1:  FACT eax, 1, "jecxz looks at ecx"

    mov eax, cr0
    or al, CR0_PE
    mov cr0, eax
    .byte 0x66, 0xEA             # jmp far, 32-bit
    .long real_over
    .word CODE

# Exceptions' handlers: note the frame, resume where TRY16 says.
    .irp n, 0, 6, 12, 13
vector\n:
    push \n
    jmp noted
    .endr
noted:
    push bp
    mov bp, sp
    push eax
    movzx eax, word ptr [bp+2]
    mov gs:[NOTED_VECTOR], eax
    mov ax, gs:[RESUME_AT]
    mov [bp+4], ax
    pop eax
    pop bp
    add sp, 2
    iret
service:                         # int 60h: note the frame, spoil the flags
    push bp
    mov bp, sp
    mov ax, [bp+2]
    mov gs:[NOTED_IP], ax
    mov ax, [bp+4]
    mov gs:[NOTED_CS], ax
    mov ax, [bp+6]
    mov gs:[NOTED_FLAGS], ax
    pushf
    pop gs:[NOTED_VECTOR]
    clc
    cld
    pop bp
    iret
moved:
    mov eax, 0x4D4F5645
    iret
tick:
    push ax
    or dword ptr gs:[NOTED_TICKS], 0x80000000
    mov al, PIC_EOI
    out PIC1, al
    pop ax
    iret
step:
    inc dword ptr gs:[NOTED_TICKS]
    iret
far_routine:
    mov eax, 0xFAFAFAFA
    retf
high_idt:
    .word 0x60*4+3
    .long high_table
real_end:
    .code32

END_OF_FACTS
.bss
.align 4
high_word:  .skip 4
high_table: .skip 0x61*4
