//! Flags about the machine itself that `tollgate run` and `tollgate exec` share.

use clap::Args;
use tollgate_machine::config::VmConfig;

use crate::cli::{MemoryBacking, Switch};
use crate::knob_flags::KnobArguments;
use crate::size;

/// The flags.
#[derive(Args, Debug)]
pub struct MachineArguments {
    /// What holds guest RAM
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = MemoryBacking::Anonymous)]
    pub memory_backing: MemoryBacking,

    /// How many processors the guest has: 1, which is all that there can be
    #[arg(long, value_name = "N", value_parser = processors)]
    pub cpus: Option<u32>,

    /// Whether the machine has a high-precision event timer (HPET)
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = Switch::On)]
    pub hpet: Switch,

    /// The name that QEMU's users know for --hpet off.
    #[arg(long, hide = true, conflicts_with = "hpet")]
    pub no_hpet: bool,

    /// Most memory that translated code may take
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    pub code_cache: u64,

    /// Decode all translated code a second time and check it (for developers)
    #[arg(long)]
    pub verify_code: bool,

    /// Check all cached address translations against what a processor may have cached (for
    /// developers; slow)
    #[arg(long)]
    pub verify_shadow: bool,

    /// Knobs.
    #[command(flatten)]
    pub knobs: KnobArguments,
}

impl MachineArguments {
    /// Has `config` say what the flags say.
    pub fn apply(&self, config: &mut VmConfig) {
        config.memory_backing = self.memory_backing.choice();
        config.hpet = self.hpet == Switch::On && !self.no_hpet;
        config.code_cache_bytes = self.code_cache;
        config.verify_code = self.verify_code;
        config.verify_shadow = self.verify_shadow;
        self.knobs.apply(config);
    }
}

/// A number of processors, of which there is only one.
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
