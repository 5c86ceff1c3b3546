//! The machine of `guests/shadow.S`: its memory with address spaces, and its processor.

use crate::experiment::{LabError, Stop};
use std::io;
use tollgate_exits::books::Books;
use tollgate_machine::config::VmConfig;
use tollgate_machine::knobs;
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::StopRequest;
use tollgate_x86::{
    Attributes, CpuState, Gpr, PhysicalAddress, Segment, SegmentRegister, Selector,
};

/// The assembled guest, of 64 and of 32 bits.
const WIDE_IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shadow-64.bin"));
const NARROW_IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shadow.bin"));
/// Bytes from one of its routines to the next.
const ROUTINE: u64 = 256;

const MEMORY: u64 = 64 << 20;
const CODE_CACHE: usize = 4 << 20;
/// Where the image lies, and what it reads besides.
const CODE: u64 = 0x1_0000;
const SPACES: u64 = 0x2_0000;
const ENTRY_VALUES: u64 = 0x2_1000;
const OPERAND: u64 = 0x2_2000;
const PARAMETERS: u64 = 0x2_3000;
/// What the parameters end with.
const SUM: u64 = PARAMETERS + 64;
const CYCLES: u64 = PARAMETERS + 72;
/// Tables of the upper half, which all spaces share.
const UPPER_TABLES: [u64; 2] = [0x4000, 0x5000];
/// The tables of the first space, and from there to the next.
const TABLES: u64 = 0x10_0000;
const TABLES_EACH: u64 = 0x1_0000;
/// The linear address of the data.
const DATA: u64 = 0x4000_0000;
/// Physical memory of the first space's data.
const FRAMES: u64 = 0x200_0000;
/// Address spaces that there can be.
pub const MOST_SPACES: u64 = 16;
/// Pages of data in each.
pub const PAGES: u64 = 16;
/// In values of CR3: what is known is kept.
const KEEPS: u64 = 1 << 63;
/// Present, writable, user, accessed, dirty; and large, and global.
const ENTRY: u64 = 0x67;
const LARGE_GLOBAL: u64 = 0x1e3;
/// What the guest writes to port F4h at its end.
const DONE: u8 = 1;

/// Whether the guest's code and page tables have 64 or 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// Four-level paging with process-context identifiers.
    Wide,
    /// Two-level paging.
    Narrow,
}

/// The guest's routines, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routine {
    /// Loads the spaces in turn.
    Switch,
    /// Changes an entry and invalidates its page.
    Invalidate,
    /// Only invalidates a page.
    OnlyInvalidate,
    /// Invalidates all pages of the data one by one.
    RangeByPage,
    /// Does so by a hypercall.
    RangeByCall,
    /// Invalidates all spaces.
    Purge,
    /// Uses all spaces, then two, and invalidates all each time.
    Twice,
}

/// What the guest is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// Which routine.
    pub routine: Routine,
    /// Of how many spaces.
    pub spaces: u64,
    /// Pages that are read each time; zero: none is.
    pub pages: u64,
    /// How often.
    pub rounds: u64,
}

impl Work {
    /// What the guest must have read: the words of a space's pages are its number from 1 on.
    pub fn sum(&self) -> u64 {
        let of_each = self.pages * self.spaces * (self.spaces + 1) / 2;
        match self.routine {
            Routine::Switch => self.rounds * of_each,
            // The first page is that of the first space and of the second in turns.
            Routine::Invalidate => self.rounds * self.pages + self.rounds / 2,
            Routine::OnlyInvalidate => 0,
            Routine::RangeByPage | Routine::RangeByCall | Routine::Purge => {
                self.rounds * self.pages
            }
            Routine::Twice => of_each + self.rounds * self.pages * 3,
        }
    }
}

/// The guest, which may be run again and again.
pub struct Machine {
    width: Width,
    pc: Pc,
    vcpu: Vcpu,
    memory: GuestMemory,
}

impl Machine {
    /// One with the settings of `config`.
    ///
    /// # Errors
    /// The host gives no memory.
    pub fn new(width: Width, config: &VmConfig) -> Result<Self, LabError> {
        let refused = |error: io::Error| LabError::Host(error.to_string());
        let mut memory =
            GuestMemory::new(MEMORY).map_err(|error| LabError::Host(error.to_string()))?;
        prepare(&mut memory, width);
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
        })
    }

    /// Has it do `work`: cycles that the rounds took.
    ///
    /// # Errors
    /// It ended otherwise or read something else; interrupted.
    pub fn run(&mut self, work: Work, stop: &Stop) -> Result<u64, LabError> {
        if stop.is_requested() {
            return Err(LabError::Interrupted);
        }
        let upper = self.width.upper();
        let state = CpuState {
            rip: upper + CODE + work.routine as u64 * ROUTINE,
            ..self.width.initial_state()
        };
        let parameters = [
            upper + SPACES,
            DATA,
            work.pages,
            work.rounds,
            upper + self.width.first_entry(),
            upper + ENTRY_VALUES,
            upper + OPERAND,
            PAGES,
            0,
            0,
        ];
        for (value, at) in parameters.into_iter().zip((PARAMETERS..).step_by(8)) {
            self.memory.write_u64(PhysicalAddress(at), value);
        }
        let end = SPACES + work.spaces * self.width.word();
        let root = self.width.root(work.spaces);
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
                return Err(LabError::WorkNotDone("it ended otherwise".into()));
            }
        }
        let (sum, expected) = (self.memory.read_u64(PhysicalAddress(SUM)), work.sum());
        if sum != expected {
            return Err(LabError::WorkNotDone(format!(
                "it read a sum of {sum}, not {expected}"
            )));
        }
        Ok(self.memory.read_u64(PhysicalAddress(CYCLES)))
    }

    /// The books from now on are of what is run from now on.
    pub fn reset_books(&mut self) {
        let _ = self.vcpu.take_ledger();
    }

    /// The books.
    pub fn books(&self) -> Books {
        Books::of(self.vcpu.ledger(), self.pc.tsc_khz(), 0)
    }

    /// How spaces were loaded, and what was done to tables derived from the guest's, since the machine
    /// was made.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let loads = self.vcpu.space_loads().named().to_vec();
        [loads, self.vcpu.shadow_table_counts()].concat()
    }
}

impl Width {
    /// Physical memory from zero on, in global pages.
    const fn upper(self) -> u64 {
        match self {
            Self::Wide => 0xffff_ffff_8000_0000,
            Self::Narrow => 0x8000_0000,
        }
    }

    /// Bytes of a page-table entry and of a register.
    const fn word(self) -> u64 {
        match self {
            Self::Wide => 8,
            Self::Narrow => 4,
        }
    }

    /// The tables that a value of CR3 for this space names.
    const fn tables(space: u64) -> u64 {
        TABLES + space * TABLES_EACH
    }

    /// A space's value of CR3: of 64 bits with its identifier, which is not that of another one,
    /// and what is known is kept.
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
        // PG, WP, NE, ET, PE.
        state.cr0 = 0x8001_0031;
        state.cr3 = self.root(0) & !KEEPS;
        let code = match self {
            Self::Wide => {
                // PCIDE, PGE, PAE; LMA, LME.
                state.cr4 = 0x2_00a0;
                state.efer = 0x500;
                0xa09b
            }
            Self::Narrow => {
                // PGE, PSE.
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

/// Writes the code, all page tables, and what the pages hold.
fn prepare(memory: &mut GuestMemory, width: Width) {
    let image = match width {
        Width::Wide => WIDE_IMAGE,
        Width::Narrow => NARROW_IMAGE,
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
        put(SPACES + space * word, width.root(space));
    }
    // The first page of the first space, and that of the second.
    put(ENTRY_VALUES, frame(0, 0) | ENTRY);
    put(ENTRY_VALUES + word, frame(1, 0) | ENTRY);
}
