//! A process that has a launcher, and what a test sees of it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
/// The variable that says what a process that was started again does.
pub const ROLE: &str = "TOLLGATE_ROLE";
/// What such a process prints when all was as it should be.
pub const GOOD: &str = "as it should be";

/// Tells the test that started this process the numbers of processes, and waits for its answer.
pub fn report(numbers: &[i32]) {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    println!("numbers: {}", numbers.join(" "));
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process that plays a role. It is killed when this is dropped.
pub struct Monitor {
    pub process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Monitor {
    pub fn start(role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "plays_a_role",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// The processes that it has reported.
    pub fn numbers(&mut self) -> BTreeSet<u32> {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "no report");
            if let Some((_, numbers)) = line.trim().split_once("numbers: ") {
                return numbers
                    .split(' ')
                    .map(|number| number.parse().unwrap())
                    .collect();
            }
        }
    }

    /// Its launcher: its only child.
    pub fn launcher(&self) -> u32 {
        let process = self.process.id();
        let children = children(process);
        assert_eq!(children.len(), 1, "{children:?}");
        *children.first().unwrap()
    }

    /// Lets it continue after its report.
    pub fn go(&mut self) {
        self.process
            .stdin
            .as_ref()
            .unwrap()
            .write_all(b"\n")
            .unwrap();
    }

    #[track_caller]
    pub fn ends_well(&mut self) {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        assert!(text.contains(GOOD), "{text}");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The children of a process.
pub fn children(process: u32) -> BTreeSet<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let lists = tasks.flatten().map(|task| task.path().join("children"));
    let lists: String = lists
        .map(|list| std::fs::read_to_string(list).unwrap_or_default())
        .collect();
    lists
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect()
}

/// Waits until none of these processes exists.
#[track_caller]
pub fn are_gone(processes: &BTreeSet<u32>) {
    let begin = Instant::now();
    // What has ended remains as a zombie where no process takes care of orphans.
    let exists = |process: &&u32| {
        let state = std::fs::read_to_string(format!("/proc/{process}/stat"));
        state.is_ok_and(|it| !it.contains(") Z "))
    };
    while let Some(process) = processes.iter().find(exists) {
        assert!(begin.elapsed() < PATIENCE, "process {process} is left");
        std::thread::sleep(Duration::from_millis(2));
    }
}
