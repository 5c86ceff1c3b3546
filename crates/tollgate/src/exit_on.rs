//! `--exit-on`: which events end the machine, and with which exit codes.

use crate::exit_code;

/// The value of one `--exit-on`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitOn {
    /// A panic that the guest's kernel reports ends the machine with this code.
    Panic(u8),
    /// A reset, which ends the machine, ends it with this code.
    Reset(u8),
}

/// Parses `panic` and `reset`, each of which may have its own code (`=CODE`).
///
/// # Errors
///
/// The reason, as half a line.
pub fn parse(text: &str) -> Result<ExitOn, String> {
    let (event, code) = match text.split_once('=') {
        Some((event, code)) => (event, Some(code)),
        None => (text, None),
    };
    let code = code.map(|code| {
        code.parse::<u8>()
            .map_err(|_| format!("'{code}' is no exit code; one is a number from 0 to 255"))
    });
    let code = code.transpose()?;
    match event {
        "panic" => Ok(ExitOn::Panic(code.unwrap_or(exit_code::PANIC))),
        "reset" => Ok(ExitOn::Reset(code.unwrap_or(exit_code::RESET))),
        _ => Err("expected panic, panic=CODE, reset or reset=CODE".into()),
    }
}

/// The exit codes of a run, from all `--exit-on` flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExitCodes {
    /// Whether a panic ends the machine immediately.
    pub ends_at_panic: bool,
    /// The code for a guest that switched itself off, or that the user ended.
    pub good: u8,
    /// The code for a guest that panicked.
    pub panic: u8,
    /// The code for a guest that was reset.
    pub reset: u8,
}

impl ExitCodes {
    /// Combines the flags. The last flag for an event is the valid one.
    pub fn of(all: &[ExitOn]) -> Self {
        let mut codes = Self {
            ends_at_panic: false,
            good: exit_code::SUCCESS,
            panic: exit_code::PANIC,
            reset: exit_code::SUCCESS,
        };
        for exit_on in all {
            match *exit_on {
                ExitOn::Panic(code) => (codes.ends_at_panic, codes.panic) = (true, code),
                ExitOn::Reset(code) => codes.reset = code,
            }
        }
        codes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_code_of_its_own_unless_one_is_named() {
        assert_eq!(parse("panic"), Ok(ExitOn::Panic(5)));
        assert_eq!(parse("panic=0"), Ok(ExitOn::Panic(0)));
        assert_eq!(parse("reset"), Ok(ExitOn::Reset(6)));
        assert_eq!(parse("reset=255"), Ok(ExitOn::Reset(255)));
        for bad in ["", "halt", "panic=", "panic=256", "reset=-1", "reset=x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_the_flag_a_panic_ends_nothing_and_a_reset_is_no_failure() {
        let codes = ExitCodes::of(&[]);
        assert_eq!(
            (codes.ends_at_panic, codes.panic, codes.reset),
            (false, 5, 0)
        );
        let codes = ExitCodes::of(&[ExitOn::Panic(1), ExitOn::Reset(2), ExitOn::Panic(3)]);
        assert_eq!(
            (codes.ends_at_panic, codes.panic, codes.reset),
            (true, 3, 2)
        );
    }
}
