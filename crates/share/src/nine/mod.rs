//! 9P2000.L: a second way into the server of a share, for guests that have no virtio-fs, and for the
//! many tools that mount a guest's root so.
//!
//! ```text
//!   message --> Head, Input --> NineServer: which fid, which FUSE requests
//!                                 |  fids: a client's number -> place in the tree, open file
//!                                 |  calls: requests to the FUSE server, in this process
//!   reply <-- Reply <------------ Server: names, attributes, owners, confinement
//! ```
//!
//! Everything that touches the host is done by the FUSE [`Server`](crate::Server): a message is
//! taken apart into the requests that a kernel with virtio-fs would send for it. So names, owners,
//! descriptors and refusals are the same whichever protocol a guest mounts a share by. For example,
//! a walk of three names is three look-ups, and a file's removal is UNLINK.
//!
//! Locks are granted without asking the host: Linux keeps those of its own processes itself.

mod attributes;
mod calls;
mod directories;
mod fids;
mod files;
mod message;
mod names;
mod progress;
mod server;
mod xattrs;

pub use message::{HEADER_BYTES, Head, MAX_MESSAGE_BYTES};
pub use server::NineServer;
