//! Flags about the buses, optional devices and paravirtual interfaces that the guest finds.

use clap::{Args, ValueEnum};
use tollgate_machine::config::{OptionalDevice, Paravirtual, VmConfig};

use super::Switch;
use crate::devices;

/// Flags about the devices of the machine that `tollgate run` runs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Devices")]
pub struct DeviceArguments {
    /// A device in addition to those that every machine has; 'help' lists them. May be repeated
    #[arg(long, value_name = "NAME", value_parser = devices::parse)]
    device: Vec<OptionalDevice>,

    /// Whether the machine has a PCI bus
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = Switch::On)]
    pci: Switch,

    /// Which interface of a hypervisor the guest finds
    ///
    /// kvm: the part of KVM's interface that helps here: a clock, so that the guest need not
    /// measure its time-stamp counter, and the notice that ports need no delay. none: no interface
    /// that a system looks for.
    #[arg(
        long,
        value_name = "INTERFACE",
        value_enum,
        default_value_t = Paravirt::Kvm,
        verbatim_doc_comment
    )]
    paravirt: Paravirt,
}

impl DeviceArguments {
    /// Writes what these flags say into `config`.
    pub fn apply(&self, config: &mut VmConfig) {
        config.devices.clone_from(&self.device);
        config.pci = self.pci == Switch::On;
        config.paravirtual = match self.paravirt {
            Paravirt::Kvm => Paravirtual::Kvm,
            Paravirt::None => Paravirtual::None,
        };
    }
}

/// Which interface of a hypervisor the guest finds.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Paravirt {
    /// A part of KVM's interface
    Kvm,
    /// No interface that a system looks for
    None,
}
