//! Snapshots by name: `savevm`, `loadvm`, `delvm` and their like.
//!
//! QEMU keeps a snapshot inside a qcow2 image. Here each is a folder, `IMAGE.snapshots/NAME`, next to the
//! image of the first disk that is written: `machine` is the machine, and `disk-0`, `disk-1` ... are
//! copies of the images that are written, in their order.

use std::fs::{self, File, FileTimes};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{SeekFrom as Place, seek};
use tollgate_machine::snapshot::SnapshotFile;
use tollgate_qemu_words::Configuration;
use tollgate_qemu_words::monitor::Tag;

/// The file of a snapshot that has the machine.
const MACHINE: &str = "machine";

/// Where the snapshots of a machine are.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    /// The images that the guest writes.
    images: Vec<PathBuf>,
}

impl Store {
    /// The store of a machine.
    ///
    /// # Errors
    /// No image is written, or an image keeps nothing.
    pub fn of(config: &Configuration) -> Result<Self, String> {
        let written = config.drives.iter().filter(|drive| !drive.readonly);
        let mut images = Vec::new();
        for drive in written {
            let Some(file) = &drive.file else {
                continue;
            };
            if drive.snapshot {
                return Err(format!(
                    "drive {}: what is written to it is temporary (snapshot=on), and no snapshot has it",
                    drive.id
                ));
            }
            let path = fs::canonicalize(file);
            images.push(path.map_err(|error| format!("{}: {error}", file.display()))?);
        }
        let first = images.first().ok_or(
            "no disk is written, next to which a snapshot would be; migrate file:PATH writes the machine alone",
        )?;
        let mut folder = first.clone().into_os_string();
        folder.push(".snapshots");
        Ok(Self {
            folder: folder.into(),
            images,
        })
    }

    fn place(&self, name: &str) -> Result<PathBuf, String> {
        match name.is_empty() || name.starts_with('.') || name.contains('/') {
            true => Err(format!("'{name}' cannot be the name of a snapshot")),
            false => Ok(self.folder.join(name)),
        }
    }

    /// The file of the machine in a snapshot that is there.
    ///
    /// # Errors
    /// There is no such snapshot.
    pub fn machine(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.place(name)?.join(MACHINE);
        match path.is_file() {
            true => Ok(path),
            false => Err(format!("there is no snapshot '{name}'")),
        }
    }

    /// Makes a snapshot: `write` writes the machine, which is paused, to a file.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(
        &self,
        name: &str,
        write: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<(), String> {
        let place = self.place(name)?;
        let new = self.folder.join(format!(".{name}.new"));
        let refused = |error: io::Error| format!("{}: {error}", new.display());
        remove(&new).map_err(refused)?;
        fs::create_dir_all(&new).map_err(refused)?;
        let saved = write(&new.join(MACHINE)).and_then(|()| {
            for (number, image) in self.images.iter().enumerate() {
                let copy = File::create_new(new.join(format!("disk-{number}"))).map_err(refused)?;
                let image = File::open(image).map_err(refused)?;
                copy_sparse(&image, &copy).map_err(refused)?;
            }
            remove(&place).map_err(refused)?;
            fs::rename(&new, &place).map_err(refused)
        });
        if saved.is_err() {
            let _ = remove(&new);
        }
        saved
    }

    /// Puts the contents of the images back, which no machine may have open.
    ///
    /// # Errors
    /// There is no such snapshot, or an image cannot be written.
    pub fn put_images_back(&self, name: &str) -> Result<(), String> {
        let place = self.place(name)?;
        let machine = self.machine(name)?;
        let snapshot = SnapshotFile::open(&machine).map_err(|error| error.to_string())?;
        for (number, image) in self.images.iter().enumerate() {
            let refused = |error: io::Error| format!("{}: {error}", image.display());
            let copy = File::open(place.join(format!("disk-{number}"))).map_err(refused)?;
            let file = File::options().write(true).open(image).map_err(refused)?;
            file.set_len(0).map_err(refused)?;
            copy_sparse(&copy, &file).map_err(refused)?;
            // The snapshot knows when the image was written last.
            let mut disks = snapshot.description().disks.iter();
            if let Some(disk) = disks.find(|disk| disk.path == *image) {
                let since = u64::try_from(disk.written_ns).unwrap_or_default();
                let time = UNIX_EPOCH + Duration::from_nanos(since);
                let times = FileTimes::new().set_modified(time);
                file.set_times(times).map_err(refused)?;
            }
        }
        Ok(())
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// There is no such snapshot.
    pub fn delete(&self, name: &str) -> Result<(), String> {
        self.machine(name)?;
        remove(&self.place(name)?).map_err(|error| error.to_string())
    }

    /// The snapshots that there are, by their age.
    pub fn tags(&self) -> Vec<Tag> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let tags = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let machine = self.machine(&name).ok()?;
            let written = fs::metadata(machine).ok()?.modified().ok()?;
            let files = fs::read_dir(entry.path()).ok()?.flatten();
            let sizes = files.filter_map(|file| Some(file.metadata().ok()?.len()));
            Some(Tag {
                name,
                bytes: sizes.sum(),
                seconds: seconds(written),
            })
        });
        let mut tags: Vec<Tag> = tags.collect();
        tags.sort_by(|one, other| (one.seconds, &one.name).cmp(&(other.seconds, &other.name)));
        tags
    }
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Removes a folder that may not be there.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Copies a file to an empty one, without its holes.
fn copy_sparse(mut from: &File, mut to: &File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut place = 0;
    while place < length {
        let Ok(begin) = seek(from, Place::Data(place)) else {
            // There is no more data, or the file system knows no holes and says so at the begin.
            return Ok(());
        };
        let end = seek(from, Place::Hole(begin)).unwrap_or(length);
        from.seek(SeekFrom::Start(begin))?;
        to.seek(SeekFrom::Start(begin))?;
        io::copy(&mut io::Read::take(from, end - begin), &mut to)?;
        place = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn holes_stay_holes_and_names_stay_in_the_folder() {
        let folder = std::env::temp_dir().join(format!("tollgate-tags-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let image = folder.join("disk.img");
        let mut file = File::create(&image).unwrap();
        file.write_all(b"begin").unwrap();
        file.write_all_at(b"end", 64 << 20).unwrap();
        let config = Configuration {
            drives: vec![tollgate_qemu_words::Drive {
                file: Some(image.clone()),
                ..tollgate_qemu_words::Drive::empty(tollgate_qemu_words::Interface::Virtio)
            }],
            ..Configuration::default()
        };
        let store = Store::of(&config).unwrap();
        store
            .save("one", |path| {
                fs::write(path, "m").map_err(|it| it.to_string())
            })
            .unwrap();
        let copy = folder.join("disk.img.snapshots/one/disk-0");
        assert_eq!(fs::metadata(&copy).unwrap().len(), (64 << 20) + 3);
        assert!(fs::metadata(&copy).unwrap().blocks() < 1 << 10);
        assert!(fs::read(&copy).unwrap() == fs::read(&image).unwrap());
        assert_eq!(store.tags()[0].name, "one");
        for name in ["", "../x", ".new", "a/b"] {
            assert!(store.place(name).is_err(), "{name}");
        }
        store.delete("one").unwrap();
        assert!(store.delete("one").unwrap_err().contains("no snapshot"));
        fs::remove_dir_all(&folder).unwrap();
        assert!(
            Store::of(&Configuration::default())
                .unwrap_err()
                .contains("no disk")
        );
    }
}
