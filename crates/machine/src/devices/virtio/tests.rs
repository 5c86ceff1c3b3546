//! Tests of virtio devices with correct and with broken drivers.

mod balloon;
mod block;
mod driver;
mod hostile;
mod mmio;
mod net;
mod scsi;
mod scsi_events;
mod transport;
mod vsock;
