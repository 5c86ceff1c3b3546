# A static Linux program: repeats one system call.
#
#   repeat getuid N       gets the user's ID N times
#   repeat sleep N        sleeps for a millisecond N times, each by a timer of its own
#
# Exit code 0, 1 if a call fails, 2 for a wrong command line.

.intel_syntax noprefix
.ifdef WIDE
.code64
.endif
.include "linux-calls.inc"

.set MILLISECOND, 1000000

.text
.globl _start
_start:
    COUNT_OF_ARGUMENTS
    cmp eax, 3
    jne usage
    ARGUMENT 2
    call decimal
    jc usage
    test eax, eax
    jz usage
    mov [left], eax
    ARGUMENT 1
.ifdef WIDE
    mov al, [rsi]
.else
    mov al, [esi]
.endif
    cmp al, 'g'
    je 1f
    cmp al, 's'
    jne usage

2:  SYSTEM_CALL 162, 35, "offset duration", 0   # nanosleep
    test eax, eax
    jnz failed
    dec dword ptr [left]
    jnz 2b
    SYSTEM_CALL 1, 60, 0

1:  SYSTEM_CALL 199, 102                        # getuid, on i386 getuid32
    test eax, eax                               # is the user of this shell the superuser?
    jnz failed
    dec dword ptr [left]
    jnz 1b
    SYSTEM_CALL 1, 60, 0

failed:
    SYSTEM_CALL 1, 60, 1
usage:
    SYSTEM_CALL 4, 1, 2, "offset text_usage", "text_usage_end - text_usage"
    SYSTEM_CALL 1, 60, 2

DEFINE_DECIMAL

.data
    .balign 8
.ifdef WIDE
duration: .quad 0, MILLISECOND
.else
duration: .long 0, MILLISECOND
.endif
text_usage: .ascii "usage: repeat getuid|sleep N\n"
text_usage_end:

.bss
    .balign 4
left: .skip 4
