//! What this host offers for running guest programs natively, found by trying.

use crate::exit::{Exit, SystemCall};
use crate::host;
use crate::image::Instruction;
use crate::mapping::Rights;
use crate::process::SpaceProcess;
use crate::settings::{Facts, Settings};
use crate::state::UserState;
use rustix::fs::MemfdFlags;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Why guest programs cannot run natively here: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// `HWCAP2_FSGSBASE`: programs may execute RDFSBASE and WRFSBASE.
const FSGSBASE: u64 = 2;

/// What this host offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// What instructions do in a process whose settings are those of guest programs.
    pub facts: Facts,
    /// How long it takes to leave by a system call and to return: the median of some.
    pub leave_and_return: Duration,
}

/// How often the probe leaves and returns.
const RETURNS: usize = 101;

/// Runs a small program in a process and says what the host offers.
///
/// # Errors
/// Guest programs cannot run natively, for this reason.
pub fn probe() -> Result<Offer, Refusal> {
    if host::auxiliary(libc::AT_HWCAP2) & FSGSBASE == 0 {
        let message = "the host's kernel does not offer FSGSBASE to programs (Linux 5.9)";
        return Err(Refusal(message.to_owned()));
    }
    try_program().map_err(|error| Refusal(format!("guest programs cannot run natively: {error}")))
}

fn try_program() -> io::Result<Offer> {
    const ADDRESS: u64 = 0x40_0000;
    let ram = rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC)?;
    // syscall
    rustix::io::write(&ram, &[0x0f, 0x05])?;
    rustix::fs::ftruncate(&ram, 4096)?;
    let settings = Settings {
        time_stamp_counter: Instruction::Faults,
        ..Settings::default()
    };
    let mut process = SpaceProcess::start(ram.as_fd(), settings)?;
    process.map(ADDRESS, 4096, 0, Rights::ReadExecute);
    let mut state = UserState {
        rip: ADDRESS,
        ..UserState::default()
    };
    state.gpr[0] = 39;
    let mut times = [Duration::ZERO; RETURNS];
    for time in &mut times {
        let begun = Instant::now();
        match process.run(&mut state) {
            Ok(Exit::SystemCall(SystemCall::Syscall))
                if state.gpr[0] == 39 && state.rip == ADDRESS => {}
            Ok(exit) => return Err(io::Error::other(format!("a trial ended with {exit:?}"))),
            Err(refused) => return Err(io::Error::other(refused)),
        }
        *time = begun.elapsed();
    }
    times.sort_unstable();
    Ok(Offer {
        facts: process.facts(),
        leave_and_return: times[RETURNS / 2],
    })
}
