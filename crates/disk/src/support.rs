//! Decides which qcow2 images can be used, and which can be written.

use crate::check;
use crate::header::{Header, incompatible};
use std::fs::File;
use std::io;

/// How an image that must not be written can still be used.
const READABLE: &str = "it can still be read (readonly=on, snapshot=on, tollgate exec without rw)";

/// Refuses an image whose data are stored in a way that is not supported.
///
/// # Errors
/// The unsupported feature, and what the user can do about it.
pub(crate) fn refuse_unsupported(header: &Header) -> io::Result<()> {
    let (what, cure) = if let Some(encryption) = header.encryption {
        let name = encryption.name();
        let what = format!("it is encrypted ({name}), which is not supported");
        (what, "'qemu-img convert' with its key makes a plain copy")
    } else if header.has(incompatible::COMPRESSION) {
        let what = "it is compressed with zstd, which is not supported".into();
        (what, "'qemu-img convert -O qcow2' makes a copy that is")
    } else if header.has(incompatible::EXTENDED_L2) {
        let what = "it has extended L2 entries, which are not supported".into();
        (
            what,
            "'qemu-img convert -O qcow2' makes a copy without them",
        )
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!("{what}; {cure}")))
}

/// Refuses an image that writes could damage: if reference counts are too low, clusters in use are
/// allocated again, and if tables refer to tables, the guest can write them.
///
/// # Errors
/// The defect and its cure, or an error of the host.
pub(crate) fn refuse_writing(file: &File, header: &Header) -> io::Result<()> {
    let why = if header.has(incompatible::CORRUPT) {
        "it is marked as corrupt; 'qemu-img check -r all' repairs it".into()
    } else if header.has(incompatible::DIRTY) {
        "it was not closed cleanly, so its reference counts may be wrong; 'qemu-img check -r all' \
         repairs it"
            .into()
    } else if let Some(hazards) = check::prepare_writing(file, header)? {
        let more = match hazards.count - 1 {
            0 => String::new(),
            more => format!(" ({more} more, which 'tollgate image check' shows)"),
        };
        let first = hazards.first;
        format!(
            "it is damaged, and writes could destroy it: {first}{more}; 'qemu-img check -r all' \
             repairs it"
        )
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!("{why}; {READABLE}")))
}
