//! Why a virtual processor stopped.

use tollgate_platform::StopRequest;

/// Why [`Vcpu::run`](crate::Vcpu::run) returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VcpuStop {
    /// The machine asked for it.
    Requested(StopRequest),
    /// The processor shut down; the registers before the first exception.
    TripleFault(String),
    /// The guest did something legal that this version cannot do.
    NotImplemented(String),
}
