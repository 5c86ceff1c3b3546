//! The control socket: one line of JSON asks, one line of JSON answers.
//!
//! `protocol` knows the lines, `server` the sockets (driven by the event loop), `client`
//! is `tollgate control`, `stats` is `tollgate stats`, `mark` is `tollgate mark`, `set` is `tollgate set`,
//! `medium`, `screen` and `typing` are `tollgate medium`, `tollgate screen` and
//! `tollgate type`, whose `--mouse` is `mouse`. The protocol is described in docs/reference/control-socket.md.

pub mod client;
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
