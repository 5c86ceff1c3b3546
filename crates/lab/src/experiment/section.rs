//! A small table with a title and remarks: text for people, fields for programs.

use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The space between columns.
const GAP: &str = "  ";

/// A table whose cells are texts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Section {
    /// The title of the table.
    pub title: String,
    /// The columns' names; if empty, there are only remarks.
    pub columns: Vec<String>,
    /// The rows, with a text for each column.
    pub rows: Vec<Vec<String>>,
    /// Remarks about the table; each is a paragraph.
    pub notes: Vec<String>,
}

/// Converts the names of columns.
pub fn columns(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A value rounded to an integer; a dash for `None`.
pub fn whole(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.0}"))
}

impl Section {
    /// Whether there is anything to show: a row or a remark.
    pub fn has_content(&self) -> bool {
        !self.rows.is_empty() || !self.notes.is_empty()
    }

    /// The text for people: the title, the aligned columns, the notes below.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.title.is_empty() {
            let _ = writeln!(text, "{}", self.title);
        }
        text.push_str(&aligned(&self.columns, &self.rows));
        for note in &self.notes {
            text.push_str(&wrapped(note));
        }
        text
    }
}

/// The rows under their header. Columns of figures are aligned at the right, others at the left.
fn aligned(columns: &[String], rows: &[Vec<String>]) -> String {
    let width = |text: &String| text.chars().count();
    let all = || std::iter::once(columns).chain(rows.iter().map(Vec::as_slice));
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (index, cell) in row.iter().enumerate() {
            let widest = all().filter_map(|row| row.get(index)).map(width).max();
            let padding = " ".repeat(widest.unwrap_or(0) - width(cell));
            if index > 0 {
                line.push_str(GAP);
            }
            let is_figures = rows
                .iter()
                .filter_map(|row| row.get(index))
                .all(|cell| is_figure(cell));
            if is_figures {
                line.push_str(&padding);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&padding);
            }
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Whether a cell holds a figure, which is aligned at the right.
pub(crate) fn is_figure(cell: &str) -> bool {
    cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || "-+<?".contains(c))
}

/// A paragraph, wrapped to lines of at most 96 characters.
fn wrapped(note: &str) -> String {
    const WIDTH: usize = 96;
    let mut text = String::new();
    let mut line = String::new();
    for word in note.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
    text
}

/// A number with separators between its thousands: 1,234,567.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number <= -0.5 {
        format!("-{text}")
    } else {
        text
    }
}

/// A number with about three significant digits.
pub(crate) fn rounded(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 => grouped(number),
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        size if size >= 0.1 => format!("{number:.3}"),
        0.0 => "0".into(),
        _ => format!("{number:.4}"),
    }
}

/// A share in per cent with about three significant digits.
pub(crate) fn percent(share: f64) -> String {
    match share.abs() * 100.0 {
        0.0 => "0".into(),
        size if size >= 10.0 => format!("{:.1}", share * 100.0),
        size if size >= 0.1 => format!("{:.2}", share * 100.0),
        size if size >= 0.001 => format!("{:.4}", share * 100.0),
        _ => "<0.001".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_at_the_right_and_words_at_the_left() {
        let section = Section {
            title: "t".into(),
            columns: vec!["kind".into(), "n".into(), "what".into()],
            rows: vec![
                vec!["cli".into(), "1,000".into(), "x".into()],
                vec!["pushf".into(), "7".into(), String::new()],
            ],
            notes: vec!["so it is".into()],
        };
        assert_eq!(
            section.text(),
            "t\nkind       n  what\ncli    1,000  x\npushf      7\nso it is\n"
        );
    }

    #[test]
    fn notes_are_wrapped() {
        let note = "word ".repeat(60);
        assert!(wrapped(&note).lines().all(|line| line.len() <= 96));
        assert_eq!(wrapped(&note).split_whitespace().count(), 60);
    }

    #[test]
    fn numbers_have_as_many_digits_as_they_need() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(-1_000.0), "-1,000");
        assert_eq!(rounded(1234.5), "1,234");
        assert_eq!(rounded(0.01234), "0.0123");
        assert_eq!(percent(0.6612), "66.1");
        assert_eq!(percent(0.0012), "0.12");
        assert_eq!(percent(0.000_000_1), "<0.001");
    }
}
