//! The control socket: each request is one line of JSON, and so is its answer.
//!
//! - `command` has the names of the commands.
//! - `protocol` knows the lines.
//! - `server` has the sockets, which the event loop drives.
//! - `client` is `tollgate control`, `stats` is `tollgate stats`, and so are `mark`, `set`,
//!   `medium` and `screen` the subcommands of these names.
//! - `typing` is `tollgate type`, and `mouse` its `--mouse`.
//!
//! docs/reference/control-socket.md describes the protocol.

pub mod client;
pub mod command;
pub mod identity;
pub mod mark;
pub mod medium;
pub mod mouse;
pub mod protocol;
pub mod run_time;
pub mod screen;
pub mod server;
pub mod set;
pub mod stats;
pub mod typing;
