//! The bare-metal guest in `guests/cost.S` as every machine runs it: its image, its modes, its table of loops, and the
//! words of memory by which a host makes it run one of them.

/// The assembled guest.
pub(super) const IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cost.bin"));

// These constants must agree with `guests/cost.inc`.
pub(super) const IMAGE_ADDRESS: u64 = 0x8000;
pub(super) const HEADER: usize = 8;
pub(super) const COMMAND: u64 = 0x7000;
pub(super) const COMMAND_DONE: u64 = COMMAND + 32;
pub(super) const FRAME: u64 = COMMAND + 36;
pub(super) const FRAME_WORDS: u64 = 7;
/// The number of disk requests whose data did not arrive.
pub(super) const WRONG_DATA: u64 = COMMAND + 64;
pub(super) const SAMPLES: u64 = 0x2_0000;
pub(super) const READY: u8 = 1;
/// The word that says whose turn it is: 0 is the guest's.
pub(super) const TURN: u64 = COMMAND + 20;
/// What CPUID says: ECX of leaf 1, and EBX of leaf 7 in the next word.
pub(super) const FEATURES: u64 = COMMAND + 24;
/// Maximum number of values that one command may store.
pub const MOST_SAMPLES: usize = 8192;

/// Size of guest RAM in bytes.
pub const MEMORY: u64 = 16 << 20;

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

    pub(super) const fn number(self) -> u32 {
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
    /// The loops of an event in one mode.
    pub(super) fn new(name: &str, mode: GuestMode, single: u32, batch: u32) -> Self {
        Self {
            name: name.to_owned(),
            modes: 1 << mode.number(),
            single,
            batch,
        }
    }

    /// Whether the loops may run in this mode.
    pub fn runs_in(&self, mode: GuestMode) -> bool {
        self.modes & (1 << mode.number()) != 0
    }
}

pub(super) fn word(offset: usize) -> u32 {
    IMAGE
        .get(offset..offset + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

/// Where in the image an address is.
fn offset(address: u32) -> usize {
    (address as usize).saturating_sub(IMAGE_ADDRESS as usize)
}

/// The guest's table. A kind has one line for each code size that supports it.
pub fn table() -> Vec<Loops> {
    const LINE: usize = 32;
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

impl Command {
    /// The words of a command, and where each belongs. The last one gives the guest its turn.
    pub(super) fn words(&self, mode: GuestMode) -> [(u64, u32); 6] {
        [
            (COMMAND, mode.number()),
            (COMMAND + 4, self.entry),
            (COMMAND + 8, self.count),
            (COMMAND + 12, self.repeat),
            (COMMAND + 16, self.ticks),
            (TURN, 0),
        ]
    }

    /// The number of repetitions that the guest must report.
    pub(super) fn repetitions(&self) -> u32 {
        self.count.wrapping_mul(self.repeat)
    }
}

/// The image for a machine that knows only AMD's instruction for hypercalls.
pub(super) fn image_with_vmmcall() -> Vec<u8> {
    const VMMCALL: [u8; 3] = [0x0f, 0x01, 0xd9];
    let mut image = IMAGE.to_vec();
    let (start, end) = (offset(word(HEADER + 16)), offset(word(HEADER + 20)));
    for at in (start..end).step_by(4).map(|line| offset(word(line))) {
        if let Some(instruction) = image.get_mut(at..at + VMMCALL.len()) {
            instruction.copy_from_slice(&VMMCALL);
        }
    }
    image
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

    #[test]
    fn only_hypercalls_differ_in_the_image_for_amd() {
        let other = image_with_vmmcall();
        let changed: Vec<usize> = (0..other.len())
            .filter(|&at| other[at] != IMAGE[at])
            .collect();
        // Three kinds contain one, in two loops for each of three code widths.
        assert_eq!(changed.len(), 18);
        for at in changed {
            assert_eq!(IMAGE[at - 2..=at], [0x0f, 0x01, 0xc1]);
            assert_eq!(other[at], 0xd9);
        }
    }
}
