//! The name of a machine, which is also the beginning of its files' names.

use std::fmt;
use std::str::FromStr;

/// The longest name, so that a socket's path has room for it.
const MOST_BYTES: usize = 48;

/// A name of a machine: letters, digits, '.', '_' and '-', and not a number alone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name(String);

impl Name {
    /// The name of a machine that has no other: the number of its process.
    pub fn of_process(pid: u32) -> Self {
        Self(pid.to_string())
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let begins_well = text.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !begins_well || !text.bytes().all(is_plain) || text.len() > MOST_BYTES {
            return Err(format!(
                "a name has at most {MOST_BYTES} letters, digits, '.', '_' and '-', and begins \
                 with a letter or digit"
            ));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("a number names the machine of the process with this number".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words() {
        for name in ["a", "web-1", "x.y_z", "1a"] {
            assert_eq!(name.parse::<Name>().unwrap().to_string(), name);
        }
        let long = "a".repeat(49);
        for name in ["", "12", "-a", ".a", "a/b", "a b", "ä", &long] {
            assert!(name.parse::<Name>().is_err(), "{name}");
        }
    }
}
