# The guest of `tollgate cost`: takes each kind of exit many times and stores readings
# of the time-stamp counter. It is loaded at IMAGE and entered there in real mode. The
# host writes a command; the guest executes it and returns control by writing to the
# debug exit port. Labels are linear addresses in every mode.

.include "cost.inc"
.include "kinds.inc"

.section .head, "ax"
.code16
    jmp start
    .balign 8
    .long table, table_end, HYPERCALL_NULL, HYPERCALL_VERSION, calls, calls_end

start:
    cli
    cld
    xor ax, ax
    mov ds, ax
    mov ss, ax
    mov sp, STACK
    jmp 0:1f
1:  mov al, 0xFF                 # mask all interrupts of both 8259s
    out 0x21, al
    out 0xA1, al
    mov eax, 1
    cpuid
    mov [FEATURES], ecx
    mov eax, 7
    xor ecx, ecx
    cpuid
    mov [FEATURES + 4], ebx
    mov eax, 0x210               # OSFXSR, PSE
    cmp dword ptr [MODE], 4
    jb 3f
    mov eax, 0x220               # OSFXSR, PAE
    and ebx, 1                   # FSGSBASE, if it exists
    shl ebx, 16
    or eax, ebx
3:  mov cr4, eax
    cmp dword ptr [MODE], 0
    jne to_protected_mode
    xor bx, bx                   # the vectors of real mode
2:  mov word ptr [bx], offset unexpected16
    mov word ptr [bx+2], 0
    add bx, 4
    cmp bx, 1024
    jne 2b
    mov word ptr [RETURNING_VECTOR*4], offset returning16
    mov word ptr [ONE_WAY_VECTOR*4], offset one_way16
    mov word ptr [0*4], offset one_way16
    mov word ptr [6*4], offset one_way16
    mov ax, SAMPLES >> 4
    mov es, ax
main16:
    TO_HOST READY
    xor edi, edi
    mov ebp, [COUNT]
    mov dword ptr [DONE], 0
    call word ptr [ENTRY]
    cli
    jmp main16

returning16:
    iret
one_way16:
    add sp, 6
    jmp bx
far16:
    retf
unexpected16:
    pop dword ptr [FRAME]
    TO_HOST UNEXPECTED
    jmp unexpected16

to_protected_mode:
    lgdt [gdt_pointer]
    mov eax, cr0
    or al, 1
    mov cr0, eax
    jmp CODE:start32

.section .text16, "ax"
.code16
    COMMON_KINDS IN_REAL, 0, SCRATCH16, cx, e
    TRANSFER_KINDS IN_REAL, 0, 0, cx, far16

.section .text32, "ax"
.code32
start32:
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov fs, eax
    mov gs, eax
    mov esp, STACK
    cmp dword ptr [MODE], 4
    jae start64
    mov edi, IDT
    mov ecx, 256
    mov ebx, offset unexpected
1:  call set_gate
    loop 1b
    mov ebx, offset divide_error
    mov edi, IDT + 0*8
    call set_gate
    mov ebx, offset one_way
    mov edi, IDT + 6*8
    call set_gate
    mov edi, IDT + ONE_WAY_VECTOR*8
    call set_gate
    mov edi, IDT + TIMER_VECTOR*8
    call set_gate
    mov edi, IDT + IPI_VECTOR*8
    call set_gate
    mov edi, IDT + DEVICE_VECTOR*8
    call set_gate
    mov ebx, offset page_fault
    mov edi, IDT + 14*8
    call set_gate
    mov ebx, offset returning
    mov edi, IDT + 0xFF*8        # the vector of spurious interrupts
    call set_gate
    mov edi, IDT + RETURNING_VECTOR*8
    call set_gate
    mov byte ptr [edi - 3], 0xEE # ring 3 may use it too
    lidt [idt_pointer]
    mov ax, TSS
    ltr ax
    mov ecx, 0x174               # SYSENTER: CS, ESP, EIP
    xor edx, edx
    mov eax, CODE
    wrmsr
    inc ecx
    mov eax, RING0_STACK
    wrmsr
    inc ecx
    mov eax, offset system_call
    wrmsr
    mov dword ptr [LOCAL_APIC + 0xF0], 0x1FF
    mov dword ptr [LOCAL_APIC + 0x80], 0
    mov dword ptr [LOCAL_APIC + 0x3E0], 0xB
    mov dword ptr [LOCAL_APIC + 0x320], TIMER_VECTOR
    cmp dword ptr [MODE], 2
    jb main32
    mov edi, PAGE_TABLE          # identity mapping of the first 4 MiB
    mov eax, 7                   # present, writable, accessible from all rings
2:  stosd
    add eax, 0x1000
    cmp eax, 0x400007
    jne 2b
    mov dword ptr [PAGE_TABLE + (UNMAPPED >> 12)*4], 0
    mov dword ptr [PAGE_TABLE + ((SPLIT + 4) >> 12)*4], ELSEWHERE + 7
    mov dword ptr [PAGE_DIRECTORY], PAGE_TABLE + 7
    mov dword ptr [PAGE_DIRECTORY + (LOCAL_APIC >> 22)*4], (LOCAL_APIC & 0xFFC00000) + 0x97
    mov dword ptr [PAGE_DIRECTORY + (VIRTIO >> 22)*4], (VIRTIO & 0xFFC00000) + 0x97
    mov eax, PAGE_DIRECTORY
    mov cr3, eax
    mov eax, cr0
    or eax, 0x80000000
    mov cr0, eax
    jmp 3f
3:  cmp dword ptr [MODE], 3
    jb main32
    mov eax, DATA3
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    push DATA3
    push STACK
    push 0x3002                  # IOPL 3, so that ports, CLI and STI stay allowed
    push CODE3
    push offset main32
    iret

main32:
    TO_HOST READY
    mov edi, SAMPLES
    mov ebp, [COUNT]
    mov dword ptr [DONE], 0
    call [ENTRY]
    cli
    jmp main32

set_gate:                        # EBX is the handler, EDI the gate; EDI moves to the next one
    mov [edi], bx
    mov word ptr [edi+2], CODE
    mov word ptr [edi+4], 0x8E00
    mov eax, ebx
    shr eax, 16
    mov [edi+6], ax
    add edi, 8
    ret

    .balign 64
returning:
    iret
    .balign 64
one_way:
    add esp, 12
    jmp ebx
    .balign 64
page_fault:                      # EBX: drop the frame and jump there; 0: return to ECX
    add esp, 4
divide_error:
    test ebx, ebx
    jz 1f
    add esp, 12
    jmp ebx
1:  mov [esp], ecx
    iret
    .balign 64
system_call:
    sysexit
far32:
    retf
unexpected:
    mov esi, esp
    mov edi, FRAME
    mov ecx, 6
    rep movsd
    mov eax, cr2
    stosd
    TO_HOST UNEXPECTED
    jmp unexpected

# A small bytecode machine: 1000 rounds of sum += (round ^ sum) << 1. ESI is its program counter,
# ECX the number of remaining rounds, EBX the sum, EDX a register.
interpret:
    mov esi, offset program
    mov ecx, 1000
    xor ebx, ebx
next_bytecode:
    movzx eax, byte ptr [esi]
    inc esi
    jmp [bytecodes + eax*4]
do_load:
    mov edx, ecx
    jmp next_bytecode
do_xor:
    xor edx, ebx
    jmp next_bytecode
do_shift:
    add edx, edx
    jmp next_bytecode
do_add:
    add ebx, edx
    jmp next_bytecode
do_loop:
    dec ecx
    jz do_end
    mov esi, offset program
    jmp next_bytecode
do_end:
    ret
    .balign 4
bytecodes: .long do_load, do_xor, do_shift, do_add, do_loop
program: .byte 0, 1, 2, 3, 4

    COMMON_KINDS IN_PROTECTED|IN_PAGED, IN_USER, SCRATCH, ecx, e
    TRANSFER_KINDS IN_PROTECTED|IN_PAGED, IN_USER, CODE, ecx, far32
    PROTECTED_KINDS IN_PROTECTED|IN_PAGED, IN_PAGED, IN_USER, LOCAL_APIC, VIRTIO, e, PAGE_TABLE + (REMAPPED >> 12)*4
    NARROW_KINDS

.include "cost64.inc"

# Code that runs in all code widths, and data, on a page of their own.
.section .other, "ax"
.code16
    .balign 4096
other_page:
    ret
    .balign 32
data_in_line:
    .byte 0
    .balign 64
data_beside_code:
    .skip 64
    .balign 4096
patched:                         # in 16-bit code: mov eax, 90900000h
    .byte 0x66, 0xB8, 0, 0       # in other code: mov ax, 0; nop; nop
    .byte 0x90, 0x90
    ret
    .balign 64
patched_operation:               # the operation is inc or dec
    .byte 0xFF, 0xC0
    ret
    .balign 4096
emitted_1:
    .skip 4, 0x90
    ret
    .balign 64
emitted_16:
    .skip 16*4, 0x90
    ret
    .balign 64
emitted_100:
    .skip 100*4, 0x90
    ret
    .balign 4096

.section .data
    .balign 8
gdt:
    .quad 0
    .quad 0x00CF9A000000FFFF     # CODE
    .quad 0x00CF92000000FFFF     # DATA
    .quad 0x00CFFA000000FFFF     # CODE3
    .quad 0x00CFF2000000FFFF     # DATA3
    .word 103, tss, 0x8900, 0    # TSS, below 64 KiB
    .quad 0x00AF9A000000FFFF     # CODE64
    .quad 0x00CF92000000FFFF     # DATA64
    .quad 0
    .quad 0x00CFF2000000FFFF     # DATA64_3
    .quad 0x00AFFA000000FFFF     # CODE64_3
    .word 103, tss, 0x8900, 0    # TSS64
    .quad 0
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .quad gdt
idt_pointer:
    .word 256*8 - 1
    .long IDT
    .balign 4096
tss:
    .long 0, RING0_STACK, DATA
    .skip 104 - 12
