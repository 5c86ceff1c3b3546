//! The server's side of the remote framebuffer protocol (RFC 6143) of VNC viewers: versions 3.3,
//! 3.7 and 3.8, with or without VNC's password.
//!
//! A [`Session`] is one viewer. It uses no sockets and no clock: bytes from the viewer go in, bytes
//! for it and [`Event`]s come out, and the owner supplies each new [`Frame`].
//!
//! ```text
//!   viewer                    session                        owner
//!   bytes     --receive-->    handshake, then messages  -->  keys, moves of the pointer
//!   bytes     <--output---    a rectangle for each      <--update--  the screen as it is now
//!                             part that has changed
//! ```
//!
//! A viewer is considered hostile, even after it has given the password. It can make a session use
//! some kilobytes of memory, and for the answers as much as one picture. A session with a viewer
//! that breaks the protocol ends with a [`Refusal`].
//!
//! In addition to the encodings of RFC 6143, QEMU's pseudo-encodings for keys by their place and
//! for relative moves of the pointer are implemented, as the community's description of the
//! protocol specifies them.

mod encodings;
pub mod frame;
mod message;
pub mod password;
mod pixel_format;
mod session;
mod zrle;

#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod viewer;

pub use frame::Frame;
pub use message::Event;
pub use password::Password;
pub use session::{Refusal, Session};
