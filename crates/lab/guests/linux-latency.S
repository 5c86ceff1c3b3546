# A static Linux program: it repeatedly waits for a point in time while a process of lower priority
# works, and prints how late it was.
#
#   latency fork N        the other process starts N processes that end immediately
#   latency exec N        it starts N processes that execute a program, which ends immediately
#   latency pipe N        it passes a byte N times to a process that returns it
#   latency load N        it executes `load N`, a script or program in the folder of this one
#
# It must be started by its path.
#
# Prints how often it waited and how late it was: the median, the 99th percentile and the longest
# delay, in nanoseconds. Exit code 0, 1 if a call or a process fails, 2 for a wrong command line.
# Without any argument it ends immediately.

.intel_syntax noprefix
.ifdef WIDE
.code64
.endif
.include "linux-calls.inc"

.set MONOTONIC, 1
.set ABSOLUTE, 1
.set FIFO, 1
.set NO_HANG, 1
.set PERIOD, 1000000                     # in nanoseconds
.set SECOND, 1000000000
.set MOST, 8192                          # the number of waits that are recorded
.set PATH_BYTES, 256                     # of a path, with its end
.ifdef WIDE
.set NANOSECONDS, 8
.else
.set NANOSECONDS, 4
.endif

.text
.globl _start
_start:
    COUNT_OF_ARGUMENTS
    cmp eax, 1
    je done
    cmp eax, 3
    jne usage
    ARGUMENT 2
    call decimal
    jc usage
    test eax, eax
    jz usage
    mov [left], eax
    # Copy texts, which are on the stack, to addresses of 32 bits.
    ARGUMENT 2
    mov edi, offset copied
    mov ecx, 16
    call copy
    jc usage                             # too many leading zeros
    ARGUMENT 0
    mov edi, offset path
    mov ecx, PATH_BYTES
    call copy
    jc usage
    mov esi, offset path                 # the same path, but for the name after the last slash
    mov edi, offset load
    mov edx, edi
1:  mov al, [esi]
    mov [edi], al
    inc esi
    inc edi
    cmp al, '/'
    jne 2f
    mov edx, edi
2:  test al, al
    jnz 1b
    mov dword ptr [edx], 0x64616F6C      # "load"
    mov byte ptr [edx + 4], 0
    ARGUMENT 1
.ifdef WIDE
    mov al, [rsi]
.else
    mov al, [esi]
.endif
    mov [what], al
    cmp al, 'f'
    je 1f
    cmp al, 'e'
    je 1f
    cmp al, 'p'
    je 1f
    cmp al, 'l'
    jne usage
1:  SYSTEM_CALL 2, 57                    # fork
    test eax, eax
    js failed
    jz work
    mov [worker], eax
    # Only the superuser may set this priority; other users' processes wait without it.
    SYSTEM_CALL 156, 144, 0, FIFO, "offset priority"
    SYSTEM_CALL 265, 228, MONOTONIC, "offset deadline"
    test eax, eax
    jnz failed

wait:
    mov eax, [deadline + NANOSECONDS]
    add eax, PERIOD
    cmp eax, SECOND
    jb 1f
    sub eax, SECOND
    inc dword ptr [deadline]
1:  mov [deadline + NANOSECONDS], eax
    SYSTEM_CALL 267, 230, MONOTONIC, ABSOLUTE, "offset deadline"
    test eax, eax
    jnz failed
    SYSTEM_CALL 265, 228, MONOTONIC, "offset now"
    mov eax, [now]
    sub eax, [deadline]
    imul eax, eax, SECOND
    add eax, [now + NANOSECONDS]
    sub eax, [deadline + NANOSECONDS]
    mov ecx, [count]
    cmp ecx, MOST
    jae 2f
    mov late[ecx*4], eax
    inc dword ptr [count]
2:  cmp eax, PERIOD                      # too late for the next period: start again
    jb 3f
    SYSTEM_CALL 265, 228, MONOTONIC, "offset deadline"
3:  SYSTEM_CALL 7, 61, [worker], "offset status", NO_HANG
    test eax, eax
    js failed
    jz wait
    cmp dword ptr [status], 0
    jne failed

    mov edi, 1                           # sort in ascending order, by insertion
4:  cmp edi, [count]
    jae 7f
    mov eax, late[edi*4]
    mov ecx, edi
5:  test ecx, ecx
    jz 6f
    mov edx, late[ecx*4 - 4]
    cmp edx, eax
    jbe 6f
    mov late[ecx*4], edx
    dec ecx
    jmp 5b
6:  mov late[ecx*4], eax
    inc edi
    jmp 4b
7:  mov eax, [count]
    mov [number], eax
    call print
    mov eax, [count]
    shr eax, 1
    call print_at
    mov eax, [count]
    imul eax, eax, 99
    xor edx, edx
    mov ecx, 100
    div ecx
    call print_at
    mov eax, [count]
    dec eax
    call print_at
    SYSTEM_CALL 4, 1, 1, "offset text_line", 1
done:
    SYSTEM_CALL 1, 60, 0

copy:                                    # copies the text at ESI (RSI) to EDI; carry: it has more than ECX bytes
1:
.ifdef WIDE
    mov al, [rsi]
    inc rsi
.else
    mov al, [esi]
    inc esi
.endif
    mov [edi], al
    inc edi
    test al, al
    jz 2f
    dec ecx
    jnz 1b
    stc
2:  ret

print_at:
    mov eax, late[eax*4]
    mov [number], eax
print:                                   # prints the number in decimal, and a space
    mov eax, [number]
    mov edi, offset digits_end
    mov ecx, 10
1:  xor edx, edx
    div ecx
    add edx, '0'
    dec edi
    mov [edi], dl
    test eax, eax
    jnz 1b
    mov [first], edi
    mov eax, offset digits_end + 1
    sub eax, edi
    mov [length], eax
    SYSTEM_CALL 4, 1, 1, [first], [length]
    ret

work:
    cmp byte ptr [what], 'p'
    je pipes
    cmp byte ptr [what], 'l'
    jne 1f
    SYSTEM_CALL 11, 59, "offset load", "offset load_arguments", "offset nothing"
    jmp failed
1:  SYSTEM_CALL 2, 57
    test eax, eax
    js failed
    jnz 2f
    cmp byte ptr [what], 'f'
    je done
    SYSTEM_CALL 11, 59, "offset path", "offset arguments", "offset nothing"
    jmp failed
2:  SYSTEM_CALL 7, 61, -1, "offset status", 0
    test eax, eax
    js failed
    cmp dword ptr [status], 0
    jne failed
    dec dword ptr [left]
    jnz 1b
    jmp done

pipes:
    SYSTEM_CALL 42, 22, "offset there"
    test eax, eax
    jnz failed
    SYSTEM_CALL 42, 22, "offset back"
    test eax, eax
    jnz failed
    SYSTEM_CALL 2, 57
    test eax, eax
    js failed
    jz 2f
1:  SYSTEM_CALL 4, 1, [there + 4], "offset status", 1
    cmp eax, 1
    jne failed
    SYSTEM_CALL 3, 0, [back], "offset status", 1
    cmp eax, 1
    jne failed
    dec dword ptr [left]
    jnz 1b
    SYSTEM_CALL 7, 61, -1, "offset status", 0
    cmp dword ptr [status], 0
    jne failed
    jmp done
2:  SYSTEM_CALL 3, 0, [there], "offset status", 1
    cmp eax, 1
    jne failed
    SYSTEM_CALL 4, 1, [back + 4], "offset status", 1
    cmp eax, 1
    jne failed
    dec dword ptr [left]
    jnz 2b
    jmp done

failed:
    SYSTEM_CALL 1, 60, 1
usage:
    SYSTEM_CALL 4, 1, 2, "offset text_usage", "text_usage_end - text_usage"
    SYSTEM_CALL 1, 60, 2

DEFINE_DECIMAL

.data
    .balign 8
.ifdef WIDE
arguments: .quad path, 0
load_arguments: .quad load, copied, 0
.else
arguments: .long path, 0
load_arguments: .long load, copied, 0
.endif
nothing: .quad 0
priority: .long 50
digits: .skip 10
digits_end: .ascii " "
text_line: .ascii "\n"
text_usage: .ascii "usage: latency fork|exec|pipe|load N\n"
text_usage_end:

.bss
    .balign 8
deadline: .skip 16
now: .skip 16
left: .skip 4
count: .skip 4
number: .skip 4
first: .skip 4
length: .skip 4
worker: .skip 4
status: .skip 4
there: .skip 8
back: .skip 8
what: .skip 4
copied: .skip 16
path: .skip PATH_BYTES
load: .skip PATH_BYTES + 4
late: .skip MOST*4
