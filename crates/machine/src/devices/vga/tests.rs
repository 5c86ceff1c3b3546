use super::*;
use crate::bus::testing::Bench;
use crate::devices::pci::function::PciFunction;
use screen::Screen;

fn vga(bench: &Bench) -> Vga {
    let mut vga = Vga::default();
    vga.make_memory(&bench.board.memory).unwrap();
    vga
}

fn out(vga: &mut Vga, bench: &mut Bench, port: u16, value: u8) {
    vga.port_write(port, 1, value.into(), &mut bench.context(0));
}

fn set(vga: &mut Vga, bench: &mut Bench, port: u16, index: u8, value: u8) {
    out(vga, bench, port, index);
    out(vga, bench, port + 1, value);
}

/// Sets 25 lines of 80 columns in colour, as VGA firmware sets mode 3.
fn enter_text(vga: &mut Vga, bench: &mut Bench) {
    out(vga, bench, 0x3c2, 0x67);
    for (index, value) in [(1, 0), (2, 3), (3, 0), (4, 2)] {
        set(vga, bench, 0x3c4, index, value);
    }
    for (index, value) in [(4, 0), (5, 0x10), (6, 0x0e), (8, 0xff)] {
        set(vga, bench, 0x3ce, index, value);
    }
    for (index, value) in [
        (1, 0x4f),
        (7, 0x1f),
        (9, 0x4f),
        (0x0a, 0x0d),
        (0x0b, 0x0e),
        (0x0f, 0x51),
        (0x12, 0x8f),
        (0x13, 0x28),
        (0x17, 0xa3),
    ] {
        set(vga, bench, 0x3d4, index, value);
    }
    vga.port_read(0x3da, 1, &mut bench.context(0));
    for index in 0..16 {
        out(vga, bench, 0x3c0, index);
        out(vga, bench, 0x3c0, index);
    }
    // With this value, characters of 9 dots are not moved.
    out(vga, bench, 0x3c0, 0x13);
    out(vga, bench, 0x3c0, 8);
    out(vga, bench, 0x3c0, 0x20);
}

fn text(vga: &mut Vga, bench: &Bench) -> screen::TextScreen {
    match vga.screen(&bench.board.memory) {
        Screen::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn text_is_memory_at_b8000h_and_shows_what_is_stored_there() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    assert_eq!(vga.screen(&bench.board.memory), Screen::Off);
    enter_text(&mut vga, &mut bench);
    let memory = &mut bench.board.memory;
    assert!(memory.write(PhysicalAddress(0xb_8000), b"H\x07i\x1f"));
    assert!(memory.write(PhysicalAddress(0xb_80a0), b"\xc9\x07"));
    let shown = text(&mut vga, &bench);
    assert_eq!((shown.columns, shown.rows), (80, 25));
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!((&*lines[0], &*lines[1]), ("Hi", "╔"));
    assert_eq!(shown.attributes[1], 0x1f);
    assert_eq!(shown.cursor, Some((1, 1)));
    set(&mut vga, &mut bench, 0x3d4, 0x0a, 0x20);
    assert_eq!(text(&mut vga, &bench).cursor, None);
    set(&mut vga, &mut bench, 0x3d4, 0x0d, 80);
    assert_eq!(text(&mut vga, &bench).lines().next().unwrap(), "╔");
}

#[test]
fn a_font_is_loaded_beside_the_text_and_drawn() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_text(&mut vga, &mut bench);
    bench
        .board
        .memory
        .write(PhysicalAddress(0xb_8000), b"A\x01");
    // Plane 2 is at A0000h, as when firmware loads a font.
    for (port, index, value) in [(0x3c4, 2, 4), (0x3c4, 4, 7), (0x3ce, 5, 0), (0x3ce, 6, 4)] {
        set(&mut vga, &mut bench, port, index, value);
    }
    assert!(!bench.board.memory.write(PhysicalAddress(0xb_8000), b"B"));
    let glyph = PhysicalAddress(0xa_0000 + 32 * 0x41);
    vga.memory_write(glyph, &[0x80], &mut bench.context(0));
    enter_text(&mut vga, &mut bench);
    assert_eq!(text(&mut vga, &bench).lines().next().unwrap(), "A");
    out(&mut vga, &mut bench, 0x3c8, 1);
    for value in [0x3f, 0, 0x20] {
        out(&mut vga, &mut bench, 0x3c9, value);
    }
    let picture = vga.picture(&mut bench.board.memory).unwrap();
    assert_eq!((picture.size.width, picture.size.height), (720, 400));
    assert_eq!(picture.pixels[..6], [0xff, 0, 0x82, 0, 0, 0]);
}

/// A line has CGA's four colours with two bits per pixel; odd lines are 8 KiB further.
#[test]
fn four_colours_are_two_bits_each_in_two_banks() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_text(&mut vga, &mut bench);
    for (port, index, value) in [
        (0x3ce, 5, 0x30),
        (0x3ce, 6, 0x0f),
        (0x3d4, 1, 0x27),
        (0x3d4, 9, 0xc1),
        (0x3d4, 0x13, 0x14),
        (0x3d4, 0x17, 0xa2),
    ] {
        set(&mut vga, &mut bench, port, index, value);
    }
    out(&mut vga, &mut bench, 0x3c8, 0);
    for colour in 0..12 {
        out(&mut vga, &mut bench, 0x3c9, colour / 3);
    }
    let memory = &mut bench.board.memory;
    assert!(memory.write(PhysicalAddress(0xb_8000 + 80), &[0b01_10_11_00]));
    assert!(memory.write(PhysicalAddress(0xb_a001), &[0b11_00_01_00]));
    let picture = vga.picture(memory).unwrap();
    assert_eq!((picture.size.width, picture.size.height), (320, 200));
    let pixels = |line: usize, first: usize| {
        let start = line * 320 + first;
        [0, 1, 2, 3].map(|pixel| picture.pixels[3 * (start + pixel)] / 4)
    };
    assert_eq!(pixels(1, 4), [3, 0, 1, 0]);
    assert_eq!(pixels(2, 0), [1, 2, 3, 0]);
}

#[test]
fn a_chained_picture_is_memory_at_a0000h() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_text(&mut vga, &mut bench);
    for (port, index, value) in [
        (0x3c4, 2, 0xf),
        (0x3c4, 4, 0xe),
        (0x3ce, 5, 0x40),
        (0x3ce, 6, 5),
        (0x3d4, 9, 0x41),
    ] {
        set(&mut vga, &mut bench, port, index, value);
    }
    out(&mut vga, &mut bench, 0x3c8, 9);
    for value in [1, 2, 3] {
        out(&mut vga, &mut bench, 0x3c9, value);
    }
    assert!(
        bench
            .board
            .memory
            .write(PhysicalAddress(0xa_0000 + 321), &[9])
    );
    let picture = vga.picture(&mut bench.board.memory).unwrap();
    assert_eq!((picture.size.width, picture.size.height), (320, 200));
    assert_eq!(picture.pixels[3 * 321..3 * 322], [4, 8, 12]);
}

/// Sets 320 pixels by 200 lines in 16 colours. The bits of plane 0 are the pixels, and colour 1 is
/// white.
fn enter_planes(vga: &mut Vga, bench: &mut Bench) {
    enter_text(vga, bench);
    for (port, index, value) in [
        (0x3c4, 2, 0xf),
        (0x3c4, 4, 6),
        (0x3ce, 5, 0),
        (0x3ce, 6, 5),
        (0x3d4, 1, 0x27),
        (0x3d4, 9, 0xc0),
        (0x3d4, 0x13, 0x14),
        (0x3d4, 0x17, 0xe3),
    ] {
        set(vga, bench, port, index, value);
    }
    out(vga, bench, 0x3c8, 1);
    for _ in 0..3 {
        out(vga, bench, 0x3c9, 0x3f);
    }
    set_attribute(vga, bench, 0x12, 1);
    set_attribute(vga, bench, 0x13, 0);
}

fn set_attribute(vga: &mut Vga, bench: &mut Bench, index: u8, value: u8) {
    vga.port_read(0x3da, 1, &mut bench.context(0));
    out(vga, bench, 0x3c0, 0x20 | index);
    out(vga, bench, 0x3c0, value);
}

/// Returns the white pixels of a line.
fn white(vga: &mut Vga, bench: &mut Bench, line: usize) -> Vec<usize> {
    let picture = vga.picture(&mut bench.board.memory).unwrap();
    let width = picture.size.width;
    (0..width)
        .filter(|x| picture.pixels[3 * (line * width + x)] == 0xff)
        .collect()
}

fn store(vga: &mut Vga, bench: &mut Bench, cell: u64, byte: u8) {
    let address = PhysicalAddress(0xa_0000 + cell);
    vga.memory_write(address, &[byte], &mut bench.context(0));
}

#[test]
fn behind_the_line_that_is_compared_the_picture_begins_at_cell_0() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_planes(&mut vga, &mut bench);
    store(&mut vga, &mut bench, 0, 0x80);
    store(&mut vga, &mut bench, 40, 0x40);
    store(&mut vga, &mut bench, 0x4000, 0x20);
    set(&mut vga, &mut bench, 0x3d4, 0x0c, 0x40);
    assert_eq!(white(&mut vga, &mut bench, 0), [2]);
    assert!(white(&mut vga, &mut bench, 100).is_empty());
    // Scan line 199 of 400 is the last one of line 99 of 200.
    set(&mut vga, &mut bench, 0x3d4, 0x18, 199);
    set(&mut vga, &mut bench, 0x3d4, 7, 0x0f);
    set(&mut vga, &mut bench, 0x3d4, 9, 0x80);
    assert_eq!(white(&mut vga, &mut bench, 0), [2]);
    assert!(white(&mut vga, &mut bench, 99).is_empty());
    assert_eq!(white(&mut vga, &mut bench, 100), [0]);
    assert_eq!(white(&mut vga, &mut bench, 101), [1]);
}

#[test]
fn panning_moves_a_picture_to_the_left_up_to_the_split_or_beyond() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_planes(&mut vga, &mut bench);
    store(&mut vga, &mut bench, 0, 0x01);
    store(&mut vga, &mut bench, 40, 0x80);
    set_attribute(&mut vga, &mut bench, 0x13, 3);
    // The last pixels of a line are the first ones of the cells that follow it in memory.
    assert_eq!(white(&mut vga, &mut bench, 0), [4, 317]);
    // The line moves by two cells.
    set(&mut vga, &mut bench, 0x3d4, 8, 2 << 5);
    assert_eq!(white(&mut vga, &mut bench, 0), [301]);
    set(&mut vga, &mut bench, 0x3d4, 8, 0);
    for (index, value) in [(0x18, 19), (7, 0x0f), (9, 0x80)] {
        set(&mut vga, &mut bench, 0x3d4, index, value);
    }
    assert_eq!(white(&mut vga, &mut bench, 10), [4, 317]);
    set_attribute(&mut vga, &mut bench, 0x10, 1 << 5);
    assert_eq!(white(&mut vga, &mut bench, 10), [7]);
    assert_eq!(white(&mut vga, &mut bench, 0), [4, 317]);
}

#[test]
fn pixels_of_256_colours_are_panned_by_half_the_value() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_planes(&mut vga, &mut bench);
    // Without chaining, as in mode X, a cell holds four pixels.
    for (port, index, value) in [(0x3ce, 5, 0x40), (0x3d4, 1, 0x4f), (0x3d4, 0x13, 0x28)] {
        set(&mut vga, &mut bench, port, index, value);
    }
    set(&mut vga, &mut bench, 0x3c4, 2, 0b0010);
    store(&mut vga, &mut bench, 2, 1);
    assert_eq!(white(&mut vga, &mut bench, 0), [9]);
    set_attribute(&mut vga, &mut bench, 0x13, 6);
    assert_eq!(white(&mut vga, &mut bench, 0), [6]);
    set(&mut vga, &mut bench, 0x3d4, 0x0d, 1);
    assert_eq!(white(&mut vga, &mut bench, 0), [2]);
}

#[test]
fn text_is_split_and_moved_by_dots_and_lines() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_text(&mut vga, &mut bench);
    let memory = &mut bench.board.memory;
    assert!(memory.write(PhysicalAddress(0xb_8000), b"T\x01"));
    assert!(memory.write(PhysicalAddress(0xb_8000 + 2 * 160), b"A\x01"));
    // The screen begins with row 2. The split is at scan line 191, in row 12, and row 0 follows it.
    for (index, value) in [
        (0x0d, 160),
        (0x18, 191),
        (7, 0x0f),
        (9, 0x0f),
        (0x0f, 0),
        (0x0e, 0),
    ] {
        set(&mut vga, &mut bench, 0x3d4, index, value);
    }
    let shown = text(&mut vga, &bench);
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!((&*lines[0], &*lines[12], &*lines[14]), ("A", "T", "A"));
    assert_eq!(shown.cursor, Some((0, 12)));
    // A font with the top left dot of "A". The characters have 9 dots, and the screen moves by 8 of
    // them and by a line.
    for (port, index, value) in [(0x3c4, 2, 4), (0x3c4, 4, 7), (0x3ce, 5, 0), (0x3ce, 6, 4)] {
        set(&mut vga, &mut bench, port, index, value);
    }
    store(&mut vga, &mut bench, 32 * 0x41, 0x80);
    store(&mut vga, &mut bench, 32 * 0x41 + 1, 0x01);
    enter_text(&mut vga, &mut bench);
    out(&mut vga, &mut bench, 0x3c8, 1);
    for _ in 0..3 {
        out(&mut vga, &mut bench, 0x3c9, 0x3f);
    }
    set(&mut vga, &mut bench, 0x3d4, 0x0a, 0x20);
    set_attribute(&mut vga, &mut bench, 0x13, 8);
    assert_eq!(white(&mut vga, &mut bench, 0), [0]);
    assert_eq!(white(&mut vga, &mut bench, 1), [7]);
    set_attribute(&mut vga, &mut bench, 0x13, 6);
    assert_eq!(white(&mut vga, &mut bench, 1), [0]);
    set(&mut vga, &mut bench, 0x3d4, 8, 1);
    assert_eq!(white(&mut vga, &mut bench, 0), [0]);
}

#[test]
fn the_extension_shows_a_bank_and_its_mode() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_text(&mut vga, &mut bench);
    for (index, value) in [(1, 640), (2, 480), (3, 32), (4, 0x41), (5, 2)] {
        let context = &mut bench.context(0);
        vga.port_write(0x1ce, 2, index, context);
        vga.port_write(0x1cf, 2, value, context);
    }
    let pixel = 0x2_0000 / 4;
    assert!(
        bench
            .board
            .memory
            .write(PhysicalAddress(0xa_0000), &[1, 2, 3, 0])
    );
    let picture = vga.picture(&mut bench.board.memory).unwrap();
    assert_eq!((picture.size.width, picture.size.height), (640, 480));
    assert_eq!(picture.pixels[3 * pixel..3 * pixel + 3], [3, 2, 1]);
}

/// Makes random accesses to all registers, and sometimes draws a picture.
#[test]
fn no_register_and_no_store_makes_it_fail() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    let mut seed = 0x1234_5678u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u32
    };
    for round in 0..30_000 {
        let (port, value) = (0x3b0 + (random() % 0x30) as u16, random());
        match random() % 16 {
            0 => {
                let context = &mut bench.context(0);
                vga.port_write(0x1ce, 2, random() % 12, context);
                vga.port_write(0x1cf, 2, random() & 0x3ff, context);
            }
            1 => {
                let at = PhysicalAddress(0xa_0000 + u64::from(random() % 0x2_0000));
                vga.memory_write(at, &[1; 8], &mut bench.context(0));
                vga.memory_read(at, &mut [0; 64], &mut bench.context(0));
            }
            2 => {
                vga.port_read(port, 1, &mut bench.context(0));
            }
            _ => vga.port_write(port, 1, value & 0xff, &mut bench.context(0)),
        }
        if round % 1000 == 0 {
            vga.picture(&mut bench.board.memory);
        }
    }
    // A guest that sets a mode after a reset sees what it writes.
    vga.reset(&mut bench.context(0));
    enter_text(&mut vga, &mut bench);
    let memory = &mut bench.board.memory;
    assert!(memory.write(PhysicalAddress(0xb_8000), b"H\x07i\x1f"));
    let shown = text(&mut vga, &bench);
    assert_eq!((shown.columns, shown.rows), (80, 25));
    assert_eq!(&shown.characters[..2], b"Hi");
}

#[test]
fn registers_are_saved() {
    let mut bench = Bench::new();
    let mut first = vga(&bench);
    enter_text(&mut first, &mut bench);
    let saved = first.save();
    let mut second = vga(&bench);
    second.restore(&saved).unwrap();
    assert_eq!(second.save(), saved);
    second.follow(&mut bench.context(0));
    assert_eq!(second.window, Window::Text(0xb_8000));
}

#[test]
fn a_picture_is_drawn_anew_once_something_was_written() {
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    enter_text(&mut vga, &mut bench);
    out(&mut vga, &mut bench, 0x3c8, 1);
    for value in [0, 0, 0x3f] {
        out(&mut vga, &mut bench, 0x3c9, value);
    }
    let first = vga.picture(&mut bench.board.memory).unwrap();
    let second = vga.picture(&mut bench.board.memory).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    // A cell whose background has colour 1.
    let memory = &mut bench.board.memory;
    assert!(memory.write(PhysicalAddress(0xb_8000), b" \x1f"));
    let third = vga.picture(memory).unwrap();
    assert!(third.pixels != second.pixels);
    out(&mut vga, &mut bench, 0x3c8, 1);
    for value in [0x3f, 0, 0x20] {
        out(&mut vga, &mut bench, 0x3c9, value);
    }
    let fourth = vga.picture(&mut bench.board.memory).unwrap();
    assert!(fourth.pixels != third.pixels);
    assert!(Arc::ptr_eq(
        &fourth,
        &vga.picture(&mut bench.board.memory).unwrap()
    ));
}

/// Sets the mode of 640 by 480 pixels with 32 bits each.
fn enter_extension(vga: &mut Vga, bench: &mut Bench) {
    for (index, value) in [(1, 640), (2, 480), (3, 32), (4, 0x41)] {
        let context = &mut bench.context(0);
        vga.port_write(0x1ce, 2, index, context);
        vga.port_write(0x1cf, 2, value, context);
    }
}

#[test]
fn what_is_stored_by_the_base_address_register_is_drawn() {
    const FRAME_BUFFER: u64 = 0xfd00_0000;
    let mut bench = Bench::new();
    let mut vga = vga(&bench);
    let mut function = pci::VgaFunction::default();
    function.set_video(vga.blocks.unwrap().video);
    enter_text(&mut vga, &mut bench);
    enter_extension(&mut vga, &mut bench);
    let address = (FRAME_BUFFER as u32).to_le_bytes();
    function.config_write(0x10, &address, &mut bench.context(1));
    function.config_write(4, &[2, 0], &mut bench.context(1));
    vga.picture(&mut bench.board.memory).unwrap();
    for (offset, pixel) in [(0, [1, 2, 3]), (4, [4, 5, 6]), (640 * 4 * 479, [7, 8, 9])] {
        let before = vga.picture(&mut bench.board.memory).unwrap();
        let memory = &mut bench.board.memory;
        assert!(memory.write(PhysicalAddress(FRAME_BUFFER + offset), &pixel));
        let after = vga.picture(memory).unwrap();
        let at = offset as usize / 4 * 3;
        let [blue, green, red] = pixel;
        assert_eq!(after.pixels[at..at + 3], [red, green, blue]);
        assert_ne!(before.pixels, after.pixels);
    }
}
