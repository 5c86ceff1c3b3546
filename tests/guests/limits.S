# limits - segment limits and types at every kind of access
#
# QEMU's TCG checks neither limits nor types at accesses (volume 3, 5.3 and 5.4), so
# those facts are left out for it.
.include "guest.inc"

.set UP, FREE                    # 0-FFFh of `area`
.set DOWN, FREE+8                # expand-down, 32-bit: 1000h-FFFFFFFFh
.set DOWN16, FREE+16             # expand-down, 16-bit: 1000h-FFFFh
.set DOWN_ALL, FREE+24           # expand-down with nothing in it
.set EXECUTE_ONLY, FREE+32       # code that cannot be read: 0-FFFh of `area`
.set READ_ONLY, FREE+40
.set SHORT_CODE, (FREE+48)|3         # code: `island` alone
.set CODE_AGAIN, FREE+80         # readable code, 0-FFFh of `area`
.set EXECUTE_ONLY_ISLAND, FREE+88
.set ISLAND_SIZE, 0x40

.macro LOAD register, selector
    mov eax, \selector
    mov \register, eax
.endm
.macro REFUSED vector, fact, instruction:vararg
    TRY \instruction
    EXPECT_FAULT \vector, 0, "\fact"
.endm

# ACCESS size, writes, "name": the instruction that follows accesses gs:[esi].
.macro ACCESS size, writes, name
    ret
    .pushsection .rodata
name_\@:
    .asciz "\name"
    .popsection
    .pushsection .accesses, "a"
    .long access_\@, \size, \writes, name_\@
    .popsection
access_\@:
.endm
.section .accesses, "a"
    .align 4
first_access:
.text
    ACCESS 1, 0, "a byte read"
    mov al, gs:[esi]
    ACCESS 2, 0, "a word read"
    movzx eax, word ptr gs:[esi]
    ACCESS 4, 0, "a doubleword read"
    add eax, gs:[esi]
    ACCESS 4, 0, "a push from memory"
    push gs:[esi]
    pop eax
    ACCESS 4, 0, "lods"
    lodsd eax, gs:[esi]
    ACCESS 4, 0, "jmp through memory"
    jmp dword ptr gs:[esi]
    ACCESS 6, 0, "les"
    les eax, gs:[esi]
    ACCESS 8, 0, "a quadword read"
    movq xmm0, gs:[esi]
    ACCESS 8, 0, "bound"
    bound ebx, gs:[esi]
    ACCESS 10, 0, "fld of 80 bits"
    fld tbyte ptr gs:[esi]
    ACCESS 16, 0, "a read of 16 bytes"
    movups xmm0, gs:[esi]
    ACCESS 1, 1, "a byte store"
    mov gs:[esi], al
    ACCESS 2, 1, "a word exchange"
    xchg gs:[esi], ax
    ACCESS 4, 1, "a shift"
    shl dword ptr gs:[esi], 1
    ACCESS 4, 1, "a pop to memory"
    push 0
    pop gs:[esi]
    ACCESS 6, 1, "sgdt"
    sgdt gs:[esi]
    ACCESS 8, 1, "cmpxchg8b"
    cmpxchg8b gs:[esi]
    ACCESS 10, 1, "an 80-bit store"
    fstp tbyte ptr gs:[esi]
    ACCESS 16, 1, "a store of 16 bytes"
    movups gs:[esi], xmm0
    ACCESS 28, 1, "fnstenv"
    fnstenv gs:[esi]
    ACCESS 108, 1, "fnsave"
    fnsave gs:[esi]
    ret
.section .accesses
last_access:
.text

main:
    DESCRIPTOR UP, area, 0xFFF, SEG_DATA|SEG_BIG
    DESCRIPTOR DOWN, area-0x2000, 0xFFF, 0x96|SEG_BIG
    DESCRIPTOR DOWN16, area-0x2000, 0xFFF, 0x96
    DESCRIPTOR DOWN_ALL, 0, 0xFFFFF, 0x96|SEG_BIG|SEG_PAGES
    DESCRIPTOR EXECUTE_ONLY, area, 0xFFF, 0x98|SEG_BIG
    DESCRIPTOR READ_ONLY, area, 0xFFF, 0x90|SEG_BIG
    DESCRIPTOR SHORT_CODE, island, ISLAND_SIZE-1, SEG_CODE|SEG_RING3|SEG_BIG
    DESCRIPTOR CODE_AGAIN, area, 0xFFF, SEG_CODE|SEG_BIG
    DESCRIPTOR EXECUTE_ONLY_ISLAND, island, ISLAND_SIZE-1, 0x98|SEG_BIG
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
    LOAD fs, UP
    mov al, fs:[0xFFF]
    mov eax, fs:[0xFFC]
    EXPECT eax, 0, "the last bytes within the limit can be read"
.ifndef QEMU
    call limits
    call types
    call code_ends
.endif
    ret

.ifndef QEMU
# SEGMENT selector, lowest, highest, writable, " name": all accesses to it.
.macro SEGMENT selector, low, high, writable, name
    LOAD gs, \selector
    mov dword ptr [lowest], \low
    mov dword ptr [highest], \high
    mov dword ptr [writable], \writable
    mov dword ptr [segment_name], offset segment_\@
    .pushsection .rodata
segment_\@:
    .asciz "\name"
    .popsection
    call all_accesses
.endm
limits:
    SEGMENT UP, 0, 0xFFF, 1, " within a data segment's limit"
    SEGMENT DOWN, 0x1000, 0xFFFFFFFF, 1, " within an expand-down segment"
    SEGMENT DOWN16, 0x1000, 0xFFFF, 1, " within a 16-bit expand-down segment"
    SEGMENT READ_ONLY, 0, 0xFFF, 0, " within a read-only segment, stores nowhere"
    SEGMENT CODE_AGAIN, 0, 0xFFF, 0, " within a readable code segment, stores nowhere"
    LOAD gs, DOWN_ALL
    REFUSED EXC_GP, "an expand-down segment with the highest limit is empty", mov al, gs:[0]
    REFUSED EXC_GP, "to its top", mov al, gs:[0xFFFFFFFF]
    ret

all_accesses:
    mov ebp, offset first_access
1:  mov dword ptr [wrong], 0
    mov edx, [ebp+8]             # stores where none are allowed?
    mov eax, [writable]
    xor eax, 1
    and edx, eax
    mov ecx, [ebp+4]             # size
    mov esi, [lowest]
    call probe
    mov esi, [highest]
    sub esi, ecx
    inc esi
    call probe
    mov edx, 1
    cmp dword ptr [highest], -1  # what wraps is another matter
    je 3f
    mov ebx, ecx                 # across the end, and after it
2:  inc esi
    call probe
    dec ebx
    jnz 2b
3:  mov esi, [lowest]
    mov ebx, ecx
    cmp esi, 0
    jne 4f
    mov ebx, 1                   # what wraps, again
    sub esi, ecx
    inc esi
    jnz 4f
4:  dec esi                      # before the beginning, and across
    call probe
    dec ebx
    jnz 4b
    mov edi, offset fact_name
    mov esi, [ebp+12]
    call append
    mov esi, [segment_name]
    call append
    push offset fact_name
    push 0
    push [wrong]
    call check
    add ebp, 16
    cmp ebp, offset last_access
    jb 1b
    ret
append:
    lodsb
    mov [edi], al
    inc edi
    test al, al
    jnz append
    dec edi
    ret

# Does the access at ebp, at gs:[esi], raise #GP(0) if edx is 1, and run through if 0?
probe:
    pushad
    fninit
    mov [esp_now], esp
    cmp dword ptr [ebp+8], 0
    jne 1f
    call fill
1:  mov ebx, offset probed
    mov dword ptr [resume_at], offset probed
    mov dword ptr [fault_vector], NONE
    push offset probed
    jmp [ebp]
probed:
    mov dword ptr [resume_at], 0
    mov esp, [esp_now]
    mov eax, DATA
    mov es, eax
    mov edx, [esp+20]
    mov eax, NONE
    test edx, edx
    jz 1f
    mov eax, EXC_GP
1:  cmp eax, [fault_vector]
    je 2f
    or dword ptr [wrong], esi
    or dword ptr [wrong], 1
2:  test edx, edx
    jz 3f
    mov eax, [fault_error]
    or [wrong], eax
3:  popad
    ret
# At gs:[esi]: an address that can be jumped to, a selector, bounds.
fill:
    cmp edx, 0
    jne 1f
    mov ecx, gs                  # flat, since the segment may be read-only
    mov edi, gdt[ecx+2]
    and edi, 0xFFFFFF
    add edi, esi
    mov eax, offset probed
    cmp dword ptr [ebp+4], 4
    jb 2f
    mov [edi], eax
    cmp dword ptr [ebp+4], 6
    jb 2f
    mov word ptr [edi+4], DATA
    jne 2f
2:  cmp dword ptr [ebp+4], 8
    jne 1f
    mov dword ptr [edi], 0
    mov dword ptr [edi+4], 0x7FFFFFFF
1:  ret

types:
    LOAD fs, READ_ONLY
    REFUSED EXC_GP, "stos through a read-only segment, by override or not", mov fs:[0x10], al
    LOAD es, READ_ONLY
    mov edi, 0
    REFUSED EXC_GP, "stos into it", stosb
    mov ecx, 0
    TRY rep stosb
    EXPECT_NO_FAULT "though not if it repeats no time"
    LOAD es, DATA
    mov ecx, 1
    REFUSED EXC_GP, "a cmpxchg that fails writes too", cmpxchg fs:[0x10], ecx
    REFUSED EXC_GP, "and so does bts of a bit that is set", bts dword ptr fs:[0], ecx
    TRY bt dword ptr fs:[0], ecx
    EXPECT_NO_FAULT "bt does not"
    mov dword ptr [resume_at], offset 1f
    jmp EXECUTE_ONLY_ISLAND:island_read-island
1:  EXPECT [fault_vector], EXC_GP, "execute-only code cannot read itself"
    EXPECT [fault_eip], island_read-island, "at that instruction"
    ret

code_ends:                       # in ring 3, whose stack an exception leaves alone
    .irp way, register, memory, direct, return, loop, jcc
    mov eax, 0x1000
    mov ecx, 5
    mov dword ptr [area], 0x1000
    mov dword ptr [area+0xFC], 0x5A5A5A5A
    mov dword ptr [area+0x100], 0x1000
    ENTER_RING3
    mov esp, offset area+0x100
    stc
    mov dword ptr [resume_at], island_leave-island
    mov dword ptr [fault_vector], NONE
    mov dword ptr [leave_to], offset 1f
    mov word ptr [leave_to+4], CODE3
    jmp SHORT_CODE:island_\way-island
1:  int LEAVE_RING3
    EXPECT [fault_vector], EXC_GP, "a near transfer beyond the limit (\way)"
    EXPECT [fault_error], 0, "has error code 0 (\way)"
    EXPECT [fault_eip], island_\way-island, "faults where it stands (\way)"
    EXPECT ecx, 5, "counts nothing (\way)"
    EXPECT [fault_esp], "offset area+0x100", "keeps esp (\way)"
    EXPECT [area+0xFC], 0x5A5A5A5A, "and stores nothing (\way)"
    .endr
    ret
.endif

.align 64
island:
island_register:
    call eax
island_memory:
    call dword ptr [area]
island_direct:
    call island+0x1000
island_return:
    ret
island_loop:
    loop island+ISLAND_SIZE+0x10
island_jcc:
    jc island+ISLAND_SIZE+0x10
island_leave:
    jmp fword ptr [leave_to]
island_read:
    mov al, cs:[island_read-island]
    .org island + ISLAND_SIZE + 0x40

.bss
.align 4096
           .skip 0x3000          # what lies below the expand-down segments
area:      .skip 0x10000
lowest:    .skip 4
highest:   .skip 4
writable:  .skip 4
segment_name: .skip 4
wrong:     .skip 4
leave_to:  .skip 8
fact_name: .skip 128
