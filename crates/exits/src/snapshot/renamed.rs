//! Other symbol names for the places of a snapshot, when it is displayed.

use super::{Snapshot, SymbolAt, SymbolRow};
use crate::blame::Place;
use std::cmp::Reverse;
use std::collections::HashMap;

impl Snapshot {
    /// The snapshot with the names that `symbol` gives; places that it does not know keep their
    /// names.
    ///
    /// The rows by symbol are summed over the origins that the snapshot contains. Rows of symbols
    /// that no longer occur are removed.
    #[must_use]
    pub fn renamed<'a>(mut self, symbol: impl Fn(Place) -> Option<SymbolAt<'a>>) -> Self {
        for row in &mut self.origins {
            let place = Place {
                linear: row.address,
                space: row.space,
                is_kernel: row.kernel,
            };
            if let Some(at) = symbol(place) {
                row.symbol = format!("{}+{:#x}", at.name, at.distance);
            }
        }
        self.symbols = self.sums_by_symbol();
        self
    }

    /// The origins by kind, symbol and device, those with the highest cost first; empty if nothing
    /// has a name.
    fn sums_by_symbol(&self) -> Vec<SymbolRow> {
        if self.origins.iter().all(|row| row.symbol.is_empty()) {
            return Vec::new();
        }
        let mut sums: HashMap<(&str, &str, &str), (u64, u64)> = HashMap::new();
        for row in &self.origins {
            let name = row.symbol.rsplit_once('+').map_or("", |(name, _)| name);
            let sum = sums.entry((&row.kind, name, &row.device)).or_default();
            sum.0 = row.exits.saturating_add(sum.0);
            sum.1 = row.cycles.saturating_add(sum.1);
        }
        let mut rows: Vec<_> = sums.into_iter().collect();
        rows.sort_by_key(|&(key, (exits, cycles))| (Reverse((cycles, exits)), key));
        let row = |((kind, name, device), (exits, cycles)): ((&str, &str, &str), _)| SymbolRow {
            kind: kind.to_owned(),
            symbol: name.to_owned(),
            device: device.to_owned(),
            exits,
            cycles,
        };
        rows.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::snapshot;

    #[test]
    fn new_names_take_the_place_of_old_ones_where_they_are_known() {
        let snapshot = snapshot().renamed(|place| {
            (place.space == 2 && place.linear >= 0x200).then_some(SymbolAt {
                name: "server",
                distance: place.linear - 0x200,
            })
        });
        let rows = snapshot.symbols.iter();
        let rows: Vec<_> = rows.map(|row| (row.symbol.as_str(), row.exits)).collect();
        assert_eq!(rows, [("first", 700), ("server", 300)]);
        let last = snapshot.origins.last().unwrap();
        assert_eq!(last.symbol, "server+0x700");
    }

    #[test]
    fn with_no_names_at_all_it_is_as_it_was() {
        let before = snapshot();
        assert_eq!(before.clone().renamed(|_| None), before);
    }
}
