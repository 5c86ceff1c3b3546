//! `tollgate mark`: sets a mark in the statistics of a running machine, or lists the marks.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tollgate_machine::marks::MarkName;

use super::client::{exit_code_of, talk};
use super::command::Name;
use crate::failure::{Failure, one_line};
use crate::standard_output::print;

/// The arguments of `tollgate mark`.
#[derive(Args, Debug)]
#[command(after_help = "\
A mark that is set again is a new one. The last 16 are kept. A guest sets marks by a hypercall
(docs/reference/hypercalls.md); 'tollgate cost --write-linux-program FILE' writes a program that
does so.
Exit codes: 0 done, 1 the machine did not do it, 2 nothing answers at PATH.
Example:    tollgate mark vm.sock begin; ssh guest make; tollgate stats vm.sock --since begin")]
pub struct MarkArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// The mark's name: letters, digits, '.', '_' and '-'; without it the marks are listed
    #[arg(value_name = "NAME")]
    pub name: Option<MarkName>,
}

/// Runs `tollgate mark` and returns its exit code.
pub fn run(arguments: &MarkArguments) -> u8 {
    mark(arguments).unwrap_or_else(|failure| failure.report())
}

fn mark(arguments: &MarkArguments) -> Result<u8, Failure> {
    let name = arguments.name.map(|name| name.to_string());
    let request = json!({"command": Name::Mark, "mark": name});
    let answer = talk(&arguments.socket, &request)?;
    let marks = answer["marks"].as_array();
    if let (None, Some(marks)) = (arguments.name, marks) {
        let lines = marks.iter().map(|mark| {
            let at = mark["guest_time_ns"].as_u64().unwrap_or(0);
            let name = one_line(mark["name"].as_str().unwrap_or_default());
            format!("{:>12.3} s  {name}\n", at as f64 / 1e9)
        });
        print(&lines.collect::<String>())?;
    }
    Ok(exit_code_of(&answer))
}
