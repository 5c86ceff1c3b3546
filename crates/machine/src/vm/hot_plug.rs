//! Functions of the PCI bus that come and go while the machine runs, in the machine and in its
//! configuration.

use super::Vm;
use crate::config::PluggedFunction;
use crate::device_list;
use crate::errands::elsewhere;

impl Vm {
    /// Plugs a function into the PCI bus. The calling thread may open files.
    ///
    /// # Errors
    /// One line: its slot is not free, or what it uses on the host cannot be used.
    pub(super) fn add_function(&mut self, function: PluggedFunction) -> Result<(), String> {
        let mut next = self.config.clone();
        let functions = next.hot_plug.as_mut();
        let functions = functions.ok_or("nothing can be plugged into this machine's PCI bus")?;
        functions.functions.push(function.clone());
        functions.functions.sort_by_key(|function| function.slot);
        next.validate().map_err(|error| error.to_string())?;
        let device = device_list::plugged_device(&function);
        let device = device.map_err(|error| error.to_string())?;
        self.pc.plug(function.slot, device)?;
        self.commands.set_refusals(self.pc.refusals().to_vec());
        self.config = next;
        Ok(())
    }

    /// Removes the functions that the guest was asked to eject and has not, as a reset does. Must not
    /// be called while [`Vm::run`] runs.
    pub fn eject_leaving(&mut self) {
        self.pc.eject_leaving();
        self.note_ejected();
    }

    /// Ends what belongs to functions that were ejected, and publishes that they are gone.
    pub(super) fn note_ejected(&mut self) {
        let ejected = self.pc.take_ejected();
        if ejected.is_empty() {
            return;
        }
        let slots: Vec<u8> = ejected.iter().map(|(slot, _)| *slot).collect();
        if let Some(hot_plug) = &mut self.config.hot_plug {
            let functions = &mut hot_plug.functions;
            functions.retain(|function| !slots.contains(&function.slot));
        }
        // A disk writes what it keeps, and closes its image.
        elsewhere(self, |_| {
            for (_, function) in ejected {
                function.flush();
            }
        });
        self.commands.publish_ejected(&slots);
    }
}
