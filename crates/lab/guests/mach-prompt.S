# mach-prompt - a prompt on GNU Mach's console, the first task of a Mach without other servers
#
# GNU Mach loads this program as a multiboot module, whose text after the file's name must be
#
#   ${device-port} ${host-port} $(task-create) $(task-resume)
#
# It opens the kernel's device "console" by messages, prints a prompt, reads lines and does what they
# say. NUMBER is how often, 1 if it is left out:
#
#   messages NUMBER   sends a message to a port of its own and receives it
#   memory NUMBER     allocates four pages, writes to each, reads them back, and deallocates them
#   tasks NUMBER      creates a task that inherits the memory of this one, and terminates it
#   reboot            restarts the machine
#
# An answer repeats the line, since nothing echoes what is typed: "messages 100: done"; or it gives the
# kernel's code: "messages 100: failed with 10000003".

# Numbers of traps (mach/syscall_sw.h).
MACH_MSG = -25
MACH_REPLY_PORT = -26
MACH_TASK_SELF = -28
MACH_PRINT = -30
VM_ALLOCATE = -65
VM_DEALLOCATE = -66
TASK_CREATE = -68
TASK_TERMINATE = -69

# Identifiers of messages: the number of a routine in its subsystem (device/device.defs,
# mach/mach_host.defs).
DEVICE_OPEN = 2800
DEVICE_WRITE_INBAND = 2803
DEVICE_READ_INBAND = 2805
HOST_REBOOT = 2635

# Options of a message's trap, and what becomes of the rights in its header (mach/message.h).
SEND = 1
RECEIVE = 2
MAKE_SEND = 20
RPC_BITS = 19 | 21 << 8         # copy the send right; make a send-once right for the reply

# The offsets in a message's header, and its size.
BITS = 0
REMOTE = 8
LOCAL = 12
ID = 20
HEADER = 24
# A reply's result follows the description of its type.
RESULT = 28

# Descriptions of types: name, size in bits, number of elements, whether they are in the message.
INLINE = 1 << 28
INTEGER = 2 | 32 << 8 | 1 << 16 | INLINE
CHARACTERS = 8 | 8 << 8 | INLINE
LONG_FORM = 1 << 29 | INLINE
STRING = 12

INBAND = 128                    # the most bytes of a read or write in the message itself
PAGE = 4096

# trap NUMBER: what the kernel takes as arguments is on the stack, above a return address.
.macro trap number
    push $0
    mov $\number, %eax
    lcall $7, $0
    add $4, %esp
.endm

.text
.globl _start
_start:
    mov 8(%esp), %esi           # the first argument after the name
    call number
    mov %eax, device_master
    mov 12(%esp), %esi
    call number
    mov %eax, host
    trap MACH_TASK_SELF
    mov %eax, task
    trap MACH_REPLY_PORT
    mov %eax, reply_port
    trap MACH_REPLY_PORT
    mov %eax, own_port

    # Opens the console.
    mov device_master, %eax
    mov $DEVICE_OPEN, %edx
    call begin
    mov $3, %eax                # to read and write
    call add_integer
    movl $LONG_FORM, (%edi)
    movl $(STRING | 1024 << 16), 4(%edi)
    movl $1, 8(%edi)
    add $12, %edi
    mov $console_name, %esi
    mov $128 / 4, %ecx
    rep movsl
    call rpc
    jnz cannot_open
    mov message + 36, %eax
    mov %eax, console

prompt:
    mov $prompt_text, %esi
    call print
    call read_line
    mov $line, %esi
    mov $commands, %ebx
1:  mov (%ebx), %edi            # the command's name
    test %edi, %edi
    jz unknown
    push %esi
2:  mov (%edi), %al
    test %al, %al
    jz found
    cmp %al, (%esi)
    jne 3f
    inc %esi
    inc %edi
    jmp 2b
3:  pop %esi
    add $8, %ebx
    jmp 1b
found:
    add $4, %esp
    cmpb $' ', (%esi)
    jne 1f
    inc %esi
1:  call number
    test %eax, %eax
    jnz 2f
    inc %eax
2:  mov %eax, rounds
1:  call *4(%ebx)
    test %eax, %eax
    jnz failed
    decl rounds
    jnz 1b
    mov $line, %esi
    call print
    mov $done_text, %esi
    call print
    jmp prompt

unknown:
    cmpb $0, line
    je prompt
    mov $unknown_text, %esi
    call print
    jmp prompt

failed:
    mov $hexadecimal, %edi
    mov $8, %ecx
1:  rol $4, %eax
    mov %eax, %edx
    and $15, %edx
    mov digits(%edx), %dl
    mov %dl, (%edi)
    inc %edi
    loop 1b
    mov $line, %esi
    call print
    mov $failed_text, %esi
    call print
    jmp prompt

cannot_open:
    push $no_console_text
    trap MACH_PRINT
1:  jmp 1b

# --- commands, each returns the kernel's code in eax ---------------------------

messages:
    movl $MAKE_SEND, own_message + BITS
    mov own_port, %eax
    mov %eax, own_message + REMOTE
    movl $0, own_message + LOCAL
    movl $1234, own_message + ID
    push $0                     # nothing to notify
    push $0                     # no time limit
    push %eax
    push $64
    push $HEADER
    push $(SEND | RECEIVE)
    push $own_message
    trap MACH_MSG
    add $28, %esp
    ret

memory:
    movl $0, address
    push $1                     # anywhere
    push $(4 * PAGE)
    push $address
    push task
    trap VM_ALLOCATE
    add $16, %esp
    test %eax, %eax
    jnz 3f
    mov address, %edi
    mov $4, %ecx
1:  mov %edi, (%edi)
    add $PAGE, %edi
    loop 1b
    mov $4, %ecx
2:  sub $PAGE, %edi
    cmp %edi, (%edi)
    jne 4f
    loop 2b
    push $(4 * PAGE)
    push address
    push task
    trap VM_DEALLOCATE
    add $12, %esp
3:  ret
4:  mov $-1, %eax
    ret

tasks:
    push $child
    push $1                     # inherit memory
    push task
    trap TASK_CREATE
    add $12, %esp
    test %eax, %eax
    jnz 1f
    push child
    trap TASK_TERMINATE
    add $4, %esp
1:  ret

reboot:
    mov host, %eax
    mov $HOST_REBOOT, %edx
    call begin
    xor %eax, %eax
    call add_integer
    call rpc
    ret

# --- messages to the kernel ----------------------------------------------------

# Begins a message to port eax with identifier edx; edi is left at its end.
begin:
    movl $RPC_BITS, message + BITS
    mov %eax, message + REMOTE
    mov reply_port, %eax
    mov %eax, message + LOCAL
    mov %edx, message + ID
    mov $message + HEADER, %edi
    ret

# Adds the integer eax with its type to the message that ends at edi.
add_integer:
    movl $INTEGER, (%edi)
    mov %eax, 4(%edi)
    add $8, %edi
    ret

# Sends the message that ends at edi and receives the reply. eax is the code of the trap or of the
# routine, with the flags of a comparison with zero.
rpc:
    sub $message, %edi
    push $0
    push $0
    push reply_port
    push $512
    push %edi
    push $(SEND | RECEIVE)
    push $message
    trap MACH_MSG
    add $28, %esp
    test %eax, %eax
    jnz 1f
    mov message + RESULT, %eax
    test %eax, %eax
1:  ret

# Writes the text at esi, which ends with a zero byte and is shorter than a message's data.
print:
    push %esi
    mov console, %eax
    mov $DEVICE_WRITE_INBAND, %edx
    call begin
    xor %eax, %eax              # no mode
    call add_integer
    call add_integer            # record 0
    pop %esi
    lea 4(%edi), %edx
    mov %edx, %ecx
1:  lodsb
    mov %al, (%ecx)
    inc %ecx
    test %al, %al
    jnz 1b
    dec %ecx
    mov %ecx, %eax
    sub %edx, %eax
    shl $16, %eax
    or $CHARACTERS, %eax
    mov %eax, (%edi)
    lea 3(%ecx), %edi
    and $-4, %edi
    call rpc
    ret

# Reads characters until the end of a line; the line without it is left at `line`.
read_line:
    movl $line, line_end
1:  mov console, %eax
    mov $DEVICE_READ_INBAND, %edx
    call begin
    xor %eax, %eax
    call add_integer
    call add_integer
    mov $INBAND, %eax
    call add_integer
    call rpc
    jnz 1b
    movzwl message + 34, %ecx   # the number of elements in the type's description
    and $0xfff, %ecx
    mov $message + 36, %esi
    mov line_end, %edi
2:  jecxz 3f
    dec %ecx
    lodsb
    cmp $'\r', %al
    je 4f
    cmp $'\n', %al
    je 4f
    cmp $line + 100, %edi
    jae 2b
    stosb
    jmp 2b
3:  mov %edi, line_end
    jmp 1b
4:  movb $0, (%edi)
    ret

# The decimal number at esi, in eax; esi is left after it.
number:
    xor %eax, %eax
1:  movzbl (%esi), %edx
    sub $'0', %edx
    cmp $9, %edx
    ja 2f
    imul $10, %eax
    add %edx, %eax
    inc %esi
    jmp 1b
2:  ret

.data
commands:
    .long messages_name, messages
    .long memory_name, memory
    .long tasks_name, tasks
    .long reboot_name, reboot
    .long 0
messages_name: .asciz "messages"
memory_name: .asciz "memory"
tasks_name: .asciz "tasks"
reboot_name: .asciz "reboot"
prompt_text: .asciz "\nmach> "
done_text: .asciz ": done\n"
unknown_text: .asciz "one of: messages, memory, tasks, reboot\n"
failed_text: .ascii ": failed with "
hexadecimal: .asciz "00000000\n"
no_console_text: .asciz "mach-prompt: cannot open the console\n"
digits: .ascii "0123456789abcdef"
console_name:
    .asciz "console"
    .fill 120

.bss
.lcomm device_master, 4
.lcomm host, 4
.lcomm task, 4
.lcomm console, 4
.lcomm reply_port, 4
.lcomm own_port, 4
.lcomm rounds, 4
.lcomm address, 4
.lcomm child, 4
.lcomm line_end, 4
.lcomm line, 128
.lcomm message, 512
.lcomm own_message, 64
