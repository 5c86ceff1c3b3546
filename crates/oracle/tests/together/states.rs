//! The guest does what the host's processor does.

use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_oracle::case::Input;
use tollgate_oracle::families::Family;
use tollgate_oracle::generate::{Catalog, expectation};
use tollgate_oracle::guest::Continuation;
use tollgate_oracle::layout::World;
use tollgate_oracle::oracle::{Expectation, Oracle, instructions};
use tollgate_oracle::run::{Plan, Summary, run};
use tollgate_oracle::{replay, report, shrink};

/// Minimum number of states of each family in a run of 200,000.
const LEAST: u64 = 300;

fn assert_agreement(summary: &Summary) {
    println!("{}", summary.table());
    assert!(
        summary.failures.is_empty(),
        "the guest differs from the host's processor:\n\n{}",
        summary.failures.join("\n")
    );
}

#[test]
fn two_hundred_thousand_states_end_as_on_the_hosts_processor() {
    let summary = run(&Plan {
        states: 200_000,
        seed: 2026,
        ..Plan::default()
    })
    .unwrap();
    assert_agreement(&summary);
    assert!(summary.undecided < summary.total() / 100);
    let catalog = Catalog::new(World::legacy());
    for &family in Family::ALL {
        let generated = matches!(family, Family::RandomBytes | Family::Program);
        let states = summary.states.get(&family).copied().unwrap_or(0);
        if generated || catalog.sizes().contains_key(&family) {
            assert!(states >= LEAST, "{}: {states} states", family.name());
        }
    }
}

#[test]
fn a_hundred_thousand_states_of_64_bit_code_end_as_on_the_hosts_processor() {
    let summary = run(&Plan {
        states: 100_000,
        seed: 64,
        worlds: World::long(),
        ..Plan::default()
    })
    .unwrap();
    assert_agreement(&summary);
    assert!(summary.undecided < summary.total() / 100);
    for &family in Catalog::new(World::long()).sizes().keys() {
        let states = summary.states.get(&family).copied().unwrap_or(0);
        assert!(states >= LEAST / 2, "{}: {states} states", family.name());
    }
}

#[test]
fn compatibility_mode_makes_no_difference() {
    let summary = run(&Plan {
        states: 40_000,
        seed: 32,
        compatibility: true,
        ..Plan::default()
    })
    .unwrap();
    assert_agreement(&summary);
}

#[test]
fn a_restored_machine_continues_each_state_as_the_hosts_processor_does() {
    for (seed, worlds) in [(11, World::legacy()), (12, World::long())] {
        let summary = run(&Plan {
            states: 2_000,
            seed,
            worlds,
            continuation: Continuation::Restored,
            ..Plan::default()
        })
        .unwrap();
        assert_agreement(&summary);
    }
}

#[test]
fn registers_in_memory_make_no_difference() {
    let summary = run(&Plan {
        states: 40_000,
        seed: 7,
        map: &RegisterMap::SPILLED,
        ..Plan::default()
    })
    .unwrap();
    assert_agreement(&summary);
}

#[test]
fn every_instruction_of_the_decoder_has_an_encoding_and_each_family_some() {
    assert_eq!(Catalog::new(World::long()).missing, []);
    let catalog = Catalog::new(World::legacy());
    assert_eq!(catalog.missing, []);
    let sizes = catalog.sizes();
    for &family in Family::ALL {
        let generated = matches!(family, Family::RandomBytes | Family::Program);
        // The guest is not offered what the host lacks.
        let optional = matches!(
            family,
            Family::Avx2
                | Family::Fma
                | Family::Gather
                | Family::Aes
                | Family::Bmi
                | Family::Avx512
                | Family::Avx512Masked
                | Family::Avx512Memory
                | Family::Avx512Mask
                | Family::Avx512Gather
        );
        assert!(
            generated || optional || sizes.contains_key(&family),
            "{}",
            family.name()
        );
    }
}

/// Runs `code` as 32-bit and as 64-bit code, with this expectation.
fn assert_ends_as_expected(code: &str, expected: Expectation) {
    let mut oracle = Oracle::new(&RegisterMap::LEGACY).unwrap();
    for world in ["flat32", "high64"] {
        let line = format!("world={world} code={code}");
        let (case, input) = replay::read(&line).unwrap();
        assert_eq!(expectation(&case), expected, "{code}");
        let (text, agree) = report::describe(&mut oracle, &case, &input, expected);
        assert!(agree, "{text}");
    }
}

#[test]
fn what_the_guest_is_not_offered_is_undefined_there() {
    for code in [
        "c7f800000000", // xbegin
        "0f01e8",       // serialize
        "660f38f800",   // movdir64b eax, [eax]
        "0f0fc19e",     // pfadd mm0, mm1
    ] {
        assert_ends_as_expected(code, Expectation::Undefined);
    }
}

#[test]
fn what_only_some_hosts_have_is_defined_on_those() {
    let has_avx512 = is_x86_feature_detected!("avx512f");
    let has_vaes = is_x86_feature_detected!("vaes");
    let has_gfni = is_x86_feature_detected!("gfni");
    for (code, is_there) in [
        ("62f17c4858c0", has_avx512), // vaddps zmm0, zmm0, zmm0
        ("c5ec41c9", has_avx512),     // kandw k1, k2, k1
        ("c4e27ddcc1", has_vaes),     // vaesenc ymm0, ymm0, ymm1
        ("c4e279cfc1", has_gfni),     // vgf2p8mulb xmm0, xmm0, xmm1
    ] {
        let expected = match is_there {
            true => Expectation::Native,
            false => Expectation::Undefined,
        };
        assert_ends_as_expected(code, expected);
    }
}

#[test]
fn a_difference_is_found_shrunk_and_reproduced() {
    let mut oracle = Oracle::new(&RegisterMap::LEGACY).unwrap();
    // Two instructions that complete, compared with the wrong expectation #UD.
    let line = "world=flat32 at=1800 code=9040 gpr=11,22,33,44,55,66,77,88 flags=8d7 poke=7000:ff";
    let (case, input) = replay::read(line).unwrap();
    let verdict = oracle.run(&case, &instructions(&case), &input, Expectation::Native);
    // The case was not loaded: the code pages contain only INT3.
    assert!(verdict.differences.is_empty());
    let (small, least) = shrink::shrink(&mut oracle, &case, &input, Expectation::Undefined);
    assert_eq!(small.code.len(), 1);
    assert_eq!(least, Input::plain());
    let (text, agree) = report::describe(&mut oracle, &small, &least, Expectation::Undefined);
    assert!(!agree);
    let again = text
        .split("--replay '")
        .nth(1)
        .and_then(|rest| rest.split('\'').next());
    assert_eq!(replay::read(again.unwrap()), Ok((small, least)));
    assert!(
        text.contains("vector: expected 00000006, got 00000003"),
        "{text}"
    );
}
