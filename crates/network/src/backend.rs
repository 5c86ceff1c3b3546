//! The back end of a network adapter: a network with its thread.

use crate::link::{Adapter, Stopper, cable};
use crate::options::{NetworkKind, NetworkOptions};
use crate::{passt, stream, tap, user};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt;
use std::net::SocketAddr;
use std::thread::JoinHandle;

/// Why a network cannot be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkError {
    /// What failed, for a line on standard error.
    pub what: String,
    /// The host's reason.
    pub why: String,
}

impl NetworkError {
    pub(crate) fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        // The host's words are shown without the error number.
        let mut why = why.to_string();
        why.truncate(why.find(" (os error ").unwrap_or(why.len()));
        Self {
            what: what.into(),
            why,
        }
    }
}

impl fmt::Display for NetworkError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.what, self.why)
    }
}

impl std::error::Error for NetworkError {}

/// Raises the process's soft limit of descriptors to the hard one, because each connection takes
/// one.
pub(crate) fn raise_descriptor_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // If this fails, connections beyond the limit are refused.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// A running network. Dropping it closes its connections and waits for its thread.
pub struct Backend {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    forwards: Vec<SocketAddr>,
    offloads: bool,
}

impl Backend {
    /// Starts the network and returns the adapter's end of its cable. `report` is called on its
    /// thread with lines for the user.
    ///
    /// # Errors
    /// A port is in use, a socket cannot be reached, or the host starts no thread.
    pub fn start(
        options: &NetworkOptions,
        mac: crate::MacAddress,
        report: impl FnMut(String) + Send + 'static,
    ) -> Result<(Adapter, Self), NetworkError> {
        let (adapter, wire) = cable().map_err(|error| NetworkError::new("cable", error))?;
        let stopper = wire.stopper();
        let (mut forwards, mut offloads) = (Vec::new(), false);
        let work: Box<dyn FnOnce() + Send> = match &options.kind {
            NetworkKind::User(user) => {
                let network = user::Network::open(user, mac, wire)?;
                forwards = network.forwards();
                offloads = true;
                Box::new(move || network.run())
            }
            NetworkKind::Passt => {
                let (socket, passt) = passt::start("passt".as_ref())?;
                let stream = stream::Stream::over(socket, wire, Box::new(report))?;
                Box::new(move || {
                    stream.run();
                    drop(passt);
                })
            }
            NetworkKind::Tap(name) => {
                let tap = tap::Tap::named(name, wire, Box::new(report))?;
                Box::new(move || tap.run())
            }
            NetworkKind::Descriptor(number) => {
                let tap = tap::Tap::inherited(*number, wire, Box::new(report))?;
                Box::new(move || tap.run())
            }
            NetworkKind::Socket(path) => {
                let stream = stream::Stream::connect(path, wire, Box::new(report))?;
                Box::new(move || stream.run())
            }
        };
        let thread = std::thread::Builder::new()
            .name("network".into())
            .spawn(work)
            .map_err(|error| NetworkError::new("no thread for it", error))?;
        let backend = Self {
            stopper,
            thread: Some(thread),
            forwards,
            offloads,
        };
        Ok((adapter, backend))
    }

    /// Returns the addresses at which the host listens for the guest, in the order of the options.
    pub fn forwards(&self) -> &[SocketAddr] {
        &self.forwards
    }

    /// Whether frames of the guest may have partial checksums and segments that were not split.
    pub const fn takes_offloads(&self) -> bool {
        self.offloads
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
