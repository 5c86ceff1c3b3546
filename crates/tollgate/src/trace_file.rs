//! `--trace`: writes every exit with its time, as JSON for Chrome's trace viewer, which Perfetto
//! opens.
//!
//! A thread of its own takes the events from the vCPU thread and writes them, so that a slow or
//! full disk never delays the guest. A file is complete, valid JSON from the guest's first
//! instruction on, whenever and however the process ends: see [`pages`]. A pipe is written as one
//! stream.

mod events;
mod pages;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tollgate_confine::ThreadKind;
use tollgate_exits::trace::{self, TraceEvent, TraceEvents, Tracer};

use tollgate_host_facts::file_words::writing;
use tollgate_machine::vm::Vm;

use crate::failure::{Failure, say};
use crate::files;
use crate::statistics::{Reporter, StatisticsArguments};
use events::{BEGINNING, Clock, Tracks};
use pages::{Pages, Store};

/// How long the writer may take for the remaining events when the machine has ended.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The size that a trace may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// The maximum number of bytes.
    pub limit: u64,
    /// Whether the oldest events are dropped when the trace is full, instead of the newest.
    pub is_ring: bool,
}

/// A trace while it is written.
pub struct TraceFile {
    path: PathBuf,
    ended: Receiver<Result<Summary, io::Error>>,
}

/// The result of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Summary {
    /// The number of events in the file.
    events: u64,
    /// The number of events that the disk was too slow for.
    dropped: u64,
    /// The time from the first event until the limit was reached.
    full_after_ns: Option<u64>,
}

impl TraceFile {
    /// Lets exits be recorded if the command line says so.
    ///
    /// # Errors
    ///
    /// The errors of [`TraceFile::start`].
    pub fn begin(
        arguments: &StatisticsArguments,
        reporter: &Arc<Reporter>,
        vm: &mut Vm,
    ) -> Result<Option<Self>, Failure> {
        let Some(path) = &arguments.trace else {
            return Ok(None);
        };
        let size = Size {
            limit: arguments.trace_limit,
            is_ring: arguments.trace_ring,
        };
        let (file, tracer) = Self::start(path, size, vm.tsc_khz(), reporter)?;
        vm.plan_trace(tracer, arguments.trace_since, arguments.trace_until);
        Ok(Some(file))
    }

    /// Creates the file and starts the thread that writes to it, at most as much as `size` says.
    /// `khz` is the frequency of the time-stamp counter. The tracer belongs to the vCPU.
    ///
    /// # Errors
    ///
    /// One line says that the file cannot be written, or that the host gives no thread.
    fn start(
        path: &Path,
        size: Size,
        khz: u64,
        reporter: &Arc<Reporter>,
    ) -> Result<(Self, Tracer), Failure> {
        let file = files::create(path, "--trace")?;
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if size.is_ring && !is_file {
            return Err(Failure::usage(
                "--trace-ring needs a file, of which parts can be written again",
            ));
        }
        let reporter = Arc::clone(reporter);
        let mut writer = Writer::new(file, is_file, size, khz, reporter).map_err(|error| {
            let path = path.display();
            let room = match is_file {
                true => "; its room, of --trace-limit, is taken at the start",
                false => "",
            };
            Failure::usage(format!(
                "--trace: cannot write '{path}': {}{room}",
                writing(&error)
            ))
        })?;
        let (tracer, events) = trace::channel();
        let (sender, ended) = channel();
        std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || {
                tollgate_confine::enter(ThreadKind::Disk);
                let result = writer.run(&events);
                events.stop();
                // Later events change nothing, so the receiver is dropped.
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

    /// Waits until everything is written, and reports what is missing. Returns false if the file
    /// could not be written. The tracer must have been dropped.
    pub fn finish(self) -> bool {
        let path = self.path.display();
        let ended = self.ended.recv_timeout(END_PATIENCE);
        let message = match ended {
            Ok(Ok(summary)) => {
                if let Some(complaint) = complaint(&summary) {
                    say(&format!("--trace: '{path}' {complaint}"));
                }
                return true;
            }
            Ok(Err(error)) => {
                let why = writing(&error);
                format!("--trace: cannot write '{path}': {why}; it is incomplete")
            }
            Err(RecvTimeoutError::Timeout) => {
                format!("--trace: '{path}' takes too long to write; it is incomplete")
            }
            Err(RecvTimeoutError::Disconnected) => format!("--trace: '{path}' is incomplete"),
        };
        say(&message);
        false
    }
}

/// The message about an incomplete trace.
fn complaint(summary: &Summary) -> Option<String> {
    let full = summary.full_after_ns.map(|ns| {
        format!(
            "reached its limit (--trace-limit) {:.3} s after the first exit; later ones are not in it",
            ns as f64 / 1e9
        )
    });
    match (full, summary.dropped) {
        // Batches are lost before and after the limit, and the two are not distinguished.
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

/// The place that events are written to.
enum Sink<F> {
    Pages(Pages<F>),
    /// A place that cannot be written twice, with the number of bytes that it has taken.
    Stream(F, u64),
}

/// The writing side of a trace.
struct Writer<F> {
    sink: Sink<F>,
    limit: u64,
    clock: Clock,
    tracks: Tracks,
    summary: Summary,
    /// Adds names to instructions.
    reporter: Arc<Reporter>,
}

/// The number of bytes kept free for the end of a stream.
const END_ROOM: u64 = 256;

impl<F: Write + Store> Writer<F> {
    fn new(
        mut file: F,
        is_file: bool,
        size: Size,
        khz: u64,
        reporter: Arc<Reporter>,
    ) -> io::Result<Self> {
        let Size { limit, is_ring } = size;
        let summary = Summary::default();
        let sink = if is_file {
            Sink::Pages(Pages::new(file, limit, is_ring, BEGINNING, &end(&summary))?)
        } else {
            file.write_all(BEGINNING.as_bytes())?;
            Sink::Stream(file, BEGINNING.len() as u64)
        };
        Ok(Self {
            sink,
            limit,
            clock: Clock::new(khz),
            tracks: Tracks::default(),
            summary,
            reporter,
        })
    }

    fn run(&mut self, events: &TraceEvents) -> io::Result<Summary> {
        while let Some(batch) = events.next_batch() {
            self.summary.dropped = events.dropped();
            if !self.take(&batch, events.system_call_entry())? {
                break;
            }
        }
        self.summary.dropped = events.dropped();
        let end = end(&self.summary);
        match &mut self.sink {
            Sink::Pages(pages) => pages.finish(&end)?,
            Sink::Stream(file, _) => file.write_all(end.as_bytes())?,
        }
        Ok(self.summary)
    }

    /// Writes a batch; returns false if the limit is reached.
    fn take(&mut self, batch: &[TraceEvent], system_call_entry: u64) -> io::Result<bool> {
        let names = self.reporter.names_once_known(system_call_entry);
        let mut entry = String::new();
        let mut stream = String::new();
        let mut is_full = false;
        for event in batch {
            entry.clear();
            let track = self.tracks.of(event);
            if let Some(names) = self.tracks.new_names() {
                match &mut self.sink {
                    // If there is no room for a name, viewers show its number.
                    Sink::Pages(pages) => drop(pages.push_name(&names)?),
                    Sink::Stream(..) => stream.push_str(&names),
                }
            }
            let symbol = names.at(event.place);
            self.clock.entry(&mut entry, event, track, symbol);
            let is_taken = match &mut self.sink {
                Sink::Pages(pages) => pages.push(&entry)?,
                Sink::Stream(_, written) => {
                    let room = self.limit.saturating_sub(*written + END_ROOM);
                    stream.len() as u64 + entry.len() as u64 <= room
                }
            };
            if !is_taken {
                is_full = true;
                self.summary.full_after_ns = Some(self.clock.nanoseconds(event.start));
                break;
            }
            self.summary.events += 1;
            if let Sink::Stream(..) = self.sink {
                stream.push_str(&entry);
            }
        }
        match &mut self.sink {
            Sink::Pages(pages) => pages.flush(&end(&self.summary))?,
            Sink::Stream(file, written) => {
                file.write_all(stream.as_bytes())?;
                *written += stream.len() as u64;
            }
        }
        Ok(!is_full)
    }
}

/// The text that follows the last event.
fn end(summary: &Summary) -> String {
    format!(
        "\n],\"otherData\":{{\"events\":{},\"dropped\":{},\"full\":{}}}}}\n",
        summary.events,
        summary.dropped,
        summary.full_after_ns.is_some()
    )
}
