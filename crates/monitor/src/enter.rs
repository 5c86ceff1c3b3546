//! The way into translated code and out of it.

use crate::vcpu::{Vcpu, VcpuStop};
use tollgate_engine::Context;
use tollgate_engine::abi::context::{NO_PASS, SITE_NONE, SITE_SIGNAL};
use tollgate_engine::abi::sites::BlockId;
use tollgate_platform::Platform;
use tollgate_x86::Gpr;

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
    /// [`Context::store_pass`] for this entry.
    pub store_pass: u64,
}

impl<P: Platform> Vcpu<P> {
    /// Enters guest code and handles the exit.
    pub(crate) fn enter_at(
        &mut self,
        target: *const u8,
        block: BlockId,
        esp: i32,
    ) -> Result<(), VcpuStop> {
        self.ledger.enter_guest();
        self.enter_raw(target, block, esp);
        self.ledger.leave_guest();
        self.handle_exit()
    }

    /// Enters guest code at `target`, where ESP's home must hold ESP minus `esp`.
    pub(crate) fn enter_raw(&mut self, target: *const u8, block: BlockId, esp: i32) {
        let true_esp = self.context.cpu.gpr[Gpr::Rsp as usize];
        if esp != 0 {
            let mask = self.engine.stack_mask(block);
            self.context.cpu.gpr[Gpr::Rsp as usize] =
                adjust_stack_pointer(true_esp, esp.wrapping_neg(), mask);
        }
        self.context.vectors_were_live = 0;
        self.context.exit_site = SITE_NONE;
        // 64-bit code has a map of its own, whose slots need no copies.
        let slots = match self.slot_mask {
            0 => 0,
            _ if self.context.cpu.is_64_bit() => 0,
            mask => mask,
        };
        self.context.scatter_registers(slots);
        let context: *mut Context = &mut *self.context;
        // SAFETY: the target is an address inside a live block of this context's
        // engine, whose tables were set up by `new` and `update_mode`; the vector area
        // is sanitised whenever an emulated instruction has written it.
        unsafe { tollgate_engine::gate::entry::enter(context, target) };
        self.context.store_pass = NO_PASS;
        self.context.gather_registers(slots);
        if self.context.vectors_were_live != 0 {
            self.context.gather_x87_pointers();
        }
        if self.context.exit_site == SITE_NONE {
            self.context.cpu.gpr[Gpr::Rsp as usize] = true_esp;
        }
    }

    fn handle_exit(&mut self) -> Result<(), VcpuStop> {
        match self.context.exit_site {
            SITE_NONE => Ok(()),
            SITE_SIGNAL => self.signal_exit(),
            packed => self.site_exit(packed),
        }
    }
}

/// The stack pointer plus `by`, which changes the bits in `mask`: 64, 32 or 16. The upper
/// half is cleared if it is 32.
pub(crate) fn adjust_stack_pointer(rsp: u64, by: i32, mask: u64) -> u64 {
    let moved = rsp.wrapping_add_signed(i64::from(by)) & mask;
    let kept = if mask == 0xffff { rsp & !mask } else { 0 };
    kept | moved
}
