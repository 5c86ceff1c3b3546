//! Tests unprivileged 64-bit code with the host's processor as the oracle: the code does in a vCPU
//! what it does on the host.
//!
//! A program of random instructions that the translator copies runs in both worlds, as the same
//! bytes and with its data at the same addresses. Afterwards all registers except RSP, the
//! arithmetic flags, the vector registers and the data must be equal.

use crate::support::long_mode::{CODE, DATA, run_prepared};
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
};
use tollgate_engine::policy::allow_list::{Features, Treatment, treatment};
use tollgate_engine::policy::mode::Mode;
use tollgate_test_support::Random;
use tollgate_x86::{Flags, PhysicalAddress};

/// Size of the data that a program uses, which is at [`DATA`] in both worlds.
const DATA_BYTES: usize = 0x1000;
/// Address from which vector registers are loaded and to which they are stored, followed by MXCSR.
const VECTORS: u32 = DATA as u32;
const MXCSR: u32 = VECTORS + 16 * 32;
/// Address of the operands of instructions.
const OPERANDS: u32 = VECTORS + 0x400;
/// Maximum size of a program in bytes.
const PROGRAM_BYTES: usize = 0x1000;

/// A random value: small, large or in between.
fn value(random: &mut Random) -> u64 {
    let bits = random.next_u64();
    match random.below(4) {
        0 => bits,
        1 => bits >> random.below(64),
        2 => (bits as i64 >> random.below(64)) as u64,
        _ => random.pick(&[0, 1, u64::MAX, 1 << 63, 0x8000_0000, 0x7fff_ffff, 0x80]),
    }
}

/// The general registers and the flags after a program.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Outcome {
    registers: [u64; 16],
    flags: u64,
    data: Vec<u8>,
}

/// Bytes that may be an instruction, whose memory operand is one of the program's.
fn candidate(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    if random.below(4) == 0 {
        // A three-byte VEX prefix.
        let map = random.pick(&[1, 2, 2, 3]);
        let registers = (random.next_u64() as u8 & 0xe0) | 0x40;
        bytes.extend([0xc4, registers | map, random.next_u64() as u8]);
    } else {
        let prefix: &[u8] = random.pick(&[&[], &[], &[], &[0x66], &[0xf2], &[0xf3], &[0xf0]]);
        bytes.extend(prefix);
        if random.below(4) != 0 {
            bytes.push(0x40 | random.next_u64() as u8 & 15);
        }
        let map: &[u8] = random.pick(&[&[], &[], &[0x0f], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]]);
        bytes.extend(map);
    }
    bytes.push(random.next_u64() as u8);
    let mod_rm = random.next_u64() as u8;
    if random.below(3) == 0 {
        let operand = OPERANDS + 32 * random.below(8) as u32;
        bytes.extend([mod_rm & 0x38 | 4, 0x25]);
        bytes.extend(operand.to_le_bytes());
    } else {
        bytes.push(mod_rm | 0xc0);
    }
    bytes.extend(value(random).to_le_bytes());
    bytes
}

/// Chooses random instructions that can run in both worlds.
struct Chooser {
    mode: Mode,
    features: Features,
    info: InstructionInfoFactory,
}

impl Chooser {
    fn suits(&mut self, instruction: &Instruction) -> bool {
        use Mnemonic::*;
        let treatment = treatment(instruction, &self.mode, &self.features);
        if !matches!(treatment, Treatment::Copy | Treatment::CopyVector) {
            return false;
        }
        let differs = matches!(
            instruction.mnemonic(),
            Rdrand | Rdseed | Div | Idiv | Ldmxcsr | Vldmxcsr | Wait
        );
        let unsuited = self
            .info
            .info(instruction)
            .used_registers()
            .iter()
            .any(|used| {
                let register = used.register();
                let stack = register.is_gpr() && register.full_register() == Register::RSP;
                stack || register.is_mm() || register.is_st()
            });
        let x87 = instruction.cpuid_features().iter().any(|feature| {
            use iced_x86::CpuidFeature::*;
            matches!(feature, FPU | FPU287 | FPU387 | MMX)
        });
        let memory =
            (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
        let operands = u64::from(OPERANDS)..u64::from(OPERANDS) + 256;
        let elsewhere = memory
            && (instruction.memory_base() != Register::None
                || instruction.memory_index() != Register::None
                || instruction.has_segment_prefix()
                || !operands.contains(&instruction.memory_displacement64()));
        !differs && !unsuited && !x87 && !elsewhere
    }

    fn next(&mut self, random: &mut Random) -> Vec<u8> {
        loop {
            let mut bytes = candidate(random);
            let instruction = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            if !instruction.is_invalid() && self.suits(&instruction) {
                bytes.truncate(instruction.len());
                return bytes;
            }
        }
    }
}

/// `mov register, value` for all registers but RSP.
fn load_registers(program: &mut Vec<u8>, random: &mut Random) {
    for register in (0..16u8).filter(|register| *register != 4) {
        program.extend([0x48 | register >> 3, 0xb8 | register & 7]);
        program.extend(value(random).to_le_bytes());
    }
    // push flags; popfq
    let flags = random.next_u64() & Flags::ARITHMETIC.bits();
    program.push(0x68);
    program.extend((flags as u32).to_le_bytes());
    program.push(0x9d);
}

/// `vmovups` between all vector registers and memory: 10h loads, 11h stores.
fn move_vectors(program: &mut Vec<u8>, opcode: u8) {
    for register in 0..16u8 {
        let extension = if register < 8 { 0xfc } else { 0x7c };
        program.extend([0xc5, extension, opcode, (register & 7) << 3 | 4, 0x25]);
        program.extend((VECTORS + u32::from(register) * 32).to_le_bytes());
    }
}

/// The instructions before the random ones.
fn head(random: &mut Random) -> Vec<u8> {
    let mut head = Vec::new();
    move_vectors(&mut head, 0x10);
    // ldmxcsr [MXCSR]
    head.extend([0x0f, 0xae, 0x14, 0x25]);
    head.extend(MXCSR.to_le_bytes());
    load_registers(&mut head, random);
    head
}

/// A program without its end.
fn program(head: &[u8], body: &[Vec<u8>]) -> Vec<u8> {
    let mut program = head.to_vec();
    program.extend(body.concat());
    move_vectors(&mut program, 0x11);
    // stmxcsr [MXCSR]
    program.extend([0x0f, 0xae, 0x1c, 0x25]);
    program.extend(MXCSR.to_le_bytes());
    program
}

fn in_vcpu(program: &[u8], data: &[u8]) -> Outcome {
    let mut code = program.to_vec();
    // out 0xf4, al
    code.extend([0xe6, 0xf4]);
    // The data follows the code, because the setup cannot capture it.
    code.resize(PROGRAM_BYTES, 0xf4);
    code.extend(data);
    assert_eq!(code.len(), PROGRAM_BYTES + DATA_BYTES);
    let mut vcpu = run_prepared(&code, |_, memory| {
        let mut data = [0; DATA_BYTES];
        memory.read(PhysicalAddress(CODE + PROGRAM_BYTES as u64), &mut data);
        memory.write(PhysicalAddress(DATA), &data);
    });
    let mut data = vec![0; DATA_BYTES];
    vcpu.memory_mut().read(PhysicalAddress(DATA), &mut data);
    let state = vcpu.state();
    Outcome {
        registers: state.gpr,
        flags: state.flags & Flags::ARITHMETIC.bits(),
        data,
    }
}

/// The host's memory for a program and its data.
struct Host {
    code: *mut u8,
    data: *mut u8,
}

/// Address of the results on the host.
#[repr(C)]
#[derive(Default)]
struct Saved {
    registers: [u64; 16],
    flags: u64,
}

impl Host {
    fn new() -> Option<Self> {
        let map = |address: u64, size: usize, access, fixed| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
            // SAFETY: the mapping is new and replaces none.
            let at = unsafe { libc::mmap(address as *mut _, size, access, flags, -1, 0) };
            (at != libc::MAP_FAILED).then_some(at.cast::<u8>())
        };
        let both = libc::PROT_READ | libc::PROT_WRITE;
        Some(Self {
            code: map(0, 2 * PROGRAM_BYTES, both | libc::PROT_EXEC, 0)?,
            data: map(DATA, DATA_BYTES, both, libc::MAP_FIXED_NOREPLACE)?,
        })
    }

    fn run(&mut self, program: &[u8], data: &[u8]) -> Outcome {
        let mut code = vec![
            0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x57,
        ];
        code.extend(program);
        // push rdi; mov rdi,[rsp+8]
        code.extend([0x57, 0x48, 0x8b, 0x7c, 0x24, 8]);
        for register in (0..16u8).filter(|register| !matches!(register, 4 | 7)) {
            // mov [rdi+register*8],register
            code.extend([
                0x48 | (register >> 3) << 2,
                0x89,
                0x47 | (register & 7) << 3,
            ]);
            code.push(register * 8);
        }
        // pop [rdi+38h]; pushfq; pop [rdi+80h]; pop rdi
        code.extend([0x8f, 0x47, 0x38, 0x9c, 0x8f, 0x87, 0x80, 0, 0, 0, 0x5f]);
        code.extend([
            0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc5, 0xf8, 0x77, 0xc3,
        ]);
        assert!(code.len() <= 2 * PROGRAM_BYTES);
        let mut saved = Saved::default();
        // SAFETY: both mappings are large enough, and nothing else uses them. The code preserves
        // the registers that the C ABI demands, and its body has only instructions that touch
        // general and vector registers, flags and the data.
        unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), self.code, code.len());
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.data, data.len());
            let run: extern "sysv64" fn(*mut Saved) = std::mem::transmute(self.code);
            run(&mut saved);
        }
        // SAFETY: the program has ended, and the mapping is readable.
        let data = unsafe { std::slice::from_raw_parts(self.data, DATA_BYTES) };
        Outcome {
            registers: saved.registers,
            flags: saved.flags & Flags::ARITHMETIC.bits(),
            data: data.to_vec(),
        }
    }
}

/// Describes the two results if they differ.
fn difference(host: &mut Host, program: &[u8], data: &[u8]) -> Option<String> {
    let (mut here, mut there) = (in_vcpu(program, data), host.run(program, data));
    for outcome in [&mut here, &mut there] {
        outcome.registers[4] = 0;
    }
    if here == there {
        return None;
    }
    let mut text = format!("flags {:x} and {:x}", here.flags, there.flags);
    for (index, (left, right)) in here.registers.iter().zip(&there.registers).enumerate() {
        if left != right {
            text += &format!("; register {index}: {left:x} and {right:x}");
        }
    }
    for (index, (left, right)) in here.data.iter().zip(&there.data).enumerate() {
        if left != right {
            text += &format!("; data {index:x}: {left:x} and {right:x}");
        }
    }
    Some(text)
}

#[test]
fn copied_code_does_what_it_does_on_the_host() {
    let Some(mut host) = Host::new() else {
        // The host reserves low addresses or does not allow such code, so there is nothing to
        // compare with.
        return;
    };
    let mut chooser = {
        let vcpu = run_prepared(&[0xe6, 0xf4], |_, _| {});
        let policy = tollgate_emulate::cpuid::policy(vcpu.state());
        Chooser {
            mode: Mode::of(vcpu.state()),
            features: Features::new(|feature| policy.offers(feature)),
            info: InstructionInfoFactory::new(),
        }
    };
    let rounds =
        std::env::var("TOLLGATE_ORACLE_ROUNDS").map_or(150, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let mut random = Random::new(round);
        let head = head(&mut random);
        let length = 1 + random.below(60);
        let mut body: Vec<_> = (0..length).map(|_| chooser.next(&mut random)).collect();
        let mut data: Vec<u8> = (0..DATA_BYTES / 8)
            .flat_map(|_| value(&mut random).to_le_bytes())
            .collect();
        let mxcsr = (MXCSR - VECTORS) as usize;
        data[mxcsr..mxcsr + 4].copy_from_slice(&0x1f80u32.to_le_bytes());
        let mut run = |body: &[Vec<u8>]| difference(&mut host, &program(&head, body), &data);
        let Some(mut first) = run(&body) else {
            continue;
        };
        // Leaves out instructions that are not needed to make the results differ.
        for index in (0..body.len()).rev() {
            let removed = body.remove(index);
            match run(&body) {
                Some(difference) => first = difference,
                None => body.insert(index, removed),
            }
        }
        panic!("round {round}: {body:x?}: {first}");
    }
}
