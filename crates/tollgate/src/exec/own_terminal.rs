//! The terminal of `tollgate exec` itself, which its command gets.

use std::io::{self, IsTerminal};

use rustix::stdio::stdin;
use rustix::termios::tcgetwinsize;
use tollgate_agent::protocol::{Terminal, WindowSize};

/// The terminal that the command gets, if standard input and one of the outputs are terminals.
pub fn own_terminal() -> Option<Terminal> {
    let has_output = io::stdout().is_terminal();
    let has_errors = io::stderr().is_terminal();
    let is_terminal = io::stdin().is_terminal() && (has_output || has_errors);
    is_terminal.then(|| Terminal {
        size: window_size(),
        has_output,
        has_errors,
    })
}

/// The size of the terminal on standard input; zero if standard input is not a terminal.
pub fn window_size() -> WindowSize {
    let size = tcgetwinsize(stdin()).ok();
    WindowSize {
        rows: size.map_or(0, |size| size.ws_row),
        columns: size.map_or(0, |size| size.ws_col),
    }
}
