//! The protocol of a guest that is kept and runs any number of commands at once.
//!
//! Frames are those of the other protocol. Their rest begins with the number of a channel, in four
//! bytes, lowest first; each command has one. A client of the host has a connection of its own, on which
//! the frames have no channel.
//!
//! ```text
//!   to the guest                                      to the host
//!   'k'  a piece of the task; an empty one: run it    'r'  it runs
//!   '0'  standard input; empty: its end               '1'  standard output
//!   's' 'w' 'c'  as with one command                  '2'  standard error
//!   'g'  bytes of output that the client has taken    'g'  bytes of input that the command has taken
//!   'q'  the client has gone: end the command         'f' 'e'  as with one command
//! ```
//!
//! A guest that continues from a snapshot gets 'q' with the channel [`ALL`], and then the time and random bytes
//! as at its start.
//!
//! Neither side sends more of a stream than [`WINDOW`] bytes that the other has not taken, so a client
//! that reads slowly holds up no other, and a signal is not held up by input. Credit ('g') for input passes
//! to the client; that for output the machine's process gives as the client's connection takes it.

use super::{MAX_FRAME, frame};

/// Standard input, output and error: the numbers of the descriptors.
pub const INPUT: u8 = b'0';
/// Standard output.
pub const OUTPUT: u8 = b'1';
/// Standard error.
pub const ERRORS: u8 = b'2';
/// Bytes that were taken: the stream's kind, and the number in four bytes.
pub const CREDIT: u8 = b'g';
/// The client has gone.
pub const GONE: u8 = b'q';

/// The channel that stands for all: the time, random bytes, and the end of all commands of an earlier host.
pub const ALL: u32 = 0;

/// The size of a channel's number in bytes.
const CHANNEL_BYTES: usize = 4;
/// The maximum number of bytes of a frame's rest, without its channel.
pub const MOST: usize = MAX_FRAME - CHANNEL_BYTES;
/// The maximum number of bytes of a stream that are on their way.
pub const WINDOW: usize = 256 << 10;

/// The words of a command that the agent itself carries out: copies standard input to a file, with a
/// path and a mode in octal digits.
pub const PUT: &str = "tollgate:put";
/// Copies a file, whose path follows, to standard output.
pub const GET: &str = "tollgate:get";

/// Makes a frame of a channel.
pub fn channel_frame(channel: u32, kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut whole = Vec::from(channel.to_le_bytes());
    whole.extend(rest);
    frame(kind, &whole)
}

/// Divides a frame's rest into its channel and what follows.
pub fn split_channel(rest: &[u8]) -> Option<(u32, &[u8])> {
    let (channel, rest) = rest.split_first_chunk()?;
    Some((u32::from_le_bytes(*channel), rest))
}

/// The rest of a frame with credit for a stream.
pub fn credit(stream: u8, count: usize) -> [u8; 5] {
    let [a, b, c, d] = (count as u32).to_le_bytes();
    [stream, a, b, c, d]
}

/// The stream and the number in a frame with credit.
pub fn decode_credit(rest: &[u8]) -> Option<(u8, usize)> {
    let [stream, count @ ..] = rest else {
        return None;
    };
    let count = u32::from_le_bytes(count.try_into().ok()?);
    Some((*stream, count as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_a_channel() {
        let bytes = channel_frame(7, OUTPUT, b"ab");
        assert_eq!(bytes, b"1\x06\0\0\0\x07\0\0\0ab");
        assert_eq!(split_channel(&bytes[5..]), Some((7, &b"ab"[..])));
        assert_eq!(split_channel(b"abc"), None);
        assert_eq!(
            decode_credit(&credit(INPUT, 1 << 20)),
            Some((INPUT, 1 << 20))
        );
    }
}
