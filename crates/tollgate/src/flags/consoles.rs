//! Flags about where the guest's serial port, screen and streams go.

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use tollgate_machine::config::{PortOptions, PortTarget};

use crate::display::{self, Display};
use crate::failure::Failure;
use crate::port;
use crate::serial_target::{self, SerialTarget};

/// Flags about the consoles, the display and the streams of `tollgate run`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Consoles and display")]
pub struct ConsoleArguments {
    /// Where the first serial port goes: stdio, file:PATH, pty or null
    ///
    /// stdio: this terminal, which is switched to raw mode and restored at the end. If
    /// standard input is not a terminal, its bytes reach the guest unchanged, and its end
    /// does not end the virtual machine. If standard output is a pipe that is full, the guest
    /// waits until it is read.
    /// file:PATH: output is written to this file, and replaces its content; no input.
    /// pty: a new pseudo-terminal, whose name is shown on standard error. Once its buffer is full,
    /// output that no program reads is dropped.
    /// null: no output, no input.
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "stdio",
        value_parser = OsStringValueParser::new().try_map(serial_target::parse),
        verbatim_doc_comment
    )]
    serial: SerialTarget,

    /// Where bytes written to ports E9h and 402h go: stdio, file:PATH or null
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "null",
        value_parser = OsStringValueParser::new().try_map(serial_target::parse_output)
    )]
    pub debug_console: SerialTarget,

    /// Where the screen of a machine with firmware is shown: none, text, png:DIR or vnc=...
    ///
    /// text: in this terminal, with colours and line characters. What you type goes to the guest's
    /// keyboard; Ctrl-A d is Ctrl-Alt-Delete. The first serial port then goes nowhere, unless
    /// --serial says file or pty. For graphics modes only the resolution is shown.
    /// png:DIR: as pictures in this folder, 000001.png and so on. A picture is written when the
    /// screen has changed, at most four times a second and at most 10000 times.
    /// vnc=unix:PATH: to a VNC viewer at this socket, which only you can open.
    /// vnc=ADDR[:PORT],password=FILE: to VNC viewers at an address of this host (default port 5900)
    /// that know the password: the first line of FILE, at most 8 characters. The connection is not
    /// encrypted. A viewer has a keyboard and a mouse too.
    /// none: nowhere; 'tollgate screen' shows it.
    #[arg(
        long,
        value_name = "WHERE",
        value_parser = OsStringValueParser::new().try_map(display::parse),
        default_value = "none",
        conflicts_with = "kernel",
        verbatim_doc_comment
    )]
    pub display: Display,

    /// A stream of bytes between guest and host: NAME=WHERE. May be repeated
    ///
    /// WHERE: stdio, stdin, stdout, stderr     the standard streams of tollgate
    ///        file:PATH                        what the guest writes; replaces the file's content
    ///        socket:PATH                      a Unix socket, for one client at a time
    ///        fd:N                             a descriptor that tollgate inherits
    /// The guest finds them as /dev/vportNp1, /dev/vportNp2 ..., with the drivers virtio_pci and
    /// virtio_console; N is the number of virtio devices before the console, 0 if there are none.
    /// /sys/class/virtio-ports/vportNp1/name holds the stream's name, and udev makes
    /// /dev/virtio-ports/NAME.
    #[arg(
        long,
        value_name = "PORT",
        value_parser = OsStringValueParser::new().try_map(|text| port::parse(&text)),
        verbatim_doc_comment
    )]
    port: Vec<PortOptions>,

    /// A console (virtio-console) that Linux has as hvc0, hvc1 ... May be repeated
    ///
    /// WHERE is one of those of --port. Add console=hvc0 to the guest's command line. The guest
    /// needs the drivers virtio_pci and virtio_console; if they are modules, the console lacks the
    /// messages from before they are loaded.
    #[arg(
        long,
        value_name = "WHERE",
        value_parser = OsStringValueParser::new().try_map(|text| port::parse_console(&text)),
        verbatim_doc_comment
    )]
    hvc: Vec<PortTarget>,
}

impl ConsoleArguments {
    /// Where the first serial port goes: nowhere if the terminal is the screen.
    pub fn serial(&self) -> &SerialTarget {
        match (&self.display, &self.serial) {
            (Display::Text, SerialTarget::Stdio) => &SerialTarget::Null,
            (_, target) => target,
        }
    }

    /// The streams and, after them, the consoles.
    ///
    /// # Errors
    /// More than one of them reads standard input.
    pub fn ports(&self) -> Result<Vec<PortOptions>, Failure> {
        port::checked(&self.port, &self.hvc, self.serial())
    }

    /// Whether the guest has a console in addition to the serial port.
    pub fn has_virtio_console(&self) -> bool {
        !self.hvc.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    #[test]
    fn the_serial_port_leaves_the_terminal_to_the_screen() {
        let parsed = |words: &[&str]| {
            let kernel = clap::Arg::new("kernel").long("kernel");
            let command = ConsoleArguments::augment_args(clap::Command::new("run")).arg(kernel);
            let matches = command.get_matches_from([&["run"], words].concat());
            ConsoleArguments::from_arg_matches(&matches).unwrap()
        };
        assert_eq!(*parsed(&[]).serial(), SerialTarget::Stdio);
        let text = parsed(&["--display", "text"]);
        assert_eq!(*text.serial(), SerialTarget::Null);
        let both = parsed(&["--display", "text", "--serial", "pty"]);
        assert_eq!(*both.serial(), SerialTarget::Pty);
    }
}
