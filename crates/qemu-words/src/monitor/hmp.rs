//! HMP: lines that a person types, after the prompt "(qemu) ".

use super::commands::{number_of, resume, stop};
use super::machine::{Event, Machine, PictureForm, RunState};
use crate::configuration::NetworkKind;
use crate::help::VERSION;
use std::fmt::Write;

const PROMPT: &str = "(qemu) ";
/// The longest line in bytes.
const MOST_BYTES: usize = 4096;

const HELP: &str = "\
change device file -- change a removable medium
c|cont -- resume emulation
eject [-f] device -- eject a removable medium
help|? -- show the help
info subcommand -- show various information about the system state
q|quit -- quit the emulator
screendump filename -- save screen into a file
sendkey keys -- send keys to the VM (e.g. 'sendkey ctrl-alt-f1')
s|stop -- stop emulation
system_powerdown -- send system power down event
system_reset -- reset the system
";

const INFO: &str = "\
info block -- show the block devices
info chardev -- show the character devices
info cpus -- show infos for each CPU
info kvm -- show KVM information
info name -- show the current VM name
info network -- show the network state
info status -- show the current VM status (running|paused)
info uuid -- show the current VM UUID
info version -- show the version of QEMU
";

/// One person at a monitor.
#[derive(Debug, Default)]
pub struct Hmp {
    line: Vec<u8>,
    /// Whether the last byte ended a line, so that the second byte of CR LF ends none.
    is_after_return: bool,
    has_begun: bool,
}

impl Hmp {
    /// Begins with a new person. Returns the greeting and the prompt; after the first time, only
    /// the prompt.
    pub fn open(&mut self) -> Vec<u8> {
        let (major, minor, micro) = VERSION;
        let greeting = match self.has_begun {
            true => String::new(),
            false => format!(
                "QEMU {major}.{minor}.{micro} monitor - type 'help' for more information\r\n"
            ),
        };
        self.line.clear();
        self.has_begun = true;
        format!("{greeting}{PROMPT}").into_bytes()
    }

    /// Begins again with the greeting, for the next client of a socket.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Takes typed bytes and carries complete lines out. Returns what is shown.
    pub fn take(&mut self, bytes: &[u8], machine: &mut dyn Machine) -> Vec<u8> {
        let mut shown = Vec::new();
        for &byte in bytes {
            let was_return = std::mem::replace(&mut self.is_after_return, byte == b'\r');
            match byte {
                b'\n' if was_return => {}
                b'\r' | b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    let output = Self::line(&String::from_utf8_lossy(&line), machine);
                    shown.extend(b"\r\n");
                    shown.extend(output.replace('\n', "\r\n").bytes());
                    shown.extend(PROMPT.bytes());
                }
                // Backspace and delete.
                8 | 0x7f if self.line.pop().is_some() => shown.extend(b"\x08 \x08"),
                // Ctrl-U and Ctrl-C begin the line again.
                3 | 0x15 => {
                    self.line.clear();
                    shown.extend(b"\r\n");
                    shown.extend(PROMPT.bytes());
                }
                0..=31 | 0x7f => {}
                byte if self.line.len() < MOST_BYTES => {
                    self.line.push(byte);
                    shown.push(byte);
                }
                _ => {}
            }
        }
        shown
    }

    /// Carries one line out. Returns what is shown.
    pub fn line(line: &str, machine: &mut dyn Machine) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let result = match words.as_slice() {
            [] => Ok(String::new()),
            ["help" | "?", ..] => Ok(HELP.to_owned()),
            ["info"] => Ok(INFO.to_owned()),
            ["info", what, ..] => info(what, machine),
            ["stop" | "s"] => stop(machine).map(|()| String::new()),
            ["cont" | "c"] => resume(machine).map(|()| String::new()),
            ["quit" | "q"] => {
                machine.quit();
                Ok(String::new())
            }
            ["system_reset"] => {
                machine.reset();
                Ok(String::new())
            }
            ["system_powerdown"] => {
                machine.power_button();
                machine.tell(Event::Powerdown);
                Ok(String::new())
            }
            ["sendkey", keys, ..] => {
                let keys: Vec<&str> = keys.split('-').collect();
                machine.press(&keys).map(|()| String::new())
            }
            ["screendump", path, rest @ ..] => {
                let form = match rest {
                    [.., "png"] => PictureForm::Png,
                    _ => PictureForm::Ppm,
                };
                machine.picture(path, form).map(|()| String::new())
            }
            ["eject", rest @ .., drive] if matches!(rest, [] | ["-f"]) => {
                medium(drive, None, !rest.is_empty(), machine)
            }
            ["change", drive, file, ..] => medium(drive, Some(file), false, machine),
            ["savevm" | "loadvm" | "delvm", ..] => Err(
                "snapshots are files: migrate \"file:PATH\" and 'tollgate run --restore'".into(),
            ),
            ["migrate", uri] => match uri.trim_matches('"').strip_prefix("file:") {
                Some(path) => machine.save(path).map(|()| String::new()),
                None => Err("a machine is written to a file: migrate file:PATH".into()),
            },
            [name, ..] => Ok(format!("unknown command: '{name}'\n")),
        };
        result.unwrap_or_else(|why| format!("Error: {why}\n"))
    }
}

fn medium(
    drive: &str,
    file: Option<&str>,
    force: bool,
    machine: &mut dyn Machine,
) -> Result<String, String> {
    let number = number_of(drive, machine);
    let number = number.ok_or_else(|| format!("Device '{drive}' not found"))?;
    machine
        .change_medium(number, file, force)
        .map(|()| String::new())
}

fn info(what: &str, machine: &dyn Machine) -> Result<String, String> {
    let config = machine.configuration();
    let mut text = String::new();
    match what {
        "status" => {
            let status = match machine.state() {
                RunState::Running => "running".to_owned(),
                RunState::Paused => "paused".to_owned(),
                state => format!("paused ({})", state.name()),
            };
            let _ = writeln!(text, "VM status: {status}");
        }
        "version" => {
            let (major, minor, micro) = VERSION;
            let own = env!("CARGO_PKG_VERSION");
            let _ = writeln!(text, "{major}.{minor}.{micro} (Tollgate {own})");
        }
        "name" => {
            if let Some(name) = &config.name {
                let _ = writeln!(text, "{name}");
            }
        }
        "uuid" => {
            let none = "00000000-0000-0000-0000-000000000000";
            let _ = writeln!(text, "{}", config.uuid.as_deref().unwrap_or(none));
        }
        "kvm" => text += "kvm support: not compiled\n",
        "cpus" => {
            let _ = writeln!(text, "* CPU #0: thread_id={}", std::process::id());
        }
        "block" => {
            for (drive, file) in config.drives.iter().zip(machine.media()) {
                let _ = match file {
                    Some(file) => {
                        let format = match drive.format {
                            Some(crate::DriveFormat::Qcow2) => "qcow2",
                            _ => "raw",
                        };
                        let readonly = if drive.readonly { ", read-only" } else { "" };
                        writeln!(text, "{}: {file} ({format}{readonly})", drive.id)
                    }
                    None => writeln!(text, "{}: [not inserted]", drive.id),
                };
            }
        }
        "chardev" => {
            for (place, label) in config.characters.iter().zip(machine.labels()) {
                let _ = writeln!(text, "{}: filename={label}", place.id);
            }
        }
        "network" => {
            for (number, network) in config.networks.iter().enumerate() {
                let kind = match &network.kind {
                    NetworkKind::User { .. } => "user",
                    NetworkKind::Socket(_) => "stream",
                    NetworkKind::Tap(_) => "tap",
                    NetworkKind::Descriptor(_) => "fd",
                };
                let _ = writeln!(
                    text,
                    "virtio-net-pci.{number}: index=0,type=nic,model=virtio-net-pci\n \\ {kind}.{number}: index=0,type={kind}"
                );
            }
        }
        what => return Ok(format!("unknown command: 'info {what}'\n")),
    }
    Ok(text)
}
