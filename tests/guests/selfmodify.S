# selfmodify - code that is written while it runs, or runs after being written
#
# The processor promises that a store to the same linear address takes effect on
# the very next instruction; after a store through another address, a
# serialising instruction (cpuid) stands before the code is run.
.include "guest.inc"

.set BUFFER, 0x400000            # where code is generated
.set PAGES, 0x800000             # page directory and tables
.set TABLE, PAGES+0x2000
.set FRAME_A, 0x500000
.set FRAME_B, 0x501000
.set WINDOW, 0x40000000
.set P_W, 3
.set ROUNDS, 10000
.set MANY, 100000

.set MOV_EAX, 0xB8               # opcodes
.set RET, 0xC3

.macro SERIALIZE                 # keeps registers
    pushad
    xor eax, eax
    cpuid
    popad
.endm

main:
    cld
    call next_instruction
    call own_block
    call shared_line
    call patch_and_call
    call fresh_code
    call kinds_of_stores
    call versions
    call next_in_block
    call beside_code
    call emitted
    call links
    call straddling
    call mapped
    ret

next_instruction:
    mov dword ptr [1f+1], 0x22222222
1:  mov eax, 0x11111111
    EXPECT eax, 0x22222222, "a store changes the next instruction's immediate"
    mov byte ptr [1f], 0x4B      # dec ebx
    mov ebx, 10
1:  inc ebx
    EXPECT ebx, 9, "a store two instructions ahead changes the operation"
    mov dword ptr [1f+1], 0
    mov ecx, 5
    xor edx, edx
2:  inc byte ptr [1f+1]
1:  mov eax, 0
    add edx, eax
    loop 2b
    EXPECT edx, 15, "code that increments its own immediate"
    mov byte ptr [1f+1], 0
    xor eax, eax
    mov byte ptr [1f+1], 5
1:  jmp 2f                       # by 0 bytes
2:  mov eax, 1                   # 5 bytes long
    EXPECT eax, 0, "a store changes the displacement of the next jump"
    ret

own_block:
    mov ecx, 3
    xor eax, eax
1:  add eax, 1                   # this immediate is increased without the program's notice
    nop
    nop
    inc byte ptr [1b+2]
    loop 1b
    EXPECT eax, 1+2+3, "a block that changes its own beginning"
    mov byte ptr [1b+2], 1
    mov esi, offset 2f
    mov edi, offset 1f
    mov ecx, 5
    rep movsb
1:  mov eax, 0x33333333
    EXPECT eax, 0x44444444, "rep movsb right onto the next instruction"
    ret
2:  mov eax, 0x44444444

shared_line:
    mov ecx, ROUNDS
    xor eax, eax
    jmp 1f
    .align 64
1:  inc dword ptr [line_counter]
    add eax, 2
    loop 1b
    jmp 2f
line_counter:
    .long 0
2:  EXPECT [line_counter], ROUNDS, "data in the loop's own line keep count"
    EXPECT eax, 2*ROUNDS, "and the loop is none the worse"
    ret

patch_and_call:
    mov ecx, ROUNDS
    xor edx, edx
1:  mov [patched+1], ecx
    call patched
    add edx, eax
    loop 1b
    EXPECT edx, ROUNDS*(ROUNDS+1)/2, "a routine patched before each of its 10000 calls"
    mov ecx, ROUNDS
    xor edx, edx
2:  mov al, 0x42                 # inc edx or dec edx
    test cl, 3
    jnz 3f
    mov al, 0x4A
3:  mov [patched_operation], al
    call patched_operation
    loop 2b
    EXPECT edx, ROUNDS/2, "and one whose operation alternates"
    ret
    .align 64
patched:
    mov eax, 0
    ret
    .align 64
patched_operation:
    nop
    ret

fresh_code:
    mov edi, BUFFER
    mov ecx, ROUNDS
    xor edx, edx
1:  mov ebx, edi
    mov al, MOV_EAX
    stosb
    mov eax, ecx
    stosd
    mov al, RET
    stosb
    call ebx
    add edx, eax
    add edi, 26                  # every 32 bytes a new routine
    loop 1b
    EXPECT edx, ROUNDS*(ROUNDS+1)/2, "10000 routines generated and run, each at a new place"
    mov ecx, ROUNDS
    xor edx, edx
    mov byte ptr [BUFFER+5], RET
2:  mov [BUFFER+1], ecx
    mov ebx, BUFFER
    call ebx
    add edx, eax
    mov byte ptr [BUFFER], 0x90
    mov byte ptr [BUFFER], MOV_EAX
    loop 2b
    EXPECT edx, ROUNDS*(ROUNDS+1)/2, "and 10000 at the same place"
    mov edi, BUFFER
    mov ecx, 0x1000
    mov al, 0x40                 # a page of inc eax
    rep stosb
    mov byte ptr [edi], RET
    xor eax, eax
    mov ebx, BUFFER
    call ebx
    EXPECT eax, 0x1000, "a page filled with one instruction"
    mov byte ptr [BUFFER+0x800], RET
    xor eax, eax
    call ebx
    EXPECT eax, 0x800, "cut short in its middle"
    ret

# Every kind of store is seen. Each writes into the immediate at `target`.
.macro STORED expected, fact
    call target
    EXPECT eax, "\expected", "\fact"
.endm
kinds_of_stores:
    mov eax, cr4
    or eax, CR4_OSFXSR
    mov cr4, eax
    call target                  # translated before the first store
    mov ebx, offset target+1
    mov eax, 0x01010101
    xchg [ebx], eax
    STORED 0x01010101, "xchg writes code"
    mov eax, 0x01010101
    mov ecx, 0x02020202
    lock cmpxchg [ebx], ecx
    STORED 0x02020202, "lock cmpxchg writes code"
    mov eax, 0x02020202
    mov edx, [ebx+4]
    mov ecx, edx
    push ebx
    mov edi, ebx
    mov ebx, 0x03030303
    cmpxchg8b [edi]
    pop ebx
    STORED 0x03030303, "cmpxchg8b writes code"
    bts dword ptr [ebx], 2
    STORED 0x03030307, "bts writes code"
    fninit
    fld1
    fstp dword ptr [ebx]
    STORED 0x3F800000, "fstp writes code"
    mov eax, 0x04040404
    movd xmm0, eax
    movss [ebx], xmm0
    STORED 0x04040404, "movss writes code"
    mov ecx, esp
    lea esp, [ebx+4]
    push 0x05050505
    mov esp, ecx
    STORED 0x05050505, "push writes code"
    lea esp, [ebx+4]
    call 1f
1:  mov esp, ecx
    STORED "offset 1b", "call writes code"
    mov byte ptr [ebx+3], 0x80
    STORED "offset 1b+0x80000000", "so does a store of one byte"
    mov word ptr [ebx-1], MOV_EAX+0x7700
    mov word ptr [ebx+1], 0x6677
    mov byte ptr [ebx+3], 0x66
    STORED 0x66667777, "and stores that overlap instructions"
    ret
    .align 64
target:
    mov eax, 0
    ret
    nop
    nop

# Code that takes turns: what was translated once may serve again.
versions:
    mov ecx, MANY
    xor edx, edx
1:  mov [many+2], ecx
    call many
    loop 1b
    EXPECT edx, MANY/2*(MANY+1) & 0xFFFFFFFF, "100000 operands, each another"
    mov ecx, 8*ROUNDS
    xor edx, edx
2:  mov eax, ecx                 # add, or, adc, sbb, and, sub, xor and cmp in turns
    and al, 7
    shl al, 3
    or al, 0xC2
    mov [many+1], al
    mov dword ptr [many+2], 3
    mov edx, 0x11
    test al, al                  # clears CF
    call many
    add esi, edx
    test cl, 7
    jnz 4f
    mov ebx, esi                 # the sum of eight results, the same each time
    xor esi, esi
    cmp ecx, 8*ROUNDS
    je 4f
    cmp ebx, 0x14+0x13+0x14+0x0E+1+0x0E+0x12+0x11
    jne 5f
4:  loop 2b
5:  EXPECT ecx, 0, "one of eight operations in turns, 10000 times"
    mov word ptr [many], 0xC281  # add edx, imm32
    mov ecx, ROUNDS
    xor edx, edx
6:  mov dword ptr [lengths], 0x90909042          # inc edx; nop; nop; nop
    mov word ptr [lengths+4], 0xC390             # nop; ret
    call lengths
    mov dword ptr [lengths], 0x0005C281          # add edx, 5
    mov word ptr [lengths+4], 0x0000
    call lengths
    mov dword ptr [lengths], 0xC383C242          # inc edx; ret 0xC383
    mov byte ptr [lengths+1], 0xC3               # inc edx; ret
    call lengths
    loop 6b
    EXPECT edx, 7*ROUNDS, "instructions of other lengths at the same place"
    mov ecx, ROUNDS
    xor edx, edx
    mov dword ptr [distance+1], 0
7:  call distance
    xor byte ptr [distance+1], 2 # over the next instruction, and not
    loop 7b
    EXPECT edx, ROUNDS+ROUNDS/2, "a jump whose distance alternates"
    ret
    .align 64
many:
    add edx, 0x01010101
    ret
    .align 64
lengths:
    nop
    nop
    nop
    nop
    nop
    ret
    ret
    .align 64
distance:
    .byte 0xE9, 0, 0, 0, 0       # jmp
    inc edx
    nop
    inc edx
    ret

# The instruction after the store, in the same block, round after round.
next_in_block:
    mov ecx, ROUNDS
    xor edx, edx
1:  mov [2f+1], ecx
2:  mov eax, 0
    add edx, eax
    loop 1b
    EXPECT edx, ROUNDS*(ROUNDS+1)/2, "10000 stores, each to the next instruction's operand"
    mov ecx, ROUNDS
    xor edx, edx
1:  xor byte ptr [2f], 8         # inc and dec
2:  inc edx
    add edx, 2
    loop 1b
    EXPECT edx, 2*ROUNDS, "and each to its operation"
    mov ecx, ROUNDS
    mov edi, offset 2f+1
1:  mov eax, ecx
    stosd
2:  mov edx, 0
    sub edi, 4
    cmp edx, ecx
    loope 1b
    EXPECT ecx, 0, "and by stosd"
    ret

# Stores of all sizes to data on both sides of code, and up to its first byte.
beside_code:
    mov ecx, ROUNDS
    xor edx, edx
1:  call island
    inc byte ptr [island-1]
    inc word ptr [island-4]
    inc dword ptr [island-8]
    inc dword ptr [island_end]
    loop 1b
    EXPECT edx, ROUNDS, "code among data is none the worse"
    EXPECT [island-8], ROUNDS, "four bytes in front of it"
    EXPECT [island_end], ROUNDS, "and behind it keep count"
    movzx eax, word ptr [island-4]
    EXPECT eax, ROUNDS, "and so do two bytes"
    fninit
    fild dword ptr [island_end]
    fstp tbyte ptr [island-18]
    fld tbyte ptr [island-18]
    fistp dword ptr [island_end+4]
    EXPECT [island_end+4], ROUNDS, "ten bytes in front of it"
    mov dword ptr [island-3], 0x4A000000         # the last byte is dec edx
    call island
    EXPECT edx, ROUNDS-1, "the last byte of a store is the first of the code"
    mov dword ptr [island], 0x0000C342           # inc edx; ret
    mov ecx, ROUNDS
    mov edi, 0x1000 - 2
1:  call island
    mov [BUFFER+0x6000+edi], ecx                 # two pages of data, one next to code
    loop 1b
    EXPECT edx, 2*ROUNDS-1, "stores across pages leave it alone"
    EXPECT "[BUFFER+0x6000+edi]", 1, "and arrive"
    mov edi, offset island_page - 2
    mov byte ptr [edi], 0x11
    mov dword ptr [edi], 0xC34A2211              # dec edx; ret on the next page
    call island_page
    EXPECT edx, 2*ROUNDS-2, "a store across pages that ends in code"
    mov dword ptr [edi], 0xC3422211
    call island_page
    EXPECT edx, 2*ROUNDS-1, "again"
    ret
    .align 64
    .skip 24
island:
    inc edx
    ret
    .skip 3
island_end:
    .long 0, 0
    .align 4096
    .skip 4096
island_page:
    inc edx
    ret

# 1 to 100 instructions emitted over the old ones, and run.
emitted:
    xor ebx, ebx
    xor edx, edx
1:  inc ebx
    mov edi, BUFFER+0x8000
    mov ecx, ebx
2:  mov word ptr [edi], 0xC283   # add edx, imm8
    mov [edi+2], bl
    add edi, 3
    loop 2b
    mov byte ptr [edi], RET
    mov eax, BUFFER+0x8000
    call eax
    cmp ebx, 100
    jne 1b
    EXPECT edx, 338350, "1 to 100 instructions, written by stores"
    mov ebx, 101
    xor edx, edx
1:  dec ebx
    mov edi, BUFFER+0x8000
    mov ecx, ebx
    mov al, 0x42                 # inc edx
    rep stosb
    mov byte ptr [edi], RET
    mov eax, BUFFER+0x8000
    call eax
    cmp ebx, 1
    jne 1b
    EXPECT edx, 5050, "100 to 1 instructions, written by rep stosb"
    ret

links:
    mov ecx, 8
    xor edx, edx
1:  cmp ecx, 4
    jne 2f
    mov byte ptr [2f+1], 3       # over the next two instructions
2:  jmp 3f                       # by 0 bytes
3:  inc edx
    jmp 4f
    add edx, 0x10
4:  loop 1b
    EXPECT edx, 0x44, "a jump in a running loop is given another target"
    mov ecx, 8
    xor edx, edx
1:  cmp ecx, 4
    jne 2f
    mov byte ptr [3f], 0x90      # nop
2:  jmp 3f
    nop
3:  inc edx
    loop 1b
    EXPECT edx, 4, "a jump's target in a running loop is patched"
    mov ecx, 8
    xor edx, edx
1:  cmp ecx, 4
    jne 2f
    mov byte ptr [callee], RET
2:  call callee
    loop 1b
    EXPECT edx, 4, "and so is a callee"
    ret
    .align 64
callee:
    inc edx
    ret

straddling:
    mov edi, BUFFER + 0x2000 - 3
    mov byte ptr [edi], MOV_EAX  # immediate: two bytes here, two on the next page
    mov dword ptr [edi+1], 0x11112222
    mov byte ptr [edi+5], RET
    call edi
    EXPECT eax, 0x11112222, "an instruction on two pages"
    mov word ptr [BUFFER+0x2000], 0x3333
    call edi
    EXPECT eax, 0x33332222, "a store to its second page"
    mov dword ptr [edi+1], 0x44445555
    call edi
    EXPECT eax, 0x44445555, "a store to both"
    mov edi, BUFFER + 0x4000
    mov byte ptr [edi], MOV_EAX
    mov dword ptr [edi+1], 0
    mov byte ptr [edi+5], RET
    call edi
    mov dword ptr [edi-2], 0xBB<<24 | MOV_EAX<<16 | 0x1234
    call edi
    EXPECT eax, 0xBB, "a store from the page before reaches into code"
    ret

mapped:
    mov edi, PAGES
    mov ecx, 0x3000 / 4
    xor eax, eax
    rep stosd
    mov eax, cr4
    or eax, CR4_PSE
    mov cr4, eax
    mov dword ptr [PAGES], 0x80 | P_W            # 4 MiB pages onto themselves
    mov dword ptr [PAGES+4], 0x400000 | 0x80 | P_W
    mov dword ptr [PAGES+8], 0x800000 | 0x80 | P_W
    mov dword ptr [PAGES+(WINDOW>>22)*4], TABLE + P_W
    mov dword ptr [TABLE], FRAME_A + P_W
    mov dword ptr [TABLE+4], FRAME_A + P_W
    mov eax, PAGES
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    mov byte ptr [WINDOW], MOV_EAX
    mov dword ptr [WINDOW+1], 0x11
    mov byte ptr [WINDOW+5], RET
    mov ebx, WINDOW
    mov esi, WINDOW + 0x1000
    SERIALIZE
    call ebx
    call esi
    EXPECT eax, 0x11, "one frame runs at two addresses"
    mov dword ptr [WINDOW+0x1001], 0x22
    SERIALIZE
    call ebx
    EXPECT eax, 0x22, "a store through the other address is seen"
    mov dword ptr [FRAME_A+1], 0x33
    SERIALIZE
    call esi
    EXPECT eax, 0x33, "and one through the third"
    mov dword ptr [FRAME_B], MOV_EAX | 0x4400
    mov word ptr [FRAME_B+4], RET << 8
    mov dword ptr [TABLE], FRAME_B + P_W
    invlpg [WINDOW]
    call ebx
    EXPECT eax, 0x44, "another frame at the address: its code runs"
    call esi
    EXPECT eax, 0x33, "the first still runs at the other"
    mov dword ptr [TABLE], FRAME_A + P_W
    mov eax, cr3
    mov cr3, eax
    call ebx
    EXPECT eax, 0x33, "and after the frames are exchanged by loading cr3"
    mov dword ptr [TABLE], FRAME_A + 1           # read-only
    mov eax, cr0
    or eax, CR0_WP
    mov cr0, eax
    invlpg [WINDOW]
    TRY mov dword ptr [WINDOW+1], 0x55
    EXPECT_FAULT EXC_PF, PF_PRESENT|PF_WRITE, "a store that faults"
    call ebx
    EXPECT eax, 0x33, "changes no code"
    mov eax, cr0
    and eax, ~(CR0_PG|CR0_WP)
    mov cr0, eax
    ret
