//! `tollgate-qemu`: a machine that is described in QEMU's words.
//!
//! ```text
//!   words -- tollgate_qemu_words -- configuration -- Vm
//!                      |                             | serial port, ports of virtio consoles
//!                      +-- characters: terminal, files, sockets, pseudo-terminals; monitors
//! ```
//!
//! The program is also found as `qemu-system-x86_64`; its own name decides nothing but the names in its
//! messages.

mod boot_order;
mod characters;
mod configuration;
mod daemon;
mod exit_code;
mod keys;
mod orders;
mod processor;
mod registers;
mod run;
mod smbios;
mod snapshots;

use std::path::Path;
use std::process::ExitCode;

use tollgate_qemu_words::{Files, Request};

use crate::failure::{self, say};
use crate::standard_output::print_and_end;
use crate::{signals, stack};

/// The entry of `tollgate-qemu`.
pub fn main() -> ExitCode {
    ExitCode::from(stack::with_enough(command))
}

fn command() -> u8 {
    tollgate_machine::board::begin_frequency_measurement();
    signals::ignore_file_size_limit();
    let name = program_name();
    failure::set_name(&name);
    let words = std::env::args_os().skip(1);
    let words: Result<Vec<String>, _> = words.map(std::ffi::OsString::into_string).collect();
    let Ok(words) = words else {
        say("a word of the command line is not UTF-8");
        return exit_code::FAILED;
    };
    let configuration = match tollgate_qemu_words::request(&name, &words, &HostFiles) {
        Ok(Request::Answer(text)) => return print_and_end(&text, exit_code::SUCCESS),
        Ok(Request::Run(configuration)) => configuration,
        Err(refusal) => {
            say(&refusal.0);
            return exit_code::FAILED;
        }
    };
    run::run(&configuration).unwrap_or_else(|failure| {
        say(&failure.message);
        exit_code::FAILED
    })
}

/// The program's name as it was called.
fn program_name() -> String {
    let first = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&first)
        .file_name()
        .map(|it| it.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "tollgate-qemu".into())
}

/// The files of options on this host.
struct HostFiles;

impl Files for HostFiles {
    fn read(&self, path: &str) -> Result<String, String> {
        std::fs::read_to_string(path)
            .map_err(|error| tollgate_host_facts::file_words::reading(&error).to_string())
    }
}
