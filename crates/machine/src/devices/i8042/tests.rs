use super::*;

const DATA: u16 = 0x60;
const COMMAND: u16 = 0x64;

/// A controller with a clock that advances by a byte time with each read of an answer.
struct Bench {
    controller: I8042,
    now: GuestTime,
}

impl Bench {
    fn new() -> Self {
        Self {
            controller: I8042::new(),
            now: GuestTime(0),
        }
    }

    fn command(&mut self, value: u8) {
        self.controller.write(COMMAND, value, self.now);
    }

    fn data(&mut self, value: u8) {
        self.controller.write(DATA, value, self.now);
    }

    fn status(&mut self) -> u8 {
        self.controller.read(COMMAND, self.now)
    }

    /// Returns every byte that arrives, waiting for those of the keyboard.
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..100 {
            self.now = self.now.after(I8042::BYTE_TIME);
            if self.status() & 1 == 0 {
                break;
            }
            bytes.push(self.controller.read(DATA, self.now));
        }
        bytes
    }

    fn ask_keyboard(&mut self, value: u8) -> Vec<u8> {
        self.data(value);
        self.bytes()
    }

    fn ask(&mut self, command: u8) -> Vec<u8> {
        self.command(command);
        self.bytes()
    }

    fn press(&mut self, key: Key) -> Vec<u8> {
        self.controller.key(key, true, self.now);
        self.bytes()
    }

    fn release(&mut self, key: Key) -> Vec<u8> {
        self.controller.key(key, false, self.now);
        self.bytes()
    }
}

mod mouse;

#[test]
fn the_controller_tests_itself_and_its_interfaces() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(0xAA), [0x55]);
    assert_eq!(bench.ask(0xAB), [0x00]);
    assert_eq!(bench.ask(0xA4), [0xF1], "no password");
    assert_eq!(bench.ask(0xA9), [0x00]);
    assert_eq!(bench.ask(0xC0), [0x80]);
    assert_eq!(bench.ask(0xE0), [0x00]);
}

#[test]
fn the_command_byte_is_read_and_written() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(0x20), [0x65]);
    bench.command(0x60);
    bench.data(0x47);
    assert_eq!(bench.ask(0x20), [0x47]);
    // The ports have commands of their own for this.
    bench.command(0xAD);
    bench.command(0xA7);
    assert_eq!(bench.ask(0x20), [0x77]);
    bench.command(0xAE);
    bench.command(0xA8);
    assert_eq!(bench.ask(0x20), [0x47]);
}

#[test]
fn the_other_bytes_of_memory_are_memory() {
    let mut bench = Bench::new();
    bench.command(0x7F);
    bench.data(0xA5);
    assert_eq!(bench.ask(0x3F), [0xA5]);
    assert_eq!(bench.ask(0x3E), [0x00]);
}

#[test]
fn the_status_tells_what_was_written_last() {
    let mut bench = Bench::new();
    bench.command(0xAE);
    assert_eq!(bench.status(), 0x1C);
    bench.command(0x60);
    bench.data(0x61);
    assert_eq!(bench.status(), 0x10);
}

#[test]
fn an_answer_waits_until_the_buffer_was_read() {
    let mut bench = Bench::new();
    bench.command(0xD2);
    bench.data(0x11);
    bench.command(0x20);
    assert_eq!(bench.bytes(), [0x11, 0x65]);
    // An empty buffer returns the last byte again.
    assert_eq!(bench.controller.read(DATA, bench.now), 0x65);
}

#[test]
fn the_output_port_gates_a20_and_resets() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(0xD0), [0xC3]);
    assert_eq!(bench.controller.take_a20_request(), None);
    bench.command(0xD1);
    bench.data(0xDD);
    assert_eq!(bench.controller.take_a20_request(), Some(false));
    assert_eq!(bench.ask(0xD0), [0xC1]);
    bench.command(0xDF);
    assert_eq!(bench.controller.take_a20_request(), Some(true));
    bench.command(0xDD);
    assert_eq!(bench.controller.take_a20_request(), Some(false));
    assert!(!bench.controller.take_reset_request());
    bench.command(0xD1);
    bench.data(0x02);
    assert!(bench.controller.take_reset_request());
}

#[test]
fn pulsing_bit_0_low_resets_once() {
    let mut bench = Bench::new();
    bench.command(0xFF);
    bench.command(0xF1);
    assert!(!bench.controller.take_reset_request());
    bench.command(0xFE);
    assert!(bench.controller.take_reset_request());
    assert!(!bench.controller.take_reset_request());
}

#[test]
fn a_key_interrupts_and_is_translated_to_set_1() {
    let mut bench = Bench::new();
    bench.controller.key(Key::A, true, bench.now);
    assert!(bench.controller.keyboard_irq());
    assert_eq!(bench.bytes(), [0x1E]);
    assert!(!bench.controller.keyboard_irq());
    assert_eq!(bench.release(Key::A), [0x9E]);
    assert_eq!(bench.press(Key::DELETE), [0xE0, 0x53]);
    assert_eq!(bench.release(Key::DELETE), [0xE0, 0xD3]);
    let pause = [0xE1, 0x1D, 0x45, 0xE1, 0x9D, 0xC5];
    assert_eq!(bench.press(Key::PAUSE), pause);
}

#[test]
fn each_byte_of_a_key_is_an_interrupt_of_its_own() {
    let mut bench = Bench::new();
    bench.press(Key::DELETE);
    bench.release(Key::DELETE);
    assert_eq!(bench.controller.keyboard_irq.take_edges(), 4);
}

#[test]
fn a_byte_can_be_read_twice_before_the_next_one_comes() {
    let mut bench = Bench::new();
    bench.controller.key(Key::DELETE, true, bench.now);
    assert_eq!(bench.controller.read(DATA, bench.now), 0xE0);
    assert_eq!(bench.controller.read(DATA, bench.now), 0xE0);
    let arrival = bench.now.after(I8042::BYTE_TIME);
    assert_eq!(bench.controller.next_deadline(bench.now), Some(arrival));
    assert_eq!(bench.controller.read(DATA, arrival), 0x53);
}

#[test]
fn without_translation_the_keyboard_s_own_set_is_seen() {
    let mut bench = Bench::new();
    bench.command(0x60);
    bench.data(0x05);
    assert_eq!(bench.press(Key::A), [0x1C]);
    assert_eq!(bench.release(Key::A), [0xF0, 0x1C]);
    assert_eq!(bench.ask_keyboard(0xF0), [0xFA]);
    assert_eq!(bench.ask_keyboard(0x00), [0xFA, 0x02]);
    for (set, release) in [(1, &[0x9E][..]), (3, &[0xF0, 0x1C]), (2, &[0xF0, 0x1C])] {
        bench.ask_keyboard(0xF0);
        assert_eq!(bench.ask_keyboard(set), [0xFA]);
        assert_eq!(bench.release(Key::A), release);
    }
    bench.ask_keyboard(0xF0);
    assert_eq!(bench.ask_keyboard(0x04), [0xFE]);
}

#[test]
fn interrupts_come_only_if_enabled() {
    let mut bench = Bench::new();
    bench.command(0x60);
    bench.data(0x44);
    bench.controller.key(Key::A, true, bench.now);
    assert_eq!(bench.status() & 0x21, 0x01);
    assert!(!bench.controller.keyboard_irq());
    // Enabling interrupts with a byte in the buffer raises the line.
    bench.command(0x60);
    bench.data(0x45);
    assert!(bench.controller.keyboard_irq());
}

#[test]
fn a_disabled_keyboard_keeps_its_bytes() {
    let mut bench = Bench::new();
    bench.command(0xAD);
    assert!(bench.press(Key::A).is_empty());
    assert_eq!(
        bench.controller.keyboard.next_repeat(),
        bench.controller.next_deadline(bench.now)
    );
    bench.command(0xAE);
    assert_eq!(bench.bytes(), [0x1E]);
}

#[test]
fn the_keyboard_resets_and_identifies_itself() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask_keyboard(0xFF), [0xFA, 0xAA]);
    // The identity AB 83 is translated too.
    assert_eq!(bench.ask_keyboard(0xF2), [0xFA, 0xAB, 0x41]);
    bench.command(0x60);
    bench.data(0x05);
    assert_eq!(bench.ask_keyboard(0xF2), [0xFA, 0xAB, 0x83]);
    assert_eq!(bench.ask_keyboard(0xEE), [0xEE]);
    assert_eq!(bench.ask_keyboard(0xFE), [0xEE]);
}

#[test]
fn commands_with_parameters_acknowledge_both() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask_keyboard(0xED), [0xFA]);
    assert_eq!(bench.ask_keyboard(0x05), [0xFA]);
    assert_eq!(bench.controller.leds(), 5);
    assert_eq!(bench.ask_keyboard(0xF3), [0xFA]);
    assert_eq!(bench.ask_keyboard(0x00), [0xFA]);
    assert_eq!(bench.ask_keyboard(0xFB), [0xFA]);
    assert_eq!(bench.ask_keyboard(0x1C), [0xFA]);
    // A command ends the list of keys.
    assert_eq!(bench.ask_keyboard(0xF4), [0xFA]);
    assert_eq!(bench.ask_keyboard(0x1C), [0xFE]);
    assert_eq!(bench.ask_keyboard(0xF1), [0xFE]);
}

#[test]
fn a_keyboard_that_does_not_scan_sends_no_keys() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask_keyboard(0xF5), [0xFA]);
    assert!(bench.press(Key::A).is_empty());
    // Typed keys wait outside.
    assert!(!bench.controller.keyboard.has_room());
    assert_eq!(bench.ask_keyboard(0xF4), [0xFA]);
    assert!(bench.controller.keyboard.has_room());
    assert_eq!(bench.press(Key::A), [0x1E]);
}

#[test]
fn a_held_key_repeats() {
    let mut bench = Bench::new();
    bench.ask_keyboard(0xF3);
    bench.ask_keyboard(0x00); // 250 ms, 30 a second
    let start = bench.now;
    assert_eq!(bench.press(Key::A), [0x1E]);
    let repeat = start.after(250_000_000);
    assert_eq!(bench.controller.next_deadline(bench.now), Some(repeat));
    bench.now = repeat;
    assert_eq!(bench.bytes(), [0x1E]);
    let next = bench.controller.next_deadline(bench.now).unwrap();
    assert_eq!(next.since(repeat) / 1_000_000, 33);
    assert_eq!(bench.release(Key::A), [0x9E]);
    assert_eq!(bench.controller.next_deadline(bench.now), None);
}

#[test]
fn a_key_whose_release_may_wait_for_room_does_not_repeat() {
    let mut bench = Bench::new();
    let mut pressed = 0;
    while bench.controller.keyboard.has_room() {
        let key = Key::new(0x10 + pressed);
        bench.controller.key(key, true, bench.now);
        pressed += 1;
    }
    for _ in 0..30 {
        bench.now = bench.now.after(1_000_000_000);
        bench.controller.advance(bench.now);
    }
    let expected: Vec<u8> = (0..pressed).map(|number| 0x10 + number).collect();
    assert_eq!(bench.bytes(), expected);
}

#[test]
fn a_key_whose_release_waits_for_the_bios_does_not_repeat() {
    let mut bench = Bench::new();
    assert_eq!(bench.press(Key::A), [0x1E]);
    bench.controller.waiting_key = Some((Key::A, false));
    for _ in 0..30 {
        bench.now = bench.now.after(1_000_000_000);
        bench.controller.advance(bench.now);
    }
    assert!(bench.bytes().is_empty());
}

#[test]
fn too_many_keys_are_marked_as_lost() {
    let mut bench = Bench::new();
    bench.command(0x60);
    bench.data(0x15); // keyboard held back, no translation
    for _ in 0..100 {
        bench.controller.key(Key::A, true, bench.now);
        bench.controller.key(Key::A, false, bench.now);
    }
    bench.command(0xAE);
    let bytes = bench.bytes();
    assert_eq!(bytes.len(), 16);
    assert_eq!(bytes.last(), Some(&0x00));
}

#[test]
fn the_auxiliary_port_echoes() {
    let mut bench = Bench::new();
    bench.command(0x60);
    bench.data(0x47);
    // Linux uses this to test for the port and for IRQ 12.
    bench.command(0xD3);
    bench.data(0x5A);
    assert_eq!(bench.status() & 0x21, 0x21);
    assert!(bench.controller.auxiliary_irq());
    assert!(!bench.controller.keyboard_irq());
    assert_eq!(bench.bytes(), [0x5A]);
    assert!(!bench.controller.auxiliary_irq());
}

#[test]
fn no_order_of_bytes_harms_the_controller() {
    let mut bench = Bench::new();
    for command in 0..=0xFF {
        for data in [0x00, 0x83, 0xF0, 0xFF] {
            bench.command(command);
            bench.data(data);
            bench.data(data);
            bench.bytes();
        }
    }
    // Keyboard and controller still answer.
    assert_eq!(bench.ask(0xAA), [0x55]);
    bench.command(0x60);
    bench.data(0x45);
    assert_eq!(bench.ask_keyboard(0xFF), [0xFA, 0xAA]);
    let mut controller = bench.controller;
    controller.key(Key::extended(0xFF), true, GuestTime(u64::MAX));
    controller.advance(GuestTime(u64::MAX));
    controller.next_deadline(GuestTime(u64::MAX));
}
