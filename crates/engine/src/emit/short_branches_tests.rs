//! Tests that short branches over code reach its end, however long the code is.

use super::emitter::{Emitter, Target};
use crate::abi::host::*;
use crate::abi::register_map::RegisterMap;
use crate::abi::sites::{BlockId, SiteKind};
use crate::abi::state_map::Restore;
use crate::policy::mode::Mode;
use crate::policy::virtual_interrupts::Transition;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use std::collections::BTreeMap;
use tollgate_test_support::Random;
use tollgate_x86::CpuState;

/// A block of pieces. Each begins with `mov eax,number`, has a branch that is taken if RCX is zero,
/// then `mov edx,number` and code that is skipped, and then `mov ebx,number`, where the branch
/// leads. Some pieces have misses before the branch.
fn pieces(random: &mut Random, longest: usize) -> (BTreeMap<u64, Instruction>, Emitter) {
    let mut emit = Emitter::new();
    let begun = emit.begin_block(&Target {
        mode: Mode::of(&CpuState::at_reset()),
        map: &RegisterMap::LEGACY,
        block: BlockId(0),
        linear_page: 0,
        relocates: false,
        slots: &[],
        transition: Transition::Call,
    });
    assert!(begun.is_ok());
    for number in 0..50 {
        emit.begin(2 * u64::from(number), 2 * u64::from(number) + 1);
        emit.make_room();
        emit.assembler.mov_imm32(RAX, number);
        for _ in 0..random.below(3) {
            emit.miss_if_zero(SiteKind::Slow);
        }
        emit.make_room();
        let outer = emit.skip_if_zero();
        emit.note_state_as(2 * u64::from(number) + 1, 0, Restore::NONE);
        emit.assembler.mov_imm32(RDX, number);
        let jump = emit.jmp_across();
        for _ in 0..random.below(longest) {
            emit.assembler.mov(RSI, RSI);
        }
        emit.land(outer);
        emit.note_state(Restore::NONE);
        emit.assembler.mov_imm32(RBX, number);
        let here = emit.assembler.position();
        let jump = emit.jump_across(jump);
        emit.assembler.patch_rel32(jump, here);
    }
    emit.begin(u64::MAX, u64::MAX);
    emit.exit(SiteKind::Continue);
    emit.finish_block();
    let code = Decoder::with_ip(64, emit.assembler.code(), 0, DecoderOptions::NONE);
    let code = code.into_iter().map(|it| (it.ip(), it)).collect();
    (code, emit)
}

/// The instruction at which control arrives from `at` through jumps alone.
fn arrival(code: &BTreeMap<u64, Instruction>, mut at: u64) -> Instruction {
    loop {
        let instruction = code[&at];
        if !instruction.is_jmp_short_or_near() {
            return instruction;
        }
        at = instruction.near_branch64();
    }
}

#[test]
fn a_short_branch_reaches_the_end_of_what_it_skips() {
    let mut random = Random::new(0x73_6b69_7073);
    let mut by_near_jumps = 0;
    for round in 0..600 {
        let (code, emit) = pieces(&mut random, [20, 45, 200][round % 3]);
        let tables = emit.tables();
        let rip_at = |offset: u64| {
            let after = |entry: &crate::abi::state_map::StateEntry| u64::from(entry.host) <= offset;
            tables.state_map[tables.state_map.partition_point(after) - 1].rip
        };
        let mut landed = 0;
        for (&at, instruction) in &code {
            assert!(!instruction.is_invalid());
            if instruction.code() != Code::Mov_r32_imm32 {
                continue;
            }
            let number = instruction.immediate32();
            let completed = instruction.op0_register() == iced_x86::Register::EDX;
            let rip = 2 * u64::from(number) + u64::from(completed);
            assert_eq!(rip_at(at), rip, "{instruction}");
            if !completed {
                continue;
            }
            // The branch comes before this instruction, possibly followed by two jumps.
            let (_, branch) = (code.range(..at).rev())
                .find(|(_, it)| it.code() == Code::Jrcxz_rel8_64)
                .unwrap();
            by_near_jumps += u32::from(branch.next_ip() != at);
            assert_eq!(arrival(&code, branch.next_ip()), *instruction);
            let end = arrival(&code, branch.near_branch64());
            let is_end = end.code() == Code::Mov_r32_imm32 && end.immediate32() == number;
            assert!(
                is_end && end.op0_register() == iced_x86::Register::EBX,
                "{end}"
            );
            // The branch's target belongs to the instruction that branched.
            assert_eq!(rip_at(branch.near_branch64()), 2 * u64::from(number));
            let jump = code[&instruction.next_ip()];
            assert_eq!(jump.near_branch64(), end.next_ip());
            landed += 1;
        }
        assert_eq!(landed, 50);
    }
    assert!(by_near_jumps > 1000, "{by_near_jumps}");
}
