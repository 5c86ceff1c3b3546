//! Tests code that uses the upper eight registers all the time. In blocks, where these stay in
//! scratch registers for a while, the code must do what it does instruction by instruction, and
//! also when it is interrupted wherever possible.

use crate::support::long_mode::*;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_platform::StopRequest;
use tollgate_test_support::{Computer, Random};
use tollgate_x86::{CpuState, PhysicalAddress};

/// Registers that hold addresses and that no instruction changes: RDI, R13 and R14.
const BASES: [u8; 3] = [7, 13, 14];
/// R15 holds an offset and is not changed either.
const INDEX: u8 = 15;
const COUNTER: u8 = 5;
const STACK_POINTER: u8 = 4;
/// The registers that programs may change.
const OTHERS: [u8; 10] = [0, 1, 2, 3, 6, 8, 9, 10, 11, 12];

struct Program(Vec<u8>);

impl Program {
    fn new(bases: u64) -> Self {
        let mut program = Self(Vec::new());
        for (number, base) in BASES.into_iter().enumerate() {
            program.set(base, bases + 0x100 * number as u64);
        }
        program.set(INDEX, 0x18);
        program
    }

    /// mov register, value
    fn set(&mut self, register: u8, value: u64) {
        self.0.extend([0x48 | register >> 3, 0xb8 | register & 7]);
        self.0.extend(value.to_le_bytes());
    }

    /// Adds an instruction with two register operands, `reg` and `rm`, of a random size. Byte
    /// operands are never high bytes.
    fn registers(&mut self, random: &mut Random, opcode: &[u8], reg: u8, rm: u8) {
        let wide = random.pick(&[0x40, 0x48, 0x48, 0x40]);
        self.0.push(wide | reg >> 3 << 2 | rm >> 3);
        self.0.extend(opcode);
        self.0.push(0xc0 | (reg & 7) << 3 | rm & 7);
    }

    /// Adds an instruction with an operand in memory.
    fn memory(&mut self, random: &mut Random, opcode: &[u8], reg: u8) {
        let base = random.pick(&BASES);
        let rex = random.pick(&[0x40, 0x48]) | reg >> 3 << 2 | base >> 3;
        let distance = random.below(0x40) as u8;
        if random.one_in(3) {
            // [base + R15 * scale + distance]
            let scale = random.below(3) as u8;
            self.0.push(rex | 2);
            self.0.extend(opcode);
            self.0.extend([
                0x44 | (reg & 7) << 3,
                scale << 6 | 7 << 3 | base & 7,
                distance,
            ]);
        } else {
            self.0.push(rex);
            self.0.extend(opcode);
            self.0.extend([0x40 | (reg & 7) << 3 | base & 7, distance]);
        }
    }

    fn step(&mut self, random: &mut Random) {
        let any = random.pick(&[0, 1, 2, 3, 6, 7, 8, 8, 9, 9, 10, 11, 12, 13, 14, 15]);
        let changed = random.pick(&OTHERS);
        match random.below(22) {
            0..=4 => {
                // ADD, OR, AND, SUB, XOR, MOV of two registers, in either direction.
                let opcode = random.pick(&[0x01, 0x09, 0x21, 0x29, 0x31, 0x89]);
                match random.one_in(2) {
                    true => self.registers(random, &[opcode], any, changed),
                    false => self.registers(random, &[opcode | 2], changed, any),
                }
            }
            5 => {
                // The byte forms of these instructions.
                let opcode = random.pick(&[0x00, 0x08, 0x20, 0x28, 0x30, 0x88]);
                self.registers(random, &[opcode], any, changed);
            }
            6 => {
                // Instructions with one register twice: XOR, SUB, TEST, of bytes or wider operands.
                let opcode = random.pick(&[0x30, 0x31, 0x29, 0x84, 0x85]);
                self.registers(random, &[opcode], changed, changed);
            }
            7 => {
                // ROL, ROR, SHL, SHR, SAR by a constant.
                let kind = random.pick(&[0, 1, 4, 5, 7]);
                self.registers(random, &[0xc1], kind, changed);
                self.0.push(1 + random.below(7) as u8);
            }
            8 => {
                // CMP and TEST, followed by an instruction that depends on them: SETcc or CMOVcc.
                let other = random.pick(&OTHERS);
                let opcode = random.pick(&[0x39, 0x85]);
                self.registers(random, &[opcode], any, other);
                let condition = random.below(16) as u8;
                match random.one_in(2) {
                    true => self.registers(random, &[0x0f, 0x90 | condition], 0, changed),
                    false => self.registers(random, &[0x0f, 0x40 | condition], changed, any),
                }
            }
            // MOVZX, MOVSX, IMUL; MOVSXD.
            9 => {
                let second = random.pick(&[0xb6, 0xbe, 0xb7, 0xaf]);
                self.registers(random, &[0x0f, second], changed, any);
            }
            10 => self.registers(random, &[0x63], changed, any),
            11 => {
                // INC, DEC; NOT, NEG.
                let (opcode, kind) = random.pick(&[(0xff, 0), (0xff, 1), (0xf7, 2), (0xf7, 3)]);
                self.registers(random, &[opcode], kind, changed);
            }
            12 => {
                // ADD to XOR with a constant, and MOV of a constant.
                let kind = random.pick(&[0, 1, 4, 5, 6]);
                self.registers(random, &[0x83], kind, changed);
                self.0.push(random.byte());
                let number = random.pick(&OTHERS);
                self.0.extend([0x40 | number >> 3, 0xb8 | number & 7]);
                self.0.extend(random.next_u32().to_le_bytes());
            }
            13 => {
                // The instruction is LEA with one or two registers.
                let (base, index) = (random.pick(&OTHERS), random.pick(&OTHERS));
                let wide = random.pick(&[0x40, 0x48]);
                let rex = wide | changed >> 3 << 2 | index >> 3 << 1 | base >> 3;
                let scale = random.below(4) as u8;
                let sib = scale << 6 | (index & 7) << 3 | base & 7;
                self.0
                    .extend([rex, 0x8d, 0x44 | (changed & 7) << 3, sib, random.byte()]);
            }
            14 => {
                let other = random.pick(&OTHERS);
                self.registers(random, &[0x87], changed, other);
            }
            15 => self.memory(random, &[0x8d], changed),
            16 | 17 => {
                let opcode = random.pick(&[0x8b, 0x8b, 0x03, 0x33, 0x3b, 0x23]);
                self.memory(random, &[opcode], changed);
            }
            18 => {
                let opcode = random.pick(&[0x89, 0x89, 0x01, 0x31, 0x29]);
                self.memory(random, &[opcode], any);
            }
            19 | 20 => {
                // A branch over the next instruction, which may therefore not have run.
                let branch = self.0.len();
                self.0.extend([0x70 | random.below(16) as u8, 0]);
                self.step(random);
                self.0[branch + 1] = (self.0.len() - branch - 2) as u8;
            }
            // Instructions that leave the block's code, or need all registers at home: PUSH, POP,
            // SHL by CL.
            _ => {
                self.0.extend([0x40 | any >> 3, 0x50 | any & 7]);
                self.0.extend([0x40 | changed >> 3, 0x58 | changed & 7]);
                self.registers(random, &[0xd3], 4, changed);
            }
        }
    }

    /// Repeats the steps `rounds` times, after the registers have their first values, and ends.
    fn end(mut self, start: usize, rounds: u32) -> Vec<u8> {
        // dec ebp; jnz
        self.0.extend([0xff, 0xcd, 0x0f, 0x85]);
        let back = start as i32 - (self.0.len() as i32 + 4);
        self.0.extend(back.to_le_bytes());
        self.0.extend([0xe6, 0xf4]);
        let counter = [0x40, 0xb8 | COUNTER];
        let mut code = counter.to_vec();
        code.extend(rounds.to_le_bytes());
        code.extend(self.0);
        code
    }
}

/// A random program that repeats its steps `rounds` times.
fn program(random: &mut Random, bases: u64, rounds: u32) -> Vec<u8> {
    let mut program = Program::new(bases);
    program.set(STACK_POINTER, STACK);
    for register in OTHERS {
        program.set(register, random.next_u64());
    }
    let start = program.0.len();
    for _ in 0..20 + random.below(60) {
        program.step(random);
    }
    program.end(start, rounds)
}

/// Registers and memory after a program.
fn end(vcpu: &mut Computer<Bench>, stop: &VcpuStop) -> (String, Vec<u8>) {
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        vcpu.dump()
    );
    let mut data = vec![0; 0x1000];
    assert!(vcpu.memory_mut().read(PhysicalAddress(DATA), &mut data));
    (vcpu.dump(), data)
}

/// Machines that access memory in each way, before a program of the kernel or of a user.
fn machines(code: &[u8], is_user: bool) -> [(MemoryAccess, Computer<Bench>); 2] {
    [MemoryAccess::Direct, MemoryAccess::Checked].map(|access| {
        let setup = |state: &mut CpuState, _: &mut GuestMemory| {
            if is_user {
                as_user(state);
            }
        };
        let mut vcpu = vcpu(code, setup);
        vcpu.change_settings(|settings| settings.memory_access = access);
        (access, vcpu)
    })
}

/// The address of a program's data: below 4 GiB, or where an anchor leads to.
fn bases(random: &mut Random) -> u64 {
    DATA + random.pick(&[0, COMMON[0], COMMON[1]])
}

#[test]
fn random_programs_end_as_they_do_step_by_step() {
    let mut random = Random::new(0x6865_6c64);
    for round in 0..300 {
        let bases = bases(&mut random);
        let code = program(&mut random, bases, 3);
        for (access, mut vcpu) in machines(&code, round % 3 > 0) {
            let stop = vcpu.run();
            let found = end(&mut vcpu, &stop);
            let [(_, mut stepping), _] = machines(&code, round % 3 > 0);
            let stop = loop {
                if let Err(stop) = stepping.step_one() {
                    break stop;
                }
            };
            let expected = end(&mut stepping, &stop);
            assert!(
                found == expected,
                "{access:?} {code:02x?}\n{}\n{}",
                found.0,
                expected.0
            );
        }
    }
}

#[test]
fn random_programs_that_are_interrupted_end_as_they_do_undisturbed() {
    let mut random = Random::new(0x6b69_636b);
    for round in 0..16 {
        let bases = bases(&mut random);
        let code = program(&mut random, bases, 40_000);
        for (access, mut vcpu) in machines(&code, round % 3 > 0) {
            let stop = vcpu.run();
            let expected = end(&mut vcpu, &stop);
            let [(_, mut direct), (_, mut checked)] = machines(&code, round % 3 > 0);
            let kicked = match access {
                MemoryAccess::Direct => &mut direct,
                _ => &mut checked,
            };
            let stop = kicked.run_kicked();
            let found = end(kicked, &stop);
            assert!(
                found == expected,
                "{access:?} {code:02x?}\n{}\n{}",
                found.0,
                expected.0
            );
        }
    }
}
