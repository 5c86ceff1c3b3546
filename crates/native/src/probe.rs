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

/// Runs a small program in a process and says what the host offers.
///
/// # Errors
/// Guest programs cannot run natively, for this reason.
pub fn probe() -> Result<Facts, Refusal> {
    if host::auxiliary(libc::AT_HWCAP2) & FSGSBASE == 0 {
        let message = "the host's kernel does not offer FSGSBASE to programs (Linux 5.9)";
        return Err(Refusal(message.to_owned()));
    }
    try_program().map_err(|error| Refusal(format!("guest programs cannot run natively: {error}")))
}

fn try_program() -> io::Result<Facts> {
    const ADDRESS: u64 = 0x40_0000;
    let ram = rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC)?;
    // syscall
    rustix::io::write(&ram, &[0x0f, 0x05])?;
    rustix::fs::ftruncate(&ram, 4096)?;
    let settings = Settings {
        cpuid: Instruction::Faults,
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
    match process.run(&mut state) {
        Ok(Exit::SystemCall(SystemCall::Syscall)) if state.gpr[0] == 39 && state.rip == ADDRESS => {
        }
        Ok(exit) => return Err(io::Error::other(format!("a trial ended with {exit:?}"))),
        Err(refused) => return Err(io::Error::other(refused)),
    }
    Ok(process.facts())
}
