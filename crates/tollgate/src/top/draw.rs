//! Draws the model of `tollgate top` as text and bars. Everything fits 80 columns and 24 lines.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row as TableRow, Table, TableState};
use serde_json::Value;
use tollgate_exits::snapshot::Snapshot;

use super::model::{List, Model, Row};
use crate::failure::one_line;
use crate::statistics::Sort;

/// The accounts of time, each with its colour: one of the sixteen that every terminal has.
const SHARES: [(&str, Color); 8] = [
    ("guest", Color::Green),
    ("fast paths", Color::LightGreen),
    ("exits", Color::Red),
    ("devices", Color::Magenta),
    ("translating", Color::Yellow),
    ("halted", Color::Blue),
    ("waiting", Color::DarkGray),
    ("other", Color::Cyan),
];
/// The number of characters of the bar in a line of a list.
const BAR: usize = 10;
/// The maximum number of letters of a kernel's name.
const NAME_LENGTH: usize = 24;

/// Draws the whole screen.
pub fn draw(model: &Model, frame: &mut Frame<'_>) {
    let [head, bar, legend, title, list, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(heading(model), head);
    if let Some(snapshot) = model.snapshot() {
        frame.render_widget(time_bar(snapshot, usize::from(bar.width)), bar);
        frame.render_widget(time_legend(snapshot), legend);
        draw_list(model, snapshot, list, frame);
    } else if model.message.is_none() {
        frame.render_widget(Line::from("the first interval is not over yet"), bar);
    }
    frame.render_widget(list_title(model), title);
    frame.render_widget(footer(model), foot);
}

/// The line that names the machine and shows the rates of exits and interrupts.
fn heading(model: &Model) -> Line<'static> {
    let Some(shown) = &model.shown else {
        return Line::from("tollgate top");
    };
    let status = &shown.status;
    let machine = &status["machine"];
    let file = ["kernel", "firmware"].map(|field| machine[field].as_str());
    let file = file.into_iter().flatten().next().unwrap_or_default();
    let file = file.rsplit('/').next().unwrap_or_default();
    let seconds = status["uptime_ns"].as_u64().unwrap_or(0) as f64 / 1e9;
    let number = match shown.machines {
        0 | 1 => String::new(),
        machines => format!("{}/{machines} ", shown.number),
    };
    let text = format!(
        "{number}process {}  {}  {}  up {seconds:.0} s  {}",
        text_of(&machine["pid"]),
        cut(&one_line(file), NAME_LENGTH),
        text_of(&status["state"]),
        rates(model).unwrap_or_default(),
    );
    let style = Style::new().add_modifier(Modifier::BOLD);
    Line::styled(text, style)
}

/// Shortens a name that is too long.
fn cut(name: &str, length: usize) -> String {
    match name.chars().count() <= length {
        true => name.to_owned(),
        false => name.chars().take(length - 2).chain("..".chars()).collect(),
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => one_line(text),
        Value::Null => "?".into(),
        other => other.to_string(),
    }
}

fn rates(model: &Model) -> Option<String> {
    let snapshot = model.snapshot()?;
    let each_second = per_second(snapshot.exit_count, snapshot);
    Some(format!("{each_second} exits/s"))
}

/// A count for each second that the statistics cover: 1.2M, 34k, 5.6.
fn per_second(count: u64, snapshot: &Snapshot) -> String {
    let seconds = snapshot.wall_cycles as f64 / (snapshot.tsc_khz.max(1) as f64 * 1e3);
    let rate = if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    };
    match rate {
        0.0 => "0".into(),
        rate if rate < 99.95 => format!("{rate:.1}"),
        rate if rate < 9_999.5 => format!("{rate:.0}"),
        rate if rate < 999_950.0 => format!("{:.1}k", rate / 1e3),
        rate => format!("{:.1}M", rate / 1e6),
    }
}

/// The mean cost of one exit in microseconds.
fn each(row: &Row, snapshot: &Snapshot) -> String {
    if row.exits == 0 || row.cycles == 0 {
        return "-".into();
    }
    let micros = row.cycles as f64 * 1e3 / (row.exits as f64 * snapshot.tsc_khz.max(1) as f64);
    match micros < 999.5 {
        true => format!("{micros:.2}"),
        false => format!("{micros:.0}"),
    }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn parts(snapshot: &Snapshot) -> [u64; SHARES.len()] {
    [
        snapshot.guest_cycles,
        snapshot.fast_path_call_cycles,
        snapshot.exit_cycles,
        snapshot.device_cycles,
        snapshot.translating_cycles,
        snapshot.halted_cycles,
        snapshot.waiting_cycles,
        snapshot.signal_cycles + snapshot.start_end_cycles + snapshot.ledger_cycles,
    ]
}

/// The accounts of time as coloured pieces of one line. Their letters distinguish them where
/// colours are missing.
fn time_bar(snapshot: &Snapshot, width: usize) -> Line<'static> {
    let whole = parts(snapshot)
        .iter()
        .sum::<u64>()
        .max(snapshot.wall_cycles);
    let mut drawn = 0;
    let mut sum = 0;
    let pieces = parts(snapshot)
        .into_iter()
        .zip(SHARES)
        .map(|(part, (name, color))| {
            sum += part;
            let end = (share(sum, whole) * width as f64).round() as usize;
            let letter = &name[..1];
            let text = letter.repeat(end.saturating_sub(drawn));
            drawn = end;
            Span::styled(
                text,
                Style::new().fg(color).add_modifier(Modifier::REVERSED),
            )
        });
    Line::from(pieces.collect::<Vec<_>>())
}

fn time_legend(snapshot: &Snapshot) -> Paragraph<'static> {
    let wall = snapshot.wall_cycles;
    let texts = parts(snapshot)
        .into_iter()
        .zip(SHARES)
        .map(|(part, (name, color))| {
            let text = format!("{name:<11} {:>5.1}% ", share(part, wall) * 100.0);
            Span::styled(text, Style::new().fg(color))
        });
    let texts: Vec<Span<'static>> = texts.collect();
    let lines = texts.chunks(4).map(|chunk| Line::from(chunk.to_vec()));
    Paragraph::new(lines.collect::<Vec<_>>())
}

fn list_title(model: &Model) -> Line<'static> {
    let mut text = format!(
        "{} by {}",
        model.list.title(),
        match model.sort {
            Sort::Cost => "cost",
            Sort::Count => "count",
        }
    );
    if let Some(kind) = &model.filter.kind {
        text.push_str(&format!(", only {}", one_line(kind)));
    }
    if let Some(space) = model.filter.space {
        text.push_str(&format!(", only space {space:08x}"));
    }
    if model.shows_total {
        text.push_str(", since its start");
    }
    let has_origins = model.snapshot().is_some_and(|it| !it.origins.is_empty());
    if model.list == List::Symbols && has_origins && model.rows().is_empty() {
        text.push_str(": none; they need --symbols");
    }
    if let Some(share) = model.snapshot().and_then(not_attributed)
        && matches!(model.list, List::Instructions | List::Symbols)
    {
        text.push_str(&format!(", {share:.1}% of the time not attributed"));
    }
    if model.is_paused {
        text.push_str("  PAUSED");
    }
    Line::styled(text, Style::new().add_modifier(Modifier::UNDERLINED))
}

/// The share of the time of all exits whose origins were dropped, in per cent.
fn not_attributed(snapshot: &Snapshot) -> Option<f64> {
    let share = share(snapshot.elsewhere_cycles, snapshot.exit_cycles) * 100.0;
    (snapshot.elsewhere > 0).then_some(share)
}

fn draw_list(model: &Model, snapshot: &Snapshot, area: Rect, frame: &mut Frame<'_>) {
    let shows_kind = matches!(model.list, List::Instructions | List::Symbols);
    let rows = model.rows();
    let rows = rows.iter().map(|row| {
        let part = share(row.cycles, snapshot.wall_cycles);
        let filled = (part * BAR as f64).round().clamp(0.0, BAR as f64) as usize;
        let mut cells = vec![
            format!("{:>8}", per_second(row.exits, snapshot)),
            format!("{:>7}", each(row, snapshot)),
            format!("{:>5.1}%", part * 100.0),
            "#".repeat(filled),
        ];
        if shows_kind {
            cells.push(row.kind.clone().unwrap_or_default());
        }
        cells.push(one_line(&row.name));
        TableRow::new(cells)
    });
    let mut widths = vec![
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(BAR as u16),
    ];
    let mut titles = vec!["  exits/s", "us each", "  time", ""];
    if shows_kind {
        widths.push(Constraint::Length(19));
        titles.push("kind");
    }
    widths.push(Constraint::Fill(1));
    titles.push(match model.list {
        List::Kinds => "kind",
        List::Instructions => "instruction, device",
        List::Symbols => "symbol, device",
        List::Spaces => "space (CR3), program",
    });
    titles[0] = " exits/s";
    let table = Table::new(rows.collect::<Vec<_>>(), widths)
        .header(TableRow::new(titles).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(model.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn footer(model: &Model) -> Line<'static> {
    match &model.message {
        Some(message) => Line::styled(one_line(message), Style::new().fg(Color::Yellow)),
        None => Line::from(
            "Tab list, Enter in, Esc back, s sort, t total, n next, p pause, w write, q quit",
        ),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::tests::model;
    use super::super::model::{Key, Model};
    use super::*;

    /// The screen as lines without trailing spaces.
    fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(model, frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells = buffer.content().chunks(usize::from(width));
        let lines = cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        lines.map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn a_machine_fits_eighty_columns_and_twenty_four_lines() {
        let lines = screen(&model(), 80, 24);
        assert_eq!(
            lines[0],
            "1/2 process 1234  vmlinuz-6.1  running  up 12 s  12.4k exits/s"
        );
        let bar = format!(
            "{}{}{}{}{}{}",
            "g".repeat(46),
            "f".repeat(2),
            "e".repeat(15),
            "d".repeat(4),
            "t".repeat(8),
            "h".repeat(4)
        );
        assert_eq!(lines[1], bar);
        assert_eq!(
            lines[2],
            "guest        57.0% fast paths    3.0% exits        19.0% devices       5.0%"
        );
        assert_eq!(
            lines[3],
            "translating  10.0% halted        5.0% waiting       0.0% other         0.0%"
        );
        assert_eq!(lines[4], "kinds of exit by cost");
        assert_eq!(lines[5], " exits/s us each   time            kind");
        assert_eq!(lines[6], "   12.3k   15.40  19.0% ##         cli");
        assert_eq!(lines[7], "    70.0       -   0.0%            cpuid");
        assert!(lines[23].starts_with("Tab list") && lines[23].ends_with("q quit"));
    }

    #[test]
    fn a_list_of_origins_names_kind_and_place() {
        let mut model = model();
        model.press(Key::Tab);
        let lines = screen(&model, 80, 24);
        assert_eq!(lines[4], "instructions by cost");
        assert!(
            lines[6].contains("cli                 start, \"really\"+0x4"),
            "{}",
            lines[6]
        );
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        for (width, height) in [(1, 1), (20, 5), (80, 6), (300, 100)] {
            for model in [Model::new(), model()] {
                assert_eq!(screen(&model, width, height).len(), usize::from(height));
            }
        }
    }

    #[test]
    fn a_machine_that_has_ended_leaves_what_was_shown() {
        let mut model = model();
        model.ended("the virtual machine has ended");
        let lines = screen(&model, 80, 24);
        assert_eq!(lines[23], "the virtual machine has ended");
        assert!(lines[6].ends_with("cli"));
    }
}
