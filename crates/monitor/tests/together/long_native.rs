//! Tests that random 64-bit code has the same results in a guest as on the host's own processor: in
//! blocks, instruction by instruction, and interrupted all the time.

use crate::support::long_mode::*;
use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use std::arch::global_asm;
use tollgate_engine::policy::allow_list::{Features, Treatment, treatment};
use tollgate_engine::policy::mode::Mode;
use tollgate_monitor::VcpuStop;
use tollgate_platform::StopRequest;
use tollgate_test_support::{Computer, Random};
use tollgate_x86::{CpuState, Flags, PhysicalAddress};

/// Address of the data of programs, in the guest and in this process.
const ARENA: u64 = 0x2000_0000;
const ARENA_BYTES: usize = 0x2000;
/// Physical address of this data in the guest's RAM.
const ARENA_RAM: u64 = 0x40_0000;
/// Offsets at which a program stores its vector registers and counts its rounds.
const VECTORS: u32 = 0x1000;
const ROUNDS_AT: u32 = 0x1ff0;
const RSP: usize = 4;
/// The instruction `out F4h, al`, which ends the run.
const EXIT: [u8; 2] = [0xe6, 0xf4];

global_asm!(
    // The arguments are RDI, the address of 16 registers and the flags, and RSI, the address of
    // code that ends with RET. The symbol is global, because other codegen units refer to it.
    ".globl tollgate_test_native",
    "tollgate_test_native:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdi",
    "push rsi",
    "push 0x1f80",
    "ldmxcsr [rsp]",
    "pop rax",
    "push qword ptr [rdi + 128]",
    "popfq",
    "mov rax, [rdi]",
    "mov rcx, [rdi + 8]",
    "mov rdx, [rdi + 16]",
    "mov rbx, [rdi + 24]",
    "mov rbp, [rdi + 40]",
    "mov rsi, [rdi + 48]",
    "mov r8, [rdi + 64]",
    "mov r9, [rdi + 72]",
    "mov r10, [rdi + 80]",
    "mov r11, [rdi + 88]",
    "mov r12, [rdi + 96]",
    "mov r13, [rdi + 104]",
    "mov r14, [rdi + 112]",
    "mov r15, [rdi + 120]",
    "mov rdi, [rdi + 56]",
    "call qword ptr [rsp]",
    "pushfq",
    "push rdi",
    "mov rdi, [rsp + 24]",
    "pop qword ptr [rdi + 56]",
    "pop qword ptr [rdi + 128]",
    "mov [rdi], rax",
    "mov [rdi + 8], rcx",
    "mov [rdi + 16], rdx",
    "mov [rdi + 24], rbx",
    "mov [rdi + 40], rbp",
    "mov [rdi + 48], rsi",
    "mov [rdi + 64], r8",
    "mov [rdi + 72], r9",
    "mov [rdi + 80], r10",
    "mov [rdi + 88], r11",
    "mov [rdi + 96], r12",
    "mov [rdi + 104], r13",
    "mov [rdi + 112], r14",
    "mov [rdi + 120], r15",
    "pop rsi",
    "pop rdi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "cld",
    "ret",
);

unsafe extern "sysv64" {
    fn tollgate_test_native(registers: *mut u64, code: *const u8);
}

/// A special value of arithmetic, or a random one.
fn value(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.next_u64() % 4,
        1 => (random.next_u64() % 4).wrapping_neg(),
        2 => 1 << random.below(64),
        3 => random.next_u64() & 0xff_ffff,
        _ => random.next_u64(),
    }
}

/// Memory of this process at a fixed address.
struct Mapping(u64, usize);

impl Mapping {
    fn new(address: u64, bytes: usize, protection: i32) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the mapping is new, at an address where nothing is mapped.
        let mapped = unsafe { libc::mmap(address as *mut _, bytes, protection, flags, -1, 0) };
        assert_eq!(mapped as u64, address, "the host lets us have {address:#x}");
        Self(address, bytes)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping belongs to this value and can be read and written.
        unsafe { std::slice::from_raw_parts_mut(self.0 as *mut u8, self.1) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.0 as *mut _, self.1) };
    }
}

/// The results of a program.
#[derive(PartialEq, Debug)]
struct End {
    registers: [u64; 16],
    flags: u64,
    memory: Vec<u8>,
}

fn is_comparable(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let stack = |register: Register| register.full_register() == Register::RSP;
    let names_stack =
        (0..instruction.op_count()).any(|index| stack(instruction.op_register(index)));
    let foreign = instruction.cpuid_features().iter().any(|feature| {
        use CpuidFeature::*;
        matches!(feature, FPU | FPU287 | FPU387 | MMX)
    });
    let far_bit = matches!(instruction.mnemonic(), Bt | Bts | Btr | Btc)
        && instruction.op0_kind() == OpKind::Memory
        && instruction.op1_kind() == OpKind::Register;
    let names_mm = (0..instruction.op_count()).any(|index| instruction.op_register(index).is_mm());
    !(names_stack
        || names_mm
        || foreign
        || far_bit
        || instruction.is_string_instruction()
        || instruction.stack_pointer_increment() != 0
        || matches!(
            instruction.mnemonic(),
            Div | Idiv
                | Rdtsc
                | Rdtscp
                | Rdpid
                | Rdrand
                | Rdseed
                | Ldmxcsr
                | Vldmxcsr
                | Xlatb
                | Maskmovdqu
                | Vmaskmovdqu
                | Cld
                | Std
        ))
}

/// A random instruction on registers, or on memory in the arena with instructions that compute its
/// address.
fn instruction(mode: &Mode, features: &Features, random: &mut Random) -> Vec<u8> {
    const BYTES: [u8; 17] = [
        0x00, 0x02, 0x08, 0x0a, 0x10, 0x12, 0x22, 0x28, 0x32, 0x38, 0x84, 0x86, 0x88, 0x8a, 0xd2,
        0xf6, 0xfe,
    ];
    const BYTES_0F: [u8; 6] = [0xb0, 0xc0, 0xb6, 0xbe, 0x94, 0x9c];
    loop {
        let mut code = Vec::new();
        let rex = 0x40 | random.next_u64() as u8 & 15;
        let legacy = random.pick(&[0x66, 0xf2, 0xf3, 0xf0]);
        let (prefixes, opcode): (Vec<u8>, Vec<u8>) = match random.next_u64() % 10 {
            0 | 1 => (vec![rex], vec![random.next_u64() as u8]),
            2 => (vec![], vec![random.next_u64() as u8]),
            3 => (vec![legacy, rex], vec![random.next_u64() as u8]),
            4 => (vec![rex], vec![0x0f, random.next_u64() as u8]),
            5 => (vec![legacy, rex], vec![0x0f, random.next_u64() as u8]),
            6 => {
                let map = random.pick(&[0x38, 0x3a]);
                (vec![legacy, rex], vec![0x0f, map, random.next_u64() as u8])
            }
            7 => {
                let second = (random.next_u64() & 0xe0) as u8 | random.pick(&[1, 2, 3]);
                let third = random.next_u64() as u8;
                (vec![], vec![0xc4, second, third, random.next_u64() as u8])
            }
            8 => (
                if random.next_u64() & 1 == 0 {
                    vec![]
                } else {
                    vec![rex]
                },
                vec![random.pick(&BYTES)],
            ),
            _ => (
                if random.next_u64() & 1 == 0 {
                    vec![]
                } else {
                    vec![rex]
                },
                vec![0x0f, random.pick(&BYTES_0F)],
            ),
        };
        code.extend(prefixes);
        code.extend(opcode);
        let register = (random.next_u64() as u8 & 7) << 3;
        if random.next_u64() & 1 == 0 {
            code.push(0xc0 | register | random.next_u64() as u8 & 7);
        } else {
            // The operand has a base, an index and a displacement of 8 bits.
            code.extend([0x44 | register, random.next_u64() as u8, 0x40]);
        }
        code.extend(std::iter::repeat_with(|| random.next_u64() as u8).take(8));
        let decoded = Decoder::with_ip(64, &code, CODE, DecoderOptions::NONE).decode();
        if decoded.is_invalid()
            || decoded.flow_control() != FlowControl::Next
            || !matches!(
                treatment(&decoded, mode, features),
                Treatment::Copy | Treatment::CopyVector
            )
            || !is_comparable(&decoded)
        {
            continue;
        }
        code.truncate(decoded.len());
        let has_memory = decoded.op_kinds().any(|kind| kind == OpKind::Memory);
        if !has_memory {
            return code;
        }
        let (base, index) = (decoded.memory_base(), decoded.memory_index());
        let usable = base.is_gpr64()
            && base != Register::RSP
            && (index == Register::None || index.is_gpr64() && index != base)
            && decoded.memory_displacement64() == 0x40
            && !decoded.has_segment_prefix();
        // The address of LEA may be anything, so it does not show whether the address was computed
        // correctly.
        if !usable {
            continue;
        }
        let load = |register: Register, value: u32| {
            let number = register.number() as u8;
            let mut code = vec![0x48 | number >> 3, 0xc7, 0xc0 | number & 7];
            code.extend(value.to_le_bytes());
            code
        };
        let at = ARENA as u32 + (random.next_u64() as u32 & 0xf) * 64;
        let mut complete = load(base, at);
        if index != Register::None {
            complete.extend(load(index, (random.next_u64() as u32 & 3) * 64));
        }
        complete.extend(code);
        return complete;
    }
}

/// Six instructions between VZEROALL and stores of all vector registers, in `rounds` rounds.
fn program(state: &CpuState, rounds: u32, random: &mut Random) -> Vec<u8> {
    let policy = tollgate_emulate::cpuid::policy_of(state.model);
    let features = Features::new(|feature| policy.offers(feature));
    let mode = Mode::of(state);
    let mut code = vec![0xc5, 0xfc, 0x77];
    for _ in 0..12 {
        code.extend(instruction(&mode, &features, random));
    }
    for number in 0..16u8 {
        // vmovdqu [VECTORS + number * 32], ymm
        let second = if number < 8 { 0xfe } else { 0x7e };
        code.extend([0xc5, second, 0x7f, (number & 7) << 3 | 4, 0x25]);
        code.extend((ARENA as u32 + VECTORS + u32::from(number) * 32).to_le_bytes());
    }
    if rounds > 1 {
        // dec dword [ROUNDS_AT]; jnz to the start
        code.extend([0xff, 0x0c, 0x25]);
        code.extend((ARENA as u32 + ROUNDS_AT).to_le_bytes());
        let distance = -(code.len() as i32 + 6);
        code.extend([0x0f, 0x85]);
        code.extend(distance.to_le_bytes());
    }
    code
}

fn filling(seed: u64, rounds: u32) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes: Vec<u8> = (0..ARENA_BYTES).map(|_| random.next_u64() as u8).collect();
    bytes[ROUNDS_AT as usize..][..4].copy_from_slice(&rounds.to_le_bytes());
    bytes
}

fn run_natively(start: &[u64; 16], flags: u64, code: &[u8], memory: &[u8]) -> End {
    let mut arena = Mapping::new(ARENA, ARENA_BYTES, libc::PROT_READ | libc::PROT_WRITE);
    arena.bytes().copy_from_slice(memory);
    let everything = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let mut text = Mapping::new(ARENA + 0x10_0000, 0x1000, everything);
    text.bytes()[..code.len()].copy_from_slice(code);
    text.bytes()[code.len()] = 0xc3;
    let mut registers = [0; 17];
    registers[..16].copy_from_slice(start);
    registers[16] = flags | 0x202;
    // SAFETY: the code changes only registers, flags and the arena, and returns.
    unsafe { tollgate_test_native(registers.as_mut_ptr(), text.0 as *const u8) };
    let mut ended = End {
        registers: [0; 16],
        flags: registers[16] & Flags::ARITHMETIC.bits(),
        memory: arena.bytes().to_vec(),
    };
    ended.registers.copy_from_slice(&registers[..16]);
    ended
}

fn prepare(start: &[u64; 16], flags: u64, code: &[u8], memory: &[u8]) -> Computer<Bench> {
    let code = [code, &EXIT].concat();
    vcpu(&code, |state, ram| {
        state.gpr = *start;
        state.flags = flags;
        ram.write_u64(PhysicalAddress(0x3000 + 0x100 * 8), ARENA_RAM | 0x87);
        ram.write(PhysicalAddress(ARENA_RAM), memory);
    })
}

fn ended(mut vcpu: Computer<Bench>, stop: &VcpuStop) -> End {
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        vcpu.dump()
    );
    let mut memory = vec![0; ARENA_BYTES];
    vcpu.memory_mut()
        .read(PhysicalAddress(ARENA_RAM), &mut memory);
    let state = vcpu.state();
    End {
        registers: state.gpr,
        flags: state.flags & Flags::ARITHMETIC.bits(),
        memory,
    }
}

fn run_kicked(mut vcpu: Computer<Bench>) -> End {
    let stop = vcpu.run_kicked();
    ended(vcpu, &stop)
}

fn run_stepped(mut vcpu: Computer<Bench>) -> End {
    for _ in 0..100_000 {
        if let Err(stop) = vcpu.step_one() {
            return ended(vcpu, &stop);
        }
    }
    panic!("the program never ends");
}

fn check(what: &str, code: &[u8], start: &[u64; 16], found: &End, expected: &End) {
    let listing = || {
        let decoder = Decoder::with_ip(64, code, CODE, DecoderOptions::NONE);
        let lines: Vec<_> = decoder
            .into_iter()
            .map(|i| format!("{:x} {i}", i.ip()))
            .collect();
        lines.join("\n")
    };
    let places = found.memory.iter().zip(&expected.memory).enumerate();
    let differs: Vec<_> = places.filter(|(_, (a, b))| a != b).take(8).collect();
    assert!(
        found == expected,
        "{what}\n{}\nfrom     {start:x?}\nexpected {:x?} {:x}\nfound    {:x?} {:x}\nmemory {differs:x?}",
        listing(),
        expected.registers,
        expected.flags,
        found.registers,
        found.flags,
    );
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn random_64_bit_code_does_the_same_as_on_the_host() {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return;
    }
    let seed = number("TOLLGATE_RANDOM_SEED", 1);
    for program_number in 0..number("TOLLGATE_RANDOM_PROGRAMS", 400) {
        let mut random = Random::new(seed ^ (program_number + 1) << 20);
        let is_loop = program_number % 40 == 0;
        let rounds = if is_loop { 20_000 } else { 1 };
        let mut start = [0; 16];
        start.fill_with(|| value(&mut random));
        start[RSP] = STACK;
        let flags = random.next_u64() & Flags::ARITHMETIC.bits();
        let template = vcpu(&[], |_, _| {});
        let code = program(template.state(), rounds, &mut random);
        let memory = filling(random.next_u64() | 1, rounds);
        let mut expected = run_natively(&start, flags, &code, &memory);
        expected.registers[RSP] = STACK;
        let what = format!("program {program_number}");
        let make = || prepare(&start, flags, &code, &memory);
        if is_loop {
            let kicked = run_kicked(make());
            check(
                &format!("{what}, interrupted"),
                &code,
                &start,
                &kicked,
                &expected,
            );
            continue;
        }
        let mut running = make();
        let stop = running.run();
        check(&what, &code, &start, &ended(running, &stop), &expected);
        let stepped = run_stepped(make());
        check(
            &format!("{what}, stepped"),
            &code,
            &start,
            &stepped,
            &expected,
        );
    }
}
