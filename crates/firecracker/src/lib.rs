//! Firecracker's REST interface, from its published description: the requests, what they may
//! contain, and which of them are possible before and after the start of the machine.
//!
//! ```text
//!   client                 this crate                                  owner
//!   bytes  --Connection--> HttpRequest --route--> Request --Api::obey--> Machine
//!   bytes  <-------------- Response    <--------------------------------  done, or one line
//! ```
//!
//! The crate uses no sockets, threads or files. The owner implements [`Machine`], which starts,
//! pauses and saves a real machine; [`Api`] knows what was configured and what is possible now.
//! A client is considered hostile: what it can make a connection remember is bounded.
//!
//! [`TREATMENTS`] is the one list of all requests and of the fields of their bodies, with what
//! Tollgate does with each. The reference is made from it, and a test compares it with the parsers.

mod api;
mod bodies;
mod config_file;
mod counts;
mod fault;
mod http;
mod metadata;
mod resources;
mod route;
mod treatments;

#[cfg(test)]
mod api_tests;
#[cfg(test)]
mod treatments_tests;

pub use api::{Api, InstanceState, Machine, Served};
pub use bodies::*;
pub use config_file::ConfigFile;
pub use fault::Fault;
pub use http::{Connection, HttpRequest, Method, Received, Response};
pub use metadata::{GuestAnswer, Metadata};
pub use resources::Resources;
pub use route::{Request, route};
pub use treatments::{Endpoint, TREATMENTS, Treatment, reference};

/// The version of Firecracker's interface that this crate follows. What follows the plus sign names
/// the program that answers.
pub const VERSION: &str = concat!("1.14.0+tollgate.", env!("CARGO_PKG_VERSION"));
