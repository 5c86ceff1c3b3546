//! `System.map` and `/proc/kallsyms`: one line for each symbol, `ADDRESS TYPE NAME`, followed by
//! the module's name in brackets if the symbol belongs to one.

use super::{SymbolError, Symbols};

/// Types of nm(1) that do not stand for an address in memory: absolute values, undefined symbols,
/// and debugging entries.
const NO_PLACE: &[u8] = b"AaNUu-?";

/// Parses the text of such a file.
///
/// # Errors
///
/// The first line that cannot be parsed, or why the addresses are of no use.
pub fn parse(content: &[u8]) -> Result<Symbols, SymbolError> {
    let mut global = Vec::new();
    let mut local = Vec::new();
    let mut is_hidden = false;
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let wrong = |reason: &str| SymbolError(format!("line {}: {reason}", index + 1));
        let (address, kind, name) = fields(line).ok_or_else(|| {
            wrong("expected 'ADDRESS TYPE NAME', as in System.map, or an ELF file")
        })?;
        if NO_PLACE.contains(&kind) {
            continue;
        }
        if address == 0 {
            is_hidden = true;
            continue;
        }
        if kind.is_ascii_uppercase() {
            global.push((address, name));
        } else {
            local.push((address, name));
        }
    }
    // Where both have a name for an address, the global name is better known.
    global.append(&mut local);
    match (global.is_empty(), is_hidden) {
        (false, _) => Ok(Symbols::of(global)),
        (true, true) => Err(SymbolError(
            "all addresses are zero: save /proc/kallsyms as the guest's root, after 'echo 0 > /proc/sys/kernel/kptr_restrict'".into(),
        )),
        (true, false) => Err(SymbolError("the file has no symbols".into())),
    }
}

/// The address, type and name in a line.
fn fields(line: &[u8]) -> Option<(u64, u8, String)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let &[kind] = fields.next()?.as_bytes() else {
        return None;
    };
    let name = fields.next()?;
    let name = match fields.next() {
        Some(module) => format!("{name} {module}"),
        None => name.to_owned(),
    };
    match fields.next() {
        Some(_) => None,
        None => Some((address, kind, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn modules_are_named_and_absolute_values_left_out() {
        let text = "00000000 A fixed_percpu_data\nc1000000 T _stext\n\n\
            f8000010 t probe\t[e1000]\r\n00001000 a X\n";
        let symbols = parse(text.as_bytes()).unwrap();
        assert_eq!(symbols.len(), 2);
        assert_eq!(symbols.at(0xf800_0014), Some(("probe [e1000]", 4)));
    }

    #[test]
    fn of_two_names_the_global_one_stays() {
        let symbols = parse(b"c1000000 t local\nc1000000 T global\n").unwrap();
        assert_eq!(symbols.at(0xc100_0000), Some(("global", 0)));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        assert!(wrong("c1000000 T a\nhello world again\n").starts_with("line 2: expected"));
        assert!(wrong("c1000000 T\n").starts_with("line 1"));
        assert!(wrong("c1000000 T a b c\n").starts_with("line 1"));
        assert!(wrong("1ffffffff81000000 T _stext\n").starts_with("line 1"));
        assert!(wrong("00000000 T _stext\n").contains("kptr_restrict"));
        assert!(wrong("").contains("no symbols"));
        assert!(parse(&[0xff, 0, b'\n']).is_err());
    }
}
