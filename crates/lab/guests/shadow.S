# The kernel of `tollgate lab shadow`: switches address spaces, and invalidates pages and spaces; 64-bit
# code if WIDE is defined, otherwise 32-bit code. The host enters at one of the routines, each of which
# starts at a multiple of 256 bytes, with the address of the parameters in EBP (RBP). Code and parameters
# are in a global page of the upper half. Interrupts are off, and there is no stack.
#
# At the end the parameters contain the sum of all words that were read, and the cycles of all rounds.

        .intel_syntax noprefix
.ifdef WIDE
        .code64
        .set    A, rax
        .set    POINTER, rbx
        .set    LEFT, rcx
        .set    INDEX, rsi
        .set    SPACES, rdi
        .set    PARAMETERS, rbp
        .set    ENTRY_BYTES, 8
.else
        .set    A, eax
        .set    POINTER, ebx
        .set    LEFT, ecx
        .set    INDEX, esi
        .set    SPACES, edi
        .set    PARAMETERS, ebp
        .set    ENTRY_BYTES, 4
.endif
# Parameters, eight bytes each: the address of a list of CR3 values with a zero at its end; the first
# linear address of the data; the number of its pages that are read; the number of rounds; the address of
# the first page's page-table entry; the address of two values for that entry; the address of an operand
# of INVPCID; the number of pages that are invalidated; and the results.
        .set    P_SPACES, 0
        .set    P_DATA, 8
        .set    P_PAGES, 16
        .set    P_ROUNDS, 24
        .set    P_ENTRY, 32
        .set    P_VALUES, 40
        .set    P_OPERAND, 48
        .set    P_RANGE, 56
        .set    P_SUM, 64
        .set    P_CYCLES, 72

        .set    HYPERCALL_INVALIDATE, 0x544F4C02

        .text
        .globl _start
_start:

# Reads the first word of each page of data.
.macro  touch
        mov     LEFT, [PARAMETERS + P_PAGES]
        test    LEFT, LEFT
        jz      8f
        mov     POINTER, [PARAMETERS + P_DATA]
        xor     eax, eax
9:      add     A, [POINTER]
        add     POINTER, 4096
        dec     LEFT
        jnz     9b
        add     [PARAMETERS + P_SUM], A
8:
.endm

# Begins the rounds, which EDX counts.
.macro  begin
        lfence
        rdtsc
        mov     [PARAMETERS + P_CYCLES], eax
        mov     [PARAMETERS + P_CYCLES + 4], edx
        mov     edx, [PARAMETERS + P_ROUNDS]
        mov     SPACES, [PARAMETERS + P_SPACES]
.endm

.macro  end_rounds
        lfence
        rdtsc
        sub     eax, [PARAMETERS + P_CYCLES]
        sbb     edx, [PARAMETERS + P_CYCLES + 4]
        mov     [PARAMETERS + P_CYCLES], eax
        mov     [PARAMETERS + P_CYCLES + 4], edx
        mov     eax, 1
        out     0xf4, al
        hlt
.endm

# Loads the spaces in turn, and reads all pages in each.
        .balign 256
switch:
        begin
1:      xor     esi, esi
2:      mov     A, [SPACES + INDEX*ENTRY_BYTES]
        test    A, A
        jz      3f
        mov     cr3, A
        touch
        inc     esi
        jmp     2b
3:      dec     edx
        jnz     1b
        end_rounds

# Maps the first page to two frames alternately, invalidates it, and reads all pages.
        .balign 256
invalidate:
        begin
        xor     esi, esi
1:      mov     POINTER, [PARAMETERS + P_VALUES]
        mov     A, [POINTER + INDEX*ENTRY_BYTES]
        mov     POINTER, [PARAMETERS + P_ENTRY]
        mov     [POINTER], A
        mov     POINTER, [PARAMETERS + P_DATA]
        invlpg  [POINTER]
        touch
        xor     esi, 1
        dec     edx
        jnz     1b
        end_rounds

# Only invalidates the first page.
        .balign 256
only_invalidate:
        begin
        mov     POINTER, [PARAMETERS + P_DATA]
1:      invlpg  [POINTER]
        dec     edx
        jnz     1b
        end_rounds

# Invalidates a range of pages one by one, and reads all pages.
        .balign 256
range_by_page:
        begin
1:      mov     POINTER, [PARAMETERS + P_DATA]
        mov     LEFT, [PARAMETERS + P_RANGE]
2:      invlpg  [POINTER]
        add     POINTER, 4096
        dec     LEFT
        jnz     2b
        touch
        dec     edx
        jnz     1b
        end_rounds

# Invalidates a range of pages by one hypercall.
        .balign 256
range_by_call:
        begin
1:      mov     eax, HYPERCALL_INVALIDATE
        mov     POINTER, [PARAMETERS + P_DATA]
        mov     LEFT, [PARAMETERS + P_RANGE]
        vmcall
        touch
        dec     edx
        jnz     1b
        end_rounds

# Invalidates all spaces, and reads all pages in the loaded one.
        .balign 256
purge:
        begin
        mov     esi, 3
1:      mov     POINTER, [PARAMETERS + P_OPERAND]
        invpcid INDEX, [POINTER]
        touch
        dec     edx
        jnz     1b
        end_rounds

# Reads all pages in each space once, untimed; then only in the first two, with all spaces
# invalidated each time.
        .balign 256
twice:
        mov     SPACES, [PARAMETERS + P_SPACES]
        xor     esi, esi
1:      mov     A, [SPACES + INDEX*ENTRY_BYTES]
        test    A, A
        jz      2f
        mov     cr3, A
        touch
        inc     esi
        jmp     1b
2:      begin
        mov     esi, 3
3:      mov     A, [SPACES]
        mov     cr3, A
        touch
        mov     A, [SPACES + ENTRY_BYTES]
        mov     cr3, A
        touch
        mov     POINTER, [PARAMETERS + P_OPERAND]
        invpcid INDEX, [POINTER]
        dec     edx
        jnz     3b
        end_rounds
