# vm86 - a virtual-8086 task and its monitor
#
# The 16-bit code runs twice: with IOPL 3, where it may do most things itself,
# and with IOPL 0, where each sensitive instruction goes to the monitor as #GP.
.include "guest.inc"
.include "real.inc"

.set SCRATCH, 0x3000             # segments
.set LOW_STACK, 0x4000

.set NOTED_SEGMENTS, 0x8030      # es, ds, fs, gs of the last frame
.set NOTED_DS, 0x8040            # ds inside the handler
.set NOTED_ESP, 0x8044
.set NOTED_INNER_FLAGS, 0x8048

# ENTER_V86 IOPL, label: run 16-bit code there until it executes int3.
.macro ENTER_V86 iopl, label
    mov [kernel_esp], esp
    mov dword ptr [kernel_return], offset back_\@
    push NOTES                   # gs
    push 0x3456                  # fs
    push SCRATCH                 # ds
    push SCRATCH                 # es
    push LOW_STACK
    push 0x1000
    push FLAG_VM|\iopl<<12|2
    push REAL
    .att_syntax
    push $\label-real
    .intel_syntax noprefix
    iretd
back_\@:
.endm

main:
    call place_real
    GATE EXC_DE, catch_de
    GATE EXC_UD, catch_ud
    GATE EXC_GP, catch_gp
    GATE EXC_BP, leave_v86, 0xEE
    GATE 0x60, catch_int, 0xEE
    GATE 0x61, catch_int         # DPL 0
    GATE 0x62, catch_int, 0xEE, CODE3
    DESCRIPTOR TSS, tss, TSS_SIZE+18-1, SEG_TSS
    mov ax, TSS
    ltr ax
    mov edi, offset tss + TSS_SIZE
    mov ecx, 18
    mov al, 0xFF
    rep stosb
    and byte ptr [tss+TSS_SIZE+0x80/8], ~1       # port 80h is open
    ENTER_V86 3, with_iopl3
    ENTER_V86 0, with_iopl0
    call report_facts
    ret

leave_v86:
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    mov esp, [kernel_esp]
    jmp [kernel_return]

# The monitor: notes the frame, and resumes where TRY16 says. Offsets after pushad:
.set V86_VECTOR, 32
.set V86_ERROR, 36
.set V86_EIP, 40
.set V86_CS, 44
.set V86_EFLAGS, 48
.set V86_SEGMENTS, 60
catch_de:
    push 0
    push EXC_DE
    jmp catch
catch_ud:
    push 0
    push EXC_UD
    jmp catch
catch_int:                       # INT n returns to the next instruction
    push 0
    push 0x60
    jmp catch
catch_gp:
    push EXC_GP
catch:
    test dword ptr [esp+16], FLAG_VM
    jz exception                 # not the task's: unexpected
    pushad
    mov ebx, ds
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov [NOTES*16+NOTED_DS], ebx
    mov [NOTES*16+NOTED_ESP], esp
    pushfd
    pop [NOTES*16+NOTED_INNER_FLAGS]
    .irp field, VECTOR, ERROR, CS
    mov eax, [esp+V86_\field]
    mov [NOTES*16+NOTED_\field], eax
    .endr
    mov eax, [esp+V86_EIP]
    mov [NOTES*16+NOTED_IP], eax
    mov eax, [esp+V86_EFLAGS]
    mov [NOTES*16+NOTED_FLAGS], eax
    lea esi, [esp+V86_SEGMENTS]
    mov edi, NOTES*16+NOTED_SEGMENTS
    mov ecx, 4
    cld
    rep movsd
    cmp dword ptr [esp+V86_VECTOR], 0x60
    jne 1f
    mov dword ptr [esp+V86_SEGMENTS+8], 0x6789   # another fs for the task
    jmp 2f
1:  movzx eax, word ptr [NOTES*16+RESUME_AT]
    mov [esp+V86_EIP], eax
2:  popad
    add esp, 8
    iretd

    .code16
# GP16 "what": the last TRY16 raised #GP with error code 0.
.macro GP16 fact, error=0
    mov eax, gs:[NOTED_VECTOR]
    cmp eax, EXC_GP
    jne 77f
    mov eax, gs:[NOTED_ERROR]
77: FACT eax, \error, "\fact"
.endm
.macro NO_FAULT16 fact
    mov eax, gs:[NOTED_VECTOR]
    FACT eax, NONE, "\fact"
.endm

real:
with_iopl3:
    mov eax, 0x55555555
    mov ax, cs
    FACT eax, 0x55550000|REAL, "iret with VM set enters the task"
    xor eax, eax
    mov ax, fs
    FACT eax, 0x3456, "with the segments in the frame"
    mov dword ptr ds:[0x20], 0x01020304
    mov ax, SCRATCH-1
    mov es, ax
    mov eax, es:[0x30]
    FACT eax, 0x01020304, "a segment begins at 16 times its selector"
    mov ax, 0xFFFF
    mov es, ax
    mov eax, es:[0x10]
    FACT eax, 0x1BADB002, "segment FFFFh reaches beyond 1 MiB"
    smsw ax
    and eax, CR0_PE
    FACT eax, CR0_PE, "smsw shows protection on"
    TRY16 cli
    NO_FAULT16 "with IOPL 3 cli is allowed"
    TRY16 sti
    NO_FAULT16 "and sti"
    pushfd
    pop eax
    cli
    and eax, FLAG_I|FLAG_IOPL|FLAG_VM
    FACT eax, FLAG_I|FLAG_IOPL, "pushfd shows IF and IOPL, but no VM"
    push FLAG_C
    popfd
    pushfd
    pop eax
    and eax, FLAG_I|FLAG_IOPL|FLAG_C
    FACT eax, FLAG_IOPL|FLAG_C, "popfd leaves IOPL"
    mov esi, 0x12345678
    mov dword ptr gs:[NOTED_VECTOR], NONE
    sti
    int 0x60
after_int:
    mov cx, fs
    cli
    mov eax, gs:[NOTED_VECTOR]
    FACT eax, 0x60, "with IOPL 3 int n goes through the protected IDT"
    xor eax, eax
    OFFSET ax, after_int
    sub eax, gs:[NOTED_IP]
    FACT eax, 0, "its frame holds eip"
    mov eax, gs:[NOTED_CS]
    FACT eax, REAL, "cs"
    mov eax, gs:[NOTED_FLAGS]
    and eax, FLAG_I|FLAG_IOPL|FLAG_VM
    FACT eax, FLAG_I|FLAG_IOPL|FLAG_VM, "flags with VM"
    mov eax, gs:[NOTED_SEGMENTS]
    FACT eax, 0xFFFF, "es"
    mov eax, gs:[NOTED_SEGMENTS+4]
    FACT eax, SCRATCH, "ds"
    mov eax, gs:[NOTED_SEGMENTS+8]
    FACT eax, 0x3456, "fs"
    mov eax, gs:[NOTED_SEGMENTS+12]
    FACT eax, NOTES, "and gs"
    mov eax, gs:[NOTED_DS]
    FACT eax, 0, "the handler finds its data segments empty"
    mov eax, gs:[NOTED_INNER_FLAGS]
    and eax, FLAG_I|FLAG_VM
    FACT eax, 0, "VM and IF clear"
    movzx eax, cx
    FACT eax, 0x6789, "a segment changed in the frame arrives"
    TRY16 int 0x61
    GP16 "int n through a gate with DPL 0", 0x61*8+2
    TRY16 int 0x62
    GP16 "int n through a gate to ring 3", CODE3&~3
    pushf                        # an iret of the task's own
    push cs
    OFFSET ax, after_iret
    push ax
    TRY16 iret
after_iret:
    NO_FAULT16 "with IOPL 3 iret is allowed"
    TRY16 hlt
    GP16 "hlt is not"
    TRY16 in al, 0x81
    GP16 "nor is a port that the TSS closes"
    TRY16 in al, 0x80
    NO_FAULT16 "unlike one that it opens"
    TRY16 mov eax, cr0
    GP16 "control registers are ring 0's"
    TRY16 lgdt ds:[0]
    GP16 "and so is lgdt"
    TRY16 lidt ds:[0]
    GP16 "and lidt, so that the vector table stays"
    xor cx, cx
    TRY16 div cx
    FAULT16 EXC_DE, "dividing by zero"
    mov eax, gs:[NOTED_FLAGS]
    and eax, FLAG_VM
    FACT eax, FLAG_VM, "an exception's frame shows VM"
    TRY16 sldt ax
    FAULT16 EXC_UD, "sldt is undefined in the task"
    TRY16 .byte 0x63, 0xC8       # arpl ax, cx
    FAULT16 EXC_UD, "so is arpl"
.ifndef QEMU
    TRY16 mov ax, ds:[0xFFFF]
    FAULT16 EXC_GP, "a word at FFFFh crosses the limit"
.endif
    mov sp, 2
    push 0x1111
    push 0x2222
    movzx eax, sp
    FACT eax, 0xFFFE, "the stack wraps at 64 KiB"
    int3

with_iopl0:
    TRY16 cli
    GP16 "with IOPL 0 cli goes to the monitor"
    TRY16 sti
    GP16 "so does sti"
    mov sp, 0x1000
    TRY16 pushf
    GP16 "pushf"
    movzx eax, sp
    FACT eax, 0x1000, "which has pushed nothing"
    TRY16 pushfd
    GP16 "pushfd"
    TRY16 popf
    GP16 "popf"
    TRY16 popfd
    GP16 "popfd"
    TRY16 int 0x60
    GP16 "int n"
    xor eax, eax
    .att_syntax
    mov $int_here-real, %ax
    .intel_syntax noprefix
    TRY16 int 0x60
int_here = . - 2
    sub eax, gs:[NOTED_IP]
    FACT eax, 0, "with eip at the instruction"
    TRY16 iret
    GP16 "and iret"
    mov eax, gs:[NOTED_FLAGS]
    and eax, FLAG_IOPL
    FACT eax, 0, "the frame shows IOPL 0"
    TRY16 lidt ds:[0]
    GP16 "lidt does not depend on IOPL"
    TRY16 in al, 0x80
    NO_FAULT16 "nor do ports"
    TRY16 in al, 0x81
    GP16 "but on the TSS alone"
    mov cx, 3
    mov dword ptr ds:[0x100], 0
    mov di, 0x100
    mov ax, ds
    mov es, ax
    mov al, 7
    rep stosb
    mov eax, ds:[0x100]
    FACT eax, 0x070707, "ordinary instructions run as ever"
    int3                         # is not sensitive to IOPL
real_end:
    .code32
END_OF_FACTS
