//! Runs FreeDOS from a floppy disk or a hard disk, with programs of ours that are assembled here.

use super::cd::made;
use super::floppy;
use super::folder::Folder;
use super::guests::repository;
use super::pc::Pc;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image of a floppy disk that boots FreeDOS, see [`floppy::unpacked`].
pub fn freedos(folder: &Folder) -> Option<PathBuf> {
    floppy::unpacked(folder, "freedos")
}

/// Assembles `tests/guests/dos/NAME.S` to a .COM program.
#[track_caller]
pub fn program(folder: &Folder, name: &str) -> PathBuf {
    let build = repository().join("tests/guests/dos/build");
    made(Command::new(build).arg(folder.as_path()).arg(name));
    folder.path(&format!("{name}.com"))
}

/// Puts files on the file system of a disk's image.
#[track_caller]
pub fn put(image: &Path, files: &[&Path]) {
    if files.is_empty() {
        // Without files, mcopy would copy the image itself to this folder.
        return;
    }
    let mut copy = Command::new("mcopy");
    made(copy.args(["-o", "-i"]).arg(image).args(files).arg("::"));
}

/// The content of a file on a disk's image.
#[track_caller]
pub fn get(folder: &Folder, image: &Path, name: &str) -> Vec<u8> {
    let target = folder.path(&format!("from-{}", name.replace('/', "-")));
    let mut copy = Command::new("mcopy");
    copy.args(["-n", "-i"]).arg(image);
    made(copy.arg(format!("::{name}")).arg(&target));
    std::fs::read(target).unwrap()
}

/// A machine with FreeDOS at its prompt.
pub struct Dos {
    /// The machine that runs DOS.
    pub pc: Pc,
    /// The image of the disk that it booted.
    pub image: PathBuf,
}

impl Dos {
    /// Boots FreeDOS with programs of ours and more flags; `None` if there is no FreeDOS here.
    #[track_caller]
    pub fn with(folder: &Folder, programs: &[&str], arguments: &[&str]) -> Option<Self> {
        let floppy = freedos(folder)?;
        let programs: Vec<PathBuf> = programs.iter().map(|name| program(folder, name)).collect();
        let programs: Vec<&Path> = programs.iter().map(PathBuf::as_path).collect();
        put(&floppy, &programs);
        let all = [&["--floppy", floppy.to_str().unwrap()], arguments].concat();
        Some(Self::boot(folder, floppy.clone(), &all))
    }

    /// Boots the image of a disk; `arguments` are all flags, including those that name it.
    #[track_caller]
    pub fn boot(folder: &Folder, image: PathBuf, arguments: &[&str]) -> Self {
        let pc = Pc::start(folder, arguments);
        let dos = Self { pc, image };
        dos.at_prompt();
        dos
    }

    /// Waits until the last line is an empty prompt; returns the whole screen.
    #[track_caller]
    pub fn at_prompt(&self) -> String {
        self.pc.screen_that("the prompt", |screen| {
            let last = screen.trim_end().lines().last().unwrap_or_default();
            last.len() <= 4 && last.ends_with('>')
        })
    }

    /// Clears the screen, types a command, waits for the next prompt, and returns the text between
    /// the two.
    #[track_caller]
    pub fn command(&self, line: &str) -> String {
        self.pc.tell(&["type", "cls\\n"]);
        self.pc.screen_that("a clear screen", |screen| {
            screen.trim().len() <= 4 && screen.trim().ends_with('>')
        });
        // The BIOS stores 15 keys for a slow DOS.
        let mut typed = String::new();
        for character in line.chars() {
            typed.push(character);
            if typed.len().is_multiple_of(12) || typed.len() == line.len() {
                let keys = &typed[(typed.len() - 1) / 12 * 12..];
                self.pc.tell(&["type", &keys.replace('\\', "\\\\")]);
                self.pc.screen_with(&typed);
            }
        }
        self.pc.tell(&["type", "\\n"]);
        let screen = self.pc.screen_that("the next prompt", |screen| {
            let last = screen.trim_end().lines().last().unwrap_or_default();
            let is_prompt = last.len() <= 4 && last.ends_with('>');
            is_prompt && screen.trim_end().lines().count() > 1
        });
        let lines = screen.trim_end().lines();
        let lines: Vec<&str> = lines.skip_while(|it| !it.contains(line)).skip(1).collect();
        let answer = lines[..lines.len().saturating_sub(1)].join("\n");
        answer.trim().to_owned()
    }
}
