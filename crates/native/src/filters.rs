//! The seccomp filters of the two tasks: which system calls each may make, from where and with what.
//!
//! A filter is a program of Linux' classic BPF that reads `struct seccomp_data`: the call's number,
//! the architecture, the address of the next instruction, and six arguments.

use crate::layout::{Layout, announce, control};
use crate::mapping::{MAP_FLAGS, RAM_DESCRIPTOR};
use crate::stub::Stub;
use libc::{BPF_ABS, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};

const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const INSTRUCTION: u32 = 8;
const fn argument(number: u32) -> u32 {
    16 + 8 * number
}

/// `AUDIT_ARCH_X86_64`: calls by SYSCALL from 64-bit code.
pub const X86_64: u32 = 0xc000_003e;

/// One instruction as the kernel takes it: code, jumps if true and if false, operand.
type Instruction = [u8; 8];

#[derive(Clone, Copy)]
enum Comparison {
    Equal,
    AtMost,
}

/// A filter under construction: rules that each allow a call if all of their tests hold.
struct Filter(Vec<Instruction>);

fn instruction(code: u32, if_true: u8, if_false: u8, operand: u32) -> Instruction {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&(code as u16).to_le_bytes());
    bytes[2] = if_true;
    bytes[3] = if_false;
    bytes[4..].copy_from_slice(&operand.to_le_bytes());
    bytes
}

/// A test of 32 bits of the data.
struct Test {
    offset: u32,
    comparison: Comparison,
    operand: u32,
}

/// Tests that 64 bits of the data have this value.
fn equal(offset: u32, value: u64) -> [Test; 2] {
    [(offset, value as u32), (offset + 4, (value >> 32) as u32)].map(|(offset, operand)| Test {
        offset,
        comparison: Comparison::Equal,
        operand,
    })
}

/// Tests an argument that the kernel takes as 32 bits, such as a descriptor.
fn equal_word(offset: u32, value: u64) -> [Test; 1] {
    [Test {
        offset,
        comparison: Comparison::Equal,
        operand: value as u32,
    }]
}

/// Tests that 64 bits of the data are at most this.
fn at_most(offset: u32, value: u32) -> [Test; 2] {
    [
        Test {
            offset,
            comparison: Comparison::AtMost,
            operand: value,
        },
        Test {
            offset: offset + 4,
            comparison: Comparison::Equal,
            operand: 0,
        },
    ]
}

fn number(call: libc::c_long) -> Test {
    Test {
        offset: NUMBER,
        comparison: Comparison::Equal,
        operand: call as u32,
    }
}

impl Filter {
    /// A filter that answers calls of other architectures with this.
    fn new(otherwise: u32) -> Self {
        let load = instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, ARCHITECTURE);
        let test = instruction(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, X86_64);
        let refuse = instruction(BPF_RET | BPF_K, 0, 0, otherwise);
        Self(vec![load, test, refuse])
    }

    /// Allows a call if all tests hold.
    fn allow(&mut self, tests: impl IntoIterator<Item = Test>) {
        let tests: Vec<Test> = tests.into_iter().collect();
        for (index, test) in tests.iter().enumerate() {
            // To the instruction after this rule's RET: two for each test that follows, and RET.
            let skip = (2 * (tests.len() - 1 - index) + 1) as u8;
            let load = instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, test.offset);
            let compare = match test.comparison {
                Comparison::Equal => (BPF_JEQ, 0, skip),
                Comparison::AtMost => (BPF_JGT, skip, 0),
            };
            let (operation, if_true, if_false) = compare;
            let code = BPF_JMP | operation | BPF_K;
            self.0.push(load);
            self.0
                .push(instruction(code, if_true, if_false, test.operand));
        }
        let allow = libc::SECCOMP_RET_ALLOW;
        self.0.push(instruction(BPF_RET | BPF_K, 0, 0, allow));
    }

    fn finish(mut self, otherwise: u32) -> Vec<Instruction> {
        self.0.push(instruction(BPF_RET | BPF_K, 0, 0, otherwise));
        self.0
    }
}

/// The runner's filter: each of three instructions of the stub may make one call. All else, and so
/// every call of the guest's program, is a signal.
pub fn runner(layout: Layout, stub: &Stub) -> Vec<[u8; 8]> {
    let mut filter = Filter::new(libc::SECCOMP_RET_TRAP);
    let from = |offset: u64| equal(INSTRUCTION, layout.place + offset);
    let futex = |word: u64, operation: libc::c_int| {
        let operation = equal_word(argument(1), operation as u64);
        equal(argument(0), word).into_iter().chain(operation)
    };
    let tests = from(stub.returned).into_iter();
    filter.allow(tests.chain([number(libc::SYS_rt_sigreturn)]));
    let tests = from(stub.woken)
        .into_iter()
        .chain([number(libc::SYS_futex)]);
    filter.allow(tests.chain(futex(layout.announce(announce::DONE), libc::FUTEX_WAKE)));
    let tests = from(stub.waited)
        .into_iter()
        .chain([number(libc::SYS_futex)])
        .chain(futex(layout.control(control::GO), libc::FUTEX_WAIT));
    filter.allow(tests.chain(equal(argument(3), 0)));
    filter.finish(libc::SECCOMP_RET_TRAP)
}

/// The mapper's filter: mappings of guest RAM, waiting for commands, and a byte to the pipe.
pub fn mapper(layout: Layout) -> Vec<[u8; 8]> {
    let otherwise = libc::SECCOMP_RET_KILL_PROCESS;
    let mut filter = Filter::new(otherwise);
    let all = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u32;
    filter.allow(
        [number(libc::SYS_mmap)]
            .into_iter()
            .chain(at_most(argument(2), all))
            .chain(equal(argument(3), MAP_FLAGS))
            .chain(equal_word(argument(4), RAM_DESCRIPTOR)),
    );
    filter.allow([number(libc::SYS_munmap)]);
    filter.allow(
        [number(libc::SYS_mprotect)]
            .into_iter()
            .chain(at_most(argument(2), all)),
    );
    filter.allow(
        [number(libc::SYS_futex)]
            .into_iter()
            .chain(equal(argument(0), layout.control(control::BATCH)))
            .chain(equal_word(argument(1), libc::FUTEX_WAIT as u64)),
    );
    filter.allow(
        [number(libc::SYS_write)]
            .into_iter()
            .chain(equal_word(argument(0), 1))
            .chain(equal(argument(2), 1)),
    );
    filter.finish(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::DEFAULT_PLACE;
    use crate::stub::stub;

    /// What a filter answers to a call: number, architecture, next instruction, arguments.
    fn answer(filter: &[Instruction], number: i64, instruction: u64, arguments: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend((number as u32).to_le_bytes());
        data.extend(X86_64.to_le_bytes());
        data.extend(instruction.to_le_bytes());
        data.extend(arguments.iter().flat_map(|word| word.to_le_bytes()));
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let bytes = filter[at];
            let operand = u32::from_le_bytes(bytes[4..].try_into().expect("4 bytes"));
            let code = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            at += 1;
            let is_true = if code == BPF_LD | BPF_W | BPF_ABS {
                let word = &data[operand as usize..][..4];
                accumulator = u32::from_le_bytes(word.try_into().expect("4 bytes"));
                continue;
            } else if code == BPF_JMP | BPF_JEQ | BPF_K {
                accumulator == operand
            } else if code == BPF_JMP | BPF_JGT | BPF_K {
                accumulator > operand
            } else {
                return operand;
            };
            at += usize::from(bytes[if is_true { 2 } else { 3 }]);
        }
    }

    const LAYOUT: Layout = Layout {
        place: DEFAULT_PLACE,
        stack_pages: 4,
    };
    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    #[test]
    fn the_runner_may_make_each_call_from_one_instruction_only() {
        let stub = stub();
        let filter = runner(LAYOUT, &stub);
        let done = [LAYOUT.announce(announce::DONE), 1, 1, 0, 0, 0];
        let go = [LAYOUT.control(control::GO), 0, 7, 0, 0, 0];
        let allowed = [
            (libc::SYS_rt_sigreturn, stub.returned, [0; 6]),
            (libc::SYS_futex, stub.woken, done),
            (libc::SYS_futex, stub.waited, go),
        ];
        for (number, from, arguments) in allowed {
            let from = DEFAULT_PLACE + from;
            assert_eq!(answer(&filter, number, from, arguments), ALLOWED);
            for (number, from) in [(number, from + 1), (number, 0x40_0000), (number + 1, from)] {
                assert_eq!(
                    answer(&filter, number, from, arguments),
                    libc::SECCOMP_RET_TRAP
                );
            }
        }
        // Another word, or another operation.
        for (from, arguments) in [
            (stub.woken, [done[0] + 4, 1, 1, 0, 0, 0]),
            (stub.woken, [done[0], 5, 1, 0, 0, 0]),
            (stub.waited, [go[0], 0, 7, 0x1000, 0, 0]),
            (stub.waited, done),
        ] {
            let answered = answer(&filter, libc::SYS_futex, DEFAULT_PLACE + from, arguments);
            assert_eq!(answered, libc::SECCOMP_RET_TRAP);
        }
    }

    #[test]
    fn the_mapper_may_map_guest_ram_and_nothing_else() {
        let filter = mapper(LAYOUT);
        let answer = |number, arguments| answer(&filter, number, 0, arguments);
        let map = [0x1000, 0x1000, 7, MAP_FLAGS, 0, 0];
        assert_eq!(answer(libc::SYS_mmap, map), ALLOWED);
        assert_eq!(answer(libc::SYS_munmap, [0; 6]), ALLOWED);
        let killed = libc::SECCOMP_RET_KILL_PROCESS;
        for (index, value) in [(2, 8), (2, 1 << 32), (3, MAP_FLAGS | 0x20), (4, 1)] {
            let mut other = map;
            other[index] = value;
            assert_eq!(answer(libc::SYS_mmap, other), killed, "{index}");
        }
        for number in
            (0..600).filter(|number| ![libc::SYS_munmap, libc::SYS_mprotect].contains(number))
        {
            assert_eq!(answer(number, [2, 0, 0, 0, 2, 0]), killed, "{number}");
        }
    }
}
