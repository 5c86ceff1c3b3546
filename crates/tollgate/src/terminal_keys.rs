//! The keys that Tollgate takes from an interactive terminal for itself: Ctrl-A and one more.

/// The code of Ctrl-A, which begins a sequence.
const CTRL_A: u8 = 0x01;

/// A piece of what was typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Typed {
    /// Bytes for the guest.
    Input(Vec<u8>),
    /// The user asks for the end of the virtual machine.
    Quit,
    /// The user asks for a pause, or the end of one.
    TogglePause,
    /// The user asks for the list of keys.
    Help,
    /// Ctrl-Alt-Delete is pressed on the guest's keyboard.
    CtrlAltDelete,
}

/// Splits typed bytes into input and Tollgate's own keys. A sequence may arrive in pieces.
#[derive(Clone, Debug, Default)]
pub struct KeyFilter {
    after_ctrl_a: bool,
}

impl KeyFilter {
    /// Takes `bytes` and returns what they mean, in order. An unknown key that follows Ctrl-A is
    /// dropped together with it, as in QEMU.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Typed> {
        let mut typed = Vec::new();
        let mut input = Vec::new();
        for &byte in bytes {
            if !self.after_ctrl_a {
                if byte == CTRL_A {
                    self.after_ctrl_a = true;
                } else {
                    input.push(byte);
                }
                continue;
            }
            self.after_ctrl_a = false;
            let key = match byte {
                CTRL_A | b'a' => {
                    input.push(CTRL_A);
                    continue;
                }
                b'x' => Typed::Quit,
                b'p' => Typed::TogglePause,
                b'h' | b'?' => Typed::Help,
                b'd' => Typed::CtrlAltDelete,
                _ => continue,
            };
            if !input.is_empty() {
                typed.push(Typed::Input(std::mem::take(&mut input)));
            }
            typed.push(key);
        }
        if !input.is_empty() {
            typed.push(Typed::Input(input));
        }
        typed
    }
}

/// The section of help about keys, which Ctrl-A h shows too.
pub fn help() -> &'static str {
    "\
Keys (when standard input is a terminal, and the serial port is stdio or the display text):
  Ctrl-A x       quit
  Ctrl-A p       pause, and go on
  Ctrl-A h       this help
  Ctrl-A d       Ctrl-Alt-Delete on the guest's keyboard
  Ctrl-A Ctrl-A  send Ctrl-A to the guest (Ctrl-A a does the same)
"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(bytes: &[u8]) -> Typed {
        Typed::Input(bytes.to_vec())
    }

    #[test]
    fn ordinary_bytes_pass_unchanged() {
        let all: Vec<u8> = (0..=255).filter(|byte| *byte != CTRL_A).collect();
        assert_eq!(KeyFilter::default().take(&all), [input(&all)]);
    }

    #[test]
    fn keys_are_taken_out_in_order() {
        let typed = KeyFilter::default().take(b"ab\x01pcd\x01h\x01x");
        let expected = [
            input(b"ab"),
            Typed::TogglePause,
            input(b"cd"),
            Typed::Help,
            Typed::Quit,
        ];
        assert_eq!(typed, expected);
    }

    #[test]
    fn ctrl_a_twice_sends_one() {
        assert_eq!(
            KeyFilter::default().take(b"a\x01\x01b\x01a"),
            [input(b"a\x01b\x01")]
        );
    }

    #[test]
    fn a_sequence_may_arrive_in_pieces() {
        let mut filter = KeyFilter::default();
        assert_eq!(filter.take(b"\x01"), []);
        assert_eq!(filter.take(b"x"), [Typed::Quit]);
    }

    #[test]
    fn an_unknown_key_after_ctrl_a_is_dropped() {
        assert_eq!(KeyFilter::default().take(b"a\x01zb"), [input(b"ab")]);
    }
}
