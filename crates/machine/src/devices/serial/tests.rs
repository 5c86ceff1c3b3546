use super::*;

const NOW: GuestTime = GuestTime(0);
const DATA: u16 = 0x3F8;
const IER: u16 = 0x3F9;
const IIR: u16 = 0x3FA;
const FCR: u16 = 0x3FA;
const LCR: u16 = 0x3FB;
const MCR: u16 = 0x3FC;
const LSR: u16 = 0x3FD;
const MSR: u16 = 0x3FE;
const SCR: u16 = 0x3FF;

/// A port with 8 data bits, interrupts connected to the bus, FIFOs off.
fn port() -> Serial {
    let mut serial = Serial::new();
    serial.write(LCR, 0x03, NOW);
    serial.write(MCR, 0x0B, NOW);
    serial
}

fn with_fifos(control: u8) -> Serial {
    let mut serial = port();
    serial.write(FCR, control, NOW);
    serial
}

#[test]
fn a_written_byte_is_output_and_the_transmitter_is_empty_again() {
    let mut serial = port();
    serial.write(DATA, b'x', NOW);
    assert_eq!(serial.read(LSR, NOW), 0x60);
    assert_eq!(serial.take_output(), b"x");
    assert!(serial.output().is_empty());
}

#[test]
fn registers_read_back_what_was_written() {
    let mut serial = port();
    serial.write(SCR, 0xA5, NOW);
    assert_eq!(serial.read(SCR, NOW), 0xA5);
    serial.write(LCR, 0x1B, NOW);
    assert_eq!(serial.read(LCR, NOW), 0x1B);
    // Bits that the 16550A does not have are zero.
    serial.write(IER, 0xFF, NOW);
    assert_eq!(serial.read(IER, NOW), 0x0F);
    serial.write(MCR, 0xFF, NOW);
    assert_eq!(serial.read(MCR, NOW), 0x1F);
}

#[test]
fn the_divisor_latch_hides_data_and_interrupt_enable() {
    let mut serial = port();
    serial.write(IER, 0x05, NOW);
    serial.write(LCR, 0x83, NOW);
    serial.write(DATA, 0x34, NOW);
    serial.write(IER, 0x12, NOW);
    assert_eq!(
        (serial.read(DATA, NOW), serial.read(IER, NOW)),
        (0x34, 0x12)
    );
    serial.write(LCR, 0x03, NOW);
    assert_eq!(serial.read(IER, NOW), 0x05);
    assert!(serial.output().is_empty());
}

#[test]
fn received_bytes_are_read_in_order_and_none_is_lost() {
    let mut serial = port();
    assert_eq!(serial.push_input(b"abc"), 3);
    for byte in *b"abc" {
        assert_eq!(serial.read(LSR, NOW), 0x61);
        assert_eq!(serial.read(DATA, NOW), byte);
    }
    assert_eq!(serial.read(LSR, NOW), 0x60);
    assert_eq!(serial.read(DATA, NOW), 0);
}

#[test]
fn input_is_bounded() {
    let mut serial = port();
    let bytes = vec![0; Serial::INPUT_LIMIT * 2];
    let taken = serial.push_input(&bytes);
    assert_eq!(taken, Serial::INPUT_LIMIT);
    // One byte has already moved to the receiver.
    assert_eq!(serial.input_space(), 1);
    assert!(serial.push_break());
    assert!(!serial.push_break());
    serial.read(DATA, NOW);
    assert_eq!(serial.input_space(), 1);
}

#[test]
fn output_that_nobody_takes_holds_the_transmitter() {
    let mut serial = with_fifos(0x01);
    serial.write(IER, 0x02, NOW);
    for _ in 0..Serial::OUTPUT_LIMIT {
        serial.write(DATA, b'a', NOW);
    }
    assert_eq!(serial.read(LSR, NOW), 0x60);
    (0..20).for_each(|_| serial.write(DATA, b'b', NOW));
    assert_eq!(serial.read(LSR, NOW), 0x00);
    assert!(!serial.irq());
    assert_eq!(serial.take_output().len(), Serial::OUTPUT_LIMIT);
    assert!(serial.irq());
    assert_eq!(serial.read(LSR, NOW), 0x60);
    // Bytes that did not fit into the FIFO are lost, as in the chip.
    assert_eq!(serial.take_output(), [b'b'; 16]);
}

#[test]
fn identification_shows_the_fifos_of_a_16550a() {
    let mut serial = port();
    assert_eq!(serial.read(IIR, NOW), 0x01);
    // Bit 5 would enable the 64-byte FIFO of a 16750.
    serial.write(FCR, 0xE7, NOW);
    assert_eq!(serial.read(IIR, NOW), 0xC1);
    serial.write(FCR, 0x00, NOW);
    assert_eq!(serial.read(IIR, NOW), 0x01);
}

#[test]
fn interrupts_are_identified_by_priority() {
    let mut serial = with_fifos(0x01);
    serial.set_modem_inputs(ModemStatus::empty());
    serial.write(IER, 0x0F, NOW);
    serial.push_break();
    assert_eq!(serial.read(IIR, NOW), 0xC6);
    assert_eq!(serial.read(LSR, NOW), 0xF1);
    assert_eq!(serial.read(IIR, NOW), 0xC4);
    serial.read(DATA, NOW);
    assert_eq!(serial.read(IIR, NOW), 0xC2);
    assert_eq!(serial.read(IIR, NOW), 0xC0);
    assert!(serial.irq());
    assert_eq!(serial.read(MSR, NOW), 0x0B);
    assert_eq!(serial.read(IIR, NOW), 0xC1);
    assert!(!serial.irq());
}

#[test]
fn the_trigger_level_divides_data_available_from_timeout() {
    let mut serial = with_fifos(0x81);
    serial.write(IER, 0x01, NOW);
    serial.push_input(&[0; 7]);
    assert_eq!(serial.read(IIR, NOW), 0xCC);
    serial.push_input(&[0]);
    assert_eq!(serial.read(IIR, NOW), 0xC4);
    serial.read(DATA, NOW);
    serial.advance(serial.next_deadline().unwrap());
    assert_eq!(serial.read(IIR, NOW), 0xCC);
    assert!(serial.irq());
}

#[test]
fn a_read_clears_the_timeout_which_comes_again_after_four_characters() {
    // 115200 baud, 8 data bits, no parity, 1 stop bit.
    let mut serial = with_fifos(0xC1);
    serial.write(LCR, 0x83, NOW);
    serial.write(DATA, 1, NOW);
    serial.write(IER, 0, NOW);
    serial.write(LCR, 0x03, NOW);
    serial.write(IER, 0x01, NOW);
    serial.push_input(b"abc");
    assert!(serial.irq());
    for byte in *b"ab" {
        serial.irq_line().take_edges();
        assert_eq!(serial.read(DATA, NOW), byte);
        // The line falls, although the line status still shows data.
        assert_eq!(serial.read(IIR, NOW), 0xC1);
        assert_eq!(serial.read(LSR, NOW), 0x61);
        assert!(!serial.irq());
        let due = serial.next_deadline().unwrap();
        assert_eq!(due.0, 4 * 10 * 8681);
        serial.advance(GuestTime(due.0 - 1));
        assert!(!serial.irq());
        serial.advance(due);
        assert_eq!(serial.read(IIR, NOW), 0xCC);
        assert_eq!(serial.irq_line().take_edges(), 1);
    }
    assert_eq!(serial.read(DATA, NOW), b'c');
    assert_eq!(serial.next_deadline(), None);
    assert!(!serial.irq());
}

#[test]
fn a_fifo_above_its_trigger_level_interrupts_again_after_one_character() {
    let mut serial = with_fifos(0x41);
    serial.write(IER, 0x01, NOW);
    serial.push_input(b"abcdef");
    for _ in 0..2 {
        assert_eq!(serial.read(IIR, NOW), 0xC4);
        serial.irq_line().take_edges();
        serial.read(DATA, NOW);
        assert!(!serial.irq());
        let due = serial.next_deadline().unwrap();
        assert_eq!(due.0, 10 * 12 * 8681);
        serial.advance(due);
        assert_eq!(serial.irq_line().take_edges(), 1);
    }
    serial.read(DATA, NOW);
    assert_eq!(serial.read(IIR, NOW), 0xC1);
    // Another character fills it to the trigger level.
    serial.push_input(b"g");
    assert_eq!(serial.read(IIR, NOW), 0xC4);
}

#[test]
fn the_receiver_interrupt_falls_with_the_last_byte() {
    let mut serial = port();
    serial.write(IER, 0x01, NOW);
    assert!(!serial.irq());
    serial.push_input(b"ab");
    assert!(serial.irq());
    serial.read(DATA, NOW);
    // The next character interrupts when the line would have brought it, after one character time.
    assert!(!serial.irq());
    let due = serial.next_deadline().unwrap();
    assert_eq!(due.0, 10 * 12 * 8681);
    serial.advance(due);
    assert!(serial.irq());
    serial.read(DATA, NOW);
    assert!(!serial.irq());
    assert_eq!(serial.next_deadline(), None);
}

#[test]
fn the_transmitter_interrupt_is_cleared_by_identification_or_by_writing() {
    let mut serial = port();
    serial.write(IER, 0x02, NOW);
    assert!(serial.irq());
    assert_eq!(serial.read(IIR, NOW), 0x02);
    assert!(!serial.irq());
    assert_eq!(serial.read(IIR, NOW), 0x01);
    serial.irq_line().take_edges();
    // Each byte makes the line rise, even if the interrupt's cause is never read.
    serial.write(DATA, b'a', NOW);
    serial.write(DATA, b'b', NOW);
    assert_eq!(serial.irq_line().take_edges(), 2);
    assert!(serial.irq());
}

#[test]
fn enabling_the_transmitter_interrupt_again_interrupts_again() {
    let mut serial = port();
    for _ in 0..2 {
        serial.write(IER, 0x02, NOW);
        assert_eq!(serial.read(IIR, NOW), 0x02);
        serial.write(IER, 0x00, NOW);
    }
}

#[test]
fn the_interrupt_reaches_the_bus_whatever_out2_is() {
    let mut serial = port();
    serial.write(IER, 0x02, NOW);
    for modem_control in [0x03, 0x0B, 0x13, 0x00] {
        serial.write(MCR, modem_control, NOW);
        assert!(serial.irq(), "{modem_control:#x}");
    }
    serial.write(IER, 0x00, NOW);
    assert!(!serial.irq());
}

#[test]
fn loopback_returns_data_and_modem_lines_to_the_port() {
    let mut serial = port();
    assert_eq!(serial.read(MSR, NOW), 0xB0);
    // Linux tests for a port in this way: in loopback mode OUT2 and RTS set DCD and CTS.
    serial.write(MCR, 0x1A, NOW);
    assert_eq!(serial.read(MSR, NOW) & 0xF0, 0x90);
    serial.write(DATA, b'q', NOW);
    assert!(serial.output().is_empty());
    // Input from outside waits.
    serial.push_input(b"z");
    assert_eq!(serial.read(DATA, NOW), b'q');
    assert_eq!(serial.read(LSR, NOW), 0x60);
    serial.write(MCR, 0x0B, NOW);
    assert_eq!(serial.read(DATA, NOW), b'z');
}

#[test]
fn an_overrun_is_reported() {
    let mut serial = port();
    serial.write(MCR, 0x10, NOW);
    serial.write(DATA, b'1', NOW);
    serial.write(DATA, b'2', NOW);
    assert_eq!(serial.read(LSR, NOW), 0x63);
    assert_eq!(serial.read(LSR, NOW), 0x61);
    // Without a FIFO the newer byte is kept, with one the older bytes are.
    assert_eq!(serial.read(DATA, NOW), b'2');
    serial.write(FCR, 0x01, NOW);
    (0..17).for_each(|byte| serial.write(DATA, byte, NOW));
    assert_eq!(serial.read(LSR, NOW), 0x63);
    assert_eq!(serial.read(DATA, NOW), 0);
}

#[test]
fn modem_changes_are_noted_until_read() {
    let mut serial = port();
    serial.set_modem_inputs(ModemStatus::DSR | ModemStatus::RI);
    assert_eq!(serial.read(MSR, NOW), 0x69);
    serial.set_modem_inputs(ModemStatus::DSR);
    assert_eq!(serial.read(MSR, NOW), 0x24);
    assert_eq!(serial.read(MSR, NOW), 0x20);
}

#[test]
fn a_break_arrives_with_its_zero_byte() {
    let mut serial = with_fifos(0x01);
    serial.push_input(b"a");
    serial.push_break();
    serial.push_input(b"b");
    // The error is somewhere in the FIFO, but not yet at the top.
    assert_eq!(serial.read(LSR, NOW), 0xE1);
    assert_eq!(serial.read(DATA, NOW), b'a');
    assert_eq!(serial.read(LSR, NOW), 0xF1);
    assert_eq!(serial.read(LSR, NOW), 0x61);
    assert_eq!(serial.read(DATA, NOW), 0);
    assert_eq!(serial.read(DATA, NOW), b'b');
}

#[test]
fn a_break_sent_by_the_guest_is_counted_once() {
    let mut serial = port();
    serial.write(LCR, 0x43, NOW);
    serial.write(LCR, 0x43, NOW);
    serial.write(LCR, 0x03, NOW);
    assert_eq!(serial.breaks_sent(), 1);
}

#[test]
fn resetting_the_receiver_fifo_drops_what_is_in_it() {
    let mut serial = with_fifos(0x01);
    serial.push_input(&[b'x'; 17]);
    serial.write(FCR, 0x03, NOW);
    // The seventeenth byte had not arrived yet.
    assert_eq!(serial.read(DATA, NOW), b'x');
    assert_eq!(serial.read(LSR, NOW), 0x60);
}

#[test]
fn short_words_lose_their_upper_bits() {
    let mut serial = port();
    serial.write(LCR, 0x02, NOW);
    serial.write(DATA, 0xC1, NOW);
    assert_eq!(serial.take_output(), [0x41]);
}
