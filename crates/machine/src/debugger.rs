//! gdb's remote protocol: a debugger stops, inspects and continues the machine from outside.
//!
//! ```text
//!   gdb <── socket ──> a thread of the program <── DebugLine ──> the vCPU's thread
//!                                                                 |  session: stopped or running
//!                                                                 |  target: what gdbstub asks for
//!                                                                 |  registers, memory
//!                                                   the monitor: Watched
//! ```
//!
//! While the debugger has stopped the machine, the vCPU's thread waits for its packets, and the
//! guest's clocks stand still. While the machine runs, the debugger can only interrupt it. Breakpoints
//! and watched memory are kept by the monitor ([`tollgate_monitor::Watched`]); the guest's memory and
//! debug registers do not change.

mod line;
pub(crate) mod memory;
mod packets;
mod registers;
mod session;
mod state;
mod target;

pub use line::{DebugLine, FromDebugger};
pub use registers::Width;
pub use state::{Debugger, DebuggerPast};
