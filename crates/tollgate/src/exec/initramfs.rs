//! The initramfs of a guest that runs a command: made in memory, gone with the process.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use tollgate_agent::protocol::{MODULES_FOLDER, START_FILE};

use super::kernel::Module;
use crate::host;

/// The agent, as the build script has compiled it.
static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// An initramfs that is there as long as this is.
pub struct Initramfs(OwnedFd);

impl Initramfs {
    /// Writes one with the agent, what it is to do, and the modules in the order in which they
    /// are loaded.
    ///
    /// # Errors
    /// Those of memfd_create(2) and write(2).
    pub fn new(start: &[u8], modules: &[Module]) -> io::Result<Self> {
        let archive = archive(start, modules);
        // SAFETY: the name is a string that ends with zero.
        let fd = host::owned(unsafe {
            libc::memfd_create(c"tollgate-initramfs".as_ptr(), libc::MFD_CLOEXEC)
        })?;
        let mut file = File::from(fd);
        file.write_all(&archive)?;
        Ok(Self(file.into()))
    }

    /// The name by which this process can open it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

fn archive(start: &[u8], modules: &[Module]) -> Vec<u8> {
    let mut archive = Vec::new();
    // The kernel opens it for the agent's standard streams, if the kernel's own archive has it not.
    entry(&mut archive, "dev", DIRECTORY, &[], [0, 0]);
    entry(&mut archive, "dev/console", 0o020_600, &[], [5, 1]);
    entry(&mut archive, "init", PROGRAM, AGENT, [0, 0]);
    entry(&mut archive, &START_FILE[1..], FILE, start, [0, 0]);
    let folder = &MODULES_FOLDER[1..];
    entry(&mut archive, folder, DIRECTORY, &[], [0, 0]);
    for (index, module) in modules.iter().enumerate() {
        let name = format!("{folder}/{index:03}-{}.ko", module.name);
        entry(&mut archive, &name, FILE, &module.content, [0, 0]);
    }
    entry(&mut archive, "TRAILER!!!", 0, &[], [0, 0]);
    archive
}

/// One entry of a cpio archive in the newc format (the kernel's
/// Documentation/driver-api/early-userspace/buffer-format.rst). Of a device: its numbers.
fn entry(archive: &mut Vec<u8>, path: &str, mode: u32, content: &[u8], device: [u32; 2]) {
    let inode = archive.len() as u32 + 1;
    let (size, name) = (content.len() as u32, path.len() as u32 + 1);
    // Inode, mode, owner, group, links, time, size, device, device numbers, name's length, sum.
    let [major, minor] = device;
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name, 0];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08X}").bytes());
    }
    archive.extend(path.bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_named() {
        let module = Module {
            name: "fuse".into(),
            content: vec![1, 2, 3],
        };
        let archive = archive(b"argument true\0", &[module]);
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8_lossy(&archive);
        for name in ["init\0", "start\0", "modules/000-fuse.ko\0", "TRAILER!!!\0"] {
            let at = text.find(name);
            assert!(at.is_some(), "{name}");
        }
    }

    #[test]
    fn the_agent_is_linked_statically() {
        assert_eq!(&AGENT[..4], b"\x7fELF");
        // Program headers: none names an interpreter (PT_INTERP, 3).
        let word = |at: usize| u64::from_le_bytes(AGENT[at..at + 8].try_into().unwrap()) as usize;
        let half = |at: usize| u16::from_le_bytes(AGENT[at..at + 2].try_into().unwrap()) as usize;
        let (offset, size, count) = (word(32), half(54), half(56));
        for index in 0..count {
            assert_ne!(AGENT[offset + index * size], 3);
        }
    }
}
