//! The keys of a terminal that several users share: the escape character, and one more.

/// A piece of what was typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Typed {
    /// Bytes for the user that has the focus.
    Input(Vec<u8>),
    /// The end of the machine is asked for.
    Quit,
    /// The next user gets the focus.
    Switch,
    /// The list of keys is asked for.
    Help,
}

/// Splits typed bytes into input and keys. A sequence may arrive in pieces.
#[derive(Clone, Debug)]
pub struct Keys {
    escape: u8,
    is_after_escape: bool,
}

impl Keys {
    /// Keys that follow this character.
    pub fn new(escape: u8) -> Self {
        Self {
            escape,
            is_after_escape: false,
        }
    }

    /// Takes bytes and returns what they mean, in order. An unknown key after the escape character
    /// is dropped together with it.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Typed> {
        let mut typed = Vec::new();
        let mut input = Vec::new();
        for &byte in bytes {
            if !self.is_after_escape {
                match byte == self.escape {
                    true => self.is_after_escape = true,
                    false => input.push(byte),
                }
                continue;
            }
            self.is_after_escape = false;
            let key = match byte {
                byte if byte == self.escape => {
                    input.push(byte);
                    continue;
                }
                b'x' => Typed::Quit,
                b'c' => Typed::Switch,
                b'h' | b'?' => Typed::Help,
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

    /// The list of keys.
    pub fn help(&self) -> String {
        let name = match self.escape {
            0 => "C-@".to_owned(),
            code @ 1..=26 => format!("C-{}", char::from(code + 96)),
            code => format!("0x{code:02x}"),
        };
        format!(
            "\r\n{name} h    print this help\r\n{name} x    exit\r\n\
             {name} c    switch between console and monitor\r\n{name} {name}  sends {name}\r\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_escape_character() {
        let mut keys = Keys::new(1);
        let input = |bytes: &[u8]| Typed::Input(bytes.to_vec());
        let typed = keys.take(b"ab\x01cd\x01\x01\x01zq\x01");
        assert_eq!(typed, [input(b"ab"), Typed::Switch, input(b"d\x01q")]);
        assert_eq!(keys.take(b"x"), [Typed::Quit]);
        assert_eq!(
            Keys::new(20).take(b"\x01x\x14h"),
            [input(b"\x01x"), Typed::Help]
        );
        assert!(Keys::new(20).help().contains("C-t x"));
    }
}
