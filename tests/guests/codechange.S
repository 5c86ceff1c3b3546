# codechange - code that changes in unusual ways, and under several addresses
#
# After a store through another linear address than the one that runs, a serialising
# instruction (cpuid) stands before the code is run (volume 3, 8.1.3).
.include "guest.inc"

.set DIRECTORY, 0x400000         # two address spaces
.set DIRECTORY2, 0x401000
.set TABLE, 0x402000             # of WINDOW in each
.set TABLE2, 0x403000
.set LOW_TABLES, 0x404000        # two
.set FRAME_A, 0x500000
.set FRAME_B, 0x510000
.set FRAME_C, 0x520000
.set BUFFER, 0x600000
.set WINDOW, 0x40000000
.set WINDOW_PDE, (WINDOW>>22)*4
.set LARGE, 0x40400000           # the first 4 MiB from 400000h, as a large page
.set ROUNDS, 1000
.set P, 1
.set W, 2
.set U, 4
.set A, 0x20
.set PS, 0x80
.set MOV_EAX, 0xB8               # opcodes
.set RET, 0xC3
.set CODE16, FREE                # the whole memory as 16-bit code
.set WATCHED, FREE+8             # a descriptor inside code

.macro SERIALIZE
    pushad
    xor eax, eax
    cpuid
    popad
.endm
# ROUTINE address, value: mov eax, value; ret
.macro ROUTINE address, value
    mov byte ptr [\address], MOV_EAX
    mov dword ptr [\address+1], \value
    mov byte ptr [\address+5], RET
.endm
.macro SPACE directory
    mov eax, \directory
    mov cr3, eax
.endm

main:
    cld
    mov edi, DIRECTORY
    xor eax, eax
    mov ecx, 4*1024
    rep stosd
    mov edi, LOW_TABLES
    mov eax, P|W|U
1:  stosd
    add eax, 4096
    cmp eax, 8 << 20
    jb 1b
    .irp directory, DIRECTORY, DIRECTORY2
    mov dword ptr [\directory], LOW_TABLES + (P|W|U)
    mov dword ptr [\directory+4], LOW_TABLES + 4096 + (P|W|U)
    mov dword ptr [\directory+WINDOW_PDE+4], 0x400000 + (P|W|U|PS)
    .endr
    mov dword ptr [DIRECTORY+WINDOW_PDE], TABLE + (P|W|U)
    mov dword ptr [DIRECTORY2+WINDOW_PDE], TABLE2 + (P|W|U)
    mov eax, cr4
    or eax, CR4_PSE|CR4_OSFXSR
    mov cr4, eax
    SPACE DIRECTORY
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    call own_instruction
    call moving
    call spaces
    call callees
    call both_rings
    call frames
    call two_sizes
    call by_the_processor
    call large_alias
    mov eax, cr0
    and eax, ~CR0_PG
    mov cr0, eax
    ret

own_instruction:
    mov ecx, 3
    xor edx, edx
1:  add byte ptr [1b+6], 1       # its own immediate: 1, 2, 4, 8
    movzx eax, byte ptr [1b+6]
    add edx, eax
    loop 1b
    EXPECT edx, 2+4+8, "an instruction that changes its own operand"
    mov ecx, 2
    xor edx, edx
1:  mov word ptr [1b], 0x07EB    # nine bytes: it becomes a jump over its own rest
    inc edx
    loop 1b
    EXPECT edx, 2, "and one that becomes another"
    ret
moving:                          # a routine that copies itself on and goes on there
    mov edi, BUFFER
    mov esi, offset runner
    mov ecx, runner_end - runner
    rep movsb
    mov ebx, BUFFER
    mov ebp, ROUNDS
    xor edx, edx
    mov dword ptr [kernel_return], offset 1f
    jmp ebx
1:  EXPECT edx, ROUNDS, "code that copies itself before it goes on there"
    mov ebx, BUFFER + 0x20000    # back over its own tracks
    mov edi, ebx
    mov esi, offset runner
    mov ecx, runner_end - runner
    rep movsb
    mov byte ptr [BUFFER+0x20000+runner_step-runner], -17
    mov ebp, ROUNDS
    xor edx, edx
    mov dword ptr [kernel_return], offset 1f
    jmp ebx
1:  EXPECT edx, ROUNDS, "and that moves over itself"
    ret
runner:                          # ebx: here; ebp: how often; edx counts
    inc edx
    dec ebp
    jnz 1f
    jmp dword ptr [kernel_return]
1:  mov esi, ebx
    .byte 0x83, 0xC3             # add ebx, 61
runner_step:
    .byte 61
    mov edi, ebx
    sub esp, 64                  # by way of the stack: the two may overlap
    push edi
    lea edi, [esp+4]
    mov ecx, runner_end - runner
    rep movsb
    pop edi
    mov esi, esp
    mov ecx, runner_end - runner
    rep movsb
    add esp, 64
    jmp ebx
runner_end:

spaces:
    mov dword ptr [TABLE], FRAME_A + (P|W|U)
    mov dword ptr [TABLE2], FRAME_B + (P|W|U)
    SPACE DIRECTORY
    ROUTINE FRAME_A, 1
    ROUTINE FRAME_B, 0x10000
    mov ebp, ROUNDS
    mov ebx, WINDOW
    xor edx, edx
1:  SPACE DIRECTORY
    call ebx
    add edx, eax
    SPACE DIRECTORY2
    call WINDOW
    add edx, eax
    dec ebp
    jnz 1b
    EXPECT edx, ROUNDS*0x10001, "two address spaces with different code at one address"
    mov ebp, ROUNDS
    xor edx, edx
1:  SPACE DIRECTORY
    mov [FRAME_B+1], ebp         # under the space that does not run it
    SPACE DIRECTORY2
    call ebx
    add edx, eax
    dec ebp
    jnz 1b
    EXPECT edx, ROUNDS*(ROUNDS+1)/2, "changed while the other is loaded"
    mov dword ptr [TABLE2], FRAME_A + (P|W|U)
    SPACE DIRECTORY2
    call ebx
    EXPECT eax, 1, "and where they share it"
    SPACE DIRECTORY
    ret

callees:                         # callers stay linked to a page that is exchanged
    mov dword ptr [TABLE+4], FRAME_B + (P|W|U)
    invlpg [WINDOW+0x1000]
    ROUTINE FRAME_B, 0xB0
    ROUTINE FRAME_C, 0xC0
    mov ebp, ROUNDS
    xor edx, edx
1:  xor dword ptr [TABLE+4], FRAME_B^FRAME_C
    invlpg [WINDOW+0x1000]
    mov ecx, 3
2:  call WINDOW+0x1000
    add edx, eax
    loop 2b
    dec ebp
    jnz 1b
    EXPECT edx, 3*ROUNDS/2*(0xB0+0xC0), "a callee's page exchanged again and again"
    mov eax, cr4
    or eax, CR4_PGE
    mov cr4, eax
    mov dword ptr [TABLE+4], FRAME_B + (P|W|U|0x100)
    invlpg [WINDOW+0x1000]
    mov ebp, ROUNDS
    xor edx, edx
1:  call WINDOW+0x1000
    add edx, eax
    xor dword ptr [TABLE+4], FRAME_B^FRAME_C
    invlpg [WINDOW+0x1000]
    call WINDOW+0x1000
    add edx, eax
    dec ebp
    jnz 1b
    EXPECT edx, ROUNDS*(0xB0+0xC0), "a global one too"
    mov ebp, 10
    xor edx, edx
1:  call WINDOW+0x1000
    add edx, eax
    xor dword ptr [TABLE+4], FRAME_B^FRAME_C
    mov eax, cr4
    xor eax, CR4_PGE
    mov cr4, eax
    xor eax, CR4_PGE
    mov cr4, eax
    dec ebp
    jnz 1b
    EXPECT edx, 5*(0xB0+0xC0), "and one dropped through CR4.PGE"
    mov eax, cr4
    and eax, ~CR4_PGE
    mov cr4, eax
    mov byte ptr [FRAME_A+0xFFE], MOV_EAX        # the immediate: one byte here
    mov byte ptr [FRAME_A+0xFFF], 0x11
    mov dword ptr [TABLE+4], FRAME_B + (P|W|U)
    mov dword ptr [FRAME_B], 0xC3BB2222
    mov dword ptr [FRAME_C], 0xC3CC3333
    mov ebp, 10
    xor edx, edx
    mov ebx, WINDOW + 0xFFE
1:  xor dword ptr [TABLE+4], FRAME_B^FRAME_C
    invlpg [WINDOW+0x1000]
    call ebx
    add edx, eax
    dec ebp
    jnz 1b
    EXPECT edx, 5*(0xCC333311+0xBB222211)&0xFFFFFFFF, "an instruction whose second page is exchanged"
    ret

both_rings:
    ROUTINE BUFFER, 1
    mov ebp, 10
    xor edx, edx
    mov ebx, BUFFER
1:  call ebx
    add edx, eax
    ENTER_RING3
    inc dword ptr [BUFFER+1]     # ring 3 writes what ring 0 runs
    call ebx
    add edx, eax
    int LEAVE_RING3
    inc dword ptr [BUFFER+1]     # and the other way round
    dec ebp
    jnz 1b
    EXPECT edx, 20*21/2, "code that two rings write and run in turn"
    ret

frames:                          # of interrupts and calls, over code
    GATE 0x81, frame_handler, 0xEE
    ROUTINE BUFFER, 0
    mov ebx, BUFFER
    call ebx
    mov [kernel_esp], esp
    mov esp, BUFFER + 13         # eflags lie where the immediate was
    int 0x81
frame_return:
    mov esp, [kernel_esp]
    SERIALIZE
    mov byte ptr [BUFFER], MOV_EAX
    mov byte ptr [BUFFER+5], RET
    call ebx
    EXPECT eax, "offset frame_return", "an interrupt's frame pushed over code"
    mov ecx, esp
    lea esp, [ebx+5]
    call 1f
1:  mov esp, ecx
    call ebx
    EXPECT eax, "offset 1b", "a call's too"
    mov dword ptr [tss+TSS_ESP0], BUFFER+21
    ENTER_RING3
    int LEAVE_RING3              # ss, esp, eflags, cs, eip from above
1:
    mov dword ptr [tss+TSS_ESP0], offset ring0_stack_top
    mov byte ptr [BUFFER], MOV_EAX
    mov byte ptr [BUFFER+5], RET
    call ebx
    EXPECT eax, "offset 1b", "and that of an interrupt from ring 3"
    fninit
    fxsave [BUFFER+0x100]
    ROUTINE BUFFER+0x100+24-1, 0
    lea esi, [ebx+0x100+24-1]
    call esi
    mov byte ptr [BUFFER+0x100+24+4], RET
    fxsave [BUFFER+0x100]        # MXCSR becomes the immediate
    mov byte ptr [BUFFER+0x100+23], MOV_EAX
    mov byte ptr [BUFFER+0x100+28], RET
    call esi
    EXPECT eax, 0x1F80, "fxsave over code"
    ret
frame_handler:
    iretd

two_sizes:                       # the same bytes as 32-bit and as 16-bit code
    DESCRIPTOR CODE16, BUFFER, 0xFFFF, SEG_CODE
    mov byte ptr [BUFFER], MOV_EAX
    mov dword ptr [BUFFER+1], 0x90901111         # mov ax, 1111h; nop; nop
    mov word ptr [BUFFER+5], 0xCB66              # retf, of 32 bits
    mov ebp, 3
    xor edx, edx
1:  xor eax, eax
    call CODE16:0
    add edx, eax
    inc word ptr [BUFFER+1]
    dec ebp
    jnz 1b
    EXPECT edx, 0x1111+0x1112+0x1113, "16-bit code that is changed"
    mov byte ptr [BUFFER+5], RET
    mov ebx, BUFFER
    call ebx
    EXPECT eax, 0x90901114, "the same bytes as 32-bit code"
    mov byte ptr [BUFFER+1], 0x77
    call ebx
    EXPECT eax, 0x90901177, "changed as well"
    mov byte ptr [BUFFER+5], 0x66
    xor eax, eax
    call CODE16:0
    EXPECT eax, 0x1177, "and as 16-bit code again"
    ret

by_the_processor:                # bits that it sets by itself, in code
    mov ebx, TABLE+8*4-1         # page 8's entry is the immediate
    ROUTINE TABLE+8*4-1, FRAME_A+(P|W)
    call ebx
    EXPECT eax, FRAME_A+(P|W), "code in a page table"
    invlpg [WINDOW+0x8000]
    mov ecx, [WINDOW+0x8000]
    SERIALIZE
    call ebx
    EXPECT eax, FRAME_A+(P|W|A), "into which paging sets A"
    mov [WINDOW+0x8800], ecx
    SERIALIZE
    call ebx
    EXPECT eax, FRAME_A+(P|W|A|0x40), "and D"
    mov dword ptr [TABLE+8*4], 0
    mov byte ptr [TABLE+8*4-1], 0
    mov byte ptr [TABLE+8*4+4], 0
    DESCRIPTOR WATCHED, 0, 0xFFFFF, SEG_DATA|SEG_BIG|SEG_PAGES
    mov ebx, offset gdt+WATCHED+3                # its upper half is the immediate
    mov byte ptr [gdt+WATCHED+3], MOV_EAX
    mov byte ptr [gdt+WATCHED+8], RET
    call ebx
    EXPECT eax, 0x00CF9200, "code in a descriptor"
    mov ecx, WATCHED
    mov fs, ecx
    SERIALIZE
    call ebx
    EXPECT eax, 0x00CF9300, "in which loading sets the accessed bit"
    xor ecx, ecx
    mov fs, ecx
    mov byte ptr [gdt+WATCHED+8], 0
    ret

large_alias:                     # 4 KiB and 4 MiB pages on the same frame
    mov dword ptr [TABLE], FRAME_A + (P|W|U)
    invlpg [WINDOW]
    ROUTINE FRAME_A, 5
    mov ebx, WINDOW
    mov esi, LARGE + FRAME_A - 0x400000
    call ebx
    call esi
    mov dword ptr [esi+1], 6
    SERIALIZE
    call ebx
    EXPECT eax, 6, "a store through a large page is seen in a small one"
    mov dword ptr [ebx+1], 7
    SERIALIZE
    call esi
    EXPECT eax, 7, "and the other way round"
    mov edi, esi
    mov ecx, 3
    mov eax, 0xB8B8B8B8
    add edi, 1
    stosd
    SERIALIZE
    call ebx
    EXPECT eax, 0xB8B8B8B8, "a string instruction through it too"
    ret
