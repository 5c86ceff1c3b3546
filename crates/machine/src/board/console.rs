//! Guest output on its way to a host file. It is buffered for a short time, so that a line costs
//! one system call and not eighty.

use std::io::{ErrorKind, Write};
use tollgate_platform::GuestTime;

/// The number of buffered bytes at which output is written immediately.
const WRITE_AT: usize = 1024;
/// The number of bytes that are kept while the sink accepts none. Older bytes are dropped.
const KEEP_AT_MOST: usize = 64 << 10;
/// How long output is buffered at most, in nanoseconds.
const PATIENCE: u64 = 2_000_000;

/// Buffered output. An error of the sink loses output and has no other effect.
pub struct Console {
    sink: Box<dyn Write + Send>,
    buffer: Vec<u8>,
    due: Option<GuestTime>,
}

impl Console {
    /// Makes a console that writes to `sink`. If the sink blocks, the guest blocks too.
    pub fn new(sink: Box<dyn Write + Send>) -> Self {
        Self {
            sink,
            buffer: Vec::new(),
            due: None,
        }
    }

    /// Replaces the sink. Buffered output is written to the old one first.
    pub fn set_sink(&mut self, sink: Box<dyn Write + Send>) {
        self.flush();
        self.sink = sink;
        self.buffer.clear();
        self.due = None;
    }

    /// Buffers output, and writes it if a line is complete or the buffer is large.
    pub fn push(&mut self, bytes: &[u8], now: GuestTime) {
        if bytes.is_empty() {
            return;
        }
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITE_AT || bytes.contains(&b'\n') {
            self.write_out(now);
        } else if self.due.is_none() {
            self.due = Some(now.after(PATIENCE));
        }
    }

    /// Returns when buffered output must be written.
    pub fn next_deadline(&self) -> Option<GuestTime> {
        self.due
    }

    /// Writes the output whose time has come.
    pub fn advance(&mut self, now: GuestTime) {
        if self.due.is_some_and(|due| due <= now) {
            self.write_out(now);
        }
    }

    /// Writes as much of the buffered output as the sink accepts.
    pub fn flush(&mut self) {
        self.write_out(GuestTime(0));
        let _ = self.sink.flush();
    }

    fn write_out(&mut self, now: GuestTime) {
        self.due = None;
        while !self.buffer.is_empty() {
            match self.sink.write(&self.buffer) {
                Ok(count) if count > 0 => {
                    self.buffer.drain(..count.min(self.buffer.len()));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let excess = self.buffer.len().saturating_sub(KEEP_AT_MOST);
                    self.buffer.drain(..excess);
                    self.due = Some(now.after(PATIENCE));
                    return;
                }
                Ok(_) | Err(_) => self.buffer.clear(),
            }
        }
        let _ = self.sink.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// A sink that accepts three bytes at a time, after some errors.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<(Vec<u8>, Vec<ErrorKind>)>>);

    impl Sink {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().0.clone()).unwrap()
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut inner = self.0.lock().unwrap();
            if let Some(kind) = inner.1.pop() {
                return Err(kind.into());
            }
            let count = bytes.len().min(3);
            inner.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_complete_line_is_written_at_once_and_a_prompt_after_a_while() {
        let sink = Sink::default();
        let mut console = Console::new(Box::new(sink.clone()));
        console.push(b"hello\nlogin: ", GuestTime(0));
        assert_eq!(sink.text(), "hello\nlogin: ");
        console.push(b"#", GuestTime(10));
        assert_eq!(sink.text(), "hello\nlogin: ");
        let due = console.next_deadline().unwrap();
        console.advance(due);
        assert_eq!(sink.text(), "hello\nlogin: #");
        assert_eq!(console.next_deadline(), None);
    }

    #[test]
    fn interrupted_writes_are_repeated_and_refused_ones_kept() {
        let sink = Sink::default();
        sink.0.lock().unwrap().1 = vec![ErrorKind::WouldBlock, ErrorKind::Interrupted];
        let mut console = Console::new(Box::new(sink.clone()));
        console.push(b"abcdef\n", GuestTime(0));
        assert_eq!(sink.text(), "");
        console.advance(console.next_deadline().unwrap());
        assert_eq!(sink.text(), "abcdef\n");
    }

    #[test]
    fn a_broken_sink_loses_output_and_nothing_else() {
        let sink = Sink::default();
        sink.0.lock().unwrap().1 = vec![ErrorKind::BrokenPipe];
        let mut console = Console::new(Box::new(sink.clone()));
        console.push(b"lost\n", GuestTime(0));
        console.push(b"kept\n", GuestTime(0));
        assert_eq!(sink.text(), "kept\n");
    }
}
