# long_programs - programs of ring 3 as under Linux: what a monitor that runs them natively must see to itself
.include "guest.inc"
.include "long.inc"

.set UNMAPPED, WINDOW+0x1000
.ifdef QEMU
.set GATE_SIZE, 16
.else
.set GATE_SIZE, 8
.endif

long_main:
    call across_pages
    call what_is_reported
    call refused
    call segments
    call written
    call registers
    ret

# A page of ring 3's code that must not show the host's processor, and the end of the page before.
    .balign 4096
    .skip 4096-2, 0x90
across: mov eax, 0x12345678      # two bytes in the first page
    jmp 1f
    cpuid
1:  ret

across_pages:
    ENTER_RING3_64
    xor eax, eax
    call across
    int LEAVE_RING3
    EXPECT64 rax, 0x12345678, "an instruction begins in one page and ends in a page with cpuid"
    ret

what_is_reported:
    mov eax, 1
    cpuid
    mov [seen], rcx
    sgdt [table]
    sidt [table+16]
    sub rsp, 8
    ENTER_RING3_64
    mov eax, 1
    cpuid
    mov r8, rcx
    sgdt [table+32]
    sidt [table+48]
    str r9d
    sldt r10d
    mov ecx, TSS64
    lsl r11d, ecx
    int LEAVE_RING3
    add rsp, 8
    EXPECT_SAME64 r8, [seen], "cpuid reports to ring 3 what it reports to ring 0"
    mov rax, [table+32]
    EXPECT_SAME64 rax, [table], "sgdt"
    mov rax, [table+48]
    EXPECT_SAME64 rax, [table+16], "and sidt, too"
    EXPECT64 r9, TSS64, "str stores the selector of the task register"
    EXPECT64 r10, 0, "sldt that of no table"
    bt qword ptr [cpuid_1_ecx], HAS_XSAVE
    jnc 1f
    bt qword ptr [cpuid_1_ecx], HAS_AVX
    jnc 1f
    ENTER_RING3_64
    xor ecx, ecx
    xgetbv
    int LEAVE_RING3
    EXPECT64 rax, 7, "xgetbv reads XCR0"
1:  rdtsc
    shl rdx, 32
    lea rbx, [rdx+rax]
    ENTER_RING3_64
    rdtsc
    int LEAVE_RING3
    shl rdx, 32
    lea rsi, [rdx+rax]
    rdtsc
    shl rdx, 32
    add rdx, rax
    cmp rbx, rsi
    setbe al
    cmp rsi, rdx
    setbe cl
    and al, cl
    movzx eax, al
    EXPECT64 rax, 1, "rdtsc in ring 3 reads the counter that ring 0 reads"
    ret

    .balign 4096                 # what follows has no such instruction in its page
.macro REFUSED vector, error, what, instruction:vararg
    USER_TRY64 \instruction
    EXPECT_FAULT64 \vector, \error, "\what"
.endm
refused:
    REFUSED EXC_UD, 0, "ud2 is undefined", ud2
    REFUSED EXC_GP, 0, "hlt is refused to ring 3", hlt
    REFUSED EXC_GP, 0, "cli too", cli
    REFUSED EXC_GP, 0, "and in", in al, dx
    REFUSED EXC_GP, 0, "and rdmsr", rdmsr
    REFUSED EXC_GP, 0, "and mov from cr3", mov rax, cr3
    REFUSED EXC_GP, 0x70*GATE_SIZE+2, "and a gate of privilege 0", int 0x70
.ifndef QEMU
    USER_TRY64 .byte 0xF1
    EXPECT64 [fault_vector], EXC_DB, "int1 is a debug exception"
.endif
    xor ecx, ecx
    REFUSED EXC_DE, 0, "a division by zero is one", div ecx
    mov rbx, UNMAPPED
    REFUSED EXC_PF, PF_USER, "a read of a page that is not there", mov al, [rbx]
    REFUSED EXC_PF, PF_USER|PF_WRITE, "a write", mov [rbx], al
    PTE64 1, FRAME_A|P|W
    REFUSED EXC_PF, PF_USER|PF_PRESENT, "a read of ring 0's page", mov al, [rbx]
    PTE64 1, FRAME_A|P|U
    REFUSED EXC_PF, PF_USER|PF_PRESENT|PF_WRITE, "a write of a page for reading", mov [rbx], al
    mov byte ptr [FRAME_A], 0x5A
    xor eax, eax
    USER_TRY64 mov al, [rbx]
    EXPECT64 rax, 0x5A, "which is read"
    PTE64 1, 0
    REFUSED EXC_PF, PF_USER, "and not after it was taken away", mov al, [rbx]
    ret

segments:
    ENTER_RING3_64
    mov eax, DATA3
    mov ds, eax
    mov es, eax
    mov ecx, ds
    mov rdx, [table]
    xor eax, eax
    mov ds, eax
    mov es, eax
    mov r8d, ds
    int LEAVE_RING3
    EXPECT64 rcx, DATA3, "ring 3 loads ds"
    EXPECT64 r8, 0, "and makes it null again"
    EXPECT_SAME64 rdx, [table], "memory is the same with both"
    mov eax, FREE64
    REFUSED EXC_GP, FREE64, "a descriptor that is none", mov ds, eax
    mov eax, DATA64
    REFUSED EXC_GP, DATA64, "or one of ring 0", mov ds, eax
    ret

written:
    ENTER_RING3_64
    mov ebx, 3
    xor edx, edx
1:  mov [changed+1], ebx         # each round writes the code that it runs
    call changed
    add edx, eax
    dec ebx
    jnz 1b
    int LEAVE_RING3
    EXPECT64 rdx, 6, "code that ring 3 writes is what runs"
    mov dword ptr [changed+1], 77
    ENTER_RING3_64
    call changed
    int LEAVE_RING3
    EXPECT64 rax, 77, "and so is what ring 0 writes"
    ENTER_RING3_64
    mov ecx, 1000
    call turns
    int LEAVE_RING3
    EXPECT64 rax, 1000, "a loop stores to the page that it runs in"
    ret

registers:
    mov rax, 0x1111111111111111
    mov r15, 0x2222222222222222
    movq xmm0, rax
    movq xmm15, r15
    pinsrw xmm15, eax, 7
    ENTER_RING3_64
    mov rbx, UNMAPPED
    stc
    TRY64 mov al, [rbx]          # it leaves and comes back
    movq r8, xmm0
    movq r9, xmm15
    pextrw r10d, xmm15, 7
    sbb rbx, rbx
    fldpi
    fistp qword ptr [seen]
    mov r11, rax                 # INT 80h of a program that runs natively cuts rax to 32 bits
    int LEAVE_RING3
    EXPECT64 r8, 0x1111111111111111, "xmm0 survives a fault of ring 3"
    EXPECT64 r9, 0x2222222222222222, "and xmm15"
    EXPECT64 r10, 0x1111, "its upper half, too"
    EXPECT64 r11, 0x1111111111111111, "and rax"
    EXPECT64 r15, 0x2222222222222222, "and r15"
    EXPECT64 rbx, -1, "and the carry flag"
    EXPECT64 [seen], 3, "and the x87 registers compute"
    ret

.data
    .balign 4096
changed: mov eax, 0
    ret
turns:
    mov qword ptr [rip+turned], 0
1:  inc qword ptr [rip+turned]
    loop 1b
    mov rax, [rip+turned]
    ret
turned: .quad 0

.bss
    .balign 16
table: .skip 64
seen: .quad 0
