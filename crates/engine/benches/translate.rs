//! The benchmark of translation: what translating this program's own machine code costs, as 64-bit
//! user code.
//!
//! Every block of the first 2 MiB is translated once, each run in a new engine. The output is the
//! median and the minimum of the processor time for a guest instruction and for a block, and the
//! number of host bytes for one guest byte. To compare two versions of the translator, have both
//! translate the same program's code, whose file the variable `TOLLGATE_BENCH_CODE` names.

use std::hint::black_box;
use std::time::Duration;
use tollgate_engine::Engine;
use tollgate_engine::engine::{CodeAddress, LookUp};
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::policy::mode::Mode;
use tollgate_memory::GuestMemory;
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

/// The most bytes of code that are translated.
const MOST: usize = 2 << 20;
/// The number of runs if `TOLLGATE_BENCH_RUNS` does not say it; the first run is not counted.
const RUNS: usize = 12;
/// Where the code lies in guest memory: above the hole below 1 MiB.
const BASE: u64 = 1 << 20;
/// The size of the code cache in bytes.
const CACHE: usize = 256 << 20;

/// The code of the running program, or of the named one: its executable segment.
fn program_code() -> Vec<u8> {
    let name = std::env::var("TOLLGATE_BENCH_CODE");
    let file = std::fs::read(name.as_deref().unwrap_or("/proc/self/exe"));
    let file = file.expect("the program's file can be read");
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let half = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
    let table = word(0x20) as usize;
    let (size, count) = (half(0x36), half(0x38));
    let loadable = (0..count).map(|index| table + index * size).find(|&at| {
        let kind = u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let flags = u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap());
        kind == 1 && flags & 1 != 0
    });
    let at = loadable.expect("a program has code");
    let (offset, length) = (word(at + 8) as usize, word(at + 32) as usize);
    file[offset..offset + length.min(MOST)].to_vec()
}

/// The mode of flat 64-bit code at CPL 3.
fn user_mode() -> Mode {
    let mut state = CpuState::at_reset();
    state.cr0 |= 0x8000_0001;
    // All vector registers are enabled, since libraries have a version of many functions for each
    // kind.
    state.cr4 |= 0x4_0620;
    state.xcr0 = 0xe7;
    state.efer |= 0xd00;
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = Segment {
            base: 0,
            limit: u32::MAX,
            selector: Selector(0x2b),
            attributes: Attributes::from_bits_retain(0xc0f3),
        };
    }
    state.segment_mut(SegmentRegister::Cs).attributes = Attributes::from_bits_retain(0xa0fb);
    Mode::of(&state)
}

/// The CPU time of this process so far: a busy host affects it less than it affects elapsed time.
fn processor_time() -> Duration {
    let file = std::fs::read_to_string("/proc/self/schedstat")
        .expect("the host's kernel has scheduling statistics");
    let nanoseconds = file
        .split_whitespace()
        .next()
        .and_then(|it| it.parse().ok());
    Duration::from_nanos(nanoseconds.expect("the file begins with nanoseconds"))
}

/// The number of instructions in these bytes, as the decoder counts them.
fn instructions(bytes: &[u8]) -> usize {
    iced_x86::Decoder::new(64, bytes, iced_x86::DecoderOptions::NONE)
        .iter()
        .count()
}

fn main() {
    let code = program_code();
    let mut runs: Vec<(Duration, u64)> = Vec::new();
    let mut blocks = 0;
    let mut host_bytes = 0;
    let mut guest = 0;
    let wanted = std::env::var("TOLLGATE_BENCH_RUNS").ok();
    let wanted = wanted.and_then(|number| number.parse().ok());
    for run in 0..wanted.unwrap_or(RUNS).max(2) {
        let mut memory = GuestMemory::new(8 << 20).unwrap();
        assert!(memory.write(PhysicalAddress(BASE), &code));
        let mut engine = Engine::new(CACHE, Features::new(|_| true), false).unwrap();
        let mode = engine.intern(user_mode(), &mut memory);
        let mut at = 0;
        blocks = 0;
        let start = processor_time();
        while at < code.len() as u64 {
            let place = CodeAddress {
                physical: BASE + at,
                next_page: Some((BASE + at) / 4096 + 1),
                rip: 0x40_0000 + at,
                linear: 0x40_0000 + at,
                global: false,
                link_address: None,
            };
            let LookUp::Block(id) = engine.translate(&place, mode, &mut memory) else {
                panic!("the next page is known");
            };
            let length = u64::from(engine.block(black_box(id)).unwrap().guest_length);
            at += length;
            blocks += 1;
        }
        let taken = processor_time() - start;
        let counts = engine.counts();
        host_bytes = counts.host_bytes;
        guest = counts.guest_bytes;
        if run > 0 {
            runs.push((taken, counts.translations));
        }
    }
    runs.sort_unstable();
    let count = instructions(&code) as f64;
    let per = |index: usize, of: f64| runs[index].0.as_nanos() as f64 / of;
    let middle = runs.len() / 2;
    println!(
        "{blocks} blocks, {count} instructions, {guest} bytes; host bytes per guest byte {:.1}",
        host_bytes as f64 / guest as f64
    );
    for (name, of) in [("instruction", count), ("block", f64::from(blocks))] {
        println!(
            "{:6.1} ns each {name} (fastest {:.1})",
            per(middle, of),
            per(0, of)
        );
    }
}
