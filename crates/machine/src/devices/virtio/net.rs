//! The network adapter (5.1), which moves frames between two queues and the cable of a network.
//!
//! A frame of the guest is copied out when the driver makes it available, and its buffers are
//! returned immediately; while the cable is full, frames stay in the queue. A frame for the guest
//! is copied in when there are buffers for all of it; until then it stays in the cable. So the
//! device holds no frame between two calls, and need not save any.

use super::chain::Chain;
use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use crate::bus::completion::Completer;
use tollgate_network::frame::{ETHERNET_HEADER, MAX_FRAME};
use tollgate_network::{Adapter, Backend, Frame, MacAddress, Offloads, Refusals};

/// Features (5.1.3).
mod feature {
    /// The network accepts frames with a partial checksum.
    pub const CHECKSUM: u64 = 1 << 0;
    /// The guest accepts frames with a partial checksum.
    pub const GUEST_CHECKSUM: u64 = 1 << 1;
    pub const MAC: u64 = 1 << 5;
    /// The guest accepts TCP segments that were not split.
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The network accepts TCP segments that were not split.
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    /// A frame for the guest may be spread over several buffers.
    pub const MERGED_BUFFERS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
}

/// The header before each frame (5.1.6).
mod header {
    pub const BYTES: usize = 12;
    /// Flag: the checksum must be completed.
    pub const NEEDS_CHECKSUM: u8 = 1;
    /// The kinds of segments that must be split.
    pub const TCP4: u8 = 1;
    pub const TCP6: u8 = 4;
}

/// The queues (5.1.2).
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const QUEUE_SIZE: u16 = 256;
/// The size of the configuration in bytes (5.1.4): address and status.
const CONFIG_BYTES: usize = 8;
/// In the status: the cable is plugged in.
const LINK_UP: u16 = 1;
/// The maximum number of frames of the guest taken in one call. The driver cannot make more
/// available in this time.
const MAX_FRAMES: usize = 2 * QUEUE_SIZE as usize;

/// A network adapter.
pub struct Net {
    name: String,
    config: [u8; CONFIG_BYTES],
    adapter: Adapter,
    /// Whether the network accepts partial checksums, and segments that were not split.
    has_offloads: bool,
    /// The network's threads, which run as long as the adapter exists.
    backend: Option<Backend>,
}

impl Net {
    /// Makes an adapter on a network. `name` is its name in saved states.
    pub fn new(name: String, mac: MacAddress, adapter: Adapter, backend: Backend) -> Self {
        let has_offloads = backend.takes_offloads();
        Self {
            backend: Some(backend),
            ..Self::plugged(name, mac, adapter, has_offloads)
        }
    }

    /// Makes an adapter on a cable whose other end belongs to the caller.
    pub(super) fn plugged(
        name: String,
        mac: MacAddress,
        adapter: Adapter,
        has_offloads: bool,
    ) -> Self {
        let mut config = [0; CONFIG_BYTES];
        config[..6].copy_from_slice(&mac.0);
        config[6..].copy_from_slice(&LINK_UP.to_le_bytes());
        Self {
            name,
            config,
            adapter,
            has_offloads,
            backend: None,
        }
    }

    /// Tells the network which features the driver has accepted.
    fn agree(&self, queues: &Queues<'_>) {
        self.adapter.set_offloads(Offloads {
            checksum: queues.has_feature(feature::GUEST_CHECKSUM),
            tcp4: queues.has_feature(feature::GUEST_TSO4),
            tcp6: queues.has_feature(feature::GUEST_TSO6),
        });
    }

    /// Takes frames of the guest as long as the cable has room.
    fn transmit(&self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        for _ in 0..MAX_FRAMES {
            if !self.adapter.has_room() {
                return Ok(());
            }
            let Some(chain) = queues.pop(TRANSMIT)? else {
                return Ok(());
            };
            // The bytes that the device may read consist of the header and the frame.
            let bytes = chain
                .readable_bytes()
                .checked_sub(header::BYTES as u64)
                .ok_or(QueueError::Request)?;
            if (ETHERNET_HEADER as u64..=MAX_FRAME as u64).contains(&bytes) {
                let mut frame = vec![0; bytes as usize];
                if !chain.copy_out(queues.memory(), header::BYTES as u64, &mut frame) {
                    return Err(QueueError::NoMemory);
                }
                self.adapter.send(frame);
            }
            queues.push(TRANSMIT, &chain, 0)?;
        }
        Ok(())
    }

    /// Delivers the present frames to the guest as long as it has buffers. Frames that arrive
    /// during the call cause another completion, so the call ends however fast they arrive.
    fn receive(&self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        let merges = queues.has_feature(feature::MERGED_BUFFERS);
        for _ in 0..self.adapter.look() {
            let mut buffers = Vec::new();
            let frame = self.adapter.take_if(|frame| {
                let bytes = (header::BYTES + frame.bytes.len()) as u64;
                buffers = collect(queues, bytes, merges)?;
                Ok::<_, QueueError>(!buffers.is_empty())
            })?;
            let Some(frame) = frame else {
                break;
            };
            deliver(frame, &buffers, queues)?;
        }
        Ok(())
    }
}

/// Takes buffers for this number of bytes, or as many as the queue can hold. Returns none if there
/// are not enough.
fn collect(queues: &mut Queues<'_>, bytes: u64, merges: bool) -> Result<Vec<Chain>, QueueError> {
    let mut buffers = Vec::new();
    let mut room = 0;
    while room < bytes {
        let Some(chain) = queues.pop(RECEIVE)? else {
            let count = buffers.len() as u16;
            if count > 0 && count >= queues.size(RECEIVE) {
                // The driver cannot supply more, so the frame does not fit.
                break;
            }
            queues.unpop(RECEIVE, count);
            return Ok(Vec::new());
        };
        // A buffer must have room for at least a header (5.1.6.3.1).
        if chain.writable_bytes() < header::BYTES as u64 {
            return Err(QueueError::Request);
        }
        room += chain.writable_bytes();
        buffers.push(chain);
        if !merges {
            break;
        }
    }
    Ok(buffers)
}

/// Writes a frame into the buffers, if it fits, and returns them to the driver.
fn deliver(mut frame: Frame, buffers: &[Chain], queues: &mut Queues<'_>) -> Result<(), QueueError> {
    let segments = frame.segmentation.map(|segmentation| {
        let (kind, feature) = match segmentation.is_ipv6 {
            false => (header::TCP4, feature::GUEST_TSO4),
            true => (header::TCP6, feature::GUEST_TSO6),
        };
        (segmentation, kind, feature)
    });
    let fits = buffers.iter().map(Chain::writable_bytes).sum::<u64>()
        >= (header::BYTES + frame.bytes.len()) as u64;
    let is_taken = segments.is_none_or(|(_, _, feature)| queues.has_feature(feature));
    if !fits || !is_taken {
        // The frame is lost: the only buffer is too small for it, or it was made for a driver that
        // has gone.
        queues.unpop(RECEIVE, buffers.len() as u16);
        return Ok(());
    }
    if !queues.has_feature(feature::GUEST_CHECKSUM) {
        frame.complete_checksum();
    }
    let mut data = vec![0; header::BYTES];
    if let Some(checksum) = frame.checksum {
        data[0] = header::NEEDS_CHECKSUM;
        data[6..8].copy_from_slice(&checksum.start.to_le_bytes());
        data[8..10].copy_from_slice(&checksum.offset.to_le_bytes());
    }
    if let Some((segmentation, kind, _)) = segments {
        data[1] = kind;
        data[2..4].copy_from_slice(&segmentation.header_bytes.to_le_bytes());
        data[4..6].copy_from_slice(&segmentation.size.get().to_le_bytes());
    }
    data[10..12].copy_from_slice(&(buffers.len() as u16).to_le_bytes());
    data.append(&mut frame.bytes);
    let mut rest = &data[..];
    for chain in buffers {
        let bytes = rest.len().min(chain.writable_bytes() as usize);
        let (piece, behind) = rest.split_at(bytes);
        if !chain.copy_in(queues.memory(), 0, piece) {
            return Err(QueueError::NoMemory);
        }
        queues.push(RECEIVE, chain, bytes as u32)?;
        rest = behind;
    }
    Ok(())
}

impl VirtioDevice for Net {
    fn name(&self) -> &str {
        &self.name
    }

    fn device_type(&self) -> u16 {
        device_type::NET
    }

    fn features(&self) -> u64 {
        use feature as f;
        let offloads = f::CHECKSUM
            | f::GUEST_CHECKSUM
            | f::GUEST_TSO4
            | f::GUEST_TSO6
            | f::HOST_TSO4
            | f::HOST_TSO6;
        let offloads = if self.has_offloads { offloads } else { 0 };
        f::MAC | f::STATUS | f::MERGED_BUFFERS | offloads
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE, QUEUE_SIZE]
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.agree(queues);
        match queue {
            RECEIVE => self.receive(queues),
            _ => self.transmit(queues),
        }
    }

    fn connect(&mut self, completer: Completer) {
        // The machine may have ended.
        self.adapter.connect(move || {
            let _ = completer.send(0);
        });
    }

    fn complete(&mut self, _token: u64, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.agree(queues);
        self.receive(queues)?;
        self.transmit(queues)
    }

    fn refusals(&self) -> Option<Refusals> {
        self.backend.as_ref()?.refusals()
    }

    fn reset(&mut self) {
        self.adapter.reset();
    }
}
