//! A guest of random instructions: a multiboot image that any machine can boot.
//!
//! Every instruction has its own slot. The slot sets the stack pointer and the registers of the
//! instruction's memory operand, so that the operand lies in a scratch area, executes the
//! instruction, and jumps to the next slot. An exception continues at the next slot, too. The guest
//! uses only unprivileged integer instructions of the 80486, and CMOV and CMPXCHG8B, in 32-bit code
//! with flat segments except FS (which has a base) and GS (which has a limit). Instructions that
//! transfer control only lead to the next instruction.
//!
//! Values that the manual leaves undefined never reach later instructions. At its end, the guest
//! writes its registers and the scratch area to port E9h, so that whole runs at full speed can be
//! compared, too.

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind,
    Register,
};

/// The address of the image.
const BASE: u32 = 0x10_0000;
const HEADER_BYTES: u32 = 32;
const DESCRIPTOR_TABLE: u32 = BASE + 0x100;
const TABLE_REGISTERS: u32 = BASE + 0x140;
const HANDLERS: u32 = BASE + 0x200;
const INTERRUPT_TABLE: u32 = BASE + 0x300;
const START: u32 = BASE + 0x400;
const SLOTS: u32 = BASE + 0x2000;
const SLOT_BYTES: u32 = 64;
/// The data of the instructions and their stack, below 1 MiB.
const SCRATCH: u32 = 0x4_0000;
const SCRATCH_BYTES: u32 = 0x2000;
const STACK: u32 = 0x5_0000;
/// The data that pops read: not an exception's frame, which differs between processors.
const POPPED: u32 = SCRATCH + 0x40;
/// Memory below this is cleared at the start.
const CLEARED_BYTES: u32 = 0x6_0000;
const FS_BASE: u32 = 0x10;
const EXCEPTIONS: u32 = 32;
/// The exceptions that push an error code, as a bit mask.
const WITH_ERROR_CODE: u32 = 0x2_7d00;

/// Pseudo-random numbers (xorshift64*). This is not the generator in `test-support`, which starts
/// in another state: a seed must always produce the same guest.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }

    /// A random operand: an edge case of arithmetic, or any value.
    fn operand(&mut self) -> u32 {
        let corners = [
            0,
            1,
            2,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0xffff,
            0x7fff_ffff,
            0x8000_0000,
            u32::MAX,
        ];
        match self.below(3) {
            0 => corners[self.below(corners.len() as u32) as usize],
            1 => self.below(64),
            _ => self.next(),
        }
    }
}

/// The image of a guest that executes `count` random instructions and ends through isa-debug-exit.
pub fn image(seed: u64, count: u32) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1);
    let mut image = vec![0x90; (SLOTS - BASE + SLOT_BYTES * (count + 1)) as usize];
    let end = BASE + image.len() as u32;
    let mut put = |address: u32, bytes: &[u8]| {
        let start = (address - BASE) as usize;
        image[start..start + bytes.len()].copy_from_slice(bytes);
    };
    let magic = 0x1bad_b002u32;
    let flags = 1u32 << 16;
    let header = [
        magic,
        flags,
        magic.wrapping_add(flags).wrapping_neg(),
        BASE,
        BASE,
        end,
        end,
        START,
    ];
    debug_assert_eq!(HEADER_BYTES as usize, header.len() * 4);
    put(BASE, &words(&header));
    let flat = [0, 0, 0xffff, 0x00cf_9b00, 0xffff, 0x00cf_9300];
    let with_base_and_limit = [FS_BASE << 16 | 0xffff, 0x00cf_9300, 0xffff, 0x004f_9300];
    put(
        DESCRIPTOR_TABLE,
        &words(&[&flat[..], &with_base_and_limit].concat()),
    );
    put(TABLE_REGISTERS, &table_register(DESCRIPTOR_TABLE, 40));
    put(
        TABLE_REGISTERS + 8,
        &table_register(INTERRUPT_TABLE, EXCEPTIONS * 8),
    );
    // add esp, 4 | and dword ptr [esp], -64 | add dword ptr [esp], 64 | iretd
    let mut handler = vec![0x83, 0xc4, 0x04, 0x83, 0x24, 0x24, 0xc0];
    handler.extend([0x83, 0x04, 0x24, SLOT_BYTES as u8, 0xcf]);
    put(HANDLERS, &handler);
    // This excludes NMI, whose gate distinguishes an NMI from an exception.
    for vector in (0..EXCEPTIONS).filter(|&vector| vector != 2) {
        let handler = if WITH_ERROR_CODE >> vector & 1 != 0 {
            HANDLERS
        } else {
            HANDLERS + 3
        };
        let gate = [
            (handler & 0xffff) | 8 << 16,
            (handler & 0xffff_0000) | 0x8e00,
        ];
        put(INTERRUPT_TABLE + 8 * vector, &words(&gate));
    }
    put(START, &start_code(&mut random));
    for slot in 0..count {
        put(
            SLOTS + SLOT_BYTES * slot,
            &slot_code(&mut random, SLOTS + SLOT_BYTES * slot),
        );
    }
    put(SLOTS + SLOT_BYTES * count, &end_code());
    image
}

/// Writes registers and scratch area to port E9h, and ends with code 16.
fn end_code() -> Vec<u8> {
    const REGISTERS_BYTES: u32 = 32;
    // mov esp | pushad | cld | mov dx, 0xe9
    let mut code = load(4, SCRATCH);
    code.extend([0x60, 0xfc, 0x66, 0xba, 0xe9, 0x00]);
    code.extend(load(6, SCRATCH - REGISTERS_BYTES));
    code.extend(load(1, REGISTERS_BYTES + SCRATCH_BYTES));
    // rep outsb | mov al, 16 | out 0xf4, al | hlt
    code.extend([0xf3, 0x6e, 0xb0, 0x10, 0xe6, 0xf4, 0xf4]);
    code
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn table_register(base: u32, bytes: u32) -> Vec<u8> {
    let mut register = (bytes as u16 - 1).to_le_bytes().to_vec();
    register.extend(base.to_le_bytes());
    register
}

/// Loads tables and segment registers, and initializes the scratch area and the registers.
fn start_code(random: &mut Random) -> Vec<u8> {
    let mut code = vec![0xfa, 0x0f, 0x01, 0x15];
    code.extend(TABLE_REGISTERS.to_le_bytes());
    code.extend([0x0f, 0x01, 0x1d]);
    code.extend((TABLE_REGISTERS + 8).to_le_bytes());
    code.push(0xea);
    code.extend((START + code.len() as u32 + 6).to_le_bytes());
    code.extend([8, 0]);
    // mov eax, 16 | mov ds, es, ss | mov eax, 24 | mov fs | mov eax, 32 | mov gs
    code.extend([0xb8, 16, 0, 0, 0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0]);
    code.extend([0xb8, 24, 0, 0, 0, 0x8e, 0xe0, 0xb8, 32, 0, 0, 0, 0x8e, 0xe8]);
    code.extend(load(7, 0));
    code.extend(load(1, CLEARED_BYTES / 4));
    // cld | xor eax, eax | rep stosd
    code.extend([0xfc, 0x31, 0xc0, 0xf3, 0xab]);
    for index in 0..128 {
        code.extend([0xc7, 0x05]);
        code.extend((SCRATCH + 64 * index).to_le_bytes());
        code.extend(random.operand().to_le_bytes());
    }
    for register in [0, 1, 2, 3, 5, 6, 7] {
        code.extend(load(register, random.operand()));
    }
    // jmp SLOTS
    code.push(0xe9);
    code.extend(
        SLOTS
            .wrapping_sub(START + code.len() as u32 + 4)
            .to_le_bytes(),
    );
    code
}

/// mov r32, imm32
fn load(register: u8, value: u32) -> Vec<u8> {
    let mut code = vec![0xb8 + register];
    code.extend(value.to_le_bytes());
    code
}

fn slot_code(random: &mut Random, address: u32) -> Vec<u8> {
    loop {
        let Some((instruction, bytes)) = random_instruction(random) else {
            continue;
        };
        let pops = instruction.stack_pointer_increment() > 0;
        let mut code = load(4, if pops { POPPED } else { STACK } + random.below(16));
        let interesting = random.below(8) as u8;
        if interesting != 4 {
            code.extend(load(interesting, random.operand()));
        }
        let Some(set_up) = set_up(random, &instruction) else {
            continue;
        };
        code.extend(set_up);
        code.extend(bytes);
        if crate::compare::undefined_flags(&instruction) != 0 {
            // cmp esp, 16 sets all flags to defined values.
            code.extend([0x83, 0xfc, 0x10]);
        }
        let rest = i64::from(SLOT_BYTES) - code.len() as i64;
        if rest < 2 {
            continue;
        }
        debug_assert_eq!(address % SLOT_BYTES, 0);
        code.extend([0xeb, (rest - 2) as u8]);
        return code;
    }
}

/// Random bytes that decode to an instruction of the permitted kinds.
fn random_instruction(random: &mut Random) -> Option<(Instruction, Vec<u8>)> {
    let mut bytes = Vec::new();
    for prefix in [0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x64, 0x65] {
        if random.below(if prefix == 0x66 { 4 } else { 24 }) == 0 {
            bytes.push(prefix);
        }
    }
    if random.below(3) == 0 {
        bytes.push(0x0f);
    }
    while bytes.len() < 16 {
        bytes.push(random.next() as u8);
    }
    let instruction = Decoder::new(32, &bytes, DecoderOptions::NONE).decode();
    bytes.truncate(instruction.len());
    is_allowed(&instruction).then_some(())?;
    // Branches lead to the next instruction.
    match instruction.op0_kind() {
        OpKind::NearBranch32 => {
            let displacement = if instruction.len() >= 5 && is_long_branch(&instruction) {
                4
            } else {
                1
            };
            let start = bytes.len() - displacement;
            bytes[start..].fill(0);
        }
        OpKind::NearBranch16 => return None,
        _ => {}
    }
    Some((instruction, bytes))
}

fn is_long_branch(instruction: &Instruction) -> bool {
    instruction.is_jmp_near() || instruction.is_call_near() || instruction.is_jcc_near()
}

fn is_allowed(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let features = [
        CpuidFeature::INTEL8086,
        CpuidFeature::INTEL186,
        CpuidFeature::INTEL286,
        CpuidFeature::INTEL386,
        CpuidFeature::INTEL486,
        CpuidFeature::CMOV,
        CpuidFeature::CX8,
    ];
    let excluded = matches!(
        instruction.mnemonic(),
        Enter
            | Leave
            | Popf
            | Popfd
            | Sti
            | Cli
            | Hlt
            | Wait
            | Int
            | Int1
            | Syscall
            | Sysenter
            | Rsm
            | Lds
            | Les
            | Lfs
            | Lgs
            | Lss
            | In
            | Out
            | Insb
            | Insw
            | Insd
            | Outsb
            | Outsw
            | Outsd
            | Iret
            | Iretd
    );
    let flow = matches!(
        instruction.flow_control(),
        FlowControl::Next
            | FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::Call
            | FlowControl::Interrupt
            | FlowControl::Exception
    );
    let far = instruction.is_jmp_far() || instruction.is_call_far();
    let writes_stack_pointer = instruction.op_count() > 0
        && matches!(instruction.op0_register(), Register::ESP | Register::SP)
        || instruction.op_count() > 1
            && matches!(instruction.op1_register(), Register::ESP | Register::SP);
    // The manual leaves these results undefined: always, or for counts above 16.
    let undefined = (instruction.mnemonic() == Bswap && instruction.op0_register().size() == 2)
        || (matches!(instruction.mnemonic(), Shld | Shrd)
            && instruction.op1_register().size() == 2);
    // Processors execute it as TEST, QEMU refuses it.
    let test_alias = matches!(
        instruction.code(),
        Code::Test_rm8_imm8_F6r1 | Code::Test_rm16_imm16_F7r1 | Code::Test_rm32_imm32_F7r1
    );
    let loads_segment = instruction.op_count() > 0
        && instruction.op0_register().is_segment_register()
        && instruction.mnemonic() != Push;
    !instruction.is_invalid()
        && instruction
            .cpuid_features()
            .iter()
            .all(|feature| features.contains(feature))
        && !instruction.is_privileged()
        && instruction.memory_segment() != Register::CS
        && flow
        && !(excluded || undefined || test_alias || far || writes_stack_pointer || loads_segment)
}

/// Code that directs the memory operand, and other possible accesses, to harmless addresses.
fn set_up(random: &mut Random, instruction: &Instruction) -> Option<Vec<u8>> {
    use Mnemonic::*;
    let mut code = Vec::new();
    let inside = SCRATCH + SCRATCH_BYTES / 2 + random.below(256);
    if instruction.is_string_instruction() || matches!(instruction.mnemonic(), Xlatb) {
        code.extend(load(6, inside));
        code.extend(load(7, inside + random.below(64)));
        code.extend(if instruction.mnemonic() == Xlatb {
            load(3, inside)
        } else {
            load(1, random.below(40))
        });
        return Some(code);
    }
    let narrow = |register: Register| {
        matches!(
            register,
            Register::BX | Register::BP | Register::SI | Register::DI
        )
    };
    if instruction.memory_base() == Register::None && instruction.memory_index() == Register::None {
        let has_memory =
            (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
        let address = instruction.memory_displacement32();
        let harmless = address < 0x8_0000;
        return (!has_memory || harmless).then_some(code);
    }
    if narrow(instruction.memory_base()) || narrow(instruction.memory_index()) {
        // Sixteen bits only address the first 64 KiB, which are unused.
        return is_bit_test(instruction)
            .then_some(())
            .map_or(Some(code), |()| None);
    }
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    if is_bit_test(instruction) && instruction.op1_kind() == OpKind::Register {
        let register = instruction.op1_register().full_register32();
        if register == base || register == index {
            return None;
        }
        code.extend(load(register.number() as u8, random.below(512)));
    }
    let small = random.below(16);
    let mut target = inside.wrapping_sub(instruction.memory_displacement32());
    if index != Register::None {
        let factor = instruction.memory_index_scale();
        if index == base {
            let value = target / (factor + 1);
            code.extend(load(index.number() as u8, value));
            // The remainder of the division does not matter; an overflow does.
            return (instruction.memory_displacement32() < 0x100).then_some(code);
        }
        code.extend(load(index.number() as u8, small));
        target = target.wrapping_sub(small * factor);
    }
    match base {
        Register::None => return (instruction.memory_displacement32() < 0x8_0000).then_some(code),
        Register::ESP => {
            return (64..0x1000)
                .contains(&instruction.memory_displacement32())
                .then_some(code);
        }
        _ => code.extend(load(base.number() as u8, target)),
    }
    Some(code)
}

fn is_bit_test(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_guest() {
        assert_eq!(image(1, 50), image(1, 50));
        assert_ne!(image(1, 50), image(2, 50));
    }

    #[test]
    fn the_image_has_a_multiboot_header_with_addresses() {
        let image = image(3, 10);
        assert_eq!(image[..4], 0x1bad_b002u32.to_le_bytes());
        assert_eq!(image[28..32], START.to_le_bytes());
        assert_eq!(image.len() as u32, SLOTS - BASE + 11 * SLOT_BYTES);
    }

    #[test]
    fn privileged_and_segment_loading_instructions_are_left_out() {
        let decode = |bytes: &[u8]| Decoder::new(32, bytes, DecoderOptions::NONE).decode();
        assert!(is_allowed(&decode(&[0x01, 0xc8])));
        for bytes in [
            &[0x0f, 0x22, 0xc0][..],
            &[0x8e, 0xd8],
            &[0xcf],
            &[0xf4],
            &[0x89, 0xc4],
            &[0xc3],
            &[0x1f],
        ] {
            assert!(!is_allowed(&decode(bytes)), "{bytes:x?}");
        }
    }
}
