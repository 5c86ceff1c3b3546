//! `--display text`: shows the guest's text screen in this terminal, and types this terminal's keys
//! on the guest's keyboard.
//!
//! The event loop asks the vCPU thread for the screen some times a second and draws the changes in
//! the terminal's 16 colours. For graphics modes only the resolution is shown.

pub mod keys;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate_machine::devices::vga::screen::{Screen, TextScreen, character};
use tollgate_machine::vm_handle::{ScreenRequest, VmHandle};

use crate::host;
use keys::Strokes;

/// The time between two requests for the screen.
const PERIOD: Duration = Duration::from_millis(40);

/// Whether the terminal shows the guest's screen and must be restored.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// The terminal as the guest's display.
pub struct TextDisplay {
    /// The keys that wait for the guest.
    pub strokes: Strokes,
    /// The request for the screen that is not answered yet.
    awaited: Option<ScreenRequest>,
    next: Instant,
    drawn: Drawn,
}

/// The content of the terminal.
#[derive(Default)]
struct Drawn {
    /// The terminal's columns and rows.
    size: (usize, usize),
    /// Character and attribute of each cell, line by line.
    cells: Vec<(char, u8)>,
    columns: usize,
    cursor: Option<(usize, usize)>,
}

impl TextDisplay {
    /// Takes the terminal for the guest's screen.
    pub fn begin() -> Self {
        IS_SHOWN.store(true, Ordering::Release);
        // The terminal's alternate screen is used, so that its previous content returns at the end.
        put(b"\x1b[?1049h\x1b[2J");
        Self {
            strokes: Strokes::default(),
            awaited: None,
            next: Instant::now(),
            drawn: Drawn::default(),
        }
    }

    /// The time at which [`TextDisplay::go_on`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.awaited.is_none().then_some(self.next)
    }

    /// Requests the screen if it is time, and draws it if it has arrived.
    pub fn go_on(&mut self, handle: &VmHandle) {
        self.strokes.offer(handle);
        let now = Instant::now();
        match self.awaited {
            Some(request) => {
                if let Some(shown) = handle.screen_after(request) {
                    let size = host::window_size(io::stdout().as_fd()).unwrap_or((80, 25));
                    put(&self.drawn.changed_to(&shown.screen, size));
                    self.awaited = None;
                    self.next = now + PERIOD;
                }
            }
            None if now >= self.next => self.awaited = Some(handle.request_screen(false)),
            None => {}
        }
    }

    /// Lets everything be drawn again, after something else has written to the terminal.
    pub fn forget(&mut self) {
        self.drawn = Drawn::default();
    }
}

impl Drop for TextDisplay {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, if it was taken.
pub fn restore() {
    if IS_SHOWN.swap(false, Ordering::AcqRel) {
        put(b"\x1b[0m\x1b[?25h\x1b[?1049l");
    }
}

/// Writes to the terminal. If it has gone, nothing happens.
fn put(bytes: &[u8]) {
    let mut output = io::stdout().lock();
    let _ = output.write_all(bytes).and_then(|()| output.flush());
}

impl Drawn {
    /// The bytes that make the terminal, of this size, show a screen.
    fn changed_to(&mut self, screen: &Screen, size: (usize, usize)) -> Vec<u8> {
        let note;
        let text = match screen {
            Screen::Text(text) => text,
            Screen::Graphics(size) => {
                note = notice(&format!(
                    "A picture of {} by {} pixels: 'tollgate screen --png' writes it. Ctrl-A x quits.",
                    size.width, size.height
                ));
                &note
            }
            Screen::Off => {
                note = notice("");
                &note
            }
        };
        let mut bytes = Vec::new();
        if size != self.size || text.columns != self.columns {
            bytes.extend(b"\x1b[0m\x1b[2J");
            *self = Self {
                size,
                columns: text.columns,
                ..Self::default()
            };
        }
        let cells: Vec<(char, u8)> = text
            .characters
            .iter()
            .map(|code| character(*code))
            .zip(text.attributes.iter().copied())
            .collect();
        let mut colours = None;
        for row in 0..text.rows.min(size.1) {
            // The place where the terminal puts the next character by itself.
            let mut at = None;
            for column in 0..text.columns.min(size.0) {
                let place = row * text.columns + column;
                let (Some(cell), old) = (cells.get(place), self.cells.get(place)) else {
                    continue;
                };
                if old == Some(cell) {
                    continue;
                }
                if at != Some(column) {
                    let _ = write!(bytes, "\x1b[{};{}H", row + 1, column + 1);
                }
                if colours != Some(cell.1) {
                    colours = Some(cell.1);
                    bytes.extend(colour_codes(cell.1, text.blinks).as_bytes());
                }
                let _ = write!(bytes, "{}", cell.0);
                at = Some(column + 1);
            }
        }
        let moved = !bytes.is_empty() || text.cursor != self.cursor;
        match text.cursor {
            Some((column, row)) if moved && column < size.0 && row < size.1 => {
                let _ = write!(bytes, "\x1b[{};{}H\x1b[?25h", row + 1, column + 1);
            }
            _ if moved => bytes.extend(b"\x1b[?25l"),
            _ => {}
        }
        self.cells = cells;
        self.cursor = text.cursor;
        bytes
    }
}

/// A screen with one line of text.
fn notice(text: &str) -> TextScreen {
    let (columns, rows) = (80, 25);
    let mut characters = text.as_bytes().to_vec();
    characters.resize(columns * rows, b' ');
    TextScreen {
        columns,
        rows,
        attributes: vec![7; characters.len()],
        characters,
        cursor: None,
        blinks: false,
    }
}

/// The terminal's codes for an attribute's colours.
fn colour_codes(attribute: u8, blinks: bool) -> String {
    // A VGA has blue in bit 0 and red in bit 2, a terminal the other way around.
    let swapped = |bits: u8| bits & 2 | bits >> 2 & 1 | bits << 2 & 4;
    let code = |first: u8, bits: u8| match bits & 8 {
        0 => first + swapped(bits & 7),
        _ => first + 60 + swapped(bits & 7),
    };
    let background = if blinks {
        attribute >> 4 & 7
    } else {
        attribute >> 4
    };
    let blink = if blinks && attribute & 0x80 != 0 {
        "5;"
    } else {
        ""
    };
    format!(
        "\x1b[0;{blink}{};{}m",
        code(30, attribute & 0xf),
        code(40, background)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (usize, usize) = (80, 25);

    fn shown(drawn: &mut Drawn, text: TextScreen, size: (usize, usize)) -> String {
        String::from_utf8(drawn.changed_to(&Screen::Text(text), size)).unwrap()
    }

    #[test]
    fn only_what_has_changed_is_drawn() {
        let mut drawn = Drawn::default();
        let mut text = notice("Hello");
        let first = shown(&mut drawn, text.clone(), SIZE);
        assert!(first.contains("\x1b[1;1H\x1b[0;37;40mHello"), "{first:?}");
        assert_eq!(shown(&mut drawn, text.clone(), SIZE), "");
        text.characters[81] = 0xc9;
        text.attributes[81] = 0x1e;
        let second = shown(&mut drawn, text.clone(), SIZE);
        assert_eq!(second, "\x1b[2;2H\x1b[0;93;44m╔\x1b[?25l");
        text.cursor = Some((3, 4));
        assert_eq!(shown(&mut drawn, text, SIZE), "\x1b[5;4H\x1b[?25h");
    }

    #[test]
    fn a_small_terminal_shows_a_part_and_a_resized_one_all_anew() {
        let mut drawn = Drawn::default();
        let text = notice("Hello");
        assert!(shown(&mut drawn, text.clone(), (3, 1)).contains("mHel\x1b"));
        assert!(shown(&mut drawn, text, (9, 2)).contains("mHello "));
        let size = tollgate_machine::devices::vga::screen::Size {
            width: 320,
            height: 200,
        };
        let picture = drawn.changed_to(&Screen::Graphics(size), SIZE);
        assert!(String::from_utf8(picture).unwrap().contains("320 by 200"));
    }

    #[test]
    fn the_sixteen_colours_are_a_terminal_s() {
        assert_eq!(colour_codes(0x07, true), "\x1b[0;37;40m");
        assert_eq!(colour_codes(0x9c, true), "\x1b[0;5;91;44m");
        assert_eq!(colour_codes(0x9c, false), "\x1b[0;91;104m");
    }
}
