//! `tollgate exec` that continues a guest that has booted before: its templates, and what happens
//! where there is none that can be used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::exec::{Place, text};
use crate::support::{GUEST_PATIENCE, finish};

/// A place with a cache folder of its own.
struct Own {
    place: Place,
    cache: PathBuf,
}

impl Own {
    fn new() -> Self {
        let place = Place::new();
        let cache = place.folder.path("cache");
        Self { place, cache }
    }

    fn command(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut tollgate = self.place.exec(flags, command);
        tollgate.env("XDG_CACHE_HOME", &self.cache);
        tollgate
    }

    /// Runs a script, which must succeed and say nothing on standard error.
    #[track_caller]
    fn script(&self, flags: &[&str], script: &str) -> String {
        let mut command = self.command(flags, &["sh", "-c", script]);
        let output = finish(&mut command, GUEST_PATIENCE);
        succeeded(&output)
    }

    /// The templates, with the times of their last use.
    fn templates(&self) -> Vec<(PathBuf, SystemTime)> {
        let folder = self.cache.join("tollgate/templates");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .filter(|entry| entry.path().extension().is_some_and(|it| it == "template"))
            .map(|entry| (entry.path(), entry.metadata().unwrap().modified().unwrap()))
            .collect();
        found.sort();
        found
    }
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    text(&output.stdout)
}

/// Facts about a guest that no two guests have in common.
const IDENTITY: &str = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/boot_id";

#[test]
fn later_runs_continue_from_the_first_and_share_nothing_that_is_secret() {
    let own = Own::new();
    let first = own.script(&[], IDENTITY);
    let templates = own.templates();
    assert_eq!(templates.len(), 1);
    let mut seen = vec![first];
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(20));
        let next = own.script(&[], IDENTITY);
        assert!(
            next.lines().count() == 2 && !seen.contains(&next),
            "{seen:?}"
        );
        seen.push(next);
        let now = own.templates();
        assert_eq!(now.len(), 1);
        assert!(now[0].1 > templates[0].1, "the template was not used");
    }
    let lines: Vec<&str> = seen.iter().flat_map(|guest| guest.lines()).collect();
    let mut unique = lines.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), lines.len(), "{lines:?}");
}

#[test]
fn a_restored_guest_has_the_time_of_day_the_streams_and_the_exit_code() {
    let own = Own::new();
    own.script(&[], "true");
    let guests_time = |text: String| text.trim().parse::<u64>().unwrap();
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let before = now();
    let told = guests_time(own.script(&[], "date +%s"));
    assert!((before..=now()).contains(&told), "{before} {told}");
    let mut command = own.command(&[], &["sh", "-c", "echo out; echo err >&2; exit 3"]);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("out\n".into(), "err\n".into())
    );
    // The guest's monotonic clock goes on from where the template was taken.
    let uptime = own.script(&[], "cut -d. -f1 /proc/uptime");
    assert!(uptime.trim().parse::<u64>().unwrap() < 3600, "{uptime}");
}

#[test]
fn every_kind_of_guest_has_a_template_of_its_own() {
    let own = Own::new();
    let extra = own.place.folder.path("extra");
    fs::create_dir(&extra).unwrap();
    let share = format!("{}:/extra", extra.display());
    let kinds: [&[&str]; 4] = [&[], &["-m", "300M"], &["--net=user"], &["--share", &share]];
    for (number, flags) in kinds.iter().enumerate() {
        for _ in 0..2 {
            own.script(flags, "true");
            assert_eq!(own.templates().len(), number + 1, "{flags:?}");
        }
    }
    // The share is that of the run, not that of the template.
    let other = own.place.folder.path("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), "new").unwrap();
    let share = format!("{}:/extra", other.display());
    assert_eq!(own.script(&["--share", &share], "cat /extra/file"), "new");
    assert_eq!(own.templates().len(), kinds.len());
}

#[test]
fn a_template_that_cannot_be_used_is_replaced_and_the_command_runs() {
    let own = Own::new();
    own.script(&[], "true");
    let (path, _) = own.templates().remove(0);
    let whole = fs::read(&path).unwrap();
    let mut description = whole.clone();
    *description.last_mut().unwrap() ^= 1;
    for bytes in [
        &[][..],
        b"no snapshot",
        &whole[..whole.len() / 2],
        &description,
    ] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(own.script(&[], "echo runs"), "runs\n");
        let length = fs::metadata(&path).unwrap().len();
        assert!(length > 1 << 20, "it was not replaced: {length} bytes");
    }
    // One that others could have written is not trusted.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(own.script(&[], "echo runs"), "runs\n");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_pages_that_guests_write_first_are_listed_and_no_list_does_harm() {
    let own = Own::new();
    own.script(&[], "true");
    let list = own.templates()[0].0.with_extension("first-writes");
    assert!(!list.exists());
    own.script(&[], "true");
    let written = fs::read_to_string(&list).unwrap();
    assert!(written.len() > 100, "{written}");
    let mode = fs::metadata(&list).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for list_of_others in [
        "",
        "[]",
        "no list",
        "[[7,3],[18446744073709551615,18446744073709551615]]",
        "[[0,18446744073709551615]]",
    ] {
        fs::write(&list, list_of_others).unwrap();
        assert_eq!(own.script(&[], "echo runs"), "runs\n");
    }
    fs::write(&list, written).unwrap();
    assert_eq!(own.script(&[], "echo runs"), "runs\n");
    assert_eq!(own.templates().len(), 1);
}

#[test]
fn without_a_cache_folder_or_with_cold_the_guest_boots() {
    let own = Own::new();
    assert_eq!(own.script(&["--cold"], "echo cold"), "cold\n");
    assert!(own.templates().is_empty());
    for cache in ["/proc/no-such-folder", "/dev/null"] {
        let mut command = own.place.exec(&[], &["echo", "boots"]);
        command.env("XDG_CACHE_HOME", cache);
        assert_eq!(succeeded(&finish(&mut command, GUEST_PATIENCE)), "boots\n");
    }
    let mut command = own.place.exec(&[], &["echo", "boots"]);
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME");
    assert_eq!(succeeded(&finish(&mut command, GUEST_PATIENCE)), "boots\n");
}

#[test]
fn ten_runs_at_once_are_right_whether_or_not_there_is_a_template() {
    let own = Own::new();
    for _ in 0..2 {
        let runs: Vec<_> = (0..5)
            .map(|number| {
                let word = number.to_string();
                let mut command = own.command(&[], &["echo", &word]);
                command.stdout(std::process::Stdio::piped());
                (word, command.spawn().unwrap())
            })
            .collect();
        for (word, run) in runs {
            let output = run.wait_with_output().unwrap();
            assert_eq!(text(&output.stdout), format!("{word}\n"));
            assert!(output.status.success());
        }
        assert_eq!(own.templates().len(), 1);
    }
}

#[test]
fn a_guest_with_secret_memory_boots_writes_no_template_and_continues_from_another_s() {
    let own = Own::new();
    let secret = || {
        // Files on disks and shares, and new memory, are read and written.
        let script =
            "cat /bin/busybox > /tmp/copy && [ $(cat /tmp/copy | wc -c) -gt 100000 ] && echo same";
        let mut command = own.command(&["--secret-memory", "-m", "256M"], &["sh", "-c", script]);
        finish(&mut command, GUEST_PATIENCE)
    };
    let output = secret();
    let errors = text(&output.stderr);
    if errors.contains("no secret memory") || errors.contains("cannot lock") {
        assert_eq!(
            (errors.lines().count(), output.status.code()),
            (1, Some(125))
        );
        return;
    }
    assert_eq!(succeeded(&output), "same\n");
    assert_eq!(own.templates(), []);
    assert_eq!(own.script(&["-m", "256M"], "echo boots"), "boots\n");
    let template = own.templates();
    assert_eq!(template.len(), 1);
    assert_eq!(succeeded(&secret()), "same\n");
    let used = own.templates();
    assert_eq!(used.len(), 1);
    assert!(used[0].1 >= template[0].1);
}
