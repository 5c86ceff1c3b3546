//! The protocol between `tollgate exec` on the host and the agent in the guest.
//!
//! The agent's task is a [`Start`]: records that end with a zero byte, each a word, a space and a
//! value. The agent says on the control port that it is ready, and the host sends the task in
//! frames: [`TIME`], [`ENTROPY`], pieces of the task ([`TASK`]), and an empty piece. A snapshot of
//! a guest that waits for its task holds nothing of any user. Over the same port both sides send
//! frames while the command runs: a byte for the kind, the length of the rest in four bytes, lowest first, and the
//! rest. Standard input is sent in frames too, [`DATA`], and ends with an empty one. Output is sent
//! without frames; its length is reported at the end.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub mod kept;

/// The folder with the kernel's modules, in the order in which they are loaded.
pub const MODULES_FOLDER: &str = "/modules";

/// The names of the ports, in the order of [`port`].
pub const PORT_NAMES: [&str; 4] = [
    "tollgate.control",
    "tollgate.stdin",
    "tollgate.stdout",
    "tollgate.stderr",
];

/// The numbers of the ports in the guest.
pub mod port {
    /// Frames in both directions.
    pub const CONTROL: usize = 1;
    /// Standard input in frames.
    pub const INPUT: usize = 2;
    /// Standard output.
    pub const OUTPUT: usize = 3;
    /// Standard error.
    pub const ERRORS: usize = 4;
}

/// Exit codes in addition to the command's own, as in `env` and `docker run`.
pub mod code {
    /// The command took longer than it was allowed to (`timeout`'s code).
    pub const TIMED_OUT: u8 = 124;
    /// Tollgate itself failed.
    pub const FAILED: u8 = 125;
    /// The command was found but cannot be run.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// There is no such command.
    pub const NOT_FOUND: u8 = 127;
    /// This is added to the number of a signal that ended the command.
    pub const SIGNAL: u8 = 128;
}

/// Limits that a command has reached, as bits of a byte.
pub mod reached {
    /// A process could not be started, because there were as many as the command may have.
    pub const PROCESSES: u8 = 1;
    /// At the end the files that the guest has changed or made filled their limit.
    pub const FILES: u8 = 2;
}

/// What a guest may use at most, as far as its kernel has a limit for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// The bytes of files that the guest changes or makes, in the overlay and in places that are
    /// empty at first.
    pub file_bytes: Option<u64>,
    /// The number of processes and threads of all commands together.
    pub processes: Option<u32>,
}

/// Where the guest's root comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Root {
    /// A share with this tag.
    #[default]
    Share,
    /// The first disk.
    Disk {
        /// The partition with the root, counted from 1. `None` selects the first one with a system,
        /// or the disk itself.
        partition: Option<u32>,
    },
}

/// The tag of the root's share.
pub const ROOT_TAG: &str = "root";

/// The beginning of a word on the kernel's command line which names a share, and after a colon says
/// whether it is [`READ_ONLY`] or `rw`. The agent mounts it before it has its task.
pub const MOUNT_PARAMETER: &str = "tollgate.mount=";
/// The word for shares that are mounted read-only.
pub const READ_ONLY: &str = "ro";

/// A shared directory and the path where it is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// The share's tag.
    pub tag: String,
    /// An absolute path.
    pub path: PathBuf,
    /// Whether it is mounted read-only.
    pub readonly: bool,
}

/// The user who runs the command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum User {
    /// Numbers: user, group, further groups.
    Numbers(u32, u32, Vec<u32>),
    /// The text of `--user`: a name or number, possibly followed by a colon and a group.
    Named(String),
}

/// The terminal of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminal {
    /// Its size in characters.
    pub size: WindowSize,
    /// Whether standard output goes to the terminal.
    pub has_output: bool,
    /// Whether standard error goes to the terminal.
    pub has_errors: bool,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowSize {
    /// The number of lines.
    pub rows: u16,
    /// The number of characters in a line.
    pub columns: u16,
}

/// The agent's task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// Where the root comes from.
    pub root: Root,
    /// Whether the root itself is changed, without an overlay.
    pub root_is_writable: bool,
    /// Further directories, each after the directories that contain it.
    pub mounts: Vec<Mount>,
    /// Whether there is a user network, whose addresses are known.
    pub has_user_network: bool,
    /// The guest's name.
    pub host_name: String,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Its environment, `NAME=VALUE`.
    pub environment: Vec<OsString>,
    /// Its working directory.
    pub directory: PathBuf,
    /// The user who runs the command.
    pub user: User,
    /// The mode bits that are cleared in the command's new files.
    pub umask: u32,
    /// Its terminal, if it has one.
    pub terminal: Option<Terminal>,
    /// Whether the guest stays and runs the commands of [`kept`] instead of one.
    pub is_kept: bool,
    /// Whether /tmp is empty at first, whatever the root has there.
    pub has_private_tmp: bool,
    /// What the guest may use.
    pub limits: Limits,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            root: Root::Share,
            root_is_writable: false,
            mounts: Vec::new(),
            has_user_network: false,
            host_name: "tollgate".into(),
            command: Vec::new(),
            environment: Vec::new(),
            directory: "/".into(),
            user: User::Numbers(0, 0, Vec::new()),
            umask: 0o022,
            terminal: None,
            is_kept: false,
            has_private_tmp: false,
            limits: Limits::default(),
        }
    }
}

impl Terminal {
    /// The value of the task's record.
    pub fn record(&self) -> String {
        let WindowSize { rows, columns } = self.size;
        let [output, errors] = [self.has_output, self.has_errors].map(u8::from);
        format!("{rows} {columns} {output} {errors}")
    }
}

/// A record of a task: a word, a space, a value and a zero byte.
pub fn record(word: &str, value: &OsStr) -> Vec<u8> {
    let mut bytes = Vec::from(word.as_bytes());
    bytes.push(b' ');
    bytes.extend(value.as_bytes());
    bytes.push(0);
    bytes
}

impl Start {
    /// Returns the task's records. Values must not contain zero bytes, which are impossible
    /// in arguments and paths of system calls.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut record = |word: &str, value: &OsStr| bytes.extend(self::record(word, value));
        let text = |text: String| OsString::from(text);
        match self.root {
            Root::Share => {}
            Root::Disk { partition: None } => record("disk", "".as_ref()),
            Root::Disk {
                partition: Some(number),
            } => record("disk", number.to_string().as_ref()),
        }
        if self.root_is_writable {
            record("root-is-writable", "".as_ref());
        }
        for mount in &self.mounts {
            let access = if mount.readonly { "ro" } else { "rw" };
            let mut value = text(format!("{access} {} ", mount.tag));
            value.push(&mount.path);
            record("mount", &value);
        }
        if self.has_user_network {
            record("user-network", "".as_ref());
        }
        record("host-name", self.host_name.as_ref());
        for argument in &self.command {
            record("argument", argument);
        }
        for variable in &self.environment {
            record("variable", variable);
        }
        record("directory", self.directory.as_ref());
        match &self.user {
            User::Named(name) => record("user", name.as_ref()),
            User::Numbers(user, group, others) => {
                let mut value = format!("{user} {group}");
                for other in others {
                    value.push_str(&format!(" {other}"));
                }
                record("numbers", value.as_ref());
            }
        }
        record("umask", self.umask.to_string().as_ref());
        if let Some(terminal) = self.terminal {
            record("terminal", terminal.record().as_ref());
        }
        if self.is_kept {
            record("keep", "".as_ref());
        }
        if self.has_private_tmp {
            record("private-tmp", "".as_ref());
        }
        let Limits {
            file_bytes,
            processes,
        } = self.limits;
        if let Some(bytes) = file_bytes {
            record("limit-files", bytes.to_string().as_ref());
        }
        if let Some(count) = processes {
            record("limit-processes", count.to_string().as_ref());
        }
        bytes
    }

    /// Parses the task's records.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::default().changed_by(bytes)
    }

    /// Parses records that change this task, or add to it.
    pub fn changed_by(mut self, bytes: &[u8]) -> Option<Self> {
        let start = &mut self;
        let records = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        for record in records {
            let middle = record.iter().position(|byte| *byte == b' ')?;
            let (word, value) = (&record[..middle], &record[middle + 1..]);
            let os = || OsString::from_vec(value.to_vec());
            let text = || String::from_utf8(value.to_vec()).ok();
            match word {
                b"disk" => {
                    let partition = match value {
                        b"" => None,
                        _ => Some(text()?.parse().ok()?),
                    };
                    start.root = Root::Disk { partition };
                }
                b"root-is-writable" => start.root_is_writable = true,
                b"mount" => {
                    let mut parts = value.splitn(3, |byte| *byte == b' ');
                    let readonly = parts.next()? == b"ro";
                    let tag = String::from_utf8(parts.next()?.to_vec()).ok()?;
                    let path = Path::new(OsStr::from_bytes(parts.next()?)).to_owned();
                    start.mounts.push(Mount {
                        tag,
                        path,
                        readonly,
                    });
                }
                b"user-network" => start.has_user_network = true,
                b"host-name" => start.host_name = text()?,
                b"argument" => start.command.push(os()),
                b"variable" => start.environment.push(os()),
                b"directory" => start.directory = os().into(),
                b"user" => start.user = User::Named(text()?),
                b"numbers" => {
                    let numbers: Option<Vec<u32>> = text()?
                        .split(' ')
                        .map(|number| number.parse().ok())
                        .collect();
                    let [user, group, others @ ..] = &numbers?[..] else {
                        return None;
                    };
                    start.user = User::Numbers(*user, *group, others.to_vec());
                }
                b"umask" => start.umask = text()?.parse().ok()?,
                b"terminal" => {
                    let numbers: Option<Vec<u16>> = text()?
                        .split(' ')
                        .map(|number| number.parse().ok())
                        .collect();
                    let [rows, columns, output, errors] = numbers?[..] else {
                        return None;
                    };
                    start.terminal = Some(Terminal {
                        size: WindowSize { rows, columns },
                        has_output: output != 0,
                        has_errors: errors != 0,
                    });
                }
                b"keep" => start.is_kept = true,
                b"private-tmp" => start.has_private_tmp = true,
                b"limit-files" => start.limits.file_bytes = Some(text()?.parse().ok()?),
                b"limit-processes" => start.limits.processes = Some(text()?.parse().ok()?),
                _ => return None,
            }
        }
        (!self.command.is_empty() || self.is_kept).then_some(self)
    }
}

/// The kind of frames with standard input.
pub const DATA: u8 = b'd';
/// The kind of the frame with the host's time of day: nanoseconds since 1970 in eight bytes.
pub const TIME: u8 = b't';
/// The kind of the frame with random bytes of the host.
pub const ENTROPY: u8 = b'x';
/// The kind of frames with the agent's task, of which an empty one is the last.
pub const TASK: u8 = b'k';

/// Returns the frames with which the host gives the agent its task.
pub fn task_frames(start: &Start, time_ns: u64, entropy: &[u8]) -> Vec<u8> {
    let mut bytes = frame(TIME, &time_ns.to_le_bytes());
    bytes.extend(frame(ENTROPY, entropy));
    for piece in start.encode().chunks(MAX_FRAME) {
        bytes.extend(frame(TASK, piece));
    }
    bytes.extend(frame(TASK, &[]));
    bytes
}

/// The maximum size of a frame's rest in bytes.
pub const MAX_FRAME: usize = 16 << 10;
/// The size of a frame's header in bytes: its kind, and the length of the rest.
pub const HEADER_BYTES: usize = 5;

/// A message from the host to the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToGuest {
    /// Send this signal to the command.
    Signal(i32),
    /// The terminal has a new size.
    WindowSize(WindowSize),
    /// No program reads the command's output on this port any more.
    Closed(usize),
}

/// A message from the agent to the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToHost {
    /// The agent waits for its task.
    Ready,
    /// The command runs.
    Started,
    /// The command cannot be run.
    Failed {
        /// The exit code.
        code: u8,
        /// The reason in one line.
        why: String,
    },
    /// The command has ended.
    Exited {
        /// The exit code.
        code: u8,
        /// The numbers of bytes of standard output and of standard error.
        written: [u64; 2],
        /// The number of processes that the kernel has killed because the guest had no memory left.
        killed_for_memory: u32,
        /// The limits that were reached, as the bits of [`reached`].
        limits_reached: u8,
    },
}

/// Makes a frame.
pub fn frame(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((rest.len() as u32).to_le_bytes());
    bytes.extend(rest);
    bytes
}

impl ToGuest {
    /// Returns the message as a frame.
    pub fn encode(self) -> Vec<u8> {
        match self {
            Self::Signal(number) => frame(b's', &number.to_le_bytes()),
            Self::WindowSize(WindowSize { rows, columns }) => {
                let [r0, r1] = rows.to_le_bytes();
                let [c0, c1] = columns.to_le_bytes();
                frame(b'w', &[r0, r1, c0, c1])
            }
            Self::Closed(port) => frame(b'c', &[port as u8]),
        }
    }

    /// Parses a frame. Returns `None` if it is not understood.
    pub fn decode(kind: u8, rest: &[u8]) -> Option<Self> {
        match (kind, rest) {
            (b's', _) => Some(Self::Signal(i32::from_le_bytes(rest.try_into().ok()?))),
            (b'w', &[r0, r1, c0, c1]) => Some(Self::WindowSize(WindowSize {
                rows: u16::from_le_bytes([r0, r1]),
                columns: u16::from_le_bytes([c0, c1]),
            })),
            (b'c', &[port]) => Some(Self::Closed(port.into())),
            _ => None,
        }
    }
}

impl ToHost {
    /// Returns the message as a frame.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready => frame(b'a', &[]),
            Self::Started => frame(b'r', &[]),
            Self::Failed { code, why } => {
                let mut rest = vec![*code];
                rest.extend(why.bytes().take(MAX_FRAME - 1));
                frame(b'f', &rest)
            }
            Self::Exited {
                code,
                written,
                killed_for_memory,
                limits_reached,
            } => {
                let mut rest = vec![*code];
                rest.extend(written.iter().flat_map(|count| count.to_le_bytes()));
                rest.extend(killed_for_memory.to_le_bytes());
                rest.push(*limits_reached);
                frame(b'e', &rest)
            }
        }
    }

    /// Parses a frame. Returns `None` if it is not understood.
    pub fn decode(kind: u8, rest: &[u8]) -> Option<Self> {
        match (kind, rest) {
            (b'a', []) => Some(Self::Ready),
            (b'r', []) => Some(Self::Started),
            (b'f', [code, why @ ..]) => Some(Self::Failed {
                code: *code,
                why: String::from_utf8_lossy(why).into_owned(),
            }),
            (b'e', [code, counts @ .., limits_reached]) if counts.len() == 20 => {
                let (output, rest) = counts.split_at(8);
                let (errors, killed) = rest.split_at(8);
                let count = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
                Some(Self::Exited {
                    code: *code,
                    written: [count(output)?, count(errors)?],
                    killed_for_memory: u32::from_le_bytes(killed.try_into().ok()?),
                    limits_reached: *limits_reached,
                })
            }
            _ => None,
        }
    }
}

/// A frame is longer than [`MAX_FRAME`]: the other side violates the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

/// Parses a frame's header: its kind, and the length of its rest.
///
/// # Errors
/// [`TooLong`].
pub fn decode_header(header: [u8; HEADER_BYTES]) -> Result<(u8, usize), TooLong> {
    let [kind, length @ ..] = header;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(TooLong);
    }
    Ok((kind, length))
}

/// Assembles frames from received bytes.
#[derive(Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Adds received bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Takes the next complete frame: its kind and its rest.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn take(&mut self) -> Result<Option<(u8, Vec<u8>)>, TooLong> {
        let Some((header, rest)) = self.bytes.split_first_chunk() else {
            return Ok(None);
        };
        let (kind, length) = decode_header(*header)?;
        let Some(rest) = rest.get(..length) else {
            return Ok(None);
        };
        let rest = rest.to_vec();
        self.bytes.drain(..HEADER_BYTES + length);
        Ok(Some((kind, rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_understood_as_it_was_written() {
        let start = Start {
            root: Root::Disk { partition: Some(2) },
            root_is_writable: true,
            mounts: vec![Mount {
                tag: "s0".into(),
                path: "/a b/\n".into(),
                readonly: true,
            }],
            has_user_network: true,
            host_name: "here".into(),
            command: vec!["make".into(), "".into(), "a b\n=".into()],
            environment: vec![OsString::from_vec(b"A=\xff".to_vec())],
            directory: "/a b".into(),
            user: User::Numbers(1000, 100, vec![27, 4]),
            umask: 0o027,
            terminal: Some(Terminal {
                size: WindowSize {
                    rows: 24,
                    columns: 80,
                },
                has_output: true,
                has_errors: false,
            }),
            is_kept: false,
            has_private_tmp: true,
            limits: Limits {
                file_bytes: Some(1 << 40),
                processes: Some(7),
            },
        };
        assert_eq!(Start::decode(&start.encode()), Some(start.clone()));
        let plain = Start {
            root: Root::Disk { partition: None },
            user: User::Named("nobody:4".into()),
            command: vec!["true".into()],
            ..Start::default()
        };
        assert_eq!(Start::decode(&plain.encode()), Some(plain.clone()));
        let kept = Start {
            is_kept: true,
            ..Start::default()
        };
        assert_eq!(Start::decode(&kept.encode()), Some(kept));
        let other = Start {
            directory: "/tmp".into(),
            ..plain.clone()
        };
        assert_eq!(plain.changed_by(b"directory /tmp\0"), Some(other));
        assert_eq!(Start::decode(&Start::default().encode()), None);
    }

    #[test]
    fn messages_pass_in_frames_however_they_are_cut() {
        let to_guest = [
            ToGuest::Signal(15),
            ToGuest::WindowSize(WindowSize {
                rows: 300,
                columns: 2,
            }),
            ToGuest::Closed(3),
        ];
        let mut frames = Frames::default();
        let mut heard = Vec::new();
        for byte in to_guest.iter().flat_map(|message| message.encode()) {
            frames.extend(&[byte]);
            while let Some((kind, rest)) = frames.take().unwrap() {
                heard.push(ToGuest::decode(kind, &rest).unwrap());
            }
        }
        assert_eq!(heard, to_guest);
        let to_host = [
            ToHost::Started,
            ToHost::Failed {
                code: 127,
                why: "no".into(),
            },
            ToHost::Exited {
                code: 3,
                written: [1 << 40, 7],
                killed_for_memory: 2,
                limits_reached: reached::FILES,
            },
        ];
        for message in &to_host {
            frames.extend(&message.encode());
        }
        for message in to_host {
            let (kind, rest) = frames.take().unwrap().unwrap();
            assert_eq!(ToHost::decode(kind, &rest), Some(message));
        }
        frames.extend(&[b'r', 0, 0, 0, 1]);
        assert_eq!(frames.take(), Err(TooLong));
    }
}
