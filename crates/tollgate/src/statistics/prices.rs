//! `--price-table`: reads the exit costs of another machine from a file.

use std::path::Path;

use tollgate_exits::prices::PriceTable;

use crate::failure::Failure;
use crate::files;

/// The maximum size of a price table in bytes.
const LIMIT: u64 = 1 << 20;

/// Reads a price table.
///
/// # Errors
///
/// One line says that the file cannot be read, or which of its lines is wrong.
pub fn read_price_table(path: &Path) -> Result<PriceTable, Failure> {
    let content = files::read(path, "--price-table", LIMIT)?;
    let wrong = |why: String| Failure::usage(format!("--price-table: '{}': {why}", path.display()));
    let text = std::str::from_utf8(&content).map_err(|error| {
        let before = &content[..error.valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        wrong(format!("line {line}: not text in UTF-8"))
    })?;
    PriceTable::parse(text).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_exits::ExitKind;
    use tollgate_exits::prices::Price;

    #[test]
    fn the_sample_table_prices_every_kind() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs/reference/price-tables/i7-3960x.csv");
        let table = read_price_table(&path).unwrap();
        for &kind in ExitKind::ALL {
            let expected = if kind.hardware_exit().is_empty() {
                Price::NoExit
            } else {
                Price::Cycles(1650)
            };
            assert_eq!(table.price(kind), Some(expected), "{}", kind.name());
        }
    }
}
