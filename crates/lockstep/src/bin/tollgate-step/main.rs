//! `tollgate-step`: executes one instruction from each of many processor states.
//!
//! This is a developer's tool, not part of the product. It reads states as lines of JSON, makes the
//! monitor execute one instruction from each, and writes the resulting state as such a line. So a
//! script can compare any description of what instructions do, such as a public suite or another
//! emulator, with Tollgate. [`state`] documents the format of a state, [`stepper`] how it is run.
//!
//! ```text
//! $ echo '{"regs": {"ax": 1, "cs": 0, "ip": 256}, "ram": [[256, 64]]}' | tollgate-step
//! {"mode":"real","regs":{"rax":2,...,"rip":257,...},"ram":[[256,64]]}
//! ```

mod registers;
mod state;
mod stepper;
#[cfg(test)]
mod tests;

use clap::Parser;
use state::Before;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use stepper::Stepper;

/// All lines were executed.
const DONE: u8 = 0;
/// A line, a file or the host caused an error; the lines written before are complete.
const FAILED: u8 = 2;

/// Executes one instruction from each processor state, a line of JSON, and writes the resulting
/// state.
#[derive(Parser, Debug)]
#[command(
    name = "tollgate-step",
    version,
    after_help = "docs/develop/step.md describes the lines."
)]
struct Arguments {
    /// File with states, one a line (default: standard input)
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// RAM in MiB, from address 0 on
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..=1024))]
    memory: u64,

    /// Check every piece of emitted code with the second decoder pass
    #[arg(long)]
    verify_code: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let output = BufWriter::new(io::stdout().lock());
    let result = match &arguments.file {
        Some(path) => match File::open(path) {
            Ok(file) => step_all(&arguments, BufReader::new(file), output),
            Err(error) => Err(io::Error::other(format!("{}: {error}", path.display()))),
        },
        None => step_all(&arguments, io::stdin().lock(), output),
    };
    match result {
        Ok(()) => DONE.into(),
        // The reader has closed the pipe because it needs no more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => DONE.into(),
        Err(error) => {
            eprintln!("tollgate-step: error: {error}");
            FAILED.into()
        }
    }
}

/// Executes one instruction from the state in each line. Empty lines are ignored.
///
/// # Errors
///
/// A line is not a state (the error contains its number), or the host's error. The results of the
/// lines before have been written.
fn step_all(arguments: &Arguments, input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut stepper = Stepper::new(arguments.memory << 20, arguments.verify_code)?;
    let result = step_lines(&mut stepper, input, &mut output);
    output.flush()?;
    result
}

fn step_lines(
    stepper: &mut Stepper,
    input: impl BufRead,
    output: &mut impl Write,
) -> io::Result<()> {
    for (index, line) in input.lines().enumerate() {
        let refused = |why: String| io::Error::other(format!("line {}: {why}", index + 1));
        let line = line.map_err(|error| refused(error.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let before: Before = serde_json::from_str(&line).map_err(|it| refused(it.to_string()))?;
        let after = stepper.step(&before).map_err(refused)?;
        serde_json::to_writer(&mut *output, &after)?;
        output.write_all(b"\n")?;
    }
    Ok(())
}
