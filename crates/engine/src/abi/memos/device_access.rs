//! The memos of instructions that access devices or display memory.

use crate::abi::sites::SITE_NONE;
use tollgate_x86::Operation;

/// The number of entries in
/// [`DeviceState::accesses`](crate::abi::context::groups::DeviceState::accesses).
pub const DEVICE_ACCESSES: usize = 128;
/// The multiplier of the hash that places these memos: the product of this and a site has the
/// number of the site's entry in its high 7 bits.
pub const SPREAD_SITES: u32 = 0x1e37_79b1;

/// What an instruction does whose look-up missed because there is a device at its address.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceAccess {
    /// The site of the instruction, from [`pack_site`](crate::abi::sites::pack_site); [`SITE_NONE`]
    /// if the entry is free.
    pub site: u32,
    /// The operation on the two operands, one of which is in memory.
    pub operation: Operation,
    /// The guest register that is the other operand; never RSP. [`NO_REGISTER`] if there is no
    /// other operand, or the constant is the other operand.
    pub register: u8,
    /// The size of the memory operand in bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// A combination of the `FORM_` bits.
    pub form: u8,
    /// The constant operand, before its sign extension.
    pub constant: i32,
    /// The size of the register operand in bytes.
    pub register_size: u8,
    /// The host address of the code that follows the instruction.
    pub behind: u64,
    /// RIP of the next guest instruction.
    pub next_rip: u64,
}

/// Bit of [`DeviceAccess::form`]: the operand is bits 8 to 15 of the register.
pub const FORM_HIGH_BYTE: u8 = 1 << 0;
/// Bit of [`DeviceAccess::form`]: the register is the destination.
pub const FORM_TO_REGISTER: u8 = 1 << 1;
/// Bit of [`DeviceAccess::form`]: the instruction has accessed display memory.
pub const FORM_DISPLAY: u8 = 1 << 2;
/// Bit of [`DeviceAccess::form`]: the instruction is a LODS or STOS, which advances a pointer of 16
/// bits: RSI for a load, RDI for a store.
pub const FORM_ADVANCES_16: u8 = 1 << 3;
/// Bit of [`DeviceAccess::form`]: as [`FORM_ADVANCES_16`], for a pointer of 32 bits.
pub const FORM_ADVANCES_32: u8 = 1 << 4;
/// Bit of [`DeviceAccess::form`]: as [`FORM_ADVANCES_16`], for a pointer of 64 bits.
pub const FORM_ADVANCES_64: u8 = 1 << 5;

/// The value of [`DeviceAccess::register`] for an instruction without a register operand.
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
