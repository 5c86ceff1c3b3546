//! Instructions with many prefixes, up to and above the limit of 15 bytes, in the middle of a page
//! and at the end of one whose successor is missing. The host's processor determines which of them
//! raise #UD, #GP(0) or page faults (SDM volume 2, 2.3.11; APM volume 2, 8.2.14).

use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_oracle::case::{Case, Input};
use tollgate_oracle::layout::{CODE_END, CODE_START, World};
use tollgate_oracle::oracle::{Expectation, Oracle, instructions};

/// REX twice, a legacy prefix of each group, and one that selects opcodes.
const PREFIXES: [u8; 7] = [0x40, 0x48, 0x66, 0x67, 0x2e, 0xf0, 0xf3];

/// Defined and undefined opcodes of each length and kind.
const OPCODES: [&[u8]; 19] = [
    &[0x0f, 0x0b],
    &[0xf4],
    &[0xfa],
    &[0xcc],
    &[0x90],
    &[0xf7, 0xe0],
    &[0xb8, 1, 2, 3, 4],
    &[0x81, 0xc1, 1, 2, 3, 4],
    &[0xcd, 0x81],
    &[0x0f, 0xff, 0xc0],
    &[0x0f, 0x04],
    &[0x0f, 0x38, 0xff],
    &[0xd6],
    &[0x06],
    &[0xfe, 0xf8],
    &[0xc7, 0xf9, 0, 0, 0, 0],
    &[0x8f, 0xc8],
    &[0xc5, 0xf8, 0x58, 0xc0],
    &[0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc0],
];

/// The bytes of a case: `count` prefixes and an opcode; in the middle of a page, undefined one-byte
/// opcodes follow.
fn code(prefix: u8, count: usize, opcode: &[u8], at_end: bool) -> Vec<u8> {
    let mut code = vec![prefix; count];
    code.extend_from_slice(opcode);
    if !at_end {
        code.resize(code.len() + 8, 0xd6);
    }
    code
}

/// Whether the case is compared. EVEX prefixes depend on features that a guest may not have, VEX in
/// 16-bit windows depends on the segment, and the opcode of PUSH ES changes the stack outside
/// 64-bit code.
fn is_compared(world: World, prefix: u8, opcode: &[u8]) -> bool {
    let is_rex = prefix & 0xf0 == 0x40;
    world == World::Long64 || !is_rex && opcode[0] != 0x06
}

/// Whether an instruction is too long and undefined at the same time, because a REX prefix precedes a
/// VEX or EVEX prefix. Which of the two is reported differs between processors (SDM volume 3, table
/// 6-2, note 1: both are faults of decoding).
fn is_undefined_too(prefix: u8, opcode: &[u8]) -> bool {
    prefix & 0xf0 == 0x40 && matches!(opcode[0], 0xc5 | 0x62)
}

#[test]
fn instructions_of_more_than_15_bytes_are_protection_faults() {
    let mut oracle = Oracle::new(&RegisterMap::LEGACY).unwrap();
    let input = Input::plain();
    let mut differing = Vec::new();
    let mut vectors = [0u32; 32];
    for world in [World::Flat32, World::Long64, World::Window16] {
        if !world.is_available() {
            continue;
        }
        for prefix in PREFIXES {
            for opcode in OPCODES {
                if !is_compared(world, prefix, opcode) {
                    continue;
                }
                for count in 7..=17 {
                    for at_end in [false, true] {
                        let code = code(prefix, count, opcode, at_end);
                        let at = match at_end {
                            true => CODE_END - code.len() as u16,
                            false => CODE_START + 0x123,
                        };
                        let case = Case { world, at, code };
                        oracle.load(&case);
                        let code = instructions(&case);
                        let verdict = oracle.run(&case, &code, &input, Expectation::Native);
                        let (expected, got) = (verdict.expected, verdict.got);
                        vectors[usize::from(expected.vector & 31)] += 1;
                        let is_either = is_undefined_too(prefix, opcode)
                            && matches!((expected.vector, got.vector), (6 | 13, 6 | 13))
                            && expected.rip == got.rip;
                        if !is_either && (expected.vector, expected.rip) != (got.vector, got.rip) {
                            differing.push(format!(
                                "{world:?} {:02x?} {}: exception {} at {:x}, here {} at {:x}",
                                case.code,
                                if at_end { "at a page's end" } else { "" },
                                expected.vector,
                                expected.rip,
                                got.vector,
                                got.rip
                            ));
                        }
                    }
                }
            }
        }
    }
    let [undefined, protection, page] = [6, 13, 14].map(|vector: usize| vectors[vector]);
    println!("undefined {undefined}, protection {protection}, page faults {page}");
    assert!(undefined > 500 && protection > 500 && page > 100);
    let count = differing.len();
    differing.truncate(50);
    assert!(count == 0, "{count} differ:\n{}", differing.join("\n"));
}
