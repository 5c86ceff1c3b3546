//! QEMU's command line: words in, a [`Configuration`] or one line about what is wrong out. QEMU's
//! monitors are in [`monitor`].
//!
//! ```text
//!   -kernel vmlinuz -m 1G -nic user     words of the command line
//!            |                          command_line: options and their values, files of options
//!            |  OPTIONS                 options: each option, and what becomes of it
//!            v
//!   KeyValues: user,hostfwd=...         key_values: lists of keys and values
//!            |                          build: defaults, references between options
//!            v
//!   Configuration                       plain data without a machine
//! ```
//!
//! Nothing here knows a machine, opens an image or prints. What an option names and Tollgate does not
//! have is refused by its name; what makes no difference is accepted.

mod build;
mod command_line;
mod config_file;
mod configuration;
#[cfg(test)]
mod harness_lines;
mod help;
mod key_values;
mod models;
pub mod monitor;
mod numbers;
mod options;
mod parts;
mod properties;
mod refusal;

pub use command_line::{Files, Given, parse};
pub use configuration::{
    AdapterModel, Backend, BootDevice, Cache, Character, Configuration, CpuFeature, DebugConsole,
    Display, Drive, DriveFormat, ExitPort, FirmwareFile, FirmwareText, Forward, Interface, Labels,
    MachineKind, Monitor, MonitorMode, Network, NetworkKind, Place, Plugged, PluggedKind, Port,
    Processor, Restore, RtcBase, Security, SerialPort, Share, Smbios, Spare,
};
pub use help::VERSION;
pub use models::model_level;
pub use options::{OPTIONS, Row, Treatment};
pub use refusal::Refusal;

/// What a command line asks for.
#[derive(Debug)]
pub enum Request {
    /// A text to print.
    Answer(String),
    /// A machine to run.
    Run(Box<Configuration>),
}

/// Reads a command line. `name` is the program's name for texts; `words` are the words after it.
///
/// # Errors
/// One line that says which option is wrong, and why.
pub fn request(name: &str, words: &[String], files: &dyn Files) -> Result<Request, Refusal> {
    let given = parse(words, files)?;
    match help::answer(name, &given) {
        Some(text) => Ok(Request::Answer(text)),
        None => Ok(Request::Run(Box::new(build::configuration(&given)?))),
    }
}
