//! Programs of a Debian in the guest: gcc, Python and LuaJIT.

use super::about::{INTERPRETER, PYTHON};
use super::linux::timed;
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::icache::make::Make;
use crate::linux_guest::{Extra, LinuxGuest, System};
use std::fs;
use tollgate_host_facts::file_words::reading;
use tollgate_machine::config::VmConfig;

/// The folder in the guest with the system that has the interpreters.
const ROOT: &str = "/lab/root";
/// RAM for that system, which is unpacked into it from the initial RAM disk.
const MEMORY: u64 = 512 << 20;
/// Rounds of an interpreter's loop, and of LuaJIT's compiled one.
const ROUNDS: u64 = 1_000_000;
const JIT_ROUNDS: u64 = 50_000_000;
/// How much less a quick run does.
const QUICK: u64 = 5;

/// make and gcc, which build Lua.
pub struct Gcc(Make);

impl Gcc {
    /// Boots the guest.
    ///
    /// # Errors
    ///
    /// The guest or the system with gcc is missing, or it does not start its shell.
    pub fn open(guest: &str, options: &Options, stop: &Stop) -> Result<Self, LabError> {
        Make::open(guest, options, stop).map(Self)
    }
}

impl Bench for Gcc {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        let Self(make) = self;
        make.guest().turn(arm)?;
        make.run(Some(1))?;
        let (ran, made) = make.run(make.objects())?;
        timed(&ran, made, arm)
    }
}

/// An interpreter that computes a sum.
pub struct Interpreter {
    guest: LinuxGuest,
    workload: &'static str,
    rounds: u64,
}

impl Interpreter {
    /// Boots the guest.
    ///
    /// # Errors
    ///
    /// The guest or the system with the interpreters is missing, or it does not start its shell.
    pub fn open(
        guest: &str,
        workload: &'static str,
        options: &Options,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let system = System::open_with(guest, &[], options, |folder, _| {
            let path = folder.join("programs-amd64").join("root.cpio");
            let root = fs::read(&path).map_err(|error| {
                let (path, why) = (path.display(), reading(&error));
                LabError::NotRun(format!(
                    "no system with interpreters, '{path}': {why}; run scripts/get-programs"
                ))
            })?;
            Ok(vec![Extra::archive(root)])
        })?;
        let system = system.with_memory(MEMORY);
        let mut guest = LinuxGuest::boot(&system, &VmConfig::default(), stop)?;
        guest.run(&format!(
            "mount -t devtmpfs devtmpfs {ROOT}/dev && mount -t proc proc {ROOT}/proc"
        ))?;
        let rounds = match workload {
            PYTHON | INTERPRETER => ROUNDS,
            _ => JIT_ROUNDS,
        };
        Ok(Self {
            guest,
            workload,
            rounds: if options.quick {
                rounds / QUICK
            } else {
                rounds
            },
        })
    }

    /// The sum of `i % 7` for all `i` below `rounds`.
    fn sum(rounds: u64) -> u64 {
        (0..rounds).map(|number| number % 7).sum()
    }

    fn line(&self, rounds: u64) -> String {
        let sum = Self::sum(rounds);
        let program = match self.workload {
            PYTHON => format!("python3 -c 's = 0\nfor i in range({rounds}): s += i % 7\nprint(s)'"),
            workload => {
                let off = if workload == INTERPRETER {
                    "-joff "
                } else {
                    ""
                };
                format!(
                    "luajit {off}-e 'local s = 0; for i = 0, {rounds} - 1 do s = s + i % 7 end; \
                     print(s)'"
                )
            }
        };
        format!("[ $(chroot {ROOT} {program}) = {sum} ]")
    }
}

impl Bench for Interpreter {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        self.guest.run(&self.line(self.rounds / 50))?;
        let ran = self.guest.run(&self.line(self.rounds))?;
        timed(&ran, self.rounds, arm)
    }
}
