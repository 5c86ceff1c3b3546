# segments - descriptors, limits, types, and far transfers
#
# Accesses are checked as the manual says; QEMU's TCG checks only the loading of
# segment registers, so CHECKED facts are left out for it.
.include "guest.inc"

.set BASED, FREE                 # 4 KiB of data at `area`
.set READ_ONLY, FREE+8           # the same, not writable
.set EXPAND_DOWN, FREE+16        # 1000h and up, from address 0
.set EXPAND_DOWN16, FREE+24      # 1000h-FFFFh of `area`
.set ABSENT, FREE+32
.set ISLAND, FREE+40             # code at `island`, 32-bit
.set ISLAND16, FREE+48           # the same, 16-bit
.set EXECUTE_ONLY, FREE+56
.set HIGH, FREE+64               # 4 GiB of data from address F0000000h
.set STACK, FREE+72              # a stack with a base
.set STACK16, FREE+80            # a 16-bit stack
.set LOCAL, FREE+88              # the LDT
.set SMALL_STACK3, (FREE+96)|3   # ring 3: 100h bytes
.set CALL_GATE, FREE+104
.set ABSENT_CODE, FREE+112
.set IN_LDT, 0x08|4
.set BEYOND_LDT, 0x18|4
.set ISLAND_SIZE, 0x40

.macro REFUSED vector, error, fact, instruction:vararg
    TRY \instruction
    EXPECT_FAULT \vector, \error, "\fact"
.endm
.macro CHECKED vector, error, fact, instruction:vararg
.ifndef QEMU
    REFUSED \vector, \error, "\fact", \instruction
.endif
.endm
.macro LOAD register, selector
    mov eax, \selector
    mov \register, eax
.endm

main:
    DESCRIPTOR BASED, area, 0xFFF, SEG_DATA|SEG_BIG
    DESCRIPTOR READ_ONLY, area, 0xFFF, 0x90|SEG_BIG
    DESCRIPTOR EXPAND_DOWN, 0, 0x0, 0x96|SEG_BIG|SEG_PAGES
    DESCRIPTOR EXPAND_DOWN16, area, 0xFFF, 0x96
    DESCRIPTOR ABSENT, 0, 0xFFFFF, 0x12|SEG_BIG|SEG_PAGES
    DESCRIPTOR ISLAND, island, ISLAND_SIZE-1, SEG_CODE|SEG_BIG
    DESCRIPTOR ISLAND16, island, 0xFFFF, SEG_CODE
    DESCRIPTOR EXECUTE_ONLY, 0, 0xFFFFF, 0x98|SEG_BIG|SEG_PAGES
    DESCRIPTOR HIGH, 0xF0000000, 0xFFFFF, SEG_DATA|SEG_BIG|SEG_PAGES
    DESCRIPTOR STACK, area, 0xFFFF, SEG_DATA|SEG_BIG
    DESCRIPTOR STACK16, area, 0xFFFF, SEG_DATA
    DESCRIPTOR LOCAL, ldt, 15, SEG_LDT
    DESCRIPTOR ABSENT_CODE, 0, 0xFFFFF, 0x1A|SEG_BIG|SEG_PAGES
    DESCRIPTOR SMALL_STACK3, area, 0xFF, SEG_DATA|SEG_RING3|SEG_BIG
    mov eax, [gdt+BASED]
    mov [ldt+8], eax
    mov eax, [gdt+BASED+4]
    mov [ldt+12], eax
    call bases
    call limits
    call types
    call loading
    call inspecting
    call far_transfers
    call stacks
    call strings
    ret

bases:
    mov dword ptr [area+0x10], 0x12345678
    LOAD fs, BASED
    EXPECT fs:[0x10], 0x12345678, "a segment's base is added"
    mov dword ptr fs:[0x14], 0x9ABCDEF0
    EXPECT [area+0x14], 0x9ABCDEF0, "for stores too"
    mov ecx, 0x10
    EXPECT fs:[ecx*1], 0x12345678, "and to computed addresses"
    .byte 0x64                   # fs:
    lea edx, [ecx+4]
    EXPECT edx, 0x14, "lea adds none"
    LOAD gs, HIGH
    EXPECT gs:[area+0x10000010], 0x12345678, "base and offset wrap at 4 GiB"
    push fs
    pop gs
    EXPECT gs:[0x10], 0x12345678, "push and pop carry a segment over"
    mov dword ptr [area], 0x20
    mov word ptr [area+4], BASED
    lfs ecx, [area]
    EXPECT ecx, 0x20, "lfs loads the offset"
    mov ecx, fs
    EXPECT ecx, BASED, "and the selector"
    mov word ptr [area+4], ABSENT
    mov ecx, 1
    REFUSED EXC_NP, ABSENT, "lgs of a segment that is not present", lgs ecx, [area]
    EXPECT ecx, 1, "leaves its register"
    DESCRIPTOR BASED, 0, 0xFFFFF, SEG_DATA|SEG_BIG|SEG_PAGES
    EXPECT fs:[0x10], 0x12345678, "a changed descriptor counts only when it is loaded"
    mov eax, [area+0x10]
    DESCRIPTOR BASED, area, 0xFFF, SEG_DATA|SEG_BIG
    LOAD fs, BASED
    movzx eax, byte ptr [gdt+BASED+5]
    EXPECT eax, SEG_DATA|1, "loading sets the accessed bit"
    ret

limits:
    LOAD fs, BASED
    TRY mov al, fs:[0xFFF]
    EXPECT_NO_FAULT "the byte at the limit belongs to the segment"
    TRY mov eax, fs:[0xFFC]
    EXPECT_NO_FAULT "so does a word that ends there"
    CHECKED EXC_GP, 0, "a byte beyond the limit", mov al, fs:[0x1000]
    CHECKED EXC_GP, 0, "a word that begins within", mov eax, fs:[0xFFD]
    CHECKED EXC_GP, 0, "a store beyond the limit", mov fs:[0xFFE], eax
    CHECKED EXC_GP, 0, "an offset that would wrap", mov eax, fs:[0xFFFFFFFE]
    mov ecx, 0x1000
    CHECKED EXC_GP, 0, "a computed address", add fs:[ecx], eax
    CHECKED EXC_GP, 0, "an xchg", xchg fs:[ecx], eax
    CHECKED EXC_GP, 0, "a conditional move, though it is not taken", cmovc eax, fs:[ecx]
    CHECKED EXC_GP, 0, "fld", fld qword ptr fs:[ecx-4]
    LOAD gs, EXPAND_DOWN
    TRY mov eax, gs:[0x1000]
    EXPECT_NO_FAULT "an expand-down segment begins behind its limit"
    TRY mov eax, gs:[area]
    EXPECT_NO_FAULT "and goes up from there"
    CHECKED EXC_GP, 0, "at the limit it has no byte", mov al, gs:[0xFFF]
    CHECKED EXC_GP, 0, "nor for a word that ends behind it", mov eax, gs:[0xFFD]
    LOAD gs, EXPAND_DOWN16
    TRY mov eax, gs:[0xFFFC]
    EXPECT_NO_FAULT "a 16-bit one ends at FFFFh"
    CHECKED EXC_GP, 0, "which a word may not cross", mov eax, gs:[0xFFFD]
    ret

types:
    LOAD fs, READ_ONLY
    TRY mov eax, fs:[0x10]
    EXPECT_NO_FAULT "a read-only segment can be read"
    CHECKED EXC_GP, 0, "but not written", mov fs:[0x10], eax
    CHECKED EXC_GP, 0, "by read-modify-write either", inc dword ptr fs:[0x10]
    CHECKED EXC_GP, 0, "code cannot be written", mov cs:[area], eax
    TRY mov eax, cs:[area]
    EXPECT_NO_FAULT "readable code can be read"
    LOAD fs, 0
    TRY nop
    EXPECT_NO_FAULT "an empty segment register may be loaded"
    CHECKED EXC_GP, 0, "but not used", mov eax, fs:[area]
    LOAD fs, 3
    mov eax, fs
    EXPECT eax, 3, "with any RPL"
    ret

loading:
    mov ecx, EXECUTE_ONLY
    REFUSED EXC_GP, EXECUTE_ONLY, "execute-only code is no data segment", mov es, ecx
    mov ecx, TSS
    REFUSED EXC_GP, TSS, "nor is a system segment", mov fs, ecx
    mov ecx, ABSENT
    REFUSED EXC_NP, ABSENT, "a data segment that is not present", mov gs, ecx
    REFUSED EXC_SS, ABSENT, "a stack segment that is not present", mov ss, ecx
    xor ecx, ecx
    REFUSED EXC_GP, 0, "an empty stack segment", mov ss, ecx
    mov ecx, READ_ONLY
    REFUSED EXC_GP, READ_ONLY, "a read-only stack segment", mov ss, ecx
    mov ecx, DATA|3
    REFUSED EXC_GP, DATA, "a stack segment with another RPL", mov ss, ecx
    mov ecx, DATA3
    REFUSED EXC_GP, DATA3&~3, "a stack segment of another ring", mov ss, ecx
    REFUSED EXC_UD, 0, "mov cs does not exist", .byte 0x8E, 0xC9
    xor eax, eax
    lldt ax
    mov ecx, IN_LDT
    REFUSED EXC_GP, IN_LDT, "an LDT selector without an LDT", mov fs, ecx
    mov ax, LOCAL
    lldt ax
    sldt eax
    EXPECT eax, LOCAL, "sldt tells what lldt loaded"
    TRY mov fs, ecx
    EXPECT_NO_FAULT "now the LDT serves"
    EXPECT fs:[0x10], 0x12345678, "and its segment works"
    mov ecx, BEYOND_LDT
    REFUSED EXC_GP, BEYOND_LDT, "a selector beyond the LDT", mov fs, ecx
    mov ecx, BASED
    REFUSED EXC_GP, BASED, "lldt of a data segment", lldt cx
    str eax
    EXPECT eax, TSS, "str tells the task register"
    mov cx, TSS
    REFUSED EXC_GP, TSS, "ltr of a busy TSS", ltr cx
    push ABSENT
    mov ecx, esp
    REFUSED EXC_NP, ABSENT, "pop of an absent segment", pop fs
    sub ecx, esp
    add esp, 4
    EXPECT ecx, 0, "leaves esp"
    ret

inspecting:
    mov word ptr [gdt+CALL_GATE+2], CODE
    mov word ptr [gdt+CALL_GATE+4], 0x8C00
    mov ecx, CODE
    lar eax, ecx
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "lar of a code segment"
    and eax, 0xF0FE00            # without what is undefined, and the accessed bit
    EXPECT eax, 0xC09A00, "its access rights"
    lsl eax, ecx
    EXPECT eax, 0xFFFFFFFF, "lsl counts pages out in bytes"
    mov ecx, BASED
    lsl eax, ecx
    EXPECT eax, 0xFFF, "and bytes as they are"
    verr cx
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "verr of data"
    verw cx
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "verw of writable data"
    mov ecx, READ_ONLY
    verw cx
    EXPECT_FLAGS FLAG_Z, 0, "verw of read-only data"
    mov ecx, EXECUTE_ONLY
    verr cx
    EXPECT_FLAGS FLAG_Z, 0, "verr of execute-only code"
    mov ecx, CALL_GATE
    lar eax, ecx
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "lar knows call gates"
    mov eax, 0x77
    lsl eax, ecx
    EXPECT_FLAGS FLAG_Z, 0, "lsl does not"
    EXPECT eax, 0x77, "and leaves its register"
    xor ecx, ecx
    lar eax, ecx
    EXPECT_FLAGS FLAG_Z, 0, "lar of the empty selector"
    mov ecx, DATA|3
    verr cx
    EXPECT_FLAGS FLAG_Z, 0, "verr minds the RPL"
    mov eax, 0x10
    mov ecx, 0x13
    arpl ax, cx
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "arpl raises an RPL"
    EXPECT eax, 0x13, "to the other's"
    arpl ax, cx
    EXPECT_FLAGS FLAG_Z, 0, "and tells when it did not"
    ret

far_transfers:
    call ISLAND:0
    EXPECT ecx, ISLAND, "a far call runs at the segment's base"
    EXPECT edx, 5, "where eip counts from 0"
    mov dword ptr [area], 0x10
    mov word ptr [area+4], ISLAND
    mov ebx, offset 1f
    jmp fword ptr [area]
1:  EXPECT ecx, ISLAND, "a far jump through memory gets there and back"
    call ISLAND16:0x20
    EXPECT ecx, 0xFFFE, "16-bit code: eax was 32 bits, ax alone changed"
    REFUSED EXC_GP, DATA, "a far jump into data", jmp DATA:0
    REFUSED EXC_GP, 0, "a far jump to the empty selector", jmp 0:0
    REFUSED EXC_NP, ABSENT_CODE, "a far call to absent code", call ABSENT_CODE:0
    REFUSED EXC_GP, 0, "a far jump beyond the segment's limit", jmp ISLAND:ISLAND_SIZE
    mov esi, esp
    CHECKED EXC_GP, 0, "a far call beyond the limit", call ISLAND:ISLAND_SIZE
    sub esi, esp
    EXPECT esi, 0, "pushes nothing"
.ifndef QEMU
    mov dword ptr [resume_at], offset 1f
    jmp ISLAND:ISLAND_SIZE-2     # jmp short to the limit's other side
1:  EXPECT [fault_vector], EXC_GP, "a near jump beyond the limit"
    EXPECT [fault_eip], ISLAND_SIZE-2, "faults at the jump"
    mov dword ptr [resume_at], offset 1f
    jmp ISLAND:ISLAND_SIZE-3     # falls off the end: its last byte is missing
1:  EXPECT [fault_eip], ISLAND_SIZE-3, "an instruction that crosses the limit faults at its start"
.endif
    push 0x1234
    push CODE
    push offset 1f
    lret 4
1:  mov eax, esp
    push CODE
    push offset 2f
    lret
2:  sub eax, esp
    EXPECT eax, 0, "retf n releases n bytes"
    ret

stacks:
    DESCRIPTOR STACK16, area, 0xFFFF, SEG_DATA
    mov esi, esp
    mov ecx, STACK
    mov ss, ecx
    mov esp, 0x800
    push 0x55667788
    mov edx, [esp]
    mov ebp, esp
    mov eax, [ebp]
    mov ecx, DATA
    mov ss, ecx
    mov esp, esi
    EXPECT [area+0x7FC], 0x55667788, "push goes to the stack segment's base"
    EXPECT edx, 0x55667788, "and esp reads through it"
    EXPECT eax, 0x55667788, "so does ebp"
    mov ecx, STACK16
    mov ss, ecx
    mov esp, 0xABCD0002          # the upper half must be ignored, and kept
    push ax                      # to offset 0
    push 0x11223344              # wraps to FFFCh
    mov edi, esp
    pop edx
    pop ax
    mov ebp, esp
    mov ecx, DATA
    mov ss, ecx
    mov esp, esi
    EXPECT edi, 0xABCDFFFC, "a 16-bit stack wraps at 64 KiB and keeps esp's upper half"
    EXPECT edx, 0x11223344, "pop wraps back"
    EXPECT ebp, 0xABCD0002, "to where it began"
    EXPECT [area+0xFFFC], 0x11223344, "the word lies at the top"
.ifndef QEMU
    ENTER_RING3
    mov edx, SMALL_STACK3
    mov ss, edx
    mov esp, 0x102
    TRY push eax
    int LEAVE_RING3
    EXPECT_FAULT EXC_SS, 0, "a push beyond the stack's limit"
    EXPECT [fault_esp], 0x102, "leaves esp"
    ENTER_RING3
    mov edx, SMALL_STACK3
    mov ss, edx
    mov ebp, 0x100
    TRY mov eax, [ebp]
    int LEAVE_RING3
    EXPECT_FAULT EXC_SS, 0, "an access through ebp beyond the stack's limit"
.endif
    ret

strings:
    mov dword ptr [area+0x100], 0x64636261
    LOAD fs, BASED
    LOAD es, BASED
    mov esi, 0x100
    mov edi, 0x200
    mov ecx, 4
    rep movsb es:[edi], fs:[esi]
    EXPECT [area+0x200], 0x64636261, "movs reads through an override and writes through es"
    mov esi, 0x100
    mov edi, 0x200
    mov ecx, 4
    repe cmpsb fs:[esi], es:[edi]
    EXPECT_FLAGS FLAG_Z, FLAG_Z, "cmps compares through both"
.ifndef QEMU
    mov edi, 0xFFA
    mov ecx, 4
    mov eax, -1
    TRY rep stosd
    EXPECT_FAULT EXC_GP, 0, "rep stosd running into the limit"
    EXPECT ecx, 3, "ecx counts what is left"
    EXPECT edi, 0xFFE, "edi is at the element that did not fit"
.endif
    LOAD es, DATA
    ret

# Code that runs at the base of ISLAND.
island:
    call 1f
1:  pop edx
    mov ecx, cs
    lret
    .org island + 0x10           # the far jump's target
    mov ecx, cs
    push CODE
    push ebx
    lret
    .org island + 0x20
    .code16
    mov eax, 0xFFFFFFFF
    dec ax
    movzx ecx, ax
    data32 lret
    .code32
    .org island + ISLAND_SIZE - 3
    .byte 0xB9                   # mov ecx, imm32: two of its five bytes are inside
    .byte 0xEB, 0x10             # jmp $+12h
    .org island + ISLAND_SIZE + 0x20

.bss
.align 8
ldt:       .skip 16              # IN_LDT is a copy of BASED
.align 4096
area:      .skip 0x10000
