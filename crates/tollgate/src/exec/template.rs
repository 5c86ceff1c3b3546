//! Templates: snapshots of guests that wait for their task, from which `tollgate exec` starts.
//!
//! ```text
//! first run     boot -> agent is ready -> snapshot -> task -> command
//! later runs                  restore ---------------> task -> command
//! ```
//!
//! A template is taken before the agent has its task. The shares are mounted already, but no
//! file in them has been looked at: the template holds nothing of the user. It is found by a key: a hash of everything that it depends on. Templates
//! lie in the user's cache folder, which only the user can read; the least recently used are
//! removed. Whatever is wrong with one, the guest boots instead.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tollgate_machine::config::{
    MemoryBackingChoice, NetworkKind, PortTarget, UserCode, UserOptions, VmConfig,
};
use tollgate_machine::cpu;
use tollgate_machine::snapshot::SnapshotFile;
use tollgate_machine::vm_handle::{AfterSnapshot, SnapshotOrder, VmHandle};

use crate::cache::folders;
use crate::failure::Failure;
use crate::files::is_private;

/// How many templates are kept.
const MOST_TEMPLATES: usize = 8;
/// How long writing a template may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the guest runs between the agent's message and the snapshot.
const SETTLING: Duration = Duration::from_millis(100);
/// How often it is asked whether a template is written.
const RETRY: Duration = Duration::from_millis(1);
/// The end of a template's name.
pub const SUFFIX: &str = ".template";
/// The end of the name of a template's [list](super::first_writes), after the same key.
const LIST_EXTENSION: &str = "first-writes";

/// The place of the template for one kind of guest.
pub struct Template {
    path: PathBuf,
    /// What the machine is, without what lies outside the guest.
    shape: VmConfig,
}

/// A template that is written when the agent is ready.
pub struct NewTemplate(PathBuf);

impl Template {
    /// The place for guests of a configuration, which has this [key]. `None` if the user has
    /// no cache folder that is safe, or if such guests have no templates: a disk belongs to the
    /// user, and the kernel reads it before the agent is ready.
    pub fn of(config: &VmConfig, key: u64) -> Option<Self> {
        if !config.drives.is_empty() {
            return None;
        }
        let path = folders::templates()?.join(format!("{key:016x}{SUFFIX}"));
        let shape = shape(config);
        Some(Self { path, shape })
    }

    /// The template, if there is one that can be used.
    pub fn open(&self) -> Option<SnapshotFile> {
        let metadata = fs::symlink_metadata(&self.path).ok()?;
        if !metadata.is_file() || !is_private(&metadata) {
            return None;
        }
        let snapshot = SnapshotFile::open(&self.path);
        let fits = |snapshot: &SnapshotFile| shape(&snapshot.description().config) == self.shape;
        match snapshot.ok().filter(fits) {
            Some(snapshot) => {
                // The time of the last use.
                let now = SystemTime::now();
                let _ = File::open(&self.path).and_then(|file| file.set_modified(now));
                Some(snapshot)
            }
            None => {
                self.remove();
                None
            }
        }
    }

    /// The place of the list of pages that guests write first.
    pub fn first_writes(&self) -> PathBuf {
        self.path.with_extension(LIST_EXTENSION)
    }

    /// Removes a template that cannot be used.
    pub fn remove(&self) {
        remove(&self.path);
    }

    /// The same place, for a template that is written.
    pub fn new_one(self) -> NewTemplate {
        NewTemplate(self.path)
    }
}

/// A snapshot of a machine that stays, to continue from.
///
/// # Errors
/// One line says that it cannot be read, or is of a machine with other flags.
pub fn continued(path: &Path, config: &VmConfig) -> Result<SnapshotFile, Failure> {
    let snapshot = SnapshotFile::open(path);
    let snapshot = snapshot.map_err(|error| Failure::usage(format!("--restore: {error}")))?;
    let saved = &snapshot.description().config;
    match shape(saved) == shape(config) && saved.shares.len() == config.shares.len() {
        true => Ok(snapshot),
        false => Err(Failure::usage(format!(
            "--restore: '{}' is the snapshot of a machine with other flags",
            path.display()
        ))),
    }
}

impl NewTemplate {
    /// Has the machine write the template, and waits for it. If that fails, the next guest boots
    /// too.
    pub fn write(self, handle: &VmHandle) {
        // What the kernel does in the background after its boot is done once, not in every later run.
        std::thread::sleep(SETTLING);
        let folder = self.0.parent().unwrap_or(Path::new("/"));
        folders::remove_oldest(folder, SUFFIX, MOST_TEMPLATES - 1);
        // The list of an earlier template in this place.
        let _ = fs::remove_file(self.0.with_extension(LIST_EXTENSION));
        let request = handle.request_snapshot(SnapshotOrder::Write {
            path: self.0,
            base: None,
            then: AfterSnapshot::Resume,
        });
        let begin = std::time::Instant::now();
        while handle.snapshot_after(request).is_none() && begin.elapsed() < PATIENCE {
            std::thread::sleep(RETRY);
        }
    }
}

/// A number that guests of another kind do not have: a hash of everything that a guest depends on
/// before it has its task. `files` are those that the guest is made from.
pub fn key(config: &VmConfig, files: &[PathBuf]) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&shape(config))
        .ok()?
        .hash(&mut hasher);
    cpu::shown_features(&config.cpu).hash(&mut hasher);
    // Another build may have another agent or other devices.
    folders::build_stamp()?.hash(&mut hasher);
    for file in files {
        (file, folders::stamp(file)).hash(&mut hasher);
    }
    Some(hasher.finish())
}

/// The configuration without what lies outside the guest and what the agent is told later.
fn shape(config: &VmConfig) -> VmConfig {
    let mut shape = config.clone();
    shape.initramfs = None;
    // They change nothing that the guest sees.
    shape.user_code = UserCode::default();
    shape.memory_backing = MemoryBackingChoice::default();
    for share in &mut shape.shares {
        share.path = PathBuf::new();
    }
    for network in &mut shape.networks {
        if let NetworkKind::User(options) = &mut network.kind {
            *options = UserOptions::default();
        }
    }
    if let Some(vsock) = &mut shape.vsock {
        vsock.path = PathBuf::new();
    }
    for port in &mut shape.ports {
        port.target = PortTarget::Stdio;
    }
    shape
}

/// Removes a template and its list.
fn remove(template: &Path) {
    let _ = fs::remove_file(template);
    let _ = fs::remove_file(template.with_extension(LIST_EXTENSION));
}
