//! Tests of the code that the translator emits for 64-bit code.

use super::{Request, Translation, Translator};
use crate::abi::host::*;
use crate::abi::link_layout::{BranchTable, FamilyId};
use crate::abi::sites::{BlockId, SiteKind};
use crate::abi::state_map::Source;
use crate::policy::allow_list::{Features, Treatment, treatment};
use crate::policy::mode::{Mode, ModeFlags};
use crate::verify::{Subject, verify};
use iced_x86::{Code, Decoder, DecoderOptions, Formatter, IntelFormatter, Mnemonic};
use std::collections::BTreeSet;
use tollgate_test_support::{Random, flat_state};
use tollgate_x86::{Attributes, CpuState, Efer, SegmentRegister, Vector};

const RIP: u64 = 0xffff_ffff_8100_1000;

/// The mode of code in ring 0 of IA-32e mode, whose code segment has these attributes.
fn mode_of(code: u16) -> Mode {
    let mut state = flat_state(RIP);
    state.cr0 |= 1 << 31;
    state.cr4 |= 0x4_0620;
    state.efer = (Efer::LME | Efer::LMA).bits();
    state.xcr0 = 7;
    state.segment_mut(SegmentRegister::Cs).attributes = Attributes::from_bits_retain(code);
    Mode::of(&state)
}

fn long_mode() -> Mode {
    mode_of(0xa09b)
}

fn compatibility_mode() -> Mode {
    mode_of(0xc09b)
}

struct Emitted {
    code: Vec<u8>,
    translation: Translation,
}

fn emit(mode: &Mode, bytes: &[u8], straddles: bool) -> Emitted {
    let mut translator = Translator::new(Features::new(|_| true));
    let map = translator.map_of(mode);
    let request = Request {
        bytes,
        is_cut: false,
        straddles,
        rip: RIP,
        linear: RIP,
        physical: 0x10_0000,
        relocates: false,
        mode,
        mode_id: 3,
        branch_table: BranchTable::Own(1),
        family: FamilyId(0),
        block: BlockId(0),
    };
    let translation = translator.translate(&request, &[0, 1, 2, 3]).ok().unwrap();
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

/// The translation of one instruction.
fn translate(bytes: &[u8]) -> Emitted {
    emit(&long_mode().single(), bytes, true)
}

fn lines(code: &[u8]) -> Vec<String> {
    let mut formatter = IntelFormatter::new();
    let mut lines = Vec::new();
    for instruction in Decoder::new(64, code, DecoderOptions::NONE) {
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        lines.push(text);
    }
    lines
}

/// The host instructions after the last look-up, up to the exit; all of them if there is no
/// look-up.
fn tail(bytes: &[u8]) -> String {
    let mut tail = Vec::new();
    for line in lines(&translate(bytes).code) {
        match line.as_str() {
            "lea r9,[rcx+r8]" => tail.clear(),
            _ if line.starts_with("jrcxz") => tail.clear(),
            _ if line.starts_with("jmp") => break,
            _ => tail.push(line),
        }
    }
    // The store of the site's number comes before the exit's jump.
    tail.pop();
    tail.join("; ")
}

/// The host instructions before the look-up.
fn address(bytes: &[u8]) -> String {
    let lines = lines(&translate(bytes).code);
    let look_up = lines.iter().position(|line| line.starts_with("sarx r9"));
    lines[..look_up.unwrap()].join("; ")
}

#[test]
fn the_mode_says_whether_code_has_64_bits_and_which_software_tlb_it_uses() {
    let long = long_mode();
    assert_eq!(long.bitness(), 64);
    assert!(long.flags.contains(ModeFlags::LONG | ModeFlags::CODE64));
    let compatibility = compatibility_mode();
    assert_eq!(compatibility.bitness(), 32);
    assert!(compatibility.flags.contains(ModeFlags::LONG));
    assert!(!compatibility.flags.contains(ModeFlags::CODE64));
    let mut legacy = CpuState::at_reset();
    legacy.cr0 |= 1;
    assert!(
        !Mode::of(&legacy)
            .flags
            .intersects(ModeFlags::LONG | ModeFlags::CODE64)
    );
}

#[test]
fn addresses_have_64_bits_or_with_a_prefix_32() {
    assert_eq!(address(&[0x48, 0x8b, 0x43, 8]), "lea r8,[rbx+8]");
    assert_eq!(address(&[0x67, 0x48, 0x8b, 0x43, 8]), "lea r8d,[rbx+8]");
    // A base that lives in a slot is loaded into R8, and an index into R9.
    assert_eq!(
        address(&[0x4b, 0x8b, 0x04, 0xc8]),
        "mov r8,[r15+1E4h]; mov r9,[r15+1ECh]; lea r8,[r8+r9*8]"
            .replace("1E4", &slot(8))
            .replace("1EC", &slot(9))
    );
    // RIP is the address of the next instruction.
    assert_eq!(
        address(&[0x8b, 0x05, 0, 0x10, 0, 0]),
        "mov r8,0FFFFFFFF81002006h"
    );
    assert_eq!(
        address(&[0x67, 0x8b, 0x05, 0, 0x10, 0, 0]),
        "mov r8d,81002007h"
    );
}

/// Displacement of a guest register's slot, as the formatter writes it.
fn slot(guest: u8) -> String {
    format!("{:X}", crate::abi::context_displacements::slot(guest))
}

#[test]
fn slots_of_the_new_registers_are_the_processors_own() {
    use crate::abi::context::gpr_displacement;
    use crate::abi::context_displacements as at;
    use tollgate_x86::Gpr;
    assert_eq!(at::slot(8), gpr_displacement(Gpr::R8));
    assert_eq!(at::slot(15), gpr_displacement(Gpr::R15));
}

#[test]
fn a_result_of_32_bits_clears_the_upper_half_of_a_slot() {
    // mov r8d,[rbx]; lea r9d,[rax]
    let r8 = slot(8);
    assert_eq!(
        tail(&[0x44, 0x8b, 0x03]),
        format!("mov r11d,[rcx+r8]; mov [r15+{r8}h],r11")
    );
    let r9 = slot(9);
    assert_eq!(
        tail(&[0x44, 0x8d, 0x08]),
        format!("lea r8d,[rax]; mov [r15+{r9}h],r8")
    );
    // mov r8w,[rbx]: the rest of R8 is kept.
    assert_eq!(
        tail(&[0x66, 0x44, 0x8b, 0x03]),
        format!("mov r11,[r15+{r8}h]; mov r11w,[rcx+r8]; mov [r15+{r8}h],r11")
    );
}

#[test]
fn sixteen_bytes_are_exchanged_through_a_pointer_in_a_slot() {
    // lock cmpxchg16b [r12]
    assert_eq!(
        tail(&[0xf0, 0x49, 0x0f, 0xc7, 0x0c, 0x24]),
        "mov rcx,r10; cmpxchg16b [r9]"
    );
}

#[test]
fn entries_lead_from_scratch_registers_to_slots() {
    // xchg r8,[rbx]
    let emitted = translate(&[0x4c, 0x87, 0x03]);
    let store = Decoder::with_ip(64, &emitted.code, 0, DecoderOptions::NONE)
        .into_iter()
        .skip_while(|instruction| instruction.mnemonic() != Mnemonic::Xchg)
        .nth(1)
        .unwrap()
        .ip() as u32;
    let state_map = emitted.translation.tables.state_map.to_vec();
    let entry = state_map.iter().rfind(|entry| entry.host <= store).unwrap();
    assert_eq!(entry.rip, RIP + 3);
    let moves: Vec<_> = entry.restore.moves().collect();
    assert_eq!(moves, [(8, Source::Host(R11))]);
}

#[test]
fn a_direct_branch_to_an_address_that_is_not_canonical_faults() {
    // jmp -80000000h stays canonical at this address, and so does every other jump from it.
    let sites = |rip: u64| {
        let mode = long_mode();
        let mut translator = Translator::new(Features::new(|_| true));
        let request = Request {
            bytes: &[0xe9, 0, 0, 0, 0x10],
            is_cut: false,
            straddles: false,
            rip,
            linear: rip,
            physical: 0x10_0000,
            relocates: false,
            mode: &mode,
            mode_id: 0,
            branch_table: BranchTable::Own(0),
            family: FamilyId(0),
            block: BlockId(0),
        };
        translator
            .translate(&request, &[0, 1])
            .ok()
            .unwrap()
            .tables
            .sites[0]
    };
    let fault = SiteKind::Fault(Vector::GeneralProtection);
    assert_eq!(sites(0x7fff_ffff_0000).kind, fault);
    assert_eq!(sites(0x7fff_ffff_0000).rip, 0x7fff_ffff_0000);
    assert_ne!(sites(RIP).kind, fault);
    assert_eq!(sites(u64::MAX - 0xffff).rip, 0x0fff_0005);
}

/// Calls `each` with instructions of many kinds: prefixes, opcodes, and operands in all registers.
fn many_instructions(mut each: impl FnMut(&[u8])) {
    let prefixes: [&[u8]; 4] = [&[], &[0x66], &[0xf2], &[0xf3]];
    let rex: [&[u8]; 6] = [&[], &[0x40], &[0x48], &[0x41], &[0x44], &[0x4f]];
    let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let vex: [&[u8]; 11] = [
        &[0xc5, 0xf9],
        &[0xc5, 0x3d],
        &[0xc4, 0xe2, 0x63],
        &[0xc4, 0xe2, 0xb1],
        &[0xc4, 0x42, 0xb3],
        &[0xc4, 0x42, 0xb2],
        &[0xc4, 0x42, 0xb0],
        &[0xc4, 0x43, 0xfb],
        &[0xc4, 0x43, 0xf9],
        &[0xc4, 0x41, 0xfa],
        &[0xc4, 0x61, 0xf9],
    ];
    let mut heads: Vec<Vec<u8>> = vex.iter().map(|vex| vex.to_vec()).collect();
    for prefix in prefixes {
        for rex in rex {
            heads.extend(maps.map(|map| [prefix, rex, map].concat()));
        }
    }
    for head in heads {
        for opcode in 0..=0xff {
            for mod_rm in (0xc0..=0xff)
                .step_by(7)
                .chain([0x06, 0x0e, 0x16, 0x26, 0x3e, 0x1c, 0x7c, 0x05])
            {
                let mut bytes = head.clone();
                bytes.extend([opcode, mod_rm, 0x2b, 1, 2, 3, 4, 5, 6, 7, 8]);
                each(&bytes);
            }
        }
    }
}

#[test]
fn every_instruction_that_may_be_copied_is_and_passes_the_verifier() {
    let mode = long_mode().single();
    let features = Features::new(|_| true);
    let mut copied = BTreeSet::new();
    many_instructions(|bytes| {
        let instruction = Decoder::with_ip(64, bytes, RIP, DecoderOptions::NONE).decode();
        let sites = translate(bytes).translation.tables.sites;
        let treatment = treatment(&instruction, &mode, &features);
        if matches!(treatment, Treatment::Copy | Treatment::CopyVector) {
            let invalid = SiteKind::Fault(Vector::InvalidOpcode);
            assert!(sites.iter().all(|site| site.kind != invalid), "{bytes:x?}");
            copied.insert(instruction.code() as usize);
        }
    });
    // These forms exist only in 64-bit code.
    use Code::*;
    for code in [
        Add_rm64_r64,
        Movsxd_r64_rm32,
        Cqo,
        Cdqe,
        Cmpxchg16b_m128,
        Bswap_r64,
        Mov_r64_imm64,
        Mov_RAX_moffs64,
        Imul_r64_rm64_imm32,
        Div_rm64,
        Xadd_rm64_r64,
        Shld_rm64_r64_CL,
        Popcnt_r64_rm64,
        Lzcnt_r64_rm64,
        Tzcnt_r64_rm64,
        Crc32_r64_rm64,
        Crc32_r64_rm8,
        Movbe_r64_m64,
        Movnti_m64_r64,
        Adcx_r64_rm64,
        Adox_r64_rm64,
        VEX_Andn_r64_r64_rm64,
        VEX_Mulx_r64_r64_rm64,
        VEX_Pdep_r64_r64_rm64,
        VEX_Rorx_r64_rm64_imm8,
        VEX_Bzhi_r64_rm64_r64,
        VEX_Blsr_r64_rm64,
        Cvtsi2sd_xmm_rm64,
        Cvttss2si_r64_xmmm32,
        Movq_xmm_rm64,
        Movq_rm64_xmm,
        Pinsrq_xmm_rm64_imm8,
        Pextrq_rm64_xmm_imm8,
        VEX_Vmovq_xmm_rm64,
        Rdrand_r64,
        Rdseed_r64,
        Bt_rm64_imm8,
        Cmovbe_r64_rm64,
    ] {
        assert!(copied.contains(&(code as usize)), "{code:?}");
    }
    assert!(copied.len() > 800, "{}", copied.len());
}

#[test]
fn what_64_bit_mode_has_no_longer_is_undefined() {
    let opcodes: [&[u8]; 16] = [
        &[0x06],
        &[0x0e],
        &[0x27],
        &[0x2f],
        &[0x37],
        &[0x3f],
        &[0x60],
        &[0x61],
        &[0xce],
        &[0xd4],
        &[0xd5],
        &[0xd6],
        &[0x82],
        &[0xea],
        &[0x9a],
        &[0x62],
    ];
    for opcode in opcodes {
        let bytes = [opcode, &[0xc0, 1, 2, 3, 4, 5, 6, 7, 8]].concat();
        let sites = translate(&bytes).translation.tables.sites;
        assert_eq!(
            sites[0].kind,
            SiteKind::Fault(Vector::InvalidOpcode),
            "{bytes:x?}"
        );
    }
}

#[test]
fn random_blocks_are_translated_and_pass_the_verifier() {
    let mut random = Random::new(1);
    let mut next = || random.next_u64();
    // Common instructions make long blocks; random bytes are mixed in.
    let common: [&[u8]; 14] = [
        &[0x48, 0x8b, 0x43, 0x08],
        &[0x4d, 0x89, 0x4c, 0xc8, 0x10],
        &[0x65, 0x4c, 0x8b, 0x14, 0x25, 0x28, 0, 0, 0],
        &[0xff, 0x33],
        &[0x8f, 0x84, 0xcb, 1, 2, 3, 4],
        &[0x41, 0x57],
        &[0x41, 0x58],
        &[0x48, 0xa5],
        &[0x86, 0x3e],
        &[0xf0, 0x48, 0x0f, 0xc7, 0x0e],
        &[0xc4, 0x42, 0xb3, 0xf6, 0x02],
        &[0xdd, 0x03],
        &[0xf2, 0x4d, 0x0f, 0x2a, 0x00],
        &[0x48, 0xa3, 1, 2, 3, 4, 5, 6, 7, 8],
    ];
    for mode in [long_mode(), compatibility_mode(), mode_of(0x809b)] {
        for round in 0..4000 {
            let mut bytes = Vec::new();
            while bytes.len() < 300 {
                if round % 4 != 0 || next() % 8 == 0 {
                    bytes.extend(common[next() as usize % common.len()]);
                } else {
                    bytes.extend(next().to_le_bytes());
                }
            }
            emit(&mode, &bytes, false);
        }
    }
}
