//! The threads that serve the command: they move its input and output, and obey the host.
//!
//! They are started before the command is known, and wait for what they need of it. So a guest that
//! continues from a snapshot has them already.

use crate::ports::{Control, Streams, receive_input};
use crate::protocol::{ToGuest, WindowSize, port};
use crate::refusal::Refusal;
use crate::streams::{Pump, Stop};
use crate::sys;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
/// The end of input for a terminal (Ctrl-D).
const END_OF_INPUT: u8 = 4;

/// The threads, each of which waits for its part of the command.
pub struct Workers {
    input: Sender<Input>,
    pumps: [Pump; 2],
    listener: Sender<Target>,
}

/// Where standard input goes.
pub struct Input {
    /// The agent's end of a pipe or terminal.
    pub file: File,
    /// Whether it is a terminal.
    pub is_terminal: bool,
}

/// What messages of the host are about.
pub struct Target {
    /// The command's process, and its group.
    pub process: i32,
    /// Its terminal, if it has one.
    pub terminal: Option<File>,
    /// What closes its outputs.
    pub outputs: [Option<Arc<Stop>>; 2],
}

impl Workers {
    /// Starts the threads.
    pub fn start(control: &Control, streams: Streams) -> Result<Self, Refusal> {
        let own = |error: io::Error| Refusal::own(format!("cannot serve a command: {error}"));
        // Each thread has a clone of the sender until it waits for its part of the command.
        let (starting, started) = channel::<()>();
        let (input, destination) = channel();
        let from_host = streams.input;
        let is_starting = starting.clone();
        thread::spawn(move || {
            drop(is_starting);
            if let Ok(destination) = destination.recv() {
                move_input(&from_host, destination);
            }
        });
        let [output, errors] = streams.outputs;
        let pumps = [
            Pump::start(output, starting.clone()).map_err(own)?,
            Pump::start(errors, starting.clone()).map_err(own)?,
        ];
        let (listener, target) = channel::<Target>();
        let control = control.another().map_err(own)?;
        thread::spawn(move || {
            drop(starting);
            if let Ok(target) = target.recv() {
                control.listen(|message| obey(message, &target));
            }
        });
        // This returns when no sender is left.
        let _ = started.recv();
        Ok(Self {
            input,
            pumps,
            listener,
        })
    }

    /// Begins to serve a command that runs: its process, its input, its terminal, and the sources
    /// of its output and its errors. Returns what must be finished when the command has ended.
    pub fn serve(
        self,
        process: i32,
        input: Input,
        terminal: Option<File>,
        sources: [Option<OwnedFd>; 2],
    ) -> [Pump; 2] {
        let Self {
            input: reader,
            pumps,
            listener,
        } = self;
        // The threads wait for this and have not ended.
        let _ = reader.send(input);
        let mut outputs = [None, None];
        for ((pump, source), stop) in pumps.iter().zip(sources).zip(&mut outputs) {
            if let Some(source) = source {
                pump.begin(source);
                *stop = Some(pump.stop());
            }
        }
        let _ = listener.send(Target {
            process,
            terminal,
            outputs,
        });
        pumps
    }
}

/// Moves standard input from the host to the command.
fn move_input(from_host: &File, to: Input) {
    let Input {
        mut file,
        is_terminal,
    } = to;
    let mut destination = Some(&mut file);
    receive_input(from_host, |bytes| {
        let end: &[u8] = if is_terminal { &[END_OF_INPUT] } else { &[] };
        let bytes = if bytes.is_empty() { end } else { bytes };
        // After an error no more bytes are written: the command has closed its input.
        if let Some(file) = &mut destination
            && file.write_all(bytes).is_err()
        {
            destination = None;
        }
    });
    // The pipe is closed here, which ends the command's input.
}

/// Executes a message of the host.
pub fn obey(message: ToGuest, target: &Target) {
    let process = target.process;
    match message {
        // Signals of keys and of a terminal that has gone reach all programs in the terminal's
        // foreground.
        ToGuest::Signal(signal @ (SIGHUP | SIGINT | SIGQUIT)) => {
            sys::send_signal(-process, signal);
        }
        ToGuest::Signal(signal) => sys::send_signal(process, signal),
        ToGuest::WindowSize(WindowSize { rows, columns }) => {
            if let Some(terminal) = &target.terminal {
                sys::set_window_size(terminal, rows, columns);
            }
        }
        ToGuest::Closed(number) => {
            let stop = number.checked_sub(port::OUTPUT);
            if let Some(Some(stop)) = stop.and_then(|index| target.outputs.get(index)) {
                stop.close();
            }
        }
    }
}
