# A static Linux program: repeats the null hypercall from ring 3 and prints its cost, or sets a
# mark in Tollgate's statistics. It is for i386, or for x86-64 if WIDE is defined; all its
# addresses except those of the stack have 32 bits.
#
#   hypercall [N]      N calls, 1 to 1000000; 100000 if not given
#   hypercall NAME     sets the mark NAME: a letter, then up to 15 more, digits, '.', '_', '-'
#
# The first form prints one line, in cycles of the time-stamp counter without the cost of
# reading it (the minimum of the same number of empty readings):
#
#   null-hypercall: calls 100000 baseline 62 min 95 p50 101 p95 120 p99 180 max 40210
#
# Outside Tollgate, the hypercall does not exist, and Linux ends the program by a signal.

.intel_syntax noprefix
.set HYPERCALL_NULL, 0x544F4C00
.set HYPERCALL_MARK, 0x544F4C03
.set MOST, 1000000

.ifdef WIDE
.code64
.macro PUSH_PART register
    push r\register
.endm
.macro POP_PART register
    pop r\register
.endm
.else
.macro PUSH_PART register
    push e\register
.endm
.macro POP_PART register
    pop e\register
.endm
.endif

# NOW: reads the time-stamp counter into EAX after all earlier instructions.
.macro NOW
    lfence
    rdtsc
.endm

.text
.globl _start
_start:
    cld
    mov ecx, 100000
.ifdef WIDE
    cmp dword ptr [rsp], 2       # argc
    jb 3f
    mov rsi, [rsp + 16]          # argv[1]
.else
    cmp dword ptr [esp], 2
    jb 3f
    mov esi, [esp + 8]
.endif
    mov edi, offset name         # the first character of the name
    movsb
    movzx eax, byte ptr [name]
    cmp al, 'A'
    jae mark
    xor ecx, ecx
    jmp 9f
1:  lodsb
9:  test al, al
    jz 2f
    sub al, '0'
    cmp al, 9
    ja usage
    imul ecx, 10
    add ecx, eax
    cmp ecx, MOST
    ja usage
    jmp 1b
2:  test ecx, ecx
    jz usage
3:  mov [calls], ecx

    mov edi, offset samples      # touch every page before the measurement
    xor eax, eax
    rep stosd

    mov ebp, [calls]             # the minimum of the empty readings
    mov dword ptr [baseline], -1
4:  NOW
    lfence
    mov esi, eax
    mov eax, HYPERCALL_NULL
    NOW
    sub eax, esi
    cmp eax, [baseline]
    jae 5f
    mov [baseline], eax
5:  dec ebp
    jnz 4b

    mov ebp, [calls]
    mov edi, offset samples
6:  NOW
    lfence
    mov esi, eax
    mov eax, HYPERCALL_NULL
    vmcall
    NOW
    sub eax, esi
    sub eax, [baseline]
    jnc 7f
    xor eax, eax
7:  stosd
    dec ebp
    jnz 6b

    call sort
    mov esi, offset text_calls
    mov eax, [calls]
    call put
    mov esi, offset text_baseline
    mov eax, [baseline]
    call put
    mov esi, offset text_min
    mov eax, [samples]
    call put
    mov esi, offset text_p50
    mov ebx, 50
    call put_percentile
    mov esi, offset text_p95
    mov ebx, 95
    call put_percentile
    mov esi, offset text_p99
    mov ebx, 99
    call put_percentile
    mov esi, offset text_max
    mov ebx, 100
    call put_percentile
    mov esi, offset text_end
    call put_text
    mov ecx, offset line
    mov edx, [line_end]
    sub edx, ecx
    xor ebx, ebx
    mov edi, 1
    jmp leave

mark:                            # ESI points after the first character of the name, EDI to its place
    mov ecx, 16
8:  lodsb
    stosb
    test al, al
    jz 9f
    loop 8b
    jmp usage
9:  mov eax, HYPERCALL_MARK
    mov ebx, [name]
    mov ecx, [name + 4]
    mov edx, [name + 8]
    mov esi, [name + 12]
    vmcall
    test eax, eax
    jnz usage
    xor ebx, ebx
    xor edx, edx                 # there is nothing to write
    mov edi, 1
    jmp leave

usage:
    mov ecx, offset text_usage
    mov edx, offset text_usage_end - text_usage
    mov ebx, 2
    mov edi, 2
leave:                           # writes EDX bytes from ECX to descriptor EDI; the exit code is EBX
.ifdef WIDE
    mov esi, ecx
    mov eax, 1
    syscall
    mov edi, ebx
    mov eax, 60
    syscall
.else
    push ebx
    mov ebx, edi
    mov eax, 4
    int 0x80
    pop ebx
    mov eax, 1
    int 0x80
.endif

# Sorts the samples with Shell's sort.
sort:
    mov ebx, [calls]             # the gap
1:  shr ebx, 1
    jz 5f
    mov ecx, ebx
2:  cmp ecx, [calls]
    jae 1b
    mov eax, samples[ecx*4]
    mov edx, ecx
3:  mov esi, edx
    sub esi, ebx
    jb 4f
    mov edi, samples[esi*4]
    cmp edi, eax
    jbe 4f
    mov samples[edx*4], edi
    mov edx, esi
    jmp 3b
4:  mov samples[edx*4], eax
    inc ecx
    jmp 2b
5:  ret

put_percentile:                  # writes the percentile EBX: the nearest rank
    mov eax, [calls]
    mul ebx
    add eax, 99
    adc edx, 0
    mov ebx, 100
    div ebx
    mov eax, samples[eax*4 - 4]
put:                             # writes the text at ESI, then EAX as a decimal number
    PUSH_PART ax
    call put_text
    POP_PART ax
    mov ebx, 10
    xor ecx, ecx
1:  xor edx, edx
    div ebx
    add dl, '0'
    PUSH_PART dx
    inc ecx
    test eax, eax
    jnz 1b
    mov edi, [line_end]
2:  POP_PART ax
    stosb
    loop 2b
    mov [line_end], edi
    ret

put_text:                        # writes the NUL-terminated text at ESI
    mov edi, [line_end]
1:  lodsb
    test al, al
    jz 2f
    stosb
    jmp 1b
2:  mov [line_end], edi
    ret

.data
line_end: .long line
text_calls: .asciz "null-hypercall: calls "
text_baseline: .asciz " baseline "
text_min: .asciz " min "
text_p50: .asciz " p50 "
text_p95: .asciz " p95 "
text_p99: .asciz " p99 "
text_max: .asciz " max "
text_end: .asciz "\n"
text_usage: .ascii "usage: hypercall [N]   N null hypercalls, 1 to 1000000\n"
    .ascii "       hypercall NAME   sets the mark NAME, of up to 16 letters, digits, . _ -\n"
text_usage_end:

.bss
    .balign 4
calls: .skip 4
baseline: .skip 4
name: .skip 20
line: .skip 256
samples: .skip MOST*4
