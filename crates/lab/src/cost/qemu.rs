//! The bare-metal guest in `guests/cost.S` in QEMU, translated (TCG) or with KVM.
//!
//! QEMU maps a file of this process as the guest's memory, so that image, commands and values go to and fro as they do in
//! a machine of Tollgate. There is no firmware: the ROM contains the jump to the guest at the reset vector. The guest
//! says in memory whose turn it is, which this process looks at now and then.

use super::CostError;
use super::bench::Machine;
use super::image::{
    COMMAND, COMMAND_DONE, Command, FEATURES, FRAME, FRAME_WORDS, GuestMode, IMAGE, IMAGE_ADDRESS,
    MEMORY, READY, SAMPLES, TURN, image_with_vmmcall,
};
use super::outcome::Outcome;
use crate::experiment::Stop;
use std::arch::x86_64::__cpuid;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The program that emulates a PC with a 64-bit processor.
const QEMU: &str = "qemu-system-x86_64";
/// Size of the ROM.
const ROM_BYTES: usize = 64 << 10;
/// Where in the ROM the processor starts.
const RESET_VECTOR: usize = ROM_BYTES - 16;
/// The time between two looks at the guest's memory.
const LOOK: Duration = Duration::from_micros(300);
/// The time after which a guest that has not answered is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// How QEMU runs the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accelerator {
    /// By its translator, the tiny code generator.
    Tcg,
    /// The host's KVM.
    Kvm,
}

impl Accelerator {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }

    /// Models of processors, the best first. Not every host can provide KVM's best ones.
    const fn models(self) -> &'static [&'static str] {
        match self {
            Self::Tcg => &["max"],
            Self::Kvm => &["host", "host,-arch-capabilities", "qemu64"],
        }
    }
}

/// Why QEMU cannot run the guest on this host, in some words; `None` if it can.
pub fn impossible(accelerator: Accelerator) -> Option<String> {
    let version = std::process::Command::new(QEMU)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    if let Err(error) = version {
        return Some(match error.kind() {
            ErrorKind::NotFound => {
                format!("no {QEMU} on this host (Debian: apt install qemu-system-x86)")
            }
            _ => format!("{QEMU}: {error}"),
        });
    }
    if accelerator == Accelerator::Tcg {
        return None;
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    device.err().map(|error| match error.kind() {
        ErrorKind::NotFound => "no /dev/kvm".to_owned(),
        ErrorKind::PermissionDenied => {
            "/dev/kvm may not be opened (be root, or in the group kvm)".to_owned()
        }
        _ => format!("/dev/kvm: {error}"),
    })
}

/// A running QEMU, whose guest waits for commands.
pub struct QemuGuest {
    child: Child,
    memory: File,
    mode: GuestMode,
    tsc_khz: u64,
    stop: Stop,
    /// The model of processor.
    pub model: &'static str,
}

impl Drop for QemuGuest {
    fn drop(&mut self) {
        // A process that has ended already needs neither; nothing can be done about other errors.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What CPUID says in the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// ECX of leaf 1.
    pub leaf_1: u32,
    /// EBX of leaf 7.
    pub leaf_7: u32,
}

impl QemuGuest {
    /// Starts QEMU with the processors that the calling thread may use, and waits until the guest is in `mode`.
    ///
    /// # Errors
    ///
    /// QEMU cannot be started, ends, or its guest does not reach the mode; or `stop` was requested.
    pub fn start(
        accelerator: Accelerator,
        mode: GuestMode,
        tsc_khz: u64,
        stop: &Stop,
    ) -> Result<Self, CostError> {
        let mut failed = None;
        for model in accelerator.models() {
            match Self::start_model(accelerator, model, mode, tsc_khz, stop) {
                Err(error) if error != CostError::Interrupted => failed = Some(error),
                started => return started,
            }
        }
        Err(failed.unwrap_or(CostError::NothingChosen))
    }

    fn start_model(
        accelerator: Accelerator,
        model: &'static str,
        mode: GuestMode,
        tsc_khz: u64,
        stop: &Stop,
    ) -> Result<Self, CostError> {
        let refused = |error: std::io::Error| CostError::Host(format!("a file for QEMU: {error}"));
        let (memory, rom) = (memory(mode).map_err(refused)?, rom().map_err(refused)?);
        let path = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let child = std::process::Command::new(QEMU)
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-no-reboot", "-machine", "pc,memory-backend=ram", "-object"])
            .arg(format!(
                "memory-backend-file,id=ram,size={MEMORY},share=on,mem-path={}",
                path(&memory)
            ))
            .args(["-m", &format!("{}M", MEMORY >> 20), "-bios", &path(&rom)])
            .args(["-accel", accelerator.name(), "-cpu", model])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| CostError::Host(format!("{QEMU}: {error}")))?;
        let mut guest = Self {
            child,
            memory,
            mode,
            tsc_khz,
            stop: stop.clone(),
            model,
        };
        guest.wait("the guest's start")?;
        Ok(guest)
    }

    /// What CPUID says in this machine.
    pub fn features(&self) -> Features {
        Features {
            leaf_1: self.word(FEATURES),
            leaf_7: self.word(FEATURES + 4),
        }
    }

    fn word(&self, address: u64) -> u32 {
        let mut bytes = [0; 4];
        // The file has the size of the memory: reading cannot fail, and zeros are no answer.
        let _ = self.memory.read_exact_at(&mut bytes, address);
        u32::from_le_bytes(bytes)
    }

    fn wait(&mut self, what: &str) -> Result<(), CostError> {
        let start = Instant::now();
        loop {
            if self.stop.is_requested() {
                return Err(CostError::Interrupted);
            }
            let why = match self.word(TURN) {
                0 => match self.child.try_wait() {
                    Ok(Some(status)) => format!("QEMU has ended, {status}{}", self.last_words()),
                    _ if start.elapsed() > PATIENCE => {
                        format!("no answer in {} s", PATIENCE.as_secs())
                    }
                    _ => {
                        std::thread::sleep(LOOK);
                        continue;
                    }
                },
                turn if turn == u32::from(READY) => return Ok(()),
                _ => {
                    let words = (0..FRAME_WORDS).map(|word| self.word(FRAME + 4 * word));
                    let words: Vec<String> = words.map(|word| format!("{word:08x}")).collect();
                    format!(
                        "an unexpected exception; its frame and CR2: {}",
                        words.join(" ")
                    )
                }
            };
            return Err(CostError::WorkNotDone(format!(
                "{what} ({}): {why}",
                self.mode.name()
            )));
        }
    }

    /// The last line that QEMU, which has ended, wrote to standard error.
    fn last_words(&mut self) -> String {
        let mut text = String::new();
        if let Some(errors) = &mut self.child.stderr {
            // What cannot be read is not shown.
            let _ = errors.read_to_string(&mut text);
        }
        let last = text.lines().rfind(|line| !line.is_empty());
        last.map_or_else(String::new, |line| format!(": {line}"))
    }
}

impl Machine for QemuGuest {
    fn tsc_khz(&self) -> u64 {
        self.tsc_khz
    }

    fn run(&mut self, what: &str, command: Command) -> Result<Outcome, CostError> {
        for (address, word) in command.words(self.mode) {
            self.memory
                .write_all_at(&word.to_le_bytes(), address)
                .map_err(|error| CostError::Host(format!("QEMU's memory: {error}")))?;
        }
        self.wait(what)?;
        let (done, asked) = (self.word(COMMAND_DONE), command.repetitions());
        if done != asked {
            return Err(CostError::WorkNotDone(format!(
                "{what} ({}): the guest repeated it {done} times instead of {asked}",
                self.mode.name()
            )));
        }
        let mut bytes = vec![0; 4 * command.count as usize];
        self.memory
            .read_exact_at(&mut bytes, SAMPLES)
            .map_err(|error| CostError::Host(format!("QEMU's memory: {error}")))?;
        Ok(Outcome {
            values: values(&bytes),
            counted: None,
        })
    }
}

/// The values of 32 bits that a guest has stored.
pub(super) fn values(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| u32::from_le_bytes(*word).into()).collect()
}

/// The guest's memory with its image and its mode.
fn memory(mode: GuestMode) -> std::io::Result<File> {
    let file = nameless()?;
    file.set_len(MEMORY)?;
    let image = match is_amd() {
        true => image_with_vmmcall(),
        false => IMAGE.to_vec(),
    };
    file.write_all_at(&image, IMAGE_ADDRESS)?;
    file.write_all_at(&mode.number().to_le_bytes(), COMMAND)?;
    Ok(file)
}

/// A ROM that jumps to the guest.
fn rom() -> std::io::Result<File> {
    let file = nameless()?;
    file.write_all_at(&rom_image(), 0)?;
    Ok(file)
}

fn rom_image() -> Vec<u8> {
    /// A far jump of 16-bit code.
    const FAR_JUMP: u8 = 0xea;
    let mut rom = vec![0; ROM_BYTES];
    rom[RESET_VECTOR] = FAR_JUMP;
    rom[RESET_VECTOR + 1..RESET_VECTOR + 3].copy_from_slice(&(IMAGE_ADDRESS as u16).to_le_bytes());
    rom
}

/// A file without a name, in memory if possible: a guest writes to it all the time.
fn nameless() -> std::io::Result<File> {
    let shared = Path::new("/dev/shm");
    let folder = match shared.is_dir() {
        true => shared.to_owned(),
        false => std::env::temp_dir(),
    };
    crate::nameless_file::in_folder(&folder)
}

/// Whether the host's processor knows VMMCALL and not VMCALL.
fn is_amd() -> bool {
    const MAKERS: [&[u8; 12]; 2] = [b"AuthenticAMD", b"HygonGenuine"];
    let leaf = __cpuid(0);
    let name = [leaf.ebx, leaf.edx, leaf.ecx]
        .map(u32::to_le_bytes)
        .concat();
    MAKERS.iter().any(|maker| maker[..] == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_vector_jumps_to_the_guest() {
        let rom = rom_image();
        assert_eq!(rom[RESET_VECTOR..RESET_VECTOR + 5], [0xea, 0, 0x80, 0, 0]);
    }

    #[test]
    fn values_are_words() {
        assert_eq!(values(&[1, 0, 0, 0, 0, 1, 0, 0]), [1, 256]);
    }
}
