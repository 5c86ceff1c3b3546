//! HMP's `x` and `xp`: bytes of memory in the forms that `/COUNTFORMATSIZE` names.

use super::machine::Machine;
use iced_x86::{Decoder, DecoderError, DecoderOptions, Formatter, IntelFormatter};
use std::fmt::Write;

/// The maximum number of values.
const MOST_VALUES: u64 = 1 << 16;

/// What `/COUNTFORMATSIZE` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Form {
    count: u64,
    kind: char,
    bytes: usize,
}

impl Form {
    /// Reads the part after the slash, such as `8xw`.
    fn parse(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (count, letters) = text.split_at(digits);
        let mut form = Self {
            count: if count.is_empty() {
                1
            } else {
                count.parse().unwrap_or(u64::MAX)
            },
            kind: 'x',
            bytes: 0,
        };
        for letter in letters.chars() {
            match letter {
                'x' | 'd' | 'u' | 'o' | 'c' | 'i' => form.kind = letter,
                'b' => form.bytes = 1,
                'h' => form.bytes = 2,
                'w' => form.bytes = 4,
                'g' => form.bytes = 8,
                _ => return Err(format!("invalid char in format: '{letter}'")),
            }
        }
        if form.bytes == 0 {
            form.bytes = if form.kind == 'c' { 1 } else { 4 };
        }
        match form.count <= MOST_VALUES {
            true => Ok(form),
            false => Err(format!("at most {MOST_VALUES} values are shown")),
        }
    }

    /// A value as text, with the space in front of it.
    fn text(self, value: u64) -> String {
        let bits = self.bytes * 8;
        let signed = (value << (64 - bits)).cast_signed() >> (64 - bits);
        match self.kind {
            'x' => format!(" 0x{value:0width$x}", width = self.bytes * 2),
            'o' => format!(" 0{value:0width$o}", width = bits.div_ceil(3)),
            'u' => format!(" {value:width$}", width = (bits * 10).div_ceil(33)),
            'd' => format!(" {signed:width$}", width = (bits * 10).div_ceil(33)),
            _ => format!(" '{}'", (value as u8).escape_ascii()),
        }
    }
}

/// The value of an address: numbers, and registers such as `$rip`, with `+` and `-` between them.
fn address(text: &str, machine: &mut dyn Machine) -> Result<u64, String> {
    let mut sum = 0u64;
    let mut rest = text.trim();
    let mut is_minus = false;
    loop {
        rest = rest.trim_start();
        let end = rest.find(['+', '-', ' ']).unwrap_or(rest.len());
        let (term, after) = rest.split_at(end);
        let value = match term.strip_prefix('$') {
            Some(name) => machine
                .register(name)?
                .ok_or_else(|| format!("unknown register: '{name}'"))?,
            None => crate::numbers::number("address", term).map_err(|why| why.0)?,
        };
        sum = match is_minus {
            true => sum.wrapping_sub(value),
            false => sum.wrapping_add(value),
        };
        let after = after.trim_start();
        match after.chars().next() {
            None => return Ok(sum),
            Some(sign @ ('+' | '-')) => is_minus = sign == '-',
            Some(other) => return Err(format!("unexpected '{other}' in an address")),
        }
        rest = &after[1..];
    }
}

/// Carries out `x` (linear addresses) or `xp` (physical ones): the words after it.
///
/// # Errors
/// The form or the address is wrong.
pub fn dump(
    words: &[&str],
    is_physical: bool,
    machine: &mut dyn Machine,
) -> Result<String, String> {
    let (form, place) = match words {
        [form, rest @ ..] if form.starts_with('/') => (Form::parse(&form[1..])?, rest),
        rest => (Form::parse("")?, rest),
    };
    if place.is_empty() {
        return Err("an address is missing".into());
    }
    let begin = address(&place.join(" "), machine)?;
    if form.kind == 'i' {
        return instructions(form.count, begin, is_physical, machine);
    }
    let count = form.bytes * form.count as usize;
    let bytes = machine.memory(begin, count, is_physical)?;
    let in_line = match form.kind {
        'c' => 8,
        _ if form.bytes == 1 => 8,
        _ => 16,
    };
    let mut text = String::new();
    for (number, line) in bytes.chunks(in_line).enumerate() {
        let at = begin.wrapping_add((number * in_line) as u64);
        let _ = write!(text, "{at:016x}:");
        for value in line.chunks_exact(form.bytes) {
            let mut word = [0; 8];
            word[..value.len()].copy_from_slice(value);
            text += &form.text(u64::from_le_bytes(word));
        }
        text.push('\n');
    }
    if bytes.len() < count {
        text += "Cannot access memory\n";
    }
    Ok(text)
}

/// Shows instructions, in Intel's form, each with its bytes.
fn instructions(
    count: u64,
    begin: u64,
    is_physical: bool,
    machine: &mut dyn Machine,
) -> Result<String, String> {
    const LONGEST: usize = 15;
    let bits = machine.code_bits()?;
    let wanted = (count as usize).saturating_mul(LONGEST);
    let bytes = machine.memory(begin, wanted, is_physical)?;
    let mut decoder = Decoder::with_ip(bits, &bytes, begin, DecoderOptions::NONE);
    let mut formatter = IntelFormatter::new();
    formatter
        .options_mut()
        .set_space_after_operand_separator(true);
    formatter.options_mut().set_first_operand_char_index(9);
    let (mut text, mut at) = (String::new(), 0);
    for _ in 0..count {
        let is_cut = bytes.len() - at < LONGEST && bytes.len() < wanted;
        let instruction = decoder.decode();
        if is_cut && decoder.last_error() == DecoderError::NoMoreBytes {
            text += "Cannot access memory\n";
            break;
        }
        let own = &bytes[at..decoder.position()];
        at = decoder.position();
        let place = instruction.ip();
        let shown: Vec<String> = own.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut words = String::new();
        match instruction.is_invalid() {
            true => words.push_str("(bad)"),
            false => formatter.format(&instruction, &mut words),
        }
        let _ = writeln!(text, "0x{place:08x}:  {:<24} {words}", shown.join(" "));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_have_counts_kinds_and_sizes() {
        let form = |text| Form::parse(text).unwrap();
        assert_eq!(form("").text(0x1f), " 0x0000001f");
        assert_eq!(form("4xb").text(0x1f), " 0x1f");
        assert_eq!(form("4xb").count, 4);
        assert_eq!(form("dh").text(0xffff), "    -1");
        assert_eq!(form("ub").text(200), " 200");
        assert_eq!(form("oh").text(8), " 0000010");
        assert_eq!(form("3c").text(b'a'.into()), " 'a'");
        assert_eq!(form("2i").kind, 'i');
        assert!(Form::parse("z").is_err());
        assert!(Form::parse("99999999x").is_err());
    }
}
