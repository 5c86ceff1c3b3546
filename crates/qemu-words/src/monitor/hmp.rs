//! HMP: lines that a person types, after the prompt "(qemu) ".

use super::commands::{number_of, resume, stop};
use super::dump::dump;
use super::fault::Fault;
use super::hotplug;
use super::info::{INFO, info};
use super::jobs;
use super::machine::{Event, Machine, PictureForm};
use super::mouse;
use super::spare;
use crate::help::VERSION;
use crate::key_values::KeyValues;
use crate::numbers;

const PROMPT: &str = "(qemu) ";
/// The longest line in bytes.
const MOST_BYTES: usize = 4096;

const HELP: &str = "\
block_resize device size -- resize a block image
change device file -- change a removable medium
c|cont -- resume emulation
delvm tag -- delete a VM snapshot from its tag
device_add driver[,prop=value][,...] -- add device, like -device on the command line
device_del device -- remove device
drive_add address if=none[,option] -- add a drive for device_add
drive_del device -- remove a drive that no device uses
eject [-f] device -- eject a removable medium
help|? -- show the help
info subcommand -- show various information about the system state
loadvm tag -- restore a VM snapshot from its tag
migrate file:path -- write the machine to a file
mouse_button state -- change mouse button state (1=L, 2=M, 4=R)
mouse_move dx dy [dz] -- send mouse move events
netdev_add type,id=str[,prop=value][,...] -- add a network for device_add
netdev_del id -- remove a network that no device uses
object_add qom-type,id=str -- add a source of random bytes for device_add
object_del id -- remove a source of random bytes
q|quit -- quit the emulator
savevm [tag] -- save a VM snapshot
screendump filename -- save screen into a file
sendkey keys -- send keys to the VM (e.g. 'sendkey ctrl-alt-f1')
s|stop -- stop emulation
system_powerdown -- send system power down event
system_reset -- reset the system
x /fmt addr -- virtual memory dump starting at 'addr'
xp /fmt addr -- physical memory dump starting at 'addr'
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
            ["x", rest @ ..] => dump(rest, false, machine),
            ["xp", rest @ ..] => dump(rest, true, machine),
            ["savevm", tag] => machine.save_tag(tag).map(|()| String::new()),
            ["savevm"] => machine
                .save_tag(&jobs::unused_tag(machine))
                .map(|()| String::new()),
            ["loadvm", tag] => machine.load_tag(tag).map(|()| String::new()),
            ["delvm", tag] => machine.delete_tag(tag).map(|()| String::new()),
            ["block_resize", drive, size] => resize(drive, size, machine),
            ["device_add", device] => {
                said(words_of(device, "driver").and_then(|list| hotplug::add_device(list, machine)))
            }
            ["device_del", id] => said(hotplug::delete_device(id, machine)),
            ["drive_add", .., options] if words.len() > 2 => {
                said(spare::add_drive(options, machine)).map(|_| "OK\n".to_owned())
            }
            ["drive_del", id] => said(spare::delete_node(id, machine)),
            ["netdev_add", network] => {
                said(words_of(network, "type").and_then(|list| spare::add_network(list, machine)))
            }
            ["netdev_del", id] => said(spare::delete_network(id, machine)),
            ["object_add", object] => {
                said(words_of(object, "qom-type").and_then(|list| spare::add_object(list, machine)))
            }
            ["object_del", id] => said(spare::delete_object(id, machine)),
            ["mouse_move", right, down, rest @ ..] => mouse::step(right, down, rest, machine),
            ["mouse_button", state] => mouse::buttons(state, machine),
            ["migrate", uri] => match uri.trim_matches('"').strip_prefix("file:") {
                Some(path) => machine.save(path).map(|()| String::new()),
                None => Err("a machine is written to a file: migrate file:PATH".into()),
            },
            [name, ..] => Ok(format!("unknown command: '{name}'\n")),
        };
        result.unwrap_or_else(|why| format!("Error: {why}\n"))
    }
}

/// The answer to a command that shows nothing if it is carried out.
fn said(result: Result<(), Fault>) -> Result<String, String> {
    match result {
        Ok(()) => Ok(String::new()),
        Err(fault) => Err(fault.line()),
    }
}

/// Words of the form `VALUE,KEY=VALUE...`, the first value of which has the key `first`.
fn words_of(text: &str, first: &str) -> Result<KeyValues, Fault> {
    Ok(KeyValues::parse(text, Some(first))?)
}

fn resize(drive: &str, size: &str, machine: &mut dyn Machine) -> Result<String, String> {
    let number = number_of(drive, machine);
    let number = number.ok_or_else(|| format!("Cannot find device='{drive}'"))?;
    // A number alone counts MiB.
    let bytes = numbers::size("size", size, 1 << 20).map_err(|why| why.0)?;
    machine.resize(number, bytes).map(|()| String::new())
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
