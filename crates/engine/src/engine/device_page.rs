//! The page of device registers and the display memory that fast paths access, and the instructions
//! that access them.
//!
//! The routines are in [`crate::gate::device_fast_path`].

use super::Engine;
use super::known_device_page::DevicePage;
use crate::abi::context::{Context, NO_PAGE};
use crate::abi::fast_paths::DISPLAY_WINDOW_SHIFT;
use crate::abi::memos::device_access::{DEVICE_ACCESSES, DeviceAccess, FORM_DISPLAY};
use crate::abi::sites::{BlockId, NO_AFTER, Site};
use tollgate_x86::LinearAddress;
use tollgate_x86::paging::Translation;

/// For how many instructions the engine remembers what they do with a device. When there are more,
/// all are forgotten.
const MOST_DEVICE_ACCESSES: usize = 1 << 12;

/// How later accesses of an instruction to display memory find their addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisplayAddress {
    /// Paging is on: the guest's page tables of that time translate them.
    ByTables,
    /// Paging is off: linear addresses, of which this is one, are physical.
    Physical(LinearAddress),
}

impl Engine {
    /// Notes what an instruction of level 0 does that has just accessed a device's register at
    /// `linear`, so that fast paths execute it from now on. `translation` is that of this access.
    /// `access` has no addresses of host code yet.
    pub fn note_device_access(
        &mut self,
        context: &mut Context,
        linear: LinearAddress,
        translation: &Translation,
        block: BlockId,
        site: &Site,
        mut access: DeviceAccess,
    ) {
        // What a block folds into the stack pointer's home must be the same before and after the
        // instruction.
        let Some(behind) = self.address(block, site.after) else {
            return;
        };
        if site.after == NO_AFTER || site.esp != site.after_esp {
            return;
        }
        let page = linear.page();
        let frame = translation.physical.0 & !0xfff;
        let is_known = self.device_page.negated == page.wrapping_neg()
            && context.devices.frame == frame
            && context.devices.generation == self.generation;
        if !is_known {
            self.begin_device_accesses(context);
            self.device_accesses
                .retain(|_, access| access.form & FORM_DISPLAY != 0);
            context.devices.accesses = [DeviceAccess::NONE; DEVICE_ACCESSES];
            context.devices.frame = frame;
            self.device_page = DevicePage {
                negated: page.wrapping_neg(),
                writable: false,
                global: translation.global,
            };
            context.devices.space = match translation.global {
                true => 0,
                false => context.cpu.cr3,
            };
        }
        self.device_page.writable |= translation.writable_now;
        if access.stores() && !self.device_page.writable {
            return;
        }
        access.behind = behind as u64;
        self.keep_device_access(context, access);
    }

    /// Forgets all noted accesses if some of the code that they belong to has died.
    fn begin_device_accesses(&mut self, context: &mut Context) {
        if context.devices.generation == self.generation {
            return;
        }
        self.device_accesses.clear();
        context.devices.accesses = [DeviceAccess::NONE; DEVICE_ACCESSES];
        context.devices.generation = self.generation;
        self.device_page = DevicePage::NONE;
        self.display_window = NO_PAGE;
        self.display_by_tables = 0;
        self.display_known = 0;
    }

    /// Whether an instruction has accessed display memory that is not RAM.
    pub fn knows_display(&self, context: &Context) -> bool {
        context.devices.generation == self.generation && self.display_known != 0
    }

    /// Notes that a string instruction has accessed display memory.
    pub fn note_display(&mut self, context: &mut Context) {
        self.begin_device_accesses(context);
        self.display_known = 1;
    }

    fn keep_device_access(&mut self, context: &mut Context, access: DeviceAccess) {
        if self.device_accesses.len() >= MOST_DEVICE_ACCESSES {
            self.device_accesses.clear();
        }
        self.device_accesses.insert(access.site, access);
        context.devices.accesses[DeviceAccess::number(access.site)] = access;
    }

    /// What was noted about a site, even if another site has replaced its entry in the context.
    pub fn device_access(&self, site: u32) -> Option<&DeviceAccess> {
        self.device_accesses.get(&site)
    }

    /// Notes what an instruction does that has just accessed display memory at `address`, so that
    /// fast paths execute it from now on. `access` has no addresses of host code yet.
    pub fn note_display_access(
        &mut self,
        context: &mut Context,
        address: DisplayAddress,
        block: BlockId,
        site: &Site,
        mut access: DeviceAccess,
    ) {
        let Some(behind) = self.address(block, site.after) else {
            return;
        };
        if site.after == NO_AFTER || site.esp != site.after_esp {
            return;
        }
        self.note_display(context);
        match address {
            DisplayAddress::ByTables => self.display_by_tables = 1,
            DisplayAddress::Physical(linear) => {
                self.display_window = (linear.0 >> DISPLAY_WINDOW_SHIFT).wrapping_neg();
            }
        }
        access.form |= FORM_DISPLAY;
        access.behind = behind as u64;
        self.keep_device_access(context, access);
    }

    /// Tells fast paths which device page and display window are valid: before guest code is
    /// entered, and when another space is loaded while guest code runs.
    #[inline]
    pub fn tell_device_page(&self, context: &mut Context) {
        let holds = context.devices.generation == self.generation;
        (
            context.devices.page,
            context.devices.display_window,
            context.devices.display_by_tables,
            context.devices.display_known,
        ) = match holds {
            true => (
                self.device_page.negated,
                self.display_window,
                self.display_by_tables,
                self.display_known,
            ),
            false => (NO_PAGE, NO_PAGE, 0, 0),
        };
    }
}
