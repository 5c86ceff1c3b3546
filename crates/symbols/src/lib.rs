//! Symbol names for guest addresses.
//!
//! A table is read from `System.map` or a saved `/proc/kallsyms` ([`text`]), or from an ELF file
//! ([`elf`]), of 32- or 64-bit guests. A kernel may run at a different address than it was linked
//! for (KASLR): the entry point that it writes to SYSENTER_EIP or LSTAR shows by how much it was
//! moved ([`Symbols::displacement`]).

pub mod elf;
pub mod text;

use std::fmt;

/// An address farther than this after the start of a symbol does not belong to it. No function of a
/// kernel is that long, and anything may follow the last symbol.
const REACH: u64 = 64 << 10;
/// The number of bytes of a name that are kept; only generated names are longer.
const NAME_LIMIT: usize = 128;
/// The last address of 32-bit guests.
const LAST_OF_32_BITS: u64 = u32::MAX as u64;
/// The start of the upper half of the canonical addresses, where 64-bit kernels lie.
const UPPER_HALF: u64 = 1 << 63;

/// Linux's entry points for SYSENTER in 32-bit kernels, newest first.
const NARROW_ENTRIES: [&str; 3] = [
    "entry_SYSENTER_32",
    "ia32_sysenter_target",
    "sysenter_entry",
];
/// Linux's entry points for SYSCALL in 64-bit kernels, newest first.
const LONG_ENTRIES: [&str; 2] = ["entry_SYSCALL_64", "system_call"];
/// 32-bit kernels are moved by whole pages.
const NARROW_STEP: u64 = 4 << 10;
/// 64-bit Linux is moved by multiples of its large pages (CONFIG_PHYSICAL_ALIGN is at least 2 MiB)
/// within 1 GiB (KERNEL_IMAGE_SIZE).
const LONG_STEP: u64 = 2 << 20;
const LONG_RANGE: u64 = 1 << 30;

/// Why a file yields no symbols, in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolError(String);

impl fmt::Display for SymbolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl std::error::Error for SymbolError {}

/// The symbols of a file, sorted by linear address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbols {
    /// The addresses in ascending order, each once.
    addresses: Vec<u64>,
    /// The name for the address at the same index.
    names: Vec<Box<str>>,
}

impl Symbols {
    /// Parses the content of a symbol file.
    ///
    /// # Errors
    ///
    /// [`SymbolError`] says what is wrong, with the line number if the file is text.
    pub fn parse(content: &[u8]) -> Result<Self, SymbolError> {
        if content.starts_with(b"\x7fELF") {
            elf::parse(content)
        } else {
            text::parse(content)
        }
    }

    /// Makes a table of these symbols; of several with one address, the first is kept.
    fn of(mut found: Vec<(u64, String)>) -> Self {
        // In a 64-bit kernel's table, low addresses are offsets in the per-processor area.
        if found.iter().any(|symbol| symbol.0 >= UPPER_HALF) {
            found.retain(|symbol| symbol.0 >= UPPER_HALF);
        }
        found.sort_by_key(|symbol| symbol.0);
        found.dedup_by_key(|symbol| symbol.0);
        let (addresses, names) = found
            .into_iter()
            .map(|(address, name)| (address, short(name)))
            .unzip();
        Self { addresses, names }
    }

    /// The number of symbols.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether the table has no symbols.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The symbol that contains `address`, and the distance of the address from the symbol's start.
    pub fn at(&self, address: u64) -> Option<(&str, u64)> {
        let next = self.addresses.partition_point(|start| *start <= address);
        let index = next.checked_sub(1)?;
        let distance = address - self.addresses[index];
        (distance < REACH).then(|| (&*self.names[index], distance))
    }

    /// The address of a symbol.
    pub fn address(&self, name: &str) -> Option<u64> {
        let index = self.names.iter().position(|known| &**known == name)?;
        Some(self.addresses[index])
    }

    /// Whether the addresses are those of a 64-bit program or kernel, judged by their size.
    pub fn is_long(&self) -> bool {
        self.addresses
            .last()
            .is_some_and(|last| *last > LAST_OF_32_BITS)
    }

    /// How much higher the guest's kernel lies than the table says, modulo 2^32 or 2^64. `entry` is
    /// the kernel's SYSENTER_EIP, or its LSTAR if it has 64 bits. 0 if the displacement cannot be
    /// determined.
    pub fn displacement(&self, entry: u64) -> u64 {
        let is_long = self.is_long();
        let Some(known) = self.entry() else {
            return 0;
        };
        let by = entry.wrapping_sub(known);
        // A distance that is not a multiple of the step, or too long, means that this is another
        // kernel.
        let is_move = match is_long {
            true => {
                let distance = (by as i64).unsigned_abs();
                distance.is_multiple_of(LONG_STEP) && distance < LONG_RANGE
            }
            false => by.is_multiple_of(NARROW_STEP) && entry <= LAST_OF_32_BITS,
        };
        match (entry, is_move) {
            (0, _) | (_, false) => 0,
            _ if is_long => by,
            _ => by & LAST_OF_32_BITS,
        }
    }

    /// Whether [`Self::displacement`] can determine the displacement: the table is that of a
    /// kernel.
    pub fn can_be_found(&self) -> bool {
        self.entry().is_some()
    }

    /// The address that the kernel's entry for system calls was linked for.
    fn entry(&self) -> Option<u64> {
        let names: &[_] = match self.is_long() {
            true => &LONG_ENTRIES,
            false => &NARROW_ENTRIES,
        };
        names.iter().find_map(|name| self.address(name))
    }

    /// The symbol that contains `address` in a guest where everything lies higher by
    /// `displacement`, and the distance of the address from the symbol's start.
    pub fn at_moved(&self, address: u64, displacement: u64) -> Option<(&str, u64)> {
        let before = address.wrapping_sub(displacement);
        // A 64-bit program may be linked at 0 and loaded anywhere.
        if self.is_long() || displacement > LAST_OF_32_BITS {
            return self.at(before);
        }
        // An address with more than 32 bits does not belong to a 32-bit guest.
        (address <= LAST_OF_32_BITS)
            .then(|| self.at(before & LAST_OF_32_BITS))
            .flatten()
    }
}

/// The first [`NAME_LIMIT`] bytes of a name.
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
    fn a_64_bit_kernel_is_found_by_its_own_entry() {
        let text = b"0000000000000000 D __per_cpu_start\n000000000001a000 D cpu_info\n\
            ffffffff81000000 T _stext\nffffffff81e00040 T entry_SYSCALL_64\n";
        let symbols = Symbols::parse(text).unwrap();
        assert!(symbols.is_long());
        assert_eq!(symbols.len(), 2);
        let by = symbols.displacement(0xffff_ffff_9de0_0040);
        assert_eq!(by, 0x1c00_0000);
        assert_eq!(
            symbols.at_moved(0xffff_ffff_9d00_0004, by),
            Some(("_stext", 4))
        );
        assert_eq!(symbols.at_moved(0x1_a004, by), None);
        // A lower address than linked; another kernel; too far away; not set.
        let down = 0_u64.wrapping_sub(0x20_0000);
        assert_eq!(symbols.displacement(0xffff_ffff_81c0_0040), down);
        assert_eq!(symbols.displacement(0xffff_ffff_9de0_1040), 0);
        assert_eq!(symbols.displacement(0xffff_fe00_0000_0040), 0);
        assert_eq!(symbols.displacement(0), 0);
    }

    #[test]
    fn an_address_beyond_32_bits_has_no_name_in_a_32_bit_table() {
        let symbols = symbols();
        assert_eq!(symbols.at_moved(0xc100_0004, 0), Some(("_stext", 4)));
        assert_eq!(symbols.at_moved(0xffff_ffff_c100_0004, 0), None);
    }

    #[test]
    fn a_program_that_is_linked_at_zero_is_named_where_it_lies() {
        let symbols = Symbols::parse(b"1000 T _start\n1139 T main\n").unwrap();
        let by = 0x5555_5555_4000;
        assert_eq!(symbols.at_moved(by + 0x1140, by), Some(("main", 7)));
        assert_eq!(symbols.at_moved(0x1140, by), None);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(short("é".repeat(100)).len(), NAME_LIMIT);
        assert_eq!(short(format!("a{}", "é".repeat(100))).len(), NAME_LIMIT - 1);
    }
}
