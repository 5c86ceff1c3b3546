//! Tests of the high-precision event timer.

use super::*;
use crate::board::pic::Pic;
use crate::bus::Device;
use crate::bus::testing::Bench;
use tollgate_test_support::Random;
use tollgate_x86::PhysicalAddress;

const GENERAL: u64 = 0x10;
const STATUS: u64 = 0x20;
const COUNTER: u64 = 0xf0;

fn at(nanoseconds: u64) -> GuestTime {
    GuestTime(nanoseconds)
}

fn timer(index: u64) -> u64 {
    0x100 + 0x20 * index
}

fn read(hpet: &mut Hpet, offset: u64, now: u64) -> u64 {
    let mut data = [0; 8];
    hpet.read(offset, &mut data, at(now));
    u64::from_le_bytes(data)
}

fn write(hpet: &mut Hpet, offset: u64, value: u64, now: u64) {
    hpet.write(offset, &value.to_le_bytes(), at(now));
}

/// Returns a timer whose counter counts from 0 at time 0.
fn running() -> Hpet {
    let mut hpet = Hpet::default();
    write(&mut hpet, GENERAL, 1, 0);
    hpet
}

fn edges(hpet: &mut Hpet, index: usize, now: u64) -> u64 {
    hpet.advance(at(now));
    hpet.timers[index].line.take_edges()
}

#[test]
fn the_identification_tells_three_comparators_of_64_bits_and_10_ns() {
    let mut hpet = Hpet::default();
    assert_eq!(read(&mut hpet, 0, 0), 0x0098_9680_8086_a201);
    write(&mut hpet, 0, u64::MAX, 0);
    assert_eq!(read(&mut hpet, 0, 0), 0x0098_9680_8086_a201);
    for index in 0..3 {
        assert_eq!(read(&mut hpet, timer(index), 0), 0x00ff_0104_0000_0030);
        assert_eq!(read(&mut hpet, timer(index) + 8, 0), u64::MAX);
    }
    assert_eq!(read(&mut hpet, timer(3), 0), 0);
}

#[test]
fn the_counter_counts_while_it_is_enabled_and_is_set_while_not() {
    let mut hpet = Hpet::default();
    assert_eq!(read(&mut hpet, COUNTER, 1_000), 0);
    write(&mut hpet, COUNTER, 0xffff_fff0, 1_000);
    write(&mut hpet, GENERAL, 1, 2_000);
    assert_eq!(read(&mut hpet, COUNTER, 2_000 + 320), 0x1_0000_0010);
    let mut half = [0; 4];
    hpet.read(COUNTER + 4, &mut half, at(2_320));
    assert_eq!(half, [1, 0, 0, 0]);
    write(&mut hpet, GENERAL, 0, 3_000);
    assert_eq!(read(&mut hpet, COUNTER, 9_000), 0xffff_fff0 + 100);
}

#[test]
fn only_whole_halves_are_written() {
    let mut hpet = Hpet::default();
    hpet.write(COUNTER + 4, &[7, 0, 0, 0], at(0));
    hpet.write(COUNTER, &[1, 2, 3, 4], at(0));
    for (offset, data) in [
        (COUNTER, &[9][..]),
        (COUNTER + 2, &[9; 4]),
        (COUNTER + 4, &[9; 8]),
    ] {
        hpet.write(offset, data, at(0));
    }
    assert_eq!(read(&mut hpet, COUNTER, 0), 0x0000_0007_0403_0201);
}

#[test]
fn a_comparator_fires_once_when_its_value_is_reached() {
    let mut hpet = running();
    write(&mut hpet, timer(0) + 8, 1_000, 0);
    write(&mut hpet, timer(0), 4, 0);
    assert_eq!(hpet.next_deadline(at(0)), Some(at(10_000)));
    assert_eq!(edges(&mut hpet, 0, 9_999), 0);
    assert_eq!(edges(&mut hpet, 0, 10_000), 1);
    assert_eq!(edges(&mut hpet, 0, 1 << 50), 0);
    assert_eq!(read(&mut hpet, STATUS, 1 << 50), 0, "edge-triggered");
    assert_eq!(hpet.next_deadline(at(1 << 50)), None);
}

#[test]
fn a_value_that_has_just_passed_fires_at_once() {
    let mut hpet = running();
    write(&mut hpet, timer(1), 4, 100_000);
    write(&mut hpet, timer(1) + 8, 9_999, 100_000);
    assert_eq!(edges(&mut hpet, 1, 100_010), 1);
    // The counter never reaches the comparator's reset value.
    write(&mut hpet, timer(2), 4, 100_020);
    assert_eq!(edges(&mut hpet, 2, 1 << 40), 0);
}

#[test]
fn a_comparator_of_32_bits_fires_each_time_the_counter_wraps() {
    let mut hpet = running();
    write(&mut hpet, timer(2), 0x104, 0);
    write(&mut hpet, timer(2) + 8, 0xffff_ffff_0000_0100, 0);
    assert_eq!(read(&mut hpet, timer(2) + 8, 0), 0x100);
    assert_eq!(edges(&mut hpet, 2, 2_560), 1);
    let round = (1 << 32) * 10;
    assert_eq!(edges(&mut hpet, 2, round + 2_550), 0);
    assert_eq!(edges(&mut hpet, 2, round + 2_560), 1);
}

#[test]
fn periodic_mode_adds_the_period_and_counts_what_was_missed() {
    let mut hpet = running();
    // In periodic mode the next value is also the comparator's: it fires first at 500, then every
    // 2,000.
    write(&mut hpet, timer(0), 0x4c, 0);
    write(&mut hpet, timer(0) + 8, 500, 0);
    write(&mut hpet, timer(0) + 8, 2_000, 0);
    assert_eq!(edges(&mut hpet, 0, 5_000), 1);
    assert_eq!(read(&mut hpet, timer(0) + 8, 5_000), 2_500);
    assert_eq!(edges(&mut hpet, 0, 24_990), 0);
    assert_eq!(edges(&mut hpet, 0, 25_000), 1);
    assert_eq!(edges(&mut hpet, 0, 85_000), 3);
    assert_eq!(read(&mut hpet, timer(0) + 8, 85_000), 10_500);
}

#[test]
fn a_level_stays_until_its_status_is_written_with_a_one() {
    let mut hpet = running();
    write(&mut hpet, timer(1) + 8, 100, 0);
    write(&mut hpet, timer(1), 6 | 20 << 9, 0);
    hpet.advance(at(1_000));
    assert_eq!(read(&mut hpet, STATUS, 1_000), 2);
    assert!(hpet.timers[1].line.level());
    assert_eq!(hpet.line_of(1), Some(20));
    write(&mut hpet, STATUS, 1, 1_000);
    assert!(hpet.timers[1].line.level());
    write(&mut hpet, STATUS, 2, 1_000);
    assert!(!hpet.timers[1].line.level());
}

#[test]
fn a_line_that_cannot_be_driven_is_not_taken() {
    let mut hpet = Hpet::default();
    write(&mut hpet, timer(0), 16 << 9, 0);
    for line in [0, 1, 3, 9, 24, 31] {
        write(&mut hpet, timer(0), line << 9, 0);
        assert_eq!(read(&mut hpet, timer(0), 0) >> 9 & 31, 16);
    }
    write(&mut hpet, timer(0), 8 << 9, 0);
    assert_eq!(read(&mut hpet, timer(0), 0) >> 9 & 31, 8);
}

/// Initializes both chips with vectors 20h and 28h and nothing masked.
fn unmask(pic: &mut Pic) {
    for (port, base, wire) in [(0x20, 0x20, 4), (0xa0, 0x28, 2)] {
        pic.write(port, 0x11);
        for value in [base, wire, 1, 0] {
            pic.write(port + 1, value);
        }
    }
}

#[test]
fn replacement_routing_cuts_the_8254_and_the_clock_off() {
    let mut bench = Bench::new();
    unmask(&mut bench.board.interrupts.pic);
    let mut hpet = Hpet::default();
    let write = |hpet: &mut Hpet, bench: &mut Bench, offset: u64, value: u64| {
        let address = PhysicalAddress(BASE_ADDRESS + offset);
        hpet.memory_write(address, &value.to_le_bytes(), &mut bench.context(3));
    };
    write(&mut hpet, &mut bench, GENERAL, 3);
    for line in REPLACED_LINES {
        bench.context(1).set_line(line, true);
        assert!(!bench.board.interrupts.pic.pending(), "line {line}");
    }
    for (index, vector) in [(0, 0x20), (1, 0x28)] {
        write(&mut hpet, &mut bench, timer(index), 6);
        write(&mut hpet, &mut bench, timer(index) + 8, 0);
        bench.clock = crate::board::GuestClock::paused_at(at(1_000 * (index + 1)), 0);
        Device::advance(&mut hpet, &mut bench.context(3));
        assert!(bench.board.interrupts.pic.pending());
        assert_eq!(bench.board.interrupts.pic.acknowledge(), vector);
        write(&mut hpet, &mut bench, STATUS, 1 << index);
        for port in [0xa0, 0x20] {
            bench.board.interrupts.pic.write(port, 0x20);
        }
    }
    // The other devices' lines have kept their levels.
    assert!(!bench.board.interrupts.pic.pending());
    write(&mut hpet, &mut bench, GENERAL, 1);
    assert!(bench.board.interrupts.pic.pending());
}

#[test]
fn random_accesses_are_survived_and_deadlines_lie_ahead() {
    let mut random = Random::new(0x4850_4554);
    let (mut hpet, mut now) = (Hpet::default(), 0u64);
    for _ in 0..200_000 {
        let exponent = random.below(44);
        now += random.next_u64() & ((1 << exponent) - 1);
        let offset = random.next_u64() % 0x180;
        let value = random.next_u64() >> random.below(64);
        let length = [1, 2, 4, 4, 8, 8][random.below(6)];
        let offset = offset & !(length as u64 - 1);
        if random.below(3) == 0 {
            let mut data = [0; 64];
            hpet.read(offset, &mut data[..length], at(now));
        } else {
            hpet.write(offset, &value.to_le_bytes()[..length], at(now));
        }
        hpet.advance(at(now));
        let lies_ahead = |due: GuestTime| due > at(now);
        assert!(hpet.next_deadline(at(now)).is_none_or(lies_ahead));
    }
    // A guest that programs it again gets an edge at the comparator's time, and only then.
    write(&mut hpet, GENERAL, 0, now);
    write(&mut hpet, COUNTER, 0, now);
    for index in 0..3 {
        write(&mut hpet, timer(index), 0, now);
    }
    write(&mut hpet, timer(0), 1 << 2, now);
    write(&mut hpet, timer(0) + 8, 1_000, now);
    hpet.advance(at(now));
    hpet.timers[0].line.take_edges();
    write(&mut hpet, GENERAL, 1, now);
    assert_eq!(read(&mut hpet, COUNTER, now + 500), 50);
    assert_eq!(hpet.next_deadline(at(now)), Some(at(now + 10_000)));
    assert_eq!(edges(&mut hpet, 0, now + 9_999), 0);
    assert_eq!(edges(&mut hpet, 0, now + 10_000), 1);
}

#[test]
fn the_state_survives_being_saved() {
    let mut hpet = running();
    write(&mut hpet, timer(0), 0x4c, 0);
    write(&mut hpet, timer(0) + 8, 500, 0);
    let saved = hpet.save();
    let mut other = Hpet::default();
    other.restore(&saved).unwrap();
    assert_eq!(other, hpet);
}
