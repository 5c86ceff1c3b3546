//! The server's side of the remote framebuffer protocol (RFC 6143), which VNC viewers speak:
//! versions 3.3, 3.7 and 3.8, with VNC's password or without.
//!
//! A [`Session`] is one viewer. It knows no sockets and no time: bytes from the viewer go in, bytes
//! for it and [`Event`]s come out, and whoever owns it says when there is a new [`Frame`].
//!
//! ```text
//!   viewer                    session                        owner
//!   bytes     --receive-->    handshake, then messages  -->  keys, moves of the pointer
//!   bytes     <--output---    a rectangle for each      <--update--  the screen as it is now
//!                             part that has changed
//! ```
//!
//! What a viewer sends is hostile until it has given the password, and after that too. It makes a
//! session take some kilobytes of memory, and for its answers as much as one picture; a session
//! that breaks the protocol ends with a [`Refusal`].
//!
//! Beside RFC 6143's own the pseudo-encodings of QEMU for keys by their place and for moves
//! relative to the pointer are known, as the community's list of the protocol describes them.

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
