//! Events as entries of a trace's list, in the format of Chrome's trace viewer.

use std::fmt::Write;

use tollgate_exits::trace::{Span, TraceEvent};

/// What comes before the first event.
pub const BEGINNING: &str = concat!(
    "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n",
    "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"tollgate\"}},\n",
    "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"vCPU 0: exits\"}}"
);

/// The clock of a trace.
pub struct Clock {
    /// Kilohertz of the time-stamp counter.
    khz: u64,
    /// The counter at the first event.
    zero: Option<u64>,
}

impl Clock {
    /// A clock of so many kilohertz that begins with the first event.
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

    /// One complete event ("X"), behind a comma; times in microseconds.
    pub fn entry(&mut self, text: &mut String, event: &TraceEvent) {
        self.zero.get_or_insert(event.start);
        let start = self.nanoseconds(event.start);
        // From the rounded end, so that what lies inside stays inside.
        let end = self.nanoseconds(event.start.wrapping_add(event.cycles));
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
}
