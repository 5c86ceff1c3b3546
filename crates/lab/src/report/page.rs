//! What a report consists of, before it is written as HTML or Markdown.

use crate::experiment::Section;

/// A part of a report.
#[derive(Clone, PartialEq, Debug)]
pub enum Block {
    /// A heading. The name is the anchor to which links lead.
    Heading {
        /// 2 for a study, 3 for a part of it.
        level: u8,
        /// The text of the heading.
        text: String,
        /// The anchor's name.
        name: String,
    },
    /// A paragraph of text.
    Paragraph(String),
    /// A paragraph that must not be overlooked.
    Warning(String),
    /// Sentences, each an item of a list.
    List(Vec<String>),
    /// A table with its title and remarks.
    Table(Section),
    /// Text whose lines and columns are aligned by spaces.
    Text(String),
    /// A picture with its caption.
    Picture(Picture),
    /// Parts that are shown on request.
    Folded {
        /// What the parts are.
        title: String,
        /// The parts that are shown then.
        blocks: Vec<Block>,
    },
    /// Links: texts and what they lead to.
    Links(Vec<(String, String)>),
}

/// A picture of a report, as SVG.
#[derive(Clone, PartialEq, Debug)]
pub struct Picture {
    /// The picture as SVG.
    pub svg: String,
    /// The name of its file in the folder of the report.
    pub file: String,
    /// What it shows, for readers who do not see it.
    pub what: String,
    /// How it follows a dark page.
    pub ink: Ink,
}

/// The colours of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ink {
    /// It uses the colours of the page.
    OfPage,
    /// It is drawn on white, and a dark page inverts it.
    OnWhite,
}

/// A report before it has a format.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// The title of the report.
    pub title: String,
    /// Host, build and settings in a few lines.
    pub lines: Vec<String>,
    /// The parts in their order.
    pub blocks: Vec<Block>,
}

impl Block {
    /// A heading of a study or of the whole report.
    pub fn chapter(text: &str, name: &str) -> Self {
        Self::Heading {
            level: 2,
            text: text.to_owned(),
            name: name.to_owned(),
        }
    }

    /// A table, which is folded if it is long. The study's own figures are never folded.
    pub fn table(section: Section) -> Self {
        const LONG: usize = 14;
        if section.rows.len() <= LONG || has_figures_of_study(&section) {
            return Self::Table(section);
        }
        Self::Folded {
            title: format!("{} ({} rows)", section.title, section.rows.len()),
            blocks: vec![Self::Table(Section {
                title: String::new(),
                ..section
            })],
        }
    }

    /// A heading of a part of a study.
    pub fn part(text: &str, study: &str) -> Self {
        let name = text
            .chars()
            .map(|letter| match letter.to_ascii_lowercase() {
                letter if letter.is_ascii_alphanumeric() => letter,
                _ => '-',
            })
            .collect::<String>();
        Self::Heading {
            level: 3,
            text: text.to_owned(),
            name: format!("{study}-{name}"),
        }
    }
}

/// Whether a table shows the study's figures and ours: such tables have a column for "there", or
/// rows that say where they were measured.
fn has_figures_of_study(section: &Section) -> bool {
    let is_theirs = |column: &String| {
        column == "where" || column.starts_with("there") || column.ends_with("there")
    };
    section.columns.iter().any(is_theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(column: &str, rows: usize) -> Block {
        Block::table(Section {
            columns: vec![column.into()],
            rows: vec![vec!["1".into()]; rows],
            ..Section::default()
        })
    }

    #[test]
    fn long_tables_are_folded_unless_they_have_the_figures_of_the_study() {
        let is_folded = |column, rows| matches!(table(column, rows), Block::Folded { .. });
        assert!(!is_folded("arm", 14) && is_folded("arm", 15));
        for column in ["where", "there", "there, on", "masked, there"] {
            assert!(!is_folded(column, 99), "{column}");
        }
    }
}
