//! Calls of the machine, with the time that its devices take told to the ledger.

use tollgate_exits::blame::DeviceAddress;
use tollgate_exits::ledger::Ledger;
use tollgate_platform::Platform;

/// The machine, for the time of one emulated instruction.
pub struct Metered<'a> {
    /// The machine that the calls go to.
    pub machine: &'a mut dyn Platform,
    /// Where their time is counted.
    pub ledger: &'a mut Ledger,
}

impl Metered<'_> {
    /// Calls the machine. If the current exit is sampled, the call's time is the devices'.
    #[inline]
    pub fn call<T>(&mut self, call: impl FnOnce(&mut dyn Platform) -> T) -> T {
        if !self.ledger.is_sampling() {
            return call(self.machine);
        }
        let start = self.ledger.now();
        let result = call(self.machine);
        self.ledger
            .in_devices(self.ledger.now().wrapping_sub(start));
        result
    }

    /// The same for an access to a device, which the exit's origin then names.
    #[inline]
    pub fn access<T>(
        &mut self,
        device: DeviceAddress,
        call: impl FnOnce(&mut dyn Platform) -> T,
    ) -> T {
        if self.ledger.is_sampling() {
            self.ledger.at_device(device);
        }
        self.call(call)
    }
}
