//! Finds kernel modules in a folder without `modules.dep`: by their names, wherever they are in the
//! folder, in an order that follows from each module's own list of dependencies.
//!
//! The kernel's build writes into each module the names of the modules whose symbols it uses, in
//! the section `.modinfo` as `depends=NAME,NAME`. depmod makes `modules.dep` from the symbols
//! themselves, with the same result.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile32, ElfFile64};
use object::{Endianness, Object, ObjectSection};

use super::compressed;
use super::kernel::{Module, name_of};

/// The maximum depth of nested folders, because links can form a cycle.
const DEPTH: usize = 16;

/// The reason why a module cannot be used, with the module's file.
pub struct Refusal {
    /// The module's file.
    pub path: PathBuf,
    /// The reason for the refusal.
    pub why: String,
}

/// The modules of these names and those that they use; each comes after those that it uses. A
/// missing module is left out, because the kernel may have it built in.
///
/// # Errors
///
/// A file cannot be read, or is not a module.
pub fn find(folder: &Path, wanted: &[&str]) -> Result<Vec<Module>, Refusal> {
    let mut search = Search {
        files: HashMap::new(),
        found: Vec::new(),
        seen: Vec::new(),
    };
    search.list(folder, 0);
    for name in wanted {
        search.take(name)?;
    }
    Ok(search.found)
}

/// All files of modules in a folder, in the order of their paths.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut search = Search {
        files: HashMap::new(),
        found: Vec::new(),
        seen: Vec::new(),
    };
    search.list(folder, 0);
    let mut files: Vec<PathBuf> = search.files.into_values().collect();
    files.sort();
    files
}

struct Search {
    /// The modules' files by their names.
    files: HashMap<String, PathBuf>,
    found: Vec<Module>,
    /// Names that were found already, or whose search has begun.
    seen: Vec<String>,
}

impl Search {
    fn list(&mut self, folder: &Path, depth: usize) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let file = entry.file_name().to_string_lossy().into_owned();
            if [".ko", ".ko.xz", ".ko.zst", ".ko.gz"]
                .iter()
                .any(|ending| file.ends_with(ending))
            {
                self.files.insert(name_of(&file), path);
            } else if depth < DEPTH && path.is_dir() {
                self.list(&path, depth + 1);
            }
        }
    }

    /// Adds a module after those that it uses.
    fn take(&mut self, name: &str) -> Result<(), Refusal> {
        let Some(path) = self.files.get(name).cloned() else {
            return Ok(());
        };
        if self.seen.iter().any(|seen| seen == name) {
            return Ok(());
        }
        self.seen.push(name.to_owned());
        let refusal = |why: String| Refusal {
            path: path.clone(),
            why,
        };
        let content = fs::read(&path).and_then(compressed::unpack);
        let content = content.map_err(|error| refusal(error.to_string()))?;
        let uses = used_by(&content).ok_or_else(|| refusal("it is no kernel module".into()))?;
        for other in &uses {
            self.take(other)?;
        }
        self.found.push(Module {
            name: name.to_owned(),
            content,
        });
        Ok(())
    }
}

/// The modules that a module uses; `None` if the content is not a module.
fn used_by(content: &[u8]) -> Option<Vec<String>> {
    const CLASS: usize = 4;
    const CLASS_64: u8 = 2;
    let information = match content.get(CLASS)? {
        &CLASS_64 => information(&ElfFile64::<Endianness>::parse(content).ok()?),
        _ => information(&ElfFile32::<Endianness>::parse(content).ok()?),
    }?;
    let entries = information.split(|byte| *byte == 0);
    let uses = entries.filter_map(|entry| entry.strip_prefix(b"depends="));
    let names = uses.flat_map(|names| names.split(|byte| *byte == b','));
    let names = names.filter(|name| !name.is_empty());
    Some(
        names
            .map(|name| name_of(&String::from_utf8_lossy(name)))
            .collect(),
    )
}

fn information<'data>(file: &impl Object<'data>) -> Option<Vec<u8>> {
    let section = file.section_by_name(".modinfo")?;
    Some(section.data().ok()?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module like those of the kernel's build: a 64-bit ELF file with the section `.modinfo`.
    fn module(depends: &str) -> Vec<u8> {
        let information = format!("license=GPL\0depends={depends}\0vermagic=6.1\0");
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        let information_at = file.len() as u64;
        file.extend(information.bytes());
        let names_at = file.len() as u64;
        file.extend(names);
        file.resize(file.len().next_multiple_of(8), 0);
        let sections_at = file.len() as u64;
        let header = |file: &mut Vec<u8>, name: u32, kind: u32, at: u64, length: usize| {
            file.extend(name.to_le_bytes());
            file.extend(kind.to_le_bytes());
            // The fields: flags, address, offset, size, link and information, alignment, entries.
            for field in [0, 0, at, length as u64, 0, 1, 0] {
                file.extend(field.to_le_bytes());
            }
        };
        header(&mut file, 0, 0, 0, 0);
        header(&mut file, 1, 1, information_at, information.len());
        header(&mut file, 10, 3, names_at, names.len());
        // The type of file is relocatable, the processor x86-64.
        file[16..20].copy_from_slice(&[1, 0, 62, 0]);
        file[20] = 1;
        file[40..48].copy_from_slice(&sections_at.to_le_bytes());
        // The sizes of the headers, and three sections, of which the last one has the names.
        file[52..64].copy_from_slice(&[64, 0, 0, 0, 0, 0, 64, 0, 3, 0, 2, 0]);
        file
    }

    #[test]
    fn what_a_module_uses_is_loaded_before_it_wherever_it_lies() {
        let folder = std::env::temp_dir().join(format!("tollgate-modules-{}", std::process::id()));
        let deep = folder.join("kernel/drivers");
        fs::create_dir_all(&deep).unwrap();
        let files = [
            (folder.join("virtio_pci.ko"), "virtio,virtio_ring"),
            (deep.join("virtio.ko"), "virtio_ring"),
            (deep.join("virtio-ring.ko"), ""),
            (deep.join("other.ko"), ""),
            // A cycle of links comes to an end.
            (deep.join("a.ko"), "b"),
            (deep.join("b.ko"), "a"),
        ];
        for (path, depends) in files {
            fs::write(path, module(depends)).unwrap();
        }
        let names = |wanted: &[&str]| {
            let found = find(&folder, wanted).ok().unwrap();
            let names = found.into_iter().map(|module| module.name);
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            names(&["virtio_pci", "overlay"]),
            "virtio_ring virtio virtio_pci"
        );
        assert_eq!(names(&["a"]), "b a");
        fs::write(folder.join("fuse.ko"), "text").unwrap();
        let refusal = find(&folder, &["fuse"]).err().unwrap();
        assert!(refusal.path.ends_with("fuse.ko") && refusal.why.contains("no kernel module"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
