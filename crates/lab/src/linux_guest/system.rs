//! The files of a guest: its kernel, its shell, and our programs.

use crate::experiment::{Guest, LabError, Options};
use crate::nameless_file::NamelessFile;
use std::fs;
use std::path::{Path, PathBuf};
use tollgate_host_facts::file_words::reading;
use tollgate_machine::boot::cpio::Archive;
use tollgate_machine::config::VmConfig;

/// The environment variable with the folder of guests that scripts/get-guests fills.
const GUESTS: &str = "TOLLGATE_GUESTS";
/// Size of guest RAM: enough for a shell and some small programs.
const MEMORY: u64 = 256 << 20;

/// A static program that is in the guest's folder `/lab`.
#[derive(Clone, Copy)]
pub struct Program {
    /// The program's file name.
    pub name: &'static str,
    /// The program for i386.
    pub narrow: &'static [u8],
    /// The program for x86-64.
    pub wide: &'static [u8],
}

/// Something that a guest's initramfs contains in addition: in its folder `/lab`, unless it is an
/// archive.
pub struct Extra(Kind);

enum Kind {
    Folder(String),
    File { path: String, content: Vec<u8> },
    Archive(Vec<u8>),
}

impl Extra {
    /// A folder, which must precede its contents.
    pub fn folder(path: &str) -> Self {
        Self(Kind::Folder(path.into()))
    }

    /// An archive of any files, in the format of an initramfs. Folders and files follow the archives
    /// and may be in their folders.
    pub fn archive(content: Vec<u8>) -> Self {
        Self(Kind::Archive(content))
    }

    /// An executable file.
    pub fn program(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self(Kind::File {
            path: path.into(),
            content: content.into(),
        })
    }

    /// The kernel module of this name, which `scripts/get-modules` has built for the kernel in the
    /// folder of guests: the file `/lab/NAME.ko` in the guest.
    ///
    /// # Errors
    ///
    /// [`LabError::NotRun`] if there is no such module, or if it is one for another kernel.
    pub fn kernel_module(folder: &Path, is_wide: bool, name: &str) -> Result<Self, LabError> {
        let (modules, kernel) = match is_wide {
            true => ("modules-amd64", "debian-amd64"),
            false => ("modules-i386", "debian-686"),
        };
        let file = format!("{name}.ko");
        let path = folder.join(modules).join(&file);
        let content = fs::read(&path).map_err(|error| {
            let (path, why) = (path.display(), reading(&error));
            LabError::NotRun(format!(
                "no kernel module '{path}': {why}; run scripts/get-modules"
            ))
        })?;
        let version = |of: &str| fs::read(folder.join(of).join("version")).ok();
        if version(modules) != version(kernel) {
            let path = path.display();
            return Err(LabError::NotRun(format!(
                "'{path}' is not of the kernel in '{kernel}'; run scripts/get-modules"
            )));
        }
        Ok(Self::program(&file, content))
    }
}

/// A kernel of `scripts/get-guests` with its initramfs.
pub struct System {
    kernel: PathBuf,
    /// The shell's archive, followed by ours.
    initramfs: NamelessFile,
    append: String,
    memory_bytes: u64,
}

/// The description of the 64-bit Linux guest.
pub const AMD64: Guest = Guest {
    name: "linux-amd64",
    what: "Debian's 64-bit cloud kernel with a shell, from scripts/get-guests",
    needs_image: false,
};
/// The description of the 32-bit Linux guest.
pub const I686: Guest = Guest {
    name: "linux-686",
    what: "Debian's 32-bit kernel without PAE, with a shell, from scripts/get-guests",
    needs_image: false,
};
/// The description of the 64-bit Linux guest that preempts itself everywhere.
pub const RT_AMD64: Guest = Guest {
    name: "linux-rt-amd64",
    what: "Debian's 64-bit PREEMPT_RT kernel with a shell, from scripts/get-guests --extra",
    needs_image: false,
};

impl System {
    /// Opens the system of the guest with this name, with these programs: from the folder in
    /// `--guest-image NAME=FOLDER`, or from the one that scripts/get-guests fills.
    ///
    /// # Errors
    ///
    /// [`LabError::NotRun`] if it is missing; [`LabError::Host`] if the host refuses a file.
    pub fn open(guest: &str, programs: &[Program], options: &Options) -> Result<Self, LabError> {
        Self::open_with(guest, programs, options, |_, _| Ok(Vec::new()))
    }

    /// Like [`System::open`], with files that `extras` takes from the folder of guests; its
    /// argument says whether the guest has 64 bits.
    ///
    /// # Errors
    ///
    /// Those of [`System::open`] and of `extras`.
    pub fn open_with(
        guest: &str,
        programs: &[Program],
        options: &Options,
        extras: impl FnOnce(&Path, bool) -> Result<Vec<Extra>, LabError>,
    ) -> Result<Self, LabError> {
        let is_wide = guest != I686.name;
        let folder = match options.images.path(guest) {
            Some(folder) => folder.to_owned(),
            None => guests_folder().ok_or_else(|| not_fetched(guest))?,
        };
        let (kernel, initrd) = files(guest, &folder);
        let (true, Ok(mut archive)) = (kernel.is_file(), fs::read(initrd)) else {
            return Err(not_fetched(guest));
        };
        let ours = programs
            .iter()
            .fold(Archive::new().folder("lab"), |ours, it| {
                let content = if is_wide { it.wide } else { it.narrow };
                ours.program(&format!("lab/{}", it.name), content)
            });
        let mut append = |next: &[u8]| {
            archive.resize(archive.len().next_multiple_of(4), 0);
            archive.extend(next);
        };
        let ours = (extras(&folder, is_wide)?.iter()).fold(ours, |ours, Extra(kind)| match kind {
            Kind::Folder(path) => ours.folder(&format!("lab/{path}")),
            Kind::File { path, content } => ours.program(&format!("lab/{path}"), content),
            Kind::Archive(content) => {
                append(content);
                ours
            }
        });
        append(&ours.finish());
        let initramfs = NamelessFile::with(&archive)
            .map_err(|error| LabError::Host(format!("an initramfs: {error}")))?;
        Ok(Self {
            kernel,
            initramfs,
            append: "console=ttyS0 quiet".into(),
            memory_bytes: MEMORY,
        })
    }

    /// The same system with another word on its kernel's command line.
    #[must_use]
    pub fn with_word(mut self, word: &str) -> Self {
        self.append.push(' ');
        self.append.push_str(word);
        self
    }

    /// The same system with guest RAM of another size.
    #[must_use]
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// `config`, changed to boot this system.
    pub fn config(&self, config: &VmConfig) -> VmConfig {
        let initrd = self.initramfs.path();
        VmConfig {
            memory_bytes: self.memory_bytes,
            kernel: self.kernel.clone(),
            initrd: Some(initrd.to_string_lossy().into_owned()),
            append: self.append.clone(),
            ..config.clone()
        }
    }
}

/// Checks the folder that `--guest-image` names for a guest.
///
/// # Errors
///
/// [`LabError::NotRun`] if a file is missing.
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

/// The paths of a guest's kernel and initial RAM disk in this folder.
fn files(guest: &str, folder: &Path) -> (PathBuf, PathBuf) {
    let initrd = match guest == I686.name {
        true => "initrd-i386.img",
        false => "initrd-amd64.img",
    };
    let kernel = folder.join(kernel_folder(guest)).join("vmlinuz");
    (kernel, folder.join(initrd))
}

/// The name of the folder with a guest's kernel; its modules are in the folder `NAME-modules`.
pub fn kernel_folder(guest: &str) -> &'static str {
    match guest {
        name if name == I686.name => "debian-686",
        name if name == RT_AMD64.name => "debian-rt-amd64",
        _ => "debian-amd64",
    }
}

fn not_fetched(guest: &str) -> LabError {
    let extra = match guest == RT_AMD64.name {
        true => " --extra",
        false => "",
    };
    LabError::NotRun(format!(
        "no such system: run scripts/get-guests{extra} (its folder: {GUESTS}, or --guest-image \
         NAME=FOLDER)"
    ))
}

/// The folder that scripts/get-guests has filled: the one in the environment variable, or the one
/// next to the build.
pub fn guests_folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(GUESTS) {
        return Some(folder.into());
    }
    let program = std::env::current_exe().ok()?;
    let mut folders = program.ancestors().skip(1).take(3);
    let beside = |folder: &Path| Some(folder.join("guests")).filter(|path| path.is_dir());
    folders.find_map(beside)
}
