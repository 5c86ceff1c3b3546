//! The look-up that both software TLBs share: it answers what generated code would find. The two
//! differ only in where an entry lies.

use crate::derived::{Allows, Held, LeadsTo, SpaceNumber};
use crate::view::View;
use tollgate_x86::LinearAddress;

/// The three tables of a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// Loads use this table.
    Read,
    /// Stores use this table.
    Write,
    /// Stores that were tested and do not hit translated code use this table.
    CodeWrite,
}

impl Table {
    pub(crate) const ALL: [Table; 3] = [Table::Read, Table::Write, Table::CodeWrite];
}

/// A page that loads of generated code find in a software TLB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownPage {
    /// The number of the linear page.
    pub page: u64,
    /// The host address of the page.
    pub host: u64,
    /// Whether stores find the page, too.
    pub writable: bool,
}

/// What generated code looks an address up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookUpFor {
    /// A load, which uses the table for loads.
    Load,
    /// A store that may not use the page of translated code.
    Store,
    /// A store that is tested for hitting translated code, and may use such a page.
    TestedStore,
}

/// Passes the contents of a page's slot, and of the straddling slot after it, to `check`. `get`
/// reads a slot of a table. `pages` are the numbers of the page and of the next one.
pub(crate) fn show_page(
    view: View,
    kept_for: Option<SpaceNumber>,
    pages: [u64; 2],
    get: impl Fn(Table, bool) -> u64,
    check: &mut dyn FnMut(Held),
) {
    for table in Table::ALL {
        let mut hand_over = |linear_page: u64, delta: u64| {
            check(Held {
                linear_page,
                leads_to: LeadsTo::HostPage(delta.wrapping_add(linear_page << 12)),
                allows: match table {
                    Table::Read => Allows::Loads,
                    Table::Write | Table::CodeWrite => Allows::Stores,
                },
                view: Some(view),
                kept_for,
            });
        };
        let own = get(table, false);
        if own != 0 {
            hand_over(pages[0], own);
        }
        let straddling = get(table, true);
        if straddling != 0 {
            for page in pages {
                hand_over(page, straddling);
            }
        }
    }
}

/// Access to the entries of a software TLB.
pub trait Slots {
    /// The entry of a view's table for accesses that begin in the page of `first` and end in the
    /// page of `last`, which is the same or the next page: host minus linear address, or 0 if it is
    /// not known.
    fn entry(&self, view: View, table: Table, first: LinearAddress, last: LinearAddress) -> u64;

    /// The host address for a one-byte access, if the entry is filled.
    #[inline]
    fn look_up(&self, view: View, write: bool, linear: LinearAddress) -> Option<u64> {
        let table = if write { Table::Write } else { Table::Read };
        let delta = self.entry(view, table, linear, linear);
        (delta != 0).then(|| delta.wrapping_add(linear.0))
    }

    /// Whether generated code finds an entry for `size` bytes at `linear`. For a store that is
    /// tested for hitting code, an entry in either table for stores is enough.
    #[inline]
    fn allows(&self, view: View, wanted: LookUpFor, linear: LinearAddress, size: u32) -> bool {
        let last = linear.offset(u64::from(size.max(1) - 1));
        let filled = |table| self.entry(view, table, linear, last) != 0;
        match wanted {
            LookUpFor::Load => filled(Table::Read),
            LookUpFor::Store => filled(Table::Write),
            LookUpFor::TestedStore => filled(Table::Write) || filled(Table::CodeWrite),
        }
    }
}
