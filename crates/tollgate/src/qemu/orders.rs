//! Carries out what monitors are told, with a machine of Tollgate's.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tollgate_machine::devices::vga::screen::Picture;
use tollgate_machine::vm_handle::{
    AfterSnapshot, MediumChange, RemovableDrive, SnapshotOrder, State, VmHandle,
};
use tollgate_qemu_words::Configuration;
use tollgate_qemu_words::monitor::{Event, Machine, PictureForm, RunState};

use super::{configuration, keys};
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

#[derive(Default)]
struct Asked {
    reset: bool,
    quit: bool,
}

impl Talk {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a reset was asked for since the last call.
    pub fn take_reset(&self) -> bool {
        std::mem::take(&mut self.asked().reset)
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
        while !asked.reset && !asked.quit && !ends() {
            let waited = self.changed.wait_timeout(asked, Duration::from_millis(100));
            asked = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.is_shut_down.store(false, Ordering::Release);
        std::mem::take(&mut asked.reset)
    }
}

/// The orders of all monitors of a machine.
pub struct Orders {
    config: Configuration,
    handle: VmHandle,
    talk: Arc<Talk>,
    has_run: bool,
    media: Vec<Option<PathBuf>>,
    drives: Vec<Option<RemovableDrive>>,
    /// The ends of the places for characters, for people.
    pub labels: Vec<String>,
    /// Ring buffers with their names.
    pub rings: Vec<(String, Ring)>,
    /// Events that monitors have not been told yet.
    pub events: Vec<Event>,
}

impl Orders {
    /// Orders for the machine with this handle.
    pub fn new(config: &Configuration, handle: &VmHandle, talk: &Arc<Talk>) -> Self {
        Self {
            has_run: !config.paused,
            media: config
                .drives
                .iter()
                .map(|drive| drive.file.clone())
                .collect(),
            drives: configuration::removable_drives(config),
            config: config.clone(),
            handle: handle.clone(),
            talk: Arc::clone(talk),
            labels: Vec::new(),
            rings: Vec::new(),
            events: Vec::new(),
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
        match self.handle.status().state {
            _ if !self.has_run => RunState::Prelaunch,
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
        wait_for(PATIENCE, || {
            let state = self.handle.status().state;
            (state != State::Paused).then_some(())
        })
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
        let removable =
            self.drives[drive].ok_or_else(|| format!("Device '{id}' is not removable"))?;
        let image = file.map(|file| configuration::medium(&self.config.drives[drive], file));
        let request = self.handle.request_medium(MediumChange {
            drive: removable,
            image,
            force,
        });
        wait_for(PATIENCE, || self.handle.medium_after(request))??;
        self.media[drive] = file.map(PathBuf::from);
        Ok(())
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

    fn save(&mut self, path: &str) -> Result<(), String> {
        let path = std::path::absolute(path).map_err(|error| error.to_string())?;
        let request = self.handle.request_snapshot(SnapshotOrder::Write {
            path,
            base: None,
            then: AfterSnapshot::Resume,
        });
        wait_for(SAVE_PATIENCE, || self.handle.snapshot_after(request))?
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

    fn tell(&mut self, event: Event) {
        self.events.push(event);
    }
}

impl Orders {
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
