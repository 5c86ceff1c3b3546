//! Compares the outcomes of a test case on both processors.

use crate::case::{Case, Input, Outcome};
use crate::encode::Encoded;
use crate::layout::{Access, PAGE, PAGE_ACCESS, USER_CODE64, WINDOW_BYTES};
use crate::tolerance::{
    compared_error, compared_flags, compared_pointers, compared_selector, crosses_four_gibibytes,
    done_before_the_fault, either_is_right, hypervisors_address, partly_gathered, partly_restored,
    popped_before_the_fault, same_fault_address, uncompared_memory,
};
use std::fmt;
use std::ops::Range;
use tollgate_x86::xsave::{OPMASK, ZMM_16_TO_31, ZMM_HIGH};

/// One difference between the outcomes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The name of a register, or an offset in the window.
    pub what: String,
    /// The value that the host's processor left.
    pub expected: String,
    /// The value that the guest left.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            expected,
            got,
        } = self;
        write!(formatter, "{what}: expected {expected}, got {got}")
    }
}

pub(crate) const GPR_NAMES: [&str; 16] = [
    "eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
const SEGMENT_NAMES: [&str; 6] = ["es", "cs", "ss", "ds", "fs", "gs"];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares registers and exceptions.
pub fn outcomes(
    code: &[Encoded],
    input: &Input,
    expected: &Outcome,
    got: &Outcome,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    if crosses_four_gibibytes(expected, got) || either_is_right(code, expected, got) {
        return differences;
    }
    let mut number = |what: &str, expected: u64, got: u64| {
        if expected != got {
            differences.push(Difference {
                what: what.to_owned(),
                expected: format!("{expected:08x}"),
                got: format!("{got:08x}"),
            });
        }
    };
    number("vector", u64::from(expected.vector), u64::from(got.vector));
    if expected.vector >= Outcome::GAVE_UP || got.vector >= Outcome::GAVE_UP {
        return differences;
    }
    if expected.vector == got.vector {
        let mask = compared_error(code, expected);
        let [expected_error, got_error] =
            [expected, got].map(|outcome| u64::from(outcome.error & mask));
        number("error code", expected_error, got_error);
        if !same_fault_address(code, expected, got) {
            number("cr2", expected.cr2, got.cr2);
        }
    }
    if !hypervisors_address(code, expected, got) {
        number("eip", expected.rip, got.rip);
    }
    let popped = popped_before_the_fault(code, expected);
    for (register, name) in GPR_NAMES.into_iter().enumerate() {
        if popped && register != 4 {
            continue;
        }
        number(name, expected.gpr[register], got.gpr[register]);
    }
    let mask = compared_flags(code, input, expected) | 0x1_0000;
    number(
        "eflags",
        u64::from(expected.flags & mask),
        u64::from(got.flags & mask),
    );
    for (name, index) in [("fs base", 0), ("gs base", 1)] {
        number(name, expected.bases[index], got.bases[index]);
    }
    for (register, name) in SEGMENT_NAMES.into_iter().enumerate() {
        let [expected, got] =
            [expected, got].map(|outcome| compared_selector(outcome.selectors[register]));
        number(name, u64::from(expected), u64::from(got));
    }
    if expected.vector_state != got.vector_state {
        let mut got = got.vector_state.clone();
        done_before_the_fault(code, expected, &mut got[..]);
        partly_gathered(code, expected, &mut got[..]);
        partly_restored(code, expected, &mut got[..]);
        let long = expected.selectors[1] == USER_CODE64;
        let pointers = compared_pointers(code, long);
        vectors(
            &mut differences,
            pointers,
            &expected.vector_state[..],
            &got[..],
        );
    }
    differences
}

fn vectors(
    differences: &mut Vec<Difference>,
    pointers: Option<Range<usize>>,
    expected: &[u8],
    got: &[u8],
) {
    let mut part = |what: String, range: Range<usize>| {
        if expected[range.clone()] != got[range.clone()] {
            differences.push(Difference {
                what,
                expected: hex(&expected[range.clone()]),
                got: hex(&got[range]),
            });
        }
    };
    part("x87 control word".into(), 0..2);
    part("x87 status word".into(), 2..4);
    part("x87 tag byte".into(), 4..5);
    if let Some(range) = pointers {
        part(format!("x87 pointers, byte {}", range.start), range);
    }
    part("mxcsr".into(), 24..28);
    for register in 0..8 {
        part(
            format!("st{register}"),
            32 + register * 16..42 + register * 16,
        );
    }
    for register in 0..16 {
        part(
            format!("xmm{register}"),
            160 + register * 16..176 + register * 16,
        );
        part(
            format!("ymm{register} upper half"),
            576 + register * 16..592 + register * 16,
        );
        let high = ZMM_HIGH.start + register * 32;
        part(format!("zmm{register} upper half"), high..high + 32);
    }
    for mask in 0..8 {
        let start = OPMASK.start + mask * 8;
        part(format!("k{mask}"), start..start + 8);
    }
    for register in 16..32 {
        let start = ZMM_16_TO_31.start + (register - 16) * 64;
        part(format!("zmm{register}"), start..start + 64);
    }
}

/// Compares the contents of the window after the host's processor had `outcome`.
pub fn memories(
    case: &Case,
    code: &[Encoded],
    input: &Input,
    outcome: &Outcome,
    (expected, got): (&[u8; WINDOW_BYTES], &[u8; WINDOW_BYTES]),
) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut skip = None;
    for (page, access) in PAGE_ACCESS.into_iter().enumerate() {
        if access != Access::Write {
            continue;
        }
        let range = page * PAGE..(page + 1) * PAGE;
        if expected[range.clone()] == got[range.clone()] {
            continue;
        }
        let skip = skip.get_or_insert_with(|| uncompared_memory(case, code, input, outcome));
        for offset in range {
            let skipped = skip
                .iter()
                .filter(|(range, _)| range.contains(&offset))
                .fold(0, |bits, (_, more)| bits | more);
            if (expected[offset] ^ got[offset]) & !skipped != 0 {
                differences.push(Difference {
                    what: format!("byte at window+{offset:04x}"),
                    expected: format!("{:02x}", expected[offset]),
                    got: format!("{:02x}", got[offset]),
                });
            }
        }
    }
    differences
}
