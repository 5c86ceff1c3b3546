//! The guest that an input describes: its mode, its registers and its tables.

use super::platform::{NoiseSettings, STOP_PORT};
use crate::input::Input;
use tollgate_memory::GuestMemory;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::{
    Attributes, CpuState, Cr0, Cr4, Descriptor, Flags, Gpr, PhysicalAddress, Segment,
    SegmentRegister, Selector,
};

/// The modes; the first byte of an input selects one.
pub const MODES: [&str; 11] = [
    "real",
    "protected-16",
    "protected-32",
    "user-16",
    "user-32",
    "paged",
    "paged-user",
    "pae",
    "pae-user",
    "vm86",
    "real-big",
];

/// Physical addresses in the guest.
const HANDLER: u64 = 0x7000;
const CODE: u64 = 0x8000;
const STACK: u32 = 0x6ff0;
const PAGE_TABLES: u64 = 0x10_0000;
const DESCRIPTORS: u64 = 0x10_8000;
const TASK_STATE: u64 = 0x10_9000;
const INTERRUPT_TABLE: u64 = 0x10_a000;
/// Maximum size of the code in bytes; data follows.
const MAX_CODE: usize = 0x2800;

const CODE0: u16 = 0x08;
const DATA0: u16 = 0x10;
const CODE3: u16 = 0x1b;
const DATA3: u16 = 0x23;
const CODE16: u16 = 0x28;
const TASK: u16 = 0x38;

/// The descriptor table. Only the guest's own code uses the selectors of the last ones.
const DESCRIPTOR_TABLE: [u64; 16] = [
    0,
    0x00cf_9b00_0000_ffff, // 08: code, ring 0
    0x00cf_9300_0000_ffff, // 10: data, ring 0
    0x00cf_fb00_0000_ffff, // 18: code, ring 3
    0x00cf_f300_0000_ffff, // 20: data, ring 3
    0x0000_9b00_0000_ffff, // 28: 16-bit code, 64 KiB
    0x0000_9300_0000_ffff, // 30: 16-bit data, 64 KiB
    0x0000_8b10_9000_0fff, // 38: the TSS
    0x00cf_f700_0000_9fff, // 40: expand-down data
    0x0040_f100_8000_0fff, // 48: read-only data with a base
    0x0000_ec00_0008_7000, // 50: call gate to the handler
    0x00cf_ff00_0000_ffff, // 58: conforming code
    0x0000_e510_9000_0000, // 60: task gate
    0x0000_8210_8000_007f, // 68: an LDT: this table
    0x00cf_7300_0000_ffff, // 70: data that is not present
    0x0040_f210_0000_0fff, // 78: data with a base, limited
];

/// The guest according to the input's first bytes.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    mode: usize,
    options: u16,
    flags: u16,
    /// Selects the handler of interrupts and exceptions.
    handler: u8,
    segments: [u8; 6],
    registers: [(u8, u8); 8],
    /// Offset in its page of the first byte of the code.
    offset: u16,
    /// A page whose entry differs from the others, and the bits of the entry.
    page: (u8, u16),
    /// The behaviour of the devices.
    pub noise: NoiseSettings,
    /// Whether some registers are kept in memory.
    pub spilled: bool,
    /// Whether instructions are counted.
    pub counted: bool,
}

/// The meaning of the bits of `options`.
mod option {
    pub const TASK_SWITCHED: u16 = 1 << 0;
    pub const EMULATE_X87: u16 = 1 << 1;
    pub const MONITOR_COPROCESSOR: u16 = 1 << 2;
    pub const NO_NUMERIC_ERROR: u16 = 1 << 3;
    pub const NO_WRITE_PROTECT: u16 = 1 << 4;
    pub const NO_SSE: u16 = 1 << 5;
    pub const NO_AVX: u16 = 1 << 6;
    pub const NO_TIME_STAMP: u16 = 1 << 7;
    pub const LARGE_PAGES: u16 = 1 << 8;
    pub const NO_GLOBAL_PAGES: u16 = 1 << 9;
    pub const SPILLED: u16 = 1 << 10;
    pub const ALIGNMENT_MASK: u16 = 1 << 11;
    pub const UNMASKED_X87: u16 = 1 << 12;
    pub const NO_EXECUTE: u16 = 1 << 13;
    pub const COUNTED: u16 = 1 << 14;
}

impl Guest {
    /// Reads the description from the start of the input.
    pub fn of(input: &mut Input<'_>) -> Self {
        let mode = usize::from(input.byte()) % MODES.len();
        let options = input.word();
        Self {
            mode,
            options,
            flags: input.word(),
            handler: input.byte(),
            segments: std::array::from_fn(|_| input.byte()),
            registers: std::array::from_fn(|_| (input.byte(), input.byte())),
            offset: u16::from(input.byte()) << 4,
            page: (input.byte(), input.word()),
            noise: NoiseSettings {
                seed: input.byte().into(),
                interrupts: input.byte(),
                tick: u32::from(input.byte()) * 1000 + 20_000,
            },
            spilled: options & option::SPILLED != 0,
            counted: options & option::COUNTED != 0,
        }
    }

    fn has(&self, option: u16) -> bool {
        self.options & option != 0
    }

    fn is_mode(&self, part: &str) -> bool {
        MODES[self.mode].contains(part)
    }

    /// Writes code and tables, and returns the initial registers.
    pub fn prepare(&self, code: &[u8], memory: &mut GuestMemory) -> CpuState {
        self.write_code(code, memory);
        self.write_tables(memory);
        let mut state = CpuState::at_reset();
        self.set_control_registers(&mut state);
        self.set_segments(&mut state);
        for (register, &(kind, value)) in self.registers.iter().enumerate() {
            state.gpr[register] = register_value(kind, value).into();
        }
        let stack = &mut state.gpr[Gpr::Rsp as usize];
        let (kind, value) = self.registers[Gpr::Rsp as usize];
        if kind & 0x80 == 0 {
            *stack = u64::from(STACK - u32::from(value));
        }
        state.rip = CODE + u64::from(self.offset);
        if self.is_mode("vm86") {
            state.flags |= Flags::VM.bits();
        }
        let allowed = Flags::ALL - Flags::VM;
        state.flags |= u64::from(self.flags) & allowed.bits();
        if self.has(option::UNMASKED_X87) {
            state.vector.0[..2].copy_from_slice(&0x0340u16.to_le_bytes());
            state.vector.0[24..28].copy_from_slice(&0x0080u32.to_le_bytes());
        }
        state
    }

    fn write_code(&self, code: &[u8], memory: &mut GuestMemory) {
        let start = CODE + u64::from(self.offset);
        let code = &code[..code.len().min(MAX_CODE)];
        memory.write(PhysicalAddress(start), code);
        // Code that reaches the end stops the run; if it may not access the port, the handler does.
        let stop = [0xe6, STOP_PORT as u8].repeat(16);
        memory.write(PhysicalAddress(start + code.len() as u64), &stop);
        let handler: &[u8] = match self.handler % 4 {
            // The handler stops the run.
            0 => &[0xe6, STOP_PORT as u8, 0xf4],
            // It continues from the start, in the handler's mode.
            1 => &[0xe9, 0xfd, 0x0f, 0, 0],
            // It returns after skipping one byte of the instruction: inc dword ptr [esp]; iret.
            2 => &[0xff, 0x04, 0x24, 0xcf],
            // It does the same for a frame with an error code.
            _ => &[0x58, 0xff, 0x04, 0x24, 0xcf],
        };
        memory.write(PhysicalAddress(HANDLER), handler);
    }

    fn write_tables(&self, memory: &mut GuestMemory) {
        for (index, descriptor) in DESCRIPTOR_TABLE.iter().enumerate() {
            memory.write_u64(PhysicalAddress(DESCRIPTORS + 8 * index as u64), *descriptor);
        }
        // ESP0, SS0, and an I/O map beyond which no access is allowed.
        memory.write_u32(PhysicalAddress(TASK_STATE + 4), 0x6000);
        memory.write_u32(PhysicalAddress(TASK_STATE + 8), DATA0.into());
        memory.write_u32(PhysicalAddress(TASK_STATE + 0x64), 0x0068_0000);
        for vector in 0..256u64 {
            let kind = match vector {
                // These include a trap gate and 16-bit gates.
                3 => 0xef00,
                0x90..0xa0 => 0xe600,
                0xa0..0xb0 => 0xe700,
                _ if vector >= 0x20 => 0xee00,
                _ => 0x8e00,
            };
            let gate = kind << 32 | u64::from(CODE0) << 16 | HANDLER;
            memory.write_u64(PhysicalAddress(INTERRUPT_TABLE + 8 * vector), gate);
            // The vector table of real mode: 0000:7000.
            memory.write_u32(PhysicalAddress(4 * vector), HANDLER as u32);
        }
        if self.is_mode("pae") {
            self.write_pae_tables(memory);
        } else if self.is_mode("paged") {
            self.write_two_level_tables(memory);
        }
    }

    /// Bits of the entry that maps page `index`; 7 grants all rights.
    fn page_bits(&self, index: u64) -> u64 {
        let (page, bits) = self.page;
        if index == u64::from(page) {
            u64::from(bits) & 0x1ff
        } else {
            7
        }
    }

    /// The page that page `index` is mapped to: usually itself.
    fn page_target(&self, index: u64) -> u64 {
        let (page, bits) = self.page;
        if index == u64::from(page) && bits & 0x8000 != 0 {
            index ^ u64::from(bits >> 12 & 7)
        } else {
            index
        }
    }

    fn write_two_level_tables(&self, memory: &mut GuestMemory) {
        let table = PAGE_TABLES + 0x1000;
        for index in 0..1024u64 {
            let large = (index << 22 | 0x87) as u32;
            memory.write_u32(PhysicalAddress(PAGE_TABLES + 4 * index), large);
            let entry = self.page_target(index) << 12 | self.page_bits(index);
            memory.write_u32(PhysicalAddress(table + 4 * index), entry as u32);
        }
        if !self.has(option::LARGE_PAGES) {
            memory.write_u32(PhysicalAddress(PAGE_TABLES), table as u32 | 7);
        }
    }

    fn write_pae_tables(&self, memory: &mut GuestMemory) {
        let (directory, table) = (PAGE_TABLES + 0x1000, PAGE_TABLES + 0x5000);
        for index in 0..4 {
            let entry = (directory + 0x1000 * index) | 1;
            memory.write_u64(PhysicalAddress(PAGE_TABLES + 8 * index), entry);
        }
        for index in 0..2048 {
            let entry = index << 21 | 0x87;
            memory.write_u64(PhysicalAddress(directory + 8 * index), entry);
        }
        let no_execute = u64::from(self.has(option::NO_EXECUTE)) << 63;
        for index in 0..512 {
            let special = if index == u64::from(self.page.0) {
                no_execute
            } else {
                0
            };
            let entry = self.page_target(index) << 12 | self.page_bits(index) | special;
            memory.write_u64(PhysicalAddress(table + 8 * index), entry);
        }
        if !self.has(option::LARGE_PAGES) {
            memory.write_u64(PhysicalAddress(directory), table | 7);
        }
    }

    fn set_control_registers(&self, state: &mut CpuState) {
        let mut cr0 = Cr0::ET;
        cr0.set(Cr0::PE, !self.is_mode("real"));
        cr0.set(Cr0::TS, self.has(option::TASK_SWITCHED));
        cr0.set(Cr0::EM, self.has(option::EMULATE_X87));
        cr0.set(Cr0::MP, self.has(option::MONITOR_COPROCESSOR));
        cr0.set(Cr0::NE, !self.has(option::NO_NUMERIC_ERROR));
        cr0.set(Cr0::WP, !self.has(option::NO_WRITE_PROTECT));
        cr0.set(Cr0::AM, self.has(option::ALIGNMENT_MASK));
        let is_pae = self.is_mode("pae");
        cr0.set(Cr0::PG, is_pae || self.is_mode("paged"));
        let mut cr4 = Cr4::PSE;
        cr4.set(Cr4::PAE, is_pae);
        cr4.set(Cr4::PGE, !self.has(option::NO_GLOBAL_PAGES));
        cr4.set(Cr4::TSD, self.has(option::NO_TIME_STAMP));
        let sse = Cr4::OSFXSR | Cr4::OSXMMEXCPT;
        cr4.set(sse, !self.has(option::NO_SSE));
        cr4.set(Cr4::OSXSAVE, !self.has(option::NO_AVX));
        state.cr0 = cr0.bits();
        state.cr4 = cr4.bits();
        state.xcr0 = if self.has(option::NO_AVX) { 1 } else { 7 };
        state.cr3 = PAGE_TABLES;
        if is_pae {
            for (index, entry) in state.pdpte.iter_mut().enumerate() {
                *entry = (PAGE_TABLES + 0x1000 * (index as u64 + 1)) | 1;
            }
            state.efer = if self.has(option::NO_EXECUTE) {
                1 << 11
            } else {
                0
            };
        }
        if state.is_protected() {
            state.gdtr.base = DESCRIPTORS;
            state.gdtr.limit = 8 * DESCRIPTOR_TABLE.len() as u16 - 1;
            state.idtr.base = INTERRUPT_TABLE;
            state.idtr.limit = 0x7ff;
            let task = Descriptor(DESCRIPTOR_TABLE[usize::from(TASK >> 3)]);
            state.tr = task.segment(Selector(TASK));
            debug_assert_eq!(state.tr.attributes.kind(), system_type::TSS32_BUSY);
        } else {
            state.idtr.limit = 0x3ff;
        }
        state.sysenter_cs = CODE0.into();
        state.sysenter_eip = HANDLER;
        state.sysenter_esp = 0x6000;
    }

    fn set_segments(&self, state: &mut CpuState) {
        let is_user = self.is_mode("user");
        let is_16_bit = self.is_mode("-16");
        for (index, register) in SegmentRegister::ALL.into_iter().enumerate() {
            let choice = self.segments[index];
            let is_code = register == SegmentRegister::Cs;
            let segment = if self.is_mode("vm86") {
                Segment::real_mode(u16::from(if is_code { 0 } else { choice }), 3)
            } else if self.is_mode("real") {
                let mut segment = Segment::real_mode(if is_code { 0 } else { choice.into() }, 0);
                if self.is_mode("big") {
                    segment.limit = u32::MAX;
                    let big = choice & 1 != 0 && !is_code;
                    segment.attributes.set(Attributes::DEFAULT_BIG, big);
                }
                segment
            } else {
                let selector = match (is_code, is_user) {
                    (true, true) => CODE3,
                    (true, false) if is_16_bit => CODE16,
                    (true, false) => CODE0,
                    (false, true) => DATA3,
                    (false, false) => DATA0,
                };
                let descriptor = Descriptor(DESCRIPTOR_TABLE[usize::from(selector >> 3)]);
                let mut segment = descriptor.segment(Selector(selector));
                if is_code && is_16_bit {
                    segment.attributes.remove(Attributes::DEFAULT_BIG);
                }
                vary(&mut segment, register, choice);
                segment
            };
            *state.segment_mut(register) = segment;
        }
    }
}

/// Changes a flat segment as `choice` says, within what the register may hold.
fn vary(segment: &mut Segment, register: SegmentRegister, choice: u8) {
    let is_code = register == SegmentRegister::Cs;
    let is_stack = register == SegmentRegister::Ss;
    match choice & 7 {
        1 => segment.limit = 0xffff,
        2 if !is_code => segment.base = 0x1000,
        3 if !is_code => {
            segment.base = u64::from(choice) << 8;
            segment.limit = 0x9fff;
        }
        4 if !is_code => {
            segment.attributes |= Attributes::EXPAND_DOWN_OR_CONFORMING;
            segment.limit = u32::from(choice) << 4;
        }
        5 if !is_code && !is_stack => {
            segment.attributes -= Attributes::WRITABLE_OR_READABLE;
        }
        6 if !is_code && !is_stack => *segment = Segment::null(Selector(0)),
        7 => segment.limit = 0xa7ff + u32::from(choice),
        _ => {}
    }
    if is_stack && choice & 0x80 != 0 {
        segment.attributes.remove(Attributes::DEFAULT_BIG);
    }
}

/// Numbers close to addresses where something happens.
fn register_value(kind: u8, value: u8) -> u32 {
    let value = u32::from(value);
    match kind & 0xf {
        0 => value,
        1 => value.wrapping_neg(),
        2 => 0x9000 + value,
        3 => 0xa000 - value,
        4 => 0x3f_ff80 + value,
        5 => 0xfee0_0000 + value,
        6 => CODE as u32 + 16 * value,
        7 => 0x1_0000 - value,
        8 => 0x10_0000 + 8 * value,
        9 => 0x8000_0000 - value,
        10 => value << 8,
        11 => value << 24,
        12 => 0x5_0000 + 16 * value,
        13 => 0xffff_0000 | value,
        14 => 0xb000 - 4 * value,
        _ => value * 0x0101_0101,
    }
}

/// An input that runs `code` in a mode, with or without counting its instructions, and otherwise
/// with the usual settings.
pub fn seed(mode: u8, counted: bool, code: &[u8]) -> Vec<u8> {
    let options = if counted { option::COUNTED } else { 0 };
    let [low, high] = options.to_le_bytes();
    let mut input = vec![mode, low, high, 0, 0, 0];
    input.extend([0; 6]);
    for (kind, value) in [
        (0, 1),
        (0, 3),
        (15, 0x12),
        (12, 4),
        (0, 0),
        (12, 0x80),
        (12, 0x10),
        (2, 0x40),
    ] {
        input.extend([kind, value]);
    }
    input.extend([0, 0, 7, 0, 1, 0, 0]);
    input.extend(code);
    input
}

/// Programs with instructions of each kind, whose bytes have a meaning in 16-bit and in 32-bit
/// code.
pub const PROGRAMS: [(&str, &[u8]); 14] = [
    (
        "arithmetic",
        b"\x01\xd8\x11\xf0\x29\xc8\x0f\xaf\xc3\xf7\xe1\xf7\xf1\xd1\xe0\xc1\xe8\x03\x40\x4b\x98\x99\x27\x37\xd4\x0a\x3c\x05\x0f\x94\xc4\x0f\x45\xc1",
    ),
    (
        "memory",
        b"\x8b\x07\x89\x07\x01\x37\x03\x34\x12\x66\x89\x04\x88\x07\x86\x27\x87\x1f\xfe\x07\xff\x07\xf6\x17\x0f\xb6\x0f\x0f\xbe\x27\xa0\x00\x90\x00\x00",
    ),
    (
        "high-bytes",
        b"\x00\xfc\x8a\x3c\x86\xe7\x0f\xb6\xc4\x0f\xbe\xdc\x20\x27\x08\x2f\x84\xff\x0f\xc0\xdf\x0f\xb0\x27\x86\x3f",
    ),
    (
        "stack",
        b"\x50\x51\x54\x5b\x60\x61\x6a\x80\x68\x00\x01\x00\x00\xff\x37\x8f\x07\x9c\x9d\xc8\x10\x00\x02\xc9\xc8\x00\x00\x00\xc9\x58\x59\x58",
    ),
    (
        "branches",
        b"\xeb\x00\x75\x02\x90\x90\xe8\x01\x00\x00\x00\xc3\xe2\xfe\xe3\x00\x49\x75\xfd\x0f\x84\x00\x00\x00\x00\xe0\xfe\xe1\xfe",
    ),
    (
        "indirect",
        b"\xb8\x10\x80\x00\x00\xff\xd0\xff\xe0\xff\x17\xff\x27\xc2\x04\x00\xc3",
    ),
    (
        "strings",
        b"\xfc\xa4\xa5\xaa\xab\xac\xad\xae\xaf\xa6\xa7\xfd\xa4\xfc\xf3\xa4\xf3\xab\xf3\xa6\xf2\xae\x6c\x6e\xf3\x6d\xf3\x6f",
    ),
    (
        "segments",
        b"\x8c\xd8\x8e\xd8\x06\x07\x1e\x1f\x0f\xa8\x0f\xa9\x26\x8b\x07\x2e\x8b\x07\x36\x89\x07\x64\x8b\x07\x65\x89\x07\xc5\x07\xc4\x07\x0f\xb2\x07\x8e\xd0\x58",
    ),
    (
        "far",
        b"\x9a\x10\x80\x00\x00\x08\x00\xea\x10\x80\x00\x00\x08\x00\xcb\xcf\xcd\x21\xcc\xce\xf1\x9a\x00\x00\x00\x00\x50\x00",
    ),
    (
        "system",
        b"\x0f\x20\xc0\x0f\x22\xc0\x0f\x20\xd8\x0f\x22\xd8\x0f\x01\x07\x0f\x01\x3f\x0f\x01\xe0\x0f\x00\xc8\x0f\xa2\x0f\x31\x0f\x32\x0f\x30\x0f\x06\xfa\xfb\xf4\x0f\x02\xc0\x0f\x03\xc0\x63\xc0",
    ),
    (
        "x87",
        b"\xdb\xe3\xd9\xe8\xd9\x07\xdd\x17\xd8\x07\xde\xc1\xd9\xc9\xdf\x07\xdb\x3f\xdb\x2f\xd9\x37\xd9\x27\xdd\x37\xdd\x27\xd9\xee\xd8\xf9\x9b\xdf\xe0\xd9\x2f\xd9\x3f",
    ),
    (
        "vector",
        b"\x0f\x6f\x07\x0f\xfe\xc1\x0f\x77\x0f\x28\x07\x0f\x10\x07\x0f\x11\x07\x66\x0f\xfe\xc1\xf2\x0f\x58\xc1\x0f\xae\x07\x0f\xae\x0f\x0f\xae\x17\x0f\xae\x1f\x66\x0f\xf7\xc1\xc5\xf4\x58\xc2\xc5\xfd\x6f\x07\xc5\xf8\x77\xc4\xe2\x7d\x90\x04\x8f",
    ),
    (
        "bits",
        b"\x0f\xa3\x0f\x0f\xab\x0f\x0f\xb3\x0f\x0f\xbb\x0f\x0f\xba\x2f\x05\x0f\xbc\xc1\x0f\xbd\xc1\xf3\x0f\xbc\xc1\xf0\x0f\xc1\x0f\xf0\x0f\xb1\x0f\x0f\xc7\x0f\x0f\xc8\x0f\xa4\xc1\x05\x0f\xad\xc1\xf0\xff\x07\xd7",
    ),
    (
        "self-modifying",
        b"\xc6\x05\x20\x80\x00\x00\x90\xc6\x06\x20\x80\x90\xb8\x20\x80\x00\x00\xfe\x00\xeb\xf5",
    ),
];
