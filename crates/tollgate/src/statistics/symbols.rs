//! `--symbols FILE[@OFFSET]`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use tollgate_exits::snapshot::SymbolAt;
use tollgate_symbols::Symbols;

use crate::failure::Failure;
use crate::files;

/// Most bytes of a symbol file: a vmlinux with all debugging information has less.
const LIMIT: u64 = 1 << 30;

/// A symbol file as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolSource {
    path: PathBuf,
    /// By how much the guest lies higher than the file says, if that was said.
    displacement: Option<u64>,
}

impl SymbolSource {
    /// Understands `FILE` and `FILE@0xOFFSET`.
    ///
    /// # Errors
    /// The offset is no number.
    pub fn parse(text: OsString) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let at = bytes.windows(3).rposition(|part| part == b"@0x");
        let Some(at) = at else {
            return Ok(Self {
                path: text.into(),
                displacement: None,
            });
        };
        let digits = String::from_utf8_lossy(&bytes[at + 3..]).into_owned();
        let displacement = u64::from_str_radix(&digits, 16)
            .map_err(|_| "expected FILE@0x and up to 16 hexadecimal digits".to_owned())?;
        Ok(Self {
            path: OsString::from_vec(bytes[..at].to_vec()).into(),
            displacement: Some(displacement),
        })
    }
}

/// A symbol file that was read.
pub struct SymbolFile {
    symbols: Symbols,
    displacement: Option<u64>,
}

impl SymbolFile {
    /// Reads what `source` names.
    ///
    /// # Errors
    /// One line: the file cannot be read or understood.
    pub fn read(source: &SymbolSource) -> Result<Self, Failure> {
        let content = files::read(&source.path, "--symbols", LIMIT)?;
        let symbols = Symbols::parse(&content).map_err(|error| {
            Failure::usage(format!("--symbols: '{}': {error}", source.path.display()))
        })?;
        Ok(Self {
            symbols,
            displacement: source.displacement,
        })
    }

    /// Names as they are for a guest with this SYSENTER_EIP, or LSTAR.
    pub fn names(&self, system_call_entry: u64) -> Names<'_> {
        Names {
            symbols: &self.symbols,
            displacement: self
                .displacement
                .unwrap_or_else(|| self.symbols.displacement(system_call_entry)),
        }
    }
}

/// Names for a guest's addresses.
pub struct Names<'a> {
    symbols: &'a Symbols,
    displacement: u64,
}

impl<'a> Names<'a> {
    /// The symbol at a linear address.
    pub fn at(&self, address: u64) -> Option<SymbolAt<'a>> {
        let (name, distance) = self.symbols.at_moved(address, self.displacement)?;
        Some(SymbolAt { name, distance })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(displacement: Option<u64>) -> SymbolFile {
        let text = b"c1000000 T _stext\nc1002000 T entry_SYSENTER_32\n";
        SymbolFile {
            symbols: Symbols::parse(text).unwrap(),
            displacement,
        }
    }

    #[test]
    fn an_offset_may_follow_the_file() {
        let parse = |text: &str| SymbolSource::parse(text.into());
        let source = parse("a@b").unwrap();
        assert_eq!((source.path, source.displacement), ("a@b".into(), None));
        let source = parse("a@b@0x1000000").unwrap();
        assert_eq!(source.path, PathBuf::from("a@b"));
        assert_eq!(source.displacement, Some(0x100_0000));
        assert!(parse("a@0x").is_err());
        let source = parse("a@0xffffffffc0000000").unwrap();
        assert_eq!(source.displacement, Some(0xffff_ffff_c000_0000));
        assert!(parse("a@0x1ffffffffc0000000").is_err());
    }

    #[test]
    fn a_kernel_that_moved_is_found_by_its_system_call_entry() {
        let (file, told) = (file(None), file(Some(0x100_0000)));
        let name = |file: &SymbolFile, entry, address| {
            let at = file.names(entry).at(address)?;
            Some((at.name.to_owned(), at.distance))
        };
        let start = |distance| Some(("_stext".to_owned(), distance));
        assert_eq!(name(&file, 0, 0xc100_0010), start(0x10));
        assert_eq!(name(&file, 0xc900_2000, 0xc900_0010), start(0x10));
        assert_eq!(name(&file, 0xc900_2000, 0xc100_0010), None);
        assert_eq!(name(&told, 0xc900_2000, 0xc200_0010), start(0x10));
    }
}
