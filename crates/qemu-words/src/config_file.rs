//! Files of `-readconfig`: sections in brackets, each one option, with its keys and values.
//!
//! ```text
//! [drive "disk"]              -drive id=disk,file=disk.img
//!   file = "disk.img"
//! ```

use crate::refusal::Refusal;

/// Reads a file. Returns options, each with its list of keys and values.
///
/// # Errors
/// A line that is none of a section, a pair or a comment.
pub fn read(text: &str) -> Result<Vec<(String, String)>, Refusal> {
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = || Refusal(format!("line {number}: '{line}' is not understood"));
        if let Some(section) = line.strip_prefix('[') {
            let section = section.strip_suffix(']').ok_or_else(wrong)?.trim();
            let (group, id) = match section.split_once(char::is_whitespace) {
                Some((group, id)) => (group, Some(unquoted(id.trim()).ok_or_else(wrong)?)),
                None => (section, None),
            };
            let id = id.map(|id| format!("id={}", doubled(id)));
            sections.push((group.to_owned(), id.into_iter().collect()));
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(wrong)?;
        let value = unquoted(value.trim()).ok_or_else(wrong)?;
        let (_, pairs) = sections.last_mut().ok_or_else(wrong)?;
        pairs.push(format!("{}={}", key.trim(), doubled(value)));
    }
    let joined = |(group, pairs): (String, Vec<String>)| (group, pairs.join(","));
    Ok(sections.into_iter().map(joined).collect())
}

fn unquoted(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.strip_suffix('"')
}

fn doubled(text: &str) -> String {
    text.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_an_option() {
        let text = "# a comment\n[machine]\n  type = \"pc\"\n\n[drive \"d\"]\nfile = \"a,b\"\n";
        let read = read(text).unwrap();
        let pair = |group: &str, list: &str| (group.to_owned(), list.to_owned());
        assert_eq!(
            read,
            [pair("machine", "type=pc"), pair("drive", "id=d,file=a,,b")]
        );
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        for (text, line) in [
            ("a = \"b\"", 1),
            ("[a]\nb", 2),
            ("\n[a", 2),
            ("[a]\nb = c", 2),
        ] {
            let refusal = read(text).unwrap_err().0;
            assert!(refusal.starts_with(&format!("line {line}:")), "{refusal}");
        }
    }
}
