//! Writes a report as Markdown.

use super::page::{Block, Page};
use crate::experiment::Section;
use std::fmt::Write;

/// The report as Markdown, with its pictures as files next to it.
pub fn markdown(page: &Page) -> String {
    let mut text = format!("# {}\n\n", escaped(&page.title));
    for line in &page.lines {
        let _ = writeln!(text, "- {}", escaped(line));
    }
    for block in &page.blocks {
        write_block(&mut text, block);
    }
    text
}

fn write_block(text: &mut String, block: &Block) {
    text.push('\n');
    let _ = match block {
        Block::Heading {
            level, text: title, ..
        } => {
            let marks = "#".repeat(usize::from(*level));
            writeln!(text, "{marks} {}", escaped(title))
        }
        Block::Paragraph(words) => writeln!(text, "{}", escaped(words)),
        Block::Warning(words) => writeln!(text, "> **{}**", escaped(words)),
        Block::List(items) => {
            for item in items {
                let _ = writeln!(text, "- {}", escaped(item));
            }
            Ok(())
        }
        Block::Table(section) => {
            text.push_str(&table(section));
            Ok(())
        }
        Block::Text(words) => {
            for line in words.lines() {
                let _ = writeln!(text, "    {}", without_control(line));
            }
            Ok(())
        }
        Block::Picture(picture) => {
            writeln!(text, "![{}]({})", escaped(&picture.what), picture.file)
        }
        Block::Folded { title, blocks } => {
            let _ = writeln!(text, "**{}**", escaped(title));
            for block in blocks {
                write_block(text, block);
            }
            Ok(())
        }
        Block::Links(links) => {
            let links: Vec<String> = links
                .iter()
                .map(|(what, to)| format!("[{}]({to})", escaped(what)))
                .collect();
            writeln!(text, "{}", links.join(" · "))
        }
    };
}

fn table(section: &Section) -> String {
    let mut text = String::new();
    if !section.title.is_empty() {
        let _ = writeln!(text, "**{}**\n", escaped(&section.title));
    }
    let row = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    if !section.columns.is_empty() {
        text.push_str(&row(&section.columns));
        text.push_str(&format!("|{}\n", "---|".repeat(section.columns.len())));
        for cells in &section.rows {
            text.push_str(&row(cells));
        }
    }
    for note in &section.notes {
        let _ = writeln!(text, "\n{}", escaped(note));
    }
    text
}

/// Text without control characters.
fn without_control(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// Text in which nothing has a meaning for Markdown or HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' => {
                escaped.push('\\');
                escaped.push(letter);
            }
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}
