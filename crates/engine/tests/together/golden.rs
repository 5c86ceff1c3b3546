//! Golden files of the translator's output: a change of the translator shows in review as a change
//! of the files in `tests/golden`, one for each subject.
//!
//! A file consists of entries. The head of an entry is its input:
//!
//! ```text
//! == flat32: 8B4308
//! ```
//!
//! It names a mode and a few bytes of guest code (`support/mode.rs` lists the words). After the
//! bytes, and in the lines below, stands what the translator made of them. To add an entry, write
//! its head; then run
//!
//! ```text
//! TOLLGATE_BLESS=1 cargo test --release -p tollgate-engine --test together golden::
//! ```
//!
//! which rewrites the files, and check that the difference is right. Nothing depends on the host:
//! all processor features are offered, host addresses appear by name, and jump targets are labels.
//! The jump from the end of a block to the next, which is the same everywhere, is left out, and so
//! is its exit. After `;` stands the entry of the state map that holds from an instruction on, if
//! it differs from the one before: how far the guest has come (`+2` is two bytes after the start,
//! `end` is after the last instruction), what must be added to the home of ESP, and which registers
//! a signal handler must put back.

use crate::support::{emitted, mode, text};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The text that begins an entry.
const HEAD: &str = "== ";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Generates the whole file from the heads of its old version.
fn generated(old: &str) -> String {
    let mut new = String::new();
    let mut lines = old.lines().peekable();
    // The text before the first entry is for people.
    while let Some(line) = lines.next_if(|line| !line.starts_with(HEAD)) {
        writeln!(new, "{line}").unwrap();
    }
    for line in lines {
        if let Some(head) = line.strip_prefix(HEAD) {
            entry(&mut new, head);
        }
    }
    new.truncate(new.trim_end().len());
    new.push('\n');
    new
}

/// Generates one entry from its head: `MODE: BYTES` and any text after them.
fn entry(new: &mut String, head: &str) {
    let (mode, rest) = head
        .split_once(": ")
        .unwrap_or_else(|| panic!("'{head}': expected MODE: BYTES"));
    let bytes = rest.split(' ').next().unwrap_or_default();
    let guest = mode::Guest::of(mode, bytes);
    let emitted = emitted::Emitted::of(&guest);
    let disassembly = guest.disassembly();
    writeln!(new, "{HEAD}{mode}: {bytes}  {disassembly}").unwrap();
    new.push_str(&text::text(&guest, &emitted));
    new.push('\n');
}

/// The first lines in which two texts differ, with the lines around them.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new);
    let start = same.count();
    let ends = old[start..].iter().rev().zip(new[start..].iter().rev());
    let same_end = ends.take_while(|(old, new)| old == new).count();
    let head = old[..start.min(old.len())]
        .iter()
        .rposition(|line| line.starts_with(HEAD));
    let mut text = String::new();
    for line in &old[head.unwrap_or(0)..start] {
        writeln!(text, "  {line}").unwrap();
    }
    for (sign, lines) in [('-', &old), ('+', &new)] {
        let changed = &lines[start..lines.len() - same_end];
        for line in changed.iter().take(40) {
            writeln!(text, "{sign} {line}").unwrap();
        }
        if changed.len() > 40 {
            writeln!(text, "{sign} ... and {} more lines", changed.len() - 40).unwrap();
        }
    }
    text
}

#[test]
fn emitted_code_is_as_it_was_reviewed() {
    let bless = std::env::var_os("TOLLGATE_BLESS").is_some();
    let mut paths: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut differences = String::new();
    for path in paths {
        let old = std::fs::read_to_string(&path).unwrap();
        let new = generated(&old);
        if new == old {
            continue;
        }
        if bless {
            std::fs::write(&path, new).unwrap();
        } else {
            let name = path.file_name().unwrap().display();
            writeln!(differences, "{name}:\n{}", difference(&old, &new)).unwrap();
        }
    }
    assert!(
        differences.is_empty(),
        "the translator emits code that differs from tests/golden:\n{differences}\
         If the new code is right: TOLLGATE_BLESS=1 cargo test --release -p tollgate-engine --test together golden::"
    );
}

#[test]
fn a_difference_shows_its_entry_and_both_sides() {
    let old = "== a: 90\n  nop\n== b: 90\n  one\n  two\n  three\n";
    let new = "== a: 90\n  nop\n== b: 90\n  one\n  2\n  three\n";
    assert_eq!(
        difference(old, new),
        "  == b: 90\n    one\n-   two\n+   2\n"
    );
}
