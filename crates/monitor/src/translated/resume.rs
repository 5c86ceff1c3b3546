//! The place in a block where guest code resumes.

use tollgate_engine::abi::sites::BlockId;

/// The place in a block where a vCPU's code resumes.
#[derive(Clone, Copy)]
pub(crate) struct Resume {
    pub block: BlockId,
    pub offset: u32,
    /// The register that holds ESP must hold ESP minus this number.
    pub esp: i32,
    /// The engine's generation. If it has changed, the place is void.
    pub generation: u64,
    /// Whether the code there expects the vector registers to be as they were at the exit.
    pub vectors: bool,
    /// The value of [`tollgate_engine::abi::context::groups::StoreTest::pass`] for this entry.
    pub store_pass: u64,
    /// The slide of the block's code, if the code is relocatable.
    pub code_slide: u64,
}
