//! Describes a failing state as text.

use crate::case::{Case, Input};
use crate::oracle::{Expectation, Oracle, instructions};
use crate::replay;
use iced_x86::{Formatter, IntelFormatter};
use std::fmt::Write;

/// Runs a state, and describes it and its result. The flag says whether both processors agree.
pub fn describe(
    oracle: &mut Oracle,
    case: &Case,
    input: &Input,
    expectation: Expectation,
) -> (String, bool) {
    let code = instructions(case);
    oracle.load(case);
    let verdict = oracle.run(case, &code, input, expectation);
    let mut text = String::new();
    let mut formatter = IntelFormatter::new();
    let _ = writeln!(text, "segments  {}", case.world.name());
    for one in &code {
        let mut assembly = String::new();
        formatter.format(&one.instruction, &mut assembly);
        let bytes: Vec<String> = one.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let eip = one.instruction.ip();
        let _ = writeln!(
            text,
            "code      {eip:08x}  {:30}  {assembly}",
            bytes.join(" ")
        );
    }
    let count = if case.world.is_long() { 16 } else { 8 };
    let registers: Vec<String> = crate::compare::GPR_NAMES
        .iter()
        .zip(input.gpr)
        .take(count)
        .map(|(name, value)| format!("{name}={value:08x}"))
        .collect();
    let _ = writeln!(
        text,
        "input     {} eflags={:08x}",
        registers.join(" "),
        input.flags
    );
    for (offset, bytes) in &input.pokes {
        let hex: String = bytes
            .iter()
            .take(40)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let _ = writeln!(text, "memory    window+{offset:04x}: {hex}");
    }
    let kind = match expectation {
        Expectation::Native => "the host's processor",
        Expectation::Undefined => "#UD, because the guest is not offered it",
    };
    let _ = writeln!(text, "judge     {kind}");
    let ended = |vector: u8| match vector {
        3 => "completed".to_owned(),
        crate::case::Outcome::ENDLESS => "did not end".to_owned(),
        crate::case::Outcome::GAVE_UP => "the monitor gave up".to_owned(),
        vector => format!("exception {vector}"),
    };
    let _ = writeln!(
        text,
        "ended     expected {}, got {}",
        ended(verdict.expected.vector),
        ended(verdict.got.vector)
    );
    if verdict.got.vector == crate::case::Outcome::GAVE_UP {
        let _ = writeln!(text, "          {}", oracle.complaint());
    }
    for difference in verdict.differences.iter().take(20) {
        let _ = writeln!(text, "differs   {difference}");
    }
    if verdict.differences.len() > 20 {
        let _ = writeln!(
            text,
            "          and {} more",
            verdict.differences.len() - 20
        );
    }
    let _ = writeln!(
        text,
        "again     tollgate-oracle --replay '{}'",
        replay::write(case, input)
    );
    (text, verdict.differences.is_empty())
}
