//! Kills Tollgate at random moments while it restores a machine and while it writes a snapshot. The
//! snapshot that was there stays whole, and a new one is whole or not there.
//!
//! `TOLLGATE_KILL_ROUNDS` sets the number of rounds, which is small without it.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::support::folder::Folder;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{GUEST_PATIENCE, ended, eventually, finish, signal, tollgate};

/// Kills while a snapshot is written may come this long after the beginning, at most.
const LONGEST: Duration = Duration::from_secs(2);

/// Checks all of a snapshot with `tollgate snapshot check`.
#[track_caller]
fn assert_whole(file: &Path) {
    let mut check = tollgate();
    let output = finish(check.args(["snapshot", "check"]).arg(file), GUEST_PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}: {errors}",
        file.display()
    );
}

#[test]
fn snapshots_are_whole_or_absent_after_kills_at_random_moments() {
    let rounds = std::env::var("TOLLGATE_KILL_ROUNDS");
    let rounds: u32 = rounds.map_or(12, |rounds| rounds.parse().unwrap());
    let folder = Folder::new();
    let (first, socket) = (folder.path("first.snap"), folder.path("first.sock"));
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "192M", "--control"]).arg(&socket);
    let mut guest = linux::boot(command);
    guest.shell("answer=42");
    let begun = Instant::now();
    let mut create = tollgate();
    create.args(["snapshot", "create", "--then", "quit"]);
    let output = finish(create.arg(&socket).arg(&first), GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0));
    let longest = begun.elapsed().min(LONGEST);
    assert_eq!(guest.end().code, Some(0));

    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut random = u64::from(now.unwrap().subsec_nanos());
    let mut moment = |longest: Duration| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        longest * ((random >> 33) % 1000) as u32 / 1000
    };
    let mut written = 0;
    for round in 0..rounds {
        let socket = folder.path(&format!("{round}.sock"));
        let second = folder.path("second.snap");
        if round % 4 == 1 {
            // In the other rounds the earlier file must stay whole.
            let _ = fs::remove_file(&second);
        }
        let mut command = tollgate();
        command.args(["run", "--restore"]).arg(&first);
        command.arg("--control").arg(&socket);
        let guest = Session::over_pipes(command);
        if round % 2 == 0 {
            // While it restores.
            thread::sleep(moment(Duration::from_millis(60)));
            signal(guest.process(), libc::SIGKILL);
            guest.end();
        } else {
            eventually("the control socket", || socket.exists().then_some(()));
            let mut create = tollgate();
            create
                .args(["snapshot", "create"])
                .arg(&socket)
                .arg(&second);
            if round % 4 == 3 {
                create.arg("--base").arg(&first);
            }
            create.stdin(Stdio::null());
            let create = create.stdout(Stdio::piped()).stderr(Stdio::piped());
            let create = create.spawn().unwrap();
            thread::sleep(moment(longest * 2));
            signal(guest.process(), libc::SIGKILL);
            guest.end();
            let output = ended(create, GUEST_PATIENCE);
            if output.status.success() {
                assert!(second.exists(), "it was said to be written");
            } else {
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(errors.lines().count(), 1, "{errors}");
            }
            if second.exists() {
                written += 1;
                assert_whole(&second);
            }
        }
        let _ = fs::remove_file(&socket);
    }
    assert_whole(&first);
    let mut command = tollgate();
    command.args(["run", "--restore"]).arg(&first);
    let mut guest = Session::over_pipes(command);
    assert_eq!(guest.shell("echo $answer"), "42");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
    println!("{rounds} rounds, the second snapshot was there after {written}");
}
