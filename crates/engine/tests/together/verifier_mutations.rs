//! The verifier is run on damaged code: if one instruction of emitted code is changed at random,
//! the verifier refuses the code, or the change is harmless.
//!
//! This test decides what is harmless in other ways than the verifier: by what the decoder says of
//! each instruction, and by a list of what must not be touched. The verifier refuses more than
//! that, since it also follows where a pointer comes from.

use crate::support::emitted::Emitted;
use crate::support::{harm, mode};
use iced_x86::{Decoder, DecoderOptions};
use std::collections::BTreeMap;
use std::path::Path;
use tollgate_engine::abi::sites::{LinkPlace, SiteKind};
use tollgate_engine::verify::{Subject, verify};
use tollgate_test_support::Random;

/// The number of damaged blocks.
const MUTATIONS: usize = 20_000;

/// Blocks in every mode: those of the golden files.
fn blocks() -> Vec<(String, mode::Guest)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let mut blocks = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        for head in text.lines().filter_map(|line| line.strip_prefix("== ")) {
            let (words, rest) = head.split_once(": ").unwrap();
            let bytes = rest.split(' ').next().unwrap();
            blocks.push((head.to_owned(), mode::Guest::of(words, bytes)));
        }
    }
    blocks
}

/// The part of an instruction that is changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Mutation {
    /// The whole instruction becomes another one of the same length.
    Instruction,
    /// Bits of the prefixes, opcode or operands, except constants, change.
    Bits,
    Displacement,
    Immediate,
    /// The target of a branch changes.
    Target,
}

/// Damages one instruction; `None` if the instruction has no such part, or nothing has changed.
fn mutate(code: &[u8], random: &mut Random) -> Option<(Mutation, Vec<u8>)> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut places = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        places.push((instruction, decoder.get_constant_offsets(&instruction)));
    }
    let (instruction, constants) = places[random.below(places.len())];
    let start = instruction.ip() as usize;
    let length = instruction.len();
    let mut damaged = code.to_vec();
    let bytes = &mut damaged[start..start + length];
    let random_bytes = |bytes: &mut [u8], random: &mut Random| {
        // Small and close values are more likely mistakes.
        if random.below(2) == 0 {
            let delta = random.below(33) as u8;
            bytes[0] = bytes[0].wrapping_add(delta).wrapping_sub(16);
        } else {
            bytes.fill_with(|| random.next_u64() as u8);
        }
    };
    let part = |offset: usize, size: usize| offset..offset + size;
    let mutation = match random.below(5) {
        0 => {
            let is_one = |bytes: &[u8]| {
                let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
                let other = decoder.decode();
                !other.is_invalid() && other.len() == bytes.len()
            };
            let found = (0..200).any(|_| {
                bytes.fill_with(|| random.next_u64() as u8);
                is_one(bytes)
            });
            if !found {
                return None;
            }
            Mutation::Instruction
        }
        1 if constants.has_displacement() => {
            let place = part(
                constants.displacement_offset(),
                constants.displacement_size(),
            );
            random_bytes(&mut bytes[place], random);
            Mutation::Displacement
        }
        2 if constants.has_immediate() => {
            let place = part(constants.immediate_offset(), constants.immediate_size());
            random_bytes(&mut bytes[place], random);
            let is_branch = instruction.is_jmp_short_or_near()
                || instruction.is_jcc_short_or_near()
                || instruction.is_jcx_short();
            match is_branch {
                true => Mutation::Target,
                false => Mutation::Immediate,
            }
        }
        _ => {
            let constant = |at: usize| {
                let displacement = part(
                    constants.displacement_offset(),
                    constants.displacement_size(),
                );
                let immediate = part(constants.immediate_offset(), constants.immediate_size());
                displacement.contains(&at) || immediate.contains(&at)
            };
            let others: Vec<usize> = (0..length).filter(|&at| !constant(at)).collect();
            for _ in 0..=random.below(2) {
                bytes[others[random.below(others.len())]] ^= 1 << random.below(8);
            }
            Mutation::Bits
        }
    };
    (damaged != code).then_some((mutation, damaged))
}

#[test]
fn damaged_code_is_refused_or_harmless() {
    let blocks = blocks();
    assert!(blocks.len() > 500, "{}", blocks.len());
    let mut random = Random::new(0x746f_6c6c_6761_7465);
    let mut refused: BTreeMap<Mutation, usize> = BTreeMap::new();
    let mut tried: BTreeMap<Mutation, usize> = BTreeMap::new();
    let mut harmful = 0;
    while tried.values().sum::<usize>() < MUTATIONS {
        let (head, guest) = &blocks[random.below(blocks.len())];
        Emitted::with(guest, |emitted, subject| {
            // Each translated block is damaged several times, since translation takes most of the
            // time.
            for _ in 0..16 {
                let Some((mutation, code)) = mutate(subject.code, &mut random) else {
                    continue;
                };
                *tried.entry(mutation).or_default() += 1;
                let damaged = Subject {
                    code: &code,
                    ..*subject
                };
                let findings = verify(&damaged);
                *refused.entry(mutation).or_default() += usize::from(!findings.is_empty());
                let links = emitted
                    .tables
                    .sites
                    .iter()
                    .filter_map(|site| match site.kind {
                        SiteKind::Link(LinkPlace::Direct { distance, .. }) => Some(distance),
                        _ => None,
                    });
                let harm = harm::harm(&code, &guest.mode, &links.collect::<Vec<_>>());
                harmful += usize::from(harm.is_some());
                assert!(
                    !findings.is_empty() || harm.is_none(),
                    "{head}\n{mutation:?} passes, but {}\n{code:02x?}",
                    harm.unwrap_or_default()
                );
            }
        });
    }
    println!("of {tried:?} were refused {refused:?}; by the oracle {harmful} are harmful");
    // Neither the oracle nor the verifier accepts or refuses everything.
    assert!(harmful * 4 > MUTATIONS, "{harmful}");
    assert!(
        refused.values().sum::<usize>() * 3 > MUTATIONS * 2,
        "{refused:?}"
    );
    for mutation in [Mutation::Target, Mutation::Displacement] {
        assert!(
            refused[&mutation] * 2 > tried[&mutation],
            "{mutation:?}: {refused:?}"
        );
    }
}
