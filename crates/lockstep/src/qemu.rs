//! A QEMU process that runs the guest, with the guest's memory in a file that we read.

use crate::cpu_dump::CpuDump;
use crate::gdb::{Gdb, Stop};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tollgate_machine::boot::firmware::{VIDEO_FILE, find_video_path as find_video};
use tollgate_memory::GuestMemory;

/// What QEMU boots.
pub enum Start<'a> {
    /// A Linux or multiboot kernel, loaded by QEMU.
    Kernel {
        /// The kernel's file.
        kernel: &'a Path,
        /// Initial RAM disk or modules.
        initrd: Option<&'a str>,
        /// The kernel's command line.
        append: &'a str,
    },
    /// A boot sector in a floppy drive.
    BootSector(&'a Path),
    /// Firmware, from the reset vector on, with images that are not changed.
    Firmware {
        /// The image of the firmware.
        rom: &'a Path,
        /// The first floppy drive's image.
        floppy: Option<&'a Path>,
        /// The first IDE disk's image.
        disk: Option<&'a Path>,
    },
}

/// The guest that QEMU should run.
pub struct Guest<'a> {
    /// What QEMU boots.
    pub start: Start<'a>,
    /// Size of RAM in bytes.
    pub memory_bytes: u64,
    /// QEMU's name for the processor, with features.
    pub cpu: &'a str,
    /// The command that starts QEMU.
    pub command: &'a str,
}

/// A running QEMU process, which is killed when this is dropped.
pub struct Qemu {
    child: Child,
    /// The connection to its gdb stub.
    pub gdb: Gdb,
    /// The guest's RAM.
    pub memory: File,
}

/// How long QEMU may take to open its socket.
const START_TIMEOUT: Duration = Duration::from_secs(20);

impl Qemu {
    /// Starts QEMU with the guest's processor stopped at the reset vector.
    ///
    /// # Errors
    ///
    /// QEMU is not installed, refuses the guest, or does not answer.
    pub fn start(guest: &Guest) -> io::Result<Self> {
        let directory = private_directory()?;
        let (socket, memory) = (directory.join("gdb"), directory.join("ram"));
        let mut command = Command::new(guest.command);
        command
            .args([
                "-accel",
                "tcg",
                "-display",
                "none",
                "-nodefaults",
                "-serial",
                "null",
                "-S",
                "-no-reboot",
            ])
            .args([
                "-machine",
                "pc,memory-backend=ram,smm=off",
                "-cpu",
                guest.cpu,
            ])
            .args(["-m", &format!("{}k", guest.memory_bytes >> 10)])
            .args([
                "-device",
                "isa-debug-exit,iobase=0xf4,iosize=4",
                "-D",
                "/dev/stdout",
            ])
            .arg("-object")
            .arg(format!(
                "memory-backend-file,id=ram,size={},share=on,mem-path={}",
                guest.memory_bytes,
                memory.display()
            ))
            .arg("-chardev")
            .arg(format!(
                "socket,id=gdb,server=on,wait=off,path={}",
                socket.display()
            ))
            .args(["-gdb", "chardev:gdb"]);
        add_start(&mut command, &guest.start);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                io::Error::other(format!("cannot start {}: {error}", guest.command))
            })?;
        let connection = connect(&socket, &memory, &mut child);
        // Both sides have the files open that they need, so the folder can be removed in any case.
        let _ = fs::remove_dir_all(&directory);
        match connection {
            Ok((stream, memory)) => Ok(Self {
                child,
                gdb: Gdb::new(stream),
                memory,
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Runs the guest up to a linear address.
    ///
    /// # Errors
    ///
    /// The guest ended before it reached the address.
    pub fn run_to(&mut self, linear: u64) -> io::Result<()> {
        self.gdb.breakpoint(linear, true)?;
        if self.gdb.resume("c")? == Stop::Gone {
            return Err(io::Error::other(format!(
                "the guest ended in QEMU before it reached {linear:#x}"
            )));
        }
        self.gdb.breakpoint(linear, false)
    }

    /// Reads all registers.
    ///
    /// # Errors
    ///
    /// QEMU's answer cannot be parsed.
    pub fn registers(&mut self) -> io::Result<CpuDump> {
        let text = self.gdb.monitor("info registers")?;
        CpuDump::parse(&text)
            .ok_or_else(|| io::Error::other(format!("QEMU's registers cannot be parsed:\n{text}")))
    }

    /// Copies the guest's RAM to ours.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn copy_memory(&self, memory: &mut GuestMemory) -> io::Result<()> {
        const PIECE: usize = 1 << 16;
        let mut piece = vec![0; PIECE];
        for region in memory.ram().regions() {
            let mut at = region.start.0;
            while at < region.end() {
                let length = PIECE.min((region.end() - at) as usize);
                self.memory.read_exact_at(&mut piece[..length], at)?;
                if piece[..length].iter().any(|&byte| byte != 0) {
                    memory.write(tollgate_x86::PhysicalAddress(at), &piece[..length]);
                }
                at += length as u64;
            }
        }
        Ok(())
    }

    /// QEMU's log, which can be taken once.
    ///
    /// # Errors
    ///
    /// It was taken before.
    pub fn take_log(&mut self) -> io::Result<ChildStdout> {
        self.child
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("QEMU's log was taken before"))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Adds the arguments that select what QEMU boots.
fn add_start(command: &mut Command, start: &Start) {
    // A comma ends a value unless it is doubled.
    let quoted = |text: &str| text.replace(',', ",,");
    let drive = |path: &Path, options: &str| {
        let path = quoted(&path.display().to_string());
        format!("format=raw,{options},file={path}")
    };
    match start {
        Start::Kernel {
            kernel,
            initrd,
            append,
        } => {
            command.arg("-kernel").arg(kernel).args(["-append", append]);
            command.args(initrd.map(|initrd| ["-initrd", initrd]).iter().flatten());
        }
        Start::BootSector(sector) => {
            command.args(["-drive", &drive(sector, "if=floppy,readonly=on")]);
        }
        Start::Firmware { rom, floppy, disk } => {
            command.arg("-bios").arg(rom);
            // The display adapter's firmware is passed as a file, as in Tollgate, and not in a ROM
            // of the adapter.
            command.args(["-device", "VGA,romfile="]);
            if let Some(video) = find_video() {
                let (name, path) = (quoted(VIDEO_FILE), quoted(&video.display().to_string()));
                command.args(["-fw_cfg", &format!("name={name},file={path}")]);
            }
            // The log does not contain what a device writes to memory. So files are read byte by
            // byte, and there is no helper for the task priority, which would change the guest's
            // code.
            command.args(["-global", "fw_cfg_io.dma_enabled=off"]);
            command.args(["-global", "apic.vapic=off"]);
            if let Some(floppy) = floppy {
                command.args(["-drive", &drive(floppy, "if=floppy,snapshot=on")]);
                command.args(["-boot", "order=ac"]);
            }
            if let Some(disk) = disk {
                command.args(["-drive", &drive(disk, "if=ide,snapshot=on")]);
            }
        }
    }
}

/// Makes a new directory for the socket and the memory, in shared memory if possible.
fn private_directory() -> io::Result<PathBuf> {
    let shared = Path::new("/dev/shm");
    let base = if shared.is_dir() {
        shared.to_owned()
    } else {
        std::env::temp_dir()
    };
    let directory = base.join(format!("tollgate-lockstep.{}", std::process::id()));
    fs::create_dir(&directory)?;
    Ok(directory)
}

/// Waits until QEMU has made both the socket and the file with the guest's memory.
fn connect(socket: &Path, memory: &Path, child: &mut Child) -> io::Result<(UnixStream, File)> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let Ok(memory) = File::open(memory)
            && let Ok(stream) = UnixStream::connect(socket)
        {
            return Ok((stream, memory));
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("QEMU did not start ({status})")));
        }
        if Instant::now() > deadline {
            return Err(io::Error::other("QEMU does not open its gdb socket"));
        }
        sleep(Duration::from_millis(20));
    }
}
