//! Reports errors of the command: one line on standard error.

use std::io::Write;
use std::sync::OnceLock;

/// The reason why the command ends: one line for people, and an exit code for programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What is wrong and what to do about it.
    pub message: String,
    /// One of the codes in [`crate::exit_code`].
    pub code: u8,
}

impl Failure {
    /// A failure because of the command line or an input file.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: crate::exit_code::USAGE,
        }
    }

    /// A failure because the host lacks something.
    pub fn host(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: crate::exit_code::HOST,
        }
    }

    /// Writes the message to standard error and returns the exit code.
    pub fn report(&self) -> u8 {
        say(&self.message);
        self.code
    }
}

/// The program's name in messages, if it is not `tollgate`.
static NAME: OnceLock<String> = OnceLock::new();

/// Sets the program's name in messages, once.
pub fn set_name(name: &str) {
    let _ = NAME.set(name.to_owned());
}

/// Returns the program's name in messages.
pub fn name() -> &'static str {
    NAME.get().map_or("tollgate", String::as_str)
}

/// Writes `tollgate: message`, or another name of the program, to standard error as exactly one
/// line.
pub fn say(message: &str) {
    let name = name();
    // If standard error is closed, the message is lost.
    let _ = writeln!(std::io::stderr(), "{name}: {}", one_line(message));
}

/// Replaces line breaks in `text` by spaces and escapes other control characters, because file
/// names may contain anything.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.trim_end().chars() {
        match character {
            '\n' | '\r' | '\t' => line.push(' '),
            other if other.is_control() => line.extend(other.escape_default()),
            other => line.push(other),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_control_characters() {
        assert_eq!(one_line("a\nb\u{1b}[2Jc\n"), "a b\\u{1b}[2Jc");
    }
}
