//! What is run, and what came of it.

use crate::layout::World;
use tollgate_emulate::cpuid::policy_of;
use tollgate_x86::CpuModel;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::xsave::{self, EXTENDED, EXTENDED_REGION, HEADER};

/// The state components of both sides, as XCR0 numbers them.
pub fn components() -> u64 {
    policy_of(CpuModel::Host).xcr0_mask()
}

/// Code and the segments under which it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The segments.
    pub world: World,
    /// Offset in the window of the first byte.
    pub at: u16,
    /// The instructions; INT3 follows.
    pub code: Vec<u8>,
}

/// What lies in the window at the start, beside code and pokes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fill {
    /// The same random bytes every time.
    #[default]
    Random,
    /// Zeros.
    Zero,
}

/// Registers and memory at the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    /// EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI; in 64-bit code their wide forms and R8 to
    /// R15.
    pub gpr: [u64; 16],
    /// EFLAGS; bit 1 and IF are always set.
    pub flags: u32,
    /// x87, SSE and AVX registers as XSAVE lays them out; all components present.
    pub vector: Box<[u8; XSAVE_SIZE]>,
    /// Background of the memory.
    pub fill: Fill,
    /// Bytes put at offsets in the window; none over the code.
    pub pokes: Vec<(u16, Vec<u8>)>,
}

impl Input {
    /// All zero, the vector registers as after FNINIT.
    pub fn plain() -> Self {
        let mut vector = Box::new([0; XSAVE_SIZE]);
        vector.copy_from_slice(&tollgate_x86::state::VectorState::initial().0);
        vector[HEADER] = components() as u8;
        Self {
            gpr: [0; 16],
            flags: 0x202,
            vector,
            fill: Fill::Zero,
            pokes: Vec::new(),
        }
    }

    /// Has the x87 status word's summary bits follow from flags and masks, as they do
    /// whenever a processor has loaded it (SDM volume 1, 8.1.3.3).
    pub fn settle(&mut self) {
        let pending = self.vector[2] & !self.vector[0] & 0x3f != 0;
        self.vector[3] = self.vector[3] & 0x7f | u8::from(pending) << 7;
        self.vector[2] = self.vector[2] & 0x7f | u8::from(pending) << 7;
    }
}

/// Registers at the exception that ended the run: #BP of the INT3 behind the code, or
/// one that the code raised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The exception's vector; [`Outcome::ENDLESS`] if none came.
    pub vector: u8,
    /// Its error code, 0 if it has none.
    pub error: u32,
    /// CR2 of a page fault, else 0.
    pub cr2: u64,
    /// Instruction pointer as the exception's frame has it; so are ESP and EFLAGS.
    pub rip: u64,
    /// EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI, R8 to R15.
    pub gpr: [u64; 16],
    /// EFLAGS.
    pub flags: u32,
    /// ES, CS, SS, DS, FS, GS.
    pub selectors: [u16; 6],
    /// Bases of FS and GS in 64-bit code, else 0.
    pub bases: [u64; 2],
    /// x87, SSE and AVX registers, all components filled in.
    pub vector_state: Box<[u8; XSAVE_SIZE]>,
}

impl Outcome {
    /// In `vector`: the code did not end in time.
    pub const ENDLESS: u8 = 0xff;
    /// In `vector`: the monitor gave up.
    pub const GAVE_UP: u8 = 0xfe;

    /// An outcome without registers.
    pub fn without_registers(vector: u8) -> Self {
        Self {
            vector,
            error: 0,
            cr2: 0,
            rip: 0,
            gpr: [0; 16],
            flags: 0,
            selectors: [0; 6],
            bases: [0; 2],
            vector_state: Box::new([0; XSAVE_SIZE]),
        }
    }

    /// An INT3 was reached.
    pub fn completed(&self) -> bool {
        self.vector == 3
    }
}

/// Fills components that XSAVE left out because they were in their initial state, and
/// clears what is reserved or not the guest's (registers 8 to 15 outside 64-bit code).
pub fn normalize(area: &mut [u8; XSAVE_SIZE], world: World) {
    let present = area[512];
    if present & 1 == 0 {
        area[..24].fill(0);
        area[..2].copy_from_slice(&0x37fu16.to_le_bytes());
        area[32..160].fill(0);
    }
    if present & 2 == 0 {
        area[160..416].fill(0);
    }
    for part in EXTENDED {
        if u64::from(present) & part.bit == 0 {
            area[part.start..part.start + part.size].fill(0);
        }
    }
    // MXCSR_MASK, the upper six bytes of each x87 register, registers 8 to 15.
    area[28..32].fill(0);
    for register in 0..8 {
        area[32 + register * 16 + 10..48 + register * 16].fill(0);
    }
    if !world.is_long() {
        area[288..416].fill(0);
        for part in [xsave::AVX, xsave::ZMM_HIGH] {
            area[part.start + part.size / 2..part.start + part.size].fill(0);
        }
        area[xsave::ZMM_16_TO_31.start..].fill(0);
    }
    area[416..EXTENDED_REGION].fill(0);
    area[HEADER] = components() as u8;
}
