//! Processes that run the programs of a guest directly on the processor.
//!
//! The monitor translates a guest's kernel. Its programs can run as they are, in a process of the
//! host whose address space is the program's: a [`SpaceProcess`]. It holds nothing of the monitor,
//! and can do nothing but run, touch the guest RAM that the monitor has mapped into it, and leave.
//! The README explains how, and what a hostile program can and cannot do.
//!
//! ```no_run
//! use std::os::fd::AsFd;
//! use tollgate_native::{Exit, Rights, Settings, SpaceProcess, UserState};
//! # fn memory() -> std::fs::File { unimplemented!() }
//!
//! let ram = memory();
//! let mut process = SpaceProcess::start(ram.as_fd(), Settings::default())?;
//! process.map(0x40_0000, 4096, 0, Rights::ReadExecute);
//! let mut state = UserState { rip: 0x40_0000, ..UserState::default() };
//! match process.run(&mut state).expect("a state of a 64-bit program") {
//!     Exit::SystemCall(call) => println!("{call:?} {} at {:#x}", state.gpr[0], state.rip),
//!     exit => println!("{exit:?}"),
//! }
//! # std::io::Result::Ok(())
//! ```

mod children;
mod exit;
mod filters;
mod frame;
mod host;
mod image;
mod keeper;
mod kicker;
pub mod launcher;
mod layout;
mod life;
mod make;
mod mapper;
mod mapping;
mod patience;
mod probe;
mod process;
mod processor_time;
mod results;
mod seat;
mod settings;
mod shared_memory;
mod spawn;
mod start;
mod state;
mod stub;

pub use exit::{Death, Exit, SystemCall};
pub use image::Instruction;
pub use keeper::prepare;
pub use kicker::Kicker;
pub use mapping::{Cause, Command, MappingError, Rights};
pub use probe::{Offer, Refusal, probe};
pub use process::SpaceProcess;
pub use processor_time::nanoseconds_used;
pub use seat::leave_seat;
pub use settings::{Facts, Placement, Settings};
pub use state::{CODE_64, DATA, Refused, Selectors, UserState};
