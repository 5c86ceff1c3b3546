//! Lays out the help for the width of the terminal.
//!
//! In the source, the texts of flags and sections are broken into short lines. The parser would
//! keep these breaks and break long lines again. So this module joins the lines and breaks each
//! paragraph once, for the actual width:
//!
//!
//! ```text
//!   plain lines, one after the other    one paragraph
//!   "word    what it means"             a row; further lines begin below the meaning
//!   a line that begins with blanks      belongs to the row above it, or is kept as it is
//! ```

use clap::Command;

use crate::columns;

/// The maximum number of columns of help, also used where the width is unknown.
pub const MOST_COLUMNS: usize = 100;
/// The smallest width of a row's meaning, in columns.
const LEAST: usize = 24;
/// An indented line with at least this number of blanks is the meaning of a row whose beginning
/// fills the line above.
const MEANING: usize = 12;
/// The column where the parser puts the long text of a flag.
const INDENT: usize = 10;

/// The definition with all texts laid out for `columns` columns.
pub fn fit(command: Command, columns: usize) -> Command {
    let columns = columns.min(MOST_COLUMNS);
    let mut command = command
        .term_width(columns)
        .max_term_width(columns)
        .mut_args(|arg| match arg.get_long_help() {
            Some(text) => {
                let text = laid_out(&text.to_string(), columns.saturating_sub(INDENT));
                arg.long_help(text)
            }
            None => arg,
        });
    if let Some(text) = command.get_after_help() {
        let text = laid_out(&text.to_string(), columns);
        command = command.after_help(text);
    }
    if let Some(text) = command.get_after_long_help() {
        let text = laid_out(&text.to_string(), columns);
        command = command.after_long_help(text);
    }
    command.mut_subcommands(|subcommand| fit(subcommand, columns))
}

/// A line of a text, by how it may be joined and broken.
#[derive(PartialEq, Eq, Debug)]
enum Line<'a> {
    Empty,
    /// Words of a paragraph.
    Plain(&'a str),
    /// A row: its beginning with all blanks, and the meaning.
    Row(&'a str, &'a str),
    /// A line that begins with blanks and is no row.
    Indented(&'a str),
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let words = line.trim_start();
        if words.is_empty() {
            return Self::Empty;
        }
        let blanks = line.len() - words.len();
        // Two blanks between words begin a column.
        let gap = words.find("  ");
        match gap {
            Some(gap) => {
                let meaning = words[gap..].trim_start();
                Self::Row(&line[..line.len() - meaning.len()], meaning)
            }
            None if blanks > 0 => Self::Indented(line),
            None => Self::Plain(line),
        }
    }
}

/// The paragraph or row that lines are added to.
enum Open {
    Nothing,
    Paragraph(String),
    Row { start: String, meaning: String },
}

impl Open {
    fn close(&mut self, text: &mut String, columns: usize) {
        match std::mem::replace(self, Self::Nothing) {
            Self::Nothing => {}
            Self::Paragraph(words) => text.push_str(&columns::indented("", &words, columns)),
            Self::Row { start, meaning } if columns < start.chars().count() + LEAST => {
                // The column has no room, so the meaning stands below.
                let words = start.trim();
                let blanks = if words.is_empty() {
                    0
                } else {
                    start.len() - start.trim_start().len()
                };
                if !words.is_empty() {
                    text.push_str(&columns::indented("", start.trim_end(), columns));
                }
                let blanks = blanks + 4;
                text.push_str(&columns::indented(&" ".repeat(blanks), &meaning, columns));
            }
            Self::Row { start, meaning } => {
                text.push_str(&columns::indented(&start, &meaning, columns));
            }
        }
    }
}

fn laid_out(source: &str, columns: usize) -> String {
    let mut text = String::new();
    let mut open = Open::Nothing;
    for line in source.lines() {
        match (Line::of(line), &mut open) {
            // A sentence ends where the next line begins with a word and a colon, as a row does.
            (Line::Plain(words), Open::Paragraph(before)) if !begins_entry(words) => {
                before.push(' ');
                before.push_str(words);
            }
            (Line::Plain(words), _) => {
                open.close(&mut text, columns);
                // A heading is a paragraph of its own.
                match words.ends_with(':') {
                    true => text.push_str(&columns::indented("", words, columns)),
                    false => open = Open::Paragraph(words.to_owned()),
                }
            }
            (Line::Row(start, meaning), _) => {
                open.close(&mut text, columns);
                open = Open::Row {
                    start: start.to_owned(),
                    meaning: meaning.to_owned(),
                };
            }
            (Line::Indented(line), Open::Row { start, meaning })
                if start.len() == line.len() - line.trim_start().len() =>
            {
                meaning.push(' ');
                meaning.push_str(line.trim_start());
            }
            (Line::Indented(line), _) => {
                open.close(&mut text, columns);
                let words = line.trim_start();
                let blanks = &line[..line.len() - words.len()];
                if blanks.len() >= MEANING {
                    open = Open::Row {
                        start: blanks.to_owned(),
                        meaning: words.to_owned(),
                    };
                    continue;
                }
                text.push_str(&columns::indented(blanks, words, columns));
            }
            (Line::Empty, _) => {
                open.close(&mut text, columns);
                text.push('\n');
            }
        }
    }
    open.close(&mut text, columns);
    text.truncate(text.trim_end().len());
    text
}

/// Whether a line explains a value: `file:PATH: ...`, `none: ...`.
fn begins_entry(line: &str) -> bool {
    let word = line.split(' ').next().unwrap_or_default();
    word.len() > 1 && word.ends_with(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_paragraph_are_joined_and_broken_once() {
        let source =
            "A sentence that is broken in the\nsource. Another one.\n\nThe next paragraph.";
        let expected =
            "A sentence that is\nbroken in the source.\nAnother one.\n\nThe next paragraph.";
        assert_eq!(laid_out(source, 22), expected);
    }

    #[test]
    fn rows_keep_their_columns() {
        let source = "\
user       a network in this process,
           without privilege
fd=N       a socket
Examples:
  Boot:
    tollgate run x";
        let expected = "\
user       a network in this process, without
           privilege
fd=N       a socket
Examples:
  Boot:
    tollgate run x";
        assert_eq!(laid_out(source, 46), expected);
    }

    #[test]
    fn a_meaning_below_a_long_beginning_is_broken_once() {
        let source = "\
hostfwd=tcp:[ADDR]:PORT
              a port of the host that leads to one of the guest. May
              be repeated";
        let expected = "\
hostfwd=tcp:[ADDR]:PORT
              a port of the host that leads
              to one of the guest. May be
              repeated";
        assert_eq!(laid_out(source, 43), expected);
    }

    #[test]
    fn values_are_explained_on_lines_of_their_own() {
        let source = "stdio: this terminal,\nraw.\nnull: no output.";
        assert_eq!(
            laid_out(source, 80),
            "stdio: this terminal, raw.\nnull: no output."
        );
    }

    #[test]
    fn no_line_of_help_is_longer_than_the_terminal() {
        for columns in [60, 80, 100] {
            let mut command = fit(crate::cli::definition(), columns);
            command.build();
            check(&mut command, columns);
        }
    }

    /// Checks the help of a command and of all its subcommands.
    fn check(command: &mut Command, columns: usize) {
        let help = command.render_long_help().to_string();
        for line in help.lines() {
            let is_long = line.chars().count() > columns;
            // A single word may be longer.
            assert!(
                !is_long || line.split_whitespace().count() <= 2,
                "{columns} columns: {line}"
            );
        }
        for subcommand in command.get_subcommands_mut() {
            check(subcommand, columns);
        }
    }
}
