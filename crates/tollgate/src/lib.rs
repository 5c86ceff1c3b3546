//! The `tollgate` command: runs an x86 virtual machine in an ordinary process.
//!
//! [`main`] only chooses the subcommand. The command line is defined in `cli`; a virtual machine's
//! life, from the command line to the exit code, is in `run`.
//!
//! This is a library so that `tollgate-hostile` can talk to the control socket's server
//! without a process around it; nothing else uses it.

mod cache;
mod cli;
mod columns;
mod command_line;
mod confinement;
mod console;
mod control;
mod cost;
mod cpu_models;
mod devices;
mod display;
mod doctor;
mod documents;
mod drive;
mod event_loop;
mod exec;
mod exit_code;
mod exit_on;
mod failure;
mod files;
mod firecracker;
mod flags;
mod flash;
mod floppy;
mod foreign_words;
mod fw_cfg;
mod gdb;
mod help_text;
mod host;
mod image;
mod interruption;
mod jailer;
mod keyboard;
mod lab;
mod limits;
mod lost_output;
mod machines;
mod net;
mod perf_map;
mod png_display;
mod port;
mod qemu;
mod refusals;
mod run;
mod serial_target;
mod share;
mod signal_set;
mod signals;
mod silence;
mod size;
mod snapshot;
mod stack;
mod standard_output;
mod statistics;
mod terminal;
mod terminal_keys;
mod text_display;
mod top;
mod trace_file;
mod unix_socket;
mod usage;
mod vnc;
mod vsock;
mod words;

use std::process::ExitCode;

use cli::Subcommand;

pub use control::server::serve_connection;
pub use firecracker::main as firecracker_main;
pub use jailer::main as jailer_main;
pub use qemu::main as qemu_main;

/// The entry of the command: reads the process's arguments and executes them. Packages have one file with
/// several names, so the name tells which command it is.
pub fn main() -> ExitCode {
    let name = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = name.as_deref().and_then(std::path::Path::file_name);
    match name.and_then(std::ffi::OsStr::to_str) {
        Some("tollgate-firecracker") => firecracker_main(),
        Some("jailer") => jailer_main(),
        Some("tollgate-qemu" | "qemu-system-x86_64" | "qemu-system-i386") => qemu_main(),
        _ => ExitCode::from(stack::with_enough(command)),
    }
}

fn command() -> u8 {
    tollgate_machine::board::begin_frequency_measurement();
    signals::ignore_file_size_limit();
    match command_line::parse(std::env::args_os()) {
        Ok(Subcommand::Run(arguments)) => run::run(&arguments),
        Ok(Subcommand::Exec(arguments)) => exec::run(&arguments),
        Ok(Subcommand::Doctor(arguments)) => doctor::run(&arguments),
        Ok(Subcommand::Control(arguments)) => control::client::run(&arguments),
        Ok(Subcommand::Set(arguments)) => control::set::run(&arguments),
        Ok(Subcommand::Snapshot(arguments)) => snapshot::run(&arguments),
        Ok(Subcommand::Reset(arguments)) => snapshot::reset(&arguments),
        Ok(Subcommand::Cache(arguments)) => cache::run(&arguments),
        Ok(Subcommand::Medium(arguments)) => control::medium::run(&arguments),
        Ok(Subcommand::Screen(arguments)) => control::screen::run(&arguments),
        Ok(Subcommand::Type(arguments)) => control::typing::run(&arguments),
        Ok(Subcommand::Cost(arguments)) => cost::run(&arguments),
        Ok(Subcommand::Lab(arguments)) => lab::run(&arguments),
        Ok(Subcommand::Image(arguments)) => image::run(&arguments),
        Ok(Subcommand::Stats(arguments)) => control::stats::run(&arguments),
        Ok(Subcommand::Mark(arguments)) => control::mark::run(&arguments),
        Ok(Subcommand::Top(arguments)) => top::run(&arguments),
        Ok(Subcommand::Ps(arguments)) => machines::ps::run(&arguments),
        Ok(Subcommand::Kill(arguments)) => machines::kill::run(&arguments),
        Ok(Subcommand::Pool(arguments)) => machines::pool::run(&arguments),
        Ok(Subcommand::Cp(arguments)) => machines::cp::run(&arguments),
        Ok(Subcommand::Logs(arguments)) => machines::logs::run(&arguments),
        Ok(Subcommand::Documents(arguments)) => documents::run(&arguments, cli::definition()),
        Err(command_line::Answered(code)) => code,
    }
}
