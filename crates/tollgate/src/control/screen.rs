//! `tollgate screen`: shows the screen of a running machine or writes it to a picture.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use serde_json::{Value, json};
use tollgate_machine::devices::vga::screen::Picture;

use super::client::{exit_code_of, talk};
use super::command::Name;
use crate::exit_code;
use crate::failure::Failure;
use crate::files;
use crate::standard_output::print;

/// The arguments of `tollgate screen`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 the machine did not do it or shows a picture, 2 nothing answers at PATH.
Examples:
  The text on the screen:
    tollgate screen vm.sock
  A picture of it, text or not:
    tollgate screen vm.sock --png screen.png")]
pub struct ScreenArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// Print the characters of a text screen, which is the default
    #[arg(long, conflicts_with_all = ["png", "json"])]
    pub text: bool,

    /// Write a picture to this file, as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,

    /// Print the machine's answer as JSON: characters, attributes, cursor
    #[arg(long)]
    pub json: bool,
}

/// Runs `tollgate screen` and returns its exit code.
pub fn run(arguments: &ScreenArguments) -> u8 {
    show(arguments).unwrap_or_else(|failure| failure.report())
}

fn show(arguments: &ScreenArguments) -> Result<u8, Failure> {
    let mut request = json!({"command": Name::Screen});
    if let Some(path) = &arguments.png {
        // The machine writes the file and may run in another folder, so the path is made absolute.
        let path =
            std::path::absolute(path).map_err(|error| Failure::usage(format!("--png: {error}")))?;
        let path = path
            .to_str()
            .ok_or_else(|| Failure::usage("--png: the file's name is not UTF-8"))?;
        request["png"] = path.into();
    }
    let answer = talk(&arguments.socket, &request)?;
    if answer["ok"] != true {
        return Ok(exit_code_of(&answer));
    }
    let text = if arguments.json {
        format!("{}\n", answer["screen"])
    } else if arguments.png.is_some() {
        return Ok(exit_code::SUCCESS);
    } else {
        match lines(&answer["screen"]) {
            Some(text) => text,
            None => return Err(Failure::host(no_text(&answer["screen"]))),
        }
    };
    print(&text)?;
    Ok(exit_code::SUCCESS)
}

/// The lines of a text screen.
fn lines(screen: &Value) -> Option<String> {
    let lines = screen["lines"].as_array()?.iter().filter_map(Value::as_str);
    Some(lines.flat_map(|line| [line, "\n"]).collect())
}

fn no_text(screen: &Value) -> String {
    match screen["kind"].as_str() {
        Some("graphics") => format!(
            "the screen shows a picture of {} by {} pixels: --png FILE writes it",
            screen["width"], screen["height"]
        ),
        _ => "nothing is on the screen".into(),
    }
}

/// Writes a picture as a PNG file (RFC 2083). Readers find the whole file or none.
///
/// # Errors
/// The file cannot be written.
pub fn write_png(path: &Path, picture: &Picture) -> std::io::Result<()> {
    files::replace(path, &png(picture))
}

fn png(picture: &Picture) -> Vec<u8> {
    const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
    /// The PNG header's format: 8 bits of each of red, green and blue, without interlacing.
    const TRUE_COLOUR: [u8; 5] = [8, 2, 0, 0, 0];
    let size = [picture.size.width, picture.size.height];
    let mut header: Vec<u8> = size
        .iter()
        .flat_map(|n| (*n as u32).to_be_bytes())
        .collect();
    header.extend(TRUE_COLOUR);
    // Each line begins with the number of its filter, which is 0 for none.
    let line = (3 * picture.size.width).max(1);
    let lines = picture.pixels.chunks(line);
    let data: Vec<u8> = lines.flat_map(|line| [&[0], line].concat()).collect();
    let mut bytes = SIGNATURE.to_vec();
    for (kind, content) in [
        (b"IHDR", header),
        (b"IDAT", compressed(&data)),
        (b"IEND", Vec::new()),
    ] {
        bytes.extend((content.len() as u32).to_be_bytes());
        let start = bytes.len();
        bytes.extend(kind);
        bytes.extend(content);
        let sum = crc32(&bytes[start..]);
        bytes.extend(sum.to_be_bytes());
    }
    bytes
}

/// Compresses data to a zlib stream (RFC 1950, 1951).
fn compressed(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    // Writing to a vector cannot fail.
    let _ = encoder.write_all(data);
    encoder.finish().unwrap_or_default()
}

/// The check sum of a chunk (RFC 2083, 15).
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = Crc::new();
    sum.update(bytes);
    sum.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use tollgate_machine::devices::vga::screen::Size;

    /// The content of the first chunk of this kind.
    fn chunk<'a>(bytes: &'a [u8], kind: &[u8]) -> &'a [u8] {
        let at = bytes.windows(4).position(|it| it == kind).unwrap();
        let length = u32::from_be_bytes(bytes[at - 4..at].try_into().unwrap()) as usize;
        let end = at + 4 + length;
        let sum = u32::from_be_bytes(bytes[end..end + 4].try_into().unwrap());
        assert_eq!(sum, crc32(&bytes[at..end]));
        &bytes[at + 4..end]
    }

    #[test]
    fn check_sums_are_those_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_picture_has_its_size_and_a_filter_before_each_line() {
        let picture = Picture {
            size: Size {
                width: 2,
                height: 2,
            },
            pixels: (1..=12).collect(),
        };
        let bytes = png(&picture);
        assert_eq!(chunk(&bytes, b"IHDR")[..8], [0, 0, 0, 2, 0, 0, 0, 2]);
        let mut lines = Vec::new();
        let mut decoder = flate2::read::ZlibDecoder::new(chunk(&bytes, b"IDAT"));
        decoder.read_to_end(&mut lines).unwrap();
        assert_eq!(lines, [0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 10, 11, 12]);
    }

    #[test]
    fn a_text_screen_takes_little_room() {
        let size = Size {
            width: 720,
            height: 400,
        };
        let pixels = vec![0; 3 * size.width * size.height];
        assert!(png(&Picture { size, pixels }).len() < 10_000);
    }
}
