//! `make` and gcc in Linux, which build a program from its sources: a small form of the study's build of
//! a whole system.

use super::counts::timed;
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::linux_guest::{Extra, LinuxGuest, Ran, System};
use std::fs;
use tollgate_host_facts::file_words::reading;
use tollgate_machine::config::VmConfig;

/// The folder in the guest with the system that has make, gcc and the sources.
const ROOT: &str = "/lab/root";
/// The script that builds.
const BUILD: &str = include_str!("../../guests/make/build");
/// RAM for the system, which is unpacked into it from the initial RAM disk, and for gcc.
const MEMORY: u64 = 768 << 20;
/// How many objects a quick run makes.
const QUICK_OBJECTS: u64 = 2;
/// The program computes the sum of the squares of 1 to 1000.
const ANSWER: u64 = 1000 * 1001 * 2001 / 6;

/// A booted guest with the sources.
pub struct Make {
    guest: LinuxGuest,
    /// How many objects are made; `None`: all.
    objects: Option<u64>,
}

impl Make {
    /// Boots the guest.
    ///
    /// # Errors
    ///
    /// The guest or the system with the sources is missing, or it does not start its shell.
    pub fn open(guest: &str, options: &Options, stop: &Stop) -> Result<Self, LabError> {
        let system = System::open_with(guest, &[], options, |folder, is_wide| {
            let name = if is_wide { "build-amd64" } else { "build-i386" };
            let path = folder.join(name).join("root.cpio");
            let root = fs::read(&path).map_err(|error| {
                let (path, why) = (path.display(), reading(&error));
                LabError::NotRun(format!(
                    "no system with make, '{path}': {why}; run scripts/get-build-tree"
                ))
            })?;
            let script = Extra::program("root/build", BUILD);
            Ok(vec![Extra::archive(root), script])
        })?;
        let system = system.with_memory(MEMORY);
        let mut guest = LinuxGuest::boot(&system, &VmConfig::default(), stop)?;
        guest.run(&format!(
            "mount -t devtmpfs devtmpfs {ROOT}/dev && mount -t proc proc {ROOT}/proc"
        ))?;
        Ok(Self {
            guest,
            objects: options.quick.then_some(QUICK_OBJECTS),
        })
    }

    /// How many objects a run makes; `None`: all.
    pub const fn objects(&self) -> Option<u64> {
        self.objects
    }

    /// The booted guest.
    pub const fn guest(&self) -> &LinuxGuest {
        &self.guest
    }

    /// Makes this number of objects, or all, and the program. Returns the costs, and how many
    /// objects there were to make.
    ///
    /// # Errors
    ///
    /// They were not made, or the program does not compute what it should.
    pub fn run(&mut self, objects: Option<u64>) -> Result<(Ran, u64), LabError> {
        let number = objects.map_or("all".to_owned(), |number| number.to_string());
        let ran = self.guest.run(&format!("chroot {ROOT} /build {number}"))?;
        let value = |name: &str| -> Option<u64> {
            let mut words = ran.output.split_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let (sources, made) = (value("sources"), value("compiled"));
        let is_done = value("objects") == sources
            && made == objects.or(sources)
            && value("answer") == Some(ANSWER);
        match made {
            Some(made) if is_done && made > 0 => Ok((ran, made)),
            _ => Err(LabError::WorkNotDone(format!(
                "make did not build {number} objects and a program that computes {ANSWER}: {}",
                ran.output.trim()
            ))),
        }
    }
}

impl Bench for Make {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        // Setting the knob has dropped all translations.
        self.run(Some(1))?;
        let (ran, made) = self.run(self.objects)?;
        let mut timed = timed(&ran, made)?;
        timed.work.insert("objects".to_owned(), made);
        Ok(timed)
    }
}
