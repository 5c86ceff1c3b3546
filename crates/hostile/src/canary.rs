//! Memory that nothing uses: a change shows that something wrote to a wrong address.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

const BYTES: usize = 64 << 10;
const PATTERN: u8 = 0xc5;

/// Blocks of process memory with a known pattern, allocated once on the heap among all other data.
struct Canaries {
    small: Vec<u8>,
    large: Vec<u8>,
}

/// Not constant, so that it lies in writable memory.
static IN_DATA: [AtomicU8; 256] = [const { AtomicU8::new(PATTERN) }; 256];

fn canaries() -> &'static Canaries {
    static CANARIES: OnceLock<Canaries> = OnceLock::new();
    CANARIES.get_or_init(|| Canaries {
        small: vec![PATTERN; 512],
        large: vec![PATTERN; BYTES],
    })
}

/// Allocates the canaries; called before the first machine is made.
pub fn place() {
    canaries();
}

/// Checks that no canary has changed.
///
/// # Panics
///
/// Panics if one has changed.
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
