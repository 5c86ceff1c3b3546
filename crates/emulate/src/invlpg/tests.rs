//! Tests of INVLPG.

use crate::Outcome;
use crate::test_environment::{long_mode, protected_mode, run};
use tollgate_x86::{LinearAddress, SegmentRegister, Space, TranslationChange};

#[test]
fn invlpg_names_the_linear_page_without_checking_the_limit() {
    let (mut state, mut environment) = protected_mode(0);
    state.segments[3].base = 0x1000;
    state.segments[3].limit = 0;
    state.gpr[0] = 0xffff_f123;
    run(&mut state, &mut environment, &[0x0f, 0x01, 0x38]).unwrap();
    let page = TranslationChange::page(Space::loaded(&state), LinearAddress(0x123));
    assert_eq!(environment.changes, [page]);
}

#[test]
fn invlpg_takes_64_bits_and_ignores_what_is_not_canonical() {
    let (mut state, mut environment) = long_mode(0);
    state.gpr[0] = 0xffff_8123_4567_89ab;
    // invlpg [rax]; the base of DS is ignored.
    state.segment_mut(SegmentRegister::Ds).base = 0x1000;
    run(&mut state, &mut environment, &[0x0f, 0x01, 0x38]).unwrap();
    state.gpr[0] = 0x8000_0000_0000;
    run(&mut state, &mut environment, &[0x0f, 0x01, 0x38]).unwrap();
    let linear = LinearAddress(0xffff_8123_4567_89ab);
    let change = TranslationChange::page(Space::loaded(&state), linear);
    assert_eq!(environment.changes, [change]);
}

#[test]
fn an_invlpg_that_stops_has_invalidated_nothing_yet() {
    let (mut state, mut environment) = protected_mode(0);
    let before = state.clone();
    environment.interrupted = true;
    let stopped = run(&mut state, &mut environment, &[0x0f, 0x01, 0x38]);
    assert_eq!(stopped, Ok(Outcome::Repeat));
    assert_eq!(state, before);
    assert!(environment.changes.is_empty());
}
