//! The head of an entry of a golden file: a mode, and guest code.
//!
//! A mode is a list of words joined by `+`. The first word is one of
//!
//! - `flat32`: 32-bit code, flat segments, ring 0
//! - `user32`: as `flat32`, but in ring 3
//! - `flat16`: 16-bit code and stack, 4 GiB limits
//! - `prot16`: 16-bit protected mode with segments of 64 KiB, ring 0
//! - `user16`: as `prot16`, but in ring 3
//! - `real`: real mode
//! - `vm86`: virtual-8086 mode
//! - `long`: 64-bit code in ring 0
//! - `user64`: as `long`, but in ring 3
//! - `compat`: 32-bit code in IA-32e mode
//! - `usercompat`: as `compat`, but in ring 3
//!
//! The other words change the mode:
//!
//! - `stack16`, `stack32`: the size of the stack
//! - `es-KIND`, `ss-KIND`, `ds-KIND`, `fs-KIND`, `gs-KIND`: a segment with a base (`based`), with a
//!   base and a limit (`limited`), or expand-down (`odd`)
//! - `ts`: CR0.TS is set
//! - `noavx`: CR4.OSXSAVE is clear
//! - `fsgsbase`: CR4.FSGSBASE is set
//! - `avx512`: XCR0 enables AVX-512
//! - `direct`: memory is reached directly, if the mode allows that; `anchored`: also by the space's
//!   anchor, if the code is a program's
//! - `single`: one instruction runs alone; `bounce`: it runs on the bounce buffer
//! - `spilled`: the register map of that name
//! - `iopl3`: EFLAGS.IOPL is 3
//! - `vme`, `pvi`: CR4.VME or CR4.PVI is set; `vip`: EFLAGS.VIP is set; `redirect`: when the code
//!   is run, INT n goes through the task's own table
//! - `vif-off`, `vir-off`: sensitive instructions run without that part of the mechanism
//! - `at-HEX`: EIP is HEX instead of 1000h
//! - `moved`: the block is relocatable, and that EIP is its link address
//! - `page`: NOPs follow the code up to the end of the page

use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_engine::policy::access::Access;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_x86::{Attributes, CpuState, Cr4, Efer, Flags, Segment, SegmentRegister, Selector};

/// Guest code and its mode.
pub struct Guest {
    pub code: Vec<u8>,
    pub rip: u64,
    pub mode: Mode,
    pub map: &'static RegisterMap,
    pub virtual_interrupts: VirtualInterrupts,
    /// Whether NOPs follow up to the end of the page.
    pub fills_page: bool,
    /// Whether the block is relocatable.
    pub relocates: bool,
}

fn segment(attributes: u16, limit: u32) -> Segment {
    Segment {
        base: 0,
        limit,
        selector: Selector(0x18),
        attributes: Attributes::from_bits_retain(attributes),
    }
}

fn set_all(state: &mut CpuState, code: Segment, data: Segment) {
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = data;
    }
    *state.segment_mut(SegmentRegister::Cs) = code;
}

fn base_state(name: &str) -> CpuState {
    let mut state = CpuState::at_reset();
    state.cr4 |= 0x4_0600;
    state.xcr0 = 7;
    state.cr0 |= u64::from(name != "real");
    let (code, data) = match name {
        "flat32" => (segment(0xc09b, u32::MAX), segment(0xc093, u32::MAX)),
        "user32" => (segment(0xc0fb, u32::MAX), segment(0xc0f3, u32::MAX)),
        "flat16" => (segment(0x809b, u32::MAX), segment(0x8093, u32::MAX)),
        "prot16" => (segment(0x9b, 0xffff), segment(0x93, 0xffff)),
        "user16" => (segment(0xfb, 0xffff), segment(0xf3, 0xffff)),
        "real" => (Segment::real_mode(0, 0), Segment::real_mode(0x100, 0)),
        "long" => (segment(0xa09b, u32::MAX), segment(0xc093, u32::MAX)),
        "user64" => (segment(0xa0fb, u32::MAX), segment(0xc0f3, u32::MAX)),
        "compat" => (segment(0xc09b, u32::MAX), segment(0xc093, u32::MAX)),
        "usercompat" => (segment(0xc0fb, u32::MAX), segment(0xc0f3, u32::MAX)),
        "vm86" => (Segment::real_mode(0, 3), Segment::real_mode(0x100, 3)),
        _ => panic!("'{name}' is not a mode"),
    };
    if matches!(name, "long" | "user64" | "compat" | "usercompat") {
        state.efer = (Efer::LME | Efer::LMA).bits();
    }
    if name == "vm86" {
        state.flags |= Flags::VM.bits();
    }
    set_all(&mut state, code, data);
    state
}

fn change_segment(state: &mut CpuState, word: &str) {
    let (name, kind) = word
        .split_once('-')
        .unwrap_or_else(|| panic!("'{word}' is not a word of a mode"));
    let names = ["es", "cs", "ss", "ds", "fs", "gs"];
    let index = names.iter().position(|known| *known == name);
    let register = SegmentRegister::ALL[index.unwrap_or_else(|| panic!("'{word}'"))];
    let segment = state.segment_mut(register);
    match kind {
        "based" => segment.base = 0x1000,
        "limited" => (segment.base, segment.limit) = (0x1000, 0xffff),
        "odd" => segment.attributes |= Attributes::EXPAND_DOWN_OR_CONFORMING,
        _ => panic!("'{word}' is not a kind of segment"),
    }
}

fn number(digits: &str) -> u64 {
    u64::from_str_radix(digits, 16).unwrap_or_else(|error| panic!("'{digits}': {error}"))
}

impl Guest {
    /// Parses the mode and the code of a head.
    ///
    /// # Panics
    /// Panics if a word or the code is not understood.
    pub fn of(mode: &str, code: &str) -> Self {
        let mut words = mode.split('+');
        let mut state = base_state(words.next().unwrap_or_default());
        let mut guest = Self {
            code: (0..code.len() / 2)
                .map(|index| number(&code[2 * index..2 * index + 2]) as u8)
                .collect(),
            rip: 0x1000,
            mode: Mode::of(&state),
            map: &RegisterMap::LEGACY,
            virtual_interrupts: VirtualInterrupts::default(),
            fills_page: false,
            relocates: false,
        };
        assert!(
            !guest.code.is_empty() && code.len().is_multiple_of(2),
            "'{code}'"
        );
        let (mut single, mut bounce) = (false, false);
        let mut access = Access::Checked;
        for word in words {
            match word {
                "stack16" | "stack32" => {
                    let stack = state.segment_mut(SegmentRegister::Ss);
                    stack
                        .attributes
                        .set(Attributes::DEFAULT_BIG, word == "stack32");
                }
                "ts" => state.cr0 |= 8,
                "avx512" => state.xcr0 = 0xe7,
                "fsgsbase" => state.cr4 |= Cr4::FSGSBASE.bits(),
                "noavx" => state.cr4 &= !0x4_0000,
                "single" => single = true,
                "bounce" => bounce = true,
                "direct" => access = Access::Direct,
                "anchored" => access = Access::Anchored,
                "spilled" => guest.map = &RegisterMap::SPILLED,
                "iopl3" => state.flags |= Flags::IOPL.bits(),
                "vme" => state.cr4 |= Cr4::VME.bits(),
                "pvi" => state.cr4 |= Cr4::PVI.bits(),
                // The emitted code does not depend on the contents of memory.
                "redirect" => {}
                "vip" => state.flags |= Flags::VIP.bits(),
                "vif-off" => guest.virtual_interrupts.flag = false,
                "vir-off" => guest.virtual_interrupts.request = false,
                "page" => guest.fills_page = true,
                "moved" => guest.relocates = true,
                _ => match word.strip_prefix("at-") {
                    Some(digits) => guest.rip = number(digits),
                    None => change_segment(&mut state, word),
                },
            }
        }
        guest.mode = Mode::of(&state).with_access(access);
        if guest.mode.flags.contains(ModeFlags::CODE64) {
            guest.map = &RegisterMap::LONG;
        }
        if single {
            guest.mode = guest.mode.single();
        }
        if bounce {
            guest.mode = guest.mode.bounce();
        }
        guest
    }

    /// EIP after the last instruction.
    pub fn end(&self) -> u64 {
        self.rip + self.code.len() as u64
    }

    fn instructions(&self) -> Vec<Instruction> {
        let bitness = self.mode.bitness();

        let decoder = Decoder::with_ip(bitness, &self.code, self.rip, DecoderOptions::NONE);
        decoder.into_iter().collect()
    }

    /// The last instruction of the code.
    pub fn last(&self) -> Instruction {
        self.instructions().pop().unwrap_or_default()
    }

    /// The code as assembler text.
    pub fn disassembly(&self) -> String {
        let mut formatter = IntelFormatter::new();
        let texts: Vec<String> = self
            .instructions()
            .iter()
            .map(|instruction| {
                let mut text = String::new();
                formatter.format(instruction, &mut text);
                text
            })
            .collect();
        texts.join("; ")
    }
}
