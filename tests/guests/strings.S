# strings - string instructions in every width, direction and repetition
.include "guest.inc"

.set LOW, 0x500                  # memory that 16-bit addresses reach
.set SCRATCH_PORT, COM1+7        # the serial port's scratch register

# FILL: bytes 0, 1, 2... at `data`, three pages of them, and then zeros.
.macro FILL
    call fill
.endm
fill:
    pushfd
    pushad
    cld
    mov edi, offset data
    xor eax, eax
1:  stosb
    inc al
    cmp edi, offset data + 0x3000
    jb 1b
    xor eax, eax
    mov ecx, 0x3000 / 4
    rep stosd
    popad
    popfd
    ret
# AT source, destination, count
.macro AT source, destination, count
    mov esi, offset data+\source
    mov edi, offset data+\destination
    mov ecx, \count
.endm
# MOVED source, destination, count, fact: where esi, edi and ecx ended.
.macro ENDED source, destination, count, fact
    EXPECT esi, "offset data+\source", "\fact: esi"
    EXPECT edi, "offset data+\destination", "\fact: edi"
    EXPECT ecx, \count, "\fact: ecx"
.endm

main:
    cld
    FILL
    call moves
    call stores_and_loads
    call scans
    call compares
    call prefixes
    call ports
    call exceptions
    ret

moves:
    AT 0x10, 0x3000, 7
    movsb
    ENDED 0x11, 0x3001, 7, "movsb alone"
    movsw
    ENDED 0x13, 0x3003, 7, "movsw alone"
    movsd
    ENDED 0x17, 0x3007, 7, "movsd alone"
    EXPECT [data+0x3003], 0x16151413, "and their data"
    rep movsb
    ENDED 0x1E, 0x300E, 0, "rep movsb"
    EXPECT [data+0x300A], 0x1D1C1B1A, "and its data"
    EXPECT [data+0x300E], 0, "and no more"
    AT 0, 0x3100, 0
    rep movsd
    ENDED 0, 0x3100, 0, "rep movsd of nothing"
    EXPECT [data+0x3100], 0, "moves nothing"
    AT 0, 0x3100, 1
    rep movsw
    EXPECT [data+0x3100], 0x0100, "rep movsw of one"
    AT 0xFFD, 0x3FFE, 3
    rep movsd
    ENDED 0x1009, 0x400A, 0, "rep movsd across pages"
    EXPECT [data+0x3FFE], 0x00FFFEFD, "the word that straddles"
    EXPECT [data+0x4006], 0x08070605, "and the last"
    FILL
    AT 1, 0x3003, 0x2F00
    rep movsb
    ENDED 0x2F01, 0x5F03, 0, "rep movsb over three pages"
    EXPECT [data+0x5EFF], 0x00FFFEFD, "its last word"
    FILL
    std
    AT 0x20, 0x3020, 3
    rep movsd
    cld
    ENDED 0x14, 0x3014, 0, "rep movsd downwards"
    EXPECT [data+0x3018], 0x1B1A1918, "its last word"
    EXPECT [data+0x3014], 0, "and no more"
    std
    AT 0x1001, 0x4001, 4
    rep movsb
    cld
    ENDED 0xFFD, 0x3FFD, 0, "rep movsb downwards across a page"
    EXPECT [data+0x3FFE], 0x0100FFFE, "its data"
    FILL
    AT 0, 1, 8                   # each byte moved is the next one's source
    rep movsb
    EXPECT [data], 0, "overlapping upwards, the first byte spreads"
    EXPECT [data+6], 0x09000000, "as far as the count"
    FILL
    AT 0, 2, 2
    rep movsd
    EXPECT [data+2], 0x03020100, "overlapping words: the first"
    EXPECT [data+6], 0x07060302, "and the second, of what the first left"
    FILL
    std
    AT 9, 10, 8
    rep movsb
    cld
    EXPECT [data+3], 0x05040302, "overlapping downwards moves as memmove does"
    FILL
    ret

stores_and_loads:
    mov eax, 0x44332211
    AT 0, 0x3001, 3
    rep stosd
    ENDED 0, 0x300D, 0, "rep stosd"
    EXPECT [data+0x3000], 0x33221100, "begins where it should"
    EXPECT [data+0x3009], 0x44332211, "and ends there"
    EXPECT [data+0x300D], 0, "and no more"
    AT 0, 0x3FFD, 6
    rep stosb
    EXPECT [data+0x3FFC], 0x11111100, "rep stosb across a page"
    EXPECT [data+0x4000], 0x00111111, "its other side"
    std
    AT 0, 0x4102, 2
    rep stosw
    cld
    ENDED 0, 0x40FE, 0, "rep stosw downwards"
    EXPECT [data+0x4100], 0x22112211, "its data"
    AT 0x44, 0, 5
    xor eax, eax
    lodsb
    EXPECT eax, 0x44, "lodsb"
    lodsw
    EXPECT eax, 0x4645, "lodsw"
    lodsd
    EXPECT eax, 0x4A494847, "lodsd"
    rep lodsb
    EXPECT eax, 0x4A49484F, "rep lodsb keeps the last"
    ENDED 0x50, 0, 0, "rep lodsb"
    FILL
    ret

scans:
    AT 0, 0, 0x100
    mov al, 0x20
    repne scasb
    ENDED 0, 0x21, 0xDF, "repne scasb that finds"
    EXPECT_FLAGS FLAGS_ARITH, FLAG_Z|FLAG_P, "its flags are the comparison's"
    AT 0, 0, 0x20
    repne scasb
    ENDED 0, 0x20, 0, "repne scasb that does not"
    EXPECT_FLAGS FLAG_Z|FLAG_C, 0, "its flags are the last comparison's"
    AT 0, 0x3000, 0x1800
    xor eax, eax
    repe scasb
    ENDED 0, 0x4800, 0, "repe scasb over pages of zeroes"
    mov dword ptr [data+0x4FFE], 0x12345678
    AT 0, 0x3002, 0x1000
    mov eax, 0x12345678
    repne scasd
    ENDED 0, 0x5002, 0x1000-0x800, "repne scasd finds a word that straddles"
    std
    AT 0, 0x30, 0x30
    mov ax, 0x1110
    repne scasw
    cld
    ENDED 0, 0xE, 0x30-17, "repne scasw downwards"
    mov ecx, 0
    stc
    mov al, 1
    repe scasb
    EXPECT_FLAGS FLAG_C, FLAG_C, "with nothing to do the flags stay"
    FILL
    ret

compares:
    AT 0, 0x100, 0x80            # the bytes repeat every 100h
    repe cmpsb
    ENDED 0x80, 0x180, 0, "repe cmpsb of equals"
    EXPECT_FLAGS FLAGS_ARITH, FLAG_Z|FLAG_P, "its flags"
    mov byte ptr [data+0x1105], 0x0F
    AT 5, 0x1005, 0x1000
    repe cmpsd
    ENDED 0x109, 0x1109, 0x1000-0x41, "repe cmpsd stops behind the difference"
    EXPECT_FLAGS FLAG_Z|FLAG_C, FLAG_C, "and flags which was below"
    AT 0, 1, 0x20
    repne cmpsb
    ENDED 0x20, 0x21, 0, "repne cmpsb of all different"
    std
    AT 0x1107, 0x107, 8
    repe cmpsb
    cld
    ENDED 0x1104, 0x104, 5, "repe cmpsb downwards"
    cmpsb
    ENDED 0x1105, 0x105, 5, "cmpsb alone"
    FILL
    ret

prefixes:
    mov dword ptr [LOW], 0xCAFED00D
    mov ecx, 0x70004
    mov esi, 0x10000|LOW
    mov edi, 0x20000|(LOW+8)
    .byte 0x67                   # with 16-bit addresses: cx, si, di
    rep movsb
    EXPECT [LOW+8], 0xCAFED00D, "rep movsb with 16-bit addresses"
    EXPECT ecx, 0x70000, "counts in cx"
    EXPECT esi, 0x10000|LOW+4, "moves si"
    EXPECT edi, 0x20000|LOW+12, "and di"
    AT 0, 0x3000, 3
    .byte 0xF2                   # repne where it means nothing else than rep
    movsb
    ENDED 3, 0x3003, 0, "repne movsb"
    AT 0x40, 0x3000, 3
    rep nop
    ENDED 0x40, 0x3000, 3, "rep nop"
    call 1f
    EXPECT ecx, 3, "rep ret"
    .byte 0x66, 0xF3, 0xA5       # prefixes in either order
    ENDED 0x46, 0x3006, 0, "66h rep movs"
    AT 0x40, 0x3100, 3
    .byte 0xF3, 0x66, 0xA5
    ENDED 0x46, 0x3106, 0, "rep 66h movs"
    FILL
    ret
1:  rep ret

ports:
    AT 0x55, 0x3000, 2
    mov edx, SCRATCH_PORT
    outsb
    insb
    ENDED 0x56, 0x3001, 2, "outsb and insb"
    EXPECT [data+0x3000], 0x55, "the port had the byte"
    rep outsb
    mov ecx, 3
    rep insb
    ENDED 0x58, 0x3004, 0, "rep outsb and rep insb"
    EXPECT [data+0x3000], 0x57575755, "the port kept the last byte"
    std
    mov ecx, 2
    rep insb
    cld
    ENDED 0x58, 0x3002, 0, "rep insb downwards"
    EXPECT [data+0x3001], 0x57575757, "its data"
    FILL
    ret

exceptions:
    mov ecx, 0
    mov esi, 0xFFFFFFF0
    mov edi, 0xFFFFFFF0
    TRY rep movsd
    EXPECT_NO_FAULT "rep of nothing reaches no memory"
.ifndef QEMU
    mov ecx, 3
    TRY .byte 0xF0, 0xA4         # lock movsb
    EXPECT_FAULT EXC_UD, 0, "string instructions cannot be locked"
.endif
    ret

.bss
.align 4096
data:   .skip 0x6000
