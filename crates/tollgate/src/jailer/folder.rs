//! The folder of a jailed machine, with a copy of its program.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};

use super::arguments::JailerArguments;

/// The folders of a jail: for the interface's socket, and for devices.
pub const INNER: [&str; 3] = ["run", "dev", "dev/net"];
/// What the name of the program must contain, as with Firecracker's jailer.
const NAME: &str = "firecracker";

/// The folder that becomes the root of a program, and the program.
pub struct Jail {
    /// Its folder, by an absolute path.
    pub root: PathBuf,
    /// The name of the program, which is in this folder.
    pub program: String,
    /// The program that loads the program's libraries, if it has some.
    loader: Option<String>,
}

impl Jail {
    /// Makes the folder, and copies the program.
    ///
    /// # Errors
    /// One line says what is wrong.
    pub fn make(arguments: &JailerArguments) -> Result<Self, String> {
        let source = &arguments.exec_file;
        let shown = source.display();
        let wrong = |why: String| format!("--exec-file: '{shown}': {why}");
        let metadata = fs::metadata(source).map_err(|error| wrong(error.to_string()))?;
        let name = source
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if !metadata.is_file() || !name.contains(NAME) {
            return Err(wrong(format!("it is no file whose name contains '{NAME}'")));
        }
        let base = fs::canonicalize(&arguments.chroot_base_dir).or_else(|_| {
            let made = fs::create_dir_all(&arguments.chroot_base_dir);
            made.and_then(|()| fs::canonicalize(&arguments.chroot_base_dir))
        });
        let of_base = |error| {
            let base = arguments.chroot_base_dir.display();
            format!("--chroot-base-dir: '{base}': {error}")
        };
        let root = base
            .map_err(of_base)?
            .join(name)
            .join(&arguments.id)
            .join("root");
        let failed = |path: &Path, error: std::io::Error| format!("'{}': {error}", path.display());
        let above = root.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(above).map_err(|error| failed(above, error))?;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for path in INNER.iter().map(|inner| root.join(inner)) {
            builder
                .create(&path)
                .map_err(|error| failed(&path, error))?;
        }
        let program = root.join(name);
        let bytes = fs::read(source).map_err(|error| wrong(error.to_string()))?;
        // An earlier machine of this name may run still: its program is replaced, not written to.
        let _ = fs::remove_file(&program);
        fs::write(&program, &bytes).map_err(|error| failed(&program, error))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .map_err(|error| failed(&program, error))?;
        Ok(Self {
            root,
            program: name.into(),
            loader: loader(&bytes),
        })
    }

    /// The loader that the program needs and that is not in the jail.
    pub fn lacks_loader(&self) -> Option<&str> {
        let loader = self.loader.as_deref()?;
        let inside = self.root.join(loader.trim_start_matches('/'));
        (!inside.exists()).then_some(loader)
    }
}

/// The program that an ELF file names as the loader of its libraries.
fn loader(bytes: &[u8]) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, bytes).ok()?;
    let named = headers.iter().find(|it| it.p_type(endian) == PT_INTERP)?;
    let name = named.data(endian, bytes).ok()?;
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    Some(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_jail_has_a_copy_of_the_program() {
        let name = format!("tollgate-jail-{}", std::process::id());
        let base = std::env::temp_dir().join(name);
        fs::create_dir_all(&base).unwrap();
        let program = base.join("tollgate-firecracker");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let make = |exec_file: &Path| {
            let words = [
                "jailer",
                "--id",
                "box",
                "--uid",
                "0",
                "--gid",
                "0",
                "--exec-file",
            ];
            let words = words.map(std::ffi::OsString::from).into_iter();
            let base = [
                "--chroot-base-dir".into(),
                base.join("jails").into_os_string(),
            ];
            let words = words.chain([exec_file.as_os_str().to_owned()]).chain(base);
            Jail::make(&JailerArguments::parse_from(words))
        };
        let jail = make(&program).unwrap();
        assert!(jail.root.ends_with("tollgate-firecracker/box/root"));
        assert_eq!(
            fs::metadata(jail.root.join(&jail.program)).unwrap().len(),
            fs::metadata(&program).unwrap().len()
        );
        // This test is linked with this host's libraries; a jail with them lacks nothing.
        let loader = jail.lacks_loader().unwrap().to_owned();
        let inside = jail.root.join(loader.trim_start_matches('/'));
        fs::create_dir_all(inside.parent().unwrap()).unwrap();
        fs::write(inside, "").unwrap();
        assert_eq!(make(&program).unwrap().lacks_loader(), None);
        let refusal = make(Path::new("/bin/true")).err().unwrap();
        assert!(refusal.contains("contains 'firecracker'"), "{refusal}");
        fs::remove_dir_all(base).unwrap();
    }
}
