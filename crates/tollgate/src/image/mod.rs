//! `tollgate image`: makes, shows, checks and copies disk images, in the words of `qemu-img`, and unpacks
//! container images.

mod arguments;
mod outputs;
mod unpack;

use std::path::Path;

use tollgate_disk::{Copy, DiskError, Format, Repair};

use crate::exit_code;
use crate::failure::{Failure, say};
use crate::standard_output::{print, print_and_end};
pub use arguments::ImageArguments;
use arguments::{ImageCommand, InfoFormat};
use outputs::{Progress, human, json};

/// Exit codes of `tollgate image check`, which are those of `qemu-img check`.
pub mod check_code {
    /// The image cannot be checked.
    pub const UNCHECKED: u8 = 1;
    /// The image has defects that can lose data.
    pub const DAMAGED: u8 = 2;
    /// The image has clusters that nothing refers to.
    pub const LEAKS: u8 = 3;
}

/// Runs `tollgate image` and returns its exit code.
pub fn run(arguments: &ImageArguments) -> u8 {
    let result = match &arguments.command {
        ImageCommand::Create {
            format,
            backing,
            backing_format,
            quiet: _,
            file,
            size,
        } => create(
            file,
            *format,
            backing.as_deref().zip(*backing_format),
            *size,
        ),
        ImageCommand::Info {
            format,
            output,
            force_share,
            file,
        } => info(file, *format, *output, *force_share),
        ImageCommand::Check {
            format,
            repair,
            quiet,
            file,
        } => return check(file, *format, repair.is_some(), *quiet),
        ImageCommand::Convert {
            format,
            output_format,
            overwrite,
            backing,
            progress: _,
            source,
            target,
        } => convert(&Copy {
            source,
            source_format: *format,
            backing: *backing,
            target,
            target_format: *output_format,
            replace: *overwrite,
        }),
        ImageCommand::Unpack(arguments) => unpack::run(arguments),
    };
    match result {
        Ok(()) => exit_code::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn refused(error: &DiskError) -> Failure {
    Failure::usage(error.to_string())
}

fn create(
    file: &Path,
    format: Format,
    backing: Option<(&str, Format)>,
    size: Option<u64>,
) -> Result<(), Failure> {
    let Some((name, backing_format)) = backing else {
        let Some(bytes) = size else {
            return Err(Failure::usage(
                "missing SIZE: only an image with a backing file (-b) gets its size from elsewhere",
            ));
        };
        return tollgate_disk::create(file, format, bytes).map_err(|error| refused(&error));
    };
    if format != Format::Qcow2 {
        return Err(Failure::usage(
            "raw images have no backing file; give '-f qcow2' too",
        ));
    }
    // The backing file's name is relative to the new image's folder.
    let path = file.parent().unwrap_or(Path::new("")).join(name);
    let info = tollgate_disk::info(&path, Some(backing_format), true);
    let below = info.map_err(|error| refused(&error))?;
    let bytes = size.unwrap_or(below.virtual_bytes.next_multiple_of(512));
    tollgate_disk::create_over(file, bytes, name, backing_format).map_err(|error| refused(&error))
}

fn info(
    file: &Path,
    format: Option<Format>,
    output: InfoFormat,
    force_share: bool,
) -> Result<(), Failure> {
    let info = tollgate_disk::info(file, format, force_share).map_err(|error| refused(&error))?;
    print(&match output {
        InfoFormat::Human => human(&info),
        InfoFormat::Json => json(&info),
    })
}

fn check(file: &Path, format: Option<Format>, repairs: bool, quiet: bool) -> u8 {
    if format == Some(Format::Raw) {
        say("raw images have nothing to check");
        return check_code::UNCHECKED;
    }
    let repair = if repairs {
        Repair::Leaks
    } else {
        Repair::Nothing
    };
    let result = tollgate_disk::check(file, repair, |line| {
        if !quiet {
            say(&line);
        }
    });
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            say(&error.to_string());
            return check_code::UNCHECKED;
        }
    };
    let code = match (report.damage, report.leaks) {
        (0, 0) => exit_code::SUCCESS,
        (0, _) => check_code::LEAKS,
        _ => check_code::DAMAGED,
    };
    match quiet {
        true => code,
        false => print_and_end(&outputs::report(&report), code),
    }
}

fn convert(copy: &Copy<'_>) -> Result<(), Failure> {
    let mut progress = Progress::new();
    let result = tollgate_disk::convert(copy, |done, all| progress.show(done, all));
    progress.clear();
    result.map_err(|error| refused(&error))?;
    if copy.source_format != Some(Format::Raw) {
        say_what_is_damaged(copy.source);
    }
    Ok(())
}

/// Warns the user that the source of a copy is damaged. Damaged parts may have been read as if they
/// were data, so the copy may be wrong although it was made without an error.
fn say_what_is_damaged(source: &Path) {
    let mut first = None;
    let report = tollgate_disk::check(source, Repair::Nothing, |line| {
        first.get_or_insert(line);
    });
    // Raw images cannot be checked, and cannot have such damage.
    let Some(report) = report.ok().filter(|report| report.damage > 0) else {
        return;
    };
    let more = match report.damage - 1 {
        0 => "",
        _ => ", and more",
    };
    say(&format!(
        "'{}' has errors ({}{more}): the copy has what could be read; 'tollgate image check' shows them",
        source.display(),
        first.unwrap_or_default(),
    ));
}
