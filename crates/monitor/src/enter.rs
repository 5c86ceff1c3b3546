//! The way into translated code and out of it.

use crate::running::Running;
use crate::vcpu::VcpuStop;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::engine::run::{Entry, Exit};
use tollgate_platform::Platform;

/// Which part of a vCPU's code runs next, inside a block.
#[derive(Clone, Copy)]
pub(crate) struct Resume {
    pub block: BlockId,
    pub offset: u32,
    /// ESP's home must hold ESP minus this.
    pub esp: i32,
    /// Void if the engine's generation differs.
    pub generation: u64,
    /// The code there expects the vector registers as they were at the exit.
    pub vectors: bool,
    /// [`tollgate_engine::Context::store_pass`] for this entry.
    pub store_pass: u64,
}

impl<P: Platform> Running<'_, P> {
    /// Enters guest code and handles the exit.
    pub(crate) fn enter_at(
        &mut self,
        target: *const u8,
        block: BlockId,
        esp: i32,
    ) -> Result<(), VcpuStop> {
        self.ledger.enter_guest();
        let exit = self.enter_raw(target, block, esp);
        self.ledger.leave_guest();
        self.handle_exit(exit)
    }

    /// Enters guest code at `target`, where ESP's home must hold ESP minus `esp`.
    pub(crate) fn enter_raw(&mut self, target: *const u8, block: BlockId, esp: i32) -> Exit {
        let entry = Entry { block, target, esp };
        // SAFETY: the target is an address inside a live block of this context's
        // engine, whose tables were set up by `new` and `update_mode`; the vector area
        // is sanitised whenever an emulated instruction has written it.
        unsafe { self.runner.engine.run(&mut self.runner.context, &entry) }
    }

    fn handle_exit(&mut self, exit: Exit) -> Result<(), VcpuStop> {
        match exit {
            Exit::NotEntered => Ok(()),
            Exit::Signal => self.signal_exit(),
            Exit::Site(packed) => self.site_exit(packed),
        }
    }
}
