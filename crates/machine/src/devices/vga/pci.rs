//! The display adapter on the PCI bus: QEMU's standard VGA, whose base address register 0 maps all
//! of its memory.

use super::dispi::VIDEO_BYTES;
use crate::board::io_apic;
use crate::bus::DeviceContext;
use crate::devices::pci::config_space::{BarKind, ConfigSpace, Identity, Window};
use crate::devices::pci::function::PciFunction;
use tollgate_memory::{BlockId, Region, RegionKind};
use tollgate_x86::PhysicalAddress;

const IDENTITY: Identity = Identity {
    vendor: 0x1234,
    device: 0x1111,
    revision: 2,
    class: 0x03_00_00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// The adapter's configuration space. [`super::Vga`] has its registers.
#[derive(Debug)]
pub struct VgaFunction {
    config: ConfigSpace,
    video: Option<BlockId>,
    /// The address of the memory.
    placed: Option<u64>,
}

impl Default for VgaFunction {
    fn default() -> Self {
        let mut config = ConfigSpace::new(&IDENTITY);
        config.add_bar(0, BarKind::Memory32, VIDEO_BYTES);
        Self {
            config,
            video: None,
            placed: None,
        }
    }
}

impl VgaFunction {
    /// Sets the memory of the frame buffer.
    pub fn set_video(&mut self, video: BlockId) {
        self.video = Some(video);
    }

    /// Returns the address that the memory should have, unless it would overlap RAM or the board's
    /// devices below 4 GiB.
    fn wanted(&self, context: &mut DeviceContext<'_>) -> Option<u64> {
        let low = context.memory().ram().layout().low_bytes();
        let is_free = |window: &Window| {
            window.start >= low && window.start + window.bytes <= io_apic::BASE_ADDRESS
        };
        self.config
            .windows()
            .find(is_free)
            .map(|window| window.start)
    }

    fn follow(&mut self, context: &mut DeviceContext<'_>) {
        let wanted = self.wanted(context);
        let Some(video) = self.video.filter(|_| wanted != self.placed) else {
            return;
        };
        if let Some(old) = self.placed.take() {
            // The region was set before, so clearing it cannot fail.
            let _ = (context.memory()).clear_region(PhysicalAddress(old), VIDEO_BYTES);
        }
        if let Some(start) = wanted {
            context.place_region(Region {
                start: PhysicalAddress(start),
                bytes: VIDEO_BYTES,
                kind: RegionKind::Display,
                block: Some((video, 0)),
            });
            self.placed = wanted;
        }
    }
}

impl PciFunction for VgaFunction {
    fn name(&self) -> &str {
        "vga-pci"
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn config_write(&mut self, offset: usize, data: &[u8], context: &mut DeviceContext<'_>) {
        self.config.write(offset, data);
        self.follow(context);
    }

    fn place_regions(&mut self, context: &mut DeviceContext<'_>) {
        self.follow(context);
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        self.config.reset();
        self.follow(context);
    }
}
