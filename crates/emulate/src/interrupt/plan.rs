//! The plan of a delivery: what it pushes, on which stack, and what the registers are afterwards.
//!
//! A plan follows from the registers that select a mode and point to tables, and from what is in
//! these tables; it does not depend on the general registers, on the address of the interrupted
//! instruction, and on flags only as far as [`Plan::cleared`] is fixed by the mode. So the plan of
//! one delivery is good for the next delivery of the same event from the same mode, as long as the
//! tables' registers and the words of [`Reads`](super::Reads) are as they were.
//!
//! ```text
//! plan     gate, code segment, stack of the TSS          may fault; reads memory
//! stack    where the frame lies: the pointer, aligned
//! frame    SS, RSP, RFLAGS, CS, RIP, error code          from the present registers
//! enter    SS, RSP, CS, RIP, RFLAGS                      cannot fault
//! ```

use super::Event;
use crate::privilege_change::{InnerStack, PointerSlot};
use crate::stack_access::Stack;
use crate::virtual_8086::virtual_image;
use tollgate_platform::Environment;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{CpuState, Exception, Flags, Gpr, Segment, SegmentRegister, Selector};

/// The alignment of a 64-bit frame in bytes (SDM volume 3, 6.14.2).
const FRAME_ALIGNMENT: u64 = 16;

/// The registers that a frame contains, in the order of the pushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameForm {
    /// FLAGS, CS and IP, in real mode and for a V86 program's own handler.
    VectorTable,
    /// As [`FrameForm::VectorTable`], with FLAGS as a V86 program with a virtual interrupt flag sees
    /// them.
    VirtualFlag,
    /// EFLAGS, CS, EIP, and the error code if the event has one.
    SameStack,
    /// SS and the stack pointer, and after them those of [`FrameForm::SameStack`].
    OtherStack,
    /// GS, FS, DS and ES of a V86 task, which become null, and after them those of
    /// [`FrameForm::OtherStack`].
    Task,
}

/// The stack that a frame is pushed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameStack {
    /// SS in the handler, if the delivery changes SS.
    pub segment: Option<Segment>,
    /// Where the TSS has the stack pointer. `None` if the frame is pushed below the present one.
    pub slot: Option<PointerSlot>,
    /// Whether it is the stack of 64-bit code.
    pub is_64_bit: bool,
    /// The privilege of the stores.
    pub privilege: Privilege,
    /// The error code of the #SS that a limit violation raises.
    pub error_code: u32,
}

impl FrameStack {
    /// The present stack.
    pub fn current(stack: &Stack) -> Self {
        Self {
            segment: None,
            slot: None,
            is_64_bit: stack.is_64_bit,
            privilege: stack.privilege,
            error_code: stack.error_code,
        }
    }

    /// A stack of the TSS.
    pub fn inner(inner: &InnerStack) -> Self {
        Self {
            segment: Some(inner.stack.segment),
            slot: Some(inner.slot),
            ..Self::current(&inner.stack)
        }
    }
}

/// What a delivery does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The contents of the frame.
    pub form: FrameForm,
    /// The size of each value in the frame in bytes: 2, 4 or 8.
    pub size: u32,
    /// The stack that receives the frame.
    pub stack: FrameStack,
    /// CS in the handler.
    pub code: Segment,
    /// RIP of the handler.
    pub rip: u64,
    /// The privilege level of the handler.
    pub cpl: u8,
    /// The flags that are cleared.
    pub cleared: Flags,
}

/// The values of a frame, in the order of the pushes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Frame {
    values: [u64; Self::MOST_VALUES],
    used: usize,
}

impl Frame {
    /// The most values of a frame: four data segments, SS, ESP, EFLAGS, CS, EIP and the error code.
    pub const MOST_VALUES: usize = 10;

    #[inline]
    fn add(&mut self, value: impl Into<u64>) {
        if let Some(place) = self.values.get_mut(self.used) {
            *place = value.into();
            self.used += 1;
        }
    }

    /// The values of the frame, in the order in which they are pushed.
    #[inline]
    pub fn values(&self) -> &[u64] {
        &self.values[..self.used]
    }
}

/// The data segment registers, in the order in which the frame of a V86 task contains them.
const DATA_SEGMENTS: [SegmentRegister; 4] = [
    SegmentRegister::Gs,
    SegmentRegister::Fs,
    SegmentRegister::Ds,
    SegmentRegister::Es,
];

impl Plan {
    /// The stack before the frame is pushed. `slot` is what the TSS has at [`FrameStack::slot`], if
    /// the plan has one. `None` means that this pointer is not canonical.
    #[inline]
    pub fn stack(&self, state: &CpuState, slot: Option<u64>) -> Option<Stack> {
        let mut pointer = match slot {
            Some(pointer) => pointer,
            None => state.register(Gpr::Rsp),
        };
        if self.size == 8 {
            if slot.is_some() && !is_canonical(pointer) {
                return None;
            }
            pointer &= !(FRAME_ALIGNMENT - 1);
        }
        Some(Stack {
            segment: self.stack.segment.unwrap_or(*state.ss()),
            pointer,
            is_64_bit: self.stack.is_64_bit,
            privilege: self.stack.privilege,
            error_code: self.stack.error_code,
        })
    }

    /// The frame of an event.
    #[inline]
    pub fn frame(&self, state: &CpuState, event: &Event) -> Frame {
        let mut frame = Frame::default();
        if self.form == FrameForm::Task {
            for register in DATA_SEGMENTS {
                frame.add(state.segment(register).selector.0);
            }
        }
        if matches!(self.form, FrameForm::Task | FrameForm::OtherStack) {
            frame.add(state.ss().selector.0);
            frame.add(state.register(Gpr::Rsp));
        }
        frame.add(match self.form {
            FrameForm::VirtualFlag => virtual_image(state.flags()),
            _ => event.flags_image(state),
        });
        frame.add(state.cs().selector.0);
        frame.add(event.return_rip);
        if let Some(error_code) = event.error_code
            && !matches!(self.form, FrameForm::VectorTable | FrameForm::VirtualFlag)
        {
            frame.add(error_code);
        }
        frame
    }

    /// Enters the handler, after the frame was stored. `stack` includes the frame.
    #[inline]
    pub fn enter(&self, state: &mut CpuState, stack: &Stack) {
        stack.commit(state);
        *state.segment_mut(SegmentRegister::Cs) = self.code;
        state.rip = self.rip;
        state.flags &= !self.cleared.bits();
        if self.form == FrameForm::Task {
            for register in DATA_SEGMENTS {
                *state.segment_mut(register) = Segment::null(Selector(0));
            }
        }
    }

    /// Makes the delivery that was planned.
    ///
    /// # Errors
    ///
    /// The exception of a push; nothing has changed then.
    pub(super) fn apply(
        &self,
        state: &mut CpuState,
        environment: &mut dyn Environment,
        event: &Event,
    ) -> Result<(), Exception> {
        let slot = self.stack.slot.map(|slot| slot.pointer);
        let fault = Exception::stack_fault(self.stack.error_code);
        let mut stack = self.stack(state, slot).ok_or(fault)?;
        let frame = self.frame(state, event);
        stack.push_all(state, environment, self.size, frame.values())?;
        self.enter(state, &stack);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
