//! Pieces of text that several tables and pictures of statistics contain.

/// Two texts with a space between them; either may be empty.
pub(super) fn with_program(first: &str, second: String) -> String {
    match (first, second.as_str()) {
        ("", _) => second,
        (_, "") => first.to_owned(),
        _ => format!("{first} {second}"),
    }
}

/// A symbol and the device that was accessed there; either may be empty.
pub(super) fn with_device(symbol: &str, device: &str) -> String {
    match (symbol, device) {
        (_, "") => symbol.to_owned(),
        ("", _) => device.to_owned(),
        _ => format!("{symbol}, {device}"),
    }
}

/// The plural ending of a word for `count` things.
pub(super) fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A number with its thousands separated: 1,234,567.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
