//! The numbers of the routines that execute repeated string instructions without an exit.
//!
//! The routines are in [`crate::gate::string`]. `policy/string_routine.rs` says which instruction
//! has which routine.

/// The number of operations for each way to reach memory: MOVS and STOS of four widths, then CMPS
/// and SCAS of four widths, each while equal and while not equal, then LODS of four widths.
pub const OPERATIONS: usize = 28;
/// The number of routines: all operations for one way to reach memory, then those for the next way.
pub const ROUTINES: usize = Reach::ALL.len() * OPERATIONS;

/// How a routine reaches memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Flat segments, addresses of 32 bits, through the flat software TLB.
    Flat,
    /// 64-bit code, through the long software TLB.
    Long,
    /// Compatibility mode: flat segments, addresses of 32 bits, through the long software TLB.
    Compatible,
    /// Addresses of 16 bits, in segments with a base and a limit of 64 KiB or more, through the
    /// flat software TLB.
    Words,
}

impl Reach {
    /// All ways, in the order of the routines.
    pub const ALL: [Self; 4] = [Self::Flat, Self::Long, Self::Compatible, Self::Words];

    /// How many bits of RCX, RSI and RDI are used.
    pub const fn pointer_bits(self) -> u32 {
        match self {
            Self::Flat | Self::Compatible => 32,
            Self::Long => 64,
            Self::Words => 16,
        }
    }
}

/// The number of a routine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StringRoutine(pub usize);

impl StringRoutine {
    /// The routine of an operation.
    pub const fn of(reach: Reach, operation: usize) -> Self {
        Self(reach as usize * OPERATIONS + operation)
    }

    /// How the routine reaches memory.
    pub const fn reach(self) -> Reach {
        Reach::ALL[self.0 / OPERATIONS]
    }
}
