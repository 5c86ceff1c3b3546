//! Wraps text to the width of the terminal.

use std::os::fd::AsFd;

use crate::host;

/// The smallest width of the text, in columns, next to the start of a row.
const LEAST: usize = 20;

/// Puts `text` after the start of a row, in lines of `columns` columns where possible; further
/// lines begin below the text.
pub fn indented(start: &str, text: &str, columns: usize) -> String {
    let room = columns.saturating_sub(start.chars().count()).max(LEAST);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    let indent = format!("\n{:1$}", "", start.chars().count());
    format!("{start}{}\n", lines.join(&indent))
}

/// Wraps sentences to the width of the terminal that they are written to, if the output is one.
pub fn wrapped(text: &str, output: &impl AsFd) -> String {
    match host::window_size(output.as_fd()) {
        Some((columns, _)) => wrapped_at(text, columns),
        None => text.to_owned(),
    }
}

fn wrapped_at(text: &str, columns: usize) -> String {
    let lines = text.lines().map(|line| {
        let words = line.trim_start();
        indented(&line[..line.len() - words.len()], words, columns)
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let text =
            "A line that is longer than most\n\n  and one that stands further right\nshort\n";
        let expected = "\
A line that is longer
than most

  and one that stands
  further right
short
";
        assert_eq!(wrapped_at(text, 22), expected);
        assert_eq!(wrapped_at(text, 80), text);
        let long = "x".repeat(30);
        assert_eq!(wrapped_at(&long, 22), format!("{long}\n"));
    }
}
