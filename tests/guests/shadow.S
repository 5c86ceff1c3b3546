# shadow - where interrupts are held off for one instruction, and where they come again
#
# Interrupts are sent by the local APIC to its own processor: one waits as soon as its
# command is written. All notes are the frames' EIPs.
.include "guest.inc"

.set APIC, 0xFEE00000
.set APIC_ID, APIC+0x20
.set APIC_EOI, APIC+0xB0
.set APIC_SPURIOUS, APIC+0xF0
.set APIC_REQUESTED, APIC+0x200
.set APIC_COMMAND, APIC+0x300
.set APIC_COMMAND_HIGH, APIC+0x310
.set APIC_LVT_TIMER, APIC+0x320
.set APIC_INITIAL, APIC+0x380
.set APIC_DIVIDE, APIC+0x3E0
.set MASKED, 0x10000
.set PERIODIC, 0x20000
.set TO_SELF, 0x40000
.set VECTOR, 0x61

.set DIRECTORY, 0x400000         # physical
.set LOW_TABLE, 0x401000
.set LOW_TABLE2, 0x402000
.set APIC_TABLE, 0x403000
.set WINDOW, 0x600000            # a page that is mapped and unmapped
.set WINDOW_PTE, LOW_TABLE2+((WINDOW>>12)&0x3FF)*4
.set P, 1
.set W, 2

# An interrupt waits, with IF clear.
.macro REQUEST
    cli
    mov dword ptr [APIC_COMMAND], TO_SELF|VECTOR
    mov dword ptr [taken_at], 0
.endm
.macro TAKEN_AT label, fact
    cli
    EXPECT [taken_at], "offset \label", "\fact"
.endm

main:
    GATE VECTOR, interrupt
    mov dword ptr [APIC_SPURIOUS], 0x1FF
    mov eax, [APIC_ID]
    mov [APIC_COMMAND_HIGH], eax
    call start_paging
    fninit
    call after_sti
    call after_stack_segment
    call across_faults
    call repeated
    ret

start_paging:
    mov edi, DIRECTORY
    mov ecx, 1024
    xor eax, eax
    rep stosd
    mov edi, LOW_TABLE
    mov eax, P|W
    mov ecx, 2048
1:  stosd
    add eax, 4096
    loop 1b
    mov edi, APIC_TABLE
    mov ecx, 1024
    mov eax, 0xFEC00000|P|W|0x18
1:  stosd
    add eax, 4096
    loop 1b
    mov dword ptr [DIRECTORY], LOW_TABLE|P|W
    mov dword ptr [DIRECTORY+4], LOW_TABLE2|P|W
    mov dword ptr [DIRECTORY+(0xFEC00000>>22)*4], APIC_TABLE|P|W
    mov eax, DIRECTORY
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG|CR0_NE
    mov cr0, eax
    ret

interrupt:
    push eax
    mov eax, [esp+4]
    mov [taken_at], eax
    mov eax, [esp+12]
    mov [taken_flags], eax
    mov eax, [clock]
    mov [taken_time], eax
    inc dword ptr [clock]
    mov eax, [esp+4]
    cmp eax, [taken_wrong]
    jne 1f
    inc dword ptr [wrong]
1:  cmp eax, [taken_inside]
    jne 2f
    cmp ecx, COPY_BYTES          # before the first iteration?
    je 2f
    inc dword ptr [inside]
    mov eax, [taken_flags]
    mov [inside_flags], eax
    lea eax, [esi+ecx]
    sub eax, COPY_FROM+COPY_BYTES
    or [inside_wrong], eax
    lea eax, [edi+ecx]
    sub eax, COPY_TO+COPY_BYTES
    or [inside_wrong], eax
2:
    mov dword ptr [APIC_EOI], 0
    pop eax
    iretd

# AFTER_STI "instruction", "fact": the instruction stands in the shadow.
.macro AFTER_STI fact, instruction:vararg
    REQUEST
    sti
    \instruction
sti_\@:
    nop
    TAKEN_AT sti_\@, "\fact"
.endm
after_sti:
    AFTER_STI "sti: nop", nop
    AFTER_STI "sti: a register instruction", add eax, 1
    AFTER_STI "sti: a load", mov eax, [scratch]
    AFTER_STI "sti: a push", push eax
    AFTER_STI "sti: a pop", pop eax
    mov eax, cr3
    mov cr3, eax
    AFTER_STI "sti: a load whose translation is not cached", mov eax, [WINDOW+64]
    AFTER_STI "sti: a load that is split across pages", mov eax, [WINDOW-2]
    AFTER_STI "sti: a store", mov [WINDOW], eax
    AFTER_STI "sti: a device's register read", mov eax, [APIC_DIVIDE]
    AFTER_STI "sti: and written", mov dword ptr [APIC_DIVIDE], 0x0B
    AFTER_STI "sti: a port", in al, 0x80
    AFTER_STI "sti: an x87 instruction", fld1
    AFTER_STI "sti: an x87 store", fstp dword ptr [scratch]
    AFTER_STI "sti: cpuid", cpuid
    mov ebx, cr3
    AFTER_STI "sti: mov to cr3", mov cr3, ebx
    AFTER_STI "sti: lock xadd", lock xadd [scratch], eax
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
    AFTER_STI "sti: an SSE instruction", movups xmm0, [scratch]
    REQUEST
    sti
    call h1
    ud2
h1: nop
    TAKEN_AT h1, "sti: a call, at its target"
    pop eax
    REQUEST
    sti
    jmp h2
    ud2
h2: nop
    TAKEN_AT h2, "sti: a jump"
    REQUEST
    push offset h3
    sti
    ret
h3: nop
    TAKEN_AT h3, "sti: a return"
    REQUEST
    sti
    hlt
h4: TAKEN_AT h4, "sti: hlt, which does not sleep"
    REQUEST
    pushfd
    push CODE
    push offset h5
    or dword ptr [esp+8], FLAG_I
    sti
    iretd
h5: nop
    TAKEN_AT h5, "sti: iret, at its target"
    REQUEST
    pushfd
    push CODE
    push offset h6
    sti
    iretd                        # to IF clear
h6: nop
    nop
    EXPECT [taken_at], 0, "iret that clears IF in the shadow: it waits on"
    sti
    nop
h7: TAKEN_AT h7, "until the next sti"
    REQUEST
    sti
    cli
    nop
    EXPECT [taken_at], 0, "sti and cli: it waits on"
    sti
    sti
h8: nop
    TAKEN_AT h8, "two in a row hold it off once"
    REQUEST
    pushfd
    or dword ptr [esp], FLAG_I
    popfd
h9: nop
    TAKEN_AT h9, "popf casts no shadow"
    ret

# The local APIC's timer, every 50 microseconds or so.
.macro TIMER_ON
    mov dword ptr [APIC_DIVIDE], 0x0B
    mov dword ptr [APIC_LVT_TIMER], PERIODIC|VECTOR
    mov dword ptr [APIC_INITIAL], 50000
.endm
.macro TIMER_OFF
    cli
    mov dword ptr [APIC_LVT_TIMER], MASKED|VECTOR
    mov dword ptr [APIC_INITIAL], 0
    sti
    nop
    nop
    cli
.endm
after_stack_segment:
    mov dword ptr [taken_wrong], offset s2
    mov dword ptr [clock], 0
    mov eax, ss
    TIMER_ON
    sti
s1: mov ss, ax
s2: nop
    cmp dword ptr [clock], 300
    jb s1
    TIMER_OFF
    EXPECT [wrong], 0, "of 300 interrupts none falls between mov ss and the next instruction"
    mov dword ptr [taken_wrong], offset s4
    mov dword ptr [clock], 0
    TIMER_ON
    sti
s3: push ss
    pop ss
s4: nop
    cmp dword ptr [clock], 300
    jb s3
    TIMER_OFF
    EXPECT [wrong], 0, "nor behind pop ss"
    mov dword ptr [taken_wrong], 0
    mov [far_pointer], esp
    mov word ptr [far_pointer+4], ss
    mov dword ptr [clock], 0
    mov eax, ss
    TIMER_ON
    sti
s5: mov ss, ax
    mov ss, ax
    mov ss, ax
    mov ss, ax
    lss esp, [far_pointer]
    cmp dword ptr [clock], 20
    jb s5
    TIMER_OFF
    cmp dword ptr [clock], 20
    EXPECT_FLAGS FLAG_C, 0, "loads of ss in a row let interrupts in"
    ret

# A page fault in the shadow: it comes first, and the shadow ends with it.
across_faults:
    GATE EXC_PF, page_fault
    REQUEST
    mov dword ptr [WINDOW_PTE], 0
    invlpg [WINDOW]
    mov dword ptr [clock], 1
    sti
f1: mov eax, [WINDOW]
f2: nop
    cli
    EXPECT [fault_eip], "offset f1", "a page fault in the shadow of sti"
    EXPECT [fault_time], 1, "comes before the interrupt"
    mov eax, [fault_flags]
    and eax, FLAG_I
    EXPECT eax, FLAG_I, "and its frame shows interrupts on"
.ifndef QEMU
    EXPECT [taken_at], "offset f1", "the shadow does not come back with its iret"
.endif
    EXPECT [taken_time], 2, "once the handler has returned, the interrupt comes"
    REQUEST
    mov dword ptr [clock], 1
    mov dword ptr [resume_at], offset f4
    sti
f3: ud2
f4: nop
    nop
    cli
    EXPECT [fault_eip], "offset f3", "an undefined instruction in the shadow faults"
    EXPECT [taken_time], 1, "and then the interrupt comes"
    REQUEST
    mov al, [code_byte]
    sti
    mov [code_byte], al
code_byte:
    nop
    nop
    TAKEN_AT code_byte, "a store to the page that runs, in the shadow"
    ret
page_fault:
    push eax
    mov eax, [esp+8]
    mov [fault_eip], eax
    mov eax, [esp+16]
    mov [fault_flags], eax
    mov eax, [clock]
    mov [fault_time], eax
    inc dword ptr [clock]
    mov dword ptr [WINDOW_PTE], WINDOW|P|W
    invlpg [WINDOW]
    pop eax
    add esp, 4
    iretd

# A long repeated instruction is interrupted between iterations.
.set COPY_FROM, 0x500000
.set COPY_TO, 0x580000
.set COPY_BYTES, 0x80000
repeated:
    mov dword ptr [inside], 0
    mov dword ptr [inside_wrong], 0
    mov dword ptr [taken_inside], offset r1
    mov ebp, 2000                # tries, until 10 came inside
    TIMER_ON
    sti
1:  mov esi, COPY_FROM
    mov edi, COPY_TO
    mov ecx, COPY_BYTES
r1: rep movsb
    mov edx, esi
    sub edx, edi
    or [not_behind], ecx
    cmp edx, COPY_FROM-COPY_TO
    jne 2f
    dec ebp
    jz 2f
    cmp dword ptr [inside], 10
    jb 1b
2:  TIMER_OFF
    cmp dword ptr [inside], 10
    EXPECT_FLAGS FLAG_C, 0, "interrupts come between the iterations of rep movsb"
    EXPECT [inside_wrong], 0, "which find the registers advanced together"
    EXPECT [not_behind], 0, "and it ends as if there had been none"
.ifndef QEMU
    mov eax, [inside_flags]
    and eax, FLAG_R
    EXPECT eax, FLAG_R, "the frame shows RF set"
.endif
    mov dword ptr [taken_inside], 0
    ret

.bss
.align 4
scratch:      .skip 8
far_pointer:  .skip 8
clock:        .skip 4
taken_at:     .skip 4
taken_flags:  .skip 4
taken_time:   .skip 4
taken_wrong:  .skip 4            # an address at which no interrupt may come,
wrong:        .skip 4            # and how many did
taken_inside: .skip 4            # a repeated instruction; how many came inside it,
inside:       .skip 4
inside_wrong: .skip 4            # found its registers wrong,
inside_flags: .skip 4            # and the last one's flags
not_behind:   .skip 4
fault_time:   .skip 4
