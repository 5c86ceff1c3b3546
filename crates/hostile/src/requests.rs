//! Hostile requests for the 9P device and the SCSI controller: messages and commands whose form is right.
//!
//! The input is a list of requests. Each becomes the steps of a driver (see [`virtio`]): a message or a
//! command with its usual length, descriptors, and a notification. So the requests reach the file server
//! and the drives, which `virtio` seldom does, because most of its input is refused by the queues.

use crate::input::Input;
use crate::virtio;

/// The maximum number of requests, after which the driver's steps would be too many.
const MOST_REQUESTS: usize = 70;
/// The maximum number of bytes in the body of a message, which its length must be able to name.
const MOST_BODY: usize = 63;

/// Names in messages; the last ones try to leave the directory.
const NAMES: [&[u8]; 8] = [b"a", b"b", b"c", b"user.x", b"..", b".", b"", b"../a"];

/// What a field of a message is.
#[derive(Clone, Copy)]
enum Field {
    /// A file that the client has numbered, 0 to 3.
    File,
    Byte,
    Word,
    /// A number of 32 bits, usually a small one.
    Number,
    /// A number of 64 bits, usually a small one.
    Long,
    Name,
    /// A count, and this number of names.
    Names,
    /// A count, and this number of bytes.
    Data,
}

use Field::{Byte, Data, File, Long, Name, Names, Number, Word};

/// The kinds of messages of 9P2000.L, and their fields.
const MESSAGES: [(u8, &[Field]); 27] = [
    (8, &[File]),                                        // statfs
    (12, &[File, Number]),                               // lopen
    (14, &[File, Name, Number, Number, Number]),         // lcreate
    (16, &[File, Name, Name, Number]),                   // symlink
    (18, &[File, Name, Number, Number, Number, Number]), // mknod
    (20, &[File, File, Name]),                           // rename
    (22, &[File]),                                       // readlink
    (24, &[File, Long]),                                 // getattr
    (
        26,
        &[File, Number, Number, Number, Number, Long, Long, Long, Long],
    ), // setattr
    (30, &[File, File, Name]),                           // xattrwalk
    (32, &[File, Name, Long, Number]),                   // xattrcreate
    (40, &[File, Long, Number]),                         // readdir
    (50, &[File, Number]),                               // fsync
    (52, &[File, Byte, Number, Long, Long, Number, Name]), // lock
    (54, &[File, Byte, Long, Long, Number, Name]),       // getlock
    (70, &[File, File, Name]),                           // link
    (72, &[File, Name, Number, Number]),                 // mkdir
    (74, &[File, Name, File, Name]),                     // renameat
    (76, &[File, Name, Number]),                         // unlinkat
    (100, &[Number, Name]),                              // version
    (104, &[File, Number, Name, Name, Number]),          // attach
    (108, &[Word]),                                      // flush
    (110, &[File, File, Names]),                         // walk
    (116, &[File, Long, Number]),                        // read
    (118, &[File, Long, Data]),                          // write
    (120, &[File]),                                      // clunk
    (122, &[File]),                                      // remove
];

/// Commands of disks and CD-ROM drives.
const COMMANDS: [u8; 28] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x2a, 0x2f, 0x35, 0x41, 0x42,
    0x43, 0x46, 0x4a, 0x51, 0x55, 0x5a, 0x88, 0x8a, 0x93, 0x9e, 0xa0, 0xbe,
];

/// Adds a number that is usually small.
fn number(input: &mut Input<'_>, bytes: usize, body: &mut Vec<u8>) {
    let value = match input.byte() {
        small @ 0..=0xdf => u64::from(small),
        0xe0..=0xef => u64::from(input.word()),
        _ => input.qword(),
    };
    body.extend(&value.to_le_bytes()[..bytes]);
}

fn name(input: &mut Input<'_>, body: &mut Vec<u8>) {
    let name = NAMES[usize::from(input.byte() & 7)];
    body.extend((name.len() as u16).to_le_bytes());
    body.extend(name);
}

/// The body of a message with these fields.
fn body(fields: &[Field], input: &mut Input<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    for field in fields {
        match field {
            File => body.extend(u32::from(input.byte() & 3).to_le_bytes()),
            Byte => body.push(input.byte()),
            Word => body.extend(input.word().to_le_bytes()),
            Number => number(input, 4, &mut body),
            Long => number(input, 8, &mut body),
            Name => name(input, &mut body),
            Names => {
                let count = input.byte() & 3;
                body.extend(u16::from(count).to_le_bytes());
                for _ in 0..count {
                    name(input, &mut body);
                }
            }
            Data => {
                let count = usize::from(input.byte() & 15);
                let bytes = input.bytes(count);
                body.extend((bytes.len() as u32).to_le_bytes());
                body.extend(bytes);
            }
        }
    }
    body.truncate(MOST_BODY);
    body
}

/// The input of the target `virtio` that makes the requests of this input.
fn steps(data: &[u8]) -> Vec<u8> {
    let mut input = Input::new(data);
    let choices = input.byte();
    let in_memory = choices & 8;
    let mut steps = Vec::new();
    if choices & 1 == 0 {
        steps.extend([0, 0xb1 | in_memory]);
        steps.extend(virtio::nine_message(100, b"\0\0\x02\0\x08\09P2000.L"));
        let attach = b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0";
        steps.extend(virtio::nine_message(104, attach));
    } else {
        steps.extend([0, 0xa2 | in_memory]);
    }
    for _ in 0..MOST_REQUESTS {
        if input.is_empty() {
            break;
        }
        if choices & 1 == 0 {
            let (kind, fields) = MESSAGES[usize::from(input.byte()) % MESSAGES.len()];
            let body = body(fields, &mut input);
            steps.extend(virtio::nine_message(kind, &body));
            continue;
        }
        let place = input.byte();
        let mut command = vec![COMMANDS[usize::from(input.byte()) % COMMANDS.len()]];
        let count = usize::from(place >> 4);
        command.extend(input.bytes(count));
        command.resize(16, 0);
        // Targets 1 and 2 have drives, 0 and 3 have none.
        steps.extend(virtio::scsi_request(place & 3, place >> 2 & 1, &command));
    }
    steps
}

/// Makes the requests of an input.
///
/// # Panics
///
/// Panics if a device breaks a promise.
pub fn run(data: &[u8]) {
    virtio::run(&steps(data));
}

/// Sessions that good clients have.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let place = |kind: u8| {
        let found = MESSAGES.iter().position(|(known, _)| *known == kind);
        found.unwrap_or_default() as u8
    };
    // Walk to a copy of the root (file 1), create "a" there, write, read, list, rename, remove.
    let files = [
        [place(110), 0, 1, 0].as_slice(),
        &[place(14), 1, 0, 2, 0xa4, 0],
        &[place(118), 1, 0, 5, b'h', b'e', b'l', b'l', b'o'],
        &[place(116), 1, 0, 100],
        &[place(24), 1, 0xff, 0xff, 0x3f, 0, 0, 0, 0, 0, 0],
        &[place(110), 0, 2, 0],
        &[place(12), 2, 0],
        &[place(40), 2, 0, 200],
        &[place(74), 0, 0, 0, 1],
        &[place(16), 0, 2, 1, 0],
        &[place(76), 0, 1, 0],
        &[place(120), 1],
    ]
    .concat();
    let attributes = [
        [place(110), 0, 1, 0].as_slice(),
        &[place(32), 1, 3, 3, 0],
        &[place(118), 1, 0, 3, b'x', b'y', b'z'],
        &[place(120), 1],
        &[place(30), 0, 2, 3],
        &[place(116), 2, 0, 50],
        &[place(8), 0],
    ]
    .concat();
    let command = |code: u8, bytes: &[u8]| {
        let found = COMMANDS.iter().position(|known| *known == code);
        let head = [
            (bytes.len() as u8) << 4 | 1,
            found.unwrap_or_default() as u8,
        ];
        [&head, bytes].concat()
    };
    let disk = [
        command(0x00, &[]),
        command(0x12, &[0, 0, 0, 96]),
        command(0x25, &[]),
        command(0x28, &[0, 0, 0, 0, 1, 0, 0, 1]),
        command(0x2a, &[0, 0, 0, 0, 2, 0, 0, 1]),
        command(0x35, &[]),
        command(0x1a, &[0, 0x3f, 0, 200]),
        command(0xa0, &[0, 0, 0, 0, 0, 0, 0, 64]),
        command(0x9e, &[0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32]),
        command(0x93, &[0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 8]),
    ]
    .concat();
    let sessions = [
        ("files", 0, files),
        ("attributes", 0, attributes),
        ("disk", 1, disk),
    ];
    sessions
        .into_iter()
        // On PCI, and in memory.
        .flat_map(|(name, kind, requests)| {
            [0u8, 8].map(|transport| {
                let seed = [&[kind | transport], &*requests].concat();
                (format!("{name}-{transport}"), seed)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_steps_that_write_their_messages() {
        for (name, seed) in seeds() {
            let steps = steps(&seed);
            // Each request has a header, descriptors and a notification.
            assert!(steps.len() > 100, "{name}: {}", steps.len());
            let notifications = steps.windows(3).filter(|it| *it == [0x15, 0, 0]);
            assert!(notifications.count() >= 7, "{name}");
        }
    }
}
