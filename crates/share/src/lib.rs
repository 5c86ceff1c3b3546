//! Shared directories of the host: a server of the FUSE protocol (as virtio-fs carries it) over
//! byte buffers, with threads of its own; and one of 9P2000.L, whose messages are taken apart into
//! the same requests.
//!
//! ```text
//!   ShareOptions -- Server::open --> Server::handle(request) -> reply
//!    NineServer::handle(message) --^   |  names, attributes, files, directories, xattrs
//!                                      |  inodes: number -> O_PATH descriptor
//!                                      |  owner: who owns a file, in the guest's eyes
//!   ShareThreads: requests in, replies out; or at once, where nothing is waited for
//! ```
//!
//! The requests of a guest are hostile. They name files by numbers that the server has assigned,
//! and by single names in those directories. Names with a slash, `.` and `..` are refused, symbolic
//! links are never followed here (the guest resolves them), and each name is opened by openat2 with
//! `RESOLVE_BENEATH`. So no file outside of the directory is ever opened. Only regular files and
//! directories are opened for reading and writing: device nodes, pipes and sockets are names to
//! which the guest's own kernel gives a meaning.
//!
//! Everything is done with the rights of the server's process; the guest's kernel checks
//! permissions for the guest's users. [`owner`] describes how owners are stored.

pub mod counts;
pub mod inodes;
pub mod limits;
pub mod nine;
pub mod options;
pub mod owner;
pub mod protocol;
pub mod server;
pub mod threads;

mod answer;
mod at_once;
mod attributes;
mod directories;
mod extended_attributes;
mod file_systems;
mod files;
mod handles;
mod listing;
mod names;
mod patience;
mod service;
mod session;
mod unopened;

pub use counts::RequestCounts;
pub use nine::NineServer;
pub use options::{SecurityModel, ShareError, ShareOptions, ShareProtocol};
pub use server::Server;
pub use service::{RequestSizes, Service};
pub use session::SavedSession;
pub use threads::{Outcome, Request, ShareThreads};
