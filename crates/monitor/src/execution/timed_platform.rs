//! Calls to the machine that report to the ledger how much time the machine's devices take.

use tollgate_exits::blame::DeviceAddress;
use tollgate_exits::ledger::Ledger;
use tollgate_platform::Platform;

/// The machine, with a ledger that counts the time of calls, for one emulated instruction.
pub struct Metered<'a> {
    /// The machine that receives the calls.
    pub machine: &'a mut dyn Platform,
    /// The ledger in which the time of the calls is counted.
    pub ledger: &'a mut Ledger,
}

impl Metered<'_> {
    /// Calls the machine. If the current exit is sampled, the time of the call is counted for
    /// devices.
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

    /// Calls the machine for an access to a device, which becomes the origin of the exit.
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
