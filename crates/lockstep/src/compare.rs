//! Defines which differences between the registers of two processors count.

use crate::registers::{GENERAL_NAMES, Hidden, Registers, SEGMENT_NAMES};
use iced_x86::{Instruction, Mnemonic, OpKind, RflagsBits};
use tollgate_x86::flags::Flags;
use tollgate_x86::{Attributes, PhysicalAddress, Segment};

/// A register or a piece of memory that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The register's name, or the address in memory.
    pub name: String,
    /// The address in memory, if it is not a register.
    pub physical: Option<PhysicalAddress>,
    /// Tollgate's value.
    pub ours: u64,
    /// QEMU's value.
    pub theirs: u64,
}

/// CR0 bits that have the same meaning on both sides: not CD and NW, which neither obeys.
const CR0_COMPARED: u32 = 0x8005_002f;

/// EFLAGS bits that the manual leaves undefined after this instruction.
pub fn undefined_flags(instruction: &Instruction) -> u32 {
    let undefined = instruction.rflags_undefined();
    let pairs = [
        (RflagsBits::OF, Flags::OF),
        (RflagsBits::SF, Flags::SF),
        (RflagsBits::ZF, Flags::ZF),
        (RflagsBits::AF, Flags::AF),
        (RflagsBits::CF, Flags::CF),
        (RflagsBits::PF, Flags::PF),
    ];
    let mut undefined = undefined;
    // OF is also undefined where a rotation through carry returns to its start (SDM volume 2, RCL).
    let rotates_through_carry = matches!(instruction.mnemonic(), Mnemonic::Rcl | Mnemonic::Rcr);
    if rotates_through_carry
        && !(instruction.op1_kind() == OpKind::Immediate8 && instruction.immediate8() == 1)
    {
        undefined |= RflagsBits::OF;
    }
    pairs
        .into_iter()
        .filter(|(bit, _)| undefined & bit != 0)
        .fold(0, |mask, (_, flag)| mask | flag.bits() as u32)
}

/// All registers that differ, except for the bits of EFLAGS in `ignored_flags`. Hidden parts are
/// compared if both sides provide them.
pub fn differences(ours: &Registers, theirs: &Registers, ignored_flags: u32) -> Vec<Difference> {
    let mut found = Found::default();
    for (index, name) in GENERAL_NAMES.iter().enumerate() {
        let seen = match (theirs.wide, index) {
            (true, _) => u64::MAX,
            (false, 0..8) => 0xffff_ffff,
            (false, _) => 0,
        };
        found.check(
            name,
            ours.general[index] & seen,
            theirs.general[index] & seen,
        );
    }
    found.check("RIP", ours.rip, theirs.rip);
    let flags = Flags::ALL.bits() as u32 & !ignored_flags;
    found.check("EFLAGS", ours.eflags & flags, theirs.eflags & flags);
    for (index, name) in SEGMENT_NAMES.iter().enumerate() {
        found.check(name, ours.selectors[index], theirs.selectors[index]);
    }
    found.check("CR0", ours.cr0 & CR0_COMPARED, theirs.cr0 & CR0_COMPARED);
    found.check("CR2", ours.cr2, theirs.cr2);
    found.check("CR3", ours.cr3, theirs.cr3);
    found.check("CR4", ours.cr4, theirs.cr4);
    found.check("EFER", ours.efer, theirs.efer);
    if let (Some(our_hidden), Some(their_hidden)) = (&ours.hidden, &theirs.hidden) {
        found.check_hidden(
            our_hidden,
            their_hidden,
            theirs.has_real_mode_segments(),
            theirs.is_long_mode(),
        );
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<Difference>);

impl Found {
    fn check(&mut self, name: &str, ours: impl Into<u64>, theirs: impl Into<u64>) {
        let (ours, theirs) = (ours.into(), theirs.into());
        if ours != theirs {
            self.0.push(Difference {
                name: name.to_owned(),
                physical: None,
                ours,
                theirs,
            });
        }
    }

    fn check_hidden(&mut self, ours: &Hidden, theirs: &Hidden, real_mode: bool, long_mode: bool) {
        for (index, name) in SEGMENT_NAMES.iter().enumerate() {
            if long_mode && theirs.segments[index].selector.is_null() {
                // The content of an unusable register does not matter, except for the base of FS
                // and GS.
                if index >= 4 {
                    let (ours, theirs) = (ours.segments[index].base, theirs.segments[index].base);
                    self.check(&format!("{name} base"), ours, theirs);
                }
                continue;
            }
            self.check_segment(
                name,
                &ours.segments[index],
                &theirs.segments[index],
                real_mode,
            );
        }
        if !real_mode {
            self.check("LDTR", ours.ldtr.selector.0, theirs.ldtr.selector.0);
            self.check("TR", ours.tr.selector.0, theirs.tr.selector.0);
            if !theirs.ldtr.selector.is_null() {
                self.check_system_segment("LDTR", &ours.ldtr, &theirs.ldtr);
            }
            if !theirs.tr.selector.is_null() {
                self.check_system_segment("TR", &ours.tr, &theirs.tr);
            }
        }
        for (name, ours, theirs) in [
            ("GDTR", ours.gdtr, theirs.gdtr),
            ("IDTR", ours.idtr, theirs.idtr),
        ] {
            self.check(&format!("{name} base"), ours.base, theirs.base);
            self.check(&format!("{name} limit"), ours.limit, theirs.limit);
        }
    }

    fn check_segment(&mut self, name: &str, ours: &Segment, theirs: &Segment, real_mode: bool) {
        if !real_mode {
            self.check(
                &format!("{name} usable"),
                u64::from(ours.is_usable()),
                u64::from(theirs.is_usable()),
            );
            if !ours.is_usable() || !theirs.is_usable() {
                return;
            }
            self.check(&format!("{name} limit"), ours.limit, theirs.limit);
            // Both sides keep the descriptor's accessed bit; real processors show it as set.
            let compared = Attributes::all() - Attributes::ACCESSED;
            let (our, their) = (ours.attributes & compared, theirs.attributes & compared);
            // CS as loaded in real mode is data on processors, but code in QEMU.
            if name != "CS" || ours.attributes.is_code() {
                self.check(&format!("{name} attributes"), our.bits(), their.bits());
            }
        }
        self.check(&format!("{name} base"), ours.base, theirs.base);
    }

    fn check_system_segment(&mut self, name: &str, ours: &Segment, theirs: &Segment) {
        self.check(&format!("{name} base"), ours.base, theirs.base);
        self.check(&format!("{name} limit"), ours.limit, theirs.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};
    use tollgate_x86::Selector;

    fn decode(bytes: &[u8]) -> Instruction {
        Decoder::new(32, bytes, DecoderOptions::NONE).decode()
    }

    #[test]
    fn equal_registers_do_not_differ() {
        assert_eq!(
            differences(&Registers::default(), &Registers::default(), 0),
            []
        );
    }

    #[test]
    fn a_general_register_is_named() {
        let theirs = Registers {
            general: std::array::from_fn(|index| if index == 2 { 7 } else { 0 }),
            ..Registers::default()
        };
        let expected = Difference {
            name: "RDX".to_owned(),
            physical: None,
            ours: 0,
            theirs: 7,
        };
        assert_eq!(differences(&Registers::default(), &theirs, 0), [expected]);
    }

    #[test]
    fn ignored_and_reserved_flags_do_not_count() {
        let theirs = Registers {
            eflags: 0x12 | 1 << 31,
            ..Registers::default()
        };
        assert_eq!(differences(&Registers::default(), &theirs, 0x10), []);
        assert_eq!(differences(&Registers::default(), &theirs, 0).len(), 1);
    }

    #[test]
    fn and_leaves_only_the_auxiliary_carry_undefined() {
        assert_eq!(
            undefined_flags(&decode(&[0x21, 0xc0])),
            Flags::AF.bits() as u32
        );
    }

    #[test]
    fn shifts_by_one_define_overflow_and_longer_ones_do_not() {
        let by_one = undefined_flags(&decode(&[0xd1, 0xe0]));
        let by_two = undefined_flags(&decode(&[0xc1, 0xe0, 0x02]));
        assert_eq!(by_one & Flags::OF.bits() as u32, 0);
        assert_ne!(by_two & Flags::OF.bits() as u32, 0);
    }

    #[test]
    fn moves_leave_no_flag_undefined() {
        assert_eq!(undefined_flags(&decode(&[0x89, 0xc0])), 0);
    }

    #[test]
    fn hidden_parts_count_where_both_know_them() {
        let hidden = |base| {
            let mut hidden = Hidden::default();
            hidden.segments[3] = Segment::real_mode(0x10, 0);
            hidden.segments[3].base = base;
            hidden.segments[3].selector = Selector(0x10);
            Registers {
                hidden: Some(hidden),
                cr0: 1,
                ..Registers::default()
            }
        };
        let found = differences(&hidden(0), &hidden(16), 0);
        assert_eq!(
            found,
            [Difference {
                name: "DS base".to_owned(),
                physical: None,
                ours: 0,
                theirs: 16
            }]
        );
        let unknown = Registers {
            hidden: None,
            ..hidden(16)
        };
        assert_eq!(differences(&hidden(0), &unknown, 0), []);
    }

    #[test]
    fn unusable_segments_are_alike_whatever_they_hold() {
        let hidden = |base| {
            let mut hidden = Hidden::default();
            hidden.segments[5].base = base;
            Registers {
                hidden: Some(hidden),
                cr0: 1,
                ..Registers::default()
            }
        };
        assert_eq!(differences(&hidden(0), &hidden(16), 0), []);
    }
}
