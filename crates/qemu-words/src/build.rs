//! Makes a [`Configuration`] of given options: one match over their names, then what options say of
//! each other, then QEMU's defaults.

use crate::command_line::Given;
use crate::configuration::{
    AdapterModel, Character, Configuration, Network, NetworkKind, Restore, Share,
};
use crate::key_values::KeyValues;
use crate::options::Treatment;
use crate::parts::drives::DriveEntry;
use crate::refusal::Refusal;

/// A configuration in the making.
#[derive(Default)]
pub struct Builder {
    /// What is known so far.
    pub config: Configuration,
    /// The drives, also those that no device uses yet.
    pub drives: Vec<DriveEntry>,
    /// The drives that `-machine` makes chips of flash memory: their units and names.
    pub flash_nodes: Vec<(usize, String)>,
    /// The devices, each with the option that asked for it.
    pub devices: Vec<(String, KeyValues)>,
    /// Directories that wait for a device.
    pub directories: Vec<(String, Share)>,
    /// Networks that wait for an adapter.
    pub netdevs: Vec<(String, NetworkKind)>,
    /// Networks of `-net`, which make a pair with `-net nic`.
    pub old_networks: Vec<NetworkKind>,
    /// Adapters of `-net nic`.
    pub old_adapters: Vec<(Option<[u8; 6]>, AdapterModel)>,
    /// Properties of `-global`: driver, property, value.
    pub globals: Vec<(String, String, String)>,
    /// Whether `-nodefaults` was given.
    pub no_defaults: bool,
    /// Whether `-nographic` was given.
    pub no_graphic: bool,
    /// The places of `-serial`; `None` is one without a port.
    pub serial: Vec<String>,
    /// The bus, the target and the unit of each SCSI drive that names a target.
    pub scsi_places: Vec<(String, u8, u16)>,
    /// Whether a monitor was named, so that there is none by default.
    pub has_monitor: bool,
    /// Whether every image is a snapshot.
    pub snapshot: bool,
    /// Whether a network option was given.
    pub has_network: bool,
    /// Identifiers of objects.
    pub objects: Vec<String>,
}

/// Makes a configuration.
///
/// # Errors
/// One line that says which option is wrong, and why.
pub fn configuration(given: &[Given]) -> Result<Configuration, Refusal> {
    let mut builder = Builder::default();
    for option in given {
        let row = option.row;
        match row.treatment {
            Treatment::NoDifference => {}
            Treatment::Refused => {
                return Err(Refusal(row.note.to_owned()).of(&option.written));
            }
            Treatment::Done | Treatment::Partly | Treatment::Own => {
                let taken = builder.take(row.name, &option.value);
                taken.map_err(|why| why.of(&option.text()))?;
            }
        }
    }
    builder.finish()
}

impl Builder {
    /// Takes one option.
    fn take(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        let list = |implied: Option<&str>| KeyValues::parse(value, implied);
        match name {
            // These are answered before anything is built.
            "h" | "version" => Ok(()),
            "machine" => self.machine(list(Some("type"))?),
            "cpu" => self.cpu(value),
            "accel" => self.accelerator(list(Some("accel"))?),
            "enable-kvm" => self.accelerator(KeyValues::parse("accel=kvm", None)?),
            "smp" => self.processors(list(Some("cpus"))?),
            "numa" => self.numa(list(Some("type"))?),
            "m" => self.memory(list(Some("size"))?),
            "overcommit" => self.overcommit(list(None)?),
            "global" => self.global(value),
            "boot" => self.boot(list(Some("order"))?),
            "audio" => self.audio(list(Some("driver"))?),
            "device" => self.device(value, list(Some("driver"))?),
            "name" => self.name(list(Some("guest"))?),
            "uuid" => self.uuid(value),
            "no-acpi" => self.set(|config| config.acpi = false),
            "no-hpet" => self.set(|config| config.hpet = false),
            "bios" => self.set(|config| config.firmware = Some(value.into())),
            "kernel" => self.set(|config| config.kernel = Some(value.into())),
            "append" => self.set(|config| config.append = value.into()),
            "initrd" => self.set(|config| config.initrd = Some(value.into())),
            "smbios" => self.smbios(list(None)?),
            "fw_cfg" => self.firmware_file(list(Some("name"))?),
            "fda" | "fdb" | "hda" | "hdb" | "hdc" | "hdd" | "cdrom" | "pflash" => {
                self.image(name, value)
            }
            "drive" => self.drive(list(None)?),
            "blockdev" => self.blockdev(list(Some("driver"))?),
            "fsdev" => self.fsdev(list(Some("fsdriver"))?),
            "virtfs" => self.virtfs(list(Some("fsdriver"))?),
            "snapshot" => {
                self.snapshot = true;
                Ok(())
            }
            "display" => self.display(value),
            "nographic" => {
                self.no_graphic = true;
                Ok(())
            }
            "curses" => self.display("curses"),
            "vnc" => self.vnc(value),
            "vga" => self.vga(value),
            "netdev" => self.netdev(list(Some("type"))?),
            "nic" => self.nic(list(Some("type"))?),
            "net" => self.net(list(Some("type"))?),
            "chardev" => self.chardev(list(Some("backend"))?),
            "serial" => {
                self.serial.push(value.into());
                Ok(())
            }
            "parallel" => self.parallel(value),
            "monitor" | "qmp" | "qmp-pretty" => self.monitor(name, value),
            "mon" => self.mon(list(Some("chardev"))?),
            "debugcon" => self.debugcon(value),
            "echr" => self.escape(value),
            "gdb" => self.debugger(value),
            "s" => self.debugger("tcp::1234"),
            "S" => self.set(|config| config.paused = true),
            "loadvm" => self.set(|config| config.restore = Some(Restore::Tag(value.into()))),
            "incoming" => self.incoming(value),
            "d" => self.log_items(value),
            "D" => self.set(|config| config.log_file = Some(value.into())),
            "pidfile" => self.set(|config| config.pid_file = Some(value.into())),
            "limit" => self.set(|config| config.limit = Some(value.into())),
            "daemonize" => self.set(|config| config.daemonize = true),
            "no-reboot" => self.set(|config| config.no_reboot = true),
            "no-shutdown" => self.set(|config| config.no_shutdown = true),
            "action" => self.action(list(None)?),
            "watchdog-action" => self.watchdog_action(value),
            "nodefaults" => {
                self.no_defaults = true;
                Ok(())
            }
            "L" => self.set(|config| config.firmware_folders.push(value.into())),
            "rtc" => self.rtc(list(None)?),
            "localtime" => self.rtc(KeyValues::parse("base=localtime", None)?),
            "object" => self.object(list(Some("qom-type"))?),
            "balloon" => self.balloon(list(Some("kind"))?),
            // Files of options and -set are read with the command line.
            "readconfig" | "set" => Ok(()),
            name => Err(format!("-{name} has no code").into()),
        }
    }

    fn set(&mut self, change: impl FnOnce(&mut Configuration)) -> Result<(), Refusal> {
        change(&mut self.config);
        Ok(())
    }

    /// Adds a line that is worth knowing.
    pub fn warn(&mut self, line: impl Into<String>) {
        let line = line.into();
        if !self.config.warnings.contains(&line) {
            self.config.warnings.push(line);
        }
    }

    /// The place for characters with this name.
    pub fn character(&self, id: &str) -> Option<&Character> {
        let mut characters = self.config.characters.iter();
        characters.find(|character| character.id == id)
    }

    /// Adds what options say of each other, and the defaults.
    fn finish(mut self) -> Result<Configuration, Refusal> {
        for (option, list) in std::mem::take(&mut self.devices) {
            let added = self.add_device(list);
            added.map_err(|why| why.of(&option))?;
        }
        self.consoles()?;
        self.finish_networks()?;
        self.default_network();
        self.settle_models();
        self.place_drives()?;
        self.check_characters()?;
        if self.config.append.is_empty() && self.config.kernel.is_none() {
            if self.config.initrd.is_some() {
                return Err("-initrd only allowed with -kernel option".into());
            }
        } else if self.config.kernel.is_none() {
            return Err("-append only allowed with -kernel option".into());
        }
        Ok(self.config)
    }

    /// Pairs networks and adapters of `-net`, and refuses networks without an adapter.
    fn finish_networks(&mut self) -> Result<(), Refusal> {
        let mut adapters = std::mem::take(&mut self.old_adapters).into_iter();
        for kind in std::mem::take(&mut self.old_networks) {
            let (mac, model) = adapters.next().unwrap_or_default();
            self.config.networks.push(Network {
                kind,
                mac,
                model,
                netdev: None,
            });
        }
        if adapters.next().is_some() {
            self.warn("an adapter of -net nic has no network and is left out");
        }
        if let Some((id, _)) = self.netdevs.first() {
            let line = format!("netdev {id} has no adapter (-device ...,netdev={id})");
            self.warn(line);
        }
        self.config.spare.networks = std::mem::take(&mut self.netdevs);
        self.config.spare.objects = std::mem::take(&mut self.objects);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OPTIONS;

    #[test]
    fn every_option_that_is_not_refused_has_code() {
        for row in OPTIONS.iter().flat_map(|(_, rows)| rows.iter()) {
            let taken = Builder::default().take(row.name, "");
            let lacks = matches!(&taken, Err(why) if why.0.ends_with("has no code"));
            let needs = matches!(
                row.treatment,
                Treatment::Done | Treatment::Partly | Treatment::Own
            );
            assert_eq!(!lacks, needs, "-{}", row.name);
        }
    }
}
