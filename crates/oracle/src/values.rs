//! Random values, including many that processors treat specially.

use crate::case::components;
use tollgate_test_support::Random;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::xsave::{HEADER, OPMASK, ZMM_16_TO_31, ZMM_HIGH, component};

/// An integer: often small, a power of two, or next to one.
pub fn interesting(random: &mut Random) -> u32 {
    let near = |random: &mut Random| {
        (1u32 << random.below(32)).wrapping_add((random.below(3) as u32).wrapping_sub(1))
    };
    match random.below(8) {
        0 => 0,
        1 => u32::MAX,
        2 => near(random),
        3 => near(random).wrapping_neg(),
        4 => random.below(70) as u32,
        5 => (random.byte() as i8) as u32,
        _ => random.next_u32(),
    }
}

/// A 64-bit integer of the same kind as [`interesting`]; many are not canonical addresses.
pub fn interesting64(random: &mut Random) -> u64 {
    let near = |random: &mut Random| {
        (1u64 << random.below(64)).wrapping_add((random.below(3) as u64).wrapping_sub(1))
    };
    match random.below(10) {
        0 => u64::MAX,
        1 => near(random),
        2 => near(random).wrapping_neg(),
        3 | 4 => random.next_u64(),
        5 => i64::from(interesting(random) as i32) as u64,
        6 => u64::from(interesting(random)) << 32 | random.next_u64() & 0xffff_ffff,
        _ => u64::from(interesting(random)),
    }
}

fn single(random: &mut Random) -> u32 {
    let sign = random.next_u32() & 0x8000_0000;
    sign | match random.below(12) {
        0 => 0,
        1 => 0x7f80_0000,
        2 => 0x7fc0_0000 | random.next_u32() & 0x3f_ffff,
        3 => 0x7f80_0001 | random.next_u32() & 0x3f_ffff,
        4 => random.next_u32() & 0x7f_ffff,
        5 => 0x3f80_0000,
        6 => 0x0080_0000,
        7 => 0x7f7f_ffff,
        8 => (random.below(60) as f32).to_bits(),
        9 => 0x4b00_0000 | random.next_u32() & 0x7f_ffff | (random.below(16) as u32) << 23,
        10 => (0x3f00_0000 + random.below(0x0100_0000) as u32) & 0x7fff_ffff,
        _ => random.next_u32() & 0x7fff_ffff,
    }
}

fn double(random: &mut Random) -> u64 {
    let sign = random.next_u64() & 1 << 63;
    let fraction = random.next_u64() & 0xf_ffff_ffff_ffff;
    sign | match random.below(11) {
        0 => 0,
        1 => 0x7ff << 52,
        2 => 0x7ff8 << 48 | fraction,
        3 => 0x7ff << 52 | 1 | fraction >> 1,
        4 => fraction,
        5 => 0x3ff << 52,
        6 => 1 << 52,
        7 => (random.below(100) as f64).to_bits(),
        8 => (0x3e0 + random.below(0x60) as u64) << 52 | fraction,
        9 => (0x430 + random.below(16) as u64) << 52 | fraction,
        _ => random.next_u64() >> 1,
    }
}

/// An 80-bit number of any kind, including unsupported encodings.
pub fn extended(random: &mut Random) -> [u8; 10] {
    let integer_bit = 1u64 << 63;
    let fraction = random.next_u64() >> 1;
    let sign = (random.byte() & 1) as u16 * 0x8000;
    let (exponent, significand) = match random.below(14) {
        0 => (0, 0),
        1 => (0x7fff, integer_bit),
        2 => (0x7fff, integer_bit | 1 << 62 | fraction),
        3 => (0x7fff, integer_bit | 1 | fraction >> 2),
        4 => (0, fraction),
        5 => (0, integer_bit | fraction),
        6 => (0x3fff, integer_bit),
        7 => (random.next_u32() as u16 & 0x7fff, fraction),
        8 => (random.next_u32() as u16 & 0x7fff, integer_bit | fraction),
        9 | 10 => (0x3fe0 + random.below(0x60) as u16, integer_bit | fraction),
        11 => (0x3fff + random.below(64) as u16, integer_bit | 0xffff << 47),
        12 => {
            let number = random.below(1000) as u64 + 1;
            let zeros = number.leading_zeros();
            (0x3fff + 63 - zeros as u16, number << zeros)
        }
        _ => (0x3ff0 + random.below(0x20) as u16, integer_bit | fraction),
    };
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&significand.to_le_bytes());
    bytes[8..].copy_from_slice(&(sign | exponent).to_le_bytes());
    bytes
}

/// Bytes of one kind of data: floating point, integers, or neither.
pub fn data(random: &mut Random, length: usize) -> Vec<u8> {
    let kind = random.below(6);
    let mut bytes = Vec::with_capacity(length + 16);
    while bytes.len() < length {
        match kind {
            0 => bytes.extend(single(random).to_le_bytes()),
            1 => bytes.extend(double(random).to_le_bytes()),
            2 => bytes.extend(extended(random)),
            3 => bytes.extend(interesting(random).to_le_bytes()),
            4 => bytes.push({
                let other = random.byte();
                random.pick(&[0, 0xff, 0x80, 0x7f, 1, 0x99, other])
            }),
            _ => bytes.push(random.byte()),
        }
    }
    bytes.truncate(length);
    bytes
}

/// The x87 and vector registers; of the latter the first 8 or all.
pub fn vector_state(random: &mut Random, registers: usize) -> Box<[u8; XSAVE_SIZE]> {
    let mut area = Box::new([0; XSAVE_SIZE]);
    let control: u16 = match random.below(6) {
        0 => random.next_u32() as u16 & 0x0f3f | 0x40,
        1 => 0x40 | (random.below(64) as u16) | 0x300,
        _ => 0x7f | (random.below(16) as u16) << 8,
    };
    area[0..2].copy_from_slice(&control.to_le_bytes());
    let mut status = (random.next_u32() as u16) & 0x7f7f;
    if !random.one_in(6) {
        // No exception is pending.
        status &= 0x7f00 | control & 0x3f | 0x40;
    }
    area[2..4].copy_from_slice(&status.to_le_bytes());
    area[4] = match random.below(4) {
        0 => 0,
        1 => 0xff,
        _ => random.byte(),
    };
    for register in 0..8 {
        let start = 32 + register * 16;
        area[start..start + 10].copy_from_slice(&extended(random));
    }
    let mxcsr: u32 = match random.below(6) {
        0 => random.next_u32() & 0xffff,
        1 => 0x1f80 | random.next_u32() & 0xe07f,
        2 => random.next_u32() & 0xffc0,
        _ => 0x1f80,
    };
    area[24..28].copy_from_slice(&mxcsr.to_le_bytes());
    for register in 0..registers {
        let (low, high) = (160 + register * 16, 576 + register * 16);
        area[low..low + 16].copy_from_slice(&data(random, 16));
        area[high..high + 16].copy_from_slice(&data(random, 16));
    }
    if components() & component::AVX_512 != 0 {
        for mask in area[OPMASK.start..OPMASK.start + OPMASK.size].chunks_mut(8) {
            let value = match random.below(4) {
                0 => random.pick(&[0, u64::MAX, 1, 1 << 63]),
                1 => random.next_u64() & random.next_u64(),
                _ => random.next_u64(),
            };
            mask.copy_from_slice(&value.to_le_bytes());
        }
        for register in 0..registers {
            let high = ZMM_HIGH.start + register * 32;
            area[high..high + 32].copy_from_slice(&data(random, 32));
        }
        if registers == 16 {
            for register in area[ZMM_16_TO_31.start..].chunks_mut(64) {
                register.copy_from_slice(&data(random, 64));
            }
        }
    }
    area[HEADER] = components() as u8;
    area
}
