//! The fast way: QEMU runs freely and logs its registers before every instruction; Tollgate follows
//! the log.
//!
//! Nothing is sent back to QEMU, and its memory is ahead of ours by the time a record is read, so
//! stores are not compared; a wrong one shows when it is loaded again. The log also contains the
//! bytes between processor and devices ([`DeviceLog`]). QEMU determines the interrupts; they appear
//! as a handler's first instruction where none was expected.

use crate::cpu_dump::{CpuDump, Line};
use crate::device_log::{DeviceLog, TRACE_EVENTS};
use crate::qemu::Qemu;
use crate::reference::{Expectation, Progress, Reference};
use crate::registers::Registers;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::process::ChildStdout;

/// Log registers before every instruction, with blocks of one instruction that are not chained;
/// `exec` adds the line that withdraws a record.
const MONITOR_COMMANDS: [&str; 2] = ["singlestep on", "log cpu,exec,nochain"];

/// This line says that the instruction of the last record did not run.
const STOPPED_LINE: &[u8] = b"Stopped execution";

/// QEMU's log, and the present position in it.
pub struct Following {
    qemu: Qemu,
    log: BufReader<ChildStdout>,
    line: Vec<u8>,
    /// Whether the instruction of the record before `now` did not run.
    held: bool,
    now: CpuDump,
    /// The device accesses of the instruction before `now`.
    devices: DeviceLog,
}

impl Following {
    /// Lets a stopped QEMU run freely.
    ///
    /// # Errors
    ///
    /// Its monitor refuses, or it does not log.
    pub fn new(mut qemu: Qemu) -> io::Result<Self> {
        let log = qemu.take_log()?;
        let events = TRACE_EVENTS.map(|event| format!("trace-event {event} on"));
        let commands = MONITOR_COMMANDS.iter().copied();
        for command in commands.chain(events.iter().map(String::as_str)) {
            let answer = qemu.gdb.monitor(command)?;
            if !answer.trim().is_empty() {
                return Err(io::Error::other(format!(
                    "QEMU's monitor answers '{command}' with: {answer}"
                )));
            }
        }
        qemu.gdb.release()?;
        let log = BufReader::with_capacity(1 << 18, log);
        let mut following = Self {
            qemu,
            log,
            line: Vec::new(),
            held: false,
            now: CpuDump::default(),
            devices: DeviceLog::default(),
        };
        if !following.read_record()? {
            return Err(io::Error::other("QEMU logs nothing"));
        }
        Ok(following)
    }

    /// Reads the next record into `now`; returns false at the end of the log.
    fn read_record(&mut self) -> io::Result<bool> {
        self.held = false;
        loop {
            self.line.clear();
            if self.log.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(false);
            }
            if self.devices.take_line(self.line.trim_ascii_end()) {
                continue;
            }
            self.held |= self.line.starts_with(STOPPED_LINE);
            match self.now.take_line(self.line.trim_ascii_end()) {
                Some(Line::Taken) => {}
                Some(Line::EndOfRecord) => return Ok(true),
                None => {
                    let line = String::from_utf8_lossy(&self.line);
                    return Err(io::Error::other(format!(
                        "QEMU's log cannot be parsed: {line}"
                    )));
                }
            }
        }
    }
}

impl Reference for Following {
    fn registers(&self) -> &Registers {
        &self.now.registers
    }

    fn step(&mut self, expected: Expectation) -> io::Result<Progress> {
        let before = self.now.registers.clone();
        self.devices.clear();
        loop {
            if !self.read_record()? {
                return Ok(Progress::Gone);
            }
            let here = self.now.registers.rip == before.rip
                && self.now.registers.selectors[1] == before.selectors[1];
            // QEMU logs an instruction again that was delayed or had to be translated again. A
            // branch to itself looks the same, and is treated as such a repetition until it ends.
            if self.now.registers == before {
                continue;
            }
            if self.held && !expected.repeats {
                return Ok(Progress::Held);
            }
            if !(expected.repeats && here) {
                return Ok(Progress::Stepped);
            }
        }
    }

    fn takes_interrupts(&self) -> bool {
        true
    }

    fn devices(&self) -> Option<&DeviceLog> {
        Some(&self.devices)
    }

    fn memory(&self) -> Option<&File> {
        None
    }

    fn later_memory(&self) -> &File {
        &self.qemu.memory
    }
}
