//! Shared directories of the host: a server of the FUSE protocol (as virtio-fs carries it) over
//! byte buffers, by threads of its own.
//!
//! ```text
//!   ShareOptions -- Server::open --> Server::handle(request) -> reply
//!                                      |  names, attributes, files, directories, xattrs
//!                                      |  inodes: number -> O_PATH descriptor
//!                                      |  owner: who owns a file, in the guest's eyes
//!   ShareThreads: requests in, replies out; or at once, where nothing is waited for
//! ```
//!
//! What a guest sends is hostile. It names files by numbers that the server gave out, and by
//! single names below them; a name with a slash, `.` and `..` are refused, symbolic links are
//! never followed here (the guest resolves them), and each name is opened by openat2 with
//! `RESOLVE_BENEATH`. So nothing outside of the directory is ever opened. Only regular files
//! and directories are opened for reading and writing: device nodes, pipes and sockets are
//! names to which the guest's own kernel gives a meaning.
//!
//! Everything happens with the rights of the process that serves; the guest's kernel checks
//! permissions for the guest's users. See [`owner`] for how owners are kept.

pub mod counts;
pub mod inodes;
pub mod limits;
pub mod options;
pub mod owner;
pub mod protocol;
pub mod server;
pub mod threads;

mod at_once;
mod attributes;
mod directories;
mod extended_attributes;
mod file_systems;
mod files;
mod handles;
mod names;
mod unopened;

pub use counts::RequestCounts;
pub use options::{ShareError, ShareOptions};
pub use server::Server;
pub use threads::{Outcome, Request, ShareThreads};
