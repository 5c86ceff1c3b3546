//! Opens the virtio-console ports to the host, and sends and receives on them.

use crate::protocol::{
    DATA, Frames, HEADER_BYTES, MAX_FRAME, PORT_NAMES, ToGuest, ToHost, TooLong, decode_header,
    port,
};
use crate::refusal::Refusal;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The maximum time until a port appears: the kernel learns of a port after the device.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two checks.
const RETRY: Duration = Duration::from_millis(1);

/// The folder where the kernel lists ports, each in a folder named after its device, with a file
/// `name`.
const PORTS: &str = "/sys/class/virtio-ports";

/// Drivers that are required for ports to appear, and the folders that exist once the kernel has
/// them.
const DRIVERS: [(&str, &str); 2] = [
    ("virtio_pci", "/sys/bus/pci/drivers/virtio-pci"),
    ("virtio_console", PORTS),
];

/// Refuses a kernel that lacks a driver, because no port would ever appear.
fn check_drivers() -> Result<(), Refusal> {
    let is_missing = |(_, sign): &&(&str, &str)| !Path::new(sign).exists();
    match DRIVERS.iter().find(is_missing) {
        None => Ok(()),
        Some((driver, _)) => Err(Refusal::own(format!(
            "the kernel lacks the driver {driver}: give its modules with --modules"
        ))),
    }
}

/// Returns the device of the port with a name, once the kernel knows it.
fn device(name: &str) -> Option<PathBuf> {
    let ports = fs::read_dir(PORTS).ok()?.flatten();
    let is_it = |port: &fs::DirEntry| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|text| text.trim() == name)
    };
    let port = { ports }.find(is_it)?;
    Some(Path::new("/dev").join(port.file_name()))
}

/// Opens a port, which only one program may have open.
fn open(number: usize) -> Result<File, Refusal> {
    let name = PORT_NAMES[number - 1];
    let begin = Instant::now();
    loop {
        let opened = device(name)
            .ok_or_else(|| io::Error::from(ErrorKind::NotFound))
            .and_then(|path| OpenOptions::new().read(true).write(true).open(path));
        match opened {
            Ok(file) => return Ok(file),
            Err(error) if begin.elapsed() > PATIENCE => {
                return Err(Refusal::own(format!("port {name}: {error}")));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Reads bytes. A port that is not connected at the other end seems to be at its end, because the
/// host has not answered yet.
pub fn read(mut port: &File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match port.read(buffer) {
            Ok(0) => std::thread::sleep(RETRY),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The control port.
pub struct Control(File);

impl Control {
    /// Opens the control port.
    pub fn open() -> Result<Self, Refusal> {
        check_drivers()?;
        open(port::CONTROL).map(Self)
    }

    /// Sends a message to the host.
    pub fn tell(&self, message: &ToHost) {
        // If the host has gone, the message is lost.
        let _ = (&self.0).write_all(&message.encode());
    }

    /// Receives one frame and no byte more: its kind and its rest.
    pub fn receive(&self) -> io::Result<(u8, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        let (kind, length) = decode_header(header).map_err(|TooLong| ErrorKind::InvalidData)?;
        let mut rest = vec![0; length];
        self.fill(&mut rest)?;
        Ok((kind, rest))
    }

    fn fill(&self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let count = read(&self.0, buffer)?;
            buffer = &mut buffer[count..];
        }
        Ok(())
    }

    /// Receives messages of the host forever.
    pub fn listen(&self, mut heard: impl FnMut(ToGuest)) {
        let mut frames = Frames::default();
        let mut buffer = [0; 1024];
        while let Ok(count) = read(&self.0, &mut buffer) {
            frames.extend(&buffer[..count]);
            while let Ok(Some((kind, rest))) = frames.take() {
                if let Some(message) = ToGuest::decode(kind, &rest) {
                    heard(message);
                }
            }
        }
    }

    /// Returns a second handle of the port.
    pub fn another(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

/// The ports of the command's streams.
pub struct Streams {
    /// Standard input in frames.
    pub input: File,
    /// Standard output and standard error.
    pub outputs: [File; 2],
}

impl Streams {
    /// Opens the ports.
    pub fn open() -> Result<Self, Refusal> {
        Ok(Self {
            input: open(port::INPUT)?,
            outputs: [open(port::OUTPUT)?, open(port::ERRORS)?],
        })
    }

    /// Returns second handles of the ports.
    pub fn others(&self) -> io::Result<Self> {
        let [output, errors] = &self.outputs;
        Ok(Self {
            input: self.input.try_clone()?,
            outputs: [output.try_clone()?, errors.try_clone()?],
        })
    }
}

/// Receives standard input piece by piece, with an empty piece at its end, until `take` returns
/// false.
pub fn receive_input(port: &File, mut take: impl FnMut(&[u8])) {
    let mut frames = Frames::default();
    let mut buffer = vec![0; MAX_FRAME];
    while let Ok(count) = read(port, &mut buffer) {
        frames.extend(&buffer[..count]);
        while let Ok(Some((kind, rest))) = frames.take() {
            if kind != DATA {
                continue;
            }
            take(&rest);
            if rest.is_empty() {
                return;
            }
        }
    }
}
