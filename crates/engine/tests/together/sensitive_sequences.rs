//! Sensitive instructions next to others that leave for the monitor, in every order: the short
//! branches of their checks reach the exits, and the emitted code passes the verifier.

use crate::support::{emitted, mode};

const MODES: [&str; 20] = [
    "flat32",
    "flat32+spilled",
    "flat32+ss-based",
    "flat32+ss-limited+ds-limited",
    "flat32+ss-limited+ds-limited+spilled",
    "flat32+stack16",
    "flat16",
    "prot16",
    "user32+iopl3",
    "user32+ss-limited",
    "real",
    "real+ss-limited",
    "real+spilled",
    "vm86+iopl3",
    "vm86+iopl3+vme",
    "vm86+vme",
    "vm86+vme+spilled",
    "user32+pvi",
    "long",
    "compat",
];

/// CLI, STI, PUSHF and POPF of two sizes, and some instructions that look memory up.
const PIECES: [&str; 12] = [
    "FA", "FB", "9C", "9D", "669C", "669D", "50", "58", "8B03", "8903", "0107", "A4",
];
/// Instructions that may end a block.
const ENDS: [&str; 6] = ["CD60", "CF", "66CF", "48CF", "C3", "90"];

#[test]
fn every_order_of_sensitive_and_other_instructions_can_be_translated() {
    let mut translated = 0;
    for mode in MODES {
        for arm in ["", "+vir-off"] {
            let mode = format!("{mode}{arm}");
            for first in PIECES {
                for second in PIECES {
                    for third in PIECES {
                        for end in ENDS {
                            let code = [first, second, third, end].concat();
                            let guest = mode::Guest::of(&mode, &code);
                            let emitted = emitted::Emitted::of(&guest);
                            assert_ne!(emitted.bytes, 0);
                            translated += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(translated > 300_000);
}
