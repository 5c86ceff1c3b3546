//! States as lines have them: what is read and what is written.
//!
//! A written line is a state too, so that the next instruction can be executed from it.

use crate::registers::Registers;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_x86::{Attributes, CpuState, Cr0, Cr4, Efer, Flags, Segment, Selector};

/// In which mode the processor is, as far as nothing in the registers says otherwise.
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

/// Where the page tables begin that are there unless `cr3` says otherwise: they map the first GiB
/// onto itself, for all levels.
pub const IDENTITY_TABLES: u64 = 0xffff_0000;

/// A flat segment.
fn flat(attributes: u16) -> Segment {
    Segment {
        base: 0,
        limit: u32::MAX,
        selector: Selector(0),
        attributes: Attributes::from_bits_retain(attributes),
    }
}

impl Mode {
    /// A processor in this mode, as it is without registers in a line.
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

    /// That of a processor.
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

/// A state to begin at.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// Whatever identifies it; repeated in the answer.
    #[serde(default)]
    pub name: Option<Value>,
    /// What registers are like that are not given.
    #[serde(default)]
    pub mode: Mode,
    /// Registers.
    #[serde(default)]
    pub regs: Registers,
    /// Bytes of physical memory, all others of which are zero: address and value.
    #[serde(default)]
    pub ram: Vec<(u64, u8)>,
    /// What an earlier answer says of the instruction before has no meaning here.
    #[serde(default, rename = "exception")]
    _exception: Option<u8>,
    #[serde(default, rename = "halted")]
    _halted: bool,
}

/// The state behind an instruction.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct After {
    /// As in [`Before`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Value>,
    /// As the registers say.
    pub mode: Mode,
    /// All registers.
    pub regs: Registers,
    /// Bytes of physical memory: those that were given, and all others that are not what they
    /// were, by address.
    pub ram: Vec<(u64, u8)>,
    /// Vector of the exception that the instruction raised, which was delivered: the registers are
    /// those at the handler's first instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception: Option<u8>,
    /// The processor waits for an interrupt.
    #[serde(skip_serializing_if = "is_false")]
    pub halted: bool,
    /// Delivery of the exception failed, and that of #DF: the processor has shut down.
    #[serde(skip_serializing_if = "is_false")]
    pub shutdown: bool,
    /// The instruction could not be executed, for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "what serde calls takes a reference"
)]
fn is_false(it: &bool) -> bool {
    !it
}
