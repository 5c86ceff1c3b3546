//! A guest with little memory: code in its first page, a stack, and whatever a test maps.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use tollgate_native::{Exit, Rights, Settings, SpaceProcess, UserState};

pub const PAGE: u64 = 4096;
/// Where the code is, at offset 0 of guest RAM.
pub const CODE: u64 = 0x40_0000;
/// A page that can be written, at offset 4096 of guest RAM; the stack pointer is at its end.
pub const DATA: u64 = 0x50_0000;
/// Pages of guest RAM.
pub const PAGES: u64 = 64;

/// Guest RAM and a process.
pub struct Guest {
    pub ram: std::fs::File,
    pub process: SpaceProcess,
    pub state: UserState,
}

/// Guest RAM that begins with this code.
pub fn ram(code: &[u8]) -> std::fs::File {
    let ram: OwnedFd =
        rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    let ram = std::fs::File::from(ram);
    ram.set_len(PAGES * PAGE).expect("room");
    ram.write_all_at(code, 0).expect("a write");
    ram
}

/// Whether the host can do this; says why not.
pub fn is_possible() -> bool {
    match tollgate_native::probe() {
        Ok(_) => true,
        Err(refusal) => {
            tollgate_test_support::skip::impossible(&refusal.to_string());
            false
        }
    }
}

impl Guest {
    /// A guest with this code, or none if the host forbids it.
    pub fn new(code: &[u8]) -> Option<Self> {
        Self::with(code, Settings::default())
    }

    pub fn with(code: &[u8], settings: Settings) -> Option<Self> {
        if !is_possible() {
            return None;
        }
        let ram = ram(code);
        let mut process = SpaceProcess::start(ram.as_fd(), settings).expect("a process");
        process.map(CODE, PAGE, 0, Rights::ReadExecute);
        process.map(DATA, PAGE, PAGE, Rights::ReadWrite);
        let mut state = UserState {
            rip: CODE,
            ..UserState::default()
        };
        state.gpr[4] = DATA + PAGE;
        Some(Self {
            ram,
            process,
            state,
        })
    }

    pub fn run(&mut self) -> Exit {
        self.process.run(&mut self.state).expect("a valid state")
    }

    /// The address and error code of the page fault that a run must have ended with.
    #[track_caller]
    pub fn page_fault(exit: Exit) -> (u64, u32) {
        match exit {
            Exit::PageFault {
                address,
                error_code,
            } => (address, error_code),
            exit => panic!("{exit:?}"),
        }
    }

    /// Runs and demands a system call.
    #[track_caller]
    pub fn run_to_call(&mut self) {
        match self.run() {
            Exit::SystemCall(_) => {}
            exit => panic!("{exit:x?} with {:x?}", self.state),
        }
    }
}
