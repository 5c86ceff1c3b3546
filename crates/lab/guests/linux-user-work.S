# A static 64-bit Linux program: computes between system calls, faults, or starts processes.
#
#   work loop N K     N times: K rounds of a loop with loads, stores and a multiplication; then getpid
#   work calls N K    N times: K calls of short functions by a table; then getpid
#   work code N K     N times: writes a function and calls it K times
#   work pages N K    N times: maps K pages (at most 512), writes to each, and unmaps them
#   work fork N 0     N times: starts a process, which ends, and waits for its end
#
# Exit code 0 if all the work was done, 1 if not, 2 for a wrong command line.

.intel_syntax noprefix
.code64
.include "linux-calls.inc"

.set BASE, 0x20000000
.set CODE, 0x30000000
.set MOST_PAGES, 512
.set MOV_EAX, 0xb8
.set RET, 0xc3

.text
.globl _start
_start:
    COUNT_OF_ARGUMENTS
    cmp eax, 4
    jne usage
    ARGUMENT 2
    call decimal
    jc usage
    mov r12d, eax                        # N
    test eax, eax
    jz usage
    ARGUMENT 3
    call decimal
    jc usage
    mov r13d, eax                        # K
    ARGUMENT 1
    xor ebx, ebx                         # the times that are done
    mov eax, [rsi]
    cmp eax, 0x706f6f6c                  # "loop"
    je loop
    cmp eax, 0x6c6c6163                  # "call"
    je calls
    cmp eax, 0x65646f63                  # "code"
    je code
    cmp eax, 0x65676170                  # "page"
    je pages
    cmp eax, 0x6b726f66                  # "fork"
    je fork
    jmp usage

loop:
    mov r15, r13
    test r15, r15
    jz 2f
1:  mov eax, r15d
    and eax, 511
    imul rdx, rdx, 13
    add rdx, table[rax*8]
    mov table[rax*8], rdx
    inc qword ptr [count]
    dec r15
    jnz 1b
2:  call get_pid
    jb loop
    jmp check

calls:
    mov r15, r13
    test r15, r15
    jz 2f
1:  mov eax, r15d
    and eax, 3
    call functions[rax*8]
    dec r15
    jnz 1b
2:  call get_pid
    jb calls
    jmp check

code:
    MAP CODE, 4096, 7
    cmp eax, CODE
    jne failed
    mov r14d, CODE
    mov byte ptr [r14], MOV_EAX
    mov byte ptr [r14+5], RET
1:  mov [r14+1], ebx                     # the function returns this number now
    mov r15, r13
2:  call r14
    cmp eax, ebx
    jne failed
    inc qword ptr [count]
    dec r15
    jg 2b
    inc rbx
    cmp rbx, r12
    jb 1b
    jmp check

pages:
    cmp r13d, MOST_PAGES
    ja usage
    mov r14d, r13d
    shl r14d, 12
1:  MAP BASE, r14d
    cmp eax, BASE
    jne failed
    mov r15, r13
2:  inc dword ptr [rax]
    cmp dword ptr [rax], 1               # a new page is empty
    jne failed
    add rax, 4096
    inc qword ptr [count]
    dec r15
    jnz 2b
    SYSTEM_CALL 91, 11, BASE, r14d
    test eax, eax
    jnz failed
    inc rbx
    cmp rbx, r12
    jb 1b
    jmp check

fork:
    SYSTEM_CALL 2, 57
    test eax, eax
    js failed
    jz done
    SYSTEM_CALL 7, 61, -1, "offset status", 0
    test eax, eax
    js failed
    cmp dword ptr [status], 0
    jne failed
    inc rbx
    cmp rbx, r12
    jb fork
    xor r13d, r13d

check:                                   # was everything done N times?
    imul r13, r12
    cmp r13, [count]
    jne failed
done:
    SYSTEM_CALL 1, 60, 0

get_pid:                                 # carry: it must be done again
    SYSTEM_CALL 20, 39
    test eax, eax
    jle failed
    inc rbx
    cmp rbx, r12
    ret

# Four functions, of which each counts.
first:
    inc qword ptr [count]
    ret
second:
    add rdx, 3
    inc qword ptr [count]
    ret
third:
    push rdx
    inc qword ptr [count]
    pop rdx
    ret
fourth:
    xor rdx, rax
    inc qword ptr [count]
    ret

failed:
    SYSTEM_CALL 4, 1, 2, "offset text_failed", "text_failed_end - text_failed"
    SYSTEM_CALL 1, 60, 1
usage:
    SYSTEM_CALL 4, 1, 2, "offset text_usage", "text_usage_end - text_usage"
    SYSTEM_CALL 1, 60, 2

DEFINE_DECIMAL

.data
    .balign 4096                         # no page has code and what is written
functions: .quad first, second, third, fourth
text_failed: .ascii "work: not all work was done\n"
text_failed_end:
text_usage: .ascii "usage: work loop|calls|code|pages|fork N K   N at least 1, of pages at most 512\n"
text_usage_end:

.bss
    .balign 64
count: .skip 8
status: .skip 4
    .balign 64
table: .skip 512*8
