//! `--image`: parses the description of a disk image with the guest's root.

use tollgate_machine::comma_list;
use tollgate_machine::config::{Backing, DriveOptions, Format};

/// The form of an image, for messages.
const FORM: &str = "FILE[,partition=N][,format=raw|qcow2][,backing=any|same-dir|none][,rw]";

/// An image as the user named it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageArgument {
    /// The disk. If the guest must not change it, it is opened as a snapshot, so that a replayed
    /// journal is discarded at the end.
    pub drive: DriveOptions,
    /// The number of the partition with the root, from 1, if the user has given it.
    pub partition: Option<u32>,
    /// Whether the guest changes the image.
    pub is_writable: bool,
    /// Which files the image may name, if the user has said so.
    pub backing: Option<Backing>,
}

/// Parses an image. A doubled comma is one that belongs to the file's name.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<ImageArgument, String> {
    let mut parts = comma_list::split(text).into_iter();
    let path = parts.next().unwrap_or_default();
    if path.is_empty() {
        return Err(format!("it names no file; expected {FORM}"));
    }
    let mut image = ImageArgument {
        drive: DriveOptions::new(path),
        partition: None,
        is_writable: false,
        backing: None,
    };
    for part in parts {
        match part.split_once('=').unwrap_or((&part, "")) {
            ("rw", "") => image.is_writable = true,
            ("ro", "") => image.is_writable = false,
            ("format", "raw") => image.drive.format = Some(Format::Raw),
            ("format", "qcow2") => image.drive.format = Some(Format::Qcow2),
            ("format", _) => return Err(format!("{part}: expected raw or qcow2")),
            ("backing", word) => {
                let backing = Backing::parse(word)
                    .ok_or_else(|| format!("{part}: expected {}", Backing::NAMES))?;
                image.drive.backing = backing;
                image.backing = Some(backing);
            }
            ("partition", number) => match number.parse() {
                Ok(number @ 1..) => image.partition = Some(number),
                _ => return Err(format!("{part}: expected a number from 1")),
            },
            _ => return Err(format!("unknown word '{part}'; expected {FORM}")),
        }
    }
    image.drive.snapshot = !image.is_writable;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_a_file_and_words() {
        let image = parse("a,,b:1.img").unwrap();
        assert_eq!(image.drive.path.to_str(), Some("a,b:1.img"));
        assert!(image.drive.snapshot && !image.is_writable);
        assert_eq!((image.partition, image.drive.format), (None, None));
        assert_eq!(image.drive.backing, Backing::Any);
        let image = parse("d,partition=3,format=qcow2,backing=none,rw").unwrap();
        assert_eq!(image.drive.backing, Backing::None);
        assert!(!image.drive.snapshot && image.is_writable);
        assert_eq!(image.partition, Some(3));
        assert_eq!(image.drive.format, Some(Format::Qcow2));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (argument, why) in [
            ("", "names no file"),
            ("a,partition=0", "a number from 1"),
            ("a,partition=x", "a number from 1"),
            ("a,format=vmdk", "raw or qcow2"),
            ("a,backing=off", "any, same-dir or none"),
            ("a,size=3", "unknown word 'size=3'"),
            ("a,rw=on", "unknown word 'rw=on'"),
        ] {
            let refusal = parse(argument).unwrap_err();
            assert!(refusal.contains(why), "{argument}: {refusal}");
        }
    }
}
