//! Hostile input for parsers of text: random symbol files and price tables.

use crate::loaders::images;
use tollgate_exits::ExitKind;
use tollgate_exits::ledger::Ledger;
use tollgate_exits::prices::PriceTable;
use tollgate_exits::reading::{KindReading, Reading};
use tollgate_exits::snapshot::Snapshot;
use tollgate_symbols::Symbols;

/// Parses the input as the kind of file that its first byte selects: `s` for symbols, `p` for
/// prices.
///
/// # Panics
///
/// Panics if a parser breaks a promise.
pub fn run(data: &[u8]) {
    let Some((kind, content)) = data.split_first() else {
        return;
    };
    if kind & 1 != 0 {
        symbols(content);
    } else if let Ok(text) = std::str::from_utf8(content) {
        prices(text);
    }
}

fn symbols(content: &[u8]) {
    let symbols = match Symbols::parse(content) {
        Ok(symbols) => symbols,
        Err(error) => return check_message(&error.to_string()),
    };
    assert!(!symbols.is_empty());
    let mut found = 0;
    for entry in [0, 1, 0xc100_1000, u32::MAX.into(), u64::MAX] {
        let by = symbols.displacement(entry);
        assert!(symbols.is_long() || by <= u32::MAX.into());
        found += usize::from(symbols.at_moved(entry, by).is_some());
    }
    assert!(found <= 5);
    for name in ["_stext", "entry_SYSENTER_32", "entry_SYSCALL_64"] {
        if let Some(address) = symbols.address(name) {
            assert_eq!(symbols.at(address), Some((name, 0)));
        }
    }
}

fn prices(text: &str) {
    let table = match PriceTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            assert!((1..=text.lines().count().max(1)).contains(&error.line));
            return check_message(&error.to_string());
        }
    };
    // More exits of several kinds than can ever occur.
    for count in [1, u64::MAX >> 8] {
        let ledger = Ledger::new(Default::default, Default::default());
        let mut reading = Reading::of(&ledger, count, 0);
        reading.shares.wall = count;
        reading.shares.guest = count;
        reading.kinds = ExitKind::ALL
            .iter()
            .map(|&kind| KindReading {
                kind,
                count,
                cost: None,
            })
            .collect();
        reading.kinds.truncate(1 + (count % 7) as usize);
        let snapshot = Snapshot::of(&reading, |_| None);
        let estimate = table.estimate(&snapshot);
        assert!(estimate.run_ns >= estimate.exit_ns);
        assert_eq!(estimate.exits.len(), snapshot.exits.len());
    }
}

/// Checks that a message to the user is one line that is not empty.
fn check_message(text: &str) {
    assert!(!text.is_empty());
}

/// A file of each format.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let map = b"sc1000000 T _stext\nc1001000 t inner\nf8000010 t probe\t[e1000]\r\n\
        00000000 A fixed\nc1002000 T entry_SYSENTER_32\n";
    let table = b"p# a comment\nmachine,Old One\nkhz,1000\nsource,\"A, B\"\n\
        kind,cycles,hardware exit\nport-in,100,I/O\nlink-miss,none\ncpuid,1650\n";
    let long_map = b"s0000000000000000 D __per_cpu_start\n000000000001a000 d cpu_info\n\
        ffffffff81000000 T _stext\nffffffff81e00040 T entry_SYSCALL_64\n";
    let elf = [b"s".as_slice(), &images::elf_with_symbols()].concat();
    vec![
        ("system-map".into(), map.to_vec()),
        ("price-table".into(), table.to_vec()),
        ("long-map".into(), long_map.to_vec()),
        ("elf".into(), elf),
    ]
}
