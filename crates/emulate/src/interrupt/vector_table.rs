//! Plans of deliveries through a vector table: in real mode, and of INT n to a V86 program itself.

use super::plan::{FrameForm, FrameStack, Plan};
use super::reads::Reader;
use super::{Event, Target};
use crate::operand::read_system;
use crate::stack_access::Stack;
use crate::virtual_8086::{InterruptFlag, interrupt_flag};
use tollgate_x86::{CpuState, Exception, Flags, SegmentRegister};

/// The linear address of a V86 program's vector table, which has four bytes for each vector.
const PROGRAMS_TABLE: u64 = 0;

impl Event {
    /// Real mode: the interrupt vector table (SDM volume 3, 21.1.4).
    pub(super) fn plan_real(
        &self,
        state: &CpuState,
        tables: &mut Reader,
        target: &mut Target,
    ) -> Result<(), Exception> {
        let offset = u32::from(self.vector) * 4;
        if offset + 3 > u32::from(state.idtr.limit) {
            return Err(Exception::general_protection(offset + 2));
        }
        let cleared = Flags::IF | Flags::TF | Flags::AC | Flags::RF;
        let form = FrameForm::VectorTable;
        self.plan_by_table(state, tables, target, state.idtr.base, form, cleared)
    }

    /// INT n of V86 code to the V86 program itself: methods 5 and 6 of table 20-2. The task stays in
    /// V86 mode, and the frame is written to its own 16-bit stack. The vector table is read with the
    /// processor's own privilege.
    pub(super) fn plan_to_program(
        &self,
        state: &CpuState,
        tables: &mut Reader,
        target: &mut Target,
    ) -> Result<(), Exception> {
        let (form, disabled) = match interrupt_flag(state)? {
            InterruptFlag::Real => (FrameForm::VectorTable, Flags::IF),
            InterruptFlag::Virtual => (FrameForm::VirtualFlag, Flags::VIF),
        };
        let cleared = disabled | Flags::TF | Flags::RF;
        self.plan_by_table(state, tables, target, PROGRAMS_TABLE, form, cleared)
    }

    /// The delivery through the table at linear address `base`.
    fn plan_by_table(
        &self,
        state: &CpuState,
        tables: &mut Reader,
        target: &mut Target,
        base: u64,
        form: FrameForm,
        cleared: Flags,
    ) -> Result<(), Exception> {
        let mut entry = [0; 4];
        let offset = u64::from(self.vector) * 4;
        read_system(state, tables, base, offset, &mut entry)?;
        let [ip_low, ip_high, cs_low, cs_high] = entry;
        let selector = u16::from_le_bytes([cs_low, cs_high]);
        *target = Target::Handler(Plan {
            form,
            size: 2,
            stack: FrameStack::current(&Stack::current(state)),
            code: state.real_mode_segment(SegmentRegister::Cs, selector),
            rip: u64::from(u16::from_le_bytes([ip_low, ip_high])),
            cpl: state.cpl(),
            cleared,
        });
        Ok(())
    }
}
