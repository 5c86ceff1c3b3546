//! A space process: started, given mappings, run, killed.

use crate::exit::{Death, Exit};
use crate::frame::{Frame, Report};
use crate::host::{self, processor_time};
use crate::kicker::{KickState, Kicker};
use crate::layout::{self, COMMAND, COMMANDS, Layout, announce, control};
use crate::mapping::{Cause, Command, MappingError, Queue, Rights};
use crate::results::read_byte;
use crate::settings::{Facts, Placement, Settings};
use crate::shared_memory::{SharedPages, sleep_on, wake};
use crate::spawn;
use crate::start::Started;
use crate::state::{Refused, UserState};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the monitor sleeps before it looks whether the process still lives.
const LOOK: Duration = Duration::from_millis(100);
/// How much processor time a program may use after a kick.
const KICKED_PROCESSOR_TIME: Duration = Duration::from_secs(2);
/// How long a program may take to react to a kick.
const KICKED_TIME: Duration = Duration::from_secs(20);

/// A process whose address space is a guest program's. It is killed and reaped when this is dropped,
/// and when the thread that started it ends.
pub struct SpaceProcess {
    layout: Layout,
    number: i32,
    mapper: i32,
    pages: SharedPages,
    results: OwnedFd,
    ram_size: u64,
    kick: Arc<KickState>,
    frame: Frame,
    queue: Queue,
    turn: u32,
    batch: u32,
    spins: u32,
    placement: Placement,
    /// The processor that both tasks were bound to last.
    processor: Option<usize>,
    facts: Facts,
    /// Why it is gone.
    death: Option<Death>,
    /// Whether it has been reaped.
    is_reaped: bool,
}

impl SpaceProcess {
    /// Starts a process for programs of the guest with this memory. The calling thread must live as
    /// long as the process is used.
    ///
    /// # Errors
    /// The host refuses; [`crate::probe`] says why in words.
    pub fn start(ram: BorrowedFd<'_>, settings: Settings) -> io::Result<Self> {
        let started = Started::new(ram, settings)?;
        Ok(Self {
            layout: started.layout,
            number: started.number,
            mapper: started.mapper,
            pages: started.pages,
            results: started.results,
            ram_size: started.ram_size,
            kick: started.kick,
            frame: started.frame,
            queue: Queue::default(),
            turn: 1,
            batch: 0,
            spins: settings.spins,
            placement: settings.placement,
            processor: None,
            facts: started.facts,
            death: None,
            is_reaped: false,
        })
    }

    /// The addresses that the guest's program cannot have.
    pub fn reserved(&self) -> Range<u64> {
        self.layout.reserved()
    }

    /// What was achieved of the settings.
    pub const fn facts(&self) -> Facts {
        self.facts
    }

    /// The number of the process on the host.
    pub const fn number(&self) -> i32 {
        self.number
    }

    /// Queues a mapping of guest RAM, in place of what is there.
    pub fn map(&mut self, address: u64, length: u64, ram_offset: u64, rights: Rights) {
        self.push(Command::Map {
            address,
            length,
            ram_offset,
            rights,
        });
    }

    /// Queues the removal of all that is mapped in a range.
    pub fn unmap(&mut self, address: u64, length: u64) {
        self.push(Command::Unmap { address, length });
    }

    /// Queues a change of rights. All of the range must be mapped.
    pub fn protect(&mut self, address: u64, length: u64, rights: Rights) {
        self.push(Command::Protect {
            address,
            length,
            rights,
        });
    }

    /// Queues the removal of everything that is mapped for the program.
    pub fn unmap_all(&mut self) {
        let Range { start, end } = self.reserved();
        self.queue.clear();
        self.unmap(0, start);
        self.unmap(end, layout::USER_END - end);
    }

    fn push(&mut self, command: Command) {
        let reserved = self.layout.reserved();
        self.queue.push(command, &reserved, self.ram_size);
    }

    /// Makes all queued changes; they are done when this returns.
    ///
    /// # Errors
    /// A change failed, or the process is gone. The changes before it are made, those after it are
    /// dropped.
    pub fn flush(&mut self) -> Result<(), MappingError> {
        while !self.queue.is_empty() {
            let batch = self.queue.take_batch();
            if batch.is_empty() {
                return self.queue.take_refusal().map_or(Ok(()), Err);
            }
            if let Err(error) = self.make(&batch) {
                self.queue.clear();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Binds the process to the processor of the calling thread, if that is what was asked for.
    fn follow(&mut self) {
        if self.placement == Placement::Free {
            return;
        }
        let processor = host::current_processor();
        if processor.is_some() && processor != self.processor {
            self.processor = processor;
            for task in [self.number, self.mapper] {
                host::bind(task, processor.unwrap_or_default());
            }
        }
    }

    /// Has the mapper make a batch of changes.
    fn make(&mut self, batch: &[Command]) -> Result<(), MappingError> {
        let gone = |death| MappingError {
            command: batch.first().copied(),
            cause: Cause::Died(death),
        };
        if let Some(death) = self.death {
            return Err(gone(death));
        }
        self.follow();
        let commands = self.layout.shared_offset(self.layout.place + COMMANDS);
        for (index, command) in batch.iter().enumerate() {
            let at = commands + index as u64 * COMMAND;
            for (word, value) in command.words().into_iter().enumerate() {
                self.pages.set(at + 8 * word as u64, value);
            }
        }
        let count = self.word(control::COUNT);
        count.store(batch.len() as u32, Ordering::Relaxed);
        self.batch = self.batch.wrapping_add(1);
        let number = self.word(control::BATCH);
        number.store(self.batch, Ordering::SeqCst);
        wake(number);
        let result = match read_byte(&self.results) {
            Ok(Some(0)) => return Ok(()),
            Ok(Some(error)) => read_byte(&self.results).map(|number| number.zip(Some(error))),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match result {
            Ok(Some((number, error))) => Err(MappingError {
                command: batch.get(usize::from(number)).copied(),
                cause: Cause::Host(io::Error::from_raw_os_error(error.into())),
            }),
            // The process, which alone has the pipe's other end, is gone.
            Ok(None) => Err(gone(self.lose(Death::Inconsistent))),
            Err(error) => Err(MappingError {
                command: None,
                cause: Cause::Host(error),
            }),
        }
    }

    fn word(&self, word: u64) -> &std::sync::atomic::AtomicU32 {
        self.pages
            .word(self.layout.shared_offset(self.layout.control(word)))
    }

    /// Runs the program from this state until it leaves native code. Queued changes of mappings are
    /// made first.
    ///
    /// # Errors
    /// The state is one that only translated code can run; nothing has happened.
    pub fn run(&mut self, state: &mut UserState) -> Result<Exit, Refused> {
        state.check(&self.layout.reserved())?;
        if let Some(death) = self.death {
            return Ok(Exit::Died(death));
        }
        if let Err(error) = self.flush() {
            return Ok(match error.cause {
                Cause::Died(death) => Exit::Died(death),
                _ => Exit::MappingFailed(error),
            });
        }
        self.follow();
        loop {
            self.kick.begin();
            if self.kick.take() {
                self.kick.end();
                return Ok(Exit::Kicked);
            }
            self.frame.load(&self.pages, state);
            self.go();
            let waited = self.wait();
            self.kick.end();
            if let Err(death) = waited {
                return Ok(Exit::Died(death));
            }
            let mut left = state.clone();
            match self.frame.read(&self.pages, &mut left) {
                Report::Exit(exit) => {
                    *state = left;
                    return Ok(exit);
                }
                Report::Kick => {
                    *state = left;
                    if self.kick.take() {
                        return Ok(Exit::Kicked);
                    }
                    // The signal of a kick that an earlier run has reported.
                    if state.check(&self.layout.reserved()).is_err() {
                        return Ok(Exit::Kicked);
                    }
                }
                Report::Broken(death) => return Ok(Exit::Died(self.lose(death))),
            }
        }
    }

    /// Lets the runner begin its next turn.
    fn go(&mut self) {
        self.turn = self.turn.wrapping_add(1).max(1);
        let go = self.word(control::GO);
        go.store(self.turn, Ordering::SeqCst);
        let sleeps = self.layout.announce(announce::RUNNER_SLEEPS);
        let sleeps = self.pages.word(self.layout.shared_offset(sleeps));
        if sleeps.load(Ordering::SeqCst) != 0 {
            wake(go);
        }
    }

    /// Waits until the runner's turn has ended.
    fn wait(&mut self) -> Result<(), Death> {
        let offset = self
            .layout
            .shared_offset(self.layout.announce(announce::DONE));
        for _ in 0..self.spins {
            if self.pages.word(offset).load(Ordering::SeqCst) == self.turn {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.word(control::MONITOR_SLEEPS)
            .store(1, Ordering::SeqCst);
        let result = self.sleep(offset);
        self.word(control::MONITOR_SLEEPS)
            .store(0, Ordering::SeqCst);
        result
    }

    fn sleep(&mut self, offset: u64) -> Result<(), Death> {
        let mut patience = None;
        let mut looked = Instant::now();
        loop {
            let done = self.pages.word(offset).load(Ordering::SeqCst);
            if done == self.turn {
                return Ok(());
            }
            // 0 is what the kernel writes when a task ends; a program can write it, too.
            let is_time = looked.elapsed() >= LOOK;
            if done == 0 || is_time {
                self.look()?;
            }
            if is_time {
                looked = Instant::now();
                // A program may have lied about whether the runner sleeps.
                wake(self.word(control::GO));
                if self.kick.is_kicked() {
                    self.kick.signal();
                    let patience = patience.get_or_insert_with(|| Patience::new(self.number));
                    if patience.is_over(self.number) {
                        return Err(self.lose(Death::Unresponsive));
                    }
                }
            }
            sleep_on(self.pages.word(offset), done, LOOK);
        }
    }

    /// Looks whether the process still lives.
    fn look(&mut self) -> Result<(), Death> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(self.kick.process.as_fd()), options) {
            Ok(None) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(Some(status)) => {
                self.is_reaped = true;
                let signal = status.terminating_signal().map(Death::Signal);
                let code = status.exit_status().unwrap_or_default();
                let death = signal.unwrap_or(Death::Ended(code));
                self.death = Some(death);
                Err(death)
            }
            // Another part of the program has reaped it.
            Err(_) => {
                self.is_reaped = true;
                self.death = Some(Death::Ended(0));
                Err(Death::Ended(0))
            }
        }
    }

    /// Ends the process for this reason, unless it ended for one of its own.
    fn lose(&mut self, death: Death) -> Death {
        // When the pipe or a task is gone, the rest of the process follows shortly.
        if let Err(death) = self.look() {
            return death;
        }
        if death == Death::Inconsistent {
            std::thread::sleep(Duration::from_millis(1));
            if let Err(death) = self.look() {
                return death;
            }
        }
        self.death = Some(death);
        self.kill();
        death
    }

    fn kill(&mut self) {
        if !self.is_reaped {
            let _ = pidfd_send_signal(&self.kick.process, Signal::KILL);
            let _ = spawn::reap(&self.kick.process);
            self.is_reaped = true;
        }
    }

    /// What makes the program leave native code, for other threads and signal handlers.
    pub fn kicker(&self) -> Kicker {
        Kicker::new(Arc::clone(&self.kick))
    }

    /// The x87 and vector registers, in XSAVE's standard form, in place: they are the program's when
    /// a run has returned, and are loaded by the next. The program can write these bytes while it
    /// runs, so they must not be reached through references. The legacy area's bytes 464 to 511 and
    /// the header are the kernel's, except for XSTATE_BV.
    pub fn vectors(&self) -> NonNull<[u8]> {
        let (offset, size) = self.frame.vectors();
        NonNull::slice_from_raw_parts(self.pages.bytes(offset, size), size)
    }

    /// The state components that [`Self::vectors`] holds (bits as in XCR0).
    pub const fn vector_components(&self) -> u64 {
        self.frame.features()
    }

    /// Copies [`Self::vectors`], or the beginning of it.
    pub fn read_vectors(&self, to: &mut [u8]) {
        let (offset, size) = self.frame.vectors();
        for (index, to) in to[..].chunks_mut(8).enumerate().take(size / 8) {
            let word = self.pages.get(offset + 8 * index as u64).to_le_bytes();
            to.copy_from_slice(&word[..to.len()]);
        }
    }

    /// Overwrites [`Self::vectors`], or the beginning of it, in whole words of 8 bytes.
    pub fn write_vectors(&mut self, from: &[u8]) {
        let (offset, size) = self.frame.vectors();
        for (index, from) in from.as_chunks::<8>().0.iter().enumerate().take(size / 8) {
            let word = u64::from_le_bytes(*from);
            self.pages.set(offset + 8 * index as u64, word);
        }
    }
}

impl Drop for SpaceProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How long a program that was kicked may take.
struct Patience {
    since: Instant,
    processor_time: Duration,
}

impl Patience {
    fn new(process: i32) -> Self {
        Self {
            since: Instant::now(),
            processor_time: processor_time(process),
        }
    }

    fn is_over(&self, process: i32) -> bool {
        let used = processor_time(process).saturating_sub(self.processor_time);
        used > KICKED_PROCESSOR_TIME || self.since.elapsed() > KICKED_TIME
    }
}
