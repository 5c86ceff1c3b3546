//! Starting a space process, up to its first signal.

use crate::exit::Death;
use crate::frame::Frame;
use crate::host;
use crate::image::Instruction;
use crate::keeper;
use crate::kicker::KickState;
use crate::layout::{Layout, announce, control};
use crate::life::Life;
use crate::make::layout;
use crate::results::read_byte;
use crate::settings::{Facts, Settings};
use crate::shared_memory::{SharedPages, sleep_on};
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
    pub life: Life,
    pub frame: Frame,
    pub facts: Facts,
    /// Bytes of guest RAM.
    pub ram_size: u64,
}

impl Started {
    /// Starts a process and waits for its first signal.
    pub fn new(ram: BorrowedFd<'_>, settings: Settings) -> io::Result<Self> {
        let layout = layout(&settings)?;
        let ram_size = rustix::fs::fstat(ram)?.st_size.cast_unsigned();
        let (made, keeper) = keeper::make(ram, &settings)?;
        let kick = KickState::new(made.child.descriptor);
        let number = made.child.number;
        let life = Life::new(Arc::clone(&kick), number, keeper);
        let size = NonZero::new(layout.shared_size() as usize).expect("pages");
        let starting = Starting {
            layout,
            number,
            pages: SharedPages::map(made.shared.as_fd(), size)?,
            results: made.results,
            kick,
            life,
        };
        starting.finish(settings, ram_size)
    }
}

/// A process whose first signal has not come yet.
struct Starting {
    layout: Layout,
    number: i32,
    pages: SharedPages,
    results: OwnedFd,
    kick: Arc<KickState>,
    life: Life,
}

impl Starting {
    /// Waits for the first signal.
    fn finish(mut self, settings: Settings, ram_size: u64) -> io::Result<Started> {
        self.wait()?;
        let frame = Frame::find(self.layout, &self.pages);
        let unusable = |error| io::Error::other(format!("guest programs on this host: {error}"));
        let frame = frame.map_err(unusable)?;
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
            life: self.life,
            frame,
            facts,
            ram_size,
        })
    }

    fn wait(&mut self) -> io::Result<()> {
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
            if let Err(death) = self.life.look() {
                return Err(self.failure(death));
            }
            sleep_on(done, 0, Duration::from_millis(10));
        }
        monitor_sleeps.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Why the process has ended before its first signal: the stub's two bytes, or a signal.
    fn failure(&self, death: Death) -> io::Error {
        if let Death::Signal(signal) = death {
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
