//! The arguments of `tollgate run`, and the sections at the end of its help.

use clap::Args;

use crate::flags::{
    BootArguments, ConsoleArguments, DebuggerArguments, DeveloperArguments, DeviceArguments,
    DiskArguments, EventArguments, MachineArguments, NetworkArguments,
};
use crate::statistics::StatisticsArguments;
use crate::{exit_code, terminal_keys};

/// The arguments of `tollgate run`.
#[derive(Args, Debug)]
#[command(after_long_help = help())]
pub struct RunArguments {
    /// What the machine boots.
    #[command(flatten)]
    pub boot: BootArguments,

    /// Memory, processor and control socket.
    #[command(flatten)]
    pub machine: MachineArguments,

    /// Disks and shared directories.
    #[command(flatten)]
    pub disks: DiskArguments,

    /// Networks and sockets.
    #[command(flatten)]
    pub network: NetworkArguments,

    /// Consoles, display and streams.
    #[command(flatten)]
    pub consoles: ConsoleArguments,

    /// Buses and optional devices.
    #[command(flatten)]
    pub devices: DeviceArguments,

    /// The effects of resets, panics and pauses.
    #[command(flatten)]
    pub events: EventArguments,

    /// What is counted and how it is shown.
    #[command(flatten)]
    pub statistics: StatisticsArguments,

    /// The debugger that controls the guest.
    #[command(flatten)]
    pub debugger: DebuggerArguments,

    /// How guest code is translated, and experiments with that.
    #[command(flatten)]
    pub developer: DeveloperArguments,
}

/// The last sections of `tollgate run --help`.
fn help() -> String {
    format!(
        "\
Examples:
  Boot Linux to a shell on this terminal:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0\" -m 512M
  With a disk, which the guest finds as /dev/vda:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0 root=/dev/vda1\" \\
        --drive file=debian.qcow2 -m 1G
  Boot a disk as a PC does, from the firmware of the package 'seabios':
    tollgate run --drive file=disk.img
  The same in this terminal, as at a PC:
    tollgate run --drive file=disk.img --display text
  With a directory of the host, for 'mount -t virtiofs share0 /mnt' in the guest:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0\" --share .
  With a network, and a port of this host that leads to the guest's ssh:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0 root=/dev/vda1\" \\
        --drive file=debian.qcow2 --net user,hostfwd=tcp:127.0.0.1:2222-:22 -m 1G
  Run unattended, keep the log, and look in from outside:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0\" \\
        --serial file:boot.log --control vm.sock &
    tollgate control vm.sock status
  See which exits a guest spends its time on, and where they come from:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0 nokaslr\" \\
        --stats --symbols System.map

{keys}
{codes}",
        keys = terminal_keys::help(),
        codes = exit_code::help(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lines_fit_a_wide_terminal() {
        for line in help().lines() {
            assert!(line.chars().count() <= 96, "{line}");
        }
    }
}
