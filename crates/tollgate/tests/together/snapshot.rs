//! `tollgate snapshot` and `tollgate run --restore`, with a running Linux guest.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use crate::support::control::{command, connect_to_running};
use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{GUEST_PATIENCE, finish, tollgate};

/// Runs `tollgate snapshot` with these words.
fn snapshot(words: &[&str], paths: &[&Path]) -> Output {
    let mut command = tollgate();
    command.arg("snapshot").args(words).args(paths);
    finish(&mut command, GUEST_PATIENCE)
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    text(&output.stdout)
}

#[track_caller]
fn power_off(mut guest: Session) {
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

/// Shows how often ACPI has interrupted the guest.
const ACPI_INTERRUPTS: &str = "sed -n 's/.*9: *\\([0-9]*\\).* acpi$/\\1/p' /proc/interrupts";

#[test]
fn a_shell_goes_on_in_the_machines_that_are_restored() {
    let folder = Folder::new();
    let (socket, file) = (folder.path("vm.sock"), folder.path("vm.snap"));
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "256M", "--control"]).arg(&socket);
    let mut guest = linux::boot(command);
    guest.shell("answer=$((6 * 7)); mkdir /tmp; echo kept > /tmp/file");
    assert_eq!(guest.shell(ACPI_INTERRUPTS), "0");
    succeeded(&snapshot(&["create"], &[&socket, &file]));
    // The first machine goes on.
    assert_eq!(guest.shell("echo $answer"), "42");
    guest.shell("answer=0; echo lost > /tmp/file");
    power_off(guest);

    let info = succeeded(&snapshot(&["info"], &[&file]));
    assert!(info.contains("memory             256 MiB"), "{info}");
    let described = succeeded(&snapshot(&["info", "--json"], &[&file]));
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["memory_bytes"], 256 << 20);
    assert!(succeeded(&snapshot(&["check"], &[&file])).contains("is whole"));

    for _ in 0..2 {
        let mut command = tollgate();
        command.args(["run", "--restore"]).arg(&file);
        let mut guest = Session::over_pipes(command);
        assert_eq!(guest.shell("echo $answer; cat /tmp/file"), "42\nkept");
        // ACPI has reported the new generation ID.
        assert_eq!(guest.shell(ACPI_INTERRUPTS), "1");
        guest.shell("answer=1; echo other > /tmp/file");
        power_off(guest);
    }
}

#[test]
fn a_machine_ends_after_its_snapshot_if_it_shall() {
    let folder = Folder::new();
    let (socket, file) = (folder.path("vm.sock"), folder.path("vm.snap"));
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "256M", "--control"]).arg(&socket);
    let guest = linux::boot(command);
    let mut create = tollgate();
    create.args(["snapshot", "create", "--then", "quit"]);
    let output = finish(create.arg(&socket).arg(&file), GUEST_PATIENCE);
    succeeded(&output);
    assert_eq!(guest.end().code, Some(0));
    assert!(!socket.exists() && file.exists());
}

#[test]
fn the_real_time_clock_shows_the_hosts_time_after_a_restore_or_continues_as_wished() {
    const AWAY: Duration = Duration::from_secs(3);
    let now = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap().as_secs_f64()
    };
    let folder = Folder::new();
    let (socket, file) = (folder.path("vm.sock"), folder.path("vm.snap"));
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "256M", "--control"]).arg(&socket);
    let guest = linux::boot(command);
    succeeded(&snapshot(&["create", "--then", "quit"], &[&socket, &file]));
    assert_eq!(guest.end().code, Some(0));
    std::thread::sleep(AWAY);
    for choice in ["step", "keep"] {
        let begin = now();
        let mut command = tollgate();
        command.args(["run", "--realtime", choice, "--restore"]);
        command.arg(&file);
        let mut guest = Session::over_pipes(command);
        let shown = guest.shell("cat /sys/class/rtc/rtc0/since_epoch");
        let shown: f64 = shown.parse().unwrap_or_else(|_| panic!("{shown:?}"));
        let end = now();
        // The clock cuts off the fraction of its second, and its rate may differ a little.
        match choice {
            "step" => assert!(
                (begin - 1.1..=end + 0.1).contains(&shown),
                "{begin} {shown} {end}"
            ),
            _ => assert!(shown <= end - AWAY.as_secs_f64() + 0.1, "{shown} {end}"),
        }
        power_off(guest);
    }
}

#[test]
fn a_snapshot_with_a_base_holds_what_has_changed_and_is_restored_with_it() {
    let folder = Folder::new();
    let (socket, first) = (folder.path("vm.sock"), folder.path("first.snap"));
    let second = folder.path("second.snap");
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "256M", "--control"]).arg(&socket);
    let mut guest = linux::boot(command);
    guest.shell("answer=1; mkdir /tmp");
    succeeded(&snapshot(&["create", "--then", "quit"], &[&socket, &first]));
    guest.end();
    let restore = |file: &Path| {
        let mut command = tollgate();
        command.args(["run", "--restore"]).arg(file);
        command.arg("--control").arg(&socket);
        Session::over_pipes(command)
    };
    let mut guest = restore(&first);
    guest.shell("answer=2; echo kept > /tmp/file");
    let base = first.display().to_string();
    let words = ["create", "--then", "quit", "--base", &base];
    succeeded(&snapshot(&words, &[&socket, &second]));
    guest.end();
    let bytes = |file: &Path| fs::metadata(file).unwrap().len();
    assert!(bytes(&second) < bytes(&first) / 2);

    let info = succeeded(&snapshot(&["info"], &[&second]));
    assert!(info.contains(&format!("base {base}")), "{info}");
    let described = succeeded(&snapshot(&["info", "--json"], &[&second]));
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["bases"][0]["path"], base);
    let checked = succeeded(&snapshot(&["check"], &[&second]));
    assert!(checked.contains("is whole with its base"), "{checked}");
    let mut guest = restore(&second);
    assert_eq!(guest.shell("echo $answer; cat /tmp/file"), "2\nkept");
    guest.shell("answer=3");
    succeeded(&reset(&socket));
    assert_eq!(guest.shell("echo $answer"), "2");
    power_off(guest);

    fs::rename(&first, folder.path("moved.snap")).unwrap();
    for words in [&["snapshot", "check"][..], &["run", "--restore"]] {
        let output = finish(tollgate().args(words).arg(&second), GUEST_PATIENCE);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.contains("first.snap', which cannot be read"),
            "{errors}"
        );
    }
    let info = succeeded(&snapshot(&["info"], &[&second]));
    assert!(info.contains("cannot be read"), "{info}");
}

/// The number of blocks that a machine has translated since its start.
#[track_caller]
fn translated(socket: &Path) -> u64 {
    let answer = command(&connect_to_running(socket), "status");
    let count = &answer["status"]["code_cache"]["translated"];
    count.as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn restored_machines_leave_their_translations_next_to_the_snapshot() {
    const WORK: &str = "ls -l /bin | sort | md5sum | wc -l";
    let folder = Folder::new();
    let (socket, file) = (folder.path("vm.sock"), folder.path("vm.snap"));
    let translations = folder.path("vm.snap.translations");
    let state = folder.path("state");
    let with_state = |mut command: Command| {
        command.env("XDG_STATE_HOME", &state);
        command
    };
    let mut run = with_state(linux::run(DEBIAN_AMD64));
    run.args(["-m", "256M", "--control"]).arg(&socket);
    let guest = linux::boot(run);
    succeeded(&snapshot(&["create", "--then", "quit"], &[&socket, &file]));
    guest.end();

    // What the machine translates, which works for a while and ends.
    let restored = |flags: &[&str]| {
        let mut command = with_state(tollgate());
        command.args(["run", "--restore"]).arg(&file);
        command.arg("--control").arg(&socket).args(flags);
        let mut guest = Session::over_pipes(command);
        assert_eq!(guest.shell(WORK), "1");
        let count = translated(&socket);
        power_off(guest);
        count
    };
    let about = |action: &str| {
        let mut command = with_state(tollgate());
        command.args(["snapshot", action]).arg(&file);
        succeeded(&finish(&mut command, GUEST_PATIENCE))
    };
    let without = restored(&["--translation-cache", "off"]);
    assert!(!translations.exists());
    assert!(!about("info").contains("translations"));
    let first = restored(&[]);
    let mode = fs::metadata(&translations).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let named = format!("{}, ", translations.display());
    assert!(about("info").contains(&named), "{}", about("info"));
    let whole = about("check");
    assert!(whole.contains("its translations are whole: "), "{whole}");
    let second = restored(&[]);
    assert!(
        second * 4 < first && second * 4 < without,
        "{second} {first}"
    );
    // They are verified if the user asks for it.
    restored(&["--verify-code"]);

    let good = fs::read(&translations).unwrap();
    let edits: [fn(&mut Vec<u8>); 3] = [
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| {
            let half = bytes.len() / 2;
            bytes[half..].fill(0xcc);
        },
        Vec::clear,
    ];
    for edit in edits {
        let mut bytes = good.clone();
        edit(&mut bytes);
        fs::write(&translations, bytes).unwrap();
        let damaged = about("check");
        assert!(damaged.contains("are not used"), "{damaged}");
        assert!(restored(&[]) > second);
    }
    // What another key has signed, and what others could have written, is not used.
    fs::write(&translations, &good).unwrap();
    let key = state.join("tollgate/secrets/translations-key");
    let own = fs::read(&key).unwrap();
    fs::write(&key, [3; 16]).unwrap();
    let info = about("info");
    let why = "cannot be used: it was not written by a run of this user";
    assert!(info.contains(why), "{info}");
    assert!(restored(&[]) > second * 4);
    fs::write(&key, own).unwrap();
    fs::write(&translations, &good).unwrap();
    fs::set_permissions(&translations, fs::Permissions::from_mode(0o622)).unwrap();
    let info = about("info");
    assert!(info.contains("cannot be used"), "{info}");
    assert!(restored(&[]) > second * 4);
}

#[test]
fn what_is_no_snapshot_is_refused_in_one_line() {
    let folder = Folder::new();
    let file = folder.path("vm.snap");
    fs::write(&file, vec![7; 100_000]).unwrap();
    for words in [
        &["snapshot", "info"][..],
        &["snapshot", "check"],
        &["run", "--restore"],
    ] {
        let mut command = tollgate();
        let output = finish(command.args(words).arg(&file), GUEST_PATIENCE);
        let errors = text(&output.stderr);
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains("is no whole snapshot"), "{errors}");
        assert_ne!(output.status.code(), Some(0));
    }
    let mut command = tollgate();
    command.args(["run", "-m", "64M", "--restore"]).arg(&file);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert!(
        text(&output.stderr).contains("cannot be used with"),
        "{output:?}"
    );
}

/// Runs `tollgate reset`.
fn reset(socket: &Path) -> Output {
    finish(tollgate().arg("reset").arg(socket), GUEST_PATIENCE)
}

#[test]
fn a_restored_machine_is_put_back_again_and_again() {
    let folder = Folder::new();
    let (socket, file) = (folder.path("vm.sock"), folder.path("vm.snap"));
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "256M", "--control"]).arg(&socket);
    let mut guest = linux::boot(command);
    guest.shell("answer=42; mkdir /tmp; echo kept > /tmp/file");
    // Only a machine that was restored can be put back.
    let output = reset(&socket);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("was not restored"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    succeeded(&snapshot(&["create", "--then", "quit"], &[&socket, &file]));
    assert_eq!(guest.end().code, Some(0));

    let mut command = tollgate();
    command.args(["run", "--restore"]).arg(&file);
    command.arg("--control").arg(&socket);
    let mut guest = Session::over_pipes(command);
    // What was allocated, written, removed and executed in between is gone, whether the snapshot
    // had contents there or zeros.
    let work = "answer=1; echo lost > /tmp/file; dd if=/dev/urandom of=/tmp/large bs=1M count=20; \
                ls /tmp; for i in 1 2 3; do sh -c 'cat /tmp/large | md5sum'; done; mkdir /tmp/more; \
                rm /tmp/file";
    for _ in 0..3 {
        assert_eq!(
            guest.shell("echo $answer; cat /tmp/file; ls /tmp"),
            "42\nkept\nfile"
        );
        guest.shell(work);
        succeeded(&reset(&socket));
    }
    // Also when nothing was written in between.
    succeeded(&reset(&socket));
    assert_eq!(
        guest.shell("echo $answer; ls /tmp; dmesg | grep -c -e BUG: -e Oops"),
        "42\nfile\n0"
    );
    power_off(guest);
}
