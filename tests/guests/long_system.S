# long_system - SYSCALL, SYSENTER, the bases of FS and GS, and what CPUID reports about long mode
.include "guest.inc"
.include "long.inc"

.set STAR, 0xC0000081
.set LSTAR, 0xC0000082
.set CSTAR, 0xC0000083
.set FMASK, 0xC0000084
.set TSC_AUX, 0xC0000103
.set SYSENTER_CS, 0x174
.set SYSENTER_ESP, 0x175
.set SYSENTER_EIP, 0x176
.set ENTRY, FREE64+0x10          # of SYSENTER: six descriptors
.set CR4_FSGSBASE, 0x10000

.macro SET_FLAGS value
    push \value
    popfq
.endm

long_main:
    call system_calls
    call bases
    call fast_entry
    call leaves
    ret

system_calls:
    WRMSR64 STAR, (CODE3<<48)|(CODE64<<32)
    WRMSR64_ADDRESS LSTAR, entry+TOP
    WRMSR64 FMASK, FLAG_I|FLAG_D|FLAG_C
    mov qword ptr [resume_at], 0
    TRY64 syscall
    EXPECT_FAULT64 EXC_UD, 0, "syscall is undefined while EFER.SCE is clear"
    TRY64 sysretq
    EXPECT_FAULT64 EXC_UD, 0, "sysret too"
    RDMSR64 EFER
    or eax, EFER_SCE
    xor edx, edx
    wrmsr
    ENTER_RING3_64
    SET_FLAGS FLAG_D|FLAG_C|FLAG_Z|2
    syscall
1:  int LEAVE_RING3
    cld
    EXPECT64 rcx, 1b, "syscall leaves rip in rcx"
    EXPECT64 [seen_rflags], FLAG_D|FLAG_I|FLAG_C|FLAG_Z|2, "and the flags in r11"
.ifndef QEMU                     # which clears all arithmetic flags
    EXPECT64 [seen_flags], FLAG_Z|2, "those in the mask are cleared"
.endif
    EXPECT64 [seen_rip], entry_here+TOP, "it goes to 64 bits of LSTAR"
    EXPECT64 [seen_cs], CODE64, "with cs of STAR"
    EXPECT64 [seen_ss], DATA64, "and ss behind it"
    EXPECT64 [seen_rsp], user_stack_top, "rsp stays"
    EXPECT64 [back_cs], CODE64_3, "sysretq goes back to STAR's cs and 16"
    EXPECT64 [back_ss], DATA3, "with ss of 8 more"
    EXPECT64 [back_flags], FLAG_D|FLAG_I|FLAG_C|FLAG_Z|2, "and the flags of r11"
    syscall                      # from ring 0 it works too; entry's sysret leads to ring 3
    int LEAVE_RING3
    EXPECT64 [back_cs], CODE64_3, "sysret leads to ring 3 wherever syscall was"
    USER_TRY64 sysretq
    EXPECT_FAULT64 EXC_GP, 0, "ring 3 does not sysret"
    mov rcx, offset in_32_bits   # SYSRET with 32 bits: compatibility mode
    mov [kernel_rsp], rsp
    cli
    mov r11, 2
    sysretd
.code32
in_32_bits:
    mov eax, cs
    mov edx, ss
    int LEAVE_RING3
.code64
    EXPECT64 rax, CODE3, "sysretd goes to compatibility mode by STAR's cs"
    EXPECT64 rdx, DATA3, "with ss behind it"
    mov [kernel_rsp], rsp
    mov r11, 2
    mov rcx, 0x123400000000
    mov eax, offset after_high
    add rcx, rax
    sysretd
.code32
after_high:
    int LEAVE_RING3
.code64
    EXPECT_RSP64 [kernel_rsp], "which takes 32 bits of rcx"
    WRMSR64_ADDRESS CSTAR, compatible_entry
    mov [kernel_rsp], rsp        # SYSCALL in compatibility mode: AMD's alone
    push DATA3
    push offset user_stack_top
    push 2
    push CODE3
    push offset calling
    iretq
.code32
calling:
    mov eax, DATA3
    mov ds, eax
    TRY syscall
    int LEAVE_RING3
compatible_entry:                # 64-bit code, reached on AMD
.code64
    mov qword ptr [resume_at], 0
    mov eax, 0xCA11
    mov rcx, offset calling_done
    sysretd
.code32
calling_done:
    int LEAVE_RING3
.code64
    cmp byte ptr [vendor_is_amd], 0
    jne 2f
.ifndef QEMU                     # which takes it for AMD's
    cmp dword ptr [fault_vector], EXC_UD
    EXPECT_FLAGS64 FLAG_Z, FLAG_Z, "syscall in compatibility mode: #UD, or CSTAR with AMD"
.endif
    jmp 3f
2:  EXPECT64 rax, 0xCA11, "syscall in compatibility mode: #UD, or CSTAR with AMD"
3:
.ifndef QEMU                     # SYSRET, exceptions: Intel's before, AMD's at the target
    cmp byte ptr [vendor_is_amd], 0
    jne 4f
    mov rcx, 0x0000800000000000
    mov r11, 2
    TRY64 sysretq
    EXPECT_FAULT64 EXC_GP, 0, "sysretq to an address that is not canonical faults in ring 0"
    EXPECT64 [fault_cs], CODE64, "itself"
4:
.endif
    ret
entry:
    mov [seen_rax], rax
    mov [seen_rsp], rsp
    mov [seen_rflags], r11
    lea rax, [rip]
entry_here:
    mov [seen_rip], rax
    mov rsp, offset ring0_stack_top
    pushfq
    pop qword ptr [seen_flags]
    mov eax, cs
    mov [seen_cs], rax
    mov eax, ss
    mov [seen_ss], rax
    mov [user_rcx], rcx
    mov rcx, offset back_in_ring3
    mov rsp, [seen_rsp]
    sysretq
back_in_ring3:
    pushfq
    pop qword ptr [back_flags]
    mov eax, cs
    mov [back_cs], rax
    mov eax, ss
    mov [back_ss], rax
    mov rcx, [user_rcx]
    mov rax, [seen_rax]
    jmp rcx

bases:
    WRMSR64 FS_BASE, 0xFFFF923456789ABC
    RDMSR64 FS_BASE
    EXPECT64 rax, 0xFFFF923456789ABC, "fs.base holds any canonical number"
    WRMSR64 GS_BASE, FRAME_A
    WRMSR64 KERNEL_GS_BASE, FRAME_B
    mov qword ptr [FRAME_A], 0xA
    mov qword ptr [FRAME_B], 0xB
    mov rax, gs:[0]
    EXPECT64 rax, 0xA, "gs.base is that of its MSR"
    swapgs
    mov rax, gs:[0]
    EXPECT64 rax, 0xB, "swapgs exchanges it"
    RDMSR64 KERNEL_GS_BASE
    EXPECT64 rax, FRAME_A, "with the other MSR"
    RDMSR64 GS_BASE
    EXPECT64 rax, FRAME_B, "as gs.base's shows"
    swapgs
    USER_TRY64 swapgs
    EXPECT_FAULT64 EXC_GP, 0, "ring 3 does not"
    mov eax, DATA3
    mov gs, eax
    RDMSR64 GS_BASE
    EXPECT64 rax, 0, "loading gs loads the descriptor's base, of 32 bits"
    RDMSR64 KERNEL_GS_BASE
    EXPECT64 rax, FRAME_B, "not the other"
    mov eax, 7
    xor ecx, ecx
    cpuid
    bt ebx, 0
    jnc 1f
    mov rax, cr4
    and rax, ~CR4_FSGSBASE
    mov cr4, rax
    TRY64 rdfsbase rax
    EXPECT_FAULT64 EXC_UD, 0, "rdfsbase is undefined without CR4.FSGSBASE"
    mov rax, cr4
    or rax, CR4_FSGSBASE
    mov cr4, rax
    mov r9, FRAME_A+TOP
    wrgsbase r9
    mov rax, gs:[0]
    EXPECT64 rax, 0xA, "wrgsbase sets the base"
    rdgsbase r10
    EXPECT64 r10, FRAME_A+TOP, "rdgsbase reads it"
    wrfsbase r9d
    rdfsbase rax
    EXPECT64 rax, (FRAME_A+TOP)&0xFFFFFFFF, "with 32 bits the rest becomes zero"
    rdgsbase r10d
    EXPECT64 r10, (FRAME_A+TOP)&0xFFFFFFFF, "and is not read"
    mov r9d, FRAME_B
    USER_TRY64 wrgsbase r9
    EXPECT_NO_FAULT64 "ring 3 may do it"
    RDMSR64 GS_BASE
    EXPECT64 rax, FRAME_B, "and does"
    mov r9, 0x0000800000000000
.ifndef QEMU
    TRY64 wrfsbase r9
    EXPECT_FAULT64 EXC_GP, 0, "a base must be canonical"
.endif
    mov rax, cr4
    and rax, ~CR4_FSGSBASE
    mov cr4, rax
1:  mov eax, DATA64
    mov fs, eax
    mov gs, eax
    WRMSR64 FS_BASE, 0xFFFF923456789ABC
    WRMSR64 GS_BASE, FRAME_A
    USER_TRY64 mov eax, gs
    EXPECT64 rax, 0, "a return to ring 3 drops ring 0's segment from gs"
.ifndef QEMU
    RDMSR64 GS_BASE
    EXPECT64 rax, FRAME_A, "but not its base"
    RDMSR64 FS_BASE
    EXPECT64 rax, 0xFFFF923456789ABC, "nor that of fs"
.endif
    WRMSR64 FS_BASE, 0
    WRMSR64 GS_BASE, 0
    ret

fast_entry:                      # AMD has no SYSENTER in long mode
    cmp byte ptr [vendor_is_amd], 0
    je 1f
.ifndef QEMU
    TRY64 sysenter
    EXPECT_FAULT64 EXC_UD, 0, "AMD has no sysenter in long mode"
.endif
    ret
1:  DESCRIPTOR64 ENTRY, 0x00AF9A000000FFFF
    DESCRIPTOR64 ENTRY+0x08, 0x00CF92000000FFFF
    DESCRIPTOR64 ENTRY+0x10, 0x00CFFA000000FFFF
    DESCRIPTOR64 ENTRY+0x18, 0x00CFF2000000FFFF
    DESCRIPTOR64 ENTRY+0x20, 0x00AFFA000000FFFF
    DESCRIPTOR64 ENTRY+0x28, 0x00CFF2000000FFFF
    WRMSR64 SYSENTER_CS, ENTRY
    WRMSR64_ADDRESS SYSENTER_ESP, ring0_stack_top+TOP
    WRMSR64_ADDRESS SYSENTER_EIP, entered+TOP
    ENTER_RING3_64
    mov rbx, rsp
    sysenter
2:  int LEAVE_RING3
    EXPECT64 [seen_rip], entered_here+TOP, "sysenter goes to 64 bits of its MSR"
    EXPECT64 [seen_rsp], ring0_stack_top+TOP, "with 64 bits of rsp"
    EXPECT64 [seen_cs], ENTRY, "cs is the MSR's"
    EXPECT64 [seen_ss], ENTRY+8, "ss the next"
    EXPECT64 [back_cs], ENTRY+0x20|3, "sysexit with REX.W goes to cs + 32"
    EXPECT64 [back_ss], ENTRY+0x28|3, "ss is the next"
    mov [kernel_rsp], rsp
    mov edx, offset exited
    mov ecx, offset user_stack_top
    sysexitd
.code32
exited:
    mov eax, cs
    mov edx, ss
    int LEAVE_RING3
.code64
    EXPECT64 rax, ENTRY+0x10|3, "without it to cs + 16 and compatibility mode"
    EXPECT64 rdx, ENTRY+0x18|3, "ss again the next"
    WRMSR64 SYSENTER_CS, 0
    TRY64 sysenter
    EXPECT_FAULT64 EXC_GP, 0, "without cs in its MSR sysenter faults"
    ret
entered:
    mov [seen_rsp], rsp
    lea rax, [rip]
entered_here:
    mov [seen_rip], rax
    mov eax, cs
    mov [seen_cs], rax
    mov eax, ss
    mov [seen_ss], rax
    mov rcx, rbx
    mov edx, offset 1f
    sysexitq
1:  mov eax, cs
    mov [back_cs], rax
    mov eax, ss
    mov [back_ss], rax
    jmp 2b

leaves:
    mov eax, 0x80000008
    cpuid
    movzx ecx, ah
    mov edx, 57
    cmp ecx, 48
    cmove ecx, edx
    EXPECT64 rcx, 57, "cpuid tells 48 or 57 bits of linear address"
    movzx eax, al
    cmp eax, 36
    EXPECT_FLAGS64 FLAG_C, 0, "and 36 or more of physical"
    mov eax, 0x80000001
    cpuid
    bt edx, 11
    EXPECT_FLAGS64 FLAG_C, FLAG_C, "syscall is offered"
    bt ecx, 0
    jnc 2f
    stc
    TRY64 lahf
    EXPECT_NO_FAULT64 "so is lahf in 64-bit mode"
    jmp 3f
2:  TRY64 lahf
    EXPECT_FAULT64 EXC_UD, 0, "lahf is not, and undefined"
3:
    mov rax, -1
    mov rbx, -1
    mov rcx, -1
    mov rdx, -1
    mov eax, 0
    cpuid
    or rax, rbx
    or rax, rcx
    or rax, rdx
    shr rax, 32
    EXPECT64 rax, 0, "cpuid clears the upper halves"
    mov rax, -1
    mov rdx, -1
    rdtsc
    or rax, rdx
    shr rax, 32
    EXPECT64 rax, 0, "so does rdtsc"
    mov rdx, -1
    mov ecx, EFER
    mov rax, -1
    rdmsr
    or rax, rdx
    shr rax, 32
    EXPECT64 rax, 0, "and rdmsr"
    mov eax, 0x80000001
    cpuid
    bt edx, 27
    jnc 1f
    WRMSR64 TSC_AUX, 0x12345678
    mov rcx, -1
    rdtscp
    EXPECT64 rcx, 0x12345678, "rdtscp gives TSC_AUX"
    mov r12, -1
    rdpid r12
    EXPECT64 r12, 0x12345678, "rdpid gives TSC_AUX"
    RDMSR64 TSC_AUX
    EXPECT64 rax, 0x12345678, "which its MSR holds"
1:  ret

.bss
.align 8
.irp name, seen_rax, seen_rsp, seen_rflags, seen_rip, seen_flags, seen_cs, seen_ss
\name: .skip 8
.endr
.irp name, back_flags, back_cs, back_ss, user_rcx
\name: .skip 8
.endr
.text
