# longmode - into long mode and out of it, its two sub-modes, and what is different in 64-bit mode
.include "guest.inc"
.include "long.inc"

.set BASED, FREE64               # data with a base
.set BOTH, FREE64+8              # code with L and D, which is reserved
.set CODE16, FREE64+16
.set LIMITED, FREE64+24            # 32-bit data that ends at 0FFFh
.set UNLIMITED, FREE64+32        # 64-bit code with a limit that legacy mode sees
.set BASED_AT, 0x10000

long_main:
    DESCRIPTOR64 BASED, 0x00CF92010000FFFF
    DESCRIPTOR64 BOTH, 0x00EF9A000000FFFF
    DESCRIPTOR64 CODE16, 0x008F9A000000FFFF
    DESCRIPTOR64 UNLIMITED, 0x00AF9A000000FFFF
    DESCRIPTOR64 LIMITED, 0x0040920000000FFF
    mov qword ptr [FRAME_A], 0x11111111
    mov qword ptr [FRAME_A+BASED_AT], 0x22222222
    call state
    call orders
    call defaults
    call rip_relative
    call segment_registers
    call transfers
    call compatibility
    call legacy
    ret

state:
    RDMSR64 EFER
    and eax, EFER_LME|EFER_LMA
    EXPECT64 rax, EFER_LME|EFER_LMA, "efer shows that long mode is enabled and active"
    mov rax, cr0
    shr rax, 31
    EXPECT64 rax, 1, "mov from cr0 fills 64 bits, the upper half with zeros"
    sgdt [buffer]
    EXPECT64 [buffer+2], gdt, "sgdt stores a base of 64 bits"
    mov ax, cs
    movzx eax, ax
    EXPECT64 rax, CODE64, "cs holds the segment with L set"
    ret

orders:                          # SDM volume 3, 10.8.5; MOV to control registers
.ifndef QEMU
    mov rax, cr4
    and eax, ~CR4_PAE
    TRY64 mov cr4, rax
    EXPECT_FAULT64 EXC_GP, 0, "long mode does not let go of CR4.PAE"
    RDMSR64 EFER
    mov rdx, rax
    shr rdx, 32
    and eax, ~EFER_LME
    TRY64 wrmsr
    EXPECT_FAULT64 EXC_GP, 0, "nor of EFER.LME while paging is on"
    RDMSR64 EFER
    and eax, EFER_LME|EFER_LMA
    EXPECT64 rax, EFER_LME|EFER_LMA, "both are as they were"
    RDMSR64 EFER
    mov edx, 0x80000000
    TRY64 wrmsr
    EXPECT_FAULT64 EXC_GP, 0, "efer's bit 63 is reserved"
    mov rax, cr0
    btr rax, 31
    TRY64 mov cr0, rax
    EXPECT_FAULT64 EXC_GP, 0, "paging is not turned off in 64-bit mode"
    mov rax, cr0
    bts rax, 32
    TRY64 mov cr0, rax
    EXPECT_FAULT64 EXC_GP, 0, "the upper half of cr0 is reserved"
    mov rax, cr4
    bts rax, 32
    TRY64 mov cr4, rax
    EXPECT_FAULT64 EXC_GP, 0, "and that of cr4"
.endif
    ret

.macro LOAD value=0xAAAAAAAABBBBBBBB
    mov rax, \value
    mov rcx, 0x1111111122222222
.endm
defaults:
    LOAD
    mov eax, ecx
    EXPECT64 rax, 0x22222222, "a 32-bit mov clears the upper half"
    LOAD
    mov ax, cx
    EXPECT64 rax, 0xAAAAAAAABBBB2222, "a 16-bit mov leaves 48 bits"
    LOAD
    mov al, cl
    EXPECT64 rax, 0xAAAAAAAABBBBBB22, "an 8-bit mov leaves 56 bits"
    LOAD
    mov ah, cl
    EXPECT64 rax, 0xAAAAAAAABBBB22BB, "so does one to ah"
    LOAD
    xor edx, edx
    cmovnz eax, ecx
    EXPECT64 rax, 0xBBBBBBBB, "a 32-bit cmov that does not move clears it too"
    LOAD
    cmovnz ax, cx
    EXPECT64 rax, 0xAAAAAAAABBBBBBBB, "a 16-bit one does not"
    LOAD
    .byte 0x90
    EXPECT64 rax, 0xAAAAAAAABBBBBBBB, "90h is no operation"
    LOAD
    .byte 0x87, 0xC0             # xchg eax, eax
    EXPECT64 rax, 0xBBBBBBBB, "87h c0h is a 32-bit exchange"
    LOAD
    xchg eax, ecx
    EXPECT64 rax, 0x22222222, "xchg clears both upper halves"
    EXPECT64 rcx, 0xBBBBBBBB, "that of the other too"
    LOAD
    mov cl, 32
    shl eax, cl
    EXPECT64 rax, 0xBBBBBBBB, "a 32-bit shift by 32 shifts by 0 and clears the upper half"
    LOAD
    inc eax
    EXPECT64 rax, 0xBBBBBBBC, "inc eax has its long form and clears it"
    LOAD
    movsx eax, al
    EXPECT64 rax, 0xFFFFFFBB, "a sign goes no further than the operand"
    LOAD
    movzx ax, cl
    EXPECT64 rax, 0xAAAAAAAABBBB0022, "movzx to 16 bits leaves the rest"
    mov rax, -2
    EXPECT64 rax, 0xFFFFFFFFFFFFFFFE, "an immediate of 32 bits is sign-extended"
    and rax, 0xFFFFFFFFFFFFFF00
    EXPECT64 rax, 0xFFFFFFFFFFFFFF00, "in arithmetic too"
    mov rcx, rsp
    push -3
    pop rax
    EXPECT64 rax, 0xFFFFFFFFFFFFFFFD, "push of an immediate pushes 64 bits"
    EXPECT_RSP64 rcx, "and pop takes as many"
    push 0x12345678
    add rsp, 8
    EXPECT_RSP64 rcx, "also with a 32-bit immediate"
    .byte 0x66, 0x68, 0x34, 0x12 # push word 1234h
    sub rcx, 2
    EXPECT_RSP64 rcx, "66h pushes 16 bits"
    pop ax
    movzx eax, ax
    EXPECT64 rax, 0x1234, "and pops them"
    pushfq
    pop rax
    shr rax, 32
    EXPECT64 rax, 0, "pushfq pushes zeros above"
    mov rcx, rsp
    pushfw
    sub rcx, 2
    EXPECT_RSP64 rcx, "pushfw pushes 16 bits"
    popfw
    LOAD
    add eax, ecx
    pushfq
    pop rax
    and eax, 0x80
    EXPECT64 rax, 0x80, "flags of a 32-bit sum are those of 32 bits"
    ret

rip_relative:
    lea rax, [rip]
1:  EXPECT64 rax, 1b, "rip is that of the next instruction"
    mov qword ptr [rip+buffer], 0x1234567
2:  EXPECT64 [buffer], 0x1234567, "also if an immediate follows the displacement"
    mov byte ptr [rip+buffer], 0x89
    EXPECT64 [buffer], 0x1234589, "of one byte"
    mov word ptr [rip+buffer], 0xABCD
    EXPECT64 [buffer], 0x123ABCD, "or of two"
    imul rax, [rip+buffer], 2
    EXPECT64 rax, 0x247579A, "imul reads there"
    cmp qword ptr [rip+buffer], 0x123ABCD
    EXPECT_FLAGS64 FLAGS_ARITH, FLAG_Z|FLAG_P, "cmp too"
    mov rax, offset 3f + TOP
    jmp rax
3:  lea rcx, [rip]
4:  lea edx, [eip+buffer]        # 67h, a 32-bit address
    lea rbx, [rip+buffer]
    mov eax, offset 5f
    jmp rax
5:  EXPECT64 rcx, 4b+TOP, "rip has 64 bits"
    EXPECT64 rbx, buffer+TOP, "so have addresses by it"
    EXPECT64 rdx, buffer+0x80000000, "unless 67h cuts them"
    ret

segment_registers:
    mov ax, BASED
    mov ds, ax
    mov es, ax
    mov fs, ax
    mov gs, ax
    EXPECT64 [FRAME_A], 0x11111111, "a base of ds is ignored"
.ifndef QEMU
    push es:[FRAME_A]
    pop rax
    EXPECT64 rax, 0x11111111, "es: is ignored"
.endif
    mov rax, fs:[FRAME_A]
    EXPECT64 rax, 0x22222222, "that of fs is not"
    mov rax, gs:[FRAME_A]
    EXPECT64 rax, 0x22222222, "nor that of gs"
    .byte 0x65                   # gs
    lea rax, [FRAME_A]
    EXPECT64 rax, FRAME_A, "but lea does not know them"
    .byte 0x64, 0x3E             # fs ds
    mov rax, [FRAME_A]
    EXPECT64 rax, 0x22222222, "a ds: behind fs: is a null prefix"
    mov ax, LIMITED
    mov ds, ax
    mov fs, ax
    TRY64 mov rax, [FRAME_A]
    EXPECT_NO_FAULT64 "limits are not checked"
    TRY64 mov rax, fs:[FRAME_A]
    EXPECT_NO_FAULT64 "not even those of fs"
    xor eax, eax
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    TRY64 mov rax, [FRAME_A]
    EXPECT_NO_FAULT64 "null segments can be used"
    TRY64 mov cs:[FRAME_A+8], rax
    EXPECT_NO_FAULT64 "cs: is ignored even for a store"
    xor eax, eax
    TRY64 mov ss, eax
    EXPECT_NO_FAULT64 "ss can be null at privilege level 0"
    push 5
    pop rax
    EXPECT64 rax, 5, "and then serves as a stack"
    mov ax, DATA64
    mov ds, ax
    mov es, ax
    mov ss, ax
    ret

transfers:
.ifndef QEMU                     # JMP, CALL: "If the segment descriptor ... L and D are both set"
    mov word ptr [pointer+4], BOTH
    mov dword ptr [pointer], offset 1f
    TRY64 jmp fword ptr [pointer]
1:  EXPECT_FAULT64 EXC_GP, BOTH, "code with L and D both set is refused"
.endif
    mov rcx, rsp
    mov dword ptr [pointer], offset called
    mov word ptr [pointer+4], CODE64
    call fword ptr [pointer]
    EXPECT_RSP64 rcx, "a far call pushes 32 bits each, a far return pops them"
    EXPECT64 rbx, 8, "eight bytes together"
    push CODE64
    push offset 2f
    retfq
    EXPECT64 rax, -1, "never reached"
2:  EXPECT_RSP64 rcx, "retfq pops 64 bits each"
    cmp byte ptr [vendor_is_amd], 0
    jne 4f                       # AMD's has no pointers with 64-bit offsets
    mov rax, offset 3f + TOP
    mov [pointer], rax
    mov word ptr [pointer+8], CODE64
    rex.w jmp fword ptr [pointer]
    EXPECT64 rax, -1, "never reached"
3:  lea rax, [rip]
4:  mov rcx, offset 5f
    jmp rcx
5:  mov rcx, rsp
    push CODE64
    push offset 6f
    pushfq
    pop rax
    mov rdx, rsp
    push DATA64
    push rcx
    push rax
    push CODE64
    push offset 6f
    iretq
6:  EXPECT_RSP64 rcx, "iretq takes rsp from its frame without a change of privilege"
    ret
called:
    mov rbx, rcx
    sub rbx, rsp
    retfd

compatibility:
    mov r8, 0x8888888888888888
    mov r15, 0xFFFFFFFFFFFFFFF1
    movq xmm9, r8
    mov rbp, rsp
    jmp fword ptr [to_compatibility]
.code32
in_compatibility:
    mov eax, DATA
    mov ds, eax
    mov ss, eax
    mov esp, ebp
    mov eax, 5
    .byte 0x48                   # dec eax, not a prefix
    EXPECT eax, 4, "in compatibility mode 48h is dec eax"
    mov ecx, EFER
    rdmsr
    and eax, EFER_LMA
    EXPECT eax, EFER_LMA, "long mode is still active"
    push 1
    mov eax, ebp
    sub eax, esp
    pop ecx
    EXPECT eax, 4, "a push pushes 32 bits"
    mov eax, BASED
    mov es, eax
    mov eax, es:[FRAME_A]
    EXPECT eax, 0x22222222, "bases count"
    mov ebx, 0xFFFFF000
    mov eax, [ebx+FRAME_A+0x1000]
    EXPECT eax, 0x11111111, "addresses wrap at 4 GiB"
.ifndef QEMU
    mov eax, LIMITED
    mov es, eax
    TRY mov eax, es:[FRAME_A]
    EXPECT_FAULT EXC_GP, 0, "so do limits"
    xor eax, eax
    mov es, eax
    TRY mov eax, es:[FRAME_A]
    EXPECT_FAULT EXC_GP, 0, "a null segment cannot be used"
.endif
    TRY ud2
    EXPECT_FAULT EXC_UD, 0, "an exception comes by the 64-bit table and goes back by iretq"
    EXPECT [fault_cs], CODE, "its frame holds the segment"
    mov eax, DATA
    mov es, eax
    TRY mov ss, [zero]
    EXPECT_FAULT EXC_GP, 0, "ss cannot be null here"
    jmp CODE16:in_16_bits
.code16
in_16_bits:
    mov eax, 0x12345678
    mov ax, 0x9ABC
    data32 jmp CODE:2f
.code32
2:  EXPECT eax, 0x12349ABC, "16-bit code runs in long mode too"
    jmp CODE64:1f
.code64
1:  mov eax, DATA64
    mov ss, eax
    EXPECT64 r8, 0x8888888888888888, "r8 lives through compatibility mode"
    EXPECT64 r15, 0xFFFFFFFFFFFFFFF1, "r15 too"
    movq rax, xmm9
    EXPECT64 rax, 0x8888888888888888, "and xmm9"
    pushfq                       # by iretq there, by a far return back
    pop rax
    mov rcx, rsp
    push DATA
    push rcx
    push rax
    push CODE
    push offset 2f
    iretq
.code32
2:  push CODE64
    push offset 3f
    retfd
.code64
3:  EXPECT_RSP64 rcx, "iretq leads there and a far return back"
    ret

legacy:
    mov rbp, rsp
    jmp fword ptr [to_leaving]
.code32
leaving:
    mov eax, DATA
    mov ss, eax
    mov esp, ebp
    mov eax, cr0
    btr eax, 31
    mov cr0, eax
    jmp 1f
1:  lidt [idt_pointer]
    mov ecx, EFER
    rdmsr
    push eax
    and eax, EFER_LME|EFER_LMA
    EXPECT eax, EFER_LME, "without paging long mode is enabled but not active"
    pop eax
    and eax, ~EFER_LME
    TRY wrmsr
    EXPECT_NO_FAULT "now LME may be cleared"
    rdmsr
    or eax, EFER_LME
    TRY wrmsr
    EXPECT_NO_FAULT "and set"
    TRY ud2
    EXPECT_FAULT EXC_UD, 0, "exceptions come by the 32-bit table again"
    mov eax, cr4
    and eax, ~CR4_PAE
    TRY mov cr4, eax
    EXPECT_NO_FAULT "so may PAE"
    mov eax, cr0
    bts eax, 31
    TRY mov cr0, eax
.ifndef QEMU                     # which only ignores it
    EXPECT_FAULT EXC_GP, 0, "but paging with LME wants PAE"
.endif
    mov eax, cr0
    shr eax, 31
    EXPECT eax, 0, "and stays off"
.ifndef QEMU                     # "If the current CS has the L-bit set"
    mov eax, cr4
    or eax, CR4_PAE
    mov cr4, eax
    mov dword ptr [try_eip], offset enabling
    mov dword ptr [resume_at], offset 2f
    mov dword ptr [fault_vector], NONE
    mov eax, cr0
    bts eax, 31
    jmp UNLIMITED:enabling
enabling:                        # 16-bit code there
    mov cr0, eax
    hlt
2:  EXPECT_FAULT EXC_GP, 0, "and a code segment without L"
    EXPECT [fault_cs], UNLIMITED, "L means nothing outside long mode"
.endif
    call enter_long_mode
    lidt [idt64_pointer]
    jmp CODE64:3f
.code64
3:  mov eax, DATA64
    mov ss, eax
    TRY64 ud2
    EXPECT_FAULT64 EXC_UD, 0, "long mode is entered again"
    RDMSR64 EFER
    and eax, EFER_LME|EFER_LMA
    EXPECT64 rax, EFER_LME|EFER_LMA, "as before"
    EXPECT_RSP64 rbp, "with the same stack"
    ret

.data
to_compatibility: .long in_compatibility
                  .word CODE
to_leaving:       .long leaving
                  .word CODE
zero:             .long 0
.bss
.align 16
buffer:           .skip 16
pointer:          .skip 16
