//! Translations that `tollgate exec` keeps: later runs take them, a damaged or forged file does no harm, and
//! `tollgate cache` shows, checks and removes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::exec::{Place, text};
use crate::support::{GUEST_PATIENCE, finish, tollgate};

/// A place with folders of its own.
struct Own {
    place: Place,
    cache: PathBuf,
    state: PathBuf,
}

impl Own {
    fn new() -> Self {
        let place = Place::new();
        let cache = place.folder.path("cache");
        let state = place.folder.path("state");
        Self {
            place,
            cache,
            state,
        }
    }

    fn with_folders(&self, mut command: Command) -> Command {
        command.env("XDG_CACHE_HOME", &self.cache);
        command.env("XDG_STATE_HOME", &self.state);
        command
    }

    /// Runs a script, which must succeed, and returns its output with how many blocks were
    /// translated.
    #[track_caller]
    fn script(&self, flags: &[&str], script: &str) -> String {
        let command = self.place.exec(flags, &["sh", "-c", script]);
        succeeded(&finish(&mut self.with_folders(command), GUEST_PATIENCE))
    }

    fn cache(&self, arguments: &[&str]) -> Output {
        let mut command = tollgate();
        command.arg("cache").args(arguments);
        finish(&mut self.with_folders(command), GUEST_PATIENCE)
    }

    /// The files with translations.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.cache.join("tollgate/translations"));
        let entries = entries.into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.sort();
        files
    }
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    text(&output.stdout)
}

/// How much of a run's output on standard error says that code was translated: exits for links that
/// are missing, which a guest with known translations hardly has.
#[track_caller]
fn link_misses(own: &Own) -> u64 {
    let command = own.place.exec(&["--stats"], &["true"]);
    let output = finish(&mut own.with_folders(command), GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0));
    let stats = text(&output.stderr);
    let line = stats.lines().find(|line| line.starts_with("link-miss"));
    let count = line.and_then(|line| line.split_whitespace().nth(1));
    let count = count.unwrap_or_else(|| panic!("no row in {stats}"));
    count.replace(',', "").parse().expect("a number")
}

#[test]
fn later_runs_take_what_earlier_ones_have_translated() {
    let own = Own::new();
    let boots = link_misses(&own);
    let first = link_misses(&own);
    assert_eq!(own.files().len(), 2, "of guests that boot and that do not");
    let second = link_misses(&own);
    assert!(
        second * 4 < first && first < boots,
        "{boots} {first} {second}"
    );
    for path in own.files() {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    // Another command finds what both do.
    assert_eq!(own.script(&[], "echo $((6 * 7)); exit 0"), "42\n");
    // They are verified if the user asks for it.
    assert_eq!(
        own.script(&["--verify-code"], "echo verified"),
        "verified\n"
    );
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn whatever_is_wrong_with_the_file_the_command_runs() {
    let own = Own::new();
    own.script(&[], "true");
    own.script(&[], "true");
    assert_eq!(own.files().len(), 2);
    let edits: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes[40] ^= 1,
        |bytes| {
            let half = bytes.len() / 2;
            bytes[half..].fill(0xcc);
        },
        Vec::clear,
    ];
    for edit in edits {
        own.files().iter().for_each(|path| change(path, edit));
        let check = own.cache(&["check"]);
        assert_eq!(check.status.code(), Some(1), "{}", text(&check.stdout));
        assert!(text(&check.stdout).contains("damaged  '"));
        assert_eq!(own.script(&[], "echo runs"), "runs\n");
        assert_eq!(own.script(&["--cold"], "echo boots"), "boots\n");
    }
    // Another key has signed them.
    let key = own.state.join("tollgate/secrets/translations-key");
    fs::write(&key, [3; 16]).unwrap();
    assert_eq!(own.script(&[], "echo runs"), "runs\n");
    // Without a folder for the key nothing is kept.
    let command = own.place.exec(&[], &["echo", "runs"]);
    let mut command = own.with_folders(command);
    command.env("XDG_STATE_HOME", "/dev/null");
    assert_eq!(succeeded(&finish(&mut command, GUEST_PATIENCE)), "runs\n");
}

#[test]
fn the_cache_is_shown_checked_and_removed() {
    let own = Own::new();
    assert_eq!(succeeded(&own.cache(&["list"])), "nothing is kept\n");
    own.script(&[], "true");
    let list = succeeded(&own.cache(&["list"]));
    assert!(
        list.contains("template ") && list.contains("translations "),
        "{list}"
    );
    let json = succeeded(&own.cache(&["list", "--json"]));
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.as_array().map(Vec::len), Some(2));
    let check = succeeded(&own.cache(&["check"]));
    assert!(
        check.contains(" blocks of ") && check.contains("a guest with "),
        "{check}"
    );
    let cleared = succeeded(&own.cache(&["clear", "translations"]));
    assert!(cleared.starts_with("1 file removed"), "{cleared}");
    let cleared = succeeded(&own.cache(&["clear"]));
    assert!(cleared.starts_with("1 file removed"), "{cleared}");
    assert_eq!(succeeded(&own.cache(&["clear"])), "nothing was kept\n");
}

#[test]
fn another_folder_is_used_if_nobody_else_can_use_it() {
    let own = Own::new();
    let folder = own.place.folder.path("kept");
    let flag = format!("--translation-cache={}", folder.display());
    own.script(&[&flag], "true");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert!(own.files().is_empty());
    own.script(&["--translation-cache=off"], "true");
    assert!(own.files().is_empty());
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let command = own.place.exec(&[&flag], &["true"]);
    let output = finish(&mut own.with_folders(command), GUEST_PATIENCE);
    let line = text(&output.stderr);
    assert!(
        line.contains("chmod 700") && line.lines().count() == 1,
        "{line}"
    );
    assert_ne!(output.status.code(), Some(0));
}
