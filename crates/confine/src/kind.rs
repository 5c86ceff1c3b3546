//! The kinds of threads, by what they do.

/// What a thread does, which determines what it may ask of the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ThreadKind {
    /// Runs guest code and the devices.
    Vcpu,
    /// Reads and writes one disk image.
    Disk,
    /// Serves a shared directory.
    Share,
    /// Is the other end of a network adapter's cable.
    Network,
    /// Carries the sockets between guest and host.
    Vsock,
    /// Carries the ports of the virtio console.
    Ports,
    /// Serves VNC viewers, or carries the bytes of a debugger.
    Vnc,
    /// Computes, or waits for memory, on behalf of another thread.
    Worker,
    /// Sets the machine up and ends it, waits for signals, the terminal and control clients, or moves
    /// standard streams.
    Main,
}

impl ThreadKind {
    /// Every kind, in this order.
    pub const ALL: [Self; 9] = [
        Self::Vcpu,
        Self::Disk,
        Self::Share,
        Self::Network,
        Self::Vsock,
        Self::Ports,
        Self::Vnc,
        Self::Worker,
        Self::Main,
    ];

    /// The kind's name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vcpu => "vcpu",
            Self::Disk => "disk",
            Self::Share => "share",
            Self::Network => "network",
            Self::Vsock => "vsock",
            Self::Ports => "ports",
            Self::Vnc => "vnc",
            Self::Worker => "worker",
            Self::Main => "main",
        }
    }

    /// The kind's place in [`ThreadKind::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}
