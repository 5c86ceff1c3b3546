//! The version of the layout of snapshots.

/// The version of the file's layout. A file of another version is refused.
pub const SNAPSHOT_VERSION: u32 = 3;
