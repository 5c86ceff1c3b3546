# A static Linux program: times the two system calls of the module `cost_calls`, in turns.
#
#   two-calls N           times each N times, 1 to 20000, after 100 calls of each that are not timed
#
# It prints two lines, in cycles of the time-stamp counter, each value with the number of times that it occurred:
#
#   nothing 390*17 416*83
#   marked 780*90 806*10
#
# Exit code 0, 1 if a call fails, 2 for a wrong command line.

.intel_syntax noprefix
.ifdef WIDE
.code64
.endif
.include "linux-calls.inc"

# The same numbers are in modules/cost_calls.c.
.set CALL_NOTHING, 0x7401
.set CALL_MARKED, 0x7402
.set MOST, 20000
.set WARM_UP, 100
.set OPEN_READ, 0

# MAKE command: makes the system call.
.macro MAKE command
    SYSTEM_CALL 54, 16, "[file]", \command
    test eax, eax
    jnz failed
.endm

# TIME_CALL command, samples: stores the cycles of the system call as the sample with the number [done].
.macro TIME_CALL command, samples
    lfence
    rdtsc
    lfence
    mov [begun], eax
    MAKE \command
    lfence
    rdtsc
    sub eax, [begun]
    mov ecx, [done]
    mov \samples[ecx*4], eax
.endm

.text
.globl _start
_start:
    cld
    COUNT_OF_ARGUMENTS
    cmp eax, 2
    jne usage
    ARGUMENT 1
    call decimal
    jc usage
    test eax, eax
    jz usage
    cmp eax, MOST
    ja usage
    mov [calls], eax
    SYSTEM_CALL 5, 2, "offset path", OPEN_READ
    test eax, eax
    js failed
    mov [file], eax

    mov edi, offset nothing      # touch every page before the measurement
    mov ecx, 2*MOST
    xor eax, eax
    rep stosd

    mov dword ptr [done], WARM_UP
1:  MAKE CALL_NOTHING
    MAKE CALL_MARKED
    dec dword ptr [done]
    jnz 1b

2:  TIME_CALL CALL_NOTHING, nothing
    TIME_CALL CALL_MARKED, marked
    inc dword ptr [done]
    mov eax, [done]
    cmp eax, [calls]
    jb 2b

    mov ebp, offset nothing
    mov esi, offset text_nothing
    call put_samples
    mov ebp, offset marked
    mov esi, offset text_marked
    call put_samples
    mov esi, offset text
3:  mov eax, [text_end]          # a write may be short
    sub eax, esi
    jz 4f
    mov [text_start], esi
    mov [left], eax
    SYSTEM_CALL 4, 1, 1, "[text_start]", "[left]"
    test eax, eax
    js failed
    mov esi, [text_start]
    add esi, eax
    jmp 3b
4:  SYSTEM_CALL 1, 60, 0
failed:
    SYSTEM_CALL 1, 60, 1
usage:
    SYSTEM_CALL 4, 1, 2, "offset text_usage", "text_usage_end - text_usage"
    SYSTEM_CALL 1, 60, 2

# Sorts the samples at EBP with Shell's sort, and writes the text at ESI and the values with their numbers.
put_samples:
    mov edi, [text_end]
5:  lodsb
    test al, al
    jz 6f
    stosb
    jmp 5b
6:  mov [text_end], edi
    mov ebx, [calls]             # the gap
1:  shr ebx, 1
    jz 5f
    mov ecx, ebx
2:  cmp ecx, [calls]
    jae 1b
    mov eax, [ebp + ecx*4]
    mov edx, ecx
3:  mov esi, edx
    sub esi, ebx
    jb 4f
    mov edi, [ebp + esi*4]
    cmp edi, eax
    jbe 4f
    mov [ebp + edx*4], edi
    mov edx, esi
    jmp 3b
4:  mov [ebp + edx*4], eax
    inc ecx
    jmp 2b
5:  mov edi, [text_end]
    xor esi, esi                 # the number of the first sample with this value
6:  mov al, ' '
    stosb
    mov eax, [ebp + esi*4]
    mov [value], eax
    call put
    mov al, '*'
    stosb
    mov ecx, esi
7:  inc ecx
    cmp ecx, [calls]
    jae 8f
    mov eax, [ebp + ecx*4]
    cmp eax, [value]
    je 7b
8:  mov eax, ecx
    sub eax, esi
    mov esi, ecx
    call put
    cmp esi, [calls]
    jb 6b
    mov al, 10
    stosb
    mov [text_end], edi
    ret

put:                             # writes EAX as a decimal number to EDI
    mov ebx, 10
    xor ecx, ecx
1:  xor edx, edx
    div ebx
    add dl, '0'
    mov digits[ecx], dl
    inc ecx
    test eax, eax
    jnz 1b
2:  mov al, digits[ecx - 1]
    stosb
    dec ecx
    jnz 2b
    ret

DEFINE_DECIMAL

.data
path: .asciz "/proc/cost_calls"
text_nothing: .asciz "nothing"
text_marked: .asciz "marked"
text_usage: .ascii "usage: two-calls N   N of 1 to 20000\n"
text_usage_end:
    .balign 4
text_end: .long text
done: .long 0

.bss
    .balign 4
calls: .skip 4
file: .skip 4
begun: .skip 4
value: .skip 4
left: .skip 4
text_start: .skip 4
digits: .skip 12
nothing: .skip 4*MOST
marked: .skip 4*MOST
text: .skip 2*MOST*18
