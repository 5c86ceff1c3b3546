# HARDDISK.COM makes the first hard disk one that boots DOS: a master boot record, one active partition over the whole
# disk, 2 GiB at most, with an empty FAT12 or FAT16 file system, and a boot sector that loads FreeDOS' KERNEL.SYS.
# After a restart DOS has it as C: and can copy its files there. /Y: also if there are partitions. /P: the disk is
# read by INT 13h's packets, and not by cylinder, head and sector. It needs a 386.
.include "com.inc"
.include "disk_boot.inc"

.set COMMAND_LINE, 0x81
.set CARRIAGE_RETURN, 0x0D
.set FIRST_DISK, 0x80

.set DISK_GEOMETRY, 0x08         # INT 13h
.set DISK_HAS_PACKETS, 0x41
.set DISK_PARAMETERS, 0x48
.set PARAMETERS_BYTES, 0x1A
.set PARAMETERS_SECTORS, 16
.set PACKETS_SUPPORTED, 1        # a bit of CX
.set READ_CLOCK, 0x00            # INT 1Ah

.set KIND_FAT12, 0x01
.set KIND_SMALL_FAT16, 0x04      # below 32 MiB
.set KIND_FAT16, 0x06
.set SMALL, 0x10000              # sectors of 32 MiB
.set FAT12_SECTORS, 8 * 4084     # with clusters of 4 KiB
.set FAT12_CLUSTERS, 4085        # less than these
.set FAT16_CLUSTERS, 65525
.set FAT16_SECTORS, 64 * 65524   # with clusters of 32 KiB
.set LEAST_SECTORS, 1024
.set LAST_CYLINDER, 1023

.text
    cld
    call read_options
    mov ah, DISK_GEOMETRY
    mov dl, FIRST_DISK
    int 0x13
    push ds
    pop es
    jc no_disk
    test dl, dl
    jz no_disk
    movzx eax, dh
    inc ax
    mov [new_heads], ax
    movzx ebx, cl
    and bx, 0x3F
    mov [new_sectors_per_track], bx
    shr cl, 6
    xchg cl, ch
    inc cx
    movzx ecx, cx
    imul eax, ebx
    imul eax, ecx
    mov [disk_sectors], eax
    cmp byte ptr [new_packets], 0
    je 1f
    mov ah, DISK_HAS_PACKETS
    mov bx, 0x55AA
    mov dl, FIRST_DISK
    int 0x13
    jc no_packets
    cmp bx, 0xAA55
    jne no_packets
    test cl, PACKETS_SUPPORTED
    jz no_packets
    mov ah, DISK_PARAMETERS
    mov dl, FIRST_DISK
    mov si, offset buffer
    mov word ptr [si], PARAMETERS_BYTES
    int 0x13
    jc no_packets
    mov eax, [buffer+PARAMETERS_SECTORS]
    cmp dword ptr [buffer+PARAMETERS_SECTORS+4], 0
    je 2f
    mov eax, -1
2:  mov [disk_sectors], eax
1:
    xor eax, eax                 # what is there
    mov bp, DISK_READ
    call transfer
    cmp word ptr [buffer+SECTOR-2], 0xAA55
    jne 3f
    cmp byte ptr [replace], 0
    jne 3f
    SAY "HARDDISK: the disk has partitions; HARDDISK /Y gives them up\r\n"
    EXIT 1
3:
    movzx eax, word ptr [new_sectors_per_track]     # the partition begins with the second track
    mov [new_hidden], eax
    mov edx, [disk_sectors]
    sub edx, eax
    jb too_small
    xchg eax, edx
    cmp eax, LEAST_SECTORS
    jb too_small
    cmp eax, FAT16_SECTORS
    jbe 4f
    mov eax, FAT16_SECTORS
4:  mov [new_many_sectors], eax
    cmp eax, SMALL
    jae 5f
    mov [new_few_sectors], ax
    mov dword ptr [new_many_sectors], 0
5:  mov [partition_sectors], eax
    call lay_out
    call make_master
    call make_file_system
    SAY "HARDDISK: C: is ready, with an empty "
    mov dx, offset new_kind
    mov byte ptr [new_kind+5], '$'
    mov ah, DOS_PRINT
    int 0x21
    SAY " file system. Restart, then copy KERNEL.SYS and COMMAND.COM to it\r\n"
    EXIT 0

no_disk:
    SAY "HARDDISK: there is no hard disk\r\n"
    EXIT 1
no_packets:
    SAY "HARDDISK: the BIOS has no packets for this disk; leave /P out\r\n"
    EXIT 1
too_small:
    SAY "HARDDISK: the disk is too small\r\n"
    EXIT 1
failed:
    SAY "HARDDISK: the disk cannot be read or written\r\n"
    EXIT 1

# What stands on the command line.
read_options:
    mov si, COMMAND_LINE
1:  lodsb
    cmp al, CARRIAGE_RETURN
    je 4f
    cmp al, '/'
    jne 1b
    lodsb
    and al, 0xDF                 # a capital letter
    cmp al, 'Y'
    jne 2f
    mov byte ptr [replace], 1
    jmp 1b
2:  cmp al, 'P'
    jne 3f
    mov byte ptr [new_packets], 1
    jmp 1b
3:  SAY "HARDDISK [/Y] [/P]: makes the first hard disk one that boots DOS\r\n/Y  gives up its partitions\r\n/P  has it read by INT 13h's packets\r\n"
    EXIT 1
4:  ret

# The kind of the file system, its clusters and tables.
lay_out:
    mov ebx, FAT16_CLUSTERS
    mov al, KIND_FAT16
    mov ecx, [partition_sectors]
    cmp ecx, SMALL
    jae 1f
    mov al, KIND_SMALL_FAT16
1:  cmp byte ptr [new_packets], 0
    je 2f
    mov al, KIND_PACKETS
2:  cmp ecx, FAT12_SECTORS
    ja 3f
    mov ebx, FAT12_CLUSTERS
    mov al, KIND_FAT12
    mov byte ptr [new_kind+4], '2'
3:  mov [partition_kind], al
    mov al, 4                    # sectors of a cluster, of two KiB at least
4:  mov ecx, [partition_sectors]
    movzx edx, al
    xchg eax, ecx
    push edx
    mov esi, edx
    xor edx, edx
    div esi
    pop edx
    xchg eax, ecx                # ECX: clusters at most
    cmp ecx, ebx
    jb 5f
    add al, al
    jmp 4b
5:  mov [new_sectors_per_cluster], al
    lea eax, [2*ecx+4]           # bytes of a table
    cmp byte ptr [new_kind+4], '6'
    je 6f
    lea eax, [ecx+2*ecx+7]       # one and a half for a cluster, and two clusters more
    shr eax, 1
6:  add eax, SECTOR - 1
    shr eax, 9
    mov [new_sectors_per_table], ax
    xor ah, ah
    int 0x1A
    mov [new_serial], dx
    mov [new_serial+2], cx
    ret

# The master boot record with its one entry.
make_master:
    mov si, offset master_image
    mov di, offset buffer
    mov cx, SECTOR / 2
    rep movsw
    mov di, offset buffer + 446
    mov byte ptr [di], ACTIVE
    mov al, [partition_kind]
    mov [di+ENTRY_KIND], al
    mov eax, [new_hidden]
    mov [di+ENTRY_START], eax
    mov esi, [partition_sectors]
    mov [di+ENTRY_SECTORS], esi
    lea esi, [esi+eax-1]
    call address
    mov [di+ENTRY_HEAD], dh
    mov [di+ENTRY_HEAD+1], cx
    mov eax, esi                 # the last sector
    call address
    mov [di+ENTRY_HEAD+4], dh
    mov [di+ENTRY_HEAD+5], cx
    xor eax, eax
    mov bp, DISK_WRITE
    jmp transfer

# DH and CX: where the sector EAX is, or the last place that these can tell.
address:
    push esi
    push eax
    movzx ecx, word ptr [new_sectors_per_track]
    movzx esi, word ptr [new_heads]
    imul esi, ecx
    xor edx, edx
    div esi
    cmp eax, LAST_CYLINDER
    pop eax
    pop esi
    ja 1f
    CHS new_
    ret
1:  mov dh, 0xFE
    mov cx, 0xFFFF
    ret

# Boot sector, tables and root directory.
make_file_system:
    mov si, offset sector_image
    mov di, offset buffer
    mov cx, SECTOR / 2
    rep movsw
    mov si, offset parameters
    mov di, offset buffer + PARAMETERS_AT
    mov cx, offset parameters_end - parameters
    rep movsb
    mov eax, [new_hidden]
    mov bp, DISK_WRITE
    call transfer
    inc eax
    call clear
    mov bx, 2                    # tables
1:  mov dword ptr [buffer], 0xFFFFFFF8
    cmp byte ptr [new_kind+4], '6'
    je 2f
    mov byte ptr [buffer+3], 0   # three bytes for two clusters
2:  mov cx, [new_sectors_per_table]
3:  call transfer
    mov dword ptr [buffer], 0
    inc eax
    loop 3b
    dec bx
    jnz 1b
    mov cx, [new_root_entries]
    shr cx, 4
4:  call transfer
    inc eax
    loop 4b
    ret

clear:
    push eax
    mov di, offset buffer
    mov cx, SECTOR / 2
    xor ax, ax
    rep stosw
    pop eax
    ret

# Reads (BP: DISK_READ) or writes (DISK_WRITE) the sector EAX, from or to the buffer. Changes nothing.
transfer:
    pushad
    mov di, sp
    cmp byte ptr [new_packets], 0
    jne 1f
    CHS new_
    mov ax, bp
    mov bx, offset buffer
    jmp 2f
1:  mov bx, ds
    PACKET
    mov word ptr [si+4], offset buffer
    mov ax, bp
    add ah, PACKET_READ - DISK_READ / 0x100
    xor al, al                   # writes are not verified
2:  mov dl, FIRST_DISK
    int 0x13
    mov sp, di
    jc failed
    popad
    ret

.data
parameters:
    PARAMETERS new_
parameters_end:
replace: .byte 0
partition_kind: .byte 0

.bss
disk_sectors: .long 0
partition_sectors: .long 0
buffer: .skip SECTOR
