//! Address types, so that the levels of translation cannot be mixed by accident.
//!
//! A *linear* address is what segmentation yields and paging takes; a *physical*
//! address is the guest's physical address. Host addresses are plain pointers
//! and never take these types.

use std::fmt;

/// Bytes in the smallest page.
pub const PAGE_SIZE: u64 = 4096;

/// Linear address bits that 4-level paging translates (CPUID 8000_0008h).
pub const LINEAR_ADDRESS_BITS: u32 = 48;

macro_rules! address_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub struct $name(pub u64);

        impl $name {
            /// Number of the 4 KiB page that holds this address.
            pub const fn page(self) -> u64 {
                self.0 / PAGE_SIZE
            }

            /// Offset inside the 4 KiB page, 0 to 4095.
            pub const fn page_offset(self) -> u64 {
                self.0 % PAGE_SIZE
            }

            /// First address of the 4 KiB page.
            pub const fn page_base(self) -> Self {
                Self(self.0 & !(PAGE_SIZE - 1))
            }

            /// The address that lies `bytes` higher; wraps at 2^64.
            pub const fn offset(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{}({:#x})", stringify!($name), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{:#x}", self.0)
            }
        }
    };
}

address_type! {
    /// A linear address: the result of segmentation and the input of paging (SDM volume 3, 3.1).
    LinearAddress
}
address_type! {
    /// A guest physical address: the result of paging.
    PhysicalAddress
}
