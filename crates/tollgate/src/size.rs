//! Sizes as people write them: `512M`, `1.5G`, `65536K`.

/// The number of bytes in a mebibyte, the unit of a number without suffix (as in QEMU's `-m`).
const MIB: u64 = 1 << 20;

/// The form of a size, for messages.
const EXPECTED: &str = "expected a number with K, M, G or T, such as 512M or 1.5G";

/// Parses a size into bytes. Suffixes are K, M, G and T in either case, optionally followed by `iB`
/// or `B`, all in steps of 1024; without a suffix the number counts mebibytes. A number with a
/// decimal point must be a whole number of bytes.
///
/// # Errors
/// One line that says what is wrong and what is expected.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits(text));
    if number.is_empty() {
        return Err(format!("not a size; {EXPECTED}"));
    }
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) if digits(rest) > 0 => rest.split_at(digits(rest)),
        _ => ("", rest),
    };
    let unit = match suffix.to_ascii_lowercase().as_str() {
        "" => MIB,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(format!("unknown unit '{suffix}'; {EXPECTED}")),
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| format!("too large; {EXPECTED}"))?;
    let part = part_of(unit, fraction)
        .ok_or_else(|| format!("not a whole number of bytes; {EXPECTED}"))?;
    let bytes = bytes
        .checked_add(part)
        .ok_or_else(|| format!("too large; {EXPECTED}"))?;
    if bytes == 0 {
        return Err(format!("zero; {EXPECTED}"));
    }
    Ok(bytes)
}

/// The digits after the decimal point, as bytes of `unit`; `None` if that is not a whole number.
fn part_of(unit: u64, fraction: &str) -> Option<u64> {
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        return Some(0);
    }
    // More than 18 digits are refused, so that the power of ten fits the arithmetic.
    let places = u32::try_from(fraction.len())
        .ok()
        .filter(|places| *places <= 18)?;
    let (digits, whole) = (fraction.parse::<u128>().ok()?, 10u128.pow(places));
    let product = digits * u128::from(unit);
    (product % whole == 0).then_some((product / whole) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_count_in_steps_of_1024() {
        assert_eq!(parse("4K"), Ok(4096));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("512m"), Ok(512 << 20));
        assert_eq!(parse("2GiB"), Ok(2 << 30));
        assert_eq!(parse("1tb"), Ok(1 << 40));
    }

    #[test]
    fn parts_of_a_unit_come_to_whole_bytes() {
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("0.25M"), Ok(256 << 10));
        assert_eq!(parse("2.50"), Ok(5 << 19));
        for text in ["0.3K", "1.0001K", "1.1234567890123456789G"] {
            let message = parse(text).unwrap_err();
            assert!(
                message.starts_with("not a whole number of bytes"),
                "{message}"
            );
        }
        for text in ["1.G", ".5G", "1.5.5G", "0.0M"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_number_counts_mebibytes() {
        assert_eq!(parse("256"), Ok(256 << 20));
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "not a size"),
            ("M", "not a size"),
            ("-1M", "not a size"),
            ("1,5G", "unknown unit ',5G'"),
            ("12X", "unknown unit 'X'"),
            ("0", "zero"),
            ("99999999999999999999", "too large"),
            ("99999999999T", "too large"),
            ("1é", "unknown unit 'é'"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.starts_with(reason), "{text}: {message}");
            assert!(message.contains("512M"));
        }
    }
}
