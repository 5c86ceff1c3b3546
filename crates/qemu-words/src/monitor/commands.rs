//! The commands of QMP that order something. Those that ask are in `queries`.

use super::fault::Fault;
use super::hmp::Hmp;
use super::hotplug;
use super::jobs;
use super::machine::{Event, Machine, PictureForm, RunState};
use super::mouse;
use super::objects;
use super::queries;
use super::spare;
use crate::key_values::KeyValues;
use serde_json::{Value, json};

/// The names of all commands.
pub const NAMES: &[&str] = &[
    "block_resize",
    "blockdev-add",
    "blockdev-change-medium",
    "blockdev-del",
    "change",
    "cont",
    "device-list-properties",
    "device_add",
    "device_del",
    "eject",
    "human-monitor-command",
    "input-send-event",
    "job-dismiss",
    "memsave",
    "migrate",
    "netdev_add",
    "netdev_del",
    "object-add",
    "object-del",
    "pmemsave",
    "qmp_capabilities",
    "qom-get",
    "qom-list",
    "qom-list-properties",
    "qom-list-types",
    "query-accelerators",
    "query-balloon",
    "query-block",
    "query-blockstats",
    "query-chardev",
    "query-command-line-options",
    "query-commands",
    "query-cpu-definitions",
    "query-cpus-fast",
    "query-hotpluggable-cpus",
    "query-iothreads",
    "query-jobs",
    "query-kvm",
    "query-machines",
    "query-memory-devices",
    "query-memory-size-summary",
    "query-migrate",
    "query-name",
    "query-named-block-nodes",
    "query-pci",
    "query-status",
    "query-target",
    "query-uuid",
    "query-version",
    "quit",
    "ringbuf-read",
    "screendump",
    "send-key",
    "snapshot-delete",
    "snapshot-load",
    "snapshot-save",
    "stop",
    "system_powerdown",
    "system_reset",
];

/// The arguments of a command.
struct Arguments<'a>(&'a Value);

impl<'a> Arguments<'a> {
    fn text(&self, key: &str) -> Result<Option<&'a str>, Fault> {
        let wrong = || {
            Fault::generic(format!(
                "Invalid parameter type for '{key}', expected: string"
            ))
        };
        self.0
            .get(key)
            .map(|value| value.as_str().ok_or_else(wrong))
            .transpose()
    }

    fn required(&self, key: &str) -> Result<&'a str, Fault> {
        self.text(key)?
            .ok_or_else(|| Fault::generic(format!("Parameter '{key}' is missing")))
    }

    /// All arguments, as an option has them.
    fn list(&self) -> Result<KeyValues, Fault> {
        Ok(KeyValues::parse(&self.0.to_string(), None)?)
    }

    fn is_on(&self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(false)
    }
}

/// Carries a command out.
pub fn execute(name: &str, arguments: &Value, machine: &mut dyn Machine) -> Result<Value, Fault> {
    let given = Arguments(arguments);
    if let Some(answer) = queries::answer(name, machine) {
        return answer;
    }
    match name {
        "stop" => stop(machine)?,
        "cont" => resume(machine)?,
        "system_powerdown" => {
            machine.power_button();
            machine.tell(Event::Powerdown);
        }
        "system_reset" => machine.reset(),
        "quit" => machine.quit(),
        "eject" => {
            let drive = drive(&given, machine)?;
            machine.change_medium(drive, None, given.is_on("force"))?;
        }
        "change" => {
            let drive = drive(&given, machine)?;
            machine.change_medium(drive, Some(given.required("target")?), false)?;
        }
        "blockdev-change-medium" => {
            let drive = drive(&given, machine)?;
            let file = given.required("filename")?;
            machine.change_medium(drive, Some(file), given.is_on("force"))?;
        }
        "screendump" => {
            let form = match given.text("format")? {
                None | Some("ppm") => PictureForm::Ppm,
                Some("png") => PictureForm::Png,
                Some(form) => {
                    let why = format!("Parameter 'format' does not accept value '{form}'");
                    return Err(Fault::generic(why));
                }
            };
            machine.picture(given.required("filename")?, form)?;
        }
        "send-key" => {
            let keys = arguments.get("keys").and_then(Value::as_array);
            let keys = keys.ok_or_else(|| Fault::generic("Parameter 'keys' is missing"))?;
            let keys = keys
                .iter()
                .map(mouse::key_name)
                .collect::<Result<Vec<_>, _>>()?;
            machine.press(&keys)?;
        }
        "input-send-event" => mouse::send_events(arguments, machine)?,
        "migrate" => {
            let uri = given.required("uri")?;
            let path = uri.strip_prefix("file:").ok_or_else(|| {
                Fault::generic("a machine is written to a file: give the uri file:PATH")
            })?;
            machine.save(path)?;
        }
        "ringbuf-read" => {
            let size = arguments.get("size").and_then(Value::as_u64);
            let size = size.ok_or_else(|| Fault::generic("Parameter 'size' is missing"))?;
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let bytes = machine.read_ring(given.required("device")?, size)?;
            return Ok(json!(match given.text("format")? {
                Some("base64") => base64(&bytes),
                _ => String::from_utf8_lossy(&bytes).into_owned(),
            }));
        }
        "human-monitor-command" => {
            let line = given.required("command-line")?;
            return Ok(json!(Hmp::line(line, machine)));
        }
        "device_add" => {
            hotplug::add_device(given.list()?, machine)?;
        }
        "device_del" => hotplug::delete_device(given.required("id")?, machine)?,
        "blockdev-add" => spare::add_node(arguments, machine)?,
        "blockdev-del" => spare::delete_node(given.required("node-name")?, machine)?,
        "netdev_add" => spare::add_network(given.list()?, machine)?,
        "netdev_del" => spare::delete_network(given.required("id")?, machine)?,
        "object-add" => spare::add_object(given.list()?, machine)?,
        "object-del" => spare::delete_object(given.required("id")?, machine)?,
        "block_resize" => {
            let name = match given.text("node-name")? {
                Some(name) => name,
                None => given.required("device")?,
            };
            let size = arguments.get("size").and_then(Value::as_u64);
            let size = size.ok_or_else(|| Fault::generic("Parameter 'size' is missing"))?;
            let drive = number_of(name, machine).ok_or_else(|| Fault::no_device(name))?;
            machine.resize(drive, size)?;
        }
        "snapshot-save" | "snapshot-load" | "snapshot-delete" => {
            jobs::snapshot(name, arguments, machine)?;
        }
        "query-jobs" => return Ok(jobs::query(machine)),
        "job-dismiss" => jobs::dismiss(arguments, machine)?,
        "qom-list" => return objects::list(given.required("path")?, machine.configuration()),
        "qom-get" => {
            let (path, property) = (given.required("path")?, given.required("property")?);
            return objects::get(path, property, machine);
        }
        "qom-list-types" => return Ok(objects::types()),
        "device-list-properties" | "qom-list-properties" => {
            return objects::properties(given.required("typename")?);
        }
        "memsave" | "pmemsave" => {
            let number = |key: &str| {
                let value = arguments.get(key).and_then(Value::as_u64);
                value.ok_or_else(|| Fault::generic(format!("Parameter '{key}' is missing")))
            };
            let (begin, size) = (number("val")?, number("size")?);
            machine.write_memory(begin, size, name == "pmemsave", given.required("filename")?)?;
        }
        name => {
            return Err(Fault::no_command(format!(
                "The command {name} has not been found"
            )));
        }
    }
    Ok(json!({}))
}

/// Pauses the machine, and reports that.
pub fn stop(machine: &mut dyn Machine) -> Result<(), String> {
    if machine.state() == RunState::Running {
        machine.stop()?;
        machine.tell(Event::Stop);
    }
    Ok(())
}

/// Ends a pause, and reports that.
pub fn resume(machine: &mut dyn Machine) -> Result<(), String> {
    if machine.state() != RunState::Running {
        machine.resume()?;
        machine.tell(Event::Resume);
    }
    Ok(())
}

/// The number of the drive that a command names.
fn drive(given: &Arguments<'_>, machine: &dyn Machine) -> Result<usize, Fault> {
    let name = match given.text("device")? {
        Some(name) => name,
        None => given.required("id")?,
    };
    number_of(name, machine).ok_or_else(|| Fault::no_device(name))
}

/// The number of a drive with this name.
pub fn number_of(name: &str, machine: &dyn Machine) -> Option<usize> {
    let mut drives = machine.configuration().drives.iter();
    drives.position(|drive| drive.id == name || drive.device.as_deref() == Some(name))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let byte = |index: usize| u32::from(part.get(index).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = (word >> (18 - 6 * index)) as usize & 63;
            text.push(match index <= part.len() {
                true => char::from(DIGITS[digit]),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foob"), "Zm9vYg==");
    }

    #[test]
    fn the_names_are_sorted() {
        assert!(NAMES.is_sorted());
    }
}
