//! 16-bit programs in real mode, in V86 mode and in 16-bit segments of protected mode.

use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::Computer;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{
    Attributes, CpuState, Flags, PhysicalAddress, Segment, SegmentRegister, Selector,
};

/// The vector, in protected mode and V86 mode, whose handler invalidates the translations of the page
/// at 4000:0000 and returns.
pub const INVALIDATES: u8 = 31;
/// out f4h, al: ends the program.
pub const END: [u8; 2] = [0xe6, 0xf4];

const RAM: u64 = 2 << 20;
/// Addresses of the interrupt table, the code, the task state and the stack of the V86 mode's
/// monitor.
const IDT: u32 = 0x11_0000;
const HANDLERS: u32 = 0x11_1000;
const TASK_STATE: u32 = 0x11_2000;
const INNER_STACK: u32 = 0x11_6000;
const GDT: u32 = 0x11_7000;
/// Addresses of the page directory and the page table, which map all of RAM.
const DIRECTORY: u32 = 0x18_0000;
const TABLE: u32 = 0x18_1000;
/// Address of the handlers of real mode.
const REAL_HANDLERS: u32 = 0x600;
const DATA: u16 = 0x4000;
const STACK: u16 = 0x5000;

/// The kinds of 16-bit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Real,
    Virtual8086,
    /// 16-bit segments of protected mode, at this privilege level.
    Protected(u16),
}

impl Kind {
    /// The kinds whose code loads segments as in real mode.
    pub const ALL: [Kind; 2] = [Kind::Real, Kind::Virtual8086];

    /// The privilege level of the code.
    pub fn level(self) -> u16 {
        match self {
            Kind::Real => 0,
            Kind::Virtual8086 => 3,
            Kind::Protected(level) => level,
        }
    }

    /// A data segment at `selector` * 16, as code of this kind would have loaded it.
    pub fn segment(self, selector: u16) -> Segment {
        let segment = Segment::real_mode(selector, self.level() as u8);
        match self {
            Kind::Real | Kind::Virtual8086 => segment,
            Kind::Protected(level) => Segment {
                selector: Selector(DATA_SELECTOR | level),
                attributes: Attributes::from_bits_retain(0x93 | level << 5),
                ..segment
            },
        }
    }
}

/// The selectors of code and data of 16-bit segments, without their privilege level.
const CODE_SELECTOR: u16 = 0x18;
const DATA_SELECTOR: u16 = 0x20;

/// A machine that ends at port F4h, has its A20 gate at port 92h, and no other devices.
#[derive(Default)]
pub struct Machine {
    pub ended: bool,
    masks_a20: bool,
}

impl BareMachine for Machine {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        self.ended |= port == 0xf4;
        if port == 0x92 {
            self.masks_a20 = value & 2 == 0;
        }
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        data.fill(0x5a);
    }
    fn a20_enabled(&self) -> bool {
        !self.masks_a20
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.ended.then_some(StopRequest::DebugExit(0))
    }
}

/// Offset in the XSAVE area of the bitmap of components in use (SDM volume 1, 13.4.2).
const XSTATE_BV: usize = 512;

/// How a program ended.
#[derive(PartialEq, Eq)]
pub struct Outcome {
    pub cpu: CpuState,
    pub memory: Vec<u8>,
}

impl Outcome {
    fn of(vcpu: &mut Computer<Machine>) -> Self {
        let mut memory = vec![0; RAM as usize];
        // Device memory counts as zeros here.
        for (page, bytes) in memory.chunks_mut(4096).enumerate() {
            vcpu.memory_mut()
                .read(PhysicalAddress(page as u64 * 4096), bytes);
        }
        let mut cpu = vcpu.state().clone();
        if cpu.shadow_rip != cpu.rip {
            // A note of an interrupt shadow that is over has no effect.
            cpu.end_shadow();
        }
        // The processor may treat a component in its initial configuration as in use or not,
        // perhaps depending on how often it was saved (SDM volume 1, 13.6).
        cpu.vector.0[XSTATE_BV] = 7;
        Self { cpu, memory }
    }
}

/// Memory and registers at the start: code at 1000:0000, data at 4000:0000, the stack at 5000:0800.
/// Each exception ends the program.
#[derive(Clone)]
pub struct Program {
    pub kind: Kind,
    pub state: CpuState,
    /// Whether memory is accessed directly where possible, whatever the environment says.
    pub is_direct: bool,
    pieces: Vec<(u32, Vec<u8>)>,
}

fn gate(target: u32) -> [u8; 8] {
    (u64::from(target & 0xffff) | 8 << 16 | 0x8e00 << 32 | u64::from(target >> 16) << 48)
        .to_le_bytes()
}

impl Program {
    pub fn new(kind: Kind) -> Self {
        let mut state = CpuState::at_reset();
        for (register, selector) in [
            (SegmentRegister::Cs, 0x1000),
            (SegmentRegister::Ss, STACK),
            (SegmentRegister::Ds, DATA),
            (SegmentRegister::Es, DATA),
            (SegmentRegister::Fs, 0),
            (SegmentRegister::Gs, 0),
        ] {
            *state.segment_mut(register) = kind.segment(selector);
        }
        if let Kind::Protected(level) = kind {
            let code = state.segment_mut(SegmentRegister::Cs);
            code.selector = Selector(CODE_SELECTOR | level);
            code.attributes = Attributes::from_bits_retain(0x9b | level << 5);
        }
        state.rip = 0;
        state.gpr[4] = 0x800;
        let mut program = Self {
            kind,
            state,
            is_direct: false,
            pieces: Vec::new(),
        };
        // mov bp, vector; out f4h, al
        for vector in 0..32_u32 {
            let at = if kind == Kind::Real {
                let at = REAL_HANDLERS + 16 * vector;
                program.put(4 * vector, &at.to_le_bytes());
                program.put(at, &[0xbd, vector as u8, 0]);
                at + 3
            } else {
                let at = HANDLERS + 16 * vector;
                program.put(IDT + 8 * vector, &gate(at));
                program.put(at, &[0xbd, vector as u8, 0, 0, 0]);
                at + 5
            };
            program.put(at, &END);
        }
        if kind != Kind::Real {
            program.prepare_protected();
        }
        if kind == Kind::Virtual8086 {
            program.state.flags |= Flags::VM.bits();
        }
        program
    }

    fn prepare_protected(&mut self) {
        self.put(GDT + 8, &0x00cf_9b00_0000_ffff_u64.to_le_bytes());
        self.put(GDT + 16, &0x00cf_9300_0000_ffff_u64.to_le_bytes());
        let level = u64::from(self.kind.level()) << 45;
        for (selector, descriptor) in [
            (CODE_SELECTOR, 0x0000_9b01_0000_ffff),
            (DATA_SELECTOR, 0x0000_9304_0000_ffff),
        ] {
            let descriptor = descriptor | level;
            self.put(GDT + u32::from(selector), &descriptor.to_le_bytes());
        }
        // invlpg [DATA * 16]; iretd, without the `mov bp, vector` of the other handlers.
        let place = (u32::from(DATA) * 16).to_le_bytes();
        let handler = [&[0x0f, 0x01, 0x3d][..], &place, &[0xcf]].concat();
        self.put(HANDLERS + 16 * u32::from(INVALIDATES), &handler);
        let gate = gate(HANDLERS + 16 * u32::from(INVALIDATES));
        let gate = u64::from_le_bytes(gate) | 3 << 45;
        self.put(IDT + 8 * u32::from(INVALIDATES), &gate.to_le_bytes());
        self.put(TASK_STATE + 4, &INNER_STACK.to_le_bytes());
        self.put(TASK_STATE + 8, &[0x10, 0]);
        self.put(TASK_STATE + 0x66, &[0x68, 0]);
        self.put(TASK_STATE + 0x68 + 0x2000, &[0xff]);
        let state = &mut self.state;
        state.cr0 |= 1;
        state.flags |= Flags::IOPL.bits();
        let table = |base: u32, limit| TableRegister {
            base: base.into(),
            limit,
        };
        state.idtr = table(IDT, 0xff);
        state.gdtr = table(GDT, 0x27);
        state.tr.base = TASK_STATE.into();
        state.tr.limit = 0x68 + 0x2000;
    }

    /// Turns paging on. Each page of RAM is mapped to itself, accessible to all and dirty, and global
    /// at level 0, except for `pages`: linear page, its entry.
    pub fn page(&mut self, pages: &[(u32, u32)]) {
        const PRESENT: u32 = 1;
        const USUAL: u32 = 0x67;
        const GLOBAL: u32 = 0x100;
        let global = if self.kind.level() == 0 { GLOBAL } else { 0 };
        let entries = (0..RAM as u32 / 4096).flat_map(|page| {
            let special = pages.iter().find(|(special, _)| *special == page);
            let entry = special.map_or(page << 12 | USUAL, |(_, entry)| *entry);
            let global = if entry & PRESENT != 0 { global } else { 0 };
            (entry | global).to_le_bytes()
        });
        let table: Vec<u8> = entries.collect();
        self.put(TABLE, &table);
        self.put(DIRECTORY, &(TABLE | USUAL).to_le_bytes());
        let state = &mut self.state;
        state.cr3 = DIRECTORY.into();
        state.cr0 |= 1 << 31;
        // CR4.PGE.
        state.cr4 |= 0x80;
    }

    /// The address of the page-table entry of a linear address.
    pub fn entry_of(&self, linear: u32) -> u32 {
        TABLE + (linear >> 12) * 4
    }

    /// Writes bytes at a physical address.
    pub fn put(&mut self, at: u32, bytes: &[u8]) {
        self.pieces.push((at, bytes.to_vec()));
    }

    /// Writes bytes in the data segment.
    pub fn put_data(&mut self, at: u16, bytes: &[u8]) {
        self.put(u32::from(DATA) * 16 + u32::from(at), bytes);
    }

    /// Writes bytes in the stack segment.
    pub fn put_stack(&mut self, at: u16, bytes: &[u8]) {
        self.put(u32::from(STACK) * 16 + u32::from(at), bytes);
    }

    /// A vCPU at the start. All its emitted code is verified.
    pub fn vcpu(&self) -> Computer<Machine> {
        let mut memory = GuestMemory::new(RAM).unwrap();
        for (at, bytes) in &self.pieces {
            assert!(memory.write(PhysicalAddress(u64::from(*at)), bytes));
        }
        let (state, machine) = (self.state.clone(), Machine::default());
        let mut vcpu = Computer::new(state, memory, machine, 1 << 20, true).unwrap();
        if self.is_direct {
            vcpu.change_settings(|settings| settings.memory_access = MemoryAccess::Direct);
        }
        vcpu
    }

    pub fn run_to_stop(&self) -> (Computer<Machine>, VcpuStop) {
        let mut vcpu = self.vcpu();
        let stop = vcpu.run();
        (vcpu, stop)
    }

    /// Runs the program to its end, and again one instruction at a time, which must have the same
    /// result.
    pub fn run(&self) -> Computer<Machine> {
        let (mut vcpu, stop) = self.run_to_stop();
        assert!(vcpu.platform().ended, "{stop:?}\n{}", vcpu.dump());
        let stepped = self.stepped();
        let ran = Outcome::of(&mut vcpu);
        let words = |cpu: &CpuState| {
            let text = format!("{cpu:x?}");
            text.split(", ").map(str::to_owned).collect::<Vec<_>>()
        };
        let (ran_words, stepped_words) = (words(&ran.cpu), words(&stepped.cpu));
        let pairs = ran_words.iter().zip(&stepped_words).enumerate();
        let differences: Vec<_> = pairs.filter(|(_, (ran, stepped))| ran != stepped).collect();
        assert!(differences.is_empty(), "{differences:x?}\n{}", vcpu.dump());
        assert!(ran.memory == stepped.memory, "memory differs");
        vcpu
    }

    /// The end of the program, run one instruction at a time.
    pub fn stepped(&self) -> Outcome {
        self.stepped_within(100_000)
            .expect("the program comes to its end")
    }

    /// The end of a program that may have none, or none within `instructions` instructions.
    pub fn stepped_within(&self, instructions: u32) -> Option<Outcome> {
        let mut vcpu = self.vcpu();
        let ends = (0..instructions).any(|_| vcpu.step_one().is_err());
        (ends && vcpu.platform().ended).then(|| Outcome::of(&mut vcpu))
    }

    /// Reads bytes in the stack segment.
    pub fn stack(&self, vcpu: &mut Computer<Machine>, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let at = PhysicalAddress(u64::from(STACK) * 16 + at);
        assert!(vcpu.memory_mut().read(at, &mut bytes));
        bytes
    }

    /// CS and IP that the handler of an exception finds, and SP before the exception.
    pub fn faulted_at(&self, vcpu: &mut Computer<Machine>) -> (u16, u16, u16) {
        let pointer = vcpu.state().gpr[4];
        let word = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if self.kind == Kind::Real {
            let frame = self.stack(vcpu, pointer & 0xffff, 6);
            return (word(&frame, 2), word(&frame, 0), pointer as u16 + 6);
        }
        // Error code, EIP, CS, EFLAGS, ESP.
        let mut frame = vec![0; 20];
        let at = PhysicalAddress(pointer);
        assert!(vcpu.memory_mut().read(at, &mut frame));
        (word(&frame, 8), word(&frame, 4), word(&frame, 16))
    }
}

/// The exception that ended the program, if an exception's handler did.
pub fn seen(vcpu: &Computer<Machine>) -> Option<u8> {
    let state = vcpu.state();
    let handlers = if state.flags().contains(Flags::VM) || state.cr0 & 1 == 0 {
        REAL_HANDLERS
    } else {
        HANDLERS
    };
    let at = (state.cs().base + state.rip).wrapping_sub(u64::from(handlers));
    (at < 0x200).then_some(state.gpr[5] as u8)
}
