//! The files of a guest: its kernel, its shell, and programs of ours.

use crate::experiment::{Guest, LabError, Options};
use crate::nameless_file::NamelessFile;
use std::fs;
use std::path::{Path, PathBuf};
use tollgate_machine::boot::cpio::Archive;
use tollgate_machine::config::VmConfig;
use tollgate_machine::file_words::reading;

/// The folder of guests that scripts/get-guests fills.
const GUESTS: &str = "TOLLGATE_GUESTS";
/// Guest RAM: room for a shell and some small programs.
const MEMORY: u64 = 128 << 20;

/// A static program that the guest finds in `/lab`.
#[derive(Clone, Copy)]
pub struct Program {
    /// Its name there.
    pub name: &'static str,
    /// For i386.
    pub narrow: &'static [u8],
    /// For x86-64.
    pub wide: &'static [u8],
}

/// A file or folder that the guest finds in `/lab`.
pub struct Extra {
    path: String,
    /// `None`: a folder.
    content: Option<Vec<u8>>,
}

impl Extra {
    /// A folder, which comes before what is in it.
    pub fn folder(path: &str) -> Self {
        Self {
            path: path.into(),
            content: None,
        }
    }

    /// A file that may be executed.
    pub fn program(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            content: Some(content.into()),
        }
    }
}

/// A kernel of `scripts/get-guests` with its initramfs.
pub struct System {
    kernel: PathBuf,
    /// The shell's archive with ours behind it.
    initramfs: NamelessFile,
    append: String,
}

/// What an experiment says of its Linux guests: the kernel of 64 bits.
pub const AMD64: Guest = Guest {
    name: "linux-amd64",
    what: "Debian's 64-bit cloud kernel with a shell, from scripts/get-guests",
    needs_image: false,
};
/// And that of 32 bits.
pub const I686: Guest = Guest {
    name: "linux-686",
    what: "Debian's 32-bit kernel without PAE, with a shell, from scripts/get-guests",
    needs_image: false,
};

impl System {
    /// The system of a guest by name, with these programs: from the folder that
    /// `--guest-image NAME=FOLDER` gives, or where scripts/get-guests puts it.
    ///
    /// # Errors
    /// [`LabError::NotRun`] if it is not there; [`LabError::Host`] if the host refuses a file.
    pub fn open(guest: &str, programs: &[Program], options: &Options) -> Result<Self, LabError> {
        Self::open_with(guest, programs, options, |_, _| Ok(Vec::new()))
    }

    /// The same with files that `extras` takes from the folder of guests, for one of 64 bits or not.
    ///
    /// # Errors
    /// As [`System::open`], or those of `extras`.
    pub fn open_with(
        guest: &str,
        programs: &[Program],
        options: &Options,
        extras: impl FnOnce(&Path, bool) -> Result<Vec<Extra>, LabError>,
    ) -> Result<Self, LabError> {
        let is_wide = guest == AMD64.name;
        let folder = match options.images.path(guest) {
            Some(folder) => folder.to_owned(),
            None => fetched().ok_or_else(not_fetched)?,
        };
        let (kernel, initrd) = files(guest, &folder);
        let (true, Ok(mut archive)) = (kernel.is_file(), fs::read(initrd)) else {
            return Err(not_fetched());
        };
        let ours = programs
            .iter()
            .fold(Archive::new().folder("lab"), |ours, it| {
                let content = if is_wide { it.wide } else { it.narrow };
                ours.program(&format!("lab/{}", it.name), content)
            });
        let ours = extras(&folder, is_wide)?.iter().fold(ours, |ours, extra| {
            let path = format!("lab/{}", extra.path);
            match &extra.content {
                Some(content) => ours.program(&path, content),
                None => ours.folder(&path),
            }
        });
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(ours.finish());
        let initramfs = NamelessFile::with(&archive)
            .map_err(|error| LabError::Host(format!("an initramfs: {error}")))?;
        Ok(Self {
            kernel,
            initramfs,
            append: "console=ttyS0 quiet".into(),
        })
    }

    /// `config` with this system to be booted.
    pub fn config(&self, config: &VmConfig) -> VmConfig {
        let initrd = self.initramfs.path();
        VmConfig {
            memory_bytes: MEMORY,
            kernel: self.kernel.clone(),
            initrd: Some(initrd.to_string_lossy().into_owned()),
            append: self.append.clone(),
            ..config.clone()
        }
    }

    /// The same with more words on the kernel's command line.
    pub fn appending(mut self, words: &str) -> Self {
        self.append.push(' ');
        self.append.push_str(words);
        self
    }
}

/// Looks at the folder that `--guest-image` gives for a guest.
///
/// # Errors
/// [`LabError::NotRun`]: a file is not there.
pub fn check_folder(guest: &str, folder: &Path) -> Result<(), LabError> {
    let (kernel, initrd) = files(guest, folder);
    for file in [kernel, initrd] {
        fs::File::open(&file).map_err(|error| {
            let (file, why) = (file.display(), reading(&error));
            LabError::NotRun(format!(
                "--guest-image {guest}: cannot read '{file}': {why}"
            ))
        })?;
    }
    Ok(())
}

/// The kernel and the initial RAM disk of a guest in this folder.
fn files(guest: &str, folder: &Path) -> (PathBuf, PathBuf) {
    let (kernel, initrd) = match guest == AMD64.name {
        true => ("debian-amd64", "initrd-amd64.img"),
        false => ("debian-686", "initrd-i386.img"),
    };
    (folder.join(kernel).join("vmlinuz"), folder.join(initrd))
}

fn not_fetched() -> LabError {
    LabError::NotRun(format!(
        "no such system: run scripts/get-guests (its folder: {GUESTS}, or --guest-image NAME=FOLDER)"
    ))
}

/// Where scripts/get-guests has put them: the folder that the environment names, or that beside
/// what was built.
fn fetched() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(GUESTS) {
        return Some(folder.into());
    }
    let program = std::env::current_exe().ok()?;
    let mut folders = program.ancestors().skip(1).take(3);
    let beside = |folder: &Path| Some(folder.join("guests")).filter(|path| path.is_dir());
    folders.find_map(beside)
}
