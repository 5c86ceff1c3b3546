//! Lets a signal end an experiment: the first one stops it and its running machines, so that what is finished can be
//! shown; a second one ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tollgate_lab::experiment::Stop;

use crate::exit_code;
use crate::failure::Failure;
use crate::signals::{Asked, Signals};

/// The signal that has ended an experiment, if one came.
pub struct Interruption(Arc<AtomicI32>);

impl Interruption {
    /// Blocks the signals in this thread and in those that it starts later, and requests `stop` when one comes. This must
    /// be called before the first other thread exists.
    ///
    /// # Errors
    ///
    /// One line says what the host refuses.
    pub fn of(stop: &Stop) -> Result<Self, Failure> {
        let signals = Signals::block()
            .map_err(|error| Failure::host(format!("cannot receive signals: {error}")))?;
        let number = Arc::new(AtomicI32::new(0));
        let (seen, stop) = (Arc::clone(&number), stop.clone());
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || wait(&signals, &seen, &stop))
            .map_err(|error| Failure::host(format!("cannot start a thread: {error}")))?;
        Ok(Self(number))
    }

    /// The exit code that stands for the signal; `None` if none came.
    pub fn exit_code(&self) -> Option<u8> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(exit_code::for_signal(signal)),
        }
    }
}

fn wait(signals: &Signals, seen: &AtomicI32, stop: &Stop) {
    loop {
        if signals.poll(&mut [], None).is_err() {
            return;
        }
        while let Some(asked) = signals.next() {
            let Asked::Signal(signal) = asked else {
                continue;
            };
            if seen.swap(signal, Ordering::SeqCst) != 0 {
                std::process::exit(exit_code::for_signal(signal).into());
            }
            stop.request();
        }
    }
}
