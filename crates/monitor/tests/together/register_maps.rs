//! Tests that guest code has the same results wherever its registers live: random programs end in
//! the same state under every register map, interrupted or not. All emitted code is verified.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};
use std::time::{Duration, Instant};
use tollgate_engine::abi::host::*;
use tollgate_engine::abi::register_map::{Home, RegisterMap};
use tollgate_engine::policy::allow_list::{Features, Treatment, treatment};
use tollgate_engine::policy::mode::Mode;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::{Computer, Random};
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

/// A map in which no host register is idle: every register that an instruction borrows is the home
/// of a guest register. (No 32-bit guest has a register 8.)
static CROWDED: RegisterMap = RegisterMap {
    name: "crowded",
    guest_registers: 9,
    homes: {
        let mut homes = RegisterMap::LEGACY.homes;
        homes[3] = Home::Slot;
        homes[5] = Home::Slot;
        homes[8] = Home::Host(RBX);
        homes
    },
    ..RegisterMap::LEGACY
};
const _: () = CROWDED.check();

static OTHERS: [&RegisterMap; 2] = [&RegisterMap::SPILLED, &CROWDED];

/// Size of the guest RAM that programs can reach, which ends at the hole for the display.
const MEMORY: usize = 0xa_0000;
/// Address of programs.
const CODE: u64 = 0x8000;
/// Address of the count of a loop's rounds.
const ROUNDS_AT: u32 = 0x6000;

/// The instruction `out F4h, al`, which ends the run.
const EXIT: [u8; 2] = [0xe6, 0xf4];
/// Number of rounds of a loop.
const ROUNDS: u32 = 200_000;

/// A machine whose devices always return the same values.
struct Constant {
    stop: Option<StopRequest>,
    end: Instant,
}

impl BareMachine for Constant {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, _port: u16, _size: u8, value: u32) {
        self.stop = Some(StopRequest::DebugExit(value as u8));
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        data.fill(0x5a);
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        let over = Instant::now() > self.end;
        self.stop.take().or(over.then_some(StopRequest::Quit))
    }
}

/// A flat guest whose registers point into RAM.
fn initial_state(bits: u32, random: &mut Random) -> CpuState {
    let mut state = CpuState::at_reset();
    state.rip = CODE;
    state.cr0 |= 1;
    // CR4 bits OSFXSR, OSXMMEXCPT and OSXSAVE.
    state.cr4 |= 0x4_0600;
    state.xcr0 = 7;
    let stack_and_code = if bits == 32 { 0xc093 } else { 0x8093 };
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = Segment {
            base: 0,
            limit: u32::MAX,
            selector: Selector(0x18),
            attributes: Attributes::from_bits_retain(stack_and_code),
        };
    }
    state.segment_mut(SegmentRegister::Cs).selector = Selector(0x10);
    state.segment_mut(SegmentRegister::Cs).attributes =
        Attributes::from_bits_retain(stack_and_code | 8);
    for register in 0..8 {
        state.gpr[register] = 0x2_0000 + (random.next_u64() & 0x3_fff0);
    }
    state.gpr[4] = 0x1_4000 + (random.next_u64() & 0xff0);
    state
}

/// Whether the translator has its own sequences for an instruction.
fn is_translated(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    match instruction.mnemonic() {
        Push | Pop | Leave | Lea | Xlatb | Cld | Std => true,
        Movsb | Movsw | Movsd | Lodsb | Lodsw | Lodsd | Stosb | Stosw | Stosd | Scasb | Scasw
        | Scasd | Cmpsb | Cmpsw | Cmpsd => !repeated,
        _ => false,
    }
}

/// Whether the results of an instruction differ from one run to the next.
fn is_unpredictable(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Rdrand | Mnemonic::Rdseed)
}

/// A random instruction that guest code runs without the monitor.
fn instruction(bits: u32, mode: &Mode, features: &Features, random: &mut Random) -> Vec<u8> {
    // Instructions on bytes, half of which name AH to BH.
    const BYTES: [u8; 17] = [
        0x00, 0x02, 0x08, 0x0a, 0x10, 0x12, 0x22, 0x28, 0x32, 0x38, 0x84, 0x86, 0x88, 0x8a, 0xd2,
        0xf6, 0xfe,
    ];
    const BYTES_0F: [u8; 6] = [0xb0, 0xc0, 0xb6, 0xbe, 0x94, 0x9c];
    loop {
        let mut bytes: Vec<u8> = Vec::new();
        match random.next_u64() % 12 {
            0 | 1 => {}
            2 => bytes.push(0x66),
            3 => bytes.push(0x0f),
            4 => bytes.extend([random.pick(&[0x66, 0xf2, 0xf3]), 0x0f]),
            5 => bytes.extend([0x66, 0x0f, random.pick(&[0x38, 0x3a])]),
            6 => bytes.extend([0xf2, 0x0f, 0x38, random.pick(&[0xf0, 0xf1])]),
            7 => {
                let map = (random.next_u64() & 0xe0) as u8 | random.pick(&[1, 2, 3]);
                bytes.extend([0xc4, 0xc0 | map]);
            }
            8 => bytes.push(random.pick(&BYTES)),
            9 => bytes.extend([0x0f, random.pick(&BYTES_0F)]),
            10 => bytes.extend([0x0f, 0xc7, 0x08 | random.next_u64() as u8 & 0xc7]),
            _ => bytes.push(random.pick(&[
                0x50, 0x53, 0x55, 0x57, 0x5b, 0x5d, 0x5e, 0x60, 0x67, 0x8d, 0x8f, 0xa4, 0xa5, 0xa6,
                0xaa, 0xac, 0xae, 0xc9, 0xd7, 0xff,
            ])),
        }
        while bytes.len() < 15 {
            bytes.push((random.next_u64() >> 5) as u8);
        }
        let mut decoder = Decoder::with_ip(bits, &bytes, CODE, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid()
            || instruction.flow_control() != FlowControl::Next
            || is_unpredictable(instruction.mnemonic())
        {
            continue;
        }
        let treatment = treatment(&instruction, mode, features);
        if is_translated(&instruction)
            || matches!(treatment, Treatment::Copy | Treatment::CopyVector)
        {
            bytes.truncate(instruction.len());
            return bytes;
        }
    }
}

/// A few 32-bit instructions that never fault: on registers except ESP, and on memory at fixed
/// addresses.
fn harmless(random: &mut Random) -> Vec<u8> {
    const OPCODES: [&[u8]; 20] = [
        &[0x01],
        &[0x11],
        &[0x29],
        &[0x33],
        &[0x87],
        &[0x89],
        &[0x8b],
        &[0x00],
        &[0x02],
        &[0x30],
        &[0x86],
        &[0x88],
        &[0x66, 0x01],
        &[0x0f, 0xb0],
        &[0x0f, 0xb1],
        &[0x0f, 0xc0],
        &[0x0f, 0xc1],
        &[0x0f, 0xaf],
        &[0x0f, 0xa5],
        &[0x0f, 0x44],
    ];
    let at = 0x2_0000 + (random.next_u64() as u32 & 0xfff);
    let mut bytes = Vec::new();
    match random.next_u64() % 8 {
        0 => {
            // mov esi, at; mov edi, at + 64; then a string instruction.
            bytes.push(0xbe);
            bytes.extend(at.to_le_bytes());
            bytes.push(0xbf);
            bytes.extend((at + 64).to_le_bytes());
            bytes.push(random.pick(&[0xa4, 0xa5, 0xa6, 0xaa, 0xac, 0xae]));
        }
        1 => bytes.extend([0x55, 0x53, 0x5e, 0x5d]), // push ebp; push ebx; pop esi; pop ebp
        2 => {
            bytes.extend([0x0f, 0xc7, 0x0d]); // cmpxchg8b [at]
            bytes.extend(at.to_le_bytes());
        }
        3 | 4 => {
            bytes.extend(OPCODES[random.next_u64() as usize % OPCODES.len()]);
            bytes.push((random.next_u64() as u8 & 7) << 3 | 5);
            bytes.extend(at.to_le_bytes());
        }
        _ => {
            bytes.extend(OPCODES[random.next_u64() as usize % OPCODES.len()]);
            bytes.push(0xc0 | random.next_u64() as u8 & 0x3f);
        }
    }
    let mut decoder = Decoder::new(32, &bytes, DecoderOptions::NONE);
    let instruction = decoder.decode();
    let names_esp = (0..instruction.op_count()).any(|index| {
        let register = instruction.op_register(index);
        matches!(register, Register::ESP | Register::SP)
    });
    if names_esp { harmless(random) } else { bytes }
}

/// How a program ended.
#[derive(PartialEq, Debug)]
struct End {
    stop: String,
    registers: [u64; 16],
    flags: u64,
    rip: u64,
    vectors: Vec<u8>,
    memory: u64,
}

fn run(map: &'static RegisterMap, state: &CpuState, program: &[u8], kicked: bool) -> End {
    let mut memory = GuestMemory::new(1 << 20).unwrap();
    let filling: Vec<u8> = (0..MEMORY as u32)
        .map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect();
    assert!(memory.write(PhysicalAddress(0), &filling));
    memory.write_u32(PhysicalAddress(ROUNDS_AT.into()), ROUNDS);
    memory.write(PhysicalAddress(CODE), program);
    let platform = Constant {
        stop: None,
        end: Instant::now() + Duration::from_secs(20),
    };
    let mut vcpu = Computer::new(state.clone(), memory, platform, 1 << 20, true).unwrap();
    vcpu.set_register_map(map);
    let stop = if kicked {
        vcpu.run_kicked()
    } else {
        vcpu.run()
    };
    let stop = match stop {
        VcpuStop::Requested(request) => format!("{request:?}"),
        VcpuStop::TripleFault(_) => "triple fault".into(),
        VcpuStop::NotImplemented(why) => why,
    };
    let mut bytes = vec![0; MEMORY];
    assert!(vcpu.memory_mut().read(PhysicalAddress(0), &mut bytes));
    let sum = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let state = vcpu.state();
    End {
        stop,
        registers: state.gpr,
        flags: state.flags,
        rip: state.rip,
        // The header is left out, because the processor may treat registers that are zero as unused
        // or not.
        vectors: [&state.vector.0[..512], &state.vector.0[576..]].concat(),
        memory: bytes.iter().fold(0, sum),
    }
}

/// The disassembly of a program, for the message of a failed test.
fn listing(bits: u32, program: &[u8]) -> String {
    let decoder = Decoder::with_ip(bits, program, CODE, DecoderOptions::NONE);
    let lines: Vec<_> = decoder.into_iter().map(|i| format!("{i}")).collect();
    lines.join("\n")
}

fn compare(bits: u32, state: &CpuState, program: &[u8], kicked: bool, what: &str) -> String {
    let expected = run(&RegisterMap::LEGACY, state, program, false);
    for map in OTHERS.into_iter().chain([&RegisterMap::LEGACY]) {
        if map.name == "legacy" && !kicked {
            continue;
        }
        let end = run(map, state, program, kicked);
        let vectors = end.vectors.iter().zip(&expected.vectors);
        assert!(
            end == expected,
            "{what} with the {} map\n{}\nfrom     {:x?}\nexpected {} {:x?} {:x} {:x} {:x}\nfound    {} {:x?} {:x} {:x} {:x}\nthe save areas differ at {:?}",
            map.name,
            listing(bits, program),
            state.gpr,
            expected.stop,
            expected.registers,
            expected.flags,
            expected.rip,
            expected.memory,
            end.stop,
            end.registers,
            end.flags,
            end.rip,
            end.memory,
            vectors.enumerate().find(|(_, (a, b))| a != b),
        );
    }
    expected.stop
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn random(program: u64) -> Random {
    let seed = number("TOLLGATE_RANDOM_SEED", 1);
    Random::new(seed ^ (program + 1) << 20)
}

#[test]
fn programs_end_in_the_same_state_wherever_registers_live() {
    let policy = tollgate_emulate::cpuid::policy_of(tollgate_x86::CpuModel::Host);
    let features = Features::new(|feature| policy.offers(feature));
    let mut completed = 0;
    let programs = number("TOLLGATE_RANDOM_PROGRAMS", 600);
    for program in 0..programs {
        let mut random = random(program);
        let bits = if program.is_multiple_of(4) { 16 } else { 32 };
        let state = initial_state(bits, &mut random);
        let mode = Mode::of(&state);
        let mut code: Vec<u8> = (0..6)
            .flat_map(|_| instruction(bits, &mode, &features, &mut random))
            .collect();
        code.extend(EXIT);
        let stop = compare(bits, &state, &code, false, &format!("program {program}"));
        completed += u64::from(stop.starts_with("DebugExit"));
    }
    assert!(
        completed > programs / 4,
        "only {completed} came to their end"
    );
}

#[test]
fn interruptions_find_registers_wherever_they_are() {
    for program in 0..number("TOLLGATE_RANDOM_PROGRAMS", 12) {
        let mut random = random(program);
        let state = initial_state(32, &mut random);
        let mut code: Vec<u8> = (0..12).flat_map(|_| harmless(&mut random)).collect();
        // dec dword [ROUNDS_AT]; jnz to the start
        code.extend([0xff, 0x0d]);
        code.extend(ROUNDS_AT.to_le_bytes());
        let distance = -(code.len() as i32 + 6);
        code.extend([0x0f, 0x85]);
        code.extend(distance.to_le_bytes());
        code.extend(EXIT);
        let stop = compare(32, &state, &code, true, &format!("loop {program}"));
        assert!(stop.starts_with("DebugExit"), "loop {program}: {stop}");
    }
}
