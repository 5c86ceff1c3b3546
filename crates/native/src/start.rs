//! Starting a space process, up to its first signal.

use crate::frame::Frame;
use crate::host;
use crate::image::{self, Instruction};
use crate::kicker::KickState;
use crate::layout::{self, Layout, PAGE, announce, control};
use crate::results::read_byte;
use crate::settings::{Facts, Settings};
use crate::shared_memory::{SharedPages, sleep_on};
use crate::spawn::{self, Descriptors};
use rustix::fs::MemfdFlags;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A process whose runner waits for its first turn.
pub struct Started {
    pub layout: Layout,
    /// Number of the process, and of its task that is the runner.
    pub number: i32,
    /// Number of the task that is the mapper.
    pub mapper: i32,
    pub pages: SharedPages,
    /// Where the mapper writes its results.
    pub results: OwnedFd,
    pub kick: Arc<KickState>,
    pub frame: Frame,
    pub facts: Facts,
    /// Bytes of guest RAM.
    pub ram_size: u64,
}

impl Started {
    /// Starts a process and waits for its first signal.
    pub fn new(ram: BorrowedFd<'_>, settings: Settings) -> io::Result<Self> {
        let layout = Layout {
            place: settings.place,
            stack_pages: stack_pages(),
        };
        let is_placed = settings.place.is_multiple_of(PAGE)
            && settings.place >= 1 << 20
            && settings.place < layout::USER_END - (64 << 30);
        if !is_placed {
            let message = "a guest program's stub cannot be at this address";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let ram_size = rustix::fs::fstat(ram)?.st_size.cast_unsigned();
        let shared = rustix::fs::memfd_create("guest-program", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&shared, layout.shared_size())?;
        let size = NonZero::new(layout.shared_size() as usize).expect("pages");
        let pages = SharedPages::map(shared.as_fd(), size)?;
        let control = |word| layout.shared_offset(layout.control(word));
        pages.word(control(control::GO)).store(1, Ordering::Relaxed);
        let spins = pages.word(control(control::SPIN));
        spins.store(settings.spins, Ordering::Relaxed);
        let image = executable(&image::image(
            layout,
            settings.cpuid,
            settings.time_stamp_counter,
        ))?;
        let pipe = rustix::pipe::PipeFlags::CLOEXEC;
        let (results, written) = rustix::pipe::pipe_with(pipe)?;
        let child = spawn::spawn(&Descriptors {
            ram,
            results: written.as_fd(),
            shared: shared.as_fd(),
            image: image.as_fd(),
        })?;
        drop(written);
        let starting = Starting {
            layout,
            number: child.number,
            pages,
            results,
            kick: KickState::new(child.descriptor),
        };
        starting.finish(settings, ram_size)
    }
}

/// The pages of the signal stack: what the kernel says a frame takes at most, and some room.
fn stack_pages() -> u64 {
    let least = match host::auxiliary(libc::AT_MINSIGSTKSZ) {
        // Kernels before 5.14 do not say.
        0 => 12 << 10,
        least => least,
    };
    (least + 2048).div_ceil(PAGE)
}

/// A process whose first signal has not come yet.
struct Starting {
    layout: Layout,
    number: i32,
    pages: SharedPages,
    results: OwnedFd,
    kick: Arc<KickState>,
}

impl Starting {
    /// Waits for the first signal.
    fn finish(self, settings: Settings, ram_size: u64) -> io::Result<Started> {
        let found = self.wait().and_then(|()| {
            let found = Frame::find(self.layout, &self.pages);
            found.map_err(|error| io::Error::other(format!("guest programs on this host: {error}")))
        });
        let frame = match found {
            Ok(frame) => frame,
            Err(error) => {
                let _ = pidfd_send_signal(&self.kick.process, Signal::KILL);
                let _ = spawn::reap(&self.kick.process);
                return Err(error);
            }
        };
        let achieved = |asked: Instruction, word: u64| {
            let result = self
                .pages
                .get(self.layout.shared_offset(self.layout.announce(word)));
            if result == 0 {
                asked
            } else {
                Instruction::Runs
            }
        };
        let facts = Facts {
            cpuid: achieved(settings.cpuid, announce::CPUID_RESULT),
            time_stamp_counter: achieved(settings.time_stamp_counter, announce::TSC_RESULT),
            descriptor_table_reads: match host::has_umip() {
                true => Instruction::Faults,
                false => Instruction::Runs,
            },
        };
        let mapper = self.layout.announce(announce::MAPPER);
        let mapper = self.pages.get(self.layout.shared_offset(mapper)) as i32;
        Ok(Started {
            layout: self.layout,
            number: self.number,
            mapper,
            pages: self.pages,
            results: self.results,
            kick: self.kick,
            frame,
            facts,
            ram_size,
        })
    }

    fn wait(&self) -> io::Result<()> {
        let monitor_sleeps = self.layout.control(control::MONITOR_SLEEPS);
        let monitor_sleeps = self.pages.word(self.layout.shared_offset(monitor_sleeps));
        monitor_sleeps.store(1, Ordering::SeqCst);
        let done = self
            .layout
            .shared_offset(self.layout.announce(announce::DONE));
        let done = self.pages.word(done);
        loop {
            if done.load(Ordering::SeqCst) == 1 {
                break;
            }
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let ended = waitid(WaitId::PidFd(self.kick.process.as_fd()), options)?;
            if let Some(status) = ended {
                return Err(self.failure(status.terminating_signal()));
            }
            sleep_on(done, 0, Duration::from_millis(10));
        }
        monitor_sleeps.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Why the process has ended before its first signal: the stub's two bytes, or a signal.
    fn failure(&self, signal: Option<i32>) -> io::Error {
        if let Some(signal) = signal {
            let message = format!("a guest program's process was killed by signal {signal}");
            return io::Error::other(message);
        }
        let (error, number) = (read_byte(&self.results), read_byte(&self.results));
        match (error, number) {
            (Ok(Some(error)), Ok(Some(number))) => {
                let error = io::Error::from_raw_os_error(error.into());
                let message = format!("a guest program's process, at its step {number}: {error}");
                io::Error::new(error.kind(), message)
            }
            _ => io::Error::other("a guest program's process has ended itself"),
        }
    }
}

/// A file in memory that can be executed.
fn executable(contents: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC;
    // Kernels before 6.3 know no MFD_EXEC; later ones may be set to require it.
    let file = rustix::fs::memfd_create("guest-program", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create("guest-program", flags))?;
    let mut rest = contents;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    Ok(file)
}
