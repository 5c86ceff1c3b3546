//! Lists of keys and values: `file=disk.img,format=raw`, or the same as a JSON object.
//!
//! A doubled comma is one comma of a value. Some lists may begin with a value whose key is implied:
//! `-device virtio-rng-pci` is `driver=virtio-rng-pci`. A word without a value is a switch: `server`
//! is `server=on`, and `nowait` is `wait=off`.

use crate::numbers;
use crate::refusal::Refusal;
use serde_json::Value;

/// The keys and values of one option, in their order. Keys that were read are marked, so that what
/// is left can be refused.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyValues {
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    key: String,
    value: String,
    is_read: bool,
}

/// Splits a list at its commas. A doubled comma is one comma of a part.
pub fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character != ',' {
            parts.last_mut().expect("never empty").push(character);
        } else if characters.next_if_eq(&',').is_some() {
            parts.last_mut().expect("never empty").push(',');
        } else {
            parts.push(String::new());
        }
    }
    parts
}

impl KeyValues {
    /// Reads a list. `implied` is the key of a first part without one.
    ///
    /// # Errors
    /// A JSON object is malformed, or a part is empty.
    pub fn parse(text: &str, implied: Option<&str>) -> Result<Self, Refusal> {
        if text.trim_start().starts_with('{') {
            return Self::from_json(text);
        }
        let mut list = Self::default();
        let parts = split(text);
        let count = parts.len();
        for (index, part) in parts.into_iter().enumerate() {
            match part.split_once('=') {
                Some((key, value)) if !key.is_empty() => list.push(key, value),
                Some(_) => return Err(format!("'{part}' has no key").into()),
                None => match implied.filter(|_| index == 0) {
                    Some(key) => list.push(key, &part),
                    // A comma at the end is accepted, as QEMU does.
                    None if part.is_empty() && index + 1 == count => {}
                    None if part.is_empty() => return Err("an empty parameter".into()),
                    None => match part.strip_prefix("no") {
                        Some(key @ ("wait" | "delay")) => list.push(key, "off"),
                        _ => list.push(&part, "on"),
                    },
                },
            }
        }
        Ok(list)
    }

    fn from_json(text: &str) -> Result<Self, Refusal> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Refusal(format!("JSON parse error, {error}")))?;
        let mut list = Self::default();
        list.flatten("", &value)?;
        Ok(list)
    }

    /// Adds a JSON value under dotted keys.
    fn flatten(&mut self, key: &str, value: &Value) -> Result<(), Refusal> {
        let joined = |inner: &str| match key {
            "" => inner.to_owned(),
            key => format!("{key}.{inner}"),
        };
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.flatten(&joined(name), value)?;
                }
            }
            Value::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    self.flatten(&joined(&index.to_string()), value)?;
                }
            }
            Value::String(text) => self.push(key, text),
            Value::Bool(true) => self.push(key, "on"),
            Value::Bool(false) => self.push(key, "off"),
            Value::Number(number) => self.push(key, &number.to_string()),
            Value::Null => return Err(format!("Parameter '{key}' is null").into()),
        }
        Ok(())
    }

    /// Adds a pair.
    pub fn push(&mut self, key: &str, value: &str) {
        self.entries.push(Entry {
            key: key.to_owned(),
            value: value.to_owned(),
            is_read: false,
        });
    }

    /// Sets a key that is not there yet.
    pub fn set_default(&mut self, key: &str, value: &str) {
        if self.peek(key).is_none() {
            self.push(key, value);
        }
    }

    /// Returns the last value of a key without marking it.
    pub fn peek(&self, key: &str) -> Option<&str> {
        let mut entries = self.entries.iter().rev();
        let entry = entries.find(|entry| entry.key == key)?;
        Some(&entry.value)
    }

    /// Takes the last value of a key.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.all(key).pop()
    }

    /// Takes all values of a key, in their order.
    pub fn all(&mut self, key: &str) -> Vec<String> {
        let mut values = Vec::new();
        for entry in self.entries.iter_mut().filter(|entry| entry.key == key) {
            entry.is_read = true;
            values.push(entry.value.clone());
        }
        values
    }

    /// Takes a switch.
    ///
    /// # Errors
    /// The value is neither on nor off.
    pub fn switch(&mut self, key: &str) -> Result<Option<bool>, Refusal> {
        let value = self.take(key);
        value.map(|value| numbers::switch(key, &value)).transpose()
    }

    /// Takes a number.
    ///
    /// # Errors
    /// The value is no number.
    pub fn number(&mut self, key: &str) -> Result<Option<u64>, Refusal> {
        let value = self.take(key);
        value.map(|value| numbers::number(key, &value)).transpose()
    }

    /// Returns a number without marking it.
    ///
    /// # Errors
    /// The value is no number.
    pub fn number_of(&self, key: &str) -> Result<Option<u64>, Refusal> {
        let value = self.peek(key);
        value.map(|value| numbers::number(key, value)).transpose()
    }

    /// Takes a value that must be there.
    ///
    /// # Errors
    /// It is missing.
    pub fn required(&mut self, key: &str) -> Result<String, Refusal> {
        self.take(key)
            .ok_or_else(|| format!("Parameter '{key}' is missing").into())
    }

    /// Marks keys that make no difference as read.
    pub fn ignore(&mut self, keys: &[&str]) {
        for entry in &mut self.entries {
            entry.is_read |= keys.contains(&&*entry.key);
        }
    }

    /// Marks all keys that `accepts` as read.
    pub fn ignore_where(&mut self, accepts: impl Fn(&str, &str) -> bool) {
        for entry in &mut self.entries {
            entry.is_read |= accepts(&entry.key, &entry.value);
        }
    }

    /// Returns the keys and values that were not read.
    pub fn rest(&self) -> impl Iterator<Item = (&str, &str)> {
        let rest = self.entries.iter().filter(|entry| !entry.is_read);
        rest.map(|entry| (&*entry.key, &*entry.value))
    }

    /// Refuses what was not read.
    ///
    /// # Errors
    /// The first such key.
    pub fn end(&self) -> Result<(), Refusal> {
        match self.rest().next() {
            Some((key, _)) => Err(format!("Parameter '{key}' is unknown here").into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_an_implied_key_switches_and_doubled_commas() {
        let mut list =
            KeyValues::parse("socket,id=a,path=x,,y,server,nowait", Some("backend")).unwrap();
        assert_eq!(list.take("backend").as_deref(), Some("socket"));
        assert_eq!(list.take("path").as_deref(), Some("x,y"));
        assert_eq!(list.switch("server"), Ok(Some(true)));
        assert_eq!(list.switch("wait"), Ok(Some(false)));
        assert_eq!(list.end().unwrap_err().0, "Parameter 'id' is unknown here");
        assert_eq!(list.take("id").as_deref(), Some("a"));
        assert_eq!(list.end(), Ok(()));
    }

    #[test]
    fn json_becomes_dotted_keys() {
        let text = r#"{"driver": "qcow2", "file": {"driver": "file", "filename": "a"},
                       "read-only": true, "n": 3}"#;
        let mut list = KeyValues::parse(text, Some("driver")).unwrap();
        assert_eq!(list.take("file.filename").as_deref(), Some("a"));
        assert_eq!(list.switch("read-only"), Ok(Some(true)));
        assert_eq!(list.number("n"), Ok(Some(3)));
        assert!(KeyValues::parse("{\"a\":", None).is_err());
    }

    #[test]
    fn the_last_value_of_a_key_counts() {
        let mut list = KeyValues::parse("a=1,a=2,", None).unwrap();
        assert_eq!(list.all("a"), ["1", "2"]);
        assert_eq!(list.take("a").as_deref(), Some("2"));
        assert!(KeyValues::parse("a=1,,=2", None).is_ok());
        assert!(KeyValues::parse("=2", None).is_err());
    }
}
