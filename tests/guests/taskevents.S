# taskevents - task gates for interrupts and exceptions, faults of the new task, its debug
# trap, tasks of virtual-8086 mode
.include "guest.inc"
.include "tasks.inc"

main:
    call make_tasks
    call faults_of_the_new_task
    call events
    call double_fault
    call debugging
    call virtual_8086
    ret

# Faults of what the new TSS holds: they are the new task's. A task gate takes them.
.macro BREAKS field, value, vector, error, fact
    MAKE_TASK broken_tss, other, broken_top
    mov word ptr [broken_tss+TASK_\field], \value
    call try_broken
    EXPECT [rescued_error], \error, "\fact: names it"
    EXPECT [rescued_vector], \vector, "\fact: which exception"
    EXPECT [rescued_link], BROKEN, "\fact: in the new task"
.endm
faults_of_the_new_task:
    call keep_idt
    .irp vector, 10, 11, 12, 13
    GATE \vector, main, SEG_TASK_GATE, RESCUE_\vector
    .endr
    BREAKS LDT, DATA, EXC_TS, DATA, "an LDT that is none"
    BREAKS CS, 0, EXC_TS, 0, "a null cs"
    BREAKS CS, DATA, EXC_TS, DATA, "a cs of data"
    BREAKS CS, CODE3-3, EXC_TS, CODE3-3, "a cs whose RPL is not its DPL"
    BREAKS SS, 0, EXC_TS, 0, "a null ss"
    BREAKS SS, DATA3, EXC_TS, DATA3-3, "an ss of another level"
    BREAKS SS, READ_ONLY, EXC_TS, READ_ONLY, "an ss that is read-only"
.ifndef QEMU                     # where this is #NP
    BREAKS SS, ABSENT, EXC_SS, ABSENT, "an ss that is not present"
.endif
    BREAKS DS, VISITOR, EXC_TS, VISITOR, "a ds of a TSS"
    BREAKS ES, DATA+3, EXC_TS, DATA, "an es whose RPL is above its DPL"
    BREAKS FS, ABSENT, EXC_NP, ABSENT, "an fs that is not present"
    BREAKS GS, 0xFFF8, EXC_TS, 0xFFF8, "a gs outside the GDT"
    call restore_idt
    ret
try_broken:
    .irp vector, 10, 11, 12, 13
    MAKE_TASK rescue_tss_\vector, rescue_\vector, rescue_top
    DESCRIPTOR RESCUE_\vector, rescue_tss_\vector, TSS_SIZE-1, SEG_TSS
    .endr
    DESCRIPTOR BROKEN, broken_tss, TSS_SIZE-1, SEG_TSS
    mov dword ptr [rescued_vector], NONE
    jmp BROKEN:0
    ret
    .irp vector, 10, 11, 12, 13
rescue_\vector:
    mov dword ptr [rescued_vector], \vector
    pop [rescued_error]
    movzx eax, word ptr [rescue_tss_\vector+TASK_LINK]
    mov [rescued_link], eax
    jmp TSS:0
    .endr
keep_idt:
    mov esi, offset idt
    mov edi, offset idt_copy
    mov ecx, 256*2
    rep movsd
    ret
restore_idt:
    mov esi, offset idt_copy
    mov edi, offset idt
    mov ecx, 256*2
    rep movsd
    ret

# Events through task gates.
events:
    call keep_idt
    GATE 0x70, main, 0xE5, VISITOR
    GATE 0x71, main, SEG_TASK_GATE, VISITOR
    mov dword ptr [seen_tr], 0
    int 0x70
    EXPECT [seen_tr], VISITOR, "int n through a task gate"
    movzx eax, word ptr [visitor_tss+TASK_LINK]
    EXPECT eax, TSS, "nests the task"
    mov dword ptr [seen_tr], 0
    USER_TRY int 0x70
    EXPECT [seen_tr], VISITOR, "from ring 3 too"
    USER_TRY int 0x71
    EXPECT_FAULT EXC_GP, 0x71*8+2, "if the gate's DPL lets it"
    or byte ptr [gdt+VISITOR+5], 2
    TRY int 0x70
    EXPECT_FAULT EXC_GP, VISITOR, "and the task is not busy"
    DESCRIPTOR VISITOR, visitor_tss, TSS_SIZE-1, SEG_TSS
    MAKE_TASK fixer_tss, fixer, fixer_top
    DESCRIPTOR FIXER, fixer_tss, TSS_SIZE-1, SEG_TSS
    GATE EXC_GP, main, SEG_TASK_GATE, FIXER
    mov dword ptr [fixed_resume], offset 2f
    mov ebx, 0xFFF8
1:  mov fs, ebx
2:  EXPECT [fixed_error], 0xFFF8, "an exception's task finds the error code on its stack"
    mov eax, [fixed_eip]
    sub eax, offset 1b
    EXPECT eax, 0, "the faulting instruction in its caller's TSS"
.ifndef QEMU
    mov eax, [fixed_flags]
    and eax, FLAG_R
    EXPECT eax, FLAG_R, "with RF"
.endif
    EXPECT ebx, 0xFFF8, "and may let it go on elsewhere"
    MAKE_TASK ticker_tss, ticker, fixer_top
    DESCRIPTOR TICKER, ticker_tss, TSS_SIZE-1, SEG_TSS
    GATE IRQ_BASE, main, SEG_TASK_GATE, TICKER
    mov al, 0x34                 # the 8254's channel 0: 1 kHz
    out 0x43, al
    mov al, 1193 & 0xFF
    out 0x40, al
    mov al, 1193 >> 8
    out 0x40, al
    mov al, 0xFE
    out PIC1+1, al
1:  sti
    hlt
    cli
    cmp dword ptr [ticks], 5
    jb 1b
    mov al, 0xFF
    out PIC1+1, al
    EXPECT [ticker_flags], 0, "an interrupt's task has interrupts off if its TSS says so"
    mov eax, [ticker_interrupted]
    and eax, FLAG_I
    EXPECT eax, FLAG_I, "while its caller had them on"
    call restore_idt
    ret
fixer:
    pop [fixed_error]
    mov eax, [tss+TASK_EIP]
    mov [fixed_eip], eax
    mov eax, [tss+TASK_EFLAGS]
    mov [fixed_flags], eax
    mov eax, [fixed_resume]
    mov [tss+TASK_EIP], eax
    iretd
    jmp fixer
ticker:
    inc dword ptr [ticks]
    pushfd
    pop eax
    and eax, FLAG_I
    mov [ticker_flags], eax
    mov eax, [tss+TASK_EFLAGS]
    mov [ticker_interrupted], eax
    mov al, PIC_EOI
    out PIC1, al
    iretd
    jmp ticker

# What task gates are for: a double fault.
double_fault:
    call keep_idt
    MAKE_TASK fixer_tss, saviour, fixer_top
    DESCRIPTOR FIXER, fixer_tss, TSS_SIZE-1, SEG_TSS
    GATE EXC_DF, main, SEG_TASK_GATE, FIXER
    GATE EXC_GP, main, 0x0E
    mov dword ptr [fixed_resume], offset 2f
    mov [fixed_esp], esp
    mov dword ptr [fixed_error], -1
    mov ebx, 0xFFF8
1:  mov fs, ebx
2:  EXPECT [fixed_error], 0, "a double fault's task: error code 0"
    mov eax, [fixed_eip]
    sub eax, offset 1b
    EXPECT eax, 0, "the instruction that began it"
.ifndef QEMU
    MAKE_TASK fixer_tss, saviour, fixer_top
    DESCRIPTOR LIMITED, 0, 0, SEG_DATA|SEG_BIG
    mov dword ptr [fixed_resume], offset 2f
    mov dword ptr [fixed_error], -1
    mov eax, LIMITED
    mov ss, eax
    mov esp, 0x1000
1:  push eax                     # #SS, whose frame has no room either
2:  EXPECT [fixed_error], 0, "a stack without room is one"
    mov eax, [fixed_eip]
    sub eax, offset 1b
    EXPECT eax, 0, "that its own task survives"
.endif
    call restore_idt
    ret
saviour:
    mov ax, DATA
    mov [tss+TASK_SS], ax
    mov eax, [fixed_esp]
    mov [tss+TASK_ESP], eax
    jmp fixer

# Breakpoints of the task, and the debug trap bit of a TSS.
debugging:
    .irp number, 0, 1, 2, 3
    mov eax, 0xFFFFFFF0
    mov dr\number, eax
    .endr
    mov eax, 0x7FF
    mov dr7, eax
    mov eax, 0xFFFF0FF0
    mov dr6, eax
    MAKE_TASK other_tss, other, other_top
    mov word ptr [other_tss+TASK_TRAP], 1
    mov dword ptr [resume_at], offset 1f
    mov dword ptr [fault_vector], NONE
    jmp OTHER:0
    jmp 2f
1:  str eax                      # still in the other task
    mov [seen_tr], eax
    jmp TSS:0
2:  mov eax, dr7
    and eax, ~0x100              # LE, which processors ignore now
    EXPECT eax, 0x6AA, "a switch disables the local breakpoints"
    mov eax, 0x400
    mov dr7, eax
.ifndef QEMU                     # which does not know the bit
    EXPECT [fault_vector], EXC_DB, "a TSS with its debug trap bit"
    mov eax, [fault_eip]
    sub eax, offset other
    EXPECT eax, 0, "before the first instruction"
    EXPECT [seen_tr], OTHER, "of the new task"
    mov eax, dr6
    and eax, 0xE00F
    EXPECT eax, 0x8000, "DR6 says why"
.endif
    mov dword ptr [resume_at], 0
    MAKE_TASK other_tss, other, other_top
    ret

# A task of virtual-8086 mode.
virtual_8086:
    call keep_idt
    GATE EXC_BP, task_stopped_3, 0xEE
    GATE EXC_GP, task_stopped_13
    mov byte ptr [0x10000], 0xCC # int3
    call virtual_task
    jmp VIRTUAL:0
    EXPECT [seen_vector], EXC_BP, "a task may begin in virtual-8086 mode"
    EXPECT [seen_cs], 0x1000, "with real-mode segments"
    EXPECT [seen_eip], 1, "at its eip"
    mov eax, [seen_flags]
    and eax, FLAG_VM|FLAG_IOPL
    EXPECT eax, FLAG_VM|FLAG_IOPL, "with the flags of its TSS"
    EXPECT [seen_gs], 0x1234, "and its segments"
    mov eax, offset level0_top-40
    EXPECT [seen_esp], eax, "its faults arrive on its own inner stack"
    mov eax, 1
    cpuid
    test edx, 2
    jz 1f
    mov eax, cr4
    or eax, CR4_VME
    mov cr4, eax
    call virtual_task
    mov dword ptr [virtual_tss+TASK_EFLAGS], FLAG_VM|0x180002
    jmp VIRTUAL:0
    EXPECT [seen_vector], EXC_GP, "entered with VIF and VIP set and CR4.VME"
    EXPECT [seen_eip], 0, "it stops before its first instruction"
    mov eax, cr4
    and eax, ~CR4_VME
    mov cr4, eax
1:  call restore_idt
    ret
virtual_task:
    MAKE_TASK virtual_tss, 0, 0x100
    mov dword ptr [virtual_tss+TASK_EFLAGS], FLAG_VM|FLAG_IOPL|2
    mov dword ptr [virtual_tss+TASK_CS], 0x1000
    mov dword ptr [virtual_tss+TASK_SS], 0x2000
    mov dword ptr [virtual_tss+TASK_GS], 0x1234
    DESCRIPTOR VIRTUAL, virtual_tss, TSS_SIZE-1, SEG_TSS
    ret
task_stopped_3:
    push 0
    push EXC_BP
    jmp task_stopped
task_stopped_13:
    push EXC_GP
task_stopped:
    mov eax, DATA
    mov ds, eax
    .irp field, vector, error, eip, cs, flags
    pop [seen_\field]
    .endr
    mov eax, [esp+5*4]
    mov [seen_gs], eax
    sub esp, 5*4
    mov [seen_esp], esp
    cmp dword ptr [seen_vector], EXC_GP
    jne 1f
    add dword ptr [seen_esp], 4
1:  add dword ptr [seen_esp], 4
    jmp TSS:0

.bss
.align 8
idt_copy:      .skip 256*8
.irp name, rescue, fixer, broken
               .skip 1024
\name\()_top:
.endr
broken_tss:    .skip TSS_SIZE
fixer_tss:     .skip TSS_SIZE
ticker_tss:    .skip TSS_SIZE
virtual_tss:   .skip TSS_SIZE
.irp vector, 10, 11, 12, 13
rescue_tss_\vector: .skip TSS_SIZE
.endr
.irp name, rescued_error, rescued_vector, rescued_link, ticker_flags, ticker_interrupted, ticks
\name:        .skip 4
.endr
.irp name, fixed_error, fixed_eip, fixed_flags, fixed_resume, fixed_esp
\name:        .skip 4
.endr
