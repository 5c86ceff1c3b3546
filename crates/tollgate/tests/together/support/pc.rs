//! Controls a running PC through its control socket: its screen, keyboard and drives.

use super::folder::Folder;
use super::{GUEST_PATIENCE, PATIENCE, finish, tollgate, within};
use std::path::PathBuf;
use std::process::{Child, Output};
use std::thread;
use std::time::{Duration, Instant};

/// A machine that runs in the background.
pub struct Pc {
    child: Child,
    socket: PathBuf,
}

impl Pc {
    /// Starts `tollgate run` with more arguments, and the control socket in `folder`.
    pub fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let socket = folder.path("vm.sock");
        let mut command = tollgate();
        command.args(["run", "--serial", "null", "--control"]);
        command.arg(&socket).args(arguments);
        let child = command.spawn().unwrap();
        Self { child, socket }
    }

    /// Runs another command of `tollgate` with the socket as its first argument.
    pub fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = tollgate();
        command.arg(arguments[0]);
        command.arg(&self.socket).args(&arguments[1..]);
        finish(&mut command, PATIENCE)
    }

    /// Runs a command as [`Self::ask`] does, and expects the exit code 0.
    #[track_caller]
    pub fn tell(&self, arguments: &[&str]) {
        let output = self.ask(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    }

    /// The characters of the screen.
    pub fn screen(&self) -> String {
        String::from_utf8(self.ask(&["screen"]).stdout).unwrap()
    }

    /// Waits until the screen shows a text; returns the whole screen.
    #[track_caller]
    pub fn screen_with(&self, text: &str) -> String {
        self.screen_that(text, |screen| screen.contains(text))
    }

    /// Waits until the screen is as wanted; returns the whole screen.
    #[track_caller]
    pub fn screen_that(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + GUEST_PATIENCE;
        loop {
            let screen = self.screen();
            if is_wanted(&screen) {
                return screen;
            }
            assert!(Instant::now() < end, "'{what}' does not come: {screen}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the machine has ended by itself; returns its exit code.
    #[track_caller]
    pub fn ended(&mut self) -> Option<i32> {
        within(GUEST_PATIENCE, "the end", || self.child.try_wait().unwrap()).code()
    }

    /// Ends the machine.
    #[track_caller]
    pub fn quit(mut self) {
        self.tell(&["control", "quit"]);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Pc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
