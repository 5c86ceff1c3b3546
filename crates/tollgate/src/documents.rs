//! `tollgate documents`: writes manual pages, shell completions and a reference from the definition
//! of the command line. `scripts/package` puts the first two where a system searches for them.

mod reference;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit_code;
use crate::failure::Failure;

/// The arguments of `tollgate documents`.
#[derive(Args, Debug)]
pub struct DocumentsArguments {
    /// A directory, made if it is not there: manual pages go to DIR/man, completions to
    /// DIR/completions, a reference to DIR/command-line.md
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// The shells that get completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Runs `tollgate documents` with the definition of the command line, and returns the exit code.
pub fn run(arguments: &DocumentsArguments, definition: Command) -> u8 {
    match write(&arguments.folder, definition) {
        Ok(()) => exit_code::SUCCESS,
        Err(error) => {
            let folder = arguments.folder.display();
            Failure::usage(format!("cannot write documents to '{folder}': {error}")).report()
        }
    }
}

fn write(folder: &Path, definition: Command) -> io::Result<()> {
    let (manual, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&manual)?;
    fs::create_dir_all(&completions)?;
    // Hidden commands and the help flag's own subcommand get no page.
    let mut command = definition.disable_help_subcommand(true);
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut command.clone(), "tollgate", &completions)?;
    }
    command.build();
    fs::write(folder.join("command-line.md"), reference::page(&command))?;
    write_pages(&command, &manual)
}

/// Writes the page of a command, and those of its subcommands.
fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
        .to_owned();
    let page = clap_mangen::Man::new(command.clone()).title(name.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    fs::write(folder.join(format!("{name}.1")), text)?;
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    for subcommand in visible {
        write_pages(subcommand, folder)?;
    }
    Ok(())
}
