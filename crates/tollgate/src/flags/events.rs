//! Flags about what happens when the guest is reset, panics or is paused.

use clap::{Args, ValueEnum};
use tollgate_machine::config::{Realtime, TripleFaultAction, VmConfig};

use crate::exit_on::{self, ExitCodes, ExitOn};
use crate::failure::Failure;

/// Flags about events in the life of the machine that `tollgate run` runs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Resets, panics and pauses")]
pub struct EventArguments {
    /// Start the virtual machine again when the guest resets it
    #[arg(long)]
    pub reboot: bool,

    /// What ends the run, and its exit code: panic[=CODE] or reset[=CODE]. May be repeated
    ///
    /// panic: a panic that the guest's kernel reports ends the machine at once, with code 5 or CODE.
    /// Without this flag the guest continues to its last messages and its reset, and the exit code
    /// is 5 too. reset: a reset ends the machine with code 6 or CODE, instead of 0.
    /// Linux reports panics once the module pvpanic-mmio is loaded, which udev does.
    #[arg(
        long,
        value_name = "EVENT",
        value_parser = exit_on::parse,
        verbatim_doc_comment
    )]
    exit_on: Vec<ExitOn>,

    /// What a triple fault does
    ///
    /// stop: the run ends with exit code 3 and shows the registers. reset: the machine is reset, for
    /// systems that reset themselves in this way (Linux with reboot=t): the run ends with exit code
    /// 0, or with --reboot the machine starts again. With firmware only the processor is reset, and
    /// continues in the firmware. The default is stop with --kernel, reset with firmware.
    #[arg(long, value_name = "ACTION", value_enum, verbatim_doc_comment)]
    triple_fault: Option<TripleFault>,

    /// What the guest's clocks do after a pause, and after a restore from a snapshot
    ///
    /// step: after a pause they advance by its length, so that the guest's time of day stays right;
    /// timers that expired in the pause fire when it ends. After a restore the real-time clock and
    /// KVM's wall clock show the host's time ('hwclock -s' in the guest takes it over); timers and
    /// monotonic time continue where they stopped. keep: all clocks continue where they stopped;
    /// the guest notices nothing, and its time of day is late from then on.
    #[arg(
        long,
        value_name = "CHOICE",
        value_enum,
        default_value_t = RealtimeChoice::Step,
        verbatim_doc_comment
    )]
    realtime: RealtimeChoice,
}

impl EventArguments {
    /// Writes what these flags say into `config`, which already has the firmware.
    pub fn apply(&self, config: &mut VmConfig) {
        config.reboot = self.reboot;
        config.realtime = match self.realtime {
            RealtimeChoice::Step => Realtime::Step,
            RealtimeChoice::Keep => Realtime::Keep,
        };
        config.triple_fault = match self.triple_fault {
            Some(TripleFault::Reset) => TripleFaultAction::Reset,
            Some(TripleFault::Stop) => TripleFaultAction::Stop,
            // Programs of the 286 return to real mode by a triple fault, with firmware's help.
            None if config.firmware.is_some() => TripleFaultAction::Reset,
            None => TripleFaultAction::Stop,
        };
    }

    /// The exit codes of the run.
    ///
    /// # Errors
    /// A reset that starts the machine again has no exit code.
    pub fn exit_codes(&self) -> Result<ExitCodes, Failure> {
        let ends_at_reset = |on: &ExitOn| matches!(on, ExitOn::Reset(_));
        if self.reboot && self.exit_on.iter().any(ends_at_reset) {
            return Err(Failure::usage(
                "--exit-on reset cannot be used with --reboot, which starts the machine again \
                 after a reset",
            ));
        }
        Ok(ExitCodes::of(&self.exit_on))
    }
}

/// What a triple fault does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum TripleFault {
    /// The guest is reset
    Reset,
    /// The run ends and shows the processor's registers
    Stop,
}

/// What the guest's clocks do after a pause or a restore.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum RealtimeChoice {
    /// They advance by the length of the pause, or show the host's time of day
    Step,
    /// They continue where they stopped
    Keep,
}
