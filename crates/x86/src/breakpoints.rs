//! Hardware breakpoints: DR7 selects what DR0 to DR3 watch (SDM volume 3, 18.2.4), and DR6 reports
//! which breakpoints an instruction hit (18.2.3).

use crate::{CpuState, Cr4};

/// The enable bits of DR7, L0 to G3.
const ENABLED: u64 = 0xff;
/// The number of breakpoint registers.
const COUNT: usize = 4;
/// Values of DR7's R/W fields. Without CR4.DE the value for ports is undefined; here it matches
/// nothing.
const EXECUTION: u64 = 0;
const WRITES: u64 = 1;
const PORTS: u64 = 2;
const READS_AND_WRITES: u64 = 3;
/// DR6.B0 to DR6.B3: the breakpoints that were hit.
const DR6_BREAKPOINTS: u64 = 0xf;
/// DR6.BD: DR7.GD was set and an instruction accessed a debug register.
pub const DR6_ACCESS_DETECTED: u64 = 1 << 13;
/// DR7.GD: an access to a debug register is #DB.
pub const DR7_GENERAL_DETECT: u64 = 1 << 13;
/// DR6.BS: single step, EFLAGS.TF.
pub const DR6_SINGLE_STEP: u64 = 1 << 14;
/// DR6.BT: a task switch to a task whose TSS has its debug trap bit set.
pub const DR6_TASK_SWITCH: u64 = 1 << 15;

/// How code must run for a debugger outside of the machine, which the guest does not see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Debugged {
    /// Each instruction returns to the monitor.
    pub instructions: bool,
    /// The monitor performs and compares each access to a page in which memory is watched.
    pub accesses: bool,
    /// Some instructions have breakpoints: control returns to the monitor before these, and no code
    /// may run in a way that does not.
    pub breakpoints: bool,
}

/// One enabled breakpoint.
struct Breakpoint {
    number: usize,
    kind: u64,
    /// Linear address of the first byte, or number of the first port: a multiple of the
    /// length.
    address: u64,
    /// The number of bytes or ports: 1, 2, 4 or 8.
    length: u64,
}

impl Breakpoint {
    /// Whether the breakpoint watches any of the `size` bytes or ports that start at `first`.
    fn overlaps(&self, first: u64, size: u64) -> bool {
        let last = self.address + (self.length - 1);
        size != 0 && first <= last && first.saturating_add(size - 1) >= self.address
    }
}

impl CpuState {
    /// Whether DR7 enables any breakpoint, or each instruction returns to the monitor for a debugger
    /// outside of the machine.
    pub fn has_breakpoints(&self) -> bool {
        self.dr[7] & ENABLED != 0 || self.debugged.instructions
    }

    /// Whether DR7 enables a breakpoint on reads or writes of memory.
    pub fn has_data_breakpoints(&self) -> bool {
        self.has_breakpoints()
            && (self.breakpoints())
                .any(|breakpoint| matches!(breakpoint.kind, WRITES | READS_AND_WRITES))
    }

    /// Whether each access to memory must be seen by itself, for a breakpoint on memory or for a
    /// debugger outside of the machine.
    pub fn watches_memory(&self) -> bool {
        self.debugged.accesses || self.has_data_breakpoints()
    }

    /// Whether DR7 enables a breakpoint on ports; such breakpoints need CR4.DE.
    pub fn has_port_breakpoints(&self) -> bool {
        self.has_breakpoints()
            && self.cr4().contains(Cr4::DE)
            && self
                .breakpoints()
                .any(|breakpoint| breakpoint.kind == PORTS)
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

    /// The breakpoints on execution at a linear address, as the bits B0 to B3 of DR6.
    pub fn code_breakpoints_at(&self, linear: u64) -> u64 {
        self.breakpoints()
            .filter(|breakpoint| breakpoint.kind == EXECUTION && breakpoint.address == linear)
            .fold(0, |bits, breakpoint| bits | 1 << breakpoint.number)
    }

    /// The data breakpoints that an access of `size` bytes hits, as the bits B0 to B3 of DR6.
    pub fn data_breakpoints_in(&self, linear: u64, size: u64, write: bool) -> u64 {
        self.breakpoints()
            .filter(|breakpoint| match breakpoint.kind {
                WRITES => write,
                READS_AND_WRITES => true,
                _ => false,
            })
            .filter(|breakpoint| breakpoint.overlaps(linear, size))
            .fold(0, |bits, breakpoint| bits | 1 << breakpoint.number)
    }

    /// The port breakpoints that an access of `size` ports from `port` on hits, as the bits B0 to
    /// B3 of DR6. The port number is compared with the whole debug register (SDM volume 3, 18.2.5).
    pub fn port_breakpoints_in(&self, port: u16, size: u32) -> u64 {
        if !self.cr4().contains(Cr4::DE) {
            return 0;
        }
        self.breakpoints()
            .filter(|breakpoint| breakpoint.kind == PORTS)
            .filter(|breakpoint| breakpoint.overlaps(u64::from(port), u64::from(size)))
            .fold(0, |bits, breakpoint| bits | 1 << breakpoint.number)
    }

    /// Sets DR6 to the reasons for a #DB: `conditions` are the bits B0 to B3, BD, BS and BT. The
    /// bits B0 to B3 of breakpoints that were not hit are cleared; the other bits stay set until
    /// software clears them (AMD's manual volume 2, 13.1.1.3; SDM volume 3, 18.2.3: "certain debug
    /// exceptions may clear bits 0-3").
    pub fn report_debug_conditions(&mut self, conditions: u64) {
        self.dr[6] = self.dr[6] & !DR6_BREAKPOINTS | conditions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breakpoint_covers_the_aligned_bytes_of_its_length() {
        let mut state = CpuState::at_reset();
        state.dr[1] = 0x1003;
        // DR7: G1 is set; breakpoint 1 watches writes of 4 bytes.
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

    #[test]
    fn a_breakpoint_on_ports_needs_cr4_de_and_covers_the_aligned_ports_of_its_length() {
        let mut state = CpuState::at_reset();
        state.dr[2] = 0x3fb;
        // DR7: L2 is set; breakpoint 2 watches 4 ports.
        state.dr[7] = 1 << 4 | 0b1110 << 24;
        assert!(!state.has_port_breakpoints());
        assert_eq!(state.port_breakpoints_in(0x3f8, 1), 0);
        state.cr4 = Cr4::DE.bits();
        assert!(state.has_port_breakpoints());
        assert!(!state.has_data_breakpoints());
        for (port, size, hit) in [
            (0x3f8, 1, true),
            (0x3fb, 1, true),
            (0x3fc, 1, false),
            (0x3f7, 1, false),
            (0x3f7, 2, true),
            (0x3f5, 4, true),
            (0x3f4, 4, false),
        ] {
            let bits = state.port_breakpoints_in(port, size);
            assert_eq!(bits, u64::from(hit) << 2, "{port:#x} {size}");
        }
        assert_eq!(state.data_breakpoints_in(0x3f8, 4, true), 0);
        assert_eq!(state.code_breakpoints_at(0x3f8), 0);
        // Port numbers have 16 bits, and an access does not wrap to port 0.
        state.dr[2] = 0x1_03f8;
        assert_eq!(state.port_breakpoints_in(0x3f8, 4), 0);
        state.dr[2] = 0;
        assert_eq!(state.port_breakpoints_in(0xffff, 4), 0);
    }

    #[test]
    fn a_report_replaces_the_breakpoints_of_the_last_one_and_no_other_bit() {
        let mut state = CpuState::at_reset();
        state.report_debug_conditions(0b0101);
        assert_eq!(state.dr[6], 0xffff_0ff5);
        state.report_debug_conditions(DR6_SINGLE_STEP);
        assert_eq!(state.dr[6], 0xffff_4ff0);
        state.report_debug_conditions(0b0010);
        assert_eq!(state.dr[6], 0xffff_4ff2);
        state.report_debug_conditions(DR6_ACCESS_DETECTED);
        assert_eq!(state.dr[6], 0xffff_6ff0);
    }
}
