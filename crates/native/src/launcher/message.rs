//! What the launcher is asked for, and what it answers: six words each, with descriptors.

use crate::exit::Death;
use crate::image::Instruction;
use crate::settings::{Placement, Settings};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The words of a message.
pub type Words = [u64; 6];
const SIZE: usize = size_of::<Words>();
/// Descriptors that a message has at most.
const DESCRIPTORS: usize = 3;

/// A message that has arrived.
pub struct Received {
    /// Nothing if it has another length.
    pub words: Option<Words>,
    pub descriptors: Vec<OwnedFd>,
}

/// Sends a message.
pub fn send(
    socket: BorrowedFd<'_>,
    words: &Words,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL;
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            result => return result.map(|_| ()).map_err(io::Error::from),
        }
    }
}

/// Waits for a message; nothing if the other end is closed.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Received>> {
    // One byte more than a message has shows that one is too long.
    let mut bytes = [0; SIZE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = match recvmsg(socket, &mut parts, &mut control, flags) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let words: Words = std::array::from_fn(|_| words.next().unwrap_or_default());
        return Ok(Some(Received {
            words: (received.bytes == SIZE).then_some(words),
            descriptors,
        }));
    }
}

/// What the launcher is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// To answer, which shows that it lives.
    Hello,
    /// To make a process with the guest RAM whose descriptor comes with the message.
    Make(Settings),
    /// To have such a process ready for the next request to make one like it. There is no reply.
    Prepare(Settings),
    /// To say how a process has ended.
    Death(i32),
    /// To end a process and forget it. There is no reply.
    End(i32),
    /// To bind the tasks of a process to a processor. There is no reply.
    Bind { tasks: [i32; 2], processor: usize },
}

const HELLO: u64 = 1;
const MAKE: u64 = 2;
const DEATH: u64 = 3;
const END: u64 = 4;
const BIND: u64 = 5;
const PREPARE: u64 = 6;

fn number(word: u64) -> Option<i32> {
    i32::try_from(word).ok().filter(|number| *number > 0)
}

fn instruction(word: u64) -> Option<Instruction> {
    match word {
        0 => Some(Instruction::Runs),
        1 => Some(Instruction::Faults),
        _ => None,
    }
}

fn words_of(kind: u64, settings: Settings) -> Words {
    let faults = |it| u64::from(it == Instruction::Faults);
    let cpuid = faults(settings.cpuid);
    let counter = faults(settings.time_stamp_counter);
    [
        kind,
        settings.place,
        settings.spins.into(),
        cpuid,
        counter,
        0,
    ]
}

impl Request {
    pub fn words(self) -> Words {
        let word = |number: i32| u64::from(number.cast_unsigned());
        match self {
            Self::Hello => [HELLO, 0, 0, 0, 0, 0],
            Self::Make(settings) => words_of(MAKE, settings),
            Self::Prepare(settings) => words_of(PREPARE, settings),
            Self::Death(process) => [DEATH, word(process), 0, 0, 0, 0],
            Self::End(process) => [END, word(process), 0, 0, 0, 0],
            Self::Bind { tasks, processor } => {
                let [process, mapper] = tasks.map(word);
                [BIND, process, mapper, processor as u64, 0, 0]
            }
        }
    }

    /// The request, if the words are one.
    pub fn parse(words: &Words) -> Option<Self> {
        Some(match *words {
            [HELLO, 0, 0, 0, 0, 0] => Self::Hello,
            [kind @ (MAKE | PREPARE), place, spins, cpuid, counter, 0] => {
                let settings = Settings {
                    spins: u32::try_from(spins).ok()?,
                    // Its caller binds it.
                    placement: Placement::Free,
                    place,
                    cpuid: instruction(cpuid)?,
                    time_stamp_counter: instruction(counter)?,
                };
                match kind {
                    MAKE => Self::Make(settings),
                    _ => Self::Prepare(settings),
                }
            }
            [DEATH, process, 0, 0, 0, 0] => Self::Death(number(process)?),
            [END, process, 0, 0, 0, 0] => Self::End(number(process)?),
            [BIND, process, mapper, processor, 0, 0] => Self::Bind {
                tasks: [number(process)?, number(mapper)?],
                processor: usize::try_from(processor).ok()?,
            },
            _ => return None,
        })
    }
}

/// What the launcher answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It is there.
    Done,
    /// A process has this number. With the message come descriptors of the process, of the pages that
    /// it shares, and of the pipe with its results.
    Made(i32),
    /// A process has ended for this reason.
    Dead(Death),
    /// The request makes no sense, or the host has refused it with this error.
    Refused(i32),
}

const DONE: u64 = 1;
const MADE: u64 = 2;
const KILLED: u64 = 3;
const ENDED: u64 = 4;
const REFUSED: u64 = 5;

impl Reply {
    pub fn words(self) -> Words {
        let with = |kind: u64, number: i32| [kind, number.cast_unsigned().into(), 0, 0, 0, 0];
        match self {
            Self::Done => with(DONE, 0),
            Self::Made(process) => with(MADE, process),
            Self::Dead(Death::Signal(signal)) => with(KILLED, signal),
            Self::Dead(Death::Ended(code)) => with(ENDED, code),
            // The launcher knows no other reasons.
            Self::Dead(_) => with(ENDED, 0),
            Self::Refused(error) => with(REFUSED, error),
        }
    }

    /// The reply, if the words are one.
    pub fn parse(words: &Words) -> Option<Self> {
        let [kind, value, 0, 0, 0, 0] = *words else {
            return None;
        };
        let value = i32::try_from(value).ok()?;
        Some(match kind {
            DONE => Self::Done,
            MADE => Self::Made(value),
            KILLED => Self::Dead(Death::Signal(value)),
            ENDED => Self::Dead(Death::Ended(value)),
            REFUSED => Self::Refused(value),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_are_read_as_they_were_written() {
        let settings = Settings {
            spins: 7,
            cpuid: Instruction::Faults,
            ..Settings::default()
        };
        let bind = Request::Bind {
            tasks: [5, 6],
            processor: 1,
        };
        for request in [
            Request::Hello,
            Request::Make(settings),
            Request::Prepare(settings),
            Request::Death(9),
            Request::End(10),
            bind,
        ] {
            let words = request.words();
            let read = Request::parse(&words).expect("a request");
            assert_eq!(read.words(), words);
        }
        for reply in [
            Reply::Done,
            Reply::Made(11),
            Reply::Dead(Death::Signal(9)),
            Reply::Dead(Death::Ended(3)),
            Reply::Refused(libc::EAGAIN),
        ] {
            assert_eq!(Reply::parse(&reply.words()), Some(reply));
        }
    }

    #[test]
    fn words_that_mean_nothing_are_no_request() {
        for words in [
            [0; 6],
            [HELLO, 0, 0, 0, 0, 1],
            [MAKE, 0x1000, 1 << 32, 0, 0, 0],
            [MAKE, 0x1000, 0, 2, 0, 0],
            [PREPARE, 0x1000, 0, 0, 2, 0],
            [END, 0, 0, 0, 0, 0],
            [END, u64::MAX, 0, 0, 0, 0],
            [BIND, 1, 1 << 31, 0, 0, 0],
            [PREPARE + 1, 1, 1, 1, 1, 1],
        ] {
            assert!(Request::parse(&words).is_none(), "{words:?}");
        }
    }
}
