//! What carries out the orders of monitors, and what it reports.

use crate::configuration::{Configuration, Drive, Plugged, Spare};
use serde_json::{Value, json};

/// What the machine does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunState {
    /// The guest runs.
    Running,
    /// It was started paused and has not run.
    Prelaunch,
    /// It is paused.
    Paused,
    /// The guest has switched it off, and it stays.
    Shutdown,
}

impl RunState {
    /// QEMU's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Prelaunch => "prelaunch",
            Self::Paused => "paused",
            Self::Shutdown => "shutdown",
        }
    }
}

/// What happened to the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// It ends, or would without `-no-shutdown`: whether the guest did it, and the reason.
    Shutdown(bool, &'static str),
    /// It was reset: whether the guest did it.
    Reset(bool),
    /// It was paused.
    Stop,
    /// A pause has ended.
    Resume,
    /// The power button was pressed.
    Powerdown,
    /// The guest's kernel reported a panic.
    Panicked,
    /// The job with this name is done.
    JobConcluded(String),
    /// The device with this name, if it has one, is gone.
    DeviceDeleted(Option<String>),
}

impl Event {
    /// The event's name and data.
    pub fn parts(&self) -> (&'static str, Value) {
        match self {
            Self::Shutdown(guest, reason) => {
                ("SHUTDOWN", json!({"guest": guest, "reason": reason}))
            }
            Self::Reset(guest) => {
                let reason = if *guest {
                    "guest-reset"
                } else {
                    "host-qmp-system-reset"
                };
                ("RESET", json!({"guest": guest, "reason": reason}))
            }
            Self::Stop => ("STOP", Value::Null),
            Self::Resume => ("RESUME", Value::Null),
            Self::Powerdown => ("POWERDOWN", Value::Null),
            Self::JobConcluded(id) => (
                "JOB_STATUS_CHANGE",
                json!({"status": "concluded", "id": id}),
            ),
            Self::DeviceDeleted(Some(id)) => (
                "DEVICE_DELETED",
                json!({"device": id, "path": format!("/machine/peripheral/{id}")}),
            ),
            Self::DeviceDeleted(None) => (
                "DEVICE_DELETED",
                json!({"path": "/machine/peripheral-anon/device[0]"}),
            ),
            Self::Panicked => ("GUEST_PANICKED", json!({"action": "run"})),
        }
    }
}

/// A button of the mouse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Button {
    /// The left one.
    Left,
    /// The middle one.
    Middle,
    /// The right one.
    Right,
}

/// What happens to the mouse at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Motion {
    /// Counts to the right.
    pub right: i32,
    /// Counts down the screen.
    pub down: i32,
    /// Steps of the wheel towards the user.
    pub wheel: i32,
    /// Buttons that are pressed (`true`) or released. Others stay as they are.
    pub buttons: Vec<(Button, bool)>,
}

/// The form of a picture of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PictureForm {
    /// A portable pixmap, which is not compressed.
    Ppm,
    /// Portable network graphics.
    Png,
}

/// A page that the guest has mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// The linear address.
    pub linear: u64,
    /// The physical address.
    pub physical: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The entry that maps it.
    pub entry: u64,
    /// Whether all levels permit writes.
    pub writable: bool,
    /// Whether all levels permit accesses of programs.
    pub user: bool,
}

/// A command that clients wait for, as it takes a while with QEMU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The client's name for it.
    pub id: String,
    /// The name of the command.
    pub kind: &'static str,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// A snapshot of the machine and its disks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The name that the client chose.
    pub name: String,
    /// The size of its files in bytes.
    pub bytes: u64,
    /// When it was made, in seconds since 1970.
    pub seconds: u64,
}

/// What carries orders out. Errors are one line.
pub trait Machine {
    /// The command line that the machine was made from.
    fn configuration(&self) -> &Configuration;
    /// The files of the drives as they are now, in their order.
    fn media(&self) -> Vec<Option<String>>;
    /// The ends of the places for characters, for people, in their order.
    fn labels(&self) -> Vec<String>;
    /// What the machine does.
    fn state(&self) -> RunState;
    /// Pauses the machine; returns when it is paused.
    ///
    /// # Errors
    /// The processor does not answer.
    fn stop(&mut self) -> Result<(), String>;
    /// Ends a pause.
    ///
    /// # Errors
    /// The machine has been switched off.
    fn resume(&mut self) -> Result<(), String>;
    /// Presses the power button.
    fn power_button(&mut self);
    /// Resets the machine.
    fn reset(&mut self);
    /// Ends the machine and the process.
    fn quit(&mut self);
    /// Changes the medium of a drive, or takes it out.
    ///
    /// # Errors
    /// The drive has no changeable medium, or the image cannot be used.
    fn change_medium(
        &mut self,
        drive: usize,
        file: Option<&str>,
        force: bool,
    ) -> Result<(), String>;
    /// Gives a disk another size in bytes.
    ///
    /// # Errors
    /// It is no disk that can have another size, or its image cannot have this one.
    fn resize(&mut self, drive: usize, bytes: u64) -> Result<(), String>;
    /// Plugs a drive into the SCSI controller, and adds it to the configuration.
    ///
    /// # Errors
    /// Its address is not free, or its image cannot be used.
    fn plug_in(&mut self, drive: Drive) -> Result<(), String>;
    /// Removes a drive from the SCSI controller and from the configuration.
    ///
    /// # Errors
    /// The processor does not answer.
    fn unplug(&mut self, drive: usize) -> Result<(), String>;
    /// The slots of the PCI bus into which devices can be plugged, free or not.
    fn slots(&self) -> Vec<u8>;
    /// Plugs a device into a free slot of the PCI bus, and adds it to the configuration.
    ///
    /// # Errors
    /// What the device uses on the host cannot be used.
    fn plug_into_bus(&mut self, device: Plugged) -> Result<(), String>;
    /// Asks the guest to eject the device in a slot of the PCI bus. [`gone`](super::hotplug::gone) is
    /// called when it has.
    ///
    /// # Errors
    /// The processor does not answer.
    fn ask_for_ejection(&mut self, slot: u8) -> Result<(), String>;
    /// Removes the device in a slot of the PCI bus from the configuration, after it is gone.
    fn forget(&mut self, slot: u8) -> Option<Plugged>;
    /// What no device uses.
    fn spare(&mut self) -> &mut Spare;
    /// Writes a picture of the screen.
    ///
    /// # Errors
    /// There is no screen, or the file cannot be written.
    fn picture(&mut self, path: &str, form: PictureForm) -> Result<(), String>;
    /// Presses keys together, by their QEMU names, and releases them.
    ///
    /// # Errors
    /// There is no such key, or the guest reads none.
    fn press(&mut self, keys: &[&str]) -> Result<(), String>;
    /// Presses or releases one key.
    ///
    /// # Errors
    /// There is no such key, or the guest reads none.
    fn key(&mut self, key: &str, down: bool) -> Result<(), String>;
    /// Moves the mouse, or presses or releases its buttons.
    ///
    /// # Errors
    /// The guest reads no mouse.
    fn mouse(&mut self, motion: Motion) -> Result<(), String>;
    /// Writes the whole machine to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    fn save(&mut self, path: &str) -> Result<(), String>;
    /// Takes bytes out of a ring buffer.
    ///
    /// # Errors
    /// There is no such buffer.
    fn read_ring(&mut self, id: &str, count: usize) -> Result<Vec<u8>, String>;
    /// The processor's registers, for people.
    ///
    /// # Errors
    /// The processor does not answer.
    fn registers(&mut self) -> Result<String, String>;
    /// The value of a register; `None` if the processor has none of this name.
    ///
    /// # Errors
    /// The processor does not answer.
    fn register(&mut self, name: &str) -> Result<Option<u64>, String>;
    /// The size of the code that the processor runs: 16, 32 or 64 bits.
    ///
    /// # Errors
    /// The processor does not answer.
    fn code_bits(&mut self) -> Result<u32, String>;
    /// Bytes of memory, as far as there is memory, by linear or physical addresses.
    ///
    /// # Errors
    /// The processor does not answer.
    fn memory(&mut self, address: u64, bytes: usize, physical: bool) -> Result<Vec<u8>, String>;
    /// Writes bytes of memory to a file.
    ///
    /// # Errors
    /// There is no memory in a part of the range, or the file cannot be written.
    fn write_memory(
        &mut self,
        address: u64,
        bytes: u64,
        physical: bool,
        path: &str,
    ) -> Result<(), String>;
    /// The pages that the guest has mapped; `None` if it has no page tables.
    ///
    /// # Errors
    /// The processor does not answer.
    fn pages(&mut self) -> Result<Option<Vec<Page>>, String>;
    /// The registers of the interrupt controllers, for people: those of the 8259 pair, or of the local
    /// APIC.
    ///
    /// # Errors
    /// The processor does not answer.
    fn interrupts(&mut self, local: bool) -> Result<String, String>;
    /// Keeps the machine and its disks under a name; what had this name is replaced.
    ///
    /// # Errors
    /// They cannot be kept.
    fn save_tag(&mut self, name: &str) -> Result<(), String>;
    /// Puts the machine and its disks back to where they were.
    ///
    /// # Errors
    /// There is no such snapshot, or it is another machine's.
    fn load_tag(&mut self, name: &str) -> Result<(), String>;
    /// Deletes a snapshot.
    ///
    /// # Errors
    /// There is no such snapshot.
    fn delete_tag(&mut self, name: &str) -> Result<(), String>;
    /// The snapshots that there are.
    ///
    /// # Errors
    /// The machine has no disk whose snapshots are kept.
    fn tags(&self) -> Result<Vec<Tag>, String>;
    /// The jobs that no client has dismissed.
    fn jobs(&mut self) -> &mut Vec<Job>;
    /// Reports an event to all monitors.
    fn tell(&mut self, event: Event);
}
