//! Whether a page of code has an instruction that must not run natively, seen from each place where
//! its first instruction may begin.

use super::code_pages::Refused;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use tollgate_x86::address::PAGE_SIZE;

/// The size of a page in bytes.
const PAGE: usize = PAGE_SIZE as usize;
/// The bytes of a page.
pub(super) type Page = [u8; PAGE];

/// The length of the longest instruction, in bytes.
const LONGEST: usize = 15;
/// The offset from which on an opcode's last byte may be in the next page.
const NEAR_END: usize = PAGE - 2;
/// The offset from which on bytes that are no instruction make the end of a page uncertain.
const UNCERTAIN_FROM: usize = PAGE - 64;

/// Offsets of a page at which its first instruction may begin: a bit for each of the first
/// [`LONGEST`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Starts(u16);

impl Starts {
    /// All that are possible.
    pub(super) const ALL: Self = Self((1 << LONGEST) - 1);
    const NONE: Self = Self(0);

    const fn one(offset: usize) -> Self {
        Self(1 << offset)
    }

    const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What the bytes of a page of code say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Judgement {
    /// The places from which the page has an instruction that must not run natively.
    unfit_from: Starts,
    /// What an instruction that begins with 0Fh in the last two bytes has there, if the page that
    /// follows may make it one of those.
    tail: Option<[u8; 2]>,
    /// The first two bytes.
    head: [u8; 2],
}

impl Judgement {
    /// That of a page that must be translated.
    pub(super) const UNFIT: Self = Self {
        unfit_from: Starts::ALL,
        tail: None,
        head: [0; 2],
    };

    /// That of a page without such an instruction.
    pub(super) const FIT: Self = Self {
        unfit_from: Starts::NONE,
        tail: None,
        head: [0; 2],
    };

    /// Whether the page may run natively if its first instruction begins at any of these places.
    pub(super) const fn is_fit(self, starts: Starts) -> bool {
        !self.unfit_from.meets(starts)
    }

    /// Whether it matters where the first instruction begins.
    pub(super) fn depends_on_start(self) -> bool {
        !self.unfit_from.is_empty() && self.unfit_from != Starts::ALL
    }

    /// Whether the page may run natively, wherever its first instruction begins.
    pub(super) const fn is_always_fit(self) -> bool {
        self.unfit_from.is_empty()
    }

    /// Whether the page that follows may complete an instruction that must not run natively.
    pub(super) const fn is_cut(self) -> bool {
        self.tail.is_some()
    }

    /// Whether the page ends with the beginning of an instruction that must not run natively, if
    /// `next` follows it.
    pub(super) fn reveals_with(self, next: Self, refused: Refused) -> bool {
        let Some([first, second]) = self.tail else {
            return false;
        };
        if next.unfit_from == Starts::ALL {
            // What is in the next page runs translated, and so does an instruction that ends there.
            return false;
        }
        match (first, second) {
            (_, 0x0f) => reveals(Some(next.head[0]), Some(next.head[1]), refused),
            _ => reveals(Some(second), Some(next.head[0]), refused),
        }
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
pub(super) fn judge(bytes: &Page, refused: Refused) -> Judgement {
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
    let [first, second, .., next_to_last, last] = *bytes;
    let mut judgement = Judgement {
        unfit_from: Starts::NONE,
        tail: None,
        head: [first, second],
    };
    if suspected.is_empty() {
        return judgement;
    }
    for (start, path) in paths(bytes, &suspected).into_iter().enumerate() {
        if path.has_inside {
            judgement.unfit_from = judgement.unfit_from.with(Starts::one(start));
        }
        if path.has_at_end {
            judgement.tail = Some([next_to_last, last]);
        }
    }
    judgement
}

/// Where the first instruction of `page` may begin, as the instructions of the page before tell it.
/// If the last bytes of that are no instructions, everywhere.
pub(super) fn starts_after(before: &Page, page: &Page) -> Starts {
    let mut bytes = before.to_vec();
    bytes.extend_from_slice(&page[..LONGEST]);
    let paths = paths(&bytes, &[]);
    (paths.iter()).fold(Starts::NONE, |all, path| all.with(path.ends))
}

/// What is found on the way from an instruction to the end of its page.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// Whether there is one of the opcodes, completely in the page.
    has_inside: bool,
    /// Whether one of the opcodes begins in the last two bytes.
    has_at_end: bool,
    /// Where the first instruction of the next page begins.
    ends: Starts,
}

/// The paths from each of the first bytes of a page, on which opcodes at these offsets are looked
/// for. They meet sooner or later, and what follows is decoded once. `bytes` are the page and what
/// is known of the one that follows it.
fn paths(bytes: &[u8], opcodes: &[usize]) -> [Path; LONGEST] {
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut known: Vec<Option<Path>> = vec![None; PAGE];
    // The instructions of the way, with whether they are any.
    let mut way: Vec<(usize, bool)> = Vec::new();
    std::array::from_fn(|start| {
        let mut at = start;
        way.clear();
        let mut path = loop {
            let Some(place) = known.get(at) else {
                break Path {
                    has_inside: false,
                    has_at_end: false,
                    ends: Starts::one((at - PAGE).min(LONGEST - 1)),
                };
            };
            if let Some(path) = place {
                break *path;
            }
            let is_instruction = decoder.set_position(at).is_ok() && {
                decoder.decode_out(&mut instruction);
                !instruction.is_invalid()
            };
            way.push((at, is_instruction));
            at += match is_instruction {
                true => instruction.len(),
                false => 1,
            };
        };
        for &(at, is_instruction) in way.iter().rev() {
            // The opcode follows prefixes, none of which is 0Fh.
            let prefixes = bytes[at..].iter().take_while(|it| is_prefix(it)).count();
            if let Ok(number) = opcodes.binary_search(&(at + prefixes)) {
                match opcodes[number] >= NEAR_END {
                    true => path.has_at_end = true,
                    false => path.has_inside = true,
                }
            }
            if at >= UNCERTAIN_FROM && !is_instruction {
                path.ends = Starts::ALL;
            }
            known[at] = Some(path);
        }
        path
    })
}

/// Whether a byte is a prefix of an instruction in 64-bit code.
fn is_prefix(byte: &u8) -> bool {
    matches!(
        byte,
        0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
    )
}

/// Whether an instruction with an opcode of two bytes, 0Fh and `second`, is one of those: it shows
/// facts of the host, or calls a hypervisor. If the host is itself a guest, VMCALL and VMMCALL reach
/// its hypervisor from programs, too (SDM volume 3, 25.1.2), and VMFUNC may. `modrm` is the byte that
/// follows. `None` stands for any byte.
fn reveals(second: Option<u8>, modrm: Option<u8>, refused: Refused) -> bool {
    let has_umip = refused.descriptor_tables;
    let register = modrm.map(|byte| byte >> 3 & 7);
    let is_memory = modrm.is_none_or(|byte| byte < 0xc0);
    let is_register = modrm.is_none_or(|byte| byte >= 0xc0);
    match second {
        None => true,
        Some(0x00) => register.is_none_or(|it| matches!(it, 4 | 5) || it < 2 && !has_umip),
        Some(0x01) => {
            let whole = modrm
                .is_none_or(|it| matches!(it, 0xc1 | 0xd0 | 0xd4 | 0xd9 | 0xee | 0xef | 0xfd))
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

    fn page_with(at: usize, code: &[u8]) -> Page {
        let mut page = [0x90; PAGE];
        let end = page.len().min(at + code.len());
        page[at..end].copy_from_slice(&code[..end - at]);
        page
    }

    #[test]
    fn instructions_that_tell_of_the_host_are_found_at_any_offset() {
        let revealing: [&[u8]; 18] = [
            &[0x0f, 0xa2],
            &[0x0f, 0x31],
            &[0x0f, 0x01, 0xf9],
            &[0x0f, 0x01, 0xfd],
            &[0x0f, 0x01, 0xd0],
            &[0x0f, 0x01, 0xef],
            &[0x0f, 0x01, 0xc1], // vmcall
            &[0x0f, 0x01, 0xd4], // vmfunc
            &[0x0f, 0x01, 0xd9], // vmmcall
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
                assert!(!judged.is_fit(Starts::ALL) || is_cut, "{code:x?} at {at}");
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
            assert!(
                judge(&page, Refused::default()).is_always_fit(),
                "{code:x?}"
            );
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
        assert!(!judge(&page, Refused::default()).is_fit(Starts::ALL));
        assert!(judge(&page, UMIP).is_always_fit());
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
        assert!(judge(&page, UMIP).is_always_fit());
        // At the page's start the instruction that the bytes belong to may be in the page before.
        let page = page_with(0, &[0x0f, 0x00, 0xe8, 0x10, 0, 0, 0]);
        let judged = judge(&page, UMIP);
        assert!(judged.depends_on_start());
        let lea = page_with(PAGE - 5, &[0x48, 0x8d, 0x05, 0x34, 0x12]);
        assert!(judged.is_fit(starts_after(&lea, &page)));
        assert!(!judged.is_fit(starts_after(&page_with(0, &[]), &page)));
        // Bytes that are no instruction tell nothing.
        let data = page_with(PAGE - 20, &[0x06; 4]);
        assert_eq!(starts_after(&data, &page), Starts::ALL);
    }

    #[test]
    fn an_instruction_across_pages_is_judged_by_both() {
        let page = page_with(4095, &[0x0f]);
        let before = judge(&page, UMIP);
        assert!(before.is_always_fit());
        let next = |code: &[u8]| judge(&page_with(0, code), UMIP);
        assert!(!before.reveals_with(next(&[0x84, 0, 0, 0, 0]), UMIP));
        assert!(before.reveals_with(next(&[0xa2]), UMIP));
    }
}
