//! The memory that both processors see: one window of 64 KiB at the same linear addresses, natively
//! and in the guest, and the segments that reach it.

use crate::local_descriptors::has_locals;
use tollgate_x86::{Attributes, Segment, SegmentRegister, Selector};

/// Size of a page in bytes.
pub const PAGE: usize = 4096;
/// Linear address of the window.
pub const WINDOW: u64 = 0x1150_0000;
/// Linear address of the second mapping of the window, for 64-bit code.
pub const HIGH_WINDOW: u64 = 0x1f37_1150_0000;
/// Size of the window in bytes: everything that a 16-bit address reaches.
pub const WINDOW_BYTES: usize = 0x1_0000;
/// Number of pages in the window.
pub const PAGES: usize = WINDOW_BYTES / PAGE;

/// The access rights of a page of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The page is not present.
    None,
    /// Read and execute: pages for the code.
    Code,
    /// Read only.
    Read,
    /// Read and write.
    Write,
}

/// The pages, in an order in which each combination of neighbours occurs.
pub const PAGE_ACCESS: [Access; PAGES] = {
    use Access::{Code, None, Read, Write};
    [
        None, Code, Code, None, Write, Write, None, Write, Write, Read, Write, Read, None, Write,
        None, Write,
    ]
};

/// First offset of the pages for code.
pub const CODE_START: u16 = 0x1000;
/// Offset after the pages for code.
pub const CODE_END: u16 = 0x3000;
/// First offset of the two pages for the stack.
pub const STACK_START: u16 = 0x4000;

/// The segments in which a case runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum World {
    /// 32-bit code with flat segments as on Linux; FS has a base, GS a base and a limit.
    Flat32,
    /// 32-bit code; the segments' base is the window, and DS and ES are limited to it.
    Based32,
    /// 16-bit code and stack; the segments have 64 KiB, and their base is the window.
    Window16,
    /// 32-bit code with a 16-bit stack; DS expands down.
    Narrow32,
    /// 16-bit code with a 32-bit stack; ES expands down.
    Wide16,
    /// 64-bit code in the window; FS and GS have bases.
    Long64,
    /// 64-bit code in the window's second mapping, far above 4 GiB.
    High64,
}

/// A descriptor in the local table.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// The linear base address.
    pub base: u32,
    /// Highest valid offset, in bytes.
    pub limit: u32,
    /// Whether the default size is 32 bits.
    pub big: bool,
    /// Whether it is code, not data.
    pub code: bool,
    /// Whether it is data that is readable but not writable.
    pub read_only: bool,
    /// Whether it is expand-down data.
    pub expand_down: bool,
}

const fn data(base: u32, limit: u32, big: bool) -> Local {
    Local {
        base,
        limit,
        big,
        code: false,
        read_only: false,
        expand_down: false,
    }
}

const fn code(base: u32, limit: u32, big: bool) -> Local {
    Local {
        code: true,
        ..data(base, limit, big)
    }
}

/// Limit of the small segment in GS, which ends inside a writable page.
pub const SMALL_LIMIT: u32 = 0x87ff;

/// The local descriptor table, natively and in the guest.
pub const LOCALS: [Local; 9] = {
    const BASE: u32 = WINDOW as u32;
    [
        code(BASE, 0xffff_ffff, true),
        data(BASE, 0xffff_ffff, true),
        data(BASE, 0xffff, true),
        data(BASE, SMALL_LIMIT, true),
        code(BASE, 0xffff, false),
        data(BASE, 0xffff, false),
        Local {
            read_only: true,
            ..data(BASE, 0xffff, true)
        },
        Local {
            expand_down: true,
            ..data(BASE, SMALL_LIMIT, true)
        },
        Local {
            expand_down: true,
            ..data(BASE, SMALL_LIMIT, false)
        },
    ]
};

/// Linux's flat 32-bit code segment for users.
pub const USER_CODE: u16 = 0x23;
/// Linux's flat data segment for users.
pub const USER_DATA: u16 = 0x2b;
/// Linux's 64-bit code segment for users.
pub const USER_CODE64: u16 = 0x33;

/// The selector of an entry of [`LOCALS`], for ring 3.
pub const fn local_selector(index: usize) -> u16 {
    (index as u16) << 3 | 7
}

impl World {
    /// All worlds, in the order of reports.
    pub const ALL: [World; 7] = [
        World::Flat32,
        World::Based32,
        World::Window16,
        World::Narrow32,
        World::Wide16,
        World::Long64,
        World::High64,
    ];

    /// The worlds of 16- and 32-bit code that are available on this host.
    pub fn legacy() -> &'static [World] {
        if has_locals() {
            &Self::ALL[..5]
        } else {
            &Self::ALL[..1]
        }
    }

    /// The worlds of 64-bit code.
    pub fn long() -> &'static [World] {
        &Self::ALL[5..]
    }

    /// Whether the world is available on this host.
    pub fn is_available(self) -> bool {
        Self::legacy().contains(&self) || self.is_long()
    }

    /// Whether the world has 64-bit code.
    pub fn is_long(self) -> bool {
        matches!(self, World::Long64 | World::High64)
    }

    /// The linear address of operands and code.
    pub fn window(self) -> u64 {
        match self {
            World::High64 => HIGH_WINDOW,
            _ => WINDOW,
        }
    }

    /// Distance of a linear address from the start of the window, in the mapping that it lies in.
    pub fn offset_of(self, linear: u64) -> u64 {
        if !self.is_long() {
            return u64::from((linear as u32).wrapping_sub(WINDOW as u32));
        }
        let high = linear.wrapping_sub(HIGH_WINDOW);
        if high < WINDOW_BYTES as u64 {
            high
        } else {
            linear.wrapping_sub(WINDOW)
        }
    }

    /// Mask of an address or a general register: only 64-bit code has more than 32 bits.
    pub fn mask(self) -> u64 {
        if self.is_long() {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        }
    }

    /// The initial bases of FS and GS that do not come from a descriptor.
    pub fn thread_bases(self) -> [u64; 2] {
        match self {
            World::Long64 => [WINDOW - 0x1000_0000, WINDOW + 0x3008],
            World::High64 => [HIGH_WINDOW - 0x3000_0000, HIGH_WINDOW + 0x5000],
            _ => [0; 2],
        }
    }

    /// The code size in bits: 16, 32 or 64.
    pub fn bitness(self) -> u32 {
        match self {
            World::Long64 | World::High64 => 64,
            World::Window16 | World::Wide16 => 16,
            _ => 32,
        }
    }

    /// Whether the stack pointer is SP, not ESP.
    pub fn has_narrow_stack(self) -> bool {
        matches!(self, World::Window16 | World::Narrow32)
    }

    /// The world's name in reproducers.
    pub fn name(self) -> &'static str {
        match self {
            World::Flat32 => "flat32",
            World::Based32 => "based32",
            World::Window16 => "window16",
            World::Narrow32 => "narrow32",
            World::Wide16 => "wide16",
            World::Long64 => "long64",
            World::High64 => "high64",
        }
    }

    /// The initial selectors of ES, CS, SS, DS, FS and GS.
    pub fn selectors(self) -> [u16; 6] {
        let local = local_selector;
        match self {
            World::Long64 | World::High64 => [0, USER_CODE64, USER_DATA, 0, 0, 0],
            World::Flat32 if !has_locals() => {
                let mut flat = [USER_DATA; 6];
                flat[SegmentRegister::Cs as usize] = USER_CODE;
                flat
            }
            World::Flat32 => [
                USER_DATA,
                USER_CODE,
                USER_DATA,
                USER_DATA,
                local(1),
                local(3),
            ],
            World::Based32 => [local(2), local(0), local(1), local(2), USER_DATA, local(6)],
            World::Window16 => [local(5), local(4), local(5), local(5), local(1), local(3)],
            World::Narrow32 => [local(2), local(0), local(5), local(7), USER_DATA, local(8)],
            World::Wide16 => [local(8), local(4), local(1), local(5), local(1), local(7)],
        }
    }

    /// Linear base of a segment register.
    pub fn base(self, register: SegmentRegister) -> u64 {
        if self.is_long() {
            return match register {
                SegmentRegister::Fs => self.thread_bases()[0],
                SegmentRegister::Gs => self.thread_bases()[1],
                _ => 0,
            };
        }
        segment_of(self.selectors()[register as usize]).map_or(0, |segment| segment.base)
    }
}

/// The descriptor at an index of the local table.
pub fn local_segment(index: usize) -> Segment {
    let local = LOCALS[index];
    let mut bits: u16 = 0xf1;
    if local.code {
        bits |= 0xa;
    } else if !local.read_only {
        bits |= 2;
    }
    if local.expand_down {
        bits |= 4;
    }
    if local.big {
        bits |= 1 << 14;
    }
    if local.limit > 0xf_ffff {
        bits |= 1 << 15;
    }
    Segment {
        base: u64::from(local.base),
        limit: local.limit,
        selector: Selector(local_selector(index)),
        attributes: Attributes::from_bits_retain(bits),
    }
}

/// The segment that a selector names, if both processors have it.
pub fn segment_of(selector: u16) -> Option<Segment> {
    let flat = |bits| Segment {
        base: 0,
        limit: u32::MAX,
        selector: Selector(selector),
        attributes: Attributes::from_bits_retain(bits),
    };
    match selector {
        USER_CODE => Some(flat(0xc0fb)),
        USER_DATA => Some(flat(0xc0f3)),
        USER_CODE64 => Some(flat(0xa0fb)),
        _ if selector & 7 == 7 && usize::from(selector >> 3) < LOCALS.len() => {
            Some(local_segment(usize::from(selector >> 3)))
        }
        _ => None,
    }
}

/// Encodes a descriptor in its eight bytes.
pub fn descriptor_bytes(segment: &Segment) -> u64 {
    let attributes = u64::from(segment.attributes.bits());
    let limit = if attributes & 0x8000 != 0 {
        u64::from(segment.limit >> 12)
    } else {
        u64::from(segment.limit)
    };
    let base = segment.base;
    (limit & 0xffff)
        | (base & 0xff_ffff) << 16
        | (attributes & 0xf0ff) << 40
        | (limit & 0xf_0000) << 32
        | (base >> 24 & 0xff) << 56
}
