//! Tests of the code that the translator emits for direct access, and of what the verifier says
//! about it.

use super::{Request, Translation, Translator};
use crate::abi::context_displacements as at;
use crate::abi::link_layout::{BranchTable, FamilyId};
use crate::abi::sites::{BlockId, SiteKind};
use crate::policy::access::Access;
use crate::policy::allow_list::Features;
use crate::policy::mode::Mode;
use crate::verify::{Subject, verify};
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use tollgate_test_support::flat_state;
use tollgate_tlb::long_tlb::{DIRECT_TABLE_DISPLACEMENT, PART_SPAN};
use tollgate_tlb::shadow_windows::BESIDE_WINDOW;
use tollgate_tlb::software_tlb::NARROW_DELTA_OFFSET;
use tollgate_x86::{Attributes, Efer, SegmentRegister, Selector};

const RIP: u64 = 0xffff_ffff_8100_1000;
const PHYSICAL: u64 = 0x10_0000;

/// The mode of 64-bit code at level 0.
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

/// The mode of 32-bit code at level 0, not in IA-32e mode.
fn checked_narrow() -> Mode {
    let mut state = flat_state(RIP % (1 << 32));
    state.cr0 |= 1 << 31;
    state.cr4 |= 0x620;
    Mode::of(&state)
}

/// Translates for direct access. Instructions at the offsets `looked_up` look up their operands.
fn emit(bytes: &[u8], looked_up: &[u64]) -> (Vec<u8>, Translation) {
    emit_in(&direct(), bytes, looked_up)
}

fn emit_in(mode: &Mode, bytes: &[u8], looked_up: &[u64]) -> (Vec<u8>, Translation) {
    let mut translator = Translator::new(Features::new(|_| true));
    for offset in looked_up {
        translator.looked_up.note(PHYSICAL + offset);
    }
    let rip = match mode.bitness() {
        64 => RIP,
        _ => RIP % (1 << 32),
    };
    let request = Request {
        bytes,
        is_cut: false,
        straddles: false,
        rip,
        linear: rip,
        physical: PHYSICAL,
        relocates: false,
        mode,
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
    let table = "mov rcx,[r14+rcx*8+10000FD9h]";
    let cases: [(&[u8], &str); 9] = [
        // mov eax,[rbx+8]; mov [rcx-200h],sil; add [r9],rdx
        (
            &[0x8b, 0x43, 0x08],
            "sarx rcx,rbx,r14; {table}; mov eax,[rcx+rbx+8]",
        ),
        (
            &[0x40, 0x88, 0xb1, 0x00, 0xfe, 0xff, 0xff],
            "sarx rcx,r10,r14; {table}; mov [rcx+r10-200h],sil",
        ),
        (
            &[0x49, 0x01, 0x11],
            "mov r8,[r15+1BCh]; sarx rcx,r8,r14; {table}; add [rcx+r8],rdx",
        ),
        // mov eax,[rbx+rsi*4+8]; mov eax,[rbx+200000h]
        (
            &[0x8b, 0x44, 0xb3, 0x08],
            "lea r8,[rbx+rsi*4+8]; sarx rcx,r8,r14; {table}; mov eax,[rcx+r8]",
        ),
        (
            &[0x8b, 0x83, 0x00, 0x00, 0x20, 0x00],
            "lea r8,[rbx+200000h]; sarx rcx,r8,r14; {table}; mov eax,[rcx+r8]",
        ),
        // mov eax,[rsp+10h]; push rsi
        (
            &[0x8b, 0x44, 0x24, 0x10],
            "sarx rcx,r12,r14; {table}; mov eax,[rcx+r12+10h]",
        ),
        (&[0x56], "sarx rcx,r12,r14; {table}; mov [rcx+r12-8],rsi"),
        // mov eax,[FFFFFFFF80000010h], which is in the last part; mov eax,fs:[28h]
        (
            &[0x8b, 0x04, 0x25, 0x10, 0x00, 0x00, 0x80],
            "mov rcx,[r14+10000FD1h]; mov eax,[rcx-7FFFFFF0h]",
        ),
        (
            &[0x64, 0x8b, 0x04, 0x25, 0x28, 0x00, 0x00, 0x00],
            "mov r8,[r15+{fs}]; sarx rcx,r8,r14; {table}; mov eax,[rcx+r8+28h]",
        ),
    ];
    for (bytes, expected) in cases {
        let (code, translation) = emit(&[bytes, &[0xf4]].concat(), &[]);
        let begin = text(&code);
        let fs = format!("{:X}h", at::segment_base(SegmentRegister::Fs));
        let expected = expected.replace("{table}", table).replace("{fs}", &fs);
        assert!(begin.starts_with(&expected), "{begin}\n{expected}");
        assert_eq!(findings(&code, &translation, &direct()), 0, "{begin}");
        assert_eq!(memory_sites(&translation), 0);
    }
}

#[test]
fn neighbours_share_the_slide() {
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
    let code = text(&code);
    assert!(code.contains("lea r8,[rsi+40h]; sarx r9,r8,r15"), "{code}");
    assert!(code.contains("sarx rcx,rbx,r14"), "{code}");
}

#[test]
fn the_verifier_knows_the_table_of_windows_in_its_modes_alone() {
    let (code, translation) = emit(&[0x8b, 0x43, 0x08, 0xf4], &[]);
    assert_ne!(findings(&code, &translation, &checked()), 0);
    // Memory near the table is not a table.
    let displacement = DIRECT_TABLE_DISPLACEMENT.to_le_bytes();
    let place = code.windows(4).position(|bytes| bytes == displacement);
    let mut elsewhere = code.clone();
    elsewhere[place.expect("the displacement is there")] ^= 8;
    assert_ne!(findings(&elsewhere, &translation, &direct()), 0);
    // mov eax,[rcx+rbx+8] with another register than the one whose part was loaded.
    let sib = 3 << 3 | 1;
    let access = code
        .windows(4)
        .position(|bytes| bytes == [0x8b, 0x44, sib, 0x08]);
    let access = access.expect("the access is there");
    let mut other = code.clone();
    other[access + 2] ^= 5 << 3;
    assert_ne!(findings(&other, &translation, &direct()), 0);
}

#[test]
fn the_verifier_lets_nothing_reach_farther_than_is_never_mapped() {
    // mov eax,[rbx-12345h]
    let (code, translation) = emit(&[0x8b, 0x83, 0xbb, 0xdc, 0xfe, 0xff, 0xf4], &[]);
    let place = code
        .windows(4)
        .position(|bytes| bytes == (-0x12345_i32).to_le_bytes());
    let place = place.expect("the displacement is there");
    let beside = BESIDE_WINDOW as i32;
    for (displacement, is_sound) in [
        (beside, true),
        (-beside, true),
        (beside + 1, false),
        (-beside - 1, false),
        (i32::MAX, false),
        (i32::MIN, false),
    ] {
        let mut far = code.clone();
        far[place..place + 4].copy_from_slice(&displacement.to_le_bytes());
        let found = findings(&far, &translation, &direct());
        assert_eq!(found == 0, is_sound, "{displacement:#x}");
    }
    // mov eax,[FFFFFFFF80000010h] with other displacements: of the entry for the part above zero,
    // between two entries, and outside the table.
    let (code, translation) = emit(&[0x8b, 0x04, 0x25, 0x10, 0x00, 0x00, 0x80, 0xf4], &[]);
    let last = (DIRECT_TABLE_DISPLACEMENT - 8).to_le_bytes();
    let place = code.windows(4).position(|bytes| bytes == last);
    let place = place.expect("the entry is there");
    for entry in [0, -7, -8 * 257, 8 * 256] {
        let mut other = code.clone();
        let entry = DIRECT_TABLE_DISPLACEMENT + entry;
        other[place..place + 4].copy_from_slice(&entry.to_le_bytes());
        assert_ne!(findings(&other, &translation, &direct()), 0, "{entry}");
    }
}

#[test]
fn relocatable_code_has_its_slide_in_its_own_part() {
    let mut state = flat_state(0x7f00_0000_0000);
    state.cr0 |= 1 << 31;
    state.cr4 |= 0x4_0620;
    state.efer = (Efer::LME | Efer::LMA).bits();
    let cs = state.segment_mut(SegmentRegister::Cs);
    (cs.attributes, cs.selector) = (Attributes::from_bits_retain(0xa0fb), Selector(0x33));
    state.cr0 |= 1;
    let ss = state.segment_mut(SegmentRegister::Ss);
    (ss.attributes, ss.selector) = (Attributes::from_bits_retain(0xc0f3), Selector(0x2b));
    let checked = Mode::of(&state);
    let direct = checked.with_access(Access::Direct);
    assert_ne!(direct, checked);
    let part = 254 * PART_SPAN;
    for (rip, is_so) in [
        (part + 0x1234_5000, false),
        (part + (1 << 31) - 1, false),
        (part + (1 << 31), true),
        (part + PART_SPAN - 0x1000, true),
    ] {
        assert!(checked.is_relocatable_at(rip));
        assert_eq!(direct.is_relocatable_at(rip), is_so, "{rip:#x}");
    }
}

#[test]
fn a_32_bit_address_is_formed_whole_and_added_to_the_one_delta() {
    let mode = checked_narrow().with_access(Access::Direct);
    assert_ne!(mode, checked_narrow());
    let delta = format!("mov rcx,[r14+{NARROW_DELTA_OFFSET:X}h]");
    // mov eax,[ebx+8]; add [ebx+esi*4],edx; mov eax,[12345678h]; push esi
    let cases: [(&[u8], &str); 4] = [
        (
            &[0x8b, 0x43, 0x08],
            "lea r8d,[rbx+8]; {delta}; mov eax,[rcx+r8]",
        ),
        (
            &[0x01, 0x14, 0xb3],
            "lea r8d,[rbx+rsi*4]; {delta}; add [rcx+r8],edx",
        ),
        (
            &[0x8b, 0x05, 0x78, 0x56, 0x34, 0x12],
            "mov r8d,12345678h; {delta}; mov eax,[rcx+r8]",
        ),
        (&[0x56], "lea r8d,[r12-4]; {delta}; mov [rcx+r8],esi"),
    ];
    for (bytes, expected) in cases {
        let (code, translation) = emit_in(&mode, &[bytes, &[0xf4]].concat(), &[]);
        let expected = expected.replace("{delta}", &delta);
        assert!(text(&code).starts_with(&expected), "{}", text(&code));
        assert_eq!(findings(&code, &translation, &mode), 0, "{expected}");
        assert_eq!(memory_sites(&translation), 0);
        // The code is not sound in other modes.
        for other in [checked_narrow(), checked(), direct()] {
            assert_ne!(findings(&code, &translation, &other), 0, "{expected}");
        }
        let (code, translation) = emit_in(&mode, &[bytes, &[0xf4]].concat(), &[0]);
        assert_eq!(findings(&code, &translation, &mode), 0);
        assert_eq!(memory_sites(&translation), 1);
    }
}

#[test]
fn the_verifier_adds_narrow_addresses_alone_to_the_one_delta() {
    let mode = checked_narrow().with_access(Access::Direct);
    let (code, translation) = emit_in(&mode, &[0x8b, 0x43, 0x08, 0xf4], &[]);
    // The host instruction has REX.R in its first byte; with REX.W the sum keeps its upper half.
    let lea = [0x44, 0x8d, 0x43, 0x08];
    assert_eq!(code[..4], lea);
    let damaged = |at: usize, byte: u8| {
        let mut other = code.clone();
        other[at] = byte;
        findings(&other, &translation, &mode)
    };
    assert_ne!(damaged(0, 0x4c), 0, "the address may have 64 bits");
    let place = NARROW_DELTA_OFFSET.to_le_bytes();
    let at = code.windows(4).position(|bytes| bytes == place).unwrap();
    assert_ne!(damaged(at, place[0] ^ 8), 0, "the load reads another word");
    // mov eax,[rcx+r8]: with another scale, another index register, or another base register.
    let access = [0x42, 0x8b, 0x04, 0x01];
    let at = code.windows(4).position(|bytes| bytes == access).unwrap();
    for (offset, byte) in [(3, 0x41), (3, 0x19), (3, 0x03), (0, 0x40)] {
        assert_ne!(damaged(at + offset, byte), 0, "{offset} {byte:x}");
    }
}
