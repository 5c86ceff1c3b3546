//! What the translator emits for 64-bit code.

use super::{Request, Translation, Translator};
use crate::allow_list::{Features, Treatment, treatment};
use crate::block::{BlockId, SiteKind};
use crate::mode::{BranchTable, Mode};
use crate::register_map::RegisterMap;
use crate::verify::verify;
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, Formatter, Instruction, IntelFormatter, Mnemonic,
    OpCodeOperandKind, Register,
};
use tollgate_x86::{Attributes, CpuState, Efer, Segment, SegmentRegister, Selector, Vector};

const RIP: u64 = 0xffff_ffff_8100_1000;

/// 64-bit code in ring 0.
fn long_mode() -> Mode {
    let mut state = CpuState::at_reset();
    state.cr0 |= 1 | 1 << 31;
    state.cr4 |= 0x4_0620;
    state.efer = (Efer::LME | Efer::LMA).bits();
    state.xcr0 = 7;
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = Segment {
            base: 0,
            limit: u32::MAX,
            selector: Selector(0x18),
            attributes: Attributes::from_bits_retain(0xc093),
        };
    }
    state.segment_mut(SegmentRegister::Cs).attributes = Attributes::from_bits_retain(0xa09b);
    Mode::of(&state)
}

struct Emitted {
    code: Vec<u8>,
    translation: Translation,
}

fn emit(mode: &Mode, bytes: &[u8], straddles: bool) -> Emitted {
    let mut translator = Translator::new(Features::new(|_| true));
    let request = Request {
        bytes,
        straddles,
        rip: RIP,
        linear: RIP,
        mode,
        mode_id: 3,
        branch_table: BranchTable::Own(1),
        block: BlockId(0),
    };
    let translation = translator.translate(&request, &[0, 1, 2, 3]).ok().unwrap();
    let code = translator.code().to_vec();
    assert_eq!(verify(&code, mode, &RegisterMap::LONG), [], "{bytes:x?}");
    Emitted { code, translation }
}

/// One instruction's translation.
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

/// The instructions behind the last look-up, or all if there is none, up to the exit.
fn tail(bytes: &[u8]) -> String {
    let mut tail = Vec::new();
    for line in lines(&translate(bytes).code) {
        match line.as_str() {
            "mov rcx,r10" => tail.clear(),
            _ if line.starts_with("jmp") => break,
            _ => tail.push(line),
        }
    }
    // The number of the exit's site is stored before the jump.
    tail.pop();
    tail.join("; ")
}

/// The instructions before the look-up.
fn address(bytes: &[u8]) -> String {
    let lines = lines(&translate(bytes).code);
    let look_up = lines.iter().position(|line| line.starts_with("sarx r9"));
    lines[..look_up.unwrap()].join("; ")
}
