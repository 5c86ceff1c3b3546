//! What instructions invalidate of the translations that a processor has cached (SDM volume 3,
//! 4.10.4; APM volume 2, 5.5.2).

use crate::address::{LinearAddress, PhysicalAddress};
use crate::registers::Cr4;
use crate::state::CpuState;

/// CR3 with CR4.PCIDE: the process-context identifier (SDM volume 3, 4.10.1).
pub const CR3_PCID: u64 = 0xfff;
/// Written to CR3 with CR4.PCIDE: translations may be kept. It is not stored (SDM volume 3,
/// 4.10.4.1).
pub const CR3_KEEPS: u64 = 1 << 63;
/// CR3 bits that no format of it has the tables' address in (SDM volume 3, table 4-7).
const CR3_FLAGS: u64 = 0x1f;

/// What tells address spaces apart while none of them is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SpaceName {
    /// With CR4.PCIDE, as the processor does: the process-context identifier, 0 to 4095.
    Identifier(u16),
    /// Without: where the page tables begin.
    Tables(PhysicalAddress),
}

/// A linear address space of the guest's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Where the page tables begin; `None`: wherever, since INVPCID does not say.
    pub tables: Option<PhysicalAddress>,
    /// The process-context identifier, 0 to 4095; 0 without CR4.PCIDE.
    pub identifier: u16,
    /// CR4.PCIDE is set: spaces are told apart by their identifiers alone.
    pub has_identifier: bool,
}

impl Space {
    /// The space that CR3 names.
    pub fn loaded(state: &CpuState) -> Self {
        Self::of_cr3(state, state.cr3)
    }

    /// The space that a value of CR3 would name, were it loaded.
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

    /// What tells it from other spaces.
    #[inline]
    pub const fn name(self) -> SpaceName {
        match self.tables {
            Some(tables) if !self.has_identifier => SpaceName::Tables(tables),
            _ => SpaceName::Identifier(self.identifier),
        }
    }

    /// Whether an instruction that names it means the space that is loaded under `name`. Without
    /// CR4.PCIDE the only identifier is zero, that of every space, of which one is loaded.
    #[inline]
    pub fn is_loaded_as(self, name: SpaceName) -> bool {
        let means_any = matches!(name, SpaceName::Tables(_)) && self.tables.is_none();
        self.name() == name || means_any && self.identifier == 0
    }

    /// Whatever space has this process-context identifier, 0 to 4095.
    pub const fn identified(identifier: u16) -> Self {
        Self {
            tables: None,
            identifier,
            has_identifier: true,
        }
    }

    /// Whether `other` is this space, or one of those that it stands for.
    pub fn covers(self, other: Space) -> bool {
        self.identifier == other.identifier
            && (self.tables.is_none() || self.tables == other.tables)
    }
}

/// What translations to forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TranslationChange {
    /// CR3 was loaded: all of the new space but global pages.
    Load {
        /// The space that was loaded before.
        from: Space,
        /// The space that is loaded now.
        to: Space,
        /// What is known of `to` may be kept (bit 63 of the value, with CR4.PCIDE).
        keeps: bool,
    },
    /// Linear pages of a space, global or not, from that of `first` to that of `last`, and all
    /// that was derived from the same large pages (INVLPG, INVPCID of type 0).
    Pages {
        /// Whose pages.
        space: Space,
        /// An address in the first page.
        first: LinearAddress,
        /// An address in the last page, not below `first`.
        last: LinearAddress,
    },
    /// All of a space but global pages (INVPCID of type 1).
    Space(Space),
    /// All of every space but global pages (INVPCID of type 3).
    Spaces,
    /// Everything, global pages too: the format or the meaning of the tables is another one
    /// (CR0.PG, CR4.PAE, the A20 gate ...), or INVPCID of type 2.
    Everything,
    /// What leads to physical pages, from that of `first` to that of `last`: something else
    /// answers there.
    Physical {
        /// An address in the first page.
        first: PhysicalAddress,
        /// An address in the last page, not below `first`.
        last: PhysicalAddress,
    },
}

impl TranslationChange {
    /// One linear page of a space, global or not.
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
