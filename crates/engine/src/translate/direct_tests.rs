//! What the translator emits for direct access, and what the verifier says of it.

use super::{Request, Translation, Translator};
use crate::abi::link_layout::{BranchTable, FamilyId};
use crate::abi::sites::{BlockId, SiteKind};
use crate::policy::access::Access;
use crate::policy::allow_list::Features;
use crate::policy::mode::Mode;
use crate::verify::{Subject, verify};
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use tollgate_test_support::flat_state;
use tollgate_tlb::long_tlb::DIRECT_TABLE_DISPLACEMENT;
use tollgate_x86::{Attributes, Efer, SegmentRegister};

const RIP: u64 = 0xffff_ffff_8100_1000;
const PHYSICAL: u64 = 0x10_0000;

/// 64-bit code at level 0.
fn checked() -> Mode {
    let mut state = flat_state(RIP);
    state.cr0 |= 1 << 31;
    state.cr4 |= 0x4_0620;
    state.efer = (Efer::LME | Efer::LMA).bits();
    state.xcr0 = 7;
    state.segment_mut(SegmentRegister::Cs).attributes = Attributes::from_bits_retain(0xa09b);
    Mode::of(&state)
}

fn direct() -> Mode {
    let mode = checked().with_access(Access::Direct);
    assert_ne!(mode, checked());
    mode
}

/// Translates for direct access; instructions at these offsets look their operands up.
fn emit(bytes: &[u8], looked_up: &[u64]) -> (Vec<u8>, Translation) {
    let mut translator = Translator::new(Features::new(|_| true));
    translator.looked_up = looked_up.iter().map(|offset| PHYSICAL + offset).collect();
    let mode = direct();
    let request = Request {
        bytes,
        is_cut: false,
        straddles: false,
        rip: RIP,
        linear: RIP,
        physical: PHYSICAL,
        relocates: false,
        mode: &mode,
        mode_id: 3,
        branch_table: BranchTable::Own(1),
        family: FamilyId(0),
        block: BlockId(0),
    };
    let translation = translator.translate(&request, &[0, 1, 2, 3]).ok().unwrap();
    (translator.code().to_vec(), translation)
}

fn findings(code: &[u8], translation: &Translation, mode: &Mode) -> usize {
    let subject = Subject {
        code,
        sites: &translation.tables.sites,
        helpers: &translation.tables.helpers,
        immediates: &translation.tables.immediates,
        completions: &translation.tables.completions,
        mode,
        mode_id: 3,
        branch_table: BranchTable::Own(1),
        family: FamilyId(0),
        block: BlockId(0),
        map: Translator::new(Features::new(|_| true)).map_of(mode),
    };
    verify(&subject).len()
}

fn text(code: &[u8]) -> String {
    let mut formatter = IntelFormatter::new();
    let mut lines = Vec::new();
    for instruction in Decoder::new(64, code, DecoderOptions::NONE) {
        let mut line = String::new();
        formatter.format(&instruction, &mut line);
        lines.push(line);
    }
    lines.join("; ")
}

fn memory_sites(translation: &Translation) -> usize {
    let is_memory = |kind| matches!(kind, SiteKind::Memory { .. });
    let sites = translation.tables.sites.iter();
    sites.filter(|site| is_memory(site.kind)).count()
}

#[test]
fn an_access_is_the_delta_of_its_part_and_the_guest_s_own_instruction() {
    // mov eax,[rbx+8]
    let (code, translation) = emit(&[0x8b, 0x43, 0x08, 0xf4], &[]);
    assert_eq!(findings(&code, &translation, &direct()), 0);
    assert_eq!(memory_sites(&translation), 0);
    let begin = text(&code);
    let expected = "lea r8,[rbx+8]; sarx rcx,r8,r14; mov rcx,[r14+rcx*8+";
    assert!(begin.starts_with(expected), "{begin}");
    assert!(begin.contains("]; mov eax,[rcx+r8]"), "{begin}");
}

#[test]
fn neighbours_share_the_delta() {
    // mov eax,[rbx+8]; mov edx,[rbx+40h]
    let (code, translation) = emit(&[0x8b, 0x43, 0x08, 0x8b, 0x53, 0x40, 0xf4], &[]);
    assert_eq!(findings(&code, &translation, &direct()), 0);
    assert_eq!(text(&code).matches("sarx").count(), 1, "{}", text(&code));
}

#[test]
fn what_is_named_looks_its_operand_up() {
    // mov eax,[rbx+8]; mov edx,[rsi+40h]; mov ecx,[rbx]
    let bytes = [0x8b, 0x43, 0x08, 0x8b, 0x56, 0x40, 0x8b, 0x0b, 0xf4];
    let (code, translation) = emit(&bytes, &[3]);
    assert_eq!(findings(&code, &translation, &direct()), 0);
    assert_eq!(memory_sites(&translation), 1);
    assert_eq!(text(&code).matches("sarx rcx,r8,r14").count(), 3);
}

#[test]
fn the_verifier_knows_the_table_of_windows_in_its_modes_alone() {
    let (code, translation) = emit(&[0x8b, 0x43, 0x08, 0xf4], &[]);
    assert_ne!(findings(&code, &translation, &checked()), 0);
    // Another place beside the root is no table.
    let displacement = DIRECT_TABLE_DISPLACEMENT.to_le_bytes();
    let place = code.windows(4).position(|bytes| bytes == displacement);
    let mut elsewhere = code.clone();
    elsewhere[place.expect("it is there")] ^= 8;
    assert_ne!(findings(&elsewhere, &translation, &direct()), 0);
    // mov rcx,[r14+rcx*8+d] with another index than that of the address.
    let mut index = code.clone();
    let sarx = code.windows(2).position(|bytes| bytes == [0xc4, 0xc2]);
    index[sarx.expect("SARX is there") + 4] ^= 1;
    assert_ne!(findings(&index, &translation, &direct()), 0);
    // mov eax,[rcx+r8+d]: nothing may be added.
    let access = code
        .windows(4)
        .position(|bytes| bytes == [0x42, 0x8b, 0x04, 0x01]);
    let mut far = code.clone();
    far[access.expect("the access is there") + 3] ^= 0x40;
    assert_ne!(findings(&far, &translation, &direct()), 0);
}
