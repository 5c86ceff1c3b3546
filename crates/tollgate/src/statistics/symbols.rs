//! `--symbols FILE[@0xOFFSET][,space=CR3]`: reads names for guest addresses from files.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use tollgate_exits::blame::Place;
use tollgate_exits::snapshot::SymbolAt;
use tollgate_symbols::Symbols;

use crate::failure::Failure;
use crate::files;

/// The maximum size of a symbol file in bytes. A vmlinux with all debugging information is smaller.
const LIMIT: u64 = 1 << 30;

/// A symbol file as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolSource {
    path: PathBuf,
    /// The distance by which the guest's addresses are higher than the file's, if it was given.
    displacement: Option<u64>,
    /// The address space that the file applies to; `None` for all.
    space: Option<u64>,
}

impl SymbolSource {
    /// Parses `FILE`, which `@0xOFFSET` and `,space=CR3` may follow.
    ///
    /// # Errors
    ///
    /// The offset or the space is not a number.
    pub fn parse(text: OsString) -> Result<Self, String> {
        // Statistics show spaces without 0x.
        let (rest, space) = number_behind(text.as_bytes(), b",space=").map_err(|()| {
            "expected ,space= and up to 16 hexadecimal digits, as shown".to_owned()
        })?;
        let (path, displacement) = number_behind(rest, b"@0x")
            .map_err(|()| "expected FILE@0x and up to 16 hexadecimal digits".to_owned())?;
        Ok(Self {
            path: OsString::from_vec(path.to_vec()).into(),
            displacement,
            space,
        })
    }
}

/// The text before the last `mark`, and the hexadecimal number after it.
fn number_behind<'a>(text: &'a [u8], mark: &[u8]) -> Result<(&'a [u8], Option<u64>), ()> {
    let Some(at) = text.windows(mark.len()).rposition(|part| part == mark) else {
        return Ok((text, None));
    };
    let digits = String::from_utf8_lossy(&text[at + mark.len()..]);
    let digits = digits.strip_prefix("0x").unwrap_or(&digits);
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(());
    }
    let number = u64::from_str_radix(digits, 16).map_err(|_| ())?;
    Ok((&text[..at], Some(number)))
}

/// A symbol file whose content was read.
struct SymbolFile {
    symbols: Symbols,
    displacement: Option<u64>,
    space: Option<u64>,
}

/// The symbol files of a run. Earlier ones take precedence.
#[derive(Default)]
pub struct SymbolFiles(Vec<SymbolFile>);

impl SymbolFiles {
    /// The empty list, with which nothing has a name.
    pub const NONE: Self = Self(Vec::new());

    /// Whether there are no symbol files.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the files that `sources` name.
    ///
    /// # Errors
    ///
    /// One line says which file cannot be read or parsed.
    pub fn read(sources: &[SymbolSource]) -> Result<Self, Failure> {
        let read = |source: &SymbolSource| {
            let content = files::read(&source.path, "--symbols", LIMIT)?;
            let symbols = Symbols::parse(&content).map_err(|error| {
                Failure::usage(format!("--symbols: '{}': {error}", source.path.display()))
            })?;
            Ok(SymbolFile {
                symbols,
                displacement: source.displacement,
                space: source.space,
            })
        };
        sources.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The names for a guest with this SYSENTER_EIP or LSTAR.
    pub fn names(&self, system_call_entry: u64) -> Names<'_> {
        let names = self.0.iter().map(|file| {
            let displacement = file
                .displacement
                .unwrap_or_else(|| file.symbols.displacement(system_call_entry));
            (file, displacement)
        });
        Names(names.collect())
    }
}

impl SymbolFiles {
    /// [`Self::names`] without the names of a kernel whose address is not known yet.
    pub fn names_once_known(&self, system_call_entry: u64) -> Names<'_> {
        let mut names = self.names(system_call_entry);
        names.0.retain(|(file, _)| {
            system_call_entry != 0 || file.displacement.is_some() || !file.symbols.can_be_found()
        });
        names
    }
}

/// Names for a guest's addresses.
pub struct Names<'a>(Vec<(&'a SymbolFile, u64)>);

impl<'a> Names<'a> {
    /// The symbol of an instruction.
    pub fn at(&self, place: Place) -> Option<SymbolAt<'a>> {
        self.find(place.linear, |space| space == place.space)
    }

    /// The symbol at a linear address, in whatever space it is.
    pub fn in_any_space(&self, linear: u64) -> Option<SymbolAt<'a>> {
        self.find(linear, |_| true)
    }

    fn find(&self, linear: u64, is_meant: impl Fn(u64) -> bool) -> Option<SymbolAt<'a>> {
        self.0.iter().find_map(|&(file, displacement)| {
            if !file.space.is_none_or(&is_meant) {
                return None;
            }
            let (name, distance) = file.symbols.at_moved(linear, displacement)?;
            Some(SymbolAt { name, distance })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(displacement: Option<u64>) -> SymbolFiles {
        let text = b"c1000000 T _stext\nc1002000 T entry_SYSENTER_32\n";
        SymbolFiles(vec![SymbolFile {
            symbols: Symbols::parse(text).unwrap(),
            displacement,
            space: None,
        }])
    }

    fn place(linear: u64, space: u64) -> Place {
        Place {
            linear,
            space,
            is_kernel: false,
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
        let source = parse("a@0x1000,space=0x2000").unwrap();
        assert_eq!(source.path, PathBuf::from("a"));
        assert_eq!(
            (source.displacement, source.space),
            (Some(0x1000), Some(0x2000))
        );
        assert_eq!(parse("a,space=2000").unwrap().space, Some(0x2000));
        for wrong in ["a,space=0xcr3", "a,space=", "a,space=+1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_kernel_that_moved_is_found_by_its_system_call_entry() {
        let (file, told) = (file(None), file(Some(0x100_0000)));
        let name = |file: &SymbolFiles, entry, address| {
            let at = file.names(entry).at(place(address, 0))?;
            Some((at.name.to_owned(), at.distance))
        };
        let start = |distance| Some(("_stext".to_owned(), distance));
        assert_eq!(name(&file, 0, 0xc100_0010), start(0x10));
        assert_eq!(name(&file, 0xc900_2000, 0xc900_0010), start(0x10));
        assert_eq!(name(&file, 0xc900_2000, 0xc100_0010), None);
        assert_eq!(name(&told, 0xc900_2000, 0xc200_0010), start(0x10));
    }

    #[test]
    fn programs_are_named_beside_the_kernel_and_by_their_address_space() {
        let SymbolFiles(mut files) = file(None);
        for (name, space) in [("one", Some(0x1000)), ("other", None)] {
            let text = format!("8048000 T {name}\n");
            files.push(SymbolFile {
                symbols: Symbols::parse(text.as_bytes()).unwrap(),
                displacement: None,
                space,
            });
        }
        let files = SymbolFiles(files);
        let names = files.names(0);
        let name = |linear, space| names.at(place(linear, space)).map(|at| at.name);
        assert_eq!(name(0xc100_0000, 0x1000), Some("_stext"));
        assert_eq!(name(0x804_8001, 0x1000), Some("one"));
        assert_eq!(name(0x804_8001, 0x2000), Some("other"));
        assert_eq!(names.in_any_space(0x804_8001).unwrap().name, "one");
    }
}
