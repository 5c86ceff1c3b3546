//! Names of hosts, and patterns for them.

use std::fmt;
use std::str::FromStr;

/// The maximum length of a name and of a part of it (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A name in lower case, without a dot at its end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HostName(String);

impl HostName {
    /// Makes a name of its parts, as they are in a message of a name server. Returns `None` if a part
    /// has a character that no name of a host has: a dot in a part would look like two parts.
    pub fn of_labels<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let labels: Option<Vec<&str>> = labels.map(|it| std::str::from_utf8(it).ok()).collect();
        let labels = labels?;
        if labels.iter().any(|label| label.contains('.')) {
            return None;
        }
        labels.join(".").parse().ok()
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if !name.is_ascii() {
            return Err(format!(
                "'{text}' has characters outside ASCII; write its form with xn--"
            ));
        }
        let is_label = |label: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(is_allowed)
        };
        if name.len() > MAX_NAME || !name.split('.').all(is_label) {
            return Err(format!("'{text}' is no name of a host"));
        }
        Ok(Self(name.to_ascii_lowercase()))
    }
}

/// A name, or all names that end in the same way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamePattern {
    /// Exactly this name.
    Exactly(HostName),
    /// Every name with more parts before this one, and not this name itself.
    Below(HostName),
}

impl NamePattern {
    /// Whether a name is meant.
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Exactly(own) => own == name,
            Self::Below(own) => {
                let rest = name.as_str().strip_suffix(own.as_str());
                rest.is_some_and(|rest| rest.ends_with('.'))
            }
        }
    }

    /// Whether the pattern stands for names that are not known before they are used.
    pub const fn is_suffix(&self) -> bool {
        matches!(self, Self::Below(_))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) => name.fmt(formatter),
            Self::Below(name) => write!(formatter, "*.{name}"),
        }
    }
}

impl FromStr for NamePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("*.") {
            Some(name) => Ok(Self::Below(name.parse()?)),
            None => Ok(Self::Exactly(text.parse()?)),
        }
    }
}
