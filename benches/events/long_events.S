# long_events - single events of 64-bit code, in ring 0 and ring 3
.include "guest.inc"
.include "long.inc"
.include "events.inc"

.set UNMAPPED, 0x40000000
.set RETURNING, 0x81             # its handler returns immediately
.set STAR, 0xC0000081
.set LSTAR, 0xC0000082
.set FMASK, 0xC0000084

# RING3 name, instructions: measures an event in ring 3.
.set HAS_PCID, 17
.set CR4_PCIDE, 0x20000
.set CR3_KEEPS, 0x8000000000000000

# SPACES name, first, second: switches to another space and back, with both values of CR3, in code
# that all spaces have in the upper half of the addresses, as kernels do.
.macro SPACES name, first, second
    mov rax, offset 8f
    add rax, TOP
    jmp rax
8:  EVENT "mov cr3, \first; mov cr3, \second"
    mov rax, offset 9f
    jmp rax
9:  PRINT \name
.endm

.macro RING3 name, instructions
    ENTER_RING3_64
    EVENT "\instructions"
    int LEAVE_RING3
    PRINT \name
.endm

long_main:
    GATE64 RETURNING, returning, 0xEE
    GATE64 EXC_PF, page_fault
    GATE64 EXC_UD, undefined
    WRMSR64 STAR, 0x001B003000000000
    WRMSR64_ADDRESS LSTAR, system_call
    WRMSR64 FMASK, 0x257FD5
    RDMSR64 EFER
    or eax, EFER_SCE
    SET_MSR EFER
    mov ebx, UNMAPPED
    xor eax, eax
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    RING0 "no-op", ""
    RING0 "cpuid", "xor eax, eax; cpuid"
    RING0 "int-iret", "int RETURNING"
    RING0 "swapgs-twice", "swapgs; swapgs"
    RING0 "cli-sti-cli", "cli; sti; cli"
    RING0 "pushf-popf", "pushfq; popfq"
    RING0 "rdmsr-gs-base", "mov ecx, GS_BASE; rdmsr"
    RING0 "wrmsr-gs-base", "mov ecx, KERNEL_GS_BASE; xor eax, eax; xor edx, edx; wrmsr"
    RING0 "mov-from-cr2", "mov rax, cr2"
    RING0 "clts", "clts"
    RING0 "lgdt", "sgdt [scratch]; lgdt [scratch]"
    RING0 "mov-to-cr2", "mov cr2, rax"
    RING0 "mov-to-cr0", "mov rax, cr0; mov cr0, rax"
    RING0 "mov-to-cr4", "mov rax, cr4; mov cr4, rax"
    RING0 "mov-from-dr7", "mov rax, dr7"
    RING0 "mov-to-dr7", "mov rax, dr7; mov dr7, rax"
    RING0 "smsw", "smsw eax"
    RING0 "lmsw", "smsw eax; lmsw ax"
    RING0 "wbinvd", "wbinvd"
    RING0 "lidt", "sidt [scratch]; lidt [scratch]"
    RING0 "sgdt", "sgdt [scratch]"
    RING0 "sldt", "sldt eax"
    RING0 "str", "str eax"
    RING0 "lldt", "xor eax, eax; lldt ax"
    RING0 "lar", "mov eax, DATA; lar ecx, eax"
    RING0 "lsl", "mov eax, DATA; lsl ecx, eax"
    RING0 "verw", "mov eax, DATA; verw ax"
    RING0 "pause", "pause"
    RING0 "mov-to-cr3", "mov rax, cr3; mov cr3, rax"
    PTE64 0, FRAME_A+7
    RING0 "invlpg", "mov rax, WINDOW; invlpg [rax]"
    RING0 "invlpg-store", "mov rax, WINDOW; invlpg [rax]; mov [rax], eax"
    RING0 "invlpg-large", "invlpg [scratch]"
    RING0 "in-80h", "in al, 0x80"
    RING0 "out-80h", "out 0x80, al"
    RING0 "in-21h", "in al, 0x21"
    RING0 "out-21h", "mov al, 0xFB; out 0x21, al"
    RING0 "in-61h", "in al, 0x61"
    RING0 "in-uart-lsr", "mov dx, UART_LSR; in al, dx"
    RING0 "out-uart-scr", "mov dx, UART_SCR; out dx, al"
    RING0 "in-pm-timer", "mov dx, PM_TIMER; in eax, dx"
    mov ebx, APIC
    APIC_ON
    RING0 "apic-tpr-read", "mov eax, [rbx+APIC_TPR]"
    RING0 "apic-tpr-write", "mov dword ptr [rbx+APIC_TPR], 0"
    RING0 "apic-timer-read", "mov eax, [rbx+APIC_CURRENT]"
    RING0 "apic-eoi", "mov dword ptr [rbx+APIC_EOI], 0"
    GATE64 APIC_VECTOR, apic_interrupt
    RING0 "apic-self-ipi", "mov dword ptr [rbx+APIC_ICR], APIC_SELF+APIC_VECTOR; sti; nop; cli"
    GATE64 APIC_VECTOR, apic_timer
    LATENESS "timer-late-spinning", "call wait_spinning"
    LATENESS "timer-late-hlt", "call wait_halted"
    mov eax, 1
    cpuid
    bt ecx, 21
    jnc 1f
    mov ecx, 0x1B
    rdmsr
    or eax, 0x400
    wrmsr
    mov ecx, 0x803               # QEMU 7.2 has the bit in CPUID, but not the registers
    rdmsr
    test al, al
    jz 1f
    GATE64 APIC_VECTOR, x2apic_interrupt
    RING0 "x2apic-tpr-read", "mov ecx, 0x808; rdmsr"
    RING0 "x2apic-tpr-write", "mov ecx, 0x808; xor eax, eax; xor edx, edx; wrmsr"
    RING0 "x2apic-timer-read", "mov ecx, 0x839; rdmsr"
    RING0 "x2apic-eoi", "mov ecx, 0x80B; xor eax, eax; xor edx, edx; wrmsr"
    RING0 "x2apic-self-ipi", "mov ecx, 0x83F; mov eax, APIC_VECTOR; xor edx, edx; wrmsr; sti; nop; cli"
    RING0 "tsc-deadline", "mov ecx, 0x6E0; mov eax, -1; mov edx, 0x7FFFFFFF; wrmsr"
1:  mov ebx, UNMAPPED
    RING0 "rep-movsb-64", "push rsi; push rdi; mov esi, offset scratch; mov edi, offset scratch+1024; mov ecx, 64; rep movsb; pop rdi; pop rsi"
    RING0 "page-fault-iret", "mov ebx, UNMAPPED; mov eax, [rbx]"
    RING0 "ud2-iret", "ud2"
    call two_spaces
    SPACES "switch-spaces", r8, r9
    SPACES "switch-spaces-flushing", r10, r11
    RING3 "syscall-sysret", "syscall"
    RING3 "ring3-int-iret", "int RETURNING"
    RING3 "ring3-page-fault-iret", "mov ebx, UNMAPPED; mov eax, [rbx]"
    RING3 "ring3-cpuid", "xor eax, eax; cpuid"
    RING3 "ring3-verw", "mov eax, DATA3; verw ax"
    RING3 "ring3-lsl", "mov eax, DATA3; lsl ecx, eax"
    RING3 "ring3-sgdt", "sgdt [scratch]"
    RING3 "ring3-pause", "pause"
    ret

# Values of CR3 for two process-context identifiers with the same tables: R8 and R9 keep the cached
# translations of the space, R10 and R11 drop them. Where the processor has no identifiers, all four
# are CR3.
two_spaces:
    mov rax, cr3
    mov r8, rax
    mov r9, rax
    mov r10, rax
    mov r11, rax
    bt qword ptr [cpuid_1_ecx], HAS_PCID
    jnc 1f
    mov rax, cr4
    or eax, CR4_PCIDE
    mov cr4, rax
    inc r10
    add r11, 2
    mov rax, CR3_KEEPS
    lea r8, [rax+r10]
    lea r9, [rax+r11]
1:  mov eax, 511                 # the pages of all spaces
2:  or qword ptr [PD_LOW+rax*8], G
    dec eax
    jns 2b
    mov rax, cr4
    or eax, CR4_PGE
    mov cr4, rax
    ret

returning:
    iretq
apic_interrupt:
    mov dword ptr [rbx+APIC_EOI], 0
    iretq
x2apic_interrupt:
    mov ecx, 0x80B
    xor eax, eax
    xor edx, edx
    wrmsr
    iretq
apic_timer:
    READ_COUNTER
    mov [timer_came], eax
    mov dword ptr [rbx+APIC_EOI], 0
    mov byte ptr [timer_is_in], 1
    iretq
wait_spinning:
    sti
1:  cmp byte ptr [timer_is_in], 0
    je 1b
    cli
    ret
wait_halted:
1:  sti
    hlt
    cli
    cmp byte ptr [timer_is_in], 0
    je 1b
    ret
page_fault:                      # skips the load of 2 bytes
    add rsp, 8
    add qword ptr [rsp], 2
    iretq
undefined:
    add qword ptr [rsp], 2
    iretq
system_call:
    sysretq

PRINTER puts64, put_hex32

put_hex32:
    push rax
    push rbx
    push rcx
    mov ebx, eax
    mov ecx, 8
1:  rol ebx, 4
    mov eax, ebx
    and eax, 15
    add eax, '0'
    cmp eax, '9'
    jbe 2f
    add eax, 'a' - '9' - 1
2:  call putc64
    loop 1b
    pop rcx
    pop rbx
    pop rax
    ret
