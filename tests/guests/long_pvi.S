# long_pvi - virtual interrupts in long mode: CR4.PVI in 64-bit and compatibility code,
# VIF and VIP in IRETQ, SYSCALL and SYSRET; CR4.VME changes nothing
.include "guest.inc"
.include "long.inc"

.set FLAG_VIF, 0x80000
.set FLAG_VIP, 0x100000
.set STAR, 0xC0000081
.set LSTAR, 0xC0000082
.set FMASK, 0xC0000084
# What the cases look at.
.set WATCHED, FLAG_T|FLAG_I|FLAG_IOPL|FLAG_NT|FLAG_VIF|FLAG_VIP

# USER64 code segment, flags, label: ring 3 from there on, with these flags.
.macro USER64 selector, flags, label
    mov [kernel_rsp], rsp
    push DATA3
    push offset user_stack_top
    push (\flags)|2
    push \selector
    push offset \label
    iretq
.endm
# USER_CASE flags, instruction: tries it there in 64-bit code, and notes the flags after it.
.macro USER_CASE flags, instruction:vararg
    USER64 CODE64_3, \flags, case_\@
case_\@:
    TRY64 \instruction
    pushfq
    pop qword ptr [flags_behind]
    int LEAVE_RING3
    and qword ptr [flags_behind], WATCHED
.endm
.macro USER_RUNS flags, after, fact, instruction:vararg
    USER_CASE \flags, \instruction
    EXPECT_NO_FAULT64 "\fact"
    EXPECT64 [flags_behind], \after, "its flags are these"
.endm
.macro USER_REFUSED flags, fact, instruction:vararg
    USER_CASE \flags, \instruction
    EXPECT_FAULT64 EXC_GP, 0, "\fact is general protection"
    EXPECT64 [flags_behind], \flags, "and changes no flag"
.endm
# CASE32: the same in compatibility code.
.macro CASE32 flags, instruction:vararg
    USER64 CODE3, \flags, case_\@
.code32
case_\@:
    push DATA3
    pop ds
    TRY \instruction
    pushfd
    pop dword ptr [flags_behind]
    int LEAVE_RING3
.code64
    and qword ptr [flags_behind], WATCHED
.endm

.macro CR4_SET bits
    mov rax, cr4
    and rax, ~(CR4_VME|CR4_PVI)
    or rax, \bits
    mov cr4, rax
.endm

long_main:
    mov eax, 1
    cpuid
    test edx, 2
    jnz 1f
    SAY64 "note this processor has no virtual interrupts (CPUID, VME)\n"
    ret
1:  CR4_SET 0
    call without
    CR4_SET CR4_VME
    call without
    CR4_SET CR4_PVI
    call virtual_flag
    call compatibility
    call system_calls
    call pending
    ret

without:
    USER_REFUSED FLAG_I, "without PVI cli", cli
    USER_REFUSED FLAG_I, "and sti", sti
    USER_RUNS FLAG_VIF|FLAG_VIP, FLAG_VIF|FLAG_VIP, "VIF and VIP together mean nothing without PVI", nop
    ret

virtual_flag:
    .irp iopl, 0, 1, 2
    .set at, \iopl<<12
    USER_RUNS at|FLAG_I|FLAG_VIF, at|FLAG_I, "cli clears VIF, not IF, at IOPL \iopl", cli
    USER_RUNS at|FLAG_VIP, at|FLAG_VIP, "and leaves VIP", cli
    USER_RUNS at, at|FLAG_VIF, "sti sets VIF, not IF, at IOPL \iopl", sti
    USER_RUNS at|FLAG_I, at|FLAG_I|FLAG_VIF, "with IF set too", sti
    USER_REFUSED at|FLAG_VIP, "sti with VIP set", sti
    .endr
    USER_RUNS 0x3000|FLAG_I|FLAG_VIF, 0x3000|FLAG_VIF, "at IOPL 3 cli clears IF, not VIF", cli
    USER_RUNS 0x3000|FLAG_VIP, 0x3000|FLAG_VIP|FLAG_I, "and sti sets it, whatever VIP is", sti
    mov qword ptr [image], FLAG_VIF|FLAG_VIP|FLAG_I|2
    USER_RUNS 0, 0, "popfq in ring 3 loads neither IF, VIF nor VIP", call pop_image
    mov qword ptr [image], 2
    USER_RUNS FLAG_VIF|FLAG_I, FLAG_VIF|FLAG_I, "in either direction", call pop_image
    mov rax, rsp                 # ring 0
    mov ecx, ss
    push rcx
    push rax
    push FLAG_VIF|FLAG_VIP|2
    push CODE64
    push offset 1f
    iretq
1:  pushfq
    pop rax
    and eax, FLAG_VIF|FLAG_VIP
    EXPECT64 rax, FLAG_VIF|FLAG_VIP, "iretq in ring 0 loads VIF and VIP, which mean nothing there"
    push 2
    popfq
    pushfq
    pop rax
    and eax, FLAG_VIF|FLAG_VIP
    EXPECT64 rax, FLAG_VIF|FLAG_VIP, "popfq in ring 0 does not load them"
    ret
pop_image:                       # the flags that lie where the return address comes
    mov rax, [rsp]
    mov rcx, [image]
    mov [rsp], rcx
    popfq
    jmp rax

compatibility:
    CASE32 FLAG_I|FLAG_VIF, cli
    EXPECT_NO_FAULT64 "cli in compatibility mode"
    EXPECT64 [flags_behind], FLAG_I, "clears VIF, not IF"
    CASE32 FLAG_I, sti
    EXPECT_NO_FAULT64 "sti in compatibility mode"
    EXPECT64 [flags_behind], FLAG_I|FLAG_VIF, "sets it"
    CASE32 FLAG_VIP, sti
    EXPECT_FAULT64 EXC_GP, 0, "with VIP set sti is general protection"
    EXPECT64 [flags_behind], FLAG_VIP, "and changes no flag"
    ret

system_calls:
    RDMSR64 EFER
    or eax, EFER_SCE
    xor edx, edx
    wrmsr
    WRMSR64 STAR, (CODE3<<48)|(CODE64<<32)
    WRMSR64_ADDRESS LSTAR, entry
    WRMSR64 FMASK, 0
    USER64 CODE64_3, FLAG_VIF, 1f
1:  syscall
entry:
    mov [flags_seen], r11
    pushfq
    pop qword ptr [flags_behind]
    mov r11, FLAG_VIP|2
    mov rcx, offset 1f
    sysretq
1:  pushfq
    pop qword ptr [flags_back]
    int LEAVE_RING3
    EXPECT64 [flags_seen], FLAG_VIF|2, "syscall shows VIF in r11"
    EXPECT64 [flags_behind], FLAG_VIF|2, "and leaves it"
    EXPECT64 [flags_back], FLAG_VIP|2, "sysret loads VIF and VIP"
    ret

# An interrupt that is pending and enabled: the handler takes VIP away.
pending:
    GATE64 EXC_GP, clear_vip
    mov qword ptr [taken], 0
    USER64 CODE64_3, FLAG_VIF|FLAG_VIP, entered
entered:
    pushfq
    pop qword ptr [flags_behind]
    int LEAVE_RING3
    EXPECT64 [taken], 1, "iretq to ring 3 with VIF and VIP set is general protection"
    EXPECT64 [taken_rip], entered, "before the first instruction there"
    EXPECT64 [taken_error], 0, "with error code 0"
    EXPECT64 [flags_behind], FLAG_VIF|2, "which goes on when VIP is clear"
    mov qword ptr [taken], 0
    mov [kernel_rsp], rsp
    mov rcx, offset returned
    mov r11, FLAG_VIF|FLAG_VIP|2
    sysretq
returned:
    int LEAVE_RING3
    EXPECT64 [taken], 1, "sysret with both is one too"
    EXPECT64 [taken_rip], returned, "at its target"
    mov qword ptr [taken], 0
    USER64 CODE64_3, 0x3000|FLAG_VIF|FLAG_VIP, 1f
1:  nop
    int LEAVE_RING3
    EXPECT64 [taken], 0, "but not at IOPL 3"
    ret
clear_vip:
    inc qword ptr [taken]
    pop qword ptr [taken_error]
    push rax
    mov rax, [rsp+8]
    mov [taken_rip], rax
    pop rax
    btr qword ptr [rsp+16], 20
    iretq

.bss
.align 8
flags_behind: .skip 8
flags_seen:   .skip 8
flags_back:   .skip 8
image:        .skip 8
taken:        .skip 8
taken_rip:    .skip 8
taken_error:  .skip 8
.text
