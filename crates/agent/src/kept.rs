//! A guest that is kept: runs the commands that the host asks for, any number at once.
//!
//! ```text
//!   input port -> this thread -> channels -> a thread for each command: starts it, waits for its end
//!                                              its input: a thread      its outputs: a pump each
//!   output port <- frames, one at a time <--------------------------------------'
//! ```

use crate::command::{self, Running};
use crate::credit::Credit;
use crate::limits::Enforced;
use crate::memory_kills::MemoryKills;
use crate::ports::{self, Control, Streams};
use crate::protocol::kept::{
    ALL, CREDIT, ERRORS, GONE, INPUT, MOST, OUTPUT, channel_frame, credit, decode_credit,
    split_channel,
};
use crate::protocol::{ENTROPY, Frames, Start, TASK, TIME, ToGuest, ToHost, code};
use crate::refusal::Refusal;
use crate::streams::Pump;
use crate::sys;
use crate::workers::{Target, obey};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

const SIGKILL: i32 = 9;

/// What all commands share.
struct Shared {
    /// The port to the host, to which one thread at a time writes a frame.
    port: Mutex<File>,
    /// The commands' processes. While this is held, no process is started or waited for.
    running: Mutex<HashSet<i32>>,
    channels: Mutex<HashMap<u32, Channel>>,
    /// The limits of all commands together.
    limits: Enforced,
}

/// The way to one command.
struct Channel {
    /// The pieces of the task that have come.
    task: Vec<u8>,
    input: Sender<Vec<u8>>,
    /// What the command's thread takes when it starts.
    to_take: Option<Receiver<Vec<u8>>>,
    /// The credit of standard output and of standard error.
    credits: [Arc<Credit>; 2],
    target: Option<Target>,
    is_gone: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs commands until the port fails.
pub fn serve(
    base: Start,
    control: &Control,
    streams: Streams,
    limits: Enforced,
) -> Result<ToHost, Refusal> {
    let [output, _errors] = streams.outputs;
    let shared = Arc::new(Shared {
        port: Mutex::new(output),
        running: Mutex::default(),
        channels: Mutex::default(),
        limits,
    });
    control.tell(&ToHost::Started);
    let mut frames = Frames::default();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = ports::read(&streams.input, &mut buffer) {
        frames.extend(&buffer[..count]);
        while let Ok(Some((kind, rest))) = frames.take() {
            if let Some((number, rest)) = split_channel(&rest) {
                hear(&shared, &base, number, kind, rest);
            }
        }
    }
    Err(Refusal::own("the host does not keep to the protocol"))
}

/// Executes one frame of the host.
fn hear(shared: &Arc<Shared>, base: &Start, number: u32, kind: u8, rest: &[u8]) {
    match (kind, rest) {
        (TIME, time) => {
            if let Ok(bytes) = time.try_into() {
                let _ = sys::set_time(u64::from_le_bytes(bytes));
            }
            return;
        }
        (ENTROPY, bytes) => {
            let _ = sys::add_entropy(bytes);
            return;
        }
        _ => {}
    }
    let mut channels = lock(&shared.channels);
    if (kind, number) == (GONE, ALL) {
        channels.values_mut().for_each(Channel::leave);
        return;
    }
    if kind == TASK && !channels.contains_key(&number) {
        channels.insert(number, Channel::new());
    }
    let Some(entry) = channels.get_mut(&number) else {
        return;
    };
    match (kind, rest) {
        (TASK, []) => {
            let task = base.clone().changed_by(&entry.task);
            let Some(input) = entry.to_take.take() else {
                return;
            };
            let credits = entry.credits.clone();
            let shared = Arc::clone(shared);
            // Without a thread the client waits for nothing: the channel is dropped.
            let run = move || run(&shared, number, task, input, credits);
            if thread::Builder::new().spawn(run).is_err() {
                channels.remove(&number);
            }
        }
        (TASK, piece) => entry.task.extend(piece),
        (INPUT, bytes) => {
            let _ = entry.input.send(bytes.to_vec());
        }
        (CREDIT, _) => match decode_credit(rest) {
            Some((OUTPUT, count)) => entry.credits[0].add(count),
            Some((ERRORS, count)) => entry.credits[1].add(count),
            _ => {}
        },
        (GONE, _) => entry.leave(),
        _ => {
            if let (Some(message), Some(target)) = (ToGuest::decode(kind, rest), &entry.target) {
                obey(message, target);
            }
        }
    }
}

impl Channel {
    fn new() -> Self {
        let (input, to_take) = channel();
        Self {
            task: Vec::new(),
            input,
            to_take: Some(to_take),
            credits: [Arc::default(), Arc::default()],
            target: None,
            is_gone: false,
        }
    }

    /// Ends a command whose client has gone.
    fn leave(&mut self) {
        self.is_gone = true;
        for credit in &self.credits {
            credit.close();
        }
        if let Some(target) = &self.target {
            sys::send_signal(-target.process, SIGKILL);
        }
    }
}

/// Runs one command until it ends.
fn run(
    shared: &Arc<Shared>,
    number: u32,
    task: Option<Start>,
    input: Receiver<Vec<u8>>,
    credits: [Arc<Credit>; 2],
) {
    let task = task.ok_or_else(|| Refusal::own("the task is not understood"));
    let end = task.and_then(|task| run_task(shared, number, &task, input, credits));
    let end = end.unwrap_or_else(|refusal| ToHost::Failed {
        code: refusal.code,
        why: refusal.why,
    });
    // The host forgets the channel with this message, and may use its number again.
    lock(&shared.channels).remove(&number);
    shared.tell(number, &end);
    shared.wait_for_orphans();
}

fn run_task(
    shared: &Arc<Shared>,
    number: u32,
    task: &Start,
    input: Receiver<Vec<u8>>,
    credits: [Arc<Credit>; 2],
) -> Result<ToHost, Refusal> {
    let own = |error: io::Error| Refusal::own(format!("cannot run the command: {error}"));
    let memory_kills = MemoryKills::watch();
    let refused = shared.limits.refused_processes();
    let (starting, _started) = channel();
    let mut pumps = Vec::new();
    for (kind, credit) in [OUTPUT, ERRORS].into_iter().zip(credits) {
        let shared = Arc::clone(shared);
        let send = move |bytes: &[u8]| shared.send(number, kind, bytes, &credit);
        pumps.push(Pump::start_to(send, starting.clone()).map_err(own)?);
    }
    let Running { process, ends } = {
        let mut running = lock(&shared.running);
        let command = command::start(task, &shared.limits)?;
        running.insert(command.process);
        command
    };
    shared.tell(number, &ToHost::Started);
    let mut stops = [None, None];
    for ((pump, source), stop) in pumps.iter().zip(ends.outputs).zip(&mut stops) {
        if let Some(source) = source {
            pump.begin(source);
            *stop = Some(pump.stop());
        }
    }
    let target = Target {
        process,
        terminal: ends.terminal,
        outputs: stops,
    };
    let is_terminal = target.terminal.is_some();
    if let Some(channel) = lock(&shared.channels).get_mut(&number) {
        channel.target = Some(target);
        if channel.is_gone {
            sys::send_signal(-process, SIGKILL);
        }
    }
    let to_host = Arc::clone(shared);
    let file = ends.input;
    let feeder = thread::Builder::new();
    feeder
        .spawn(move || to_host.feed(number, file, is_terminal, &input))
        .map_err(own)?;
    let code = sys::wait_for_end(process).unwrap_or(code::FAILED);
    lock(&shared.running).remove(&process);
    if let Some(channel) = lock(&shared.channels).get_mut(&number) {
        // The number may be another process's soon.
        channel.target = None;
    }
    let mut written = [0; 2];
    for (count, pump) in written.iter_mut().zip(pumps) {
        *count = pump.finish();
    }
    Ok(ToHost::Exited {
        code,
        written,
        killed_for_memory: memory_kills.count(),
        limits_reached: shared.limits.reached_since(refused),
    })
}

impl Shared {
    fn write(&self, frame: &[u8]) -> io::Result<()> {
        lock(&self.port).write_all(frame)
    }

    fn tell(&self, number: u32, message: &ToHost) {
        let frame = message.encode();
        let (kind, rest) = (frame[0], &frame[crate::protocol::HEADER_BYTES..]);
        // If the host has gone, so has the guest.
        let _ = self.write(&channel_frame(number, kind, &rest[..rest.len().min(MOST)]));
    }

    /// Sends a piece of output as the client takes it.
    fn send(&self, number: u32, kind: u8, mut bytes: &[u8], credit: &Credit) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = credit.take(bytes.len().min(MOST));
            let count = count.ok_or(ErrorKind::BrokenPipe)?;
            let (piece, rest) = bytes.split_at(count);
            self.write(&channel_frame(number, kind, piece))?;
            bytes = rest;
        }
        Ok(())
    }

    /// Moves standard input to the command until its end.
    fn feed(&self, number: u32, file: File, is_terminal: bool, input: &Receiver<Vec<u8>>) {
        const END_OF_INPUT: u8 = 4;
        let mut destination = Some(file);
        while let Ok(bytes) = input.recv() {
            let end: &[u8] = if is_terminal { &[END_OF_INPUT] } else { &[] };
            let piece = if bytes.is_empty() { end } else { &bytes };
            // After an error no more bytes are written: the command has closed its input.
            if let Some(file) = &mut destination
                && file.write_all(piece).is_err()
            {
                destination = None;
            }
            if bytes.is_empty() {
                break;
            }
            let taken = credit(INPUT, bytes.len());
            let _ = self.write(&channel_frame(number, CREDIT, &taken));
        }
    }

    /// Waits for processes that the first process has adopted and that have ended.
    fn wait_for_orphans(&self) {
        let running = lock(&self.running);
        while let Some(process) = sys::ended_child() {
            // The thread of a command waits for it itself.
            if running.contains(&process) {
                break;
            }
            sys::wait_for_end(process);
        }
    }
}
