//! `--fw-cfg`: parses the files that the guest reads through QEMU's fw_cfg device.

use std::path::{Path, PathBuf};

use tollgate_machine::comma_list;
use tollgate_machine::devices::fw_cfg::FwCfgFile;

use crate::failure::Failure;
use crate::files;

/// The maximum size of a file in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// One `--fw-cfg`, as the user has typed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FwCfgArgument {
    name: String,
    content: Content,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    File(PathBuf),
    Text(String),
}

/// Parses `[name=]NAME,file=PATH` and `[name=]NAME,string=TEXT`. A doubled comma is one that
/// belongs to the text.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<FwCfgArgument, String> {
    let wrong = |why: &str| {
        format!(
            "{why}; expected NAME,string=TEXT or NAME,file=PATH, such as opt/org.example/key,string=1"
        )
    };
    let mut name = None;
    let mut content = None;
    for (index, part) in comma_list::split(text).into_iter().enumerate() {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key, value),
            None if index == 0 => ("name", part.as_str()),
            None => return Err(wrong(&format!("'{part}' has no value"))),
        };
        let is_new = match key {
            "name" => name.replace(value.to_owned()).is_none(),
            "file" => content.replace(Content::File(value.into())).is_none(),
            "string" => content.replace(Content::Text(value.into())).is_none(),
            _ => return Err(wrong(&format!("unknown key '{key}'"))),
        };
        if !is_new {
            return Err(wrong("a file has one name and one content"));
        }
    }
    let name = name.ok_or_else(|| wrong("it has no name"))?;
    let content = content.ok_or_else(|| wrong("it has no content"))?;
    Ok(FwCfgArgument { name, content })
}

/// Reads the files that the guest will find.
///
/// # Errors
///
/// One line says which file cannot be read.
pub fn read(arguments: &[FwCfgArgument]) -> Result<Vec<FwCfgFile>, Failure> {
    let content = |content: &Content| match content {
        Content::Text(text) => Ok(text.clone().into_bytes()),
        Content::File(path) => files::read(Path::new(path), "--fw-cfg", MOST_BYTES),
    };
    arguments
        .iter()
        .map(|argument| {
            Ok(FwCfgFile {
                name: argument.name.clone(),
                content: content(&argument.content)?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, text: &str) -> FwCfgArgument {
        FwCfgArgument {
            name: name.into(),
            content: Content::Text(text.into()),
        }
    }

    #[test]
    fn a_file_is_written_as_for_qemu() {
        assert_eq!(parse("opt/a,string=b=1"), Ok(text("opt/a", "b=1")));
        assert_eq!(parse("name=opt/a,string=b,,c"), Ok(text("opt/a", "b,c")));
        assert_eq!(parse("string=,name=opt/a"), Ok(text("opt/a", "")));
        let file = parse("opt/a,file=/dev/null").unwrap();
        assert_eq!(file.content, Content::File("/dev/null".into()));
        assert!(read(&[file]).unwrap()[0].content.is_empty());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (argument, why) in [
            ("", "no name"),
            ("opt/a", "no content"),
            ("string=x", "no name"),
            ("opt/a,x", "'x' has no value"),
            ("opt/a,size=1", "unknown key 'size'"),
            ("opt/a,string=1,file=b", "one content"),
        ] {
            let refusal = parse(argument).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
            assert!(refusal.contains("NAME,string=TEXT"), "{refusal}");
        }
        let missing = parse("opt/a,file=/nonexistent").unwrap();
        assert!(
            read(&[missing])
                .unwrap_err()
                .message
                .contains("no such file")
        );
    }
}
