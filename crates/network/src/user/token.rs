//! The tokens of the poller: their upper bits say of what kind a socket is.

/// The descriptor that the cable wakes the thread with.
pub const WIRE: u64 = 0;
/// A listener; the lower bits are its number.
pub const LISTENER: u64 = 1 << 60;
/// A TCP connection.
pub const TCP: u64 = 2 << 60;
/// A UDP socket.
pub const UDP: u64 = 3 << 60;
/// A forwarded UDP port; the lower bits are its number.
pub const FORWARD: u64 = 5 << 60;
/// A ping socket.
pub const ECHO: u64 = 4 << 60;
/// The mask of the upper bits.
pub const KIND: u64 = 0xf << 60;
