//! `--knob NAME=VALUE`: sets a knob from the list that `tollgate set` and `tollgate lab` use too.

use std::ffi::OsString;

use clap::builder::PossibleValuesParser;
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use tollgate_machine::config::{MemoryBackingChoice, UserCode, VmConfig};
use tollgate_machine::knobs::{self, Assignment, KNOBS, Settings};

use crate::columns;
use crate::failure::Failure;
use crate::words;

/// The flag, without its dashes.
const FLAG: &str = "knob";

/// The maximum width of a line of the list.
const WIDTH: usize = 96;

/// Sets the knobs that have another default here than in experiments: programs run in the way that is
/// fastest for each, but cannot run natively in secret memory.
pub fn set_defaults(config: &mut VmConfig) {
    config.user_code = match config.memory_backing {
        MemoryBackingChoice::Secret => UserCode::Translated,
        _ => UserCode::Adaptive,
    };
}

/// The knobs that were given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnobArguments {
    assignments: Vec<Assignment>,
}

impl KnobArguments {
    /// Writes the values of the knobs into `config`.
    ///
    /// # Errors
    /// A knob was given twice.
    pub fn apply(&self, config: &mut VmConfig) -> Result<(), Failure> {
        knobs::check_distinct(&self.assignments)
            .map_err(|error| Failure::usage(format!("--{FLAG}: {error}")))?;
        set_defaults(config);
        for assignment in &self.assignments {
            assignment.apply(config);
        }
        Ok(())
    }
}

impl FromArgMatches for KnobArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = matches.get_many::<Assignment>(FLAG);
        let given = given.into_iter().flatten().copied();
        let old = KNOBS.iter().filter_map(|knob| {
            let value = matches.get_one::<String>(knob.name)?;
            // The parser accepts known values only.
            Assignment::of(knob.name, value).ok()
        });
        Ok(Self {
            assignments: given.chain(old).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for KnobArguments {
    fn augment_args(command: Command) -> Command {
        let command = command.arg(
            Arg::new(FLAG)
                .long(FLAG)
                .value_name("NAME=VALUE")
                .action(ArgAction::Append)
                .value_parser(Assignment::parse)
                .help(
                    "A setting that experiments compare; 'help' lists the settings. May be repeated",
                )
                .long_help(
                    "A setting that experiments compare; 'help' lists the settings. May be repeated\n\n\
                     The settings change how fast a guest runs, never what it computes. 'tollgate set' \
                     changes them in a running machine, and 'tollgate lab' compares them.",
                ),
        );
        // Each knob was a flag of its own in earlier versions; commands that use those flags still
        // work.
        KNOBS.iter().fold(command, |command, knob| {
            command.arg(
                Arg::new(knob.name)
                    .long(knob.name)
                    .value_name("VALUE")
                    .value_parser(PossibleValuesParser::new(knob.values))
                    .hide(true),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Whether the command line asks for the list of knobs. It need not say what to run then.
pub fn are_asked_for(words: &[OsString]) -> bool {
    words::ask_for_help_on("--knob", words)
}

/// The knobs with their values, defaults and meanings, for people.
pub fn list() -> String {
    let mut text = String::new();
    let mut config = VmConfig::default();
    set_defaults(&mut config);
    let defaults = Settings::of(&config);
    for (knob, (_, default)) in KNOBS.iter().zip(defaults.names()) {
        let name = format!("{}={}", knob.name, knob.values.join("|"));
        text.push_str(&columns::indented("", &name, WIDTH));
        let meaning = format!("{} [default: {default}]", knob.what);
        text.push_str(&columns::indented("    ", &meaning, WIDTH));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<KnobArguments, Error> {
        let command = KnobArguments::augment_args(Command::new("run"));
        let matches = command.try_get_matches_from([&["run"], words].concat())?;
        KnobArguments::from_arg_matches(&matches)
    }

    fn settings(words: &[&str]) -> Vec<(&'static str, &'static str)> {
        let mut config = VmConfig::default();
        assert!(parsed(words).unwrap().apply(&mut config).is_ok());
        Settings::of(&config).names().collect()
    }

    #[test]
    fn each_value_of_each_knob_is_accepted_and_under_its_old_flag_too() {
        for knob in KNOBS {
            for value in knob.values {
                let given = settings(&["--knob", &format!("{}={value}", knob.name)]);
                assert!(given.contains(&(knob.name, *value)));
                let flag = format!("--{}", knob.name);
                assert_eq!(settings(&[&flag, value]), given);
            }
            assert!(parsed(&["--knob", &format!("{}=x", knob.name)]).is_err());
            assert!(parsed(&[&format!("--{}=x", knob.name)]).is_err());
        }
    }

    #[test]
    fn a_knob_is_given_once() {
        let refused = |words: &[&str]| {
            let applied = parsed(words).unwrap().apply(&mut VmConfig::default());
            applied.unwrap_err().message
        };
        for words in [
            &["--knob", "vif=on", "--knob", "vif=off"][..],
            &["--knob", "vif=on", "--vif", "on"],
        ] {
            assert_eq!(refused(words), "--knob: the knob vif was given twice");
        }
        assert_eq!(parsed(&[]).unwrap(), KnobArguments::default());
        assert!(settings(&[]).contains(&("user-code", "adaptive")));
    }

    #[test]
    fn the_list_has_each_knob_in_narrow_lines() {
        let text = list();
        for knob in KNOBS {
            let start = format!("{}={}", knob.name, knob.values[0]);
            assert!(text.lines().any(|line| line.starts_with(&start)), "{text}");
        }
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
    }
}
