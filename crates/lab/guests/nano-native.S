# A static Linux program for x86-64: the events of the guest of `tollgate cost` that a program can cause without a
# machine, timed by the same loops.
#
#   nano-native LOOP COUNT REPEAT
#
# LOOP is twice the number of an event in the table, plus one for batches. The loop runs twice, the first time to warm up; then
# COUNT values of 32 bits are written to standard output, in cycles. The exit code is 1 if it did not do all of its work.
# Page faults and divisions by zero arrive as signals, whose handler returns to the instruction that follows.

.intel_syntax noprefix
.code64
.include "linux-calls.inc"
.include "measuring.inc"

.set MOST, 8192
.set UNMAPPED, 0x3FF000          # below the program
# A line: 20 characters of name, modes, the entries of both loops.
.set TABLE_LINE, 32
.set SIGFPE, 8
.set SIGSEGV, 11
.set SA_RESTORER, 0x04000000
.set SAVED_RCX, 40 + 14*8        # in struct ucontext
.set SAVED_RIP, 40 + 16*8

.section .table, "a"
table:

.section .text
.globl _start
_start:
    cld
    COUNT_OF_ARGUMENTS
    cmp eax, 4
    jne failed
    lea rbx, [rsp]
    mov rsi, [rbx + 16]
    call decimal
    jc failed
    cmp eax, 2*(table_end - table)/TABLE_LINE
    jae failed
    mov ecx, eax
    shr eax, 1
    imul eax, TABLE_LINE
    and ecx, 1
    mov eax, [table + rax + rcx*4 + 24]
    mov [entry], eax
    mov rsi, [rbx + 24]
    call decimal
    jc failed
    cmp eax, MOST
    ja failed
    mov [asked], eax
    mov rsi, [rbx + 32]
    call decimal
    jc failed
    mov [REPEAT], eax
    mov edi, SIGFPE
    call handle
    mov edi, SIGSEGV
    call handle
    mov dword ptr [rounds], 2
1:  mov eax, [asked]
    mov [COUNT], eax
    mov ebp, eax
    mov dword ptr [DONE], 0
    mov edi, offset samples
    mov eax, [entry]
    call rax
    dec dword ptr [rounds]
    jnz 1b
    mov eax, [asked]
    imul eax, [REPEAT]
    cmp eax, [DONE]
    jne failed
    mov edx, [asked]
    shl edx, 2
    mov eax, 1                   # write
    mov edi, 1
    mov esi, offset samples
    syscall
    cmp eax, edx
    jne failed
    xor edi, edi
    mov eax, 60                  # exit
    syscall
failed:
    mov edi, 1
    mov eax, 60
    syscall

handle:                          # EDI is a signal
    mov eax, 13                  # rt_sigaction
    mov esi, offset action
    xor edx, edx
    mov r10d, 8
    syscall
    test eax, eax
    jnz failed
    ret

skip:                            # resumes at the address in RCX
    mov rax, [rdx + SAVED_RCX]
    mov [rdx + SAVED_RIP], rax
    ret
restore:
    mov eax, 15                  # rt_sigreturn
    syscall

    .balign 64
nearby:
    ret

DEFINE_DECIMAL

    # The order is that of src/cost/native.rs.
    KIND no-op, 1
    KIND cpuid, 1, "xor eax, eax; cpuid"
    KIND syscall-sysret, 1, "mov eax, 110; syscall"    # getppid
    KIND call-return, 1, "call nearby"
    KIND page-fault-iret, 1, "mov eax, [UNMAPPED]", "xor ebx, ebx", , , ecx
    KIND divide-error-iret, 1, "xor edx, edx; div edx", "xor ebx, ebx", , , ecx

.section .table, "a"
table_end:

.section .data
    .balign 8
action:
    .quad skip, 0x4 | SA_RESTORER, restore, 0          # SA_SIGINFO

.section .bss
    .balign 8
entry: .skip 4
asked: .skip 4
rounds: .skip 4
COUNT: .skip 4
REPEAT: .skip 4
DONE: .skip 4
samples: .skip 4*MOST
