//! Numbers, sizes and switches as QEMU writes them.

use crate::refusal::Refusal;

/// Reads `on`, `off` and the other words for them.
///
/// # Errors
/// The word is another one.
pub fn switch(key: &str, word: &str) -> Result<bool, Refusal> {
    match word {
        "on" | "yes" | "true" | "y" => Ok(true),
        "off" | "no" | "false" | "n" => Ok(false),
        _ => Err(format!("Parameter '{key}' expects 'on' or 'off'").into()),
    }
}

/// Reads a whole number, decimal or hexadecimal (`0x10`).
///
/// # Errors
/// The text is no number.
pub fn number(key: &str, text: &str) -> Result<u64, Refusal> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("Parameter '{key}' expects a number").into())
}

/// Reads a size in bytes. A number without a suffix counts units of `unit` bytes.
///
/// # Errors
/// The text is no size.
pub fn size(key: &str, text: &str, unit: u64) -> Result<u64, Refusal> {
    let wrong = || {
        Refusal(format!(
            "Parameter '{key}' expects a size, such as 512M or 1.5G"
        ))
    };
    let is_number = |it: char| it.is_ascii_digit() || it == '.';
    let (digits, suffix) = match text.strip_prefix("0x") {
        Some(_) => (text, ""),
        None => text.split_at(text.find(|it| !is_number(it)).unwrap_or(text.len())),
    };
    let unit = match suffix {
        "" => unit,
        "b" | "B" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        _ => return Err(wrong()),
    };
    match digits.split_once('.') {
        None => number(key, digits)
            .map_err(|_| wrong())?
            .checked_mul(unit)
            .ok_or_else(wrong),
        Some((whole, part)) if part.len() <= 9 => {
            let whole = whole.parse::<u64>().map_err(|_| wrong())?;
            let tenths = format!("0{part}").parse::<u128>().map_err(|_| wrong())?;
            let part = tenths * u128::from(unit) / 10u128.pow(part.len() as u32);
            let whole = whole.checked_mul(unit).ok_or_else(wrong)?;
            whole.checked_add(part as u64).ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes_and_fractions() {
        let mib = |text| size("size", text, 1 << 20).ok();
        assert_eq!(mib("128"), Some(128 << 20));
        assert_eq!(mib("1G"), Some(1 << 30));
        assert_eq!(mib("1.5G"), Some(3 << 29));
        assert_eq!(mib("64k"), Some(64 << 10));
        assert_eq!(mib("0x10"), Some(16 << 20));
        for bad in ["", "x", "1x", "1GB", "-1", "99999999999999T", "1.G.1"] {
            assert_eq!(mib(bad), None, "{bad}");
        }
    }

    #[test]
    fn switches_have_several_words() {
        assert_eq!(switch("a", "yes"), Ok(true));
        assert_eq!(switch("a", "off"), Ok(false));
        assert!(switch("a", "1").is_err());
    }
}
