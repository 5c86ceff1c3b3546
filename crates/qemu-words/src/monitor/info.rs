//! HMP's `info`: lines about the machine.

use super::jobs;
use super::machine::{Job, Machine, RunState};
use super::objects;
use super::pages;
use crate::configuration::NetworkKind;
use crate::help::VERSION;
use std::fmt::Write;

/// What there is to ask for.
pub const INFO: &str = "\
info block -- show the block devices
info chardev -- show the character devices
info cpus -- show infos for each CPU
info jobs -- show the jobs
info kvm -- show KVM information
info lapic -- show local apic state
info mem -- show the active virtual memory mappings
info name -- show the current VM name
info network -- show the network state
info pci -- show PCI info
info pic -- show PIC state
info qtree -- show device tree
info registers -- show the cpu registers
info snapshots -- show the currently saved VM snapshots
info status -- show the current VM status (running|paused)
info tlb -- show virtual to physical memory mappings
info uuid -- show the current VM UUID
info version -- show the version of QEMU
";

/// Answers `info`: one word.
///
/// # Errors
/// The processor does not answer.
pub fn info(what: &str, machine: &mut dyn Machine) -> Result<String, String> {
    match what {
        "registers" => return machine.registers(),
        "pic" | "irq" => return machine.interrupts(false),
        "lapic" => return machine.interrupts(true),
        "tlb" | "mem" => {
            return Ok(match machine.pages()? {
                None => "PG disabled\n".to_owned(),
                Some(list) if what == "tlb" => pages::tlb(&list),
                Some(list) => pages::ranges(&list),
            });
        }
        "snapshots" => return jobs::list(machine),
        "jobs" => {
            let jobs = machine.jobs().iter();
            let line =
                |job: &Job| format!("Type {}, device {}, status: concluded\n", job.kind, job.id);
            return Ok(jobs.map(line).collect());
        }
        _ => {}
    }
    let config = machine.configuration();
    let mut text = String::new();
    match what {
        "pci" => text += &objects::pci_text(config),
        "qtree" => text += &objects::tree(config),
        "usernet" | "migrate" | "iothreads" | "capture" | "mice" => {}
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
                let model = network.model.device();
                let _ = writeln!(
                    text,
                    "{model}.{number}: index=0,type=nic,model={model}\n \\ {kind}.{number}: index=0,type={kind}"
                );
            }
        }
        what => return Ok(format!("unknown command: 'info {what}'\n")),
    }
    Ok(text)
}
