//! `tollgate cache`: shows, checks and removes what runs keep in the user's folders for later runs.

mod arguments;
pub mod folders;
mod signing_key;
pub mod translations;

use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::json;
use tollgate_machine::snapshot::SnapshotFile;
use tollgate_machine::translations::{self as stored, StoredTranslations};

pub use arguments::CacheArguments;
use arguments::{Action, ClearArguments, Kind, ListArguments};

use crate::exec::TEMPLATE_SUFFIX;
use crate::exit_code;
use crate::failure::Failure;
use crate::standard_output::print_and_end;
use signing_key::signing_key;

/// A file that is kept.
struct Kept {
    kind: Kind,
    path: PathBuf,
    bytes: u64,
    /// How many seconds ago it was used last.
    unused_seconds: u64,
}

/// Runs `tollgate cache` and returns its exit code.
pub fn run(arguments: &CacheArguments) -> u8 {
    match &arguments.action {
        Action::List(list) => print_and_end(&listed(list), exit_code::SUCCESS),
        Action::Clear(clear) => match cleared(clear) {
            Ok(text) => print_and_end(&text, exit_code::SUCCESS),
            Err(failure) => failure.report(),
        },
        Action::Check(_) => {
            let (text, code) = checked();
            print_and_end(&text, code)
        }
    }
}

/// Everything that is kept, what was used last first.
fn all_kept() -> Vec<Kept> {
    let kinds = [
        (Kind::Template, folders::templates(), TEMPLATE_SUFFIX),
        (
            Kind::Translations,
            folders::translations(),
            translations::SUFFIX,
        ),
    ];
    let mut all: Vec<Kept> = Vec::new();
    for (kind, folder, suffix) in kinds {
        let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let is_kept = entry.file_name().to_string_lossy().ends_with(suffix);
            let Some(metadata) = entry.metadata().ok().filter(|it| is_kept && it.is_file()) else {
                continue;
            };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            all.push(Kept {
                kind,
                path: entry.path(),
                bytes: metadata.len(),
                unused_seconds: used.elapsed().map_or(0, |age| age.as_secs()),
            });
        }
    }
    all.sort_by_key(|kept| kept.unused_seconds);
    all
}

impl Kept {
    fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Template => "template",
            Kind::Translations => "translations",
        }
    }

    /// What is in the file, or what is wrong with it. All of it is read.
    fn contents(&self) -> Result<String, String> {
        match self.kind {
            Kind::Template => {
                let snapshot = SnapshotFile::open(&self.path).map_err(|error| error.to_string())?;
                snapshot.check_memory().map_err(|error| error.to_string())?;
                let megabytes = snapshot.description().config.memory_bytes >> 20;
                Ok(format!("a guest with {megabytes} MiB"))
            }
            Kind::Translations => blocks_in(&self.path),
        }
    }
}

fn blocks_in(path: &Path) -> Result<String, String> {
    let of_file = |why: &dyn std::fmt::Display| format!("'{}': {why}", path.display());
    let file = File::open(path).map_err(|error| of_file(&error))?;
    let stored = stored::open_any(&file, signing_key()).map_err(|error| of_file(&error))?;
    if !stored.is_signed() {
        return Err(of_file(&translations::NOT_SIGNED));
    }
    read_all(&stored).map_err(|why| of_file(&why))
}

/// Reads all translations, and says how many there are or what is damaged.
pub fn read_all(stored: &StoredTranslations) -> Result<String, String> {
    let mut blocks = 0;
    for page in 0..stored.page_count() {
        let record = stored.record(page);
        let record = record.ok_or_else(|| format!("its page {page} is damaged"))?;
        blocks += record.blocks.len();
    }
    Ok(format!("{blocks} blocks of {} pages", stored.page_count()))
}

/// A time in its largest unit.
fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn listed(arguments: &ListArguments) -> String {
    let all = all_kept();
    if arguments.json {
        let rows = all.iter().map(|kept| {
            json!({
                "kind": kept.kind(),
                "file": kept.path,
                "bytes": kept.bytes,
                "unused_seconds": kept.unused_seconds,
            })
        });
        let rows: Vec<_> = rows.collect();
        return serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n";
    }
    if all.is_empty() {
        return "nothing is kept\n".into();
    }
    let mut text = format!("{:<13} {:>9} {:>9}  file\n", "kind", "size", "used ago");
    for kept in &all {
        let _ = writeln!(
            text,
            "{:<13} {:>9} {:>9}  {}",
            kept.kind(),
            format!("{} MiB", kept.bytes.div_ceil(1 << 20)),
            ago(kept.unused_seconds),
            kept.path.display()
        );
    }
    text
}

fn cleared(arguments: &ClearArguments) -> Result<String, Failure> {
    let all = all_kept();
    let wanted = |kept: &&Kept| arguments.kind.is_none_or(|kind| kind == kept.kind);
    let (mut files, mut bytes) = (0, 0);
    for kept in all.iter().filter(wanted) {
        match fs::remove_file(&kept.path) {
            Ok(()) => {
                files += 1;
                bytes += kept.bytes;
            }
            // Another run has removed it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let path = kept.path.display();
                return Err(Failure::host(format!("cannot remove '{path}': {error}")));
            }
        }
    }
    Ok(match files {
        0 => "nothing was kept\n".into(),
        1 => format!("1 file removed, {} MiB\n", bytes.div_ceil(1 << 20)),
        _ => format!("{files} files removed, {} MiB\n", bytes.div_ceil(1 << 20)),
    })
}

/// What is in each file, and the exit code.
fn checked() -> (String, u8) {
    let all = all_kept();
    if all.is_empty() {
        return ("nothing is kept\n".into(), exit_code::SUCCESS);
    }
    let mut code = exit_code::SUCCESS;
    let mut text = String::new();
    for kept in &all {
        let line = match kept.contents() {
            Ok(what) => format!("whole    {}: {what}", kept.path.display()),
            Err(why) => {
                code = exit_code::HOST;
                format!("damaged  {why}")
            }
        };
        let _ = writeln!(text, "{line}");
    }
    (text, code)
}
