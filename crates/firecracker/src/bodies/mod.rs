//! The bodies of requests, with the fields of Firecracker's description. A field that Tollgate has
//! nothing for is known here too, so that the refusal can say why.

mod balloon;
mod body;
mod boot_source;
mod control;
mod devices;
mod drive;
mod limiter;
mod machine;
mod metadata;
mod network;
mod outputs;
mod snapshot;

pub use balloon::{Balloon, BalloonState, BalloonUpdate, StatisticsUpdate};
pub(crate) use body::{Body, parse, parse_any};
pub use boot_source::BootSource;
pub use control::{Action, ActionInfo, VmState, VmUpdate};
pub use devices::{Entropy, Serial, Vsock};
pub use drive::{CacheType, Drive, DriveUpdate, IoEngine};
pub use limiter::{RateLimiter, TokenBucket};
pub use machine::{MachineConfig, MachineConfigUpdate};
pub use metadata::{MetadataConfig, MetadataVersion};
pub use network::{NetworkInterface, NetworkUpdate};
pub use outputs::{Logger, Metrics};
pub use snapshot::{
    MemoryBackend, NetworkOverride, SnapshotCreate, SnapshotLoad, SnapshotType, VsockOverride,
};
