//! Changes of the controller's units while the machine runs: units come and go, disks get another
//! size, and CD-ROM drives another disc.

use super::events::Event;
use super::options::{Address, ScsiDrive};
use super::unit::Unit;
use super::{Scsi, configuration};
use crate::devices::ide::Sense;
use crate::devices::virtio::device::Queues;
use crate::devices::virtio::drive_change::{DriveChange, SizedDrive};

impl Scsi {
    /// Makes a change if it concerns this controller.
    pub(super) fn change(
        &mut self,
        change: &DriveChange,
        queues: &mut Queues<'_>,
    ) -> Option<Result<(), String>> {
        Some(match change {
            DriveChange::PlugIn(drive) => self.plug_in(drive, queues),
            DriveChange::Unplug(address) => self.unplug(*address, queues),
            DriveChange::Disc {
                address,
                image,
                force,
            } => self
                .settled(*address, queues)
                .and_then(|place| self.units[place].change_disc(image.as_ref(), *force)),
            DriveChange::Size {
                drive: SizedDrive::Scsi(address),
                bytes,
            } => self.resize(*address, *bytes, queues),
            DriveChange::Image { .. } | DriveChange::Size { .. } => return None,
        })
    }

    /// Finishes all requests. Returns the place of the unit with this address.
    fn settled(&mut self, address: Address, queues: &mut Queues<'_>) -> Result<usize, String> {
        let Address { target, lun } = address;
        let place = self.place(address);
        let place = place.ok_or_else(|| format!("there is no SCSI drive {target}:{lun}"))?;
        self.settle(queues)?;
        Ok(place)
    }

    fn settle(&mut self, queues: &mut Queues<'_>) -> Result<(), String> {
        for medium in self.units.iter().filter_map(Unit::medium) {
            medium.wait();
        }
        let taken = self.take_outcomes(queues);
        taken.map_err(|_| "the guest's driver has broken a rule".into())
    }

    fn plug_in(&mut self, drive: &ScsiDrive, queues: &mut Queues<'_>) -> Result<(), String> {
        let Address { target, lun } = drive.address;
        if lun >= ScsiDrive::LUNS || self.place(drive.address).is_some() {
            return Err(format!("the SCSI address {target}:{lun} is not free"));
        }
        // Unfinished requests know their units by places.
        self.settle(queues)?;
        let mut unit = Unit::open(drive).map_err(|error| error.to_string())?;
        if let Some(completer) = &self.completer {
            unit.connect(completer.clone());
        }
        self.units.push(unit);
        self.rearranged(Event::Added(drive.address), queues);
        Ok(())
    }

    fn unplug(&mut self, address: Address, queues: &mut Queues<'_>) -> Result<(), String> {
        let place = self.settled(address, queues)?;
        let unit = self.units.remove(place);
        if let Some(medium) = unit.medium() {
            medium.flush();
        }
        drop(unit);
        self.rearranged(Event::Removed(address), queues);
        Ok(())
    }

    /// Reports that there are other units.
    fn rearranged(&mut self, event: Event, queues: &mut Queues<'_>) {
        self.units.sort_by_key(|unit| unit.address);
        self.config = configuration(&self.units);
        queues.announce_config();
        self.report(event, queues);
    }

    fn resize(
        &mut self,
        address: Address,
        bytes: u64,
        queues: &mut Queues<'_>,
    ) -> Result<(), String> {
        let place = self.settled(address, queues)?;
        self.units[place].resize(bytes)?;
        self.report(Event::Changed(address, Sense::OTHER_SIZE), queues);
        Ok(())
    }

    /// Reports an event. A driver whose buffer cannot be used hears of it by its next request.
    fn report(&mut self, event: Event, queues: &mut Queues<'_>) {
        if self.events.report(event, queues).is_err() {
            self.events.missed = true;
        }
    }
}
