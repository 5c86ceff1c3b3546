//! Writes a report as one HTML page: pictures and styles are inside it, and there are no scripts.

use super::page::{Block, Ink, Page};
use crate::experiment::{Section, is_figure};
use std::fmt::Write;

/// The styles: light and dark, for screens of any width and for paper.
const STYLE: &str = include_str!("report.css");

/// The report as HTML.
pub fn html(page: &Page) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
        escaped(&page.title)
    );
    if !page.lines.is_empty() {
        text.push_str("<ul class=\"origin\">\n");
        for line in &page.lines {
            let _ = writeln!(text, "<li>{}</li>", escaped(line));
        }
        text.push_str("</ul>\n");
    }
    text.push_str(&contents(&page.blocks));
    for block in &page.blocks {
        write_block(&mut text, block);
    }
    text.push_str("</main>\n</body>\n</html>\n");
    text
}

/// Links to the chapters.
fn contents(blocks: &[Block]) -> String {
    let chapters = blocks.iter().filter_map(|block| match block {
        Block::Heading {
            level: 2,
            text,
            name,
        } => Some(format!(
            "<a href=\"#{}\">{}</a>",
            escaped(name),
            escaped(text)
        )),
        _ => None,
    });
    let chapters: Vec<String> = chapters.collect();
    format!("<nav>{}</nav>\n", chapters.join("\n"))
}

fn write_block(text: &mut String, block: &Block) {
    let _ = match block {
        Block::Heading {
            level,
            text: title,
            name,
        } => writeln!(
            text,
            "<h{level} id=\"{}\">{}</h{level}>",
            escaped(name),
            escaped(title)
        ),
        Block::Paragraph(words) => writeln!(text, "<p>{}</p>", escaped(words)),
        Block::Warning(words) => writeln!(text, "<p class=\"warning\">{}</p>", escaped(words)),
        Block::List(items) => {
            let items: Vec<String> = items
                .iter()
                .map(|item| format!("<li>{}</li>\n", escaped(item)))
                .collect();
            writeln!(text, "<ul>\n{}</ul>", items.concat())
        }
        Block::Table(section) => {
            text.push_str(&table(section));
            Ok(())
        }
        Block::Text(words) => {
            let lines: Vec<String> = words.lines().map(escaped).collect();
            writeln!(text, "<pre>{}</pre>", lines.join("\n"))
        }
        Block::Picture(shown) => {
            let class = match shown.ink {
                Ink::OfPage => "of-page",
                Ink::OnWhite => "on-white",
            };
            writeln!(
                text,
                "<figure class=\"{class}\" role=\"img\" aria-label=\"{0}\">{1}\
                 <figcaption>{0}</figcaption></figure>",
                escaped(&shown.what),
                picture(&shown.svg)
            )
        }
        Block::Folded { title, blocks } => {
            let _ = writeln!(text, "<details><summary>{}</summary>", escaped(title));
            for block in blocks {
                write_block(text, block);
            }
            writeln!(text, "</details>")
        }
        Block::Links(links) => {
            let links: Vec<String> = links
                .iter()
                .map(|(what, to)| format!("<a href=\"{}\">{}</a>", escaped(to), escaped(what)))
                .collect();
            writeln!(text, "<p class=\"files\">{}</p>", links.join(" · "))
        }
    };
}

fn table(section: &Section) -> String {
    let mut text = String::new();
    if !section.columns.is_empty() {
        text.push_str("<div class=\"table\"><table>\n");
        if !section.title.is_empty() {
            let _ = writeln!(text, "<caption>{}</caption>", escaped(&section.title));
        }
        text.push_str("<thead><tr>");
        let columns: Vec<Column> = (0..section.columns.len())
            .map(|index| Column::of(section, index))
            .collect();
        for (name, column) in section.columns.iter().zip(&columns) {
            let class = column.class();
            let _ = write!(text, "<th scope=\"col\"{class}>{}</th>", escaped(name));
        }
        text.push_str("</tr></thead>\n<tbody>\n");
        for row in &section.rows {
            text.push_str("<tr>");
            for (index, cell) in row.iter().enumerate() {
                let class = columns.get(index).map_or("", Column::class);
                let _ = write!(text, "<td{class}>{}</td>", escaped(cell));
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</tbody></table></div>\n");
    } else if !section.title.is_empty() {
        let _ = writeln!(text, "<p><b>{}</b></p>", escaped(&section.title));
    }
    for note in &section.notes {
        let _ = writeln!(text, "<p class=\"note\">{}</p>", escaped(note));
    }
    text
}

/// What a column holds.
enum Column {
    /// Short figures, which are aligned at the right.
    Figures,
    /// Words, and long lists of figures.
    Words,
}

impl Column {
    /// The maximum number of letters of a figure.
    const FIGURE: usize = 20;

    /// The attribute of its cells.
    fn class(&self) -> &'static str {
        match self {
            Self::Figures => " class=\"figure\"",
            Self::Words => "",
        }
    }

    fn of(section: &Section, index: usize) -> Self {
        let mut cells = section.rows.iter().filter_map(|row| row.get(index));
        match cells.all(|cell| is_figure(cell) && cell.chars().count() <= Self::FIGURE) {
            true => Self::Figures,
            false => Self::Words,
        }
    }
}

/// A picture without control characters, which names could contain.
fn picture(svg: &str) -> String {
    let is_text = |letter: &char| *letter == '\n' || !letter.is_control();
    svg.chars().filter(is_text).collect()
}

/// Text in which nothing has a meaning for HTML, also inside an attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}
