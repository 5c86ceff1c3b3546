//! Random cases: every `Code` of iced-x86 that exists in the worlds' code, random bytes, and short
//! programs.

use crate::case::Case;
use crate::encode::{Encoded, decode, encode, exists, random_bytes};
use crate::exclusions::{enters_kernel, is_hint_space, reason};
use crate::families::{Family, family_of, is_offered, is_svm};
use crate::layout::World;
use crate::oracle::{Expectation, instructions};
use iced_x86::{Code, DecoderOptions, FlowControl, Mnemonic};
use std::collections::BTreeMap;
use tollgate_test_support::Random;

/// A case with its expectation.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The case to run.
    pub case: Case,
    /// The instructions of the case.
    pub code: Vec<Encoded>,
    /// The family that it counts for.
    pub family: Family,
    /// The expected result.
    pub expectation: Expectation,
}

/// All instructions, by family.
pub struct Catalog {
    by_family: BTreeMap<Family, Vec<(World, Code)>>,
    offered: Vec<(World, Code)>,
    worlds: &'static [World],
    /// Instructions that exist but for which no encoding was found.
    pub missing: Vec<(World, Code)>,
}

fn start_address(random: &mut Random) -> u16 {
    match random.below(12) {
        // Across the boundary of the two code pages.
        0 => 0x1ff0 + random.below(16) as u16,
        _ => 0x1100 + random.below(0x1d00) as u16,
    }
}

impl Catalog {
    /// Encodes every instruction once in each world, and sorts them by family.
    pub fn new(worlds: &'static [World]) -> Self {
        let mut catalog = Self {
            worlds,
            by_family: BTreeMap::new(),
            offered: Vec::new(),
            missing: Vec::new(),
        };
        let mut random = Random::new(1);
        for &world in worlds {
            for code in Code::values().filter(|&code| exists(code, world)) {
                let mut families = Vec::new();
                let (mut offered, mut found) = (false, false);
                // For some families prefixes matter: LOCK, REP. Few operands of a gather can be encoded in
                // 16-bit code.
                let tries = (0..64).filter_map(|_| encode(code, world, 0x1800, &mut random));
                for one in tries.take(12) {
                    found = true;
                    if reason(&one.instruction).is_some() {
                        continue;
                    }
                    offered |= is_offered(&one.instruction);
                    let family = family_for(&one);
                    if family.is_some_and(|family| !families.contains(&family)) {
                        families.extend(family);
                    }
                }
                // Some instructions exist only on old or other makers' processors: POP CS on the
                // 8086, UD0 without operands, VIA's MONTMUL with addresses of 16 and 64 bits.
                let elsewhere = code.op_code().decoder_option() != DecoderOptions::NONE
                    || matches!(
                        code,
                        Code::Popw_CS | Code::Ud0 | Code::Montmul_16 | Code::Montmul_64
                    );
                if !found && !elsewhere {
                    catalog.missing.push((world, code));
                }
                for family in families {
                    catalog
                        .by_family
                        .entry(family)
                        .or_default()
                        .push((world, code));
                }
                if offered {
                    catalog.offered.push((world, code));
                }
            }
        }
        catalog
    }

    /// The number of encodings in each family.
    pub fn sizes(&self) -> BTreeMap<Family, usize> {
        self.by_family
            .iter()
            .map(|(family, codes)| (*family, codes.len()))
            .collect()
    }

    /// A random case, of one family if one is wanted.
    pub fn plan(&self, wanted: Option<Family>, random: &mut Random) -> Planned {
        loop {
            let planned = match wanted {
                Some(Family::RandomBytes) => self.bytes(random),
                Some(Family::Program) => self.program(random),
                Some(family) => self.single(Some(family), random),
                None => match random.below(32) {
                    0..=3 => self.bytes(random),
                    4..=6 => self.program(random),
                    7 => self.single(Some(Family::NotOffered), random),
                    8..=19 => self.single(None, random),
                    _ => {
                        let family = Family::ALL[random.below(Family::ALL.len() - 3)];
                        self.single(Some(family), random)
                    }
                },
            };
            if let Some(planned) = planned
                && !enters_kernel(&planned.case.code)
            {
                return planned;
            }
        }
    }

    fn single(&self, family: Option<Family>, random: &mut Random) -> Option<Planned> {
        let codes = match family {
            Some(family) => self.by_family.get(&family)?,
            None => &self.offered,
        };
        let (world, code) = *codes.get(random.below(codes.len().max(1)))?;
        let at = start_address(random);
        let one = encode(code, world, at, random)?;
        if reason(&one.instruction).is_some() {
            return None;
        }
        let found = family_for(&one)?;
        if family.is_some_and(|family| family != found) {
            return None;
        }
        Some(planned(world, at, one, found))
    }

    /// Two to four instructions, of which only the last may branch.
    fn program(&self, random: &mut Random) -> Option<Planned> {
        let world = random.pick(self.worlds);
        let at = start_address(random);
        let count = 2 + random.below(3);
        let mut code: Vec<u8> = Vec::new();
        let mut undefined = 0;
        for index in 0..count {
            let kind = loop {
                let (its_world, kind) = random.pick(&self.offered);
                if its_world == world {
                    break kind;
                }
            };
            let one = encode(kind, world, at + code.len() as u16, random)?;
            let instruction = &one.instruction;
            let branches = instruction.flow_control() != FlowControl::Next;
            let family = family_for(&one)?;
            if reason(instruction).is_some()
                || matches!(
                    family,
                    Family::X87Image | Family::Image | Family::SegmentLoad | Family::NotOffered
                )
                // The stack is not prepared for the second instruction.
                || matches!(instruction.mnemonic(), Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq)
                || (branches && index + 1 != count)
                || instruction.rflags_read() & undefined != 0
            {
                return None;
            }
            undefined &= !instruction.rflags_modified();
            undefined |= instruction.rflags_undefined();
            code.extend(&one.bytes);
        }
        let case = Case { world, at, code };
        let code = instructions(&case);
        (code.len() == count).then_some(Planned {
            case,
            code,
            family: Family::Program,
            expectation: Expectation::Native,
        })
    }

    fn bytes(&self, random: &mut Random) -> Option<Planned> {
        let world = random.pick(self.worlds);
        let at = start_address(random);
        let one = random_bytes(world, at, random)?;
        if reason(&one.instruction).is_some() || crate::exclusions::loads_segment(&one.instruction)
        {
            return None;
        }
        let family = family_for(&one)?;
        let mut planned = planned(world, at, one, family);
        planned.family = Family::RandomBytes;
        Some(planned)
    }
}

fn family_for(one: &Encoded) -> Option<Family> {
    if is_offered(&one.instruction) {
        Some(family_of(&one.instruction))
    } else if is_hint_space(&one.instruction) {
        None
    } else {
        Some(Family::NotOffered)
    }
}

fn planned(world: World, at: u16, one: Encoded, family: Family) -> Planned {
    Planned {
        case: Case {
            world,
            at,
            code: one.bytes.clone(),
        },
        expectation: expectation_of(&one),
        code: vec![one],
        family,
    }
}

/// The expectation for a case from a reproducer.
pub fn expectation(case: &Case) -> Expectation {
    let mut padded = case.code.clone();
    padded.extend([0xcc; 15]);
    match decode(case.world, case.at, &padded) {
        Some(one) => expectation_of(&one),
        None => Expectation::Native,
    }
}

fn expectation_of(one: &Encoded) -> Expectation {
    match family_for(one) {
        Some(Family::NotOffered) if !is_svm(&one.instruction) => Expectation::Undefined,
        _ => Expectation::Native,
    }
}
