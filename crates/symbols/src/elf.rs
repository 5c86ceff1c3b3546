//! Symbol tables of ELF files, such as a vmlinux that is not stripped.

use super::{SymbolError, Symbols};
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSymbol, SymbolKind};

/// Parses an ELF file, of 32 or 64 bits.
///
/// # Errors
///
/// The file is damaged, or has no symbols.
pub fn parse(content: &[u8]) -> Result<Symbols, SymbolError> {
    const CLASS: usize = 4;
    const CLASS_64: u8 = 2;
    let found = if content.get(CLASS) == Some(&CLASS_64) {
        ElfFile::<object::elf::FileHeader64<Endianness>>::parse(content).map(|file| named(&file))
    } else {
        ElfFile::<object::elf::FileHeader32<Endianness>>::parse(content).map(|file| named(&file))
    };
    let found = found.map_err(|error| SymbolError(format!("a damaged ELF file: {error}")))?;
    if found.is_empty() {
        return Err(SymbolError(
            "this ELF file has no symbols of code (it is stripped); use System.map, or /proc/kallsyms of the guest".into(),
        ));
    }
    Ok(Symbols::of(found))
}

fn named<'data>(file: &impl Object<'data>) -> Vec<(u64, String)> {
    file.symbols()
        // Assembly code leaves most of its labels without a type.
        .filter(|symbol| matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown))
        .filter(|symbol| symbol.section_index().is_some())
        .filter(|symbol| symbol.address() != 0)
        .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?.to_owned())))
        .filter(|symbol| !symbol.1.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 32-bit ELF file with one section and the symbol `start` at 100000h.
    fn file() -> Vec<u8> {
        let mut file = vec![0; 52];
        let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
        let strings = b"\0start\0";
        file.extend(strings); // offset 52
        file.resize(60, 0);
        file.extend([0; 16]); // offset 60: the null symbol
        word(&mut file, 1); // st_name
        word(&mut file, 0x10_0000); // st_value
        word(&mut file, 0); // st_size
        file.extend([0x12, 0, 1, 0]); // STB_GLOBAL, STT_FUNC; section 1
        let sections = file.len() as u32;
        let header = |file: &mut Vec<u8>, fields: [u32; 10]| {
            for field in fields {
                word(file, field);
            }
        };
        header(&mut file, [0; 10]);
        header(&mut file, [0, 1, 6, 0x10_0000, 0, 0, 0, 0, 1, 0]); // PROGBITS
        header(&mut file, [0, 3, 0, 0, 52, 7, 0, 0, 1, 0]); // STRTAB
        header(&mut file, [0, 2, 0, 0, 60, 32, 2, 1, 4, 16]); // SYMTAB
        file[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        file[16..20].copy_from_slice(&[2, 0, 3, 0]);
        file[20] = 1;
        file[32..36].copy_from_slice(&sections.to_le_bytes());
        file[40..42].copy_from_slice(&[52, 0]);
        file[46..52].copy_from_slice(&[40, 0, 4, 0, 2, 0]);
        file
    }

    #[test]
    fn functions_are_named() {
        let symbols = parse(&file()).unwrap();
        assert_eq!(symbols.at(0x10_0004), Some(("start", 4)));
    }

    #[test]
    fn damaged_files_are_refused_or_read_without_harm() {
        let whole = file();
        for length in 4..whole.len() {
            let _ = parse(&whole[..length]);
        }
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 0xff;
            let _ = parse(&damaged);
        }
        let stripped = parse(&whole[..52]);
        assert!(stripped.is_err());
    }
}
