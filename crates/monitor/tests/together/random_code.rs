//! Runs random bytes as guest code: whatever the guest does, the monitor must stop it cleanly.
//!
//! Every emitted block passes the verifier; a panic or a host crash fails the test.

use std::time::Instant;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, GuestTime, StopRequest};
use tollgate_test_support::{Computer, Random};
use tollgate_x86::flags::RESERVED_ONE;
use tollgate_x86::{
    Attributes, CpuState, Flags, PhysicalAddress, Segment, SegmentRegister, Selector,
};

/// The longest time that one program may run, in nanoseconds.
const TIME_LIMIT: u64 = 1_000_000;

/// A machine whose devices all return random values, and which ends after a while.
struct Noise {
    start: Instant,
    random: Random,
}

impl BareMachine for Noise {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        self.random.next_u64() as u32
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        data.fill(self.random.next_u64() as u8);
    }
    fn interrupt_pending(&mut self) -> bool {
        self.random.next_u64().is_multiple_of(16)
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        Some(self.random.next_u64() as u8)
    }
    fn take_nmi(&mut self) -> bool {
        self.random.next_u64().is_multiple_of(64)
    }
    fn now(&self) -> GuestTime {
        GuestTime(self.start.elapsed().as_nanos() as u64)
    }
    fn next_deadline(&self) -> Option<GuestTime> {
        Some(GuestTime(TIME_LIMIT))
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        (self.now().0 >= TIME_LIMIT).then_some(StopRequest::Quit)
    }
}

fn protected(state: &mut CpuState, code: u16, data: u16, dpl: u16) {
    state.cr0 |= 1;
    let segment = |selector, attributes: u16| Segment {
        base: 0,
        limit: u32::MAX,
        selector: Selector(selector),
        attributes: Attributes::from_bits_retain(attributes | dpl << 5),
    };
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = segment(0x18 | dpl, data);
    }
    *state.segment_mut(SegmentRegister::Cs) = segment(0x10 | dpl, code);
}

/// The modes in which random code is run.
const MODES: [&str; 8] = [
    "real",
    "flat 32-bit",
    "flat 16-bit",
    "user",
    "paged with a handler",
    "64-bit",
    "64-bit user",
    "compatibility",
];

/// Sets up page tables that map all of memory for every privilege at zero and at the top of either
/// half, and an IDT whose gates all lead to code.
fn prepare_long_mode(state: &mut CpuState, memory: &mut GuestMemory, random: &mut Random) {
    let mut put = |address: u64, value: u64| {
        memory.write_u64(PhysicalAddress(address), value);
    };
    for slot in [0, 255, 256, 511] {
        put(0x10_0000 + slot * 8, 0x10_1007);
        put(0x10_1000 + slot * 8, 0x10_2007);
        put(0x10_1000 + (slot ^ 1) * 8, 0x87);
    }
    put(0x10_1000 + 510 * 8, 0x10_2007);
    for page in [0, 1, 2, 511] {
        put(0x10_2000 + page * 8, (page % 4) << 21 | 0x87);
    }
    for gate in 0..256u64 {
        put(0x10_3000 + gate * 16, 0x0000_8e00_0008_8000);
    }
    for (index, descriptor) in [
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_9b00_0000_ffff,
        0x00cf_f300_0000_ffff,
        0x00af_fb00_0000_ffff,
        0x00cf_fb00_0000_ffff,
        0x0010_8b10_5000_0067,
    ]
    .into_iter()
    .enumerate()
    {
        put(0x10_4008 + index as u64 * 8, descriptor);
    }
    put(0x10_5004, 0x1_0000);
    state.gdtr.base = 0x10_4000;
    state.gdtr.limit = 0x47;
    state.idtr.base = 0x10_3000;
    state.idtr.limit = 0xfff;
    state.tr.base = 0x10_5000;
    state.cr3 = 0x10_0000;
    state.cr4 |= 0x20 | 1 << 16 | 1 << 18;
    state.cr0 |= 1 << 31;
    state.efer = 0x501;
    state.lstar = 0x8000;
    state.star = 0x0018_0008 << 32;
    for register in &mut state.gpr {
        // An address near zero, at the ends of the canonical halves, or anywhere.
        let base = [
            0,
            0,
            0x7fff_ffe0_0000,
            0xffff_8000_0000_0000,
            !0x1f_ffff,
            1 << 47,
        ];
        *register = base[random.next_u64() as usize % base.len()] | random.next_u64() & 0x1f_ffff;
    }
    state.gpr[4] = 0x9000 + (random.next_u64() & 0xff);
    state.segment_mut(SegmentRegister::Fs).base = 0x7fff_ffff_0000;
    state.segment_mut(SegmentRegister::Gs).base = 0xffff_ffff_ffff_0000;
}

fn prepare(mode: &str, random: &mut Random, memory: &mut GuestMemory) -> CpuState {
    let mut state = CpuState::at_reset();
    state.rip = 0x8000;
    *state.segment_mut(SegmentRegister::Cs) = Segment::real_mode(0, 0);
    for register in 0..8 {
        state.gpr[register] = random.next_u64() & 0x1f_ffff;
    }
    state.cr4 |= 0x600;
    match mode {
        "flat 32-bit" => protected(&mut state, 0xc09b, 0xc093, 0),
        "flat 16-bit" => protected(&mut state, 0x809b, 0x8093, 0),
        "user" => protected(&mut state, 0xc09b, 0xc093, 3),
        "paged with a handler" => {
            protected(&mut state, 0xc09b, 0xc093, 0);
            // An identity map of 4 MiB pages, and an IDT whose gates all lead to code.
            for page in 0..1024u32 {
                memory.write_u32(
                    PhysicalAddress(0x10_0000 + u64::from(page) * 4),
                    page << 22 | 0x87,
                );
            }
            for gate in 0..256u64 {
                memory.write_u64(PhysicalAddress(0x10_2000 + gate * 8), 0x0000_8e00_0010_8000);
            }
            memory.write_u64(PhysicalAddress(0x10_3010), 0x00cf_9b00_0000_ffff);
            memory.write_u64(PhysicalAddress(0x10_3018), 0x00cf_9300_0000_ffff);
            state.gdtr.base = 0x10_3000;
            state.gdtr.limit = 0x1f;
            state.idtr.base = 0x10_2000;
            state.idtr.limit = 0x7ff;
            state.cr3 = 0x10_0000;
            state.cr4 |= 0x10;
            state.cr0 |= 1 << 31;
        }
        "64-bit" => {
            protected(&mut state, 0xa09b, 0xc093, 0);
            prepare_long_mode(&mut state, memory, random);
        }
        "64-bit user" => {
            protected(&mut state, 0xa09b, 0xc093, 3);
            prepare_long_mode(&mut state, memory, random);
        }
        "compatibility" => {
            protected(&mut state, 0xc09b, 0xc093, 0);
            prepare_long_mode(&mut state, memory, random);
            for register in &mut state.gpr {
                *register &= 0x1f_ffff;
            }
        }
        _ => {}
    }
    state
}

#[test]
fn random_bytes_never_harm_the_monitor() {
    let programs: u64 = std::env::var("TOLLGATE_RANDOM_PROGRAMS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2400);
    let seed: u64 = std::env::var("TOLLGATE_RANDOM_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    for program in 0..programs {
        let mut random = Random::new(seed ^ program << 20);
        let mode = MODES[program as usize % MODES.len()];
        let mut memory = GuestMemory::new(4 << 20).unwrap();
        let mut code = vec![0u8; 0x3000];
        for byte in &mut code {
            *byte = (random.next_u64() >> 32) as u8;
        }
        // Half of the programs avoid the bytes that most often end a run soon.
        if program % 2 == 0 {
            for byte in &mut code {
                if matches!(*byte, 0xf4 | 0x0f | 0xcc..=0xcf | 0xea | 0x9a) {
                    *byte = 0x90;
                }
            }
        }
        memory.write(PhysicalAddress(0x7000), &code);
        let state = prepare(mode, &mut random, &mut memory);
        let noise = Noise {
            start: Instant::now(),
            random,
        };
        let mut vcpu = Computer::new(state, memory, noise, 1 << 20, true).unwrap();
        if std::env::var_os("TOLLGATE_RANDOM_TRACE").is_some() {
            eprintln!("program {program} in {mode}");
        }
        match vcpu.run() {
            VcpuStop::Requested(_) | VcpuStop::TripleFault(_) => {}
            // A host fault in copied code that no guest fault explains is a bug of the engine.
            VcpuStop::NotImplemented(why) => {
                assert!(
                    !why.contains("host signal"),
                    "program {program} in {mode}: {why}"
                );
            }
        }
        let wrong = what_no_processor_has(vcpu.state());
        assert!(wrong.is_empty(), "program {program} in {mode}: {wrong:?}");
    }
}

/// What of this state no processor can have, whatever code it has run.
fn what_no_processor_has(state: &CpuState) -> Vec<&'static str> {
    let bit = |value: u64, number: u32| value >> number & 1 != 0;
    let (cr0, efer) = (state.cr0, state.efer);
    let is_paged = bit(cr0, 31);
    let rules = [
        (
            state.flags & !(Flags::all().bits() | RESERVED_ONE) == 0,
            "reserved flags",
        ),
        (bit(cr0, 0) || !is_paged, "paging without protection"),
        (bit(cr0, 30) || !bit(cr0, 29), "write-back disabled alone"),
        (
            bit(efer, 10) == (bit(efer, 8) && is_paged),
            "EFER.LMA without EFER.LME and paging, or the reverse",
        ),
        (
            bit(efer, 10) || u32::try_from(state.rip).is_ok(),
            "a long instruction pointer",
        ),
    ];
    let broken = rules.into_iter().filter(|(holds, _)| !holds);
    broken.map(|(_, what)| what).collect()
}
