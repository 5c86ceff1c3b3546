# stacks - the size of the stack pointer, and the stack segment's limit
#
# QEMU's TCG checks no limits (volume 3, 5.3): those facts are left out for it.
.include "guest.inc"

.set STACK16, FREE               # 64 KiB, B clear
.set STACK_UP, (FREE+8)|3        # 0-FFFh, B set
.set ISLAND16, FREE+16           # 16-bit code at `island16`

.set STACK_DOWN, FREE+24         # expand-down: 1000h and up, of `area`-2000h
.set STACK_HALF, FREE+32         # expand-down, B clear: 8000h-FFFFh of `area`

main:
    DESCRIPTOR STACK_DOWN, area-0x2000, 0xFFF, 0x96|SEG_BIG
    DESCRIPTOR STACK_HALF, area, 0x7FFF, 0x96
    DESCRIPTOR STACK16, area, 0xFFFF, SEG_DATA
    DESCRIPTOR STACK_UP, area, 0xFFF, SEG_DATA|SEG_RING3|SEG_BIG
    DESCRIPTOR ISLAND16, island16, 0xFFFF, SEG_CODE
    call stack_sizes
    call wide_stack
    call expand_down
.ifndef QEMU
    call stack_limits
.endif
    ret

# On a 16-bit stack, with something in esp's upper half: sp moves alone.
.macro ON_STACK16 pointer
    mov [kernel_esp], esp
    mov ecx, STACK16
    mov ss, ecx
    mov esp, 0xABCD0000|\pointer
.endm
.macro OFF_STACK16 pointer, fact
    mov [esp_now], esp
    mov ecx, DATA
    mov ss, ecx
    mov esp, [kernel_esp]
    EXPECT [esp_now], 0xABCD0000|\pointer, "\fact"
.endm
stack_sizes:
    mov dword ptr [area+0xFFFE], 0
    ON_STACK16 0
    call 1f
1:  OFF_STACK16 0xFFFC, "call moves sp alone"
    EXPECT [area+0xFFFC], "offset 1b", "and stores at its top"
    mov dword ptr [area+0xFFFC], offset 1f
    ON_STACK16 0xFFFC
    ret
    nop
1:  OFF_STACK16 0, "ret wraps it"
    ON_STACK16 0
    push offset 1f
    ret 0x10
1:  OFF_STACK16 0x10, "ret n too"
    ON_STACK16 0x10
    pushad
    OFF_STACK16 0xFFF0, "pushad"
    EXPECT [area+0xFFFC], 0xABCD0010, "which stores esp as it was"
    ON_STACK16 0xFFF0
    popad
    OFF_STACK16 0x10, "popad"
    ON_STACK16 0
    pushfd
    OFF_STACK16 0xFFFC, "pushfd"
    ON_STACK16 0
    push ds
    OFF_STACK16 0xFFFC, "push of a segment"
    ON_STACK16 0xFFFC
    pop es
    OFF_STACK16 0, "pop of one"
    mov ebp, 0x12345678
    ON_STACK16 4
    enter 0x10, 0
    mov edx, ebp
    OFF_STACK16 0xFFF0, "enter makes room below sp"
    EXPECT edx, 0xABCD0000, "and sets all of ebp"
    EXPECT [area], 0x12345678, "having pushed it"
    mov ebp, 0x77770000
    ON_STACK16 0x800
    leave
    mov edx, ebp
    OFF_STACK16 4, "leave takes sp from bp"
    EXPECT edx, 0x12345678, "and pops ebp"
    mov dword ptr [area+0x800], 0x600DF00D
    mov dword ptr [area+0x7FC], 0
    ON_STACK16 0x800
    pop [area+0x7FC]
    OFF_STACK16 0x804, "pop to memory"
    EXPECT [area+0x7FC], 0x600DF00D, "gets there"
    ON_STACK16 4
    push CODE
    push offset 1f
    lret
1:  OFF_STACK16 4, "far returns"
    ON_STACK16 4
    call CODE:offset 1f
1:  OFF_STACK16 0xFFFC, "far calls"
    GATE 0x81, look, 0x8E
    ON_STACK16 4
    int 0x81
    OFF_STACK16 4, "int and iret"
    EXPECT [seen], 0xABCDFFF8, "its frame lies where sp pointed"
    ON_STACK16 0x800
    push esp
    pop edx
    OFF_STACK16 0x800, "push esp"
    EXPECT edx, 0xABCD0800, "stores all of it"
    ON_STACK16 0x7F0
    mov edx, 0x11112222
    push edx
    pop sp
    mov edx, esp
    sub esp, 0x2222-0x7F2
    OFF_STACK16 0x7F2, "pop sp"
    EXPECT edx, 0xABCD2222, "keeps the upper half"
    ret
look:
    mov [seen], esp
    iretd

# An expand-down stack, on which every stack instruction takes the long way.
.macro EXERCISE
    mov ebp, 0x11111111
    push 0x22222222
    push [esp]
    pop eax
    pushad
    popad
    enter 16, 0
    mov edx, [ebp]
    leave
    call 1f
1:  add dword ptr [esp], offset 2f-1b
    ret
2:  push offset 3f
    jmp 4f
3:  push ds
    pop es
    pushfd
    popfd
    push CODE
    push offset 5f
    lret
4:  ret
5:  call CODE:offset 6f
6:  pop ecx
    pop ecx
    int 0x81
    push 0x33333333
    pop [esp-8]
    mov ebx, [esp-8]
    pop ecx
.endm
expand_down:
    GATE 0x81, look, 0x8E
    .irp stack, STACK_DOWN, STACK_HALF
    mov [kernel_esp], esp
    mov edi, \stack
    mov ss, edi
    mov esp, 0x9000
    EXERCISE
    mov [esp_now], esp
    mov edi, DATA
    mov ss, edi
    mov esp, [kernel_esp]
    EXPECT [esp_now], 0x9000, "all stack instructions balance (\stack)"
    EXPECT eax, 0x22222222, "a push from memory (\stack)"
    EXPECT edx, 0x11111111, "enter's frame (\stack)"
    EXPECT ecx, 0x22222222, "what lay below all of it (\stack)"
    EXPECT ebx, 0x33333333, "pop to memory (\stack)"
    EXPECT ebp, 0x11111111, "and ebp (\stack)"
    .endr
    ret

# 16-bit code with a 32-bit stack: all of esp moves, by two.
wide_stack:
    mov esi, esp
    mov dword ptr [seen], 0
    call ISLAND16:0
    EXPECT ecx, 2, "16-bit code on a 32-bit stack: push moves esp by two"
    EXPECT edx, 2, "call too"
    EXPECT ebx, 16, "and pusha by sixteen"
    EXPECT eax, 0, "and all come back"
    ret

.align 16
island16:
    .code16
    mov ebp, esp
    push ax
    mov ecx, ebp
    sub ecx, esp
    mov ebp, esp
    call 1f
1:  mov edx, ebp
    sub edx, esp
    mov edi, esp
    pusha
    mov ebx, edi
    sub ebx, esp
    mov [esp+8], bx              # its slot: popa does not change ebx
    popa
    add sp, 4
    mov eax, esi
    sub eax, esp
    sub eax, 8                   # what the far call has pushed
    data32 lret
    .code32

.ifndef QEMU
stack_limits:
    .macro ON_SMALL_STACK pointer, fact, instruction:vararg
    ENTER_RING3
    mov edx, STACK_UP
    mov ss, edx
    mov ebp, 0x1001
    mov esp, \pointer
    TRY \instruction
    int LEAVE_RING3
    EXPECT_FAULT EXC_SS, 0, "\fact"
    EXPECT [fault_esp], \pointer, "esp stays (\fact)"
    .endm
    DESCRIPTOR STACK_UP, area-0x2000, 0xFFF, 0xF6|SEG_BIG
    ON_SMALL_STACK 0x1003, "a push across the end of an expand-down stack", push eax
    ON_SMALL_STACK 0x1000, "a call below it", call main
    ON_SMALL_STACK 0x101F, "a pusha across it", pushad
    ON_SMALL_STACK 0xFFF, "a pop below it", pop eax
    ON_SMALL_STACK 0x1010, "an enter below it", enter 0x20, 0
    DESCRIPTOR STACK_UP, area, 0xFFF, SEG_DATA|SEG_RING3|SEG_BIG
    ON_SMALL_STACK 0xFFD, "a pop across the limit", pop eax
    ON_SMALL_STACK 3, "a push below offset 0", push eax
    ON_SMALL_STACK 0x1001, "a push beyond the limit", push eax
    ON_SMALL_STACK 3, "a call without room", call main
    ON_SMALL_STACK 0xFFE, "a ret across the limit", ret
    ON_SMALL_STACK 31, "a pusha without room", pushad
    ON_SMALL_STACK 0xFE1, "a popa across the limit", popad
    ON_SMALL_STACK 2, "a pushf without room", pushfd
    ON_SMALL_STACK 3, "a push of a segment without room", push ds
    ON_SMALL_STACK 0x800, "an enter that leaves the segment", enter 0x1000, 0
    ON_SMALL_STACK 0x800, "a leave to beyond the limit", leave
    ON_SMALL_STACK 0x800, "an operand addressed by ebp", mov al, [ebp]
    ON_SMALL_STACK 0xFFC, "one addressed by esp", mov eax, [esp+1]
    ON_SMALL_STACK 0x800, "a store through ss", mov ss:[0x1000], al
    ON_SMALL_STACK 0x800, "a string through ss", lodsb al, ss:[esi]
    ON_SMALL_STACK 0xFFA, "a far return across the limit", lret
    ON_SMALL_STACK 0xFF6, "an iret across the limit", iretd
    ret
.endif

.bss
.align 4096
           .skip 0x3000
area:      .skip 0x10000
           .skip 16
seen:      .skip 4
