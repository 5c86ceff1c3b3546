# long_interrupts - the 64-bit interrupt table: frames, stacks, gates that are refused, returns
.include "guest.inc"
.include "long.inc"

.set RECORD, 0x40
.set OTHER, 0x41
.set IST_TOP, 0x700000
.ifdef QEMU                      # which tells gates by their place in the table
.set GATE_SIZE, 16
.else
.set GATE_SIZE, 8
.endif

.macro SET_FLAGS value
    push \value
    popfq
.endm

long_main:
    GATE64 RECORD, record
    mov rax, IST_TOP
    .irp number, 0, 1, 2, 3, 4, 5, 6
    mov [tss64+TSS64_IST1+8*\number], rax
    add rax, 0x10000
    .endr
    call frames
    call stacks
    call from_ring3
    call refused
    call returns
    call double_faults
    call compatibility
    ret

record:                          # notes all about its own start
    mov [seen_rax], rax
    mov [seen_rsp], rsp
    mov eax, ss
    mov [seen_ss], rax
    mov eax, cs
    mov [seen_cs], rax
    pushfq
    pop qword ptr [seen_flags]
    lea rax, [rip]
recorded_here:
    mov [seen_rip], rax
    mov rax, [rsp]
    mov [frame_rip], rax
    mov rax, [rsp+8]
    mov [frame_cs], rax
    mov rax, [rsp+16]
    mov [frame_flags], rax
    mov rax, [rsp+24]
    mov [frame_rsp], rax
    mov rax, [rsp+32]
    mov [frame_ss], rax
    inc dword ptr [records]
    mov rax, [seen_rax]
    iretq

frames:
    mov r12, rsp
    SET_FLAGS FLAG_C|FLAG_I|2
    int RECORD
1:  cli
    EXPECT64 [frame_rip], 1b, "a frame holds rip behind an INT"
    EXPECT64 [frame_cs], CODE64, "cs"
    EXPECT64 [frame_flags], FLAG_C|FLAG_I|2, "the flags"
    EXPECT_SAME64 [frame_rsp], r12, "rsp, without a change of privilege too"
    EXPECT64 [frame_ss], DATA64, "and ss"
    EXPECT64 [seen_ss], DATA64, "ss stays as it is"
    mov rax, [seen_flags]
    and eax, FLAG_I|FLAG_T|FLAG_C
    EXPECT64 rax, FLAG_C, "an interrupt gate clears IF and no arithmetic flag"
    GATE64 RECORD, record, 0x8F
    SET_FLAGS FLAG_I|FLAG_NT|2
    int RECORD
    SET_FLAGS 2
    mov rax, [seen_flags]
    and eax, FLAG_I|FLAG_NT
    EXPECT64 rax, FLAG_I, "a trap gate leaves IF set and clears NT"
    GATE64 RECORD, record
    mov edx, 15                  # from every offset of rsp
    xor ecx, ecx
2:  mov rsp, r12
    sub rsp, rdx
    mov rbx, rsp
    int RECORD
    mov rsp, r12
    mov rax, rbx
    and rax, -16
    sub rax, 40
    cmp rax, [seen_rsp]
    jne 3f
    cmp rbx, [frame_rsp]
    jne 3f
    inc ecx
3:  dec edx
    jns 2b
    EXPECT64 rcx, 16, "rsp is aligned to 16 bytes first, and saved as it was"
    mov rax, offset record+TOP
    mov [idt64+16*RECORD], ax
    shr rax, 16
    mov [idt64+16*RECORD+6], ax
    shr rax, 16
    mov [idt64+16*RECORD+8], eax
    int RECORD
    EXPECT64 [seen_rip], recorded_here+TOP, "a gate leads to 64 bits of address"
    GATE64 RECORD, record
    TRY64 ud2
    EXPECT_FAULT64 EXC_UD, 0, "#UD pushes no error code"
.ifndef QEMU
    mov rax, [fault_flags]
    and eax, FLAG_R
    EXPECT64 rax, FLAG_R, "but RF for a fault"
.endif
    mov eax, FREE64
    TRY64 mov fs, [selector_beyond]
    EXPECT_FAULT64 EXC_GP, 0x1238, "#GP pushes one"
    mov rax, [fault_frame]       # rax, vector, error code, rip...
    and eax, 15
    EXPECT64 rax, 0, "below an aligned frame of five"
    TRY64 int3
    EXPECT64 [fault_vector], EXC_BP, "INT3 comes by vector 3"
    ret

stacks:
    mov r12, rsp
    .irp number, 1, 2, 7
    GATE64 RECORD, record, 0x8E, \number
    int RECORD
    EXPECT64 [seen_rsp], IST_TOP+0x10000*(\number-1)-40, "stack \number of the table serves"
    .endr
    EXPECT_SAME64 [frame_rsp], r12, "the frame holds the old one"
.ifndef QEMU                     # 6.14.4: null only with another CPL
    EXPECT64 [seen_ss], DATA64, "ss stays at the same privilege"
.endif
    mov qword ptr [tss64+TSS64_IST1], IST_TOP-5
    GATE64 RECORD, record, 0x8E, 1
    int RECORD
    EXPECT64 [seen_rsp], IST_TOP-16-40, "it is aligned too"
    mov qword ptr [tss64+TSS64_IST1], IST_TOP
    int RECORD
    int RECORD
    EXPECT64 [seen_rsp], IST_TOP-40, "and begins at its top each time"
    GATE64 RECORD, record
    ret

from_ring3:
    GATE64 RECORD, record, 0xEE
    GATE64 OTHER, record, 0xEE, 2
    mov qword ptr [tss64+TSS64_RSP0], offset ring0_stack_top-3
    ENTER_RING3_64
    int RECORD
    int LEAVE_RING3
    EXPECT64 [seen_ss], 0, "from ring 3 ss becomes null"
    mov rax, offset ring0_stack_top-16
    and rax, -16
    sub rax, 40
    EXPECT_SAME64 [seen_rsp], rax, "and rsp that of the task segment, aligned"
    EXPECT64 [frame_ss], DATA3, "the frame holds ring 3's ss"
    EXPECT64 [frame_cs], CODE64_3, "and cs"
    EXPECT64 [frame_rsp], user_stack_top, "and rsp"
    mov qword ptr [tss64+TSS64_RSP0], offset ring0_stack_top
    ENTER_RING3_64
    int OTHER
    int LEAVE_RING3
    EXPECT64 [seen_rsp], IST_TOP+0x10000-40, "a numbered stack goes before that"
    USER_TRY64 int OTHER+1
    EXPECT_FAULT64 EXC_GP, (OTHER+1)*GATE_SIZE+2, "ring 3 does not reach a gate of privilege 0"
    USER_TRY64 int3
    EXPECT_FAULT64 EXC_GP, 3*GATE_SIZE+2, "not even by INT3"
    USER_TRY64 cli
    EXPECT_FAULT64 EXC_GP, 0, "and may not CLI"
    USER_TRY64 mov cr8, rax
    EXPECT_FAULT64 EXC_GP, 0, "nor write cr8"
    USER_TRY64 iretq
    EXPECT64 [fault_vector], EXC_GP, "nor return to what its stack holds"
    GATE64 RECORD, record
    ret

.macro REFUSED fact, vector, error, attributes=0x8E, selector=CODE64
    GATE64 OTHER, record, \attributes, 0, \selector
    TRY64 int OTHER
    EXPECT_FAULT64 \vector, \error, "\fact"
.endm
refused:
    REFUSED "a gate that is not present", EXC_NP, OTHER*GATE_SIZE+2, 0x0E
    REFUSED "a 16-bit interrupt gate", EXC_GP, OTHER*GATE_SIZE+2, 0x86
    REFUSED "a 16-bit trap gate", EXC_GP, OTHER*GATE_SIZE+2, 0x87
    REFUSED "a task gate", EXC_GP, OTHER*GATE_SIZE+2, 0x85
    REFUSED "a call gate", EXC_GP, OTHER*GATE_SIZE+2, 0x8C
    REFUSED "no system descriptor", EXC_GP, OTHER*GATE_SIZE+2, 0x9E
    REFUSED "a null selector", EXC_GP, 0, 0x8E, 0
    REFUSED "a data segment", EXC_GP, DATA64, 0x8E, DATA64
    REFUSED "code of compatibility mode", EXC_GP, CODE, 0x8E, CODE
    REFUSED "code of ring 3", EXC_GP, CODE64_3&0xFFF8, 0x8E, CODE64_3
    REFUSED "a selector beyond the table", EXC_GP, 0x1238, 0x8E, 0x1238
    DESCRIPTOR64 FREE64, 0x00AF1A000000FFFF
    REFUSED "a segment that is not present", EXC_NP, FREE64, 0x8E, FREE64
    GATE64 OTHER, record
    mov word ptr [idt64_pointer], OTHER*16+14
    lidt [idt64_pointer]
    TRY64 int OTHER
    EXPECT_FAULT64 EXC_GP, OTHER*GATE_SIZE+2, "a gate of which the last byte is beyond the limit"
    mov word ptr [idt64_pointer], 256*16-1
    lidt [idt64_pointer]
.ifndef QEMU                     # INT n, 64-bit mode exceptions
    mov dword ptr [idt64+16*OTHER+8], 0x8000
    TRY64 int OTHER
    EXPECT_FAULT64 EXC_GP, 0, "a gate to an address that is not canonical"
.endif
    GATE64 OTHER, record
    ret

# RETURN ss, rsp, flags, cs, rip: an IRETQ to there, tried
.macro RETURN ss, stack, flags, cs, rip
    mov rbp, rsp
    push \ss
    push \stack
    push \flags
    push \cs
    push offset \rip
    mov r12, rsp
    TRY64 iretq
    mov rsp, rbp
.endm
returns:
    mov rax, rsp
    RETURN DATA64, rax, FLAG_NT|2, CODE64, 1f
1:  pushfq
    mov rcx, [rsp]
    and rcx, FLAG_NT
    EXPECT64 rcx, FLAG_NT, "iretq sets NT"
    popfq
    RETURN DATA64, rax, 2, CODE64, 2f
2:  EXPECT_FAULT64 EXC_GP, 0, "with NT iretq is refused in long mode"
    SET_FLAGS 2
    RETURN 0, rax, 2, CODE64, 3f
3:  EXPECT_NO_FAULT64 "iretq takes a null ss at privilege 0"
    mov ecx, ss
    EXPECT64 rcx, 0, "which is null then"
    mov ecx, DATA64
    mov ss, ecx
    RETURN 3, rax, 2, CODE64_3, 4f
4:  EXPECT_FAULT64 EXC_GP, 0, "but not for ring 3"
    EXPECT_SAME64 [fault_esp], r12, "and has popped nothing"
.ifndef QEMU
    RETURN 0, rax, 2, CODE, 5f
5:  EXPECT_FAULT64 EXC_GP, 0, "nor for compatibility mode"
.endif
    RETURN DATA64, rax, 2, 0, 6f
6:  EXPECT_FAULT64 EXC_GP, 0, "a null cs"
    RETURN DATA64, rax, 2, DATA64, 7f
7:  EXPECT_FAULT64 EXC_GP, DATA64, "a cs with data"
    RETURN DATA64, rax, 2, CODE64_3, 8f
8:  EXPECT_FAULT64 EXC_GP, DATA64, "an ss of another privilege"
    mov rbp, rsp                 # 32-bit: five doublewords
    sub rsp, 20
    mov dword ptr [rsp], offset 9f
    mov dword ptr [rsp+4], CODE64
    mov dword ptr [rsp+8], 2
    mov [rsp+12], ebp
    mov dword ptr [rsp+16], DATA64
    iretd
9:  EXPECT_RSP64 rbp, "iretd pops five doublewords"
    ret

double_faults:
    GATE64 EXC_DF, stubs64+16*EXC_DF, 0x8E, 3
    mov rbp, rsp
    mov rbx, WINDOW+0x8000       # not present
    mov rsp, rbx
    mov rax, 0x5555
    TRY64 ud2
    mov rsp, rbp
    EXPECT_FAULT64 EXC_DF, 0, "an exception without a stack becomes #DF, on its own"
    EXPECT_SAME64 [fault_esp], rbx, "whose frame holds the bad rsp"
    GATE64 EXC_PF, stubs64+16*EXC_PF, 0x8E, 4
    mov rsp, rbx
    TRY64 push rax
    mov rsp, rbp
    EXPECT_FAULT64 EXC_PF, PF_WRITE, "with a stack of its own #PF is no #DF"
    EXPECT64 [fault_cr2], WINDOW+0x7FF8, "cr2 tells the push"
    mov rsp, rbx
    TRY64 ud2
    mov rsp, rbp
    EXPECT64 [fault_vector], EXC_PF, "then the lack of a stack comes as #PF"
    EXPECT64 [fault_cr2], WINDOW+0x7FF8, "with the address of the first push"
    EXPECT_SAME64 [fault_eip], [try_eip], "at the instruction"
    GATE64 EXC_PF, stubs64+16*EXC_PF
.ifndef QEMU                     # 6.13: EXT for an event delivered
    GATE64 EXC_SS, stubs64+16*EXC_SS, 0x8E, 4
    mov rbx, 0x0000900000000000
    mov rsp, rbx
    TRY64 ud2
    mov rsp, rbp
    EXPECT_FAULT64 EXC_SS, 1, "a stack that is not canonical comes as #SS with EXT"
    GATE64 EXC_SS, stubs64+16*EXC_SS
    mov rsp, rbx
    TRY64 ud2
    mov rsp, rbp
    EXPECT_FAULT64 EXC_DF, 0, "and as #DF if that has no other"
.endif
    GATE64 OTHER, record, 0x0E
    GATE64 EXC_NP, record, 0x0E
    TRY64 int OTHER
    EXPECT_FAULT64 EXC_DF, 0, "#NP whose gate is not present"
    GATE64 EXC_NP, stubs64+16*EXC_NP
    ret

compatibility:                   # ring 3 and ring 0 in 32-bit code
    GATE64 RECORD, record, 0xEE
    mov [kernel_rsp], rsp
    push DATA3
    mov rax, 0x1234567800000000 + 0x600000
    push rax
    pushfq
    push CODE3
    push offset in_ring3
    iretq
.code32
in_ring3:
    mov eax, esp
    int RECORD
    mov ecx, cs
    push 0x77                    # a stack of 32-bit words
    pop edx
    int LEAVE_RING3
.code64
    EXPECT64 rax, 0x600000, "iretq goes to 32-bit code of ring 3, with 32 bits of rsp"
    EXPECT64 [frame_cs], CODE3, "whose INT has a 64-bit frame"
    EXPECT64 [frame_rsp], 0x600000, "with its esp"
    EXPECT64 [frame_ss], DATA3, "and ss"
    EXPECT64 [seen_cs], CODE64, "64-bit code handles it"
    EXPECT64 [seen_ss], 0, "with a null ss"
    EXPECT64 rcx, CODE3, "and iretq goes back there"
    GATE64 RECORD, record
    ret

.data
selector_beyond: .word 0x1238
.bss
.align 8
.irp name, seen_rax, seen_rsp, seen_ss, seen_cs, seen_flags, seen_rip, frame_rip
\name: .skip 8
.endr
.irp name, frame_cs, frame_flags, frame_rsp, frame_ss, records
\name: .skip 8
.endr
.text
