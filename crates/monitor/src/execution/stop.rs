//! Why a virtual processor stopped.

use tollgate_platform::StopRequest;

/// Why [`Vcpu::run`](crate::Vcpu::run) returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VcpuStop {
    /// The machine asked the virtual processor to stop.
    Requested(StopRequest),
    /// The processor shut down. The text has the registers before the first exception.
    TripleFault(String),
    /// The guest did something legal that this version does not implement. The text says what.
    NotImplemented(String),
}
