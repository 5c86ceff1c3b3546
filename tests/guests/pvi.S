# pvi - protected mode's virtual interrupts (CR4.PVI), VIF and VIP outside virtual-8086 mode
#
# Each case runs one instruction in a ring, with EFLAGS of its own, until ring 0 is reached: by an
# INT after the instruction, or by the instruction itself.
.include "guest.inc"
.include "real.inc"
.include "virtual.inc"

.set DONE, 0x81                  # the INT after each instruction
.set CODE1, FREE|1
.set DATA1, (FREE+8)|1
.set CODE2, (FREE+16)|2
.set DATA2, (FREE+24)|2
.set SYSENTER_CS, 0x174
.set ASIDE, 0x3000               # what RING stores is written here, below the stack

# RING_AT number, flags, label: run code there. RING: run an instruction.
.macro RING_AT number, flags, label
    push \flags
    push CODE\number
    push DATA\number
    push offset \label
    call run_ring
.endm
.macro RING number, flags, instruction:vararg
    RING_AT \number, \flags, ring_\@
    .pushsection .text, 3
ring_\@:
    \instruction
    int DONE
    .popsection
.endm
.macro RING_RUNS number, flags, after, fact, instruction:vararg
    RING \number, \flags, \instruction
    call ring_flags_behind
    EXPECT eax, \after, "\fact"
.endm
.macro RING_REFUSED number, flags, fact, instruction:vararg
    RING \number, \flags, \instruction
    push \flags
    call ring_what_changed
    EXPECT eax, EXC_GP, "\fact is general protection"
.endm
# RING_STACKED value: what POPF finds in ring 3. RING_IRET flags: what IRETD finds.
.macro RING_STACKED value
    mov dword ptr [user_stack_top-16], \value
.endm
.macro RING_IRET flags
    mov dword ptr [user_stack_top-16], offset returned
    mov dword ptr [user_stack_top-12], CODE3
    mov dword ptr [user_stack_top-8], (\flags)
.endm
# RING_PUSHED value, "fact": what PUSHF has left in ring 3, of 16 or 32 bits.
.macro RING_PUSHED value, fact
    mov eax, [user_stack_top-20]
    mov ecx, offset user_stack_top-16
    sub ecx, [seen_esp]
    cmp ecx, 4
    je 77f
    shr eax, 16
77: EXPECT eax, \value, "\fact"
.endm
.set CODE0, CODE
.set DATA0, DATA

main:
    HAVE_VME
    DESCRIPTOR CODE1, 0, 0xFFFFF, SEG_CODE|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR DATA1, 0, 0xFFFFF, SEG_DATA|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR CODE2, 0, 0xFFFFF, SEG_CODE|0x40|SEG_BIG|SEG_PAGES
    DESCRIPTOR DATA2, 0, 0xFFFFF, SEG_DATA|0x40|SEG_BIG|SEG_PAGES
    .irp vector, 1, 3, 13, 129
    GATE \vector, ring_catch_\vector, 0xEE
    .endr
    CR4_SET 0
    call without
    CR4_SET CR4_VME
    call without
    CR4_SET CR4_PVI
    call virtual_flag
    call real_flag
    call pending
    call ring0
    ret

without:
    .irp iopl, 0, 1, 2
    RING_REFUSED 3, \iopl<<12|FLAG_I, "without PVI cli in ring 3 at IOPL \iopl", cli
    RING_REFUSED 3, \iopl<<12|FLAG_I, "and sti", sti
    .endr
    RING_RUNS 3, FLAG_VIF|FLAG_VIP, FLAG_VIF|FLAG_VIP, "VIF and VIP together mean nothing without PVI", nop
    ret

virtual_flag:
    .irp iopl, 0, 1, 2
    .set at, \iopl<<12
    RING_RUNS 3, at|FLAG_I|FLAG_VIF, at|FLAG_I, "cli in ring 3 clears VIF, not IF, at IOPL \iopl", cli
    RING_RUNS 3, at|FLAG_VIP, at|FLAG_VIP, "and leaves VIP", cli
    RING_RUNS 3, at, at|FLAG_VIF, "sti in ring 3 sets VIF, not IF, at IOPL \iopl", sti
    RING_RUNS 3, at|FLAG_I, at|FLAG_I|FLAG_VIF, "with IF set too", sti
    RING_REFUSED 3, at|FLAG_VIP, "sti with VIP set, at IOPL \iopl,", sti
    RING_RUNS 3, at|FLAG_VIF, at|FLAG_VIF, "pushfd is as ever at IOPL \iopl", pushfd
    .set shown, at|FLAG_VIF|2
    RING_PUSHED shown, "and shows VIF apart from IF, and IOPL as it is"
    .set shown, at|FLAG_I|FLAG_VIP|2
    RING_RUNS 3, at|FLAG_I|FLAG_VIP, at|FLAG_I|FLAG_VIP, "with IF and VIP", pushfd
    RING_PUSHED shown, "too"
    RING_RUNS 3, at|FLAG_VIF, at|FLAG_VIF, "pushf in ring 3 at IOPL \iopl", pushfw
    .set shown, at|2
    RING_PUSHED shown, "shows IF"
    RING_STACKED 0x183202
    RING_RUNS 3, at, at, "popfd in ring 3 loads neither IF, VIF, VIP nor IOPL", popfd
    RING_STACKED 0x00000002
    RING_RUNS 3, at|FLAG_I|FLAG_VIF, at|FLAG_I|FLAG_VIF, "set or clear", popfd
    RING_STACKED 0x00000202
    RING_RUNS 3, at|FLAG_VIP, at|FLAG_VIP, "nor asks for VIP", popfw
    RING_STACKED 0x00000102
    RING_RUNS 3, at, at|FLAG_T, "and may set TF", popfd
    RING_IRET 0x180202
    RING_RUNS 3, at, at, "iretd in ring 3 loads neither", iretd
    RING_IRET 0x000002
    RING_RUNS 3, at|FLAG_VIF|FLAG_I, at|FLAG_VIF|FLAG_I, "in either direction", iretd
    .endr
    .irp ring, 1, 2
    RING_REFUSED \ring, FLAG_I, "cli in ring \ring at IOPL 0", cli
    RING_REFUSED \ring, FLAG_I, "and sti", sti
    RING_RUNS \ring, \ring<<12|FLAG_I, \ring<<12, "cli in ring \ring at IOPL \ring clears IF", cli
    RING_RUNS \ring, FLAG_VIF|FLAG_VIP, FLAG_VIF|FLAG_VIP, "ring \ring does not see VIF and VIP", nop
    .endr
    ret

real_flag:
    RING_RUNS 3, 0x3000|FLAG_I|FLAG_VIF, 0x3000|FLAG_VIF, "at IOPL 3 cli clears IF, not VIF", cli
    RING_RUNS 3, 0x3000|FLAG_VIP, 0x3000|FLAG_VIP|FLAG_I, "and sti sets it, whatever VIP is", sti
    RING_RUNS 3, 0x3000|FLAG_VIP|FLAG_VIF, 0x3000|FLAG_VIP|FLAG_VIF, "VIF and VIP together mean nothing there", nop
    ret

# An interrupt that is pending and enabled.
pending:
    .irp iopl, 0, 1, 2
    RING_REFUSED 3, \iopl<<12|FLAG_VIF|FLAG_VIP, "entering ring 3 with VIF and VIP set, at IOPL \iopl,", nop
    .endr
    mov eax, [handler_flags]
    and eax, FLAG_VIF|FLAG_VIP
    EXPECT eax, FLAG_VIF|FLAG_VIP, "whose handler finds both"
    RING_AT 0, FLAG_VIF|FLAG_VIP, returns
    mov eax, [seen_vector]
    EXPECT eax, EXC_GP, "retf to ring 3 with both is one"
    mov eax, [seen_eip]
    sub eax, offset returned
    EXPECT eax, 0, "at its target"
    mov eax, 1                   # SYSENTER and SYSEXIT, if they are there
    cpuid
    test edx, 1<<11
    jz 1f
    mov ecx, SYSENTER_CS
    mov eax, CODE
    xor edx, edx
    wrmsr
    RING_AT 0, FLAG_VIF|FLAG_VIP, exits
    mov eax, [seen_vector]
    EXPECT eax, EXC_GP, "sysexit with both is one"
    mov eax, [seen_eip]
    sub eax, offset returned
    EXPECT eax, 0, "at its target too"
1:  ret
returns:
    push DATA3
    push offset user_stack_top
    push CODE3
    push offset returned
    retf
exits:
    mov ecx, offset user_stack_top
    mov edx, offset returned
    sysexit
returned:
    nop
    int DONE

# Ring 0 never looks at VIF and VIP, and only IRET loads them.
ring0:
    RING_RUNS 0, FLAG_VIF|FLAG_VIP, FLAG_VIF|FLAG_VIP, "iretd in ring 0 loads VIF and VIP, which mean nothing there", nop
    RING_RUNS 0, FLAG_I|FLAG_VIF, FLAG_VIF, "cli in ring 0 clears IF, not VIF", cli
    RING_RUNS 0, FLAG_VIP, FLAG_VIP|FLAG_I, "and sti sets it, whatever VIP is", sti
    mov dword ptr [ring0_image], 2
    RING_AT 0, FLAG_VIF|FLAG_VIP, pops
    call ring_flags_behind
    EXPECT eax, FLAG_VIF|FLAG_VIP, "popfd in ring 0 leaves VIF and VIP set"
    mov dword ptr [ring0_image], 2|FLAG_VIF|FLAG_VIP
    RING_AT 0, 0, pops
    call ring_flags_behind
    EXPECT eax, 0, "and clear"
    RING_AT 0, FLAG_VIF|FLAG_VIP, returns16
    call ring_flags_behind
    EXPECT eax, FLAG_VIF|FLAG_VIP, "iret of 16 bits leaves them too"
    RING_RUNS 0, 0, 0, "iretd clears them", nop
    ret
pops:
    push [ring0_image]
    popfd
    int DONE
returns16:                       # by way of a 16-bit segment that begins here
    DESCRIPTOR (FREE+32), returns16, 0xFFFF, SEG_CODE|SEG_BIG
    pushw 2
    pushw FREE+32
    .att_syntax
    pushw $returned16-returns16
    iretw
    .intel_syntax noprefix
returned16:
    int DONE

run_ring:                        # (flags, cs, ss, eip)
    pushad
    mov [kernel_esp], esp
    mov eax, [esp+36]
    mov [task_ip], eax
    mov ebx, [esp+40]            # ss
    mov ecx, [esp+44]            # cs
    mov edx, [esp+48]
    or edx, 2
    test ecx, 3
    jz 1f
    push ebx
    push offset user_stack_top-16
1:  push edx
    push ecx
    push eax
    iretd

    .irp vector, 1, 3, 13, 129
ring_catch_\vector:
    .if \vector != 13
    push 0
    .endif
    push \vector
    jmp ring_left
    .endr
ring_left:
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    pushfd
    pop [handler_flags]
    .irp field, vector, error, eip, cs, flags
    pop [seen_\field]
    .endr
    test byte ptr [seen_cs], 3
    jz 1f
    pop [seen_esp]
1:  mov eax, [seen_eip]
    sub eax, [task_ip]
    mov [seen_length], eax
    mov esp, [kernel_esp]
    cld
    popad
    ret 16

ring_flags_behind:
    cmp dword ptr [seen_vector], DONE
    jne 1f
    mov dword ptr [seen_vector], EXC_BP
1:  jmp flags_behind

ring_what_changed:               # (flags)
    mov eax, offset user_stack_top-16
    cmp [seen_esp], eax
    jne 1f
    mov dword ptr [seen_esp], TASK_SP
1:  jmp what_changed

END_OF_FACTS

.bss
.align 4
ring0_image:   .skip 4
