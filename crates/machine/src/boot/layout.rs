//! Physical addresses of the structures that the loaders leave in low memory. If a multiboot kernel
//! is linked there, all of them except the BIOS data area are placed elsewhere.

/// The BIOS data area.
pub const BIOS_DATA: u64 = 0x400;
/// The first address after the BIOS data area.
pub const BIOS_DATA_END: u64 = 0x500;
/// The global descriptor table that a guest starts with.
pub const DESCRIPTOR_TABLE: u64 = 0x6000;
/// Linux's zero page, PVH's start information, or the multiboot information.
pub const BOOT_INFORMATION: u64 = 0x7000;
/// The page tables of a Linux kernel that is entered in long mode: 6 pages.
pub const PAGE_TABLES: u64 = 0x9000;
/// Linux's command line, or all texts for multiboot.
pub const COMMAND_LINE: u64 = 0x2_0000;
/// The first address after the area for text.
pub const COMMAND_LINE_END: u64 = 0x6_0000;
/// The extended BIOS data area, where conventional memory ends.
pub const EXTENDED_BIOS_DATA: u64 = 0x9_fc00;
/// The address at which kernels are loaded: 1 MiB.
pub const KERNEL: u64 = 0x10_0000;
