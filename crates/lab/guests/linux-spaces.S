# A static Linux program: processes that pass a token round, so that the address space changes with
# each step, and that use their own memory in between.
#
#   spaces PROCESSES ROUNDS PAGES UNMAP CODE
#
# First each of PROCESSES (2 to 32) processes makes CODE (0 to 20000) pages of code and runs all of them,
# by direct branches from page to page and by indirect calls. Then each process gets the token ROUNDS
# times. With the token, it runs the last 300 of these pages by direct branches, adds one to a word in each
# of its PAGES (1 to 1024) pages and, if UNMAP is 1, unmaps one of them, a different one each time, and
# maps a new page there. At the end each process checks the contents of its pages. The exit code is 0 if
# all of them did their work, 1 if not, 2 for a wrong command line.

.intel_syntax noprefix
.ifdef WIDE
.code64
.endif
.include "linux-calls.inc"

.set BASE, 0x20000000
.set CODE_BASE, 0x30000000
.set MOST_CODE, 20000
.set PAGES_RUN, 300
.set CALLED, 64                          # the offset in each page of code that calls go to
.set MOST_PROCESSES, 32

.macro CALL_REGISTER                     # the target is in EAX
.ifdef WIDE
    call rax
.else
    call eax
.endif
.endm

.text
.globl _start
_start:
    COUNT_OF_ARGUMENTS
    cmp eax, 6
    jne usage
    ARGUMENT 1
    call decimal
    jc usage
    mov [processes], eax
    sub eax, 2
    cmp eax, MOST_PROCESSES - 2
    ja usage
    ARGUMENT 2
    call decimal
    jc usage
    test eax, eax
    jz usage
    mov [rounds], eax
    ARGUMENT 3
    call decimal
    jc usage
    mov [pages], eax
    shl eax, 12
    mov [bytes], eax
    dec eax
    cmp eax, 1024*4096 - 1
    ja usage
    ARGUMENT 4
    call decimal
    jc usage
    mov [unmaps], eax
    cmp eax, 1
    ja usage
    ARGUMENT 5
    call decimal
    jc usage
    mov [code], eax
    cmp eax, MOST_CODE
    ja usage

    mov dword ptr [number], 0            # the pipes: of each the reading end, then the writing end
1:  mov eax, [number]
    lea eax, pipes[eax*8]
    mov [argument], eax
    SYSTEM_CALL 42, 22, [argument]
    test eax, eax
    jnz failed
    inc dword ptr [number]
    mov eax, [number]
    cmp eax, [processes]
    jb 1b

    mov dword ptr [number], 1            # start the others; number 0 is this process
2:  SYSTEM_CALL 2, 57
    test eax, eax
    js failed
    jz member
    inc dword ptr [number]
    mov eax, [number]
    cmp eax, [processes]
    jb 2b
    mov dword ptr [number], 0
    mov dword ptr [next], 0              # this process has the token first
    call hand_on

member:
    mov eax, [number]
    mov ecx, pipes[eax*8]
    mov [own], ecx
    inc eax
    cmp eax, [processes]
    jb 1f
    xor eax, eax
1:  mov [next], eax
    MAP BASE, [bytes]
    cmp eax, BASE
    jne failed
    call make_code
    mov dword ptr [round], 0
    mov dword ptr [victim], BASE

turn:
    SYSTEM_CALL 3, 0, [own], "offset token", 4
    cmp eax, 4
    jne failed
    mov eax, BASE
    mov ecx, [pages]
1:  inc dword ptr [eax]
    add eax, 4096
    dec ecx
    jnz 1b
    call run_code
    cmp dword ptr [unmaps], 0
    je 3f
    SYSTEM_CALL 91, 11, [victim], 4096
    test eax, eax
    jnz failed
    MAP [victim], 4096
    cmp eax, [victim]
    jne failed
    add eax, 4096
    mov ecx, [bytes]
    add ecx, BASE
    cmp eax, ecx
    jb 2f
    mov eax, BASE
2:  mov [victim], eax
3:  call hand_on
    inc dword ptr [round]
    mov eax, [round]
    cmp eax, [rounds]
    jb turn

    # Without UNMAP each page was used in all rounds. With it, one page was replaced in each round,
    # so that from the last replaced page backwards the pages hold 0, 1, 2, ..., but at most the
    # number of rounds.
    mov eax, [victim]
    xor edx, edx
    mov ecx, [pages]
1:  mov esi, edx
    cmp dword ptr [unmaps], 0
    je 2f
    cmp esi, [rounds]
    jb 3f
2:  mov esi, [rounds]
3:  sub eax, 4096
    cmp eax, BASE
    jae 4f
    add eax, [bytes]
4:  cmp [eax], esi
    jne failed
    inc edx
    dec ecx
    jnz 1b

    cmp dword ptr [number], 0
    jne done
    mov dword ptr [round], 1
5:  SYSTEM_CALL 7, 61, -1, "offset status", 0     # the parent waits for the exit codes of all others
    test eax, eax
    js failed
    cmp dword ptr [status], 0
    jne failed
    inc dword ptr [round]
    mov eax, [round]
    cmp eax, [processes]
    jb 5b
done:
    SYSTEM_CALL 1, 60, 0

make_code:                               # makes the code and runs it
    cmp dword ptr [code], 0
    je 3f
    mov eax, [code]
    shl eax, 12
    mov [argument], eax
    MAP CODE_BASE, [argument], 7
    cmp eax, CODE_BASE
    jne failed
    mov ecx, [code]
1:  mov byte ptr [eax], 0xe9             # a jump to the next page
    mov dword ptr [eax + 1], 4096 - 5
    mov byte ptr [eax + CALLED], 0xc3
    add eax, 4096
    dec ecx
    jnz 1b
    mov byte ptr [eax - 4096], 0xc3      # the last page returns
    mov dword ptr [round], 2             # links are made when the code runs again
2:  mov eax, CODE_BASE
    CALL_REGISTER
    mov ecx, [code]
    call call_code
    dec dword ptr [round]
    jnz 2b
3:  ret

run_code:                                # runs the last pages
    mov eax, [code]
    test eax, eax
    jz 2f
    sub eax, PAGES_RUN
    jae 1f
    xor eax, eax
1:  shl eax, 12
    add eax, CODE_BASE
    CALL_REGISTER
2:  ret

call_code:                               # calls ECX pages
    mov eax, CODE_BASE + CALLED
    test ecx, ecx
    jz 2f
1:  CALL_REGISTER
    add eax, 4096
    dec ecx
    jnz 1b
2:  ret

hand_on:                                 # passes the token to the next process
    mov eax, [next]
    mov ecx, pipes[eax*8 + 4]
    mov [argument], ecx
    SYSTEM_CALL 4, 1, [argument], "offset token", 4
    cmp eax, 4
    jne failed
    ret

failed:
    SYSTEM_CALL 4, 1, 2, "offset text_failed", "text_failed_end - text_failed"
    SYSTEM_CALL 1, 60, 1
usage:
    SYSTEM_CALL 4, 1, 2, "offset text_usage", "text_usage_end - text_usage"
    SYSTEM_CALL 1, 60, 2

DEFINE_DECIMAL

.data
text_failed: .ascii "spaces: a process did not do its work\n"
text_failed_end:
text_usage:
    .ascii "usage: spaces PROCESSES ROUNDS PAGES UNMAP CODE   2 to 32, at least 1, 1 to 1024, 0 or 1, 0 to 20000\n"
text_usage_end:

.bss
    .balign 4
processes: .skip 4
rounds: .skip 4
pages: .skip 4
bytes: .skip 4
unmaps: .skip 4
code: .skip 4
number: .skip 4
next: .skip 4
own: .skip 4
argument: .skip 4
round: .skip 4
victim: .skip 4
token: .skip 4
status: .skip 4
pipes: .skip MOST_PROCESSES*8
