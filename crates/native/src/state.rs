//! The state of a guest program: what is loaded before it runs, and read when it has left.

use std::fmt;
use std::ops::Range;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::flags::Flags;

/// The selector of Linux' code segment for 64-bit programs.
pub const CODE_64: u16 = 0x33;
/// The selector of Linux' segment for data and stacks of programs.
pub const DATA: u16 = 0x2b;

/// The flags that a program can change itself. TF is not loaded: single steps are translated.
pub const LOADED_FLAGS: Flags = Flags::CF
    .union(Flags::PF)
    .union(Flags::AF)
    .union(Flags::ZF)
    .union(Flags::SF)
    .union(Flags::DF)
    .union(Flags::OF)
    .union(Flags::NT)
    .union(Flags::AC)
    .union(Flags::ID);
/// The flags that are read: a program can set TF by POPF.
const READ_FLAGS: Flags = LOADED_FLAGS.union(Flags::TF);

/// Segment selectors, as the host's processor holds them while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name is the manual's")]
pub struct Selectors {
    pub cs: u16,
    pub ss: u16,
    pub ds: u16,
    pub es: u16,
    pub fs: u16,
    pub gs: u16,
}

impl Default for Selectors {
    /// Those of a 64-bit program in Linux: null selectors except for CS and SS.
    fn default() -> Self {
        Self {
            cs: CODE_64,
            ss: DATA,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        }
    }
}

/// Registers of a program. x87 and vector registers stay where the kernel stored them
/// ([`crate::SpaceProcess::vectors`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserState {
    /// General registers in encoding order (RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15).
    pub gpr: [u64; 16],
    /// The address of the next instruction.
    pub rip: u64,
    /// Flags. Of these, a run changes only what a program can change, and never loads TF.
    pub rflags: u64,
    /// Base of the FS segment.
    pub fs_base: u64,
    /// Base of the GS segment.
    pub gs_base: u64,
    /// The selectors that the segment registers hold.
    pub selectors: Selectors,
}

/// Why a state cannot be run natively. The program has not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// RIP, RSP or a segment base is not canonical.
    NotCanonical,
    /// RIP lies where the stub is.
    InReserved,
    /// A selector is not one that [`Selectors::default`] has, or the data segment's.
    Selector,
    /// TF or VM is set.
    Flags,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NotCanonical => "an address of the program is not canonical",
            Self::InReserved => "the program's instruction pointer is where the stub lies",
            Self::Selector => "the program uses a segment that the host does not offer",
            Self::Flags => "the program is single-stepped or in virtual-8086 mode",
        })
    }
}

impl std::error::Error for Refused {}

impl UserState {
    /// Whether the host can be asked to run this.
    ///
    /// # Errors
    /// The state holds what only translated code can run.
    pub fn check(&self, reserved: &Range<u64>) -> Result<(), Refused> {
        let addresses = [self.rip, self.gpr[4], self.fs_base, self.gs_base];
        if !addresses.into_iter().all(is_canonical) {
            return Err(Refused::NotCanonical);
        }
        if reserved.contains(&self.rip) {
            return Err(Refused::InReserved);
        }
        let Selectors {
            cs,
            ss,
            ds,
            es,
            fs,
            gs,
        } = self.selectors;
        let is_data = |selector: u16| selector <= 3 || selector == DATA;
        if cs != CODE_64 || ss != DATA || ![ds, es, fs, gs].into_iter().all(is_data) {
            return Err(Refused::Selector);
        }
        if Flags::from_bits_retain(self.rflags).intersects(Flags::TF | Flags::VM) {
            return Err(Refused::Flags);
        }
        Ok(())
    }

    /// The flags to load.
    pub(crate) fn loaded_flags(&self) -> u64 {
        self.rflags & LOADED_FLAGS.bits()
    }

    /// Takes over the flags that a program can change; others, such as IF, stay.
    pub(crate) fn read_flags(&mut self, host: u64) {
        self.rflags = self.rflags & !READ_FLAGS.bits() | host & READ_FLAGS.bits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVED: Range<u64> = 0x1000..0x3000;

    #[test]
    fn states_that_the_kernel_would_judge_are_refused() {
        let good = UserState::default();
        assert_eq!(good.check(&RESERVED), Ok(()));
        let odd = UserState {
            rip: 1 << 47,
            ..good.clone()
        };
        assert_eq!(odd.check(&RESERVED), Err(Refused::NotCanonical));
        let inside = UserState {
            rip: 0x2fff,
            ..good.clone()
        };
        assert_eq!(inside.check(&RESERVED), Err(Refused::InReserved));
        let step = UserState {
            rflags: 0x100,
            ..good.clone()
        };
        assert_eq!(step.check(&RESERVED), Err(Refused::Flags));
        let mut far = good;
        far.selectors.cs = 0x23;
        assert_eq!(far.check(&RESERVED), Err(Refused::Selector));
    }

    #[test]
    fn a_run_leaves_the_flags_of_the_system_alone() {
        let mut state = UserState {
            rflags: Flags::IF.bits() | Flags::CF.bits(),
            ..UserState::default()
        };
        assert_eq!(state.loaded_flags(), Flags::CF.bits());
        state.read_flags(Flags::RF.bits() | Flags::ZF.bits());
        assert_eq!(state.rflags, Flags::IF.bits() | Flags::ZF.bits());
    }
}
