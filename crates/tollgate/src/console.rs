//! The places that consoles of the guest write to: standard output, a file, a pseudo-terminal, or
//! nowhere.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::OutputModes;
use tollgate_host_facts::file_words::writing;

use crate::failure::Failure;
use crate::lost_output::LostOutput;
use crate::serial_target::SerialTarget;
use crate::silence::Noting;
use crate::{host, terminal};

/// Output of a console, opened once. Each start of the machine gets a writer of its own.
pub struct Console {
    output: Output,
    /// Becomes true when something is written.
    is_used: Arc<AtomicBool>,
}

enum Output {
    /// A file, or standard output. A writer waits until everything is written.
    Blocking(File, Arc<LostOutput>),
    /// The master side of a pseudo-terminal. Output that no process reads is dropped.
    Pty(Pty),
    Nowhere,
}

impl Console {
    /// Opens the place that `target` names, for the console called `name` in messages.
    ///
    /// # Errors
    ///
    /// One line says which file could not be opened, and why.
    pub fn open(target: &SerialTarget, name: &'static str) -> Result<Self, Failure> {
        let output = match target {
            SerialTarget::Null => Output::Nowhere,
            SerialTarget::Stdio => {
                let file = standard_output()
                    .map_err(|error| Failure::host(format!("{name}: standard output: {error}")))?;
                Output::Blocking(file, LostOutput::new(name, "standard output".into()))
            }
            SerialTarget::File(path) => {
                let file = create(path).map_err(|error| cannot_write(path, name, &error))?;
                Output::Blocking(file, LostOutput::new(name, format!("'{}'", path.display())))
            }
            SerialTarget::Pty => {
                Output::Pty(Pty::open().map_err(|error| {
                    Failure::host(format!("{name}: no pseudo-terminal: {error}"))
                })?)
            }
        };
        Ok(Self {
            output,
            is_used: Arc::default(),
        })
    }

    /// A writer for the vCPU thread. It never fails, because a guest cannot be notified that its
    /// console broke.
    ///
    /// # Errors
    ///
    /// The errors of dup(2).
    pub fn writer(&self) -> io::Result<Box<dyn Write + Send>> {
        let writer: Box<dyn Write + Send> = match &self.output {
            Output::Blocking(file, lost) => Box::new(Patient {
                file: file.try_clone()?,
                lost: Arc::clone(lost),
            }),
            Output::Pty(pty) => Box::new(Dropping(File::from(pty.master.try_clone()?))),
            Output::Nowhere => return Ok(Box::new(io::sink())),
        };
        Ok(Box::new(Noting::new(writer, Arc::clone(&self.is_used))))
    }

    /// Becomes true when something is written; `None` if the console goes nowhere.
    pub fn is_used(&self) -> Option<Arc<AtomicBool>> {
        let goes_nowhere = matches!(self.output, Output::Nowhere);
        (!goes_nowhere).then(|| Arc::clone(&self.is_used))
    }

    /// Whether something could not be written and is lost, which was reported.
    pub fn has_lost_output(&self) -> bool {
        matches!(&self.output, Output::Blocking(_, lost) if lost.is_lost())
    }

    /// The pseudo-terminal, if the console is one.
    pub fn pty(&self) -> Option<&Pty> {
        match &self.output {
            Output::Pty(pty) => Some(pty),
            _ => None,
        }
    }
}

fn standard_output() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Empties or creates a file. Writing appends, so that two consoles may share it.
fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

fn cannot_write(path: &Path, name: &str, error: &io::Error) -> Failure {
    let advice = writing(error);
    Failure::usage(format!(
        "{name}: cannot write '{}': {advice}",
        path.display()
    ))
}

/// Writes everything and waits if it must. Once the reader is gone, output is dropped. Output that
/// is dropped for any other reason counts as lost.
struct Patient {
    file: File,
    lost: Arc<LostOutput>,
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.file.write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Another process made the shared terminal non-blocking, so this waits for it.
                let mut fds = [host::interest(self.file.as_raw_fd(), libc::POLLOUT)];
                match host::poll(&mut fds, None) {
                    Ok(()) => Err(ErrorKind::Interrupted.into()),
                    Err(_) => Ok(bytes.len()),
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            Err(error) => {
                self.lost.note_unless_gone(&error, &self.file);
                Ok(bytes.len())
            }
            Ok(count) => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes what the other side takes now and drops the rest.
struct Dropping(File);

impl Write for Dropping {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            _ => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A new pseudo-terminal in raw mode.
pub struct Pty {
    /// The master side, which is non-blocking.
    pub master: OwnedFd,
    /// The name of the slave side.
    pub path: PathBuf,
    /// Kept open, so that the master never reports a hang-up when a reader leaves.
    _slave: File,
}

impl Pty {
    /// Makes a pseudo-terminal.
    ///
    /// # Errors
    /// The host has none.
    pub fn open() -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::<u8>::new())?;
        let path = PathBuf::from(OsString::from_vec(name.into_bytes()));
        let slave = open_terminal(&path)?;
        let mut settings = terminal::raw(terminal::settings(&slave)?);
        // The guest's bytes must arrive unchanged: its own terminal layer makes line ends.
        settings.output_modes -= OutputModes::OPOST;
        terminal::apply(&slave, &settings)?;
        host::set_nonblocking(master.as_fd())?;
        Ok(Self {
            master,
            path,
            _slave: slave,
        })
    }
}

/// Opens a terminal without making it the process's own.
fn open_terminal(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_pty_passes_bytes_unchanged_both_ways() {
        let console = Console::open(&SerialTarget::Pty, "--serial").unwrap();
        let pty = console.pty().unwrap();
        let mut reader = open_terminal(&pty.path).unwrap();
        console.writer().unwrap().write_all(b"a\n\x03\xff").unwrap();
        let mut bytes = [0; 4];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"a\n\x03\xff");
        reader.write_all(b"\r\x04").unwrap();
        let mut bytes = [0; 8];
        let count = host::read(pty.master.as_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"\r\x04");
    }

    #[test]
    fn a_pty_without_reader_does_not_block() {
        let console = Console::open(&SerialTarget::Pty, "--serial").unwrap();
        let mut writer = console.writer().unwrap();
        for _ in 0..1000 {
            writer.write_all(&[b'x'; 1000]).unwrap();
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_with_the_reason() {
        let target = SerialTarget::File("/nonexistent/log".into());
        let failure = Console::open(&target, "--serial").err().unwrap();
        assert_eq!(failure.code, crate::exit_code::USAGE);
        assert_eq!(
            failure.message,
            "--serial: cannot write '/nonexistent/log': its folder does not exist"
        );
    }

    #[test]
    fn a_full_disk_does_not_stop_the_guest_but_is_noted() {
        let console = Console::open(&SerialTarget::File("/dev/full".into()), "--serial").unwrap();
        assert!(!console.has_lost_output());
        assert!(console.writer().unwrap().write_all(b"abc").is_ok());
        assert!(console.has_lost_output());
    }

    #[test]
    fn a_reader_that_is_gone_is_no_loss() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut patient = Patient {
            file: File::from(OwnedFd::from(writer)),
            lost: LostOutput::new("--serial", "a pipe".into()),
        };
        assert!(patient.write_all(b"abc").is_ok());
        assert!(!patient.lost.is_lost());
    }
}
