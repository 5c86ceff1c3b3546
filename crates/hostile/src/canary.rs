//! Memory that belongs to nobody: whatever changes it wrote where it must not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

const BYTES: usize = 64 << 10;
const PATTERN: u8 = 0xc5;

/// Blocks of process memory with a known pattern, made once: on the heap among
/// whatever else lies there.
struct Canaries {
    small: Vec<u8>,
    large: Vec<u8>,
}

/// Not constant, so it lies where writes are possible.
static IN_DATA: [AtomicU8; 256] = [const { AtomicU8::new(PATTERN) }; 256];

fn canaries() -> &'static Canaries {
    static CANARIES: OnceLock<Canaries> = OnceLock::new();
    CANARIES.get_or_init(|| Canaries {
        small: vec![PATTERN; 512],
        large: vec![PATTERN; BYTES],
    })
}

/// Puts the canaries in place; before the first machine is made.
pub fn place() {
    canaries();
}

/// Checks that all are as they were.
///
/// # Panics
/// One is not.
pub fn check() {
    let Canaries { small, large } = canaries();
    for canary in [small, large] {
        let changed = std::hint::black_box(canary)
            .iter()
            .position(|byte| *byte != PATTERN);
        assert_eq!(changed, None, "process memory was written");
    }
    let changed = IN_DATA
        .iter()
        .position(|byte| byte.load(Ordering::Relaxed) != PATTERN);
    assert_eq!(changed, None, "process memory was written");
}
