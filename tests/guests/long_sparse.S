# long_sparse - one frame at thousands of addresses all over 48 bits: each shows it, and a change reaches each
#
# Every entry of four tables leads to the next, and all those of the last to FRAME_A.
.include "guest.inc"
.include "long.inc"

.set ANY_PDPT, FREE_TABLES
.set ANY_PD, FREE_TABLES+0x1000
.set ANY_TABLE, FREE_TABLES+0x2000
.set TOUCHES, 20000
.set VALUE, 0x5152535455565758

long_main:
    cld
    mov edi, ANY_PDPT
    mov eax, ANY_PD + (P|W|U)
    call fill
    mov edi, ANY_PD
    mov eax, ANY_TABLE + (P|W|U)
    call fill
    mov edi, ANY_TABLE
    mov eax, FRAME_A + (P|W|U)
    call fill
    mov ecx, 511                 # all but the first and the last of 512 GiB
    mov eax, ANY_PDPT + (P|W|U)
1:  dec ecx
    jz 2f
    mov [PML4+rcx*8], rax
    jmp 1b
2:  mov rax, cr3
    mov cr3, rax
    mov rax, VALUE
    mov [FRAME_A+0x128], rax
    call each_slot
    call sparse
    call code
    call exchanged
    ret
fill:
    mov ecx, 512
    rep stosq
    ret

each_slot:                       # one address in each 512 GiB
    mov ecx, 1
    xor edi, edi
    mov rdx, VALUE
1:  mov rbx, rcx
    shl rbx, 39
    shl rbx, 16                  # sign-extend bit 47
    sar rbx, 16
    cmp [rbx+0x128], rdx
    je 2f
    inc edi
2:  inc dword ptr [rbx+0x200]
    inc ecx
    cmp ecx, 511
    jb 1b
    EXPECT64 rdi, 0, "each 512 GiB shows the frame"
    mov eax, [FRAME_A+0x200]
    EXPECT64 rax, 510, "and each store reaches it"
    ret

# NEXT: the next address into rbx, from r8
.macro NEXT
    mov rax, 0x9E3779B97F4A7C15
    imul r8, rax
    add r8, 1
    mov rbx, r8
    and bx, 0xF000
    bts rbx, 46                  # neither the first nor the last 512 GiB
    btr rbx, 45
    shl rbx, 16
    sar rbx, 16
.endm
sparse:
    mov dword ptr [FRAME_A+0x200], 0
    mov r8d, 1
    mov ecx, TOUCHES
    xor edi, edi
    mov rdx, VALUE
1:  NEXT
    cmp [rbx+0x128], rdx
    je 2f
    inc edi
2:  inc dword ptr [rbx+0x200]
    dec ecx
    jnz 1b
    EXPECT64 rdi, 0, "so do addresses all over"
    mov eax, [FRAME_A+0x200]
    EXPECT64 rax, TOUCHES, "and each of their stores reaches it"
    mov r8d, 1                   # the same again
    mov ecx, TOUCHES
1:  NEXT
    cmp [rbx+0x128], rdx
    je 2f
    inc edi
2:  dec dword ptr [rbx+0x200]
    dec ecx
    jnz 1b
    EXPECT64 rdi, 0, "the same addresses once more"
    mov eax, [FRAME_A+0x200]
    EXPECT64 rax, 0, "take all of it back"
    ret

code:                            # a function at many addresses
    mov byte ptr [FRAME_A], 0x48 # lea rax, [rip+0]; ret
    mov dword ptr [FRAME_A+1], 0x058D
    mov word ptr [FRAME_A+5], 0
    mov byte ptr [FRAME_A+7], 0xC3
    mov r8d, 1
    mov ecx, 2000
    xor edi, edi
1:  NEXT
    call rbx
    sub rax, 7
    cmp rax, rbx
    je 2f
    inc edi
2:  dec ecx
    jnz 1b
    EXPECT64 rdi, 0, "code runs at each and knows where"
    mov byte ptr [FRAME_A+3], 1  # as if one byte further
    mov r8d, 1
    mov ecx, 2000
1:  NEXT
    call rbx
    sub rax, 8
    cmp rax, rbx
    je 2f
    inc edi
2:  dec ecx
    jnz 1b
    EXPECT64 rdi, 0, "one store changes it at all of them"
    ret

exchanged:
    mov edi, ANY_TABLE
    mov eax, FRAME_B + (P|W|U)
    call fill
    mov rax, cr3
    mov cr3, rax
    mov qword ptr [FRAME_B+0x128], 0x99
    mov r8d, 1
    mov ecx, 2000
    xor edi, edi
1:  NEXT
    cmp qword ptr [rbx+0x128], 0x99
    je 2f
    inc edi
2:  dec ecx
    jnz 1b
    EXPECT64 rdi, 0, "with other entries and a load of cr3 each shows another frame"
    mov qword ptr [ANY_PDPT+8*3], 0
    mov rbx, 3 << 30
    bts rbx, 46
    shl rbx, 16
    sar rbx, 16
    invlpg [rbx]
    TRY64 mov rax, [rbx]
    EXPECT_FAULT64 EXC_PF, 0, "and none where an entry above is gone"
    ret
