//! Making a space process: its files, its pipe, its start. The [launcher](crate::launcher) or the
//! monitor itself does this.

use crate::host;
use crate::image;
use crate::layout::{self, Layout, PAGE, control};
use crate::settings::Settings;
use crate::spawn::{self, Child, Descriptors};
use rustix::fs::MemfdFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A process that was started, and what its monitor needs.
pub struct Made {
    pub child: Child,
    /// The pages that the process shares with the monitor.
    pub shared: OwnedFd,
    /// Where the mapper writes its results.
    pub results: OwnedFd,
}

/// Where everything lies in a process with these settings.
///
/// # Errors
/// The stub cannot be there.
pub fn layout(settings: &Settings) -> io::Result<Layout> {
    let is_placed = settings.place.is_multiple_of(PAGE)
        && settings.place >= 1 << 20
        && settings.place < layout::USER_END - (64 << 30);
    if !is_placed {
        let message = "a guest program's stub cannot be at this address";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(Layout {
        place: settings.place,
        stack_pages: stack_pages(),
    })
}

/// Starts a process for programs of the guest with this memory. It is killed when the calling thread
/// ends.
///
/// # Errors
/// The host refuses.
pub fn make(ram: BorrowedFd<'_>, settings: &Settings) -> io::Result<Made> {
    let layout = layout(settings)?;
    let shared = rustix::fs::memfd_create("guest-program", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&shared, layout.shared_size())?;
    for (word, value) in [(control::GO, 1), (control::SPIN, settings.spins)] {
        let at = layout.shared_offset(layout.control(word));
        rustix::io::pwrite(&shared, &value.to_le_bytes(), at)?;
    }
    let image = image::image(layout, settings.cpuid, settings.time_stamp_counter);
    let image = executable(&image)?;
    let (results, written) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let child = spawn::spawn(&Descriptors {
        ram,
        results: written.as_fd(),
        shared: shared.as_fd(),
        image: image.as_fd(),
    })?;
    Ok(Made {
        child,
        shared,
        results,
    })
}

/// The pages of the signal stack: what the kernel says a frame takes at most, and some room.
fn stack_pages() -> u64 {
    let least = match host::auxiliary(libc::AT_MINSIGSTKSZ) {
        // Kernels before 5.14 do not say.
        0 => 12 << 10,
        least => least,
    };
    (least + 2048).div_ceil(PAGE)
}

/// A file in memory that can be executed.
fn executable(contents: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC;
    // Kernels before 6.3 know no MFD_EXEC; later ones may be set to require it.
    let file = rustix::fs::memfd_create("guest-program", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create("guest-program", flags))?;
    let mut rest = contents;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    Ok(file)
}
