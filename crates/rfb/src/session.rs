//! One viewer, from its greeting on.

use crate::encodings::{Encodings, number};
use crate::frame::{Frame, Rectangle};
use crate::message::{self, Event, Message};
use crate::password::{CHALLENGE_BYTES, Password};
use crate::pixel_format::PixelFormat;
use crate::zrle::Zrle;
use std::fmt;
use std::sync::Arc;

/// Why a session has ended. The remaining output should still be sent to the viewer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The viewer does not speak the protocol.
    NoGreeting,
    /// The viewer chooses another kind of security than the offered one.
    Security,
    /// The viewer does not know the password. The owner of the session should delay the report to
    /// the viewer for a while, so that passwords cannot be guessed by trying.
    Password,
    /// The viewer has sent a message of an unknown kind.
    UnknownMessage,
    /// The viewer requests a pixel format that is impossible.
    PixelFormat,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NoGreeting => "the viewer does not speak the protocol of VNC",
            Self::Security => "the viewer wants another kind of security",
            Self::Password => "wrong password",
            Self::UnknownMessage => "the viewer has sent an unknown message",
            Self::PixelFormat => "the viewer wants an impossible pixel format",
        })
    }
}

impl std::error::Error for Refusal {}

/// The versions of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Version {
    V3,
    V7,
    V8,
}

impl Version {
    /// The greeting of both sides.
    const GREETING: [u8; 12] = *b"RFB 003.008\n";

    /// Returns the version of a greeting.
    fn of(greeting: &[u8; 12]) -> Option<Self> {
        let number = |digits: &[u8]| {
            let text = std::str::from_utf8(digits).ok()?;
            let is_number = digits.iter().all(u8::is_ascii_digit);
            text.parse::<u16>().ok().filter(|_| is_number)
        };
        let fits = greeting.starts_with(b"RFB ") && greeting[7] == b'.' && greeting[11] == b'\n';
        let (major, minor) = (number(&greeting[4..7])?, number(&greeting[8..11])?);
        // Any other version must be treated as 3.3 (RFC 6143, 7.1.1).
        let version = match (major, minor) {
            (3, 7) => Self::V7,
            (3, 8..) | (4.., _) => Self::V8,
            _ => Self::V3,
        };
        fits.then_some(version)
    }
}

/// The kinds of security (RFC 6143, 7.2).
mod security {
    pub const NONE: u8 = 1;
    pub const PASSWORD: u8 = 2;
}

/// What the viewer must send next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Greeting,
    /// The kind of security that it chooses.
    Security,
    /// The answer to the challenge.
    Answer,
    /// Whether it shares the screen with other viewers.
    Sharing,
    Message,
    /// This number of bytes of a text, which is ignored.
    Text(u32),
    /// Nothing, because the session has ended.
    Nothing,
}

/// The update that the viewer has requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    /// This part must be sent whether it has changed or not.
    anyway: Option<Rectangle>,
}

/// The session of one viewer.
pub struct Session {
    expected: Expected,
    version: Version,
    password: Option<Password>,
    challenge: [u8; CHALLENGE_BYTES],
    name: String,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The number of bytes of the output that were already sent.
    written: usize,
    /// The size of the screen that the viewer knows.
    size: (u16, u16),
    format: PixelFormat,
    encodings: Encodings,
    /// Whether the viewer was told that QEMU's messages are supported.
    announces: bool,
    places_are_moves: bool,
    /// Whether the viewer does not have the colours of its format yet.
    lacks_map: bool,
    wanted: Option<Wanted>,
    /// The picture that was sent to the viewer.
    shown: Option<Arc<Frame>>,
    zrle: Zrle,
}

impl Session {
    /// Makes a session for a viewer that has just connected. With a password it must answer the
    /// challenge, which must be random and new. `size` is the present size of the screen, `name`
    /// the title of the viewer's window.
    pub fn new(
        password: Option<Password>,
        challenge: [u8; CHALLENGE_BYTES],
        size: (u16, u16),
        name: &str,
    ) -> Self {
        Self {
            expected: Expected::Greeting,
            version: Version::V3,
            password,
            challenge,
            name: name.to_owned(),
            input: Vec::new(),
            output: Version::GREETING.to_vec(),
            written: 0,
            size,
            format: PixelFormat::NATIVE,
            encodings: Encodings::default(),
            announces: false,
            places_are_moves: false,
            lacks_map: false,
            wanted: None,
            shown: None,
            zrle: Zrle::new(),
        }
    }

    /// Returns the bytes for the viewer.
    pub fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// Records that `count` bytes of the output were sent.
    pub fn sent(&mut self, count: usize) {
        self.written = (self.written + count).min(self.output.len());
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
            // This frees the memory that a large picture needed.
            self.output.shrink_to(64 << 10);
        }
    }

    /// Whether the viewer was admitted, after answering the challenge if there was one.
    pub fn is_let_in(&self) -> bool {
        matches!(
            self.expected,
            Expected::Sharing | Expected::Message | Expected::Text(_)
        )
    }

    /// Handles bytes from the viewer. Its actions are added to `events`.
    ///
    /// # Errors
    /// The session has ended.
    pub fn receive(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), Refusal> {
        self.input.extend(bytes);
        let result = self.read_input(events);
        if result.is_err() {
            self.expected = Expected::Nothing;
        }
        result
    }

    fn read_input(&mut self, events: &mut Vec<Event>) -> Result<(), Refusal> {
        loop {
            let consumed = match self.expected {
                Expected::Nothing => self.input.len(),
                Expected::Text(0) => {
                    self.expected = Expected::Message;
                    continue;
                }
                Expected::Text(left) => {
                    let count = self.input.len().min(left as usize);
                    self.expected = Expected::Text(left - count as u32);
                    count
                }
                Expected::Greeting => {
                    let Some(greeting) = self.input.first_chunk() else {
                        return self.check_greeting();
                    };
                    self.version = Version::of(greeting).ok_or(Refusal::NoGreeting)?;
                    self.offer_security();
                    greeting_bytes()
                }
                Expected::Security => {
                    let Some(&choice) = self.input.first() else {
                        return Ok(());
                    };
                    self.choose_security(choice)?;
                    1
                }
                Expected::Answer => {
                    let Some(answer) = self.input.get(..CHALLENGE_BYTES) else {
                        return Ok(());
                    };
                    let password = self.password.as_ref();
                    if password.is_some_and(|it| !it.accepts(self.challenge, answer)) {
                        self.refuse_password();
                        return Err(Refusal::Password);
                    }
                    self.output.extend(OK);
                    self.expected = Expected::Sharing;
                    CHALLENGE_BYTES
                }
                Expected::Sharing => {
                    let Some(&shares) = self.input.first() else {
                        return Ok(());
                    };
                    if shares == 0 {
                        events.push(Event::Exclusive);
                    }
                    self.introduce();
                    1
                }
                Expected::Message => {
                    let read = message::read(&self.input, self.places_are_moves)?;
                    let Some((message, length)) = read else {
                        return Ok(());
                    };
                    self.obey(message, events);
                    length
                }
            };
            self.input.drain(..consumed);
            if self.input.is_empty() {
                return Ok(());
            }
        }
    }

    /// Checks the beginning of a greeting, so that an invalid one is refused without waiting for
    /// the rest.
    fn check_greeting(&self) -> Result<(), Refusal> {
        let common = self.input.len().min(4);
        let fits = self.input[..common] == Version::GREETING[..common];
        fits.then_some(()).ok_or(Refusal::NoGreeting)
    }

    fn offer_security(&mut self) {
        let kind = match self.password {
            Some(_) => security::PASSWORD,
            None => security::NONE,
        };
        if self.version > Version::V3 {
            self.output.extend([1, kind]);
            self.expected = Expected::Security;
            return;
        }
        // The oldest version offers no choice.
        self.output.extend([0, 0, 0, kind]);
        self.begin_security();
    }

    fn choose_security(&mut self, choice: u8) -> Result<(), Refusal> {
        let offered = match self.password {
            Some(_) => security::PASSWORD,
            None => security::NONE,
        };
        if choice != offered {
            self.output.extend(FAILED);
            self.say_why(&Refusal::Security);
            return Err(Refusal::Security);
        }
        self.begin_security();
        if self.password.is_none() && self.version == Version::V8 {
            self.output.extend(OK);
        }
        Ok(())
    }

    fn begin_security(&mut self) {
        if self.password.is_some() {
            self.output.extend(self.challenge);
            self.expected = Expected::Answer;
        } else {
            self.expected = Expected::Sharing;
        }
    }

    fn refuse_password(&mut self) {
        self.output.extend(FAILED);
        self.say_why(&Refusal::Password);
    }

    /// Sends the reason of a failure, which exists only in the latest version.
    fn say_why(&mut self, why: &Refusal) {
        if self.version == Version::V8 {
            let text = why.to_string();
            self.output.extend((text.len() as u32).to_be_bytes());
            self.output.extend(text.bytes());
        }
    }

    /// Sends the screen's size, the pixel format, and the name.
    fn introduce(&mut self) {
        self.output.extend(self.size.0.to_be_bytes());
        self.output.extend(self.size.1.to_be_bytes());
        self.output.extend(self.format.write());
        self.output.extend((self.name.len() as u32).to_be_bytes());
        self.output.extend(self.name.bytes());
        self.expected = Expected::Message;
    }

    fn obey(&mut self, message: Message, events: &mut Vec<Event>) {
        match message {
            Message::Format(format) => {
                self.format = format;
                // The picture that the viewer shows is in the old format.
                self.shown = None;
                self.lacks_map = true;
            }
            Message::Encodings(encodings) => {
                let is_new = |new: bool, old: bool| new && !old;
                self.announces |= is_new(encodings.extended_keys, self.encodings.extended_keys)
                    || is_new(encodings.pointer_motion, self.encodings.pointer_motion);
                self.encodings = encodings;
            }
            Message::Update {
                is_incremental,
                part,
            } => {
                let before = self.wanted.and_then(|wanted| wanted.anyway);
                let anyway = match (is_incremental, before) {
                    (true, before) => before,
                    (false, None) => Some(part),
                    (false, Some(before)) => Some(both(before, part)),
                };
                self.wanted = Some(Wanted { anyway });
            }
            Message::Event(event) => events.push(event),
            Message::Text(count) => self.expected = Expected::Text(count),
        }
    }

    /// Whether the viewer waits for an update, and has taken all earlier output.
    pub fn wants_update(&self) -> bool {
        self.wanted.is_some() && self.output.is_empty()
    }

    /// Sends the changes of the screen to the viewer, if it waits for an update.
    pub fn update(&mut self, frame: &Arc<Frame>) {
        let Some(wanted) = self.wanted.filter(|_| self.output.is_empty()) else {
            return;
        };
        if frame.size() != self.size && self.encodings.desktop_size {
            self.size = frame.size();
            self.shown = None;
            self.wanted = None;
            self.begin_update(1);
            let (width, height) = self.size;
            self.begin_rectangle([0, 0, width, height], number::DESKTOP_SIZE);
            return;
        }
        let (width, height) = self.size;
        let frame = match frame.size() == self.size {
            true => Arc::clone(frame),
            // The viewer cannot show a size other than the first one.
            false => Arc::new(frame.fitted(width, height)),
        };
        let anyway = wanted.anyway.and_then(|part| frame.clipped(part));
        let whole = frame.whole();
        let parts = match (&self.shown, anyway) {
            (None, _) => vec![whole],
            (_, Some(part)) if part == whole => vec![whole],
            (Some(shown), Some(part)) => {
                let changed = frame.changed_since(shown).into_iter();
                changed.chain([part]).collect()
            }
            (Some(shown), None) => frame.changed_since(shown),
        };
        let parts = match parts.len() {
            0..=MOST_PARTS => parts,
            _ => vec![whole],
        };
        let announced = self.announcements();
        if parts.is_empty() && announced.is_empty() {
            return;
        }
        self.send_map();
        self.begin_update(parts.len() + announced.len());
        for (place, encoding) in announced {
            self.begin_rectangle(place, encoding);
        }
        for part in parts {
            self.append_part(&frame, part);
        }
        self.shown = Some(frame);
        self.wanted = None;
    }

    /// Sends the colours of the map, if pixels are indices and the viewer does not have the colours
    /// yet.
    fn send_map(&mut self) {
        let lacks_map = std::mem::take(&mut self.lacks_map);
        if let Some(colours) = self.format.colour_map().filter(|_| lacks_map) {
            // The message has 256 colours, from the first one on.
            self.output.extend([1, 0, 0, 0, 1, 0]);
            for colour in colours {
                let bytes = colour.map(u16::to_be_bytes);
                self.output.extend(bytes.as_flattened());
            }
        }
    }

    /// Returns rectangles that announce which of QEMU's messages are supported, if the viewer does
    /// not know yet.
    fn announcements(&mut self) -> Vec<([u16; 4], i32)> {
        let mut announced = Vec::new();
        if std::mem::take(&mut self.announces) {
            if self.encodings.extended_keys {
                announced.push(([0; 4], number::EXTENDED_KEYS));
            }
            if self.encodings.pointer_motion {
                // The column is 1 for positions and 0 for moves. Positions are moves from now on.
                announced.push(([0; 4], number::POINTER_MOTION));
                self.places_are_moves = true;
            }
        }
        announced
    }

    fn begin_update(&mut self, rectangles: usize) {
        self.output.extend([0, 0]);
        self.output.extend((rectangles as u16).to_be_bytes());
    }

    fn begin_rectangle(&mut self, place: [u16; 4], encoding: i32) {
        let place = place.map(u16::to_be_bytes);
        self.output.extend(place.as_flattened());
        self.output.extend(encoding.to_be_bytes());
    }

    fn append_part(&mut self, frame: &Frame, part: Rectangle) {
        let place = [part.x, part.y, part.width, part.height];
        if self.encodings.zrle {
            self.begin_rectangle(place, number::ZRLE);
            (self.zrle).append(frame, part, &self.format, &mut self.output);
            return;
        }
        self.begin_rectangle(place, number::RAW);
        for colour in frame.pixels(part) {
            self.output.extend(self.format.pixel(colour).bytes());
        }
    }
}

/// The maximum number of rectangles in an update. If there are more, the whole screen is sent
/// instead.
const MOST_PARTS: usize = 4096;

/// The result of the security handshake.
const OK: [u8; 4] = [0, 0, 0, 0];
const FAILED: [u8; 4] = [0, 0, 0, 1];

const fn greeting_bytes() -> usize {
    Version::GREETING.len()
}

/// Returns the smallest rectangle that contains both.
fn both(one: Rectangle, other: Rectangle) -> Rectangle {
    let end = |at: u16, length: u16| at.saturating_add(length);
    let (x, y) = (one.x.min(other.x), one.y.min(other.y));
    let right = end(one.x, one.width).max(end(other.x, other.width));
    let bottom = end(one.y, one.height).max(end(other.y, other.height));
    Rectangle {
        x,
        y,
        width: right - x,
        height: bottom - y,
    }
}
