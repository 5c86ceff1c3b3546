//! The program in C that DOS compiles and runs, and what it must display.

use std::fmt::Write;

/// A program that prints a table of prime numbers.
pub const SOURCE: &str = include_str!("../../guests/dos/table.c");
/// The numbers are below this one.
const SIZE: u64 = 2000;
const COLUMNS: usize = 8;

/// The output of the program, computed here.
pub fn table() -> String {
    let is_prime = |number: &u64| (2..*number).all(|divisor| !number.is_multiple_of(divisor));
    let primes: Vec<u64> = (2..SIZE).filter(is_prime).collect();
    let mut table = String::new();
    for (index, prime) in primes.iter().enumerate() {
        let end = if (index + 1) % COLUMNS == 0 {
            "\r\n"
        } else {
            " "
        };
        let _ = write!(table, "{prime}{end}");
    }
    let sum: u64 = primes.iter().map(|prime| prime * prime).sum();
    let _ = write!(table, "sum of squares {sum}\r\n");
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_the_source() {
        assert!(SOURCE.contains(&format!("#define SIZE {SIZE}\n")));
        assert!(SOURCE.contains(&format!("#define COLUMNS {COLUMNS}\n")));
        let table = table();
        assert!(table.starts_with("2 3 5 7 11 13 17 19\r\n23 "));
        assert!(table.ends_with(" 1999 sum of squares 359712770\r\n"));
    }
}
