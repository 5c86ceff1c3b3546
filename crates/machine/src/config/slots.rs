//! The slots of the PCI bus, which are its device numbers: those that are occupied from the start, and
//! those into which functions can be plugged.

use super::{AdapterModel, PluggedFunction, VmConfig};
use crate::devices::chipset::CHIPSET_DEVICES;

impl VmConfig {
    /// Returns the last slot that is occupied from the start, or `None` without a PCI bus. All slots
    /// before it are occupied, too.
    pub fn functions_at_start(&self) -> Option<u8> {
        let count = self.virtio_devices() + self.other_functions();
        self.pci.then_some(count as u8)
    }

    /// Returns the number of slots that are occupied from the start by what is not a virtio device,
    /// apart from the host bridge's.
    pub(super) fn other_functions(&self) -> usize {
        let board = match self.firmware {
            Some(_) => usize::from(CHIPSET_DEVICES) - 1,
            None => usize::from(self.has_ide_drives()),
        };
        board + self.adapters(AdapterModel::E1000) + usize::from(self.has_watchdog())
    }

    /// Returns the functions that were plugged in.
    pub fn plugged_functions(&self) -> &[PluggedFunction] {
        let hot_plug = self.hot_plug.as_ref();
        hot_plug.map_or(&[], |hot_plug| &hot_plug.functions)
    }

    /// Returns the slots into which functions can be plugged, a bit for each: all after those of the
    /// machine's start.
    pub fn hot_plug_slots(&self) -> u32 {
        match (&self.hot_plug, self.functions_at_start()) {
            (Some(_), Some(last)) => u32::MAX.checked_shl(u32::from(last) + 1).unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns a slot for which a function was plugged in although it cannot be there, or although
    /// another one is.
    pub fn misused_slot(&self) -> Option<u8> {
        let mut free = self.hot_plug_slots();
        let mut functions = self.plugged_functions().iter();
        let misused = functions.find(|function| {
            let bit = 1u32.checked_shl(function.slot.into()).unwrap_or(0);
            let is_free = free & bit != 0;
            free &= !bit;
            !is_free
        });
        misused.map(|function| function.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigError, DriveOptions, FunctionKind, HotPlug};

    #[test]
    fn functions_are_plugged_into_free_slots_only() {
        let function = |slot| PluggedFunction {
            slot,
            kind: FunctionKind::Random,
        };
        let mut config = VmConfig {
            kernel: "vmlinuz".into(),
            drives: vec![DriveOptions::new("a"), DriveOptions::new("b")],
            ..VmConfig::default()
        };
        assert_eq!(config.hot_plug_slots(), 0);
        config.hot_plug = Some(HotPlug::default());
        // The host bridge and two disks are there from the start.
        assert_eq!(config.hot_plug_slots(), !0b111);
        let mut check = |slots: &[u8]| {
            let functions = slots.iter().copied().map(function).collect();
            config.hot_plug = Some(HotPlug { functions });
            config.validate()
        };
        assert_eq!(check(&[3, 31]), Ok(()));
        for (slots, wrong) in [(&[2][..], 2), (&[4, 5, 4], 4), (&[32], 32), (&[255], 255)] {
            assert_eq!(check(slots), Err(ConfigError::Slot(wrong)));
        }
        config.hot_plug = Some(HotPlug::default());
        config.drives = vec![DriveOptions::new("a"); 31];
        assert_eq!(config.hot_plug_slots(), 0);
        config.pci = false;
        assert_eq!(config.hot_plug_slots(), 0);
    }
}
