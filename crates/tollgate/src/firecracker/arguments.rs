//! The command line of `tollgate-firecracker`: Firecracker's flags, and a few of Tollgate's own.

use std::path::PathBuf;

use clap::Parser;
use tollgate_machine::cpu::Cpu;

use super::exit_code;
use crate::confinement::Confinement;
use crate::cpu_models;
use crate::limits::HostLimits;

/// Runs a virtual machine that is controlled by Firecracker's REST interface
///
/// The interface is at a Unix socket. docs/guide/firecracker.md says what each request does.
#[derive(Parser, Debug)]
#[command(
    name = "tollgate-firecracker",
    disable_version_flag = true,
    after_long_help = exit_code::HELP,
    max_term_width = 96
)]
pub struct FirecrackerArguments {
    /// The socket of the interface
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/firecracker.socket",
        conflicts_with = "no_api"
    )]
    pub api_sock: PathBuf,

    /// The machine's name: letters, digits and hyphens, at most 64
    #[arg(long, value_name = "ID", default_value = "anonymous-instance", value_parser = id)]
    pub id: String,

    /// Start the machine that this JSON file describes
    #[arg(long, value_name = "PATH")]
    pub config_file: Option<PathBuf>,

    /// Open no socket
    #[arg(long, requires = "config_file")]
    pub no_api: bool,

    /// Give the machine a PCI bus for its devices, instead of virtio over MMIO
    #[arg(long)]
    pub enable_pci: bool,

    /// Write messages to this file or named pipe
    #[arg(long, value_name = "PATH")]
    pub log_path: Option<PathBuf>,

    /// The least important messages that are written: Off, Error, Warning, Info, Debug or Trace
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<String>,

    /// Name the level in each message
    #[arg(long)]
    pub show_level: bool,

    /// Accepted; messages name no places in the source
    #[arg(long)]
    pub show_log_origin: bool,

    /// Accepted; messages belong to no modules
    #[arg(long, value_name = "NAME")]
    pub module: Option<String>,

    /// Write measurements to this file or named pipe
    #[arg(long, value_name = "PATH")]
    pub metrics_path: Option<PathBuf>,

    /// The maximum number of bytes of a request's body
    #[arg(long, value_name = "BYTES", default_value_t = 51200)]
    pub http_api_max_payload_size: usize,

    /// The maximum number of bytes of the metadata (MMDS); without this, those of a request's body
    #[arg(long, value_name = "BYTES")]
    pub mmds_size_limit: Option<usize>,

    /// Begin with the metadata (MMDS) in this JSON file
    #[arg(long, value_name = "PATH")]
    pub metadata: Option<PathBuf>,

    /// Give the machine Firecracker's boot timer, and log how long the guest took to write 123 there
    #[arg(long)]
    pub boot_timer: bool,

    /// Accepted; see --confine
    #[arg(long)]
    pub no_seccomp: bool,

    /// Accepted if the file exists, and not used; see --confine
    #[arg(long, value_name = "PATH")]
    pub seccomp_filter: Option<PathBuf>,

    /// Accepted; a jailer gives it
    #[arg(long, value_name = "MICROSECONDS")]
    pub start_time_us: Option<u64>,

    /// Accepted; a jailer gives it
    #[arg(long, value_name = "MICROSECONDS")]
    pub start_time_cpu_us: Option<u64>,

    /// Accepted; a jailer gives it
    #[arg(long, value_name = "MICROSECONDS")]
    pub parent_cpu_time_us: Option<u64>,

    /// Print the version and end
    #[arg(long)]
    pub version: bool,

    /// Print the version of snapshots and end
    #[arg(long)]
    pub snapshot_version: bool,

    /// Print the version of this snapshot (a snapshot_path) and end
    #[arg(long, value_name = "PATH")]
    pub describe_snapshot: Option<PathBuf>,

    /// Tollgate's own: the processor's model, see tollgate run --cpu help
    #[arg(long, value_name = "MODEL", default_value = "host", value_parser = cpu_models::parse)]
    pub cpu: Cpu,

    /// Tollgate's own: a balloon through which the guest gives back free pages without requests
    #[arg(long)]
    pub balloon: bool,

    /// Tollgate's own: how much the threads are confined
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Confinement::Auto)]
    pub confine: Confinement,

    /// Tollgate's own: the most that the machine takes of this host, see tollgate run --limit
    #[arg(long, value_name = "LIMITS", value_parser = HostLimits::parse)]
    pub limit: Option<HostLimits>,

    /// Tollgate's own: keep guest memory where no other process and not even the host's kernel maps it,
    /// see tollgate run --secret-memory
    #[arg(long)]
    pub secret_memory: bool,

    /// Tollgate's own: open a control socket at this path, see tollgate control
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Parses the name of a machine.
///
/// # Errors
/// What a name is.
pub fn id(text: &str) -> Result<String, String> {
    let is_good = |it: char| it.is_ascii_alphanumeric() || it == '-';
    match (1..=64).contains(&text.len()) && text.chars().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err("an ID has 1 to 64 letters, digits and hyphens".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        FirecrackerArguments::command().debug_assert();
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for words in [
            &["--no-api"][..],
            &["--no-api", "--config-file", "c", "--api-sock", "s"],
            &["--id", "a/b"],
            &["--id", ""],
        ] {
            let line = [&["tollgate-firecracker"], words].concat();
            assert!(
                FirecrackerArguments::try_parse_from(line).is_err(),
                "{words:?}"
            );
        }
    }
}
