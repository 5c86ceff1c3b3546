//! The words of a command line as options with their values.

use crate::config_file;
use crate::key_values::KeyValues;
use crate::options::{self, Row};
use crate::refusal::Refusal;

/// One option of a command line.
#[derive(Clone, Debug)]
pub struct Given {
    /// The option as it was written, such as `-m` or `--m`.
    pub written: String,
    /// The row of the option.
    pub row: &'static Row,
    /// Its value; empty if it takes none.
    pub value: String,
}

impl Given {
    /// The option and its value, to precede an error.
    pub fn text(&self) -> String {
        match self.value.as_str() {
            "" => self.written.clone(),
            value => format!("{} {value}", self.written),
        }
    }
}

/// How files that a command line names are read.
pub trait Files {
    /// Reads a file of options.
    ///
    /// # Errors
    /// The reason, for a line that names the file.
    fn read(&self, path: &str) -> Result<String, String>;
}

/// How often files may name files.
const MOST_FILES: usize = 64;

/// Splits words into options with values. `@FILE` stands for the words in a file.
///
/// # Errors
/// A word is no option, or an option lacks its value.
pub fn parse(words: &[String], files: &dyn Files) -> Result<Vec<Given>, Refusal> {
    let words = with_files(words, files)?;
    let mut given = Vec::new();
    let mut settings = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty()) else {
            // A word alone is the image of the first disk.
            let row = options::find("hda").ok_or("hda")?;
            given.push(Given {
                written: "-hda".into(),
                row,
                value: word,
            });
            continue;
        };
        let name = name.strip_prefix('-').unwrap_or(name);
        let Some(row) = options::find(name) else {
            return Err(format!("{word}: invalid option").into());
        };
        let value = match row.takes_value {
            true => words
                .next()
                .ok_or_else(|| Refusal(format!("{word}: requires an argument")))?,
            false => String::new(),
        };
        match row.name {
            "readconfig" => given.extend(from_file(&value, files).map_err(|why| why.of(&word))?),
            "set" => settings.push(value),
            _ => given.push(Given {
                written: word,
                row,
                value,
            }),
        }
    }
    for setting in settings {
        set(&mut given, &setting).map_err(|why| why.of(&format!("-set {setting}")))?;
    }
    Ok(given)
}

/// Replaces each `@FILE` by the words of the file, one a line or several between spaces.
fn with_files(words: &[String], files: &dyn Files) -> Result<Vec<String>, Refusal> {
    let mut waiting: Vec<String> = words.iter().rev().cloned().collect();
    let (mut all, mut count) = (Vec::new(), 0);
    while let Some(word) = waiting.pop() {
        match word.strip_prefix('@').filter(|path| !path.is_empty()) {
            None => all.push(word),
            Some(_) if count == MOST_FILES => {
                return Err(format!("{word}: more than {MOST_FILES} files of options").into());
            }
            Some(path) => {
                count += 1;
                let text = files.read(path).map_err(|why| format!("{word}: {why}"))?;
                let inner = unquoted_words(&text).map_err(|why| format!("{word}: {why}"))?;
                waiting.extend(inner.into_iter().rev());
            }
        }
    }
    Ok(all)
}

/// Splits a text at white space. Quotes and backslashes protect it, as in a shell.
fn unquoted_words(text: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some('\''), _) => word.get_or_insert_default().push(character),
            (_, '\\') => {
                let next = characters.next().ok_or("a backslash at its end")?;
                word.get_or_insert_default().push(next);
            }
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '"' | '\'') => {
                word.get_or_insert_default();
                quote = Some(character);
            }
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    if quote.is_some() {
        return Err("a quotation without an end");
    }
    words.extend(word);
    Ok(words)
}

/// The options of a file of `-readconfig`.
fn from_file(path: &str, files: &dyn Files) -> Result<Vec<Given>, Refusal> {
    let text = files.read(path)?;
    let sections = config_file::read(&text).map_err(|why| why.of(path))?;
    let option = |(group, value): (String, String)| {
        let name = match group.as_str() {
            "memory" => "m",
            "smp-opts" => "smp",
            "boot-opts" => "boot",
            name => name,
        };
        let row = options::find(name).filter(|row| row.takes_value && name != "readconfig");
        let row = row.ok_or_else(|| Refusal(format!("{path}: there is no group '{group}'")))?;
        Ok(Given {
            written: format!("-{name}"),
            row,
            value,
        })
    };
    sections.into_iter().map(option).collect()
}

/// Carries out `-set GROUP.ID.KEY=VALUE`: adds the pair to the option with this identifier.
fn set(given: &mut [Given], setting: &str) -> Result<(), Refusal> {
    let wrong = || Refusal("expected GROUP.ID.KEY=VALUE".into());
    let (place, value) = setting.split_once('=').ok_or_else(wrong)?;
    let mut parts = place.splitn(3, '.');
    let (Some(group), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong());
    };
    let has_id = |given: &&mut Given| {
        let list = KeyValues::parse(&given.value, Some("driver"));
        given.row.name == group && list.is_ok_and(|list| list.peek("id") == Some(id))
    };
    let option = given.iter_mut().find(has_id);
    let option = option.ok_or_else(|| Refusal(format!("there is no {group} \"{id}\" defined")))?;
    option.value += &format!(",{key}={}", value.replace(',', ",,"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Texts;

    impl Files for Texts {
        fn read(&self, path: &str) -> Result<String, String> {
            match path {
                "args" => Ok("-m 1G\n-append 'a b'\n".into()),
                "again" => Ok("@again".into()),
                "vm.cfg" => Ok("[memory]\nsize = \"2G\"\n[device]\ndriver = \"x\"\n".into()),
                _ => Err("No such file or directory".into()),
            }
        }
    }

    fn parsed(line: &[&str]) -> Result<Vec<(&'static str, String)>, String> {
        let words: Vec<String> = line.iter().map(|&it| it.into()).collect();
        let given = parse(&words, &Texts).map_err(|refusal| refusal.0)?;
        Ok(given
            .into_iter()
            .map(|it| (it.row.name, it.value))
            .collect())
    }

    #[test]
    fn options_begin_with_one_dash_or_two() {
        let given = parsed(&["-kernel", "k", "--nographic", "disk.img"]).unwrap();
        let pair = |name, value: &str| (name, value.to_owned());
        assert_eq!(
            given,
            [
                pair("kernel", "k"),
                pair("nographic", ""),
                pair("hda", "disk.img")
            ]
        );
        assert_eq!(parsed(&["-foo"]).unwrap_err(), "-foo: invalid option");
        assert_eq!(
            parsed(&["-append"]).unwrap_err(),
            "-append: requires an argument"
        );
    }

    #[test]
    fn files_hold_words_and_sections() {
        let given = parsed(&["@args", "-readconfig", "vm.cfg"]).unwrap();
        let values: Vec<&str> = given.iter().map(|(_, value)| &**value).collect();
        assert_eq!(values, ["1G", "a b", "size=2G", "driver=x"]);
        assert!(parsed(&["@none"]).unwrap_err().contains("No such file"));
        assert!(parsed(&["@again"]).unwrap_err().contains("more than 64"));
    }

    #[test]
    fn set_adds_to_the_option_with_the_identifier() {
        let line = ["-device", "e1000,id=n", "-set", "device.n.mac=1"];
        assert_eq!(parsed(&line).unwrap()[0].1, "e1000,id=n,mac=1");
        let line = ["-device", "e1000,id=n", "-set", "device.m.mac=1"];
        assert!(parsed(&line).unwrap_err().contains("no device \"m\""));
    }
}
