//! The reference of the command line as a page of Markdown, from the same definition as the help.
//!
//! ```text
//! tollgate run --help                    docs/reference/command-line.md
//!   -m, --memory <SIZE>                  - **`-m`, `--memory <SIZE>`**: Guest RAM, such as ...
//!           Guest RAM, such as ...         Default: `256M`.
//!           [default: 256M]
//! ```
//!
//! Flags that a command has in common with `tollgate run` are described there; other commands only
//! name them.

use clap::builder::StyledStr;
use clap::{Arg, Command};

/// The command whose flags others refer to.
const MAIN_COMMAND: &str = "run";

/// Writes the page. `definition` is the whole command line, built.
pub fn page(definition: &Command) -> String {
    let mut page = String::from(HEAD);
    let commands = commands(definition, "");
    page += "| command | what it does |\n|---|---|\n";
    for (name, command) in &commands {
        let about = text(command.get_about());
        page += &format!("| [`{name}`](#{}) | {about} |\n", name.replace(' ', "-"));
    }
    let main = definition.find_subcommand(MAIN_COMMAND);
    let mut last_closing = String::new();
    for (name, command) in &commands {
        let main = main.filter(|_| command.get_name() != MAIN_COMMAND);
        page += &section(name, command, main);
        let closing = text(command.get_after_long_help().or(command.get_after_help()));
        // Neighbouring commands may all end with the same closing words, which are written once.
        if !closing.is_empty() && closing != last_closing {
            page += &format!(
                "\n```text\n{}\n```\n",
                closing.trim_matches('\n').trim_end()
            );
            last_closing = closing;
        }
    }
    page
}

const HEAD: &str = "\
# The command line

Every command and flag, in the words of `--help`. This page is generated from the definition of the
command line:

    TOLLGATE_BLESS=1 cargo test --release -p tollgate --lib documents::

[Running a machine](../guide/run.md) says more about some flags, and has keys, exit codes and limits.

";

/// The visible commands in their order, each with its whole name, and those below them.
fn commands<'a>(command: &'a Command, above: &str) -> Vec<(String, &'a Command)> {
    let name = format!("{above}{}", command.get_name());
    let below = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set() && below.get_name() != "help");
    let below: Vec<_> = below
        .flat_map(|below| commands(below, &format!("{name} ")))
        .collect();
    match below.is_empty() {
        true => vec![(name, command)],
        false if above.is_empty() => below,
        false => std::iter::once((name, command)).chain(below).collect(),
    }
}

/// The section of the page about one command.
fn section(name: &str, command: &Command, main: Option<&Command>) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let about = text(command.get_long_about().or(command.get_about()));
    let about: Vec<_> = about.split("\n\n").map(sentence).collect();
    let about = escaped(&about.join("\n\n"));
    let mut section = format!("\n## {name}\n\n{about}\n\n    {usage}\n");
    let mut group = None;
    let mut shared = Vec::new();
    for argument in command.get_arguments().filter(|it| !it.is_hide_set()) {
        if matches!(argument.get_id().as_str(), "help" | "version") {
            continue;
        }
        let description = description(argument);
        if let Some(main) = main
            && is_flag_of(main, argument, &description)
        {
            shared.push(format!("`{}`", argument.to_string().replace('`', "")));
            continue;
        }
        if argument.get_help_heading() != group {
            group = argument.get_help_heading();
            section += &format!("\n### {}\n", group.unwrap_or("Other flags"));
        }
        section += &format!("\n{description}");
    }
    if !shared.is_empty() {
        let shared = shared.join(", ");
        section += &format!("\nAs for [`tollgate run`](#tollgate-run): {shared}.\n");
    }
    section
}

/// Whether `main` has this flag with this same description.
fn is_flag_of(main: &Command, argument: &Arg, description_here: &str) -> bool {
    let mut flags = main.get_arguments();
    let is_flag = argument.get_long().is_some();
    is_flag && flags.any(|it| !it.is_hide_set() && description(it) == description_here)
}

/// One flag or argument as an item of a list.
fn description(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("`-{short}`, "));
    let mut item = format!("- **{}`{argument}`**", short.unwrap_or_default());
    for alias in argument.get_visible_aliases().unwrap_or_default() {
        item += &format!(", `--{alias}`");
    }
    let whole = text(argument.get_long_help().or(argument.get_help()));
    let (first, rest) = whole.split_once("\n\n").unwrap_or((&whole, ""));
    item += &format!(": {}", escaped(&sentence(&on_one_line(first))));
    if !argument.is_hide_default_value_set() {
        let defaults = argument.get_default_values().iter();
        let defaults: Vec<_> = defaults.map(|it| it.to_string_lossy()).collect();
        if !defaults.is_empty() && argument.get_action().takes_values() {
            item += &format!(" Default: `{}`.", defaults.join(" "));
        }
    }
    item.push('\n');
    item += &values(argument);
    for paragraph in rest.split("\n\n").filter(|it| !it.trim().is_empty()) {
        item += &match is_laid_out(paragraph) {
            true => format!("\n{}\n", indented(&format!("```text\n{paragraph}\n```"))),
            false => format!("\n{}\n", indented(&escaped(paragraph))),
        };
    }
    item
}

/// The values that the flag accepts, if they are a list.
fn values(argument: &Arg) -> String {
    let values = argument.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set());
    let values: Vec<String> = values
        .map(|value| match value.get_help() {
            Some(help) => format!(
                "`{}` ({})",
                value.get_name(),
                on_one_line(&help.to_string())
            ),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    match values.is_empty() || !argument.get_action().takes_values() {
        true => String::new(),
        false => format!("\n  Values: {}.\n", escaped(&values.join(", "))),
    }
}

/// Whether the lines of a paragraph are in columns, or each explain a word at their beginning.
fn is_laid_out(paragraph: &str) -> bool {
    let mut lines = paragraph.lines();
    let explains = |line: &str| {
        let word = line.split(' ').next();
        word.is_some_and(|word| word.ends_with(':'))
    };
    paragraph.contains('\n')
        && lines
            .any(|line| line.trim_start().contains("  ") || line.starts_with(' ') || explains(line))
}

fn indented(text: &str) -> String {
    let lines = text.lines().map(|line| format!("  {line}"));
    let lines: Vec<_> = lines.map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Adds a full stop to a text that ends without a punctuation mark.
fn sentence(text: &str) -> String {
    match text.ends_with(['.', '?', '!']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Escapes characters that Markdown would interpret.
fn escaped(text: &str) -> String {
    text.replace('<', "\\<").replace('*', "\\*")
}

fn text(styled: Option<&StyledStr>) -> String {
    styled.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn generated() -> String {
        let mut definition = crate::cli::definition();
        definition.build();
        page(&definition)
    }

    #[test]
    fn the_page_is_what_the_definition_says() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/command-line.md");
        let generated = generated();
        if std::env::var_os("TOLLGATE_BLESS").is_some() {
            fs::write(path, generated).expect("the page can be written");
            return;
        }
        let written = fs::read_to_string(path).expect("the page");
        let differs = written
            .lines()
            .zip(generated.lines())
            .find(|(old, new)| old != new);
        assert!(
            written == generated,
            "docs/reference/command-line.md is not what the flags say now (first difference: \
             {differs:?}). Run\n\
             TOLLGATE_BLESS=1 cargo test --release -p tollgate --lib documents::"
        );
    }

    #[test]
    fn every_visible_flag_is_on_the_page() {
        let page = generated();
        let mut definition = crate::cli::definition();
        definition.build();
        for (name, command) in commands(&definition, "") {
            assert!(page.contains(&format!("\n## {name}\n")), "{name}");
            let flags = command.get_arguments().filter(|it| !it.is_hide_set());
            for long in flags.filter_map(Arg::get_long) {
                assert!(page.contains(&format!("--{long}")), "{name} --{long}");
            }
        }
    }
}
