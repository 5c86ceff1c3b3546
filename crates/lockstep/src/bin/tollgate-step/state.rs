//! The states in the lines that are read and written.
//!
//! A line that was written is also a valid state, so the next instruction can be executed from it.

use crate::registers::Registers;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_x86::{Attributes, CpuState, Cr0, Cr4, Efer, Flags, Segment, Selector};

/// The mode of the processor, where the registers do not say otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Real mode.
    #[default]
    Real,
    /// Virtual-8086 mode.
    Vm86,
    /// 16-bit protected mode, level 0, flat segments.
    Protected16,
    /// 32-bit protected mode, level 0, flat segments.
    Protected32,
    /// Compatibility mode with 32-bit code, level 0, flat segments.
    Compatibility,
    /// 64-bit mode, level 0.
    Long64,
}

/// Address of the page tables that are used unless `cr3` is given: they map the first GiB onto
/// itself, for all levels.
pub const IDENTITY_TABLES: u64 = 0xffff_0000;

/// A flat segment with these attributes.
fn flat(attributes: u16) -> Segment {
    Segment {
        base: 0,
        limit: u32::MAX,
        selector: Selector(0),
        attributes: Attributes::from_bits_retain(attributes),
    }
}

impl Mode {
    /// The processor in this mode, with the values of registers that a line does not contain.
    pub fn initial(self) -> CpuState {
        const DATA32: u16 = 0xc093;
        const DATA16: u16 = 0x8093;
        let mut state = CpuState::at_reset();
        state.rip = 0;
        state.segments = [Segment::real_mode(0, 0); 6];
        let (code, data) = match self {
            Self::Real => return state,
            Self::Vm86 => {
                state.cr0 |= Cr0::PE.bits();
                state.set_flags(Flags::VM);
                state.segments = [Segment::real_mode(0, 3); 6];
                return state;
            }
            Self::Protected16 => (0x809b, DATA16),
            Self::Protected32 | Self::Compatibility => (0xc09b, DATA32),
            Self::Long64 => (0xa09b, DATA32),
        };
        state.cr0 |= Cr0::PE.bits();
        state.segments = [flat(data); 6];
        state.segments[1] = flat(code);
        if matches!(self, Self::Compatibility | Self::Long64) {
            state.cr0 |= Cr0::PG.bits();
            state.cr3 = IDENTITY_TABLES;
            state.cr4 |= Cr4::PAE.bits();
            state.efer |= (Efer::LME | Efer::LMA).bits();
        }
        state
    }

    /// The mode of a processor.
    pub fn of(state: &CpuState) -> Self {
        let is_big = state.cs().is_big();
        match (state.is_protected(), state.is_long_mode()) {
            (false, _) => Self::Real,
            _ if state.is_virtual_8086() => Self::Vm86,
            (_, true) if state.is_64_bit() => Self::Long64,
            (_, true) => Self::Compatibility,
            _ if is_big => Self::Protected32,
            _ => Self::Protected16,
        }
    }
}

/// The state before an instruction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// Identifies the state; repeated in the answer.
    #[serde(default)]
    pub name: Option<Value>,
    /// The mode, which determines registers that are not given.
    #[serde(default)]
    pub mode: Mode,
    /// The registers that are given.
    #[serde(default)]
    pub regs: Registers,
    /// The bytes of physical memory that are not zero: address and value.
    #[serde(default)]
    pub ram: Vec<(u64, u8)>,
    /// Ignored: an answer for the previous instruction contains it.
    #[serde(default, rename = "exception")]
    _exception: Option<u8>,
    #[serde(default, rename = "halted")]
    _halted: bool,
}

/// The state after an instruction.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct After {
    /// The name from [`Before`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Value>,
    /// The mode according to the registers.
    pub mode: Mode,
    /// All registers after the instruction.
    pub regs: Registers,
    /// Bytes of physical memory, sorted by address: those that were given, and all others that have
    /// changed.
    pub ram: Vec<(u64, u8)>,
    /// Vector of the exception that the instruction raised. It was delivered: the registers are
    /// those at the handler's first instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception: Option<u8>,
    /// Whether the processor waits for an interrupt.
    #[serde(skip_serializing_if = "is_false")]
    pub halted: bool,
    /// Whether the processor has shut down, because the delivery of the exception and of #DF
    /// failed.
    #[serde(skip_serializing_if = "is_false")]
    pub shutdown: bool,
    /// Why the instruction could not be executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(it: &bool) -> bool {
    !it
}
