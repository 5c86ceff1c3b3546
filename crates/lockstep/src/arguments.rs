//! The command line of `tollgate-lockstep`.

use clap::Parser;
use std::path::PathBuf;

/// Runs a guest in Tollgate and in QEMU, instruction by instruction, and shows where they differ.
#[derive(Parser, Debug)]
#[command(name = "tollgate-lockstep", version)]
pub struct Arguments {
    /// Linux bzImage, multiboot kernel, or boot sector
    #[arg(long, value_name = "PATH", required_unless_present_any = ["random", "floppy", "disk"])]
    pub kernel: Option<PathBuf>,

    /// Instead of a kernel: a guest of random instructions, made from this number
    #[arg(long, value_name = "SEED", conflicts_with_all = ["kernel", "initrd"])]
    pub random: Option<u64>,

    /// Only write the random guest to a file
    #[arg(long, value_name = "PATH", requires = "random")]
    pub write: Option<PathBuf>,

    /// Number of random instructions
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=500_000))]
    pub count: u32,

    /// Instead of a kernel: firmware, from the reset vector on, with this floppy disk; implies
    /// --follow
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kernel", "random", "initrd", "start_at"])]
    pub floppy: Option<PathBuf>,

    /// Instead of a kernel: firmware with this IDE disk; if both are given, the floppy disk boots
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kernel", "random", "initrd", "start_at"])]
    pub disk: Option<PathBuf>,

    /// The firmware [default: the installed SeaBIOS]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kernel", "random"])]
    pub bios: Option<PathBuf>,

    /// Initial RAM disk, or multiboot modules
    #[arg(long, value_name = "PATH")]
    pub initrd: Option<String>,

    /// The kernel's command line
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub append: String,

    /// Guest RAM in MiB, at most 2048
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(2..=2048))]
    pub memory: u64,

    /// Start at this linear address (default: the kernel's entry)
    #[arg(long, value_name = "ADDRESS", value_parser = parse_number)]
    pub start_at: Option<u64>,

    /// End at this linear address
    #[arg(long, value_name = "ADDRESS", value_parser = parse_number)]
    pub until: Option<u64>,

    /// End when a line of the text screen contains this
    #[arg(long, value_name = "TEXT")]
    pub until_text: Option<String>,

    /// End after this many instructions
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    pub steps: u64,

    /// EFLAGS bits that are not compared
    #[arg(long, value_name = "MASK", default_value = "0", value_parser = parse_flags)]
    pub ignore_flags: u32,

    /// Show this many differences that leave EIP equal, taking QEMU's results, before stopping at
    /// one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_going: u32,

    /// Let QEMU run freely and follow its log: much faster, and with interrupts, but stores are not
    /// compared
    #[arg(long)]
    pub follow: bool,

    /// QEMU's processor; the default has no feature that Tollgate lacks
    #[arg(
        long,
        value_name = "MODEL",
        default_value = "qemu32,+nx,-vme,-de,-mce,-mca,-mtrr,-pse36"
    )]
    pub cpu: String,

    /// The command that starts QEMU: qemu-system-x86_64 for 64-bit guests, with --cpu
    #[arg(long, value_name = "COMMAND", default_value = "qemu-system-i386")]
    pub qemu: String,

    /// Check every piece of emitted code with the second decoder pass
    #[arg(long)]
    pub verify_code: bool,
}

/// Parses a number, hexadecimal with `0x`.
fn parse_number(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|error| format!("{error}; expected a number such as 0x100000"))
}

fn parse_flags(text: &str) -> Result<u32, String> {
    u32::try_from(parse_number(text)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(parse_number("16"), Ok(16));
        assert_eq!(parse_number("0x10"), Ok(16));
        assert!(parse_number("0x1_0000").is_err());
        assert!(parse_flags("0x100000000").is_err());
    }
}
