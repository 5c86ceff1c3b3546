//! Where EFLAGS is while guest code runs: the arithmetic flags are in the host's flags, the others
//! in fields of the context.

use crate::abi::context::Context;
use tollgate_x86::flags::Flags;

/// The flag with which a program enables and disables interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptFlag {
    /// EFLAGS.IF.
    Real,
    /// EFLAGS.VIF.
    Virtual,
}

/// The flags that translated code does not change: an instruction that would change one exits. The
/// exception is VIF, where programs may change it
/// ([`crate::policy::mode::ModeFlags::VIRTUAL_INTERRUPTS`]).
pub const SYSTEM_FLAGS: Flags = Flags::TF
    .union(Flags::IOPL)
    .union(Flags::NT)
    .union(Flags::AC)
    .union(Flags::VIF)
    .union(Flags::VIP)
    .union(Flags::ID);

impl Context {
    /// The arithmetic flags with which guest code was left.
    pub fn arithmetic_flags(&self) -> u64 {
        let flags = u64::from(self.hot.arithmetic >> 8) & (Flags::ARITHMETIC - Flags::OF).bits();
        if self.hot.arithmetic & 1 != 0 {
            flags | Flags::OF.bits()
        } else {
            flags
        }
    }

    /// Moves the flags that guest code keeps elsewhere into `cpu.flags`.
    pub fn gather_flags(&mut self) {
        // RF is cleared: it is valid for one instruction only, and guest code has run.
        let elsewhere = Flags::ARITHMETIC | Flags::DF | Flags::IF | Flags::RF | Flags::VIF;
        let mut flags = self.cpu.flags & !elsewhere.bits() | self.hot.interrupt_flag;
        flags |= self.hot.system_flags & Flags::VIF.bits();
        flags |= self.arithmetic_flags();
        if self.hot.direction < 0 {
            flags |= Flags::DF.bits();
        }
        self.cpu.flags = flags;
    }

    /// Moves flags from `cpu.flags` to where guest code keeps them; the reverse of
    /// [`Context::gather_flags`].
    pub fn scatter_flags(&mut self) {
        let flags = self.cpu.flags;
        self.hot.arithmetic =
            ((flags & 0xd5) as u16) << 8 | u16::from(flags & Flags::OF.bits() != 0);
        self.hot.direction = if flags & Flags::DF.bits() != 0 { -1 } else { 1 };
        self.hot.interrupt_flag = flags & Flags::IF.bits();
        self.hot.system_flags = flags & SYSTEM_FLAGS.bits();
    }

    /// Sets or clears EFLAGS.AC.
    pub fn set_access_flag(&mut self, enabled: bool) {
        for flags in [&mut self.cpu.flags, &mut self.hot.system_flags] {
            *flags &= !Flags::AC.bits();
            if enabled {
                *flags |= Flags::AC.bits();
            }
        }
    }

    /// Sets or clears EFLAGS.VIF.
    pub fn set_virtual_interrupt_flag(&mut self, enabled: bool) {
        self.hot.system_flags &= !Flags::VIF.bits();
        if enabled {
            self.hot.system_flags |= Flags::VIF.bits();
        }
    }

    /// Loads flags from an `image` as emitted code does, except the arithmetic flags.
    pub fn load_flags(&mut self, image: u64, interrupt: Option<InterruptFlag>) {
        let enables = image & Flags::IF.bits();
        match interrupt {
            Some(InterruptFlag::Real) => self.hot.interrupt_flag = enables,
            Some(InterruptFlag::Virtual) => self.set_virtual_interrupt_flag(enables != 0),
            None => {}
        }
        self.hot.direction = if image & Flags::DF.bits() != 0 { -1 } else { 1 };
    }
}
