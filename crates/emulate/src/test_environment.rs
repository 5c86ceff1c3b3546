//! A small machine for unit tests: flat RAM without paging, with ranges that fault.

use crate::Outcome;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use std::ops::Range;
use tollgate_platform::{BareMachine, Environment, Platform};
use tollgate_x86::TranslationChange;
use tollgate_x86::exception::PageFaultCode;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{CpuState, Exception, LinearAddress, PhysicalAddress};

/// A machine whose ports, MSRs and time only record accesses.
#[derive(Default)]
pub struct TestPlatform {
    /// Every port write: port, size, value.
    pub port_writes: Vec<(u16, u8, u32)>,
    /// Every port read: port, size.
    pub port_reads: Vec<(u16, u8)>,
    /// Every write of device memory: physical address and bytes.
    pub memory_writes: Vec<(u64, Vec<u8>)>,
    /// The value that port reads return.
    pub port_value: u32,
    /// MSRs that belong to the machine: index and value.
    pub msrs: Vec<(u32, u64)>,
    /// A value that every MSR of the machine refuses.
    pub refused_msr_value: Option<u64>,
    /// The time-stamp counter.
    pub time_stamp: u64,
    /// The task priority class.
    pub task_priority: u8,
    /// How often FERR# was signalled.
    pub fpu_errors: u32,
}

impl BareMachine for TestPlatform {
    fn port_read(&mut self, port: u16, size: u8) -> u32 {
        self.port_reads.push((port, size));
        match size {
            1 => self.port_value & 0xff,
            2 => self.port_value & 0xffff,
            _ => self.port_value,
        }
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        self.port_writes.push((port, size, value));
    }

    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        self.memory_writes.push((address.0, data.to_vec()));
    }

    fn msr_read(&mut self, index: u32) -> Option<u64> {
        self.msrs.iter().find(|msr| msr.0 == index).map(|msr| msr.1)
    }

    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool> {
        let refused = self.refused_msr_value == Some(value);
        let msr = self.msrs.iter_mut().find(|msr| msr.0 == index)?;
        if !refused {
            msr.1 = value;
        }
        Some(!refused)
    }

    fn task_priority(&mut self) -> u8 {
        self.task_priority
    }

    fn set_task_priority(&mut self, class: u8) {
        self.task_priority = class;
    }

    fn time_stamp(&self) -> u64 {
        self.time_stamp
    }

    fn signal_fpu_error(&mut self) {
        self.fpu_errors += 1;
    }
}

/// RAM at linear address zero, and a record of what instructions did to it.
pub struct TestEnvironment {
    /// RAM; accesses beyond it are page faults.
    pub ram: Vec<u8>,
    /// Linear addresses that are not present.
    pub not_present: Vec<Range<u64>>,
    /// Linear addresses that may not be written.
    pub read_only: Vec<Range<u64>>,
    /// Linear addresses that user accesses may not touch.
    pub supervisor_only: Vec<Range<u64>>,
    /// Linear addresses for which [`Environment::ram`] returns `None`.
    pub device: Vec<Range<u64>>,
    /// The machine around the processor.
    pub platform: TestPlatform,
    /// Every translation change.
    pub changes: Vec<TranslationChange>,
    /// The number of calls for the vector state.
    pub vector_syncs: u32,
    /// The result of [`Environment::is_interrupted`]; while it is true, no change is prepared.
    pub interrupted: bool,
}

impl TestEnvironment {
    /// Makes `size` bytes of RAM, all zero.
    pub fn new(size: usize) -> Self {
        Self {
            ram: vec![0; size],
            not_present: Vec::new(),
            read_only: Vec::new(),
            supervisor_only: Vec::new(),
            device: Vec::new(),
            platform: TestPlatform::default(),
            changes: Vec::new(),
            vector_syncs: 0,
            interrupted: false,
        }
    }

    /// Copies bytes to RAM.
    pub fn put(&mut self, address: usize, bytes: &[u8]) {
        self.ram[address..address + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a 16-bit value to RAM.
    pub fn put_u16(&mut self, address: usize, value: u16) {
        self.put(address, &value.to_le_bytes());
    }

    /// Writes a 32-bit value to RAM.
    pub fn put_u32(&mut self, address: usize, value: u32) {
        self.put(address, &value.to_le_bytes());
    }

    /// Writes a 64-bit value to RAM.
    pub fn put_u64(&mut self, address: usize, value: u64) {
        self.put(address, &value.to_le_bytes());
    }

    /// The 16-bit value at an address.
    pub fn u16(&self, address: usize) -> u16 {
        u16::from_le_bytes(self.ram[address..address + 2].try_into().unwrap())
    }

    /// The 32-bit value at an address.
    pub fn u32(&self, address: usize) -> u32 {
        u32::from_le_bytes(self.ram[address..address + 4].try_into().unwrap())
    }

    /// The 64-bit value at an address.
    pub fn u64(&self, address: usize) -> u64 {
        u64::from_le_bytes(self.ram[address..address + 8].try_into().unwrap())
    }

    fn check(
        &self,
        address: LinearAddress,
        size: usize,
        is_write: bool,
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let is_user = privilege == Privilege::User;
        let within = |ranges: &[Range<u64>], byte| ranges.iter().any(|range| range.contains(&byte));
        for byte in (0..size as u64).map(|offset| address.0.wrapping_add(offset)) {
            let is_absent = byte >= self.ram.len() as u64 || within(&self.not_present, byte);
            let is_forbidden = is_write && within(&self.read_only, byte)
                || is_user && within(&self.supervisor_only, byte);
            if is_absent || is_forbidden {
                let mut code = PageFaultCode::empty();
                code.set(PageFaultCode::PRESENT, !is_absent);
                code.set(PageFaultCode::WRITE, is_write);
                code.set(PageFaultCode::USER, is_user);
                return Err(Exception::page_fault(LinearAddress(byte), code));
            }
        }
        Ok(())
    }
}

impl Environment for TestEnvironment {
    fn call_machine(&mut self, call: &mut dyn FnMut(&mut dyn Platform)) {
        call(&mut self.platform);
    }

    fn port_read(&mut self, _: &CpuState, port: u16, size: u8) -> u32 {
        Platform::port_read(&mut self.platform, port, size)
    }

    fn port_write(&mut self, _: &CpuState, port: u16, size: u8, value: u32) {
        Platform::port_write(&mut self.platform, port, size, value);
    }

    fn read(
        &mut self,
        _: &CpuState,
        address: LinearAddress,
        data: &mut [u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.check(address, data.len(), false, privilege)?;
        let start = address.0 as usize;
        data.copy_from_slice(&self.ram[start..start + data.len()]);
        Ok(())
    }

    fn write(
        &mut self,
        _: &CpuState,
        address: LinearAddress,
        data: &[u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.check(address, data.len(), true, privilege)?;
        self.put(address.0 as usize, data);
        Ok(())
    }

    fn probe_write(
        &mut self,
        _: &CpuState,
        address: LinearAddress,
        size: u32,
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.check(address, size as usize, true, privilege)
    }

    fn ram(
        &mut self,
        _: &CpuState,
        address: LinearAddress,
        _bytes: u32,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Option<(*mut u8, u32)>, Exception> {
        self.check(address, 1, kind == AccessKind::Write, privilege)?;
        if self.device.iter().any(|range| range.contains(&address.0)) {
            return Ok(None);
        }
        let room = (4096 - address.page_offset()).min(self.ram.len() as u64 - address.0);
        let start = address.0 as usize;
        Ok(Some((self.ram[start..].as_mut_ptr(), room as u32)))
    }

    fn read_physical_u64(&mut self, address: PhysicalAddress) -> u64 {
        let start = address.0 as usize;
        self.ram.get(start..start + 8).map_or(u64::MAX, |bytes| {
            u64::from_le_bytes(bytes.try_into().unwrap())
        })
    }

    fn prepare_change(&mut self, _: &CpuState, _: TranslationChange) -> bool {
        !self.interrupted
    }

    fn translations_changed(&mut self, _: &CpuState, change: TranslationChange) {
        self.changes.push(change);
    }

    fn sync_vector_state(&mut self, _: &mut CpuState) {
        self.vector_syncs += 1;
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted
    }
}

/// Decodes `code` as if it were at CS:RIP.
pub fn decode(state: &CpuState, code: &[u8]) -> Instruction {
    let bits = if state.is_64_bit() {
        64
    } else if state.cs().is_big() {
        32
    } else {
        16
    };
    Decoder::with_ip(bits, code, state.rip, DecoderOptions::NONE).decode()
}

/// Executes one instruction given by its bytes, as if it were at CS:RIP. Also checks the crate's
/// invariant: a fault does not change the registers.
pub fn run(
    state: &mut CpuState,
    environment: &mut TestEnvironment,
    code: &[u8],
) -> Result<Outcome, Exception> {
    let instruction = decode(state, code);
    let before = state.clone();
    let result = crate::execute(state, environment, &instruction);
    // These resume where they have faulted.
    let resumes = instruction.has_rep_prefix()
        || instruction.has_repne_prefix()
        || instruction.is_vsib() && instruction.has_op_mask();
    if result.is_err() && !resumes {
        assert_eq!(*state, before, "a fault changed the registers");
    }
    result
}

/// Linear address of the GDT of [`protected_mode`].
pub const GDT: usize = 0x1000;
/// Linear address of the IDT of [`protected_mode`].
pub const IDT: usize = 0x2000;
/// Linear address of the LDT of [`protected_mode`].
pub const LDT: usize = 0x3000;
/// Linear address of the 32-bit TSS of [`protected_mode`].
pub const TSS: usize = 0x4000;
/// ESP after [`protected_mode`].
pub const STACK: u32 = 0x8000;
/// The TSS's SS0:ESP0 is `DATA0` and this offset.
pub const KERNEL_STACK: u32 = 0xa000;
/// Selectors of the GDT that [`protected_mode`] makes.
pub mod selector {
    /// Flat 32-bit code, DPL 0.
    pub const CODE0: u16 = 0x08;
    /// Flat 32-bit data, DPL 0.
    pub const DATA0: u16 = 0x10;
    /// Flat 32-bit code, DPL 3, with RPL 3.
    pub const CODE3: u16 = 0x1b;
    /// Flat 32-bit data, DPL 3, with RPL 3.
    pub const DATA3: u16 = 0x23;
    /// 16-bit code of 64 KiB at 0, DPL 0.
    pub const CODE16: u16 = 0x28;
    /// 16-bit data of 64 KiB at 0, DPL 0.
    pub const DATA16: u16 = 0x30;
    /// Flat 32-bit conforming code, DPL 0.
    pub const CONFORMING0: u16 = 0x38;
    /// Read-only flat data, DPL 3, with RPL 3.
    pub const READ_ONLY3: u16 = 0x43;
    /// Execute-only flat code, DPL 0.
    pub const EXECUTE_ONLY0: u16 = 0x48;
    /// Flat data, DPL 0, not present.
    pub const ABSENT0: u16 = 0x50;
    /// The 32-bit TSS, busy.
    pub const TSS: u16 = 0x58;
    /// The local descriptor table.
    pub const LDT: u16 = 0x60;
    /// Free for a descriptor of the test.
    pub const SPARE: u16 = 0x68;
    /// Free for a second descriptor of the test.
    pub const SPARE2: u16 = 0x70;
}

/// Makes a descriptor of its parts; `limit` is the raw 20-bit field.
pub const fn descriptor(base: u32, limit: u32, attributes: u16) -> u64 {
    let (base, limit, attributes) = (base as u64, limit as u64, attributes as u64);
    (limit & 0xffff)
        | (base & 0xff_ffff) << 16
        | (attributes & 0xf0ff) << 40
        | (limit >> 16 & 15) << 48
        | (base >> 24) << 56
}

/// Makes a gate descriptor; `kind` is the access byte (present, DPL, type).
pub const fn gate(selector: u16, offset: u32, kind: u8, parameters: u8) -> u64 {
    (offset & 0xffff) as u64
        | (selector as u64) << 16
        | (parameters as u64) << 32
        | (kind as u64) << 40
        | ((offset >> 16) as u64) << 48
}

/// Flat 32-bit protected mode at `cpl` (0 or 3), with a GDT, IDT, LDT and TSS in 1 MiB of RAM. In
/// memory, the accessed bit is clear in all descriptors except the TSS's.
pub fn protected_mode(cpl: u8) -> (CpuState, TestEnvironment) {
    use tollgate_x86::{Descriptor, Gpr, SegmentRegister, Selector};
    let mut environment = TestEnvironment::new(0x10_0000);
    let table = [
        0,
        descriptor(0, 0xf_ffff, 0xc09a),
        descriptor(0, 0xf_ffff, 0xc092),
        descriptor(0, 0xf_ffff, 0xc0fa),
        descriptor(0, 0xf_ffff, 0xc0f2),
        descriptor(0, 0xffff, 0x009a),
        descriptor(0, 0xffff, 0x0092),
        descriptor(0, 0xf_ffff, 0xc09e),
        descriptor(0, 0xf_ffff, 0xc0f0),
        descriptor(0, 0xf_ffff, 0xc098),
        descriptor(0, 0xf_ffff, 0xc012),
        descriptor(TSS as u32, 0x67, 0x008b),
        descriptor(LDT as u32, 0xff, 0x0082),
        0,
        0,
        0,
    ];
    for (index, entry) in table.iter().enumerate() {
        environment.put_u64(GDT + index * 8, *entry);
    }
    environment.put_u32(TSS + 4, KERNEL_STACK);
    environment.put_u16(TSS + 8, selector::DATA0);

    let mut state = CpuState::at_reset();
    state.cr0 |= 1;
    state.gdtr.base = GDT as u64;
    state.gdtr.limit = (table.len() * 8 - 1) as u16;
    state.idtr.base = IDT as u64;
    state.idtr.limit = 0x7ff;
    let load = |at: u16| {
        let mut segment = Descriptor(table[usize::from(at >> 3)]).segment(Selector(at));
        segment.attributes |= tollgate_x86::Attributes::ACCESSED;
        segment
    };
    let (code, data) = if cpl == 0 {
        (selector::CODE0, selector::DATA0)
    } else {
        (selector::CODE3, selector::DATA3)
    };
    state.segments = [load(data); 6];
    *state.segment_mut(SegmentRegister::Cs) = load(code);
    state.tr = Descriptor(table[11]).segment(Selector(selector::TSS));
    state.ldtr = Descriptor(table[12]).segment(Selector(selector::LDT));
    state.gpr[Gpr::Rsp as usize] = u64::from(STACK);
    state.rip = 0x5000;
    (state, environment)
}

/// Real mode at 0100:0000 with SS:SP 0200:1000 and DS, ES 0300, in 2 MiB of RAM.
pub fn real_mode() -> (CpuState, TestEnvironment) {
    use tollgate_x86::{Gpr, Segment, SegmentRegister};
    let mut state = CpuState::at_reset();
    *state.segment_mut(SegmentRegister::Cs) = Segment::real_mode(0x100, 0);
    *state.segment_mut(SegmentRegister::Ss) = Segment::real_mode(0x200, 0);
    *state.segment_mut(SegmentRegister::Ds) = Segment::real_mode(0x300, 0);
    *state.segment_mut(SegmentRegister::Es) = Segment::real_mode(0x300, 0);
    state.gpr[Gpr::Rsp as usize] = 0x1000;
    state.rip = 0;
    state.idtr.limit = 0x3ff;
    (state, TestEnvironment::new(0x20_0000))
}

/// V86 mode with the segments of [`real_mode`] and the tables of [`protected_mode`].
pub fn virtual_8086_mode(iopl: u8) -> (CpuState, TestEnvironment) {
    use tollgate_x86::{Flags, Segment};
    let (mut state, environment) = protected_mode(3);
    let (real, _) = real_mode();
    for (segment, from) in state.segments.iter_mut().zip(real.segments) {
        *segment = Segment::real_mode(from.selector.0, 3);
    }
    state.gpr = real.gpr;
    state.rip = 0;
    state.flags |= Flags::VM.bits() | u64::from(iopl & 3) << 12;
    (state, environment)
}

/// Selectors that [`long_mode`] adds to [`selector`].
pub mod long_selector {
    /// 64-bit code, DPL 0.
    pub const CODE0: u16 = 0x80;
    /// 64-bit code, DPL 3, with RPL 3.
    pub const CODE3: u16 = 0x8b;
    /// 64-bit conforming code, DPL 0.
    pub const CONFORMING0: u16 = 0x90;
    /// Code with both L and D, DPL 0.
    pub const BOTH0: u16 = 0x98;
    /// A TSS of 16 bytes, not busy, at [`FAR_BASE`].
    pub const TSS: u16 = 0xa0;
    /// An LDT of 16 bytes at [`FAR_BASE`].
    pub const LDT: u16 = 0xb0;
    /// Sixteen bytes for a descriptor of the test.
    pub const SPARE: u16 = 0xc0;
}

/// Base of the system segments of [`long_mode`], where there is no RAM.
pub const FAR_BASE: u64 = 0xffff_8001_2345_6000;
/// RSP0 and IST1 of the TSS of [`long_mode`].
pub const INTERRUPT_STACK: u64 = 0xc008;

/// Makes a gate of 16 bytes; `kind` is the access byte, `stack` the IST number.
pub fn long_gate(selector: u16, offset: u64, kind: u8, stack: u8) -> [u8; 16] {
    let low = gate(selector, offset as u32, kind, stack);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&(offset >> 32).to_le_bytes());
    bytes
}

/// Makes a system descriptor of 16 bytes.
fn wide_descriptor(base: u64, limit: u32, attributes: u16) -> [u8; 16] {
    let low = descriptor(base as u32, limit, attributes);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&(base >> 32).to_le_bytes());
    bytes
}

/// 64-bit code at `cpl` (0 or 3) with the tables of [`protected_mode`]; the GDT continues with
/// [`long_selector`], and the TSS is a 64-bit one with RSP0 [`KERNEL_STACK`] and IST1
/// [`INTERRUPT_STACK`]. RAM is at linear address zero; CR4.PAE is set.
pub fn long_mode(cpl: u8) -> (CpuState, TestEnvironment) {
    use tollgate_x86::{Cr0, Cr4, Descriptor, Efer, SegmentRegister, Selector};
    let (mut state, mut environment) = protected_mode(cpl);
    for (selector, attributes) in [
        (long_selector::CODE0, 0xa09a),
        (long_selector::CODE3, 0xa0fa),
        (long_selector::CONFORMING0, 0xa09e),
        (long_selector::BOTH0, 0xe09a),
    ] {
        let entry = descriptor(0x1234_5000, 0xf_ffff, attributes);
        environment.put_u64(GDT + usize::from(selector & !7), entry);
    }
    let tss = wide_descriptor(FAR_BASE, 0x67, 0x89);
    environment.put(GDT + usize::from(long_selector::TSS), &tss);
    let ldt = wide_descriptor(FAR_BASE, 0xff, 0x82);
    environment.put(GDT + usize::from(long_selector::LDT), &ldt);
    environment.put_u64(TSS + 4, u64::from(KERNEL_STACK));
    environment.put_u64(TSS + 0x24, INTERRUPT_STACK);
    state.gdtr.limit = 0xcf;
    state.idtr.limit = 0xfff;
    state.cr0 |= (Cr0::PG | Cr0::PE).bits();
    state.cr4 |= Cr4::PAE.bits();
    state.efer |= (Efer::LME | Efer::LMA | Efer::SCE).bits();
    let selector = if cpl == 0 {
        long_selector::CODE0
    } else {
        long_selector::CODE3
    };
    let entry = environment.u64(GDT + usize::from(selector & !7));
    let mut code = Descriptor(entry).segment(Selector(selector));
    (code.base, code.limit) = (0, u32::MAX);
    *state.segment_mut(SegmentRegister::Cs) = code;
    (state, environment)
}

/// 32-bit code in IA-32e mode, otherwise like [`long_mode`].
pub fn compatibility_mode(cpl: u8) -> (CpuState, TestEnvironment) {
    use tollgate_x86::SegmentRegister;
    let (mut state, environment) = long_mode(cpl);
    let (legacy, _) = protected_mode(cpl);
    *state.segment_mut(SegmentRegister::Cs) = *legacy.cs();
    (state, environment)
}
