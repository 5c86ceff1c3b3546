//! Hardware breakpoints: what DR0 to DR3 watch as DR7 says (SDM volume 3, 18.2.4).

use crate::CpuState;

/// DR7: L0 to G3.
const ENABLED: u64 = 0xff;
/// Breakpoint registers.
const COUNT: usize = 4;
/// R/W fields of DR7.
const EXECUTION: u64 = 0;
const WRITES: u64 = 1;
const READS_AND_WRITES: u64 = 3;

/// One enabled breakpoint.
struct Breakpoint {
    number: usize,
    kind: u64,
    /// Linear address of the first byte, a multiple of the length for data.
    address: u64,
    /// 1, 2, 4 or 8 bytes.
    length: u64,
}

impl CpuState {
    /// DR7 enables a breakpoint.
    pub fn has_breakpoints(&self) -> bool {
        self.dr[7] & ENABLED != 0
    }

    /// DR7 enables a breakpoint on reads or writes of memory.
    pub fn has_data_breakpoints(&self) -> bool {
        self.has_breakpoints()
            && self
                .breakpoints()
                .any(|breakpoint| matches!(breakpoint.kind, WRITES | READS_AND_WRITES))
    }

    fn breakpoints(&self) -> impl Iterator<Item = Breakpoint> + '_ {
        let control = self.dr[7];
        let mask = if self.is_long_mode() {
            u64::MAX
        } else {
            0xffff_ffff
        };
        (0..COUNT)
            .filter(move |number| control >> (2 * number) & 3 != 0)
            .map(move |number| {
                let fields = control >> (16 + 4 * number);
                let length = [1, 2, 8, 4][(fields >> 2 & 3) as usize];
                Breakpoint {
                    number,
                    kind: fields & 3,
                    address: self.dr[number] & !(length - 1) & mask,
                    length,
                }
            })
    }

    /// The breakpoints on execution at a linear address, as DR6 shows them (B0 to B3).
    pub fn code_breakpoints_at(&self, linear: u64) -> u64 {
        self.breakpoints()
            .filter(|breakpoint| breakpoint.kind == EXECUTION && breakpoint.address == linear)
            .fold(0, |bits, breakpoint| bits | 1 << breakpoint.number)
    }

    /// The breakpoints on data that an access of `size` bytes meets, as DR6 shows them.
    pub fn data_breakpoints_in(&self, linear: u64, size: u64, write: bool) -> u64 {
        self.breakpoints()
            .filter(|breakpoint| match breakpoint.kind {
                WRITES => write,
                READS_AND_WRITES => true,
                _ => false,
            })
            .filter(|breakpoint| {
                let last = breakpoint.address + (breakpoint.length - 1);
                size != 0 && linear <= last && linear.saturating_add(size - 1) >= breakpoint.address
            })
            .fold(0, |bits, breakpoint| bits | 1 << breakpoint.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breakpoint_covers_the_aligned_bytes_of_its_length() {
        let mut state = CpuState::at_reset();
        state.dr[1] = 0x1003;
        // G1, writes, 4 bytes.
        state.dr[7] = 1 << 3 | 0b1101 << 20;
        assert!(state.has_data_breakpoints());
        for (linear, size, write, hit) in [
            (0x1000, 1, true, true),
            (0xffd, 4, true, true),
            (0xffc, 4, true, false),
            (0x1004, 4, true, false),
            (0x1003, 1, true, true),
            (0x1000, 4, false, false),
        ] {
            let bits = state.data_breakpoints_in(linear, size, write);
            assert_eq!(bits, u64::from(hit) << 1, "{linear:#x} {size} {write}");
        }
        assert_eq!(state.code_breakpoints_at(0x1000), 0);
    }

    #[test]
    fn a_breakpoint_that_is_not_enabled_matches_nothing() {
        let mut state = CpuState::at_reset();
        state.dr[0] = 0x1000;
        assert_eq!(state.code_breakpoints_at(0x1000), 0);
        state.dr[7] |= 1;
        assert_eq!(state.code_breakpoints_at(0x1000), 1);
        assert!(!state.has_data_breakpoints());
    }
}
