//! Converts a case and its state to one line of text, and back.

use crate::case::{Case, Fill, Input};
use crate::layout::World;
use tollgate_x86::state::XSAVE_SIZE;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return Err(format!("not pairs of hexadecimal digits: {text}"));
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16))
        .collect::<Result<_, _>>()
        .map_err(|_| format!("not hexadecimal: {text}"))
}

/// The line: words of the form `name=value`, with all numbers in hexadecimal.
pub fn write(case: &Case, input: &Input) -> String {
    let count = if case.world.is_long() { 16 } else { 8 };
    let gpr: Vec<String> = input.gpr[..count]
        .iter()
        .map(|value| format!("{value:x}"))
        .collect();
    let mut line = format!(
        "world={} at={:x} code={} gpr={} flags={:x} fill={}",
        case.world.name(),
        case.at,
        hex(&case.code),
        gpr.join(","),
        input.flags,
        if input.fill == Fill::Zero {
            "zero"
        } else {
            "random"
        },
    );
    let plain = Input::plain();
    for at in (0..XSAVE_SIZE).step_by(16) {
        let bytes = &input.vector[at..at + 16];
        if *bytes != plain.vector[at..at + 16] {
            line += &format!(" vector={at:x}:{}", hex(bytes));
        }
    }
    for (offset, bytes) in &input.pokes {
        line += &format!(" poke={offset:x}:{}", hex(bytes));
    }
    line
}

fn number(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| format!("not a hexadecimal number: {text}"))
}

fn placed(text: &str) -> Result<(u16, Vec<u8>), String> {
    let (at, bytes) = text
        .split_once(':')
        .ok_or_else(|| format!("no colon: {text}"))?;
    let at = u16::try_from(number(at)?).map_err(|_| format!("outside the window: {at}"))?;
    let bytes = unhex(bytes)?;
    if usize::from(at) + bytes.len() > 0x1_0000 {
        return Err(format!("outside the window: {text}"));
    }
    Ok((at, bytes))
}

/// Parses a line of [`write()`].
///
/// # Errors
///
/// The word that cannot be parsed.
pub fn read(line: &str) -> Result<(Case, Input), String> {
    let mut case = Case {
        world: World::Flat32,
        at: 0x1800,
        code: Vec::new(),
    };
    let mut input = Input::plain();
    for word in line.split_whitespace() {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("no equals sign: {word}"))?;
        match name {
            "world" => {
                case.world = *World::ALL
                    .iter()
                    .find(|world| world.name() == value)
                    .ok_or_else(|| format!("no such world: {value}"))?;
            }
            "at" => case.at = number(value)? as u16,
            "code" => case.code = unhex(value)?,
            "flags" => input.flags = number(value)? as u32,
            "fill" if value == "zero" => input.fill = Fill::Zero,
            "fill" if value == "random" => input.fill = Fill::Random,
            "gpr" => {
                let values: Vec<&str> = value.split(',').collect();
                if !matches!(values.len(), 8 | 16) {
                    return Err(format!("neither 8 nor 16 registers: {value}"));
                }
                for (register, value) in input.gpr.iter_mut().zip(values) {
                    *register = number(value)?;
                }
            }
            "vector" => {
                let (at, bytes) = placed(value)?;
                input
                    .vector
                    .get_mut(usize::from(at)..usize::from(at) + bytes.len())
                    .ok_or_else(|| format!("outside the vector registers: {value}"))?
                    .copy_from_slice(&bytes);
            }
            "poke" => input.pokes.push(placed(value)?),
            _ => return Err(format!("unknown word: {word}")),
        }
    }
    let end = usize::from(case.at) + case.code.len();
    if case.code.is_empty() || case.at < 0x1000 || end >= 0x3000 {
        return Err("the code must lie in the window's pages 1 and 2".to_owned());
    }
    if crate::exclusions::enters_kernel(&case.code) {
        return Err("the code would enter the host's kernel".to_owned());
    }
    let mask = case.world.mask();
    let high = if case.world.is_long() { mask } else { 0 };
    for (index, register) in input.gpr.iter_mut().enumerate() {
        *register &= if index < 8 { mask } else { high };
    }
    // Prevents faults of the XRSTOR that loads the state, which is not part of the case.
    input.vector[512..576].fill(0);
    input.vector[512] = crate::case::components() as u8;
    input.vector[26..32].fill(0);
    input.settle();
    Ok((case, input))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Catalog;
    use crate::inputs;
    use tollgate_test_support::Random;

    #[test]
    fn what_is_written_is_read_back() {
        for worlds in [World::legacy(), World::long()] {
            let catalog = Catalog::new(worlds);
            let mut random = Random::new(7);
            for _ in 0..100 {
                let planned = catalog.plan(None, &mut random);
                let case = planned.case;
                let input = inputs::generate(case.world, case.at, &planned.code, &mut random);
                assert_eq!(read(&write(&case, &input)), Ok((case, input)));
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "code=0f05",
            "code=90 at=0",
            "code=9",
            "gpr=1",
            "poke=ffff:0000",
            "vector=97f:0000",
            "world=64",
            "x",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
