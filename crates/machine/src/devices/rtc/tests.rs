use super::*;
use crate::devices::ide::DiskGeometry;
use crate::devices::ide::Geometry;

/// Thursday 29 February 2024, 23:59:58 and a quarter.
const START: u64 = 1_709_251_198_250_000_000;

const fn ms(milliseconds: u64) -> GuestTime {
    GuestTime(milliseconds * 1_000_000)
}

fn peek(rtc: &mut Rtc, register: u8, now: GuestTime) -> u8 {
    rtc.write(0x70, register, now);
    rtc.read(0x71, now)
}

fn poke(rtc: &mut Rtc, register: u8, value: u8, now: GuestTime) {
    rtc.write(0x70, register, now);
    rtc.write(0x71, value, now);
}

/// Returns century, year, month, day, weekday, hour, minute and second.
fn time(rtc: &mut Rtc, now: GuestTime) -> [u8; 8] {
    [0x32, 9, 8, 7, 6, 4, 2, 0].map(|register| peek(rtc, register, now))
}

#[test]
fn time_starts_with_the_host_and_follows_guest_time() {
    let mut rtc = Rtc::new(START);
    let leap_day = [0x20, 0x24, 0x02, 0x29, 0x05, 0x23, 0x59, 0x58];
    assert_eq!(time(&mut rtc, ms(0)), leap_day);
    assert_eq!(peek(&mut rtc, 0, ms(749)), 0x58);
    assert_eq!(peek(&mut rtc, 0, ms(750)), 0x59);
    let march = [0x20, 0x24, 0x03, 0x01, 0x06, 0x00, 0x00, 0x00];
    assert_eq!(time(&mut rtc, ms(1750)), march);
}

#[test]
fn registers_follow_the_data_mode_and_the_12_hour_bit() {
    let mut rtc = Rtc::new(START);
    poke(&mut rtc, 0x0B, 0x06, ms(0));
    assert_eq!(time(&mut rtc, ms(0)), [20, 24, 2, 29, 5, 23, 59, 58]);
    poke(&mut rtc, 0x0B, 0x00, ms(0));
    assert_eq!(peek(&mut rtc, 4, ms(0)), 0x91);
}

#[test]
fn uip_is_set_for_244_us_before_the_update() {
    let mut rtc = Rtc::new(START);
    let update = 750_000_000;
    assert_eq!(peek(&mut rtc, 0x0A, GuestTime(update - 244_001)), 0x26);
    assert_eq!(peek(&mut rtc, 0x0A, GuestTime(update - 244_000)), 0xA6);
    assert_eq!(peek(&mut rtc, 0x0A, GuestTime(update - 1)), 0xA6);
    assert_eq!(peek(&mut rtc, 0x0A, GuestTime(update)), 0x26);
}

#[test]
fn set_holds_the_time_until_it_is_cleared() {
    let mut rtc = Rtc::new(START);
    poke(&mut rtc, 0x0B, 0x82, ms(0));
    for (register, value) in [
        (0x32, 0x19),
        (9, 0x99),
        (8, 0x12),
        (7, 0x31),
        (6, 0x06),
        (4, 0x23),
        (2, 0x59),
        (0, 0x59),
    ] {
        poke(&mut rtc, register, value, ms(0));
    }
    // No register changes, and UIP is never set.
    assert_eq!(peek(&mut rtc, 0, ms(5_000)), 0x59);
    assert_eq!(peek(&mut rtc, 0x0A, GuestTime(5_749_900_000)), 0x26);
    poke(&mut rtc, 0x0B, 0x02, ms(6_000));
    let before = [0x19, 0x99, 0x12, 0x31, 0x06, 0x23, 0x59, 0x59];
    assert_eq!(time(&mut rtc, ms(6_000)), before);
    // The divider chain was not disturbed, so the next second comes at the usual time.
    let after = [0x20, 0x00, 0x01, 0x01, 0x07, 0x00, 0x00, 0x00];
    assert_eq!(time(&mut rtc, ms(6_750)), after);
}

#[test]
fn leaving_divider_reset_updates_half_a_second_later() {
    let mut rtc = Rtc::new(START);
    poke(&mut rtc, 0x0A, 0x76, ms(100));
    assert_eq!(peek(&mut rtc, 0, ms(3_000)), 0x58);
    poke(&mut rtc, 0x0A, 0x26, ms(3_100));
    assert_eq!(peek(&mut rtc, 0, ms(3_599)), 0x58);
    assert_eq!(peek(&mut rtc, 0, ms(3_600)), 0x59);
}

#[test]
fn a_time_register_can_be_written_while_the_clock_runs() {
    let mut rtc = Rtc::new(START);
    poke(&mut rtc, 2, 0x30, ms(0));
    assert_eq!(peek(&mut rtc, 2, ms(0)), 0x30);
    assert_eq!(peek(&mut rtc, 0, ms(0)), 0x58);
}

#[test]
fn periodic_interrupts_come_at_the_selected_rate_without_drift() {
    let mut rtc = Rtc::new(0);
    poke(&mut rtc, 0x0A, 0x26, ms(0)); // 1024 Hz
    poke(&mut rtc, 0x0B, 0x42, ms(0));
    let mut now = ms(0);
    for _ in 0..1024 {
        now = rtc.next_deadline(now).unwrap();
        rtc.advance(GuestTime(now.0 - 1));
        assert!(!rtc.irq());
        rtc.advance(now);
        assert!(rtc.irq());
        assert_eq!(rtc.next_deadline(now), None);
        assert_eq!(peek(&mut rtc, 0x0C, now) & 0xC0, 0xC0);
        assert!(!rtc.irq());
    }
    assert_eq!(now, GuestTime(SECOND));
    assert_eq!(rtc.irq_line().take_edges(), 1024);
}

/// Returns the number of interrupts of a guest that reads register C as soon as it is interrupted.
fn interrupts_until(rtc: &mut Rtc, mut now: GuestTime, end: GuestTime) -> u32 {
    let mut count = 0;
    while now < end {
        rtc.advance(now);
        if rtc.irq() {
            count += u32::from(peek(rtc, 0x0C, now) & 0x40 != 0);
        }
        now = rtc.next_deadline(now).unwrap();
    }
    count
}

#[test]
fn periods_that_passed_while_the_host_was_away_are_made_up_for() {
    let mut rtc = Rtc::new(0);
    poke(&mut rtc, 0x0A, 0x26, ms(0)); // 1024 Hz
    poke(&mut rtc, 0x0B, 0x42, ms(0));
    // For a tenth of a second the guest does not run.
    let count = interrupts_until(&mut rtc, ms(100), ms(1000));
    assert!((1022..=1024).contains(&count), "{count}");
}

#[test]
fn periods_that_the_guest_did_not_wait_for_are_not_made_up_for() {
    let mut rtc = Rtc::new(0);
    poke(&mut rtc, 0x0A, 0x26, ms(0));
    rtc.advance(ms(100));
    poke(&mut rtc, 0x0B, 0x42, ms(100));
    assert_eq!(peek(&mut rtc, 0x0C, ms(200)) & 0x40, 0x40);
    let deadline = rtc.next_deadline(ms(200)).unwrap();
    assert_eq!(deadline.0, (SECOND * 205).div_ceil(1024));
}

#[test]
fn periodic_rates_are_those_of_the_data_sheet() {
    for (rate, hertz) in [(1, 256), (2, 128), (3, 8192), (6, 1024), (15, 2)] {
        let mut rtc = Rtc::new(0);
        poke(&mut rtc, 0x0A, 0x20 | rate, ms(0));
        poke(&mut rtc, 0x0B, 0x42, ms(0));
        let period = SECOND.div_ceil(hertz);
        assert_eq!(rtc.next_deadline(ms(0)), Some(GuestTime(period)));
    }
    let mut rtc = Rtc::new(0);
    poke(&mut rtc, 0x0A, 0x20, ms(0));
    poke(&mut rtc, 0x0B, 0x42, ms(0));
    assert_eq!(rtc.next_deadline(ms(0)), None);
}

#[test]
fn flags_are_set_even_if_not_enabled_and_enabling_them_interrupts() {
    let mut rtc = Rtc::new(START);
    rtc.advance(ms(1000));
    assert!(!rtc.irq());
    assert_eq!(rtc.next_deadline(ms(1000)), None);
    poke(&mut rtc, 0x0B, 0x12, ms(1000));
    assert!(rtc.irq());
    assert_eq!(peek(&mut rtc, 0x0C, ms(1000)), 0xD0);
    assert_eq!(peek(&mut rtc, 0x0C, ms(1000)), 0x00);
}

#[test]
fn the_update_ended_interrupt_comes_every_second() {
    let mut rtc = Rtc::new(START);
    poke(&mut rtc, 0x0B, 0x12, ms(0));
    assert_eq!(rtc.next_deadline(ms(0)), Some(ms(750)));
    rtc.advance(ms(750));
    assert!(rtc.irq());
    assert_eq!(peek(&mut rtc, 0x0C, ms(750)) & 0x90, 0x90);
    assert_eq!(rtc.next_deadline(ms(750)), Some(ms(1750)));
    // SET stops updates and clears the enable bit.
    poke(&mut rtc, 0x0B, 0x92, ms(800));
    assert_eq!(peek(&mut rtc, 0x0B, ms(800)), 0x82);
}

#[test]
fn the_alarm_interrupts_at_its_time_of_day() {
    let mut rtc = Rtc::new(START);
    for (register, value) in [(1, 0x05), (3, 0x00), (5, 0x00)] {
        poke(&mut rtc, register, value, ms(0));
    }
    poke(&mut rtc, 0x0B, 0x22, ms(0));
    assert_eq!(rtc.next_deadline(ms(0)), Some(ms(6_750)));
    rtc.advance(ms(6_749));
    assert!(!rtc.irq());
    rtc.advance(ms(6_750));
    assert!(rtc.irq());
    assert_eq!(peek(&mut rtc, 0x0C, ms(6_750)) & 0xA0, 0xA0);
    assert_eq!(rtc.next_deadline(ms(6_750)), Some(ms(6_750 + 86_400_000)));
}

#[test]
fn an_alarm_is_not_missed_by_a_long_step() {
    let mut rtc = Rtc::new(START);
    poke(&mut rtc, 0x01, 0x30, ms(0));
    poke(&mut rtc, 0x03, 0xFF, ms(0));
    poke(&mut rtc, 0x05, 0xFF, ms(0));
    rtc.advance(ms(3_600_000));
    assert_eq!(peek(&mut rtc, 0x0C, ms(3_600_000)) & 0x20, 0x20);
}

#[test]
fn status_c_and_d_are_read_only() {
    let mut rtc = Rtc::new(START);
    poke(&mut rtc, 0x0C, 0xFF, ms(0));
    poke(&mut rtc, 0x0D, 0x00, ms(0));
    assert_eq!(peek(&mut rtc, 0x0C, ms(0)), 0);
    assert_eq!(peek(&mut rtc, 0x0D, ms(0)), 0x80);
}

#[test]
fn cmos_memory_is_memory_and_bit_7_of_the_index_masks_nmi() {
    let mut rtc = Rtc::new(START);
    poke(&mut rtc, 0x0F, 0x0A, ms(0));
    poke(&mut rtc, 0x7F, 0x55, ms(0));
    assert!(!rtc.nmi_disabled());
    assert_eq!(peek(&mut rtc, 0x0F, ms(0)), 0x0A);
    assert_eq!(peek(&mut rtc, 0xFF, ms(0)), 0x55);
    assert!(rtc.nmi_disabled());
    assert_eq!(rtc.read(0x70, ms(0)), 0xFF);
}

#[test]
fn memory_sizes_are_where_firmware_puts_them() {
    let mut rtc = Rtc::new(START);
    rtc.set_memory_sizes(512 << 20, 3 << 30);
    let mut word =
        |low| u16::from_le_bytes([low, low + 1].map(|register| peek(&mut rtc, register, ms(0))));
    assert_eq!(word(0x15), 640);
    assert_eq!(word(0x17), 0xFFFF);
    assert_eq!(word(0x30), 0xFFFF);
    assert_eq!(u64::from(word(0x34)), (512 - 16) * 16);
    assert_eq!(word(0x5B), 0xC000);
    assert_eq!(peek(&mut rtc, 0x5D, ms(0)), 0);

    rtc.set_memory_sizes(8 << 20, 0);
    let mut word =
        |low| u16::from_le_bytes([low, low + 1].map(|register| peek(&mut rtc, register, ms(0))));
    assert_eq!(word(0x17), 7 * 1024);
    assert_eq!(word(0x34), 0);
}

#[test]
fn a_clock_with_another_start_keeps_what_the_guest_has_changed() {
    let later = START as i64 + 86_400_500_000_000;
    let mut rtc = Rtc::new(START);
    rtc.start_at(later);
    // The next day, half a second later.
    let march = [0x20, 0x24, 0x03, 0x01, 0x06, 0x23, 0x59, 0x58];
    assert_eq!(time(&mut rtc, ms(249)), march);
    assert_eq!(peek(&mut rtc, 0, ms(250)), 0x59);
    // The guest sets its clock an hour back.
    poke(&mut rtc, 4, 0x22, ms(250));
    rtc.start_at(later);
    assert_eq!(peek(&mut rtc, 4, ms(250)), 0x22);
    rtc.start_at(START as i64);
    let back = [0x20, 0x24, 0x02, 0x29, 0x05, 0x22, 0x59, 0x58];
    assert_eq!(time(&mut rtc, ms(250)), back);
    // A clock that the guest is setting does not change under its hands.
    poke(&mut rtc, 0x0B, 0x82, ms(250));
    rtc.start_at(later);
    assert_eq!(time(&mut rtc, ms(5_000)), back);
}

#[test]
fn nonsense_dates_and_the_end_of_time_are_survived() {
    let mut rtc = Rtc::new(u64::MAX);
    for format in [0x80, 0x82, 0x84, 0x86] {
        poke(&mut rtc, 0x0B, format, ms(1));
        for register in [0, 2, 4, 6, 7, 8, 9, 0x32] {
            poke(&mut rtc, register, 0xFF, ms(1));
        }
        poke(&mut rtc, 0x0B, format & 0x7F | 0x70, ms(1));
        time(&mut rtc, ms(1));
        rtc.next_deadline(ms(1));
    }
    let end = GuestTime(u64::MAX);
    rtc.advance(end);
    time(&mut rtc, end);
    peek(&mut rtc, 0x0C, end);
    peek(&mut rtc, 0x0A, end);
    rtc.next_deadline(end);
    // A guest that sets a date reads it.
    poke(&mut rtc, 0x0A, 0x26, end);
    poke(&mut rtc, 0x0B, 0x86, end);
    let date = [20, 24, 2, 29, 5, 23, 59, 58];
    for (register, value) in [0x32, 9, 8, 7, 6, 4, 2, 0].into_iter().zip(date) {
        poke(&mut rtc, register, value, end);
    }
    assert_eq!(time(&mut rtc, end), date);
}

#[test]
fn geometries_of_disks_are_where_firmware_and_old_systems_look() {
    let mut rtc = Rtc::new(START);
    let disk = |cylinders, heads, sectors| {
        Some(Geometry::given(DiskGeometry {
            cylinders,
            heads,
            sectors,
        }))
    };
    rtc.set_disks(&[
        disk(1024, 16, 63),
        disk(306, 4, 17),
        None,
        disk(1025, 16, 63),
    ]);
    rtc.set_memory_sizes(0, 0);
    let mut bytes = |registers: std::ops::RangeInclusive<u8>| -> Vec<u8> {
        registers
            .map(|register| peek(&mut rtc, register, ms(0)))
            .collect()
    };
    assert_eq!(bytes(0x12..=0x12), [0xff]);
    assert_eq!(bytes(0x19..=0x1a), [47, 47]);
    let first = [0x00, 0x04, 16, 0xff, 0xff, 0xc8, 0x00, 0x04, 63];
    let second = [0x32, 0x01, 4, 0xff, 0xff, 0xc0, 0x32, 0x01, 17];
    assert_eq!(bytes(0x1b..=0x23), first);
    assert_eq!(bytes(0x24..=0x2c), second);
    // The last disk is larger than INT 13h can address without a translation.
    assert_eq!(bytes(0x39..=0x39), [1 << 6]);
    let sum: u16 = bytes(0x10..=0x2d).into_iter().map(u16::from).sum();
    assert_eq!(bytes(0x2e..=0x2f), sum.to_be_bytes());
    // A CD-ROM drive at the first place leaves the first disk's type empty.
    rtc.set_disks(&[None, disk(306, 4, 17)]);
    assert_eq!(peek(&mut rtc, 0x12, ms(0)), 0x0f);
}
