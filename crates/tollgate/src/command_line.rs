//! Parses the words of a command line, and answers those that ask for help or a list, or that are
//! wrong.

use std::ffi::OsString;
use std::os::fd::AsFd;

use clap::Parser;

use crate::cli::{Cli, Subcommand, definition};
use crate::standard_output::print_and_end;
use crate::{cpu_models, devices, exit_code, flags, foreign_words, help_text, host, usage, words};

/// The command line was answered already (help, version, or an error); the process exits with this
/// code.
pub struct Answered(pub u8);

/// Parses a command line, whose first word is the program's own name.
///
/// # Errors
/// [`Answered`] if help, the version or an error message was printed instead.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Subcommand, Answered> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_some_and(|word| word == "exec") {
        let rest = words.split_off(2);
        words.extend(crate::exec::join_networks(rest));
    }
    if let Some(list) = asked_list(&words) {
        return Err(Answered(print_and_end(&list, exit_code::SUCCESS)));
    }
    let words = crate::lab::with_show(words);
    if let Some(failure) = foreign_words::answer(&words) {
        return Err(Answered(code_of(&words, failure.report())));
    }
    match Cli::try_parse_from(&words) {
        Ok(cli) => Ok(cli.subcommand),
        Err(error) if error.use_stderr() => {
            let code = usage::explain(&error, &words).report();
            Err(Answered(code_of(&words, code)))
        }
        Err(help) => {
            let columns = host::window_size(std::io::stdout().as_fd()).map(|it| it.0);
            let named = || std::env::var("COLUMNS").ok()?.parse().ok();
            let columns = columns.or_else(named).unwrap_or(help_text::MOST_COLUMNS);
            let fitted = help_text::fit(definition(), columns).try_get_matches_from(&words);
            let help = fitted.err().unwrap_or(help);
            let code = print_and_end(&help.to_string(), exit_code::SUCCESS);
            Err(Answered(code))
        }
    }
}

/// The list that `--cpu help`, `--device help` or `--knob help` asks for, if one of them is given.
fn asked_list(words: &[OsString]) -> Option<String> {
    let is_exec = words.get(1).is_some_and(|word| word == "exec");
    let own = match definition().find_subcommand("exec") {
        Some(exec) if is_exec => &words[..2 + words::own(&words[2..], exec).len()],
        _ => words,
    };
    if cpu_models::are_asked_for(own) {
        Some(cpu_models::list())
    } else if flags::knobs_are_asked_for(own) {
        Some(flags::list_of_knobs())
    } else if devices::are_asked_for(own) && !is_exec {
        Some(devices::list())
    } else {
        None
    }
}

/// The exit code of a wrong command line. `tollgate exec` has a code of its own for that, because
/// its low exit codes are those of the guest's command.
fn code_of(words: &[OsString], code: u8) -> u8 {
    match words.get(1).is_some_and(|word| word == "exec") {
        true => exit_code::EXEC_FAILED,
        false => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_asked_for_before_the_guest_s_command_only() {
        let asked = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            asked_list(&words).is_some()
        };
        for line in [
            "tollgate run --cpu help",
            "tollgate run --device=help",
            "tollgate run --knob help",
            "tollgate exec --cpu help",
            "tollgate exec -m 1G -n --knob=help",
        ] {
            assert!(asked(line), "{line}");
        }
        for line in [
            "tollgate run --cpu host --append help",
            "tollgate exec qemu --cpu help",
            "tollgate exec -n -m 1G qemu --cpu help",
            "tollgate exec -- qemu --cpu help",
            "tollgate stats --knob help",
        ] {
            assert!(!asked(line), "{line}");
        }
    }
}
