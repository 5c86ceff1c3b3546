//! A test case of the oracle, and its outcome.

use crate::layout::World;
use tollgate_emulate::cpuid::policy_of;
use tollgate_x86::CpuModel;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::xsave::{self, EXTENDED, EXTENDED_REGION, HEADER};

/// The state components that both sides have, as XCR0 numbers them.
pub fn components() -> u64 {
    policy_of(CpuModel::Host).xcr0_mask()
}

/// Code, and the segments in which it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The segments in which the code runs.
    pub world: World,
    /// Offset in the window of the first byte of the code.
    pub at: u16,
    /// The instructions, without the INT3 that follows them.
    pub code: Vec<u8>,
}

/// The initial content of the window, except for code and pokes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fill {
    /// The same pseudo-random bytes every time.
    #[default]
    Random,
    /// Zeros.
    Zero,
}

/// Registers and memory at the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    /// EAX, ECX, EDX, EBX, ESP, EBP, ESI and EDI; in 64-bit code their 64-bit forms and R8 to R15.
    pub gpr: [u64; 16],
    /// EFLAGS; bit 1 and IF are always set.
    pub flags: u32,
    /// The x87, SSE and AVX registers in XSAVE's layout, with all components.
    pub vector: Box<[u8; XSAVE_SIZE]>,
    /// The initial content of the memory.
    pub fill: Fill,
    /// Bytes to be written at offsets in the window, but not over the code.
    pub pokes: Vec<(u16, Vec<u8>)>,
}

impl Input {
    /// All registers are zero, the vector registers as after FNINIT.
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

    /// Sets the summary bits of the x87 status word according to flags and masks, as in any status
    /// word that a processor has loaded (SDM volume 1, 8.1.3.3).
    pub fn settle(&mut self) {
        let pending = self.vector[2] & !self.vector[0] & 0x3f != 0;
        self.vector[3] = self.vector[3] & 0x7f | u8::from(pending) << 7;
        self.vector[2] = self.vector[2] & 0x7f | u8::from(pending) << 7;
    }
}

/// The registers at the exception that ended the run: #BP of the INT3 after the code, or an
/// exception that the code raised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The exception's vector; [`Outcome::ENDLESS`] if there was none.
    pub vector: u8,
    /// The exception's error code, 0 if it has none.
    pub error: u32,
    /// CR2 of a page fault, otherwise 0.
    pub cr2: u64,
    /// The instruction pointer in the exception's frame, from which ESP and EFLAGS are taken, too.
    pub rip: u64,
    /// EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI, R8 to R15.
    pub gpr: [u64; 16],
    /// The flags in the exception's frame.
    pub flags: u32,
    /// The selectors of ES, CS, SS, DS, FS and GS.
    pub selectors: [u16; 6],
    /// The bases of FS and GS in 64-bit code, otherwise 0.
    pub bases: [u64; 2],
    /// The x87, SSE and AVX registers, with all components filled in.
    pub vector_state: Box<[u8; XSAVE_SIZE]>,
}

impl Outcome {
    /// Value of `vector`: the code did not end in time.
    pub const ENDLESS: u8 = 0xff;
    /// Value of `vector`: the monitor failed.
    pub const GAVE_UP: u8 = 0xfe;

    /// An outcome whose registers are not known.
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

    /// Whether the code ended at an INT3.
    pub fn completed(&self) -> bool {
        self.vector == 3
    }
}

/// Fills components that XSAVE omitted because they were in their initial state, and clears what is
/// reserved or not accessible to the guest (registers 8 to 15 outside 64-bit code).
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
