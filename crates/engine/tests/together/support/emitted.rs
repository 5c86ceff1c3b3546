//! One translated block, as the tests examine it.

use super::mode::Guest;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use tollgate_engine::abi::link_layout::{BranchTable, FamilyId};
use tollgate_engine::abi::sites::{BlockId, LinkPlace, SiteKind};
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::translate::{Request, Translation, Translator};
use tollgate_engine::verify::{Subject, verify};

/// The opcode of NOP.
const FILLER: u8 = 0x90;

/// Host code and its tables.
pub struct Emitted {
    pub instructions: Vec<Instruction>,
    pub bytes: usize,
    pub translation: Translation,
}

impl Emitted {
    /// Translates guest code; the result has passed the verifier.
    pub fn of(guest: &Guest) -> Self {
        Self::with(guest, |translation, subject| Self {
            instructions: Decoder::new(64, subject.code, DecoderOptions::NONE)
                .into_iter()
                .collect(),
            bytes: subject.code.len(),
            translation,
        })
    }

    /// Translates guest code and passes the result, which has passed the verifier, to `look`.
    pub fn with<T>(guest: &Guest, look: impl FnOnce(Translation, &Subject<'_>) -> T) -> T {
        let mut translator = Translator::new(Features::new(|_| true));
        if guest.mode.bitness() != 64 {
            translator.set_register_map(guest.map);
        }
        translator.set_virtual_interrupts(guest.virtual_interrupts);
        let mut bytes = guest.code.clone();
        if guest.fills_page {
            let rest = 0x1000 - (guest.rip as usize + bytes.len()) % 0x1000;
            bytes.resize(bytes.len() + rest, FILLER);
        }
        let linear = guest.mode.linear(guest.rip);
        let request = Request {
            bytes: &bytes,
            is_cut: false,
            straddles: false,
            rip: guest.rip,
            linear,
            physical: 0x10_0000,
            relocates: guest.relocates,
            mode: &guest.mode,
            mode_id: 0,
            branch_table: if guest.mode.bitness() == 64 {
                BranchTable::Own(0)
            } else {
                BranchTable::Shared
            },
            family: FamilyId(0),
            block: BlockId(0),
        };
        let Ok(translation) = translator.translate(&request, &[0, 1, 2, 3]) else {
            panic!("the code ends inside an instruction: {bytes:02X?}");
        };
        let code = translator.code();
        let map = translator.map_of(&guest.mode);
        let subject = Subject {
            code,
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
        assert_eq!(verify(&subject), [], "{bytes:02X?}");
        look(translation.clone(), &subject)
    }

    /// The jump that ends every block whose last instruction does not end it, and the jump's stub,
    /// as offsets. Both are the same in all blocks.
    pub fn ending(&self, guest: &Guest) -> Option<(u32, u32)> {
        if guest.last().flow_control() != FlowControl::Next {
            return None;
        }
        let site = self
            .translation
            .tables
            .sites
            .iter()
            .find(|site| site.rip == guest.end())?;
        let SiteKind::Link(LinkPlace::Direct { distance, stub, .. }) = site.kind else {
            return None;
        };
        let jump = distance.checked_sub(1)?;
        let is_jump = self
            .instructions
            .iter()
            .any(|instruction| instruction.ip() as u32 == jump && instruction.is_jmp_near());
        is_jump.then_some((jump, stub))
    }
}
