# long_faulting - page faults amid 64-bit instructions: nothing changed at the fault, and after it the same result
#
# Each instruction runs with a page missing or read-only, is begun again by the
# handler, and then runs with all pages there: registers, flags, vector registers
# and memory must be the same both times, and at the fault as before.
.include "guest.inc"
.include "long.inc"

.set VARIANTS, 7
.set BYTES, 0x2000               # of WINDOW that are tested: FRAME_A and FRAME_B
.set SAVED, 0x600000             # what the first run left there

long_main:
    call cases
    ret

# CASE "name", instruction: rbx, rsi, rbp, r12 and r13 hold the address that is
# tested, rdi one 64 bytes on, ecx 5, r9 1.
.macro CASE name, instruction:vararg
    mov r14d, VARIANTS
    TRIED "\name", \instruction
.endm
# ALIGNED: the same for what must not be misaligned.
.macro ALIGNED name, instruction:vararg
    mov r14d, 2
    TRIED "\name", \instruction
.endm
.macro TRIED name, instruction:vararg
    mov dword ptr [partial], 0
    mov r15d, offset code_\@
    call hold
    EXPECT64 rax, 0, "\name"
    jmp next_\@
code_\@:
    \instruction
    jmp qword ptr [case_end]
next_\@:
.endm
# REPEATED: it may have done a part of its work at the fault.
.macro REPEATED name, instruction:vararg
    mov r14d, VARIANTS
    mov dword ptr [partial], 1
    mov r15d, offset repeated_\@
    call hold
    EXPECT64 rax, 0, "\name"
    jmp next_\@
repeated_\@:
    \instruction
    jmp qword ptr [case_end]
next_\@:
.endm

# Variants: entry of the first page, of the second, offset of the address.
.data
.align 8
variants:
    .quad 0, FRAME_B+(P|W|U), 0x100           # missing
    .quad FRAME_A+P, FRAME_B+(P|W|U), 0x100   # read-only
    .quad FRAME_A+(P|W|U), 0, 0xFFC           # the second missing
    .quad 0, FRAME_B+(P|W|U), 0xFFC           # the first missing
    .quad FRAME_A+(P|W|U), FRAME_B+P, 0xFFC   # the second read-only
    .quad FRAME_A+P, FRAME_B+(P|W|U), 0xFFF   # the first read-only
    .quad 0, 0, 0xFFF                         # both missing
.text

# hold(r14: number of variants, r15: code): rax has a bit for each that is wrong.
hold:
    mov [code], r15
    mov [left], r14
    mov qword ptr [wrong], 0
    mov [driver_rsp], rsp
    GATE64 EXC_PF, missing
    xor r15d, r15d
1:  mov [variant], r15
    lea rax, [r15+r15*2]
    mov rcx, [variants+rax*8+16]
    mov rdx, WINDOW
    add rcx, rdx
    mov [target], rcx
    mov rcx, [variants+rax*8]
    mov rdx, [variants+rax*8+8]
    call map
    mov qword ptr [fault_count], 0
    mov qword ptr [fault_bad], 0
    mov edi, offset result
    call run
    mov esi, FRAME_A             # what it left in memory
    mov edi, SAVED
    mov ecx, BYTES / 8
    rep movsq
    mov rcx, FRAME_A+(P|W|U)
    mov rdx, FRAME_B+(P|W|U)
    call map
    mov edi, offset again
    call run
    cmp qword ptr [variant], 0   # the first must have faulted, once
    jne 2f
    cmp qword ptr [fault_count], 1
    je 2f
    mov byte ptr [fault_bad], 1
2:  mov rax, [fault_bad]
    mov esi, offset result
    mov edi, offset again
    mov ecx, 17
    repe cmpsq
    setne cl
    or al, cl
    mov esi, offset result+256   # without FIP and FDP: tag and status, registers
    mov edi, offset again+256
    mov ecx, 5
    repe cmpsb
    setne cl
    or al, cl
    mov esi, offset result+256+32
    mov edi, offset again+256+32
    mov ecx, (416-32) / 8
    repe cmpsq
    setne cl
    or al, cl
    mov esi, FRAME_A
    mov edi, SAVED
    mov ecx, BYTES / 8
    repe cmpsq
    setne cl
    or al, cl
    jz 3f
    mov rcx, [variant]
    bts [wrong], rcx
3:  mov r15, [variant]
    inc r15
    cmp r15, [left]
    jb 1b
    GATE64 EXC_PF, stubs64+16*EXC_PF
    mov rax, [wrong]
    ret

map:                             # rcx, rdx: entries; fills both frames anew
    mov [TABLE], rcx
    mov [TABLE+8], rdx
    mov rax, WINDOW
    invlpg [rax]
    invlpg [rax+0x1000]
    cld
    mov edi, FRAME_A
    mov ecx, BYTES / 8
    mov rax, 0x3FC1022304450667
    mov rdx, 0x0000000100020003
1:  stosq
    add rax, rdx
    loop 1b
    ret

run:                             # rdi: where to leave the registers
    mov [into], rdi
    push 0x77                    # what a POP finds
    mov [case_rsp], rsp
    mov qword ptr [case_end], offset 1f
    fninit
    fxrstor64 [vectors]
    fld1
    fldpi
    mov rbx, [target]
    mov rsi, rbx
    mov rbp, rbx
    mov r12, rbx
    mov r13, rbx
    lea rdi, [rbx+64]
    mov rax, 0x3FC1022304450667
    mov rcx, 5
    mov rdx, 0x7766554433221100
    mov r8, 0x8888888888888888
    mov r9, 1
    mov r10, 0xAAAAAAAAAAAAAAAA
    mov r11, 0xBBBBBBBBBBBBBBBB
    mov r14, 0xEEEEEEEEEEEEEEEE
    mov r15, 0xFFFFFFFFFFFFFFF0
    push FLAG_C|FLAG_S|2
    popfq
    push rax                     # all as it is now
    mov eax, offset before
    call save
    pop rax
    jmp qword ptr [code]
1:  mov [rsp_then], rsp
    mov rsp, [case_rsp]
    push rax
    mov rax, [into]
    call save
    pop rax
    mov rax, [rsp_then]
    mov rdi, [into]
    sub rax, [case_rsp]
    mov [rdi+4*8], rax
    pop rax
    cld
    ret

save:                            # to rax, flags and all; rax itself lies above the return address
    mov [rax+8], rcx
    mov [rax+16], rdx
    mov [rax+24], rbx
    mov qword ptr [rax+32], 0
    mov [rax+40], rbp
    mov [rax+48], rsi
    mov [rax+56], rdi
    .irp number, 8, 9, 10, 11, 12, 13, 14, 15
    mov [rax+8*\number], r\number
    .endr
    pushfq
    pop qword ptr [rax+128]
    fxsave64 [rax+256]
    mov rcx, [rsp+8]
    mov [rax], rcx
    mov rcx, [rax+8]
    push qword ptr [rax+128]
    popfq
    ret

missing:                         # compares, maps both pages, and begins again
    inc qword ptr [fault_count]
    push rax
    mov eax, offset at_fault
    call save
    pop rax
    push rax
    push rcx
    push rsi
    push rdi
    mov rcx, [rsp+56]
    and ecx, FLAGS_ARITH|FLAG_D
    mov [at_fault+128], rcx
    mov rcx, [before+128]
    and ecx, FLAGS_ARITH|FLAG_D
    mov [before+128], rcx
    mov rax, [rsp+40]            # behind rdi, rsi, rcx, rax, error code: rip
    cmp rax, [code]
    jne 1f
    cmp dword ptr [partial], 0
    jne 2f
    mov rax, [rsp+64]            # rsp
    cmp rax, [case_rsp]
    jne 1f
    cld
    mov esi, offset before
    mov edi, offset at_fault
    mov ecx, 17
    repe cmpsq
    jne 1f
    mov esi, offset before+256+32
    mov edi, offset at_fault+256+32
    mov ecx, (416-32) / 8
    repe cmpsq
    je 2f
1:  mov byte ptr [fault_bad], 1
2:  mov rax, FRAME_A+(P|W|U)
    mov [TABLE], rax
    mov rax, FRAME_B+(P|W|U)
    mov [TABLE+8], rax
    mov rax, WINDOW
    invlpg [rax]
    invlpg [rax+0x1000]
    pop rdi
    pop rsi
    pop rcx
    pop rax
    add rsp, 8
    iretq

cases:
    CASE "mov load", mov rax, [rbx]
    CASE "mov load over its own base", mov rbx, [rbx]
    CASE "mov load to r15", mov r15, [r12]
    CASE "mov store", mov [rbx], r11
    CASE "mov store of 16 bits", mov [r13], r10w
    CASE "mov store of ah", mov [rbx], ah
    CASE "mov store of r9b", mov [rbp], r9b
    CASE "mov store of an immediate", mov qword ptr [r13], -2
    CASE "mov by an index", mov [rbx+r9*2-2], r8
    CASE "movzx", movzx r10, word ptr [rbx]
    CASE "movsx", movsx r10d, byte ptr [r12]
    CASE "movsxd", movsxd rbx, dword ptr [rbx]
    CASE "add to a register", add r14, [rbx]
    CASE "add to memory", add [rbx], r14
    CASE "adc to memory", adc qword ptr [r12], 5
    CASE "sbb to a register", sbb rcx, [rbp]
    CASE "lock add", lock add [rbx], edx
    CASE "lock xadd", lock xadd [rbx], r15
    CASE "lock inc", lock inc qword ptr [rbx]
    CASE "neg", neg qword ptr [rbx]
    CASE "not", not dword ptr [r13]
    CASE "cmp", cmp [rbx], rdx
    CASE "test", test r8, [rbx]
    CASE "xchg", xchg [rbx], r10
    CASE "xchg with its own base", xchg [rbx], rbx
    CASE "cmpxchg that succeeds or not", lock cmpxchg [rbx], r11
    CASE "cmpxchg8b", lock cmpxchg8b [rbx]
    UNLESS_OFFERED HAS_CMPXCHG16B, 1f
    ALIGNED "cmpxchg16b", lock cmpxchg16b [rbx]
1:
    CASE "shl by cl", shl qword ptr [rbx], cl
    CASE "rcr", rcr qword ptr [r12], 3
    CASE "shld", shld [rbx], r11, cl
    CASE "bts", bts [rbx], r9
    CASE "btr with a negative offset", btr [rbx+8], r15
    CASE "bt", bt qword ptr [rbx], 9
    CASE "setc", setc [rbx]
    CASE "cmovc", cmovc r14, [rbx]
    CASE "cmovz", cmovz r14d, [rbx]
    CASE "mul", mul qword ptr [rbx]
    CASE "imul", imul r14, [rbx], 1000
    CASE "push of memory", push [rbx]
    CASE "pop to memory", pop [rbx]
    CASE "bsf", bsf r14, [rbx]
    UNLESS_OFFERED HAS_MOVBE, 2f
    CASE "movbe", movbe r14, [rbx]
2:
    CASE "movnti", movnti [rbx], r11
    REPEATED "movsq", movsq
    REPEATED "rep movsq", rep movsq
    REPEATED "rep movsb", rep movsb
    REPEATED "rep stosq", rep stosq
    REPEATED "stosq", stosq
    CASE "lodsq", lodsq
    REPEATED "repe cmpsq", repe cmpsq
    REPEATED "repne scasd", repne scasd
    CASE "xlat", xlatb
    CASE "movups load", movups xmm9, [rbx]
    CASE "movups store", movups [r12], xmm14
    ALIGNED "movaps store", movaps [rbx], xmm8
    ALIGNED "paddq", paddq xmm10, [r12]
    CASE "movsd", movsd xmm11, [rbx]
    CASE "movhps store", movhps [rbx], xmm3
    CASE "movq store", movq [rbx], xmm12
    CASE "cvtsi2sd", cvtsi2sd xmm8, qword ptr [rbx]
    CASE "addsd", addsd xmm15, [rbx]
    CASE "pinsrw", pinsrw xmm9, [rbx], 5
    CASE "fld", fld qword ptr [rbx]
    CASE "fstp", fstp qword ptr [rbx]
    CASE "fstp of 80 bits", fstp tbyte ptr [rbx]
    CASE "fild", fild qword ptr [r12]
    CASE "fistp", fistp qword ptr [r13]
    CASE "fadd", fadd dword ptr [rbx]
    CASE "fnstcw", fnstcw [rbx]
    CASE "stmxcsr", stmxcsr [rbx]
    CASE "sgdt", sgdt [rbx]
    CASE "fs:", mov rax, fs:[rbx]
    ret

.bss
.align 64
before:    .skip 1024
at_fault:  .skip 1024
result:    .skip 1024
again:     .skip 1024
.irp name, code, left, wrong, variant, target, into, case_end, case_rsp, rsp_then, driver_rsp
\name: .skip 8
.endr
fault_count: .skip 8
fault_bad: .skip 8
partial:   .skip 8
.data
.align 64
vectors:
    .quad 0x037F, 0, 0, 0x00001F80
    .skip 128
    .rept 32
    .quad 0x3FF4567890ABCDEF
    .endr
    .skip 96
.text
