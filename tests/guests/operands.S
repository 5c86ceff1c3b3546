# operands - operands and encodings that a translator must rewrite with care
#
# Expected values are worked out by hand from the manual's descriptions.
.include "guest.inc"

.set LOW, 0x500                  # memory that a 16-bit address reaches

main:
    call high_bytes
    call short_forms
    call stack_forms
    call enter_levels
    call word_forms
    call addressing
    ret

high_bytes:
    mov dword ptr [data], 0x44332211
    mov eax, 0
    mov ah, [data+1]
    EXPECT eax, 0x2200, "ah from memory"
    push 0x88776655
    xor ebx, ebx
    mov bh, [esp+3]
    mov ch, 0x99
    mov [esp+1], ch
    pop edx
    EXPECT ebx, 0x8800, "bh from the stack"
    EXPECT edx, 0x88779955, "ch to the stack"
    mov esi, offset data
    mov eax, 0x0000FF00
    add ah, [esi]
    EXPECT eax, 0x1000, "ah added to from memory stays within its byte"
    EXPECT_FLAGS FLAG_C, FLAG_C, "and carries out"
    mov edx, 0x0500
    sub [esi+1], dh
    movzx eax, byte ptr [data+1]
    EXPECT eax, 0x1D, "dh subtracted from memory"
    mov eax, 0x1234
    xchg al, ah
    EXPECT eax, 0x3412, "xchg al, ah"
    mov ebx, 0xABCD
    movzx eax, bh
    EXPECT eax, 0xAB, "movzx from bh"
    movsx eax, bh
    EXPECT eax, 0xFFFFFFAB, "movsx from bh"
    mov eax, 0x0310
    mul ah
    EXPECT eax, 0x30, "mul ah multiplies al by it"
    mov ecx, 0x8100
    rol ch, 1
    EXPECT ecx, 0x0300, "rol ch"
    mov eax, 0x11
    mov edx, 0x2200
    mov byte ptr [data], 0x11
    cmpxchg [esi], dh
    movzx eax, byte ptr [data]
    EXPECT eax, 0x22, "cmpxchg with dh"
    mov eax, 0x0500
    xadd [esi], ah
    movzx ecx, byte ptr [data]
    EXPECT eax, 0x2200, "xadd with ah: the old value"
    EXPECT ecx, 0x27, "and the sum"
    stc
    mov eax, 0
    setc ah
    EXPECT eax, 0x100, "setc ah"
    mov ebx, 0x7F00
    cmp bh, [esi]
    EXPECT_FLAGS FLAGS_ARITH, 0, "cmp bh with memory"
    ret

short_forms:
    xor eax, eax
    stc
    .byte 0x40                   # inc eax
    EXPECT_FLAGS FLAG_C, FLAG_C, "40h is inc, which keeps the carry"
    .byte 0x66, 0x48             # dec ax
    .byte 0x66, 0x48
    EXPECT eax, 0xFFFF, "66h 48h is dec ax"
    mov edi, 0x7FFFFFFF
    .byte 0x47                   # inc edi
    EXPECT_FLAGS FLAG_O|FLAG_S, FLAG_O|FLAG_S, "inc to the sign overflows"
    .byte 0x4F                   # dec edi
    EXPECT edi, 0x7FFFFFFF, "4Fh is dec edi"
    mov eax, 0x01
    .byte 0x82, 0xC0, 0x7F       # add al, 7Fh
    EXPECT eax, 0x80, "82h is 80h: add"
    .byte 0x82, 0xF8, 0x80       # cmp al, 80h
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "and cmp"
    mov byte ptr [data], 0xF0
    mov esi, offset data
    .byte 0x82, 0x26, 0x3C       # and byte ptr [esi], 3Ch
    movzx eax, byte ptr [data]
    EXPECT eax, 0x30, "also on memory"
    mov dword ptr [data], 0x0BADCAFE
    .byte 0xA1                   # mov eax, moffs
    .long data
    EXPECT eax, 0x0BADCAFE, "mov eax from an absolute offset"
    mov eax, 0x77
    .byte 0xA2                   # mov moffs, al
    .long data
    EXPECT [data], 0x0BADCA77, "mov al to one"
    mov dword ptr [LOW], 0x5EA50DED
    .byte 0x67, 0xA1             # mov eax, moffs16
    .word LOW
    EXPECT eax, 0x5EA50DED, "and from a 16-bit one"
    mov ebx, offset data
    mov byte ptr [data+0xFE], 0x99
    mov eax, 0xFE
    xlatb
    EXPECT eax, 0x99, "xlat"
    stc
    .byte 0xD6                   # salc
    EXPECT eax, 0xFF, "salc with carry"
    ret

stack_forms:
    mov edx, esp
    push 0xA
    push 0xB
    push 0xC
    pop dword ptr [esp+4]        # addressed after esp has moved
    pop eax
    pop ecx
    EXPECT eax, 0xB, "pop to [esp+n] leaves what is between"
    EXPECT ecx, 0xC, "and counts from the new esp"
    push esp
    pop eax
    EXPECT eax, edx, "push esp pushes the old esp"
    push 0x1234
    push [esp]
    pop eax
    EXPECT eax, 0x1234, "push [esp] reads before it moves"
    mov eax, esp
    push eax
    pop esp
    EXPECT_ESP eax, "pop esp keeps what it popped"
    add esp, 4
    mov eax, 1
    mov ecx, 2
    mov ebx, 3
    mov ebp, 4
    mov esi, 5
    mov edi, 6
    pushad
    mov eax, [esp+12]
    mov dword ptr [esp+12], 0    # esp's slot is ignored
    mov dword ptr [esp+16], 33   # ebx's
    mov ecx, [esp]
    popad
    EXPECT ebx, 33, "popad restores ebx from its slot"
    EXPECT edi, 6, "and edi"
    EXPECT_ESP edx, "but not esp"
    mov eax, 0x11112222
    push ax
    sub edx, esp
    EXPECT edx, 2, "push ax takes two bytes"
    mov ebx, 0x33334444
    pop bx
    EXPECT ebx, 0x33332222, "pop bx leaves the upper half"
    mov edx, esp
    .byte 0x66, 0x6A, 0xFE       # push -2, 16 bits
    movzx eax, word ptr [esp]
    add esp, 2
    EXPECT eax, 0xFFFE, "a 16-bit push of a byte extends its sign"
    .byte 0x66, 0x60             # pusha, 16 bits
    mov eax, edx
    sub eax, esp
    .byte 0x66, 0x61
    EXPECT_ESP edx, "16-bit pusha and popa balance"
    push -3
    pop eax
    EXPECT eax, 0xFFFFFFFD, "push of a byte extends its sign"
    ret

# ENTER: expected frame contents for nesting levels, below a chain of frames.
enter_levels:
    mov [data], esp
    push 0x101                   # two display entries
    push 0x202
    push 0x303
    lea ebp, [esp+8]
    mov edx, esp
    enter 16, 0
    lea eax, [edx-4]
    EXPECT ebp, eax, "enter n, 0: ebp is at the saved ebp"
    lea eax, [edx-20]
    EXPECT_ESP eax, "with n bytes below"
    leave
    EXPECT_ESP edx, "leave undoes it"
    enter 8, 1
    mov eax, [esp+8]
    EXPECT eax, ebp, "enter n, 1 pushes the new frame"
    leave
    EXPECT_ESP edx, "and leave knows nothing of levels"
    enter 4, 3
    EXPECT [ebp-4], 0x202, "enter n, 3 copies the display: first"
    EXPECT [ebp-8], 0x303, "second"
    EXPECT [ebp-12], ebp, "then pushes the new frame"
    lea eax, [edx-4-12-4]
    EXPECT_ESP eax, "and makes room"
    leave
    EXPECT_ESP edx, "leave undoes that too"
    mov esp, [data]
    ret

word_forms:
    mov eax, 0xFFFF8000
    cwde
    EXPECT eax, 0xFFFF8000, "cwde"
    mov eax, 0x12340080
    cbw
    EXPECT eax, 0x1234FF80, "cbw"
    mov edx, 0x55555555
    cwd
    EXPECT edx, 0x5555FFFF, "cwd leaves edx's upper half"
    cdq
    EXPECT edx, 0, "cdq"
    mov ecx, 0xAAAA0003
    imul cx, cx, -5
    EXPECT ecx, 0xAAAAFFF1, "16-bit imul"
    mov eax, 0x1234
    mov ecx, 0xFFFFABCD
    shld ax, cx, 4
    EXPECT eax, 0x234A, "16-bit shld"
    shrd ax, cx, 8
    EXPECT eax, 0xCD23, "16-bit shrd"
    mov eax, -1
    add ax, 1
    EXPECT eax, 0xFFFF0000, "16-bit add wraps alone"
    mov ecx, ds
    EXPECT ecx, DATA, "mov r32, ds clears the upper half"
    mov dword ptr [data], -1
    mov [data], ds
    EXPECT [data], 0xFFFF0000|DATA, "mov to memory from ds stores 16 bits"
    ret

addressing:
    mov ebx, 0x1000
    mov ecx, 3
    lea eax, [ebx+ecx*8-4]
    EXPECT eax, 0x1014, "lea with base, index, scale, displacement"
    lea eax, [ecx*4]
    EXPECT eax, 12, "lea without base"
    mov esi, 0xFFFF
    .byte 0x67                   # lea eax, [bx+si+2]
    .byte 0x8D, 0x40, 2
    EXPECT eax, 0x1001, "a 16-bit address wraps at 64 KiB"
    mov ebx, 0xABCD0000|(LOW-1)
    mov esi, 1
    mov dword ptr [LOW], 0x0D15EA5E
    .byte 0x67, 0x8B, 0x00       # mov eax, [bx+si]
    EXPECT eax, 0x0D15EA5E, "and uses only the registers' lower halves"
    mov ebp, LOW
    .byte 0x67, 0x8B, 0x46, 0    # mov eax, [bp+0]
    EXPECT eax, 0x0D15EA5E, "[bp]"
    push 0x77
    mov ecx, 1
    mov eax, [esp+ecx*4-4]
    pop ecx
    EXPECT eax, 0x77, "esp as a base with an index"
    lea ax, [ebx]
    EXPECT eax, LOW-1, "lea of a word"
    ret

.bss
.align 4096
data:   .skip 8192
