//! Machine, processor and memory.

use crate::build::Builder;
use crate::configuration::{BootDevice, CpuFeature, MachineKind};
use crate::key_values::{KeyValues, split};
use crate::models::{self, MODELS};
use crate::numbers;
use crate::refusal::Refusal;

/// Properties of machines that make no difference, whatever their value.
const INDIFFERENT: &[&str] = &[
    "kernel_irqchip",
    "kernel-irqchip",
    "vmport",
    "dump-guest-core",
    "mem-merge",
    "graphics",
    "smm",
    "pit",
    "pic",
    "rtc",
    "isa-serial",
    "x-option-roms",
    "auto-kernel-cmdline",
    "ioapic2",
    "suppress-vmdesc",
    "memory-backend",
    "sata",
    "smbus",
    "i8042",
    "fd-bootchk",
    "default-bus-bypass-iommu",
    "max-ram-below-4g",
    "max-fw-size",
    "nvdimm",
    "hmat",
    "hpet",
    "acpi",
    "kvm-shadow-mem",
    "phandle-start",
    "x-south-bridge",
    "usb",
    "pcie",
    "aux-ram-share",
];

impl Builder {
    /// `-machine`.
    pub fn machine(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        if let Some(kind) = list.take("type") {
            self.config.machine = match kind.as_str() {
                "pc" => MachineKind::Pc,
                "q35" => MachineKind::Q35,
                "microvm" => MachineKind::Microvm,
                "isapc" => MachineKind::Isapc,
                kind if kind.starts_with("pc-i440fx-") => MachineKind::Pc,
                kind if kind.starts_with("pc-q35-") => MachineKind::Q35,
                kind => {
                    return Err(format!(
                        "unsupported machine type '{kind}'; use -machine help to list supported machines"
                    )
                    .into());
                }
            };
        }
        for accelerator in list.all("accel") {
            self.accelerators(&accelerator)?;
        }
        if let Some(is_on) = list
            .switch("acpi")
            .or_else(|why| auto(&mut list, "acpi", why))?
        {
            self.config.acpi = is_on;
        }
        if let Some(is_on) = list.switch("hpet")? {
            self.config.hpet = is_on;
        }
        if let Some(is_on) = list.switch("nvdimm")?
            && is_on
        {
            return Err("nvdimm=on: there is no persistent memory".into());
        }
        for (place, key) in ["pflash0", "pflash1"].into_iter().enumerate() {
            if let Some(node) = list.take(key) {
                self.flash_nodes.push((place, node));
            }
        }
        let config = &mut self.config;
        for (key, place) in [
            ("kernel", &mut config.kernel),
            ("firmware", &mut config.firmware),
        ] {
            if let Some(path) = list.take(key) {
                *place = Some(path.into());
            }
        }
        if let Some(path) = list.take("initrd") {
            config.initrd = Some(path);
        }
        if let Some(text) = list.take("append") {
            config.append = text;
        }
        list.ignore(INDIFFERENT);
        list.ignore_where(|key, value| key.starts_with("smp.") || value == "off");
        let Some((key, _)) = list.rest().next() else {
            return Ok(());
        };
        Err(format!("Property 'machine.{key}' not found").into())
    }

    /// `-accel`.
    pub fn accelerator(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        for name in list.all("accel") {
            self.accelerators(&name)?;
        }
        list.ignore_where(|_, _| true);
        Ok(())
    }

    /// A list of accelerators between colons, of which one will do.
    fn accelerators(&mut self, names: &str) -> Result<(), Refusal> {
        const KNOWN: [&str; 9] = [
            "tcg", "kvm", "tollgate", "xen", "hax", "hvf", "nvmm", "whpx", "nitro",
        ];
        let names: Vec<&str> = names.split(':').collect();
        if let Some(unknown) = names.iter().find(|name| !KNOWN.contains(name)) {
            return Err(format!("invalid accelerator {unknown}").into());
        }
        if !names.iter().any(|name| matches!(*name, "tcg" | "tollgate")) {
            self.warn(format!(
                "accelerator {} is not used: Tollgate is its own, and needs no KVM",
                names.join(":")
            ));
        }
        Ok(())
    }

    /// `-cpu`.
    pub fn cpu(&mut self, value: &str) -> Result<(), Refusal> {
        let mut parts = split(value).into_iter();
        let model = parts.next().unwrap_or_default();
        if !MODELS
            .iter()
            .any(|(name, _)| *name == models::without_version(&model))
        {
            return Err(format!("unable to find CPU model '{model}'").into());
        }
        let mut features = Vec::new();
        for part in parts {
            let (name, is_on) = match (part.strip_prefix('+'), part.strip_prefix('-')) {
                (Some(name), _) => (name, true),
                (_, Some(name)) => (name, false),
                _ => match part.split_once('=') {
                    None => (&*part, true),
                    Some((name, value)) => match numbers::switch(name, value) {
                        Ok(is_on) => (name, is_on),
                        // Numbers such as the model's stepping.
                        Err(_) => {
                            self.warn(format!("-cpu: {part} makes no difference"));
                            continue;
                        }
                    },
                },
            };
            let name = name.replace('_', "-");
            features.push(CpuFeature { name, is_on });
        }
        (self.config.processor.model, self.config.processor.features) = (model, features);
        Ok(())
    }

    /// `-smp`.
    pub fn processors(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let mut product = 1;
        for key in [
            "sockets", "dies", "clusters", "modules", "cores", "threads", "drawers", "books",
        ] {
            if let Some(count) = list.number(key)? {
                product *= count.max(1);
            }
        }
        let most = list.number("maxcpus")?;
        let count = list
            .number("cpus")?
            .unwrap_or_else(|| most.unwrap_or(product));
        list.end()?;
        if count == 0 {
            return Err("CPU topology parameters must be greater than zero".into());
        }
        if most.is_some_and(|most| most < count) {
            return Err("maxcpus must be equal to or greater than smp".into());
        }
        self.config.processors = count;
        if count > 1 {
            self.warn(format!("the guest has one processor, not {count}"));
        }
        Ok(())
    }

    /// `-numa`.
    pub fn numa(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        match list.take("type").as_deref() {
            Some("node") if matches!(list.peek("nodeid"), None | Some("0")) => Ok(()),
            _ => Err("a guest has one node of memory, number 0".into()),
        }
    }

    /// `-m`.
    pub fn memory(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        if let Some(size) = list.take("size") {
            let bytes = numbers::size("size", &size, 1 << 20)?;
            // QEMU rounds up to 8 KiB.
            self.config.memory_bytes = bytes.next_multiple_of(8 << 10);
        }
        list.ignore(&["slots", "maxmem"]);
        list.end()
    }

    /// `-overcommit`.
    pub fn overcommit(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        if let Some(is_on) = list.switch("mem-lock")? {
            self.config.locked_memory = is_on;
        }
        list.ignore(&["cpu-pm"]);
        list.end()
    }

    /// `-global`.
    pub fn global(&mut self, value: &str) -> Result<(), Refusal> {
        let form = || Refusal("expected DRIVER.PROPERTY=VALUE".into());
        if value.starts_with("driver=") {
            let mut list = KeyValues::parse(value, None)?;
            let (driver, property) = (list.required("driver")?, list.required("property")?);
            let value = list.required("value")?;
            self.globals.push((driver, property, value));
            return list.end();
        }
        let (name, value) = value.split_once('=').ok_or_else(form)?;
        let (driver, property) = name.split_once('.').ok_or_else(form)?;
        self.globals
            .push((driver.into(), property.into(), value.into()));
        Ok(())
    }

    /// `-boot`.
    pub fn boot(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let order = list.take("order");
        if let Some(order) = list.take("once").or(order) {
            let mut devices = Vec::new();
            for letter in order.chars() {
                let device = match letter {
                    'a' | 'b' => BootDevice::Floppy,
                    'c' => BootDevice::Disk,
                    'd' => BootDevice::CdRom,
                    'n'..='p' => BootDevice::Network,
                    _ => return Err(format!("Invalid boot device '{letter}'").into()),
                };
                if !devices.contains(&device) {
                    devices.push(device);
                }
            }
            self.config.boot_order = devices;
        }
        list.ignore(&["menu", "splash", "splash-time", "reboot-timeout", "strict"]);
        list.end()
    }
}

/// `acpi=auto` is a third value of a switch.
fn auto(list: &mut KeyValues, key: &str, why: Refusal) -> Result<Option<bool>, Refusal> {
    match list.peek(key) {
        Some("auto") => Ok(None),
        _ => Err(why),
    }
}
