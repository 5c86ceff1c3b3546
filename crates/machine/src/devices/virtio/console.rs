//! The console device (5.3) as a set of ports. A port is a byte stream with a name, by which the
//! guest finds it, and is connected to a stream of the host.
//!
//! ```text
//!   guest          queues of a port            Channel: two bounded buffers     the thread
//!   /dev/vportNp1  receive  <-- pump() ------- to_guest   <-- reads -------- descriptor
//!                  transmit --> pump() ------> from_guest --> writes ------>
//! ```
//!
//! One thread moves bytes between buffers and descriptors ([`ports`]); the device moves them
//! between buffers and queues. While a buffer is full, the sender waits. Bytes for the guest stay
//! in the host's pipe or socket. Bytes of the guest are taken immediately, because a guest may
//! switch itself off as soon as they are in its queue. Their chains are returned only after the
//! host has taken the earlier bytes, and without chains the guest waits.

pub mod ports;

use super::chain::Chain;
use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use crate::bus::completion::Completer;
use ports::{BUFFER_BYTES, Channel, PortError, PortOptions, PortThread};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;

/// The device has several ports, and messages about them (5.3.3).
const FEATURE_MULTIPORT: u64 = 1 << 1;
/// The queues of messages about ports: to the guest, and from it.
const CONTROL_IN: usize = 2;
const CONTROL_OUT: usize = 3;
/// The number of descriptors of each queue.
const QUEUE_SIZE: u16 = 64;
/// The size of a message about a port in bytes.
const MESSAGE_BYTES: usize = 8;
/// The maximum size of a chain in bytes. No driver sends more in one chain.
const MAX_CHAIN_BYTES: u64 = 256 << 10;
/// If the guest's untaken bytes reach this number, no more are taken. It is more than a driver can
/// put into a queue of this size.
const MAX_TAKEN_BYTES: usize = 4 << 20;
/// The maximum number of waiting messages to the guest. A guest that sends requests without reading
/// the answers gets no more of them.
const MAX_MESSAGES: usize = 256;

/// Events of messages (5.3.6.2).
mod event {
    pub const DEVICE_READY: u16 = 0;
    pub const PORT_ADD: u16 = 1;
    pub const PORT_READY: u16 = 3;
    pub const CONSOLE_PORT: u16 = 4;
    pub const PORT_OPEN: u16 = 6;
    pub const PORT_NAME: u16 = 7;
}

/// A port from the guest's point of view.
struct Port {
    name: String,
    /// Whether the guest should use the port as a console.
    is_console: bool,
    /// Whether the guest has a driver for the port.
    is_ready: bool,
    /// Whether a program of the guest has opened the port.
    is_open: bool,
    /// Whether the last message to the guest said that the host's side is connected.
    told_connected: bool,
    /// Chains whose bytes were taken, and which are returned when there is room for more.
    held: VecDeque<Chain>,
}

/// A console device. Port 0, which belongs to drivers without support for ports, is not used.
pub struct Console {
    config: [u8; 8],
    queue_sizes: Vec<u16>,
    ports: Vec<Port>,
    messages: VecDeque<Vec<u8>>,
    thread: PortThread,
}

/// What is saved of a port.
#[derive(Serialize, Deserialize)]
struct SavedPort {
    name: String,
    is_ready: bool,
    is_open: bool,
    told_connected: bool,
}

/// What is saved of the device in addition to its queues.
#[derive(Serialize, Deserialize)]
struct Saved {
    ports: Vec<SavedPort>,
    messages: VecDeque<Vec<u8>>,
}

/// Returns the queues of port `number`: receive and transmit (5.3.2).
const fn queues_of(number: usize) -> (usize, usize) {
    match number {
        0 => (0, 1),
        _ => (2 * number + 2, 2 * number + 3),
    }
}

fn message(number: usize, event: u16, value: u16) -> Vec<u8> {
    let mut message = (number as u32).to_le_bytes().to_vec();
    message.extend(event.to_le_bytes());
    message.extend(value.to_le_bytes());
    message
}

impl Console {
    /// Makes a device with these ports, numbered from 1.
    ///
    /// # Errors
    /// The host's end of a port cannot be opened, or the host starts no thread.
    pub fn new(options: &[PortOptions]) -> Result<Self, PortError> {
        let thread = PortThread::start(options)?;
        let mut config = [0; 8];
        config[4..].copy_from_slice(&(options.len() as u32 + 1).to_le_bytes());
        let ports = options.iter().map(|port| Port {
            name: port.name.clone(),
            is_console: port.is_console,
            is_ready: false,
            is_open: false,
            told_connected: false,
            held: VecDeque::new(),
        });
        Ok(Self {
            config,
            queue_sizes: vec![QUEUE_SIZE; 2 * (options.len() + 2)],
            ports: ports.collect(),
            messages: VecDeque::new(),
            thread,
        })
    }

    fn tell(&mut self, message: Vec<u8>) {
        if self.messages.len() < MAX_MESSAGES {
            self.messages.push_back(message);
        }
    }

    /// Reads the guest's messages about its ports.
    fn listen(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        while let Some(chain) = queues.pop(CONTROL_OUT)? {
            let mut bytes = [0; MESSAGE_BYTES];
            if chain.readable_bytes() < MESSAGE_BYTES as u64 {
                return Err(QueueError::Request);
            }
            if !chain.copy_out(queues.memory(), 0, &mut bytes) {
                return Err(QueueError::NoMemory);
            }
            queues.push(CONTROL_OUT, &chain, 0)?;
            let [n0, n1, n2, n3, e0, e1, v0, v1] = bytes;
            let number = u32::from_le_bytes([n0, n1, n2, n3]) as usize;
            let value = u16::from_le_bytes([v0, v1]);
            self.heard(number, u16::from_le_bytes([e0, e1]), value);
        }
        Ok(())
    }

    fn heard(&mut self, number: usize, event: u16, value: u16) {
        if event == event::DEVICE_READY {
            for number in 1..=self.ports.len() {
                self.tell(message(number, event::PORT_ADD, 1));
            }
            return;
        }
        let Some(port) = number.checked_sub(1).and_then(|at| self.ports.get_mut(at)) else {
            return;
        };
        match event {
            event::PORT_READY if value == 1 => {
                port.is_ready = true;
                port.told_connected = false;
                let mut name = message(number, event::PORT_NAME, 1);
                name.extend(port.name.as_bytes());
                let is_console = port.is_console;
                self.tell(name);
                if is_console {
                    self.tell(message(number, event::CONSOLE_PORT, 1));
                }
            }
            event::PORT_OPEN => port.is_open = value != 0,
            _ => {}
        }
    }

    /// Moves as many bytes as possible at all ports, in both directions.
    fn pump(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        if !queues.has_feature(FEATURE_MULTIPORT) {
            return Ok(());
        }
        self.listen(queues)?;
        let mut channels = self.thread.channels();
        let (mut connections, mut has_moved) = (Vec::new(), false);
        for (index, (port, channel)) in self.ports.iter_mut().zip(&mut *channels).enumerate() {
            let (receive, transmit) = queues_of(index + 1);
            let before = (channel.to_guest.len(), channel.from_guest.len());
            if port.is_open {
                send(channel, receive, queues)?;
            }
            take(channel, &mut port.held, transmit, queues)?;
            has_moved |= before != (channel.to_guest.len(), channel.from_guest.len());
            // The end of a stream is reported to the guest after the last byte.
            let connected = channel.is_connected || !channel.to_guest.is_empty();
            if port.is_ready && connected != port.told_connected {
                port.told_connected = connected;
                connections.push(message(index + 1, event::PORT_OPEN, u16::from(connected)));
            }
        }
        drop(channels);
        if has_moved {
            self.thread.wake();
        }
        for message in connections {
            self.tell(message);
        }
        while let Some(message) = self.messages.front() {
            let Some(chain) = queues.pop(CONTROL_IN)? else {
                break;
            };
            if !chain.copy_in(queues.memory(), 0, message) {
                return Err(QueueError::NoMemory);
            }
            queues.push(CONTROL_IN, &chain, message.len() as u32)?;
            self.messages.pop_front();
        }
        Ok(())
    }
}

/// Moves bytes of the host to the guest.
fn send(channel: &mut Channel, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
    while !channel.to_guest.is_empty() {
        let Some(chain) = queues.pop(queue)? else {
            break;
        };
        let room = usize::try_from(chain.writable_bytes()).unwrap_or(usize::MAX);
        let count = channel.to_guest.len().min(room);
        let bytes: Vec<u8> = channel.to_guest.drain(..count).collect();
        if !chain.copy_in(queues.memory(), 0, &bytes) {
            return Err(QueueError::NoMemory);
        }
        queues.push(queue, &chain, count as u32)?;
    }
    Ok(())
}

/// Moves bytes of the guest to the host.
fn take(
    channel: &mut Channel,
    held: &mut VecDeque<Chain>,
    queue: usize,
    queues: &mut Queues<'_>,
) -> Result<(), QueueError> {
    while channel.from_guest.len() < MAX_TAKEN_BYTES {
        let Some(chain) = queues.pop(queue)? else {
            break;
        };
        let count = chain.readable_bytes();
        if count > MAX_CHAIN_BYTES {
            return Err(QueueError::Request);
        }
        let mut bytes = vec![0; count as usize];
        if !chain.copy_out(queues.memory(), 0, &mut bytes) {
            return Err(QueueError::NoMemory);
        }
        channel.from_guest.extend(bytes);
        held.push_back(chain);
    }
    while channel.from_guest.len() < BUFFER_BYTES
        && let Some(chain) = held.pop_front()
    {
        queues.push(queue, &chain, 0)?;
    }
    Ok(())
}

impl VirtioDevice for Console {
    fn name(&self) -> &'static str {
        "virtio-console"
    }

    fn device_type(&self) -> u16 {
        device_type::CONSOLE
    }

    fn features(&self) -> u64 {
        FEATURE_MULTIPORT
    }

    fn queue_sizes(&self) -> &[u16] {
        &self.queue_sizes
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn notify(&mut self, _queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.pump(queues)
    }

    fn connect(&mut self, completer: Completer) {
        self.thread.set_completer(completer);
    }

    fn complete(&mut self, _token: u64, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.thread.completion_taken();
        self.pump(queues)
    }

    /// A port's bytes are kept until the host has them, so that none is lost with a saved state.
    fn has_pending_work(&self) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|port| !port.held.is_empty())
            || (self.thread.channels().iter()).any(|channel| !channel.from_guest.is_empty())
    }

    fn save(&self) -> Value {
        let ports = self.ports.iter().map(|port| SavedPort {
            name: port.name.clone(),
            is_ready: port.is_ready,
            is_open: port.is_open,
            told_connected: port.told_connected,
        });
        let saved = Saved {
            ports: ports.collect(),
            messages: self.messages.clone(),
        };
        serde_json::to_value(saved).unwrap_or_default()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let Ok(saved) = Saved::deserialize(saved) else {
            return false;
        };
        let names = saved.ports.iter().map(|port| &port.name);
        if !names.eq(self.ports.iter().map(|port| &port.name)) {
            return false;
        }
        self.messages = saved.messages;
        self.messages.truncate(MAX_MESSAGES);
        for (port, saved) in self.ports.iter_mut().zip(saved.ports) {
            port.is_ready = saved.is_ready;
            port.is_open = saved.is_open;
            port.told_connected = saved.told_connected;
        }
        // Bytes that the host has sent before wait in the channels.
        self.thread.report();
        true
    }

    fn reset(&mut self) {
        self.messages.clear();
        for port in &mut self.ports {
            (port.is_ready, port.is_open, port.told_connected) = (false, false, false);
            port.held.clear();
        }
    }
}
