# realedges - real mode at the end of its 64 KiB segments
#
# QEMU's TCG checks no limits (volume 3, 21.1 and 21.2.1): what faults is left out for it.
.include "guest.inc"
.include "real.inc"

.set SCRATCH, 0x3000
.set LOW_STACK, 0x4000
.set EDGE_CODE, 0x5000           # code that ends at its segment's end
.set CODE16, FREE
.set DATA16, FREE+8

.macro VECTOR number, label
    .att_syntax
    movw $\label-real, %es:\number*4
    .intel_syntax noprefix
    mov word ptr es:[\number*4+2], REAL
.endm
# AT_EDGE vector, fact, instruction
.macro AT_EDGE vector, fact, instruction:vararg
    TRY16 \instruction
    FAULT16 \vector, "\fact"
.endm

main:
    DESCRIPTOR CODE16, REAL*16, 0xFFFF, SEG_CODE
    DESCRIPTOR DATA16, 0, 0xFFFF, SEG_DATA
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
    fninit
    call place_real
    mov [kernel_esp], esp
    jmp CODE16:0

real_over:
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    mov ss, eax
    mov esp, [kernel_esp]
    lidt [idt_pointer]
    call report_facts
    ret

    .code16
real:
    mov ax, DATA16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov fs, ax
    mov gs, ax
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
SHORT_IDT = . - real
    .word 15*4-1
    .long 0
1:  mov ax, NOTES
    mov gs, ax
    mov ax, LOW_STACK
    mov ss, ax
    mov esp, 0x1000
    xor ax, ax
    mov es, ax
    .irp n, 5, 6, 8, 12, 13
    VECTOR \n, vector\n
    .endr
    mov ax, SCRATCH
    mov ds, ax
    mov es, ax

    AT_EDGE NONE, "a byte at FFFFh", mov al, ds:[0xFFFF]
    AT_EDGE NONE, "a doubleword at FFFCh", add ds:[0xFFFC], eax
    AT_EDGE NONE, "16 bytes at FFF0h", movups xmm0, ds:[0xFFF0]
    mov bx, 0xFFFF
    AT_EDGE NONE, "an address of registers wraps", mov ax, [bx+1]
    mov dword ptr ds:[0xFFFC], 0xAABBCCDD
    mov ebx, 0xFFFC
    mov ecx, 0
    AT_EDGE NONE, "a 32-bit address inside", mov ecx, [ebx+ecx*4]
    FACT ecx, 0xAABBCCDD, "reads what is there"
    mov bx, 0xFFFE
    mov bp, 0xFFFE
.ifndef QEMU
    AT_EDGE EXC_GP, "a read of a word at FFFFh", mov ax, ds:[0xFFFF]
    AT_EDGE EXC_GP, "a write", mov ds:[0xFFFF], ax
    AT_EDGE EXC_GP, "a doubleword at FFFEh", mov eax, [bx]
    AT_EDGE EXC_GP, "a read-modify-write", inc dword ptr [bx]
    # Operands of two parts: each part's address wraps by itself, as on the host's processor.
    mov word ptr ds:[0], 0x7FFF
    AT_EDGE NONE, "a far pointer at FFFEh has its selector at 0", les ax, [bx]
    mov dx, es
    movzx edx, dx
    FACT edx, 0x7FFF, "the selector at 0"
    mov dx, SCRATCH
    mov es, dx
    AT_EDGE EXC_GP, "fld of 80 bits at FFFEh", fld tbyte ptr [bx]
    AT_EDGE EXC_GP, "16 bytes at FFFEh", movups xmm0, [bx]
    mov ax, 0
    AT_EDGE NONE, "bound at FFFEh has its upper bound at 0", bound ax, [bx]
    AT_EDGE EXC_GP, "a push from FFFFh", push word ptr ds:[0xFFFF]
    AT_EDGE EXC_GP, "a pop to it", pop word ptr ds:[0xFFFF]
    movzx eax, sp
    FACT eax, 0x1000, "and the stack stays as it was"
    AT_EDGE EXC_GP, "a jump through it", jmp word ptr ds:[0xFFFF]
    AT_EDGE EXC_GP, "lidt at FFFBh", lidt ds:[0xFFFB]
    AT_EDGE EXC_SS, "a doubleword at FFFEh of the stack", mov eax, [bp]
    AT_EDGE EXC_SS, "through ss by prefix", mov eax, ss:[bx]
    AT_EDGE EXC_GP, "not if ds is named", mov eax, ds:[bp]
    mov ebx, 0x10000
    AT_EDGE EXC_GP, "a 32-bit address beyond", mov al, [ebx]
    mov ebx, -1
    AT_EDGE EXC_GP, "or far beyond", mov al, [ebx]
    mov si, 0xFFFF
    AT_EDGE EXC_GP, "lodsw at FFFFh", lodsw
    mov di, 0xFFFD
    AT_EDGE EXC_GP, "stosd at FFFDh", stosd
    mov cx, 4
    mov di, 0xFFF9
    AT_EDGE EXC_GP, "rep stosw that reaches FFFFh", rep stosw
    movzx eax, cx
    FACT eax, 1, "has done the words before"
    movzx eax, di
    FACT eax, 0xFFFF, "and stands at the one that does not fit"
    mov sp, 0xFFFF
    AT_EDGE EXC_SS, "a pop at FFFFh", pop ax
    movzx eax, sp
    FACT eax, 0xFFFF, "leaves sp"
    mov sp, 0xFFFD
    AT_EDGE EXC_SS, "a far return at FFFDh", retf
    mov sp, 0xFFFB
    AT_EDGE EXC_SS, "an iret at FFFBh", iret
    mov sp, 0xFFF9
    AT_EDGE EXC_SS, "a popa that runs out", popa
    mov sp, 0x1000
    mov ebx, 0x10000
    AT_EDGE EXC_GP, "a 32-bit jump beyond FFFFh", .byte 0x66, 0xFF, 0xE3
    AT_EDGE EXC_GP, "a 32-bit call", .byte 0x66, 0xFF, 0xD3
    AT_EDGE EXC_GP, "a far jump", .byte 0x66, 0xEA, 0, 0, 1, 0, 0, 0x10
    AT_EDGE EXC_GP, "a far call", .byte 0x66, 0x9A, 0, 0, 1, 0, 0, 0x10
    movzx eax, sp
    FACT eax, 0x1000, "none of them pushes"

# Code that ends at FFFFh: what comes next would be at 10000h.
    .macro LAST fact, bytes:vararg
    mov ax, EDGE_CODE
    mov fs, ax
    OFFSET si, 1f
    mov di, 0
    jmp 2f
1:  .byte \bytes
2:  mov cx, (2b - 1b)
    neg cx
    mov di, cx
    neg cx
    push ds
    push es
    mov ax, fs
    mov es, ax
    mov ax, cs
    mov ds, ax
    mov ax, di
    rep movsb
    pop es
    pop ds
    mov fs:[0], ax
    mov dword ptr gs:[NOTED_VECTOR], NONE
    .att_syntax
    movw $3f-real, %gs:RESUME_AT
    .intel_syntax noprefix
    push EDGE_CODE
    push ax
    retf
3:  FAULT16 EXC_GP, "\fact"
    .endm
    LAST "running on behind a nop at FFFFh", 0x90
    LAST "behind cli, which the monitor executes", 0xFA
    LAST "behind two of them", 0xFA, 0xFA
    LAST "an instruction that would go on at 10000h", 0xB8
    LAST "behind a jump that is not taken", 0x31, 0xC0, 0x75, 0x10
.endif

# Far transfers and segment loads.
    .macro FAR_CALL label
    .byte 0x9A
    .word \label-real, REAL
    .endm
    mov sp, 0
    FAR_CALL at_sp
    FACT ebx, 0xFFFC, "a far call at sp 0 pushes below 10000h"
    FACT ecx, REAL, "cs on top"
    movzx eax, sp
    FACT eax, 0, "and its return leaves sp 0"
.ifndef QEMU                    # whose far frames do not come through a wrap
    mov sp, 2
    FAR_CALL at_sp
    FACT ebx, 0xFFFE, "a far call at sp 2 wraps between cs and ip"
    FACT ecx, REAL, "cs at 0"
    movzx eax, sp
    FACT eax, 2, "and its return wraps back"
    mov sp, 4
    .byte 0x66, 0x9A             # 32-bit operands
    .long at_sp32-real
    .word REAL
    FACT ebx, 0xFFFC, "a far call of 32 bits at sp 4 wraps too"
    FACT ecx, REAL, "cs as a doubleword"
    movzx eax, sp
    FACT eax, 4, "and its return wraps back"
.endif
    mov sp, 0x1000
    push REAL-1                  # the same place by another selector
    .att_syntax
    push $1f-real+16
    .intel_syntax noprefix
    retf
1:  mov ax, cs
    movzx eax, ax
    FACT eax, REAL-1, "a far return loads any selector"
    .byte 0xEA
    .word 1f-real, REAL
1:  mov ax, cs
    movzx eax, ax
    FACT eax, REAL, "and so does a far jump"
    mov dword ptr ds:[0x120], 0x13572468
    mov ax, SCRATCH-2
    mov fs, ax
    mov ebx, fs:[0x140]
    FACT ebx, 0x13572468, "a selector is a sixteenth of its base"
    push SCRATCH+0x10
    pop fs
    mov ebx, fs:[0x20]
    FACT ebx, 0x13572468, "popped as well as moved"
    mov dword ptr ds:[0xFFFC], SCRATCH*0x10000+0x120
    les bx, ds:[0xFFFC]
    mov ecx, es:[bx]
    FACT ecx, 0x13572468, "and from a far pointer at FFFCh"
    push es
    pop ax
    movzx eax, ax
    FACT eax, SCRATCH, "selectors are pushed"
    mov eax, -1
    .byte 0x66, 0x8C, 0xC0       # mov eax, es
    FACT eax, SCRATCH, "or moved to 32 bits, zero-extended"
.ifndef QEMU
    mov bx, 0x1234
    AT_EDGE EXC_GP, "a far pointer at FFFDh", les bx, ds:[0xFFFD]
    movzx eax, bx
    FACT eax, 0x1234, "loads nothing"
    AT_EDGE EXC_GP, "a jump through it", .byte 0xFF, 0x2E, 0xFD, 0xFF
    AT_EDGE EXC_GP, "a selector at FFFFh", mov es, ds:[0xFFFF]
    mov ax, es
    movzx eax, ax
    FACT eax, SCRATCH, "is not loaded either"
    mov sp, 0xFFFF
    AT_EDGE EXC_SS, "pop es at FFFFh", pop es
    mov sp, 0x1000
.endif

    lidt cs:[SHORT_IDT]
    AT_EDGE EXC_GP, "an int n beyond the vector table's limit", int 0x20
    lidt cs:[REAL_IDT]
    mov eax, cr0
    or al, CR0_PE
    mov cr0, eax
    .byte 0x66, 0xEA
    .long real_over
    .word CODE

at_sp:                           # ebx: sp; ecx: the selector that was pushed
    movzx ebx, sp
    mov si, sp
    add si, 2
    movzx ecx, word ptr ss:[si]
    retf
at_sp32:
    movzx ebx, sp
    mov si, sp
    add si, 4
    mov ecx, ss:[si]
    .byte 0x66
    retf
    .irp n, 5, 6, 8, 12, 13
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
    mov word ptr [bp+6], REAL
    pop eax
    pop bp
    add sp, 2
    iret
real_end:
    .code32

END_OF_FACTS
