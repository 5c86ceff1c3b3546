//! The registers that are compared, in a form that both sides can provide.

use tollgate_x86::flags::Flags;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, Cr0, Efer, Segment};

/// The names of the registers in [`Registers::general`], in the same order.
pub const GENERAL_NAMES: [&str; 16] = [
    "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI", "R8", "R9", "R10", "R11", "R12", "R13",
    "R14", "R15",
];
/// The names of the registers in [`Registers::selectors`], in the same order.
pub const SEGMENT_NAMES: [&str; 6] = ["ES", "CS", "SS", "DS", "FS", "GS"];

/// The registers at an instruction boundary.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// The general registers in encoding order.
    pub general: [u64; 16],
    /// Whether 64-bit code runs, for which the general registers are complete. Otherwise QEMU shows
    /// the low halves of the first eight, and only these are compared.
    pub wide: bool,
    /// The instruction pointer, as an offset in CS.
    pub rip: u64,
    /// The value that PUSHFD would push, but including VM and RF.
    pub eflags: u32,
    /// The selectors of ES, CS, SS, DS, FS and GS.
    pub selectors: [u16; 6],
    /// Control register 0.
    pub cr0: u32,
    /// Control register 2.
    pub cr2: u64,
    /// Control register 3.
    pub cr3: u64,
    /// Control register 4.
    pub cr4: u32,
    /// The register IA32_EFER.
    pub efer: u32,
    /// Registers that not every source can provide.
    pub hidden: Option<Hidden>,
}

/// Hidden parts of segment registers, and the system registers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hidden {
    /// ES, CS, SS, DS, FS and GS.
    pub segments: [Segment; 6],
    /// The local descriptor table register.
    pub ldtr: Segment,
    /// The task register.
    pub tr: Segment,
    /// The global descriptor table register.
    pub gdtr: TableRegister,
    /// The interrupt descriptor table register.
    pub idtr: TableRegister,
}

impl Registers {
    /// The registers of a processor of ours.
    pub fn of(state: &CpuState) -> Self {
        Self {
            general: state.gpr,
            wide: state.is_64_bit(),
            rip: state.rip,
            eflags: state.flags().image() as u32,
            selectors: state.segments.map(|segment| segment.selector.0),
            cr0: state.cr0 as u32,
            cr2: state.cr2,
            cr3: state.cr3,
            cr4: state.cr4 as u32,
            efer: state.efer as u32,
            hidden: Some(Hidden {
                segments: state.segments,
                ldtr: state.ldtr,
                tr: state.tr,
                gdtr: state.gdtr,
                idtr: state.idtr,
            }),
        }
    }

    /// Copies general registers, RIP and EFLAGS to a processor.
    pub fn put_general(&self, state: &mut CpuState) {
        let count = if self.wide { 16 } else { 8 };
        state.gpr[..count].copy_from_slice(&self.general[..count]);
        state.rip = self.rip;
        state.set_flags(Flags::from_bits_retain(u64::from(self.eflags)));
    }

    /// Copies all registers to a processor; if hidden parts are missing, those of the processor do
    /// not change.
    pub fn put_all(&self, state: &mut CpuState) {
        self.put_general(state);
        state.cr0 = u64::from(self.cr0);
        state.cr2 = self.cr2;
        state.cr3 = self.cr3;
        state.cr4 = u64::from(self.cr4);
        state.efer = u64::from(self.efer);
        if let Some(hidden) = &self.hidden {
            state.segments = hidden.segments;
            state.ldtr = hidden.ldtr;
            state.tr = hidden.tr;
            state.gdtr = hidden.gdtr;
            state.idtr = hidden.idtr;
        }
    }

    /// Whether segments work as in real mode or V86 mode.
    pub fn has_real_mode_segments(&self) -> bool {
        u64::from(self.cr0) & Cr0::PE.bits() == 0 || self.is_virtual_8086()
    }

    /// Whether EFLAGS.VM is set.
    pub fn is_virtual_8086(&self) -> bool {
        u64::from(self.eflags) & Flags::VM.bits() != 0
    }

    /// Whether IA-32e mode is active.
    pub fn is_long_mode(&self) -> bool {
        u64::from(self.efer) & Efer::LMA.bits() != 0
    }

    /// Whether paging is enabled.
    pub fn has_paging(&self) -> bool {
        u64::from(self.cr0) & Cr0::PG.bits() != 0
    }

    /// The registers as lines of text for people.
    pub fn lines(&self) -> Vec<String> {
        let general = |range: std::ops::Range<usize>| {
            let text: Vec<String> = range
                .map(|index| {
                    let digits = if self.wide { 16 } else { 8 };
                    format!("{}={:0digits$x}", GENERAL_NAMES[index], self.general[index])
                })
                .collect();
            text.join(" ")
        };
        let selectors: Vec<String> = SEGMENT_NAMES
            .iter()
            .zip(self.selectors)
            .map(|(name, selector)| format!("{name}={selector:04x}"))
            .collect();
        let mut lines = vec![general(0..4), general(4..8)];
        if self.wide {
            lines.extend([general(8..12), general(12..16)]);
        }
        lines.extend([
            format!(
                "RIP={:08x} EFLAGS={:08x} [{}]",
                self.rip,
                self.eflags,
                flag_letters(self.eflags)
            ),
            selectors.join(" "),
            format!(
                "CR0={:08x} CR2={:08x} CR3={:08x} CR4={:08x} EFER={:08x}",
                self.cr0, self.cr2, self.cr3, self.cr4, self.efer
            ),
        ]);
        lines
    }
}

/// The flags that programs use, as letters; a dash for each flag that is clear.
pub fn flag_letters(eflags: u32) -> String {
    [
        (Flags::VM, 'V'),
        (Flags::NT, 'N'),
        (Flags::OF, 'O'),
        (Flags::DF, 'D'),
        (Flags::IF, 'I'),
        (Flags::TF, 'T'),
        (Flags::SF, 'S'),
        (Flags::ZF, 'Z'),
        (Flags::AF, 'A'),
        (Flags::PF, 'P'),
        (Flags::CF, 'C'),
    ]
    .into_iter()
    .map(|(flag, letter)| {
        if u64::from(eflags) & flag.bits() != 0 {
            letter
        } else {
            '-'
        }
    })
    .collect()
}
