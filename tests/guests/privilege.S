# privilege - ring 3 and the ways in and out of it
.include "guest.inc"

.set CODE1, FREE | 1             # ring 1
.set DATA1, (FREE + 8) | 1
.set CALL_GATE, (FREE + 16) | 3  # ring 3 to ring 0, two parameters
.set CALL_GATE0, FREE + 24       # the same, for ring 0 only
.set CALL_GATE1, (FREE + 32) | 3 # ring 3 to ring 1
.set CONFORMING, FREE + 40
.set FAST_CODE0, FREE + 48       # SYSENTER's four, in its order
.set FAST_DATA0, FREE + 56
.set FAST_CODE3, (FREE + 64) | 3
.set FAST_DATA3, (FREE + 72) | 3

.set SYSENTER_CS, 0x174
.set SYSENTER_ESP, 0x175
.set SYSENTER_EIP, 0x176

# CALL_GATE_DESCRIPTOR selector, target selector, target, DPL, parameters
.macro CALL_GATE_DESCRIPTOR selector, code, target, dpl, parameters
    mov eax, offset \target
    mov [gdt+(\selector&0xFFF8)], ax
    mov word ptr [gdt+(\selector&0xFFF8)+2], \code
    mov word ptr [gdt+(\selector&0xFFF8)+4], 0x8C00|\dpl<<13|\parameters
    shr eax, 16
    mov [gdt+(\selector&0xFFF8)+6], ax
.endm
# WITH_IOPL n: the privilege level that flags entering ring 3 carry.
.macro WITH_IOPL level
    push \level<<12|2
    popfd
.endm

main:
    DESCRIPTOR CODE1, 0, 0xFFFFF, SEG_CODE|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR DATA1, 0, 0xFFFFF, SEG_DATA|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR CONFORMING, 0, 0xFFFFF, 0x9E|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_CODE0, 0, 0xFFFFF, SEG_CODE|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_DATA0, 0, 0xFFFFF, SEG_DATA|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_CODE3, 0, 0xFFFFF, SEG_CODE|SEG_RING3|SEG_BIG|SEG_PAGES
    DESCRIPTOR FAST_DATA3, 0, 0xFFFFF, SEG_DATA|SEG_RING3|SEG_BIG|SEG_PAGES
    mov dword ptr [tss+TSS_ESP1], offset ring1_stack_top
    mov word ptr [tss+TSS_SS1], DATA1
    call entering
    call sensitive
    call flags
    call ports
    call call_gates
    call fast_calls
    ret

entering:
    mov eax, 0x11111111
    push DATA
    pop fs
    ENTER_RING3
    mov ecx, cs
    mov edx, fs
    mov ebx, ds
    mov esi, esp
    int LEAVE_RING3
    push DATA
    pop fs
    EXPECT ecx, CODE3, "iret to an outer ring: cs carries its privilege"
    EXPECT edx, 0, "and segments above it are emptied"
    EXPECT ebx, DATA3, "those it may use stay"
    EXPECT esi, "offset user_stack_top", "esp is the one in the frame"
    EXPECT eax, 0x11111111, "registers pass"
    GATE 0x81, look, 0xEE
    ENTER_RING3
    push DATA3
    pop fs
    int 0x81
inside:
    mov ecx, ss
    int LEAVE_RING3
    EXPECT [seen], "offset inside", "int n from ring 3: its frame holds eip"
    EXPECT [seen+4], CODE3, "cs"
    EXPECT [seen+12], "offset user_stack_top", "esp"
    EXPECT [seen+16], DATA3, "and ss"
    EXPECT [seen_esp], "offset ring0_stack_top-20", "on the stack that the TSS names"
    EXPECT [seen_ss], DATA, "with its ss"
    EXPECT [seen_fs], DATA3, "data segments stay as they are"
    EXPECT ecx, DATA3, "iret switches the stack back"
    mov byte ptr [idt+0x82*8+5], 0x8E
    USER_TRY int 0x82
    EXPECT_FAULT EXC_GP, 0x82*8+2, "int n through ring 0's gate is refused"
    GATE 0x82, look, 0xEE, CODE1
    ENTER_RING3
    int 0x82
    int LEAVE_RING3
    EXPECT [seen_esp], "offset ring1_stack_top-20", "a gate into ring 1 takes ring 1's stack"
    EXPECT [seen_ss], DATA1, "and ss"
    push DATA
    pop fs
    ret

look:                            # keep the frame, where it lies, and return
    mov [seen_esp], esp
    mov [seen_ss], ss
    mov [seen_fs], fs
    push eax
    .irp n, 0, 4, 8, 12, 16
    mov eax, [esp+4+\n]
    mov [seen+\n], eax
    .endr
    pop eax
    iretd

.macro REFUSED fact, instruction:vararg
    USER_TRY \instruction
    EXPECT_FAULT EXC_GP, 0, "ring 3 may not \fact"
.endm
sensitive:
    WITH_IOPL 0
    REFUSED cli, cli
    EXPECT [fault_cs], CODE3, "an exception's frame tells the ring"
    EXPECT [fault_esp], "offset user_stack_top", "and holds its stack"
    REFUSED sti, sti
    REFUSED hlt, hlt
    REFUSED in, in al, 0x80
    REFUSED out, out dx, al
    REFUSED ins, insb
    REFUSED outs, outsb
    REFUSED "read cr0", mov eax, cr0
    REFUSED "write cr3", mov cr3, eax
    REFUSED lgdt, lgdt [gdt_pointer]
    REFUSED lidt, lidt [idt_pointer]
    REFUSED lldt, lldt ax
    REFUSED ltr, ltr ax
    REFUSED clts, clts
    REFUSED lmsw, lmsw ax
    REFUSED invlpg, invlpg [main]
    REFUSED wbinvd, wbinvd
    REFUSED rdmsr, rdmsr
    REFUSED wrmsr, wrmsr
    REFUSED "write a debug register", mov dr0, eax
    USER_TRY smsw eax
    EXPECT_NO_FAULT "smsw is allowed"
    USER_TRY sgdt [seen]
    EXPECT_NO_FAULT "sgdt is allowed"
    USER_TRY rdtsc
    EXPECT_NO_FAULT "rdtsc is allowed"
    mov eax, cr4
    or eax, CR4_TSD
    mov cr4, eax
    REFUSED "rdtsc with CR4.TSD", rdtsc
    TRY rdtsc
    EXPECT_NO_FAULT "ring 0 may"
    mov eax, cr4
    and eax, ~CR4_TSD
    mov cr4, eax
    mov ecx, DATA
    USER_TRY mov ds, ecx
    EXPECT_FAULT EXC_GP, DATA, "ring 3 may not load ring 0's data segment"
    USER_TRY mov ss, ecx
    EXPECT_FAULT EXC_GP, DATA, "nor its stack segment"
    USER_TRY jmp CODE:0
    EXPECT_FAULT EXC_GP, CODE, "nor jump into its code"
    ret

flags:
    WITH_IOPL 0
    ENTER_RING3
    push FLAG_I|FLAG_IOPL|FLAG_C|2
    popfd
    pushfd
    pop ecx
    int LEAVE_RING3
    and ecx, FLAG_I|FLAG_IOPL|FLAG_C
    EXPECT ecx, FLAG_C, "popf in ring 3 leaves IF and IOPL, without a fault"
    ENTER_RING3
    push FLAG_I|FLAG_IOPL|FLAG_C|2
    push CODE3
    push offset 1f
    iretd
1:  pushfd
    pop ecx
    int LEAVE_RING3
    and ecx, FLAG_I|FLAG_IOPL|FLAG_C
    EXPECT ecx, FLAG_C, "so does iret within ring 3"
    WITH_IOPL 3
    ENTER_RING3
    sti
    pushfd
    pop ecx
    cli
    pushfd
    pop edx
    push FLAG_I|2
    popfd
    pushfd
    pop ebx
    cli
    int LEAVE_RING3
    WITH_IOPL 0
    and ecx, FLAG_I|FLAG_IOPL
    EXPECT ecx, FLAG_I|FLAG_IOPL, "with IOPL 3 sti works"
    and edx, FLAG_I
    EXPECT edx, 0, "and cli"
    and ebx, FLAG_I|FLAG_IOPL
    EXPECT ebx, FLAG_I|FLAG_IOPL, "popf changes IF but not IOPL"
    ret

ports:
    WITH_IOPL 3
    USER_TRY in al, 0x80
    EXPECT_NO_FAULT "with IOPL 3 all ports are open"
    WITH_IOPL 0
    mov word ptr [tss+TSS_IO_MAP], TSS_SIZE
    DESCRIPTOR TSS, tss, TSS_SIZE+18-1, SEG_TSS   # ports 0-87h and the last byte
    mov ax, TSS
    ltr ax
    mov edi, offset tss + TSS_SIZE
    mov ecx, 18
    mov al, 0xFF
    rep stosb
    and byte ptr [tss+TSS_SIZE+0x80/8], ~1       # 80h
    USER_TRY in al, 0x80
    EXPECT_NO_FAULT "the TSS opens a port"
    REFUSED "use the port beside it", in al, 0x81
    REFUSED "use both as a word", in ax, 0x80
    and byte ptr [tss+TSS_SIZE+0x80/8], ~2
    USER_TRY in ax, 0x80
    EXPECT_NO_FAULT "unless both are open"
    REFUSED "use four of which two are open", in eax, 0x80
    REFUSED "use a port beyond the TSS's limit", in al, 0x90
    mov edx, 0x80
    USER_TRY out dx, al
    EXPECT_NO_FAULT "the port in dx is looked up"
    mov edi, offset seen
    mov ecx, 2
    USER_TRY rep insb
    EXPECT_NO_FAULT "for string instructions too"
    mov edx, 0x87
    mov byte ptr [tss+TSS_SIZE+0x80/8], 0
    REFUSED "use a word whose second byte's bit is set", in ax, dx
    mov word ptr [tss+TSS_IO_MAP], 0xFFF0
    REFUSED "use any port if the map lies outside the TSS", in al, 0x80
    ret

call_gates:
    CALL_GATE_DESCRIPTOR CALL_GATE, CODE, gated, 3, 2
    CALL_GATE_DESCRIPTOR CALL_GATE0, CODE, gated, 0, 2
    CALL_GATE_DESCRIPTOR CALL_GATE1, CODE1, gated, 3, 2
    ENTER_RING3
    push 0xAAAA
    push 0xBBBB
    call CALL_GATE:0xDEAD        # the offset is ignored
gate_return:
    mov ecx, esp
    mov edx, cs
    int LEAVE_RING3
    EXPECT [seen], "offset gate_return", "a call gate pushes the return address"
    EXPECT [seen+4], CODE3, "the caller's cs"
    EXPECT [seen+8], 0xBBBB, "copies the parameters"
    EXPECT [seen+12], 0xAAAA, "in their order"
    EXPECT [seen+16], "offset user_stack_top-8", "above them the caller's esp"
    EXPECT [seen+20], DATA3, "and ss"
    EXPECT [seen_esp], "offset ring0_stack_top-24", "all on ring 0's stack"
    EXPECT [seen_ss], CODE, "with cs the gate's"
    EXPECT ecx, "offset user_stack_top", "retf n releases the parameters on both"
    EXPECT edx, CODE3, "and returns to ring 3"
    ENTER_RING3
    push 0
    push 0
    call CALL_GATE1:0
    int LEAVE_RING3
    EXPECT [seen_ss], CODE1, "a call gate can lead to ring 1"
    EXPECT [seen_esp], "offset ring1_stack_top-24", "on ring 1's stack"
    USER_TRY call CALL_GATE0:0
    EXPECT_FAULT EXC_GP, CALL_GATE0, "a gate with DPL 0 is closed to ring 3"
    USER_TRY jmp CALL_GATE:0
    EXPECT_FAULT EXC_GP, CODE, "jmp through a gate may not change the ring"
    ENTER_RING3
    call CONFORMING:offset conforming
    int LEAVE_RING3
    EXPECT ecx, CONFORMING|3, "conforming code runs in the caller's ring"
    ENTER_RING3
    push CODE
    push 0
    TRY lret
    int LEAVE_RING3
    EXPECT_FAULT EXC_GP, CODE, "retf may not lead inwards"
    ret
gated:
    mov [seen_esp], esp
    mov [seen_ss], cs
    push eax
    .irp n, 0, 4, 8, 12, 16, 20
    mov eax, [esp+4+\n]
    mov [seen+\n], eax
    .endr
    pop eax
    lret 8
conforming:
    mov ecx, cs
    lret

.macro WRITE_MSR register, value
    mov ecx, \register
    mov eax, \value
    xor edx, edx
    wrmsr
.endm
fast_calls:
    WRITE_MSR SYSENTER_CS, 0
    USER_TRY sysenter
    EXPECT_FAULT EXC_GP, 0, "sysenter before it is set up"
    WRITE_MSR SYSENTER_CS, FAST_CODE0
    WRITE_MSR SYSENTER_ESP, "offset fast_stack_top"
    WRITE_MSR SYSENTER_EIP, "offset fast_entry"
    rdmsr
    EXPECT eax, "offset fast_entry", "its registers can be read back"
    WITH_IOPL 3
    ENTER_RING3
    sti
    mov edx, offset fast_return
    mov ecx, esp
    sysenter
fast_return:
    mov eax, cs
    mov ecx, ss
    mov edx, esp
    cli
    int LEAVE_RING3
    WITH_IOPL 0
    EXPECT [seen], FAST_CODE0, "sysenter loads cs"
    EXPECT [seen+4], FAST_DATA0, "ss, eight above"
    EXPECT [seen+8], "offset fast_stack_top", "esp"
    EXPECT [seen+12], 0, "and clears IF"
    EXPECT eax, FAST_CODE3, "sysexit loads cs, sixteen above"
    EXPECT ecx, FAST_DATA3, "ss, twenty-four above"
    EXPECT edx, "offset user_stack_top", "and esp from ecx"
    REFUSED sysexit, sysexit
    ret
fast_entry:
    mov eax, cs
    mov [seen], eax
    mov eax, ss
    mov [seen+4], eax
    mov [seen+8], esp
    pushfd
    pop eax
    and eax, FLAG_I
    mov [seen+12], eax
    sysexit

.bss
.align 4
seen:      .skip 24
seen_esp:  .skip 4
seen_ss:   .skip 4
seen_fs:   .skip 4
           .skip 1024
ring1_stack_top:
           .skip 1024
fast_stack_top:
