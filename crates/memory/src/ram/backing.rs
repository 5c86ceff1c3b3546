//! What holds guest RAM: the host's memory, which may be locked or secret, or a file.

use super::error::MemoryError;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// What holds guest RAM.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum MemoryBacking {
    /// The host's memory, which the host may page out to its swap space.
    #[default]
    Anonymous,
    /// The host's memory, all of it allocated at the start and never paged out.
    Resident,
    /// An unnamed file in this folder, to which the host may page out at any time.
    Pageable(PathBuf),
    /// The host's memory, which no other process reaches and which the host's kernel does not map for
    /// itself (memfd_secret). It is never paged out or given back.
    Secret,
}

impl MemoryBacking {
    /// Makes a file of `bytes` zeroes and returns its descriptor.
    ///
    /// # Errors
    ///
    /// The host's error, as a [`MemoryError`].
    pub(super) fn create(&self, bytes: u64) -> Result<OwnedFd, MemoryError> {
        let file = match self {
            Self::Anonymous | Self::Resident => {
                create_memfd().and_then(|file| set_length(&file, bytes).map(|()| file))
            }
            Self::Secret => {
                let file = create_secret().map_err(MemoryError::Secret)?;
                raise_lock_limit();
                set_length(&file, bytes).map(|()| file)
            }
            Self::Pageable(folder) => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC)
                    .mode(0o600)
                    .open(folder)
                    .map(OwnedFd::from);
                // All of the file is allocated: a page without room on the disk would end the
                // process later.
                let file = file.and_then(|file| allocate(&file, 0, bytes).map(|()| file));
                return file.map_err(|error| match error.kind() {
                    io::ErrorKind::FileTooLarge => file_limit_error(bytes),
                    _ => MemoryError::File {
                        folder: folder.clone(),
                        bytes,
                        error,
                    },
                });
            }
        };
        file.map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => file_limit_error(bytes),
            _ => MemoryError::Create(error),
        })
    }

    /// Makes pages of the file zero again and returns their memory to the host.
    ///
    /// # Errors
    ///
    /// The host's error.
    pub(super) fn clear(&self, file: &OwnedFd, offset: u64, bytes: u64) -> io::Result<()> {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        match self {
            Self::Anonymous | Self::Resident => {
                change(file, libc::FALLOC_FL_PUNCH_HOLE | keep, offset, bytes)
            }
            // The file keeps its room on the disk.
            Self::Pageable(_) => {
                match change(file, libc::FALLOC_FL_ZERO_RANGE | keep, offset, bytes) {
                    Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                        change(file, libc::FALLOC_FL_PUNCH_HOLE | keep, offset, bytes)?;
                        allocate(file, offset, bytes)
                    }
                    other => other,
                }
            }
            Self::Secret => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Locks mapped RAM in the host's memory, if this backing requires it.
    ///
    /// # Errors
    ///
    /// The host refuses to lock that amount.
    pub(super) fn lock(&self, start: *mut u8, bytes: u64) -> Result<(), MemoryError> {
        if *self != Self::Resident || bytes == 0 {
            return Ok(());
        }
        // SAFETY: locks pages without touching their contents.
        match unsafe { libc::mlock(start.cast(), bytes as usize) } {
            0 => Ok(()),
            _ => Err(lock_error(bytes, io::Error::last_os_error())),
        }
    }

    /// The error for RAM that could not be mapped.
    pub(super) fn map_error(&self, bytes: u64, error: io::Error) -> MemoryError {
        match (self, error.kind()) {
            // The kernel counts all mappings of secret memory as locked.
            (Self::Secret, io::ErrorKind::WouldBlock) => lock_error(bytes, error),
            _ => MemoryError::Map(error),
        }
    }
}

fn lock_error(bytes: u64, error: io::Error) -> MemoryError {
    MemoryError::Lock {
        bytes,
        limit: lock_limit(),
        error,
    }
}

fn create_memfd() -> io::Result<OwnedFd> {
    // SAFETY: the name is a terminated string.
    let descriptor = unsafe { libc::memfd_create(c"guest-ram".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: memfd_create returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Whether the host has secret memory.
///
/// # Errors
/// The host's error.
pub fn secret_memory_is_offered() -> io::Result<()> {
    create_secret().map(drop)
}

/// Makes an empty file of secret memory.
fn create_secret() -> io::Result<OwnedFd> {
    // SAFETY: a system call that takes flags and returns a descriptor.
    let descriptor = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: memfd_secret returned a new descriptor that nothing else owns; descriptors are ints.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Raises the number of bytes that the process may lock to what it may raise it to.
fn raise_lock_limit() {
    let mut limit = NO_LIMIT;
    // SAFETY: the first call fills the structure that is passed, the second reads it.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit);
        }
    }
}

fn set_length(file: &OwnedFd, bytes: u64) -> io::Result<()> {
    // SAFETY: a plain system call on our descriptor.
    match unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the file system allocate room for a part of the file.
fn allocate(file: &OwnedFd, offset: u64, bytes: u64) -> io::Result<()> {
    let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
    // SAFETY: a plain library call on our descriptor.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), offset, bytes) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn change(file: &OwnedFd, mode: i32, offset: u64, bytes: u64) -> io::Result<()> {
    let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
    // SAFETY: a plain system call on our descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn file_limit_error(bytes: u64) -> MemoryError {
    MemoryError::FileLimit {
        bytes,
        limit: file_limit(),
    }
}

/// The number of bytes that the process may lock, if that is limited.
fn lock_limit() -> Option<u64> {
    let mut limit = NO_LIMIT;
    // SAFETY: fills the structure that is passed.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The maximum size in bytes of a file of this process, if that is limited.
fn file_limit() -> Option<u64> {
    let mut limit = NO_LIMIT;
    // SAFETY: fills the structure that is passed.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

const NO_LIMIT: libc::rlimit = libc::rlimit {
    rlim_cur: libc::RLIM_INFINITY,
    rlim_max: libc::RLIM_INFINITY,
};

#[cfg(test)]
mod tests {
    use super::super::GuestRam;
    use super::*;
    use tollgate_x86::PhysicalAddress;

    const BYTES: u64 = 4 << 20;

    fn in_a_file() -> GuestRam {
        let backing = MemoryBacking::Pageable(std::env::temp_dir());
        GuestRam::with_backing(BYTES, backing).unwrap()
    }

    #[test]
    fn what_the_host_pages_out_is_there_when_it_is_read_again() {
        let ram = in_a_file();
        for page in 0x100..0x400_u64 {
            assert!(ram.write(PhysicalAddress(page << 12 | 8), &page.to_le_bytes()));
        }
        for _ in 0..3 {
            // SAFETY: the host pages out parts of the mapping, and brings them back when they are
            // touched. A host without this call refuses it, and nothing happens.
            unsafe {
                libc::fsync(ram.fd().as_raw_fd());
                libc::madvise(ram.base().add(1 << 20).cast(), 3 << 20, libc::MADV_PAGEOUT);
            }
            for page in 0x100..0x400_u64 {
                let mut bytes = [0; 8];
                assert!(ram.read(PhysicalAddress(page << 12 | 8), &mut bytes));
                assert_eq!(u64::from_le_bytes(bytes), page);
            }
        }
    }

    #[test]
    fn ram_in_a_file_is_zero_where_it_was_given_back() {
        let ram = in_a_file();
        assert!(ram.write(PhysicalAddress(0x20_0000), &[7; 8192]));
        ram.discard(0x20_0000, 4096).unwrap();
        let mut bytes = [1; 8192];
        assert!(ram.read(PhysicalAddress(0x20_0000), &mut bytes));
        assert!(bytes[..4096].iter().all(|&byte| byte == 0));
        assert!(bytes[4096..].iter().all(|&byte| byte == 7));
        ram.clear().unwrap();
        assert!(ram.read(PhysicalAddress(0x20_0000), &mut bytes));
        assert_eq!(bytes, [0; 8192]);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = PathBuf::from("/no/such/folder");
        let error = GuestRam::with_backing(BYTES, MemoryBacking::Pageable(folder));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("/no/such/folder"), "{text}");
    }

    #[test]
    fn resident_ram_is_locked_or_the_limit_is_told() {
        match GuestRam::with_backing(BYTES, MemoryBacking::Resident) {
            Ok(ram) => {
                let mut resident = vec![0_u8; (BYTES >> 12) as usize];
                // SAFETY: reports for each page of the mapping whether it is resident.
                let result = unsafe {
                    libc::mincore(ram.base().cast(), BYTES as usize, resident.as_mut_ptr())
                };
                assert_eq!(result, 0);
                assert!(resident.iter().all(|page| page & 1 == 1));
            }
            Err(error) => assert!(error.to_string().contains("lock"), "{error}"),
        }
    }
}
