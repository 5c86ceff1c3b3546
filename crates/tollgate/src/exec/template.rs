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

use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tollgate_machine::config::{NetworkKind, PortTarget, UserOptions, VmConfig};
use tollgate_machine::cpu;
use tollgate_machine::snapshot::SnapshotFile;
use tollgate_machine::vm_handle::{AfterSnapshot, SnapshotOrder, VmHandle};

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
const SUFFIX: &str = ".template";
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
    /// The place for guests of a configuration, which depend on these files. `None` if the user has
    /// no cache folder that is safe, or if such guests have no templates: a disk belongs to the
    /// user, and the kernel reads it before the agent is ready.
    pub fn of(config: &VmConfig, files: &[PathBuf]) -> Option<Self> {
        if !config.drives.is_empty() {
            return None;
        }
        let shape = shape(config);
        let mut hasher = DefaultHasher::new();
        serde_json::to_string(&shape).ok()?.hash(&mut hasher);
        cpu::shown_features(&config.cpu).hash(&mut hasher);
        // Another build may have another agent or other devices.
        stamp(&std::env::current_exe().ok()?).hash(&mut hasher);
        for file in files {
            (file, stamp(file)).hash(&mut hasher);
        }
        let folder = folder()?;
        let path = folder.join(format!("{:016x}{SUFFIX}", hasher.finish()));
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

impl NewTemplate {
    /// Has the machine write the template, and waits for it. If that fails, the next guest boots
    /// too.
    pub fn write(self, handle: &VmHandle) {
        // What the kernel does in the background after its boot is done once, not in every later run.
        std::thread::sleep(SETTLING);
        let folder = self.0.parent().unwrap_or(Path::new("/"));
        remove_oldest(folder, MOST_TEMPLATES - 1);
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

/// The configuration without what lies outside the guest and what the agent is told later.
fn shape(config: &VmConfig) -> VmConfig {
    let mut shape = config.clone();
    shape.initramfs = None;
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

/// When a file was written last, and its size.
fn stamp(path: &Path) -> Option<(u64, i64, i64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// The folder of templates, which is made if it is not there.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    let folder = cache.join("tollgate").join("templates");
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(&folder).ok()?;
    is_private(&fs::symlink_metadata(&folder).ok()?).then_some(folder)
}

/// Removes a template and its list.
fn remove(template: &Path) {
    let _ = fs::remove_file(template);
    let _ = fs::remove_file(template.with_extension(LIST_EXTENSION));
}

/// Removes templates until `most` are left, those first that were used the longest time ago, and
/// what killed runs have left behind.
fn remove_oldest(folder: &Path, most: usize) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut templates: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in entries {
        let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else {
            continue;
        };
        let is_template = entry.file_name().to_string_lossy().ends_with(SUFFIX);
        let path = entry.path();
        let is_list = path.extension().is_some_and(|it| it == LIST_EXTENSION)
            && path.with_extension(&SUFFIX[1..]).exists();
        let age = modified.elapsed().unwrap_or_default();
        if is_template {
            templates.push((modified, path));
        } else if !is_list && age > 10 * PATIENCE {
            let _ = fs::remove_file(path);
        }
    }
    templates.sort();
    let surplus = templates.len().saturating_sub(most);
    for (_, path) in templates.into_iter().take(surplus) {
        remove(&path);
    }
}
