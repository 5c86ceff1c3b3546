//! The packed state map of a block: its entries as a sequence of bytes.
//!
//! A block has two or three entries for each guest instruction. Unpacked, an entry has 32 bytes,
//! more than the code that it describes. StateMap are read only where guest code is interrupted. So
//! a block keeps them as a sequence of differences, mostly two bytes for an entry:
//!
//! ```text
//! form                     which of the following there are, and how wide; or a short one, which
//!                          says itself what EIP and the stack adjustment are
//! offset in the code       1 or 4 bytes, from the entry before
//! EIP                      none, 1 byte from the entry before, or all 8
//! stack adjustment         none, 1 byte from the entry before, or all 4
//! what to put back         none, or a count and as many bytes
//! ```

use super::state_map::{Restore, Shadow, StateEntry};

bitflags::bitflags! {
    /// The first byte of a packed entry.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Form: u8 {
        /// The difference of the offset from the previous entry's has four bytes.
        const FAR = 1 << 0;
        /// EIP differs from the previous entry's by less than 256.
        const RIP_NEAR = 1 << 1;
        /// EIP differs, and all of it follows.
        const RIP = 1 << 2;
        /// The stack adjustment differs by a signed byte.
        const ESP_NEAR = 1 << 3;
        /// The stack adjustment differs, and all of it follows.
        const ESP = 1 << 4;
        /// There are registers to put back.
        const RESTORE = 1 << 5;
        /// The entry has [`Shadow::Interrupts`].
        const INTERRUPTS = 1 << 6;
        /// The entry has [`Shadow::All`]. If `INTERRUPTS` is set too, this is a short form, whose
        /// other bits are numbers.
        const ALL = 1 << 7;
    }
}

/// The bits of a short form. EIP differs by the low four bits, the stack adjustment by the element
/// of [`SHORT_ESP`] that the two bits above select, and only the offset follows.
const SHORT: u8 = Form::INTERRUPTS.union(Form::ALL).bits();

/// The differences of the stack adjustment that a short form can express.
const SHORT_ESP: [i32; 4] = [0, -8, 8, -4];

/// The entry from which the first entry's differences are computed.
const ORIGIN: StateEntry = StateEntry {
    host: 0,
    rip: 0,
    esp: 0,
    restore: Restore::NONE,
    shadowed: Shadow::None,
};

/// Packs entries, which are ordered by host offset, into `out` from the index `at` on, where
/// [`LONGEST`] bytes are free for each. Returns the index after them.
pub(crate) fn pack_state_map(state_map: &[StateEntry], out: &mut [u8], mut at: usize) -> usize {
    let mut before = &ORIGIN;
    for entry in state_map {
        let Some(place) = out[at..].first_chunk_mut() else {
            break;
        };
        at += pack(before, entry, place);
        before = entry;
    }
    at
}

/// The entries that were packed into these bytes.
pub(crate) fn state_map(bytes: &[u8]) -> impl Iterator<Item = StateEntry> + '_ {
    let mut rest = bytes;
    let mut entry = ORIGIN;
    std::iter::from_fn(move || {
        entry = unpack(&entry, &mut rest)?;
        Some(entry)
    })
}

/// The entry that is valid at an offset of the block's code: the last one that begins at or before
/// the offset.
pub(crate) fn state_at(bytes: &[u8], offset: u32) -> Option<StateEntry> {
    state_map(bytes)
        .take_while(|entry| entry.host <= offset)
        .last()
}

/// The most bytes of a packed entry, and of what is written for one.
pub(crate) const LONGEST: usize = 32;

/// Packs an entry into the first of these bytes. Returns how many it uses.
///
/// What most entries need is assembled in a register and written with one store, since a processor
/// stalls on a copy of bytes that were just written one by one.
#[inline]
fn pack(before: &StateEntry, entry: &StateEntry, place: &mut [u8; LONGEST]) -> usize {
    let far = entry.host.wrapping_sub(before.host);
    let rip = entry.rip.wrapping_sub(before.rip);
    let esp = entry.esp.wrapping_sub(before.esp);
    let is_small = far < 256 && rip < 256 && i8::try_from(esp).is_ok();
    if !is_small {
        return pack_wide(before, entry, place);
    }
    let is_plain = entry.restore == Restore::NONE && entry.shadowed == Shadow::None;
    if is_plain
        && rip < 16
        && let Some(step) = SHORT_ESP.iter().position(|&step| step == esp)
    {
        place[..2].copy_from_slice(&[SHORT | (step as u8) << 4 | rip as u8, far as u8]);
        return 2;
    }
    let mut form = form_of(entry.shadowed);
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
    if entry.restore != Restore::NONE {
        form |= Form::RESTORE;
    }
    let first = fields << 8 | u64::from(form.bits());
    place[..8].copy_from_slice(&first.to_le_bytes());
    let length = 1 + count;
    if entry.restore == Restore::NONE {
        return length;
    }
    place[length..length + 8].copy_from_slice(&entry.restore.to_bytes());
    length + entry.restore.byte_count()
}

fn form_of(shadowed: Shadow) -> Form {
    match shadowed {
        Shadow::None => Form::empty(),
        Shadow::Interrupts => Form::INTERRUPTS,
        Shadow::All => Form::ALL,
    }
}

/// Packs an entry with a difference that is not small.
#[cold]
fn pack_wide(before: &StateEntry, entry: &StateEntry, packed: &mut [u8; LONGEST]) -> usize {
    let mut length = 1;
    let mut put = |field: &[u8]| {
        packed[length..length + field.len()].copy_from_slice(field);
        length += field.len();
    };
    let mut form = form_of(entry.shadowed);
    let far = entry.host.wrapping_sub(before.host);
    match u8::try_from(far) {
        Ok(near) => put(&[near]),
        Err(_) => {
            form |= Form::FAR;
            put(&far.to_le_bytes());
        }
    }
    if entry.rip != before.rip {
        match u8::try_from(entry.rip.wrapping_sub(before.rip)) {
            Ok(near) => {
                form |= Form::RIP_NEAR;
                put(&[near]);
            }
            Err(_) => {
                form |= Form::RIP;
                put(&entry.rip.to_le_bytes());
            }
        }
    }
    if entry.esp != before.esp {
        match i8::try_from(entry.esp.wrapping_sub(before.esp)) {
            Ok(near) => {
                form |= Form::ESP_NEAR;
                put(&near.to_le_bytes());
            }
            Err(_) => {
                form |= Form::ESP;
                put(&entry.esp.to_le_bytes());
            }
        }
    }
    if entry.restore != Restore::NONE {
        form |= Form::RESTORE;
        put(&entry.restore.to_bytes()[..entry.restore.byte_count()]);
    }
    packed[0] = form.bits();
    length
}

/// Unpacks the next entry, if there is one.
fn unpack(before: &StateEntry, rest: &mut &[u8]) -> Option<StateEntry> {
    fn take<const COUNT: usize>(rest: &mut &[u8]) -> Option<[u8; COUNT]> {
        let (field, behind) = rest.split_first_chunk()?;
        *rest = behind;
        Some(*field)
    }
    let form = take::<1>(rest)?[0];
    let mut entry = StateEntry {
        restore: Restore::NONE,
        shadowed: Shadow::None,
        ..*before
    };
    if form & SHORT == SHORT {
        let distance = u32::from(take::<1>(rest)?[0]);
        entry.host = before.host.wrapping_add(distance);
        entry.rip = before.rip.wrapping_add(u64::from(form & 0xf));
        let step = SHORT_ESP[usize::from(form >> 4 & 3)];
        entry.esp = before.esp.wrapping_add(step);
        return Some(entry);
    }
    let form = Form::from_bits_retain(form);
    let distance = match form.contains(Form::FAR) {
        true => u32::from_le_bytes(take(rest)?),
        false => u32::from(take::<1>(rest)?[0]),
    };
    entry.host = before.host.wrapping_add(distance);
    if form.contains(Form::RIP_NEAR) {
        entry.rip = before.rip.wrapping_add(u64::from(take::<1>(rest)?[0]));
    } else if form.contains(Form::RIP) {
        entry.rip = u64::from_le_bytes(take(rest)?);
    }
    if form.contains(Form::ESP_NEAR) {
        entry.esp = before
            .esp
            .wrapping_add(i8::from_le_bytes(take(rest)?).into());
    } else if form.contains(Form::ESP) {
        entry.esp = i32::from_le_bytes(take(rest)?);
    }
    if form.contains(Form::RESTORE) {
        let mut bytes = [0; Restore::MAX_MOVES + 1];
        let (&count, _) = rest.split_first()?;
        bytes[0] = count;
        let length = Restore::from_bytes(bytes).byte_count();
        let (packed, behind) = rest.split_at_checked(length)?;
        bytes[..length].copy_from_slice(packed);
        *rest = behind;
        entry.restore = Restore::from_bytes(bytes);
    }
    if form.contains(Form::ALL) {
        entry.shadowed = Shadow::All;
    } else if form.contains(Form::INTERRUPTS) {
        entry.shadowed = Shadow::Interrupts;
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::host::{Host, R9};
    use crate::abi::state_map::Source;
    use tollgate_test_support::Random;
    use tollgate_x86::SegmentRegister;

    fn random_entries(random: &mut Random) -> Vec<StateEntry> {
        let mut entry = ORIGIN;
        let mut state_map = Vec::new();
        for _ in 0..random.below(40) {
            entry.host += match random.below(8) {
                0 => 256 + random.below(70_000) as u32,
                _ => 1 + random.below(255) as u32,
            };
            entry.rip = match random.below(4) {
                0 => entry.rip,
                1 => random.next_u64(),
                2 => entry.rip.wrapping_sub(random.below(300) as u64),
                _ => entry.rip.wrapping_add(random.below(300) as u64),
            };
            entry.esp = match random.below(4) {
                0 => random.next_u64() as i32,
                1 => entry.esp.wrapping_sub(8),
                2 => entry.esp.wrapping_add(random.below(200) as i32),
                _ => entry.esp,
            };
            entry.restore = match random.below(8) {
                0 => Restore::one(3, R9),
                1 => (0..7).fold(Restore::NONE, |all, guest| all.and(guest, Source::Slot)),
                2 => Restore::NONE.with_eip(Host(8)),
                3 => Restore::UNDIVIDED,
                4 => Restore::one(0, R9).with_segment(SegmentRegister::Fs, R9),
                _ => Restore::NONE,
            };
            entry.shadowed = [Shadow::None, Shadow::Interrupts, Shadow::All][random.below(3)];
            state_map.push(entry);
        }
        state_map
    }

    fn packed(state_map: &[StateEntry]) -> Vec<u8> {
        let mut bytes = vec![0; state_map.len() * LONGEST];
        let end = pack_state_map(state_map, &mut bytes, 0);
        bytes.truncate(end);
        bytes
    }

    #[test]
    fn what_is_packed_is_what_is_found() {
        let mut random = Random::new(23);
        for _ in 0..2000 {
            let all = random_entries(&mut random);
            let packed = packed(&all);
            assert_eq!(state_map(&packed).collect::<Vec<_>>(), all);
            let end = all.last().map_or(9, |entry| entry.host + 9);
            for _ in 0..10 {
                let offset = random.below(end as usize) as u32;
                let expected = all.iter().rfind(|entry| entry.host <= offset);
                assert_eq!(state_at(&packed, offset).as_ref(), expected);
            }
        }
    }

    #[test]
    fn most_entries_need_few_bytes() {
        let mut entry = StateEntry {
            rip: 0xffff_ffff_8123_4000,
            ..ORIGIN
        };
        let mut all = Vec::new();
        for _ in 0..10 {
            entry.host += 9;
            entry.rip += 4;
            all.push(entry);
            let within = StateEntry {
                host: entry.host + 4,
                restore: Restore::one(3, R9),
                ..entry
            };
            all.push(within);
            entry.host += 9;
            all.push(entry);
        }
        let packed = packed(&all);
        assert!(packed.len() <= 10 + all.len() * 3);
        assert_eq!(state_map(&packed).collect::<Vec<_>>(), all);
    }
}
