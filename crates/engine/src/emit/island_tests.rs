//! Tests that short branches reach their exits whatever code is in between.

use super::emitter::{Emitter, Target};
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::abi::register_map::RegisterMap;
use crate::abi::sites::{BlockId, SiteKind, unpack_site};
use crate::abi::state_map::{Restore, StateEntry};
use crate::policy::mode::Mode;
use crate::policy::virtual_interrupts::Transition;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use std::collections::BTreeMap;
use tollgate_test_support::Random;
use tollgate_x86::CpuState;

/// A block of pieces. Each piece is `mov eax,number`, possibly a miss, and other instructions after
/// it.
struct Pieces {
    code: BTreeMap<u64, Instruction>,
    state_map: Vec<StateEntry>,
    sites: Vec<(u32, u64)>,
}

fn pieces(random: &mut Random) -> Pieces {
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
    // Some rounds have long sequences, others have many branches.
    let longest = [3, 30, 150][random.below(3)];
    for number in 0..40 + random.below(60) as u32 {
        emit.begin(number.into(), u64::from(number) + 1);
        emit.make_room();
        emit.assembler.mov_imm32(RAX, number);
        for _ in 0..random.below(longest) {
            // This instruction has 3 bytes.
            emit.assembler.mov(RBX, RBX);
        }
        for _ in 0..random.below(4) {
            emit.miss_if_zero(SiteKind::Slow);
            for _ in 0..random.below(longest) {
                emit.assembler.mov32(RDX, RDX);
            }
            if random.below(2) == 0 {
                emit.make_room();
            }
        }
    }
    emit.begin(u64::MAX, u64::MAX);
    emit.exit(SiteKind::Continue);
    emit.finish_block();
    let tables = emit.tables();
    let code = Decoder::with_ip(64, emit.assembler.code(), 0, DecoderOptions::NONE);
    Pieces {
        code: code.into_iter().map(|it| (it.ip(), it)).collect(),
        state_map: tables.state_map.to_vec(),
        sites: (tables.sites.iter().map(|site| (site.retry, site.rip))).collect(),
    }
}

impl Pieces {
    fn state_at(&self, offset: u64) -> &StateEntry {
        let behind = |entry: &StateEntry| u64::from(entry.host) <= offset;
        &self.state_map[self.state_map.partition_point(behind) - 1]
    }

    /// The site that is named by the exit at an offset or at the target of a jump there.
    fn exit_at(&self, offset: u64) -> usize {
        let mut place = offset;
        loop {
            let (_, instruction) = self.code.range(place..).next().expect("an exit");
            place = instruction.next_ip();
            if instruction.is_jmp_short_or_near() {
                place = instruction.near_branch64();
            } else if instruction.code() == Code::Mov_rm32_imm32
                && instruction.memory_displacement64() as i64 == i64::from(at::EXIT_SITE)
            {
                return unpack_site(instruction.immediate32()).1;
            }
        }
    }
}

#[test]
fn each_branch_reaches_its_own_exit_over_any_distance() {
    let mut random = Random::new(0x69_736c_616e_6473);
    let mut islands = 0;
    for _ in 0..2000 {
        let pieces = pieces(&mut random);
        let mut site = 0;
        for instruction in pieces.code.values() {
            assert!(!instruction.is_invalid());
            match instruction.code() {
                Code::Jrcxz_rel8_64 => {
                    assert_eq!(pieces.exit_at(instruction.near_branch64()), site);
                    // The island's jump belongs to the same instruction.
                    let way = pieces.state_at(instruction.near_branch64());
                    assert_eq!(way.rip, pieces.sites[site].1);
                    assert_eq!(way.restore, Restore::NONE);
                    site += 1;
                }
                // The state map names a piece as itself, and a return to the piece finds it.
                Code::Mov_r32_imm32 => {
                    let number = u64::from(instruction.immediate32());
                    assert_eq!(pieces.state_at(instruction.ip()).rip, number);
                }
                Code::Jmp_rel8_64 => islands += 1,
                _ => {}
            }
        }
        assert_eq!(site + 1, pieces.sites.len());
        for &(retry, rip) in &pieces.sites[..site] {
            let mut at = &pieces.code[&u64::from(retry)];
            if at.code() == Code::Jmp_rel8_64 {
                at = &pieces.code[&at.near_branch64()];
            }
            assert_eq!(at.code(), Code::Mov_r32_imm32);
            assert_eq!(u64::from(at.immediate32()), rip);
        }
    }
    assert!(islands > 10_000, "{islands}");
}
