//! A space process: started, given mappings, run, killed.

use crate::exit::{Death, Exit};
use crate::frame::{Frame, Report};
use crate::image::{self, Instruction};
use crate::kicker::{KickState, Kicker};
use crate::layout::{self, COMMAND, COMMANDS, DEFAULT_PLACE, Layout, PAGE, announce, control};
use crate::mapping::{Cause, Command, MappingError, Queue, Rights};
use crate::shared_memory::{SharedPages, processor_time, sleep_on, wake};
use crate::spawn::{self, Descriptors};
use crate::state::{Refused, UserState};
use rustix::fs::MemfdFlags;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How a process is made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many PAUSE instructions each side executes while it looks for the other before it
    /// sleeps. With one processor for both, 0 is best.
    pub spins: u32,
    /// Where the stub lies. It must be a multiple of a page, not within 64 GiB of the end of the
    /// addresses of programs, where Linux puts the first stack.
    pub place: u64,
    /// What CPUID does.
    pub cpuid: Instruction,
    /// What RDTSC and RDTSCP do.
    pub time_stamp_counter: Instruction,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            spins: 0,
            place: DEFAULT_PLACE,
            cpuid: Instruction::Runs,
            time_stamp_counter: Instruction::Runs,
        }
    }
}

/// What the process got of what [`Settings`] asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What CPUID does.
    pub cpuid: Instruction,
    /// What RDTSC and RDTSCP do.
    pub time_stamp_counter: Instruction,
}

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
    pages: SharedPages,
    results: OwnedFd,
    ram_size: u64,
    kick: Arc<KickState>,
    frame: Frame,
    queue: Queue,
    turn: u32,
    batch: u32,
    spins: u32,
    facts: Facts,
    /// Why it is gone.
    death: Option<Death>,
    /// Whether it has been reaped.
    is_reaped: bool,
}

/// The pages of the signal stack: what the kernel says a frame takes at most, and some room.
fn stack_pages() -> u64 {
    // SAFETY: getauxval only reads what the kernel has passed to this process.
    let least = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    let least = if least == 0 { 12 << 10 } else { least };
    (least + 2048).div_ceil(PAGE)
}

impl SpaceProcess {
    /// Starts a process for programs of the guest with this memory. The calling thread must live as
    /// long as the process is used.
    ///
    /// # Errors
    /// The host refuses; [`crate::probe`] says why in words.
    pub fn start(ram: BorrowedFd<'_>, settings: Settings) -> io::Result<Self> {
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

    /// Has the mapper make a batch of changes.
    fn make(&mut self, batch: &[Command]) -> Result<(), MappingError> {
        let gone = |death| MappingError {
            command: batch.first().copied(),
            cause: Cause::Died(death),
        };
        if let Some(death) = self.death {
            return Err(gone(death));
        }
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
    fn finish(self, settings: Settings, ram_size: u64) -> io::Result<SpaceProcess> {
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
        };
        Ok(SpaceProcess {
            layout: self.layout,
            number: self.number,
            pages: self.pages,
            results: self.results,
            ram_size,
            kick: self.kick,
            frame,
            queue: Queue::default(),
            turn: 1,
            batch: 0,
            spins: settings.spins,
            facts,
            death: None,
            is_reaped: false,
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

/// The next byte of the pipe, or nothing if no process has its other end.
fn read_byte(results: &OwnedFd) -> io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        match rustix::io::read(results, &mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
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
