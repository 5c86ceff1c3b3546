# hello - the guest starts, prints, and leaves
#
# The first light of a loader: multiboot entry state, serial port, debug exit.
.include "guest.inc"

main:
    EXPECT [multiboot_magic], 0x2BADB002, "eax holds the multiboot magic on entry"
    mov eax, cr0
    and eax, CR0_PE | CR0_PG
    EXPECT eax, CR0_PE, "paging is off and protection is on"
    EXPECT_FLAGS FLAG_I | FLAG_VM, 0, "interrupts are off"
    mov ebx, [multiboot_info]
    mov eax, [ebx]
    and eax, 1
    EXPECT eax, 1, "the loader tells the size of memory"
    cmp dword ptr [ebx+4], 640 + 1
    EXPECT_FLAGS FLAG_C, FLAG_C, "no more than 640 KiB of it lie below the adapters"
    cmp dword ptr [ebx+8], 15 * 1024
    EXPECT_FLAGS FLAG_C, 0, "15 MiB or more lie above 1 MiB"
    TRY ud2
    EXPECT_FAULT EXC_UD, 0, "an undefined instruction reaches its handler"
    ret
