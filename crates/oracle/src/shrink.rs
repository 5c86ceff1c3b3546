//! Reduces a failing state: fewer instructions, simple registers, empty memory.

use crate::case::{Case, Fill, Input};
use crate::oracle::{Expectation, Oracle, instructions};
use tollgate_x86::xsave::{OPMASK, ZMM_16_TO_31, ZMM_HIGH};

fn fails(oracle: &mut Oracle, case: &Case, input: &Input, expectation: Expectation) -> bool {
    let code = instructions(case);
    oracle.load(case);
    let verdict = oracle.run(case, &code, input, expectation);
    !verdict.differences.is_empty() && !verdict.undecided
}

fn shorter(case: &Case) -> Vec<Case> {
    let code = instructions(case);
    if code.len() < 2 {
        return Vec::new();
    }
    (0..code.len())
        .map(|skip| Case {
            code: code
                .iter()
                .enumerate()
                .filter(|(index, _)| *index != skip)
                .flat_map(|(_, one)| one.bytes.clone())
                .collect(),
            ..case.clone()
        })
        .collect()
}

fn simpler(input: &Input) -> Vec<Input> {
    let plain = Input::plain();
    let mut candidates = Vec::new();
    let mut add = |change: &dyn Fn(&mut Input)| {
        let mut candidate = input.clone();
        change(&mut candidate);
        candidate.settle();
        if candidate != *input {
            candidates.push(candidate);
        }
    };
    add(&|input| input.pokes.clear());
    add(&|input| input.fill = Fill::Zero);
    add(&|input| input.vector.copy_from_slice(&plain.vector[..]));
    add(&|input| input.flags = plain.flags);
    for poke in 0..input.pokes.len() {
        add(&|input| {
            input.pokes.remove(poke);
        });
    }
    for register in 0..16 {
        add(&|input| input.gpr[register] = 0);
        add(&|input| input.gpr[register] &= 0xffff);
        add(&|input| input.gpr[register] &= 0xffff_ffff);
    }
    for bit in [0u32, 2, 4, 6, 7, 10, 11, 14, 21] {
        add(&|input| input.flags &= !(1 << bit));
    }
    let parts = [0..2, 2..4, 4..5, 6..24, 24..28];
    let registers = (0..16)
        .flat_map(|n| [32 + n * 16, 160 + n * 16, 576 + n * 16])
        .map(|start| start..start + 16)
        .chain(
            (0..8)
                .map(|n| OPMASK.start + n * 8)
                .map(|start| start..start + 8),
        )
        .chain(
            (0..16)
                .map(|n| ZMM_HIGH.start + n * 32)
                .map(|start| start..start + 32),
        )
        .chain(
            (0..16)
                .map(|n| ZMM_16_TO_31.start + n * 64)
                .map(|start| start..start + 64),
        );
    for range in parts.into_iter().chain(registers) {
        add(&|input| input.vector[range.clone()].copy_from_slice(&plain.vector[range.clone()]));
    }
    candidates
}

/// The smallest failing case and state that can be reached by single steps.
pub fn shrink(
    oracle: &mut Oracle,
    case: &Case,
    input: &Input,
    expectation: Expectation,
) -> (Case, Input) {
    let (mut case, mut input) = (case.clone(), input.clone());
    while let Some(found) = shorter(&case)
        .into_iter()
        .find(|candidate| fails(oracle, candidate, &input, expectation))
    {
        case = found;
    }
    while let Some(found) = simpler(&input)
        .into_iter()
        .find(|candidate| fails(oracle, &case, candidate, expectation))
    {
        input = found;
    }
    (case, input)
}
