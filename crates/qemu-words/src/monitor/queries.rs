//! The commands of QMP that ask.

use super::commands::NAMES;
use super::fault::Fault;
use super::machine::{Machine, RunState};
use super::objects;
use crate::configuration::{DriveFormat, Interface};
use crate::help::VERSION;
use crate::models::MODELS;
use serde_json::{Value, json};

/// Answers a command that asks; `None` if it is another command.
pub fn answer(name: &str, machine: &dyn Machine) -> Option<Result<Value, Fault>> {
    let config = machine.configuration();
    Some(Ok(match name {
        "query-version" => version(),
        "query-commands" => NAMES.iter().map(|name| json!({"name": name})).collect(),
        "query-status" => {
            let state = machine.state();
            let running = state == RunState::Running;
            json!({"status": state.name(), "running": running, "singlestep": false})
        }
        "query-name" => match &config.name {
            Some(name) => json!({"name": name}),
            None => json!({}),
        },
        "query-uuid" => {
            let none = "00000000-0000-0000-0000-000000000000";
            json!({"UUID": config.uuid.as_deref().unwrap_or(none)})
        }
        "query-kvm" => json!({"enabled": false, "present": false}),
        "query-target" => json!({"arch": "x86_64"}),
        "query-cpus-fast" => json!([{
            "cpu-index": 0,
            "qom-path": "/machine/unattached/device[0]",
            "thread-id": std::process::id(),
            "target": "x86_64",
            "props": {"core-id": 0, "thread-id": 0, "socket-id": 0},
        }]),
        "query-cpu-definitions" => {
            let model = |(name, _): &(&str, _)| json!({"name": name, "static": false});
            MODELS.iter().map(model).collect()
        }
        "query-machines" => ["pc", "q35", "microvm", "isapc"]
            .iter()
            .map(|name| {
                json!({"name": name, "cpu-max": 1, "hotpluggable-cpus": false,
                       "numa-mem-supported": false, "deprecated": false, "acpi": true})
            })
            .collect(),
        "query-block" => drives(machine),
        "query-named-block-nodes" => nodes(machine),
        "query-chardev" => {
            let labels = machine.labels();
            let places = config.characters.iter().zip(labels);
            let place = |(place, label): (&crate::Character, String)| json!({"label": place.id, "filename": label, "frontend-open": true});
            places.map(place).collect()
        }
        "query-pci" => objects::pci(config),
        "query-accelerators" => json!({"enabled": "tcg", "present": ["tcg"]}),
        "query-blockstats" => {
            let drive = |drive: &crate::Drive| json!({"device": drive.id, "stats": {}});
            config.drives.iter().map(drive).collect()
        }
        "query-hotpluggable-cpus" | "query-memory-devices" | "query-command-line-options" => {
            json!([])
        }
        "query-iothreads" => json!([]),
        "query-migrate" => json!({}),
        "query-memory-size-summary" => json!({"base-memory": config.memory_bytes}),
        "query-balloon" => match config.balloon {
            true => json!({"actual": config.memory_bytes}),
            false => {
                let why = "No balloon device has been activated";
                return Some(Err(Fault::generic(why)));
            }
        },
        _ => return None,
    }))
}

fn format_name(format: Option<DriveFormat>) -> &'static str {
    match format {
        Some(DriveFormat::Qcow2) => "qcow2",
        Some(DriveFormat::Raw) | None => "raw",
    }
}

fn drives(machine: &dyn Machine) -> Value {
    let drives = machine.configuration().drives.iter().zip(machine.media());
    let described = drives.map(|(drive, file)| {
        let is_removable = drive.interface.is_cd_rom() || drive.interface == Interface::Floppy;
        let mut described = json!({
            "device": drive.id, "type": "unknown", "removable": is_removable, "locked": false,
        });
        if let Some(device) = &drive.device {
            described["qdev"] = json!(device);
        }
        if is_removable {
            described["tray_open"] = json!(false);
        }
        if let Some(file) = file {
            described["inserted"] = json!({
                "file": file, "drv": format_name(drive.format), "ro": drive.readonly,
                "node-name": drive.id, "encrypted": false, "backing_file_depth": 0,
                "detect_zeroes": "off", "write_threshold": 0,
                "cache": {"writeback": true, "direct": false, "no-flush": false},
                "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0,
            });
        }
        described
    });
    described.collect()
}

fn nodes(machine: &dyn Machine) -> Value {
    let drives = machine.configuration().drives.iter().zip(machine.media());
    let nodes = drives.filter_map(|(drive, file)| {
        Some(json!({
            "node-name": drive.id, "file": file?, "drv": format_name(drive.format),
            "ro": drive.readonly,
        }))
    });
    nodes.collect()
}

/// The version as QMP has it.
pub fn version() -> Value {
    let (major, minor, micro) = VERSION;
    let package = format!("Tollgate {}", env!("CARGO_PKG_VERSION"));
    json!({"qemu": {"major": major, "minor": minor, "micro": micro}, "package": package})
}
