//! Draws statistics as a picture: where the time went, and below it a flame graph of the time of
//! exits: address spaces, in each its symbols or instructions, in these the kinds of exit. Boxes of
//! equal width took equal time. Viewers of SVG show the figures of the box at the pointer.

use std::cmp::Reverse;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use tollgate_exits::snapshot::{ExitRow, OriginRow, Snapshot};
use tollgate_plots::{PlotFormat, colour_name, write_svg};

use super::text::{grouped, with_device, with_program};
use crate::failure::{Failure, one_line};
use crate::files;

const WIDTH: f64 = 1400.0;
const MARGIN: f64 = 20.0;
const ROW: f64 = 24.0;
/// The width of a letter of the text in a row.
const LETTER: f64 = 7.3;
/// Boxes that are narrower are combined into one.
const NARROWEST: f64 = 2.0;
/// The smallest number of letters of a shortened name.
const LEAST_LETTERS: usize = 6;
/// The number of columns of a legend, and of the kinds in it.
const COLUMNS: usize = 3;
const MOST_KINDS: usize = 15;
/// The colours of boxes that are no kind of exit.
const PLAIN: [&str; 2] = ["#e8e4da", "#d9d3c4"];

/// A file for a picture, whose name was checked.
pub struct Picture {
    path: PathBuf,
    format: PlotFormat,
    flag: &'static str,
}

impl Picture {
    /// Creates the file that `flag` names.
    ///
    /// # Errors
    ///
    /// One line says that the name has no known suffix, or that the file cannot be written.
    pub fn create(path: &Path, flag: &'static str) -> Result<Self, Failure> {
        let Some(format) = PlotFormat::of(path) else {
            let name = one_line(&path.display().to_string());
            let why = format!("{flag}: '{name}' must end in .svg or .png");
            return Err(Failure::usage(why));
        };
        files::create(path, flag)?;
        Ok(Self {
            path: path.to_owned(),
            format,
            flag,
        })
    }

    /// Draws the statistics into the file.
    ///
    /// # Errors
    ///
    /// One line says that the file cannot be written.
    pub fn write(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        write_svg(&svg(snapshot), &self.path, self.format).map_err(|error| {
            let path = self.path.display();
            Failure::usage(format!("{}: cannot write '{path}': {error}", self.flag))
        })
    }
}

/// An amount of time with a name, and the parts that it consists of.
#[derive(Default)]
struct Part {
    name: String,
    cycles: u64,
    exits: u64,
    colour: String,
    parts: Vec<Part>,
}

impl Part {
    /// The part with this name, which is added if it is missing.
    fn part(&mut self, name: String, colour: &str) -> &mut Self {
        let index = self.parts.iter().position(|part| part.name == name);
        let index = index.unwrap_or_else(|| {
            self.parts.push(Self {
                name,
                colour: colour.to_owned(),
                ..Self::default()
            });
            self.parts.len() - 1
        });
        &mut self.parts[index]
    }

    fn add(&mut self, row: &OriginRow) {
        self.cycles += row.cycles;
        self.exits += row.exits;
    }

    /// Sorts the parts at every depth, the widest first.
    fn sort(&mut self) {
        self.parts.sort_by_key(|part| Reverse(part.cycles));
        self.parts.iter_mut().for_each(Self::sort);
    }
}

/// The time of exits: spaces, in them symbols, in them kinds.
fn exits(snapshot: &Snapshot) -> Part {
    let mut all = Part {
        name: "all exits".to_owned(),
        colour: PLAIN[1].to_owned(),
        ..Part::default()
    };
    for row in &snapshot.origins {
        let symbol = row.symbol.rsplit_once('+').map_or("", |(name, _)| name);
        let symbol = match symbol {
            "" => format!("{:08x}", row.address),
            symbol => symbol.to_owned(),
        };
        all.add(row);
        let space = match row.kernel {
            true => "kernel".to_owned(),
            false => with_program(&format!("space {:08x}", row.space), row.program.clone()),
        };
        let space = all.part(space, PLAIN[0]);
        space.add(row);
        let symbol = space.part(with_device(&symbol, &row.device), PLAIN[1]);
        symbol.add(row);
        symbol
            .part(row.kind.clone(), &colour_of(snapshot, &row.kind))
            .add(row);
    }
    all.sort();
    let others = snapshot.exit_cycles.saturating_sub(all.cycles);
    all.cycles += others;
    all.exits = snapshot.exit_count;
    if others > 0 {
        all.parts.push(Part {
            name: "other origins".to_owned(),
            cycles: others,
            colour: PLAIN[0].to_owned(),
            ..Part::default()
        });
    }
    all
}

/// The colour of a kind, by its place among the most expensive ones.
fn colour_of(snapshot: &Snapshot, kind: &str) -> String {
    let place = snapshot.exits.iter().position(|row| row.kind == kind);
    colour_name(place.unwrap_or(0))
}

/// The accounts of the wall time.
fn accounts(snapshot: &Snapshot) -> Part {
    let parts = [
        ("guest code", snapshot.guest_cycles),
        ("fast paths", snapshot.fast_path_call_cycles),
        ("exits", snapshot.exit_cycles),
        ("devices", snapshot.device_cycles),
        ("translating", snapshot.translating_cycles),
        ("halted", snapshot.halted_cycles),
        ("waiting", snapshot.waiting_cycles),
        ("signals", snapshot.signal_cycles),
        ("start, end", snapshot.start_end_cycles),
        ("ledger", snapshot.ledger_cycles),
    ];
    let parts = parts.into_iter().enumerate();
    let parts = parts.map(|(index, (name, cycles))| Part {
        name: name.to_owned(),
        cycles,
        colour: colour_name(index),
        ..Part::default()
    });
    Part {
        name: "wall time".to_owned(),
        cycles: snapshot.wall_cycles,
        colour: PLAIN[1].to_owned(),
        parts: parts.collect(),
        ..Part::default()
    }
}

/// The kinds with the highest costs.
fn kinds(snapshot: &Snapshot) -> Vec<Part> {
    let kinds = snapshot.exits.iter().take(MOST_KINDS).enumerate();
    let part = |(index, row): (usize, &ExitRow)| Part {
        name: row.kind.clone(),
        cycles: row.cycles,
        exits: row.count,
        colour: colour_name(index),
        parts: Vec::new(),
    };
    kinds.map(part).collect()
}

/// The whole picture as SVG.
pub fn svg(snapshot: &Snapshot) -> String {
    let mut drawing = Drawing {
        text: String::new(),
        khz: snapshot.tsc_khz.max(1) as f64,
        top: 16.0,
    };
    let wall = accounts(snapshot);
    drawing.title("Where the time of the virtual processor went");
    drawing.flames(&wall, 2, snapshot.wall_cycles);
    drawing.legend(&wall.parts, snapshot.wall_cycles);
    let exits = exits(snapshot);
    drawing.title("Exits, by address space (CR3), by symbol or instruction, and by kind");
    drawing.flames(&exits, 4, snapshot.wall_cycles);
    drawing.title("Kinds of exit, those that cost most first");
    drawing.legend(&kinds(snapshot), snapshot.wall_cycles);
    let (height, body) = (drawing.top + MARGIN, drawing.text);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

struct Drawing {
    text: String,
    khz: f64,
    top: f64,
}

impl Drawing {
    fn title(&mut self, title: &str) {
        self.top += 22.0;
        let y = self.top;
        self.put(&format!(
            "<text x=\"{MARGIN}\" y=\"{y}\" font-size=\"17\">{title}</text>\n"
        ));
        self.top += 10.0;
    }

    /// Writing to a string cannot fail.
    fn put(&mut self, text: &str) {
        let _ = self.text.write_str(text);
    }

    /// Draws a part as a bar over the whole width, and its parts below it, in at most `depth` rows.
    fn flames(&mut self, part: &Part, depth: usize, wall: u64) {
        // Time that was counted twice must not be drawn beyond the margin.
        let inside: u64 = part.parts.iter().map(|part| part.cycles).sum();
        let whole = part.cycles.max(inside).max(1);
        let scale = (WIDTH - 2.0 * MARGIN) / whole as f64;
        self.part(part, (MARGIN, scale), self.top, wall);
        self.top += ROW * depth as f64 + 8.0;
    }

    fn part(&mut self, part: &Part, (left, scale): (f64, f64), top: f64, wall: u64) {
        let width = part.cycles as f64 * scale;
        self.rectangle(part, (left, top), width, wall);
        let mut left = left;
        let mut narrow = Part {
            colour: PLAIN[0].to_owned(),
            ..Part::default()
        };
        let mut count = 0;
        for inner in &part.parts {
            let width = inner.cycles as f64 * scale;
            if width < NARROWEST {
                narrow.cycles += inner.cycles;
                narrow.exits += inner.exits;
                count += 1;
                continue;
            }
            self.part(inner, (left, scale), top + ROW, wall);
            left += width;
        }
        let width = narrow.cycles as f64 * scale;
        if width >= NARROWEST {
            narrow.name = format!("{count} others");
            self.rectangle(&narrow, (left, top + ROW), width, wall);
        }
    }

    fn rectangle(&mut self, part: &Part, (left, top): (f64, f64), width: f64, wall: u64) {
        let name = escaped(&one_line(&part.name));
        let figures = self.figures(part.cycles, part.exits, wall);
        let height = ROW - 1.0;
        let fill = &part.colour;
        self.put(&format!(
            "<g><title>{name}: {figures}</title>\
             <rect x=\"{left:.2}\" y=\"{top:.2}\" width=\"{width:.2}\" height=\"{height}\" \
             fill=\"{fill}\" stroke=\"white\" stroke-width=\"0.5\"/>"
        ));
        let room = ((width - 6.0) / LETTER).max(0.0) as usize;
        let text = format!("{}: {figures}", one_line(&part.name));
        let shown = match room {
            room if text.chars().count() <= room => text,
            room => cut(&one_line(&part.name), room),
        };
        if !shown.is_empty() {
            let ink = if is_dark(fill) { "white" } else { "black" };
            self.put(&format!(
                "<text x=\"{:.2}\" y=\"{:.2}\" fill=\"{ink}\">{}</text>",
                left + 3.0,
                top + 16.0,
                escaped(&shown)
            ));
        }
        self.put("</g>\n");
    }

    fn figures(&self, cycles: u64, exits: u64, wall: u64) -> String {
        let share = cycles as f64 * 100.0 / wall.max(1) as f64;
        let mut text = format!("{:.1} ms, {share:.2}%", cycles as f64 / self.khz);
        match exits {
            0 => {}
            1 => text.push_str(", 1 exit"),
            _ => text.push_str(&format!(", {} exits", grouped(exits))),
        }
        text
    }

    /// Draws the colours of parts with their names, in columns.
    fn legend(&mut self, parts: &[Part], wall: u64) {
        let lines = parts.len().div_ceil(COLUMNS);
        for (index, part) in parts.iter().enumerate() {
            let (column, line) = (index / lines, index % lines);
            let left = MARGIN + column as f64 * ((WIDTH - 2.0 * MARGIN) / COLUMNS as f64);
            let top = self.top + line as f64 * ROW;
            let figures = self.figures(part.cycles, part.exits, wall);
            let name = escaped(&one_line(&part.name));
            self.put(&format!(
                "<rect x=\"{left}\" y=\"{top}\" width=\"16\" height=\"16\" fill=\"{}\"/>\
                 <text x=\"{}\" y=\"{}\">{name}: {figures}</text>\n",
                part.colour,
                left + 24.0,
                top + 13.0
            ));
        }
        self.top += lines as f64 * ROW;
    }
}

/// Whether light text is easier to read on this colour.
fn is_dark(colour: &str) -> bool {
    let part = |at: usize| {
        let digits = colour.get(at..at + 2).unwrap_or("0");
        f64::from(u8::from_str_radix(digits, 16).unwrap_or(0))
    };
    0.3 * part(1) + 0.59 * part(3) + 0.11 * part(5) < 140.0
}

/// The first letters of a text that is too long, followed by an ellipsis; empty if too few letters
/// fit.
fn cut(text: &str, room: usize) -> String {
    match text.chars().count() <= room {
        true => text.to_owned(),
        false if room < LEAST_LETTERS => String::new(),
        false => text.chars().take(room - 2).chain("..".chars()).collect(),
    }
}

/// Escapes a text for XML.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // XML 1.0 cannot represent these characters.
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => safe.push('?'),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::tests::snapshot;

    #[test]
    fn everything_that_is_wide_enough_is_drawn_and_nothing_beyond_the_margins() {
        let text = svg(&snapshot());
        for name in ["guest code", "all exits", "space ", "cli"] {
            assert!(text.contains(name), "{name}: {text}");
        }
        let number = |text: &str| text.split('"').next().unwrap().parse::<f64>().unwrap();
        for rectangle in text.split("<rect x=\"").skip(1) {
            let left = number(rectangle);
            let width = number(rectangle.split("width=\"").nth(1).unwrap());
            assert!(
                left >= MARGIN && left + width <= WIDTH - MARGIN + 0.1,
                "{rectangle}"
            );
        }
    }

    #[test]
    fn a_name_cannot_leave_its_place() {
        let mut hostile = snapshot();
        hostile.origins[0].symbol = "</text><script>&\u{1b}[0m\"+0x1".to_owned();
        let text = svg(&hostile);
        assert!(
            !text.contains("<script>") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert_eq!(text.matches("<g>").count(), text.matches("</g>").count());
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(cut("entry_SYSCALL_64", 8), "entry_..");
        assert_eq!(cut("entry", 8), "entry");
        assert_eq!(cut("entry", 4), "");
        assert_eq!(cut("in", 2), "in");
    }
}
