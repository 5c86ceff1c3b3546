//! `tollgate screen`: what is on the screen of a running machine.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tollgate_machine::devices::vga::screen::Picture;

use super::client::{exit_code_of, talk};
use super::protocol::Name;
use crate::exit_code;
use crate::failure::Failure;
use crate::standard_output::print;

/// `tollgate screen`.
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
        // The machine writes the file, and may have been started elsewhere.
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

/// Writes a picture as a PNG file (RFC 2083), without compression.
///
/// # Errors
/// The file cannot be written.
pub fn write_png(path: &Path, picture: &Picture) -> std::io::Result<()> {
    std::fs::write(path, png(picture))
}

fn png(picture: &Picture) -> Vec<u8> {
    const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
    /// 8 bits of each of red, green and blue; no interlacing.
    const TRUE_COLOUR: [u8; 5] = [8, 2, 0, 0, 0];
    let size = [picture.size.width, picture.size.height];
    let mut header: Vec<u8> = size
        .iter()
        .flat_map(|n| (*n as u32).to_be_bytes())
        .collect();
    header.extend(TRUE_COLOUR);
    // Each line begins with its filter: none.
    let line = (3 * picture.size.width).max(1);
    let lines = picture.pixels.chunks(line);
    let data: Vec<u8> = lines.flat_map(|line| [&[0], line].concat()).collect();
    let mut bytes = SIGNATURE.to_vec();
    for (kind, content) in [
        (b"IHDR", header),
        (b"IDAT", stored(&data)),
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

/// A zlib stream of stored blocks (RFC 1950, 1951).
fn stored(data: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 0xffff;
    let mut bytes = vec![0x78, 0x01];
    let count = data.len().div_ceil(BLOCK);
    for (number, block) in data.chunks(BLOCK).enumerate() {
        let length = block.len() as u16;
        bytes.push((number + 1 == count).into());
        bytes.extend(length.to_le_bytes());
        bytes.extend((!length).to_le_bytes());
        bytes.extend(block);
    }
    let (mut low, mut high) = (1u32, 0u32);
    for byte in data {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    bytes.extend((high << 16 | low).to_be_bytes());
    bytes
}

/// The check sum of a chunk (RFC 2083, 15).
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 != 0 {
                sum >> 1 ^ 0xedb8_8320
            } else {
                sum >> 1
            };
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_machine::devices::vga::screen::Size;

    #[test]
    fn check_sums_are_those_of_the_standards() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let stream = stored(b"Wikipedia");
        assert_eq!(stream[stream.len() - 4..], 0x11e6_0398u32.to_be_bytes());
        assert_eq!(stream[2..7], [1, 9, 0, 0xf6, 0xff]);
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
        assert_eq!(bytes[16..24], [0, 0, 0, 2, 0, 0, 0, 2]);
        let lines = [0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 10, 11, 12];
        assert!(bytes.windows(14).any(|window| window == lines));
    }
}
