//! The files of the TFTP server: one folder of the host, which is only read. A thread of its own opens
//! and reads them, because the network's thread may open no files.

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tollgate_confine::ThreadKind;

/// A file of the folder, with its size in bytes.
#[derive(Clone, Debug)]
pub struct Opened {
    file: Arc<File>,
    pub bytes: u64,
}

/// What the thread does.
enum Ask {
    Open(String, Sender<io::Result<Opened>>),
    Read(Opened, u64, usize, Sender<io::Result<Vec<u8>>>),
}

/// The folder. Its thread ends with this.
#[derive(Debug)]
pub struct Files {
    asks: Sender<Ask>,
}

impl Files {
    /// Opens a folder.
    ///
    /// # Errors
    /// It is no folder that can be read, or the host starts no thread.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root: File = rustix::fs::open(folder, flags, Mode::empty())?.into();
        let (asks, received) = channel();
        std::thread::Builder::new()
            .name("tftp".into())
            .spawn(move || {
                tollgate_confine::enter(ThreadKind::Share);
                serve(&root, &received);
            })?;
        Ok(Self { asks })
    }

    /// Opens the file with this name. Symbolic links that stay in the folder are followed.
    ///
    /// # Errors
    /// There is no such file in the folder, or it is no file.
    pub fn file(&self, name: &str) -> io::Result<Opened> {
        let (reply, result) = channel();
        self.ask(Ask::Open(name.to_owned(), reply), &result)
    }

    /// Reads bytes from `offset` on, fewer than `bytes` only at the end.
    ///
    /// # Errors
    /// An error of the host.
    pub fn read(&self, file: &Opened, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let (reply, result) = channel();
        self.ask(Ask::Read(file.clone(), offset, bytes, reply), &result)
    }

    fn ask<T>(&self, ask: Ask, result: &Receiver<io::Result<T>>) -> io::Result<T> {
        let ended = || io::Error::other("the thread of the TFTP server has ended");
        self.asks.send(ask).map_err(|_| ended())?;
        result.recv().map_err(|_| ended())?
    }
}

fn serve(root: &File, asks: &Receiver<Ask>) {
    for ask in asks {
        // The network may have ended before it has the answer.
        match ask {
            Ask::Open(name, reply) => drop(reply.send(open(root, &name))),
            Ask::Read(file, offset, bytes, reply) => {
                drop(reply.send(read(&file.file, offset, bytes)));
            }
        }
    }
}

fn open(root: &File, name: &str) -> io::Result<Opened> {
    let name = name.trim_start_matches('/');
    // Opening a pipe would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file: File = openat2(root, name, flags, Mode::empty(), resolve)?.into();
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Opened {
        file: Arc::new(file),
        bytes: metadata.len(),
    })
}

fn read(file: &File, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        match file.read_at(&mut data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    data.truncate(done);
    Ok(data)
}
