//! What both sides of a handle share: commands, input and published answers under one lock.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::devices::i8042::{Buttons, Key, MouseEvent};
use crate::devices::vga::screen::{Picture, Screen};
use crate::knobs::{Assignment, Settings};
use crate::marks::Span;
use serde::{Serialize, Serializer};
use tollgate_disk::DriveOptions;
use tollgate_engine::engine::CodeCacheUse;
use tollgate_exits::books::Books;
use tollgate_platform::{MarkName, ResetCause};

/// Bytes of serial input that wait for the guest at most.
pub const SERIAL_INPUT_CAPACITY: usize = 4096;

/// Key events that wait for the guest at most.
pub const KEY_CAPACITY: usize = 256;

/// Clicks and moves of the mouse that wait for the guest at most; moves without a click between
/// them are one.
pub const MOUSE_CAPACITY: usize = 256;

/// Books that are no older than this serve another reader too, so that readers who ask
/// all the time take little of the vCPU's.
pub const BOOKS_AGE: Duration = Duration::from_millis(20);

/// Makes the vCPU thread leave guest code. It must not call the handle.
pub use crate::bus::completion::KickFunction;

/// Hears on the vCPU thread that something was published. It must not call the handle.
pub type Listener = Arc<dyn Fn() + Send + Sync>;

/// A request from another thread to the virtual machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Stop at an instruction boundary; guest time stands still.
    Pause,
    /// Go on after a pause.
    Resume,
    /// End the virtual machine.
    Quit,
    /// Press the ACPI power button.
    PowerButton,
    /// Publish a fresh [`Status`].
    ReportStatus,
    /// Publish the books as they are now.
    ReportBooks,
    /// Publish what is on the screen, with the picture if true.
    ReportScreen(bool),
    /// Take out and put in the media that wait for it.
    ChangeMedia,
    /// Begin the books anew.
    ResetBooks,
    /// Answer this, under this number.
    Query(Query, u64),
    /// Turn a knob.
    Set(Assignment),
}

/// What is to be counted, and whether a mark is to be set at the same instruction boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Query {
    /// Between which marks; `None`: nothing.
    pub span: Option<Span>,
    /// The mark, which is set behind what was counted.
    pub mark: Option<MarkName>,
}

/// What the vCPU thread answers a [`Query`].
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// What was counted, if that was asked for; or why it cannot be.
    pub books: Option<Result<Books, String>>,
    /// All marks, and when they were set in nanoseconds of guest time.
    pub marks: Vec<(MarkName, u64)>,
}

/// Answers that nobody fetched yet are kept up to this number.
const ANSWERS: usize = 32;

/// A query by its number.
#[derive(Clone, Copy, Debug)]
pub struct QueryNumber(pub(super) u64);

/// A drive whose medium can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemovableDrive {
    /// A floppy drive, 0 for the first.
    Floppy(u8),
    /// A drive for CD-ROMs, 0 for the first.
    CdRom(u8),
}

impl RemovableDrive {
    /// The drive of a name: `a` or `b`; `d` for the first one for CD-ROMs, `e`, `f`, `g`.
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

/// A medium that someone changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MediumChange {
    /// In which drive.
    pub drive: RemovableDrive,
    /// The new medium; `None`: the drive is left empty.
    pub image: Option<DriveOptions>,
    /// Also if the guest has locked the drive.
    pub force: bool,
}

/// Changes of media that are remembered for those who wait for them.
pub(super) const MEDIUM_RESULTS: usize = 16;

/// What the virtual machine is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Being built; no instruction has run yet.
    #[default]
    Starting,
    /// Running guest code.
    Running,
    /// Waiting for an interrupt in HLT.
    Halted,
    /// Stopped by a pause.
    Paused,
    /// Ended; it runs no more.
    Stopped,
}

/// A snapshot of the virtual machine as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Status {
    /// What the machine is doing.
    pub state: State,
    /// Nanoseconds of host time since the handle was made; filled in when the status
    /// is read, so the vCPU thread may leave it zero.
    pub uptime_ns: u64,
    /// Nanoseconds of guest time.
    pub guest_time_ns: u64,
    /// Exits of all kinds so far.
    pub exits: u64,
    /// What the guest's kernel reported, and what it did to the machine.
    #[serde(flatten)]
    pub happened: Happened,
    /// How full the code cache is.
    pub code_cache: CodeCacheUse,
    /// How the knobs stand.
    #[serde(rename = "knobs")]
    pub settings: Settings,
}

/// Panics and resets of the guest since Tollgate was started, over all restarts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Happened {
    /// Panics that the guest's kernel reported.
    pub panics: u64,
    /// Resets of the machine.
    pub resets: Resets,
}

/// How many resets there were of each cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resets([u64; ResetCause::ALL.len()]);

impl Resets {
    /// One more.
    pub const fn add(&mut self, cause: ResetCause) {
        self.0[cause as usize] += 1;
    }
}

impl Serialize for Resets {
    /// The causes that occurred, by name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let counted = ResetCause::ALL.into_iter().zip(self.0);
        serializer.collect_map(
            counted
                .filter(|(_, count)| *count > 0)
                .map(|(cause, count)| (cause.name(), count)),
        )
    }
}

/// What the two sides share under the lock.
#[derive(Default)]
pub(super) struct Mailbox {
    pub commands: Vec<Command>,
    pub serial_input: VecDeque<u8>,
    pub keys: VecDeque<(Key, bool)>,
    pub mouse: VecDeque<MouseEvent>,
    /// The buttons of the last event of the mouse, and whether that changed none.
    pub mouse_buttons: Buttons,
    pub mouse_moved: bool,
    pub pause_wanted: bool,
    pub status: Status,
    /// Counts publications, so that a waiting reader sees a new one.
    pub publications: u64,
    /// Media to be changed, with the number of each request.
    pub media: VecDeque<(u64, MediumChange)>,
    /// What came of changes, the latest last.
    pub media_changed: VecDeque<(u64, Result<(), String>)>,
    /// Changes that were asked for.
    pub media_requests: u64,
    /// How often the books were begun anew.
    pub resets: u64,
    /// How often the screen was published.
    pub screens: u64,
    /// What was on it, and a picture of that if one was asked for.
    pub screen: Option<Arc<Shown>>,
    /// The books published last, and when.
    pub books: Option<(Instant, Arc<Books>)>,
    /// Queries so far, and the answers that were not fetched yet.
    pub queries: u64,
    pub answers: VecDeque<(u64, Answer)>,
}

impl Mailbox {
    /// Keeps an answer until it is fetched; returns one that nobody will fetch any more.
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
    /// Commands wait; read without the lock on the vCPU's fast path.
    pub has_commands: AtomicBool,
    /// Serial input waits; read without the lock on the vCPU's fast path.
    pub has_serial_input: AtomicBool,
    /// Keys wait; read without the lock on the vCPU's fast path.
    pub has_keys: AtomicBool,
    /// Something was done with the mouse; read without the lock on the vCPU's fast path.
    pub has_mouse: AtomicBool,
    /// Signalled when something is queued.
    pub queued: Condvar,
    /// Signalled when a status is published.
    pub published: Condvar,
    /// Held while the kick runs, so that no kick is under way once it was removed.
    pub kick: Mutex<Option<KickFunction>>,
    /// Called after each publication.
    pub listener: Mutex<Option<Listener>>,
    pub created: Instant,
}

impl Shared {
    /// No user of the lock leaves the mailbox half-changed, so a panic elsewhere
    /// does not make its content wrong.
    pub(super) fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kick_slot(&self) -> MutexGuard<'_, Option<KickFunction>> {
        self.kick.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell_listener(&self) {
        self.published.notify_all();
        let listener = self.listener.lock();
        if let Some(listener) = listener.unwrap_or_else(PoisonError::into_inner).as_ref() {
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

/// A status was asked for when this many had been published.
#[derive(Clone, Copy, Debug)]
pub struct StatusRequest(pub(super) u64);

impl StatusRequest {
    pub(super) fn is_answered(self, mailbox: &Mailbox) -> bool {
        mailbox.publications != self.0 || mailbox.status.state == State::Stopped
    }
}

/// What was on the screen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// Characters, or the size of a picture.
    pub screen: Screen,
    /// The picture; the same one as before if nothing was drawn.
    pub picture: Option<Arc<Picture>>,
    /// How long that took the vCPU's thread.
    pub took: Duration,
}

/// The screen was asked for when it had been published so many times; whether with its picture.
#[derive(Clone, Copy, Debug)]
pub struct ScreenRequest(pub(super) u64, pub(super) bool);

/// A medium was to be changed, by the number of the request.
#[derive(Clone, Copy, Debug)]
pub struct MediumRequest(pub(super) u64);

/// Books were to be begun anew when they had been so many times.
#[derive(Clone, Copy, Debug)]
pub struct ResetRequest(pub(super) u64);

impl ResetRequest {
    pub(super) fn is_answered(self, mailbox: &Mailbox) -> bool {
        mailbox.resets != self.0
    }
}

/// Books were asked for at this moment.
#[derive(Clone, Copy, Debug)]
pub struct BooksRequest(pub(super) Instant);

impl BooksRequest {
    pub(super) fn answer(self, mailbox: &Mailbox) -> Option<Arc<Books>> {
        let (at, books) = mailbox.books.as_ref()?;
        (self.0.saturating_duration_since(*at) < BOOKS_AGE).then(|| Arc::clone(books))
    }

    pub(super) fn is_answered(self, mailbox: &Mailbox) -> bool {
        self.answer(mailbox).is_some()
    }
}
