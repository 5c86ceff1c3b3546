//! The line between the machine's thread and the thread that has gdb's connection.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What arrives on the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromDebugger {
    /// A debugger has connected. The machine stops.
    Connected,
    /// Bytes of the debugger.
    Bytes(Vec<u8>),
    /// The debugger has gone. The machine continues.
    Gone,
}

/// The machine's end of the line.
pub struct DebugLine {
    incoming: Receiver<FromDebugger>,
    outgoing: Arc<dyn Fn(u64, Vec<u8>) + Send + Sync>,
    /// The number of debuggers that have connected.
    connected: Cell<u64>,
}

impl DebugLine {
    /// Makes a line. What the machine says goes to `outgoing`, with the number of the debugger that it is
    /// for: 1 for the first that has connected, and so on. What is put into the sender must be
    /// followed by [`VmHandle::wake_debugger`](crate::vm_handle::VmHandle::wake_debugger).
    pub fn new(
        outgoing: impl Fn(u64, Vec<u8>) + Send + Sync + 'static,
    ) -> (Sender<FromDebugger>, Self) {
        let (sender, incoming) = channel();
        let line = Self {
            incoming,
            outgoing: Arc::new(outgoing),
            connected: Cell::default(),
        };
        (sender, line)
    }

    /// Takes what has arrived next, if anything has.
    pub(super) fn take(&self) -> Option<FromDebugger> {
        let arrived = self.incoming.try_recv().ok()?;
        if arrived == FromDebugger::Connected {
            self.connected.set(self.connected.get() + 1);
        }
        Some(arrived)
    }

    /// Returns where the machine's bytes go.
    pub(super) fn outgoing(&self) -> Outgoing {
        Outgoing {
            send: Arc::clone(&self.outgoing),
            debugger: self.connected.get(),
            bytes: Vec::new(),
        }
    }
}

/// The machine's bytes for the debugger, which are sent together.
pub struct Outgoing {
    send: Arc<dyn Fn(u64, Vec<u8>) + Send + Sync>,
    debugger: u64,
    bytes: Vec<u8>,
}

impl Outgoing {
    /// Sends bytes at once.
    pub(super) fn say(&self, bytes: &[u8]) {
        (self.send)(self.debugger, bytes.to_vec());
    }
}

impl gdbstub::conn::Connection for Outgoing {
    type Error = std::convert::Infallible;

    fn write(&mut self, byte: u8) -> Result<(), Self::Error> {
        self.bytes.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Self::Error> {
        if !self.bytes.is_empty() {
            (self.send)(self.debugger, std::mem::take(&mut self.bytes));
        }
        Ok(())
    }
}
