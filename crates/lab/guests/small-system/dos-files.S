# The file system. Sector 0 of the disk holds the allocation table, a word for each sector: the next
# sector of its file, LAST, or FREE. Sector 1 holds the directory. Both are kept in memory and
# written when a changed file is closed. One buffer holds a sector of some file.
.include "layout.inc"
.include "dos.inc"

.section .dos, "ax"
.code16

.set FREE, 0
.set LAST, 0xFFFF
.set SECTORS, SECTORS_PER_TRACK*TRACKS
.set FIRST_DATA_SECTOR, 2
.set NONE, 0                     # no sector belongs to the file

# The fields of an entry of the directory.
.set ENTRY_NAME, 0               # padded with spaces; free if it begins with 0
.set NAME_BYTES, 12
.set ENTRY_START, 12             # the first sector, or NONE
.set ENTRY_SIZE, 14
.set ENTRY_BYTES, 16

# The fields of an open file.
.set OPEN_ENTRY, 0               # the address of its entry; 0: not open
.set OPEN_POSITION, 2
.set OPEN_SECTOR, 4              # the sector that contains position - 1, or NONE
.set OPEN_CHANGED, 6
.set OPEN_BYTES, 8
.set MOST_OPEN, 8
.set FIRST_HANDLE, 5             # lower handles, 0 to 4, are the console

.global format_disk
format_disk:                     # DS is DOS; the loader has cleared memory
    mov word ptr [allocation], LAST
    mov word ptr [allocation+2], LAST
    mov word ptr [buffered], NONE
    call write_tables
    ret

# --- sectors ------------------------------------------------------------------------
# TRANSFER function: transfers the sector with the number AX between the disk and DS:BX.
.macro TRANSFER function
    push es
    push cx
    push dx
    mov cl, SECTORS_PER_TRACK
    div cl                       # AL is the track, AH the sector
    mov ch, al
    mov cl, ah
    inc cl
    xor dx, dx
    mov ax, ds
    mov es, ax
    mov ax, \function << 8 | 1
    int 0x13
    pop dx
    pop cx
    pop es
.endm
write_tables:
    xor ax, ax
    mov bx, offset allocation
    TRANSFER 3
    mov ax, 1
    mov bx, offset directory
    TRANSFER 3
    ret
hold_sector:                     # reads sector AX into the buffer, unless it is there already
    cmp ax, [buffered]
    je 1f
    push ax
    call write_buffer
    pop ax
    mov [buffered], ax
    mov bx, offset buffer
    TRANSFER 2
1:  ret
write_buffer:                    # writes the buffer to the disk if it was changed; keeps BX
    cmp byte ptr [buffer_changed], 0
    je 1f
    push bx
    mov byte ptr [buffer_changed], 0
    mov ax, [buffered]
    mov bx, offset buffer
    TRANSFER 3
    pop bx
1:  ret
next_sector:                     # returns in AX the sector that follows AX in its file
    mov bx, ax
    shl bx, 1
    mov ax, allocation[bx]
    ret
allocate:                        # returns a free sector in AX; carry if there is none
    mov bx, FIRST_DATA_SECTOR*2
1:  cmp word ptr allocation[bx], FREE
    je 2f
    add bx, 2
    cmp bx, SECTORS*2
    jne 1b
    stc
    ret
2:  mov word ptr allocation[bx], LAST
    mov ax, bx
    shr ax, 1
    clc
    ret

# --- names --------------------------------------------------------------------------
take_name:                       # copies the name at the caller's DS:DX to `name`, in capitals
    push ds
    mov ax, cs
    mov es, ax
    mov ds, CALLER_DS[bp]
    mov si, CALLER_DX[bp]
    mov di, offset name
    mov cx, NAME_BYTES
1:  lodsb
    or al, al
    jz 3f
    cmp al, 'a'
    jb 2f
    cmp al, 'z'
    ja 2f
    sub al, 'a' - 'A'
2:  stosb
    loop 1b
3:  mov al, ' '
    rep stosb
    pop ds
    ret
find_name:                       # finds `name` in the directory: BX is its entry; carry if it is missing
    mov ax, ds
    mov es, ax
    mov bx, offset directory
1:  mov si, offset name
    mov di, bx
    mov cx, NAME_BYTES
    repe cmpsb
    je 2f
    add bx, ENTRY_BYTES
    cmp bx, offset directory + SECTOR
    jne 1b
    stc
    ret
2:  clc
    ret

# --- handles -------------------------------------------------------------------------
open_entry:                      # returns a handle for the caller; BX is the entry
    mov di, offset open_files
    mov ax, FIRST_HANDLE
1:  cmp word ptr [di+OPEN_ENTRY], 0
    je 2f
    inc ax
    add di, OPEN_BYTES
    cmp di, offset open_files_end
    jne 1b
    mov ax, ERROR_TOO_MANY_OPEN
    jmp fail_call
2:  mov [di+OPEN_ENTRY], bx
    mov word ptr [di+OPEN_POSITION], 0
    mov word ptr [di+OPEN_SECTOR], NONE
    mov word ptr [di+OPEN_CHANGED], 0
    mov CALLER_AX[bp], ax
    ret
take_handle:                     # DI is the open file of the caller's handle BX, BX its entry; carry
    mov di, CALLER_BX[bp]        # says that the file is not open
    sub di, FIRST_HANDLE
    cmp di, MOST_OPEN
    jae 1f
    mov cl, 3                    # multiply by OPEN_BYTES
    shl di, cl
    add di, offset open_files
    mov bx, [di+OPEN_ENTRY]
    or bx, bx
    jz 1f
    clc
    ret
1:  mov ax, ERROR_NO_SUCH_HANDLE
    call fail_call
    stc
    ret

# --- functions -----------------------------------------------------------------------
.global create_file, open_file, close_file, read_file, write_file
create_file:                     # AH=3Ch, DS:DX name: returns a handle in AX; an existing file is emptied
    call take_name
    call find_name
    jc 3f
    mov ax, [bx+ENTRY_START]     # free its sectors
    mov word ptr [bx+ENTRY_START], NONE
    mov word ptr [bx+ENTRY_SIZE], 0
    mov si, bx
1:  cmp ax, NONE
    je 2f
    cmp ax, LAST
    je 2f
    mov bx, ax
    shl bx, 1
    mov ax, FREE
    xchg ax, allocation[bx]
    jmp 1b
2:  mov bx, si
    jmp 5f
3:  mov bx, offset directory
4:  cmp byte ptr [bx], 0
    je 6f
    add bx, ENTRY_BYTES
    cmp bx, offset directory + SECTOR
    jne 4b
    mov ax, ERROR_DISK_FULL
    jmp fail_call
6:  mov ax, ds
    mov es, ax
    mov si, offset name
    mov di, bx
    mov cx, NAME_BYTES
    rep movsb
5:  call open_entry
    ret

open_file:                       # AH=3Dh, DS:DX name: returns a handle in AX
    call take_name
    call find_name
    jc 1f
    jmp open_entry
1:  mov ax, ERROR_NO_SUCH_FILE
    jmp fail_call

close_file:                      # AH=3Eh, BX handle
    call take_handle
    jc 1f
    mov word ptr [di+OPEN_ENTRY], 0
    cmp word ptr [di+OPEN_CHANGED], 0
    je 1f
    call write_buffer
    call write_tables
1:  ret

read_file:                       # AH=3Fh, BX handle, CX bytes to DS:DX: returns in AX the bytes read
    call take_handle
    jc 9f
    mov word ptr CALLER_AX[bp], 0
1:  mov cx, [bx+ENTRY_SIZE]      # the minimum of the rest of the file, the request and the sector
    sub cx, [di+OPEN_POSITION]
    mov ax, CALLER_CX[bp]
    sub ax, CALLER_AX[bp]
    cmp cx, ax
    jbe 2f
    mov cx, ax
2:  jcxz 9f
    mov ax, [di+OPEN_POSITION]
    and ax, SECTOR - 1
    jnz 4f
    mov ax, [di+OPEN_SECTOR]     # continue in the next sector
    cmp ax, NONE
    jne 3f
    mov ax, [bx+ENTRY_START]
    jmp 5f
3:  push bx
    call next_sector
    pop bx
5:  mov [di+OPEN_SECTOR], ax
4:  call limit_to_sector
    push bx
    push di
    push cx
    push si
    mov ax, [di+OPEN_SECTOR]
    call hold_sector
    pop si
    mov es, CALLER_DS[bp]
    mov di, CALLER_DX[bp]
    add di, CALLER_AX[bp]
    shr cx, 1                    # copy words, and a last byte if the count is odd
    rep movsw
    adc cx, cx
    rep movsb
    pop cx
    pop di
    pop bx
    call count_bytes
    jmp 1b
9:  ret

write_file:                      # AH=40h, BX handle, CX bytes from DS:DX: returns in AX the bytes written
    cmp word ptr CALLER_BX[bp], FIRST_HANDLE
    jb write_console
    call take_handle
    jc 9f
    mov ax, [di+OPEN_POSITION]   # only at the end of the file
    cmp ax, [bx+ENTRY_SIZE]
    mov ax, ERROR_NOT_AT_END
    jne fail_call
    mov word ptr CALLER_AX[bp], 0
    mov word ptr [di+OPEN_CHANGED], 1
1:  mov cx, CALLER_CX[bp]
    sub cx, CALLER_AX[bp]
    jz 9f
    mov ax, [di+OPEN_POSITION]
    and ax, SECTOR - 1
    jnz 4f
    push bx                      # append a sector to the chain
    call allocate
    jc 8f
    mov bx, [di+OPEN_SECTOR]
    mov [di+OPEN_SECTOR], ax
    cmp bx, NONE
    je 2f
    shl bx, 1
    mov allocation[bx], ax
    pop bx
    jmp 3f
2:  pop bx
    mov [bx+ENTRY_START], ax
3:  push ax                      # all of its content is new, so nothing is read
    call write_buffer
    pop word ptr [buffered]
4:  mov cx, CALLER_CX[bp]
    sub cx, CALLER_AX[bp]
    call limit_to_sector
    push bx
    push di
    push cx
    push si
    mov ax, [di+OPEN_SECTOR]
    call hold_sector
    mov byte ptr [buffer_changed], 1
    pop di
    mov si, CALLER_DX[bp]
    add si, CALLER_AX[bp]
    mov ax, ds
    mov es, ax
    push ds
    mov ds, CALLER_DS[bp]
    shr cx, 1
    rep movsw
    adc cx, cx
    rep movsb
    pop ds
    pop cx
    pop di
    pop bx
    call count_bytes
    mov ax, [di+OPEN_POSITION]
    mov [bx+ENTRY_SIZE], ax
    jmp 1b
8:  pop bx
    mov ax, ERROR_DISK_FULL
    call fail_call
9:  ret

limit_to_sector:                 # limits CX to the end of the sector; SI is the address in `buffer`
    mov si, [di+OPEN_POSITION]
    and si, SECTOR - 1
    mov ax, SECTOR
    sub ax, si
    add si, offset buffer
    cmp cx, ax
    jbe 1f
    mov cx, ax
1:  ret
count_bytes:                     # advances the position of the open file DI by CX bytes
    add CALLER_AX[bp], cx
    add [di+OPEN_POSITION], cx
    add [tally_bytes], cx
    adc word ptr [tally_bytes+2], 0
    ret

write_console:                   # writes CX characters from DS:DX
    mov cx, CALLER_CX[bp]
    mov CALLER_AX[bp], cx
    mov si, CALLER_DX[bp]
    mov ds, CALLER_DS[bp]
    jcxz 2f
1:  lodsb
    call console_output
    loop 1b
2:  ret

# --- data ------------------------------------------------------------------------------
.section .dos_data, "aw"
    .balign 2
buffered: .word NONE             # the sector that `buffer` holds
buffer_changed: .byte 0
name: .skip NAME_BYTES
    .balign 2
open_files: .skip OPEN_BYTES*MOST_OPEN
open_files_end:
allocation: .skip SECTOR
directory: .skip SECTOR
buffer: .skip SECTOR
