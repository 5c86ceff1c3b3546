//! What a run of the small system does: its work, the mode of the processor, and the rate of timer interrupts.

/// What the system should do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Waits at the prompt, polling.
    Idle {
        /// Number of timer ticks, at least 1.
        ticks: u16,
    },
    /// Copies files and displays the copies with the command `type`.
    CopyType {
        /// Number of repetitions, at least 1.
        rounds: u16,
    },
    /// Files, screen and arithmetic.
    Mix {
        /// Number of repetitions, at least 1.
        rounds: u16,
    },
    /// Arithmetic, with ticks in the background.
    Compute {
        /// Number of repetitions, at least 1.
        rounds: u16,
    },
    /// Times the events that are most frequent in 16-bit systems.
    Flags {
        /// Repetitions of each event, 1 to 1,000,000,000.
        count: u32,
    },
    /// Prints each line that it receives from the serial port.
    Echo {
        /// Number of lines until it ends, at least 1.
        lines: u16,
    },
}

impl Workload {
    /// The workload's name on the command line and in the output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle { .. } => "idle",
            Self::CopyType { .. } => "copy-type",
            Self::Mix { .. } => "mix",
            Self::Compute { .. } => "compute",
            Self::Flags { .. } => "flags",
            Self::Echo { .. } => "echo",
        }
    }

    fn amount(self) -> String {
        match self {
            Self::Idle { ticks } => format!("ticks={ticks}"),
            Self::CopyType { rounds } | Self::Mix { rounds } | Self::Compute { rounds } => {
                format!("rounds={rounds}")
            }
            Self::Flags { count } => format!("count={count}"),
            Self::Echo { lines } => format!("lines={lines}"),
        }
    }
}

/// How the processor runs the system.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Real mode.
    Real,
    /// A virtual-8086 task at IOPL 0; the guest's monitor emulates CLI, STI, PUSHF, POPF, INT n and
    /// IRET.
    V86,
    /// A virtual-8086 task at IOPL 3: only INT n is passed to the guest's monitor.
    V86Iopl3,
    /// A virtual-8086 task at IOPL 0 with CR4.VME.
    V86Vme,
}

impl Mode {
    /// All modes, in the order of the output.
    pub const ALL: [Self; 4] = [Self::Real, Self::V86, Self::V86Iopl3, Self::V86Vme];

    /// The mode's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::V86 => "v86",
            Self::V86Iopl3 => "v86-iopl3",
            Self::V86Vme => "v86-vme",
        }
    }
}

/// A workload, and how it is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The workload to run.
    pub workload: Workload,
    /// The mode in which the system runs.
    pub mode: Mode,
    /// Timer ticks for each second, 19 to 5000; `None` for the PC's 18.2.
    pub rate: Option<u16>,
}

impl Setup {
    /// The guest's command line.
    pub fn arguments(&self) -> String {
        let (name, amount) = (self.workload.name(), self.workload.amount());
        let mut line = format!("workload={name} {amount} mode={}", self.mode.name());
        if let Some(rate) = self.rate {
            line.push_str(&format!(" rate={rate}"));
        }
        line
    }
}
