//! The ports to the host (virtio-console).

use crate::Refusal;
use crate::protocol::{DATA, Frames, MAX_FRAME, PORT_NAMES, ToGuest, ToHost, port};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a port may take to appear: the kernel hears of it after the device.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon to look again.
const RETRY: Duration = Duration::from_millis(1);

/// Where the kernel lists ports, each in a folder of its device's name with a file `name`.
const PORTS: &str = "/sys/class/virtio-ports";

/// Drivers without which no port appears, and what the kernel shows once it has them.
const DRIVERS: [(&str, &str); 2] = [
    ("virtio_pci", "/sys/bus/pci/drivers/virtio-pci"),
    ("virtio_console", PORTS),
];

/// Refuses a kernel that lacks a driver: no port would ever appear.
fn check_drivers() -> Result<(), Refusal> {
    let is_missing = |(_, sign): &&(&str, &str)| !Path::new(sign).exists();
    match DRIVERS.iter().find(is_missing) {
        None => Ok(()),
        Some((driver, _)) => Err(Refusal::own(format!(
            "the kernel lacks the driver {driver}: give its modules with --modules"
        ))),
    }
}

/// The device of the port with a name, once the kernel knows it.
fn device(name: &str) -> Option<PathBuf> {
    let ports = fs::read_dir(PORTS).ok()?.flatten();
    let is_it = |port: &fs::DirEntry| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|text| text.trim() == name)
    };
    let port = { ports }.find(is_it)?;
    Some(Path::new("/dev").join(port.file_name()))
}

/// A port. One program may have it open.
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

/// Reads something. A port without anybody at its other end seems to be at its end: the host has
/// not answered yet.
fn read(mut port: &File, buffer: &mut [u8]) -> io::Result<usize> {
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
    /// Opens it.
    pub fn open() -> Result<Self, Refusal> {
        check_drivers()?;
        open(port::CONTROL).map(Self)
    }

    /// Tells the host something.
    pub fn tell(&self, message: &ToHost) {
        // Without the host there is nobody to tell.
        let _ = (&self.0).write_all(&message.encode());
    }

    /// Hears what the host says, for good.
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

    /// A second owner of it.
    pub fn another(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

/// The ports of the command's streams.
pub struct Streams {
    /// Standard input, in frames.
    pub input: File,
    /// Standard output and standard error.
    pub outputs: [File; 2],
}

impl Streams {
    /// Opens them.
    pub fn open() -> Result<Self, Refusal> {
        Ok(Self {
            input: open(port::INPUT)?,
            outputs: [open(port::OUTPUT)?, open(port::ERRORS)?],
        })
    }
}

/// Hands on standard input piece by piece, an empty one at its end, until `take` wants no more.
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
