use super::*;
use tollgate_test_support::Random;

fn memory() -> GuestMemory {
    GuestMemory::new(2 << 20).unwrap()
}

/// Both controllers are enabled, and the first is reachable.
fn enabled() -> DmaControllers {
    DmaControllers::cascaded()
}

/// Programs channel 2 as a BIOS does for the floppy.
fn program(dma: &mut DmaControllers, mode: u8, address: u32, count: u16) {
    dma.write(0x0a, 6);
    dma.write(0x0c, 0);
    dma.write(0x0b, mode);
    for value in [address as u8, (address >> 8) as u8] {
        dma.write(0x04, value);
    }
    dma.write(0x81, (address >> 16) as u8);
    for value in count.to_le_bytes() {
        dma.write(0x05, value);
    }
    dma.write(0x0a, 2);
}

#[test]
fn a_write_transfer_ends_with_the_count_and_masks_its_channel() {
    let (mut dma, mut memory) = (enabled(), memory());
    program(&mut dma, 0x46, 0x1_2000, 7);
    dma.request(2, true);
    assert_eq!(dma.read(0x08), 0x40, "requested");
    let moved = dma.to_memory(2, b"more than eight", &mut memory);
    let expected = Moved {
        bytes: 8,
        terminal_count: true,
    };
    assert_eq!(moved, expected);
    let mut found = [0; 9];
    memory.read(PhysicalAddress(0x1_2000), &mut found);
    assert_eq!(&found, b"more tha\0");
    dma.request(2, false);
    assert_eq!(dma.read(0x08), 4, "ended");
    assert_eq!(dma.read(0x08), 0, "until it was read");
    assert_eq!(dma.to_memory(2, b"x", &mut memory), Moved::default());
    dma.write(0x0c, 0);
    assert_eq!([dma.read(4), dma.read(4)], [0x08, 0x20]);
    assert_eq!([dma.read(5), dma.read(5)], [0xff, 0xff]);
}

#[test]
fn a_read_transfer_goes_on_where_it_was_left() {
    let (mut dma, mut memory) = (enabled(), memory());
    memory.write(PhysicalAddress(0x500), b"abcdef");
    program(&mut dma, 0x4a, 0x500, 99);
    let mut data = [0; 4];
    let moved = dma.from_memory(2, &mut data, &memory);
    assert_eq!(
        (moved.bytes, moved.terminal_count, &data),
        (4, false, b"abcd")
    );
    dma.from_memory(2, &mut data, &memory);
    assert_eq!(&data, b"ef\0\0");
}

#[test]
fn addresses_wrap_inside_of_a_page_of_64_kib() {
    let (mut dma, mut memory) = (enabled(), memory());
    program(&mut dma, 0x46, 0x1_fffe, 3);
    assert_eq!(dma.to_memory(2, b"wrap", &mut memory).bytes, 4);
    let mut found = [0; 2];
    memory.read(PhysicalAddress(0x1_fffe), &mut found);
    assert_eq!(&found, b"wr");
    memory.read(PhysicalAddress(0x1_0000), &mut found);
    assert_eq!(&found, b"ap");
}

#[test]
fn addresses_go_down_if_the_mode_says_so() {
    let (mut dma, mut memory) = (enabled(), memory());
    program(&mut dma, 0x66, 0x2003, 3);
    dma.to_memory(2, b"abcd", &mut memory);
    let mut found = [0; 4];
    memory.read(PhysicalAddress(0x2000), &mut found);
    assert_eq!(&found, b"dcba");
}

#[test]
fn autoinitialize_begins_anew_with_the_next_request() {
    let (mut dma, mut memory) = (enabled(), memory());
    program(&mut dma, 0x56, 0x3000, 3);
    for text in [b"abcdef", b"ghijkl"] {
        let moved = dma.to_memory(2, text, &mut memory);
        assert_eq!((moved.bytes, moved.terminal_count), (4, true));
    }
    let mut found = [0; 4];
    memory.read(PhysicalAddress(0x3000), &mut found);
    assert_eq!(&found, b"ghij");
}

#[test]
fn verify_counts_and_leaves_memory_alone() {
    let (mut dma, mut memory) = (enabled(), memory());
    program(&mut dma, 0x42, 0x3000, 511);
    let moved = dma.to_memory(2, &[7; 512], &mut memory);
    assert_eq!((moved.bytes, moved.terminal_count), (512, true));
    assert_eq!(memory.read_u32(PhysicalAddress(0x3000)), 0);
}

#[test]
fn words_of_the_second_controller_have_pages_of_128_kib() {
    let (mut dma, mut memory) = (enabled(), memory());
    dma.write(0xd8, 0);
    dma.write(0xd6, 0x45);
    for value in [0x00, 0x80] {
        dma.write(0xc4, value);
    }
    dma.write(0x8b, 0x03);
    for value in [1, 0] {
        dma.write(0xc6, value);
    }
    dma.write(0xd4, 1);
    let moved = dma.to_memory(5, b"wordsX", &mut memory);
    assert_eq!((moved.bytes, moved.terminal_count), (4, true));
    let mut found = [0; 5];
    memory.read(PhysicalAddress(0x3_0000), &mut found);
    assert_eq!(&found, b"word\0");
}

#[test]
fn nothing_moves_while_a_controller_or_a_channel_is_closed() {
    let mut memory = memory();
    let close: [fn(&mut DmaControllers); 6] = [
        |dma| dma.write(0x0a, 6),
        |dma| dma.write(0x08, 4),
        |dma| dma.write(0xd0, 4),
        |dma| dma.write(0xd4, 4),
        |dma| dma.write(0x0b, 0xc6),
        |dma| dma.write(0x0d, 0),
    ];
    for (number, close) in close.iter().enumerate() {
        let mut dma = enabled();
        program(&mut dma, 0x46, 0x1000, 99);
        assert!(dma.is_open(2));
        close(&mut dma);
        assert!(!dma.is_open(2), "{number}");
        assert_eq!(dma.to_memory(2, b"x", &mut memory).bytes, 0, "{number}");
    }
    let mut dma = enabled();
    dma.write(0x0e, 0);
    assert!(dma.is_open(2) && !dma.is_open(4));
    dma.write(0x0f, 0xf);
    assert_eq!((dma.is_open(2), dma.read(0x0f)), (false, 0xff));
}

#[test]
fn random_programs_move_no_more_than_there_is_and_nothing_outside() {
    let mut random = Random::new(0x8237_8237);
    let (mut dma, mut memory) = (DmaControllers::default(), memory());
    let mut written = 0;
    for round in 0..50_000 {
        let port = random.next_u64() as u16 % 0xe0;
        match random.below(4) {
            0 => dma.read(port),
            _ => {
                dma.write(port, random.next_u64() as u8);
                0
            }
        };
        let channel = random.next_u64() as u8;
        let mut data = vec![0xa5; random.below(700)];
        let moved = match random.below(2) {
            0 => {
                let moved = dma.to_memory(channel, &data, &mut memory);
                written += moved.bytes;
                moved
            }
            _ => dma.from_memory(channel, &mut data, &memory),
        };
        assert!(moved.bytes <= data.len());
        if round % 100 == 0 {
            let mut found = vec![0; 2 << 20];
            memory.read(PhysicalAddress(0), &mut found);
            let changed = found.iter().filter(|byte| **byte != 0).count();
            assert!(changed <= written, "{changed} of {written}");
            memory.clear().unwrap();
            written = 0;
        }
    }
    // A guest that programs the controllers again gets its transfer.
    for (port, value) in [(0x0d, 0), (0xda, 0), (0xd6, 0xc0), (0xd4, 0)] {
        dma.write(port, value);
    }
    program(&mut dma, 0x46, 0x1_2000, 7);
    dma.request(2, true);
    assert_eq!(dma.to_memory(2, &[1; 9], &mut memory).bytes, 8);
    let mut found = [0; 9];
    memory.read(PhysicalAddress(0x1_2000), &mut found);
    assert_eq!(found, [1, 1, 1, 1, 1, 1, 1, 1, 0]);
}
