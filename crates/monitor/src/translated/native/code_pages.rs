//! Which pages of code may run natively: those without an instruction that would tell a program
//! about the host, or change what only translated code follows, without a fault.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use rustc_hash::FxHashMap;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// What is known of pages of code, by physical page.
#[derive(Default)]
pub(in crate::translated) struct CodePages {
    pages: FxHashMap<u64, Fitness>,
    /// What the host refuses to programs.
    pub(in crate::translated) refused: Refused,
    /// Pages whose code was written since it was found fit. Programs may still have them mapped.
    written: Vec<u64>,
}

/// Whether a page of code may run natively.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::translated) enum Fitness {
    /// It may, unless the page that follows completes an instruction that must not.
    Fit {
        /// What an instruction that begins with 0Fh in the last two bytes has there.
        tail: Option<[u8; 2]>,
        /// The first two bytes.
        head: [u8; 2],
    },
    /// It must be translated.
    Unfit,
}

impl Fitness {
    /// Whether a page that may run natively ends with the beginning of an instruction that must not,
    /// if `next` follows it.
    pub(in crate::translated) fn reveals_with(self, next: Self, refused: Refused) -> bool {
        let Self::Fit {
            tail: Some([first, second]),
            ..
        } = self
        else {
            return false;
        };
        let Self::Fit { head, .. } = next else {
            // What is in the next page runs translated, and so does an instruction that ends there.
            return false;
        };
        match (first, second) {
            (_, 0x0f) => reveals(Some(head[0]), Some(head[1]), refused),
            _ => reveals(Some(second), Some(head[0]), refused),
        }
    }

    /// Whether the page may run natively.
    pub(in crate::translated) const fn is_fit(self) -> bool {
        matches!(self, Self::Fit { .. })
    }
}

/// What the host refuses to programs, so that they may have it in their code.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::translated) struct Refused {
    /// SGDT, SIDT, SLDT, SMSW and STR, by user-mode instruction prevention (SDM volume 3, 2.5).
    /// Linux answers some of them with values of its own, the same for each process.
    pub(in crate::translated) descriptor_tables: bool,
    /// RDTSC and RDTSCP.
    pub(in crate::translated) time_stamp: bool,
    /// CPUID.
    pub(in crate::translated) cpuid: bool,
}

/// The lines of a whole page.
const ALL_LINES: u64 = u64::MAX;

impl CodePages {
    /// Whether a page may run natively. Its lines are held from then on, so that [`Self::written`]
    /// learns of each write to the page; the caller must ensure that stores to it are tested.
    pub(in crate::translated) fn fitness(&mut self, page: u64, memory: &GuestMemory) -> Fitness {
        let refused = self.refused;
        *self.pages.entry(page).or_insert_with(|| {
            let mut bytes = [0; PAGE_SIZE as usize];
            let is_there = memory.read(PhysicalAddress(page * PAGE_SIZE), &mut bytes);
            memory.code().hold(page, ALL_LINES);
            match is_there {
                true => judge(&bytes, refused),
                false => Fitness::Unfit,
            }
        })
    }

    /// Whether a page was found fit and was not written since.
    pub(in crate::translated) fn is_known(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// Says what the host refuses to programs. The pages that are known were judged without it.
    pub(in crate::translated) fn set_refused(&mut self, refused: Refused) {
        if refused != self.refused {
            self.refused = refused;
            self.pages.retain(|_, fitness| fitness.is_fit());
        }
    }

    /// Follows a write to a page that may hold code. Returns whether the page was known.
    pub(in crate::translated) fn written(&mut self, page: u64, memory: &GuestMemory) -> bool {
        let Some(fitness) = self.pages.remove(&page) else {
            return false;
        };
        memory.code().release(page, ALL_LINES);
        if fitness.is_fit() {
            self.written.push(page);
        }
        true
    }

    /// The pages that must be unmapped before a program runs again.
    pub(in crate::translated) fn take_written(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.written)
    }
}

/// Judges a page of code: whether it has an instruction that must not run natively (SDM volume 2 and
/// APM volume 3 have the opcodes). These are CPUID, RDTSC and RDTSCP, RDPRU, XGETBV, RDPKRU and
/// WRPKRU, LAR, LSL, VERR and VERW, RDPID and, because its prefix is not looked at, RDSEED, and what
/// else the host does not refuse.
///
/// The bytes of such an instruction are in every tenth page of usual code, inside of others: most
/// often a displacement with 0Fh and the opcode that follows it. So the page is decoded from each of
/// its first bytes. Where an instruction begins that none of these decodings finds, only a program
/// that jumps into the middle of its own instructions can get.
fn judge(bytes: &[u8; PAGE_SIZE as usize], refused: Refused) -> Fitness {
    let mut suspected = Vec::new();
    let mut from = 0;
    while let Some(found) = bytes[from..].iter().position(|&byte| byte == 0x0f) {
        let at = from + found;
        let (second, modrm) = (bytes.get(at + 1).copied(), bytes.get(at + 2).copied());
        if reveals(second, modrm, refused) {
            suspected.push(at);
        }
        from = at + 1;
    }
    let found = match suspected.is_empty() {
        true => Found::Nothing,
        false => look_for_opcodes(bytes, &suspected),
    };
    let [first, second, .., next_to_last, last] = *bytes;
    let head = [first, second];
    match found {
        Found::Inside => Fitness::Unfit,
        Found::AtEnd => Fitness::Fit {
            tail: Some([next_to_last, last]),
            head,
        },
        Found::Nothing => Fitness::Fit { tail: None, head },
    }
}

/// The length of the longest instruction, in bytes.
const LONGEST: usize = 15;
/// The offset from which on an opcode's last byte may be in the next page.
const NEAR_END: usize = PAGE_SIZE as usize - 2;

/// Where instructions with certain opcodes begin.
enum Found {
    Nothing,
    /// Only where the rest of the instruction is in the next page.
    AtEnd,
    Inside,
}

/// Looks for the opcodes at these offsets in the instructions of a page, which is decoded from each
/// of its first bytes.
fn look_for_opcodes(bytes: &[u8; PAGE_SIZE as usize], opcodes: &[usize]) -> Found {
    let mut is_start = vec![false; bytes.len()];
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut found = Found::Nothing;
    for start in 0..LONGEST {
        let mut at = start;
        // All decodings meet sooner or later.
        while at < bytes.len() && !std::mem::replace(&mut is_start[at], true) {
            // The opcode follows prefixes, none of which is 0Fh.
            let prefixes = bytes[at..].iter().take_while(|it| is_prefix(it)).count();
            match opcodes.binary_search(&(at + prefixes)) {
                Ok(number) if opcodes[number] >= NEAR_END => found = Found::AtEnd,
                Ok(_) => return Found::Inside,
                Err(_) => {}
            }
            if decoder.set_position(at).is_err() {
                break;
            }
            decoder.decode_out(&mut instruction);
            at += match instruction.is_invalid() {
                true => 1,
                false => instruction.len(),
            };
        }
    }
    found
}

/// Whether a byte is a prefix of an instruction in 64-bit code.
fn is_prefix(byte: &u8) -> bool {
    matches!(
        byte,
        0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
    )
}

/// Whether an instruction with an opcode of two bytes, 0Fh and `second`, is one of those. `modrm` is
/// the byte that follows. `None` stands for any byte.
fn reveals(second: Option<u8>, modrm: Option<u8>, refused: Refused) -> bool {
    let has_umip = refused.descriptor_tables;
    let register = modrm.map(|byte| byte >> 3 & 7);
    let is_memory = modrm.is_none_or(|byte| byte < 0xc0);
    let is_register = modrm.is_none_or(|byte| byte >= 0xc0);
    match second {
        None => true,
        Some(0x00) => register.is_none_or(|it| matches!(it, 4 | 5) || it < 2 && !has_umip),
        Some(0x01) => {
            let whole = modrm.is_none_or(|it| matches!(it, 0xd0 | 0xee | 0xef | 0xfd))
                || modrm == Some(0xf9) && !refused.time_stamp;
            let stores_table = is_memory && register.is_none_or(|it| matches!(it, 0 | 1));
            whole || !has_umip && (stores_table || register == Some(4))
        }
        Some(0x02 | 0x03) => true,
        Some(0x31) => !refused.time_stamp,
        Some(0xa2) => !refused.cpuid,
        Some(0xc7) => is_register && register.is_none_or(|it| it == 7),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_with(at: usize, code: &[u8]) -> [u8; PAGE_SIZE as usize] {
        let mut page = [0x90; PAGE_SIZE as usize];
        let end = page.len().min(at + code.len());
        page[at..end].copy_from_slice(&code[..end - at]);
        page
    }

    #[test]
    fn instructions_that_tell_of_the_host_are_found_at_any_offset() {
        let revealing: [&[u8]; 15] = [
            &[0x0f, 0xa2],
            &[0x0f, 0x31],
            &[0x0f, 0x01, 0xf9],
            &[0x0f, 0x01, 0xfd],
            &[0x0f, 0x01, 0xd0],
            &[0x0f, 0x01, 0xef],
            &[0x0f, 0x02, 0xc0],
            &[0x0f, 0x03, 0x00],
            &[0x0f, 0x00, 0xe0],
            &[0x0f, 0x01, 0x03],
            &[0x0f, 0x01, 0x4b, 0x08],
            &[0x0f, 0x01, 0xe0],
            &[0x0f, 0x00, 0xc1],
            &[0xf3, 0x0f, 0xc7, 0xf8],
            &[0x66, 0x0f, 0x00, 0xc8],
        ];
        for code in revealing {
            for at in [0, 1, 2048, 4091, 4094] {
                let page = page_with(at, code);
                let judged = judge(&page, Refused::default());
                let next = judge(
                    &page_with(0, &code[code.len().min(4096 - at)..]),
                    Refused::default(),
                );
                let is_cut = judged.reveals_with(next, Refused::default());
                assert!(judged == Fitness::Unfit || is_cut, "{code:x?} at {at}");
            }
        }
    }

    #[test]
    fn usual_code_runs_natively() {
        let usual: [&[u8]; 7] = [
            &[0x0f, 0x05],                   // syscall
            &[0x0f, 0x1f, 0x44, 0x00, 0x00], // nop
            &[0x0f, 0xb6, 0x01],             // movzx eax, byte [rcx]
            &[0x0f, 0xc7, 0x0f],             // cmpxchg8b [rdi]
            &[0x0f, 0xc7, 0xf0],             // rdrand eax
            &[0x0f, 0x01, 0xd5],             // xend
            &[0x0f, 0x84, 0x00, 0x01, 0x00, 0x00],
        ];
        for code in usual {
            let page = page_with(100, code);
            assert!(judge(&page, Refused::default()).is_fit(), "{code:x?}");
        }
    }

    const UMIP: Refused = Refused {
        descriptor_tables: true,
        time_stamp: false,
        cpuid: false,
    };

    #[test]
    fn what_the_processor_refuses_may_stay() {
        let page = page_with(100, &[0x0f, 0x01, 0x03]);
        assert_eq!(judge(&page, Refused::default()), Fitness::Unfit);
        assert!(judge(&page, UMIP).is_fit());
    }

    #[test]
    fn bytes_inside_of_other_instructions_may_stay() {
        // lea rax, [rip+0f1234h], call: 0Fh 00h E8h would be VERW.
        let page = page_with(
            200,
            &[
                0x48, 0x8d, 0x05, 0x34, 0x12, 0x0f, 0x00, 0xe8, 0x10, 0, 0, 0,
            ],
        );
        assert!(judge(&page, UMIP).is_fit());
        // At the page's start the instruction that the bytes belong to may be in the page before.
        let page = page_with(0, &[0x0f, 0x00, 0xe8, 0x10, 0, 0, 0]);
        assert_eq!(judge(&page, UMIP), Fitness::Unfit);
    }

    #[test]
    fn an_instruction_across_pages_is_judged_by_both() {
        let page = page_with(4095, &[0x0f]);
        let before = judge(&page, UMIP);
        assert!(before.is_fit());
        let next = |code: &[u8]| judge(&page_with(0, code), UMIP);
        assert!(!before.reveals_with(next(&[0x84, 0, 0, 0, 0]), UMIP));
        assert!(before.reveals_with(next(&[0xa2]), UMIP));
    }
}
