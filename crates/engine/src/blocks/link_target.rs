//! Where an indirect branch, or a branch to another page, leads: host address and slide.

/// The target of an indirect branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Host address of the block's code.
    pub address: u64,
    /// The slide that the context must have at the target if the block is relocatable: the value of
    /// [`KeptRegisters::code_slide`](crate::abi::context::groups::KeptRegisters::code_slide).
    pub slide: u64,
}

impl Target {
    /// Makes the target for a block that is not relocatable.
    pub fn fixed(address: u64) -> Self {
        Self { address, slide: 0 }
    }
}
