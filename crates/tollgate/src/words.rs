//! Classifies the words of a command line before the parser sees them: flags, values of flags, and
//! the words of the guest's command.

use std::ffi::OsString;

use clap::{Arg, Command};

/// The names of the commands that run a machine.
const COMMANDS: [&str; 2] = ["run", "exec"];

/// Whether the value of the flag in this word is the next word.
pub fn takes_next_word(definition: &Command, word: &str) -> bool {
    let takes_value = |arg: &Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    if let Some(long) = word.strip_prefix("--") {
        return definition.get_arguments().any(|arg| {
            let names = arg.get_long_and_visible_aliases().unwrap_or_default();
            let aliases = arg.get_all_aliases().unwrap_or_default();
            takes_value(arg) && (names.contains(&long) || aliases.contains(&long))
        });
    }
    // The first short flag that takes a value has the rest of the word as its value, if there is one.
    let mut letters = word.strip_prefix('-').unwrap_or_default().chars();
    let is_short = |letter: &char| {
        let mut arguments = definition.get_arguments();
        let arg = arguments.find(|arg| arg.get_short() == Some(*letter));
        arg.is_some_and(takes_value)
    };
    letters.find(is_short).is_some() && letters.next().is_none()
}

/// Whether the flags of `tollgate exec` end at this word: it is the first word of the guest's
/// command, or `--`, which the command follows.
pub fn begins_command(word: &str) -> bool {
    !word.starts_with('-') || word == "--" || word == "-"
}

/// The words of `tollgate exec`'s command line that are Tollgate's own: those before the guest's
/// command. `words` are what follows `exec`, `definition` is the definition of `exec`.
pub fn own<'a>(words: &'a [OsString], definition: &Command) -> &'a [OsString] {
    let mut index = 0;
    while let Some(word) = words.get(index) {
        let word = word.to_string_lossy();
        if begins_command(&word) {
            break;
        }
        index += 1 + usize::from(takes_next_word(definition, &word));
    }
    &words[..index.min(words.len())]
}

/// Whether `tollgate run` or `tollgate exec` is given `flag help` or `flag=help`. `words` has no
/// words of the guest's command.
pub fn ask_for_help_on(flag: &str, words: &[OsString]) -> bool {
    let joined = format!("{flag}=help");
    let is_command = |word: &OsString| COMMANDS.iter().any(|command| word == command);
    words.get(1).is_some_and(is_command)
        && (words.iter().any(|word| *word == *joined)
            || words
                .windows(2)
                .any(|pair| pair[0] == flag && pair[1] == "help"))
}
