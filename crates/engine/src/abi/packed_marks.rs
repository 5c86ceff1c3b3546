//! The marks of a block as bytes.
//!
//! A block has two or three marks for each guest instruction, of 32 bytes each, more than its
//! code. They are read only where guest code is interrupted. So a block keeps them as a
//! sequence of differences, mostly three bytes for a mark:
//!
//! ```text
//! form                     which of the following there are, and how wide
//! offset in the code       1 or 4 bytes, from the mark before
//! EIP                      none, 1 byte from the mark before, or all 8
//! stack adjustment         none, 1 byte from the mark before, or all 4
//! what to put back         none, or 8 bytes
//! ```

use super::marks::{Mark, Restore, Shadow};
use std::fmt;

bitflags::bitflags! {
    /// The first byte of a packed mark.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Form: u8 {
        /// The offset's difference has four bytes.
        const FAR = 1 << 0;
        /// EIP is another one, by less than 256.
        const RIP_NEAR = 1 << 1;
        /// EIP is another one.
        const RIP = 1 << 2;
        /// The stack adjustment is another one, by a signed byte.
        const ESP_NEAR = 1 << 3;
        /// The stack adjustment is another one.
        const ESP = 1 << 4;
        /// There is something to put back.
        const RESTORE = 1 << 5;
        /// [`Shadow::Interrupts`].
        const INTERRUPTS = 1 << 6;
        /// [`Shadow::All`].
        const ALL = 1 << 7;
    }
}

/// What the first mark is told from.
const ORIGIN: Mark = Mark {
    host: 0,
    rip: 0,
    esp: 0,
    restore: Restore::NONE,
    shadowed: Shadow::None,
};

/// The marks of a block, ordered by host offset.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PackedMarks {
    bytes: Box<[u8]>,
}

impl PackedMarks {
    /// Packs marks, which are ordered by host offset. `scratch` is for the bytes meanwhile.
    pub fn new(marks: &[Mark], scratch: &mut Vec<u8>) -> Self {
        let most = marks.len() * LONGEST;
        if scratch.len() < most {
            scratch.resize(most, 0);
        }
        let mut length = 0;
        let mut before = &ORIGIN;
        for mark in marks {
            let Some(place) = scratch[length..].first_chunk_mut() else {
                break;
            };
            length += pack(before, mark, place);
            before = mark;
        }
        Self {
            bytes: scratch[..length].into(),
        }
    }

    /// The marks.
    pub fn iter(&self) -> impl Iterator<Item = Mark> + '_ {
        let mut rest = &self.bytes[..];
        let mut mark = ORIGIN;
        std::iter::from_fn(move || {
            mark = unpack(&mark, &mut rest)?;
            Some(mark)
        })
    }

    /// The mark in force at an offset of the block's code.
    pub fn at(&self, offset: u32) -> Option<Mark> {
        self.iter().take_while(|mark| mark.host <= offset).last()
    }

    /// The marks, for who wants to search them.
    pub fn to_vec(&self) -> Vec<Mark> {
        self.iter().collect()
    }
}

impl fmt::Debug for PackedMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Bytes of a packed mark at most, and of what is written for one.
const LONGEST: usize = 32;

/// Packs a mark into the first of these bytes, and says how many they are.
///
/// What most marks need is put together in a register and written at once: what is copied
/// directly behind its being written byte by byte stalls the processor.
#[inline]
fn pack(before: &Mark, mark: &Mark, place: &mut [u8; LONGEST]) -> usize {
    let far = mark.host.wrapping_sub(before.host);
    let rip = mark.rip.wrapping_sub(before.rip);
    let esp = mark.esp.wrapping_sub(before.esp);
    let is_small = far < 256 && rip < 256 && i8::try_from(esp).is_ok();
    if !is_small {
        return pack_wide(before, mark, place);
    }
    let mut form = form_of(mark.shadowed);
    let mut fields = u64::from(far);
    let mut count = 1;
    let mut put = |there_is: bool, field: u8, bit: Form| {
        if there_is {
            fields |= u64::from(field) << (8 * count);
            count += 1;
            form |= bit;
        }
    };
    put(rip != 0, rip as u8, Form::RIP_NEAR);
    put(esp != 0, esp as u8, Form::ESP_NEAR);
    if mark.restore != Restore::NONE {
        form |= Form::RESTORE;
    }
    let first = fields << 8 | u64::from(form.bits());
    place[..8].copy_from_slice(&first.to_le_bytes());
    let length = 1 + count;
    if mark.restore == Restore::NONE {
        return length;
    }
    place[length..length + 8].copy_from_slice(&mark.restore.to_bytes());
    length + 8
}

fn form_of(shadowed: Shadow) -> Form {
    match shadowed {
        Shadow::None => Form::empty(),
        Shadow::Interrupts => Form::INTERRUPTS,
        Shadow::All => Form::ALL,
    }
}

/// As [`pack`], of a mark with a difference that is not small.
#[cold]
fn pack_wide(before: &Mark, mark: &Mark, packed: &mut [u8; LONGEST]) -> usize {
    let mut length = 1;
    let mut put = |field: &[u8]| {
        packed[length..length + field.len()].copy_from_slice(field);
        length += field.len();
    };
    let mut form = form_of(mark.shadowed);
    let far = mark.host.wrapping_sub(before.host);
    match u8::try_from(far) {
        Ok(near) => put(&[near]),
        Err(_) => {
            form |= Form::FAR;
            put(&far.to_le_bytes());
        }
    }
    if mark.rip != before.rip {
        match u8::try_from(mark.rip.wrapping_sub(before.rip)) {
            Ok(near) => {
                form |= Form::RIP_NEAR;
                put(&[near]);
            }
            Err(_) => {
                form |= Form::RIP;
                put(&mark.rip.to_le_bytes());
            }
        }
    }
    if mark.esp != before.esp {
        match i8::try_from(mark.esp.wrapping_sub(before.esp)) {
            Ok(near) => {
                form |= Form::ESP_NEAR;
                put(&near.to_le_bytes());
            }
            Err(_) => {
                form |= Form::ESP;
                put(&mark.esp.to_le_bytes());
            }
        }
    }
    if mark.restore != Restore::NONE {
        form |= Form::RESTORE;
        put(&mark.restore.to_bytes());
    }
    packed[0] = form.bits();
    length
}

/// The next of the packed marks, if there is one.
fn unpack(before: &Mark, rest: &mut &[u8]) -> Option<Mark> {
    fn take<const COUNT: usize>(rest: &mut &[u8]) -> Option<[u8; COUNT]> {
        let (field, behind) = rest.split_first_chunk()?;
        *rest = behind;
        Some(*field)
    }
    let form = Form::from_bits_retain(take::<1>(rest)?[0]);
    let mut mark = Mark {
        restore: Restore::NONE,
        shadowed: Shadow::None,
        ..*before
    };
    let distance = match form.contains(Form::FAR) {
        true => u32::from_le_bytes(take(rest)?),
        false => u32::from(take::<1>(rest)?[0]),
    };
    mark.host = before.host.wrapping_add(distance);
    if form.contains(Form::RIP_NEAR) {
        mark.rip = before.rip.wrapping_add(u64::from(take::<1>(rest)?[0]));
    } else if form.contains(Form::RIP) {
        mark.rip = u64::from_le_bytes(take(rest)?);
    }
    if form.contains(Form::ESP_NEAR) {
        mark.esp = before
            .esp
            .wrapping_add(i8::from_le_bytes(take(rest)?).into());
    } else if form.contains(Form::ESP) {
        mark.esp = i32::from_le_bytes(take(rest)?);
    }
    if form.contains(Form::RESTORE) {
        mark.restore = Restore::from_bytes(take(rest)?);
    }
    if form.contains(Form::ALL) {
        mark.shadowed = Shadow::All;
    } else if form.contains(Form::INTERRUPTS) {
        mark.shadowed = Shadow::Interrupts;
    }
    Some(mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::host::{Host, R9};
    use crate::abi::marks::Source;
    use tollgate_test_support::Random;

    fn random_marks(random: &mut Random) -> Vec<Mark> {
        let mut mark = ORIGIN;
        let mut marks = Vec::new();
        for _ in 0..random.below(40) {
            mark.host += match random.below(8) {
                0 => 256 + random.below(70_000) as u32,
                _ => 1 + random.below(255) as u32,
            };
            mark.rip = match random.below(4) {
                0 => mark.rip,
                1 => random.next_u64(),
                2 => mark.rip.wrapping_sub(random.below(300) as u64),
                _ => mark.rip.wrapping_add(random.below(300) as u64),
            };
            mark.esp = match random.below(4) {
                0 => random.next_u64() as i32,
                1 => mark.esp.wrapping_sub(8),
                2 => mark.esp.wrapping_add(random.below(200) as i32),
                _ => mark.esp,
            };
            mark.restore = match random.below(6) {
                0 => Restore::one(3, R9),
                1 => (0..7).fold(Restore::NONE, |all, guest| all.and(guest, Source::Slot)),
                2 => Restore::NONE.with_eip(Host(8)),
                3 => Restore::UNDIVIDED,
                _ => Restore::NONE,
            };
            mark.shadowed = [Shadow::None, Shadow::Interrupts, Shadow::All][random.below(3)];
            marks.push(mark);
        }
        marks
    }

    #[test]
    fn what_is_packed_is_what_is_found() {
        let mut random = Random::new(23);
        let mut scratch = Vec::new();
        for _ in 0..2000 {
            let marks = random_marks(&mut random);
            let packed = PackedMarks::new(&marks, &mut scratch);
            assert_eq!(packed.to_vec(), marks);
            let end = marks.last().map_or(9, |mark| mark.host + 9);
            for _ in 0..10 {
                let offset = random.below(end as usize) as u32;
                let expected = marks.iter().rfind(|mark| mark.host <= offset);
                assert_eq!(packed.at(offset).as_ref(), expected);
            }
        }
    }
}
