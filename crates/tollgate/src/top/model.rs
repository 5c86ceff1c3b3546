//! The state of `tollgate top`: what is on the screen, and how keys change it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::Value;
use tollgate_exits::snapshot::Snapshot;

use crate::statistics::Sort;

/// The number of lines that PageUp and PageDown move.
const PAGE: usize = 10;

/// A key that has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Letter(char),
    Tab,
    Up,
    Down,
    PageUp,
    PageDown,
    Enter,
    Back,
}

/// A request that a key makes of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    Quit,
    NextMachine,
    /// The machine must be asked now.
    Look,
    /// The screen must be written to a file.
    Save,
}

/// The lists that can be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    Kinds,
    Instructions,
    Symbols,
    Spaces,
}

impl List {
    const ALL: [Self; 4] = [Self::Kinds, Self::Instructions, Self::Symbols, Self::Spaces];

    /// The title of the list.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Kinds => "kinds of exit",
            Self::Instructions => "instructions",
            Self::Symbols => "symbols",
            Self::Spaces => "address spaces",
        }
    }
}

/// The lines that are shown: all, or only those of a kind or of a space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    pub kind: Option<String>,
    pub space: Option<u64>,
}

/// The answer of a machine.
pub struct Shown {
    /// The answer to the control socket's `status`.
    pub status: Value,
    /// The statistics; `None` until the first interval has ended.
    pub snapshot: Option<Snapshot>,
    /// The machine's place in the list of machines, and their number.
    pub number: usize,
    pub machines: usize,
}

/// One line of a list.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub name: String,
    pub kind: Option<String>,
    pub space: Option<u64>,
    pub exits: u64,
    pub cycles: u64,
}

/// Everything that is on the screen.
pub struct Model {
    pub shown: Option<Shown>,
    pub list: List,
    pub sort: Sort,
    pub filter: Filter,
    /// The lists and filters that Esc returns to.
    back: Vec<(List, Filter)>,
    pub selected: usize,
    pub is_paused: bool,
    /// Whether everything since the start is shown, instead of the last interval.
    pub shows_total: bool,
    pub message: Option<String>,
}

impl Model {
    /// A model without any answer yet.
    pub fn new() -> Self {
        Self {
            shown: None,
            list: List::Kinds,
            sort: Sort::Cost,
            filter: Filter::default(),
            back: Vec::new(),
            selected: 0,
            is_paused: false,
            shows_total: false,
            message: None,
        }
    }

    /// Shows a machine's answer, unless the display is paused.
    pub fn take(&mut self, mut shown: Shown) {
        if self.is_paused && self.snapshot().is_some() {
            return;
        }
        if shown.snapshot.is_none() {
            // The previous interval of the same machine is shown until there is a new one.
            let before = self.shown.take();
            shown.snapshot = before
                .filter(|before| before.status["machine"] == shown.status["machine"])
                .and_then(|before| before.snapshot);
        }
        self.shown = Some(shown);
        self.select(self.selected);
    }

    /// Notes that the machine does not answer. The last answer stays on the screen.
    pub fn ended(&mut self, why: &str) {
        self.message = Some(why.to_owned());
    }

    /// The statistics that are shown.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.shown.as_ref()?.snapshot.as_ref()
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: Key) -> Option<Wish> {
        self.message = None;
        match key {
            Key::Letter('q') => return Some(Wish::Quit),
            Key::Letter('n') => {
                self.is_paused = false;
                self.shown = None;
                // Another machine has other spaces, so the filter is removed.
                self.go_to(self.list, Filter::default());
                self.back.clear();
                return Some(Wish::NextMachine);
            }
            Key::Letter('w') => return Some(Wish::Save),
            Key::Letter('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Letter('t') => {
                self.shows_total = !self.shows_total;
                return Some(Wish::Look);
            }
            Key::Letter('s') => {
                self.sort = match self.sort {
                    Sort::Cost => Sort::Count,
                    Sort::Count => Sort::Cost,
                };
            }
            Key::Tab => {
                let index = List::ALL.iter().position(|list| *list == self.list);
                let next = index.map_or(0, |index| (index + 1) % List::ALL.len());
                self.go_to(List::ALL[next], Filter::default());
                self.back.clear();
            }
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::Down => self.select(self.selected + 1),
            Key::PageUp => self.selected = self.selected.saturating_sub(PAGE),
            Key::PageDown => self.select(self.selected + PAGE),
            Key::Enter => self.drill_down(),
            Key::Back => {
                if let Some((list, filter)) = self.back.pop() {
                    self.go_to(list, filter);
                }
            }
            Key::Letter(_) => {}
        }
        None
    }

    fn select(&mut self, line: usize) {
        self.selected = line.min(self.rows().len().saturating_sub(1));
    }

    fn go_to(&mut self, list: List, filter: Filter) {
        (self.list, self.filter, self.selected) = (list, filter, 0);
    }

    /// Opens the selected line: a kind of exit shows its origins, a space shows its exits.
    fn drill_down(&mut self) {
        let Some(row) = self.rows().into_iter().nth(self.selected) else {
            return;
        };
        let has_symbols = self.snapshot().is_some_and(|it| !it.symbols.is_empty());
        let kind = row.kind.or(self.filter.kind.clone());
        let (list, filter) = match self.list {
            List::Spaces => {
                let space = row.space;
                (List::Instructions, Filter { space, kind: None })
            }
            List::Kinds if has_symbols => (List::Symbols, Filter { kind, space: None }),
            List::Kinds | List::Symbols => (List::Instructions, Filter { kind, space: None }),
            List::Instructions => return,
        };
        self.back.push((self.list, self.filter.clone()));
        self.go_to(list, filter);
    }

    /// The lines of the list, in their order.
    pub fn rows(&self) -> Vec<Row> {
        let Some(snapshot) = self.snapshot() else {
            return Vec::new();
        };
        let mut rows = match self.list {
            List::Kinds => kinds(snapshot),
            List::Instructions => instructions(snapshot),
            List::Symbols => symbols(snapshot),
            List::Spaces => spaces(snapshot),
        };
        let Filter { kind, space } = &self.filter;
        rows.retain(|row| kind.is_none() || row.kind == *kind);
        rows.retain(|row| space.is_none() || row.space == *space);
        if self.list == List::Instructions {
            rows = united(rows);
        }
        match self.sort {
            Sort::Cost => rows.sort_by_key(|row| Reverse((row.cycles, row.exits))),
            Sort::Count => rows.sort_by_key(|row| Reverse((row.exits, row.cycles))),
        }
        rows
    }
}

/// Combines rows of one kind and name from several address spaces.
fn united(rows: Vec<Row>) -> Vec<Row> {
    let mut sums: BTreeMap<(Option<String>, String), Row> = BTreeMap::new();
    for row in rows {
        match sums.entry((row.kind.clone(), row.name.clone())) {
            Entry::Vacant(place) => {
                place.insert(row);
            }
            Entry::Occupied(mut sum) => {
                let sum = sum.get_mut();
                sum.exits = sum.exits.saturating_add(row.exits);
                sum.cycles = sum.cycles.saturating_add(row.cycles);
                sum.space = sum.space.filter(|space| Some(*space) == row.space);
            }
        }
    }
    sums.into_values().collect()
}

fn kinds(snapshot: &Snapshot) -> Vec<Row> {
    let rows = snapshot.exits.iter().map(|row| Row {
        name: row.kind.clone(),
        kind: Some(row.kind.clone()),
        space: None,
        exits: row.count,
        cycles: row.cycles,
    });
    rows.collect()
}

fn instructions(snapshot: &Snapshot) -> Vec<Row> {
    let rows = snapshot.origins.iter().map(|row| {
        let place = match row.symbol.as_str() {
            "" => format!("{:08x}", row.address),
            symbol => symbol.to_owned(),
        };
        Row {
            name: match row.program.as_str() {
                "" => with_device(place, &row.device),
                program => format!("{program} {}", with_device(place, &row.device)),
            },
            kind: Some(row.kind.clone()),
            space: (!row.kernel).then_some(row.space),
            exits: row.exits,
            cycles: row.cycles,
        }
    });
    rows.collect()
}

fn symbols(snapshot: &Snapshot) -> Vec<Row> {
    let rows = snapshot.symbols.iter().map(|row| {
        let symbol = match row.symbol.as_str() {
            "" => "(no symbol)",
            symbol => symbol,
        };
        Row {
            name: with_device(symbol.to_owned(), &row.device),
            kind: Some(row.kind.clone()),
            space: None,
            exits: row.exits,
            cycles: row.cycles,
        }
    });
    rows.collect()
}

fn with_device(name: String, device: &str) -> String {
    match device {
        "" => name,
        device => format!("{name}, {device}"),
    }
}

/// Each space with all its exits.
fn spaces(snapshot: &Snapshot) -> Vec<Row> {
    let mut sums: BTreeMap<u64, Row> = BTreeMap::new();
    for row in &snapshot.spaces {
        let sum = sums.entry(row.space).or_insert_with(|| Row {
            name: match row.program.as_str() {
                "" => format!("{:08x}", row.space),
                program => format!("{:08x} {program}", row.space),
            },
            kind: None,
            space: Some(row.space),
            exits: 0,
            cycles: 0,
        });
        sum.exits = sum.exits.saturating_add(row.exits);
        sum.cycles = sum.cycles.saturating_add(row.cycles);
    }
    sums.into_values().collect()
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// A model that shows the invented machine of the statistics' tests.
    pub fn model() -> Model {
        let mut model = Model::new();
        model.take(Shown {
            status: json!({
                "state": "running", "uptime_ns": 12_300_000_000u64,
                "machine": {"pid": 1234, "kernel": "/boot/vmlinuz-6.1", "command_line": "quiet"}
            }),
            snapshot: Some(crate::statistics::tests::snapshot()),
            number: 1,
            machines: 2,
        });
        model
    }

    fn names(model: &Model) -> Vec<String> {
        model.rows().into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn tab_goes_round_the_lists() {
        let mut model = model();
        let mut seen = vec![model.list];
        for _ in 0..4 {
            assert_eq!(model.press(Key::Tab), None);
            seen.push(model.list);
        }
        let all = [
            List::Kinds,
            List::Instructions,
            List::Symbols,
            List::Spaces,
            List::Kinds,
        ];
        assert_eq!(seen, all);
    }

    #[test]
    fn an_instruction_that_runs_in_several_spaces_is_one_line() {
        let mut model = model();
        let snapshot = model.shown.as_mut().unwrap().snapshot.as_mut().unwrap();
        let mut other = snapshot.origins[0].clone();
        (other.space, other.cycles) = (0x5000, 1);
        snapshot.origins.push(other);
        let cycles = snapshot.origins[0].cycles;
        model.press(Key::Tab);
        let rows = model.rows();
        assert_eq!((rows.len(), rows[0].cycles), (2, cycles + 1));
        assert_eq!(rows[0].space, None);
    }

    #[test]
    fn enter_leads_to_where_a_kind_came_from_and_escape_back() {
        let mut model = model();
        assert_eq!(names(&model), ["cli", "cpuid"]);
        model.press(Key::Enter);
        assert_eq!(
            (model.list, names(&model)),
            (List::Symbols, vec!["start, \"really\"".into()])
        );
        model.press(Key::Enter);
        let places = ["start, \"really\"+0x4", "start, \"really\"+0x8"];
        assert_eq!(
            (model.list, names(&model)),
            (List::Instructions, places.map(String::from).to_vec())
        );
        model.press(Key::Back);
        model.press(Key::Back);
        model.press(Key::Down);
        assert_eq!((model.list, model.selected), (List::Kinds, 1));
        model.press(Key::Enter);
        assert!(names(&model).is_empty(), "of cpuid nothing was sampled");
    }

    #[test]
    fn a_space_leads_to_its_instructions() {
        let mut model = model();
        for _ in 0..3 {
            model.press(Key::Tab);
        }
        assert_eq!(names(&model), ["00001000"]);
        model.press(Key::Enter);
        assert_eq!((model.list, model.rows().len()), (List::Instructions, 2));
        assert_eq!(model.filter.space, Some(0x1000));
    }

    #[test]
    fn the_selection_stays_in_the_list() {
        let mut model = model();
        for key in [Key::Up, Key::PageDown, Key::Down, Key::Down] {
            model.press(key);
            assert!(model.selected < 2);
        }
        assert_eq!(model.selected, 1);
        let mut snapshot = crate::statistics::tests::snapshot();
        snapshot.exits.truncate(1);
        let shown = model.shown.take().unwrap();
        model.take(Shown {
            snapshot: Some(snapshot),
            ..shown
        });
        assert_eq!(model.selected, 0);
    }

    #[test]
    fn a_paused_display_takes_nothing_new() {
        let mut model = model();
        model.press(Key::Letter('p'));
        let mut snapshot = crate::statistics::tests::snapshot();
        snapshot.exit_count = 99;
        model.take(Shown {
            status: json!({}),
            snapshot: Some(snapshot),
            number: 2,
            machines: 2,
        });
        assert_eq!(model.snapshot().unwrap().exit_count, 1_241);
        assert_eq!(model.press(Key::Letter('n')), Some(Wish::NextMachine));
        assert!(!model.is_paused && model.shown.is_none());
    }

    #[test]
    fn letters_ask_for_what_others_do() {
        let mut model = model();
        assert_eq!(model.press(Key::Letter('q')), Some(Wish::Quit));
        assert_eq!(model.press(Key::Letter('w')), Some(Wish::Save));
        assert_eq!(model.press(Key::Letter('t')), Some(Wish::Look));
        assert!(model.shows_total);
        assert_eq!(model.press(Key::Letter('s')), None);
        assert_eq!(model.sort, Sort::Count);
        assert_eq!(model.press(Key::Letter('x')), None);
    }
}
