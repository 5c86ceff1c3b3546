//! Instructions that are cut off by the end of a page whose successor is missing: they raise a page
//! fault or #UD. The host's processor is the reference if Intel made it: the manuals do not say how
//! many bytes of an undefined instruction are fetched.

use iced_x86::{Decoder, DecoderError, DecoderOptions};
use std::arch::x86_64::__cpuid;
use std::collections::BTreeSet;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_oracle::case::{Case, Input};
use tollgate_oracle::exclusions::enters_kernel;
use tollgate_oracle::layout::{CODE_END, World};
use tollgate_oracle::oracle::{Expectation, Oracle, instructions};

const PREFIXES: [&[u8]; 6] = [&[], &[0x66], &[0xf0], &[0xf2], &[0xf3], &[0x48]];
/// A ModRM byte with nothing after it, with one, two or four bytes of displacement, with SIB, and
/// with registers.
const MODRM: [u8; 6] = [0x05, 0x06, 0x44, 0x80, 0xc0, 0xf8];
/// More bytes than the rest of any such instruction has.
const REST: [u8; 6] = [0; 6];

/// All opcodes of all maps except EVEX's, whose payload depends on features that the guest is not
/// offered.
fn opcodes() -> Vec<Vec<u8>> {
    let escapes: [&[u8]; 8] = [
        &[],
        &[0x0f],
        &[0x0f, 0x38],
        &[0x0f, 0x3a],
        &[0xc5, 0xf8],
        &[0xc4, 0xe1, 0x78],
        &[0xc4, 0xe2, 0x79],
        &[0xc4, 0xe3, 0x79],
    ];
    let all = escapes
        .into_iter()
        .flat_map(|escape| (0..=0xff).map(move |opcode| [escape, &[opcode]].concat()));
    // C4 and C5 of the one-byte map are among the escapes.
    all.filter(|opcode| !matches!(opcode[..], [0x62 | 0xc4 | 0xc5]))
        .collect()
}

/// Beginnings of an instruction that are not a complete instruction available to the guest.
fn beginnings(world: World, bits: u32) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    for opcode in opcodes() {
        for prefix in PREFIXES {
            // SSE4a's EXTRQ and INSERTQ have immediates; Intel's processors have neither.
            if opcode == [0x0f, 0x78] && matches!(prefix, [0x66 | 0xf2]) {
                continue;
            }
            if prefix == [0x48] && world != World::Long64 {
                continue;
            }
            // After the other escapes all prefixes behave the same.
            if opcode.len() > 2 && !matches!(prefix, [] | [0x66]) {
                continue;
            }
            for modrm in MODRM {
                let whole = [prefix, &opcode, &[modrm], &REST].concat();
                for length in 1..=whole.len() {
                    let code = &whole[..length];
                    let mut decoder = Decoder::new(bits, code, DecoderOptions::NONE);
                    let _ = decoder.decode();
                    if decoder.last_error() == DecoderError::None || enters_kernel(code) {
                        break;
                    }
                    all.insert(code.to_vec());
                }
            }
        }
    }
    all
}

#[test]
fn an_undefined_instruction_faults_in_the_next_page_if_it_goes_on_there() {
    let maker = __cpuid(0);
    if (maker.ebx, maker.edx, maker.ecx) != (0x756e_6547, 0x4965_6e69, 0x6c65_746e) {
        println!("the host's processor is not Intel's");
        return;
    }
    let mut oracle = Oracle::new(&RegisterMap::LEGACY).unwrap();
    let input = Input::plain();
    let mut differing = Vec::new();
    let mut ends = [0u32; 2];
    for (world, bits) in [
        (World::Flat32, 32),
        (World::Long64, 64),
        (World::Window16, 16),
    ] {
        if !world.is_available() {
            continue;
        }
        for code in beginnings(world, bits) {
            let case = Case {
                world,
                at: CODE_END - code.len() as u16,
                code,
            };
            oracle.load(&case);
            let code = instructions(&case);
            let verdict = oracle.run(&case, &code, &input, Expectation::Native);
            let (expected, got) = (verdict.expected, verdict.got);
            ends[usize::from(expected.vector == 14)] += 1;
            if (expected.vector, expected.rip) != (got.vector, got.rip) {
                differing.push(format!(
                    "{world:?} {:02x?}: exception {} at {:x}, here {} at {:x}",
                    case.code, expected.vector, expected.rip, got.vector, got.rip
                ));
            }
        }
    }
    println!("undefined {}, page faults {}", ends[0], ends[1]);
    assert!(ends[0] > 10_000 && ends[1] > 10_000);
    let count = differing.len();
    differing.truncate(50);
    assert!(count == 0, "{count} differ:\n{}", differing.join("\n"));
}
