//! Turns the argument parser's errors, which take several lines, into one line that
//! says what is wrong and what to do.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::cli::{definition, subcommands};
use crate::failure::{Failure, one_line};

/// What is wrong with the command line `words`, for which the parser returned `error`.
pub fn explain(error: &Error, words: &[OsString]) -> Failure {
    let help = help_hint(words);
    let argument = context(error, ContextKind::InvalidArg);
    let value = context(error, ContextKind::InvalidValue);
    let message = match error.kind() {
        ErrorKind::UnknownArgument => unknown(error, &argument, words, &help),
        // Firmware boots disks, so a kernel is not required.
        ErrorKind::MissingRequiredArgument if argument == "--kernel <PATH>" => {
            format!("nothing to boot: give --kernel, --drive, --floppy or --cdrom; {help}")
        }
        ErrorKind::MissingRequiredArgument => match refinement(&argument, words) {
            Some(given) => format!("{given} needs {argument}; {help}"),
            None => format!("missing {argument}; {help}"),
        },
        ErrorKind::InvalidValue if value.is_empty() => {
            format!("{argument} needs a value; {help}")
        }
        ErrorKind::InvalidValue => {
            let allowed = context(error, ContextKind::ValidValue);
            format!("{argument}: '{value}' is not one of: {allowed}; {help}")
        }
        ErrorKind::ValueValidation => {
            let reason = std::error::Error::source(error)
                .map_or_else(|| "wrong value".into(), ToString::to_string);
            let reason = in_words(&reason);
            format!("{argument}: '{value}': {reason}")
        }
        ErrorKind::ArgumentConflict => match context(error, ContextKind::PriorArg) {
            other if other.is_empty() || other == argument => {
                format!("{argument} was given twice; {help}")
            }
            other => format!("{argument} cannot be used with {other}; {help}"),
        },
        ErrorKind::InvalidSubcommand => {
            let name = context(error, ContextKind::InvalidSubcommand);
            format!(
                "unknown command '{name}': expected {}; {help}",
                commands(words)
            )
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("no command given: expected {}; {help}", commands(words))
        }
        ErrorKind::InvalidUtf8 => format!("an argument is not valid UTF-8; {help}"),
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            let first = first.trim_start_matches("error: ");
            format!("{first}; {help}")
        }
    };
    Failure::usage(one_line(&message))
}

/// The given flag that says more about the missing one, as `--trace-since` does about
/// `--trace <FILE>`.
fn refinement(missing: &str, words: &[OsString]) -> Option<String> {
    let flag = missing
        .split(' ')
        .next()
        .filter(|it| it.starts_with("--"))?;
    let words = words.iter().filter_map(|word| word.to_str());
    let mut flags = words.filter_map(|word| word.split('=').next());
    flags
        .find(|word| {
            let rest = word.strip_prefix(flag);
            rest.is_some_and(|rest| rest.starts_with('-'))
        })
        .map(str::to_owned)
}

/// Words a reason that the standard library gives for numbers as our messages do.
fn in_words(reason: &str) -> String {
    match reason {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "expected a whole number".into()
        }
        "number too large to fit in target type" => "the number is too large".into(),
        other => match other
            .split_once(" is not in ")
            .map(|it| it.1.split_once("..="))
        {
            Some(Some((least, most))) => format!("expected a number from {least} to {most}"),
            _ => other.into(),
        },
    }
}

/// The subcommands that could come next: `run, doctor or control`.
fn commands(words: &[OsString]) -> String {
    let (_, names) = subcommands(words);
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

fn unknown(error: &Error, argument: &str, words: &[OsString], help: &str) -> String {
    if let Some(name) = single_dash_word(argument, words) {
        return format!("unknown flag '-{name}': long flags take two dashes, --{name}; {help}");
    }
    if !argument.starts_with('-') {
        return format!("unexpected argument '{argument}'; {help}");
    }
    let suggestion = context(error, ContextKind::SuggestedArg);
    match suggestion.as_str() {
        suggestion if suggestion.is_empty() || !is_shown(suggestion, words) => {
            format!("unknown flag '{argument}'; {help}")
        }
        suggestion => format!("unknown flag '{argument}': did you mean {suggestion}? {help}"),
    }
}

/// Whether help shows this flag. One that it hides, as for developers, is no suggestion.
fn is_shown(flag: &str, words: &[OsString]) -> bool {
    let mut command = definition();
    for name in subcommands(words).0 {
        command = match command.find_subcommand(name) {
            Some(next) => next.clone(),
            None => return false,
        };
    }
    let long = flag.trim_start_matches("--");
    command.get_arguments().any(|arg| {
        let names = arg.get_long_and_visible_aliases().unwrap_or_default();
        !arg.is_hide_set() && names.contains(&long)
    })
}

/// The word such as `-kernel`, as QEMU's users type it, whose first letter the parser
/// took for an unknown short flag.
fn single_dash_word<'a>(argument: &str, words: &'a [OsString]) -> Option<&'a str> {
    let is_short_flag = argument.len() == 2 && argument != "--";
    words
        .iter()
        .filter_map(|word| word.to_str())
        .find(|word| is_short_flag && word.len() > 2 && word.starts_with(argument))
        .and_then(|word| word.strip_prefix('-'))
}

/// A hint at the help of the subcommand in `words`.
fn help_hint(words: &[OsString]) -> String {
    let (path, _) = subcommands(words);
    let words = ["tollgate"]
        .into_iter()
        .chain(path.iter().map(String::as_str));
    let words: Vec<&str> = words.collect();
    format!("try '{} --help'", words.join(" "))
}

/// The parser's knowledge about the error, as text; empty if it has none.
fn context(error: &Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}
