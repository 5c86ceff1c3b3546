//! A display whose memory is not RAM, and guests in several modes that access it, with paging and
//! without.

pub mod code;

use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_platform::{BareMachine, Near, NearAccess, NearRun, RunAccess, StopRequest};
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::{
    Attributes, CpuState, Cr0, Flags, Gpr, PhysicalAddress, Segment, SegmentRegister, Selector,
};

pub const WINDOW: u64 = 0xa_0000;
pub const CODE: u64 = 0x8000;
/// The instruction `out f4h, al`, which ends the run.
pub const END: [u8; 2] = [0xe6, 0xf4];
/// Address at which guests with paging also find the window's first pages, as many as [`ALIASES`].
pub const ALIAS: u64 = 0x5_0000;
pub const ALIASES: u64 = 4;
/// Address of the page table of the first 4 MiB, or of the first 2 MiB in long mode.
pub const PAGE_TABLE: u64 = 0x6_3000;
/// Addresses of the upper tables, each of which leads to the next.
const TABLES: [u64; 3] = [0x6_0000, 0x6_1000, 0x6_2000];
const PRESENT: u64 = 7;
/// Address of a page of near registers, which read as zero.
pub const NEAR_PAGE: u64 = 0xfe00_0000;

/// A display with planes: a load returns the byte's complement and latches it, and a store adds the
/// latch. A write to port 81h sets a number that is added as well, and whether only the latch is
/// stored.
pub struct Display {
    pub bytes: Vec<u8>,
    latch: u8,
    added: u8,
    pub accesses: Vec<(u64, usize)>,
    pub ended: bool,
    /// Whether accesses are near now, which a write to port 80h sets.
    is_near: bool,
}

impl Display {
    pub fn new() -> Self {
        Self {
            bytes: vec![0; 0x2_0000],
            latch: 0,
            added: 0,
            accesses: Vec::new(),
            ended: false,
            is_near: true,
        }
    }
}

impl BareMachine for Display {
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        match port {
            0xf4 => self.ended = true,
            0x81 => self.added = value as u8,
            _ => self.is_near = value & 1 != 0,
        }
    }
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        self.accesses.push((address.0, data.len()));
        for (at, byte) in (address.0.wrapping_sub(WINDOW)..).zip(data) {
            *byte = match self.bytes.get(at as usize) {
                Some(stored) => {
                    self.latch = *stored;
                    !self.latch
                }
                None => 0xff,
            };
        }
    }
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        self.accesses.push((address.0, data.len()));
        for (at, byte) in (address.0.wrapping_sub(WINDOW)..).zip(data) {
            let value = match self.added & 0x80 {
                0 => byte.wrapping_add(self.latch).wrapping_add(self.added),
                _ => self.latch,
            };
            if let Some(stored) = self.bytes.get_mut(at as usize) {
                *stored = value;
            }
        }
    }
    fn near(&mut self, access: NearAccess) -> Near {
        match access {
            NearAccess::PortWrite {
                port: 0x81, value, ..
            } => {
                self.added = value as u8;
                Near::Done(0)
            }
            _ if !self.is_near => Near::No,
            NearAccess::MemoryRead { address, size } => {
                let mut data = [0; 8];
                self.memory_read(address, &mut data[..usize::from(size)]);
                Near::Done(u64::from_le_bytes(data))
            }
            NearAccess::MemoryWrite {
                address,
                size,
                value,
            } => {
                self.memory_write(address, &value.to_le_bytes()[..usize::from(size)]);
                Near::Done(0)
            }
            _ => Near::No,
        }
    }
    fn near_run(&mut self, run: NearRun<'_>) -> Near {
        if !self.is_near {
            return Near::No;
        }
        run.each(|access| match access {
            RunAccess::Load(address, data) => self.memory_read(address, data),
            RunAccess::Store(address, data) => self.memory_write(address, data),
        });
        Near::Done(0)
    }
    fn near_page(&self) -> Option<PhysicalAddress> {
        Some(PhysicalAddress(NEAR_PAGE))
    }
    fn near_display(&self) -> Option<PhysicalAddress> {
        Some(PhysicalAddress(WINDOW))
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.ended.then_some(StopRequest::DebugExit(0))
    }
}

/// The mode in which the guest runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestMode {
    Real,
    /// A V86 task, with paging. IOPL is 3, as in all modes at level 3.
    Virtual8086,
    /// 32-bit code in flat segments at level 0, without paging.
    Flat,
    /// 32-bit code in flat segments at level 0, with paging.
    Paged,
    /// 32-bit code in flat segments at level 3, with paging.
    User,
    /// 64-bit code at level 0.
    Long,
    /// 64-bit code at level 3.
    LongUser,
}

impl GuestMode {
    pub const ALL: [Self; 7] = [
        Self::Real,
        Self::Virtual8086,
        Self::Flat,
        Self::Paged,
        Self::User,
        Self::Long,
        Self::LongUser,
    ];

    /// The modes in which page tables lead to the display.
    pub const PAGED: [Self; 5] = [
        Self::Virtual8086,
        Self::Paged,
        Self::User,
        Self::Long,
        Self::LongUser,
    ];

    /// Whether the code is 16-bit code.
    pub fn is_narrow(self) -> bool {
        matches!(self, Self::Real | Self::Virtual8086)
    }

    pub fn is_long(self) -> bool {
        matches!(self, Self::Long | Self::LongUser)
    }

    /// The pointer to a byte of DS or ES whose offset in the window is `offset`.
    pub fn pointer(self, offset: u64) -> u64 {
        match self.is_narrow() {
            true => offset,
            false => WINDOW + offset,
        }
    }

    fn is_user(self) -> bool {
        matches!(self, Self::Virtual8086 | Self::User | Self::LongUser)
    }

    fn state(self) -> CpuState {
        let mut state = flat_state(CODE);
        let level = if self.is_user() { 3 } else { 0 };
        if self.is_narrow() {
            for (register, selector) in [
                (SegmentRegister::Cs, 0),
                (SegmentRegister::Ss, 0),
                (SegmentRegister::Ds, 0xa000),
                (SegmentRegister::Es, 0xa000),
                (SegmentRegister::Fs, 0x5000),
                (SegmentRegister::Gs, 0x1000),
            ] {
                *state.segment_mut(register) = Segment::real_mode(selector, level);
            }
        } else {
            for register in SegmentRegister::ALL {
                let segment = state.segment_mut(register);
                let attributes = segment.attributes.bits() | u16::from(level) << 5;
                segment.attributes = Attributes::from_bits_retain(attributes);
                segment.selector = Selector(segment.selector.0 | u16::from(level));
            }
        }
        if self.is_user() {
            state.flags |= Flags::IOPL.bits();
        }
        match self {
            Self::Real => state.cr0 &= !Cr0::PE.bits(),
            Self::Virtual8086 => state.flags |= Flags::VM.bits(),
            Self::Flat | Self::Paged | Self::User | Self::Long | Self::LongUser => {}
        }
        if Self::PAGED.contains(&self) {
            state.cr0 |= (Cr0::PG | Cr0::WP).bits();
            state.cr3 = TABLES[if self.is_long() { 0 } else { 2 }];
        }
        if self.is_long() {
            // CR4.PAE; EFER.LMA and EFER.LME.
            state.cr4 |= 1 << 5;
            state.efer |= 0x500;
            let code = state.segment_mut(SegmentRegister::Cs);
            let long = code.attributes.bits() & !0x4000 | 0x2000;
            code.attributes = Attributes::from_bits_retain(long);
        }
        state
    }

    fn prepare(self, memory: &mut GuestMemory) {
        let mut put = |at: u64, entry: u64, bytes: usize| {
            memory.write(PhysicalAddress(at), &entry.to_le_bytes()[..bytes]);
        };
        let bytes = if self.is_long() { 8 } else { 4 };
        for (table, next) in TABLES.into_iter().zip([TABLES[1], TABLES[2], PAGE_TABLE]) {
            put(table, next | PRESENT, bytes);
        }
        for page in 0..512_u64 {
            let alias = (page << 12).wrapping_sub(ALIAS);
            let leads_to = match alias < ALIASES << 12 {
                true => WINDOW + alias,
                false => page << 12,
            };
            let place = PAGE_TABLE + page * bytes as u64;
            put(place, leads_to | PRESENT, bytes);
        }
    }

    /// Size of an entry of the page table, in bytes.
    pub fn entry_bytes(self) -> u64 {
        if self.is_long() { 8 } else { 4 }
    }
}

/// A program with DS and ES at the window, and the number of rounds in CX; SI and DI point into the
/// window.
pub fn computer(mode: GuestMode, code: &[u8], rounds: u64) -> Computer<Display> {
    computer_with(mode, code, rounds, |_, _| ())
}

/// Makes a computer with the program, in a state that `change` changes first.
pub fn computer_with(
    mode: GuestMode,
    code: &[u8],
    rounds: u64,
    change: impl FnOnce(&mut CpuState, &mut GuestMemory),
) -> Computer<Display> {
    let mut state = mode.state();
    state.gpr = std::array::from_fn(|number| 0x1111_1111 * number as u64);
    if !mode.is_long() {
        state.gpr[8..].fill(0);
    }
    state.gpr[Gpr::Rcx as usize] = rounds;
    state.gpr[Gpr::Rsp as usize] = 0x7000;
    // The addresses are within the limit with 32 bits, too.
    state.gpr[Gpr::Rsi as usize] = mode.pointer(0x6666);
    state.gpr[Gpr::Rdi as usize] = match mode {
        GuestMode::Real | GuestMode::Virtual8086 => 0x7777_7777,
        _ => mode.pointer(0x7777),
    };
    let mut memory = GuestMemory::new(2 << 20).unwrap();
    mode.prepare(&mut memory);
    assert!(memory.write(PhysicalAddress(CODE), code));
    change(&mut state, &mut memory);
    Computer::new(state, memory, Display::new(), 1 << 20, true).unwrap()
}

/// Repeats `body` as often as CX says, and then ends.
pub fn repeated(body: &[u8]) -> Vec<u8> {
    // again: body; loop again; out f4h, al
    let back = (body.len() + 2)
        .checked_sub(129)
        .map_or((body.len() as u8 + 2).wrapping_neg(), |over| {
            panic!("{over} bytes too long for LOOP")
        });
    [body, &[0xe2, back], &END].concat()
}

/// Runs the program in blocks, and again instruction by instruction.
pub fn run(mode: GuestMode, body: &[u8], rounds: u64) -> Computer<Display> {
    run_with(mode, &repeated(body), rounds, |_, _| ())
}

/// Runs a whole program in both ways, in a state that is changed first.
pub fn run_with(
    mode: GuestMode,
    code: &[u8],
    rounds: u64,
    change: impl Fn(&mut CpuState, &mut GuestMemory),
) -> Computer<Display> {
    let mut running = computer_with(mode, code, rounds, &change);
    let stop = running.run();
    let mut stepping = computer_with(mode, code, rounds, &change);
    let stepped = (0..1_000_000).find_map(|_| stepping.step_one().err());
    assert!(
        stepped.is_some(),
        "{mode:?} never ends\n{}",
        stepping.dump()
    );
    assert_eq!(running.dump(), stepping.dump(), "{mode:?}: {stop:?}");
    assert_eq!(running.platform().ended, stepping.platform().ended);
    let [one, other] = [&running, &stepping].map(|computer| &computer.platform().accesses);
    let first = one.iter().zip(other).position(|(one, other)| one != other);
    let around = first.map(|at| [one, other].map(|all| &all[at.saturating_sub(2)..=at]));
    assert_eq!(
        around, None,
        "{mode:?}: the first access that differs is number {first:?}"
    );
    assert_eq!(one.len(), other.len(), "{mode:?}");
    assert!(running.platform().bytes == stepping.platform().bytes);
    let [one, other] = [&mut running, &mut stepping].map(|computer| {
        let mut memory = vec![0; WINDOW as usize];
        assert!((computer.memory_mut()).read(PhysicalAddress(0), &mut memory));
        memory
    });
    let differs = one.iter().zip(&other).position(|(one, other)| one != other);
    assert_eq!(differs, None, "{mode:?}: address in RAM");
    running
}

pub fn fast_paths(vcpu: &Computer<Display>) -> [u64; 2] {
    [FastPath::MmioRead, FastPath::MmioWrite].map(|fast_path| vcpu.counts().fast_path(fast_path))
}

pub fn exits(vcpu: &Computer<Display>) -> [u64; 2] {
    [ExitKind::MmioRead, ExitKind::MmioWrite].map(|kind| vcpu.exit_counts().get(kind))
}

/// The number of exits that an access takes before it takes none: one for each translation of the
/// access. With direct access there are two, because the first translation faults in the shadow
/// window.
pub fn at_first(vcpu: &Computer<Display>) -> u64 {
    match vcpu.exit_counts().get(ExitKind::WindowFault) {
        0 => 1,
        _ => 2,
    }
}
