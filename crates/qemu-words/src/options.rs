//! The one list of all options, with what becomes of each.

mod blocks;
mod general;
mod outside;
mod row;

#[cfg(test)]
use std::fmt::Write;

pub use row::{Row, Treatment};

/// The options in groups, each with its heading.
pub const OPTIONS: &[(&str, &[Row])] = &[
    ("Standard options", general::STANDARD),
    ("Block device options", blocks::BLOCKS),
    ("Shared directories", blocks::DIRECTORIES),
    ("Display options", outside::DISPLAY),
    ("x86 options", general::X86),
    ("Network options", outside::NETWORK),
    (
        "Character devices, monitors and debugging",
        outside::CHARACTERS,
    ),
    ("Boot options", general::BOOT),
    ("Running the process", outside::PROCESS),
    ("Other options", outside::OTHERS),
];

#[cfg(test)]
const HEAD: &str = "\
# QEMU's options

What becomes of each option of QEMU's command line with [`tollgate-qemu`](../guide/qemu.md). *Done*: it does what QEMU's manual
says. *Accepted, makes no difference*: the guest is the same without it. *Partly*: the last column says what is accepted; other
values are refused. *Refused*: the command line is wrong, with one line that names the option. *Tollgate's own*: QEMU does not
have it. `tollgate-qemu -device help` lists the devices.

This page is generated from the list of options:

    TOLLGATE_BLESS=1 cargo test --release -p tollgate-qemu-words
";

/// Finds the row of an option, by any of its names.
pub fn find(name: &str) -> Option<&'static Row> {
    let mut rows = OPTIONS.iter().flat_map(|(_, rows)| rows.iter());
    rows.find(|row| row.name == name || row.aliases.contains(&name))
}

/// The page with the table of all options, in Markdown.
#[cfg(test)]
fn page() -> String {
    let mut page = String::from(HEAD);
    for (heading, rows) in OPTIONS {
        let _ = writeln!(page, "\n## {heading}\n");
        page += "| option | here | |\n|---|---|---|\n";
        for row in *rows {
            let names = std::iter::once(&row.name).chain(row.aliases);
            let names: Vec<String> = names.map(|name| format!("`-{name}`")).collect();
            let (names, treatment) = (names.join(", "), row.treatment.name());
            let note = row.note.replace('|', "\\|");
            let _ = writeln!(page, "| {names} | {treatment} | {note} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_what_the_list_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/qemu.md");
        if std::env::var_os("TOLLGATE_BLESS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(written, page(), "write it with TOLLGATE_BLESS=1");
    }

    #[test]
    fn each_name_occurs_once_and_each_refusal_has_a_reason() {
        let mut names = Vec::new();
        for (_, rows) in OPTIONS {
            for row in *rows {
                names.push(row.name);
                names.extend(row.aliases);
                let is_explained = row.treatment == Treatment::Done || !row.note.is_empty();
                assert!(is_explained, "-{}", row.name);
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(count > 100, "{count}");
    }
}
