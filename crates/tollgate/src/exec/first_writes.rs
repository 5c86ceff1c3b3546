//! Which pages of a template are written first by the guests that continue from it.
//!
//! Such guests begin in the same state and begin with the same work: they wake up, enter their root
//! and start a process. They write the same pages in doing so (Ustiugov et al., "Benchmarking,
//! Analysis, and Optimization of Serverless Function Snapshots", ASPLOS 2021, measured it for
//! Firecracker). Each first write to a page costs a fault of the host and several system calls. So
//! the first guest that continues from a template leaves a list of the pages it has written, and
//! the pages on the list are copied in one go before a later guest runs.
//!
//! The list is only a hint: it decides when a page is copied, never what the guest finds there.
//! With a list that is wrong, damaged or forged, a guest copies other pages than it needs, at most
//! 16 MiB, or none.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tollgate_disk::NewFile;
use tollgate_machine::snapshot::{PageSpan, SnapshotFile};
use tollgate_machine::vm::Vm;

use crate::files::is_private;

/// The most bytes of a list that are read.
const MOST_BYTES: u64 = 256 << 10;
/// The permissions of a list: those of a template.
const MODE: u32 = 0o600;

/// A list that is written when the command has ended.
pub struct FirstWrites(PathBuf);

impl FirstWrites {
    /// Has a machine that is restored from a template copy the pages on a list. If there is no such
    /// list, returns one to be written.
    pub fn follow(list: PathBuf, template: &mut SnapshotFile) -> Option<Self> {
        match read(&list) {
            Some(pages) => {
                template.copy_ahead(pages);
                None
            }
            None => Some(Self(list)),
        }
    }

    /// Starts to record the pages.
    pub fn begin(&self, vm: &mut Vm) {
        vm.record_copies();
    }

    /// Writes the list. If that fails, the next guest writes it.
    pub fn write(self, vm: &mut Vm) {
        let _ = self.try_to_write(&vm.take_record_of_copies());
    }

    fn try_to_write(&self, pages: &[PageSpan]) -> io::Result<()> {
        let numbers: Vec<[u64; 2]> = pages.iter().map(|span| [span.first, span.end]).collect();
        let file = NewFile::create(&self.0, MODE)?;
        file.file().write_all(&serde_json::to_vec(&numbers)?)?;
        file.publish(true)
    }
}

/// The list in a file that no other user could have written; `None` if there is none.
fn read(list: &Path) -> Option<Vec<PageSpan>> {
    let metadata = fs::symlink_metadata(list).ok()?;
    if !metadata.is_file() || !is_private(&metadata) || metadata.len() > MOST_BYTES {
        return None;
    }
    let numbers: Vec<[u64; 2]> = serde_json::from_slice(&fs::read(list).ok()?).ok()?;
    let span = |[first, end]: [u64; 2]| PageSpan { first, end };
    Some(numbers.into_iter().map(span).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_list_is_read_as_it_was_written_and_only_if_it_is_private() {
        let name = format!("tollgate-first-writes-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let pages = [(3, 7), (u64::MAX - 1, u64::MAX)].map(|(first, end)| PageSpan { first, end });
        FirstWrites(path.clone()).try_to_write(&pages).unwrap();
        assert_eq!(read(&path).unwrap(), pages);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(read(&path).is_none());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for damaged in [&b""[..], b"[[1,2", b"[[1]]", b"[[1,-2]]", b"{}"] {
            fs::write(&path, damaged).unwrap();
            assert!(read(&path).is_none());
        }
        fs::remove_file(&path).unwrap();
        assert!(read(&path).is_none());
    }
}
