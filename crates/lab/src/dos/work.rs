//! The keys that are typed into DOS, and the results that they must have.

use super::{primes, sums};
use crate::small_system::expected::{calculation, computation, numbered_lines};
use tollgate_machine::board::input::Key;
use tollgate_machine::devices::i8042::us_layout::presses;

/// A task for DOS, in rounds that are all the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// The task's name.
    pub name: &'static str,
    /// Files from `scripts/get-dos-programs` that it needs on C:.
    pub fetched: &'static [&'static str],
    /// The file on C: with the scan codes of a round; `None` if nothing is typed.
    pub script_file: Option<&'static str>,
    /// The text that the scan codes type.
    pub script: String,
    /// Files on C: that must exist afterwards, with their contents.
    pub files: Vec<(&'static str, String)>,
    /// Lines that must be on the screen afterwards.
    pub shown: Vec<String>,
}

impl Work {
    /// The scan codes that a round types.
    ///
    /// # Panics
    ///
    /// Panics if a character is not on a US keyboard, which a test excludes.
    pub fn scancodes(&self) -> Vec<u8> {
        let characters = self.script.chars();
        let strokes = characters
            .flat_map(|character| strokes(character).expect("scripts are of a US keyboard"));
        strokes
            .flat_map(|(key, down)| key.scancodes(down))
            .collect()
    }
}

/// What is pressed and released for a character: Control and a letter for a control character that
/// has no key of its own.
fn strokes(character: char) -> Option<Vec<(Key, bool)>> {
    let has_key = !character.is_ascii_control() || "\n\x08\t\x1b".contains(character);
    if has_key {
        return presses(character);
    }
    let letter = presses(char::from(character as u8 | 0x60))?;
    let around = |down| [(Key::LEFT_CONTROL, down)];
    Some([&around(true), &*letter, &around(false)].concat())
}

/// File names as on the disk. Scripts type them in lower case; DOS ignores the case.
const LETTER: &str = "LETTER.TXT";
const REPORT: &str = "REPORT.TXT";
/// Preprocessor, compiler, assembler and linker, and what the linker adds to a program.
const TOOLS: [&str; 6] = [
    "CPP.COM", "CC1.EXE", "AS86.COM", "LD86.COM", "CRT0.O", "LIBDOS.A",
];
const LETTER_LINES: usize = 60;
const REPORT_LINES: usize = 24;

/// The text for the editor. It contains a mistake, which the following keys correct.
const POSTSCRIPT: &str = "a line that was typed into the editor,\nand anothee\x08r one.\n";

/// The file that the editor makes of it.
fn postscript() -> String {
    let mut text = String::new();
    for character in POSTSCRIPT.chars() {
        match character {
            '\n' => text.push_str("\r\n"),
            '\x08' => drop(text.pop()),
            other => text.push(other),
        }
    }
    text
}

/// The keys of WordStar: to the end, a text, to the start, delete a line, save and exit.
const E3_KEYS: &str = "\x11ca line that was typed into the editorr\x08,\nand another one.\n\
    \x11r\
    \x19\
    \x0bx";

/// The letter after that.
fn changed_by_e3(letter: &str) -> String {
    let rest = letter.split_once("\r\n").map_or("", |(_, rest)| rest);
    rest.to_owned() + &postscript()
}

/// What `vi` is told: to open a line at the end for a text, to replace words everywhere, to delete
/// the first line, and to delete a character in the third of the others.
const VI_KEYS: &str = "Goa line that was typed into the editorr\x08,\nand another one.\x1b\
    :1,$s/the/THE/g\n\
    1Gdd\
    jjx\
    :wq\n";

/// The letter after that.
fn changed_by_vi(letter: &str) -> String {
    let text = letter.to_owned() + &postscript();
    let lines = text.lines().skip(1);
    let mut lines: Vec<String> = lines.map(|line| line.replace("the", "THE")).collect();
    lines[2].remove(0);
    lines.iter().map(|line| format!("{line}\r\n")).collect()
}

/// The text and the line with its checksum, which a program prints at its end.
fn with_checksum((text, checksum): (String, u16)) -> String {
    format!("{text}checksum {checksum}\r\n")
}

/// All tasks that DOS can be given.
pub fn works() -> [Work; 9] {
    let (letter, report) = (numbered_lines(LETTER_LINES), numbered_lines(REPORT_LINES));
    let last_line = |text: &str| {
        text.trim_end()
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned()
    };
    let lines = |text: String| text.lines().map(str::to_owned).collect();
    [
        Work {
            name: "idle",
            fetched: &[],
            script_file: None,
            script: String::new(),
            files: Vec::new(),
            shown: Vec::new(),
        },
        Work {
            name: "copy-type",
            fetched: &[],
            script_file: Some("COPYTYPE.KEY"),
            script: "cls\n\
                del first.txt\n\
                copy letter.txt first.txt\n\
                type first.txt\n\
                del second.txt\n\
                copy report.txt second.txt\n\
                type second.txt\n"
                .into(),
            shown: vec![last_line(&report)],
            files: vec![("FIRST.TXT", letter.clone()), ("SECOND.TXT", report)],
        },
        Work {
            name: "mix",
            fetched: &[],
            script_file: Some("MIX.KEY"),
            script: format!(
                "cls\n\
                del draft.txt\n\
                copy letter.txt draft.txt\n\
                edit draft.txt\n{POSTSCRIPT}\x1b\
                type draft.txt\n\
                sheet > totals.txt\n\
                type totals.txt\n\
                rpn sums.rpn sums.com\n\
                sums > sums.txt\n\
                type sums.txt\n"
            ),
            shown: vec![last_line(&with_checksum(calculation()))],
            files: vec![
                ("DRAFT.TXT", letter.clone() + &postscript()),
                ("TOTALS.TXT", with_checksum(calculation())),
                ("SUMS.TXT", sums::results()),
            ],
        },
        Work {
            name: "spreadsheet",
            fetched: &[],
            script_file: Some("SHEET.KEY"),
            script: "cls\n\
                del totals.txt\n\
                sheet > totals.txt\n\
                type totals.txt\n"
                .into(),
            shown: vec![last_line(&with_checksum(calculation()))],
            files: vec![("TOTALS.TXT", with_checksum(calculation()))],
        },
        Work {
            name: "editor",
            fetched: &[],
            script_file: Some("EDITOR.KEY"),
            script: format!(
                "cls\n\
                del draft.txt\n\
                copy letter.txt draft.txt\n\
                edit draft.txt\n{POSTSCRIPT}\x1b\
                type draft.txt\n"
            ),
            shown: vec![last_line(&postscript())],
            files: vec![("DRAFT.TXT", letter.clone() + &postscript())],
        },
        Work {
            name: "word-processor",
            fetched: &["E3.COM"],
            script_file: Some("E3.KEY"),
            script: format!(
                "cls\n\
                del draft.txt\n\
                copy letter.txt draft.txt\n\
                e3 draft.txt\n{E3_KEYS}\
                type draft.txt\n"
            ),
            shown: vec![last_line(&postscript())],
            files: vec![("DRAFT.TXT", changed_by_e3(&letter))],
        },
        Work {
            name: "vi",
            fetched: &["VI.EXE"],
            script_file: Some("VI.KEY"),
            script: format!(
                "cls\n\
                del draft.txt\n\
                copy letter.txt draft.txt\n\
                vi draft.txt\n{VI_KEYS}\
                type draft.txt\n"
            ),
            shown: vec![last_line(&changed_by_vi(&letter))],
            files: vec![("DRAFT.TXT", changed_by_vi(&letter))],
        },
        Work {
            name: "build",
            fetched: &TOOLS,
            script_file: Some("BUILD.KEY"),
            script: "cls\n\
                del table.com\n\
                del table.txt\n\
                cpp -0 table.c -o table.i\n\
                cc1 -0 table.i -o table.s\n\
                as86 -0 -u -w -o table.o table.s\n\
                ld86 -0 -d -T100 -L. -C0 table.o -ldos -o table.com\n\
                table > table.txt\n\
                type table.txt\n"
                .into(),
            shown: vec![last_line(&primes::table())],
            files: vec![("TABLE.TXT", primes::table())],
        },
        Work {
            name: "compute",
            fetched: &[],
            script_file: Some("COMPUTE.KEY"),
            script: "cls\ncompute\n".into(),
            files: Vec::new(),
            shown: lines(with_checksum(computation())),
        },
    ]
}

macro_rules! program {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".com"))
    };
}

/// The files on C: at the start.
pub(super) fn files() -> Vec<(&'static str, Vec<u8>)> {
    let mut files: Vec<(&str, Vec<u8>)> = vec![
        ("HOOKS.COM", program!("hooks").to_vec()),
        ("EDIT.COM", program!("edit").to_vec()),
        ("SHEET.COM", program!("sheet").to_vec()),
        ("RPN.COM", program!("rpn").to_vec()),
        ("COMPUTE.COM", program!("compute").to_vec()),
        ("SUMS.RPN", sums::source().into_bytes()),
        ("TABLE.C", primes::SOURCE.into()),
        (LETTER, numbered_lines(LETTER_LINES).into_bytes()),
        (REPORT, numbered_lines(REPORT_LINES).into_bytes()),
    ];
    for work in works() {
        if let Some(name) = work.script_file {
            files.push((name, work.scancodes()));
        }
        // The files that a round deletes must exist.
        for (name, _) in &work.files {
            if !files.iter().any(|(other, _)| other == name) {
                files.push((name, b"empty\r\n".to_vec()));
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_can_be_typed_and_fit_into_the_resident_program() {
        for work in works() {
            assert!(work.scancodes().len() <= 4096, "{}", work.name);
        }
        let copy = &works()[1];
        assert_eq!(copy.scancodes()[..4], [0x2e, 0xae, 0x26, 0xa6]);
        let control_k = strokes('\x0b').unwrap().into_iter();
        let control_k: Vec<u8> = control_k
            .flat_map(|(key, down)| key.scancodes(down))
            .collect();
        assert_eq!(control_k, [0x1d, 0x25, 0xa5, 0x9d]);
    }

    #[test]
    fn the_editor_takes_a_mistake_back() {
        assert_eq!(
            postscript(),
            "a line that was typed into the editor,\r\nand another one.\r\n"
        );
    }

    #[test]
    fn vi_changes_the_letter_as_it_is_told() {
        let letter = "1 the\r\n2 the the\r\n3 a\r\n4 the\r\n";
        assert_eq!(
            changed_by_vi(letter),
            "2 THE THE\r\n3 a\r\n THE\r\na line that was typed into THE editor,\r\nand anoTHEr one.\r\n"
        );
    }

    #[test]
    fn no_file_is_there_twice() {
        let mut names: Vec<&str> = files().iter().map(|(name, _)| *name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
