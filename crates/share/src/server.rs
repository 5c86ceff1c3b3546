//! Parses one FUSE request to a shared directory and answers it.

use crate::answer::Answer;
use crate::handles::Handles;
use crate::inodes::{Inodes, open_root};
use crate::limits;
use crate::options::{ShareError, ShareOptions};
use crate::owner::Owners;
use crate::patience::Patience;
use crate::protocol::{
    Header, Input, MAJOR, MAX_PAGES, MAX_REQUEST_BYTES, MAX_TRANSFER, MINOR, OLDEST_MINOR, Output,
    init_flag, opcode,
};
use crate::unopened::Unopened;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flags that are requested if the guest's kernel offers them. Locks are not among them: the
/// guest's kernel manages those of its own processes.
const WANTED: u32 = init_flag::ASYNC_READ
    | init_flag::ATOMIC_O_TRUNC
    | init_flag::BIG_WRITES
    | init_flag::AUTO_INVAL_DATA
    | init_flag::DO_READDIRPLUS
    | init_flag::READDIRPLUS_AUTO
    | init_flag::ASYNC_DIO
    | init_flag::PARALLEL_DIROPS
    | init_flag::MAX_PAGES
    | init_flag::CACHE_SYMLINKS
    | init_flag::HANDLE_KILLPRIV_V2;

/// The maximum number of requests that the guest's kernel may send in the background.
const MAX_BACKGROUND: u16 = 64;

/// A directory that is served. Any number of threads may call its methods.
#[derive(Debug)]
pub struct Server {
    pub(crate) options: ShareOptions,
    pub(crate) inodes: Inodes,
    pub(crate) handles: Handles,
    pub(crate) owners: Owners,
    pub(crate) unopened: Unopened,
    pub(crate) unopened_directories: Unopened,
    pub(crate) patience: Patience,
    /// Whether the guest's kernel reads files without opening them.
    pub(crate) reads_unopened: AtomicBool,
    /// Whether the guest's kernel reads directories without opening them.
    pub(crate) lists_unopened: AtomicBool,
    /// Whether the guest has a session: it has sent INIT.
    mounted: AtomicBool,
}

impl Server {
    /// Opens the directory.
    ///
    /// # Errors
    /// The directory cannot be shared.
    pub fn open(options: &ShareOptions) -> Result<Self, ShareError> {
        Self::with_limit(options, limits::descriptors())
    }

    /// Opens the directory with the caller's limit on descriptors.
    ///
    /// # Errors
    /// The directory cannot be shared.
    pub fn with_limit(options: &ShareOptions, descriptors: usize) -> Result<Self, ShareError> {
        let failed = |why| ShareError {
            path: options.path.clone(),
            why,
        };
        let root = open_root(&options.path).map_err(failed)?;
        let inodes = Inodes::new(root, descriptors)
            .map_err(|error| failed(std::io::Error::from(error).to_string()))?;
        Ok(Self {
            options: options.clone(),
            inodes,
            handles: Handles::default(),
            owners: Owners::of_process(options.keeps_owners, options.security),
            unopened: Unopened::default(),
            unopened_directories: Unopened::default(),
            patience: Patience::default(),
            reads_unopened: AtomicBool::new(false),
            lists_unopened: AtomicBool::new(false),
            mounted: AtomicBool::new(false),
        })
    }

    /// Returns how many files the guest knows.
    pub fn known_files(&self) -> usize {
        self.inodes.count()
    }

    /// Whether the guest has a session: it has mounted the share.
    pub fn is_mounted(&self) -> bool {
        self.mounted.load(Ordering::Relaxed)
    }

    /// Notes that the guest begins or ends a session.
    pub fn note_mounted(&self, is_mounted: bool) {
        self.mounted.store(is_mounted, Ordering::Relaxed);
    }

    /// Forgets all files that the guest knows and has opened, because the guest has gone.
    pub fn reset(&self) {
        self.handles.remove_all();
        self.unopened.close_all();
        self.unopened_directories.close_all();
        self.inodes.forget_all();
    }

    /// Answers a request with at most `capacity` bytes. An empty answer means that there is none.
    pub fn handle(&self, request: &[u8], capacity: usize) -> Vec<u8> {
        if request.len() > MAX_REQUEST_BYTES {
            return Vec::new();
        }
        let Some((header, input)) = Header::read(request) else {
            return Vec::new();
        };
        match header.opcode {
            // These requests have no answer.
            opcode::FORGET | opcode::BATCH_FORGET => {
                let _ = self.forget(&header, input);
                Vec::new()
            }
            opcode::INTERRUPT => Vec::new(),
            _ => {
                let mut output = Output::new(capacity);
                let result = self.answer(&header, input, &mut output);
                output.finish(header.unique, result)
            }
        }
    }

    /// Returns the answer to a request that cannot be handled: EIO, or nothing if the request has
    /// no answer. This reads nothing but the request.
    pub fn failed(request: &[u8], capacity: usize) -> Vec<u8> {
        match Header::read(request) {
            Some((header, _)) if header.is_answered() => {
                Output::new(capacity).finish(header.unique, Err(Errno::IO))
            }
            _ => Vec::new(),
        }
    }

    /// Answers a request whose header has been read.
    pub(crate) fn answer(&self, header: &Header, input: Input<'_>, output: &mut Output) -> Answer {
        match header.opcode {
            opcode::INIT => self.init(input, output),
            opcode::DESTROY => {
                self.reset();
                Ok(())
            }
            opcode::LOOKUP => self.lookup(header, input, output),
            opcode::GETATTR => self.getattr(header, output),
            opcode::SETATTR => self.setattr(header, input, output),
            opcode::READLINK => self.readlink(header, output),
            opcode::SYMLINK => self.symlink(header, input, output),
            opcode::MKNOD => self.mknod(header, input, output),
            opcode::MKDIR => self.mkdir(header, input, output),
            opcode::UNLINK => self.unlink(header, input, false),
            opcode::RMDIR => self.unlink(header, input, true),
            opcode::RENAME => self.rename(header, input, false),
            opcode::RENAME2 => self.rename(header, input, true),
            opcode::LINK => self.link(header, input, output),
            opcode::OPEN => self.open_file(header, input, output),
            opcode::CREATE => self.create(header, input, output),
            opcode::READ => self.read(header, input, output),
            opcode::WRITE => self.write(header, input, output),
            opcode::RELEASE | opcode::RELEASEDIR => self.release(input),
            opcode::FSYNC | opcode::FSYNCDIR => self.fsync(input),
            opcode::SYNCFS => self.syncfs(header),
            opcode::STATFS => self.statfs(header, output),
            opcode::FALLOCATE => self.fallocate(header, input),
            opcode::LSEEK => self.lseek(header, input, output),
            opcode::COPY_FILE_RANGE => self.copy_file_range(header, input, output),
            opcode::OPENDIR => self.opendir(header, output),
            opcode::READDIR => self.readdir(header, input, output, false),
            opcode::READDIRPLUS => self.readdir(header, input, output, true),
            // After this answer the guest's kernel sends no more such requests.
            opcode::GETXATTR | opcode::LISTXATTR if self.options.hides_attributes => {
                Err(Errno::NOSYS)
            }
            opcode::GETXATTR => self.getxattr(header, input, output),
            opcode::SETXATTR => self.setxattr(header, input),
            opcode::LISTXATTR => self.listxattr(header, input, output),
            opcode::REMOVEXATTR => self.removexattr(header, input),
            // This includes FLUSH and ACCESS. After this answer the guest's kernel sends no more of
            // them, and does what is right: it writes before it closes a file, and checks
            // permissions itself.
            _ => Err(Errno::NOSYS),
        }
    }

    /// Handles the mount of the share by the guest's kernel.
    fn init(&self, mut input: Input<'_>, output: &mut Output) -> Answer {
        let (major, minor) = (input.u32()?, input.u32()?);
        let (readahead, offered) = (input.u32()?, input.u32()?);
        if major < MAJOR || (major == MAJOR && minor < OLDEST_MINOR) {
            return Err(Errno::PROTO);
        }
        self.reset();
        self.note_mounted(true);
        let reads_unopened = self.options.reads_unopened
            && self.options.readonly
            && offered & init_flag::NO_OPEN_SUPPORT != 0;
        self.reads_unopened.store(reads_unopened, Ordering::Relaxed);
        let lists_unopened =
            self.options.lists_unopened && offered & init_flag::NO_OPENDIR_SUPPORT != 0;
        self.lists_unopened.store(lists_unopened, Ordering::Relaxed);
        output.u32(MAJOR);
        output.u32(MINOR);
        if major > MAJOR {
            // The kernel asks again with our version.
            output.zeros(56);
            return Ok(());
        }
        output.u32(readahead.min(MAX_TRANSFER as u32));
        output.u32(offered & WANTED);
        output.u16(MAX_BACKGROUND);
        output.u16(MAX_BACKGROUND / 4 * 3);
        output.u32(MAX_TRANSFER as u32);
        // Times have a resolution of one nanosecond.
        output.u32(1);
        output.u16(MAX_PAGES);
        output.u16(0);
        output.zeros(32);
        Ok(())
    }

    /// Whether the guest's kernel reads files without opening them.
    pub(crate) fn reads_unopened(&self) -> bool {
        self.reads_unopened.load(Ordering::Relaxed)
    }

    /// Whether the guest's kernel reads directories without opening them.
    pub(crate) fn lists_unopened(&self) -> bool {
        self.lists_unopened.load(Ordering::Relaxed)
    }

    /// Refuses a request that changes something if the share is read-only.
    pub(crate) const fn check_writable(&self) -> Answer {
        if self.options.readonly {
            Err(Errno::ROFS)
        } else {
            Ok(())
        }
    }
}
