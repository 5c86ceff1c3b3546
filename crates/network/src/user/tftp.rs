//! The TFTP server (RFC 1350) with the options blksize and tsize (RFC 2347 to 2349): from it firmware
//! loads its next program. The guest drives: the server sends a block when it is asked for, and again
//! when it is asked again.

use super::tftp_files::{Files, Opened};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

/// The server's port.
pub const PORT: u16 = 69;
/// The maximum number of transfers. For one more, the least recently used is forgotten.
const MAX_TRANSFERS: usize = 16;
/// The size of a block in bytes, without an option.
const USUAL_BLOCK: usize = 512;
/// The least size of a block that an option may name, and the largest one that fits into a packet.
const BLOCKS: (usize, usize) = (8, 1468);

/// What a packet is: its first two bytes (RFC 1350, 5; RFC 2347 for options).
mod operation {
    pub const READ: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const DATA: u16 = 3;
    pub const ACKNOWLEDGE: u16 = 4;
    pub const ERROR: u16 = 5;
    pub const OPTIONS: u16 = 6;
}

/// Why a request is refused, with a text for people.
type Refusal = (u16, &'static str);

const NOT_FOUND: Refusal = (1, "File not found");
const READ_ONLY: Refusal = (2, "Files are only read here");
const BAD_REQUEST: Refusal = (4, "Illegal TFTP operation");

/// A transfer to the guest.
struct Transfer {
    file: Opened,
    block_bytes: usize,
    /// The number of the last block that was sent; 0 before the first one.
    block: u64,
    used: Instant,
}

/// The server with its transfers, by the guest's end.
pub struct Server {
    files: Files,
    transfers: HashMap<SocketAddr, Transfer>,
}

impl Server {
    /// Opens the folder whose files are served.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            files: Files::open(folder)?,
            transfers: HashMap::new(),
        })
    }

    /// Returns the answer to a datagram of the guest, if there is one.
    pub fn answer(&mut self, guest: SocketAddr, datagram: &[u8], now: Instant) -> Option<Vec<u8>> {
        let (code, rest) = datagram.split_first_chunk()?;
        let answer = match u16::from_be_bytes(*code) {
            operation::READ => self.begin(guest, rest, now),
            operation::WRITE => Err(READ_ONLY),
            operation::ACKNOWLEDGE => {
                let number = u16::from_be_bytes(*rest.first_chunk()?);
                return self.acknowledged(guest, number, now);
            }
            // The guest does not want the rest.
            operation::ERROR => {
                self.transfers.remove(&guest);
                return None;
            }
            _ => Err(BAD_REQUEST),
        };
        Some(answer.unwrap_or_else(refusal))
    }

    /// Begins a transfer: a name, a mode and options, each with a zero at its end.
    fn begin(
        &mut self,
        guest: SocketAddr,
        request: &[u8],
        now: Instant,
    ) -> Result<Vec<u8>, Refusal> {
        let request = request.strip_suffix(&[0]).ok_or(BAD_REQUEST)?;
        let words: Result<Vec<&str>, _> = request
            .split(|byte| *byte == 0)
            .map(str::from_utf8)
            .collect();
        let words = words.map_err(|_| BAD_REQUEST)?;
        let [name, mode, options @ ..] = words.as_slice() else {
            return Err(BAD_REQUEST);
        };
        if !mode.eq_ignore_ascii_case("octet") {
            return Err((4, "The only mode is octet"));
        }
        let file = self.files.file(name).map_err(|_| NOT_FOUND)?;
        let mut transfer = Transfer {
            file,
            block_bytes: USUAL_BLOCK,
            block: 0,
            used: now,
        };
        let mut accepted = operation::OPTIONS.to_be_bytes().to_vec();
        let mut accept = |name: &str, value: u64| {
            accepted.extend(format!("{name}\0{value}\0").into_bytes());
        };
        for pair in options.chunks_exact(2) {
            let value = pair[1].parse::<u64>();
            match (pair[0].to_ascii_lowercase().as_str(), value) {
                ("blksize", Ok(bytes)) if bytes >= BLOCKS.0 as u64 => {
                    transfer.block_bytes = bytes.min(BLOCKS.1 as u64) as usize;
                    accept("blksize", transfer.block_bytes as u64);
                }
                ("tsize", Ok(_)) => accept("tsize", transfer.file.bytes),
                _ => {}
            }
        }
        let has_options = accepted.len() > 2;
        if self.transfers.len() >= MAX_TRANSFERS
            && !self.transfers.contains_key(&guest)
            && let Some(oldest) = self.oldest()
        {
            self.transfers.remove(&oldest);
        }
        self.transfers.insert(guest, transfer);
        match has_options {
            true => Ok(accepted),
            false => self.acknowledged(guest, 0, now).ok_or(NOT_FOUND),
        }
    }

    fn oldest(&self) -> Option<SocketAddr> {
        let transfers = self.transfers.iter();
        let (guest, _) = transfers.min_by_key(|(_, transfer)| transfer.used)?;
        Some(*guest)
    }

    /// Returns the block after the one that the guest has. `number` has the low bits of its number.
    fn acknowledged(&mut self, guest: SocketAddr, number: u16, now: Instant) -> Option<Vec<u8>> {
        let transfer = self.transfers.get_mut(&guest)?;
        transfer.used = now;
        match number {
            // The guest has the last block, and there may be one more.
            number if number == transfer.block as u16 => {
                let sent = transfer.block * transfer.block_bytes as u64;
                if transfer.block > 0 && sent > transfer.file.bytes {
                    self.transfers.remove(&guest);
                    return None;
                }
                transfer.block += 1;
            }
            // The last block was lost.
            number if transfer.block > 0 && number == (transfer.block - 1) as u16 => {}
            _ => return None,
        }
        let offset = (transfer.block - 1) * transfer.block_bytes as u64;
        let data = self
            .files
            .read(&transfer.file, offset, transfer.block_bytes);
        let Ok(data) = data else {
            self.transfers.remove(&guest);
            return Some(refusal((0, "The file cannot be read")));
        };
        let mut answer = operation::DATA.to_be_bytes().to_vec();
        answer.extend((transfer.block as u16).to_be_bytes());
        answer.extend(data);
        Some(answer)
    }
}

fn refusal((code, text): Refusal) -> Vec<u8> {
    let mut answer = operation::ERROR.to_be_bytes().to_vec();
    answer.extend(code.to_be_bytes());
    answer.extend(text.as_bytes());
    answer.push(0);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("served/sub")).unwrap();
            Self(path)
        }

        fn server(&self) -> Server {
            Server::open(&self.0.join("served")).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn guest(port: u16) -> SocketAddr {
        ([10, 0, 2, 15], port).into()
    }

    fn ask(server: &mut Server, port: u16, words: &str) -> Vec<u8> {
        let request = [&[0, 1][..], words.replace(' ', "\0").as_bytes(), &[0]].concat();
        server
            .answer(guest(port), &request, Instant::now())
            .unwrap()
    }

    fn acknowledge(server: &mut Server, port: u16, number: u16) -> Option<Vec<u8>> {
        let [high, low] = number.to_be_bytes();
        server.answer(guest(port), &[0, 4, high, low], Instant::now())
    }

    /// Loads a file as firmware does, and loses each third block once.
    fn load(server: &mut Server, words: &str, block: usize) -> Vec<u8> {
        let mut answer = ask(server, 1000, words);
        if answer[..2] == [0, 6] {
            answer = acknowledge(server, 1000, 0).unwrap();
        }
        let (mut loaded, mut number) = (Vec::new(), 1u16);
        loop {
            let [high, low] = number.to_be_bytes();
            assert_eq!(answer[..4], [0, 3, high, low]);
            if number % 3 == 0 {
                let again = acknowledge(server, 1000, number.wrapping_sub(1));
                assert_eq!(again.as_ref(), Some(&answer));
            }
            loaded.extend(&answer[4..]);
            let next = acknowledge(server, 1000, number);
            if answer.len() - 4 < block {
                assert_eq!(next, None);
                return loaded;
            }
            answer = next.unwrap();
            number = number.wrapping_add(1);
        }
    }

    #[test]
    fn files_come_in_blocks_of_every_size_and_options_are_answered() {
        let folder = Folder::new("tftp-blocks");
        let served = folder.0.join("served");
        let content: Vec<u8> = (0..70_000u32 * 8).map(|place| (place / 7) as u8).collect();
        for (name, bytes) in [
            ("empty", 0),
            ("even", 1024),
            ("odd", 1500),
            ("long", content.len()),
        ] {
            fs::write(served.join(name), &content[..bytes]).unwrap();
            let mut server = folder.server();
            for (options, block) in [
                ("", 512),
                (" blksize 1432 tsize 0", 1432),
                (" blksize 9000", 1468),
            ] {
                let loaded = load(&mut server, &format!("/{name} octet{options}"), block);
                assert!(loaded == content[..bytes], "{name}{options}");
            }
        }
        // More blocks than their numbers can count.
        let mut server = folder.server();
        assert!(load(&mut server, "long octet blksize 8", 8) == content);
        let options = ask(&mut server, 1, "odd OCTET tsize 0 timeout 3 BLKSIZE 600");
        assert_eq!(options, b"\0\x06tsize\x001500\0blksize\x00600\0");
    }

    #[test]
    fn nothing_outside_the_folder_is_served_and_nothing_is_written() {
        let folder = Folder::new("tftp-outside");
        let served = folder.0.join("served");
        fs::write(folder.0.join("secret"), "secret").unwrap();
        fs::write(served.join("sub/file"), "inside").unwrap();
        symlink("../secret", served.join("out")).unwrap();
        symlink("/etc/passwd", served.join("root")).unwrap();
        symlink("..", served.join("sub/up")).unwrap();
        symlink("sub/file", served.join("in")).unwrap();
        let mut server = folder.server();
        for name in [
            "../secret",
            "/../secret",
            "sub/../../secret",
            "out",
            "root",
            "sub",
            "",
            "/",
            "none",
            "sub/up/../secret",
            "/etc/passwd",
            "sub/up/../../secret",
        ] {
            let answer = ask(&mut server, 1, &format!("{name} octet"));
            assert_eq!(answer[..4], [0, 5, 0, 1], "{name}");
        }
        for name in ["in", "sub/file", "//sub/./file", "sub/up/in"] {
            let answer = ask(&mut server, 1, &format!("{name} octet"));
            assert_eq!(&answer[4..], b"inside", "{name}");
        }
        let write = server
            .answer(guest(1), b"\0\x02new\0octet\0", Instant::now())
            .unwrap();
        assert_eq!(write[..4], [0, 5, 0, 2]);
    }

    #[test]
    fn broken_datagrams_are_refused_and_transfers_are_few() {
        let folder = Folder::new("tftp-broken");
        fs::write(folder.0.join("served/file"), vec![1; 5000]).unwrap();
        let mut server = folder.server();
        let now = Instant::now();
        for broken in [&b""[..], b"\0", b"\0\x04", b"\0\x04\0\0", b"\0\x05\0\0x\0"] {
            assert_eq!(server.answer(guest(1), broken, now), None, "{broken:?}");
        }
        for wrong in [
            &b"\0\x01"[..],
            b"\0\x01file",
            b"\0\x01file\0",
            b"\0\x01file\0netascii\0",
            b"\0\x09a\0b\0",
            b"\0\x01\xff\0octet\0",
        ] {
            let answer = server.answer(guest(1), wrong, now).unwrap();
            assert_eq!(answer[..4], [0, 5, 0, 4], "{wrong:?}");
        }
        for port in 1..100 {
            assert_eq!(ask(&mut server, port, "file octet")[..4], [0, 3, 0, 1]);
        }
        assert_eq!(server.transfers.len(), MAX_TRANSFERS);
        assert!(acknowledge(&mut server, 99, 1).is_some());
        assert_eq!(acknowledge(&mut server, 1, 1), None);
        assert_eq!(acknowledge(&mut server, 99, 7), None);
        // Nothing precedes the answer to options.
        ask(&mut server, 99, "file octet tsize 0");
        assert_eq!(acknowledge(&mut server, 99, u16::MAX), None);
    }
}
