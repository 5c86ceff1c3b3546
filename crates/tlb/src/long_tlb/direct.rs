//! The tables that direct accesses use, and the shadow windows that these tables lead to.

use super::{LongTlb, ROOT_BYTES};
use crate::derived::{PageRange, SpaceNumber};
use crate::parts::{HALF, unsigned};
use crate::shadow_windows::{ShadowWindows, anchors};
use crate::shadow_windows::{narrow, native};
use crate::slots::{KnownPage, Table};
use crate::view::View;

const _: () = assert!(ROOT_BYTES >= 2 * HALF as usize * 8);

/// What the host's GS leads to while translated code runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GsTarget {
    /// The common parts of the loaded space: its [anchor](crate::shadow_windows::anchors).
    #[default]
    Anchor,
    /// The window of a view of a guest with 32-bit linear addresses.
    Narrow(View),
}

/// Whether the table for direct access has no entry for a part: that of a 32-bit guest (see
/// [`LongTlb::narrow_deltas`]) or of programs that run natively.
fn is_elsewhere(part: i64) -> bool {
    narrow::is_part(part) || native::is_part(part)
}

impl LongTlb {
    /// Writes host minus linear address for a part (-256 to 255) into the table for direct access.
    pub(super) fn point_direct(&mut self, view: View, part: i64, delta: u64) {
        let index = (part + HALF) as usize % (2 * HALF as usize);
        // SAFETY: the table was opened by `new`, and the index is below its 512 entries.
        unsafe {
            let table = self.roots.base().add(Self::direct_offset(view));
            table.cast::<u64>().add(index).write(delta);
        }
    }

    /// The shadow windows, if this process has room for them.
    pub fn windows(&self) -> Option<&ShadowWindows> {
        self.windows.as_ref()
    }

    /// For each view of a 32-bit guest, host minus linear address for its direct accesses. `None`
    /// means that there has been no 32-bit guest, so the tables still have their first values.
    pub fn narrow_deltas(&self) -> Option<[(View, u64); 2]> {
        let windows = self.windows.as_ref().filter(|it| it.has_narrow())?;
        Some(View::ALL.map(|view| (view, windows.narrow_delta(view))))
    }

    /// Forgets pages of the loaded space, in its windows only.
    pub fn drop_window_pages(&mut self, pages: PageRange) {
        if let Some(windows) = &mut self.windows {
            windows.drop_pages(pages);
        }
    }

    /// See [`ShadowWindows::unmap_loads_from`].
    pub fn unmap_loads_from(&mut self, first: u64, end: u64) {
        if let Some(windows) = &mut self.windows {
            windows.unmap_loads_from(first, end);
        }
    }

    /// Changes the shadow windows, and updates the tables for direct access.
    pub fn change_windows<R>(&mut self, change: impl FnOnce(&mut ShadowWindows) -> R) -> Option<R> {
        let windows = self.windows.as_mut()?;
        let before: Vec<i64> = windows.parts().collect();
        let result = change(windows);
        let mut parts: Vec<i64> = windows.parts().collect();
        parts.extend(before);
        let deltas: Vec<(i64, u64)> = parts.iter().map(|&it| (it, windows.delta(it))).collect();
        for (part, delta) in deltas {
            if is_elsewhere(part) {
                continue;
            }
            let view = if part < 0 {
                View::Supervisor
            } else {
                View::User
            };
            self.point_direct(view, part, delta);
        }
        self.follow_anchor();
        Some(result)
    }

    /// Sets the calling thread's GS to the anchor of the loaded space. Must be called before
    /// translated code runs on a thread that may have run other code.
    pub fn load_anchor(&mut self) {
        self.anchor = None;
        self.follow_anchor();
    }

    /// Makes GS lead where the code that runs next expects it. Must be called on the thread on
    /// which [`Self::load_anchor`] was called.
    #[inline]
    pub fn lead_gs(&mut self, to: GsTarget) {
        if self.gs_target != to {
            self.gs_target = to;
            self.follow_anchor();
        }
    }

    fn follow_anchor(&mut self) {
        let windows = self.windows.as_ref();
        let anchor = match self.gs_target {
            GsTarget::Narrow(view) => windows.map(|windows| windows.narrow_delta(view)),
            GsTarget::Anchor => windows.and_then(ShadowWindows::anchor),
        };
        if anchor != self.anchor {
            self.anchor = anchor;
            anchors::load(anchor.unwrap_or(0));
        }
    }

    /// Loads another space into the shadow windows. Unlike [`Self::change_windows`], this updates
    /// only the entries for the windows of the new space and of the space that is left.
    pub(super) fn load_windows(&mut self, to: SpaceNumber, keeps: bool) {
        let Some(windows) = &mut self.windows else {
            return;
        };
        let left = windows.loaded();
        windows.load(to, keeps);
        for index in 0.. {
            let Some(windows) = &self.windows else { return };
            let Some((part, space)) = windows.owner(index) else {
                return self.follow_anchor();
            };
            if !is_elsewhere(part) && (space == Some(left) || space == Some(to)) {
                let delta = windows.delta(part);
                self.point_direct(View::User, part, delta);
            }
        }
    }

    /// The pages of the lower half that loads and stores of a view find without the monitor in the
    /// loaded space, except for global pages.
    pub fn known_pages(&self, view: View) -> Vec<KnownPage> {
        let parts = &self.lower[self.loaded.index()][view as usize];
        let mut pages = parts.local.pages.clone();
        pages.sort_unstable();
        pages.dedup();
        let known = pages.into_iter().filter_map(|page| {
            let part = parts.part(page)?;
            let delta = part.get(Table::Read, page * 2);
            let writable = part.get(Table::Write, page * 2) != 0;
            let host = delta.wrapping_add((page as u64) << 12);
            (delta != 0).then_some(KnownPage {
                page: unsigned(page),
                host,
                writable,
            })
        });
        known.collect()
    }
}
