//! The arguments of `tollgate image` and its subcommands.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tollgate_disk::{Backing, Format};

use super::unpack::UnpackArguments;
use crate::size;

/// The last section of the subcommands' help.
pub const fn help() -> &'static str {
    "\
Sizes are bytes, or a number with K, M, G or T. Exit codes: 0 done, 2 not done, one line on
standard error says why; check: 0 clean, 1 it cannot be checked, 2 damaged, 3 leaks only.
Examples:
  tollgate image create -f qcow2 disk.qcow2 20G
  tollgate image create -f qcow2 -b debian.qcow2 -F qcow2 mine.qcow2
  tollgate image info disk.qcow2
  tollgate image check -r leaks disk.qcow2
  tollgate image convert -O raw disk.qcow2 disk.img
  tollgate image unpack debian.tar ./debian"
}

/// The arguments of `tollgate image`.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct ImageArguments {
    /// The subcommand and its arguments.
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// The subcommands of `tollgate image`.
#[derive(clap::Subcommand, Debug)]
pub enum ImageCommand {
    /// Make a new image; an existing file stays as it is
    #[command(after_help = help())]
    Create {
        /// The image's format
        #[arg(short, long, value_name = "FORMAT", value_parser = format, default_value = "raw")]
        format: Format,
        /// Show this image until something is written; its name as seen from FILE's folder
        #[arg(short, long, value_name = "FILE", requires = "backing_format")]
        backing: Option<String>,
        /// The format of the backing file
        #[arg(short = 'F', long, value_name = "FORMAT", value_parser = format, requires = "backing")]
        backing_format: Option<Format>,
        /// Accepted for compatibility: nothing is printed anyway
        #[arg(short, long)]
        quiet: bool,
        /// The new image
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Bytes of the disk, rounded up to 512; default: the backing file's
        #[arg(value_name = "SIZE", value_parser = disk_size)]
        size: Option<u64>,
    },
    /// Show an image's format, sizes and backing file
    #[command(after_help = help())]
    Info {
        /// The format of the image; default: what the file begins with decides
        #[arg(short, long, value_name = "FORMAT", value_parser = format)]
        format: Option<Format>,
        /// How the information is written; json has qemu-img's names
        #[arg(long, value_name = "HOW", value_enum, default_value_t = InfoFormat::Human)]
        output: InfoFormat,
        /// Even while a machine writes to the image
        #[arg(short = 'U', long)]
        force_share: bool,
        /// The image file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Check the reference counts of a qcow2 image
    #[command(after_help = help())]
    Check {
        /// The format of the image
        #[arg(short, long, value_name = "FORMAT", value_parser = format)]
        format: Option<Format>,
        /// leaks: free clusters that nothing refers to; if nothing else is wrong, the image is no
        /// longer marked as dirty or corrupt
        #[arg(short, long, value_name = "WHAT", value_enum)]
        repair: Option<Repaired>,
        /// Print nothing; the exit code has the result
        #[arg(short, long)]
        quiet: bool,
        /// The image file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Copy an image with the data of its backing files; zeros take no space
    ///
    /// The copy gets its name once it is complete.
    #[command(after_help = help())]
    Convert {
        /// The format of SOURCE; default: qcow2 if its name says so, otherwise raw
        #[arg(short, long, value_name = "FORMAT", value_parser = format)]
        format: Option<Format>,
        /// The format of TARGET
        #[arg(short = 'O', long, value_name = "FORMAT", value_parser = format, default_value = "raw")]
        output_format: Format,
        /// Replace an existing file, unless a machine uses it
        #[arg(long)]
        overwrite: bool,
        /// Which files SOURCE may name: any, same-dir (those in its own folder) or none
        #[arg(long, value_name = "WHICH", value_parser = backing, default_value = "any")]
        backing: Backing,
        /// Accepted for compatibility: progress is shown on a terminal anyway
        #[arg(short, long)]
        progress: bool,
        /// The image to copy
        #[arg(value_name = "SOURCE")]
        source: PathBuf,
        /// The new image
        #[arg(value_name = "TARGET")]
        target: PathBuf,
    },
    /// Make a directory of a container image, for exec --root
    ///
    /// Prints how many files it has, and a command line that runs what the image is for. Files belong to
    /// you and are readable; set-user-ID bits and devices are left out.
    #[command(after_help = help(), verbatim_doc_comment)]
    Unpack(UnpackArguments),
}

/// The defects that `check` repairs.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repaired {
    /// Clusters that nothing refers to, and unjustified dirty or corrupt flags
    Leaks,
}

/// How the information about an image is written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum InfoFormat {
    /// Lines for people
    Human,
    /// JSON for programs
    Json,
}

fn format(name: &str) -> Result<Format, String> {
    match name {
        "raw" => Ok(Format::Raw),
        "qcow2" => Ok(Format::Qcow2),
        _ => Err("expected raw or qcow2".into()),
    }
}

fn backing(word: &str) -> Result<Backing, String> {
    Backing::parse(word).ok_or_else(|| format!("expected {}", Backing::NAMES))
}

/// The size of a disk: without a unit it counts bytes, as for qemu-img.
fn disk_size(text: &str) -> Result<u64, String> {
    let bytes = match text.parse::<u64>() {
        Ok(0) => return Err("zero; expected bytes, or a number with K, M, G or T".into()),
        Ok(bytes) => bytes,
        Err(_) => size::parse(text)?,
    };
    // The size must fit a file offset, which is signed.
    match bytes.checked_next_multiple_of(512) {
        Some(bytes) if i64::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err("too large for a file".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_counted_in_bytes_and_whole_sectors() {
        assert_eq!(disk_size("1000"), Ok(1024));
        assert_eq!(disk_size("20G"), Ok(20 << 30));
        for wrong in ["0", "1,5G", "-1", "", "9223372036854775807", "9999999999T"] {
            assert!(disk_size(wrong).is_err(), "{wrong}");
        }
    }
}
