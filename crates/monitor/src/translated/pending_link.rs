//! A link between two blocks that is made once the block of its target is known.

use tollgate_engine::abi::sites::BlockId;

/// A link that will be made once the target's block is known.
#[derive(Clone, Copy)]
pub(crate) enum PendingLink {
    None,
    From {
        block: BlockId,
        site: usize,
        generation: u64,
        /// Whether the target is the code without shared look-ups (see [`Mode::windowless`]).
        ///
        /// [`Mode::windowless`]: tollgate_engine::policy::mode::Mode::windowless
        windowless: bool,
    },
    Indirect,
    Far,
    /// The handler of an exception, which is looked up as the target of an indirect branch is.
    Handler,
}
