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
/// The agent for kernels of 32 bits; nothing where the build script could not compile it.
static AGENT_32: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent-32"));

/// Whether kernels of 32 bits can be used.
pub fn has_32_bit_agent() -> bool {
    !AGENT_32.is_empty()
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// An initramfs that is there as long as this is.
pub struct Initramfs(OwnedFd);

impl Initramfs {
    /// Writes one with the agent for such a kernel, what it is to do, and the modules in the order in which they
    /// are loaded.
    ///
    /// # Errors
    /// Those of memfd_create(2) and write(2).
    pub fn new(start: &[u8], modules: &[Module], is_32_bit: bool) -> io::Result<Self> {
        let agent = if is_32_bit { AGENT_32 } else { AGENT };
        let archive = archive(agent, start, modules);
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

fn archive(agent: &[u8], start: &[u8], modules: &[Module]) -> Vec<u8> {
    let mut archive = Vec::new();
    // The kernel opens it for the agent's standard streams, if the kernel's own archive has it not.
    entry(&mut archive, "dev", DIRECTORY, &[], [0, 0]);
    entry(&mut archive, "dev/console", 0o020_600, &[], [5, 1]);
    entry(&mut archive, "init", PROGRAM, agent, [0, 0]);
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
        let archive = archive(AGENT, b"argument true\0", &[module]);
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8_lossy(&archive);
        for name in ["init\0", "start\0", "modules/000-fuse.ko\0", "TRAILER!!!\0"] {
            let at = text.find(name);
            assert!(at.is_some(), "{name}");
        }
    }

    #[test]
    fn agents_are_linked_statically() {
        // Program headers: where, how large, how many; none names an interpreter (PT_INTERP, 3).
        for (agent, fields) in [(AGENT, [32, 54, 56]), (AGENT_32, [28, 42, 44])] {
            if agent.is_empty() {
                eprintln!("skipped: the agent for kernels of 32 bits is not built in");
                continue;
            }
            assert_eq!(&agent[..4], b"\x7fELF");
            let half = |at: usize| u16::from_le_bytes(agent[at..at + 2].try_into().unwrap());
            let [offset, size, count] = fields.map(|at| usize::from(half(at)));
            assert!(count > 0);
            for index in 0..count {
                assert_ne!(agent[offset + index * size], 3);
            }
        }
    }
}
