//! Small guests with every shape of emitted code: the pieces of guest code that
//! `engine/tests/golden` lists, each in a few scenes that lead it down different paths.

mod long;
pub mod machine;
mod paged;
mod vectors;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use std::path::Path;
use tollgate_emulate::cpuid::policy_of;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_memory::GuestMemory;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{
    Attributes, CpuModel, CpuState, Cr4, Flags, PhysicalAddress, Segment, SegmentRegister, Selector,
};
use vectors::vectors;

/// Size of the guest RAM that is filled and compared, to which the registers point.
pub const MEMORY: usize = 0x4_0000;
/// Address of the handler of all interrupts, which ends the run.
pub const HANDLER: u32 = 0x3000;
pub const INTERRUPT_TABLE: u32 = 0x4000;
/// Top of the stack at the start.
const STACK: u32 = 0x7f80;
const DESCRIPTOR_TABLE: u32 = 0x4800;
const TASK_STATE: u32 = 0x4900;
/// Distance from its link address at which relocatable 64-bit code runs.
const MOVED_64: u64 = 0x7f12_3450_0000;
/// Distance from its link address at which relocatable 32-bit code runs.
const MOVED_32: u64 = 0x4340_0000;
/// The instruction `out F4h, al`, which ends the run.
pub const EXIT: [u8; 2] = [0xe6, 0xf4];

/// The memory to which a guest's registers point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scene {
    /// Ordinary memory.
    Data,
    /// The last bytes of pages.
    Straddling,
    /// The page of the code, next to the code and in lines with code.
    BesideCode,
    /// The memory of a device.
    Device,
    /// Ordinary memory, with the trap flag set.
    Trapping,
}

impl Scene {
    pub const ALL: [Scene; 5] = [
        Scene::Data,
        Scene::Straddling,
        Scene::BesideCode,
        Scene::Device,
        Scene::Trapping,
    ];
}

/// A guest: one piece of code in one scene.
#[derive(Clone)]
pub struct Guest {
    /// The name of the code in the golden files, and the scene.
    pub name: String,
    pub scene: Scene,
    pub bits: u32,
    /// The address of the guest's code in memory.
    pub eip: u32,
    /// The piece of code, without the code around it.
    pub code: Vec<u8>,
    pub map: &'static RegisterMap,
    pub virtual_interrupts: VirtualInterrupts,
    pub state: CpuState,
    pub memory: Vec<u8>,
    /// Whether the guest accesses memory directly, whatever other guests do.
    pub is_direct: bool,
    /// Whether each run has the same results; an instruction that reads the time, for example,
    /// prevents that.
    pub is_repeatable: bool,
}

/// The number that fills memory or a register: a hash of its place.
pub fn filling(at: u32) -> u8 {
    (at.wrapping_add(77).wrapping_mul(0x9e37_79b1) >> 24) as u8
}

fn segment(attributes: u16, limit: u32, selector: u16) -> Segment {
    Segment {
        base: 0,
        limit,
        selector: Selector(selector),
        attributes: Attributes::from_bits_retain(attributes),
    }
}

fn base_state(name: &str) -> CpuState {
    let mut state = CpuState::at_reset();
    // CR4: OSFXSR, OSXMMEXCPT and OSXSAVE. CR0: NE.
    state.cr4 |= 0x4_0600;
    state.xcr0 = 7;
    state.cr0 |= 0x20 | u64::from(name != "real");
    let (code, data) = match name {
        "flat32" | "long" | "compat" => (
            segment(0xc09b, u32::MAX, 0x10),
            segment(0xc093, u32::MAX, 0x18),
        ),
        "user32" => (
            segment(0xc0fb, u32::MAX, 0x23),
            segment(0xc0f3, u32::MAX, 0x2b),
        ),
        "flat16" => (
            segment(0x809b, u32::MAX, 0x10),
            segment(0x8093, u32::MAX, 0x18),
        ),
        "prot16" => (segment(0x9b, 0xffff, 0x10), segment(0x93, 0xffff, 0x18)),
        "user16" => (segment(0xfb, 0xffff, 0x23), segment(0xf3, 0xffff, 0x2b)),
        "real" => (Segment::real_mode(0, 0), Segment::real_mode(0x100, 0)),
        "vm86" => (Segment::real_mode(0, 3), Segment::real_mode(0x100, 3)),
        "user64" => (
            segment(0xa0fb, u32::MAX, 0x33),
            segment(0xc0f3, u32::MAX, 0x2b),
        ),
        "usercompat" => (
            segment(0xc0fb, u32::MAX, 0x23),
            segment(0xc0f3, u32::MAX, 0x2b),
        ),
        _ => panic!("'{name}' is no mode"),
    };
    if name == "vm86" {
        state.flags |= Flags::VM.bits();
    }
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = data;
    }
    *state.segment_mut(SegmentRegister::Cs) = code;
    let table = |base: u32, limit| TableRegister {
        base: base.into(),
        limit,
    };
    state.idtr = table(if name == "real" { 0 } else { INTERRUPT_TABLE }, 0x7ff);
    state.gdtr = table(DESCRIPTOR_TABLE, 0x2f);
    state.tr = Segment {
        base: TASK_STATE.into(),
        limit: 0x67,
        selector: Selector(0x30),
        attributes: Attributes::from_bits_retain(0x8b),
    };
    match name {
        "long" => long::prepare_state(&mut state, Some(segment(0xa09b, u32::MAX, 0x10))),
        "compat" => long::prepare_state(&mut state, Some(segment(0xc09b, u32::MAX, 0x48))),
        "user64" | "usercompat" => long::prepare_state(&mut state, None),
        _ => {}
    }
    state
}

fn change_segment(state: &mut CpuState, word: &str) {
    let (name, kind) = word
        .split_once('-')
        .unwrap_or_else(|| panic!("'{word}' is no part of a mode"));
    let names = ["es", "cs", "ss", "ds", "fs", "gs"];
    let index = names.iter().position(|known| *known == name);
    let register = SegmentRegister::ALL[index.unwrap_or_else(|| panic!("'{word}'"))];
    let segment = state.segment_mut(register);
    match kind {
        "based" => segment.base = 0x1000,
        "limited" => (segment.base, segment.limit) = (0x1000, 0x3_ffff),
        "odd" => {
            segment.attributes |= Attributes::EXPAND_DOWN_OR_CONFORMING;
            segment.limit = 0xfff;
        }
        _ => panic!("'{word}' is no kind of segment"),
    }
}

pub fn put(memory: &mut [u8], at: u32, bytes: &[u8]) {
    memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

fn tables(memory: &mut [u8], real: bool) {
    put(memory, HANDLER, &EXIT);
    for vector in 0..256 {
        if real {
            put(memory, 4 * vector, &HANDLER.to_le_bytes());
        } else {
            let gate = u64::from(HANDLER) | 0x10 << 16 | 0xee00 << 32;
            put(memory, INTERRUPT_TABLE + 8 * vector, &gate.to_le_bytes());
        }
    }
    const DESCRIPTORS: [u64; 6] = [
        0,
        0,
        0x00cf_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_fb00_0000_ffff,
        0x00cf_f300_0000_ffff,
    ];
    for (index, descriptor) in DESCRIPTORS.into_iter().enumerate() {
        let at = DESCRIPTOR_TABLE + 8 * index as u32;
        put(memory, at, &descriptor.to_le_bytes());
    }
    put(memory, TASK_STATE, &[0; 0x68]);
    put(memory, TASK_STATE + 4, &0x2f00_u32.to_le_bytes());
    put(memory, TASK_STATE + 8, &0x18_u32.to_le_bytes());
    put(memory, TASK_STATE + 0x66, &[0x68, 0]);
}

/// Makes V86 code handle its own INT n, whose handler's OUT leads to the same end.
fn redirect_interrupts(memory: &mut [u8]) {
    put(memory, TASK_STATE + 0x66, &[0x88, 0]);
    put(memory, TASK_STATE + 0x68, &[0; 0x20]);
    for vector in 0..256 {
        put(memory, 4 * vector, &HANDLER.to_le_bytes());
    }
}

/// The values of EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI.
fn registers(bits: u32, scene: Scene) -> [u32; 8] {
    let esp = STACK;
    let mut registers = match scene {
        Scene::Data | Scene::Trapping => [
            0x1040, 3, 0x1_8055, 0x2_0040, esp, 0x2_1080, 0x2_2100, 0x2_30c0,
        ],
        Scene::Straddling => [
            5, 0x1040, 0x2_7ffe, 0x2_1ffe, esp, 0x2_5fff, 0x2_8fff, 0x2_cffd,
        ],
        Scene::BesideCode => [
            0x2345_6705,
            2,
            0x2_8055,
            0x1c40,
            esp,
            0x1023,
            0x1d00,
            0x1030,
        ],
        Scene::Device => [
            0xa_0000, 0xa_0040, 0xa_0080, 0xa_0100, esp, 0xa_0140, 0xa_0180, 0xa_01c0,
        ],
    };
    if bits == 16 {
        for (index, register) in registers.iter_mut().enumerate() {
            if index != 4 && *register > 0xffff && scene != Scene::Device {
                *register = 0xa000 | *register & 0xfff;
            }
        }
    }
    registers
}

/// Whether the result of an instruction depends on the time or the place, or on interrupts: a
/// repeated string instruction stops between two iterations.
fn is_unpredictable(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let repeated = instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix());
    repeated
        || matches!(
            instruction.mnemonic(),
            Rdrand | Rdseed | Rdtsc | Rdtscp | Rdpid | Cpuid
        )
}

impl Guest {
    /// The guest of a golden entry, or `None` if the entry cannot be run.
    fn of(mode: &str, code: &str, scene: Scene) -> Option<Self> {
        let mut words = mode.split('+');
        let base = words.next()?;
        let mut state = base_state(base);
        let mut map = &RegisterMap::LEGACY;
        let mut rip: u64 = 0x1000;
        let mut virtual_interrupts = VirtualInterrupts::default();
        let (mut is_moved, mut is_direct, mut has_anchors) = (false, false, false);
        for word in words {
            match word {
                // Modes that only the monitor chooses.
                "single" | "bounce" => return None,
                "stack16" | "stack32" => {
                    let stack = state.segment_mut(SegmentRegister::Ss);
                    let big = word == "stack32";
                    stack.attributes.set(Attributes::DEFAULT_BIG, big);
                }
                "ts" => state.cr0 |= 8,
                // AVX-512 as far as the host has it; otherwise the instructions raise #UD.
                "avx512" => state.xcr0 = policy_of(CpuModel::Host).xcr0_mask(),
                "fsgsbase" => state.cr4 |= 1 << 16,
                "noavx" => state.cr4 &= !0x4_0000,
                "spilled" => map = &RegisterMap::SPILLED,
                "iopl3" => state.flags |= Flags::IOPL.bits(),
                "vme" => state.cr4 |= Cr4::VME.bits(),
                "pvi" => state.cr4 |= Cr4::PVI.bits(),
                "redirect" => state.tr.limit = 0x88,
                "vip" => state.flags |= Flags::VIP.bits(),
                "vif-off" => virtual_interrupts.flag = false,
                "vir-off" => virtual_interrupts.request = false,
                "page" => {}
                "direct" => is_direct = true,
                "anchored" => (is_direct, has_anchors) = (true, true),
                // The address of the code is its link address; the code runs elsewhere.
                "moved" => is_moved = true,
                _ => match word.strip_prefix("at-") {
                    Some(digits) => rip = u64::from_str_radix(digits, 16).ok()?,
                    None => change_segment(&mut state, word),
                },
            }
        }
        let code: Vec<u8> = (0..code.len() / 2)
            .map(|index| u8::from_str_radix(&code[2 * index..2 * index + 2], 16).unwrap())
            .collect();
        let is_long = state.is_long_mode();
        if is_moved {
            if !is_long {
                return None;
            }
            rip += if state.is_64_bit() {
                MOVED_64
            } else {
                MOVED_32
            };
        }
        let bits = if state.is_64_bit() {
            64
        } else if state.cs().attributes.contains(Attributes::DEFAULT_BIG) {
            32
        } else {
            16
        };
        let decoder = Decoder::with_ip(bits, &code, rip, DecoderOptions::NONE);
        let instructions: Vec<_> = decoder.into_iter().collect();
        // HLT is left out, because nothing would wake the processor.
        if instructions.iter().any(|it| it.mnemonic() == Mnemonic::Hlt) {
            return None;
        }
        let is_repeatable = !instructions.iter().any(is_unpredictable);
        let is_indirect = |instruction: &Instruction| {
            use FlowControl::{IndirectBranch, IndirectCall};
            matches!(instruction.flow_control(), IndirectBranch | IndirectCall)
        };
        let mut memory: Vec<u8> = (0..MEMORY as u32).map(filling).collect();
        let pointer = if bits == 64 {
            &0x1040_u64.to_le_bytes()[..]
        } else {
            &0x1040_u32.to_le_bytes()
        };
        if instructions.iter().any(is_indirect) {
            for at in (0x5000..MEMORY as u32).step_by(pointer.len()) {
                put(&mut memory, at, pointer);
            }
        }
        for at in (0x7000..0x9000).step_by(pointer.len()) {
            put(&mut memory, at, pointer);
        }
        if is_long {
            long::put_tables(&mut memory, rip);
        } else {
            tables(&mut memory, base == "real");
            if state.tr.limit > 0x67 {
                redirect_interrupts(&mut memory);
            }
        }
        // Real mode has windows without paging.
        if is_direct && !is_long && base != "real" {
            paged::prepare_state(&mut state);
            paged::put_tables(&mut memory, state.cpl() == 3);
        }
        if bits == 64 {
            long::put_frame(&mut memory, STACK);
        }
        // INT3s around the code lead to the handler.
        memory[0x1000..0x3000].fill(0xcc);
        if bits == 16 {
            // The targets of far transfers lead there, too: 2000:1234 and 1040:1040.
            memory[0x2_1200..0x2_1280].fill(0xcc);
            memory[0x1_1400..0x1_1480].fill(0xcc);
        }
        // Code that is linked for a high address is mapped to this place.
        let eip = if is_long && rip > 0xf_ffff {
            0x1000 | rip as u32 & 0xfff
        } else {
            rip as u32
        };
        put(&mut memory, eip, &code);
        for (register, value) in registers(bits, scene).into_iter().enumerate() {
            state.gpr[register] = value.into();
        }
        if is_long {
            long::set_registers(&mut state, scene);
        }
        if has_anchors {
            long::point_to_common_part(&mut state);
        }
        state.rip = rip;
        if scene == Scene::Trapping {
            state.flags |= Flags::TF.bits();
        }
        state.flags |= (Flags::CF | Flags::AF | Flags::OF).bits();
        state.vector = vectors(scene as u32);
        Some(Self {
            name: format!("{mode}: {} {scene:?}", hex(&code)),
            scene,
            bits,
            eip,
            code,
            map,
            virtual_interrupts,
            state,
            memory,
            is_direct,
            is_repeatable,
        })
    }

    /// The second address at which the code is mapped, if the code is relocatable.
    pub fn elsewhere(&self) -> Option<u64> {
        let rip = self.state.rip;
        let is_moved = self.state.is_long_mode() && self.state.cpl() == 3 && rip > 0xf_ffff;
        is_moved.then(|| rip + long::distance_elsewhere(rip))
    }

    /// The instructions of the piece of code.
    pub fn instructions(&self) -> Vec<Instruction> {
        let rip = self.state.rip;
        let decoder = Decoder::with_ip(self.bits, &self.code, rip, DecoderOptions::NONE);
        decoder.into_iter().collect()
    }

    /// Writes everything that differs from the initial contents of memory.
    pub fn fill(&self, memory: &mut GuestMemory) {
        let mut now = vec![0; MEMORY];
        assert!(memory.read(PhysicalAddress(0), &mut now));
        for (page, (old, new)) in now.chunks(256).zip(self.memory.chunks(256)).enumerate() {
            if old != new {
                assert!(memory.write(PhysicalAddress(page as u64 * 256), new));
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// All guests, in the order of the golden files.
pub fn guests() -> Vec<Guest> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/golden");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "txt"))
        .collect();
    paths.sort();
    let mut guests = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).unwrap();
        let heads = text.lines().filter_map(|line| line.strip_prefix("== "));
        for head in heads {
            let (mode, rest) = head.split_once(": ").unwrap();
            let code = rest.split(' ').next().unwrap();
            guests.extend(Scene::ALL.map(|scene| Guest::of(mode, code, scene)));
        }
    }
    guests.into_iter().flatten().collect()
}
