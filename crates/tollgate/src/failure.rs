//! How the command says that something is wrong: one line on standard error.

use std::io::Write;

/// Why the command ends, as one line for people and an exit code for programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What is wrong and what to do about it.
    pub message: String,
    /// One of [`crate::exit_code`].
    pub code: u8,
}

impl Failure {
    /// Something is wrong with the command line or an input file.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: crate::exit_code::USAGE,
        }
    }

    /// The host lacks something.
    pub fn host(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: crate::exit_code::HOST,
        }
    }

    /// Says it on standard error and returns the exit code.
    pub fn report(&self) -> u8 {
        say(&self.message);
        self.code
    }
}

/// Writes `tollgate: message` to standard error as exactly one line.
pub fn say(message: &str) {
    // Standard error may be closed; there is nobody else to tell.
    let _ = writeln!(std::io::stderr(), "tollgate: {}", one_line(message));
}

/// `text` with line breaks as spaces and other control characters escaped: file names
/// may contain anything.
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
