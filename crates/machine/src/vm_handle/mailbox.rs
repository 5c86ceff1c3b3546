//! The mailbox that both sides of a `VmHandle` share: commands, input and published answers under
//! one lock.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::orders::Orders;
use crate::board::input::{Buttons, Key, MouseEvent};
use crate::config::{PluggedFunction, ScsiAddress, ScsiDrive};
use crate::devices::vga::screen::{Picture, Screen};
use crate::devices::virtio::balloon::control::BalloonControl;
use crate::devices::virtio::drive_change::SizedDrive;
use crate::inspection::{Inspected, Inspection};
use crate::knobs::{Assignment, Settings};
use crate::marks::Span;
use serde::{Serialize, Serializer};
use tollgate_disk::DriveOptions;
use tollgate_engine::engine::CodeCacheUse;
use tollgate_exits::reading::Reading;
use tollgate_network::Refusals;
use tollgate_platform::{MarkName, ResetCause};

/// The maximum number of bytes of serial input that wait for the guest.
pub const SERIAL_INPUT_CAPACITY: usize = 4096;

/// The maximum number of key events that wait for the guest.
pub const KEY_CAPACITY: usize = 256;

/// The maximum number of mouse events that wait for the guest. Moves without a click between them
/// count as one.
pub const MOUSE_CAPACITY: usize = 256;

/// A reading that is no older than this also serves another reader, so that readers who ask
/// continuously take little of the vCPU's time.
pub const READING_AGE: Duration = Duration::from_millis(20);

/// A function that makes the vCPU thread leave guest code. It must not call the handle.
pub use crate::bus::completion::KickFunction;

/// A function that the vCPU thread calls after each publication. It must not call the handle.
pub type Listener = Arc<dyn Fn() + Send + Sync>;

/// A request from another thread to the virtual machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Stop at an instruction boundary; guest time stands still.
    Pause,
    /// Continue after a pause.
    Resume,
    /// Execute nothing for this time, in which guest time passes.
    Rest(Duration),
    /// End the virtual machine.
    Quit,
    /// Press the ACPI power button.
    PowerButton,
    /// Handle what a debugger has sent.
    ServeDebugger,
    /// Publish a new [`Status`].
    ReportStatus,
    /// Publish a reading of the ledger.
    ReportReading,
    /// Publish the contents of the screen, with the picture if true.
    ReportScreen(bool),
    /// Execute the waiting changes of media.
    ChangeDrives,
    /// Publish what the waiting inspections see.
    Inspect,
    /// Carry out the orders about snapshots.
    ObeySnapshotOrders,
    /// Reset the ledger.
    ResetLedger,
    /// Answer this query under this number.
    Query(Query, u64),
    /// Change a knob.
    Set(Assignment),
}

/// What to count, and whether to set a mark at the same instruction boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Query {
    /// The marks between which to count. `None` counts nothing.
    pub span: Option<Span>,
    /// The mark to set after counting.
    pub mark: Option<MarkName>,
}

/// The vCPU thread's answer to a [`Query`].
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The counts, if they were requested, or why they are unavailable.
    pub reading: Option<Result<Reading, String>>,
    /// All marks, each with the guest time in nanoseconds when it was set.
    pub marks: Vec<(MarkName, u64)>,
}

/// The maximum number of answers that are kept until they are fetched.
const ANSWERS: usize = 32;

/// Identifies a query.
#[derive(Clone, Copy, Debug)]
pub struct QueryNumber(pub(super) u64);

/// A drive whose medium can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemovableDrive {
    /// A floppy drive, 0 for the first.
    Floppy(u8),
    /// A CD-ROM drive, 0 for the first.
    CdRom(u8),
    /// A virtio disk, 0 for the first, which is never empty.
    Virtio(usize),
    /// A CD-ROM drive of the SCSI controller.
    Scsi(ScsiAddress),
}

impl RemovableDrive {
    /// Returns the drive with this name: `a` or `b` for floppy drives; `d`, `e`, `f` or `g` for
    /// CD-ROM drives.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "a" => Some(Self::Floppy(0)),
            "b" => Some(Self::Floppy(1)),
            "d" => Some(Self::CdRom(0)),
            "e" => Some(Self::CdRom(1)),
            "f" => Some(Self::CdRom(2)),
            "g" => Some(Self::CdRom(3)),
            _ => None,
        }
    }
}

/// A requested change of a medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MediumChange {
    /// The drive whose medium changes.
    pub drive: RemovableDrive,
    /// The new medium. `None` leaves the drive empty.
    pub image: Option<DriveOptions>,
    /// Whether to change the medium even if the guest has locked the drive.
    pub force: bool,
}

/// An order about drives and what else comes and goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DriveOrder {
    /// Change a medium.
    Medium(MediumChange),
    /// Give a disk another size in bytes.
    Resize(SizedDrive, u64),
    /// Plug a drive into the SCSI controller.
    PlugIn(ScsiDrive),
    /// Remove a drive from the SCSI controller.
    Unplug(ScsiAddress),
    /// Plug a function into the PCI bus.
    AddFunction(PluggedFunction),
    /// Ask the guest to eject the function in this slot of the PCI bus.
    RemoveFunction(u8),
}

impl From<MediumChange> for DriveOrder {
    fn from(change: MediumChange) -> Self {
        Self::Medium(change)
    }
}

/// What the machine does after a snapshot of it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AfterSnapshot {
    /// It goes on, or stays paused, as before.
    #[default]
    Resume,
    /// It is paused, so that nothing changes that lies outside the snapshot.
    Pause,
}

/// An order about snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotOrder {
    /// Write a snapshot.
    Write {
        /// The file. One that exists is replaced.
        path: PathBuf,
        /// The snapshot whose pieces are not written again.
        base: Option<PathBuf>,
        /// What follows, unless the snapshot cannot be written.
        then: AfterSnapshot,
    },
    /// Put the machine back to the snapshot that it was restored from.
    PutBack,
}

impl SnapshotOrder {
    /// Whether the machine is paused afterwards.
    pub fn pauses(&self) -> bool {
        matches!(self, Self::Write { then, .. } if *then == AfterSnapshot::Pause)
    }
}

/// What the virtual machine is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is being built; no instruction has run yet.
    #[default]
    Starting,
    /// It runs guest code.
    Running,
    /// It waits for an interrupt in HLT.
    Halted,
    /// It is stopped by a pause.
    Paused,
    /// It has ended and will not run again.
    Stopped,
}

/// A snapshot of the virtual machine for other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Status {
    /// What the machine is doing.
    pub state: State,
    /// Nanoseconds of host time since the handle was made. It is filled in when the status is read,
    /// so the vCPU thread may leave it zero.
    pub uptime_ns: u64,
    /// The guest time in nanoseconds.
    pub guest_time_ns: u64,
    /// The number of exits of all kinds so far.
    pub exits: u64,
    /// The panics that the guest's kernel reported, and the resets of the machine.
    #[serde(flatten)]
    pub happened: Happened,
    /// How full the code cache is.
    pub code_cache: CodeCacheUse,
    /// The values of the knobs.
    #[serde(rename = "knobs")]
    pub settings: Settings,
}

/// Panics and resets of the guest since Tollgate was started, over all restarts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Happened {
    /// The number of panics that the guest's kernel reported.
    pub panics: u64,
    /// The resets of the machine.
    pub resets: Resets,
}

/// The number of resets of each cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resets([u64; ResetCause::ALL.len()]);

impl Resets {
    /// Counts one reset.
    pub const fn add(&mut self, cause: ResetCause) {
        self.0[cause as usize] += 1;
    }
}

impl Serialize for Resets {
    /// Serializes the causes that occurred, by name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let counted = ResetCause::ALL.into_iter().zip(self.0);
        serializer.collect_map(
            counted
                .filter(|(_, count)| *count > 0)
                .map(|(cause, count)| (cause.name(), count)),
        )
    }
}

/// The data that both sides share under the lock.
#[derive(Default)]
pub(super) struct Mailbox {
    pub commands: Vec<Command>,
    pub serial_input: VecDeque<u8>,
    pub second_serial_input: VecDeque<u8>,
    pub keys: VecDeque<(Key, bool)>,
    pub mouse: VecDeque<MouseEvent>,
    /// The buttons of the last mouse event, and whether that event left the buttons unchanged.
    pub mouse_buttons: Buttons,
    pub mouse_moved: bool,
    pub pause_wanted: bool,
    pub status: Status,
    /// The number of publications, by which a waiting reader notices a new one.
    pub publications: u64,
    pub drives: Orders<DriveOrder>,
    /// The slots of the PCI bus whose functions were ejected since they were last taken. Only an order
    /// fills a slot again.
    pub ejected: Vec<u8>,
    pub snapshots: Orders<SnapshotOrder>,
    pub inspections: Orders<Inspection, Inspected>,
    /// How often the ledger was reset.
    pub resets: u64,
    /// How often the contents of the screen were published.
    pub screens: u64,
    /// The last published contents of the screen, with a picture if one was requested.
    pub screen: Option<Arc<Shown>>,
    /// The last published reading, and when it was published.
    pub reading: Option<(Instant, Arc<Reading>)>,
    /// The number of queries so far, and the answers that were not fetched yet.
    pub queries: u64,
    pub answers: VecDeque<(u64, Answer)>,
}

impl Mailbox {
    /// Keeps an answer until it is fetched. Returns an old answer that it drops because it was
    /// not fetched.
    pub fn keep(&mut self, number: u64, answer: Answer) -> Option<Answer> {
        self.answers.push_back((number, answer));
        let is_full = self.answers.len() > ANSWERS;
        is_full
            .then(|| self.answers.pop_front())
            .flatten()
            .map(|it| it.1)
    }

    /// Fetches an answer.
    pub fn fetch(&mut self, number: u64) -> Option<Answer> {
        let index = self.answers.iter().position(|it| it.0 == number)?;
        self.answers.remove(index).map(|it| it.1)
    }
}

pub(super) struct Shared {
    pub mailbox: Mutex<Mailbox>,
    /// Whether commands wait. The vCPU's fast path reads this without the lock.
    pub has_commands: AtomicBool,
    /// Whether serial input waits. The vCPU's fast path reads this without the lock.
    pub has_serial_input: AtomicBool,
    /// Whether keys wait. The vCPU's fast path reads this without the lock.
    pub has_keys: AtomicBool,
    /// Whether mouse events wait. The vCPU's fast path reads this without the lock.
    pub has_mouse: AtomicBool,
    /// Signalled when something is queued.
    pub queued: Condvar,
    /// Signalled when a status is published.
    pub published: Condvar,
    /// This lock is held while the kick runs, so that no kick is still running after it was
    /// removed.
    pub kick: Mutex<Option<KickFunction>>,
    /// These functions are called after each publication.
    pub listeners: Mutex<Vec<Listener>>,
    /// What the machine's networks have refused, which their threads record.
    pub refusals: Mutex<Vec<Refusals>>,
    /// The control of the machine's balloon.
    pub balloon: Mutex<Option<BalloonControl>>,
    pub created: Instant,
}

impl Shared {
    /// No code leaves the mailbox half-changed while it holds the lock, so a panic elsewhere does
    /// not make the contents wrong.
    pub(super) fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kick_slot(&self) -> MutexGuard<'_, Option<KickFunction>> {
        self.kick.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell_listener(&self) {
        self.published.notify_all();
        let listeners = self.listeners.lock();
        for listener in listeners.unwrap_or_else(PoisonError::into_inner).iter() {
            listener();
        }
    }

    pub(super) fn wake(&self) {
        self.queued.notify_all();
        if let Some(kick) = self.kick_slot().as_ref() {
            kick();
        }
    }
}

/// A request for a status. It holds the number of publications at the time of the request.
#[derive(Clone, Copy, Debug)]
pub struct StatusRequest(pub(super) u64);

impl StatusRequest {
    pub(super) fn is_answered(self, mailbox: &Mailbox) -> bool {
        mailbox.publications != self.0 || mailbox.status.state == State::Stopped
    }
}

/// The contents of the screen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// The characters on the screen, or the size of a picture.
    pub screen: Screen,
    /// The picture. It is the same one as before if nothing was drawn.
    pub picture: Option<Arc<Picture>>,
    /// How long the vCPU's thread took to read the screen.
    pub took: Duration,
}

/// A request for the screen: the number of its publications at the time of the request, and whether
/// the picture is requested too.
#[derive(Clone, Copy, Debug)]
pub struct ScreenRequest(pub(super) u64, pub(super) bool);

/// The number of an order about snapshots.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotRequest(pub(super) u64);

/// Identifies an inspection.
#[derive(Clone, Copy, Debug)]
pub struct InspectionRequest(pub(super) u64);

/// The number of an order about drives.
#[derive(Clone, Copy, Debug)]
pub struct DriveRequest(pub(super) u64);

/// A request to reset the ledger. It holds the number of resets at the time of the request.
#[derive(Clone, Copy, Debug)]
pub struct ResetRequest(pub(super) u64);

impl ResetRequest {
    pub(super) fn is_answered(self, mailbox: &Mailbox) -> bool {
        mailbox.resets != self.0
    }
}

/// The moment at which a reading was requested.
#[derive(Clone, Copy, Debug)]
pub struct ReadingRequest(pub(super) Instant);

impl ReadingRequest {
    pub(super) fn answer(self, mailbox: &Mailbox) -> Option<Arc<Reading>> {
        let (at, reading) = mailbox.reading.as_ref()?;
        (self.0.saturating_duration_since(*at) < READING_AGE).then(|| Arc::clone(reading))
    }

    pub(super) fn is_answered(self, mailbox: &Mailbox) -> bool {
        self.answer(mailbox).is_some()
    }
}
