//! `--trace FILE`: every exit with its time, in the JSON of Chrome's trace viewer, which
//! Perfetto opens.
//!
//! A thread of its own takes the events from the vCPU thread and writes them, so that a
//! slow or full disk never holds the guest up. Where the file allows it, it is complete,
//! valid JSON after every piece written: the end of the list is written with each piece,
//! and the next piece goes over it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tollgate_exits::trace::{self, Span, TraceEvent, TraceEvents, Tracer};

use crate::failure::{Failure, say};
use crate::files;

/// Room kept for the end of the list.
const END_ROOM: u64 = 512;
/// How long the writer may take for what is left when the machine has ended.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// A trace being written.
pub struct TraceFile {
    path: PathBuf,
    ended: Receiver<Result<Summary, io::Error>>,
}

/// What became of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Summary {
    /// Events in the file.
    events: u64,
    /// Events that the disk was too slow for.
    dropped: u64,
    /// The limit was reached this long after the first event.
    full_after_ns: Option<u64>,
}

impl TraceFile {
    /// Creates the file and starts the thread that writes at most `limit` bytes to it;
    /// `khz` is the frequency of the time-stamp counter. The tracer is the vCPU's.
    ///
    /// # Errors
    /// One line: the file cannot be written, or no thread could be had.
    pub fn start(path: &Path, limit: u64, khz: u64) -> Result<(Self, Tracer), Failure> {
        let file = files::create(path, "--trace")?;
        let (tracer, events) = trace::channel();
        let (sender, ended) = channel();
        std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || {
                let result = Writer::new(file, limit, khz).and_then(|mut w| w.run(&events));
                events.stop();
                // Events that come now make no difference.
                drop(events);
                let _ = sender.send(result);
            })
            .map_err(|error| Failure::host(format!("--trace: no thread: {error}")))?;
        let file = Self {
            path: path.to_owned(),
            ended,
        };
        Ok((file, tracer))
    }

    /// Waits until all is written, and says what is missing. The tracer must be gone.
    pub fn finish(self) {
        let path = self.path.display();
        let ended = self.ended.recv_timeout(END_PATIENCE);
        let message = match ended {
            Ok(Ok(summary)) => match complaint(&summary) {
                None => return,
                Some(complaint) => format!("--trace: '{path}' {complaint}"),
            },
            Ok(Err(error)) => format!("--trace: cannot write '{path}': {error}; it is incomplete"),
            Err(RecvTimeoutError::Timeout) => {
                format!("--trace: '{path}' takes too long to write; it is incomplete")
            }
            Err(RecvTimeoutError::Disconnected) => format!("--trace: '{path}' is incomplete"),
        };
        say(&message);
    }
}

/// What a person must know about a trace.
fn complaint(summary: &Summary) -> Option<String> {
    let full = summary.full_after_ns.map(|ns| {
        format!(
            "reached its limit (--trace-limit) {:.3} s after the first exit; later ones are not in it",
            ns as f64 / 1e9
        )
    });
    match (full, summary.dropped) {
        // Batches are lost before and behind the limit alike, and not told apart.
        (Some(full), 1..) => Some(format!(
            "{full}; up to {} earlier ones are missing, since they came faster than they could be written",
            summary.dropped
        )),
        (full, 0) => full,
        (None, dropped) => Some(format!(
            "lacks {dropped} events: they came faster than they could be written"
        )),
    }
}

/// The writing side.
struct Writer<F> {
    file: F,
    limit: u64,
    khz: u64,
    /// Length of the list so far, without its end.
    position: u64,
    /// The end can be overwritten.
    seekable: bool,
    /// Time of the first event.
    zero: Option<u64>,
    summary: Summary,
}

const BEGINNING: &str = concat!(
    "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n",
    "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"tollgate\"}},\n",
    "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"vCPU 0: exits\"}}"
);

impl<F: Write + Seek + Truncate> Writer<F> {
    fn new(mut file: F, limit: u64, khz: u64) -> io::Result<Self> {
        let seekable = file.stream_position().is_ok() && file.can_truncate();
        let mut writer = Self {
            file,
            limit,
            khz: khz.max(1),
            position: 0,
            seekable,
            zero: None,
            summary: Summary::default(),
        };
        writer.append(BEGINNING)?;
        Ok(writer)
    }

    fn run(&mut self, events: &TraceEvents) -> io::Result<Summary> {
        let result = self.take_all(events);
        self.summary.dropped = events.dropped();
        match result {
            Ok(()) => {
                let end = self.end();
                self.file.write_all(end.as_bytes())?;
                if self.seekable {
                    self.file.truncate(self.position + end.len() as u64)?;
                }
                Ok(self.summary)
            }
            Err(error) => {
                self.repair();
                Err(error)
            }
        }
    }

    fn take_all(&mut self, events: &TraceEvents) -> io::Result<()> {
        while let Some(batch) = events.next_batch() {
            self.summary.dropped = events.dropped();
            if !self.take(&batch)? {
                break;
            }
        }
        Ok(())
    }

    /// Writes a batch; false if the limit is reached.
    fn take(&mut self, batch: &[TraceEvent]) -> io::Result<bool> {
        let mut text = String::new();
        let mut count = 0;
        let mut is_full = false;
        for event in batch {
            let before = text.len();
            self.format(&mut text, event);
            let length = self.position + text.len() as u64;
            if length + END_ROOM > self.limit {
                text.truncate(before);
                is_full = true;
                let zero = self.zero.unwrap_or(0);
                self.summary.full_after_ns = Some(self.nanoseconds(event.start, zero));
                break;
            }
            count += 1;
        }
        let before = self.summary.events;
        self.summary.events += count;
        if let Err(error) = self.append(&text) {
            self.summary.events = before;
            return Err(error);
        }
        Ok(!is_full)
    }

    fn nanoseconds(&self, time: u64, zero: u64) -> u64 {
        let nanoseconds = u128::from(time.wrapping_sub(zero)) * 1_000_000 / u128::from(self.khz);
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }

    /// One complete event ("X"), times in microseconds.
    fn format(&mut self, text: &mut String, event: &TraceEvent) {
        use std::fmt::Write;
        let zero = *self.zero.get_or_insert(event.start);
        let start = self.nanoseconds(event.start, zero);
        // From the rounded end, so that what lies inside stays inside.
        let end = self.nanoseconds(event.start.wrapping_add(event.cycles), zero);
        let length = end.saturating_sub(start);
        let micros = |ns: u64| (ns / 1000, ns % 1000);
        let ((start, start_rest), (length, length_rest)) = (micros(start), micros(length));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":{start}.{start_rest:03},\"dur\":{length}.{length_rest:03},\"name\":\"{}\"",
            event.span.name()
        );
        if let Span::Exit(_) = event.span {
            let _ = write!(
                text,
                ",\"cat\":\"exit\",\"args\":{{\"address\":\"{:08x}\",\"space\":\"{:08x}\"}}",
                event.place.linear, event.place.space
            );
        } else {
            text.push_str(",\"cat\":\"inside\"");
        }
        text.push('}');
    }

    /// Writes more of the list, and where that is possible its end behind it.
    fn append(&mut self, text: &str) -> io::Result<()> {
        if !self.seekable {
            self.file.write_all(text.as_bytes())?;
            self.position += text.len() as u64;
            return Ok(());
        }
        let piece = format!("{text}{}", self.end());
        self.file.write_all(piece.as_bytes())?;
        self.position += text.len() as u64;
        self.file.seek(SeekFrom::Start(self.position))?;
        Ok(())
    }

    /// Everything behind the last event.
    fn end(&self) -> String {
        format!(
            "\n],\"otherData\":{{\"events\":{},\"dropped\":{},\"full\":{}}}}}\n",
            self.summary.events,
            self.summary.dropped,
            self.summary.full_after_ns.is_some()
        )
    }

    /// A piece could not be written: cuts it off again.
    fn repair(&mut self) {
        if self.seekable && self.file.truncate(self.position).is_ok() {
            let end = self.end();
            let _ = self.file.seek(SeekFrom::Start(self.position));
            let _ = self.file.write_all(end.as_bytes());
        }
    }
}

/// Files that can be cut.
trait Truncate {
    /// This file is of a kind that can be cut.
    fn can_truncate(&self) -> bool;
    /// Cuts the file.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl Truncate for File {
    fn can_truncate(&self) -> bool {
        self.metadata().is_ok_and(|metadata| metadata.is_file())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

#[cfg(test)]
#[path = "trace_file_tests.rs"]
mod tests;
