# long_selfmodify - code that is written while it runs, at addresses all over 64 bits and by several names
.include "guest.inc"
.include "long.inc"

.set OTHER_WINDOW, 0x0000500000000000 # WINDOW's low 32 bits, other tables
.set OTHER_PDPT, FREE_TABLES
.set OTHER_PD, FREE_TABLES+0x1000
.set OTHER_TABLE, FREE_TABLES+0x2000
.set LARGE, WINDOW+0x200000
.set LARGE_FRAME, 0x800000

long_main:
    cld
    mov qword ptr [PML4+8*160], OTHER_PDPT+(P|W|U)
    mov qword ptr [OTHER_PDPT], OTHER_PD+(P|W|U)
    mov qword ptr [OTHER_PD], OTHER_TABLE+(P|W|U)
    mov qword ptr [OTHER_TABLE], FRAME_B+(P|W|U)
    mov qword ptr [PD_WINDOW+8], LARGE_FRAME+(P|W|U|PS)
    mov rax, cr3
    mov cr3, rax
    PTE64 0, FRAME_A+(P|W|U)
    PTE64 1, FRAME_B+(P|W|U)
    PTE64 2, FRAME_A+(P|W|U)
    call in_line
    call patched
    call by_other_names
    call exchanged
    call same_low_half
    call stores
    call two_pages
    call rings
    call sizes
    call generated
    ret

# FUNCTION frame, value: mov eax, value; ret
.macro FUNCTION at, value
    mov byte ptr [\at], 0xB8
    mov dword ptr [\at+1], \value
    mov byte ptr [\at+5], 0xC3
.endm

in_line:
    xor ebx, ebx
    mov ecx, 3
1:  mov byte ptr [rip+2f+1], cl  # the immediate two instructions ahead
    nop
2:  mov al, 0x7F
    movzx eax, al
    add ebx, eax
    loop 1b
    EXPECT64 rbx, 6, "an instruction written just before it runs is the new one"
    mov rax, offset 3f + TOP
    jmp rax
3:  mov byte ptr [4f+1], 0x33    # by the address in the lower half
4:  mov al, 0x22
    movzx ebx, al
    mov byte ptr [rip+5f+1], 0x55 # by that in the upper
    jmp 5f
5:  mov cl, 0x44
    movzx ecx, cl
    mov rax, offset 6f
    jmp rax
6:  EXPECT64 rbx, 0x33, "code in the upper half is written through the lower"
    EXPECT64 rcx, 0x55, "and through its own addresses"
    lea rdi, [rip+7f]
    mov rax, 0x9090909090909090
    stosq
    jmp 7f
    .balign 8
7:  .fill 8, 1, 0xF4             # hlt, until written over
    EXPECT64 rax, 0x9090909090909090, "stosq writes the next instructions"
    ret

patched:                         # a function at the window
    mov rbx, WINDOW+0x100
    FUNCTION rbx, 1
    xor edi, edi
    mov ecx, 100
1:  mov [rbx+1], ecx
    call rbx
    cmp eax, ecx
    setne al
    movzx eax, al
    add edi, eax
    loop 1b
    EXPECT64 rdi, 0, "a function returns each value patched into it"
    mov ecx, 100
    mov rsi, offset FRAME_A+0x100+TOP
2:  mov [rsi+1], ecx
    call rbx
    cmp eax, ecx
    setne al
    movzx eax, al
    add edi, eax
    loop 2b
    EXPECT64 rdi, 0, "through another address too"
    mov word ptr [rbx], 0xB848   # mov rax, imm64
    mov rax, 0xFEDCBA9876543210
    mov [rbx+2], rax
    mov byte ptr [rbx+10], 0xC3
    call rbx
    EXPECT64 rax, 0xFEDCBA9876543210, "and becomes longer"
    mov byte ptr [rbx+7], 0x11
    call rbx
    EXPECT64 rax, 0xFEDC119876543210, "a byte of its 64-bit immediate changes"
    ret

by_other_names:                  # one frame at four addresses
    mov dword ptr [FRAME_A], 0xF9058D48 # lea rax, [rip-7]; ret
    mov dword ptr [FRAME_A+4], 0xC3FFFFFF
    mov rbx, WINDOW
    call rbx
    EXPECT64 rax, WINDOW, "code knows where it runs"
    mov rbx, WINDOW+0x2000
    call rbx
    EXPECT64 rax, WINDOW+0x2000, "by another address of the frame"
    mov rbx, FRAME_A+TOP
    call rbx
    EXPECT64 rax, FRAME_A+TOP, "at the top"
    mov ebx, FRAME_A
    call rbx
    EXPECT64 rax, FRAME_A, "and at the bottom"
    mov byte ptr [FRAME_A+3], 0xFA
    mov rbx, WINDOW
    call rbx
    EXPECT64 rax, WINDOW+1, "one store changes it for the first"
    mov rbx, WINDOW+0x2000
    call rbx
    EXPECT64 rax, WINDOW+0x2001, "the second"
    mov rbx, FRAME_A+TOP
    call rbx
    EXPECT64 rax, FRAME_A+TOP+1, "and the third"
    ret

exchanged:                       # the page under the code
    FUNCTION FRAME_A, 0xA
    FUNCTION FRAME_B, 0xB
    mov rbx, WINDOW
    xor edi, edi
    mov ecx, 50
1:  mov qword ptr [TABLE], FRAME_A+(P|W|U)
    invlpg [rbx]
    call rbx
    cmp eax, 0xA
    setne al
    movzx eax, al
    add edi, eax
    mov qword ptr [TABLE], FRAME_B+(P|W|U)
    invlpg [rbx]
    call rbx
    cmp eax, 0xB
    setne al
    movzx eax, al
    add edi, eax
    loop 1b
    EXPECT64 rdi, 0, "an exchanged page brings its own code"
    PTE64 0, FRAME_A+(P|W|U)|XD
    mov rbp, rsp
    TRY64 call rbx
    mov rsp, rbp
    EXPECT64 [fault_vector], EXC_PF, "code that ran does not with XD"
    PTE64 0, FRAME_A+(P|W|U)
    call rbx
    EXPECT64 rax, 0xA, "and runs again"
    ret

same_low_half:
    FUNCTION FRAME_A, 0xA
    FUNCTION FRAME_B, 0xB
    mov rbx, WINDOW
    mov rsi, OTHER_WINDOW
    xor edi, edi
    mov ecx, 200
1:  call rbx
    add edi, eax
    xchg rbx, rsi                # one call instruction for both
    loop 1b
    EXPECT64 rdi, 100*0xA+100*0xB, "addresses that differ above 32 bits alone are different code"
    mov rbx, FRAME_B+TOP
    mov rsi, FRAME_A
    mov r8, WINDOW
    mov r9, OTHER_WINDOW
    xor edi, edi
    mov ecx, 200
2:  push offset 3f
    push rbx
    ret                          # the same with a return
3:  shl rdi, 1
    cmp eax, 0xA
    sete al
    movzx eax, al
    or edi, eax
    mov rax, rbx
    mov rbx, rsi
    mov rsi, r8
    mov r8, r9
    mov r9, rax
    loop 2b
    EXPECT64 rdi, 0x66666666, "returns find all four too"
    ret

.macro STORE fact, value, instruction:vararg
    FUNCTION FRAME_A, 0x11111111
    mov rbx, WINDOW
    call rbx
    \instruction
    call rbx
    EXPECT64 rax, \value, "\fact"
.endm
stores:
    mov rbp, offset FRAME_A+TOP
    mov r8d, 0x22222222
    STORE "a store of r8d", 0x22222222, mov [rbp+1], r8d
    STORE "of one byte", 0x11115511, mov byte ptr [rbp+2], 0x55
    STORE "lock add", 0x33333333, lock add [rbp+1], r8d
    mov r9, rsp
    STORE "a push", 0x00112233, call pushing
    mov rax, 0xC300445566B8
    movq xmm5, rax
    STORE "SSE", 0x00445566, movq [rbp], xmm5
    mov rax, 0x00C3778899AAB890
    mov [source], rax
    STORE "movsq", 0x778899AA, call moving
    mov rax, 0xC3778899ABB890
    mov [source], rax
    STORE "rep movsb", 0x778899AB, call moving_bytes
    UNLESS_OFFERED HAS_CMPXCHG16B, 1f
    STORE "cmpxchg16b", 0x12345678, call comparing
1:
    STORE "xchg", 0x22222222, xchg [rbp+1], r8d
    STORE "btc", 0x11111110, btc dword ptr [rbp+1], 0
    STORE "a store across its beginning", 0x1111113C, call across
    mov rcx, LARGE+0x1234        # code in a 2 MiB page
    FUNCTION rcx, 0x71
    call rcx
    mov dword ptr [LARGE_FRAME+0x1235], 0x72
    call rcx
    EXPECT64 rax, 0x72, "code in a 2 MiB page is written through its frame"
    ret
pushing:
    mov rdx, rsp
    lea rsp, [rbp+8]
    mov rax, 0xC300112233B8
    push rax
    mov rsp, rdx
    ret
moving:
    mov esi, offset source
    mov rdi, rbp
    movsq
    ret
moving_bytes:
    mov esi, offset source
    mov rdi, rbp
    mov ecx, 8
    rep movsb
    ret
comparing:
    push rbx
    mov rax, [rbp]
    mov rdx, [rbp+8]
    mov rbx, 0xC312345678B8
    mov rcx, rdx
    lock cmpxchg16b [rbp]
    pop rbx
    ret
across:
    PTE64 4, FRAME_C+(P|W)
    PTE64 5, FRAME_A+(P|W)
    mov rdx, WINDOW+0x4FFE
    mov dword ptr [rdx], 0x3CB80000
    ret

two_pages:                       # mov eax, imm32; ret over WINDOW+0x1000
    FUNCTION FRAME_A+0xFF0, 0
    mov rbx, WINDOW+0xFFD
    FUNCTION rbx, 0x11223344
    call rbx
    EXPECT64 rax, 0x11223344, "an instruction in two pages"
    mov byte ptr [FRAME_B], 0x99
    call rbx
    EXPECT64 rax, 0x11993344, "its second part is written through the frame"
    mov byte ptr [FRAME_A+0xFFE], 0x88
    call rbx
    EXPECT64 rax, 0x11993388, "and its first"
    mov byte ptr [FRAME_C], 0x77
    mov byte ptr [FRAME_C+1], 0x66
    mov byte ptr [FRAME_C+2], 0xC3
    PTE64 1, FRAME_C+(P|W|U)
    call rbx
    EXPECT64 rax, 0x66773388, "its second page is exchanged"
    PTE64 1, 0
    mov rbp, rsp
    TRY64 call rbx
    mov rsp, rbp
    EXPECT64 [fault_eip], WINDOW+0xFFD, "without it the instruction faults"
    EXPECT64 [fault_cr2], WINDOW+0x1000, "with that page's address"
    PTE64 1, FRAME_B+(P|W|U)
    call rbx
    EXPECT64 rax, 0x11993388, "and it comes back"
    ret

rings:
    FUNCTION FRAME_A, 0x31
    mov rbx, WINDOW
    call rbx
    ENTER_RING3_64
    call rbx
    mov r8, rax
    mov dword ptr [rbx+1], 0x32
    call rbx
    int LEAVE_RING3
    EXPECT64 r8, 0x31, "ring 3 runs the same code"
    EXPECT64 rax, 0x32, "and writes it"
    call rbx
    EXPECT64 rax, 0x32, "for ring 0 too"
    ret

sizes:                           # 48 C7 C0 imm32 / dec eax; mov eax, imm32
    mov dword ptr [FRAME_A], 0xC0C748
    mov dword ptr [FRAME_A+3], -2
    mov byte ptr [FRAME_A+7], 0xC3
    xor edi, edi
    mov r12d, 20
1:  mov eax, 5
    mov ebx, FRAME_A
    call rbx
    cmp rax, -2
    setne al
    movzx eax, al
    add edi, eax
    mov rbp, rsp
    jmp fword ptr [narrow]
.code32
in_32_bits:
    mov eax, DATA
    mov ss, eax
    mov eax, 5
    call ebx
    jmp CODE64:2f
.code64
2:  mov ecx, DATA64
    mov ss, ecx
    mov rsp, rbp
    mov ecx, 0xFFFFFFFE
    cmp rax, rcx
    setne al
    movzx eax, al
    add edi, eax
    dec r12d
    jnz 1b
    EXPECT64 rdi, 0, "the same bytes at one address are other code in compatibility mode"
    ret

generated:                       # functions all over a frame, made and called
    mov r13, WINDOW
    xor edi, edi
    mov r12d, 1000
1:  imul ebx, r12d, 64
    and ebx, 0xFC0
    lea rbx, [r13+rbx]
    mov word ptr [rbx], 0xB849   # mov r8, imm64
    lea rax, [r12*8]
    bts rax, 32
    mov [rbx+2], rax
    mov dword ptr [rbx+10], 0xC3C0894C # mov rax, r8; ret
    mov [expected], rax
    xor eax, eax
    call rbx
    cmp rax, [expected]
    setne al
    movzx eax, al
    add edi, eax
    dec r12d
    jnz 1b
    EXPECT64 rdi, 0, "a thousand functions are made and called"
    ret

.data
.align 8
narrow:   .long in_32_bits
          .word CODE
.bss
.align 16
source:   .skip 16
expected: .skip 8
.text
