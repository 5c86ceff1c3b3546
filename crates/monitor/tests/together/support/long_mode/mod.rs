//! A vCPU that starts in 64-bit mode, with page tables, GDT, TSS and IDT set up.

pub mod interrupting;
pub mod spaces;

use std::time::Instant;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, GuestTime, Near, NearAccess, StopRequest};
use tollgate_test_support::{Computer, visible_vectors};
use tollgate_x86::local_apic_msrs::TSC_DEADLINE;
use tollgate_x86::{
    Attributes, CpuState, LinearAddress, PhysicalAddress, Segment, SegmentRegister, Selector,
};

/// Assembles code into bytes that run at any address. The name of the code becomes symbols of the
/// program, so each piece of code needs a different name. The code begins at the start of a page
/// here, as it does in the guest, so that `.balign` in it means the same in both places.
macro_rules! guest_code {
    ($name:ident, $($line:expr),+ $(,)?) => {{
        mod assembled {
            std::arch::global_asm!(
                ".section .rodata",
                ".balign 4096",
                // Other codegen units refer to both symbols.
                concat!(".globl tollgate_test_", stringify!($name), "_start"),
                concat!(".globl tollgate_test_", stringify!($name), "_end"),
                concat!("tollgate_test_", stringify!($name), "_start:"),
                $($line,)+
                concat!("tollgate_test_", stringify!($name), "_end:"),
                ".text",
            );
        }
        unsafe extern "C" {
            #[link_name = concat!("tollgate_test_", stringify!($name), "_start")]
            static START: u8;
            #[link_name = concat!("tollgate_test_", stringify!($name), "_end")]
            static END: u8;
        }
        // SAFETY: both symbols are in one read-only section, in this order.
        unsafe {
            let (start, end) = (&raw const START, &raw const END);
            std::slice::from_raw_parts(start, end as usize - start as usize)
        }
    }};
}
pub(crate) use guest_code;

/// Address at which programs begin.
pub const CODE: u64 = 0x1_0000;
/// Address of free RAM, identity-mapped for every privilege.
pub const DATA: u64 = 0x2_0000;
/// Top of the stack at the start.
pub const STACK: u64 = 0x6_0000;
/// Top of the stack that the TSS has for CPL 0.
pub const KERNEL_STACK: u64 = 0x7_0000;
/// Address where the supervisor finds physical memory from zero on, in global pages of 2 MiB.
pub const KERNEL: u64 = 0xffff_ffff_8000_0000;
/// Address where the supervisor finds physical memory from zero on, in one page of 1 GiB.
pub const DIRECT: u64 = 0xffff_8880_0000_0000;
/// Addresses at which all memory below 512 GiB is mapped again, in parts that an anchor leads to:
/// the part for programs, and a part for libraries and stacks.
pub const COMMON: [u64; 2] = [0xaa << 39, 0xfe << 39];
/// Address of small pages. The first two are apart in RAM, the third is not present, the fourth is
/// read-only, and the fifth leads to a device.
pub const SMALL: u64 = 0x100_0000;
/// Physical addresses of the first and second small page, and of the fourth.
pub const SMALL_RAM: [u64; 2] = [0x30_0000, 0x30_2000];
pub const READ_ONLY_RAM: u64 = 0x30_4000;
/// Address of the page table of the small pages.
pub const SMALL_TABLE: u64 = 0x7000;

pub const CODE_64: u16 = 0x08;
pub const DATA_0: u16 = 0x10;

pub const DATA_USER: u16 = 0x20 | 3;
pub const CODE_64_USER: u16 = 0x28 | 3;

const IDT: u64 = 0xa000;
/// Address of the handlers that end a run: 8 bytes for each vector.
const HANDLERS: u64 = 0xc000;

/// A machine that stops when the guest writes to port F4h; a write to port F5h raises an interrupt
/// with the written vector.
pub struct Bench {
    pub stop: Option<StopRequest>,
    pub interrupt: Option<u8>,
    /// Sizes of accesses to the memory of devices.
    pub device_accesses: Vec<usize>,
    pub device_written: Vec<u8>,
    /// The word in ports 100h to 103h and in the first 4 bytes of the page [`NEAR`], which are
    /// near.
    pub word: u32,
    /// Whether these registers exist. If so, port 104h and byte 10h of the page are near, too; a
    /// vector that is written there raises an interrupt. So are MSR 808h, which is the word, MSR
    /// 83Fh, which raises an interrupt, and IA32_TSC_DEADLINE.
    pub shows_word: bool,
    /// IA32_TSC_DEADLINE, in ticks of a counter that always reads 1000.
    pub deadline: u64,
    start: Instant,
}

/// The physical page of device memory that the fifth small page leads to.
pub const NEAR: u64 = 0xfe00_0000;

impl BareMachine for Bench {
    fn port_read(&mut self, port: u16, size: u8) -> u32 {
        match self.near(NearAccess::PortRead { port, size }) {
            Near::Done(value) => (value as u32) & (u32::MAX >> (32 - 8 * u32::from(size))),
            _ => 0xff,
        }
    }
    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        if self.near(NearAccess::PortWrite { port, size, value }) != Near::No {
            return;
        }
        match port {
            0xf4 => self.stop = Some(StopRequest::DebugExit(value as u8)),
            0xf5 => self.interrupt = Some(value as u8),
            _ => {}
        }
    }
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        let access = NearAccess::MemoryRead { address, size: 4 };
        if let (4, Near::Done(value)) = (data.len(), self.near(access))
            && self.shows_word
        {
            data.copy_from_slice(&(value as u32).to_le_bytes());
            return;
        }
        self.device_accesses.push(data.len());
        data.fill(0x5a);
    }
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        if let Ok(bytes) = <[u8; 4]>::try_from(data)
            && self.shows_word
        {
            self.near(NearAccess::MemoryWrite {
                address,
                size: 4,
                value: u32::from_le_bytes(bytes).into(),
            });
        }
        self.device_accesses.push(data.len());
        self.device_written.extend_from_slice(data);
    }
    fn near(&mut self, access: NearAccess) -> Near {
        let is_word = |port: u16, size: u8| (0x100..=0x104 - u16::from(size)).contains(&port);
        match access {
            _ if !self.shows_word => return Near::No,
            NearAccess::PortRead { port, size } if is_word(port, size) => {
                return Near::Done(u64::from(self.word >> (8 * (port - 0x100))));
            }
            NearAccess::PortWrite { port, size, value } if is_word(port, size) => {
                let shift = 8 * u32::from(port - 0x100);
                let mask = u32::MAX >> (32 - 8 * u32::from(size)) << shift;
                self.word = self.word & !mask | value << shift;
            }
            NearAccess::PortWrite {
                port: 0x104, value, ..
            } => self.interrupt = Some(value as u8),
            NearAccess::MemoryRead {
                address: PhysicalAddress(NEAR),
                size: 4,
            } => {
                return Near::Done(self.word.into());
            }
            NearAccess::MemoryWrite {
                address,
                size: 4,
                value,
            } => match address.0.checked_sub(NEAR) {
                Some(0) => self.word = value as u32,
                Some(0x10) => self.interrupt = Some(value as u8),
                _ => return Near::No,
            },
            NearAccess::MsrRead(0x808) => return Near::Done(self.word.into()),
            NearAccess::MsrWrite(0x808, value) if value >> 32 == 0 => self.word = value as u32,
            NearAccess::MsrWrite(0x83f, value) => self.interrupt = Some(value as u8),
            NearAccess::MsrWrite(TSC_DEADLINE, value) => {
                self.deadline = value;
                return Near::DoneAndDue(0);
            }
            _ => return Near::No,
        }
        Near::Done(0)
    }
    fn msr_read(&mut self, index: u32) -> Option<u64> {
        match (index, self.near(NearAccess::MsrRead(index))) {
            (TSC_DEADLINE, _) if self.shows_word => Some(self.deadline),
            (_, Near::Done(value)) => Some(value),
            _ => None,
        }
    }
    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool> {
        (self.near(NearAccess::MsrWrite(index, value)) != Near::No).then_some(true)
    }
    fn time_stamp(&self) -> u64 {
        if self.shows_word { 1000 } else { 0 }
    }
    fn near_page(&self) -> Option<PhysicalAddress> {
        self.shows_word.then_some(PhysicalAddress(NEAR))
    }
    fn interrupt_pending(&mut self) -> bool {
        self.interrupt.is_some()
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.interrupt.take()
    }
    fn now(&self) -> GuestTime {
        GuestTime(self.start.elapsed().as_nanos() as u64)
    }
    fn next_deadline(&self) -> Option<GuestTime> {
        Some(GuestTime(60_000_000_000))
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        // A program that hangs must fail its test.
        let hangs = self.now() >= GuestTime(60_000_000_000);
        self.stop.take().or(hangs.then_some(StopRequest::Quit))
    }
}

fn segment(selector: u16, attributes: u16) -> Segment {
    Segment {
        base: 0,
        limit: u32::MAX,
        selector: Selector(selector),
        attributes: Attributes::from_bits_retain(attributes),
    }
}

/// Makes an interrupt gate lead to a handler.
pub fn set_gate(memory: &mut GuestMemory, vector: u8, handler: u64) {
    let low =
        handler & 0xffff | u64::from(CODE_64) << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
    let gate = IDT + u64::from(vector) * 16;
    memory.write_u64(PhysicalAddress(gate), low);
    memory.write_u64(PhysicalAddress(gate + 8), handler >> 32);
}

fn prepare_memory() -> GuestMemory {
    let mut memory = GuestMemory::new(16 << 20).unwrap();
    let mut put = |address: u64, value: u64| {
        memory.write_u64(PhysicalAddress(address), value);
    };
    put(0x1000, 0x2007);
    for common in COMMON {
        put(0x1000 + (common >> 39) * 8, 0x2007);
    }
    put(0x1000 + 0x111 * 8, 0x6003);
    put(0x1000 + 511 * 8, 0x4003);
    put(0x2000, 0x3007);
    put(0x4000 + 510 * 8, 0x5003);
    put(0x6000, 0x83);
    for page in 0..8 {
        put(0x3000 + page * 8, page << 21 | 0x87);
        put(0x5000 + page * 8, page << 21 | 0x183);
    }
    put(0x3000 + 8 * 8, SMALL_TABLE | 7);
    put(SMALL_TABLE, SMALL_RAM[0] | 7);
    put(SMALL_TABLE + 8, SMALL_RAM[1] | 7);
    put(SMALL_TABLE + 3 * 8, READ_ONLY_RAM | 5);
    put(SMALL_TABLE + 4 * 8, 0xfe00_0007);
    let descriptors = [
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_fb00_0000_ffff,
        0x00cf_f300_0000_ffff,
        0x00af_fb00_0000_ffff,
        0x0000_8b00_9000_0067,
        0,
        0x00cf_9b00_0000_ffff,
    ];
    for (index, descriptor) in descriptors.into_iter().enumerate() {
        put(0x8000 + index as u64 * 8, descriptor);
    }
    // RSP0 is not aligned in the TSS.
    put(0x9000, KERNEL_STACK << 32);
    put(0x9008, KERNEL_STACK >> 32);
    for vector in 0..=255u8 {
        let handler = HANDLERS + u64::from(vector) * 8;
        // push vector (sign-extended); out 0xf4, al; hlt
        let code = u64::from_le_bytes([0x6a, vector, 0xe6, 0xf4, 0xf4, 0x90, 0x90, 0x90]);
        memory.write_u64(PhysicalAddress(handler), code);
        set_gate(&mut memory, vector, handler);
    }
    memory
}

fn prepare_state() -> CpuState {
    let mut state = CpuState::at_reset();
    // CR0: PG, WP, NE, ET, MP, PE. CR4: OSXSAVE, OSXMMEXCPT, OSFXSR, PGE, PAE, FSGSBASE. EFER: LMA,
    // LME, SCE.
    state.cr0 = 0x8001_0033;
    state.cr3 = 0x1000;
    state.cr4 = 0x5_06a0;
    state.xcr0 = 7;
    state.efer = 0x501;
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = segment(DATA_0, 0xc093);
    }
    *state.segment_mut(SegmentRegister::Cs) = segment(CODE_64, 0xa09b);
    state.gdtr.base = 0x8000;
    state.gdtr.limit = 0x47;
    state.idtr.base = IDT;
    state.idtr.limit = 0xfff;
    state.tr = Segment {
        base: 0x9000,
        limit: 0x67,
        selector: Selector(0x30),
        attributes: Attributes::from_bits_retain(0x8b),
    };
    state.gpr[4] = STACK;
    state.rip = CODE;
    state
}

/// Makes the two small pages lead to memory that holds 1 and 2.
pub fn with_small_pages(_: &mut CpuState, memory: &mut GuestMemory) {
    for (number, page) in (1..).zip(SMALL_RAM) {
        memory.write_u64(PhysicalAddress(page), number);
    }
}

/// The number of exits of a kind, and of instructions that the fast path has executed instead.
pub fn counts(vcpu: &Computer<Bench>, kind: ExitKind, fast_path: FastPath) -> [u64; 2] {
    [
        vcpu.exit_counts().get(kind),
        vcpu.counts().fast_path(fast_path),
    ]
}

/// Makes the program run at CPL 3.
pub fn as_user(state: &mut CpuState) {
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = segment(DATA_USER, 0xc0f3);
    }
    *state.segment_mut(SegmentRegister::Cs) = segment(CODE_64_USER, 0xa0fb);
    // IOPL 3, so that the program can write to the port that ends it.
    state.flags |= 0x3000;
}

/// A vCPU before code at [`CODE`], in a state that `setup` may change first.
pub fn vcpu(code: &[u8], setup: impl Fn(&mut CpuState, &mut GuestMemory)) -> Computer<Bench> {
    let bench = Bench {
        stop: None,
        interrupt: None,
        device_accesses: Vec::new(),
        device_written: Vec::new(),
        word: 0,
        shows_word: false,
        deadline: 0,
        start: Instant::now(),
    };
    vcpu_in(bench, code, setup)
}

/// Makes such a vCPU in the given machine.
pub fn vcpu_in<P: tollgate_platform::Platform>(
    machine: P,
    code: &[u8],
    setup: impl Fn(&mut CpuState, &mut GuestMemory),
) -> Computer<P> {
    let mut memory = prepare_memory();
    memory.write(PhysicalAddress(CODE), code);
    let mut state = prepare_state();
    setup(&mut state, &mut memory);
    let mut vcpu = Computer::new(state, memory, machine, 1 << 20, true).unwrap();
    // This call puts the flags into the engine's own places.
    vcpu.change_state(|_| ());
    vcpu
}

/// Runs code until it writes to port F4h, in blocks and again instruction by instruction.
pub fn run_prepared(
    code: &[u8],
    setup: impl Fn(&mut CpuState, &mut GuestMemory),
) -> Computer<Bench> {
    let mut running = vcpu(code, setup);
    let stop = running.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        running.dump()
    );
    running
}

/// Runs code until it writes to port F4h. Instruction by instruction it must have the same result.
pub fn run_with(code: &[u8], setup: impl Fn(&mut CpuState, &mut GuestMemory)) -> Computer<Bench> {
    let running = run_prepared(code, &setup);
    let mut stepping = vcpu(code, &setup);
    let mut steps = 0;
    let stop = loop {
        match stepping.step_one() {
            Ok(()) if steps < 100_000 => steps += 1,
            Ok(()) => panic!("the program never ends\n{}", stepping.dump()),
            Err(stop) => break stop,
        }
    };
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        stepping.dump()
    );
    assert_eq!(running.dump(), stepping.dump());
    assert_same_vectors(&running, &stepping);
    running
}

/// Asserts that two machines have the same x87, SSE and AVX registers.
pub fn assert_same_vectors(one: &Computer<Bench>, other: &Computer<Bench>) {
    let [one, other] = [one, other].map(|it| visible_vectors(&it.state().vector));
    let differs = one.iter().zip(&other).position(|(one, other)| one != other);
    assert_eq!(differs, None, "offset in the save area");
}

pub fn run(code: &[u8]) -> Computer<Bench> {
    run_with(code, |_, _| {})
}

pub fn read_u64(vcpu: &mut Computer<Bench>, physical: u64) -> u64 {
    vcpu.memory_mut().read_u64(PhysicalAddress(physical))
}

/// An exception that ended a program through the handlers of [`prepare_memory`].
#[derive(PartialEq, Eq, Debug)]
pub struct Caught {
    pub vector: u8,
    pub error: Option<u64>,
    /// Offset of the instruction from [`CODE`].
    pub at: u64,
    /// RSP before the exception.
    pub rsp: u64,
}

pub fn caught(vcpu: &mut Computer<Bench>) -> Caught {
    let rsp = vcpu.state().gpr[4];
    let handler = vcpu.state().rip.wrapping_sub(HANDLERS);
    assert!(handler < 0x800, "no exception came\n{}", vcpu.dump());
    let vector = (handler / 8) as u8;
    let has_error = matches!(vector, 8 | 10..=14 | 17);
    let frame = rsp + 8 + if has_error { 8 } else { 0 };
    Caught {
        vector,
        error: has_error.then(|| read_u64(vcpu, rsp + 8)),
        at: read_u64(vcpu, frame).wrapping_sub(CODE),
        rsp: read_u64(vcpu, frame + 24),
    }
}

/// The physical address of [`SMALL`] plus `offset`, in its first two pages.
pub fn small(offset: u64) -> LinearAddress {
    LinearAddress(SMALL_RAM[(offset >> 12) as usize & 1] + offset % 4096)
}
