//! Virtio devices as drivers see them, good ones and bad ones.

mod balloon;
mod block;
mod driver;
mod hostile;
mod mmio;
mod net;
mod transport;
mod vsock;
