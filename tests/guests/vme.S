# vme - virtual-8086 tasks with a virtual interrupt flag (CR4.VME)
#
# Each case runs one instruction in a task, with EFLAGS of its own, until the task ends in its
# monitor: by the int3 after the instruction, or by the instruction itself.
# docs/develop/virtual-8086.md has the table of cases.
.include "guest.inc"
.include "real.inc"
.include "virtual.inc"

.set VECTORS, 0                  # the task's vector table
.set OWN, 0x60                   # a vector whose bit is clear: the task's own
.set OURS, 0x61                  # one whose bit is set: the monitor's
.set INNER, 0x62                 # the same, through a gate of DPL 0
.set REDIRECTION, tss+TSS_SIZE

main:
    HAVE_VME
    call place_real
    mov edi, VECTORS             # all lead to `handler` in the task
    mov ecx, 256
    .att_syntax
    mov $handler-real+REAL*65536, %eax
    .intel_syntax noprefix
    rep stosd
    .irp vector, 1, 3, 4, 6, 13, 32
    GATE \vector, catch_\vector, 0xEE
    .endr
    GATE OWN, catch_96, 0xEE
    GATE OURS, catch_97, 0xEE
    GATE INNER, catch_98
    mov word ptr [tss+TSS_IO_MAP], TSS_SIZE+32
    mov byte ptr [tss+TSS_SIZE+32], 0xFF
    TSS_LIMIT TSS_SIZE+32
    or byte ptr [REDIRECTION+OURS/8], 1<<(OURS&7)
    or byte ptr [REDIRECTION+INNER/8], 1<<(INNER&7)
    call without
    CR4_SET CR4_VME
    call virtual_flag
    call real_flag
    call methods
    call every_vector
    call limits
    call pending
    call hardware
    call steps
    ret

# Neither VIF nor the bitmap counts without VME, though PVI be set.
without:
    CR4_SET CR4_PVI
    .irp iopl, 0, 1, 2
    .irp instruction, cli, sti, pushf, popf, iret, pushfd, popfd, iretd
    REFUSED \iopl<<12|FLAG_I, "without VME \instruction at IOPL \iopl", \instruction
    .endr
    REFUSED \iopl<<12, "without VME int n at IOPL \iopl, its bit clear", int OWN
    REFUSED \iopl<<12, "and its bit set", int OURS
    .endr
    LEAVES 0x3000, OWN, "without VME int n at IOPL 3 is the monitor's, its bit clear", int OWN
    LEAVES 0x3000, OURS, "and set", int OURS
    RUNS FLAG_VIF|FLAG_VIP, FLAG_VIF|FLAG_VIP, "without VME VIF and VIP together mean nothing", nop
    ret

# IOPL below 3: the virtual flag.
.macro STACKED image             # what POPF and IRET find
    mov dword ptr [TASK_STACK], \image
.endm
.macro FRAMED image
    .att_syntax
    mov $landed-real+REAL*65536, %eax
    .intel_syntax noprefix
    mov [TASK_STACK], eax
    mov dword ptr [TASK_STACK+4], \image
.endm
.macro VIRTUAL iopl
    .set at, \iopl<<12
    RUNS at|FLAG_I|FLAG_VIF, at|FLAG_I, "cli clears VIF, not IF, at IOPL \iopl", cli
    RUNS at|FLAG_VIF, at, "with IF clear too", cli
    RUNS at|FLAG_VIP, at|FLAG_VIP, "and leaves VIP", cli
    RUNS at, at|FLAG_VIF, "sti sets VIF, not IF, at IOPL \iopl", sti
    RUNS at|FLAG_I, at|FLAG_I|FLAG_VIF, "with IF set too", sti
    REFUSED at|FLAG_VIP, "sti with VIP set, at IOPL \iopl", sti
    REFUSED at|FLAG_VIP|FLAG_I, "with IF set too", sti
    RUNS at|FLAG_I, at|FLAG_I, "pushf changes no flag at IOPL \iopl", pushf
    PUSHED 0x3002, "and shows VIF as IF, and IOPL 3"
    RUNS at|FLAG_VIF|FLAG_C|FLAG_NT, at|FLAG_VIF|FLAG_NT, "nor with VIF set", pushf
    PUSHED 0x7203, "which it shows, and the others as they are"
    RUNS at|FLAG_VIP, at|FLAG_VIP, "nor with VIP set", pushf
    PUSHED 0x3002, "which it does not show"
    STACKED 0x0202
    RUNS at, at|FLAG_VIF, "popf loads VIF, not IF, at IOPL \iopl", popf
    STACKED 0x3002
    RUNS at|FLAG_I|FLAG_VIF, at|FLAG_I, "both ways", popf
    STACKED 0x7E02
    RUNS at|FLAG_AC, at|FLAG_AC|FLAG_VIF|FLAG_D|FLAG_NT|FLAG_O, "not IOPL, but the others", popf
    STACKED 0x0102
    REFUSED at|FLAG_I, "popf of TF, at IOPL \iopl", popf
    STACKED 0x0202
    REFUSED at|FLAG_VIP, "popf of IF with VIP set, at IOPL \iopl", popf
    STACKED 0x0002
    RUNS at|FLAG_VIP|FLAG_I, at|FLAG_VIP|FLAG_I, "popf without it is allowed", popf
    FRAMED 0x0202
    RUNS at, at|FLAG_VIF, "iret loads VIF, not IF, at IOPL \iopl", iret
    FRAMED 0x3002
    RUNS at|FLAG_I|FLAG_VIF, at|FLAG_I, "both ways", iret
    FRAMED 0x7E02
    RUNS at|FLAG_AC, at|FLAG_AC|FLAG_VIF|FLAG_D|FLAG_NT|FLAG_O, "not IOPL, but the others", iret
    FRAMED 0x0102
    REFUSED at, "iret of TF, at IOPL \iopl", iret
    FRAMED 0x0202
    REFUSED at|FLAG_VIP, "iret of IF with VIP set, at IOPL \iopl", iret
    FRAMED 0x0002
    RUNS at|FLAG_VIP, at|FLAG_VIP, "iret without it is allowed", iret
    .irp instruction, pushfd, popfd, iretd
    REFUSED at|FLAG_VIF, "\instruction at IOPL \iopl", \instruction
    .endr
.endm
virtual_flag:
    .irp iopl, 0, 1, 2
    VIRTUAL \iopl
    .endr
    ret

# IOPL 3: the real flag, as without VME.
real_flag:
    .set at, 0x3000
    .set virtual, FLAG_VIF
    RUNS at|FLAG_I|virtual, at|virtual, "cli clears IF at IOPL 3", cli
    RUNS at|FLAG_VIP, at|FLAG_VIP|FLAG_I, "sti sets it, whatever VIP is", sti
    RUNS at|virtual, at|virtual, "pushf at IOPL 3", pushf
    PUSHED 0x3002, "shows IF, not VIF"
    RUNS at|FLAG_VIP|virtual, at|FLAG_VIP|virtual, "VIF and VIP together mean nothing", pushfd
    PUSHED 0x183002, "pushfd shows them as they are"
    STACKED 0x0202
    RUNS at|FLAG_VIP, at|FLAG_VIP|FLAG_I, "popf at IOPL 3 loads IF, whatever VIP is", popf
    STACKED 0x0102
    RUNS at, at|FLAG_T, "and TF", popf
    STACKED 0x202
    RUNS at|virtual|FLAG_VIP, at|virtual|FLAG_VIP|FLAG_I, "popfd leaves VIF and VIP set", popfd
    STACKED 0x1A0202
    RUNS at, at|FLAG_I, "and clear", popfd
    FRAMED 0x0202
    RUNS at|FLAG_VIP, at|FLAG_VIP|FLAG_I, "iret at IOPL 3 loads IF", iret
    .att_syntax
    mov $landed-real, %eax
    .intel_syntax noprefix
    mov [TASK_STACK], eax
    mov dword ptr [TASK_STACK+4], REAL
    mov dword ptr [TASK_STACK+8], 0x180202
    RUNS at, at|FLAG_I, "iretd leaves VIF and VIP", iretd
    ret

# INT n, by IOPL and the bitmap: methods 3 to 6.
methods:
    .irp iopl, 0, 1, 2
    RUNS \iopl<<12|FLAG_I|FLAG_VIF, \iopl<<12|FLAG_I, "int n with its bit clear clears VIF, not IF, at IOPL \iopl", int OWN
    FRAME_PUSHED 0x3202, "and pushes VIF as IF, and IOPL 3"
    RUNS \iopl<<12|FLAG_I|FLAG_AC|FLAG_NT, \iopl<<12|FLAG_I|FLAG_AC|FLAG_NT, "it leaves NT and AC", int OWN
    FRAME_PUSHED 0x7002, "and pushes IF clear if VIF is"
    REFUSED \iopl<<12|FLAG_VIF, "int n with its bit set, at IOPL \iopl", int OURS
    RUNS \iopl<<12|FLAG_VIP, \iopl<<12|FLAG_VIP, "VIP does not hold int n up", int OWN
    RUNS \iopl<<12, \iopl<<12, "int n of vector 3 is the task's", .byte 0xCD, 3
    FRAME_PUSHED 0x3002, "like any other"
    LEAVES \iopl<<12|FLAG_O, EXC_OF, "into goes through the monitor's table at IOPL \iopl", into
    LEAVES \iopl<<12, EXC_UD, "and an exception", ud2
    LEAVES \iopl<<12, EXC_DB, "and int1", .byte 0xF1
    or byte ptr [REDIRECTION], 1<<3
    REFUSED \iopl<<12, "int n of vector 3 with its bit set", .byte 0xCD, 3
    LEAVES \iopl<<12|FLAG_VIF|FLAG_I, EXC_BP, "but int3 asks neither IOPL nor the bitmap", int3
    EXPECT [seen_length], 1, "it ends behind itself"
    and byte ptr [REDIRECTION], ~(1<<3)
    .endr
    mov eax, [handler_flags]
    and eax, FLAG_VIF|FLAG_VIP|FLAG_I|FLAG_VM
    EXPECT eax, FLAG_VIF, "the monitor's handler finds VIF as it was, and IF clear"
    RUNS 0x3000|FLAG_I|FLAG_VIF, 0x3000|FLAG_VIF, "at IOPL 3 int n with its bit clear clears IF, not VIF", int OWN
    FRAME_PUSHED 0x3202, "and pushes IF"
    RUNS 0x3000|FLAG_VIF, 0x3000|FLAG_VIF, "set or", int OWN
    FRAME_PUSHED 0x3002, "clear"
    LEAVES 0x3000, OURS, "with its bit set it is the monitor's", int OURS
    EXPECT [seen_length], 2, "and returns behind itself"
    LEAVES 0x3000, EXC_GP, "whose gate must let it in", int INNER
    EXPECT [seen_error], INNER*8+2, "or is named in the error code"
    ret

# All 256 bits.
every_vector:
    xor ebx, ebx                 # vector
    xor esi, esi                 # of these: redirected by their bit alone
    xor edx, edx                 #           refused by their bit alone
1:  mov byte ptr [REAL*16+patched_offset], bl
    mov al, 0xFF
    call fill_bitmap
    btr [REDIRECTION], ebx
    V86_AT FLAG_VIF, patched
    cmp dword ptr [seen_vector], EXC_BP
    jne 2f
    cmp dword ptr [seen_flags], FLAG_VM|2
    sete al
    movzx eax, al
    add esi, eax
2:  xor eax, eax
    call fill_bitmap
    bts [REDIRECTION], ebx
    V86_AT FLAG_VIF, patched
    cmp dword ptr [seen_vector], EXC_GP
    sete al
    movzx eax, al
    add edx, eax
    inc bl
    jnz 1b
    EXPECT esi, 256, "each vector has a bit of its own that redirects it"
    EXPECT edx, 256, "and one that does not"
    xor eax, eax
    call fill_bitmap
    bts dword ptr [REDIRECTION], OURS
    ret
fill_bitmap:                     # al
    mov edi, offset REDIRECTION
    mov ecx, 32
    rep stosb
    ret

# The bit must lie in the TSS.
.set OWN_BYTE, OWN/8                 # in the bitmap
.macro BOUNDED limit, map, vector, fact
    mov word ptr [tss+TSS_IO_MAP], \map
    TSS_LIMIT \limit
    LEAVES 0, \vector, "\fact, at IOPL 0", int OWN
    LEAVES 0x3000, \vector, "at IOPL 3", int OWN
.endm
limits:
    BOUNDED TSS_SIZE+OWN_BYTE, TSS_SIZE+32, EXC_BP, "a bit in the last byte of the TSS is found"
    BOUNDED TSS_SIZE+OWN_BYTE-1, TSS_SIZE+32, EXC_GP, "one behind it is general protection"
    BOUNDED TSS_SIZE+100, 0xFFFF, EXC_GP, "and a map far away"
    BOUNDED TSS_IO_MAP+1, 0x50, EXC_BP, "a map below the I/O map's offset counts"
    BOUNDED TSS_IO_MAP, 0x50, EXC_GP, "but not with a TSS that ends in that offset"
    BOUNDED TSS_SIZE+100, 32-OWN_BYTE, EXC_BP, "a map that begins before the TSS, its byte inside"
    BOUNDED TSS_SIZE+100, 31-OWN_BYTE, EXC_GP, "and outside"
    mov word ptr [tss+TSS_IO_MAP], TSS_SIZE+32
    TSS_LIMIT TSS_SIZE+32
    ret

# An interrupt that is pending and enabled.
pending:
    .irp iopl, 0, 1, 2
    REFUSED \iopl<<12|FLAG_VIF|FLAG_VIP, "a task entered with VIF and VIP set stops before its first instruction, at IOPL \iopl", nop
    .endr
    REFUSED FLAG_VIF|FLAG_VIP, "whatever it is", int3
    mov eax, [handler_flags]
    and eax, FLAG_VIF|FLAG_VIP
    EXPECT eax, FLAG_VIF|FLAG_VIP, "and the monitor finds both"
    ret

# Interrupts from outside ask for IF, and never for the bitmap.
hardware:
    mov al, 0x30                 # the 8254's channel 0, once
    out 0x43, al
    mov al, 100
    out 0x40, al
    mov al, 0
    out 0x40, al
    mov al, 0xFE
    out PIC1+1, al
1:  mov al, 0x0A                 # until the 8259 has it
    out PIC1, al
    in al, PIC1
    test al, 1
    jz 1b
    RUNS FLAG_VIF, FLAG_VIF, "an interrupt from outside waits while IF is clear, whatever VIF is", nop
    LEAVES FLAG_I, IRQ_BASE, "it comes while IF is set, with VIF clear", nop
    mov al, PIC_EOI
    out PIC1, al
    mov al, 0xFF
    out PIC1+1, al
    EXPECT [seen_length], 0, "through the monitor's table, though its bit is clear"
    ret

# The trap flag.
steps:
    LEAVES FLAG_T, EXC_DB, "cli at IOPL 0 is stepped over", cli
    EXPECT [seen_length], 1, "to its end"
    LEAVES FLAG_T, EXC_DB, "sti too", sti
    mov eax, [seen_flags]
    and eax, FLAG_VIF|FLAG_T
    EXPECT eax, FLAG_VIF|FLAG_T, "with VIF set"
    RUNS FLAG_T|FLAG_VIF, 0, "int n clears TF and is not stepped over", int OWN
    FRAME_PUSHED 0x3302, "but pushes it"
    STACKED 2
    LEAVES FLAG_T, EXC_DB, "popf that clears TF is stepped over", popf
    mov eax, [seen_flags]
    and eax, FLAG_T
    EXPECT eax, 0, "once"
    ret

    TASK_CODE
handler:
    int3
landed:
    int3
patched:
    .byte 0xCD
patched_offset = . - real
    .byte 0
    int3
    END_OF_TASK_CODE

CATCH_ALL 1, 3, 4, 6, 13, 14, 32, 96, 97, 98
END_OF_FACTS
