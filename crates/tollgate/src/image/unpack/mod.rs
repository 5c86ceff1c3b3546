//! `tollgate image unpack`: makes a directory of the layers of a container image, for `exec --root`.
//!
//! ```text
//! source: a folder, or an archive      manifest: which layers, and their hashes
//!    '-> layer: archive, entries -> tree: the directory, which nothing leaves
//! ```

mod layer;
mod manifest;
mod source;
#[cfg(test)]
mod tests;
mod tree;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::Failure;
use crate::size;
use crate::standard_output::print;
use layer::{Budget, LayerError};
use manifest::{Advice, Image};
use source::Source;
use tree::Tree;

/// The most entries of an image.
const MOST_ENTRIES: u64 = 4_000_000;

/// The arguments of `tollgate image unpack`.
#[derive(Args, Debug)]
pub struct UnpackArguments {
    /// The image's name, if IMAGE has several
    #[arg(long, value_name = "NAME")]
    pub tag: Option<String>,

    /// The processors that the image is for, in the words of container images
    #[arg(long, value_name = "NAME", default_value = "amd64", value_parser = ["amd64", "386"])]
    pub architecture: String,

    /// The most that the files may take
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = size::parse)]
    pub limit: u64,

    /// An OCI image layout: a folder, or a tar archive of one; or the output of 'docker save' or
    /// 'podman save'
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,

    /// The new directory, which may be there if it is empty
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Runs `tollgate image unpack`.
///
/// # Errors
/// One line says what is wrong with the image or the directory.
pub fn run(arguments: &UnpackArguments) -> Result<(), Failure> {
    let shown = arguments.image.display();
    let refused = |why: String| Failure::usage(format!("'{shown}': {why}"));
    let source = Source::open(&arguments.image).map_err(|error| refused(error.to_string()))?;
    let tag = arguments.tag.as_deref();
    let image = manifest::find(&source, tag, &arguments.architecture).map_err(refused)?;
    let directory = arguments.directory.display();
    let tree = Tree::new(&arguments.directory);
    let tree = tree.map_err(|error| Failure::usage(format!("'{directory}': {error}")))?;
    let mut budget = Budget {
        bytes: arguments.limit,
        entries: MOST_ENTRIES,
        files: 0,
        left_out: 0,
    };
    if let Err(why) = unpack(&source, &image, &tree, &mut budget) {
        // Half of an image is of no use.
        let rest = match tree.clear(b"") {
            Ok(()) => String::new(),
            Err(_) => format!("; remove '{directory}'"),
        };
        return Err(refused(format!("{why}{rest}")));
    }
    let devices = match budget.left_out {
        0 => String::new(),
        count => format!("; left out: {count} devices"),
    };
    let mut text = format!(
        "{} layers, {} files, {} MiB{devices}\n",
        image.layers.len(),
        budget.files,
        (arguments.limit - budget.bytes) >> 20
    );
    if let Some(line) = command_line(&arguments.directory, &image.advice) {
        text.push_str(&line);
        text.push('\n');
    }
    print(&text)
}

fn unpack(source: &Source, image: &Image, tree: &Tree, budget: &mut Budget) -> Result<(), String> {
    for (number, layer) in (1..).zip(&image.layers) {
        let wrong = |why: String| format!("layer {number}: {why}");
        let open = || {
            let file = source.file(&layer.path);
            file.map_err(|error| wrong(format!("{}: {error}", layer.path)))
        };
        let failed = |error: LayerError| {
            wrong(match error {
                LayerError::Archive(error) => error.to_string(),
                LayerError::Entry(path, error) => format!("'{path}': {error}"),
                LayerError::TooLarge => "the image is larger than --limit allows".into(),
            })
        };
        let hash = layer::remove_from(tree, open()?, budget).map_err(failed)?;
        if manifest::hexadecimal(&hash) != layer.hash {
            return Err(wrong("it is damaged: its SHA-256 is another".into()));
        }
        layer::put_into(tree, open()?, budget).map_err(failed)?;
    }
    Ok(())
}

/// The command line that runs what the image is for; `None` if it has nothing to run, or words that
/// change a terminal.
fn command_line(directory: &Path, advice: &Advice) -> Option<String> {
    let mut words: Vec<String> = ["tollgate", "exec", "--sandbox"].map(str::to_owned).into();
    words.push(format!("--root={}", directory.to_str()?));
    words.extend(advice.environment.iter().map(|it| format!("--env={it}")));
    words.extend(advice.directory.iter().map(|it| format!("--workdir={it}")));
    words.extend(advice.user.iter().map(|it| format!("--user={it}")));
    words.push("--".into());
    words.extend(advice.command.iter().cloned());
    let is_plain = |word: &String| !word.chars().any(char::is_control);
    let has_command = !advice.command.is_empty() && words.iter().all(is_plain);
    has_command.then(|| {
        words
            .iter()
            .map(|word| quoted(word))
            .collect::<Vec<_>>()
            .join(" ")
    })
}

/// A word as a shell takes it unchanged.
fn quoted(word: &str) -> String {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,@+".contains(&byte);
    match word.bytes().all(is_safe) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
