//! The options of Telnet (RFC 854): a client is asked for single characters and eight bits, and its
//! commands are taken out of its input.

/// "Interpret as command".
const IAC: u8 = 255;
const DO: u8 = 253;
const WILL: u8 = 251;
/// The last of the commands with one more byte: WILL, WONT, DO, DONT.
const DONT: u8 = 254;
/// A subnegotiation, which ends with IAC SE.
const SB: u8 = 250;
const SE: u8 = 240;

/// What a client is greeted with: this end echoes, suppresses go-ahead and is binary.
pub const GREETING: [u8; 12] = [IAC, WILL, 1, IAC, WILL, 3, IAC, WILL, 0, IAC, DO, 0];

/// Takes commands out of input, which may arrive in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Filter {
    /// Outside of a command.
    #[default]
    Text,
    /// After IAC.
    Command,
    /// Before the last byte of a command.
    Option,
    /// In a subnegotiation.
    Negotiation,
    /// After IAC in a subnegotiation.
    NegotiationCommand,
}

impl Filter {
    /// Returns the text in `bytes`.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            *self = match (*self, byte) {
                (Self::Text, IAC) => Self::Command,
                // The end of a line is CR LF or CR NUL; binary text has no NUL of its own here.
                (Self::Text, 0) => Self::Text,
                (Self::Text, byte) => {
                    text.push(byte);
                    Self::Text
                }
                (Self::Command, IAC) => {
                    text.push(IAC);
                    Self::Text
                }
                (Self::Command, WILL..=DONT) => Self::Option,
                (Self::Command, SB) => Self::Negotiation,
                (Self::Command | Self::Option, _) => Self::Text,
                (Self::Negotiation, IAC) => Self::NegotiationCommand,
                (Self::NegotiationCommand, SE) => Self::Text,
                (Self::Negotiation | Self::NegotiationCommand, _) => Self::Negotiation,
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_out() {
        let mut filter = Filter::default();
        assert_eq!(filter.take(b"a\xff\xfb\x01b\xff\xffc\xff"), b"ab\xffc");
        assert_eq!(filter.take(b"\xfa\x18\xff\xf0d\r\0"), b"d\r");
        assert_eq!(filter.take(&GREETING), b"");
    }
}
