//! Which of the translations that a processor has cached an instruction invalidates (SDM volume 3,
//! 4.10.4; APM volume 2, 5.5.2).

use crate::address::{LinearAddress, PhysicalAddress};
use crate::registers::Cr4;
use crate::state::CpuState;

/// CR3 with CR4.PCIDE: the process-context identifier (SDM volume 3, 4.10.1).
pub const CR3_PCID: u64 = 0xfff;
/// Bit 63 of a value written to CR3 with CR4.PCIDE: cached translations may be kept. The bit is not
/// stored (SDM volume 3, 4.10.4.1).
pub const CR3_KEEPS: u64 = 1 << 63;
/// The low bits of CR3 that are not part of the tables' address in any of its formats (SDM volume
/// 3, table 4-7).
const CR3_FLAGS: u64 = 0x1f;

/// The name by which the processor distinguishes address spaces, without looking at the tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SpaceName {
    /// With CR4.PCIDE: the process-context identifier, 0 to 4095.
    Identifier(u16),
    /// Without CR4.PCIDE: the address of the page tables.
    Tables(PhysicalAddress),
}

/// A linear address space of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// The address of the page tables; `None` if it is unknown, since INVPCID does not give it.
    pub tables: Option<PhysicalAddress>,
    /// The process-context identifier, 0 to 4095; 0 without CR4.PCIDE.
    pub identifier: u16,
    /// Whether CR4.PCIDE is set: spaces are distinguished by their identifiers alone.
    pub has_identifier: bool,
}

impl Space {
    /// The space that CR3 selects.
    pub fn loaded(state: &CpuState) -> Self {
        Self::of_cr3(state, state.cr3)
    }

    /// The space that this value of CR3 would select.
    pub fn of_cr3(state: &CpuState, cr3: u64) -> Self {
        let has_identifier = state.cr4().contains(Cr4::PCIDE);
        let (flags, identifier) = match has_identifier {
            true => (CR3_PCID, cr3 & CR3_PCID),
            false => (CR3_FLAGS, 0),
        };
        Self {
            tables: Some(PhysicalAddress(cr3 & !flags)),
            identifier: identifier as u16,
            has_identifier,
        }
    }

    /// The name that distinguishes this space from others.
    #[inline]
    pub const fn name(self) -> SpaceName {
        match self.tables {
            Some(tables) if !self.has_identifier => SpaceName::Tables(tables),
            _ => SpaceName::Identifier(self.identifier),
        }
    }

    /// Whether an instruction that names this space means the space that is loaded under `name`.
    /// Without CR4.PCIDE the only identifier is zero, and every space has it; one of them is
    /// loaded.
    #[inline]
    pub fn is_loaded_as(self, name: SpaceName) -> bool {
        let means_any = matches!(name, SpaceName::Tables(_)) && self.tables.is_none();
        self.name() == name || means_any && self.identifier == 0
    }

    /// The space with this process-context identifier, 0 to 4095, wherever its tables are.
    pub const fn identified(identifier: u16) -> Self {
        Self {
            tables: None,
            identifier,
            has_identifier: true,
        }
    }

    /// Whether `other` is this space, or one of those that this one stands for.
    pub fn covers(self, other: Space) -> bool {
        self.identifier == other.identifier
            && (self.tables.is_none() || self.tables == other.tables)
    }
}

/// A set of cached translations that must be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TranslationChange {
    /// CR3 was loaded: all translations of the new space are dropped except those of global pages.
    Load {
        /// The space that was loaded before.
        from: Space,
        /// The space that is loaded now.
        to: Space,
        /// Whether cached translations of `to` may be kept (bit 63 of the value, with CR4.PCIDE).
        keeps: bool,
    },
    /// The linear pages of a space, global or not, from that of `first` to that of `last`, and
    /// everything that was derived from the same large pages (INVLPG, INVPCID of type 0).
    Pages {
        /// The space that the pages belong to.
        space: Space,
        /// An address in the first page.
        first: LinearAddress,
        /// An address in the last page, not below `first`.
        last: LinearAddress,
    },
    /// Everything in a space except global pages (INVPCID of type 1).
    Space(Space),
    /// Everything in every space except global pages (INVPCID of type 3).
    Spaces,
    /// Everything including global pages: the format or meaning of the tables has changed (CR0.PG,
    /// CR4.PAE, the A20 gate ...), or the instruction was INVPCID of type 2.
    Everything,
    /// All translations to the physical pages from that of `first` to that of `last`, because
    /// another device or memory has been mapped there.
    Physical {
        /// An address in the first page.
        first: PhysicalAddress,
        /// An address in the last page, not below `first`.
        last: PhysicalAddress,
    },
}

impl TranslationChange {
    /// The change for one linear page of a space, global or not.
    pub const fn page(space: Space, linear: LinearAddress) -> Self {
        Self::Pages {
            space,
            first: linear,
            last: linear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_bits_of_cr3_are_an_identifier_only_while_identifiers_are_on() {
        let mut state = CpuState::at_reset();
        let tables = Some(PhysicalAddress(0x7000));
        state.cr3 = 0x7018;
        let space = |identifier, has_identifier| Space {
            tables,
            identifier,
            has_identifier,
        };
        let named = Space::loaded(&state);
        assert_eq!(named, space(0, false));
        assert_eq!(named.name(), SpaceName::Tables(PhysicalAddress(0x7000)));
        let (zero, one) = (Space::identified(0), Space::identified(1));
        assert!(zero.is_loaded_as(named.name()) && !one.is_loaded_as(named.name()));
        state.cr4 |= Cr4::PCIDE.bits();
        let named = Space::loaded(&state);
        assert_eq!(named, space(0x18, true));
        assert_eq!(named.name(), SpaceName::Identifier(0x18));
        assert!(!zero.is_loaded_as(named.name()));
    }

    #[test]
    fn an_identifier_covers_each_space_that_has_it() {
        let space = |tables, identifier| Space {
            tables: Some(PhysicalAddress(tables)),
            identifier,
            has_identifier: true,
        };
        assert!(Space::identified(5).covers(space(0x7000, 5)));
        assert!(!Space::identified(5).covers(space(0x7000, 6)));
        assert!(space(0x7000, 5).covers(space(0x7000, 5)));
        assert!(!space(0x7000, 5).covers(space(0x8000, 5)));
    }
}
