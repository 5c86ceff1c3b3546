//! Names for guest addresses.
//!
//! A table comes from `System.map` or a saved `/proc/kallsyms` ([`text`]) or from an ELF
//! file ([`elf`]), of guests of 32 and of 64 bits. A kernel may run elsewhere than where it was
//! linked (KASLR): the entry point that it tells the processor, in SYSENTER_EIP or in LSTAR, shows
//! by how much ([`Symbols::displacement`]).

pub mod elf;
pub mod text;

use std::fmt;

/// Farther behind the start of a symbol an address is not part of it. No function of a
/// kernel is that long, while after the last symbol anything may follow.
const REACH: u64 = 64 << 10;
/// Characters of a name that are kept; longer ones can only be made up by tools.
const NAME_LIMIT: usize = 128;
/// Addresses of 32-bit guests end here.
const LAST_OF_32_BITS: u64 = u32::MAX as u64;
/// The half of the canonical addresses in which 64-bit kernels live begins here.
const UPPER_HALF: u64 = 1 << 63;

/// Linux's entry points for SYSENTER in 32-bit kernels, newest first.
const NARROW_ENTRIES: [&str; 3] = [
    "entry_SYSENTER_32",
    "ia32_sysenter_target",
    "sysenter_entry",
];
/// The same for SYSCALL in 64-bit kernels.
const LONG_ENTRIES: [&str; 2] = ["entry_SYSCALL_64", "system_call"];
/// 32-bit kernels move by whole pages at least.
const NARROW_STEP: u64 = 4 << 10;
/// 64-bit Linux moves by multiples of its large pages (CONFIG_PHYSICAL_ALIGN is at least 2 MiB)
/// within 1 GiB (KERNEL_IMAGE_SIZE).
const LONG_STEP: u64 = 2 << 20;
const LONG_RANGE: u64 = 1 << 30;

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
        // In a 64-bit kernel's table what is low is an offset in the area of each processor.
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

    /// The addresses are those of a program or kernel of 64 bits, by their size.
    pub fn is_long(&self) -> bool {
        self.addresses
            .last()
            .is_some_and(|last| *last > LAST_OF_32_BITS)
    }

    /// By how much the guest's kernel lies higher than the table says, modulo 2^32 or 2^64, if
    /// `entry` is its SYSENTER_EIP, or its LSTAR if it has 64 bits; 0 if that cannot be told.
    pub fn displacement(&self, entry: u64) -> u64 {
        let is_long = self.is_long();
        let Some(known) = self.entry() else {
            return 0;
        };
        let by = entry.wrapping_sub(known);
        // By another distance it is another kernel.
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

    /// Whether [`Self::displacement`] can tell: it is a kernel's table.
    pub fn can_be_found(&self) -> bool {
        self.entry().is_some()
    }

    /// Where the kernel's entry for system calls was linked.
    fn entry(&self) -> Option<u64> {
        let names: &[_] = match self.is_long() {
            true => &LONG_ENTRIES,
            false => &NARROW_ENTRIES,
        };
        names.iter().find_map(|name| self.address(name))
    }

    /// The symbol at `address` of a guest in which everything lies higher by `displacement`, and
    /// its distance from the symbol's start.
    pub fn at_moved(&self, address: u64, displacement: u64) -> Option<(&str, u64)> {
        let before = address.wrapping_sub(displacement);
        // A program of 64 bits may be linked at 0 and lie anywhere.
        if self.is_long() || displacement > LAST_OF_32_BITS {
            return self.at(before);
        }
        // An address of more bits is no 32-bit guest's.
        (address <= LAST_OF_32_BITS)
            .then(|| self.at(before & LAST_OF_32_BITS))
            .flatten()
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
        // Below where it was linked; another kernel; too far; nothing set.
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
