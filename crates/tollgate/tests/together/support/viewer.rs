//! A VNC viewer that supports only version 3.8 and raw pixels.

use super::PATIENCE;
use super::picture::Picture;
use std::io::{Read, Write};

/// The connection of a viewer.
pub trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

/// A viewer that the server has accepted.
pub struct Viewer {
    connection: Box<dyn Connection>,
    pub picture: Picture,
}

impl Viewer {
    /// Greets the server, and sends a password if the server wants one.
    #[track_caller]
    pub fn begin(connection: impl Connection + 'static, password: Option<&[u8]>) -> Self {
        let mut connection: Box<dyn Connection> = Box::new(connection);
        let result = let_in(&mut *connection, password);
        assert_eq!(result, [0, 0, 0, 0], "let in");
        // Other viewers may stay connected.
        connection.write_all(&[1]).unwrap();
        let introduction: [u8; 24] = take(&mut *connection);
        let number =
            |at: usize| usize::from(introduction[at]) << 8 | usize::from(introduction[at + 1]);
        let (width, height) = (number(0), number(2));
        let mut name = vec![0; number(22)];
        connection.read_exact(&mut name).unwrap();
        let mut viewer = Self {
            connection,
            picture: Picture::black(width, height),
        };
        // The encodings are raw pixels and changes of size.
        viewer.say(&[2, 0, 0, 2, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x21]);
        viewer
    }

    /// Sends a message.
    pub fn say(&mut self, message: &[u8]) {
        self.connection.write_all(message).unwrap();
    }

    /// Presses and releases a key.
    pub fn key(&mut self, keysym: u16) {
        let [high, low] = keysym.to_be_bytes();
        self.say(&[4, 1, 0, 0, 0, 0, high, low, 4, 0, 0, 0, 0, 0, high, low]);
    }

    /// Requests the changes and waits for them.
    pub fn look(&mut self) {
        self.say(&[3, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        let [kind, _, high, low] = take(&mut *self.connection);
        assert_eq!(kind, 0, "an update");
        for _ in 0..u16::from_be_bytes([high, low]) {
            self.read_rectangle();
        }
    }

    fn read_rectangle(&mut self) {
        let header: [u8; 12] = take(&mut *self.connection);
        let number = |at: usize| usize::from(header[at]) << 8 | usize::from(header[at + 1]);
        let [x, y, width, height] = [0, 2, 4, 6].map(number);
        match header[8..] {
            [0, 0, 0, 0] => {
                let mut bytes = vec![0; 4 * width * height];
                self.connection.read_exact(&mut bytes).unwrap();
                for (at, pixel) in bytes.chunks(4).enumerate() {
                    let colour = [pixel[2], pixel[1], pixel[0]];
                    self.picture.set(x + at % width, y + at / width, colour);
                }
            }
            [0xff, 0xff, 0xff, 0x21] => self.picture = Picture::black(width, height),
            _ => panic!("an encoding that was not asked for: {header:?}"),
        }
    }

    /// Requests changes until the picture is as wanted.
    #[track_caller]
    pub fn look_until(&mut self, what: &str, is_wanted: impl Fn(&Picture) -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        while !is_wanted(&self.picture) {
            assert!(std::time::Instant::now() < end, "{what} does not come");
            self.look();
        }
    }
}

/// Exchanges the greeting and the password; returns the result.
pub fn let_in(connection: &mut dyn Connection, password: Option<&[u8]>) -> [u8; 4] {
    assert_eq!(&take::<12>(connection), b"RFB 003.008\n");
    connection.write_all(b"RFB 003.008\n").unwrap();
    let [count, kind] = take(connection);
    assert_eq!(count, 1);
    connection.write_all(&[kind]).unwrap();
    match (kind, password) {
        (1, None) => {}
        (2, Some(password)) => {
            let challenge = take(connection);
            let password = tollgate_rfb::Password::new(password).unwrap();
            connection.write_all(&password.answer(challenge)).unwrap();
        }
        other => panic!("security: {other:?}"),
    }
    take(connection)
}

fn take<const COUNT: usize>(connection: &mut dyn Connection) -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    connection.read_exact(&mut bytes).unwrap();
    bytes
}
