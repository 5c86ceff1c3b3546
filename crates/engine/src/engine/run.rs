//! Running guest code: from a state and an entry to an exit.

use super::Engine;
use crate::abi::context::{Context, NO_PASS};
use crate::abi::sites::BlockId;
use crate::abi::sites::{SITE_NONE, SITE_SIGNAL};
use crate::blocks::link_target::Target;
use crate::gate::entry::enter;
use tollgate_x86::Gpr;

/// Where guest code is entered.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The block that is entered.
    pub block: BlockId,
    /// The host address in the block's code, as [`Engine::address`] returns it.
    pub target: *const u8,
    /// What is subtracted from ESP to get the value that ESP's home must hold there.
    pub esp: i32,
    /// What [`KeptRegisters::code_slide`](crate::abi::context::groups::KeptRegisters::code_slide)
    /// must be there (see [`Engine::code_slide`]).
    pub code_slide: u64,
}

impl Entry {
    /// The entry at the start of the block that [`Engine::branch_target`] has found.
    pub fn of_branch(target: Target) -> Self {
        Self {
            // The block matters only where ESP is adjusted.
            block: BlockId(0),
            target: target.address as *const u8,
            esp: 0,
            code_slide: target.slide,
        }
    }
}

/// Why guest code has stopped running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// A request to leave was waiting: no guest code has run.
    NotEntered,
    /// A signal interrupted guest code; [`Context::signal`] says what its handler found.
    Signal,
    /// Guest code left at this site, which is packed as by [`crate::abi::sites::pack_site`].
    Site(u32),
}

impl Engine {
    /// Runs guest code until it leaves. Afterwards the context contains all registers, except for
    /// what must still be corrected as the exit's site or the signal says.
    ///
    /// # Safety
    /// - The engine lives, and is accessed only through this pointer and by the functions that
    ///   guest code calls.
    /// - The context is attached to this engine ([`Engine::attach`]), and its tables are those of
    ///   the entry's mode.
    /// - The target lies in the entry's block, which lives.
    /// - The vector area is one that XRSTOR accepts (see
    ///   [`crate::abi::vector_registers::sanitize`]).
    pub unsafe fn run(engine: *const Self, context: &mut Context, entry: &Entry) -> Exit {
        let true_esp = context.cpu.gpr[Gpr::Rsp as usize];
        // SAFETY: the caller guarantees that the engine lives; this reference is not used after
        // guest code has begun to run, which may call functions that change the engine's links.
        let engine = unsafe { &*engine };
        if entry.esp != 0 {
            let mask = engine.stack_mask(entry.block);
            context.cpu.gpr[Gpr::Rsp as usize] =
                adjust_stack_pointer(true_esp, entry.esp.wrapping_neg(), mask);
        }
        context.vectors.were_live = 0;
        context.hot.exit_site = SITE_NONE;
        context.registers.code_slide = entry.code_slide;
        engine.tell_links(context);
        engine.tell_device_page(context);
        // 64-bit code has a map of its own, whose slots need no copies.
        let slots = match engine.slot_mask {
            0 => 0,
            _ if context.cpu.is_64_bit() => 0,
            mask => mask,
        };
        context.scatter_registers(slots);
        context.prepare_vector_load();
        let raw: *mut Context = context;
        // SAFETY: the caller guarantees this for the target, the tables and the vector area.
        unsafe { enter(raw, entry.target) };
        context.store_test.pass = NO_PASS;
        context.gather_registers(slots);
        if context.vectors.were_live != 0 {
            context.settle_vector_area();
            context.gather_x87_pointers();
        }
        match context.hot.exit_site {
            SITE_NONE => {
                context.cpu.gpr[Gpr::Rsp as usize] = true_esp;
                Exit::NotEntered
            }
            SITE_SIGNAL => Exit::Signal,
            packed => Exit::Site(packed),
        }
    }
}

/// Adds `by` to the stack pointer, of which only the bits in `mask` change: 64, 32 or 16. If the
/// mask has 32 bits, the upper half is cleared.
pub fn adjust_stack_pointer(rsp: u64, by: i32, mask: u64) -> u64 {
    let moved = rsp.wrapping_add_signed(i64::from(by)) & mask;
    let kept = if mask == 0xffff { rsp & !mask } else { 0 };
    kept | moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_of_16_bits_keeps_the_upper_half() {
        assert_eq!(adjust_stack_pointer(0x1_0002, -4, 0xffff), 0x1_fffe);
        assert_eq!(
            adjust_stack_pointer(0x1_0000_0002, -4, 0xffff_ffff),
            0xffff_fffe
        );
        assert_eq!(adjust_stack_pointer(2, -4, u64::MAX), u64::MAX - 1);
    }
}
