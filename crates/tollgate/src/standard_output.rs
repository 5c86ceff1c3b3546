//! Prints a command's text on standard output, and handles failures of that.

use std::io::{self, Write};

use tollgate_host_facts::file_words::writing;

use crate::exit_code;
use crate::failure::Failure;
use crate::lost_output::is_reader_gone;

/// Whether someone still reads standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// All of the text was written.
    Present,
    /// The reader, such as `head`, has gone.
    Gone,
}

/// Prints all of a text, unless the reader has gone.
///
/// # Errors
///
/// One line says why the host does not take the text, for example because the disk is full.
pub fn offer(text: &str) -> Result<Reader, Failure> {
    let mut output = io::stdout().lock();
    let written = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    match written {
        Ok(()) => Ok(Reader::Present),
        Err(error) if is_reader_gone(&error, &output) => Ok(Reader::Gone),
        Err(error) => Err(Failure {
            message: format!("cannot write standard output: {}", writing(&error)),
            code: exit_code::OUTPUT_LOST,
        }),
    }
}

/// Prints text as [`offer`] does, for a command that ends the same way if the reader has gone.
///
/// # Errors
///
/// The errors of [`offer`].
pub fn print(text: &str) -> Result<(), Failure> {
    offer(text).map(|_| ())
}

/// Prints text as [`print`] does, reports a failure, and returns the exit code: `code`, or that of
/// the failure instead of success.
pub fn print_and_end(text: &str, code: u8) -> u8 {
    match (print(text), code) {
        (Ok(()), code) => code,
        (Err(failure), exit_code::SUCCESS) => failure.report(),
        (Err(failure), code) => {
            failure.report();
            code
        }
    }
}
