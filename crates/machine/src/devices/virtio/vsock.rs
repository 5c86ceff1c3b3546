//! Sockets between guest and host (5.10): packets between two queues and the cable to the host's
//! side.
//!
//! A packet of the guest is copied out when the driver makes it available. A packet for the guest
//! is copied into the next buffer; data that is longer is split into several packets. Connections
//! are managed on the host's side, to which an empty packet reports a reset.

use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use crate::bus::completion::Completer;
use tollgate_network::vsock::{MAX_PACKET, Vsock as Backend, packet};
use tollgate_network::{Adapter, NetworkError, VsockOptions};

/// The device supports streams (5.10.3).
const FEATURE_STREAM: u64 = 1 << 0;
/// The queues (5.10.2). The third is for events, of which there are none.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const QUEUE_SIZE: u16 = 128;

/// The socket device.
pub struct Vsock {
    /// The guest's context identifier (5.10.4).
    config: [u8; 8],
    adapter: Adapter,
    /// The rest of a packet for the guest.
    rest: Option<Vec<u8>>,
    /// The host's threads, which run as long as the device exists.
    _backend: Option<Backend>,
}

impl Vsock {
    /// Makes a device with its socket on the host.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn open(options: &VsockOptions) -> Result<Self, NetworkError> {
        let (adapter, backend) = Backend::start(options)?;
        Ok(Self {
            _backend: Some(backend),
            ..Self::plugged(options.cid, adapter)
        })
    }

    /// Makes a device on a cable whose other end belongs to the caller.
    pub(super) const fn plugged(cid: u64, adapter: Adapter) -> Self {
        Self {
            config: cid.to_le_bytes(),
            adapter,
            rest: None,
            _backend: None,
        }
    }

    /// Takes packets of the guest as long as the cable has room.
    fn transmit(&self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        for _ in 0..2 * QUEUE_SIZE {
            if !self.adapter.has_room() {
                return Ok(());
            }
            let Some(chain) = queues.pop(TRANSMIT)? else {
                return Ok(());
            };
            let bytes = chain.readable_bytes();
            if !(packet::HEADER as u64..=MAX_PACKET as u64).contains(&bytes) {
                return Err(QueueError::Request);
            }
            let mut packet = vec![0; bytes as usize];
            if !chain.copy_out(queues.memory(), 0, &mut packet) {
                return Err(QueueError::NoMemory);
            }
            self.adapter.send(packet);
            queues.push(TRANSMIT, &chain, 0)?;
        }
        Ok(())
    }

    /// Delivers the present packets to the guest as long as it has buffers.
    fn receive(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        let mut left = self.adapter.look();
        while self.rest.is_some() || left > 0 {
            let mut chain = None;
            let packet = match self.rest.take() {
                Some(rest) => {
                    chain = queues.pop(RECEIVE)?;
                    Some(rest)
                }
                None => {
                    left -= 1;
                    let taken = self.adapter.take_if(|_| {
                        chain = queues.pop(RECEIVE)?;
                        Ok::<_, QueueError>(chain.is_some())
                    })?;
                    taken.map(|frame| frame.bytes)
                }
            };
            let Some(chain) = chain else {
                // The driver sends a notification when it has buffers.
                self.rest = packet;
                return Ok(());
            };
            let Some(packet) = packet else {
                queues.unpop(RECEIVE, 1);
                return Ok(());
            };
            let room = usize::try_from(chain.writable_bytes()).unwrap_or(usize::MAX);
            let (packet, rest) = packet::cut(packet, room).ok_or(QueueError::Request)?;
            self.rest = rest;
            if !chain.copy_in(queues.memory(), 0, &packet) {
                return Err(QueueError::NoMemory);
            }
            queues.push(RECEIVE, &chain, packet.len() as u32)?;
        }
        Ok(())
    }
}

impl VirtioDevice for Vsock {
    fn name(&self) -> &str {
        "virtio-vsock"
    }

    fn device_type(&self) -> u16 {
        device_type::VSOCK
    }

    fn features(&self) -> u64 {
        FEATURE_STREAM
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE; 3]
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        match queue {
            RECEIVE => self.receive(queues),
            TRANSMIT => self.transmit(queues),
            _ => Ok(()),
        }
    }

    fn connect(&mut self, completer: Completer) {
        // The machine may have ended.
        self.adapter.connect(move || {
            let _ = completer.send(0);
        });
    }

    fn complete(&mut self, _token: u64, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.receive(queues)?;
        self.transmit(queues)
    }

    fn reset(&mut self) {
        self.rest = None;
        self.adapter.reset();
        // Several resets in a row count as one.
        self.adapter.forget();
        self.adapter.send(Vec::new());
    }
}
