//! `tollgate top`: shows where the time of running machines goes, live and on the whole terminal.
//!
//! ```text
//! machines   which machines there are, and a connection to the one that is shown
//!    |       every interval: what its ledger says happened since the last time
//!    v
//! model      what is on the screen: list, order, selection, filter; keys change it
//!    |
//!    v
//! draw       the model as text and bars, on any terminal of ratatui, a test's too
//! ```

mod draw;
mod machines;
mod model;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tollgate_host_facts::file_words::writing;

use crate::control::stats::{Additions, seconds};
use crate::exit_code;
use crate::failure::Failure;
use crate::statistics::{SymbolFiles, SymbolSource};
use machines::Machines;
use model::{Key, Model, Wish};

/// The interval at which the terminal is checked for a key while nothing else happens.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// The arguments of `tollgate top`.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys: Tab the next list (kinds of exit, instructions, symbols, address spaces), Up and Down choose,
      Enter shows what the chosen line is made of, Esc goes back, s sorts by cost or count,
      n the next machine, p pauses the display, t all since the start or the last interval,
      w writes what is shown to a JSON file, q quits.
Exit codes: 0 done, 1 no machine answers, 2 nothing is at PATH.")]
pub struct TopArguments {
    /// The path given to tollgate run --control; without it all machines of this user
    #[arg(value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,

    /// Names for guest addresses, as for 'tollgate stats'; may be repeated
    #[arg(
        long,
        value_name = "FILE",
        value_parser = OsStringValueParser::new().try_map(SymbolSource::parse)
    )]
    pub symbols: Vec<SymbolSource>,
}

/// Runs `tollgate top` and returns its exit code.
pub fn run(arguments: &TopArguments) -> u8 {
    show(arguments).unwrap_or_else(|failure| failure.report())
}

fn show(arguments: &TopArguments) -> Result<u8, Failure> {
    let additions = Additions {
        symbols: SymbolFiles::read(&arguments.symbols)?,
        prices: None,
    };
    let mut machines = Machines::open(arguments.socket.clone(), additions)?;
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::usage(
            "tollgate top needs a terminal; 'tollgate stats PATH --interval 1' writes lines",
        ));
    }
    let mut model = Model::new();
    let mut terminal = ratatui::try_init()
        .map_err(|error| Failure::host(format!("the terminal cannot be used: {error}")))?;
    let result = watch(&mut terminal, &mut machines, &mut model, arguments.interval);
    ratatui::restore();
    result.map_err(|error| Failure::host(format!("the terminal cannot be used: {error}")))?;
    Ok(exit_code::SUCCESS)
}

fn watch(
    terminal: &mut DefaultTerminal,
    machines: &mut Machines,
    model: &mut Model,
    interval: Duration,
) -> io::Result<()> {
    let mut due = Instant::now();
    loop {
        if due <= Instant::now() {
            machines.look(model);
            due = Instant::now() + interval;
        }
        terminal.draw(|frame| draw::draw(model, frame))?;
        let wait = due.saturating_duration_since(Instant::now()).min(KEY_WAIT);
        if !event::poll(wait)? {
            continue;
        }
        let Event::Key(event) = event::read()? else {
            continue;
        };
        match key(event).and_then(|key| model.press(key)) {
            Some(Wish::Quit) => return Ok(()),
            Some(Wish::NextMachine) => {
                machines.next();
                due = Instant::now();
            }
            Some(Wish::Look) => due = Instant::now(),
            Some(Wish::Save) => model.message = Some(save(model)),
            None => {}
        }
    }
}

fn key(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    Some(match event.code {
        KeyCode::Char('c') if event.modifiers.contains(KeyModifiers::CONTROL) => Key::Letter('q'),
        KeyCode::Char(letter) => Key::Letter(letter),
        KeyCode::Tab => Key::Tab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => Key::Back,
        _ => return None,
    })
}

/// Writes what is shown to a new file in the current directory; returns a message with its name.
fn save(model: &Model) -> String {
    let Some(snapshot) = model.snapshot() else {
        return "there is nothing to write yet".into();
    };
    for number in 1.. {
        let path = format!("tollgate-top-{number}.json");
        let text = serde_json::to_string_pretty(snapshot).unwrap_or_default();
        let file = std::fs::File::create_new(&path);
        match file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes())) {
            Ok(()) => return format!("written to {path}"),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return format!("cannot write '{path}': {}", writing(&error)),
        }
    }
    String::new()
}
