//! The packed tables that every block has, in one allocation: its sites, its state map, its
//! replaceable operands, and the guest's code if a copy is kept.
//!
//! There are many blocks, and their tables are read seldom: only when guest code is left or
//! interrupted. So the tables are packed by [`packed_sites`] and [`packed_state_map`], without spare
//! capacity:
//!
//! ```text
//! lengths of sites, state map and operands in bytes     three numbers
//! sites | state map | operands | the guest's code
//! ```

use crate::abi::immediate::Immediate;
use crate::abi::packed_sites::{self, PackedSites, pack_sites};
use crate::abi::packed_state_map::{self, pack_state_map, state_at, state_map};
use crate::abi::sites::Site;
use crate::abi::state_map::StateEntry;
use crate::abi::varint::{Packer, take, take_signed};
use crate::blocks::table_bytes::TableBytes;
use std::ops::Range;

/// The unpacked tables of a block.
#[derive(Clone, Copy)]
pub struct Unpacked<'a> {
    /// The sites of the block: the places where the block can be left.
    pub sites: &'a [Site],
    /// The state map, ordered by host offset.
    pub state_map: &'a [StateEntry],
    /// Immediate operands that can be replaced, in the order of the guest's code.
    pub immediates: &'a [Immediate],
}

/// The tables of one block.
#[derive(Debug)]
pub struct PackedTables(TableBytes);

/// Bytes that are reserved for the header.
const HEADER: usize = 16;
/// Maximum length of a packed operand in bytes.
const LONGEST_IMMEDIATE: usize = 16;

impl PackedTables {
    /// Packs the tables of a block whose first instruction is at `start`, without a copy of the
    /// guest's code. `scratch` is a buffer for the bytes while they are packed.
    pub fn new(tables: &Unpacked<'_>, start: u64, scratch: &mut Vec<u8>) -> Self {
        let most = 2 * HEADER
            + tables.sites.len() * packed_sites::LONGEST
            + tables.state_map.len() * packed_state_map::LONGEST
            + tables.immediates.len() * LONGEST_IMMEDIATE;
        if scratch.len() < most {
            scratch.resize(most, 0);
        }
        let sites = pack_sites(tables.sites, start, scratch, HEADER);
        let state_map = pack_state_map(tables.state_map, scratch, sites);
        let mut packer = Packer::new(scratch, state_map);
        pack_immediates(tables.immediates, &mut packer);
        let end = packer.finish();
        // Only now is the length of the header known. The header is placed directly before the
        // rest.
        let lengths = [sites - HEADER, state_map - sites, end - state_map];
        let mut header = [0; HEADER];
        let mut packer = Packer::new(&mut header, 0);
        lengths.iter().for_each(|&length| packer.put(length as u64));
        let length = packer.finish();
        let begin = HEADER - length;
        scratch[begin..HEADER].copy_from_slice(&header[..length]);
        Self(TableBytes::own(scratch[begin..end].into()))
    }

    /// The tables that [`PackedTables::bytes`] has returned. `None` if the bytes cannot be tables.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        are_tables(bytes).then(|| Self(TableBytes::own(bytes.into())))
    }

    /// The same as [`PackedTables::from_bytes`], without a copy.
    ///
    /// # Safety
    /// The bytes must stay where they are, and must not change, for as long as the result lives.
    pub unsafe fn of_stored(bytes: &[u8]) -> Option<Self> {
        if !are_tables(bytes) {
            return None;
        }
        // SAFETY: the caller ensures it.
        unsafe { TableBytes::of_other(bytes) }.map(Self)
    }

    /// The packed bytes, without a copy of the guest's code.
    pub fn bytes(&self) -> &[u8] {
        let [.., code] = self.ranges();
        &self.0[..code.start]
    }

    /// The byte ranges of sites, state map, operands and code.
    #[inline]
    fn ranges(&self) -> [Range<usize>; 4] {
        let mut rest = &self.0[..];
        let lengths = [(); 3].map(|()| take(&mut rest).unwrap_or_default() as usize);
        let sites = self.0.len() - rest.len();
        let state_map = sites + lengths[0];
        let immediates = state_map + lengths[1];
        let code = immediates + lengths[2];
        [
            sites..state_map,
            state_map..immediates,
            immediates..code,
            code..self.0.len(),
        ]
    }

    /// The sites of the block. `start` must be the address that was given to [`PackedTables::new`].
    pub fn sites(&self, start: u64) -> PackedSites<'_> {
        let [sites, ..] = self.ranges();
        PackedSites::new(&self.0[sites], start)
    }

    /// The state map, ordered by host offset.
    pub fn state_map(&self) -> impl Iterator<Item = StateEntry> + '_ {
        let [_, range, ..] = self.ranges();
        state_map(&self.0[range])
    }

    /// The entry of the state map that applies at an offset of the block's code.
    pub fn state_at(&self, offset: u32) -> Option<StateEntry> {
        let [_, range, ..] = self.ranges();
        state_at(&self.0[range], offset)
    }

    /// Immediate operands that can be replaced, in the order of the guest's code.
    pub fn immediates(&self) -> impl Iterator<Item = Immediate> + '_ {
        let [_, _, immediates, _] = self.ranges();
        unpack_immediates(&self.0[immediates])
    }

    /// The copy of the guest's code; empty if none is kept.
    pub fn code(&self) -> &[u8] {
        let [.., code] = self.ranges();
        &self.0[code]
    }

    /// The copy of the guest's code, for changes.
    pub fn code_mut(&mut self) -> &mut [u8] {
        let [.., code] = self.ranges();
        // Stored tables have no such copy.
        self.0.own_mut().map_or(&mut [], |bytes| &mut bytes[code])
    }

    /// Keeps a copy of the guest's code, in place of an earlier one.
    pub fn keep_code(&mut self, bytes: &[u8]) {
        let [.., code] = self.ranges();
        let all = [&self.0[..code.start], bytes].concat();
        self.0 = TableBytes::own(all.into_boxed_slice());
    }
}

/// Whether the lengths at the beginning of these bytes are right.
fn are_tables(mut bytes: &[u8]) -> bool {
    let mut sum = 0_u64;
    for _ in 0..3 {
        match take(&mut bytes).and_then(|length| sum.checked_add(length)) {
            Some(more) => sum = more,
            None => return false,
        }
    }
    sum == bytes.len() as u64
}

/// Packs operands as distances from each to the next: `guest` always grows, and `host` usually
/// does.
fn pack_immediates(immediates: &[Immediate], out: &mut Packer<'_>) {
    let (mut guest, mut host) = (0, 0);
    for immediate in immediates {
        out.byte(immediate.size);
        out.put_signed(i64::from(immediate.guest) - i64::from(guest));
        out.put_signed(i64::from(immediate.host) - i64::from(host));
        (guest, host) = (immediate.guest, immediate.host);
    }
}

fn unpack_immediates(mut rest: &[u8]) -> impl Iterator<Item = Immediate> + '_ {
    let (mut guest, mut host) = (0, 0);
    std::iter::from_fn(move || {
        let size = *rest.split_off_first()?;
        guest += take_signed(&mut rest)?;
        host += take_signed(&mut rest)?;
        Some(Immediate {
            guest: u16::try_from(guest).ok()?,
            size,
            host: u32::try_from(host).ok()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::sites::{NO_AFTER, SiteKind};
    use crate::abi::state_map::{Restore, Shadow};

    #[test]
    fn each_part_is_what_it_was() {
        let start = 0xffff_ffff_8123_4560;
        let site = |retry: u32| Site {
            kind: SiteKind::Slow,
            rip: start + u64::from(retry),
            esp: 0,
            retry,
            after: NO_AFTER,
            after_esp: 0,
            shadowed: Shadow::None,
        };
        let entry = |host: u32| StateEntry {
            host,
            rip: start + u64::from(host / 4),
            esp: 0,
            restore: Restore::NONE,
            shadowed: Shadow::None,
        };
        let immediates = [(3, 4, 70_000), (900, 1, 12), (901, 8, u32::MAX)]
            .map(|(guest, size, host): (u16, u8, u32)| Immediate { guest, size, host });
        let mut scratch = Vec::new();
        for count in [0, 1, 40] {
            let sites: Vec<Site> = (0..count).map(site).collect();
            let state_map: Vec<StateEntry> = (0..count).map(|index| entry(index * 5)).collect();
            let unpacked = Unpacked {
                sites: &sites,
                state_map: &state_map,
                immediates: &immediates[..count.min(3) as usize],
            };
            let mut tables = PackedTables::new(&unpacked, start, &mut scratch);
            for code in [&[][..], &[1, 2, 3], &[9; 300]] {
                tables.keep_code(code);
                assert_eq!(tables.code(), code);
                assert_eq!(tables.sites(start).iter().collect::<Vec<_>>(), sites);
                assert_eq!(tables.state_map().collect::<Vec<_>>(), state_map);
                let operands: Vec<Immediate> = tables.immediates().collect();
                assert_eq!(operands, unpacked.immediates);
            }
            tables.code_mut()[7] = 8;
            assert_eq!(tables.code()[6..9], [9, 8, 9]);
            let bytes = tables.bytes().to_vec();
            // SAFETY: the bytes outlive these tables.
            let mut stored = unsafe { PackedTables::of_stored(&bytes) }.unwrap();
            assert_eq!(stored.bytes(), bytes);
            assert_eq!(stored.code_mut(), []);
            assert_eq!(stored.sites(start).iter().collect::<Vec<_>>(), sites);
            stored.keep_code(&[1, 2]);
            stored.code_mut()[1] = 5;
            assert_eq!((stored.bytes(), stored.code()), (&bytes[..], &[1, 5][..]));
            assert!(PackedTables::from_bytes(&bytes[1..]).is_none());
        }
    }
}
