# The work as a program for Linux. It is assembled with BITS: 32 runs the work as 32-bit code, 16 in 16-bit
# segments of the local descriptor table. Writes "native", the least cycles of a round and the result, in
# hexadecimal.
.intel_syntax noprefix
.set PLACE_DATA, 0x10000         # the linker puts the data there
.set CODE16, 0x07                # selectors of the local table
.set DATA16, 0x0F
.set STACK16, 0x17
.set USER_CODE, 0x23             # Linux's flat segments of 32-bit programs
.set USER_DATA, 0x2B
.set SYSTEM_EXIT, 1
.set SYSTEM_WRITE, 4
.set SYSTEM_MODIFY_LDT, 123
.set LDT_WRITE, 1
.set DESCRIPTION_BYTES, 16
.set STACK_BYTES, 4096

.set BASE, 0
.if BITS == 32
.set BASE, PLACE_DATA
.endif

.text
.code32
.globl _start
_start:
    mov [saved], esp
.if BITS == 32
    xor eax, eax
    xor ebx, ebx
    xor esi, esi
    xor edi, edi
    xor ebp, ebp
    xor ecx, ecx
    call time_rounds
.else
    mov ebp, offset descriptions
1:  mov eax, SYSTEM_MODIFY_LDT
    mov ebx, LDT_WRITE
    mov ecx, ebp
    mov edx, DESCRIPTION_BYTES
    int 0x80
    mov ebx, 2                   # the host refuses
    test eax, eax
    jnz 3f
    add ebp, DESCRIPTION_BYTES
    cmp ebp, offset descriptions_end
    jb 1b
    mov eax, DATA16
    mov ds, eax
    mov es, eax
    mov eax, STACK16
    mov ss, eax
    mov esp, STACK_BYTES
    jmp CODE16:begin16-code16

back:
    mov eax, USER_DATA
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov esp, [saved]
.endif
    mov edi, offset text
    mov eax, [PLACE_DATA-BASE+LEAST]
    call hexadecimal
    mov eax, [PLACE_DATA-BASE+RESULT]
    call hexadecimal
    mov eax, SYSTEM_WRITE
    mov ebx, 1
    mov ecx, offset line
    mov edx, offset line_end - line
    int 0x80
    xor ebx, ebx
3:  mov eax, SYSTEM_EXIT
    int 0x80

hexadecimal:                     # writes EAX at EDI, and a byte that is there already is skipped
    mov ecx, 8
1:  rol eax, 4
    mov edx, eax
    and edx, 15
    mov dl, digits[edx]
    mov [edi], dl
    inc edi
    loop 1b
    inc edi
    ret

.section .work, "awx"
    .balign 4096
code16:
.if BITS == 32
.code32
.set A_SI, esi
.set A_DI, edi
.set A_BX, ebx
.set A_BP, ebp
.set A_SP, esp
.include "work.inc"
.else
.code16
.set A_SI, si
.set A_DI, di
.set A_BX, bx
.set A_BP, bp
.set A_SP, sp
.include "work.inc"
begin16:
    call time_rounds
    .byte 0x66, 0xEA             # jmp USER_CODE:back
    .long back
    .word USER_CODE
.endif

.data
# The entries of the table, as modify_ldt reads them: number, base, limit, flags (code or data, usable).
.set FLAGS_CODE, 2 << 1 | 1 << 6
.set FLAGS_DATA, 1 << 6
    .balign 4
descriptions:
    .long 0, code16, 0xFFFF, FLAGS_CODE
    .long 1, PLACE_DATA, 0xFFFF, FLAGS_DATA
    .long 2, stack, STACK_BYTES - 1, FLAGS_DATA
descriptions_end:
saved: .long 0
digits: .ascii "0123456789abcdef"
line: .ascii "native "
text: .ascii "00000000 00000000\n"
line_end:

.bss
    .balign 4096
stack: .skip STACK_BYTES

.section .place_data, "aw", @nobits
    .skip DATA_BYTES
