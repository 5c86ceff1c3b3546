//! Random accesses at random times: no guest may make a device panic or stop answering.

use tollgate_platform::GuestTime;
use tollgate_test_support::Random;

use super::debug_ports::{DebugConsole, DebugExit, PostCode};
use super::i8042::I8042;
use super::pit::Pit;
use super::reset_ports::{ResetControl, SystemControlPort};
use super::rtc::Rtc;
use super::serial::Serial;
use super::speaker_port::SpeakerPort;
use crate::board::input::{Buttons, Key, MouseEvent};
use crate::board::pic::Pic;
use crate::bus::testing::PIC_PROGRAM;

/// Returns a step of time in nanoseconds, which is mostly short and sometimes hours.
fn step(random: &mut Random) -> u64 {
    let exponent = random.below(44);
    random.next_u64() & ((1 << exponent) - 1)
}

#[test]
fn random_accesses_are_survived_and_deadlines_lie_ahead() {
    let mut random = Random::new(0x1234_5678_9ABC_DEF1);
    let mut now = GuestTime(0);
    let (mut pit, mut speaker, mut pic) = (Pit::new(), SpeakerPort::new(), Pic::new());
    let mut rtc = Rtc::new(random.next_u64());
    let (mut serial, mut i8042) = (Serial::new(), I8042::new());
    for _ in 0..100_000 {
        now = now.after(step(&mut random));
        let port = random.next_u64() as u16;
        let value = random.next_u64() as u8;
        match random.next_u64() % 16 {
            0 => pit.write(0x40 + port % 4, value, now),
            1 => _ = pit.read(0x40 + port % 4, now),
            2 => speaker.write(value, &mut pit, now),
            3 => _ = speaker.read(&mut pit, now),
            4 => pic.write(
                [0x20, 0x21, 0xA0, 0xA1, 0x4D0, 0x4D1][usize::from(port % 6)],
                value,
            ),
            5 => _ = pic.read([0x20, 0x21, 0xA0, 0xA1, 0x4D0, 0x4D1][usize::from(port % 6)]),
            6 => pic.set_line(value & 0x1F, port & 1 != 0),
            7 => _ = pic.acknowledge(),
            8 => rtc.write(0x70, value & 0x8F, now),
            9 => rtc.write(0x71, value, now),
            10 => _ = rtc.read(0x71, now),
            11 => serial.write(port % 8, value, now),
            12 => _ = serial.read(port % 8, now),
            13 => _ = serial.push_input(&random.next_u64().to_le_bytes()),
            14 => i8042.write([0x60, 0x64][usize::from(port % 2)], value, now),
            _ => {
                i8042.key(Key::extended(value), port & 1 != 0, now);
                let moved = MouseEvent {
                    right: (random.next_u64() as i32) >> (value & 31),
                    down: (value as i8).into(),
                    wheel: (port as i8).into(),
                    buttons: Buttons::from_bits_truncate(value),
                };
                i8042.move_mouse(moved, now);
                i8042.read(0x60, now);
            }
        }
        pit.advance(now);
        rtc.advance(now);
        i8042.advance(now);
        serial.advance(now);
        assert!(pit.next_deadline().is_none_or(|time| time > now));
        assert!(rtc.next_deadline(now).is_none_or(|time| time > now));
        assert!(i8042.next_deadline(now).is_none_or(|time| time > now));
        assert!(serial.next_deadline().is_none_or(|time| time > now));
    }
    timer_works(&mut pit, now);
    interrupts_work(&mut pic);
    clock_works(&mut rtc, now);
    serial_port_works(&mut serial, now);
    keyboard_controller_works(&mut i8042, now);
}

/// A guest that programs the timer's channel 0 gets an edge at the deadline.
fn timer_works(pit: &mut Pit, now: GuestTime) {
    // Mode 2, 1000 ticks.
    for (port, value) in [(0x43, 0x34), (0x40, 0xe8), (0x40, 3)] {
        pit.write(port, value, now);
    }
    pit.advance(now);
    pit.irq_line().take_edges();
    let due = pit.next_deadline().unwrap();
    assert!(
        (837_000..840_000).contains(&due.since(now)),
        "{now:?} {due:?}"
    );
    pit.advance(due);
    assert_eq!(pit.irq_line().take_edges(), 1);
}

/// A guest that programs the controllers gets the vector of the line that rises.
fn interrupts_work(pic: &mut Pic) {
    (0..16).for_each(|line| pic.set_line(line, false));
    for (port, value) in PIC_PROGRAM {
        pic.write(port, value);
    }
    assert!(!pic.pending());
    pic.set_line(12, true);
    assert!(pic.pending());
    assert_eq!(pic.acknowledge(), 0x2c);
}

/// The memory keeps a byte, and a second passes in a second.
fn clock_works(rtc: &mut Rtc, now: GuestTime) {
    let mut set = |register, value| {
        rtc.write(0x70, register, now);
        rtc.write(0x71, value, now);
    };
    set(0x50, 0x5a);
    // Binary, 24 hours; the oscillator runs.
    set(0x0a, 0x26);
    set(0x0b, 0x86);
    for (register, value) in [(0, 10), (2, 20), (4, 3), (6, 5), (7, 29), (8, 2), (9, 24)] {
        set(register, value);
    }
    set(0x0b, 0x06);
    let later = now.after(1_000_000_000);
    rtc.advance(later);
    let mut get = |register| {
        rtc.write(0x70, register, later);
        rtc.read(0x71, later)
    };
    assert_eq!([0x50, 0, 2, 4].map(&mut get), [0x5a, 11, 20, 3]);
}

/// What the guest sends comes out, and its scratch register keeps a byte.
fn serial_port_works(serial: &mut Serial, now: GuestTime) {
    // Eight bits, no modem loop.
    for (register, value) in [(3, 3), (4, 0), (7, 0x5a)] {
        serial.write(register, value, now);
    }
    serial.take_output();
    serial.write(0, b'x', now);
    assert_eq!(serial.take_output(), b"x");
    assert_eq!(serial.read(7, now), 0x5a);
}

/// The controller passes its test.
fn keyboard_controller_works(i8042: &mut I8042, mut now: GuestTime) {
    // Both ports are disabled, and what they have sent is read.
    for command in [0xad, 0xa7] {
        i8042.write(0x64, command, now);
    }
    for _ in 0..100 {
        now = now.after(I8042::BYTE_TIME);
        i8042.advance(now);
        i8042.read(0x60, now);
    }
    i8042.write(0x64, 0xaa, now);
    now = now.after(I8042::BYTE_TIME);
    i8042.advance(now);
    assert_eq!(i8042.read(0x64, now) & 1, 1);
    assert_eq!(i8042.read(0x60, now), 0x55);
}

#[test]
fn following_the_deadlines_finds_every_edge_of_the_timer() {
    let mut random = Random::new(0xFEDC_BA98_7654_3211);
    for _ in 0..200 {
        let mut followed = Pit::new();
        let mut now = GuestTime(step(&mut random));
        followed.write(0x43, (random.next_u64() as u8 & 0x0F) | 0x30, now);
        for _ in 0..4 {
            followed.write(0x40, random.next_u64() as u8, now);
            now = now.after(random.next_u64() % 1_000_000);
        }
        let mut skipped = followed.clone();
        let end = now.after(300_000_000);
        let mut edges = 0;
        while let Some(deadline) = followed.next_deadline().filter(|&time| time <= end) {
            now = deadline;
            followed.advance(now);
            let rises = followed.irq_line().take_edges();
            assert!(rises > 0);
            edges += rises;
        }
        followed.advance(end);
        skipped.advance(end);
        assert_eq!(
            edges + followed.irq_line().take_edges(),
            skipped.irq_line().take_edges()
        );
        assert_eq!(followed.irq(), skipped.irq());
    }
}

#[test]
fn simple_ports_take_every_value() {
    let mut exit = DebugExit::default();
    let mut console = DebugConsole::default();
    let mut post = PostCode::default();
    let mut control = ResetControl::default();
    let mut system = SystemControlPort::new();
    for value in 0..=0xFF {
        exit.write(value);
        console.write(value);
        post.write(value);
        control.write(value);
        system.write(value);
        assert_eq!(post.read(), value);
        assert_eq!(control.read() & !0x0E, 0);
        assert_eq!(system.read() & !0x03, 0);
    }
    assert_eq!(exit.take_request(), Some(0));
}
