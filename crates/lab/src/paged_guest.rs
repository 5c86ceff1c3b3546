//! A kernel of ours without processes, as a guest of experiments: flat code in a global page of the
//! upper half, address spaces with pages of data, and the local APIC.

use crate::experiment::{LabError, Stop};
use std::io;
use tollgate_exits::reading::Reading;
use tollgate_machine::config::VmConfig;
use tollgate_machine::knobs;
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::StopRequest;
use tollgate_x86::{
    Attributes, CpuState, Gpr, PhysicalAddress, Segment, SegmentRegister, Selector,
};

/// The distance in bytes between two of its routines.
const ROUTINE: u64 = 256;

const MEMORY: u64 = 64 << 20;
const CODE_CACHE: usize = 4 << 20;
/// The address of the image, and of the data that it reads.
const CODE: u64 = 0x1_0000;
const SPACES: u64 = 0x2_0000;
const ENTRY_VALUES: u64 = 0x2_1000;
const OPERAND: u64 = 0x2_2000;
const PARAMETERS: u64 = 0x2_3000;
/// The address after the parameters, where the sum is.
const SUM: u64 = PARAMETERS + 64;
const CYCLES: u64 = PARAMETERS + 72;
/// The page tables of the upper half, which all spaces share.
const UPPER_TABLES: [u64; 2] = [0x4000, 0x5000];
/// The page tables of the first space, and the distance to those of the next.
const TABLES: u64 = 0x10_0000;
const TABLES_EACH: u64 = 0x1_0000;
/// The linear address of the data.
const DATA: u64 = 0x4000_0000;
/// The physical address of the first space's data.
const FRAMES: u64 = 0x200_0000;
/// Maximum number of address spaces.
const MOST_SPACES: u64 = 16;
/// Number of data pages in each space.
pub const PAGES: u64 = 16;
/// Bit of CR3 values: cached translations are kept.
const KEEPS: u64 = 1 << 63;
/// The page after the data, which is mapped to the local APIC (SDM volume 3, 11.4.1).
const LOCAL_APIC_PAGE: u64 = PAGES;
const LOCAL_APIC: u64 = 0xfee0_0000;
/// An entry's bits: present, writable, accessed, dirty, not cached.
const UNCACHED: u64 = 0x7b;
/// An entry's bits: present, writable, user, accessed, dirty; then large, and global.
const ENTRY: u64 = 0x67;
const LARGE_GLOBAL: u64 = 0x1e3;
/// The byte that the guest writes to port F4h at its end.
const DONE: u8 = 1;

/// Whether the guest's code and page tables have 64 or 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// Four-level paging with process-context identifiers.
    Wide,
    /// Two-level paging.
    Narrow,
}

/// The code of a guest: flat images whose routines start at multiples of 256 bytes.
#[derive(Clone, Copy)]
pub struct Images {
    /// The image with 64-bit code.
    pub wide: &'static [u8],
    /// The image with 32-bit code.
    pub narrow: &'static [u8],
}

/// The parameters of a routine, eight bytes each, at the address in EBP (RBP). After them it stores
/// the sum of what it has read, and the cycles that it took.
pub type Parameters = [u64; 8];

/// The guest, which can be run repeatedly.
pub struct PagedGuest {
    width: Width,
    pc: Pc,
    vcpu: Vcpu,
    memory: GuestMemory,
    /// The counts before the ledger was reset.
    counted_before: Vec<(&'static str, u64)>,
}

impl PagedGuest {
    /// Makes a guest with the settings of `config`.
    ///
    /// # Errors
    ///
    /// The host refuses the memory.
    pub fn new(width: Width, images: Images, config: &VmConfig) -> Result<Self, LabError> {
        let refused = |error: io::Error| LabError::Host(error.to_string());
        let mut memory =
            GuestMemory::new(MEMORY).map_err(|error| LabError::Host(error.to_string()))?;
        prepare(&mut memory, width, images);
        let pc = Pc::new(config, memory.clone(), Box::new(io::sink()));
        let state = width.initial_state();
        let mut vcpu =
            Vcpu::new(state, memory.clone(), CODE_CACHE, config.verify_code).map_err(refused)?;
        vcpu.set_verify_shadow(config.verify_shadow);
        knobs::turn(&mut vcpu, config);
        Ok(Self {
            width,
            pc,
            vcpu,
            memory,
            counted_before: Vec::new(),
        })
    }

    /// Runs a routine by its number, with these parameters and the CR3 values of `spaces` spaces.
    /// Returns the cycles that it took.
    ///
    /// # Errors
    ///
    /// It ended unexpectedly or its sum is not `sum`; the run was interrupted.
    pub fn run(
        &mut self,
        routine: u64,
        spaces: u64,
        parameters: Parameters,
        sum: u64,
        stop: &Stop,
    ) -> Result<u64, LabError> {
        if stop.is_requested() {
            return Err(LabError::Interrupted);
        }
        let upper = self.width.upper();
        let state = CpuState {
            rip: upper + CODE + routine * ROUTINE,
            ..self.width.initial_state()
        };
        let values = parameters.into_iter().chain([0, 0]);
        for (value, at) in values.zip((PARAMETERS..).step_by(8)) {
            self.memory.write_u64(PhysicalAddress(at), value);
        }
        let end = SPACES + spaces * self.width.word();
        let root = self.width.root(spaces);
        self.width.put(&mut self.memory, end, 0);
        self.vcpu.change_state(|cpu| {
            *cpu = state;
            cpu.gpr[Gpr::Rbp as usize] = upper + PARAMETERS;
        });
        let stopped = self.vcpu.run(&mut self.pc);
        self.width.put(&mut self.memory, end, root);
        match stopped {
            VcpuStop::Requested(StopRequest::DebugExit(DONE)) => {}
            VcpuStop::TripleFault(registers) => {
                return Err(LabError::WorkNotDone(format!("triple fault\n{registers}")));
            }
            VcpuStop::NotImplemented(why) => return Err(LabError::WorkNotDone(why)),
            VcpuStop::Requested(_) => {
                return Err(LabError::WorkNotDone("it ended unexpectedly".into()));
            }
        }
        let found = self.memory.read_u64(PhysicalAddress(SUM));
        if found != sum {
            return Err(LabError::WorkNotDone(format!(
                "it read a sum of {found}, not {sum}"
            )));
        }
        Ok(self.memory.read_u64(PhysicalAddress(CYCLES)))
    }

    /// The addresses for the parameters of routines.
    pub fn places(&self) -> Places {
        let upper = self.width.upper();
        Places {
            spaces: upper + SPACES,
            data: DATA,
            first_entry: upper + self.width.first_entry(),
            entry_values: upper + ENTRY_VALUES,
            operand: upper + OPERAND,
            local_apic: DATA + LOCAL_APIC_PAGE * 0x1000,
        }
    }

    /// Resets the ledger and the counts.
    pub fn reset_ledger(&mut self) {
        let _ = self.vcpu.take_ledger();
        self.vcpu.reset_instruction_steps();
        self.counted_before = self.all_counts();
    }

    /// The content of the ledger.
    pub fn reading(&self) -> Reading {
        Reading {
            instruction_steps: self.vcpu.instruction_steps().collect(),
            fast_paths: self.vcpu.counts().fast_paths().collect(),
            ..Reading::of(self.vcpu.ledger(), self.pc.tsc_khz(), 0)
        }
    }

    /// How spaces were loaded, operations on tables derived from the guest's, and how exits found
    /// their instructions, since the ledger was reset.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counts = self.all_counts();
        for ((_, count), (_, before)) in counts.iter_mut().zip(&self.counted_before) {
            *count -= before;
        }
        counts
    }

    fn all_counts(&self) -> Vec<(&'static str, u64)> {
        let loads = self.vcpu.counts().space_loads.named().to_vec();
        let instructions = self.vcpu.counts().instruction_cache.named().to_vec();
        [loads, self.vcpu.counts().shadow_tables(), instructions].concat()
    }
}

/// Linear addresses for the parameters of routines.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// A list of CR3 values, and a zero at the end.
    pub spaces: u64,
    /// The first page of data.
    pub data: u64,
    /// The page-table entry of the first page in the first space.
    pub first_entry: u64,
    /// Two values for this entry.
    pub entry_values: u64,
    /// An operand of INVPCID, all zero.
    pub operand: u64,
    /// The local APIC's registers, mapped in all spaces.
    pub local_apic: u64,
}

impl Width {
    /// The address where global pages map physical memory from zero on.
    const fn upper(self) -> u64 {
        match self {
            Self::Wide => 0xffff_ffff_8000_0000,
            Self::Narrow => 0x8000_0000,
        }
    }

    /// Size in bytes of a page-table entry and of a register.
    const fn word(self) -> u64 {
        match self {
            Self::Wide => 8,
            Self::Narrow => 4,
        }
    }

    /// The address of the page tables that CR3 has for this space.
    const fn tables(space: u64) -> u64 {
        TABLES + space * TABLES_EACH
    }

    /// The CR3 value of a space: with 64 bits it has an identifier of its own, and translations are
    /// kept.
    const fn root(self, space: u64) -> u64 {
        match self {
            Self::Wide => Self::tables(space) | (space + 1) | KEEPS,
            Self::Narrow => Self::tables(space),
        }
    }

    /// The entry of the first page of data in the first space.
    const fn first_entry(self) -> u64 {
        match self {
            Self::Wide => TABLES + 0x3000,
            Self::Narrow => TABLES + 0x1000,
        }
    }

    fn put(self, memory: &mut GuestMemory, address: u64, value: u64) {
        let address = PhysicalAddress(address);
        match self {
            Self::Wide => memory.write_u64(address, value),
            Self::Narrow => memory.write_u32(address, value as u32),
        };
    }

    /// Code at level 0 in the first space.
    fn initial_state(self) -> CpuState {
        let segment = |selector, attributes| Segment {
            base: 0,
            limit: u32::MAX,
            selector: Selector(selector),
            attributes: Attributes::from_bits_retain(attributes),
        };
        let mut state = CpuState::at_reset();
        for register in SegmentRegister::ALL {
            *state.segment_mut(register) = segment(0x10, 0xc093);
        }
        // The bits PG, WP, NE, ET and PE.
        state.cr0 = 0x8001_0031;
        state.cr3 = self.root(0) & !KEEPS;
        let code = match self {
            Self::Wide => {
                // The bits PCIDE, PGE and PAE; then LMA and LME.
                state.cr4 = 0x2_00a0;
                state.efer = 0x500;
                0xa09b
            }
            Self::Narrow => {
                // The bits PGE and PSE.
                state.cr4 = 0x90;
                0xc09b
            }
        };
        *state.segment_mut(SegmentRegister::Cs) = segment(8, code);
        state
    }
}

fn frame(space: u64, page: u64) -> u64 {
    FRAMES + (space * PAGES + page) * 0x1000
}

/// Writes the code, all page tables, and the contents of the pages.
fn prepare(memory: &mut GuestMemory, width: Width, images: Images) {
    let image = match width {
        Width::Wide => images.wide,
        Width::Narrow => images.narrow,
    };
    memory.write(PhysicalAddress(CODE), image);
    let word = width.word();
    let mut put = |address, value| width.put(memory, address, value);
    let [pointers, directory] = UPPER_TABLES;
    if width == Width::Wide {
        put(pointers + 510 * 8, directory | ENTRY);
        for page in 0..MEMORY >> 21 {
            put(directory + page * 8, page << 21 | LARGE_GLOBAL);
        }
    }
    for space in 0..MOST_SPACES {
        let root = Width::tables(space);
        let table = match width {
            Width::Wide => {
                put(root, (root + 0x1000) | ENTRY);
                put(root + 511 * 8, pointers | ENTRY);
                put(root + 0x1000 + (DATA >> 30) * 8, (root + 0x2000) | ENTRY);
                put(root + 0x2000, (root + 0x3000) | ENTRY);
                root + 0x3000
            }
            Width::Narrow => {
                for page in 0..MEMORY >> 22 {
                    let entry = root + (width.upper() >> 22) * 4 + page * 4;
                    put(entry, page << 22 | LARGE_GLOBAL);
                }
                put(root + (DATA >> 22) * 4, (root + 0x1000) | ENTRY);
                root + 0x1000
            }
        };
        for page in 0..PAGES {
            put(table + page * word, frame(space, page) | ENTRY);
            put(frame(space, page), space + 1);
        }
        put(table + LOCAL_APIC_PAGE * word, LOCAL_APIC | UNCACHED);
        put(SPACES + space * word, width.root(space));
    }
    // The frames of the first page in the first space and in the second.
    put(ENTRY_VALUES, frame(0, 0) | ENTRY);
    put(ENTRY_VALUES + word, frame(1, 0) | ENTRY);
}
