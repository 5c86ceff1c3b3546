//! Sizes as people write them: `512M`, `1G`, `65536K`.

/// Bytes in a mebibyte, the unit of a number without suffix (as QEMU's `-m` has it).
const MIB: u64 = 1 << 20;

/// What a size may look like, for messages.
const EXPECTED: &str = "expected a whole number with K, M or G, such as 512M or 1G";

/// Parses a size into bytes. Suffixes are K, M, G and T in either case, optionally
/// followed by `iB` or `B`, all counting in steps of 1024; without a suffix the number
/// counts mebibytes.
///
/// # Errors
/// One line that says what is wrong and what is expected.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("not a size; {EXPECTED}"));
    }
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
    if bytes == 0 {
        return Err(format!("zero; {EXPECTED}"));
    }
    Ok(bytes)
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
    fn a_bare_number_counts_mebibytes() {
        assert_eq!(parse("256"), Ok(256 << 20));
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "not a size"),
            ("M", "not a size"),
            ("-1M", "not a size"),
            ("1.5G", "unknown unit '.5G'"),
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
