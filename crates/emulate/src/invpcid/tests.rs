//! Tests of process-context identifiers: CR4.PCIDE, CR3 and INVPCID.

use crate::Outcome;
use crate::control::set_cr0;
use crate::test_environment::{
    GDT, TestEnvironment, compatibility_mode, long_mode, protected_mode, real_mode, run,
    virtual_8086_mode,
};
use tollgate_x86::{
    CpuModel, CpuState, Cr0, Cr4, Exception, LinearAddress, PhysicalAddress, SegmentRegister,
    Space, TranslationChange,
};

const MOV_CR3_RAX: [u8; 3] = [0x0f, 0x22, 0xd8];
const MOV_CR4_RAX: [u8; 3] = [0x0f, 0x22, 0xe0];
const INVPCID_RAX_RBX: [u8; 5] = [0x66, 0x0f, 0x38, 0x82, 0x03];
const GP: Result<Outcome, Exception> = Err(Exception::general_protection(0));
const UD: Result<Outcome, Exception> = Err(Exception::invalid_opcode());
const KEEPS: u64 = 1 << 63;
/// Address of INVPCID's descriptor.
const DESCRIPTOR: usize = 0x7_0000;

/// 64-bit mode with identifier 5 of the address space at 7000h.
fn with_identifiers() -> (CpuState, TestEnvironment) {
    let (mut state, environment) = long_mode(0);
    state.cr4 |= Cr4::PCIDE.bits();
    state.cr3 = 0x7005;
    (state, environment)
}

fn invalidate(
    (mut state, mut environment): (CpuState, TestEnvironment),
    kind: u64,
    identifier: u64,
    linear: u64,
) -> (Result<Outcome, Exception>, Vec<TranslationChange>) {
    environment.put_u64(DESCRIPTOR, identifier);
    environment.put_u64(DESCRIPTOR + 8, linear);
    state.gpr[0] = kind;
    state.gpr[3] = DESCRIPTOR as u64;
    let result = run(&mut state, &mut environment, &INVPCID_RAX_RBX);
    (result, environment.changes)
}

#[test]
fn identifiers_are_switched_on_in_long_mode_with_an_identifier_of_zero() {
    for (mut state, mut environment) in [long_mode(0), compatibility_mode(0)] {
        state.gpr[0] = state.cr4 | Cr4::PCIDE.bits();
        for cr3 in [0x7001, 0x7008, 0x7800] {
            state.cr3 = cr3;
            assert_eq!(run(&mut state, &mut environment, &MOV_CR4_RAX), GP);
        }
        state.cr3 = 0x7000;
        run(&mut state, &mut environment, &MOV_CR4_RAX).unwrap();
        assert!(state.cr4().contains(Cr4::PCIDE));
        assert_eq!(environment.changes, []);
        // Once PCIDE is set, the identifier does not matter.
        state.cr3 = 0x7fff;
        run(&mut state, &mut environment, &MOV_CR4_RAX).unwrap();
    }
    let (mut state, mut environment) = protected_mode(0);
    state.cr3 = 0;
    state.gpr[0] = (Cr4::PCIDE | Cr4::PAE).bits();
    assert_eq!(run(&mut state, &mut environment, &MOV_CR4_RAX), GP);
}

#[test]
fn switching_identifiers_off_forgets_global_pages_too() {
    let (mut state, mut environment) = with_identifiers();
    state.gpr[0] = state.cr4 & !Cr4::PCIDE.bits();
    run(&mut state, &mut environment, &MOV_CR4_RAX).unwrap();
    assert_eq!(environment.changes, [TranslationChange::Everything]);
    assert_eq!(state.cr3, 0x7005);
}

#[test]
fn paging_stays_on_while_identifiers_are() {
    let (mut state, mut environment) = compatibility_mode(0);
    state.cr4 |= Cr4::PCIDE.bits();
    let without = state.cr0 & !Cr0::PG.bits();
    let refused = Err(Exception::general_protection(0));
    assert_eq!(set_cr0(&mut state, &mut environment, without), refused);
    state.cr4 &= !Cr4::PCIDE.bits();
    assert_eq!(set_cr0(&mut state, &mut environment, without), Ok(()));
}

#[test]
fn bit_63_of_cr3_is_not_stored_and_lets_translations_be_kept() {
    let (mut state, mut environment) = with_identifiers();
    for value in [
        KEEPS | 0x7005,
        0x7005,
        KEEPS | 0x7006,
        0x7006,
        KEEPS | 0x8006,
    ] {
        environment.changes.clear();
        let from = Space::loaded(&state);
        state.gpr[0] = value;
        run(&mut state, &mut environment, &MOV_CR3_RAX).unwrap();
        assert_eq!(state.cr3, value & !KEEPS);
        let to = Space {
            tables: Some(PhysicalAddress(value & 0xf000)),
            identifier: value as u16 & 0xfff,
            has_identifier: true,
        };
        let keeps = value & KEEPS != 0;
        let load = TranslationChange::Load { from, to, keeps };
        assert_eq!(environment.changes, [load]);
    }
    state.gpr[0] = KEEPS | 1 << 40;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR3_RAX), GP);
    state.gpr[0] = 1 << 62;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR3_RAX), GP);
    state.cr4 &= !Cr4::PCIDE.bits();
    state.gpr[0] = KEEPS | 0x7005;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR3_RAX), GP);
}

#[test]
fn invpcid_forgets_what_its_type_names_of_whichever_identifier() {
    use TranslationChange::{Everything, Spaces};
    let high = 0xffff_8123_4567_8000;
    let page =
        |identifier| TranslationChange::page(Space::identified(identifier), LinearAddress(high));
    let space = |identifier| TranslationChange::Space(Space::identified(identifier));
    for (kind, identifier, linear, changes) in [
        (0, 5, high, vec![page(5)]),
        (0, 6, high, vec![page(6)]),
        (1, 5, 0, vec![space(5)]),
        (1, 0xfff, 0, vec![space(0xfff)]),
        (2, 0, 0, vec![Everything]),
        (2, 0xfff, 0, vec![Everything]),
        (3, 7, 0, vec![Spaces]),
        // Only type 0 uses the address.
        (1, 5, 1 << 63, vec![space(5)]),
        (3, 0, 1 << 63, vec![Spaces]),
    ] {
        let done = invalidate(with_identifiers(), kind, identifier, linear);
        assert_eq!(done, (Ok(Outcome::Next), changes), "type {kind}");
    }
    // Without CR4.PCIDE, the low bits of CR3 are not an identifier: it is zero.
    let (mut state, environment) = long_mode(0);
    state.cr3 = 0x7018;
    let done = invalidate((state, environment), 1, 0, 0);
    assert_eq!(done, (Ok(Outcome::Next), vec![space(0)]));
}

#[test]
fn invpcid_refuses_reserved_bits_types_addresses_and_identifiers() {
    let nothing: Vec<TranslationChange> = Vec::new();
    for (kind, identifier, linear) in [
        (4, 5, 0),
        (u64::MAX, 5, 0),
        (1 << 32, 5, 0),
        (0, 0x1005, 0),
        (1, 1 << 63, 0),
        (2, 0x1000, 0),
        (3, 1 << 32, 0),
        (0, 5, 0x8000_0000_0000),
        (0, 6, 1 << 63),
    ] {
        let refused = invalidate(with_identifiers(), kind, identifier, linear);
        assert_eq!(refused, (GP, nothing.clone()), "type {kind:x}");
    }
    for kind in [0, 1] {
        assert_eq!(invalidate(long_mode(0), kind, 1, 0), (GP, nothing.clone()));
    }
    for kind in [2, 3] {
        assert_eq!(invalidate(long_mode(0), kind, 1, 0).0, Ok(Outcome::Next));
    }
}

#[test]
fn invpcid_is_for_ring_0_and_real_mode_and_reads_its_operand_as_data() {
    for place in [long_mode(3), protected_mode(3), virtual_8086_mode(3)] {
        assert_eq!(invalidate(place, 3, 0, 0).0, GP);
    }
    assert_eq!(
        invalidate(compatibility_mode(0), 3, 0, 0).0,
        Ok(Outcome::Next)
    );
    // Outside 64-bit mode the type has 32 bits.
    let done = invalidate(protected_mode(0), 1 << 32 | 3, 0, 0);
    assert_eq!(done.0, Ok(Outcome::Next));
    // invpcid eax, [bp+di]: offset 1000h of DS here.
    let (mut state, mut environment) = real_mode();
    state.load_real_mode_segment(SegmentRegister::Ds, 0);
    state.load_real_mode_segment(SegmentRegister::Ss, 0);
    (state.gpr[0], state.gpr[5], state.gpr[7]) = (3, 0x5000, 0x1000);
    run(&mut state, &mut environment, &INVPCID_RAX_RBX).unwrap();
    assert_eq!(environment.changes, [TranslationChange::Spaces]);
    // Faults of the operand precede those of its content.
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[0] = 4;
    state.gpr[3] = GDT as u64;
    state.segment_mut(SegmentRegister::Ds).limit = GDT as u32 + 14;
    assert_eq!(run(&mut state, &mut environment, &INVPCID_RAX_RBX), GP);
    let stack = [0x36, 0x66, 0x0f, 0x38, 0x82, 0x03];
    state.segment_mut(SegmentRegister::Ss).limit = GDT as u32 + 14;
    let fault = Err(Exception::stack_fault(0));
    assert_eq!(run(&mut state, &mut environment, &stack), fault);
}

#[test]
fn a_model_without_identifiers_has_neither_the_instruction_nor_the_bit() {
    let (mut state, mut environment) = long_mode(0);
    state.model = CpuModel::Qemu64;
    state.gpr[3] = DESCRIPTOR as u64;
    assert_eq!(run(&mut state, &mut environment, &INVPCID_RAX_RBX), UD);
    state.cr3 = 0;
    state.gpr[0] = state.cr4 | Cr4::PCIDE.bits();
    assert_eq!(run(&mut state, &mut environment, &MOV_CR4_RAX), GP);
}

#[test]
fn an_address_space_has_one_name_under_all_its_identifiers() {
    let (mut state, _) = with_identifiers();
    assert_eq!(state.address_space(), 0x7000);
    state.cr4 &= !Cr4::PCIDE.bits();
    assert_eq!(state.address_space(), 0x7005);
}
