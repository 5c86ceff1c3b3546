//! The architectural state of one processor.
//!
//! It is plain data with `repr(C)`, because generated code accesses its fields by offset. At every
//! instruction boundary that the monitor sees, this structure is exact.

use crate::breakpoints::Debugged;
use crate::descriptor::{Segment, SegmentRegister};
use crate::flags::Flags;
use crate::machine_check::MachineCheck;
use crate::memory_types::MemoryTypeRanges;
use crate::model::{AddedFeatures, CpuModel};
use crate::paravirtual::Paravirtual;
use crate::registers::{Cr0, Cr4, Efer, Gpr};
use serde::{Deserialize, Serialize};

/// The register GDTR or IDTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[repr(C)]
pub struct TableRegister {
    /// Linear address of the table.
    pub base: u64,
    /// Offset of the table's last byte.
    pub limit: u16,
}

/// What the processor does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[repr(u32)]
pub enum Activity {
    /// It executes instructions.
    #[default]
    Running,
    /// It waits for an interrupt (HLT).
    Halted,
    /// It had a triple fault and waits for a reset.
    Shutdown,
}

pub use crate::xsave::XSAVE_SIZE;

/// Size in bytes of the area in states that were saved before AVX-512 was added to it.
const XSAVE_SIZE_TO_AVX: usize = 832;

/// The x87, MMX, SSE, AVX and AVX-512 registers; [`crate::xsave`] documents the layout.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct VectorState(pub [u8; XSAVE_SIZE]);

impl VectorState {
    /// The registers after a reset and FNINIT, with MXCSR's default (1F80h).
    pub fn initial() -> Self {
        let mut bytes = [0; XSAVE_SIZE];
        bytes[0..2].copy_from_slice(&0x037fu16.to_le_bytes());
        bytes[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        // XSTATE_BV: x87 and SSE hold the values above, AVX has its initial state.
        bytes[512..520].copy_from_slice(&3u64.to_le_bytes());
        Self(bytes)
    }
}

impl Serialize for VectorState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for VectorState {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut bytes = Vec::<u8>::deserialize(deserializer)?;
        let length = bytes.len();
        if length == XSAVE_SIZE_TO_AVX {
            bytes.resize(XSAVE_SIZE, 0);
        }
        let array = bytes.try_into().map_err(|_| {
            serde::de::Error::invalid_length(length, &"2432 or 832 bytes of XSAVE state")
        })?;
        Ok(Self(array))
    }
}

/// The registers of one processor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(C)]
pub struct CpuState {
    /// General registers, indexed by [`Gpr`].
    pub gpr: [u64; 16],
    /// Instruction pointer: offset in CS.
    pub rip: u64,
    /// EFLAGS without the reserved bit 1 (see [`Flags::image`]).
    pub flags: u64,
    /// ES, CS, SS, DS, FS and GS, in this order.
    pub segments: [Segment; 6],
    /// Local descriptor table register.
    pub ldtr: Segment,
    /// Task register.
    pub tr: Segment,
    /// Global descriptor table register.
    pub gdtr: TableRegister,
    /// Interrupt descriptor table register.
    pub idtr: TableRegister,
    /// CR0 as a number; [`Cr0`] names its bits.
    pub cr0: u64,
    /// Page-fault linear address.
    pub cr2: u64,
    /// Page-table root and flags.
    pub cr3: u64,
    /// CR4 as a number; [`Cr4`] names its bits.
    pub cr4: u64,
    /// The four PDPTEs that PAE paging keeps in registers (SDM volume 3, 4.4.1).
    pub pdpte: [u64; 4],
    /// XCR0: the enabled state components.
    pub xcr0: u64,
    /// DR0 to DR7; 4 and 5 are unused.
    pub dr: [u64; 8],
    /// IA32_EFER as a number; [`Efer`] names its bits.
    pub efer: u64,
    /// IA32_SYSENTER_CS.
    pub sysenter_cs: u64,
    /// IA32_SYSENTER_ESP.
    pub sysenter_esp: u64,
    /// IA32_SYSENTER_EIP.
    pub sysenter_eip: u64,
    /// IA32_STAR.
    pub star: u64,
    /// IA32_LSTAR.
    pub lstar: u64,
    /// IA32_CSTAR.
    pub cstar: u64,
    /// IA32_FMASK.
    pub sfmask: u64,
    /// IA32_KERNEL_GS_BASE.
    pub kernel_gs_base: u64,
    /// IA32_TSC_AUX.
    pub tsc_aux: u64,
    /// IA32_PAT.
    pub pat: u64,
    /// IA32_MISC_ENABLE.
    pub misc_enable: u64,
    /// The difference between the guest's time-stamp counter and the host's, which is added to the
    /// latter.
    pub tsc_offset: u64,
    /// After STI, MOV SS or POP SS, interrupts wait until the instruction at this RIP has
    /// completed. `u64::MAX` if no interrupt shadow is active.
    pub shadow_rip: u64,
    /// The interrupt shadow is that of MOV SS or POP SS: NMIs and debug traps wait too.
    pub shadow_holds_all: bool,
    /// An NMI was delivered, and no IRET has been executed since then.
    pub nmi_blocked: bool,
    /// Mask of the physical address bits that reach memory; bit 20 is clear while A20 is masked.
    pub a20_mask: u64,
    /// Whether the processor is running, halted or shut down.
    pub activity: Activity,
    /// PKRU: the rights to user pages by their protection keys.
    pub pkru: u32,
    /// IA32_PKRS: the rights to supervisor pages by their protection keys.
    pub pkrs: u32,
    /// The processor model; never changes.
    pub model: CpuModel,
    /// Features in addition to those of the model; never change.
    pub added_features: AddedFeatures,
    /// The paravirtual interface that CPUID reports; never changes.
    pub paravirtual: Paravirtual,
    /// The x87, MMX, SSE, AVX and AVX-512 registers.
    pub vector: VectorState,
    /// The memory-type range registers.
    pub memory_types: MemoryTypeRanges,
    /// The registers of the machine-check architecture.
    pub machine_check: MachineCheck,
    /// How code must run for a debugger outside of the machine. It is no part of saved states.
    #[serde(skip)]
    pub debugged: Debugged,
}

impl CpuState {
    /// The state after power-up (SDM volume 3, table 9-1): real mode at F000:FFF0.
    pub fn at_reset() -> Self {
        let mut code = Segment::real_mode(0xf000, 0);
        code.base = 0xffff_0000;
        code.attributes = crate::descriptor::Attributes::from_bits_retain(0x9b);
        let data = Segment::real_mode(0, 0);
        let mut segments = [data; 6];
        segments[SegmentRegister::Cs as usize] = code;
        Self {
            gpr: [0; 16],
            rip: 0xfff0,
            flags: 0,
            segments,
            ldtr: Segment {
                attributes: crate::descriptor::Attributes::from_bits_retain(0x82),
                limit: 0xffff,
                ..Segment::default()
            },
            tr: Segment {
                attributes: crate::descriptor::Attributes::from_bits_retain(0x8b),
                limit: 0xffff,
                ..Segment::default()
            },
            gdtr: TableRegister {
                base: 0,
                limit: 0xffff,
            },
            idtr: TableRegister {
                base: 0,
                limit: 0xffff,
            },
            cr0: 0x6000_0010,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            pdpte: [0; 4],
            xcr0: 1,
            dr: [0, 0, 0, 0, 0, 0, 0xffff_0ff0, 0x400],
            efer: 0,
            sysenter_cs: 0,
            sysenter_esp: 0,
            sysenter_eip: 0,
            star: 0,
            lstar: 0,
            cstar: 0,
            sfmask: 0,
            kernel_gs_base: 0,
            tsc_aux: 0,
            pat: 0x0007_0406_0007_0406,
            misc_enable: 1,
            tsc_offset: 0,
            shadow_rip: u64::MAX,
            shadow_holds_all: false,
            nmi_blocked: false,
            a20_mask: u64::MAX,
            activity: Activity::Running,
            pkru: 0,
            pkrs: 0,
            model: CpuModel::Host,
            added_features: AddedFeatures::empty(),
            paravirtual: Paravirtual::None,
            vector: VectorState::initial(),
            memory_types: MemoryTypeRanges::default(),
            machine_check: MachineCheck::at_reset(),
            debugged: Debugged::default(),
        }
    }

    /// CR0 as typed flags.
    pub fn cr0(&self) -> Cr0 {
        Cr0::from_bits_retain(self.cr0)
    }

    /// CR4 as typed flags.
    pub fn cr4(&self) -> Cr4 {
        Cr4::from_bits_retain(self.cr4)
    }

    /// EFER as typed flags.
    pub fn efer(&self) -> Efer {
        Efer::from_bits_retain(self.efer)
    }

    /// EFLAGS as typed flags.
    pub fn flags(&self) -> Flags {
        Flags::from_bits_retain(self.flags)
    }

    /// Replaces EFLAGS; reserved bits are ignored.
    pub fn set_flags(&mut self, flags: Flags) {
        self.flags = flags.bits() & Flags::ALL.bits();
    }

    /// The segment register `register`.
    pub fn segment(&self, register: SegmentRegister) -> &Segment {
        &self.segments[register as usize]
    }

    /// The segment register `register`, to be changed.
    pub fn segment_mut(&mut self, register: SegmentRegister) -> &mut Segment {
        &mut self.segments[register as usize]
    }

    /// The code segment register.
    pub fn cs(&self) -> &Segment {
        self.segment(SegmentRegister::Cs)
    }

    /// The stack segment register.
    pub fn ss(&self) -> &Segment {
        self.segment(SegmentRegister::Ss)
    }

    /// Current privilege level: 0 in real mode, 3 in V86 mode, otherwise the DPL of SS.
    pub fn cpl(&self) -> u8 {
        if !self.is_protected() {
            0
        } else if self.is_virtual_8086() {
            3
        } else {
            self.ss().attributes.dpl()
        }
    }

    /// Whether CR0.PE is set (also in V86 mode).
    pub fn is_protected(&self) -> bool {
        self.cr0().contains(Cr0::PE)
    }

    /// Whether EFLAGS.VM is set in protected mode.
    pub fn is_virtual_8086(&self) -> bool {
        self.is_protected() && self.flags().contains(Flags::VM)
    }

    /// Whether a segment load computes the base by shifting the selector: in real mode and V86
    /// mode.
    pub fn has_real_mode_segments(&self) -> bool {
        !self.is_protected() || self.flags().contains(Flags::VM)
    }

    /// CR3 without the process-context identifier: the address of the page tables, which identifies
    /// an address space.
    pub fn address_space(&self) -> u64 {
        if self.cr4().contains(Cr4::PCIDE) {
            self.cr3 & !0xfff
        } else {
            self.cr3
        }
    }

    /// The target of SYSENTER, or of SYSCALL in IA-32e mode: SYSENTER_EIP or LSTAR; 0 if not set.
    pub fn system_call_entry(&self) -> u64 {
        match self.is_long_mode() {
            true => self.lstar,
            false => self.sysenter_eip,
        }
    }

    /// Whether EFER.LMA is set: IA-32e mode, in its 64-bit or its compatibility sub-mode.
    pub fn is_long_mode(&self) -> bool {
        self.efer().contains(Efer::LMA)
    }

    /// Whether code runs in the 64-bit sub-mode: EFER.LMA and CS.L are set (SDM volume 3, 2.2).
    pub fn is_64_bit(&self) -> bool {
        self.is_long_mode()
            && self
                .cs()
                .attributes
                .contains(crate::descriptor::Attributes::LONG)
    }

    /// The segment's base as the running program sees it: 64-bit code has bases only for FS and GS
    /// (SDM volume 3, 3.4.4).
    pub fn segment_base(&self, register: SegmentRegister) -> u64 {
        let ignored =
            self.is_64_bit() && !matches!(register, SegmentRegister::Fs | SegmentRegister::Gs);
        if ignored {
            0
        } else {
            self.segment(register).base
        }
    }

    /// Whether CR0.PG is set.
    pub fn is_paging(&self) -> bool {
        self.cr0().contains(Cr0::PG)
    }

    /// The value of a general register.
    pub fn register(&self, register: Gpr) -> u64 {
        self.gpr[register as usize]
    }

    /// Loads a segment register as real mode and V86 mode do.
    pub fn load_real_mode_segment(&mut self, register: SegmentRegister, selector: u16) {
        *self.segment_mut(register) = self.real_mode_segment(register, selector);
    }

    /// A segment register after a load in real mode or V86 mode. In real mode only the base and the
    /// selector of a data or stack segment change (SDM volume 3, 21.1.1).
    pub fn real_mode_segment(&self, register: SegmentRegister, selector: u16) -> Segment {
        if self.is_virtual_8086() {
            return Segment::real_mode(selector, 3);
        }
        let segment = *self.segment(register);
        let loaded = Segment::real_mode(selector, 0);
        if !segment.is_usable() || register == SegmentRegister::Cs {
            return Segment {
                limit: segment.limit.max(0xffff),
                ..loaded
            };
        }
        Segment {
            base: loaded.base,
            selector: loaded.selector,
            ..segment
        }
    }
}
