//! Runs the same guest in three ways: in blocks, in blocks with another map of its registers, and
//! one instruction at a time. If the guest stops by itself, it must stop in the same state.
//!
//! Timers interrupt the blocks at any host instruction, so this also finds wrong marks. Guests that
//! read the time are left out, and so are guests that never stop.

use super::guest::Guest;
use super::platform::{Noise, TIME_LIMIT};
use super::{CODE_CACHE_BYTES, RAM_BYTES};
use crate::confined::as_processor;
use crate::input::Input;
use std::ops::Range;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_x86::PhysicalAddress;
use tollgate_x86::state::Activity;

/// Number of steps after which a guest is abandoned.
const MAX_STEPS: u32 = 3000;
/// How often a disagreement must occur: an interruption may lose the record of the last x87
/// instruction (a known deviation), and results that a fault leaves undefined may vary.
const ATTEMPTS: u32 = 3;

/// The memory that is compared: what guests use most, except for page tables, whose accessed bits
/// may be set early.
const COMPARED: [Range<u64>; 3] = [0..0x2_0000, 0x5_0000..0x5_4000, 0x10_8000..0x10_c000];

/// Whether these bytes may be an instruction whose result depends on time or chance (RDTSC, RDTSCP,
/// RDRAND), or one that stores the x87's last operand (FNSTENV, FNSAVE, FXSAVE, XSAVE), which is
/// undefined after an instruction without one.
fn is_unsteady(first: u8, second: u8) -> bool {
    match first {
        0x0f => matches!(second, 0x31 | 0x01 | 0xc7 | 0xae),
        0xd9 | 0xdd => second >> 3 & 7 == 6 && second < 0xc0,
        _ => false,
    }
}

/// The state in which a guest stopped.
#[derive(PartialEq, Eq)]
struct End {
    stop: String,
    registers: String,
    memory: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Way {
    Blocks(&'static RegisterMap),
    Steps,
}

/// Runs the guest that the input describes.
///
/// # Panics
///
/// Panics if two ways lead to different ends.
pub fn run(data: &[u8]) {
    if data.windows(2).any(|pair| is_unsteady(pair[0], pair[1])) {
        return;
    }
    let disagrees = |way| {
        let blocks = end(data, Way::Blocks(&RegisterMap::LEGACY))?;
        let other = end(data, way)?;
        (blocks != other).then_some((blocks, other))
    };
    for way in [Way::Steps, Way::Blocks(&RegisterMap::SPILLED)] {
        let mut found = None;
        for _ in 0..ATTEMPTS {
            found = disagrees(way);
            if found.is_none() {
                break;
            }
        }
        if let Some((blocks, other)) = found {
            let name = match way {
                Way::Steps => "instruction by instruction",
                Way::Blocks(map) => map.name,
            };
            panic!(
                "in blocks: {}\n{}{name}: {}\n{}{}",
                blocks.stop,
                blocks.registers,
                other.stop,
                other.registers,
                difference(&blocks.memory, &other.memory)
            );
        }
    }
}

fn difference(one: &[u8], other: &[u8]) -> String {
    let addresses = COMPARED.into_iter().flatten();
    let pairs = addresses.zip(one.iter().zip(other));
    let different = pairs.filter(|(_, (one, other))| one != other);
    let lines =
        different.map(|(address, (one, other))| format!("{address:#x}: {one:02x} {other:02x}\n"));
    lines.take(16).collect()
}

/// The state in which a guest ends; `None` if it does not end by itself.
fn end(data: &[u8], way: Way) -> Option<End> {
    let mut input = Input::new(data);
    let mut guest = Guest::of(&mut input);
    guest.noise.interrupts = 0;
    if data.iter().any(|byte| matches!(byte, 0xf2 | 0xf3)) {
        // A repeated instruction that overwrites itself continues until it is interrupted.
        guest.noise.tick = TIME_LIMIT as u32;
    }
    let mut memory = GuestMemory::new(RAM_BYTES).expect("guest memory");
    let state = guest.prepare(input.rest(), &mut memory);
    let mut noise = Noise::new(guest.noise);
    let mut vcpu = Vcpu::new(state, memory, CODE_CACHE_BYTES, false).expect("a vCPU");
    let stop = match way {
        Way::Blocks(map) => {
            vcpu.set_register_map(map);
            vcpu.set_counts_instructions(guest.counted);
            as_processor(|| vcpu.run(&mut noise))
        }
        Way::Steps => step(&mut vcpu, &mut noise)?,
    };
    let stop = match stop {
        VcpuStop::Requested(_) if !noise.was_stopped() => return None,
        VcpuStop::Requested(_) => "stopped".into(),
        VcpuStop::TripleFault(why) | VcpuStop::NotImplemented(why) => why,
    };
    let registers = vcpu.dump();
    let mut bytes = Vec::new();
    for range in COMPARED {
        let start = bytes.len();
        bytes.resize(start + (range.end - range.start) as usize, 0);
        vcpu.memory_mut()
            .read(PhysicalAddress(range.start), &mut bytes[start..]);
    }
    Some(End {
        stop,
        registers,
        memory: bytes,
    })
}

fn step(vcpu: &mut Vcpu, noise: &mut Noise) -> Option<VcpuStop> {
    for _ in 0..MAX_STEPS {
        if vcpu.state().activity == Activity::Halted {
            return None;
        }
        if let Err(stop) = vcpu.step_one(noise) {
            return Some(stop);
        }
    }
    None
}
