# long_compatibility - 32-bit programs under a 64-bit kernel: ring 3 in compatibility mode, as they run there
.include "guest.inc"
.include "long.inc"

.set TLS, FREE64                 # data with a base
.set LIMITED, FREE64+8           # data that ends at 0FFFh
.set HIGH_PAGE, 0xFFFFE000       # near 4 GiB
.set PD_HIGH, PD_APIC            # 3 to 4 GiB
.set TABLE_HIGH, FREE_TABLES
.set PD_BEHIND, FREE_TABLES+0x1000 # from 4 GiB on
.set TABLE_BEHIND, FREE_TABLES+0x2000
.set TLS_AT, 0x640000
.set STACK, 0x620000
.set TIMER, IRQ_BASE
.ifdef QEMU                      # as in long_interrupts
.set GATE_SIZE, 16
.else
.set GATE_SIZE, 8
.endif

# ENTER_COMPATIBILITY: what follows is 32-bit code of ring 3, up to LEAVE.
.macro ENTER_COMPATIBILITY
    mov [kernel_rsp], rsp
    push DATA3
    push STACK
    push 2
    push CODE3
    push offset compatible_\@
    iretq
.code32
compatible_\@:
    mov eax, DATA3
    mov ds, eax
    mov es, eax
.endm
.macro LEAVE
    int LEAVE_RING3
.code64
.endm

long_main:
    GATE64 0x40, service, 0xEE
    DESCRIPTOR64 TLS, 0x00CFF2640000FFFF
    DESCRIPTOR64 LIMITED, 0x0040F20000000FFF
    mov qword ptr [PD_HIGH+8*0x1FF], TABLE_HIGH+(P|W|U)
    mov qword ptr [TABLE_HIGH+8*0x1FE], FRAME_A+(P|W|U)
    mov qword ptr [TABLE_HIGH+8*0x1FF], FRAME_B+(P|W|U)
    call operands
    call addresses
    call across
    call faults
    call segments
    call both
    call code_there
    call ticks
    ret

service:                         # a system call of eax, edi: kernel code with new registers
    mov r8, -1
    mov r15, -1
    movq xmm15, r8
    lea rax, [rax+rdi]
    mov [seen_rsp], rsp
    iretq

operands:
    mov r8, 0x8888888888888888
    mov r14, 0xEEEEEEEEEEEEEEEE
    mov rbx, 0x1234567812345678
    ENTER_COMPATIBILITY
    mov eax, 0xFFFFFFFF
    inc eax                      # 40h
    mov esi, eax
    mov ecx, 5
    xor edi, edi
1:  add edi, ecx
    loop 1b
    mov edx, esp
    push 0x11223344
    push edx
    pop ebp
    cmp ebp, edx
    sete al
    pop ecx
    pushad
    popad
    push es
    pop es
    mov ebp, esp
    mov eax, 0x40
    aam                          # not there in 64-bit mode
    mov edi, eax
    bswap edi
    LEAVE
    EXPECT64 rsi, 0, "40h is inc eax"
    EXPECT64 rcx, 0x11223344, "pushes and pops are of 32 bits"
    EXPECT64 rax, 0x604, "aam is there"
    EXPECT_SAME64 rbp, rdx, "pushad, popad and push es too, and esp is as before"
    EXPECT64 rdi, 0x04060000, "bswap edi"
    EXPECT64 r8, 0x8888888888888888, "r8 passes through"
    EXPECT64 r14, 0xEEEEEEEEEEEEEEEE, "r14 too"
    ENTER_COMPATIBILITY
    mov eax, 7
    mov edi, 0xFFFFFFFE
    int 0x40
    mov esi, eax
    sub eax, 5
    sbb ebx, ebx
    LEAVE
    EXPECT64 rsi, 5, "a system call's result has 32 bits there"
    EXPECT64 rbx, 0, "and goes on as 32 bits"
    EXPECT64 r15, -1, "while the kernel's registers are its own"
    ret

addresses:
    mov dword ptr [FRAME_A+0xFF0], 0x12345678
    mov dword ptr [FRAME_B+0xFFC], 0x9ABCDEF0
    ENTER_COMPATIBILITY
    mov ebx, HIGH_PAGE
    mov eax, [ebx+0xFF0]
    mov ecx, 0x1000
    mov edx, [ebx+ecx+0xFFC]
    mov edi, -4
    mov esi, [edi]
    mov edi, 0x10
    mov edi, [edi+HIGH_PAGE+0xFE0]
    push edi
    pop dword ptr [ebx]
    mov edi, FRAME_A+0x10
    mov ecx, [edi+0xFFFFFFF0]    # wraps at 4 GiB
    mov byte ptr [edi-0x10+4], 0x5A
    add ecx, [ebx]
    LEAVE
    EXPECT64 rax, 0x12345678, "an address in the last pages of 4 GiB is no negative one"
    EXPECT64 rdx, 0x9ABCDEF0, "the very last word"
    EXPECT64 rsi, 0x9ABCDEF0, "-4 is the same"
    EXPECT64 rdi, FRAME_A+0x10, "edi holds 32 bits"
    EXPECT64 rcx, 0x2468ACF0, "sums wrap at 4 GiB"
    ENTER_COMPATIBILITY
    mov esi, HIGH_PAGE+0x1FFC    # a copy at the end of 4 GiB, downwards
    mov edi, FRAME_C+0x20
    mov ecx, 4
    std
    rep movsd
    cld
    LEAVE
    EXPECT64 rsi, HIGH_PAGE+0x1FEC, "string instructions move 32 bits of pointers"
    EXPECT64 rdi, FRAME_C+0x10, "down too"
    mov eax, [FRAME_C+0x20]
    EXPECT64 rax, 0x9ABCDEF0, "and copy"
    ret

# The end of 4 GiB, after which 64-bit code has a page that also follows it in memory.
across:
    mov qword ptr [PDPT_LOW+8*4], PD_BEHIND+(P|W|U)
    mov qword ptr [PD_BEHIND], TABLE_BEHIND+(P|W|U)
    mov qword ptr [TABLE_BEHIND], FRAME_C+(P|W|U)
    mov dword ptr [FRAME_B+0xFFC], 0x9ABCDEF0
    mov dword ptr [FRAME_C], 0xCCCCCCCC
    mov r12d, [0]
    mov dword ptr [0], 0x0BAD5678
    mov ebx, 0xFFFFFFFC
    USER_TRY64 mov rsi, [rbx]
    USER_TRY64 mov [rbx], rsi
    EXPECT64 rsi, 0xCCCCCCCC9ABCDEF0, "64-bit code goes on beyond 4 GiB"
.ifndef QEMU                     # where 32-bit code does so too
    ENTER_COMPATIBILITY
    mov eax, TLS|3
    mov gs, eax
    mov ebx, 0xFFFFFFFE-TLS_AT
    TRY mov esi, gs:[ebx]
    mov edi, [fault_vector]
    mov dword ptr gs:[ebx], 0x11223344
    mov ecx, gs:[ebx-2]
    mov ebx, 0xFFFFFFFE
    mov edx, 0x11223344          # a limit of 4 GiB may be violated, or the address wraps
    TRY mov edx, [ebx]
    mov ebp, edx
    xor eax, eax
    mov gs, eax
    LEAVE
    EXPECT64 rdi, 0xFFFFFFFF, "32-bit code in a segment with a base does not"
    EXPECT64 rsi, 0x56789ABC, "but wraps to address zero"
    EXPECT64 rbp, 0x11223344, "nor does it in a flat segment"
    EXPECT64 rcx, 0x3344DEF0, "a store reaches the last bytes of 4 GiB"
    mov eax, [0]
    EXPECT64 rax, 0x0BAD1122, "and the first"
    mov eax, [FRAME_C]
    EXPECT64 rax, 0xCCCCCCCC, "and not those behind 4 GiB"
.endif
    mov [0], r12d
    mov dword ptr [FRAME_B+0xFFC], 0x9ABCDEF0
    mov qword ptr [PDPT_LOW+8*4], 0
    ret

# TRY_THERE "fact", vector, error, instruction
.macro TRY_THERE fact, vector, error, instruction:vararg
    ENTER_COMPATIBILITY
    TRY \instruction
    LEAVE
    EXPECT_FAULT64 \vector, \error, "\fact"
.endm
faults:
    mov qword ptr [TABLE_HIGH+8*0x1FD], 0
    TRY_THERE "a missing page near 4 GiB", EXC_PF, PF_USER, mov eax, [HIGH_PAGE-4]
    EXPECT64 [fault_cr2], HIGH_PAGE-4, "cr2 is not sign-extended"
    EXPECT64 [fault_cs], CODE3, "cs tells the sub-mode"
    EXPECT64 [fault_esp], STACK, "rsp has 32 bits"
    TRY_THERE "a store through ebx", EXC_PF, PF_USER|PF_WRITE, mov [HIGH_PAGE-8], ebx
    TRY_THERE "hlt", EXC_GP, 0, hlt
    TRY_THERE "cli", EXC_GP, 0, cli
    TRY_THERE "in", EXC_GP, 0, in al, 0x21
    TRY_THERE "ud2", EXC_UD, 0, ud2
    TRY_THERE "mov cr0", EXC_GP, 0, mov eax, cr0
    TRY_THERE "an INT that ring 3 has not", EXC_GP, 0x50*GATE_SIZE+2, int 0x50
    TRY_THERE "swapgs is not there", EXC_UD, 0, .byte 0x0F, 0x01, 0xF8
.ifndef QEMU                     # limits
    ENTER_COMPATIBILITY
    mov eax, LIMITED|3
    mov fs, eax
    TRY mov eax, fs:[0x1000]
    LEAVE
    EXPECT_FAULT64 EXC_GP, 0, "a limit is checked"
    TRY_THERE "and a null segment", EXC_GP, 0, mov eax, gs:[0]
.endif
    ENTER_COMPATIBILITY
    xor edx, edx
    mov ecx, 0
    TRY div ecx
    LEAVE
    EXPECT_FAULT64 EXC_DE, 0, "a division by zero"
    ret

segments:
    mov dword ptr [TLS_AT+0x10], 0x7151
    ENTER_COMPATIBILITY
    mov eax, TLS|3
    mov gs, eax
    mov eax, gs:[0x10]
    mov edi, -0x640000+FRAME_A   # wraps by its base
    mov esi, gs:[edi+0xFF0]
    push gs
    pop ecx
    movzx ecx, cx                # what is above may have been there before
    LEAVE
    EXPECT64 rax, 0x7151, "gs has the base of its descriptor"
    EXPECT64 rsi, 0x12345678, "an offset wraps around it at 4 GiB"
    EXPECT64 rcx, TLS|3, "push gs"
    mov rax, gs:[0x10]
    EXPECT64 rax, 0x7151, "which 64-bit code finds there too"
    xor eax, eax
    mov gs, eax
    WRMSR64 FS_BASE, 0xFFFF900000000000
    ENTER_COMPATIBILITY
    mov eax, TLS|3
    mov fs, eax
    LEAVE
    RDMSR64 FS_BASE
    EXPECT64 rax, TLS_AT, "a load of fs there sets all 64 bits of the base"
    xor eax, eax
    mov fs, eax
    ret

both:                            # back and forth within ring 3
    ENTER_COMPATIBILITY
    mov esi, 100
    xor ebx, ebx
1:  call CODE64_3:2f             # 9Ah: a far call to 64-bit code
    dec esi
    jnz 1b
    mov edi, esp
    LEAVE
    EXPECT64 rbx, 100*3, "100 far calls from 32-bit to 64-bit code"
    EXPECT64 rdi, STACK, "and as many returns"
    EXPECT64 r9, 0x100000064, "64-bit code has its registers"
    jmp 3f
2:  lea rbx, [rbx+3]
    mov r9, 0x100000000
    mov eax, 100
    add r9, rax
    retfd
3:  ENTER_RING3_64
    mov r12, rsp
    mov esp, STACK
    mov esi, 100
    xor ebx, ebx
4:  call fword ptr [to_32_bits]
    dec esi
    jnz 4b
    mov rdi, rsp
    mov rsp, r12
    int LEAVE_RING3
    EXPECT64 rbx, 100*2, "and 100 from 64-bit to 32-bit code"
    EXPECT64 rdi, STACK, "returns too"
    ret
.code32
thirty_two:
    inc ebx
    inc ebx
    retf
.code64

code_there:                      # code written by itself, and by the kernel
    ENTER_COMPATIBILITY
    mov ebx, HIGH_PAGE
    mov byte ptr [ebx], 0xB8
    mov byte ptr [ebx+5], 0xC3
    xor edi, edi
    mov ecx, 50
1:  mov [ebx+1], ecx
    call ebx
    cmp eax, ecx
    setne al
    movzx eax, al
    add edi, eax
    loop 1b
    LEAVE
    EXPECT64 rdi, 0, "32-bit code near 4 GiB is written and called"
    mov dword ptr [FRAME_A+1], 0x321
    ENTER_COMPATIBILITY
    mov ebx, HIGH_PAGE
    call ebx
    LEAVE
    EXPECT64 rax, 0x321, "the kernel writes it through another address"
    mov dword ptr [FRAME_B+0xFFB], 0xEB909090 # nop nop nop, jmp +2 over 4 GiB
    mov byte ptr [FRAME_B+0xFFF], 2
    mov byte ptr [2], 0x89       # mov ebx, eax; ret
    mov byte ptr [3], 0xC3
    mov byte ptr [4], 0xC3
    ENTER_COMPATIBILITY
    mov eax, 0x55
    mov ecx, HIGH_PAGE+0x1FFB
    call ecx
    LEAVE
    EXPECT64 rbx, 0x55, "eip wraps at 4 GiB"
    ret

ticks:
    GATE64 TIMER, tick
    mov al, 0x34
    out 0x43, al
    mov al, 240
    out 0x40, al
    mov al, 0
    out 0x40, al
    mov al, 0xFE
    out PIC1 + 1, al
    mov [kernel_rsp], rsp
    push DATA3
    push STACK
    push FLAG_I|2
    push CODE3
    push offset turning
    iretq
.code32
turning:
    mov eax, DATA3
    mov ds, eax
    mov es, eax
    xor ecx, ecx
    xor ebp, ebp
1:  inc ecx
    imul eax, ecx, 0x9E3779B1
    mov edx, eax
    rol edx, 5
    lea esi, [edx+eax*4]
    mov edi, esi
    push edi
    bswap edi
    push edi
    pop ebx
    bswap ebx
    pop edi
    cmp ebx, edi
    jne 2f
    lea ebx, [eax*4]
    sub edi, ebx
    ror edi, 5
    cmp edi, eax
    jne 2f
    cmp dword ptr [ticked], 300
    jb 1b
    inc ebp
2:  mov edi, esp
    LEAVE
    mov al, 0xFF
    out PIC1 + 1, al
    EXPECT64 rbp, 1, "300 ticks amid 32-bit code leave every register as it was"
    EXPECT64 rdi, STACK, "and its stack"
    ret
tick:
    push rax
    push r9
    mov r9, -1
    inc qword ptr [ticked]
    mov al, PIC_EOI
    out PIC1, al
    pop r9
    pop rax
    iretq

.data
.align 8
to_32_bits: .long thirty_two
            .word CODE3
.bss
.align 8
seen_rsp:   .skip 8
ticked:     .skip 8
.text
