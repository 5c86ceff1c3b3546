use super::*;

/// Initializes both chips as PC systems do: vectors 20h and 28h, nothing masked.
fn initialized() -> Pic {
    initialized_with(0x01)
}

fn initialized_with(icw4: u8) -> Pic {
    let mut pic = Pic::new();
    for (command, data, base, icw3) in [(0x20, 0x21, 0x20, 4), (0xA0, 0xA1, 0x28, 2)] {
        pic.write(command, 0x11);
        pic.write(data, base);
        pic.write(data, icw3);
        pic.write(data, icw4);
    }
    pic
}

fn pulse(pic: &mut Pic, irq: u8) {
    pic.set_line(irq, false);
    pic.set_line(irq, true);
}

/// Returns the request, in-service and mask registers of a chip.
fn registers(pic: &mut Pic, command: u16) -> (u8, u8, u8) {
    pic.write(command, 0x0A);
    let request = pic.read(command);
    pic.write(command, 0x0B);
    let in_service = pic.read(command);
    (request, in_service, pic.read(command + 1))
}

#[test]
fn everything_is_masked_at_power_on() {
    let mut pic = Pic::new();
    (0..16).for_each(|irq| pic.set_line(irq, true));
    assert!(!pic.pending());
    assert_eq!((pic.read(0x21), pic.read(0xA1)), (0xFF, 0xFF));
}

#[test]
fn initialization_sets_vectors_and_clears_masks() {
    let mut pic = initialized();
    assert_eq!(registers(&mut pic, 0x20), (0, 0, 0));
    pulse(&mut pic, 3);
    assert!(pic.pending());
    assert_eq!(pic.acknowledge(), 0x23);
    pulse(&mut pic, 1);
    assert_eq!(pic.acknowledge(), 0x21);
    assert_eq!(registers(&mut pic, 0x20).1, 0b1010);
}

#[test]
fn icw4_is_taken_only_if_announced() {
    let mut pic = Pic::new();
    pic.write(0x20, 0x10);
    pic.write(0x21, 0x40);
    pic.write(0x21, 0x04);
    pic.write(0x21, 0xA5);
    assert_eq!(pic.read(0x21), 0xA5);
    // A single chip has no ICW3.
    pic.write(0x20, 0x12);
    pic.write(0x21, 0x40);
    pic.write(0x21, 0x5A);
    assert_eq!(pic.read(0x21), 0x5A);
}

#[test]
fn a_masked_request_waits_until_it_is_unmasked() {
    let mut pic = initialized();
    pic.write(0x21, 0xFF);
    pulse(&mut pic, 4);
    assert!(!pic.pending());
    pic.write(0x21, 0x00);
    assert_eq!(pic.acknowledge(), 0x24);
}

#[test]
fn an_edge_is_requested_once_however_long_the_line_stays_high() {
    let mut pic = initialized();
    pic.set_line(4, true);
    assert_eq!(pic.acknowledge(), 0x24);
    pic.write(0x20, 0x20);
    pic.set_line(4, true);
    assert!(!pic.pending());
    pulse(&mut pic, 4);
    assert!(pic.pending());
}

#[test]
fn an_edge_stays_requested_when_the_line_falls() {
    let mut pic = initialized();
    pic.set_line(0, true);
    pic.set_line(0, false);
    assert_eq!(pic.acknowledge(), 0x20);
}

#[test]
fn a_level_is_requested_again_after_its_end_of_interrupt() {
    let mut pic = initialized();
    pic.write(0x4D1, 0xFF);
    assert_eq!(pic.read(0x4D1), 0xDE);
    pic.write(0x4D0, 0xFF);
    assert_eq!(pic.read(0x4D0), 0xF8);
    pic.set_line(11, true);
    assert_eq!(pic.acknowledge(), 0x2B);
    assert!(!pic.pending());
    pic.write(0xA0, 0x20);
    pic.write(0x20, 0x20);
    assert_eq!(pic.acknowledge(), 0x2B);
    pic.set_line(11, false);
    pic.write(0xA0, 0x20);
    pic.write(0x20, 0x20);
    assert!(!pic.pending());
}

#[test]
fn a_level_that_vanishes_gives_the_spurious_vector_with_nothing_in_service() {
    let mut pic = initialized();
    pic.write(0x4D0, 0xF8);
    pic.set_line(5, true);
    assert!(pic.pending());
    pic.set_line(5, false);
    assert_eq!(pic.acknowledge(), 0x27);
    assert_eq!(registers(&mut pic, 0x20).1, 0);
}

#[test]
fn a_request_masked_before_the_acknowledge_gives_the_spurious_vector() {
    let mut pic = initialized();
    pulse(&mut pic, 3);
    pic.write(0x21, 0x08);
    assert_eq!(pic.acknowledge(), 0x27);
    pic.write(0x21, 0x00);
    assert_eq!(pic.acknowledge(), 0x23);
}

#[test]
fn a_spurious_slave_interrupt_leaves_the_cascade_in_service() {
    // The request disappears between the two acknowledge pulses.
    let mut pic = initialized();
    pic.master.set_line(CASCADE, true);
    assert_eq!(pic.acknowledge(), 0x2F);
    assert_eq!(registers(&mut pic, 0x20).1, 1 << CASCADE);
    assert_eq!(registers(&mut pic, 0xA0).1, 0);
}

#[test]
fn the_slave_interrupts_through_input_2_with_its_own_vector() {
    let mut pic = initialized();
    pulse(&mut pic, 8);
    assert_eq!(registers(&mut pic, 0x20).0, 1 << 2);
    assert_eq!(pic.acknowledge(), 0x28);
    assert_eq!(registers(&mut pic, 0x20).1, 1 << 2);
    assert_eq!(registers(&mut pic, 0xA0).1, 1 << 0);
    // Slave inputs rank between master inputs 1 and 3.
    pulse(&mut pic, 3);
    assert!(!pic.pending());
    pulse(&mut pic, 1);
    assert_eq!(pic.acknowledge(), 0x21);
}

#[test]
fn a_second_slave_request_is_delivered_after_the_first_ends() {
    let mut pic = initialized();
    pulse(&mut pic, 12);
    pulse(&mut pic, 14);
    assert_eq!(pic.acknowledge(), 0x2C);
    pic.write(0xA0, 0x20);
    assert!(!pic.pending());
    pic.write(0x20, 0x20);
    assert_eq!(pic.acknowledge(), 0x2E);
}

#[test]
fn special_fully_nested_mode_lets_the_slave_interrupt_itself() {
    let mut pic = initialized_with(0x11);
    pulse(&mut pic, 12);
    assert_eq!(pic.acknowledge(), 0x2C);
    pulse(&mut pic, 9);
    assert_eq!(pic.acknowledge(), 0x29);

    let mut pic = initialized();
    pulse(&mut pic, 12);
    assert_eq!(pic.acknowledge(), 0x2C);
    pulse(&mut pic, 9);
    assert!(!pic.pending());
}

#[test]
fn lower_priorities_wait_for_the_end_of_interrupt() {
    let mut pic = initialized();
    pulse(&mut pic, 1);
    assert_eq!(pic.acknowledge(), 0x21);
    pulse(&mut pic, 5);
    assert!(!pic.pending());
    pic.write(0x20, 0x20);
    assert_eq!(pic.acknowledge(), 0x25);
    // A specific end of interrupt.
    pulse(&mut pic, 1);
    assert_eq!(pic.acknowledge(), 0x21);
    pic.write(0x20, 0x65);
    assert_eq!(registers(&mut pic, 0x20).1, 1 << 1);
}

#[test]
fn a_non_specific_end_of_interrupt_ends_the_highest() {
    let mut pic = initialized();
    pulse(&mut pic, 5);
    pic.acknowledge();
    pulse(&mut pic, 3);
    pic.acknowledge();
    pic.write(0x20, 0x20);
    assert_eq!(registers(&mut pic, 0x20).1, 1 << 5);
}

#[test]
fn automatic_end_of_interrupt_leaves_nothing_in_service() {
    let mut pic = initialized_with(0x03);
    pulse(&mut pic, 6);
    pulse(&mut pic, 12);
    pulse(&mut pic, 13);
    assert_eq!(pic.acknowledge(), 0x2C);
    assert_eq!(pic.acknowledge(), 0x2D);
    assert_eq!(pic.acknowledge(), 0x26);
    assert!(!pic.pending());
    assert_eq!(registers(&mut pic, 0x20).1, 0);
}

#[test]
fn automatic_rotation_makes_the_served_input_the_lowest() {
    let mut pic = initialized_with(0x03);
    pic.write(0x20, 0x80);
    pulse(&mut pic, 1);
    assert_eq!(pic.acknowledge(), 0x21);
    pulse(&mut pic, 1);
    pulse(&mut pic, 4);
    assert_eq!(pic.acknowledge(), 0x24);
    pic.write(0x20, 0x00);
    assert_eq!(pic.acknowledge(), 0x21);
}

#[test]
fn rotation_commands_move_the_lowest_priority() {
    let mut pic = initialized();
    // Set priority: 4 becomes the lowest, so 5 is the highest.
    pic.write(0x20, 0xC4);
    pulse(&mut pic, 0);
    pulse(&mut pic, 5);
    assert_eq!(pic.acknowledge(), 0x25);
    // Rotate on non-specific EOI: 5 becomes the lowest.
    pic.write(0x20, 0xA0);
    pulse(&mut pic, 5);
    assert_eq!(pic.acknowledge(), 0x20);
    // Rotate on specific EOI: 0 becomes the lowest.
    pic.write(0x20, 0xE0);
    pulse(&mut pic, 0);
    assert_eq!(pic.acknowledge(), 0x25);
}

#[test]
fn special_mask_mode_lets_lower_priorities_through() {
    let mut pic = initialized();
    pulse(&mut pic, 3);
    assert_eq!(pic.acknowledge(), 0x23);
    pulse(&mut pic, 6);
    pic.write(0x21, 0x08);
    assert!(!pic.pending());
    pic.write(0x20, 0x68);
    assert_eq!(pic.acknowledge(), 0x26);
    // A non-specific EOI skips the masked input.
    pic.write(0x20, 0x20);
    assert_eq!(registers(&mut pic, 0x20).1, 1 << 3);
    pic.write(0x20, 0x48);
    pulse(&mut pic, 6);
    assert!(!pic.pending());
}

#[test]
fn a_poll_acknowledges_what_it_reports_and_lasts_one_read() {
    let mut pic = initialized();
    pulse(&mut pic, 4);
    pic.write(0x20, 0x0C);
    assert_eq!(pic.read(0x20), 0x84);
    assert!(!pic.pending());
    assert_eq!(registers(&mut pic, 0x20).1, 1 << 4);
    pic.write(0x20, 0x20);
    pic.write(0x20, 0x0C);
    assert_eq!(pic.read(0x20), 0x00);
    assert_eq!(pic.read(0x21), 0x00);
}

#[test]
fn initializing_again_forgets_edges_and_services() {
    let mut pic = initialized();
    pulse(&mut pic, 4);
    pulse(&mut pic, 3);
    pic.acknowledge();
    pic.write(0x20, 0x11);
    pic.write(0x21, 0x20);
    pic.write(0x21, 0x04);
    pic.write(0x21, 0x01);
    assert_eq!(registers(&mut pic, 0x20), (0, 0, 0));
    assert!(!pic.pending());
}

#[test]
fn lines_that_do_not_exist_are_ignored() {
    let mut pic = initialized();
    pic.set_line(2, true);
    pic.set_line(16, true);
    pic.set_line(255, true);
    assert!(!pic.pending());
    assert_eq!(pic.read(0x22), 0xFF);
}

#[test]
fn a_guest_without_firmware_finds_the_vectors_and_masks_of_one() {
    let mut pic = Pic::as_firmware_leaves_it();
    assert_eq!((pic.read(0x21), pic.read(0xA1)), (0xB8, 0x8E));
    pic.set_line(11, true);
    assert!(!pic.pending(), "line 11 is masked");
    pic.write(0xA1, 0x8E & !(1 << 3));
    assert_eq!(pic.acknowledge(), 0x73);
    pic.write(0xA0, 0x20);
    pic.write(0x20, 0x20);
    pic.set_line(1, true);
    assert_eq!(pic.acknowledge(), 0x09);
}
