//! Chooses the kernel that a guest boots, and the modules that it needs.

use std::fs;
use std::path::{Path, PathBuf};

use super::{compressed, initramfs, unindexed};
use crate::failure::Failure;

/// A module of the kernel, ready to be loaded.
pub struct Module {
    /// Its name, without `.ko`.
    pub name: String,
    /// The file's content, uncompressed.
    pub content: Vec<u8>,
}

/// A kernel and the folder with its modules.
#[derive(PartialEq, Eq, Debug)]
pub struct Kernel {
    /// The kernel's file.
    pub image: PathBuf,
    /// The folder with its modules.
    pub modules: Option<PathBuf>,
}

/// The modules that every guest needs, and those that a network needs.
const ALWAYS: [&str; 4] = ["virtio_pci", "virtio_console", "virtiofs", "overlay"];
const NETWORK: &str = "virtio_net";
/// The module for sockets between guest and host.
const VSOCK: &str = "vmw_vsock_virtio_transport";
/// The modules for a root on a disk. The file system requests the checksum by name, so
/// `modules.dep` does not list it.
const DISK: [&str; 3] = ["virtio_blk", "crc32c_generic", "ext4"];

/// The variable that names the folder of guests that scripts/get-guests fills, and the kernel in
/// this folder.
const GUESTS: &str = "TOLLGATE_GUESTS";
const FETCHED: &str = "debian-amd64";

/// The kernel that the user names, or the first that is found: one that was fetched for Tollgate,
/// otherwise one of the host's own.
///
/// # Errors
///
/// No kernel is found, or it cannot be used.
pub fn find(image: Option<&Path>, modules: Option<&Path>, root: &Path) -> Result<Kernel, Failure> {
    let mut kernel = match image {
        Some(image) => Kernel {
            image: image.to_owned(),
            modules: modules_beside(image, root),
        },
        None => fetched()
            .or_else(hosts_own)
            .ok_or_else(|| Failure::usage(what_to_do(&in_boot())))?,
    };
    if let Some(folder) = modules {
        kernel.modules = Some(folder.to_owned());
    }
    Ok(kernel)
}

/// Advice for users without a usable kernel, which lists those in /boot that cannot be used. Users
/// who have installed Tollgate from a package have no scripts.
fn what_to_do(in_boot: &[PathBuf]) -> String {
    let here = match in_boot.iter().find(|path| path.exists()) {
        None => "/boot has none (on Debian: sudo apt-get install linux-image-cloud-amd64)".into(),
        Some(path) if !is_readable(path) => {
            let path = path.display();
            format!("you may not read '{path}' (sudo chmod a+r '{path}')")
        }
        Some(path) => format!("'{}' has no modules on this host", path.display()),
    };
    format!(
        "no kernel found for the guest: {here}; or give --kernel FILE (and --modules DIR), or in \
         Tollgate's sources run scripts/get-guests, whose folder {GUESTS} may name"
    )
}

/// The kernel that scripts/get-guests has fetched: in the folder that the environment names, or in
/// the script's default folder next to the build.
fn fetched() -> Option<Kernel> {
    let named = std::env::var_os(GUESTS).map(PathBuf::from);
    let beside = || {
        let program = std::env::current_exe().ok()?;
        Some(program.parent()?.parent()?.join("guests"))
    };
    let folder = named.or_else(beside)?;
    // The ELF file is tried first because it needs no decompression.
    let images = ["vmlinux", "vmlinuz"].map(|name| folder.join(FETCHED).join(name));
    let image = images.into_iter().find(|path| is_readable(path))?;
    let modules = Some(folder.join(format!("{FETCHED}-modules")));
    Some(Kernel { image, modules })
}

/// The host's own kernels: first the running one, then the others, with the highest name first.
fn in_boot() -> Vec<PathBuf> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut images = vec![PathBuf::from(format!("/boot/vmlinuz-{}", release.trim()))];
    let others = fs::read_dir("/boot").into_iter().flatten().flatten();
    let mut others: Vec<_> = others
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().starts_with("/boot/vmlinuz"))
        .collect();
    others.sort();
    images.extend(others.into_iter().rev());
    images
}

/// The first of the host's own kernels that can be used.
fn hosts_own() -> Option<Kernel> {
    let mut kernels = in_boot().into_iter().filter(|path| is_readable(path));
    kernels.find_map(|image| {
        let modules = Some(modules_beside(&image, Path::new("/"))?);
        Some(Kernel { image, modules })
    })
}

fn is_readable(path: &Path) -> bool {
    fs::File::open(path).is_ok_and(|file| file.metadata().is_ok_and(|data| data.is_file()))
}

/// The usual folder of a kernel's modules: one next to its file, or the folder of its version on
/// this host or in the guest's root.
fn modules_beside(image: &Path, root: &Path) -> Option<PathBuf> {
    let mut candidates = Vec::new();
    let folder = fs::canonicalize(image).ok()?.parent()?.to_owned();
    if let Some(name) = folder.file_name() {
        let mut name = name.to_owned();
        name.push("-modules");
        candidates.push(folder.with_file_name(name));
    }
    candidates.push(folder.join("modules"));
    if let Some(version) = version(image) {
        candidates.push(Path::new("/lib/modules").join(&version));
        candidates.push(root.join("lib/modules").join(&version));
        // An unpacked package has this layout.
        candidates.push(folder.join("../lib/modules").join(&version));
    }
    candidates.into_iter().find(|path| path.is_dir())
}

/// Reads the first bytes of a file.
fn beginning(image: &Path) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(image) {
        let _ = file.take(64 << 10).read_to_end(&mut bytes);
    }
    bytes
}

/// The version in a bzImage's header (boot protocol 2.00, field kernel_version).
fn version(image: &Path) -> Option<String> {
    let bytes = beginning(image);
    if bytes.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let offset = u16::from_le_bytes(bytes.get(0x20e..0x210)?.try_into().ok()?);
    let text = bytes.get(usize::from(offset) + 0x200..)?;
    let end = text.iter().position(|byte| *byte == b' ' || *byte == 0)?;
    let text = std::str::from_utf8(&text[..end]).ok()?;
    (!text.is_empty() && !text.contains('/')).then(|| text.to_owned())
}

/// Whether this is known to be a 32-bit kernel, which needs a 32-bit agent.
fn is_32_bit(image: &Path) -> bool {
    let bytes = beginning(image);
    if bytes.starts_with(b"\x7fELF") {
        return bytes.get(4) == Some(&1);
    }
    // The bit XLF_KERNEL_64 (boot protocol 2.12).
    let is_bzimage = bytes.get(0x202..0x206) == Some(b"HdrS".as_slice());
    is_bzimage && bytes.get(0x236).is_some_and(|flags| flags & 1 == 0)
}

impl Kernel {
    /// Refuses a kernel that cannot work.
    ///
    /// # Errors
    ///
    /// One line says what is wrong.
    pub fn check(&self) -> Result<(), Failure> {
        let shown = self.image.display();
        if let Err(error) = fs::File::open(&self.image) {
            return Err(Failure::usage(format!(
                "--kernel: cannot read '{shown}': {error}"
            )));
        }
        if self.is_32_bit() && !initramfs::has_32_bit_agent() {
            return Err(Failure::usage(format!(
                "--kernel: '{shown}' is a kernel of 32 bits, and this tollgate was built without \
                 an agent for them (rustup target add i686-unknown-linux-musl, and build again)"
            )));
        }
        Ok(())
    }

    /// Whether this is known to be a 32-bit kernel.
    pub fn is_32_bit(&self) -> bool {
        is_32_bit(&self.image)
    }

    /// The modules that a guest needs, in the order in which they are loaded, without those that
    /// are built into the kernel.
    ///
    /// # Errors
    ///
    /// One line says which module cannot be read.
    pub fn read_modules(&self, needs: Needs) -> Result<Vec<Module>, Failure> {
        let wanted = needs.modules();
        let Some(folder) = &self.modules else {
            // All of them may be built in; if not, the agent reports what is missing.
            return Ok(Vec::new());
        };
        let failed = |path: &Path, why: &dyn std::fmt::Display| {
            Failure::usage(format!("--modules: cannot use '{}': {why}", path.display()))
        };
        if let Err(error) = fs::read_dir(folder) {
            return Err(failed(folder, &error));
        }
        let Ok(index) = fs::read_to_string(folder.join("modules.dep")) else {
            return unindexed::find(folder, &wanted)
                .map_err(|refusal| failed(&refusal.path, &refusal.why));
        };
        let paths = by_dependencies(folder, &index, &wanted);
        let modules = paths.into_iter().map(|path| {
            let content = fs::read(&path).and_then(compressed::unpack);
            let content = content.map_err(|error| failed(&path, &error))?;
            let name = name_of(&path.to_string_lossy());
            Ok(Module { name, content })
        });
        modules.collect()
    }
}

/// What a guest has in addition to its root and its streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Whether it has a network.
    pub network: bool,
    /// Whether it has a disk.
    pub disk: bool,
    /// Whether it has sockets to the host.
    pub vsock: bool,
}

impl Needs {
    /// The names of the modules that are needed for it, if the kernel does not have them built in.
    fn modules(self) -> Vec<&'static str> {
        let mut wanted = ALWAYS.to_vec();
        if self.disk {
            wanted.extend(DISK);
        }
        if self.network {
            wanted.push(NETWORK);
        }
        if self.vsock {
            wanted.push(VSOCK);
        }
        wanted
    }
}

impl Kernel {
    /// The files on which a guest's kernel and modules depend. They are not read.
    pub fn files(&self, needs: Needs) -> Vec<PathBuf> {
        let mut files = vec![self.image.clone()];
        if let Some(folder) = &self.modules {
            let index = folder.join("modules.dep");
            match fs::read_to_string(&index) {
                Ok(text) => files.extend(by_dependencies(folder, &text, &needs.modules())),
                Err(_) => files.extend(unindexed::files(folder)),
            }
            files.push(index);
            files.push(folder.clone());
        }
        files
    }
}

/// A module's name: the file's name without folder and suffix, with `_` for `-`.
pub(super) fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.split(".ko").next().unwrap_or(file);
    name.replace('-', "_")
}

/// The files of these modules and of those that they use, from `modules.dep`: each line has a
/// module and, after a colon, those that it uses.
fn by_dependencies(folder: &Path, text: &str, wanted: &[&str]) -> Vec<PathBuf> {
    let lines: Vec<(&str, Vec<&str>)> = text
        .lines()
        .filter_map(|line| {
            let (module, uses) = line.split_once(':')?;
            Some((module, uses.split_whitespace().collect()))
        })
        .collect();
    let mut found: Vec<&str> = Vec::new();
    for name in wanted {
        let Some((module, uses)) = lines.iter().find(|(path, _)| name_of(path) == *name) else {
            continue;
        };
        // The file lists a module's dependencies with the first to be loaded last.
        for path in uses.iter().rev().chain([module]) {
            if !found.contains(path) {
                found.push(path);
            }
        }
    }
    found.into_iter().map(|path| folder.join(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_kernel_the_user_is_told_what_helps_here() {
        let missing = PathBuf::from("/boot/vmlinuz-none");
        let folder = PathBuf::from("/");
        let readable = PathBuf::from("/proc/self/status");
        for (images, help) in [
            (
                &[missing.clone()][..],
                "apt-get install linux-image-cloud-amd64",
            ),
            (&[missing.clone(), folder], "sudo chmod a+r '/'"),
            (&[missing, readable], "'/proc/self/status' has no modules"),
        ] {
            let line = what_to_do(images);
            assert!(
                line.contains(help) && line.contains("--kernel FILE"),
                "{line}"
            );
            assert_eq!(line.lines().count(), 1);
        }
    }

    #[test]
    fn what_a_module_uses_is_loaded_before_it() {
        let text = "\
kernel/fs/fuse/fuse.ko:
kernel/fs/fuse/virtiofs.ko.xz: kernel/fs/fuse/fuse.ko kernel/v/virtio.ko kernel/v/virtio_ring.ko
kernel/v/virtio.ko: kernel/v/virtio_ring.ko
kernel/v/virtio_ring.ko:
kernel/x/other.ko:
kernel/v/virtio-pci.ko: kernel/v/virtio.ko kernel/v/virtio_ring.ko
";
        let paths = by_dependencies(Path::new("/m"), text, &["virtio_pci", "none", "virtiofs"]);
        let names = paths.iter().map(|path| name_of(&path.to_string_lossy()));
        let names: Vec<_> = names.collect();
        let expected = ["virtio_ring", "virtio", "virtio_pci", "fuse", "virtiofs"];
        assert_eq!(names, expected);
        assert_eq!(paths[4], Path::new("/m/kernel/fs/fuse/virtiofs.ko.xz"));
    }
}
