//! The bare-metal guest in `guests/cost.S`: its image, its table of loops, and the commands by
//! which the host makes it run one of them.

use super::{CostError, virtio};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_exits::{ExitCounts, ExitKind};
use tollgate_machine::config::VmConfig;
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::StopRequest;
use tollgate_x86::{CpuState, Cr0, Gpr, PhysicalAddress, SegmentRegister};

/// The assembled guest.
const IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cost.bin"));

// These constants must agree with `guests/cost.inc`.
const IMAGE_ADDRESS: u64 = 0x8000;
const HEADER: usize = 8;
const COMMAND: u64 = 0x7000;
const COMMAND_DONE: u64 = COMMAND + 32;
const FRAME: u64 = COMMAND + 36;
const FRAME_WORDS: u64 = 7;
const SAMPLES: u64 = 0x2_0000;
const READY: u8 = 1;
/// Maximum number of values that one command may store.
pub const MOST_SAMPLES: usize = 8192;

/// Size of guest RAM in bytes.
const MEMORY: u64 = 16 << 20;
/// Size of the code cache in bytes.
const CODE_CACHE: usize = 16 << 20;

/// The processor's mode while exits are measured.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum GuestMode {
    /// 16-bit code in real mode.
    Real,
    /// 32-bit code in ring 0 without paging.
    Protected,
    /// 32-bit code in ring 0 with paging.
    Paged,
    /// 32-bit code in ring 3 with paging and IOPL 3.
    Ring3,
    /// 64-bit code in ring 0.
    #[serde(rename = "64-bit")]
    Long,
    /// 64-bit code in ring 3 with IOPL 3.
    #[serde(rename = "64-ring-3")]
    LongRing3,
}

impl GuestMode {
    /// All modes, in the order of the output.
    pub const ALL: [Self; 6] = [
        Self::Real,
        Self::Protected,
        Self::Paged,
        Self::Ring3,
        Self::Long,
        Self::LongRing3,
    ];

    /// The mode's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Protected => "protected",
            Self::Paged => "paged",
            Self::Ring3 => "ring-3",
            Self::Long => "64-bit",
            Self::LongRing3 => "64-ring-3",
        }
    }

    const fn number(self) -> u32 {
        self as u32
    }
}

/// One line of the guest's table of loops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loops {
    /// Name of the kind of exit.
    pub name: String,
    modes: u32,
    /// Entry of the loop that times each repetition separately.
    pub single: u32,
    /// Entry of the loop that times many together.
    pub batch: u32,
}

impl Loops {
    /// Whether the loops may run in this mode.
    pub fn runs_in(&self, mode: GuestMode) -> bool {
        self.modes & (1 << mode.number()) != 0
    }
}

fn word(offset: usize) -> u32 {
    IMAGE
        .get(offset..offset + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

/// The guest's table. A kind has one line for each code size that supports it.
pub fn table() -> Vec<Loops> {
    const LINE: usize = 32;
    let offset = |address: u32| (address as usize).saturating_sub(IMAGE_ADDRESS as usize);
    let (start, end) = (offset(word(HEADER)), offset(word(HEADER + 4)));
    (start..end)
        .step_by(LINE)
        .map(|line| {
            let name = IMAGE.get(line..line + 20).unwrap_or_default();
            Loops {
                name: String::from_utf8_lossy(name)
                    .trim_end_matches('\0')
                    .to_owned(),
                modes: word(line + 20),
                single: word(line + 24),
                batch: word(line + 28),
            }
        })
        .collect()
}

/// The parameters of one command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The entry of the loop to run, from [`Loops`].
    pub entry: u32,
    /// Number of values to store, at most [`MOST_SAMPLES`].
    pub count: u32,
    /// Repetitions for each value: 1 for single loops.
    pub repeat: u32,
    /// Nanoseconds until timers fire.
    pub ticks: u32,
}

/// The result of a command.
pub struct Outcome {
    /// Cycles between the two readings, for each value.
    pub values: Vec<u64>,
    before: ExitCounts,
    after: ExitCounts,
    /// The number of instructions that fast paths executed, by the name of their kind.
    fast_paths: Vec<(&'static str, u64)>,
}

impl Outcome {
    /// The number of exits of this kind during the command.
    pub fn exits(&self, kind: ExitKind) -> u64 {
        self.after.get(kind).saturating_sub(self.before.get(kind))
    }

    /// The number of instructions that fast paths executed instead of exits of this kind.
    pub fn fast_paths(&self, kind: ExitKind) -> u64 {
        let of_kind = self
            .fast_paths
            .iter()
            .filter(|(name, _)| *name == kind.name());
        of_kind.map(|(_, count)| count).sum()
    }

    /// The number of all exits during the command, except those around its loop.
    pub fn total(&self) -> u64 {
        let around: u64 = AROUND_A_COMMAND.iter().map(|(_, count)| count).sum();
        let total: u64 = ExitKind::ALL.iter().map(|&kind| self.exits(kind)).sum();
        total.saturating_sub(around)
    }

    /// A list of all exits during the command.
    pub fn all_exits(&self) -> String {
        let counts = ExitKind::ALL.iter().filter_map(|&kind| {
            let count = self.exits(kind);
            (count > 0).then(|| format!("{} {count}", kind.name()))
        });
        counts.collect::<Vec<_>>().join(", ")
    }
}

/// Exits of the guest around every command, in addition to those of its loop.
pub const AROUND_A_COMMAND: [(ExitKind, u64); 2] = [(ExitKind::Cli, 1), (ExitKind::PortOut, 1)];

/// The guest, which runs in one mode and waits for commands.
pub struct Guest {
    pc: Pc,
    vcpu: Vcpu,
    mode: GuestMode,
}

impl Guest {
    /// Builds a machine, and waits until the guest is in `mode`.
    ///
    /// # Errors
    ///
    /// The host refuses resources, or the guest does not reach the mode.
    pub fn start(mode: GuestMode) -> Result<Self, CostError> {
        let refused = |error: io::Error| CostError::Host(error.to_string());
        let mut memory =
            GuestMemory::new(MEMORY).map_err(|error| CostError::Host(error.to_string()))?;
        memory.write(PhysicalAddress(IMAGE_ADDRESS), IMAGE);
        memory.write_u32(PhysicalAddress(COMMAND), mode.number());
        let mut state = CpuState::at_reset();
        state.load_real_mode_segment(SegmentRegister::Cs, 0);
        state.rip = IMAGE_ADDRESS;
        state.gpr[Gpr::Rsp as usize] = COMMAND;
        state.cr0 = Cr0::ET.bits();
        state.idtr.limit = 0x3ff;
        let mut config = VmConfig::default();
        config.virtual_interrupts.flag = false;
        let devices = virtio::devices(&mut config)?;
        let mut pc = Pc::with_virtio(&config, memory.clone(), Box::new(io::sink()), devices);
        virtio::start(&mut pc, &mut memory);
        let mut vcpu = Vcpu::new(state, memory, CODE_CACHE, false).map_err(refused)?;
        // With this setting, sensitive instructions are exits whose cost can be measured.
        vcpu.change_settings(|settings| settings.virtual_interrupts = config.virtual_interrupts);
        let (kick, news) = (vcpu.kick(), pc.news());
        pc.set_kick(Some(Arc::new(move || {
            news.store(true, Ordering::Release);
            kick.kick();
        })));
        let mut guest = Self { pc, vcpu, mode };
        guest.run_until_ready("the guest's start")?;
        Ok(guest)
    }

    /// The frequency of the guest's time-stamp counter in kHz.
    pub fn tsc_khz(&self) -> u64 {
        self.pc.tsc_khz()
    }

    /// The processor, for changing the ledger's settings.
    pub fn vcpu_mut(&mut self) -> &mut Vcpu {
        &mut self.vcpu
    }

    /// Runs a command; `what` is its name in error messages.
    ///
    /// # Errors
    ///
    /// The guest ended unexpectedly, or reports fewer repetitions than requested.
    pub fn run(&mut self, what: &str, command: Command) -> Result<Outcome, CostError> {
        let count = command.count.min(MOST_SAMPLES as u32);
        let fields = [
            self.mode.number(),
            command.entry,
            count,
            command.repeat,
            command.ticks,
        ];
        let memory = self.vcpu.memory_mut();
        for (field, address) in fields.into_iter().zip((COMMAND..).step_by(4)) {
            memory.write_u32(PhysicalAddress(address), field);
        }
        let before = self.vcpu.exit_counts().clone();
        let fast_paths_before: Vec<_> = self.vcpu.counts().fast_paths().collect();
        self.run_until_ready(what)?;
        let after = self.vcpu.exit_counts().clone();
        let counts = self.vcpu.counts();
        let fast_paths = counts.fast_paths().zip(fast_paths_before);
        let fast_paths = fast_paths.map(|((name, after), (_, before))| (name, after - before));
        let fast_paths = fast_paths.collect();
        let memory = self.vcpu.memory_mut();
        let done = memory.read_u32(PhysicalAddress(COMMAND_DONE));
        let asked = count.wrapping_mul(command.repeat);
        if done != asked {
            return Err(CostError::WorkNotDone(format!(
                "{what} ({}): the guest repeated it {done} times instead of {asked}",
                self.mode.name()
            )));
        }
        let values = (0..u64::from(count))
            .map(|index| u64::from(memory.read_u32(PhysicalAddress(SAMPLES + 4 * index))))
            .collect();
        Ok(Outcome {
            values,
            before,
            after,
            fast_paths,
        })
    }

    fn run_until_ready(&mut self, what: &str) -> Result<(), CostError> {
        let why = match self.vcpu.run(&mut self.pc) {
            VcpuStop::Requested(StopRequest::DebugExit(READY)) => return Ok(()),
            VcpuStop::Requested(StopRequest::DebugExit(_)) => {
                let memory = self.vcpu.memory_mut();
                let words: Vec<String> = (0..FRAME_WORDS)
                    .map(|word| memory.read_u32(PhysicalAddress(FRAME + 4 * word)))
                    .map(|word| format!("{word:08x}"))
                    .collect();
                format!(
                    "an unexpected exception; its frame and CR2: {}",
                    words.join(" ")
                )
            }
            VcpuStop::Requested(request) => format!("the guest asked for {request}"),
            VcpuStop::TripleFault(state) => format!("triple fault\n{state}"),
            VcpuStop::NotImplemented(why) => why,
        };
        Err(CostError::WorkNotDone(format!(
            "{what} ({}): {why}",
            self.mode.name()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_monitor::hypercall;

    #[test]
    fn the_guest_and_the_monitor_agree_on_hypercalls() {
        assert_eq!(word(HEADER + 8), hypercall::NULL);
        assert_eq!(word(HEADER + 12), hypercall::GET_VERSION);
    }

    #[test]
    fn no_line_of_the_table_is_empty() {
        let table = table();
        assert!(table.len() > 60);
        for line in table {
            assert!(!line.name.is_empty() && line.modes != 0, "{line:?}");
            assert!(line.single > 0x8000 && line.batch > line.single, "{line:?}");
        }
    }
}
