# faulting - page faults in the middle of every kind of instruction
#
# Each case is one instruction, or a few, whose operands and stack lie across page
# boundaries. It runs in ring 3: once with all pages there, then with every subset of
# its pages absent, read-only, or the supervisor's. At each fault registers, memory and
# x87 state must be as before the instruction; the page is then given back and the
# instruction resumed. In the end everything must be as without faults, A and D bits too.
.include "guest.inc"

.set DIRECTORY, 0x400000
.set LOW_TABLES, 0x401000        # two
.set TABLE, 0x403000
.set FRAMES, 0x500000            # of page n: 64 KiB apart
.set WINDOW, 0x40000000
.set PAGES, 6                    # two each of source, destination, stack
.set SOURCE, WINDOW+0xFFE        # two bytes below a page boundary
.set TARGET, WINDOW+0x2FFE
.set STACK, WINDOW+0x4FFE
.set REGION, 512                 # bytes that matter on each side of a boundary
.set IMAGE, REGION*PAGES
.set DONE, 0x90
.set P, 1
.set W, 2
.set U, 4
.set A, 0x20
.set D, 0x40
.set IOPL3, 0x3002

# What a case may need in addition to its instruction.
.set PROGRESS, 1                 # repeated: counts and memory move on before a fault
.set BELOW, 2                    # the manual lets it store below esp before a fault
.set GATHERS, 4                  # keeps what it has gathered
.ifdef QEMU
.set IN_PARTS, 2                 # QEMU stores some of it before a fault
.else
.set IN_PARTS, 0
.endif

# What can be wrong; a case's fact shows the sum.
.set BAD_REGISTERS, 1            # at the end: registers, flags, fs
.set BAD_MEMORY, 2
.set BAD_X87, 4
.set BAD_BITS, 8                 # A and D
.set FAULT_REGISTERS, 0x10       # at a fault
.set FAULT_MEMORY, 0x20
.set FAULT_X87, 0x40
.set FAULT_PAGE, 0x80            # of a page that should not have faulted, or its code
.set NO_FAULT, 0x100             # in any subset

# CASE "name", ESP relative to STACK, flags, setup: up to the next CASE.
.macro CASE name, esp=4, flags=0, setup=nothing
    int DONE
    .pushsection .rodata
name_\@:
    .asciz "\name"
    .popsection
    .pushsection .cases, "a"
    .long case_\@, name_\@, STACK+(\esp), \flags, \setup
    .popsection
case_\@:
.endm
.section .cases, "a"
    .align 4
first_case:
.text
.set CASE_CODE, 0
.set CASE_NAME, 4
.set CASE_ESP, 8
.set CASE_FLAGS, 12
.set CASE_SETUP, 16
.set CASE_SIZE, 20

.macro WRONG what
    or dword ptr [wrong], \what
.endm

main:
    cld
    mov edi, DIRECTORY
    mov ecx, 4 * 1024
    xor eax, eax
    rep stosd
    mov edi, LOW_TABLES
    mov eax, P|W|U
1:  stosd
    add eax, 4096
    cmp eax, 8 << 20
    jb 1b
    mov dword ptr [DIRECTORY], LOW_TABLES + (P|W|U)
    mov dword ptr [DIRECTORY+4], LOW_TABLES + 4096 + (P|W|U)
    mov dword ptr [DIRECTORY+(WINDOW>>22)*4], TABLE + (P|W|U)
    mov eax, DIRECTORY
    mov cr3, eax
    mov eax, cr0
    or eax, CR0_PG|CR0_NE|CR0_MP
    mov cr0, eax
    mov eax, cr4
    or eax, CR4_OSFXSR|CR4_OSXMMEXCPT
    mov cr4, eax
    GATE EXC_PF, page_fault
    GATE DONE, done, 0xEE
    mov edi, offset pattern      # bytes without a pattern, none of them zero
    mov eax, 0x2545F491
1:  imul eax, eax, 1664525
    add eax, 1013904223
    mov edx, eax
    shr edx, 16
    or dl, 1
    mov [edi], dl
    inc edi
    cmp edi, offset pattern+IMAGE
    jb 1b
    fninit
    fld1
    fldpi
    fldl2e
    movups xmm0, [pattern]
    movups xmm1, [pattern+16]
    fxsave [x87_start]
    mov eax, 1
    cpuid
    mov dword ptr [last], offset last_case
    mov [features], ecx
    bt ecx, 26                   # XSAVE offered?
    jnc 1f
    mov eax, cr4
    or eax, 0x40000
    mov cr4, eax
    xor ecx, ecx
    xor edx, edx
    mov eax, 3
    xsetbv
    mov dword ptr [last], offset last_xsave_case
    bt dword ptr [features], 28  # AVX?
    jnc 1f
    mov eax, 7
    xor ecx, ecx
    cpuid
    bt ebx, 5                    # AVX2?
    jnc 1f
    mov dword ptr [last], offset last_avx_case
1:  mov ebp, offset first_case
2:  call one_case
    add ebp, CASE_SIZE
    cmp ebp, [last]
    jb 2b
    mov eax, cr0
    and eax, ~CR0_PG
    mov cr0, eax
    ret

# All variants of the case at ebp, with the arithmetic flags clear and set.
one_case:
    mov dword ptr [wrong], 0
    mov dword ptr [faults], 0
    mov dword ptr [flags], IOPL3
1:  mov dword ptr [mask], 0
    mov dword ptr [mode], 0
    call run
    mov esi, offset now          # what it comes to without faults
    mov edi, offset wanted
    mov ecx, RESULT/4
    rep movsd
    call memory_image
    mov edi, offset memory_wanted
    mov ecx, IMAGE/4
    rep movsd
2:  mov dword ptr [mask], 1
3:  call run
    call compare_end
    mov eax, [mask]
    inc eax                      # every subset absent
    cmp dword ptr [mode], 0
    je 4f
    mov eax, [mask]              # each page alone, then all, with the other faults
    add eax, eax
    cmp eax, 1 << PAGES
    jne 4f
    dec eax
4:  mov [mask], eax
    cmp eax, 1 << PAGES
    jb 3b
    inc dword ptr [mode]
    cmp dword ptr [mode], 3
    jb 2b
    xor dword ptr [flags], FLAGS_ARITH
    cmp dword ptr [flags], IOPL3
    jne 1b
    cmp dword ptr [faults], 0
    jne 4f
    WRONG NO_FAULT
4:  push [ebp+CASE_NAME]
    push 0
    push [wrong]
    call check
    ret

# Runs the case at ebp once.
run:
    mov esi, offset pattern
    call put_memory
    push ebp
    call [ebp+CASE_SETUP]
    pop ebp
    call memory_image            # what it begins with
    mov edi, offset memory_start
    mov ecx, IMAGE/4
    rep movsd
    xor ecx, ecx                 # the pages
1:  mov eax, ecx
    shl eax, 16
    add eax, FRAMES+(P|W|U)
    bt [mask], ecx
    jnc 2f
    mov edx, [mode]
    xor eax, mode_bits[edx*4]
2:  mov TABLE[ecx*4], eax
    inc ecx
    cmp ecx, PAGES
    jb 1b
    mov eax, cr3
    mov cr3, eax
    fxrstor [x87_start]
    mov [kernel_esp], esp
    push ebp
    mov dword ptr [begun+28], 0x12345607         # eax
    mov dword ptr [begun+24], 5                  # ecx
    mov dword ptr [begun+20], 0                  # edx
    mov dword ptr [begun+16], SOURCE-5           # ebx: with al, two bytes on
    mov dword ptr [begun+8], STACK               # ebp
    mov dword ptr [begun+4], SOURCE              # esi
    mov dword ptr [begun], TARGET                # edi
    mov eax, [flags]
    mov [begun+32], eax
    mov eax, [ebp+CASE_ESP]
    mov [begun+36], eax
    mov dword ptr [begun+40], 0                  # fs
    pop dword ptr [current]
    push DATA3
    push [begun+36]
    push [flags]
    push CODE3
    push [ebp+CASE_CODE]
    xor eax, eax
    mov fs, eax
    mov eax, DATA3
    mov ds, eax
    mov es, eax
    mov eax, [begun+28]
    mov ecx, [begun+24]
    mov edx, [begun+20]
    mov ebx, [begun+16]
    mov ebp, [begun+8]
    mov esi, [begun+4]
    mov edi, [begun]
    iretd

done:                            # the case has ended
    pushad
    mov ecx, 32
    call note
    fxsave [now+X87]
    mov edx, DATA
    mov fs, edx
    xor edx, edx
    xor ecx, ecx
1:  mov eax, TABLE[ecx*4]
    and eax, A|D
    shl edx, 2
    shr eax, 5
    or edx, eax
    inc ecx
    cmp ecx, PAGES
    jb 1b
    mov [now+BITS], edx
    mov esp, [kernel_esp]
    mov ebp, [current]
    ret

# Keeps registers, flags, esp and fs as the frame holds them: pushad's eight words
# on the stack, then ecx-32 bytes, eip.
note:
    lea esi, [esp+4]
    add ecx, esi
    mov eax, DATA
    mov ds, eax
    mov es, eax
    cld
    mov edi, offset now
    mov edx, ecx
    mov ecx, 8
    rep movsd
    mov dword ptr [now+12], 0    # esp inside the handler
    mov eax, [edx]
    mov [now+EIP], eax
    mov eax, [edx+8]             # eflags
    and eax, ~FLAG_R
    stosd
    mov eax, [edx+12]            # esp
    stosd
    mov eax, fs
    stosd
    ret

page_fault:
    pushad
    mov ecx, 36
    call note
    mov ebp, [current]
    mov ebx, cr2                 # may this page fault, and so?
    sub ebx, WINDOW
    shr ebx, 12
    cmp ebx, PAGES
    jae 9f
    bt [mask], ebx
    jnc 9f
    mov eax, TABLE[ebx*4]
    test eax, D
    jnz 9f
    mov edx, [mode]
    test eax, mode_bits[edx*4]
    mov eax, [esp+32]
    jz 1f
    cmp dword ptr [mode], 0      # absent no more?
    je 9f
1:  mov ecx, eax
    and ecx, PF_PRESENT|PF_USER
    cmp dword ptr [mode], 1
    mov edx, PF_USER
    sbb edx, -1                  # present too, if not absent
    cmp ecx, edx
    jne 9f
    inc dword ptr [faults]
    xor ecx, ecx                 # give it back
    mov edx, [mode]
    mov eax, mode_bits[edx*4]
    xor TABLE[ebx*4], eax
    shl ebx, 12
    invlpg WINDOW[ebx]
    mov eax, [ebp+CASE_CODE]
    test dword ptr [ebp+CASE_FLAGS], PROGRESS
    jnz 3f
    mov esi, offset now
    mov edi, offset begun
    mov ecx, 11
    mov dword ptr [begun+12], 0
    repe cmpsd
    je 2f
    WRONG FAULT_REGISTERS
2:  cmp eax, [now+EIP]
    je 2f
    WRONG FAULT_REGISTERS
2:
    test dword ptr [ebp+CASE_FLAGS], BELOW
    jnz 3f
    call memory_image
    mov edi, offset memory_start
    mov ecx, IMAGE/4
    repe cmpsd
    je 3f
    WRONG FAULT_MEMORY
3:  test dword ptr [ebp+CASE_FLAGS], GATHERS
    jnz 4f
    fxsave [now+X87]
    mov edi, offset x87_start
    call compare_x87
    je 4f
    WRONG FAULT_X87
4:  mov eax, DATA3
    mov ds, eax
    mov es, eax
    popad
    add esp, 4
    iretd
9:  WRONG FAULT_PAGE
    mov esp, [kernel_esp]
    mov ebp, [current]
    ret

compare_end:
    mov esi, offset now
    mov edi, offset wanted
    mov ecx, 11
    repe cmpsd
    je 1f
    WRONG BAD_REGISTERS
1:  call memory_image
    mov edi, offset memory_wanted
    mov ecx, IMAGE/4
    repe cmpsd
    je 1f
    WRONG BAD_MEMORY
1:  mov edi, offset wanted+X87
    call compare_x87
    je 1f
    WRONG BAD_X87
1:  mov eax, [now+BITS]
    cmp eax, [wanted+BITS]
    je 1f
    WRONG BAD_BITS
1:  ret

compare_x87:                     # now+X87 with edi: all but the pointers
    mov esi, offset now+X87
    mov ecx, 2
    repe cmpsd
    jne 1f
    add esi, 16
    add edi, 16
    mov ecx, (288-24)/4
    repe cmpsd
1:  ret

.include "faulting.inc"

.data
mode_bits: .long P, W, U
.bss
.align 64
.set EIP, 44
.set BITS, 48
.set X87, 64
.set RESULT, 64+512
now:           .skip RESULT
wanted:        .skip RESULT
x87_start:     .skip 512
begun:         .skip 44
pattern:       .skip IMAGE
memory_start:  .skip IMAGE
memory_wanted: .skip IMAGE
memory_now:    .skip IMAGE
wrong:         .skip 4
faults:        .skip 4
mask:          .skip 4
mode:          .skip 4
flags:         .skip 4
current:       .skip 4
last:          .skip 4
features:      .skip 4
