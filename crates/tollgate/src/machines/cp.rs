//! `tollgate cp`: copies a file into a machine that stays, or out of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use tollgate_agent::credit::Credit;
use tollgate_agent::protocol::kept::{GET, PUT};
use tollgate_agent::protocol::{ToHost, record};

use crate::exec::{Connection, Heard, feed};
use crate::exit_code;
use crate::failure::Failure;

/// The arguments of `tollgate cp`.
#[derive(Args, Debug)]
#[command(after_help = "\
One of FROM and TO is a file of this host ('-' for standard input or output), the other NAME:PATH: a file
of the machine with this name, which was started with 'tollgate exec --keep'. Folders of a
file that is written in the machine are made if they are missing.
Exit codes: 0 done, 1 it was not, 2 no such machine or file.
Example:    tollgate cp data.csv box:/tmp/data.csv")]
pub struct CpArguments {
    /// The file that is read
    #[arg(value_name = "FROM")]
    pub from: String,

    /// The file that is written
    #[arg(value_name = "TO")]
    pub to: String,
}

/// A file of this host or of a machine.
enum Place<'a> {
    Here(&'a str),
    Machine(&'a str, &'a str),
}

impl<'a> Place<'a> {
    /// A colon in the first part of a path stands after a machine's name.
    fn parse(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((name, path)) if !name.contains('/') => Self::Machine(name, path),
            _ => Self::Here(text),
        }
    }
}

/// Runs `tollgate cp` and returns its exit code.
pub fn run(arguments: &CpArguments) -> u8 {
    let copied = match (Place::parse(&arguments.from), Place::parse(&arguments.to)) {
        (Place::Here(from), Place::Machine(name, to)) => put(from, name, to),
        (Place::Machine(name, from), Place::Here(to)) => get(name, from, to),
        _ => Err(Failure::usage("one of both files must be NAME:PATH")),
    };
    match copied {
        Ok(()) => exit_code::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn put(from: &str, name: &str, to: &str) -> Result<(), Failure> {
    let failed = |error| Failure::usage(format!("'{from}': {error}"));
    let (source, mode) = match from {
        "-" => {
            let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
            (File::from(stdin), String::new())
        }
        _ => {
            let file = File::open(from).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            if metadata.is_dir() {
                return Err(failed(io::ErrorKind::IsADirectory.into()));
            }
            let mode = metadata.permissions().mode();
            (file, format!("{:o}", mode & 0o7777))
        }
    };
    let mut connection = begin(name, &[PUT, to, &mode])?;
    let sender = connection.sender().map_err(gone)?;
    let credit = Arc::new(Credit::default());
    feed(sender, source, Arc::clone(&credit)).map_err(gone)?;
    end(&mut connection, &credit, &mut io::sink())
}

fn get(name: &str, from: &str, to: &str) -> Result<(), Failure> {
    let mut connection = begin(name, &[GET, from])?;
    match to {
        "-" => end(&mut connection, &Credit::default(), &mut io::stdout()),
        _ => {
            let path = match Path::new(to) {
                folder if folder.is_dir() => {
                    folder.join(Path::new(from).file_name().unwrap_or_default())
                }
                file => PathBuf::from(file),
            };
            let failed = |error| Failure::usage(format!("'{}': {error}", path.display()));
            end(
                &mut connection,
                &Credit::default(),
                &mut File::create(&path).map_err(failed)?,
            )
        }
    }
}

fn gone(error: io::Error) -> Failure {
    Failure::host(format!("the machine does not answer: {error}"))
}

/// Runs a command of the agent in the machine.
fn begin(name: &str, words: &[&str]) -> Result<Connection, Failure> {
    let mut connection = Connection::open(name)?;
    let records = words
        .iter()
        .flat_map(|word| record("argument", OsStr::new(word)));
    connection
        .run(&records.collect::<Vec<u8>>())
        .map_err(gone)?;
    Ok(connection)
}

/// Waits for the end of the command, and writes its output.
fn end(
    connection: &mut Connection,
    credit: &Credit,
    output: &mut dyn Write,
) -> Result<(), Failure> {
    let mut errors = Vec::new();
    loop {
        match connection.next().map_err(gone)? {
            Heard::Output(bytes) => output
                .write_all(&bytes)
                .map_err(|error| Failure::host(format!("the output: {error}")))?,
            Heard::Errors(bytes) => errors.extend(bytes),
            Heard::Message(ToHost::Exited { code: 0, .. }) => return Ok(()),
            Heard::Message(ToHost::Exited { .. }) => {
                return Err(Failure::host(String::from_utf8_lossy(&errors)));
            }
            Heard::Message(ToHost::Failed { why, .. }) => return Err(Failure::host(why)),
            Heard::Taken(count) => credit.add(count),
            Heard::Message(ToHost::Started | ToHost::Ready) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_s_file_has_its_name_first() {
        assert!(matches!(
            Place::parse("box:/a"),
            Place::Machine("box", "/a")
        ));
        assert!(matches!(Place::parse("./box:a"), Place::Here("./box:a")));
        assert!(matches!(Place::parse("-"), Place::Here("-")));
    }
}
