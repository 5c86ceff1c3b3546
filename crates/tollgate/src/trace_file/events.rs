//! Writes events as entries of a trace's list, in the format of Chrome's trace viewer.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use serde_json::Value;
use tollgate_exits::ExitKind;
use tollgate_exits::snapshot::SymbolAt;
use tollgate_exits::trace::{Span, TraceEvent};

/// The text before the first event. It names the track of events that are in no exit, before the
/// first exit. Some viewers take zeros for the idle threads of a kernel, so the track's numbers are
/// not zero.
pub const BEGINNING: &str = concat!(
    "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n",
    "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"tollgate\"}},\n",
    "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"before the first exit\"}}"
);

/// The place where viewers show an event. An address space is a process for them and a kind of exit
/// is one of its threads, so events can be grouped in both ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Track {
    process: usize,
    thread: usize,
}

impl Default for Track {
    /// The track that [`BEGINNING`] names.
    fn default() -> Self {
        Self {
            process: 1,
            thread: 1,
        }
    }
}

/// The tracks that have events so far.
#[derive(Default)]
pub struct Tracks {
    spaces: HashMap<u64, usize>,
    known: HashSet<(usize, ExitKind)>,
    /// The track of the exit that contains the next events.
    current: Track,
    new: String,
}

/// The number of spaces that get tracks of their own; further spaces share one.
const MOST_SPACES: usize = 1000;

impl Tracks {
    /// The track of an event. An event inside an exit is on the exit's track.
    pub fn of(&mut self, event: &TraceEvent) -> Track {
        let Span::Exit(kind) = event.span else {
            return self.current;
        };
        let space = event.place.space;
        // Number 1 belongs to no space.
        let next = self.spaces.len() + 2;
        let process = match self.spaces.get(&space) {
            Some(process) => *process,
            None if self.spaces.len() >= MOST_SPACES => next,
            None => {
                self.spaces.insert(space, next);
                self.name("process_name", next, 0, &format!("space {space:08x}"));
                next
            }
        };
        let thread = kind as usize + 1;
        if self.known.insert((process, kind)) {
            self.name("thread_name", process, thread, kind.name());
        }
        self.current = Track { process, thread };
        self.current
    }

    fn name(&mut self, what: &str, process: usize, thread: usize, name: &str) {
        // Writing to a string cannot fail.
        let _ = write!(
            self.new,
            ",\n{{\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"name\":\"{what}\",\"args\":{{\"name\":\"{name}\"}}}}"
        );
    }

    /// Entries that name the tracks that are new since the last call.
    pub fn new_names(&mut self) -> Option<String> {
        let new = std::mem::take(&mut self.new);
        (!new.is_empty()).then_some(new)
    }
}

/// The clock of a trace.
pub struct Clock {
    /// The frequency of the time-stamp counter in kilohertz.
    khz: u64,
    /// The counter at the first event.
    zero: Option<u64>,
}

impl Clock {
    /// A clock of `khz` kilohertz that begins with the first event.
    pub fn new(khz: u64) -> Self {
        Self {
            khz: khz.max(1),
            zero: None,
        }
    }

    /// Nanoseconds from the first event to this time.
    pub fn nanoseconds(&self, time: u64) -> u64 {
        let cycles = time.wrapping_sub(self.zero.unwrap_or(time));
        let nanoseconds = u128::from(cycles) * 1_000_000 / u128::from(self.khz);
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }

    /// One complete event ("X") after a comma, with times in microseconds.
    pub fn entry(
        &mut self,
        text: &mut String,
        event: &TraceEvent,
        track: Track,
        symbol: Option<SymbolAt<'_>>,
    ) {
        self.zero.get_or_insert(event.start);
        let start = self.nanoseconds(event.start);
        // The duration is computed from the rounded end, so that contained events stay inside.
        let end = self.nanoseconds(event.start.wrapping_add(event.cycles));
        let length = end.saturating_sub(start);
        let Track { process, thread } = track;
        let micros = |ns: u64| (ns / 1000, ns % 1000);
        let ((start, start_rest), (length, length_rest)) = (micros(start), micros(length));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            ",\n{{\"ph\":\"X\",\"pid\":{process},\"tid\":{thread},\"ts\":{start}.{start_rest:03},\"dur\":{length}.{length_rest:03},\"name\":\"{}\"",
            event.span.name()
        );
        if let Span::Exit(_) = event.span {
            let _ = write!(
                text,
                ",\"cat\":\"exit\",\"args\":{{\"address\":\"{:08x}\",\"space\":\"{:08x}\"",
                event.place.linear, event.place.space
            );
            if let Some(SymbolAt { name, distance }) = symbol {
                // The name comes from a file that anyone may have written, so it is escaped.
                let name = Value::from(format!("{name}+{distance:#x}"));
                let _ = write!(text, ",\"symbol\":{name}");
            }
            text.push('}');
        } else {
            text.push_str(",\"cat\":\"inside\"");
        }
        text.push('}');
    }
}
