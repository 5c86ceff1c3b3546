//! Firecracker's boot timer: a page of memory to which a guest writes when it has started.

use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use tollgate_memory::layout::DEVICES_START;
use tollgate_x86::PhysicalAddress;

/// The address of the page: the first one that belongs to devices, as in Firecracker.
pub const ADDRESS: u64 = DEVICES_START;
/// The size of the page in bytes.
pub const BYTES: u64 = 0x1000;
/// What a guest that has started writes to the first byte.
const STARTED: u8 = 123;

/// A function that is called on the processor's thread when the guest has started. It must not wait.
pub type Report = Arc<dyn Fn() + Send + Sync>;

/// Who learns that the guest has started. Saved configurations have the device alone.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct BootTimerOptions {
    /// The function that is called.
    #[serde(skip)]
    pub report: Option<Report>,
}

impl PartialEq for BootTimerOptions {
    fn eq(&self, other: &Self) -> bool {
        match (&self.report, &other.report) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for BootTimerOptions {}

impl fmt::Debug for BootTimerOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "BootTimerOptions")
    }
}

/// A page of which only one byte has a meaning.
#[derive(Debug)]
pub struct BootTimer(BootTimerOptions);

impl BootTimer {
    /// Version of the serialized state.
    const STATE_VERSION: u32 = 1;

    /// Makes the device.
    pub const fn new(options: BootTimerOptions) -> Self {
        Self(options)
    }
}

impl Device for BootTimer {
    fn name(&self) -> &str {
        "boot-timer"
    }

    fn claims(&self) -> Claims {
        Claims::none().with_memory(ADDRESS, BYTES)
    }

    fn memory_read(
        &mut self,
        _address: PhysicalAddress,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        data.fill(0);
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        _context: &mut DeviceContext<'_>,
    ) {
        if address.0 == ADDRESS
            && *data == [STARTED]
            && let Some(report) = &self.0.report
        {
            report();
        }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, &())
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        saved.read(Self::STATE_VERSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::testing::Bench;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_the_magic_byte_at_the_beginning_reports_a_start() {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let mut device = BootTimer::new(BootTimerOptions {
            report: Some(Arc::new(move || {
                counter.fetch_add(1, Ordering::Relaxed);
            })),
        });
        let mut bench = Bench::new();
        for (address, data) in [
            (ADDRESS, &[122_u8][..]),
            (ADDRESS + 1, &[123]),
            (ADDRESS, &[123, 0]),
            (ADDRESS, &[123]),
        ] {
            device.memory_write(PhysicalAddress(address), data, &mut bench.context(0));
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
