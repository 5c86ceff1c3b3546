//! Carries out what monitors are told, with a machine of Tollgate's.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tollgate_machine::board::input::{Buttons, MouseEvent};
use tollgate_machine::config::{PluggedFunction, ScsiAddress};
use tollgate_machine::devices::vga::screen::Picture;
use tollgate_machine::devices::virtio::drive_change::SizedDrive;
use tollgate_machine::inspection::{Addresses, Inspected, Inspection, MappedPage};
use tollgate_machine::snapshot::SnapshotFile;
use tollgate_machine::vm_handle::{
    AfterSnapshot, DriveOrder, MediumChange, RemovableDrive, SnapshotOrder, State, VmHandle,
};
use tollgate_qemu_words::monitor::{
    Button, Event, Job, Machine, Motion, Page, PictureForm, RunState, Tag, gone,
};
use tollgate_qemu_words::{Configuration, Drive, Interface, Plugged, PluggedKind, Spare};

use super::configuration::DrivePlace;
use super::snapshots::Store;
use super::{configuration, keys, registers};
use crate::control::screen::write_png;
use crate::files;

/// How long the processor's thread may take for what it does within microseconds, unless it waits
/// for a reader of the guest's output.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long writing all of the machine to a file may take.
const SAVE_PATIENCE: Duration = Duration::from_secs(120);
/// How often a result is looked for.
const RETRY: Duration = Duration::from_millis(2);

/// The last bytes of a ring buffer.
pub type Ring = Arc<Mutex<VecDeque<u8>>>;

/// What the thread of the machine and monitors tell each other.
#[derive(Default)]
pub struct Talk {
    asked: Mutex<Asked>,
    changed: Condvar,
    /// Whether the guest has switched the machine off, and it stays.
    is_shut_down: AtomicBool,
}

/// A snapshot of the machine and its disks, which are those that it has now.
pub struct TagToLoad {
    /// Where the snapshot is.
    pub store: Store,
    /// The name that a client gave it.
    pub name: String,
}

#[derive(Default)]
struct Asked {
    reset: bool,
    quit: bool,
    /// The snapshot that the machine continues from.
    load: Option<TagToLoad>,
    /// Why that was impossible, once it was tried.
    loaded: Option<Result<(), String>>,
}

impl Talk {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a reset was asked for since the last call.
    pub fn take_reset(&self) -> bool {
        std::mem::take(&mut self.asked().reset)
    }

    /// The snapshot that was asked for since the last call.
    pub fn take_load(&self) -> Option<TagToLoad> {
        self.asked().load.take()
    }

    /// Reports whether the machine continues from the snapshot.
    pub fn loaded(&self, result: Result<(), String>) {
        self.asked().loaded = Some(result);
    }

    /// Whether a monitor asked for the end.
    pub fn wants_quit(&self) -> bool {
        self.asked().quit
    }

    /// Waits, while the machine is switched off, until a monitor asks for a reset or the end, or
    /// `ends` says that something else does. Returns whether the machine starts again.
    pub fn wait_while_off(&self, ends: impl Fn() -> bool) -> bool {
        self.is_shut_down.store(true, Ordering::Release);
        let mut asked = self.asked();
        while !asked.reset && !asked.quit && asked.load.is_none() && !ends() {
            let waited = self.changed.wait_timeout(asked, Duration::from_millis(100));
            asked = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.is_shut_down.store(false, Ordering::Release);
        std::mem::take(&mut asked.reset) || asked.load.is_some()
    }
}

/// The orders of all monitors of a machine.
pub struct Orders {
    config: Configuration,
    handle: VmHandle,
    talk: Arc<Talk>,
    has_run: bool,
    media: Vec<Option<PathBuf>>,
    /// Where the drives are, for changes of them, in the order of the configuration.
    places: Vec<Option<DrivePlace>>,
    /// What no device uses.
    spare: Spare,
    /// The slots of the PCI bus into which devices can be plugged.
    slots: Vec<u8>,
    /// The devices that were plugged into the PCI bus, as the machine has them.
    functions: Vec<PluggedFunction>,
    /// The ends of the places for characters, for people.
    pub labels: Vec<String>,
    /// Ring buffers with their names.
    pub rings: Vec<(String, Ring)>,
    /// Events that monitors have not been told yet.
    pub events: Vec<Event>,
    jobs: Vec<Job>,
}

impl Orders {
    /// Orders for the machine with this handle. Devices can be plugged into the `slots` of the PCI bus.
    pub fn new(
        config: &Configuration,
        handle: &VmHandle,
        talk: &Arc<Talk>,
        slots: Vec<u8>,
    ) -> Self {
        Self {
            has_run: !config.paused,
            media: config
                .drives
                .iter()
                .map(|drive| drive.file.clone())
                .collect(),
            places: configuration::drive_places(config),
            spare: config.spare.clone(),
            slots,
            functions: Vec::new(),
            config: config.clone(),
            handle: handle.clone(),
            talk: Arc::clone(talk),
            labels: Vec::new(),
            rings: Vec::new(),
            events: Vec::new(),
            jobs: Vec::new(),
        }
    }
}

/// Waits for a result of the processor's thread.
fn wait_for<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Result<T, String> {
    let end = Instant::now() + patience;
    loop {
        if let Some(result) = look() {
            return Ok(result);
        }
        if Instant::now() >= end {
            return Err("the processor does not answer now".into());
        }
        std::thread::sleep(RETRY);
    }
}

impl Machine for Orders {
    fn configuration(&self) -> &Configuration {
        &self.config
    }

    fn media(&self) -> Vec<Option<String>> {
        let text = |path: &PathBuf| path.display().to_string();
        self.media
            .iter()
            .map(|path| path.as_ref().map(text))
            .collect()
    }

    fn labels(&self) -> Vec<String> {
        self.labels.clone()
    }

    fn state(&self) -> RunState {
        if self.talk.is_shut_down.load(Ordering::Acquire) {
            return RunState::Shutdown;
        }
        let status = self.handle.status();
        // A debugger may have let it run.
        let has_run = self.has_run || status.exits > 0;
        match status.state {
            State::Starting | State::Paused if !has_run => RunState::Prelaunch,
            State::Paused => RunState::Paused,
            _ => RunState::Running,
        }
    }

    fn stop(&mut self) -> Result<(), String> {
        self.handle.pause();
        wait_for(PATIENCE, || {
            (self.handle.status().state == State::Paused).then_some(())
        })
    }

    fn resume(&mut self) -> Result<(), String> {
        if self.state() == RunState::Shutdown {
            return Err("Resetting the Virtual Machine is required".into());
        }
        self.has_run = true;
        self.handle.resume();
        let resumed = wait_for(PATIENCE, || {
            let state = self.handle.status().state;
            (state != State::Paused).then_some(())
        });
        match self.config.debugger {
            Some(_) => resumed.map_err(|_| "a debugger has stopped the machine".into()),
            None => resumed,
        }
    }

    fn power_button(&mut self) {
        self.handle.power_button();
    }

    fn reset(&mut self) {
        // The machine may start again as soon as that is asked for.
        let is_off = self.state() == RunState::Shutdown;
        self.talk.asked().reset = true;
        self.talk.changed.notify_all();
        if !is_off {
            self.handle.quit();
        }
    }

    fn quit(&mut self) {
        self.talk.asked().quit = true;
        self.talk.changed.notify_all();
        self.handle.quit();
    }

    fn change_medium(
        &mut self,
        drive: usize,
        file: Option<&str>,
        force: bool,
    ) -> Result<(), String> {
        let id = &self.config.drives[drive].id;
        let removable = match (&self.places[drive], self.config.drives[drive].interface) {
            (Some(DrivePlace::Removable(drive)), _) => *drive,
            (Some(DrivePlace::Scsi(address)), Interface::ScsiCdRom) => {
                RemovableDrive::Scsi(*address)
            }
            _ => return Err(format!("Device '{id}' is not removable")),
        };
        let image = file.map(|file| configuration::medium(&self.config.drives[drive], file));
        self.order(MediumChange {
            drive: removable,
            image,
            force,
        })?;
        self.media[drive] = file.map(PathBuf::from);
        Ok(())
    }

    fn resize(&mut self, drive: usize, bytes: u64) -> Result<(), String> {
        let id = &self.config.drives[drive].id;
        let sized = match (&self.places[drive], self.config.drives[drive].interface) {
            (Some(DrivePlace::Virtio(disk)), _) => SizedDrive::Disk(*disk),
            (Some(DrivePlace::Scsi(address)), Interface::ScsiDisk) => SizedDrive::Scsi(*address),
            _ => return Err(format!("Device '{id}': its size does not change")),
        };
        self.order(DriveOrder::Resize(sized, bytes))
    }

    fn plug_in(&mut self, mut drive: Drive) -> Result<(), String> {
        let taken: Vec<ScsiAddress> = (self.places.iter().flatten())
            .filter_map(DrivePlace::scsi)
            .collect();
        let scsi = configuration::scsi_drive(&mut drive, &taken)?;
        let address = scsi.address;
        self.order(DriveOrder::PlugIn(scsi))?;
        self.media.push(drive.file.clone());
        self.places.push(Some(DrivePlace::Scsi(address)));
        self.config.scsi_controller = true;
        self.config.drives.push(drive);
        Ok(())
    }

    fn unplug(&mut self, drive: usize) -> Result<(), String> {
        let id = &self.config.drives[drive].id;
        let place = self.places[drive].as_ref().and_then(DrivePlace::scsi);
        let address = place.ok_or_else(|| format!("Device '{id}' is no SCSI drive"))?;
        self.order(DriveOrder::Unplug(address))?;
        self.media.remove(drive);
        self.places.remove(drive);
        self.config.scsi_controller = true;
        self.config.drives.remove(drive);
        Ok(())
    }

    fn slots(&self) -> Vec<u8> {
        self.slots.clone()
    }

    fn plug_into_bus(&mut self, device: Plugged) -> Result<(), String> {
        let function = configuration::function(&device)?;
        self.order(DriveOrder::AddFunction(function.clone()))?;
        if let PluggedKind::Disk(drive) = &device.kind {
            self.media.push(drive.file.clone());
            let number = PluggedFunction::number(device.slot);
            self.places.push(Some(DrivePlace::Virtio(number.into())));
            self.config.drives.push(drive.clone());
        }
        self.functions.push(function);
        self.functions.sort_by_key(|function| function.slot);
        self.config.plugged.push(device);
        Ok(())
    }

    fn ask_for_ejection(&mut self, slot: u8) -> Result<(), String> {
        self.order(DriveOrder::RemoveFunction(slot))
    }

    fn forget(&mut self, slot: u8) -> Option<Plugged> {
        let mut drives = self.config.drives.iter();
        if let Some(drive) = drives.position(|drive| drive.slot == Some(slot)) {
            self.media.remove(drive);
            self.places.remove(drive);
            self.config.drives.remove(drive);
        }
        self.functions.retain(|function| function.slot != slot);
        let mut plugged = self.config.plugged.iter();
        let place = plugged.position(|it| it.slot == slot)?;
        Some(self.config.plugged.remove(place))
    }

    fn spare(&mut self) -> &mut Spare {
        &mut self.spare
    }

    fn picture(&mut self, path: &str, form: PictureForm) -> Result<(), String> {
        let request = self.handle.request_screen(true);
        let shown = wait_for(PATIENCE, || self.handle.screen_after(request))?;
        let picture = shown.picture.as_ref().ok_or("there is no screen")?;
        let written = match form {
            PictureForm::Png => write_png(Path::new(path), picture),
            PictureForm::Ppm => files::replace(Path::new(path), &ppm(picture)),
        };
        written.map_err(|error| format!("failed to open file '{path}': {error}"))
    }

    fn press(&mut self, names: &[&str]) -> Result<(), String> {
        let keys = names
            .iter()
            .map(|name| keys::find(name))
            .collect::<Result<Vec<_>, _>>()?;
        let down = keys.iter().map(|key| (*key, true));
        let up = keys.iter().rev().map(|key| (*key, false));
        self.offer(&down.chain(up).collect::<Vec<_>>())
    }

    fn key(&mut self, name: &str, down: bool) -> Result<(), String> {
        let key = keys::find(name)?;
        self.offer(&[(key, down)])
    }

    fn mouse(&mut self, motion: Motion) -> Result<(), String> {
        let mut event = MouseEvent {
            right: motion.right,
            down: motion.down,
            wheel: motion.wheel,
            buttons: self.handle.mouse_buttons(),
        };
        for (button, down) in motion.buttons {
            let button = match button {
                Button::Left => Buttons::LEFT,
                Button::Middle => Buttons::MIDDLE,
                Button::Right => Buttons::RIGHT,
            };
            event.buttons.set(button, down);
        }
        match self.handle.mouse(&[event]) {
            true => Ok(()),
            false => Err("the guest reads no mouse".into()),
        }
    }

    fn save(&mut self, path: &str) -> Result<(), String> {
        self.save_to(Path::new(path))
    }

    fn read_ring(&mut self, id: &str, count: usize) -> Result<Vec<u8>, String> {
        let mut rings = self.rings.iter();
        let (_, ring) = rings
            .find(|(known, _)| known == id)
            .ok_or_else(|| format!("{id} is not a ringbuf device"))?;
        let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(ring.len());
        Ok(ring.drain(..count).collect())
    }

    fn registers(&mut self) -> Result<String, String> {
        let seen = self.inspect(Inspection::default())?;
        Ok(registers::text(&seen.cpu, seen.is_halted))
    }

    fn register(&mut self, name: &str) -> Result<Option<u64>, String> {
        let seen = self.inspect(Inspection::default())?;
        Ok(registers::value(&seen.cpu, name))
    }

    fn code_bits(&mut self) -> Result<u32, String> {
        let seen = self.inspect(Inspection::default())?;
        Ok(registers::code_bits(&seen.cpu))
    }

    fn memory(&mut self, address: u64, bytes: usize, physical: bool) -> Result<Vec<u8>, String> {
        let addresses = match physical {
            true => Addresses::Physical,
            false => Addresses::Linear,
        };
        let seen = self.inspect(Inspection {
            memory: Some((addresses, address, bytes)),
            ..Inspection::default()
        })?;
        Ok(seen.bytes)
    }

    fn write_memory(
        &mut self,
        address: u64,
        bytes: u64,
        physical: bool,
        path: &str,
    ) -> Result<(), String> {
        let refused = |error: std::io::Error| format!("{path}: {error}");
        let mut file = std::fs::File::create(path).map_err(refused)?;
        let mut done = 0;
        while done < bytes {
            let next = address.wrapping_add(done);
            let piece = (bytes - done).min(1 << 20) as usize;
            let read = self.memory(next, piece, physical)?;
            if read.len() < piece {
                let end = next.wrapping_add(read.len() as u64);
                return Err(format!("there is no memory at {end:#x}"));
            }
            file.write_all(&read).map_err(refused)?;
            done += piece as u64;
        }
        Ok(())
    }

    fn pages(&mut self) -> Result<Option<Vec<Page>>, String> {
        let seen = self.inspect(Inspection {
            pages: true,
            ..Inspection::default()
        })?;
        let page = |page: &MappedPage| Page {
            linear: page.linear,
            physical: page.physical,
            bytes: page.bytes,
            entry: page.entry,
            writable: page.writable,
            user: page.user,
        };
        let pages = seen.pages.iter().map(page).collect();
        Ok(seen.cpu.is_paging().then_some(pages))
    }

    fn interrupts(&mut self, local: bool) -> Result<String, String> {
        let [pic, apic] = self.inspect(Inspection::default())?.interrupts;
        Ok(if local { apic } else { pic })
    }

    fn save_tag(&mut self, name: &str) -> Result<(), String> {
        let store = Store::of(&self.config)?;
        let was_running = self.state() == RunState::Running;
        self.stop()?;
        let saved = store.save(name, |path| self.save_to(path));
        if was_running {
            self.resume()?;
        }
        saved
    }

    fn load_tag(&mut self, name: &str) -> Result<(), String> {
        let store = Store::of(&self.config)?;
        let path = store.machine(name)?;
        let snapshot = SnapshotFile::open(&path).map_err(|error| error.to_string())?;
        if snapshot.description().config.plugged_functions() != self.functions {
            return Err(format!(
                "'{name}' is a machine with other devices plugged into its PCI bus"
            ));
        }
        drop(snapshot);
        let is_paused = self.state() != RunState::Running;
        let is_off = self.state() == RunState::Shutdown;
        let mut asked = self.talk.asked();
        let name = name.to_owned();
        (asked.load, asked.loaded) = (Some(TagToLoad { store, name }), None);
        drop(asked);
        self.talk.changed.notify_all();
        if !is_off {
            self.handle.quit();
        }
        wait_for(SAVE_PATIENCE, || self.talk.asked().loaded.take())??;
        self.has_run = true;
        match is_paused && !is_off {
            true => self.stop(),
            false => Ok(()),
        }
    }

    fn delete_tag(&mut self, name: &str) -> Result<(), String> {
        Store::of(&self.config)?.delete(name)
    }

    fn tags(&self) -> Result<Vec<Tag>, String> {
        Ok(Store::of(&self.config)?.tags())
    }

    fn jobs(&mut self) -> &mut Vec<Job> {
        &mut self.jobs
    }

    fn tell(&mut self, event: Event) {
        // Pauses are reported wherever they come from.
        if !matches!(event, Event::Stop | Event::Resume) {
            self.events.push(event);
        }
    }
}

impl Orders {
    /// Notes which devices the guest has ejected, and reports that.
    pub fn note_ejected(&mut self) {
        for slot in self.handle.take_ejected() {
            gone(slot, self);
        }
    }

    /// Writes the machine to a file.
    fn save_to(&self, path: &Path) -> Result<(), String> {
        let path = std::path::absolute(path).map_err(|error| error.to_string())?;
        let request = self.handle.request_snapshot(SnapshotOrder::Write {
            path,
            base: None,
            then: AfterSnapshot::Resume,
        });
        wait_for(SAVE_PATIENCE, || self.handle.snapshot_after(request))?
    }

    fn order(&self, order: impl Into<DriveOrder>) -> Result<(), String> {
        let request = self.handle.request_drives(order);
        wait_for(PATIENCE, || self.handle.drives_after(request))?
    }

    fn inspect(&self, inspection: Inspection) -> Result<Inspected, String> {
        let request = self.handle.request_inspection(inspection);
        wait_for(PATIENCE, || self.handle.inspected_after(request))?
    }

    fn offer(&self, keys: &[(tollgate_machine::board::input::Key, bool)]) -> Result<(), String> {
        match self.handle.keys(keys) {
            true => Ok(()),
            false => Err("the guest reads no keys".into()),
        }
    }
}

/// A picture as a portable pixmap.
fn ppm(picture: &Picture) -> Vec<u8> {
    let head = format!("P6\n{} {}\n255\n", picture.size.width, picture.size.height);
    [head.as_bytes(), &picture.pixels].concat()
}
