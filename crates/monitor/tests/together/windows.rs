//! Tests programs on stacks and structures of every kind, whose blocks share look-ups among their
//! accesses: they must have the results that they have instruction by instruction, where no look-up
//! is shared.

use crate::support::long_mode::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::{Computer, Random};
use tollgate_x86::{CpuState, PhysicalAddress};

/// Pages whose contents are compared: those of stacks, and the page table that has accessed and
/// dirty bits.
const COMPARED: [u64; 7] = [
    SMALL_RAM[0],
    SMALL_RAM[1],
    READ_ONLY_RAM,
    STACK - 0x1000,
    KERNEL_STACK - 0x1000,
    DATA,
    SMALL_TABLE,
];

/// Runs a program in blocks and instruction by instruction, which must agree.
fn agree(code: &[u8], setup: impl Fn(&mut CpuState, &mut GuestMemory)) -> Computer<Bench> {
    let mut running = run_with(code, &setup);
    let mut stepping = vcpu(code, &setup);
    while stepping.step_one().is_ok() {}
    for page in COMPARED {
        let mut both = [&mut running, &mut stepping].map(|it| {
            let mut bytes = vec![0; 4096];
            assert!(it.memory_mut().read(PhysicalAddress(page), &mut bytes));
            bytes
        });
        let [one, other] = &mut both;
        assert!(one == other, "page {page:#x}\n{}", running.dump());
    }
    running
}

/// The distance from a stack's address to the same stack in a part that an anchor leads to, or
/// zero.
fn common(random: &mut Random) -> u64 {
    random.pick(&[0, COMMON[0], COMMON[1]])
}

/// A program that repeats its steps several times on a stack, at CPL 3.
struct Program(Vec<u8>);

impl Program {
    fn new(stack: u64) -> Self {
        // mov ebp,3; movq xmm5,rbp: the vector registers are never all zero.
        let mut program = Self(vec![0xbd, 3, 0, 0, 0, 0x66, 0x48, 0x0f, 0x6e, 0xed]);
        program.put(&[0x48, 0xbc]); // mov rsp,stack
        program.put(&stack.to_le_bytes());
        program
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds an instruction with an opcode, a register and [rsp+displacement].
    fn with_stack(&mut self, opcode: &[u8], register: u8, wide: bool, displacement: i8) {
        let rex = 0x40 | u8::from(wide) << 3 | (register & 8) >> 1;
        self.put(&[rex]);
        self.put(opcode);
        self.put(&[0x44 | (register & 7) << 3, 0x24, displacement as u8]);
    }

    /// Adds one random step.
    fn step(&mut self, random: &mut Random) {
        let registers = [0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 15];
        let register = random.pick(&registers);
        let displacement = match random.below(3) {
            0 => random.below(256) as u8 as i8,
            _ => 8 * random.below(12) as i8,
        };
        let wide = random.below(3) > 0;
        let some = random.below(24);
        match some {
            0..=5 => {
                if register >= 8 {
                    self.put(&[0x41]);
                }
                let opcode = [0x50, 0x50, 0x50, 0x58, 0x58, 0x58][some];
                self.put(&[opcode | register & 7]);
            }
            6 => self.put(&[0x6a, random.below(256) as u8]),
            7 => self.with_stack(&[0x8b], register, wide, displacement),
            8 => self.with_stack(&[0x89], register, wide, displacement),
            9 => self.with_stack(&[0x01], register, wide, displacement),
            10 => self.with_stack(&[0x87], register, wide, displacement),
            11 => self.with_stack(&[0x03], register, wide, displacement),
            12 => self.with_stack(&[0x0f, 0x11], register, false, displacement),
            13 => self.with_stack(&[0x0f, 0x10], register, false, displacement),
            // sub and add rsp,immediate; lea rsp,[rsp+displacement].
            14 => self.put(&[0x48, 0x83, 0xec, 8 * random.below(15) as u8]),
            15 => self.put(&[0x48, 0x83, 0xc4, 8 * random.below(15) as u8]),
            16 => self.put(&[0x48, 0x8d, 0x64, 0x24, displacement as u8]),
            // A load and a store in other memory, which may miss: mov rax,[address].
            17 | 18 => {
                let opcode = if some == 17 { 0x8b } else { 0x89 };
                self.put(&[0x48, opcode, 0x04, 0x25]);
                let pages = [DATA, DATA + 0x1000, SMALL, SMALL + 0x1000, STACK - 0x2000];
                let address = random.pick(&pages) + 8 * random.below(500) as u64;
                self.put(&(address as u32).to_le_bytes());
            }
            // call next; push next and ret.
            19 => self.put(&[0xe8, 0, 0, 0, 0]),
            20 => {
                let behind = CODE as u32 + self.0.len() as u32 + 6;
                self.put(&[0x68]);
                self.put(&behind.to_le_bytes());
                self.put(&[0xc3]);
            }
            // push and pop [rsp+displacement]; mov [rsp+displacement],ah; shl [..],cl.
            21 => self.put(&[random.pick(&[0xff, 0x8f]), 0, 0x24, displacement as u8]),
            22 => self.put(&[0x88, 0x64, 0x24, displacement as u8]),
            _ => self.put(&[0x48, 0xd3, 0x64, 0x24, displacement as u8]),
        }
        if some == 21 {
            let at = self.0.len() - 3;
            self.0[at] = if self.0[at - 1] == 0xff { 0x74 } else { 0x44 };
        }
    }

    /// Sets a register to a constant.
    fn set(&mut self, register: u8, value: u64) {
        self.put(&[0x48 | register >> 3, 0xb8 | register & 7]);
        self.put(&value.to_le_bytes());
    }

    /// Adds an instruction with an opcode, a register and [base+displacement].
    fn with_base(&mut self, opcode: &[u8], wide: bool, registers: (u8, u8), displacement: i8) {
        let (register, base) = registers;
        self.put(&[0x40 | u8::from(wide) << 3 | (register & 8) >> 1 | base >> 3]);
        self.put(opcode);
        self.put(&[0x40 | (register & 7) << 3 | base & 7, displacement as u8]);
    }

    /// Adds one random step that accesses a structure, or moves the register that points to the
    /// structure.
    fn base_step(&mut self, random: &mut Random) {
        let base = random.pick(&BASES);
        let register = random.pick(&[0, 1, 2, 6, 8, 9]);
        let displacement = match random.below(3) {
            0 => random.below(256) as u8 as i8,
            _ => 8 * random.below(12) as i8,
        };
        let wide = random.below(3) > 0;
        let here = (register, base);
        let by = random.below(9) as i8 * 8 - 32;
        match random.below(26) {
            0..=6 => self.with_base(&[0x8b], wide, here, displacement),
            7..=9 => self.with_base(&[0x89], wide, here, displacement),
            10 => self.with_base(&[0x01], wide, here, displacement),
            11 => self.with_base(&[0x03], wide, here, displacement),
            12 => self.with_base(&[0x87], wide, here, displacement),
            13 => self.with_base(&[0x0f, 0x10], false, here, displacement),
            14 => self.with_base(&[0x0f, 0x11], false, here, displacement),
            15 => self.with_base(&[0x0f, 0xb6], wide, here, displacement),
            16 => self.with_base(&[0x3b], wide, here, displacement),
            // add and sub base,immediate; lea base,[base+displacement]; inc base.
            17 => self.put(&[0x48 | base >> 3, 0x83, 0xc0 | base & 7, by as u8]),
            18 => self.put(&[0x48 | base >> 3, 0x83, 0xe8 | base & 7, by as u8]),
            19 => self.with_base(&[0x8d], true, (base, base), by),
            20 => self.put(&[0x48 | base >> 3, 0xff, 0xc0 | base & 7]),
            // xchg base,base; a doubleword of it; mov base,[base+displacement].
            21 => {
                let other = random.pick(&BASES);
                let rex = 0x48 | (other & 8) >> 1 | base >> 3;
                self.put(&[rex, 0x87, 0xc0 | (other & 7) << 3 | base & 7]);
            }
            22 => self.put(&[0x40 | base >> 3, 0x83, 0xc0 | base & 7, by as u8]),
            23 if random.below(4) == 0 => self.with_base(&[0x8b], true, (base, base), displacement),
            _ => self.step(random),
        }
    }

    /// Adds a step that a conditional branch may skip.
    fn perhaps(&mut self, random: &mut Random) {
        if random.below(2) == 0 {
            // add eax,edx; cmp r8d,edx; test cl,2.
            let tests: [&[u8]; 3] = [&[0x01, 0xd0], &[0x41, 0x39, 0xd0], &[0xf6, 0xc1, 2]];
            self.put(random.pick(&tests));
        }
        let condition = random.below(16) as u8;
        let is_near = random.below(3) == 0;
        match is_near {
            true => self.put(&[0x0f, 0x80 | condition, 0, 0, 0, 0]),
            false => self.put(&[0x70 | condition, 0]),
        }
        let behind = self.0.len();
        self.base_step(random);
        let last = behind - if is_near { 4 } else { 1 };
        self.0[last] = (self.0.len() - behind) as u8;
    }

    /// Adds a call of the code that comes next, through a register or memory.
    fn call_on(&mut self, random: &mut Random) {
        let base = random.pick(&[BASES[0], BASES[1], BASES[2], 4]);
        let displacement = 8 * random.below(8) as i8;
        let call_at = match base {
            4 => vec![0xff, 0x54, 0x24, displacement as u8],
            base => vec![0x40 | base >> 3, 0xff, 0x50 | base & 7, displacement as u8],
        };
        // mov esi,behind; mov r9,rsi
        let call: &[u8] = match random.below(4) {
            0 => &[0xff, 0xd6],
            1 => &[0x41, 0xff, 0xd1],
            _ => &call_at,
        };
        let stores = call.len() > 3;
        let store_length = match (stores, base) {
            (false, _) => 0,
            (_, 4) => 5,
            _ => 4,
        };
        let behind = CODE as usize + self.0.len() + 5 + 3 + store_length + call.len();
        self.put(&[0xbe]);
        self.put(&(behind as u32).to_le_bytes());
        self.put(&[0x49, 0x89, 0xf1]);
        match (stores, base) {
            (false, _) => {}
            (_, 4) => self.with_stack(&[0x89], 6, true, displacement),
            _ => self.with_base(&[0x89], true, (6, base), displacement),
        }
        self.put(call);
        assert_eq!(CODE as usize + self.0.len(), behind);
    }

    fn end(mut self) -> Vec<u8> {
        // dec ebp; jnz to the third instruction; out 0xf4,al
        self.put(&[0xff, 0xcd, 0x0f, 0x85]);
        let back = 10 - (self.0.len() as i32 + 4);
        self.put(&back.to_le_bytes());
        self.put(&[0xe6, 0xf4]);
        self.0
    }
}

#[test]
fn random_programs_do_on_every_stack_what_they_do_step_by_step() {
    let mut random = Random::new(0x7769_6e64_6f77);
    let places = [
        STACK - 0x400,
        SMALL + 0x800,
        SMALL + 0x1000,
        SMALL + 0x1000,
        SMALL + 0x2000,
        SMALL + 0x3000,
        SMALL + 0x3800,
        SMALL + 0x4000,
        SMALL + 0x4800,
        0x8000_0000_0000,
        0x1_0000_0000,
    ];
    for _ in 0..600 {
        let near = random.below(320) as u64;
        let stack = random.pick(&places).wrapping_sub(160).wrapping_add(near);
        let aligned = if random.below(8) > 0 {
            stack & !7
        } else {
            stack
        };
        let mut program = Program::new(aligned | common(&mut random));
        for _ in 0..4 + random.below(26) {
            program.step(&mut random);
        }
        let code = program.end();
        agree(&code, |state, _| as_user(state));
    }
}

/// Registers through which programs access structures.
const BASES: [u8; 3] = [3, 7, 13];

#[test]
fn random_programs_do_to_every_structure_what_they_do_step_by_step() {
    let mut random = Random::new(0x6261_7365_7321);
    let places = [
        DATA + 0x400,
        SMALL + 0x800,
        SMALL + 0x1000,
        SMALL + 0x1000,
        SMALL + 0x2000,
        SMALL + 0x3000,
        SMALL + 0x3800,
        SMALL + 0x4000,
        STACK - 0x400,
        0x8000_0000_0000,
        0x1_0000_0000,
        0,
    ];
    for _ in 0..500 {
        let mut near = |span: usize| {
            let near = random.below(span) as u64;
            random
                .pick(&places)
                .wrapping_sub(span as u64 / 2)
                .wrapping_add(near)
        };
        let stack = near(320) & !7;
        let bases = [near(320), near(320), near(320) & !7];
        let mut program = Program::new(stack | common(&mut random));
        for (base, place) in BASES.into_iter().zip(bases) {
            program.set(base, place);
        }
        for _ in 0..4 + random.below(26) {
            program.base_step(&mut random);
        }
        let code = program.end();
        agree(&code, |state, _| as_user(state));
    }
}

#[test]
fn random_programs_with_branches_do_what_they_do_step_by_step() {
    let mut random = Random::new(0x6272_616e_6368);
    let places = [
        DATA + 0x400,
        SMALL + 0x800,
        SMALL + 0x1000,
        SMALL + 0x2000,
        SMALL + 0x3000,
        SMALL + 0x3800,
        STACK - 0x400,
        0,
    ];
    for _ in 0..400 {
        let mut near = || {
            let near = random.below(320) as u64;
            random.pick(&places).wrapping_sub(160).wrapping_add(near)
        };
        let (stack, bases) = (near() & !7, [near(), near(), near() & !7]);
        let mut program = Program::new(stack | common(&mut random));
        for (base, place) in BASES.into_iter().zip(bases) {
            program.set(base, place);
        }
        for _ in 0..4 + random.below(40) {
            match random.below(8) {
                0..=2 => program.perhaps(&mut random),
                3 => program.call_on(&mut random),
                _ => program.base_step(&mut random),
            }
        }
        agree(&program.end(), |state, _| as_user(state));
    }
}

#[test]
fn a_structure_without_write_permission_is_read_and_faults_when_stored_to() {
    // mov rax,[rbx]; mov rdx,[rbx+18h]; mov rsi,[rbx+8]; mov [rbx+8],rsi
    let mut program = Program::new(STACK - 0x100);
    program.set(3, SMALL + 0x3800);
    for (opcode, register, displacement) in [(0x8b, 0, 0), (0x8b, 2, 0x18), (0x89, 6, 8)] {
        program.with_base(&[opcode], true, (register, 3), displacement);
    }
    let at = program.0.len() as u64 - 4;
    let mut vcpu = agree(&program.end(), |state, memory| {
        as_user(state);
        memory.write_u64(PhysicalAddress(READ_ONLY_RAM + 0x800), 0x1111);
        memory.write_u64(PhysicalAddress(READ_ONLY_RAM + 0x818), 0x2222);
    });
    let fault = caught(&mut vcpu);
    assert_eq!((fault.vector, fault.error, fault.at), (14, Some(7), at));
    assert_eq!((vcpu.state().gpr[0], vcpu.state().gpr[2]), (0x1111, 0x2222));
}

#[test]
fn a_window_that_only_lacked_its_page_is_filled_and_tried_again() {
    // One load needs no shared look-up; two loads do: mov rax,[rbx]; mov rdx,[rbx+18h].
    let exits = [1, 2].map(|accesses| {
        // The address is one that an anchor leads to, if there are anchors, because for other
        // addresses a fault would detect that.
        let mut program = Program::new(COMMON[1] + STACK - 0x100);
        program.set(3, COMMON[1] + DATA + 0x100);
        for (register, displacement) in [(0, 0), (2, 0x18)].into_iter().take(accesses) {
            program.with_base(&[0x8b], true, (register, 3), displacement);
        }
        let vcpu = agree(&program.end(), |state, memory| {
            as_user(state);
            memory.write_u64(PhysicalAddress(DATA + 0x118), 0x2222);
        });
        let is_read = vcpu.state().gpr[2] == 0x2222;
        assert_eq!(is_read, accesses == 2);
        let count = |kind| vcpu.exit_counts().get(kind);
        let misses = count(ExitKind::TlbMissRead) + count(ExitKind::WindowFault);
        [
            misses + vcpu.counts().fast_path(FastPath::ReadMiss),
            count(ExitKind::LinkMiss),
        ]
    });
    assert_eq!(exits[0][0], 1);
    assert_eq!(exits[0], exits[1]);
}

#[test]
fn a_page_fault_comes_on_the_third_of_four_pushes() {
    // The page below SMALL + 3000h is not present; before the first round the page above is looked
    // up.
    let mut program = Program::new(SMALL + 0x1010);
    program.put(&[0x50, 0x51, 0x52, 0x53]);
    let mut vcpu = agree(&program.end(), |state, memory| {
        as_user(state);
        memory.write_u64(PhysicalAddress(SMALL_TABLE), 0);
    });
    let fault = caught(&mut vcpu);
    assert_eq!((fault.vector, fault.error), (14, Some(6)));
    assert_eq!((fault.at, fault.rsp), (22, SMALL + 0x1000));
}

#[test]
fn a_stack_without_write_permission_is_read_and_faults_when_pushed_to() {
    let mut program = Program::new(SMALL + 0x3800);
    program.put(&[0x58, 0x59, 0x48, 0x8b, 0x54, 0x24, 8, 0x53]);
    let mut vcpu = agree(&program.end(), |state, memory| {
        as_user(state);
        memory.write_u64(PhysicalAddress(READ_ONLY_RAM + 0x800), 0x1111);
        memory.write_u64(PhysicalAddress(READ_ONLY_RAM + 0x818), 0x2222);
    });
    let fault = caught(&mut vcpu);
    assert_eq!((fault.vector, fault.error), (14, Some(7)));
    assert_eq!(fault.rsp, SMALL + 0x3810);
    assert_eq!((vcpu.state().gpr[0], vcpu.state().gpr[2]), (0x1111, 0x2222));
}

#[test]
fn code_on_the_stack_that_pushes_over_itself_runs_what_it_pushed() {
    // At SMALL + 100h: push rax overwrites the instructions that follow, which then run.
    let stack = SMALL + 0x110;
    let mut program = Program::new(stack);
    program.put(&[0x48, 0xb8, 0x90, 0x90, 0x90, 0x90, 0xff, 0xc3, 0xff, 0xc3]);
    // mov esi,behind; mov edx,SMALL + 100h; jmp rdx
    let behind = CODE as u32 + program.0.len() as u32 + 12;
    program.put(&[0xbe]);
    program.put(&behind.to_le_bytes());
    program.put(&[0xba]);
    program.put(&(SMALL as u32 + 0x100).to_le_bytes());
    program.put(&[0xff, 0xe2]);
    let vcpu = agree(&program.end(), |state, memory| {
        as_user(state);
        let mut bytes = vec![0x56, 0x5e, 0x50]; // push rsi; pop rsi; push rax
        bytes.resize(8, 0x90);
        // inc edi, four times; jmp rsi
        bytes.extend([0xff, 0xc7, 0xff, 0xc7, 0xff, 0xc7, 0xff, 0xc7, 0xff, 0xe6]);
        memory.write(PhysicalAddress(SMALL_RAM[0] + 0x100), &bytes);
    });
    // The code runs twice in each of three rounds.
    assert_eq!((vcpu.state().gpr[3], vcpu.state().gpr[7]), (6, 0));
}

#[test]
fn a_stack_that_is_mapped_elsewhere_between_two_accesses_is_read_there() {
    let vcpu = run(guest_code!(
        remapped,
        "mov ebp, 3",
        "2:",
        "mov rsp, 0x1000800",
        "mov rdi, 0xffffffff80007000",
        "mov rax, 0x1111",
        "push rax",
        "push rax",
        "mov qword ptr [rdi], 0x302007",
        "invlpg [rsp]",
        "mov rax, 0x2222",
        "mov [rsp], rax",
        "mov [rsp + 8], rbp",
        "pop rbx",
        "pop rcx",
        "mov qword ptr [rdi], 0x300007",
        "invlpg [rsp]",
        "push rbx",
        "mov rdx, [rsp - 8]",
        "dec ebp",
        "jnz 2b",
        "mov rsp, 0x60000",
        "out 0xf4, al",
    ));
    let gpr = vcpu.state().gpr;
    assert_eq!((gpr[3], gpr[1], gpr[2]), (0x2222, 1, 0x1111));
}

#[test]
fn what_a_changed_operand_adds_to_a_register_counts_for_what_is_reached_through_it() {
    // The operand of a subroutine's ADD is changed between calls.
    let vcpu = run_with(
        guest_code!(
            moved_by_more,
            "mov ecx, 8",
            "xor esi, esi",
            "2: mov ebx, 0x20000",
            "call 5f",
            "shl rsi, 8",
            "or rsi, rax",
            "lea rdi, [rip + 6f]",
            "add byte ptr [rdi + 3], 8",
            "dec ecx",
            "jnz 2b",
            "out 0xf4, al",
            "5: mov rdx, [rbx]",
            "6: add rbx, 8",
            "mov rax, [rbx]",
            "mov rdi, [rbx + 8]",
            "ret",
        ),
        |_, memory| {
            for word in 0..12 {
                memory.write_u64(PhysicalAddress(DATA + 8 * word), word);
            }
        },
    );
    assert_eq!(vcpu.state().gpr[6], 0x0102_0304_0506_0708);
}
