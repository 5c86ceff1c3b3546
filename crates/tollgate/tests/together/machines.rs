//! The machines of a user: names, `tollgate ps`, `kill` and `logs`, and what is left when processes are
//! killed.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::support::exec::{Place, text};
use crate::support::guests::fetched;
use crate::support::{GUEST_PATIENCE, eventually, finish, tollgate, within};
use tollgate_test_support::skip;

/// A place with a run-time folder of its own.
struct Own {
    place: Place,
    folder: PathBuf,
}

impl Own {
    fn new() -> Self {
        let place = Place::new();
        let folder = place.folder.path("run-time");
        fs::create_dir(&folder).unwrap();
        fs::create_dir(place.folder.path("temporary")).unwrap();
        Self { place, folder }
    }

    /// Gives a command this run-time folder, and a folder for temporary files.
    fn at_home<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let guests = fetched("debian-amd64/vmlinuz");
        command
            .env("TOLLGATE_GUESTS", guests.ancestors().nth(2).unwrap())
            .env("XDG_RUNTIME_DIR", &self.folder)
            .env("TMPDIR", self.place.folder.path("temporary"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut tollgate = tollgate();
        self.at_home(tollgate.args(words).current_dir(&self.place.here));
        tollgate
    }

    #[track_caller]
    fn exec(&self, flags: &[&str], command: &[&str]) -> Output {
        let mut tollgate = self.place.exec(flags, command);
        finish(self.at_home(&mut tollgate), GUEST_PATIENCE)
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> Output {
        finish(&mut self.command(words), GUEST_PATIENCE)
    }

    /// The processes that have this run-time folder.
    fn processes(&self) -> Vec<String> {
        let mine = format!("XDG_RUNTIME_DIR={}\0", self.folder.display());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_mine = |number: &String| {
            let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&mine)
        };
        numbers.filter(is_mine).collect()
    }

    #[track_caller]
    fn machines(&self) -> Vec<Value> {
        let output = self.run(&["ps", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The names of the files in the run-time folder.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.join("tollgate"));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }
}

/// Whether a process has given everything back: it is gone, or waits for its parent to learn its end.
fn has_ended(number: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let state = status.rsplit(')').next().unwrap_or_default().trim_start();
    // The first thread may have ended while others still hold the files.
    let threads = fs::read_dir(format!("/proc/{number}/task")).map_or(0, Iterator::count);
    state.is_empty() || (state.starts_with(['Z', 'X']) && threads <= 1)
}

#[test]
fn a_machine_has_a_name_a_log_and_an_end() {
    let own = Own::new();
    let script = "echo began; exec sleep 1000";
    let started = own.exec(&["--detach", "--name", "box"], &["sh", "-c", script]);
    assert_eq!(text(&started.stderr), "");
    assert_eq!(text(&started.stdout), "box\n");

    let table = text(&own.run(&["ps"]).stdout);
    assert!(table.contains("\nbox "), "{table}");
    assert_eq!(text(&own.run(&["ps", "-q"]).stdout), "box\n");
    let machine = &own.machines()[0];
    assert_eq!(machine["what"], format!("sh -c {script}"));
    assert!(machine["resident_bytes"].as_u64().unwrap() > 0);
    eventually("the command's output in the log", || {
        let log = own.run(&["logs", "box"]);
        text(&log.stdout).contains("began\n").then_some(())
    });

    let refused = own.exec(&["--name", "box"], &["true"]);
    let why = text(&refused.stderr);
    assert!(why.contains("with the name 'box' is running"), "{why}");
    assert_eq!(refused.status.code(), Some(125));

    assert_eq!(own.run(&["kill", "box"]).status.code(), Some(0));
    assert_eq!(own.machines().len(), 0);
    assert_eq!(own.files(), [""; 0]);
    let refused = own.run(&["kill", "box"]);
    assert!(text(&refused.stderr).contains("no machine with the name 'box'"));
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_machine_that_stays_runs_commands_and_takes_files() {
    let own = Own::new();
    let started = own.exec(
        &["--keep", "--detach", "--name", "box", "--env", "A=1"],
        &[],
    );
    assert_eq!(text(&started.stderr), "");
    assert_eq!(text(&started.stdout), "box\n");

    let run = |flags: &[&str], script: &str| {
        let words = [
            &["exec", "-n", "--in", "box"],
            flags,
            &["--", "sh", "-c", script],
        ]
        .concat();
        own.run(&words)
    };
    let output = run(
        &["--env", "B=2"],
        "echo $A $B; echo error >&2; echo kept > /kept; exit 3",
    );
    assert_eq!(text(&output.stdout), "1 2\n");
    assert_eq!(text(&output.stderr), "error\n");
    assert_eq!(output.status.code(), Some(3));
    let output = run(
        &["--workdir", "/bin", "--user", "ann"],
        "cat /kept; pwd; id -u",
    );
    assert_eq!(text(&output.stdout), "kept\n/bin\n7\n");
    let output = run(&["--timeout", "0.5"], "exec sleep 1000");
    assert_eq!(output.status.code(), Some(124));
    let output = own.run(&["exec", "-n", "--in", "box", "--", "nothing"]);
    assert!(text(&output.stderr).contains("'nothing': no such command"));
    assert_eq!(output.status.code(), Some(127));

    let data: Vec<u8> = (0..1_000_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let (file, copy) = (own.place.folder.path("data"), own.place.folder.path("copy"));
    fs::write(&file, &data).unwrap();
    let copied = own.run(&["cp", file.to_str().unwrap(), "box:/a/b/data"]);
    assert_eq!(text(&copied.stderr), "");
    let copied = own.run(&["cp", "box:/a/b/data", copy.to_str().unwrap()]);
    assert_eq!(text(&copied.stderr), "");
    assert!(fs::read(copy).unwrap() == data);
    let refused = own.run(&["cp", "box:/nowhere", "-"]);
    assert!(text(&refused.stderr).contains("/nowhere: No such file"));

    let refused = own.run(&["exec", "--in", "box", "--memory", "1G", "--", "true"]);
    assert!(text(&refused.stderr).contains("--in"));
    assert_eq!(own.run(&["kill", "box"]).status.code(), Some(0));
    assert_eq!(own.files(), [""; 0]);
}

#[test]
fn a_machine_takes_no_more_processor_time_than_its_limit() {
    let own = Own::new();
    // Some seconds of work. If this host is busy, more time passes, never less.
    let script = "i=0; while [ $i -lt 2000000 ]; do i=$((i+1)); done";
    let mut command = own
        .place
        .exec(&["--limit", "cpu=25%"], &["sh", "-c", script]);
    let began = Instant::now();
    let mut child = own
        .at_home(&mut command)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let number = child.id().to_string();
    within(GUEST_PATIENCE, "the end of the machine", || {
        has_ended(&number).then_some(())
    });
    let took = began.elapsed().as_secs_f64();
    // A process that has ended and was not waited for has its counts still: utime and stime.
    let status = fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
    let fields: Vec<&str> = status.rsplit(')').next().unwrap().split(' ').collect();
    let ticks: f64 = [12, 13]
        .map(|place| fields[place].parse::<f64>().unwrap())
        .iter()
        .sum();
    assert!(child.wait().unwrap().success());
    // The start is not limited at first, and a tenth of a second may be saved.
    let used = ticks / rustix::param::clock_ticks_per_second() as f64;
    assert!(
        used <= 0.25 * took + 1.0,
        "{used} s of processor time in {took} s"
    );
    assert!(used > 1.0, "{used} s: too little work to see a limit");

    for (limits, why) in [
        ("cpu=0", "too little or too much"),
        ("disk=1", "unknown key 'disk'"),
        ("memory=300M", "and the monitor need 512 MiB"),
    ] {
        let output = own.exec(&["--limit", limits], &["true"]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{errors}");
        assert!(
            errors.contains(why) && errors.lines().count() == 1,
            "{errors}"
        );
    }
}

#[test]
fn a_machine_for_which_memory_is_missing_is_refused_in_one_line() {
    let own = Own::new();
    // What the host says of its memory is replaced in a mount namespace.
    let facts = own
        .place
        .folder
        .file("meminfo", b"MemAvailable:     100000 kB\n");
    const MOUNT: &str = "mount --bind \"$0\" /proc/meminfo";
    let mut trial = Command::new("unshare");
    trial.args(["-Urm", "sh", "-c", MOUNT]).arg(&facts);
    if !trial.status().is_ok_and(|status| status.success()) {
        return skip::impossible("no file can be mounted over /proc/meminfo here");
    }
    let run = |flags: &[&str]| {
        let exec = own.place.exec(flags, &["echo", "ran"]);
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c"]);
        command.arg(format!("{MOUNT} && exec \"$@\""));
        command
            .arg(&facts)
            .arg(exec.get_program())
            .args(exec.get_args());
        for (name, value) in exec.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        if let Some(folder) = exec.get_current_dir() {
            command.current_dir(folder);
        }
        finish(own.at_home(&mut command), GUEST_PATIENCE)
    };
    let refused = run(&["-m", "512M"]);
    let errors = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let line =
        "this host has 97 MiB of memory left: a machine with 512 MiB needs 192 MiB to begin with";
    assert!(errors.contains(line), "{errors}");
    let admitted = run(&["-m", "512M", "--admission", "off"]);
    assert_eq!(
        text(&admitted.stdout),
        "ran\n",
        "{}",
        text(&admitted.stderr)
    );
}

#[test]
fn nothing_is_left_when_everything_is_killed() {
    let own = Own::new();
    let started = own.exec(&["-d", "--name", "one"], &["sleep", "1000"]);
    assert_eq!(text(&started.stdout), "one\n");
    let started = own.exec(&["--keep", "-d", "--name", "two"], &[]);
    assert_eq!(text(&started.stdout), "two\n");
    let root = own.place.root.to_str().unwrap();
    let mut pool = own.command(&["pool", "--size", "2", "--name", "three", "--"]);
    let mut pool = pool.args(["-m", "256M", "--root", root]).spawn().unwrap();
    eventually("the machines of the pool", || {
        (own.machines().len() == 5).then_some(())
    });
    let output = own.run(&["exec", "-n", "--in", "three", "--", "echo", "from the pool"]);
    assert_eq!(text(&output.stdout), "from the pool\n");

    let mine = own.processes();
    assert!(mine.len() >= 5, "{mine:?}");
    let killed = Command::new("kill").arg("-KILL").args(&mine).status();
    assert!(killed.is_ok());
    pool.wait().unwrap();
    // Memory is mapped by processes alone. A process that ends loses its memory, and with it its
    // environment, before its files and their locks.
    let mut mine = mine;
    eventually("the end of all processes", || {
        mine.extend(own.processes());
        mine.iter().all(|number| has_ended(number)).then_some(())
    });
    assert_eq!(own.machines().len(), 0);
    assert_eq!(own.files(), [""; 0]);
    let temporary = fs::read_dir(own.place.folder.path("temporary")).unwrap();
    assert_eq!(temporary.count(), 0);
}

#[test]
fn a_machine_in_the_background_that_cannot_start_says_why() {
    let own = Own::new();
    let refused = own.exec(&["--detach", "--kernel", "/nowhere"], &["true"]);
    let why = text(&refused.stdout);
    assert!(why.contains("cannot read '/nowhere'"), "{why}");
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(own.files(), [""; 0]);
}
