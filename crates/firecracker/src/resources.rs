//! What was configured.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bodies::{
    Balloon, BalloonUpdate, BootSource, Drive, Entropy, Logger, MachineConfig, MetadataConfig,
    Metrics, NetworkInterface, Serial, StatisticsUpdate, Vsock,
};
use crate::fault::Fault;

/// All that requests have configured, under the names that `GET /vm/config` and configuration files
/// have for it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Resources {
    /// Processor and memory.
    pub machine_config: MachineConfig,
    /// What is booted.
    pub boot_source: Option<BootSource>,
    /// Disks.
    pub drives: Vec<Drive>,
    /// Network interfaces.
    pub network_interfaces: Vec<NetworkInterface>,
    /// Sockets between guest and host.
    pub vsock: Option<Vsock>,
    /// Random numbers.
    pub entropy: Option<Entropy>,
    /// The serial port.
    pub serial: Option<Serial>,
    /// Where messages go.
    pub logger: Option<Logger>,
    /// Where measurements go.
    pub metrics: Option<Metrics>,
    /// The memory balloon.
    pub balloon: Option<Balloon>,
    /// The metadata service.
    pub mmds_config: Option<MetadataConfig>,
}

impl Resources {
    /// Adds a disk, or replaces the one of this name. The root device is the first disk.
    ///
    /// # Errors
    /// There is another root device.
    pub fn put_drive(&mut self, drive: Drive) -> Result<(), Fault> {
        let is_other = |it: &&Drive| it.is_root_device && it.drive_id != drive.drive_id;
        if drive.is_root_device && self.drives.iter().any(|it| is_other(&it)) {
            let why = "there is a root device already";
            return Err(Fault::field("is_root_device", why));
        }
        self.drives.retain(|it| it.drive_id != drive.drive_id);
        let place = if drive.is_root_device {
            0
        } else {
            self.drives.len()
        };
        self.drives.insert(place, drive);
        Ok(())
    }

    /// Adds a network interface, or replaces the one of this name.
    ///
    /// # Errors
    /// Another interface has its MAC address.
    pub fn put_network(&mut self, interface: NetworkInterface) -> Result<(), Fault> {
        let others = self.network_interfaces.iter();
        let mut others = others.filter(|it| it.iface_id != interface.iface_id);
        if interface.guest_mac.is_some() && others.any(|it| it.guest_mac == interface.guest_mac) {
            let why = "another interface has this address";
            return Err(Fault::field("guest_mac", why));
        }
        let all = &mut self.network_interfaces;
        match all.iter_mut().find(|it| it.iface_id == interface.iface_id) {
            Some(known) => *known = interface,
            None => all.push(interface),
        }
        Ok(())
    }

    /// Configures the balloon.
    ///
    /// # Errors
    /// The guest has less memory.
    pub fn put_balloon(&mut self, balloon: Balloon) -> Result<(), Fault> {
        Balloon::check_amount(balloon.amount_mib, self.machine_config.mem_size_mib)?;
        self.balloon = Some(balloon);
        Ok(())
    }

    /// The balloon that a client has configured.
    ///
    /// # Errors
    /// No client has configured one.
    pub fn known_balloon(&self) -> Result<&Balloon, Fault> {
        self.balloon.as_ref().ok_or_else(no_balloon)
    }

    /// The balloon after a change of its size.
    ///
    /// # Errors
    /// There is none, or the guest has less memory.
    pub fn changed_balloon(&self, update: &BalloonUpdate) -> Result<Balloon, Fault> {
        Balloon::check_amount(update.amount_mib, self.machine_config.mem_size_mib)?;
        Ok(Balloon {
            amount_mib: update.amount_mib,
            ..self.known_balloon()?.clone()
        })
    }

    /// Changes the interval of the balloon's statistics.
    ///
    /// # Errors
    /// There is no balloon, or it would be the first interval or the last.
    pub fn set_interval(&mut self, update: &StatisticsUpdate) -> Result<(), Fault> {
        let balloon = self.balloon.as_mut().ok_or_else(no_balloon)?;
        let interval = update.stats_polling_interval_s;
        if (interval == 0) != (balloon.stats_polling_interval_s == 0) {
            let why = "Statistics cannot be enabled/disabled after activation.";
            return Err(Fault::field("stats_polling_interval_s", why));
        }
        balloon.stats_polling_interval_s = interval;
        Ok(())
    }

    /// Configures the metadata service.
    ///
    /// # Errors
    /// There is no interface of one of the names.
    pub fn put_metadata(&mut self, config: MetadataConfig) -> Result<(), Fault> {
        let has = |id: &String| self.network_interfaces.iter().any(|it| it.iface_id == *id);
        if !config.network_interfaces.iter().all(has) {
            let why = "The list of network interface IDs provided contains at least one ID that does not correspond \
                       to any existing network interface.";
            return Err(Fault::field("network_interfaces", why));
        }
        self.mmds_config = Some(config);
        Ok(())
    }

    /// Whether nothing was configured except where messages and measurements go, which a snapshot can
    /// be loaded into.
    pub fn are_fresh(&self) -> bool {
        let outputs = Self {
            logger: self.logger.clone(),
            metrics: self.metrics.clone(),
            serial: self.serial.clone(),
            ..Self::default()
        };
        *self == outputs
    }

    /// The command line of the kernel: the given one, and what the interface adds to it.
    pub fn command_line(&self, has_pci: bool) -> String {
        let given = self
            .boot_source
            .as_ref()
            .and_then(|it| it.boot_args.clone());
        let mut line = given.unwrap_or_else(|| BootSource::DEFAULT_ARGS.to_owned());
        let mut add = |word: &str| {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        };
        if !has_pci {
            add("pci=off");
        }
        if let Some(root) = self.drives.iter().find(|it| it.is_root_device) {
            match &root.partuuid {
                Some(uuid) => add(&format!("root=PARTUUID={uuid}")),
                None => add("root=/dev/vda"),
            }
            add(if root.is_read_only { "ro" } else { "rw" });
        }
        line
    }

    /// What `GET /vm/config` returns.
    pub fn shown(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["cpu-config"] = json!(null);
        value
    }
}

fn no_balloon() -> Fault {
    Fault::new("No balloon device found. Configure one before the start (PUT /balloon).")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(id: &str, is_root_device: bool) -> Drive {
        let text = json!({"drive_id": id, "is_root_device": is_root_device, "path_on_host": "x"});
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn the_root_device_is_first_and_unique() {
        let mut resources = Resources::default();
        for (id, root) in [("a", false), ("b", true), ("c", false), ("b", true)] {
            resources.put_drive(drive(id, root)).unwrap();
        }
        let ids: Vec<_> = resources.drives.iter().map(|it| &*it.drive_id).collect();
        assert_eq!(ids, ["b", "a", "c"]);
        let fault = resources.put_drive(drive("a", true)).unwrap_err();
        assert!(fault.message.starts_with("is_root_device: "));
    }

    #[test]
    fn the_command_line_gets_what_the_devices_need() {
        let mut resources = Resources {
            boot_source: Some(BootSource {
                kernel_image_path: "k".into(),
                initrd_path: None,
                boot_args: Some("console=ttyS0".into()),
            }),
            ..Resources::default()
        };
        assert_eq!(resources.command_line(true), "console=ttyS0");
        resources.put_drive(drive("a", true)).unwrap();
        assert_eq!(
            resources.command_line(false),
            "console=ttyS0 pci=off root=/dev/vda rw"
        );
        resources.drives[0].is_read_only = true;
        resources.drives[0].partuuid = Some("0eaa91a0-01".into());
        let line = resources.command_line(true);
        assert_eq!(line, "console=ttyS0 root=PARTUUID=0eaa91a0-01 ro");
    }
}
