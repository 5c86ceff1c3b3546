//! One viewer, from its greeting on.

use crate::encodings::{Encodings, number};
use crate::frame::{Frame, Rectangle};
use crate::message::{self, Event, Message};
use crate::password::{CHALLENGE_BYTES, Password};
use crate::pixel_format::PixelFormat;
use crate::zrle::Zrle;
use std::fmt;
use std::sync::Arc;

/// Why a session has ended. What is left of its output is for the viewer all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The viewer does not speak the protocol.
    NoGreeting,
    /// It wants another kind of security than is offered.
    Security,
    /// It does not know the password. Whoever owns the session should let it wait for a while
    /// before it hears of that, so that not all passwords can be tried.
    Password,
    /// It has sent a message of an unknown kind.
    UnknownMessage,
    /// It wants a pixel format that is impossible.
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

/// Versions of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Version {
    V3,
    V7,
    V8,
}

impl Version {
    /// What both sides greet with.
    const GREETING: [u8; 12] = *b"RFB 003.008\n";

    /// The version of a greeting.
    fn of(greeting: &[u8; 12]) -> Option<Self> {
        let number = |digits: &[u8]| {
            let text = std::str::from_utf8(digits).ok()?;
            let is_number = digits.iter().all(u8::is_ascii_digit);
            text.parse::<u16>().ok().filter(|_| is_number)
        };
        let fits = greeting.starts_with(b"RFB ") && greeting[7] == b'.' && greeting[11] == b'\n';
        let (major, minor) = (number(&greeting[4..7])?, number(&greeting[8..11])?);
        // Others are to be taken for 3.3 (RFC 6143, 7.1.1).
        let version = match (major, minor) {
            (3, 7) => Self::V7,
            (3, 8..) | (4.., _) => Self::V8,
            _ => Self::V3,
        };
        fits.then_some(version)
    }
}

/// Kinds of security (RFC 6143, 7.2).
mod security {
    pub const NONE: u8 = 1;
    pub const PASSWORD: u8 = 2;
}

/// What is expected of the viewer next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Greeting,
    /// Which kind of security it chooses.
    Security,
    /// The answer to the challenge.
    Answer,
    /// Whether it shares the screen with others.
    Sharing,
    Message,
    /// So many bytes of a text that nobody wants.
    Text(u32),
    /// The session has ended.
    Nothing,
}

/// What the viewer wants to be told of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    /// This, whether it has changed or not.
    anyway: Option<Rectangle>,
}

/// A viewer.
pub struct Session {
    expected: Expected,
    version: Version,
    password: Option<Password>,
    challenge: [u8; CHALLENGE_BYTES],
    name: String,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of the output that are with the viewer.
    written: usize,
    /// The size that the viewer knows.
    size: (u16, u16),
    format: PixelFormat,
    encodings: Encodings,
    /// The viewer was told that QEMU's messages are understood.
    announces: bool,
    places_are_moves: bool,
    /// The viewer does not know the colours of its format.
    lacks_map: bool,
    wanted: Option<Wanted>,
    /// What it shows, as far as it was sent.
    shown: Option<Arc<Frame>>,
    zrle: Zrle,
}

impl Session {
    /// A viewer that has just come. With a password it must answer the challenge, which must be
    /// random and new. `size` is that of the screen now, `name` what its window is called.
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

    /// Bytes for the viewer.
    pub fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// So many bytes of the output were sent.
    pub fn sent(&mut self, count: usize) {
        self.written = (self.written + count).min(self.output.len());
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
            // What a large picture needed.
            self.output.shrink_to(64 << 10);
        }
    }

    /// Whether the viewer has been let in: it has answered the challenge, if it had to.
    pub fn is_let_in(&self) -> bool {
        matches!(
            self.expected,
            Expected::Sharing | Expected::Message | Expected::Text(_)
        )
    }

    /// Takes bytes from the viewer; what it does is added to `events`.
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

    /// A beginning that no greeting has is none: no need to wait for the rest.
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
        // The oldest version has no choice.
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

    /// The reason of a failure, which only the latest version has.
    fn say_why(&mut self, why: &Refusal) {
        if self.version == Version::V8 {
            let text = why.to_string();
            self.output.extend((text.len() as u32).to_be_bytes());
            self.output.extend(text.bytes());
        }
    }

    /// The screen's size, how pixels come, its name.
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
                // What it shows is in the old one.
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

    /// Whether the viewer waits for news of the screen, and has taken all that was sent before.
    pub fn wants_update(&self) -> bool {
        self.wanted.is_some() && self.output.is_empty()
    }

    /// Sends the viewer what it does not know of the screen as it is now, if it waits for that.
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
            // It cannot show another size than it was told first.
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

    /// The colours that pixels name, if they do and the viewer does not know them.
    fn send_map(&mut self) {
        let lacks_map = std::mem::take(&mut self.lacks_map);
        if let Some(colours) = self.format.colour_map().filter(|_| lacks_map) {
            // From the first one on, 256.
            self.output.extend([1, 0, 0, 0, 1, 0]);
            for colour in colours {
                let bytes = colour.map(u16::to_be_bytes);
                self.output.extend(bytes.as_flattened());
            }
        }
    }

    /// Rectangles that say which of QEMU's messages are understood, if the viewer does not know.
    fn announcements(&mut self) -> Vec<([u16; 4], i32)> {
        let mut announced = Vec::new();
        if std::mem::take(&mut self.announces) {
            if self.encodings.extended_keys {
                announced.push(([0; 4], number::EXTENDED_KEYS));
            }
            if self.encodings.pointer_motion {
                // A column of 0: places are moves from now on.
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

/// Rectangles of an update at most; more are sent as one, which is all of the screen.
const MOST_PARTS: usize = 4096;

/// The result of security.
const OK: [u8; 4] = [0, 0, 0, 0];
const FAILED: [u8; 4] = [0, 0, 0, 1];

const fn greeting_bytes() -> usize {
    Version::GREETING.len()
}

/// The smallest rectangle with both in it.
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
