//! A space process: started, given mappings, run, killed.

use crate::exit::{Death, Exit};
use crate::frame::{Frame, Report};
use crate::kicker::{KickState, Kicker};
use crate::layout::{self, Layout, announce, control};
use crate::life::Life;
use crate::mapper::{Failure, Mapper};
use crate::mapping::{Cause, Command, MappingError, Queue, Rights};
use crate::patience::Patience;
use crate::processor_time::ProcessorClock;
use crate::seat;
use crate::settings::{Facts, Placement, Settings};
use crate::shared_memory::{SharedPages, sleep_on, sleep_on_both, wake};
use crate::start::Started;
use crate::state::{Refused, UserState};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the monitor sleeps before it looks whether the process still lives.
const LOOK: Duration = Duration::from_millis(100);
/// A process whose address space is a guest program's. It is killed and reaped when this is dropped,
/// and when the thread that started it ends.
pub struct SpaceProcess {
    layout: Layout,
    number: i32,
    mapper: Mapper,
    /// Number of the mapper's task.
    mapper_number: i32,
    pages: SharedPages,
    ram_size: u64,
    kick: Arc<KickState>,
    frame: Frame,
    queue: Queue,
    turn: u32,
    spins: u32,
    placement: Placement,
    /// The processor that both tasks were bound to last.
    processor: Option<usize>,
    facts: Facts,
    life: Life,
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
            mapper: Mapper::new(started.results),
            mapper_number: started.mapper,
            pages: started.pages,
            ram_size: started.ram_size,
            kick: started.kick,
            frame: started.frame,
            queue: Queue::default(),
            turn: 1,
            spins: settings.spins,
            placement: settings.placement,
            processor: None,
            facts: started.facts,
            life: started.life,
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

    const fn clock(&self) -> ProcessorClock {
        ProcessorClock::of(self.number)
    }

    /// The time for which the process has been on a processor. It is exact when a run has returned.
    pub fn processor_time(&self) -> Duration {
        self.clock().now()
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

    /// Binds the process to the processor that the calling thread [keeps](seat), if that is what was
    /// asked for.
    fn follow(&mut self, keep: impl FnOnce() -> Option<usize>) {
        if self.placement == Placement::Free {
            return;
        }
        let processor = keep();
        if processor.is_some() && processor != self.processor {
            self.processor = processor;
            self.life
                .bind(self.mapper_number, processor.unwrap_or_default());
        }
    }

    /// Has the mapper make a batch of changes.
    fn make(&mut self, batch: &[Command]) -> Result<(), MappingError> {
        let command = batch.first().copied();
        let gone = |death| MappingError {
            command,
            cause: Cause::Died(death),
        };
        if let Some(death) = self.life.death() {
            return Err(gone(death));
        }
        self.follow(seat::keep);
        let made = self.mapper.make(&self.pages, self.layout, batch);
        made.map_err(|failure| match failure {
            Failure::Change(error) => error,
            Failure::Gone => gone(self.life.lose(Death::Inconsistent)),
        })
    }

    fn word(&self, word: u64) -> &AtomicU32 {
        self.pages
            .word(self.layout.shared_offset(self.layout.control(word)))
    }

    /// Runs the program from this state until it leaves native code. Queued changes of mappings are
    /// made first.
    ///
    /// # Errors
    /// The state is one that only translated code can run; nothing has happened.
    pub fn run(&mut self, state: &mut UserState) -> Result<Exit, Refused> {
        static NEVER: AtomicU32 = AtomicU32::new(0);
        self.run_until(state, &NEVER)
    }

    /// Runs the program like [`Self::run`], and makes it leave when `interrupted` is no longer 0,
    /// which a signal handler on this thread may set at any time.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub fn run_until(
        &mut self,
        state: &mut UserState,
        interrupted: &AtomicU32,
    ) -> Result<Exit, Refused> {
        state.check(&self.layout.reserved())?;
        if let Some(death) = self.life.death() {
            return Ok(Exit::Died(death));
        }
        if let Err(error) = self.flush() {
            return Ok(failed(error));
        }
        self.follow(seat::keep_for_entry);
        loop {
            self.kick.begin();
            if self.kick.take() {
                self.kick.end();
                return Ok(Exit::Kicked);
            }
            self.frame.load(&self.pages, state);
            self.go();
            let waited = self.wait(interrupted);
            self.kick.end();
            if let Err(exit) = waited {
                return Ok(exit);
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
                Report::Broken(death) => return Ok(Exit::Died(self.life.lose(death))),
            }
        }
    }

    fn runner_sleeps(&self) -> bool {
        let sleeps = self.layout.announce(announce::RUNNER_SLEEPS);
        let sleeps = self.pages.word(self.layout.shared_offset(sleeps));
        sleeps.load(Ordering::SeqCst) != 0
    }

    /// Lets the runner begin its next turn.
    fn go(&mut self) {
        self.turn = self.turn.wrapping_add(1).max(1);
        let go = self.word(control::GO);
        go.store(self.turn, Ordering::SeqCst);
        if self.runner_sleeps() {
            wake(go);
        }
    }

    /// The word of the turn that has ended last, as far as the process says.
    fn done_word(&self) -> &AtomicU32 {
        let word = self.layout.announce(announce::DONE);
        self.pages.word(self.layout.shared_offset(word))
    }

    fn done(&self) -> u32 {
        self.done_word().load(Ordering::SeqCst)
    }

    /// Waits until the runner's turn has ended.
    fn wait(&mut self, interrupted: &AtomicU32) -> Result<(), Exit> {
        for _ in 0..self.spins {
            if self.done() == self.turn {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.word(control::MONITOR_SLEEPS)
            .store(1, Ordering::SeqCst);
        let result = self.sleep(interrupted);
        self.word(control::MONITOR_SLEEPS)
            .store(0, Ordering::SeqCst);
        result
    }

    /// Sleeps until the runner's turn has ended.
    fn sleep(&mut self, interrupted: &AtomicU32) -> Result<(), Exit> {
        let mut patience = None;
        let mut looked = Instant::now();
        loop {
            let done = self.done();
            if done == self.turn {
                return Ok(());
            }
            // 0 is what the kernel writes when a task ends; a program can write it, too.
            let is_time = looked.elapsed() >= LOOK;
            if done == 0 || is_time {
                self.life.look().map_err(Exit::Died)?;
            }
            if is_time {
                looked = Instant::now();
                // A program may have lied about whether the runner sleeps.
                wake(self.word(control::GO));
                if self.kick.is_kicked() {
                    self.kick.signal();
                    let patience = patience.get_or_insert_with(|| Patience::new(self.clock()));
                    if patience.is_over() {
                        return Err(Exit::Died(self.life.lose(Death::Unresponsive)));
                    }
                }
            }
            if interrupted.load(Ordering::SeqCst) == 0 {
                sleep_on_both((self.done_word(), done), interrupted, LOOK);
            }
            if interrupted.load(Ordering::SeqCst) != 0 {
                if !self.kick.is_kicked() {
                    self.kicker().kick();
                }
                sleep_on(self.done_word(), done, LOOK);
            }
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

    /// Copies a part of [`Self::vectors`] that begins at an offset.
    ///
    /// # Panics
    /// The part is not within it.
    pub fn read_vectors(&self, at: usize, to: &mut [u8]) {
        self.pages.read(self.part_of_vectors(at, to.len()), to);
    }

    /// Overwrites a part of [`Self::vectors`] that begins at an offset.
    ///
    /// # Panics
    /// The part is not within it.
    pub fn write_vectors(&mut self, at: usize, from: &[u8]) {
        self.pages.write(self.part_of_vectors(at, from.len()), from);
    }

    fn part_of_vectors(&self, at: usize, length: usize) -> u64 {
        let (offset, size) = self.frame.vectors();
        assert!(at <= size && length <= size - at, "a part of the vectors");
        offset + at as u64
    }
}

/// The exit for a failure of changes that a run makes.
fn failed(error: MappingError) -> Exit {
    match error.cause {
        Cause::Died(death) => Exit::Died(death),
        _ => Exit::MappingFailed(error),
    }
}
