//! Makes inputs for fuzz targets from a fixed seed: random bytes, and modified seeds.

/// Pseudo-random numbers (xorshift64*), the same in every run. This is not the generator in
/// `test-support`, which starts in another state: a seed must always produce the same inputs.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.bits();
        }
        random
    }

    /// The next 64 bits of the sequence.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() >> 32) as usize % limit
    }

    /// A random byte, often one of the values at which programs fail.
    fn byte(&mut self) -> u8 {
        match self.below(3) {
            0 => [0, 1, 0x7f, 0x80, 0xfe, 0xff][self.below(6)],
            _ => (self.bits() >> 32) as u8,
        }
    }
}

/// An input: random bytes, or one of `seeds` with a few modifications.
pub fn input(random: &mut Random, seeds: &[(String, Vec<u8>)]) -> Vec<u8> {
    if seeds.is_empty() || random.below(8) == 0 {
        let length = random.below(600);
        return (0..length).map(|_| random.byte()).collect();
    }
    let mut bytes = seeds[random.below(seeds.len())].1.clone();
    for _ in 0..=random.below(6) {
        let other = &seeds[random.below(seeds.len())].1;
        change(random, &mut bytes, other);
    }
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        bytes.push(random.byte());
    }
    // Headers are at the beginning: half of the modifications are made there.
    let span = if random.below(2) == 0 {
        bytes.len().min(64)
    } else {
        bytes.len()
    };
    let place = random.below(span);
    let count = 1 + random.below(8);
    match random.below(7) {
        0 => bytes[place] ^= 1 << random.below(8),
        1 => bytes[place] = random.byte(),
        2 => {
            let value = random.bits().to_le_bytes();
            for (byte, value) in bytes[place..].iter_mut().zip(&value[..count]) {
                *byte = *value;
            }
        }
        3 => {
            let value = random.byte();
            for byte in bytes[place..].iter_mut().take(count) {
                *byte = value;
            }
        }
        4 => {
            let noise: Vec<u8> = (0..count).map(|_| random.byte()).collect();
            bytes.splice(place..place, noise);
        }
        5 => {
            let end = (place + count).min(bytes.len());
            bytes.drain(place..end);
        }
        _ if other.is_empty() => bytes.truncate(place),
        _ => {
            let start = random.below(other.len());
            let end = (start + 1 + random.below(64)).min(other.len());
            let at = random.below(bytes.len() + 1);
            bytes.splice(at..at, other[start..end].iter().copied());
        }
    }
}
