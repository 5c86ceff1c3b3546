//! Accesses to devices and to display memory that the monitor has done.

use crate::abi::context::SITE_NONE;
use tollgate_x86::Operation;

/// Number of entries in [`DeviceState::accesses`](crate::abi::context::groups::DeviceState::accesses).
pub const DEVICE_ACCESSES: usize = 128;
/// A site times this has the number of its entry in the high 7 bits of the product.
pub const SPREAD_SITES: u32 = 0x1e37_79b1;

/// What an instruction does whose look-up of its memory operand met a device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceAccess {
    /// The site of the instruction, from [`pack_site`](crate::abi::sites::pack_site);
    /// [`SITE_NONE`]: the entry is free.
    pub site: u32,
    /// The operation on the two operands, one of which is in memory.
    pub operation: Operation,
    /// The guest register that is the other operand, never RSP; [`NO_REGISTER`]: the constant is the
    /// other operand, if there is one.
    pub register: u8,
    /// Size of the memory operand in bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// A combination of the `FORM_` bits.
    pub form: u8,
    /// The constant operand, before its sign extension.
    pub constant: i32,
    /// Size of the register operand in bytes.
    pub register_size: u8,
    /// Host address of the code that follows the instruction.
    pub behind: u64,
    /// RIP of the next guest instruction.
    pub next_rip: u64,
}

/// Bit of [`DeviceAccess::form`]: the operand is bits 8 to 15 of the register.
pub const FORM_HIGH_BYTE: u8 = 1 << 0;
/// Bit of [`DeviceAccess::form`]: the register is the destination.
pub const FORM_TO_REGISTER: u8 = 1 << 1;
/// Bit of [`DeviceAccess::form`]: the instruction has met display memory.
pub const FORM_DISPLAY: u8 = 1 << 2;
/// Bit of [`DeviceAccess::form`]: a LODS or STOS, which advances 16 bits of its pointer, RSI for a
/// load and RDI for a store.
pub const FORM_ADVANCES_16: u8 = 1 << 3;
/// Bit of [`DeviceAccess::form`]: the same with 32 bits of the pointer.
pub const FORM_ADVANCES_32: u8 = 1 << 4;
/// Bit of [`DeviceAccess::form`]: the same with 64 bits of the pointer.
pub const FORM_ADVANCES_64: u8 = 1 << 5;

/// Value of [`DeviceAccess::register`] without a register operand.
pub const NO_REGISTER: u8 = 0xff;

impl DeviceAccess {
    /// A free entry.
    pub const NONE: Self = Self {
        site: SITE_NONE,
        operation: Operation::Move,
        register: NO_REGISTER,
        size: 0,
        form: 0,
        constant: 0,
        register_size: 0,
        behind: 0,
        next_rip: 0,
    };

    /// The index of a site's entry.
    pub const fn number(site: u32) -> usize {
        (site.wrapping_mul(SPREAD_SITES) >> 25) as usize
    }

    /// Whether the access loads from memory.
    pub const fn loads(&self) -> bool {
        self.form & FORM_TO_REGISTER != 0 || self.operation.reads_destination()
    }

    /// Whether the access stores to memory.
    pub const fn stores(&self) -> bool {
        matches!(self.operation, Operation::Exchange)
            || self.form & FORM_TO_REGISTER == 0 && self.operation.writes_destination()
    }
}
