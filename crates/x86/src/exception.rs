//! Exceptions and their vectors (SDM volume 3, 6.3 to 6.15).

use crate::address::LinearAddress;

/// Architectural exception vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each name is the manual's")]
pub enum Vector {
    DivideError = 0,
    Debug = 1,
    NonMaskableInterrupt = 2,
    Breakpoint = 3,
    Overflow = 4,
    BoundRange = 5,
    InvalidOpcode = 6,
    DeviceNotAvailable = 7,
    DoubleFault = 8,
    CoprocessorOverrun = 9,
    InvalidTss = 10,
    SegmentNotPresent = 11,
    StackFault = 12,
    GeneralProtection = 13,
    PageFault = 14,
    FloatingPoint = 16,
    AlignmentCheck = 17,
    MachineCheck = 18,
    SimdFloatingPoint = 19,
}

impl Vector {
    /// All exceptions, in the order of their numbers.
    pub const ALL: [Vector; 19] = [
        Vector::DivideError,
        Vector::Debug,
        Vector::NonMaskableInterrupt,
        Vector::Breakpoint,
        Vector::Overflow,
        Vector::BoundRange,
        Vector::InvalidOpcode,
        Vector::DeviceNotAvailable,
        Vector::DoubleFault,
        Vector::CoprocessorOverrun,
        Vector::InvalidTss,
        Vector::SegmentNotPresent,
        Vector::StackFault,
        Vector::GeneralProtection,
        Vector::PageFault,
        Vector::FloatingPoint,
        Vector::AlignmentCheck,
        Vector::MachineCheck,
        Vector::SimdFloatingPoint,
    ];

    /// The exception with this vector number; `None` for a number that is not assigned.
    pub fn from_number(number: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|&vector| vector as u8 == number)
    }

    /// Whether delivery pushes an error code (SDM volume 3, table 6-1).
    pub const fn has_error_code(self) -> bool {
        matches!(
            self,
            Vector::DoubleFault
                | Vector::InvalidTss
                | Vector::SegmentNotPresent
                | Vector::StackFault
                | Vector::GeneralProtection
                | Vector::PageFault
                | Vector::AlignmentCheck
        )
    }
}

bitflags::bitflags! {
    /// Error code of a page fault (SDM volume 3, 4.7).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct PageFaultCode: u32 {
        /// Set: a present translation forbade the access. Clear: the page was not present.
        const PRESENT = 1;
        /// The access was a write.
        const WRITE = 2;
        /// The access was made at user privilege.
        const USER = 4;
        /// A reserved bit was set in a paging-structure entry.
        const RESERVED = 8;
        /// The access was an instruction fetch (only with NX or SMEP).
        const FETCH = 16;
        /// A protection key forbade the access.
        const PROTECTION_KEY = 32;
    }
}

/// A fault, trap or abort that will be delivered to the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exception {
    /// The exception's vector.
    pub vector: Vector,
    /// The error code; only some vectors push one, after the return address.
    pub error_code: u32,
    /// The faulting linear address of a page fault; delivery writes it to CR2.
    pub address: Option<LinearAddress>,
}

impl Exception {
    /// An exception without an error code, or with error code zero.
    pub const fn new(vector: Vector) -> Self {
        Self {
            vector,
            error_code: 0,
            address: None,
        }
    }

    /// An invalid opcode exception, #UD.
    pub const fn invalid_opcode() -> Self {
        Self::new(Vector::InvalidOpcode)
    }

    /// A device-not-available exception, #NM.
    pub const fn device_not_available() -> Self {
        Self::new(Vector::DeviceNotAvailable)
    }

    /// #GP with an error code (zero or a selector without its RPL).
    pub const fn general_protection(error_code: u32) -> Self {
        Self {
            vector: Vector::GeneralProtection,
            error_code,
            address: None,
        }
    }

    /// #SS with an error code.
    pub const fn stack_fault(error_code: u32) -> Self {
        Self {
            vector: Vector::StackFault,
            error_code,
            address: None,
        }
    }

    /// #NP with an error code.
    pub const fn segment_not_present(error_code: u32) -> Self {
        Self {
            vector: Vector::SegmentNotPresent,
            error_code,
            address: None,
        }
    }

    /// #TS with an error code.
    pub const fn invalid_tss(error_code: u32) -> Self {
        Self {
            vector: Vector::InvalidTss,
            error_code,
            address: None,
        }
    }

    /// #PF at `address`.
    pub const fn page_fault(address: LinearAddress, code: PageFaultCode) -> Self {
        Self {
            vector: Vector::PageFault,
            error_code: code.bits(),
            address: Some(address),
        }
    }
}
