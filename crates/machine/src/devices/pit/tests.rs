use super::*;

/// Returns the first nanosecond of a clock pulse.
fn at(tick: i64) -> GuestTime {
    time_of(tick)
}

/// Makes a timer with `control` and a 16-bit count written at tick 0, so that it is loaded at tick
/// 1.
fn programmed(control: u8, count: u16) -> Pit {
    let mut pit = Pit::new();
    let port = 0x40 + u16::from(control >> 6);
    pit.write(0x43, control, at(0));
    let [low, high] = count.to_le_bytes();
    pit.write(port, low, at(0));
    pit.write(port, high, at(0));
    pit.irq_line().take_edges();
    pit
}

fn read16(pit: &mut Pit, port: u16, now: GuestTime) -> u16 {
    let low = pit.read(port, now);
    u16::from_le_bytes([low, pit.read(port, now)])
}

fn level_at(pit: &mut Pit, tick: i64) -> bool {
    pit.advance(at(tick));
    pit.irq()
}

/// Returns the output levels of channel 0 at ticks 1 to `n` after the load.
fn levels(pit: &mut Pit, n: i64) -> String {
    (1..=n)
        .map(|tick| if level_at(pit, tick) { 'H' } else { 'L' })
        .collect()
}

#[test]
fn nothing_happens_before_programming() {
    let mut pit = Pit::new();
    assert_eq!(pit.next_deadline(), None);
    pit.advance(at(1_000_000));
    assert_eq!(pit.irq_line().take_edges(), 0);
}

#[test]
fn mode_0_raises_out_once_when_the_count_expires() {
    let mut pit = programmed(0x30, 4);
    assert_eq!(levels(&mut pit, 7), "LLLLHHH");
    assert_eq!(pit.irq_line().take_edges(), 1);
    assert_eq!(pit.next_deadline(), None);
    // The counter continues below zero.
    assert_eq!(read16(&mut pit, 0x40, at(7)), 0xFFFE);
}

#[test]
fn mode_0_out_falls_again_with_the_first_byte_of_a_new_count() {
    let mut pit = programmed(0x30, 4);
    assert!(level_at(&mut pit, 5));
    pit.write(0x40, 10, at(6));
    assert!(!pit.irq());
    assert_eq!(pit.next_deadline(), None);
    pit.write(0x40, 0, at(6));
    assert_eq!(pit.next_deadline(), Some(at(17)));
}

#[test]
fn mode_2_is_low_for_one_clock_in_each_period() {
    let mut pit = programmed(0x34, 4);
    assert_eq!(levels(&mut pit, 10), "HHHLHHHLHH");
    assert_eq!(pit.irq_line().take_edges(), 2);
    assert_eq!(pit.next_deadline(), Some(at(13)));
}

#[test]
fn mode_2_takes_a_new_count_over_at_the_end_of_the_period() {
    let mut pit = programmed(0x34, 4);
    pit.write(0x40, 6, at(2));
    pit.write(0x40, 0, at(2));
    assert_eq!(pit.next_deadline(), Some(at(5)));
    assert_eq!(levels(&mut pit, 12), "HHHLHHHHHLHH");
    assert_eq!(pit.irq_line().take_edges(), 2);
}

#[test]
fn mode_3_is_high_for_the_longer_half_of_an_odd_count() {
    let mut pit = programmed(0x36, 5);
    assert_eq!(levels(&mut pit, 10), "HHHLLHHHLL");
    assert_eq!(pit.irq_line().take_edges(), 1);
    let mut pit = programmed(0x36, 4);
    assert_eq!(levels(&mut pit, 9), "HHLLHHLLH");
    assert_eq!(pit.irq_line().take_edges(), 2);
}

#[test]
fn mode_3_counts_by_two() {
    let mut pit = programmed(0x36, 8);
    let seen: Vec<_> = (1..=8)
        .map(|tick| read16(&mut pit, 0x40, at(tick)))
        .collect();
    assert_eq!(seen, [8, 6, 4, 2, 8, 6, 4, 2]);
    let mut pit = programmed(0x36, 5);
    let seen: Vec<_> = (1..=5)
        .map(|tick| read16(&mut pit, 0x40, at(tick)))
        .collect();
    assert_eq!(seen, [4, 2, 0, 4, 2]);
}

#[test]
fn mode_3_takes_a_new_count_over_at_the_half_period() {
    let mut pit = programmed(0x36, 8);
    pit.write(0x40, 4, at(2));
    pit.write(0x40, 0, at(2));
    assert_eq!(pit.next_deadline(), Some(at(7)));
    assert_eq!(levels(&mut pit, 11), "HHHHLLHHLLH");
}

#[test]
fn mode_4_strobes_low_for_one_clock_once() {
    let mut pit = programmed(0x38, 3);
    assert_eq!(pit.next_deadline(), Some(at(5)));
    assert_eq!(levels(&mut pit, 8), "HHHLHHHH");
    assert_eq!(pit.irq_line().take_edges(), 1);
}

#[test]
fn modes_1_and_5_wait_for_the_gate() {
    let mut pit = programmed(0xB2, 4);
    assert!(pit.output2(at(10)));
    pit.set_gate2(true, at(10));
    assert!(!pit.output2(at(11)));
    assert!(!pit.output2(at(14)));
    assert!(pit.output2(at(15)));
    // A second trigger starts the count again.
    pit.set_gate2(false, at(20));
    pit.set_gate2(true, at(21));
    assert!(!pit.output2(at(22)));

    let mut pit = programmed(0xBA, 4);
    pit.set_gate2(true, at(10));
    assert!(pit.output2(at(14)));
    assert!(!pit.output2(at(15)));
    assert!(pit.output2(at(16)));
}

#[test]
fn a_low_gate_pauses_mode_0_and_stops_mode_3() {
    let mut pit = programmed(0xB0, 10);
    pit.set_gate2(true, at(100));
    pit.set_gate2(false, at(104));
    assert_eq!(read16(&mut pit, 0x42, at(200)), 6);
    pit.set_gate2(true, at(300));
    assert!(!pit.output2(at(305)));
    assert!(pit.output2(at(306)));

    let mut pit = programmed(0xB6, 10);
    pit.set_gate2(true, at(0));
    assert!(!pit.output2(at(7)));
    pit.set_gate2(false, at(7));
    assert!(pit.output2(at(7)));
    pit.set_gate2(true, at(20));
    assert!(pit.output2(at(25)));
    assert!(!pit.output2(at(26)));
}

#[test]
fn a_count_of_zero_is_65536_or_10000_in_bcd() {
    let pit = programmed(0x34, 0);
    assert_eq!(pit.next_deadline(), Some(at(1 + 65_536)));
    let pit = programmed(0x35, 0);
    assert_eq!(pit.next_deadline(), Some(at(1 + 10_000)));
}

#[test]
fn bcd_counts_are_written_and_read_in_decimal_digits() {
    let mut pit = programmed(0x31, 0x1234);
    assert_eq!(pit.next_deadline(), Some(at(1 + 1234)));
    assert_eq!(read16(&mut pit, 0x40, at(1 + 35)), 0x1199);
    assert_eq!(read16(&mut pit, 0x40, at(1 + 1235)), 0x9999);
}

#[test]
fn a_latched_count_stands_still_until_both_bytes_are_read() {
    let mut pit = programmed(0x34, 1000);
    pit.write(0x43, 0x00, at(101));
    pit.write(0x43, 0x00, at(201));
    assert_eq!(read16(&mut pit, 0x40, at(301)), 900);
    assert_eq!(read16(&mut pit, 0x40, at(301)), 700);
}

#[test]
fn single_byte_access_reads_and_writes_one_half() {
    let mut pit = Pit::new();
    pit.write(0x43, 0x14, at(0));
    pit.write(0x40, 100, at(0));
    assert_eq!(pit.read(0x40, at(11)), 90);
    assert_eq!(pit.read(0x40, at(12)), 89);
    pit.write(0x43, 0x24, at(20));
    pit.write(0x40, 0x10, at(20));
    assert_eq!(pit.read(0x40, at(21)), 0x10);
    assert_eq!(pit.read(0x40, at(22)), 0x0F);
}

#[test]
fn read_back_gives_status_before_count() {
    let mut pit = programmed(0x34, 1000);
    pit.write(0x43, 0xC2, at(101));
    assert_eq!(pit.read(0x40, at(500)), 0xB4);
    assert_eq!(read16(&mut pit, 0x40, at(500)), 900);
}

#[test]
fn null_count_shows_until_the_count_is_loaded() {
    let mut pit = programmed(0x30, 1000);
    pit.write(0x43, 0xE2, at(0));
    assert_eq!(pit.read(0x40, at(0)), 0x70);
    pit.write(0x43, 0xE2, at(1));
    assert_eq!(pit.read(0x40, at(1)), 0x30);
}

#[test]
fn a_count_of_one_makes_no_edges_in_periodic_modes() {
    for control in [0x34, 0x36] {
        let mut pit = programmed(control, 1);
        assert_eq!(pit.next_deadline(), None);
        pit.advance(at(1000));
        assert_eq!(pit.irq_line().take_edges(), 0);
        assert!(pit.irq());
    }
}

#[test]
fn raising_out_with_a_control_word_is_an_edge() {
    let mut pit = programmed(0x30, 1000);
    assert!(!pit.irq());
    pit.write(0x43, 0x34, at(10));
    assert!(pit.irq());
    assert_eq!(pit.irq_line().take_edges(), 1);
}

#[test]
fn an_hour_of_ticks_is_counted_without_drift_and_without_loss() {
    let mut pit = programmed(0x34, 11_932);
    let hour = GuestTime(3_600_000_000_000);
    pit.advance(hour);
    assert_eq!(pit.irq_line().take_edges(), (FREQUENCY * 3600 - 1) / 11_932);

    // The same edges are seen one at a time by following the deadlines.
    let mut pit = programmed(0x34, 11_932);
    let mut now = GuestTime(0);
    for _ in 0..1000 {
        now = pit.next_deadline().unwrap();
        pit.advance(now);
        assert_eq!(pit.irq_line().take_edges(), 1);
    }
    assert_eq!(now, at(1 + 1000 * 11_932));
}

#[test]
fn the_end_of_time_is_survived() {
    let mut pit = programmed(0x36, 0xFFFF);
    let end = GuestTime(u64::MAX);
    pit.advance(end);
    pit.next_deadline();
    pit.write(0x40, 1, end);
    pit.write(0x40, 2, end);
    pit.read(0x40, end);
    pit.next_deadline();
    // A guest that programs it reads the count.
    for (port, value) in [(0x43, 0x34), (0x40, 0x12), (0x40, 0x34), (0x43, 0)] {
        pit.write(port, value, end);
    }
    assert_eq!([pit.read(0x40, end), pit.read(0x40, end)], [0x12, 0x34]);
}

#[test]
fn a_single_rise_that_has_passed_unnoticed_is_still_to_come() {
    let mut pit = Pit::new();
    // Mode 0 with five ticks.
    pit.write(0x43, 0x30, at(0));
    pit.write(0x40, 5, at(0));
    pit.write(0x40, 0, at(0));
    let rise = pit.next_deadline();
    assert_eq!(rise, Some(at(6)));
    // The host runs another program until long after that time, and the timer is not advanced.
    assert_eq!(pit.next_deadline(), rise);
    pit.advance(at(100));
    assert!(pit.irq());
    assert_eq!(pit.next_deadline(), None);
}
