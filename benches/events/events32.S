# events32 - single events of 32-bit code: ring 0 with paging, and ring 3
.include "guest.inc"
.include "events.inc"

.set DIRECTORY, 0x400000
.set TABLE, 0x401000
.set WINDOW, 0x30000000         # a small page
.set UNMAPPED, 0x40000000
.set RETURNING, 0x81             # its handler returns immediately
.set BASED, FREE                 # a data segment with a base
.set FAST_CODE0, FREE + 8        # the four segments of SYSENTER, in its order
.set SYSENTER_CS, 0x174

# RING3 name, instructions: measures an event in ring 3.
.macro RING3 name, instructions
    ENTER_RING3
    EVENT "\instructions"
    int LEAVE_RING3
    PRINT \name
.endm

main:
    DESCRIPTOR BASED, scratch, 0xFFFFF, SEG_DATA|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_CODE0, 0, 0xFFFFF, SEG_CODE|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_CODE0+8, 0, 0xFFFFF, SEG_DATA|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_CODE0+16, 0, 0xFFFFF, SEG_CODE|SEG_RING3|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_CODE0+24, 0, 0xFFFFF, SEG_DATA|SEG_RING3|SEG_BIG|SEG_PAGES
    GATE RETURNING, returning, 0xEE
    GATE EXC_PF, page_fault
    GATE EXC_UD, undefined
    mov ecx, SYSENTER_CS
    xor edx, edx
    mov eax, FAST_CODE0
    wrmsr
    inc ecx
    mov eax, offset ring0_stack_top
    wrmsr
    inc ecx
    mov eax, offset fast_entry
    wrmsr
    call enter_paging
    RING0 "no-op", ""
    RING0 "cpuid", "xor eax, eax; cpuid"
    RING0 "int-iret", "int RETURNING"
    RING0 "far-call-ret", "call CODE:far_return"
    RING0 "mov-ds", "mov eax, DATA; mov ds, eax"
    RING0 "mov-fs-based", "mov eax, BASED; mov fs, eax"
    RING0 "push-pop-fs", "push fs; pop fs"
    RING0 "kernel-segments", "push ds; push es; push fs; mov eax, BASED; mov fs, eax; mov eax, DATA3; mov ds, eax; mov es, eax; pop fs; pop es; pop ds"
    RING0 "cli-sti-cli", "cli; sti; cli"
    RING0 "pushf-popf", "pushfd; popfd"
    RING0 "rdmsr", "mov ecx, SYSENTER_CS; rdmsr"
    RING0 "wrmsr", "mov ecx, SYSENTER_CS; mov eax, FAST_CODE0; xor edx, edx; wrmsr"
    RING0 "mov-from-cr0", "mov eax, cr0"
    RING0 "mov-to-cr3", "mov eax, cr3; mov cr3, eax"
    RING0 "clts", "clts"
    RING0 "mov-to-cr2", "mov cr2, eax"
    RING0 "mov-to-cr0", "mov eax, cr0; mov cr0, eax"
    RING0 "mov-to-cr4", "mov eax, cr4; mov cr4, eax"
    RING0 "mov-from-dr7", "mov eax, dr7"
    RING0 "mov-to-dr7", "mov eax, dr7; mov dr7, eax"
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
    RING0 "lgdt", "lgdt [gdt_pointer]"
    RING0 "invlpg", "invlpg [WINDOW]"
    RING0 "invlpg-store", "invlpg [WINDOW]; mov [WINDOW], eax"
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
    RING0 "apic-tpr-read", "mov eax, [ebx+APIC_TPR]"
    RING0 "apic-tpr-write", "mov dword ptr [ebx+APIC_TPR], 0"
    RING0 "apic-timer-read", "mov eax, [ebx+APIC_CURRENT]"
    RING0 "apic-eoi", "mov dword ptr [ebx+APIC_EOI], 0"
    GATE APIC_VECTOR, apic_interrupt
    RING0 "apic-self-ipi", "mov dword ptr [ebx+APIC_ICR], APIC_SELF+APIC_VECTOR; sti; nop; cli"
    RING0 "rep-movsb-64", "push esi; push edi; mov esi, offset scratch; mov edi, offset scratch+1024; mov ecx, 64; rep movsb; pop edi; pop esi"
    RING0 "page-fault-iret", "mov eax, [UNMAPPED]"
    RING0 "ud2-iret", "ud2"
    RING3 "ring3-int-iret", "int RETURNING"
    RING3 "ring3-page-fault-iret", "mov eax, [UNMAPPED]"
    RING3 "sysenter-sysexit", "mov ecx, esp; mov edx, offset 9f; sysenter; 9:"
    RING3 "ring3-cpuid", "xor eax, eax; cpuid"
    RING3 "ring3-verw", "mov eax, DATA3; verw ax"
    RING3 "ring3-lsl", "mov eax, DATA3; lsl ecx, eax"
    RING3 "ring3-sgdt", "sgdt [scratch]"
    RING3 "ring3-pause", "pause"
    ret

returning:
    iretd
apic_interrupt:
    mov dword ptr [ebx+APIC_EOI], 0
    iretd
page_fault:                      # skips the load of 5 bytes
    add esp, 4
    add dword ptr [esp], 5
    iretd
undefined:
    add dword ptr [esp], 2
    iretd
far_return:
    retf
fast_entry:
    sysexit

enter_paging:                    # maps the first 64 MiB for both rings
    cld
    mov edi, DIRECTORY
    mov ecx, 2048
    xor eax, eax
    rep stosd
    mov edi, DIRECTORY
    mov eax, 0x87
1:  mov [edi], eax
    add edi, 4
    add eax, 0x400000
    cmp eax, 64 << 20
    jb 1b
    mov dword ptr [TABLE], 0x500007
    mov dword ptr [DIRECTORY+(APIC>>22)*4], (APIC & ~0x3FFFFF) + 0x87
    mov dword ptr [DIRECTORY+(WINDOW>>20)], TABLE + 7
    mov eax, cr4
    or eax, CR4_PSE
    mov cr4, eax
    mov eax, DIRECTORY
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    ret

PRINTER puts, put_hex
