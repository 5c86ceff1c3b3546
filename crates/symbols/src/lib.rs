//! Names for guest addresses.
//!
//! A table comes from `System.map` or a saved `/proc/kallsyms` ([`text`]) or from an ELF
//! file ([`elf`]). A kernel may run elsewhere than where it was linked (KASLR): the
//! entry point that it tells the processor in SYSENTER_EIP shows by how much
//! ([`Symbols::displacement`]).

pub mod elf;
pub mod text;

use std::fmt;

/// Farther behind the start of a symbol an address is not part of it. No function of a
/// kernel is that long, while after the last symbol anything may follow.
const REACH: u64 = 64 << 10;
/// Characters of a name that are kept; longer ones can only be made up by tools.
const NAME_LIMIT: usize = 128;
/// Guest addresses have 32 bits.
const LAST_ADDRESS: u64 = u32::MAX as u64;

/// Linux's entry points for SYSENTER, newest first.
const SYSTEM_CALL_ENTRIES: [&str; 3] = [
    "entry_SYSENTER_32",
    "ia32_sysenter_target",
    "sysenter_entry",
];

/// Why a file gives no symbols; one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolError(String);

impl fmt::Display for SymbolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl std::error::Error for SymbolError {}

/// Names by linear address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbols {
    /// In ascending order, each once.
    addresses: Vec<u64>,
    /// The names of the same positions.
    names: Vec<Box<str>>,
}

impl Symbols {
    /// Understands the content of a symbol file.
    ///
    /// # Errors
    /// [`SymbolError`]: what is wrong, with the line if the file is text.
    pub fn parse(content: &[u8]) -> Result<Self, SymbolError> {
        if content.starts_with(b"\x7fELF") {
            elf::parse(content)
        } else {
            text::parse(content)
        }
    }

    /// A table of names; of several at one address the first stays.
    fn of(mut found: Vec<(u64, String)>) -> Self {
        found.sort_by_key(|symbol| symbol.0);
        found.dedup_by_key(|symbol| symbol.0);
        let (addresses, names) = found
            .into_iter()
            .map(|(address, name)| (address, short(name)))
            .unzip();
        Self { addresses, names }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The symbol that `address` belongs to, and its distance from the symbol's start.
    pub fn at(&self, address: u64) -> Option<(&str, u64)> {
        let next = self.addresses.partition_point(|start| *start <= address);
        let index = next.checked_sub(1)?;
        let distance = address - self.addresses[index];
        (distance < REACH).then(|| (&*self.names[index], distance))
    }

    /// Where a symbol lies.
    pub fn address(&self, name: &str) -> Option<u64> {
        let index = self.names.iter().position(|known| &**known == name)?;
        Some(self.addresses[index])
    }

    /// By how much the guest's kernel lies higher than the table says, modulo 2^32, if
    /// `entry` is its SYSENTER_EIP; 0 if that cannot be told.
    pub fn displacement(&self, entry: u64) -> u64 {
        let known = SYSTEM_CALL_ENTRIES
            .iter()
            .find_map(|name| self.address(name));
        match known {
            Some(known) if entry != 0 => {
                let by = entry.wrapping_sub(known) & LAST_ADDRESS;
                // Kernels move by whole pages; anything else is another kernel.
                if by.is_multiple_of(4096) { by } else { 0 }
            }
            _ => 0,
        }
    }
}

/// At most [`NAME_LIMIT`] bytes of a name.
fn short(mut name: String) -> Box<str> {
    if name.len() > NAME_LIMIT {
        let mut end = NAME_LIMIT;
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name.truncate(end);
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols() -> Symbols {
        let text = b"c1000000 T _stext\nc1001000 t inner\nc1002000 T entry_SYSENTER_32\n";
        Symbols::parse(text).unwrap()
    }

    #[test]
    fn an_address_belongs_to_the_symbol_before_it() {
        let symbols = symbols();
        assert_eq!(symbols.at(0xc100_0fff), Some(("_stext", 0xfff)));
        assert_eq!(symbols.at(0xc100_1000), Some(("inner", 0)));
        assert_eq!(symbols.at(0xc0ff_ffff), None);
        assert_eq!(symbols.at(0xc100_2000 + REACH), None);
        assert_eq!(symbols.at(u64::MAX), None);
    }

    #[test]
    fn the_system_call_entry_shows_where_the_kernel_lies() {
        let symbols = symbols();
        assert_eq!(symbols.displacement(0xc900_2000), 0x0800_0000);
        assert_eq!(symbols.displacement(0xc000_2000), 0xff00_0000);
        assert_eq!(symbols.displacement(0xc100_2000), 0);
        assert_eq!(symbols.displacement(0), 0);
        assert_eq!(symbols.displacement(0xc900_2010), 0);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(short("é".repeat(100)).len(), NAME_LIMIT);
        assert_eq!(short(format!("a{}", "é".repeat(100))).len(), NAME_LIMIT - 1);
    }
}
