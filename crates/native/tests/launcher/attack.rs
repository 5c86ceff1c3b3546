//! A thread that speaks to the launcher as it likes.

use crate::monitor::report;
use crate::{PAGE, makes_calls, start};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tollgate_native::{SpaceProcess, launcher};
use tollgate_test_support::Random;

const GREETING: u64 = 1;
const MAKE: u64 = 2;
const END: u64 = 4;
const GREETED: u64 = 1;
const MADE: u64 = 2;

fn words_of(words: [u64; 6]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The number of the process that a reply is about.
fn process_made(reply: [u64; 6]) -> Option<u64> {
    (reply[0] == MADE).then_some(reply[1])
}

/// Sends bytes and descriptors.
fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let bytes = [std::io::IoSlice::new(bytes)];
    sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Takes the replies that have come: the first one with these flags, the others without waiting.
fn take(socket: BorrowedFd<'_>, mut flags: RecvFlags) -> Vec<[u64; 6]> {
    let mut received = Vec::new();
    loop {
        let mut reply = [0; 48];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut reply)];
        let taken = recvmsg(
            socket,
            &mut parts,
            &mut control,
            flags | RecvFlags::CMSG_CLOEXEC,
        );
        let Ok(message) = taken else {
            return received;
        };
        assert_eq!(message.bytes, reply.len(), "the launcher has ended");
        let words = |index: usize| u64::from_le_bytes(reply[8 * index..][..8].try_into().unwrap());
        received.push(std::array::from_fn(words));
        flags = RecvFlags::DONTWAIT;
    }
}

/// Sends the launcher everything but what it expects, and then uses it.
pub fn attack(socket: BorrowedFd<'_>, ram: &OwnedFd, parent: u64) {
    let mut random = Random::new(5);
    let input = std::io::stdin();
    let descriptors = [ram.as_fd(), socket, input.as_fd()];
    let mut made = Vec::new();
    for round in 0..3000 {
        // Words that are nearly requests: of all kinds, for this process, its parent and process 1.
        let words: [u64; 6] = std::array::from_fn(|index| match (index, random.below(6)) {
            (0, _) => 2 + random.below(7) as u64,
            (_, 0) => parent,
            (_, 1) => std::process::id().into(),
            (_, 2) => 1,
            (_, 3) => random.next_u64() >> random.below(64),
            (_, 4) => random.below(1 << 20) as u64 * PAGE,
            _ => 0,
        });
        if round % 40 == 0 {
            // A request, with a descriptor that may not be guest RAM's.
            let place = (256 + random.below(1 << 30) as u64) * PAGE;
            let instructions = [random.below(2) as u64, random.below(2) as u64];
            let words = words_of([MAKE, place, 0, instructions[0], instructions[1], 0]);
            send(socket, &words, &[descriptors[random.below(3)]]);
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        match random.below(8) {
            0 => bytes.truncate(1 + random.below(40)),
            1 => bytes.resize(49 + random.below(5000), 0xff),
            _ => {}
        }
        let count = random.below(4);
        send(socket, &bytes, &descriptors[..count]);
        made.extend(
            take(socket, RecvFlags::DONTWAIT)
                .into_iter()
                .filter_map(process_made),
        );
    }
    // The first greeting is answered after everything else.
    send(socket, &words_of([GREETING, 0, 0, 0, 0, 0]), &[]);
    loop {
        let replies = take(socket, RecvFlags::empty());
        if replies.contains(&[GREETED, 0, 0, 0, 0, 0]) {
            break;
        }
        made.extend(replies.into_iter().filter_map(process_made));
    }
    assert!(!made.is_empty());
    for process in made {
        send(socket, &words_of([END, process, 0, 0, 0, 0]), &[]);
    }
    launcher::answers().unwrap();
    // As many as it makes, and no more; all of them work.
    let mut processes = Vec::new();
    let refusal = loop {
        match start(ram) {
            Ok(process) => processes.push(process),
            Err(error) => break error,
        }
        assert!(processes.len() <= 64);
    };
    assert_eq!(refusal.raw_os_error(), Some(libc::EAGAIN));
    for process in &mut processes {
        makes_calls(process, 1);
    }
    report(
        &processes
            .iter()
            .map(SpaceProcess::number)
            .collect::<Vec<_>>(),
    );
}
