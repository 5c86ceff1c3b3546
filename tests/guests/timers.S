# timers - the machine's clocks agree with each other
#
# Two seconds of the real-time clock are the yardstick. What was measured is
# printed in lines that begin with "note". Bounds are generous: a busy host may
# run this machine late, but it may not run one clock fast and another slow.
.include "guest.inc"
.include "acpi.inc"

.set CMOS_INDEX, 0x70
.set CMOS_DATA, 0x71
.set RTC_SECONDS, 0
.set RTC_A, 0x0A
.set RTC_B, 0x0B
.set RTC_C, 0x0C
.set RTC_UPDATING, 0x80
.set RTC_PERIODIC, 0x40
.set RTC_UPDATE_ENDED, 0x10
.set PIT0, 0x40
.set PIT2, 0x42
.set PIT_COMMAND, 0x43
.set SPEAKER, 0x61
.set PIT_HZ, 1193182
.set PM_HZ, 3579545
.set APIC, 0xFEE00000
.set APIC_ENABLE, APIC+0xF0
.set APIC_TIMER, APIC+0x320
.set APIC_INITIAL, APIC+0x380
.set APIC_CURRENT, APIC+0x390
.set APIC_DIVIDE, APIC+0x3E0

.set YARDSTICK, 2                # seconds

.macro CMOS register
    mov al, \register
    out CMOS_INDEX, al
    in al, CMOS_DATA
.endm
.macro CMOS_SET register, value
    mov al, \register
    out CMOS_INDEX, al
    mov al, \value
    out CMOS_DATA, al
.endm
# NOTE "text", value: print "note text value".
.macro NOTE text, value
    push eax
    mov eax, \value
    SAY "note \text "
    call put_decimal
    SAY "\n"
    pop eax
.endm
# NEAR value, expected, tolerance, "fact": within expected +- tolerance.
.macro NEAR value, expected, tolerance, fact
    NOTE "\fact:", \value
    mov eax, \value
    sub eax, \expected-(\tolerance)
    cmp eax, 2*(\tolerance)+1
    sbb eax, eax
    EXPECT eax, -1, "\fact"
.endm

main:
    GATE IRQ_BASE, tick
    GATE IRQ_BASE+8, clock_tick
    mov eax, FADT
    call find_table
    cmp ebx, 0
    EXPECT_FLAGS FLAG_Z, 0, "the firmware's tables name an ACPI timer"
    mov eax, [ebx+76]
    mov [pm_port], eax
    mov dword ptr [pm_mask], -1
    test dword ptr [ebx+112], 0x100              # 32 bits wide?
    jnz 1f
    mov dword ptr [pm_mask], 0xFFFFFF
1:  mov dword ptr [APIC_ENABLE], 0x1FF
    mov dword ptr [APIC_DIVIDE], 3               # by 16
    mov dword ptr [APIC_TIMER], 0x10000          # masked
    call counting
    call one_shot
    call yardstick
    call periodic
    ret

# The 8254's counter can be read while it runs.
counting:
    mov al, 0x34                 # channel 0, mode 2
    out PIT_COMMAND, al
    mov al, 0
    out PIT0, al
    out PIT0, al                 # 65536
    call pit_count
    mov ecx, eax
    mov edx, 0
1:  call pit_count
    cmp eax, ecx
    je 1b
    sub ecx, eax
    and ecx, 0xFFFF
    cmp ecx, 0x8000
    EXPECT_FLAGS FLAG_C, FLAG_C, "the 8254 counts down"
    mov al, 0
    out PIT_COMMAND, al          # latch
    in al, PIT0
    mov cl, al
    mov ebx, 1000
2:  in al, 0x80
    dec ebx
    jnz 2b
    in al, PIT0
    mov ch, al
    call pit_count
    movzx ecx, cx
    sub ecx, eax
    and ecx, 0xFFFF
    EXPECT_FLAGS FLAG_Z, 0, "a latched count stays until it is read"
    ret
pit_count:                       # eax
    mov al, 0
    out PIT_COMMAND, al
    in al, PIT0
    movzx eax, al
    xchg ah, al
    in al, PIT0
    xchg ah, al
    ret

pm_count:                        # eax
    push edx
    mov edx, [pm_port]
    in eax, dx
    and eax, [pm_mask]
    pop edx
    ret

# Channel 2 in mode 0, its output read through port 61h, against the ACPI timer.
one_shot:
    in al, SPEAKER
    and al, 0xFC
    or al, 1                     # gate on, speaker off
    out SPEAKER, al
    mov al, 0xB0
    out PIT_COMMAND, al
    mov al, 59659 & 0xFF         # 50 ms
    out PIT2, al
    mov al, 59659 >> 8
    out PIT2, al
    call pm_count
    mov ecx, eax
    in al, SPEAKER
    and eax, 0x20
    EXPECT eax, 0, "channel 2's output is low while it counts"
1:  in al, SPEAKER
    test al, 0x20
    jz 1b
    call pm_count
    sub eax, ecx
    and eax, [pm_mask]
    NEAR eax, PM_HZ/20, PM_HZ/100, "50 ms of the 8254 in ACPI timer ticks"
    ret

# Read all free-running clocks at the moment when the RTC's second changes.
await_second:
    CMOS RTC_SECONDS
    mov cl, al
1:  call accumulate
    CMOS RTC_A
    test al, RTC_UPDATING
    jnz 1b
    CMOS RTC_SECONDS
    cmp al, cl
    je 1b
    call pm_count
    mov [pm_now], eax
    rdtsc
    mov [tsc_now], eax
    mov [tsc_now+4], edx
    mov eax, [APIC_CURRENT]
    mov [apic_now], eax
    ret
accumulate:                      # follow the 8254's count over its wraps
    call pit_count
    mov edx, [pit_last]
    mov [pit_last], eax
    sub edx, eax
    and edx, 0xFFFF
    add [pit_elapsed], edx
    ret

yardstick:
    mov dword ptr [APIC_INITIAL], -1
    call await_second
    mov dword ptr [pit_elapsed], 0
    .irp clock, pm, tsc, apic
    push [\clock\()_now]
    pop [\clock\()_then]
    .endr
    push [tsc_now+4]
    pop [tsc_then+4]
    .rept YARDSTICK
    call await_second
    .endr
    mov eax, [pm_now]
    sub eax, [pm_then]
    and eax, [pm_mask]
    NEAR eax, PM_HZ*YARDSTICK, PM_HZ*YARDSTICK/30, "ACPI timer ticks in two seconds"
    NEAR [pit_elapsed], PIT_HZ*YARDSTICK, PIT_HZ*YARDSTICK/30, "8254 ticks in two seconds"
    mov eax, [tsc_now]
    mov edx, [tsc_now+4]
    sub eax, [tsc_then]
    sbb edx, [tsc_then+4]
    mov ebx, 1000 * YARDSTICK
    div ebx
    NOTE "TSC ticks in a millisecond:", eax
    mov [tsc_khz], eax
    cmp eax, 10000
    EXPECT_FLAGS FLAG_C, 0, "the TSC runs at 10 MHz or more"
    mov eax, [apic_then]
    sub eax, [apic_now]
    NOTE "local APIC timer ticks in two seconds, divided by 16:", eax
    mov [apic_rate], eax
    cmp eax, 10000
    EXPECT_FLAGS FLAG_C, 0, "the local APIC's timer runs"
    ret

# Periodic interrupts over two seconds by the ACPI timer: the 8254 at 1 kHz, the
# RTC at 1024 Hz, and one update-ended interrupt a second. The TSC and the APIC
# timer are held against the same two seconds.
periodic:
    mov al, 0x34
    out PIT_COMMAND, al
    mov al, 1193 & 0xFF
    out PIT0, al
    mov al, 1193 >> 8
    out PIT0, al
    CMOS_SET RTC_A, 0x26
    CMOS RTC_B
    mov [rtc_b], al
    or al, RTC_PERIODIC|RTC_UPDATE_ENDED
    mov cl, al
    CMOS_SET RTC_B, cl
    CMOS RTC_C
    mov al, 0xFA                 # lines 0 and 2
    out PIC1+1, al
    mov al, 0xFE                 # line 8
    out PIC2+1, al
    sti
    hlt
    cli
    mov dword ptr [ticks], 0
    mov dword ptr [clock_ticks], 0
    mov dword ptr [clock_updates], 0
    mov dword ptr [APIC_INITIAL], -1
    rdtsc
    mov [tsc_then], eax
    mov [tsc_then+4], edx
    call pm_count
    mov ecx, eax
1:  sti
    hlt
    cli
    call pm_count
    sub eax, ecx
    and eax, [pm_mask]
    cmp eax, PM_HZ*YARDSTICK
    jb 1b
    mov ecx, [APIC_CURRENT]
    rdtsc
    sub eax, [tsc_then]
    sbb edx, [tsc_then+4]
    mov ebx, 1000 * YARDSTICK
    div ebx
    mov ebx, eax
    mov al, 0xFF
    out PIC1+1, al
    out PIC2+1, al
    CMOS_SET RTC_B, [rtc_b]
    NEAR [ticks], 2000, 200, "8254 interrupts in two seconds"
    NEAR [clock_ticks], 2048, 205, "RTC periodic interrupts in two seconds"
    NEAR [clock_updates], 2, 1, "RTC update-ended interrupts in two seconds"
    mov eax, ebx                 # 1000 times the ratio of the two measurements
    mov edx, 1000
    mul edx
    div dword ptr [tsc_khz]
    NEAR eax, 1000, 30, "the TSC by the ACPI timer, to 1000 by the RTC"
    mov eax, ecx
    not eax
    mov edx, 1000
    mul edx
    div dword ptr [apic_rate]
    NEAR eax, 1000, 30, "the APIC timer by the ACPI timer, to 1000 by the RTC"
    ret

tick:
    push eax
    inc dword ptr [ticks]
    mov al, PIC_EOI
    out PIC1, al
    pop eax
    iretd
clock_tick:
    push eax
    CMOS RTC_C                   # reading it lets the next one come
    test al, RTC_PERIODIC
    jz 1f
    inc dword ptr [clock_ticks]
1:  test al, RTC_UPDATE_ENDED
    jz 2f
    inc dword ptr [clock_updates]
2:  mov al, PIC_EOI
    out PIC2, al
    out PIC1, al
    pop eax
    iretd

.bss
.align 4
pm_port:       .skip 4
pm_mask:       .skip 4
pm_then:       .skip 4
pm_now:        .skip 4
tsc_then:      .skip 8
tsc_now:       .skip 8
tsc_khz:       .skip 4
apic_then:     .skip 4
apic_now:      .skip 4
apic_rate:     .skip 4
pit_last:      .skip 4
pit_elapsed:   .skip 4
ticks:         .skip 4
clock_ticks:   .skip 4
clock_updates: .skip 4
rtc_b:         .skip 4
