//! A flag of `tollgate run` for each knob, from the one list of knobs.

use clap::builder::PossibleValuesParser;
use clap::error::Error;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use tollgate_machine::config::VmConfig;
use tollgate_machine::knobs::{Assignment, KNOBS, Settings};

/// The flags that were given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnobArguments {
    assignments: Vec<Assignment>,
}

impl KnobArguments {
    /// Has `config` say what the flags say.
    pub fn apply(&self, config: &mut VmConfig) {
        for assignment in &self.assignments {
            assignment.apply(config);
        }
    }
}

impl FromArgMatches for KnobArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |name: &str| {
            let value = matches.get_one::<String>(name)?;
            // The parser has let known values pass only.
            Assignment::of(name, value).ok()
        };
        Ok(Self {
            assignments: KNOBS.iter().filter_map(|knob| given(knob.name)).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for KnobArguments {
    fn augment_args(command: Command) -> Command {
        let defaults = Settings::default().names();
        KNOBS
            .iter()
            .zip(defaults)
            .fold(command, |command, (knob, (_, default))| {
                command.arg(
                    Arg::new(knob.name)
                        .long(knob.name)
                        .value_name("VALUE")
                        .value_parser(PossibleValuesParser::new(knob.values))
                        .help(format!("{} [default: {default}]", knob.what))
                        .help_heading("Knobs (compared by tollgate lab, turned by tollgate set)"),
                )
            })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
