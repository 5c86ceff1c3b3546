//! Networks of a machine: the other end of its adapter's cable.
//!
//! ```text
//!   vCPU's thread                       thread "network"
//!   virtio-net -- Adapter -- frames --> Wire -- back end -- sockets of the host
//!                         <-- frames --
//! ```
//!
//! A [`Backend`] is started from [`NetworkOptions`] and has a thread of its own. Frames pass
//! between it and the adapter through two bounded queues ([`link`]); neither side ever waits for
//! the other. The back ends are [`user`], a network in this process whose connections are ordinary
//! sockets, `stream`, a socket that carries frames, and `tap`, an interface of the host.
//! [`vsock`] is the other end of another device: sockets between guest and host, whose packets pass
//! through the same queues.

pub mod backend;
mod descriptor_end;
mod descriptor_limit;
pub mod error;
pub mod frame;
mod inner_service;
pub mod link;
pub mod options;
mod passt;
mod poller;
pub mod refusals;
pub mod rules;
mod stream;
mod tap;
pub mod user;
pub mod vsock;

pub use backend::Backend;
pub use error::NetworkError;
pub use frame::{Frame, PartialChecksum, Segmentation};
pub use inner_service::{Answer, InnerService, Responder};
pub use link::{Adapter, Offloads, Wire};
pub use options::{
    AdapterModel, HostForward, MacAddress, NetworkBoot, NetworkKind, NetworkOptions, RefusalLines,
    Transport, UserOptions,
};
pub use refusals::{Refusals, Refused, RefusedList};
pub use rules::{Rule, Rules};
pub use vsock::VsockOptions;
