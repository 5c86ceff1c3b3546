//! Writes archives that Linux unpacks as its first root file system.
//!
//! The format is "newc" (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).
//! Archives may follow one another in one initramfs; a file in a later archive replaces one of the
//! same name in an earlier archive.

/// An archive to which entries are added. A folder must be added before its contents.
#[derive(Default)]
pub struct Archive(Vec<u8>);

/// File types with permissions (POSIX, `<sys/stat.h>`).
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const CHARACTER_DEVICE: u32 = 0o020_600;
/// The name of the entry that ends an archive.
const END: &str = "TRAILER!!!";

impl Archive {
    /// Makes an archive without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder. Paths have no slash at their beginning.
    #[must_use]
    pub fn folder(mut self, path: &str) -> Self {
        self.entry(path, FOLDER, &[], [0, 0]);
        self
    }

    /// Adds an executable file.
    #[must_use]
    pub fn program(mut self, path: &str, content: &[u8]) -> Self {
        self.entry(path, PROGRAM, content, [0, 0]);
        self
    }

    /// Adds a file.
    #[must_use]
    pub fn file(mut self, path: &str, content: &[u8]) -> Self {
        self.entry(path, FILE, content, [0, 0]);
        self
    }

    /// Adds a character device with its major and minor number.
    #[must_use]
    pub fn character_device(mut self, path: &str, numbers: [u32; 2]) -> Self {
        self.entry(path, CHARACTER_DEVICE, &[], numbers);
        self
    }

    /// Ends the archive and returns its bytes. Their number is a multiple of four.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(END, 0, &[], [0, 0]);
        self.0
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8], device: [u32; 2]) {
        let archive = &mut self.0;
        let inode = archive.len() as u32 + 1;
        let (size, name) = (content.len() as u32, path.len() as u32 + 1);
        // The fields are inode, mode, owner, group, links, time, size, device (major and minor),
        // device numbers (major and minor), length of the name, and checksum.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_named() {
        let archive = Archive::new()
            .folder("lib")
            .program("lib/one", &[1, 2, 3])
            .file("two", b"text")
            .finish();
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8_lossy(&archive);
        for name in ["lib\0", "lib/one\0", "two\0", "TRAILER!!!\0"] {
            let at = text.find(name).unwrap();
            // A magic number of six characters and thirteen fields of eight digits precede the
            // name.
            assert_eq!(&text[at - 110..at - 104], "070701", "{name}");
        }
        let at = text.find("lib/one").unwrap();
        assert_eq!(&text[at - 104 + 8..at - 104 + 16], "000081ED");
        assert_eq!(&text[at - 104 + 48..at - 104 + 56], "00000003");
    }
}
