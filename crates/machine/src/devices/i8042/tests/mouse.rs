//! Tests of the mouse on the auxiliary port.

use super::*;
use crate::board::input::Buttons;

const LEFT: Buttons = Buttons::LEFT;
const NONE: Buttons = Buttons::empty();

fn moved(right: i32, down: i32, buttons: Buttons) -> MouseEvent {
    MouseEvent {
        right,
        down,
        wheel: 0,
        buttons,
    }
}

impl Bench {
    /// Makes a controller whose mouse may interrupt and sends reports by itself.
    fn with_mouse() -> Self {
        let mut bench = Self::new();
        bench.command(0x60);
        bench.data(0x47);
        assert_eq!(bench.ask_mouse(0xF4), [0xFA]);
        bench
    }

    fn ask_mouse(&mut self, value: u8) -> Vec<u8> {
        self.command(0xD4);
        self.data(value);
        let answer = self.bytes();
        assert!(!self.controller.auxiliary_irq());
        answer
    }

    fn ask_mouse_all(&mut self, values: &[u8]) {
        for value in values {
            assert_eq!(self.ask_mouse(*value), [0xFA], "{value:#x}");
        }
    }

    /// Returns the bytes that arrive within a second.
    fn reported(&mut self) -> Vec<u8> {
        let mut reported = Vec::new();
        for _ in 0..100 {
            self.now = self.now.after(10_000_000);
            reported.extend(self.bytes());
        }
        reported
    }

    fn move_mouse(&mut self, event: MouseEvent) {
        self.controller.move_mouse(event, self.now);
    }
}

#[test]
fn a_move_is_a_report_of_three_bytes_and_as_many_interrupts() {
    let mut bench = Bench::with_mouse();
    bench.controller.auxiliary_irq.take_edges();
    bench.now = bench.now.after(I8042::BYTE_TIME);
    bench.move_mouse(moved(5, -3, NONE));
    assert!(bench.controller.auxiliary_irq());
    assert_eq!(bench.status() & 0x21, 0x21);
    assert_eq!(bench.reported(), [0x08, 5, 3]);
    assert_eq!(bench.controller.auxiliary_irq.take_edges(), 3);
    bench.move_mouse(moved(-1, 2, NONE));
    assert_eq!(bench.reported(), [0x38, 0xFF, 0xFE]);
    assert_eq!(bench.controller.next_deadline(bench.now), None);
}

#[test]
fn buttons_are_reported_when_they_change() {
    let mut bench = Bench::with_mouse();
    bench.move_mouse(moved(0, 0, LEFT));
    assert_eq!(bench.reported(), [0x09, 0, 0]);
    bench.move_mouse(moved(0, 0, LEFT | Buttons::RIGHT | Buttons::MIDDLE));
    assert_eq!(bench.reported(), [0x0F, 0, 0]);
    bench.move_mouse(moved(0, 0, LEFT | Buttons::RIGHT | Buttons::MIDDLE));
    assert!(bench.reported().is_empty());
    bench.move_mouse(moved(0, 0, NONE));
    assert_eq!(bench.reported(), [0x08, 0, 0]);
}

#[test]
fn a_long_way_is_several_reports() {
    let mut bench = Bench::with_mouse();
    bench.move_mouse(moved(600, 0, NONE));
    let expected = [[0x08, 255, 0], [0x08, 255, 0], [0x08, 90, 0]].concat();
    assert_eq!(bench.reported(), expected);
    bench.move_mouse(moved(-300, 0, NONE));
    assert_eq!(bench.reported(), [0x18, 0x01, 0, 0x18, 0xD3, 0]);
}

#[test]
fn reports_come_at_the_rate_that_was_set() {
    let mut bench = Bench::with_mouse();
    bench.ask_mouse_all(&[0xF3, 20, 0xF4]);
    bench.move_mouse(moved(1, 0, NONE));
    let first = bench.now;
    assert_eq!(bench.bytes().len(), 3);
    bench.move_mouse(moved(1, 0, NONE));
    assert!(bench.bytes().is_empty());
    let next = bench.controller.next_deadline(bench.now).unwrap();
    let wait = next.since(first) / 1_000_000;
    assert!((50..=51).contains(&wait), "{wait} ms");
    bench.now = next;
    bench.controller.advance(next);
    assert!(bench.controller.auxiliary_irq());
}

#[test]
fn a_mouse_that_was_not_enabled_says_nothing() {
    let mut bench = Bench::new();
    bench.command(0xA8);
    bench.move_mouse(moved(5, 5, LEFT));
    assert!(bench.reported().is_empty());
    assert!(bench.controller.mouse.has_room());
    // Earlier events are forgotten.
    assert_eq!(bench.ask_mouse(0xF4), [0xFA]);
    assert!(bench.reported().is_empty());
    assert_eq!(bench.ask_mouse(0xF5), [0xFA]);
    bench.move_mouse(moved(5, 5, NONE));
    assert!(bench.reported().is_empty());
}

#[test]
fn a_disabled_port_holds_the_mouse_s_bytes_back() {
    let mut bench = Bench::with_mouse();
    bench.command(0xA7);
    bench.move_mouse(moved(7, 0, NONE));
    assert!(bench.reported().is_empty());
    assert_eq!(bench.controller.next_deadline(bench.now), None);
    bench.command(0xA8);
    assert_eq!(bench.bytes(), [0x08, 7, 0]);
}

#[test]
fn it_resets_and_identifies_itself() {
    let mut bench = Bench::with_mouse();
    assert_eq!(bench.ask_mouse(0xFF), [0xFA, 0xAA, 0x00]);
    assert_eq!(bench.ask_mouse(0xF2), [0xFA, 0x00]);
    bench.move_mouse(moved(5, 5, NONE));
    assert!(bench.reported().is_empty(), "a reset disables reports");
}

#[test]
fn the_wheel_is_there_once_it_was_asked_for() {
    let mut bench = Bench::with_mouse();
    let wheel = |wheel| MouseEvent {
        wheel,
        ..MouseEvent::default()
    };
    bench.move_mouse(wheel(1));
    assert!(bench.reported().is_empty());
    bench.ask_mouse_all(&[0xF3, 200, 0xF3, 100, 0xF3, 80]);
    assert_eq!(bench.ask_mouse(0xF2), [0xFA, 0x03]);
    bench.ask_mouse_all(&[0xF3, 100]);
    bench.move_mouse(wheel(1));
    assert_eq!(bench.reported(), [0x08, 0, 0, 1]);
    bench.move_mouse(wheel(-9));
    let expected = [0x08, 0, 0, 0xF9, 0x08, 0, 0, 0xFE];
    assert_eq!(bench.reported(), expected);
    bench.ask_mouse(0xFF);
    assert_eq!(bench.ask_mouse(0xF2), [0xFA, 0x00]);
}

#[test]
fn other_rates_in_a_row_do_not_ask_for_the_wheel() {
    let mut bench = Bench::with_mouse();
    bench.ask_mouse_all(&[0xF3, 200, 0xF3, 200, 0xF3, 80, 0xF3, 100, 0xF3, 80]);
    assert_eq!(bench.ask_mouse(0xF2), [0xFA, 0x00]);
}

#[test]
fn the_status_tells_modes_buttons_resolution_and_rate() {
    let mut bench = Bench::with_mouse();
    assert_eq!(bench.ask_mouse(0xE9), [0xFA, 0x20, 2, 100]);
    bench.ask_mouse_all(&[0xE8, 3, 0xF3, 40, 0xE7, 0xF0]);
    bench.move_mouse(moved(0, 0, LEFT));
    assert_eq!(bench.ask_mouse(0xE9), [0xFA, 0x74, 3, 40]);
    bench.move_mouse(moved(0, 0, Buttons::RIGHT | Buttons::MIDDLE));
    bench.ask_mouse_all(&[0xE6, 0xEA, 0xF5]);
    assert_eq!(bench.ask_mouse(0xE9), [0xFA, 0x03, 3, 40]);
    bench.ask_mouse_all(&[0xF6]);
    assert_eq!(bench.ask_mouse(0xE9), [0xFA, 0x03, 2, 100]);
}

#[test]
fn in_remote_mode_it_reports_when_asked() {
    let mut bench = Bench::with_mouse();
    bench.ask_mouse_all(&[0xE7, 0xF0]);
    bench.move_mouse(moved(1, -1, LEFT));
    bench.move_mouse(moved(4, 0, LEFT));
    assert!(bench.reported().is_empty());
    // Scaling applies only in stream mode.
    assert_eq!(bench.ask_mouse(0xEB), [0xFA, 0x09, 5, 1]);
    assert_eq!(bench.ask_mouse(0xEB), [0xFA, 0x09, 0, 0]);
}

#[test]
fn scaling_makes_small_moves_smaller_and_large_ones_larger() {
    let mut bench = Bench::with_mouse();
    bench.ask_mouse_all(&[0xE7]);
    for (counts, reported) in [(1, 1), (2, 1), (3, 3), (4, 6), (5, 9), (6, 12), (127, 254)] {
        bench.move_mouse(moved(counts, counts, NONE));
        let down = -reported as u8;
        assert_eq!(bench.reported(), [0x28, reported as u8, down], "{counts}");
    }
}

#[test]
fn in_wrap_mode_bytes_come_back() {
    let mut bench = Bench::with_mouse();
    bench.ask_mouse_all(&[0xEE]);
    for byte in [0x00, 0xF2, 0xEE, 0xE9, 0xFE] {
        assert_eq!(bench.ask_mouse(byte), [byte]);
    }
    bench.move_mouse(moved(1, 1, NONE));
    assert!(bench.reported().is_empty());
    bench.ask_mouse_all(&[0xEC]);
    bench.move_mouse(moved(1, 0, NONE));
    assert_eq!(bench.reported(), [0x08, 1, 0]);
    bench.ask_mouse_all(&[0xEE]);
    assert_eq!(bench.ask_mouse(0xFF), [0xFA, 0xAA, 0x00]);
}

#[test]
fn what_is_invalid_is_refused_and_the_second_time_an_error() {
    let mut bench = Bench::with_mouse();
    assert_eq!(bench.ask_mouse(0xE1), [0xFE]);
    assert_eq!(bench.ask_mouse(0xE1), [0xFC]);
    assert_eq!(bench.ask_mouse(0xE1), [0xFE]);
    assert_eq!(bench.ask_mouse(0xF2), [0xFA, 0x00]);
    assert_eq!(bench.ask_mouse(0xE8), [0xFA]);
    assert_eq!(bench.ask_mouse(4), [0xFE]);
    assert_eq!(bench.ask_mouse(3), [0xFA]);
    assert_eq!(bench.ask_mouse(0xF3), [0xFA]);
    assert_eq!(bench.ask_mouse(30), [0xFE]);
    // A command in the place of a parameter is executed as a command.
    assert_eq!(bench.ask_mouse(0xE9), [0xFA, 0x20, 3, 100]);
}

#[test]
fn what_was_sent_last_is_sent_again() {
    let mut bench = Bench::with_mouse();
    assert_eq!(bench.ask_mouse(0xE9), [0xFA, 0x20, 2, 100]);
    assert_eq!(bench.ask_mouse(0xFE), [0xFA, 0x20, 2, 100]);
    bench.move_mouse(moved(9, 0, NONE));
    assert_eq!(bench.reported(), [0x08, 9, 0]);
    assert_eq!(bench.ask_mouse(0xFE), [0x08, 9, 0]);
}

#[test]
fn a_command_ends_the_report_that_is_under_way() {
    let mut bench = Bench::with_mouse();
    bench.now = bench.now.after(I8042::BYTE_TIME);
    bench.move_mouse(moved(9, 9, NONE));
    assert_eq!(bench.controller.read(DATA, bench.now), 0x28);
    assert_eq!(bench.ask_mouse(0xF5), [0xFA]);
}

#[test]
fn the_keyboard_s_bytes_go_first() {
    let mut bench = Bench::with_mouse();
    // The port's own answer fills the buffer.
    bench.command(0x20);
    bench.move_mouse(moved(1, 1, NONE));
    bench.controller.key(Key::A, true, bench.now);
    assert_eq!(bench.bytes(), [0x47, 0x1E, 0x28, 1, 0xFF]);
}

#[test]
fn a_click_waits_until_the_one_before_it_was_read() {
    let mut bench = Bench::with_mouse();
    bench.now = bench.now.after(I8042::BYTE_TIME);
    assert!(bench.controller.mouse.has_room());
    bench.move_mouse(moved(0, 0, LEFT));
    assert!(!bench.controller.mouse.has_room());
    bench.bytes();
    assert!(bench.controller.mouse.has_room());
}
