//! The source that RPN.COM compiles, and what the compiled program must display.

/// Number of expressions in the source.
const EXPRESSIONS: u16 = 40;

/// The source, one expression a line: numbers, and operators after their operands.
pub fn source() -> String {
    (1..=EXPRESSIONS)
        .map(|n| {
            format!(
                "{} {n} * {} + {} / {} - .\r\n",
                77 * n,
                1000 + n,
                n % 7 + 1,
                n
            )
        })
        .collect()
}

/// The output of the program, computed here from the source.
///
/// # Panics
///
/// Panics if the source is invalid.
pub fn results() -> String {
    let mut shown = String::new();
    let mut stack: Vec<u16> = Vec::new();
    for word in source().split_whitespace() {
        if let Ok(number) = word.parse() {
            stack.push(number);
            continue;
        }
        let mut pop = || stack.pop().expect("operands stand before their operator");
        let last = pop();
        let result = match word {
            "." => {
                shown.push_str(&format!("{last} "));
                continue;
            }
            "+" => pop().wrapping_add(last),
            "-" => pop().wrapping_sub(last),
            "*" => pop().wrapping_mul(last),
            _ => pop() / last,
        };
        stack.push(result);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_are_those_of_the_source() {
        let expected = (77u32 + 1001) / 2 - 1;
        assert!(source().starts_with("77 1 * 1001 + 2 / 1 - .\r\n"));
        assert!(results().starts_with(&format!("{expected} ")));
        assert_eq!(results().split_whitespace().count(), 40);
    }
}
