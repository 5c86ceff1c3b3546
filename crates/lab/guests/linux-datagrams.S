# A static Linux program that receives UDP datagrams from the host.
#
#   datagrams PORT N        asks port PORT of the host for datagrams, and receives N of them
#   datagrams PORT N here   asks a port of the machine that it runs on
#
# Exit code 0, 1 if a call fails, 2 for a wrong command line.

.intel_syntax noprefix
.ifdef WIDE
.code64
.endif
.include "linux-calls.inc"

.set INTERNET, 2                         # AF_INET, and SOCK_DGRAM
.set DATAGRAMS, 2
.set LOOPBACK, 0x0100007F                # 127.0.0.1, in the network's byte order

.text
.globl _start
_start:
    COUNT_OF_ARGUMENTS
    cmp eax, 3
    je 1f
    cmp eax, 4
    jne usage
    mov dword ptr [address + 4], LOOPBACK
1:  ARGUMENT 1
    call decimal
    jc usage
    xchg al, ah                          # in the network's byte order
    mov [port], ax
    ARGUMENT 2
    call decimal
    jc usage
    test eax, eax
    jz usage
    mov [left], eax
    SYSTEM_CALL 359, 41, INTERNET, DATAGRAMS
    test eax, eax
    js failed
    mov [socket], eax
    SYSTEM_CALL 362, 42, [socket], "offset address", 16
    test eax, eax
    jnz failed
    SYSTEM_CALL 4, 1, [socket], "offset buffer", 1
    cmp eax, 1
    jne failed
1:  SYSTEM_CALL 3, 0, [socket], "offset buffer", 2048
    test eax, eax
    jle failed
    dec dword ptr [left]
    jnz 1b
    SYSTEM_CALL 1, 60, 0
failed:
    SYSTEM_CALL 1, 60, 1
usage:
    SYSTEM_CALL 4, 1, 2, "offset text_usage", "text_usage_end - text_usage"
    SYSTEM_CALL 1, 60, 2

DEFINE_DECIMAL

.data
address: .short INTERNET
port: .short 0
    .byte 10, 0, 2, 2                    # the host's loopback address
    .quad 0
text_usage: .ascii "usage: datagrams PORT N [here]\n"
text_usage_end:

.bss
    .balign 8
left: .skip 4
socket: .skip 4
buffer: .skip 2048
