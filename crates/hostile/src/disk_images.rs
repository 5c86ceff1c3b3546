//! Hostile input for disk images: qcow2 images with modifications anywhere in their tables.
//!
//! For any modification, the image is either refused with one line of text, or data written to its
//! disk can be read back, and a check finds no more damage than before.

use crate::input::Input;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_disk::{DriveOptions, Format, Repair, check, convert, create, info, open};

/// Size in bytes of the disk in the image that is modified.
const DISK_BYTES: u64 = 1 << 20;
/// Maximum number of bytes of a disk that are read and written, whatever its header says.
const MOST_BYTES: u64 = 2 << 20;
/// Maximum number of modifications.
const MOST_EDITS: usize = 8;

/// A file that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-image-{}-{number}.qcow2", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_file(self.0.with_extension("img"));
    }
}

/// A valid image, and the offsets of its header and its tables.
fn sound() -> &'static (Vec<u8>, [usize; 5]) {
    static SOUND: OnceLock<(Vec<u8>, [usize; 5])> = OnceLock::new();
    SOUND.get_or_init(|| {
        let scratch = Scratch::new();
        create(&scratch.0, Format::Qcow2, DISK_BYTES).expect("a new image");
        let image = open(&DriveOptions::new(&scratch.0)).expect("a sound image");
        image.write(0, &[0x41; 200_000]).expect("a write");
        image.close().expect("an end");
        let bytes = std::fs::read(&scratch.0).expect("the image");
        let table = |at: usize| {
            let word = bytes[at..at + 8].try_into().expect("eight bytes");
            (u64::from_be_bytes(word) & 0x00ff_ffff_ffff_fe00) as usize
        };
        let (l1, counts) = (table(40), table(48));
        let places = [0, l1, table(l1), counts, table(counts)];
        (bytes, places)
    })
}

/// Makes the modifications that the input describes, and uses the image in every way.
///
/// # Panics
///
/// Panics if the image was damaged, or returned other data than were written.
pub fn run(data: &[u8]) {
    let (bytes, places) = sound();
    let mut bytes = bytes.clone();
    let mut input = Input::new(data);
    for _ in 0..MOST_EDITS {
        if input.is_empty() {
            break;
        }
        let kind = input.byte();
        let at = places[usize::from(kind) % places.len()] + usize::from(input.byte());
        let value = match kind / 8 % 4 {
            0 => places[usize::from(input.byte()) % places.len()] as u64,
            1 => 1 << 63 | places[usize::from(input.byte()) % places.len()] as u64,
            2 => u64::from(input.byte()),
            _ => input.qword(),
        };
        let value = value.to_be_bytes();
        let width = if kind & 0x80 != 0 { 1 } else { 8 };
        bytes[at..at + width].copy_from_slice(&value[8 - width..]);
    }
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, &bytes).expect("the image");
    read(&scratch);
    let unchanged = std::fs::read(&scratch.0).expect("the image");
    assert!(unchanged == bytes, "an image that is only read was changed");
    write(&scratch);
}

fn read(scratch: &Scratch) {
    let path = &scratch.0;
    let mut options = DriveOptions::new(path);
    options.readonly = true;
    // Files that a modification names must not be opened.
    options.backing = tollgate_disk::Backing::None;
    let mut data = vec![0; MOST_BYTES as usize];
    match open(&options) {
        Ok(image) => {
            let length = image.size().min(MOST_BYTES) as usize;
            let _ = image.read(0, &mut data[..length]);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if info(path, None, false).is_ok_and(|info| info.virtual_bytes <= MOST_BYTES) {
        let copy = tollgate_disk::Copy {
            source: path,
            source_format: None,
            backing: options.backing,
            target: &path.with_extension("img"),
            target_format: Format::Raw,
            replace: true,
        };
        let _ = convert(&copy, |_, _| {});
    }
}

fn write(scratch: &Scratch) {
    let mut options = DriveOptions::new(&scratch.0);
    options.backing = tollgate_disk::Backing::None;
    options.discard = true;
    let damage = || check(&scratch.0, Repair::Nothing, |_| {}).map(|report| report.damage);
    let before = damage();
    let Ok(mut image) = open(&options) else {
        return;
    };
    // Bitmaps are the only structure that a check ignores and that can be written to.
    let Ok(before) = before else { return };
    let length = image.size().min(MOST_BYTES);
    if length < DISK_BYTES {
        return;
    }
    let mut expected = vec![0; length as usize];
    if image.read(0, &mut expected).is_err() {
        // A compressed cluster whose bytes have changed.
        return;
    }
    for (index, offset) in [0, 70_000, 500_000, 900_000, 199_000]
        .into_iter()
        .enumerate()
    {
        let end = offset + 100_000;
        if index == 2 {
            image
                .write_zeroes(offset as u64, 100_000, true)
                .expect("zeros");
            expected[offset..end].fill(0);
        } else {
            image
                .write(offset as u64, &[index as u8; 100_000])
                .expect("a write");
            expected[offset..end].fill(index as u8);
        }
    }
    image.close().expect("an end");
    let after = damage().expect("an image that can be checked");
    assert!(
        after <= before,
        "writes have increased the damages from {before} to {after}"
    );
    options.readonly = true;
    let image = open(&options).expect("a sound image");
    let mut found = vec![0; length as usize];
    image
        .read(0, &mut found)
        .expect("a valid image can be read");
    assert!(found == expected, "other data than were written");
}

/// One modification of each kind.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    vec![
        ("none".into(), Vec::new()),
        ("encrypted".into(), vec![0x95, 35, 1]),
        ("table-is-itself".into(), vec![0x0c, 0, 2]),
        ("counts-are-zero".into(), vec![0x14, 0, 0]),
        ("dirty".into(), vec![0x95, 79, 1]),
        ("any-value".into(), vec![0x1b, 8, 0, 2, 0, 0, 0, 0, 0, 0x80]),
    ]
}
