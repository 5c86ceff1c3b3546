# vm86io - virtual-8086 mode at every IOPL, its limits, and the I/O permission bitmap
.include "guest.inc"
.include "real.inc"

.set SCRATCH, 0x3000             # segments
.set LOW_STACK, 0x4000
.set RESULTS, 0x9000             # in NOTES: what each probe raised
.set CODE1, FREE|1
.set DATA1, (FREE+8)|1
.set CONFORMING, FREE+16
.set MAP, TSS_SIZE               # where the bitmap begins in the TSS

# ENTER_V86 iopl, label: 16-bit code until int3. eax, ecx and edx pass.
.macro ENTER_V86 label
    mov [kernel_esp], esp
    mov dword ptr [kernel_return], offset back_\@
    push NOTES                   # gs
    push SCRATCH
    push SCRATCH
    push SCRATCH
    push LOW_STACK
    push 0x1000
    push [iopl]
    or dword ptr [esp], FLAG_VM|2
    push REAL
    .att_syntax
    push $\label-real
    .intel_syntax noprefix
    iretd
back_\@:
.endm

main:
    DESCRIPTOR CODE1, 0, 0xFFFFF, SEG_CODE|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR DATA1, 0, 0xFFFFF, SEG_DATA|0x20|SEG_BIG|SEG_PAGES
    DESCRIPTOR CONFORMING, 0, 0xFFFFF, 0x9E|SEG_BIG|SEG_PAGES
    mov dword ptr [tss+TSS_ESP1], offset ring1_stack_top
    mov word ptr [tss+TSS_SS1], DATA1
    call place_real
    GATE EXC_BP, leave_v86, 0xEE
    GATE 0x60, catch_int, 0xEE
    GATE 0x61, catch_int, 0xEE, CODE1
    GATE 0x62, catch_int, 0xEE, CONFORMING
    .irp vector, 5, 6, 12, 13
    GATE \vector, catch_\vector
    .endr
    call levels
    call limits
    call only_from_ring0
    call bitmap
    ret

leave_v86:
    mov ebx, DATA
    mov ds, ebx
    mov es, ebx
    mov fs, ebx
    mov gs, ebx
    mov esp, [kernel_esp]
    jmp [kernel_return]

    .irp vector, 12, 13
catch_\vector:
    push \vector
    jmp catch
    .endr
    .irp vector, 5, 6
catch_\vector:
    push 0
    push \vector
    jmp catch
    .endr
catch_int:
    push 0
    push 0x60
catch:
    test dword ptr [esp+16], FLAG_VM
    jz exception
    pushad
    mov eax, DATA
    mov ds, eax
    mov eax, [esp+32]
    mov [NOTES*16+NOTED_VECTOR], eax
    mov eax, [esp+36]
    mov [NOTES*16+NOTED_ERROR], eax
    movzx eax, word ptr [NOTES*16+RESUME_AT]
    mov [esp+40], eax
    mov eax, [esp+60-8]          # esp of the task
    mov [NOTES*16+NOTED_IP], eax
    popad
    add esp, 8
    iretd

# EXPECT_PROBE n, vector, "fact": what probe n of the 16-bit code raised.
.macro EXPECT_PROBE number, vector, fact
    EXPECT [NOTES*16+RESULTS+4*\number], \vector, "\fact"
.endm
.macro LEVEL level
    mov dword ptr [iopl], \level<<12
    ENTER_V86 sensitive
    .set refused, EXC_GP
    .set interrupted, EXC_GP
    .if \level == 3
    .set refused, NONE
    .set interrupted, 0x60
    .endif
    EXPECT_PROBE 0, refused, "cli at IOPL \level"
    EXPECT_PROBE 1, refused, "sti at IOPL \level"
    EXPECT_PROBE 2, refused, "pushf at IOPL \level"
    EXPECT_PROBE 3, refused, "pushfd at IOPL \level"
    EXPECT_PROBE 4, refused, "popf at IOPL \level"
    EXPECT_PROBE 5, refused, "popfd at IOPL \level"
    EXPECT_PROBE 6, interrupted, "int n at IOPL \level"
    EXPECT_PROBE 7, refused, "iret at IOPL \level"
    EXPECT_PROBE 8, EXC_GP, "hlt at IOPL \level"
    EXPECT_PROBE 9, EXC_GP, "mov to cr0 at IOPL \level"
    EXPECT_PROBE 10, EXC_GP, "clts at IOPL \level"
    EXPECT_PROBE 11, EXC_UD, "lldt at IOPL \level"
    EXPECT_PROBE 12, EXC_UD, "str at IOPL \level"
    EXPECT_PROBE 13, EXC_UD, "verr at IOPL \level"
.ifndef QEMU
    EXPECT_PROBE 14, EXC_GP, "an int n to ring 1 at IOPL \level"
.endif
    EXPECT_PROBE 15, EXC_GP, "an int n to conforming code at IOPL \level"
    EXPECT_PROBE 16, EXC_BR, "bound at IOPL \level"
.endm
levels:
    .irp n, 0, 1, 2, 3
    LEVEL \n
    .endr
    mov dword ptr [iopl], 0x3000
    ENTER_V86 keeping_flags
    mov eax, [NOTES*16+RESULTS]
    and eax, FLAG_IOPL|FLAG_VM|FLAG_NT
    EXPECT eax, FLAG_IOPL|FLAG_NT, "popfd in the task changes NT but neither IOPL nor VM"
    mov eax, [NOTES*16+RESULTS+4]
    and eax, FLAG_IOPL|FLAG_I
    EXPECT eax, FLAG_IOPL|FLAG_I, "iretd in the task changes IF"
.ifndef QEMU
    EXPECT [NOTES*16+NOTED_ERROR], CODE1-1, "an int n to ring 1 names the code in its error code"
.endif
    ret

limits:
    ENTER_V86 edges
.ifndef QEMU
    EXPECT_PROBE 0, EXC_GP, "a word at FFFFh"
    EXPECT_PROBE 1, EXC_GP, "a doubleword at FFFDh"
    EXPECT_PROBE 2, EXC_SS, "a word at FFFFh of the stack"
    EXPECT_PROBE 3, EXC_SS, "a push with sp 1"
    EXPECT_PROBE 4, EXC_SS, "a pop with sp FFFFh"
    EXPECT_PROBE 5, EXC_GP, "a 32-bit address above FFFFh"
    EXPECT_PROBE 6, EXC_GP, "a jump above it"
    EXPECT_PROBE 7, EXC_GP, "a string element across it"
.endif
    EXPECT_PROBE 8, NONE, "a byte at FFFFh is allowed"
    EXPECT_PROBE 9, 0x1234, "code may be written"
    ret

only_from_ring0:
.ifndef QEMU                     # which enters it (volume 2, IRET)
    push 0x3002
    popfd
    ENTER_RING3
    push DATA3
    push offset user_stack_top
    push FLAG_VM|0x3002
    push CODE3
    push offset 1f
    iretd
1:  pushfd
    pop ecx
    mov edx, cs
    int LEAVE_RING3
    push 2
    popfd
    EXPECT edx, CODE3, "iret from ring 3 does not enter virtual-8086 mode"
    and ecx, FLAG_VM
    EXPECT ecx, 0, "whatever VM says in its frame"
.endif
    push FLAG_VM|2
    popfd
    TRY nop
    EXPECT_NO_FAULT "nor does popfd"
    ret

# PORT port, size, limit, base, allowed, "fact": from ring 3 with IOPL 0, then from the
# task with IOPL 3.
.macro PORT port, size, limit, base, vector, fact
    push offset port_\@
    push \vector
    push \base
    push \limit
    push \size
    push \port
    call try_port
    .pushsection .rodata
port_\@:
    .asciz "\fact"
    .popsection
.endm
bitmap:
    mov edi, offset tss+MAP
    mov ecx, 32
    mov al, 0xFF
    rep stosb
    mov word ptr [tss+MAP+0x80/8], 0xFE30        # 80h-83h, 86h-88h are open
    PORT 0x80, 1, 0x100, MAP, NONE, "an open port"
    PORT 0x84, 1, 0x100, MAP, EXC_GP, "a closed port"
    PORT 0x82, 2, 0x100, MAP, NONE, "a word of open ports"
    PORT 0x83, 2, 0x100, MAP, EXC_GP, "a word whose second port is closed"
    PORT 0x85, 2, 0x100, MAP, EXC_GP, "a word whose first is"
    PORT 0x87, 2, 0x100, MAP, NONE, "a word whose bits lie in two bytes"
    PORT 0x80, 4, 0x100, MAP, NONE, "a doubleword of open ports"
    PORT 0x81, 4, 0x100, MAP, EXC_GP, "one whose last is closed"
    PORT 0x86, 4, 0x100, MAP, EXC_GP, "one whose last is, in the next byte"
    PORT 0x80, 1, MAP+17, MAP, NONE, "a bit in the last byte but one of the TSS"
    PORT 0x80, 1, MAP+16, MAP, EXC_GP, "a bit in its last byte"
    PORT 0x80, 1, MAP+15, MAP, EXC_GP, "a bit behind it"
    PORT 0x100, 1, 0x100, MAP-16, NONE, "a map that begins inside the fixed part"
    PORT 0x80, 1, 0x100, 0xFFFF, EXC_GP, "a map outside the TSS"
    PORT 0xFFFF, 1, 0x100, MAP, EXC_GP, "the last port"
    PORT 0x80, 1, 0x66, MAP, EXC_GP, "a TSS that ends in the map's offset"
    ret
try_port:                        # (port, size, limit, base, vector, fact)
    push ebp
    mov ebp, esp
    mov eax, [ebp+16]
    mov [gdt+TSS], ax
    mov byte ptr [gdt+TSS+5], SEG_TSS
    mov eax, TSS
    ltr ax
    mov eax, [ebp+20]
    mov [tss+TSS_IO_MAP], ax
    push 2
    popfd
    mov edx, [ebp+8]
    mov ecx, [ebp+12]
    cmp ecx, 2
    je 2f
    ja 4f
    USER_TRY in al, dx
    jmp 1f
2:  USER_TRY in ax, dx
    jmp 1f
4:  USER_TRY in eax, dx
1:  push [ebp+28]
    push [ebp+24]
    push [fault_vector]
    call check
    mov dword ptr [iopl], 0x3000
    mov edx, [ebp+8]
    mov ecx, [ebp+12]
    push ebp
    ENTER_V86 port_input
    pop ebp
    mov esi, [ebp+28]
    mov edi, offset fact_name
1:  lodsb
    stosb
    test al, al
    jnz 1b
    dec edi
    mov esi, offset in_the_task
2:  lodsb
    stosb
    test al, al
    jnz 2b
    push offset fact_name
    push [ebp+24]
    push [NOTES*16+RESULTS]
    call check
    pop ebp
    ret 24
in_the_task: .asciz ", from virtual-8086 mode"

    .code16
# PROBE n, instruction
.macro PROBE number, instruction:vararg
    TRY16 \instruction
    mov eax, gs:[NOTED_VECTOR]
    mov gs:[RESULTS+4*\number], eax
.endm
real:
sensitive:
    PROBE 0, cli
    PROBE 1, sti
    PROBE 2, pushf
    mov sp, 0x1000
    PROBE 3, pushfd
    mov sp, 0x0F00
    mov dword ptr ss:[0x0F00], 2
    PROBE 4, popf
    mov sp, 0x0F00
    PROBE 5, popfd
    PROBE 6, int 0x60
    mov sp, 0x0F00
    OFFSET ax, after_iret
    mov ss:[0x0F00], ax
    mov word ptr ss:[0x0F02], REAL
    mov word ptr ss:[0x0F04], 2
    TRY16 iret
after_iret:
    mov eax, gs:[NOTED_VECTOR]
    mov gs:[RESULTS+4*7], eax
    PROBE 8, hlt
    PROBE 9, mov cr0, eax
    PROBE 10, clts
    PROBE 11, lldt ax
    PROBE 12, str ax
    PROBE 13, verr ax
    PROBE 15, int 0x62
.ifndef QEMU                     # which enters ring 1
    PROBE 14, int 0x61
.endif
    mov dword ptr ds:[0], 0x00010000
    mov ax, 2
    PROBE 16, bound ax, ds:[0]
    int3

keeping_flags:
    mov sp, 0x0F00
    mov dword ptr ss:[0x0F00], FLAG_NT|2
    popfd
    pushfd
    pop eax
    mov gs:[RESULTS], eax
    mov sp, 0x0F00
    xor eax, eax
    OFFSET ax, 1f
    mov ss:[0x0F00], eax
    mov dword ptr ss:[0x0F04], REAL
    mov dword ptr ss:[0x0F08], FLAG_I|2
    iretd
1:  pushfd
    pop eax
    cli
    mov gs:[RESULTS+4], eax
.ifndef QEMU
    PROBE 2, int 0x61
.endif
    int3

edges:
.ifndef QEMU
    PROBE 0, mov ax, ds:[0xFFFF]
    PROBE 1, mov eax, ds:[0xFFFD]
    mov bp, 0xFFFF
    PROBE 2, mov ax, [bp]
    mov sp, 1
    PROBE 3, push ax
    mov sp, 0xFFFF
    PROBE 4, pop ax
    mov sp, 0x1000
    mov ebx, 0x10000
    PROBE 5, mov al, [ebx]
    PROBE 6, .byte 0x66, 0xFF, 0xE3              # jmp ebx
    mov si, 0xFFFF
    PROBE 7, lodsw
.endif
    PROBE 8, mov al, ds:[0xFFFF]
    mov word ptr cs:[code_word-real], 0x1234
    movzx eax, word ptr cs:[code_word-real]
    mov gs:[RESULTS+36], eax
    int3
code_word:
    .word 0

port_input:
    cmp cl, 2
    je 2f
    ja 4f
    PROBE 0, in al, dx
    int3
2:  PROBE 0, in ax, dx
    int3
4:  PROBE 0, in eax, dx
    int3
real_end:
    .code32
END_OF_FACTS

.bss
.align 4
iopl:      .skip 4
fact_name: .skip 128
           .skip 1024
ring1_stack_top:
