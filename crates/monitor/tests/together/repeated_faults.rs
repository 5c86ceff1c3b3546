//! Tests repeated deliveries of faults and interrupts: random gates, descriptors, TSSs, stacks and
//! flags, which the guest changes between two faults, must have the results of deliveries through
//! the tables alone, in every register that a handler sees and in memory. All emitted code is
//! verified.
//!
//! A guest asks its machine what to do. The answers are words to store, and then the level, the
//! flags, the stack and the place at which the guest must continue, where an instruction faults.
//! The handler reports to the machine, and the guest begins again.

use crate::support::long_mode::*;
use std::collections::VecDeque;
use std::time::Instant;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, GuestTime, StopRequest};
use tollgate_test_support::{Computer, Random, flat_state};
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

/// A guest that runs for this long hangs, and fails its test.
const HANGS: GuestTime = GuestTime(60_000_000_000);

/// A device that decides what the guest does, and records what the guest reports.
struct Script {
    words: VecDeque<u32>,
    reports: Vec<u32>,
    stop: Option<StopRequest>,
    start: Instant,
    /// Whether an interrupt waits.
    waits: bool,
    /// How many interrupts were acknowledged.
    interrupts: usize,
}

impl Script {
    fn new(words: &[u32]) -> Self {
        Self {
            words: words.iter().copied().collect(),
            reports: Vec::new(),
            stop: None,
            start: Instant::now(),
            waits: false,
            interrupts: 0,
        }
    }
}

/// Vectors of the interrupts that writes to [`INTERRUPT_PORT`] cause, in turn: those whose gates
/// change.
const INTERRUPT_VECTORS: [u8; 4] = [6, 14, 13, 0];
/// A write to this port makes an interrupt wait.
const INTERRUPT_PORT: u16 = 0x30;

impl BareMachine for Script {
    fn port_read(&mut self, port: u16, _size: u8) -> u32 {
        if port != 0x10 {
            return u32::MAX;
        }
        self.words.pop_front().unwrap_or_else(|| {
            self.stop = Some(StopRequest::DebugExit(1));
            0
        })
    }
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        match port {
            0x20 => self.reports.push(value),
            INTERRUPT_PORT => self.waits = true,
            _ => {}
        }
        // A handler that faults again and again must end, too.
        if ![0x20, INTERRUPT_PORT].contains(&port) || self.reports.len() > 500_000 {
            self.stop = Some(StopRequest::DebugExit(0));
        }
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn memory_write(&mut self, _address: PhysicalAddress, _data: &[u8]) {}
    fn interrupt_pending(&mut self) -> bool {
        self.waits
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        let waited = std::mem::take(&mut self.waits);
        self.interrupts += usize::from(waited);
        waited.then(|| INTERRUPT_VECTORS[self.interrupts % INTERRUPT_VECTORS.len()])
    }
    fn now(&self) -> GuestTime {
        GuestTime(self.start.elapsed().as_nanos() as u64)
    }
    fn next_deadline(&self) -> Option<GuestTime> {
        Some(HANGS)
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        let hangs = BareMachine::now(self) >= HANGS;
        self.stop.take().or(hangs.then_some(StopRequest::Quit))
    }
}

/// How a script ended: the reason, the registers, what handlers found, and the number of repeated
/// deliveries.
type Ending = (String, String, Vec<u32>, u64);

fn play(mut vcpu: Computer<Script>, repeats: bool) -> Ending {
    vcpu.set_repeats_deliveries(repeats);
    let stop = vcpu.run();
    assert!(
        !matches!(stop, VcpuStop::Requested(StopRequest::Quit)),
        "hangs: {:x?}\n{}",
        vcpu.platform()
            .reports
            .iter()
            .rev()
            .take(24)
            .collect::<Vec<_>>(),
        vcpu.dump()
    );
    let repeated = vcpu.counts().repeated_deliveries;
    let reports = std::mem::take(&mut vcpu.platform_mut().reports);
    (format!("{stop:?}"), vcpu.dump(), reports, repeated)
}

/// Plays a script with and without repeated deliveries. Returns the numbers of repeated deliveries
/// and of all faults.
fn compare(start: impl Fn() -> Computer<Script>, context: &str) -> (u64, usize) {
    let (fast, slow) = (play(start(), true), play(start(), false));
    assert_eq!(slow.3, 0);
    let differs = fast.2.iter().zip(&slow.2).position(|(a, b)| a != b);
    assert_eq!(
        differs.map(|at| (
            at,
            &fast.2[at.saturating_sub(12)..],
            &slow.2[at.saturating_sub(12)..]
        )),
        None,
        "{context}"
    );
    assert_eq!(fast.2.len(), slow.2.len(), "{context}");
    assert_eq!((fast.0, fast.1), (slow.0, slow.1), "{context}");
    (fast.3, fast.2.len())
}

/// Address of the handlers: two for each vector, [`OTHER`] bytes apart, of [`STUB`] bytes each.
const STUBS: u64 = 0x4_0000;
const OTHER: u64 = 0x400;
const STUB: u64 = 16;
/// Offset of the code with which all handlers continue.
const REPORT: u64 = 256;
/// Offset of the instructions that fault.
const FAULTS: u64 = 512;

/// Writes handlers that push their vector, plus 40h for the others, and jump to the report.
fn put_stubs(memory: &mut GuestMemory, first: u64) {
    for which in 0..2 {
        for vector in 0..32 {
            let stub = first + which * OTHER + vector * STUB;
            let distance = (CODE + REPORT).wrapping_sub(stub + 7) as u32;
            let mut code = [0x6a, (vector + which * 0x40) as u8, 0xe9, 0, 0, 0, 0];
            code[3..].copy_from_slice(&distance.to_le_bytes());
            memory.write(PhysicalAddress(stub), &code);
        }
    }
}

/// A random one of `choices`.
fn pick(random: &mut Random, choices: &[u64]) -> u64 {
    random.pick(choices)
}

const LONG_IDT: u64 = 0xa000;
const LONG_GDT: u64 = 0x8000;
const LONG_TASK: u64 = 0x9000;

fn long_program() -> &'static [u8] {
    guest_code!(
        long_faults,
        "mov esp, 0x60000",
        "2:",
        "mov edx, 0x10",
        "in eax, dx",
        "test eax, eax",
        "jz 3f",
        "mov ebx, eax",
        "in eax, dx",
        "mov [rbx], eax",
        "jmp 2b",
        "3:",
        "in eax, dx",
        "mov ecx, eax",
        "in eax, dx",
        "mov r8d, eax",
        "in eax, dx",
        "mov r9d, eax",
        "in eax, dx",
        "mov r10d, eax",
        "test ecx, ecx",
        "jnz 4f",
        "push 0x10",
        "push r9",
        "push r8",
        "push 8",
        "push r10",
        "iretq",
        "4:",
        "push 0x23",
        "push r9",
        "push r8",
        "push rcx",
        "push r10",
        "iretq",
        ".org tollgate_test_long_faults_start + 256",
        "mov r8, rsp",
        "mov edx, 0x20",
        "mov eax, r8d",
        "out dx, eax",
        "pushfq",
        "pop rax",
        "out dx, eax",
        "mov rax, cr2",
        "out dx, eax",
        "mov eax, ss",
        "out dx, eax",
        "mov eax, cs",
        "out dx, eax",
        "mov ecx, 14",
        "5:",
        "mov eax, [r8]",
        "out dx, eax",
        "add r8, 4",
        "dec ecx",
        "jnz 5b",
        "mov eax, 0x10000",
        "jmp rax",
        ".org tollgate_test_long_faults_start + 512",
        "ud2",
        ".balign 16",
        "mov eax, [0x1002004]",
        ".balign 16",
        "mov [0x1002ffe], eax",
        ".balign 16",
        "mov ax, 0x1234",
        "mov ds, ax",
        ".balign 16",
        "xor ecx, ecx",
        "div ecx",
        ".balign 16",
        "mov eax, 0x1002000",
        "jmp rax",
        ".balign 16",
        "mov byte ptr [0x1003000], 1",
        "ud2",
        ".balign 16",
        "out 0x30, al",
        "nop",
        "ud2",
    )
}

fn long_gate(random: &mut Random, vector: u64) -> [(u64, u32); 2] {
    let stub = STUBS + vector * STUB + if random.one_in(3) { OTHER } else { 0 };
    let kind = if random.one_in(6) {
        random.pick(&[0x0e, 0x8c, 0x85, 0x9e, 0x80])
    } else {
        random.pick(&[0x8e, 0x8f, 0xee, 0xef])
    };
    // 40h may be a conforming segment, in which a program cannot report; that ends in #GP, whose
    // handler can.
    let selector = match random.below(8) {
        0 => random.pick(&[0x0b, 0x10, 0, 0xfff8]),
        1 | 2 if matches!(vector, 0 | 6) => random.pick(&[0x40, 0x41, 0x2b]),
        _ => 8,
    };
    let stack = if random.one_in(2) {
        0
    } else {
        random.pick(&[1, 2, 3])
    };
    let place = LONG_IDT + vector * 16;
    [
        (place, stub as u32 & 0xffff | selector << 16),
        (place + 4, stack | kind << 8 | stub as u32 & 0xffff_0000),
    ]
}

fn long_script(random: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    for _ in 0..300 {
        for _ in 0..random.pick(&[0, 0, 0, 1, 2]) {
            let mut stores: Vec<(u64, u32)> = Vec::new();
            match random.below(8) {
                0..4 => {
                    let vector = random.pick(&[6, 14, 13, 0]);
                    stores.extend(long_gate(random, vector));
                }
                4 => {
                    // Changes the descriptor of 40h, or sometimes that of the handlers' code.
                    let index = if random.one_in(6) { 1 } else { 8 };
                    let rights = random.pick(&[
                        0x00af_9b00,
                        0x00af_9a00,
                        0x00af_9f00,
                        0x00af_fb00,
                        0x00af_1b00,
                        0x00cf_9b00,
                        0x00ef_9b00,
                        0x00af_9300,
                    ]);
                    let rights = if index == 1 {
                        random.pick(&[0x00af_9b00, 0x00af_9a00])
                    } else {
                        rights
                    };
                    stores.push((LONG_GDT + index * 8 + 4, rights));
                }
                _ => {
                    let slot = random.pick(&[4, 0x24, 0x2c, 0x34]);
                    let stack = pick(
                        random,
                        &[
                            0x7_0000, 0x7_0008, 0x7_1010, 0x7_1030, 0x100_1028, 0x100_2000,
                            0x100_3010, 0x100_5000,
                        ],
                    );
                    stores.push((LONG_TASK + slot, stack as u32));
                    let high = if random.one_in(20) { 0x8000 } else { 0 };
                    stores.push((LONG_TASK + slot + 4, high));
                }
            }
            for (place, value) in stores {
                words.extend([place as u32, value]);
            }
        }
        words.push(0);
        let code = random.pick(&[0, 0, 0, 0x2b, 0x2b, 0x1b]);
        let mut flags = random.pick(&[0x202, 2, 0x8d7, 0x40a06, 0x3202]);
        if random.one_in(16) {
            flags |= random.pick(&[0x100, 0x4000, 0x1_0000]);
        }
        let stack = pick(
            random,
            &[
                0x5_0000, 0x5_0008, 0x5_1018, 0x5_0001, 0x100_1020, 0x100_3000,
            ],
        );
        let fault = CODE + FAULTS + 16 * random.below(9).min(7) as u64;
        words.extend([code, flags, stack as u32, fault as u32]);
    }
    words
}

/// Sets up the 64-bit tables. Vectors without random gates have a stack of their own.
fn long_tables(state: &mut CpuState, memory: &mut GuestMemory) {
    put_stubs(memory, STUBS);
    let alias = KERNEL;
    state.idtr.base = alias + LONG_IDT;
    for vector in 0..32 {
        let stub = STUBS + vector * STUB;
        let stack = if matches!(vector, 0 | 6 | 13 | 14) {
            0
        } else {
            7
        };
        let low = stub & 0xffff | 8 << 16 | stack << 32 | 0x8e << 40 | (stub & 0xffff_0000) << 32;
        memory.write_u64(PhysicalAddress(LONG_IDT + vector * 16), low);
        memory.write_u64(PhysicalAddress(LONG_IDT + vector * 16 + 8), 0);
    }
    for (slot, stack) in [
        (0x24, 0x7_4000),
        (0x2c, 0x7_5000),
        (0x34, 0x7_6008),
        (0x54, 0x7_8000),
    ] {
        memory.write(PhysicalAddress(LONG_TASK + slot), &u64::to_le_bytes(stack));
    }
    // There is no I/O permission bitmap, because programs do not report.
    memory.write(PhysicalAddress(LONG_TASK + 0x66), &[0x68, 0]);
    state.tr.base = alias + LONG_TASK;
}

#[test]
fn faults_of_64_bit_kernels_and_their_programs_come_to_the_same() {
    let (mut repeated, mut reports) = (0, 0);
    for seed in 0..30 {
        let script = long_script(&mut Random::new(seed));
        let start = || vcpu_in(Script::new(&script), long_program(), long_tables);
        let (fast, all) = compare(start, &format!("seed {seed}"));
        repeated += fast;
        reports += all;
    }
    // Five and fourteen words of each fault are reported.
    assert!(repeated > 800, "{repeated} of {}", reports / 19);
}

const GDT: u64 = 0x2_1000;
const IDT: u64 = 0x2_3000;
const TASK: u64 = 0x2_4000;

fn protected_program() -> &'static [u8] {
    guest_code!(
        protected_faults,
        ".code32",
        "mov esp, 0x60000",
        "2:",
        "mov edx, 0x10",
        "in eax, dx",
        "test eax, eax",
        "jz 3f",
        "mov ebx, eax",
        "in eax, dx",
        "mov [ebx], eax",
        "jmp 2b",
        "3:",
        "in eax, dx",
        "mov ecx, eax",
        "in eax, dx",
        "mov ebp, eax",
        "in eax, dx",
        "mov esi, eax",
        "in eax, dx",
        "mov edi, eax",
        "mov ax, 0x18",
        "mov ds, ax",
        "test ecx, ecx",
        "jnz 4f",
        "mov esp, esi",
        "push ebp",
        "push 0x10",
        "push edi",
        "iretd",
        "4:",
        "push 0x2b",
        "push esi",
        "push ebp",
        "push ecx",
        "push edi",
        "iretd",
        ".org tollgate_test_protected_faults_start + 256",
        "mov bx, 0x18",
        "mov ds, bx",
        "mov esi, esp",
        "mov edx, 0x20",
        "mov eax, esi",
        "out dx, eax",
        "pushfd",
        "pop eax",
        "out dx, eax",
        "mov eax, cr2",
        "out dx, eax",
        "mov eax, ss",
        "out dx, eax",
        "mov eax, cs",
        "out dx, eax",
        "mov ecx, 7",
        "5:",
        "mov eax, [esi]",
        "out dx, eax",
        "add esi, 4",
        "dec ecx",
        "jnz 5b",
        "mov ax, 0x18",
        "mov ss, ax",
        "mov eax, 0x10000",
        "jmp eax",
        ".org tollgate_test_protected_faults_start + 512",
        "ud2",
        ".balign 16",
        "mov ax, 0x1234",
        "mov ds, ax",
        ".balign 16",
        "xor ecx, ecx",
        "div ecx",
        ".balign 16",
        "mov eax, [0x5002004]",
        ".balign 16",
        "mov [0x5002ffe], eax",
        ".balign 16",
        "ud2",
        ".balign 16",
        "out 0x30, al",
        "nop",
        "ud2",
        ".code64",
    )
}

fn protected_script(random: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    for _ in 0..300 {
        for _ in 0..random.pick(&[0, 0, 0, 1, 2]) {
            let mut stores: Vec<(u64, u32)> = Vec::new();
            match random.below(8) {
                0..4 => {
                    let vector = random.pick(&[6, 13, 0, 14]);
                    let stub = STUBS + vector * STUB + if random.one_in(3) { OTHER } else { 0 };
                    let kind = if random.one_in(6) {
                        random.pick(&[0x0e, 0x86, 0x87, 0x9e, 0x8c])
                    } else {
                        random.pick(&[0x8e, 0x8f, 0xee])
                    };
                    let selector = match random.below(8) {
                        0 => random.pick(&[0x13, 0x18, 0]),
                        1 | 2 if matches!(vector, 0 | 6) => random.pick(&[0x30, 0x31, 0x43]),
                        _ => 0x10,
                    };
                    let place = IDT + vector * 8;
                    stores.push((place, stub as u32 & 0xffff | selector << 16));
                    stores.push((place + 4, kind << 8 | stub as u32 & 0xffff_0000));
                }
                4 => {
                    let rights = random.pick(&[
                        0x00cf_9b00,
                        0x00cf_9a00,
                        0x00cf_9f00,
                        0x00cf_fb00,
                        0x00cf_1b00,
                        0x0003_9b00,
                        0x00cf_9300,
                    ]);
                    stores.push((GDT + 0x34, rights));
                }
                5 => {
                    // The descriptor of stack 48h.
                    let rights = if random.one_in(200) {
                        random.pick(&[0x00c0_9300, 0x00cf_f300, 0x00cf_1300, 0x00cf_9700])
                    } else {
                        random.pick(&[0x00cf_9300, 0x00cf_9200, 0x008f_9300, 0x00cf_9302])
                    };
                    stores.push((GDT + 0x4c, rights));
                }
                _ => {
                    // If a delivery from level 3 faults, the processor shuts down.
                    let stack = if random.one_in(400) {
                        random.pick(&[0x500_3004, 8])
                    } else {
                        random.pick(&[
                            0x7_0000, 0x7_0004, 0x7_1004, 0x7_1010, 0x500_1008, 0x500_2000,
                        ])
                    };
                    stores.push((TASK + 4, stack));
                    let selector = if random.one_in(400) {
                        random.pick(&[0x4b, 0, 0x10])
                    } else {
                        random.pick(&[0x18, 0x48])
                    };
                    let beside = random.next_u32() & 0xffff_0000;
                    stores.push((TASK + 8, beside | selector));
                }
            }
            for (place, value) in stores {
                words.extend([place as u32, value]);
            }
        }
        words.push(0);
        let code = random.pick(&[0, 0, 0x43, 0x43]);
        let mut flags = random.pick(&[0x202, 2, 0x8d7, 0x4_0a06, 0x3202]);
        if random.one_in(16) {
            flags |= random.pick(&[0x100, 0x1_0000]);
        }
        let stack = match (code, random.below(4)) {
            (0, 0) if random.one_in(200) => 0x500_3010,
            (0, _) => random.pick(&[0x5_0000, 0x5_0006, 0x5_1008, 0x5_0001, 0x500_100c]),
            _ => random.pick(&[0x5_0000, 0x5_0001, 0x500_3010]),
        };
        let fault = CODE + FAULTS + 16 * random.below(8).min(6) as u64;
        words.extend([code, flags, stack, fault as u32]);
    }
    words
}

/// Sets up a 32-bit kernel with paging: 4 MiB by small pages from 500_0000h on, of which the third
/// is not present; all other memory by large pages, for both levels.
fn protected_tables(state: &mut CpuState, memory: &mut GuestMemory) {
    const DIRECTORY: u64 = 0x8_0000;
    const TABLE: u64 = 0x8_1000;
    *state = flat_state(CODE);
    state.gpr[4] = STACK;
    state.cr4 = 0x610;
    state.cr0 |= 0x8001_0020;
    state.cr3 = DIRECTORY;
    (state.gdtr.base, state.gdtr.limit) = (GDT, 0x4f);
    (state.idtr.base, state.idtr.limit) = (IDT, 0xff);
    state.tr = Segment {
        base: TASK,
        limit: 0x67,
        selector: Selector(0x38),
        attributes: Attributes::from_bits_retain(0x8b),
    };
    put_stubs(memory, STUBS);
    // The place to which 16-bit gates lead.
    put_stubs(memory, STUBS & 0xffff);
    let mut put = |place: u64, value: u32| {
        memory.write(PhysicalAddress(place), &value.to_le_bytes());
    };
    for page in 0..4 {
        put(DIRECTORY + page * 4, (page << 22) as u32 | 0x87);
    }
    put(DIRECTORY + 20 * 4, TABLE as u32 | 7);
    for page in [0, 1, 3] {
        put(TABLE + page * 4, 0x30_0007 + (page as u32) * 0x2000);
    }
    for (index, descriptor) in [
        0,
        0,
        0x00cf_9b00_0000_ffff_u64,
        0x00cf_9300_0000_ffff,
        0,
        0x00cf_f300_0000_ffff,
        0x00cf_9b00_0000_ffff,
        0,
        0x00cf_fb00_0000_ffff,
        0x00cf_9300_0000_ffff,
    ]
    .into_iter()
    .enumerate()
    {
        memory.write_u64(PhysicalAddress(GDT + index as u64 * 8), descriptor);
    }
    for vector in 0..32 {
        let stub = STUBS + vector * STUB;
        let gate = stub & 0xffff | 0x10 << 16 | 0x8e00 << 32 | (stub & 0xffff_0000) << 32;
        memory.write_u64(PhysicalAddress(IDT + vector * 8), gate);
    }
    memory.write_u64(PhysicalAddress(TASK + 4), 0x18_0007_0000);
    memory.write(PhysicalAddress(TASK + 0x66), &[0x68, 0]);
}

#[test]
fn faults_of_32_bit_kernels_and_their_programs_come_to_the_same() {
    let (mut repeated, mut reports) = (0, 0);
    for seed in 0..30 {
        let script = protected_script(&mut Random::new(seed));
        let start = || vcpu_in(Script::new(&script), protected_program(), protected_tables);
        let (fast, all) = compare(start, &format!("seed {seed}"));
        repeated += fast;
        reports += all;
    }
    assert!(repeated > 200, "{repeated} of {}", reports / 12);
}

fn real_program() -> &'static [u8] {
    guest_code!(
        real_faults,
        ".code16",
        // DS is 0. Ports are read and written with 32 bits.
        "mov dx, 0x10",
        "2:",
        "in eax, dx",
        "test eax, eax",
        "jz 3f",
        "mov ebx, eax",
        "in eax, dx",
        "mov [bx], eax",
        "jmp 2b",
        "3:",
        "in eax, dx",
        "mov ss, ax",
        "in eax, dx",
        "mov bp, ax",
        "in eax, dx",
        "mov sp, ax",
        "in eax, dx",
        "mov di, ax",
        "push bp",
        "push cs",
        "push di",
        "iret",
        ".org tollgate_test_real_faults_start + 256",
        "mov bp, sp",
        "mov dx, 0x20",
        "mov eax, esp",
        "out dx, eax",
        "pushf",
        "pop ax",
        "out dx, eax",
        "mov ax, cs",
        "out dx, eax",
        "mov ax, ss",
        "out dx, eax",
        "mov cx, 4",
        "5:",
        "mov ax, [bp]",
        "out dx, eax",
        "add bp, 2",
        "dec cx",
        "jnz 5b",
        ".byte 0xea, 0, 0, 0, 0x10",
        ".org tollgate_test_real_faults_start + 512",
        "ud2",
        ".balign 16",
        "xor cx, cx",
        "div cx",
        ".balign 16",
        "out 0x30, al",
        "nop",
        "ud2",
        ".code64",
    )
}

fn real_script(random: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    for _ in 0..300 {
        if random.one_in(3) {
            // The handler of #UD, addressed by several values of CS.
            let (segment, offset) = random.pick(&[
                (0x3000, 0),
                (0x3000, 0x400),
                (0x2ff0, 0x100),
                (0x3010, 0x300),
            ]);
            words.extend([6 * 4, (offset + 6 * 16) | (segment << 16)]);
        }
        words.push(0);
        let stack = random.pick(&[0x5000, 0x5001, 0x5ff8]);
        let flags = random.pick(&[0x202, 2, 0x8d7, 0xa06]);
        let pointer = random.pick(&[0x8000, 0x8002, 0x7fff, 6, 8, 12, 14, 0]);
        let fault = FAULTS as u32 + 16 * random.below(4).min(2) as u32;
        words.extend([stack, flags, pointer, fault]);
    }
    words
}

fn real_tables(state: &mut CpuState, memory: &mut GuestMemory) {
    *state = CpuState::at_reset();
    for register in SegmentRegister::ALL {
        state.load_real_mode_segment(register, 0);
    }
    state.load_real_mode_segment(SegmentRegister::Cs, (CODE >> 4) as u16);
    state.load_real_mode_segment(SegmentRegister::Ss, 0x5000);
    (state.rip, state.gpr[4]) = (0, 0x8000);
    for which in 0..2 {
        for vector in 0..32 {
            let stub = 0x3_0000 + which * OTHER + vector * STUB;
            // push vector; jmp far 1000h:REPORT
            let code = [0x6a, (vector + which * 0x40) as u8, 0xea, 0, 1, 0, 0x10];
            memory.write(PhysicalAddress(stub), &code);
            memory.write(
                PhysicalAddress(vector * 4),
                &(0x3000_0000 + vector as u32 * 16).to_le_bytes(),
            );
        }
    }
}

#[test]
fn faults_in_real_mode_come_to_the_same() {
    let (mut repeated, mut reports) = (0, 0);
    for seed in 0..30 {
        let script = real_script(&mut Random::new(seed));
        let start = || vcpu_in(Script::new(&script), real_program(), real_tables);
        let (fast, all) = compare(start, &format!("seed {seed}"));
        repeated += fast;
        reports += all;
    }
    assert!(repeated > 500, "{repeated} of {}", reports / 8);
}

#[test]
fn a_kernel_s_page_faults_take_one_exit_each() {
    let code = guest_code!(
        kernel_page_faults,
        "mov ebx, 1000",
        "2:",
        "stc",
        "mov eax, [0x1002000]",
        "adc r8, 0",
        "dec ebx",
        "jnz 2b",
        "out 0xf4, al",
        ".org tollgate_test_kernel_page_faults_start + 256",
        "add rsp, 8",
        "add qword ptr [rsp], 7",
        "pushfq",
        "pop r9",
        "iretq",
    );
    let vcpu = run_with(code, |_, memory| set_gate(memory, 14, CODE + 256));
    assert_eq!(vcpu.state().gpr[8], 1000);
    // IF and RF must be clear in the handler.
    assert_eq!(vcpu.state().gpr[9] & 0x1_0200, 0);
    assert_eq!(vcpu.state().gpr[4], STACK);
    let exits = vcpu.exit_counts();
    assert!(vcpu.counts().repeated_deliveries >= 998);
    assert!(exits.get(ExitKind::Iret) <= 1, "{exits:?}");
    assert!(exits.total() < 1040, "{exits:?}");
}

#[test]
fn interrupts_that_come_again_are_delivered_as_before_and_a_new_gate_counts_at_once() {
    let code = guest_code!(
        repeated_interrupts,
        "mov esp, 0x60000",
        "mov ebx, 1000",
        "sti",
        "2:",
        "stc",
        "out 0x30, al",
        "adc r8, 0",
        "cmp ebx, 500",
        "jne 3f",
        // From here on the gate leads to the other handler.
        "mov byte ptr [0xa000 + 6*16 + 1], 0x02",
        "mov byte ptr [0xa000 + 14*16 + 1], 0x02",
        "mov byte ptr [0xa000 + 13*16 + 1], 0x02",
        "mov byte ptr [0xa000 + 1], 0x02",
        "3:",
        "dec ebx",
        "jnz 2b",
        "mov edx, 0x40",
        "out dx, al",
        "hlt",
        ".org tollgate_test_repeated_interrupts_start + 256",
        "inc r9",
        "pushfq",
        "pop r10",
        "mov r11, [rsp + 16]",
        "iretq",
        ".org tollgate_test_repeated_interrupts_start + 512",
        "inc r12",
        "iretq",
    );
    let mut vcpu = vcpu_in(Script::new(&[]), code, |state, memory| {
        long_tables(state, memory);
        for vector in INTERRUPT_VECTORS {
            set_gate(memory, vector, CODE + 256);
        }
    });
    vcpu.run();
    let gpr = &vcpu.state().gpr;
    assert_eq!([gpr[3], gpr[8], gpr[9], gpr[12]], [0, 1000, 501, 499]);
    // IF and RF must be clear in the handler; the frame must have IF and CF set, and RF clear.
    assert_eq!([gpr[10] & 0x1_0200, gpr[11] & 0x1_0201], [0, 0x201]);
    assert_eq!(gpr[4], STACK);
    assert_eq!(vcpu.exit_counts().get(ExitKind::InterruptDelivered), 1000);
    let repeated = vcpu.counts().repeated_deliveries;
    assert!(repeated >= 990, "{repeated}");
}
