//! Parses the messages of a viewer (RFC 6143, 7.5) from a stream of bytes.

use crate::encodings::Encodings;
use crate::frame::Rectangle;
use crate::pixel_format::PixelFormat;
use crate::session::Refusal;

/// An action of a viewer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The viewer wants to be the only one.
    Exclusive,
    /// A key was pressed or released. It is identified by its meaning in the X Window System.
    Key {
        /// Whether the key was pressed.
        is_down: bool,
        /// The keysym of the key.
        keysym: u32,
    },
    /// A key was pressed or released. It is identified by its place: its scancode in set 1, plus
    /// 80h if E0h precedes it.
    PlacedKey {
        /// Whether the key was pressed.
        is_down: bool,
        /// The scancode of the key.
        scancode: u32,
    },
    /// The pointer is at this position, in pixels from the upper left corner.
    Pointer {
        /// The pointer's column.
        x: u16,
        /// The pointer's line.
        y: u16,
        /// Bits 0 to 2: the left, middle and right button are down. Bits 3 and 4: steps of the
        /// wheel up and down, as buttons.
        buttons: u8,
    },
    /// The pointer has moved, from any position.
    Motion {
        /// The number of pixels to the right.
        right: i32,
        /// The number of pixels down.
        down: i32,
        /// The buttons, as for [`Event::Pointer`].
        buttons: u8,
    },
}

/// A message of the viewer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    Format(PixelFormat),
    Encodings(Encodings),
    Update {
        is_incremental: bool,
        part: Rectangle,
    },
    Event(Event),
    /// Text for the clipboard. This number of bytes follows.
    Text(u32),
}

/// The types of messages.
mod kind {
    pub const SET_PIXEL_FORMAT: u8 = 0;
    pub const SET_ENCODINGS: u8 = 2;
    pub const UPDATE_REQUEST: u8 = 3;
    pub const KEY: u8 = 4;
    pub const POINTER: u8 = 5;
    pub const CUT_TEXT: u8 = 6;
    pub const QEMU: u8 = 255;
    /// The second byte of QEMU's message.
    pub const QEMU_KEY: u8 = 0;
}

/// The value for a pointer that has not moved, when positions are moves.
const NO_MOTION: i32 = 0x7fff;

/// Parses the message at the start of `bytes`. Returns it and its length, or `None` if more bytes
/// are needed. With `places_are_moves`, positions of the pointer are moves.
///
/// # Errors
/// The bytes are not a valid message.
pub(crate) fn read(
    bytes: &[u8],
    places_are_moves: bool,
) -> Result<Option<(Message, usize)>, Refusal> {
    let Some(first) = bytes.first() else {
        return Ok(None);
    };
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let long = |bytes: &[u8], at: usize| {
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    let length = match *first {
        kind::SET_PIXEL_FORMAT => 4 + PixelFormat::BYTES,
        kind::SET_ENCODINGS if bytes.len() < 4 => return Ok(None),
        kind::SET_ENCODINGS => 4 + 4 * usize::from(word(bytes, 2)),
        kind::UPDATE_REQUEST => 10,
        kind::KEY | kind::CUT_TEXT => 8,
        kind::POINTER => 6,
        kind::QEMU if bytes.len() < 2 => return Ok(None),
        kind::QEMU if bytes[1] == kind::QEMU_KEY => 12,
        _ => return Err(Refusal::UnknownMessage),
    };
    let Some(message) = bytes.get(..length) else {
        return Ok(None);
    };
    let read = match *first {
        kind::SET_PIXEL_FORMAT => {
            let format = message.last_chunk().and_then(PixelFormat::read);
            Message::Format(format.ok_or(Refusal::PixelFormat)?)
        }
        kind::SET_ENCODINGS => {
            let list = message[4..].chunks_exact(4);
            Message::Encodings(Encodings::of(list.map(|four| long(four, 0) as i32)))
        }
        kind::UPDATE_REQUEST => Message::Update {
            is_incremental: message[1] != 0,
            part: Rectangle {
                x: word(message, 2),
                y: word(message, 4),
                width: word(message, 6),
                height: word(message, 8),
            },
        },
        kind::KEY => Message::Event(Event::Key {
            is_down: message[1] != 0,
            keysym: long(message, 4),
        }),
        kind::POINTER => {
            let (buttons, x, y) = (message[1], word(message, 2), word(message, 4));
            Message::Event(match places_are_moves {
                false => Event::Pointer { x, y, buttons },
                true => Event::Motion {
                    right: i32::from(x) - NO_MOTION,
                    down: i32::from(y) - NO_MOTION,
                    buttons,
                },
            })
        }
        kind::CUT_TEXT => Message::Text(long(message, 4)),
        _ => Message::Event(Event::PlacedKey {
            is_down: word(message, 2) != 0,
            scancode: long(message, 8),
        }),
    };
    Ok(Some((read, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> (Message, usize) {
        // Every prefix of the message is incomplete.
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length], false), Ok(None), "{length}");
        }
        read(bytes, false).unwrap().unwrap()
    }

    #[test]
    fn messages_are_read_once_they_are_complete() {
        let key = Event::Key {
            is_down: true,
            keysym: 0xff0d,
        };
        let bytes = [4, 1, 0, 0, 0, 0, 0xff, 0x0d];
        assert_eq!(all(&bytes), (Message::Event(key), 8));
        let placed = Event::PlacedKey {
            is_down: false,
            scancode: 0x9c,
        };
        let bytes = [255, 0, 0, 0, 0, 0, 0xff, 0x8d, 0, 0, 0, 0x9c];
        assert_eq!(all(&bytes), (Message::Event(placed), 12));
        let (message, length) = all(&[2, 0, 0, 2, 0, 0, 0, 16, 0xff, 0xff, 0xff, 0x21]);
        let Message::Encodings(encodings) = message else {
            panic!("{message:?}");
        };
        assert!(encodings.zrle && encodings.desktop_size && length == 12);
        let update = Message::Update {
            is_incremental: true,
            part: Rectangle {
                x: 1,
                y: 2,
                width: 0x300,
                height: 4,
            },
        };
        assert_eq!(all(&[3, 1, 0, 1, 0, 2, 3, 0, 0, 4]), (update, 10));
        let text = Message::Text(u32::MAX);
        assert_eq!(all(&[6, 0, 0, 0, 255, 255, 255, 255]), (text, 8));
    }

    #[test]
    fn the_pointer_s_places_are_moves_once_that_is_agreed() {
        let bytes = [5, 3, 0x80, 0x02, 0x7f, 0xfe];
        let at = Event::Pointer {
            x: 0x8002,
            y: 0x7ffe,
            buttons: 3,
        };
        assert_eq!(all(&bytes), (Message::Event(at), 6));
        let moved = Event::Motion {
            right: 3,
            down: -1,
            buttons: 3,
        };
        let read = read(&bytes, true).unwrap();
        assert_eq!(read, Some((Message::Event(moved), 6)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&[1][..], &[7], &[254], &[255, 1]] {
            assert_eq!(read(bytes, false), Err(Refusal::UnknownMessage));
        }
        let mut format = [0; 20];
        format[4] = 24;
        assert_eq!(read(&format, false), Err(Refusal::PixelFormat));
    }
}
