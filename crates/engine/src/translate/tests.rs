//! Tests of the code that the translator emits, with register maps of all kinds.

use super::{Request, TranslateError, Translation, Translator};
use crate::abi::host::*;
use crate::abi::link_layout::{BranchTable, FamilyId};
use crate::abi::register_map::{Home, RegisterMap};
use crate::abi::sites::{BlockId, SiteKind};
use crate::abi::state_map::{Restore, Source};
use crate::policy::allow_list::Features;
use crate::policy::mode::Mode;
use crate::verify::{Subject, verify};
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use tollgate_test_support::{Random, flat_state};
use tollgate_x86::Vector;

/// A map in which every host register is a home, so that operands borrow homes.
static CROWDED: RegisterMap = RegisterMap {
    name: "crowded",
    guest_registers: 12,
    homes: {
        let mut homes = RegisterMap::SPILLED.homes;
        homes[8] = Home::Host(RBX);
        homes[9] = Home::Host(RBP);
        homes[10] = Home::Host(RSI);
        homes[11] = Home::Host(RDI);
        homes
    },
    ..RegisterMap::LEGACY
};
const _: () = CROWDED.check();

/// The mode of flat 32-bit code and data.
fn flat() -> Mode {
    let mut state = flat_state(0x1000);
    state.cr4 |= 0x4_0600;
    state.xcr0 = 7;
    Mode::of(&state)
}

struct Emitted {
    code: Vec<u8>,
    translation: Translation,
}

/// The translation of one instruction.
fn translate(map: &'static RegisterMap, bytes: &[u8]) -> Emitted {
    let mode = flat().single();
    let mut translator = Translator::new(Features::new(|_| true));
    translator.set_register_map(map);
    let request = Request {
        bytes,
        is_cut: false,
        straddles: true,
        rip: 0x1000,
        linear: 0x1000,
        physical: 0x10_0000,
        relocates: false,
        mode: &mode,
        mode_id: 0,
        branch_table: BranchTable::Shared,
        family: FamilyId(0),
        block: BlockId(0),
    };
    let translation = translator.translate(&request, &[]).ok().unwrap();
    let code = translator.code().to_vec();
    let subject = Subject {
        code: &code,
        sites: &translation.tables.sites,
        helpers: &translation.tables.helpers,
        immediates: &translation.tables.immediates,
        completions: &translation.tables.completions,
        mode: request.mode,
        mode_id: request.mode_id,
        branch_table: request.branch_table,
        family: request.family,
        block: request.block,
        map,
    };
    assert_eq!(verify(&subject), [], "{bytes:x?}");
    Emitted { code, translation }
}

/// The host instructions after the look-up, up to the exit; all of them if there is no look-up.
fn tail(map: &'static RegisterMap, bytes: &[u8]) -> String {
    let emitted = translate(map, bytes);
    let mut formatter = IntelFormatter::new();
    let mut lines = Vec::new();
    for instruction in Decoder::new(64, &emitted.code, DecoderOptions::NONE) {
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        match text.as_str() {
            "lea r9,[rcx+r8]" => lines.clear(),
            _ if text.starts_with("jrcxz") => lines.clear(),
            _ if text.starts_with("jmp") => break,
            _ => lines.push(text),
        }
    }
    // The store of the site's number comes before the exit's jump.
    lines.pop();
    lines.join("; ")
}

#[test]
fn operands_in_host_registers_are_named_as_they_are() {
    let legacy = &RegisterMap::LEGACY;
    assert_eq!(tail(legacy, &[0x03, 0x5e, 4]), "add ebx,[rcx+r8]");
    assert_eq!(tail(legacy, &[0x01, 0xdc]), "add r12d,ebx");
    assert_eq!(
        tail(legacy, &[0x02, 0x3e]),
        "lea rcx,[rcx+r8]; add bh,[rcx]"
    );
}

#[test]
fn operands_in_slots_pass_through_scratch_registers() {
    let spilled = &RegisterMap::SPILLED;
    assert_eq!(
        tail(spilled, &[0x03, 0x5e, 4]),
        "mov r11,[r15+54h]; add r11d,[rcx+r8]; mov [r15+54h],r11"
    );
    // A value that will be replaced is not loaded, and a value that has not changed is not stored.
    assert_eq!(
        tail(spilled, &[0x8b, 0x1e]),
        "mov r11d,[rcx+r8]; mov [r15+54h],r11"
    );
    assert_eq!(
        tail(spilled, &[0x39, 0xc3]),
        "mov r11,[r15+54h]; cmp r11d,eax"
    );
    assert_eq!(
        tail(spilled, &[0x87, 0xdd]),
        "mov r11,[r15+64h]; mov rcx,[r15+54h]; xchg r11d,ecx; \
         mov [r15+64h],r11; mov [r15+54h],rcx"
    );
}

#[test]
fn high_bytes_in_slots_come_to_where_they_have_names() {
    // xadd bh,bl and xchg [esi],bh
    assert_eq!(
        tail(&RegisterMap::SPILLED, &[0x0f, 0xc0, 0xdf]),
        "mov rcx,[r15+54h]; xadd ch,cl; mov [r15+54h],rcx"
    );
    assert_eq!(
        tail(&CROWDED, &[0x86, 0x3e]),
        "lea rcx,[rcx+r8]; mov r11,rax; mov rax,[r15+54h]; xchg [rcx],ah; \
         mov [r15+54h],rax; mov rax,r11"
    );
}

#[test]
fn a_destination_that_needs_rex_waits_elsewhere_for_a_high_byte() {
    // movzx esp,bh: no encoding names both R12 and BH.
    assert_eq!(
        tail(&RegisterMap::LEGACY, &[0x0f, 0xb6, 0xe7]),
        "movzx ecx,bh; mov r12,rcx"
    );
}

#[test]
fn ecx_comes_to_rcx_for_instructions_that_want_it_there() {
    let legacy = &RegisterMap::LEGACY;
    assert_eq!(tail(legacy, &[0x8b, 0x0e]), "mov r10d,[rcx+r8]");
    assert_eq!(tail(legacy, &[0x00, 0x0e]), "add [rcx+r8],r10b");
    assert_eq!(tail(legacy, &[0xd3, 0xe3]), "mov rcx,r10; shl ebx,cl");
    assert_eq!(
        tail(legacy, &[0xd3, 0xe1]),
        "mov rcx,r10; shl ecx,cl; mov r10,rcx"
    );
    assert_eq!(
        tail(legacy, &[0xd3, 0x26]),
        "mov rcx,r10; shl dword ptr [r9],cl"
    );
    assert_eq!(
        tail(legacy, &[0x0f, 0xa5, 0xcb]),
        "mov rcx,r10; shld ebx,ecx,cl"
    );
    assert_eq!(tail(legacy, &[0x88, 0xec]), "mov rcx,r10; mov ah,ch");
}

#[test]
fn registers_that_are_used_unnamed_come_to_their_namesakes() {
    // cmpxchg8b [esi]
    assert_eq!(
        tail(&CROWDED, &[0x0f, 0xc7, 0x0e]),
        "mov r11,rbx; mov rcx,r10; mov rbx,[r15+54h]; cmpxchg8b [r9]; mov rbx,r11"
    );
}

#[test]
fn entries_say_that_the_instruction_is_done_and_where_its_result_is() {
    // add bh,[esi]
    let emitted = translate(&CROWDED, &[0x02, 0x3e]);
    let store = Decoder::with_ip(64, &emitted.code, 0, DecoderOptions::NONE)
        .into_iter()
        .skip_while(|instruction| instruction.mnemonic() != iced_x86::Mnemonic::Add)
        .nth(1)
        .unwrap()
        .ip() as u32;
    let state_map = emitted.translation.tables.state_map.to_vec();
    let entry = state_map.iter().rfind(|entry| entry.host <= store).unwrap();
    assert_eq!(entry.rip, 0x1002);
    let moves: Vec<_> = entry.restore.moves().collect();
    assert_eq!(moves, [(0, Source::Host(R11)), (3, Source::Host(RAX))]);
    // Before the addition the instruction has not begun, and EBX is at home.
    let before = state_map
        .iter()
        .rfind(|entry| entry.host < store - 2)
        .unwrap();
    assert_eq!(before.rip, 0x1000);
    assert!(before.restore.moves().all(|(guest, _)| guest != 3));
    let last = state_map.iter().rfind(|entry| entry.rip == 0x1002).unwrap();
    assert_eq!(last.restore, Restore::NONE);
}

#[test]
fn a_conditional_loop_is_not_done_before_its_condition_is_known() {
    // loope and loopne, with ECX and with CX
    for bytes in [&[0xe1u8, 0x10][..], &[0xe0, 0x10], &[0x67, 0xe1, 0x10]] {
        let emitted = translate(&RegisterMap::LEGACY, bytes);
        let decide = Decoder::with_ip(64, &emitted.code, 0, DecoderOptions::NONE)
            .into_iter()
            .find(iced_x86::Instruction::is_jcc_short_or_near)
            .unwrap()
            .ip() as u32;
        let state_map = emitted.translation.tables.state_map.to_vec();
        let entry = state_map
            .iter()
            .rfind(|entry| entry.host <= decide)
            .unwrap();
        assert_eq!(entry.rip, 0x1000, "{bytes:x?}");
        // ECX still has its old value.
        let moves: Vec<_> = entry.restore.moves().collect();
        assert_eq!(moves, [(1, Source::Host(R8))]);
        let behind = state_map.iter().find(|entry| entry.host > decide).unwrap();
        assert_eq!(behind.rip, 0x1000 + bytes.len() as u64);
        assert_eq!(behind.restore, Restore::NONE);
    }
}

#[test]
fn every_instruction_finds_a_place_for_its_registers() {
    // After each opcode comes every register in every role, and memory through [esi] and [ebx+ebp].
    let faults = |map, bytes: &[u8]| {
        let invalid = SiteKind::Fault(Vector::InvalidOpcode);
        let sites = translate(map, bytes).translation.tables.sites;
        sites.iter().any(|site| site.kind == invalid)
    };
    let prefixes: [&[u8]; 9] = [
        &[],
        &[0x66],
        &[0x0f],
        &[0x66, 0x0f],
        &[0xf2, 0x0f],
        &[0xf3, 0x0f],
        &[0xf2, 0x0f, 0x38],
        &[0x66, 0x0f, 0x3a],
        &[0xc4, 0xe2, 0x63],
    ];
    for prefix in prefixes {
        for opcode in 0..=0xff {
            for mod_rm in (0xc0..=0xff)
                .step_by(5)
                .chain([0x06, 0x0e, 0x3e, 0x1c, 0x7c])
            {
                let mut bytes = prefix.to_vec();
                bytes.extend([opcode, mod_rm, 0x2b, 1, 2, 3, 4, 5, 6, 7, 8]);
                let expected = faults(&RegisterMap::LEGACY, &bytes);
                for map in [&RegisterMap::SPILLED, &CROWDED] {
                    assert_eq!(faults(map, &bytes), expected, "{bytes:x?} {}", map.name);
                }
            }
        }
    }
}

/// The block that is translated from these bytes, which are a part of the page or the whole page.
fn block(
    translator: &mut Translator,
    bytes: &[u8],
    is_cut: bool,
) -> Result<(u32, Vec<u8>), TranslateError> {
    let request = Request {
        bytes,
        is_cut,
        straddles: false,
        rip: 0x1000,
        linear: 0x1000,
        physical: 0x10_0000,
        relocates: false,
        mode: &flat(),
        mode_id: 0,
        branch_table: BranchTable::Shared,
        family: FamilyId(0),
        block: BlockId(0),
    };
    let slots: Vec<u32> = (0..Translator::SLOTS_PER_BLOCK as u32).collect();
    let translation = translator.translate(&request, &slots)?;
    Ok((translation.guest_length, translator.code().to_vec()))
}

#[test]
fn a_part_of_the_page_yields_the_same_block_or_is_too_short() {
    let mut random = Random::new(17);
    let mut translator = Translator::new(Features::new(|_| true));
    let mut complete = 0;
    for _ in 0..1000 {
        let mut page = [0_u8; 400];
        page.iter_mut().for_each(|byte| *byte = random.byte());
        // Instructions of one byte each come first; then random bytes end the block somewhere.
        page[..random.below(200)].fill(0x40);
        let known = 1 + random.below(300);
        match block(&mut translator, &page[..known], true) {
            Ok(found) => {
                let whole = block(&mut translator, &page, false);
                assert_eq!(Ok(found), whole, "{page:x?}");
                complete += 1;
            }
            Err(error) => assert_eq!(error, TranslateError::NeedsMoreBytes),
        }
    }
    assert!((100..900).contains(&complete), "{complete}");
}

#[test]
fn a_block_goes_on_behind_branches_that_are_not_taken() {
    let mut translator = Translator::new(Features::new(|_| true));
    let length = |translator: &mut Translator, bytes: &[u8]| {
        let found = block(translator, bytes, false);
        found.expect("the whole page was given").0 as usize
    };
    // inc eax; jz +10h; inc eax; jnz back; inc eax; ret; inc eax
    let bytes = [0x40, 0x74, 0x10, 0x40, 0x75, 0xf0, 0x40, 0xc3, 0x40];
    assert_eq!(length(&mut translator, &bytes), 8);
    // A block does not continue after other branches: jmp; loop; jecxz; call.
    for branch in [0xeb, 0xe2, 0xe3] {
        assert_eq!(length(&mut translator, &[branch, 0x10, 0x40, 0xc3]), 2);
    }
    assert_eq!(length(&mut translator, &[0xe8, 0, 0, 0, 0, 0x40]), 5);
    // Branches to other pages need slots, the last of which are reserved for the end of the block.
    let far = [0x0f, 0x84, 0, 0x20, 0, 0].repeat(64);
    let branches = Translator::SLOTS_PER_BLOCK - 2;
    assert_eq!(length(&mut translator, &far), branches * 6);
}
