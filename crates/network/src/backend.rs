//! The back end of a network adapter: a network with its thread.

use crate::error::NetworkError;
use crate::link::{Adapter, Stopper, cable};
use crate::options::{NetworkKind, NetworkOptions, RefusalLines};
use crate::refusals::Refusals;
use crate::{passt, stream, tap, user};

use std::net::SocketAddr;
use std::thread::JoinHandle;
use tollgate_confine::ThreadKind;

/// A running network. Dropping it closes its connections and waits for its thread.
pub struct Backend {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    forwards: Vec<SocketAddr>,
    offloads: bool,
    refusals: Option<Refusals>,
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
        let wire = wire.with_service(options.inner_service.clone());
        let stopper = wire.stopper();
        let (mut forwards, mut offloads, mut refusals) = (Vec::new(), false, None);
        let work: Box<dyn FnOnce() + Send> = match &options.kind {
            NetworkKind::User(user) => {
                let network = user::Network::open(user, mac, wire)?;
                forwards = network.forwards();
                offloads = true;
                refusals = Some(network.refusals());
                if user.refusal_lines == RefusalLines::Shown {
                    network.report_refusals(Box::new(report));
                }
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
            .spawn(move || {
                tollgate_confine::enter(ThreadKind::Network);
                work();
            })
            .map_err(|error| NetworkError::new("no thread for it", error))?;
        let backend = Self {
            stopper,
            thread: Some(thread),
            forwards,
            offloads,
            refusals,
        };
        Ok((adapter, backend))
    }

    /// Returns the addresses at which the host listens for the guest, in the order of the options.
    pub fn forwards(&self) -> &[SocketAddr] {
        &self.forwards
    }

    /// Returns the record of what the guest could not reach, if the network decides that.
    pub fn refusals(&self) -> Option<Refusals> {
        self.refusals.clone()
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
