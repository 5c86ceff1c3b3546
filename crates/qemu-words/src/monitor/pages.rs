//! HMP's `info tlb` and `info mem`: the pages that the guest has mapped.

use super::machine::Page;
use std::fmt::Write;

/// All pages, one a line, with the bits of the entries that map them.
pub fn tlb(pages: &[Page]) -> String {
    const BITS: [(u32, char); 9] = [
        (63, 'X'),
        (8, 'G'),
        (7, 'P'),
        (6, 'D'),
        (5, 'A'),
        (4, 'C'),
        (3, 'T'),
        (2, 'U'),
        (1, 'W'),
    ];
    let mut text = String::new();
    for page in pages {
        let flags = BITS.map(|(bit, letter)| match page.entry >> bit & 1 {
            1 => letter,
            _ => '-',
        });
        // In an entry of a small page, bit 7 is something else.
        let flags = flags.iter().enumerate().map(|(place, letter)| match place {
            2 if page.bytes == 4096 => '-',
            _ => *letter,
        });
        let flags: String = flags.collect();
        let _ = writeln!(text, "{:016x}: {:016x} {flags}", page.linear, page.physical);
    }
    text
}

/// Ranges of pages with the same rights.
pub fn ranges(pages: &[Page]) -> String {
    let mut text = String::new();
    let mut pages = pages.iter().peekable();
    while let Some(first) = pages.next() {
        let rights = (first.user, first.writable);
        let mut end = first.linear.wrapping_add(first.bytes);
        while let Some(next) =
            pages.next_if(|next| next.linear == end && (next.user, next.writable) == rights)
        {
            end = next.linear.wrapping_add(next.bytes);
        }
        let user = if first.user { 'u' } else { '-' };
        let write = if first.writable { 'w' } else { '-' };
        let bytes = end.wrapping_sub(first.linear);
        let begin = first.linear;
        let _ = writeln!(text, "{begin:016x}-{end:016x} {bytes:016x} {user}r{write}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_the_same_rights_are_one_range() {
        let page = |linear, user| Page {
            linear,
            physical: 0x5000,
            bytes: 4096,
            entry: 0x67 | 1 << 63,
            writable: true,
            user,
        };
        let pages = [page(0, true), page(0x1000, true), page(0x2000, false)];
        assert_eq!(
            ranges(&pages),
            "0000000000000000-0000000000002000 0000000000002000 urw\n\
             0000000000002000-0000000000003000 0000000000001000 -rw\n"
        );
        let first = tlb(&pages).lines().next().unwrap().to_owned();
        assert_eq!(first, "0000000000000000: 0000000000005000 X--DA--UW");
    }
}
