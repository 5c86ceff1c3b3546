//! Limits inside the process: a thread counts what the process takes. While that is more than the limit,
//! the virtual processor rests, and so asks for nothing. Too much memory ends the machine.
//!
//! Memory is counted twice. The number of resident pages costs nothing to read, but has a page of the
//! guest once for each window through which the process has touched it. Only if that number is over
//! the limit, the proportional size is read, which has each page once and takes the host milliseconds.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tollgate_confine::ThreadKind;
use tollgate_machine::vm_handle::VmHandle;

use super::bucket::Bucket;
use super::{ARE_EXCEEDED, HostLimits};
use crate::failure::say;

/// How often is counted.
const PERIOD: Duration = Duration::from_millis(50);
/// The longest rest that is asked for in one go; afterwards it is counted again.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// After a look at the proportional size, that takes as long as it did, the next one is this many
/// times as long away.
const EXACT_PAUSE: u32 = 50;
/// More than a file about this process has.
const MOST_BYTES: usize = 4096;

/// Starts the thread.
///
/// # Errors
/// The host does not count, or starts no thread.
pub fn begin(limits: HostLimits, handle: VmHandle) -> io::Result<()> {
    let mut watch = Watch::new(limits)?;
    let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
    thread::Builder::new().name("limits".into()).spawn(move || {
        entry.enter();
        loop {
            thread::sleep(PERIOD);
            match watch.look() {
                Verdict::Rest(rest) if rest.is_zero() => {}
                Verdict::Rest(rest) => handle.rest(rest.min(LONGEST_REST)),
                Verdict::End(bytes) => {
                    let mebibytes = bytes >> 20;
                    say(&format!(
                        "the machine took {mebibytes} MiB of this host's memory, more than --limit memory= \
                         allows, and was ended"
                    ));
                    ARE_EXCEEDED.store(true, Ordering::Relaxed);
                    handle.quit();
                    return;
                }
            }
        }
    })?;
    Ok(())
}

/// What follows from the counts.
enum Verdict {
    /// How long the processor must rest.
    Rest(Duration),
    /// The machine ends, because it took this much memory.
    End(u64),
}

struct Watch {
    time: Option<Counter>,
    storage: Option<Counter>,
    memory: Option<u64>,
    /// /proc/self/io, /proc/self/statm and /proc/self/smaps_rollup, as far as they are needed.
    io: Option<File>,
    statm: Option<File>,
    rollup: Option<File>,
    looked: Instant,
    /// When the proportional size may be read again.
    exact_at: Instant,
}

/// Something that is counted, and its rate.
struct Counter {
    bucket: Bucket,
    last: f64,
}

impl Counter {
    fn new(rate: f64, last: f64) -> Self {
        let bucket = Bucket::new(rate);
        Self { bucket, last }
    }

    fn look(&mut self, passed: Duration, now: f64) -> Duration {
        let taken = (now - std::mem::replace(&mut self.last, now)).max(0.0);
        self.bucket.take(passed, taken)
    }
}

impl Watch {
    fn new(limits: HostLimits) -> io::Result<Self> {
        let open = |wanted: bool, path: &str| match wanted {
            true => File::open(path).map(Some),
            false => Ok(None),
        };
        let io = open(limits.storage.is_some(), "/proc/self/io")?;
        let statm = open(limits.memory.is_some(), "/proc/self/statm")?;
        let rollup = open(limits.memory.is_some(), "/proc/self/smaps_rollup")?;
        let stored = io.as_ref().map(storage_bytes).transpose()?.unwrap_or(0.0);
        Ok(Self {
            time: limits
                .processors
                .map(|rate| Counter::new(rate, processor_seconds())),
            storage: limits.storage.map(|rate| Counter::new(rate as f64, stored)),
            memory: limits.memory,
            io,
            statm,
            rollup,
            looked: Instant::now(),
            exact_at: Instant::now(),
        })
    }

    fn look(&mut self) -> Verdict {
        let now = Instant::now();
        if let (Some(limit), Some(statm), Some(rollup)) = (self.memory, &self.statm, &self.rollup)
            && resident_bytes(statm).is_some_and(|bytes| bytes > limit)
            && self.exact_at <= now
        {
            let exact = proportional_bytes(rollup);
            self.exact_at = Instant::now() + now.elapsed() * EXACT_PAUSE;
            if let Some(bytes) = exact.filter(|bytes| *bytes > limit) {
                return Verdict::End(bytes);
            }
        }
        let passed = now - std::mem::replace(&mut self.looked, now);
        let mut rest = Duration::ZERO;
        if let Some(time) = &mut self.time {
            rest = time.look(passed, processor_seconds());
        }
        if let (Some(storage), Some(io)) = (&mut self.storage, &self.io)
            && let Ok(bytes) = storage_bytes(io)
        {
            rest = rest.max(storage.look(passed, bytes));
        }
        Verdict::Rest(rest)
    }
}

/// The processor time of all threads of this process.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A file about this process, as it is now.
fn text(file: &File) -> io::Result<String> {
    let mut bytes = [0; MOST_BYTES];
    let count = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

/// The bytes that this process has made the host's storage read and write (proc(5)).
fn storage_bytes(io: &File) -> io::Result<f64> {
    let text = text(io)?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().parse::<u64>().ok()
    };
    match (value("read_bytes"), value("write_bytes")) {
        (Some(read), Some(written)) => Ok(read as f64 + written as f64),
        _ => Err(io::Error::other("/proc/self/io has no counts of bytes")),
    }
}

/// The bytes of memory that this process has, where pages that others have too count as a part
/// (proc(5)).
fn proportional_bytes(rollup: &File) -> Option<u64> {
    let text = text(rollup).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// The bytes of memory that this process has, with each mapping of a page for itself (proc(5)).
fn resident_bytes(statm: &File) -> Option<u64> {
    let pages: u64 = text(statm)
        .ok()?
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(limits: &str) -> Verdict {
        Watch::new(HostLimits::parse(limits).unwrap())
            .unwrap()
            .look()
    }

    #[test]
    fn memory_over_the_limit_ends_the_machine() {
        assert!(matches!(verdict("memory=1K"), Verdict::End(bytes) if bytes > 1024));
        assert!(matches!(verdict("memory=1T"), Verdict::Rest(rest) if rest.is_zero()));
    }

    #[test]
    fn a_page_that_is_mapped_often_counts_once() {
        let statm = File::open("/proc/self/statm").unwrap();
        let rollup = File::open("/proc/self/smaps_rollup").unwrap();
        let resident = resident_bytes(&statm).unwrap();
        let proportional = proportional_bytes(&rollup).unwrap();
        assert!(
            (1..=resident).contains(&proportional),
            "{proportional} of {resident}"
        );
    }

    #[test]
    fn time_over_the_limit_is_a_rest() {
        let mut watch = Watch::new(HostLimits::parse("cpu=1%").unwrap()).unwrap();
        let begin = processor_seconds();
        // A tenth of a second is what a hundredth of a processor has in ten seconds.
        while processor_seconds() < begin + 0.1 {
            std::hint::black_box(0);
        }
        watch.looked = Instant::now();
        assert!(matches!(watch.look(), Verdict::Rest(rest) if rest > Duration::from_secs(1)));
    }

    #[test]
    fn storage_is_counted_by_the_host() {
        let io = File::open("/proc/self/io").unwrap();
        assert!(storage_bytes(&io).unwrap() >= 0.0);
        assert!(matches!(verdict("io=1T"), Verdict::Rest(rest) if rest.is_zero()));
    }
}
