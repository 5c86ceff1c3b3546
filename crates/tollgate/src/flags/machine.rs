//! Memory and processor of the machine, and the socket that controls it: flags that `tollgate run`
//! and `tollgate exec` share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tollgate_machine::config::{MemoryBackingChoice, VmConfig};
use tollgate_machine::cpu::Cpu;

use super::{PresenceArguments, Switch};
use crate::confinement::Confinement;
use crate::limits::HostLimits;
use crate::{cpu_models, size};

/// Flags about the machine itself.
#[derive(Args, Debug)]
#[command(next_help_heading = "Machine")]
pub struct MachineArguments {
    /// Guest RAM, such as 512M or 4G; a bare number counts MiB
    ///
    /// The host's memory is taken as the guest uses it (but see --memory-backing).
    #[arg(
        short,
        long,
        value_name = "SIZE",
        default_value = "256M",
        value_parser = size::parse,
        alias = "mem",
        verbatim_doc_comment
    )]
    pub memory: u64,

    /// What holds guest RAM
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = MemoryBacking::Anonymous)]
    pub memory_backing: MemoryBacking,

    /// Keep guest RAM where no other process and not even the host's kernel maps it (memfd_secret)
    ///
    /// What a processor reads speculatively in the kernel or in another process is then no guest
    /// memory. All of it is locked, in every place where it is mapped: 'ulimit -l' must be unlimited in
    /// practice, or the process have CAP_IPC_LOCK. Programs of the guest are translated, the
    /// machine writes no snapshots, and a balloon gives nothing back.
    #[arg(long, conflicts_with = "memory_backing", verbatim_doc_comment)]
    pub secret_memory: bool,

    /// The processor's model; 'help' lists the models with their features
    ///
    /// host: the host's processor, without the features that Tollgate does not implement. The other
    /// models are the same on every host that has their features. Add ,+smap to a model for
    /// supervisor-mode access prevention, and ,+pku or ,+pks for protection keys of user or
    /// supervisor pages. Each of the three makes the guest slower.
    #[arg(
        long,
        value_name = "MODEL",
        default_value = "host",
        value_parser = cpu_models::parse,
        verbatim_doc_comment
    )]
    pub cpu: Cpu,

    /// The number of processors: a guest has 1, and no more
    #[arg(long, value_name = "N", value_parser = processors)]
    pub cpus: Option<u32>,

    /// Whether the machine has a high-precision event timer (HPET)
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = Switch::On)]
    pub hpet: Switch,

    /// The name that QEMU's users know for --hpet off.
    #[arg(long, hide = true, conflicts_with = "hpet")]
    pub no_hpet: bool,

    /// Open a control socket at this path (see tollgate control)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// Keep translated code for later runs in a folder that only you can use, or off
    ///
    /// A guest that runs the same code as an earlier one takes its translations from there. Without
    /// this flag exec uses $XDG_CACHE_HOME/tollgate/translations or
    /// ~/.cache/tollgate/translations, run --restore FILE uses FILE.translations, and run
    /// without --restore keeps nothing.
    #[arg(long, value_name = "DIR|off", verbatim_doc_comment)]
    pub translation_cache: Option<PathBuf>,

    /// How much the process's threads are confined to what they need of this host
    ///
    /// Each thread may make the system calls of its kind and open the files that it serves, and gives
    /// up all other rights, so that a guest that breaks out of its machine does not have them. The
    /// default is auto, and strict with exec --sandbox.
    #[arg(long, value_name = "HOW", value_enum)]
    pub confine: Option<Confinement>,

    /// The most that the machine takes of this host: cpu=N,memory=SIZE,io=SIZE
    ///
    /// cpu     processor time: a number of processors such as 0.5, or 50%
    /// memory  memory of the process; more ends the machine. At least --memory and 256M
    /// io      bytes per second that are read from storage and written to it, such as 20M
    /// cpu and memory are kept by a control group if this process can make one (tollgate doctor says so),
    /// otherwise, as io always, by counting: while the machine is over a limit, its processor rests.
    #[arg(long, value_name = "LIMITS", value_parser = HostLimits::parse, verbatim_doc_comment)]
    pub limit: Option<HostLimits>,

    /// The machine's place among others.
    #[command(flatten)]
    pub presence: PresenceArguments,
}

impl MachineArguments {
    /// Writes what these flags say into `config`.
    pub fn apply(&self, config: &mut VmConfig) {
        config.memory_bytes = self.memory;
        config.memory_backing = match self.secret_memory {
            true => MemoryBackingChoice::Secret,
            false => self.memory_backing.choice(),
        };
        config.cpu = self.cpu;
        config.hpet = self.hpet == Switch::On && !self.no_hpet;
    }
}

/// What holds guest RAM.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryBacking {
    /// The host's memory, which the host may move to its swap space
    Anonymous,
    /// The host's memory, all of it from the start and never paged out ('ulimit -l' must allow it)
    Resident,
    /// A file without a name in $TMPDIR (or /var/tmp), to which the host may page out
    Pageable,
}

impl MemoryBacking {
    /// The machine's value for this choice.
    fn choice(self) -> MemoryBackingChoice {
        match self {
            Self::Anonymous => MemoryBackingChoice::Anonymous,
            Self::Resident => MemoryBackingChoice::Resident,
            Self::Pageable => MemoryBackingChoice::Pageable,
        }
    }
}

/// Parses a number of processors, which can only be 1.
fn processors(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(1) => Ok(1),
        Ok(2..) => Err("a guest has one processor; give 1, or leave the flag out".into()),
        _ => Err("expected 1, the number of a guest's processors".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_one_processor() {
        assert_eq!(processors("1"), Ok(1));
        for (text, why) in [
            ("2", "one processor"),
            ("0", "expected 1"),
            ("", "expected 1"),
        ] {
            assert!(processors(text).unwrap_err().contains(why), "{text}");
        }
    }
}
