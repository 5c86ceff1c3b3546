//! How guest code is translated, and checks of that: flags that `tollgate run` and `tollgate exec`
//! share.

use clap::{Args, ValueEnum};
use tollgate_machine::config::{RegisterMapChoice, VmConfig};

use super::knobs::KnobArguments;
use crate::failure::Failure;
use crate::size;

/// Flags for those who develop or measure Tollgate.
#[derive(Args, Debug)]
#[command(next_help_heading = "For developers and experiments")]
pub struct DeveloperArguments {
    /// Maximum memory for translated code
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    code_cache: u64,

    /// Decode all translated code a second time and check it
    #[arg(long)]
    verify_code: bool,

    /// Check all cached address translations against what a processor may have cached (slow)
    #[arg(long)]
    verify_shadow: bool,

    /// Where guest registers live while guest code runs
    #[arg(
        long,
        value_name = "MAP",
        value_enum,
        default_value_t = RegisterMapName::Legacy,
        hide = true
    )]
    register_map: RegisterMapName,

    /// The knobs that `--knob` sets.
    #[command(flatten)]
    knobs: KnobArguments,
}

impl DeveloperArguments {
    /// Writes what these flags say into `config`.
    ///
    /// # Errors
    /// A knob was given twice.
    pub fn apply(&self, config: &mut VmConfig) -> Result<(), Failure> {
        config.code_cache_bytes = self.code_cache;
        config.verify_code = self.verify_code;
        config.verify_shadow = self.verify_shadow;
        config.register_map = match self.register_map {
            RegisterMapName::Legacy => RegisterMapChoice::Legacy,
            RegisterMapName::Spilled => RegisterMapChoice::Spilled,
        };
        self.knobs.apply(config)
    }
}

/// Where guest registers live while guest code runs.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum RegisterMapName {
    /// All in host registers
    Legacy,
    /// As many as possible in memory
    Spilled,
}
