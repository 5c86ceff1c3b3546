# code16 - 16-bit code beyond 64 KiB, in a segment of 4 GiB
#
# EIP has 32 bits whatever the code's default size is; branches with 16-bit operands
# alone truncate it (volume 1, 3.5; volume 2, JMP, CALL, RET, Jcc).
.include "guest.inc"

.set CODE16, FREE                # the whole memory as 16-bit code
.set LOW, 0x8000                 # where 16-bit branches lead to

.macro JUMP16 label              # jmp far with 32-bit offset, from either size
    .byte 0xEA
    .long \label
    .word CODE16
.endm

main:
    DESCRIPTOR CODE16, 0, 0xFFFFF, SEG_CODE|SEG_PAGES
    GATE 0x81, look
    mov edi, LOW
    mov esi, offset low_code
    mov ecx, low_code_end - low_code
    rep movsb
    mov [kernel_esp], esp
    xor ebx, ebx
    JUMP16 wide
    .code16
wide:
    inc bx                       # copied, and then executed by the monitor
    cli
    inc bx
    pushf
    popf
    inc bx
    mov ax, ds
    mov ds, ax
    inc bx
    push ds
    pop es
    inc bx
    smsw ax
    inc bx
    mov ax, ss
    mov ss, ax
    inc bx
    data32 call 1f               # a near call with 32-bit operands
back:
    inc bx
    xor cx, cx
    .byte 0x66, 0x0F, 0x84       # jz with them
    .long 2f - 1f
1:                               # (not reached from here, but called)
    inc bx
    data32 ret
2:  inc bx
    int 0x81
after_int:
    inc bx
    mov cx, 3
3:  inc bx
    dec cx
    .byte 0x66, 0x0F, 0x85       # jnz backwards
    .long 3b - 4f
4:  mov ax, 0x1234
    push ax
    pop dx
    mov esi, offset word_here
    mov eax, cs:[esi]
    .byte 0x66, 0xEA             # back, with a 32-bit offset
    .long wide_over
    .word CODE
word_here:
    .long 0x600DC0DE
    .code32
wide_over:
    EXPECT ebx, 14, "16-bit code runs on above 64 KiB, whoever executes it"
    EXPECT eax, 0x600DC0DE, "and reads itself there"
    EXPECT [seen], "offset after_int", "an interrupt's frame holds all of eip"
    EXPECT [seen+4], CODE16, "and its cs"
    EXPECT_ESP [kernel_esp], "calls and returns balance"
    .irp way, jmp, ret, call
    xor edx, edx
    mov esi, offset back_\way
    JUMP16 to_low_\way
back_\way:
    mov esp, [kernel_esp]
    EXPECT edx, 0x1111, "\way with 16-bit operands truncates eip"
    .endr
    mov esi, offset word_branches
    mov edi, LOW + 0x100
    mov ecx, word_branches_end - word_branches
    rep movsb
    mov eax, LOW + 0x100
    xor ebx, ebx
    mov ecx, 3
    call eax
    EXPECT ebx, 12, "32-bit code with 16-bit branches"
    EXPECT_ESP [kernel_esp], "which move esp by two"
    EXPECT edx, LOW+0x100+after_call-word_branches, "and push ip alone"
    mov dword ptr [fault_vector], NONE
    mov dword ptr [resume_at], offset 1f
    JUMP16 undefined
1:  EXPECT [fault_vector], EXC_UD, "an exception there"
    EXPECT [fault_eip], "offset undefined", "has all of eip"
    ret
look:
    push [esp]
    pop [seen]
    push [esp+4]
    pop [seen+4]
    iretd

# At LOW+100h, where a truncated EIP still points here. ebx counts.
word_branches:
    inc ebx
    .byte 0x66, 0xE8             # call rel16
    .word 2f - after_call
after_call:
    inc ebx
    .byte 0x66, 0xEB, 3f - 1f    # jmp rel8
1:  ud2
2:  inc ebx
    movzx edx, word ptr [esp]
    .byte 0x66, 0xC3             # ret
3:  inc ebx
    .byte 0x66, 0xE2, 3b - 4f    # loop: thrice
4:  stc
    .byte 0x66, 0x72, 6f - 5f    # jc rel8
5:  ud2
6:  inc ebx
    .byte 0x66, 0x0F, 0x82       # jc rel16
    .word 8f - 7f
7:  ud2
8:  inc ebx
    lea eax, [edx+9f-after_call]
    or eax, 0x12340000           # cut off again
    .byte 0x66, 0xFF, 0xE0       # jmp ax
    ud2
9:  inc ebx
    lea eax, [edx+2f-after_call]
    .byte 0x66, 0xFF, 0xD0       # call ax
1:  jmp 3f
2:  inc ebx
    .byte 0x66, 0xC2             # ret 0
    .word 0
3:  inc ebx
    xor ecx, ecx
    .byte 0x66, 0xE3, 5f - 4f    # jecxz rel8
4:  ud2
5:  inc ebx
    ret
word_branches_end:

    .code16
undefined:
    ud2
to_low_jmp:
    mov ax, LOW
    jmp ax
to_low_ret:
    push LOW
    ret
to_low_call:
    mov ax, LOW
    call ax
low_code:                        # at LOW: back to esi, with a far return
    mov dx, 0x1111
    data32 push CODE
    push esi
    data32 lret
low_code_end:
    .code32

.bss
.align 4
seen:      .skip 8
