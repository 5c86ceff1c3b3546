//! Pushes and pops that change the registers only if the whole instruction succeeds.
//!
//! A [`Stack`] is a copy of SS:ESP that moves while the processor's registers do not change; at the
//! end, [`Stack::commit`] writes it back. Stack switches make one for the new stack.

use crate::canonical::require_canonical_range;
use crate::memory_access::{
    check_alignment, is_inside, probe_wrapping, read_wrapping, write_wrapping,
};
use tollgate_platform::Environment;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{CpuState, Exception, Gpr, LinearAddress, Segment};

/// Maximum number of values in one frame: a call gate's 31 parameters, and SS, ESP, CS, EIP.
const MOST_VALUES: usize = 35;

/// A stack that one instruction uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stack {
    /// The stack segment.
    pub segment: Segment,
    /// RSP or ESP. A 16-bit stack uses and changes only the low half.
    pub pointer: u64,
    /// Whether it is the stack of 64-bit code: all of RSP is used, without a segment.
    pub is_64_bit: bool,
    /// The privilege of the accesses.
    pub privilege: Privilege,
    /// Error code of the #SS that a limit violation raises.
    pub error_code: u32,
}

impl Stack {
    /// The current stack.
    pub fn current(state: &CpuState) -> Self {
        Self {
            segment: *state.ss(),
            pointer: state.register(Gpr::Rsp),
            is_64_bit: state.is_64_bit(),
            privilege: Privilege::of_cpl(state.cpl()),
            error_code: 0,
        }
    }

    /// A mask of the stack pointer's bits in use: 64 for 64-bit code, otherwise 32, or 16 if SS is
    /// a 16-bit segment.
    pub const fn mask(&self) -> u64 {
        if self.is_64_bit {
            u64::MAX
        } else if self.segment.is_big() {
            0xffff_ffff
        } else {
            0xffff
        }
    }

    /// Moves the pointer up by `bytes` (down, if negative).
    pub const fn advance(&mut self, bytes: i64) {
        let mask = self.mask();
        let moved = self.pointer.wrapping_add(bytes as u64) & mask;
        // As for other registers, a 32-bit result clears the upper half.
        self.pointer = if mask == 0xffff {
            (self.pointer & !mask) | moved
        } else {
            moved
        };
    }

    /// Writes this stack to the processor's SS and ESP.
    pub fn commit(&self, state: &mut CpuState) {
        *state.segment_mut(tollgate_x86::SegmentRegister::Ss) = self.segment;
        state.gpr[Gpr::Rsp as usize] = self.pointer;
    }

    /// The linear address of `size` bytes at `offset`, after the segment checks.
    fn linear(&self, offset: u64, size: u32) -> Result<LinearAddress, Exception> {
        if self.is_64_bit {
            let fault = Exception::stack_fault(self.error_code);
            require_canonical_range(offset, u64::from(size), fault)?;
            return Ok(LinearAddress(offset));
        }
        if !self.segment.is_usable() || !is_inside(&self.segment, offset, size) {
            return Err(Exception::stack_fault(self.error_code));
        }
        let linear = self.segment.base.wrapping_add(offset) & self.linear_mask();
        Ok(LinearAddress(linear))
    }

    /// Mask of the bits of linear addresses in this stack.
    const fn linear_mask(&self) -> u64 {
        if self.is_64_bit {
            u64::MAX
        } else {
            0xffff_ffff
        }
    }

    fn read(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        linear: LinearAddress,
        data: &mut [u8],
    ) -> Result<(), Exception> {
        let mask = self.linear_mask();
        read_wrapping(state, environment, mask, linear, data, self.privilege)
    }

    fn write(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        linear: LinearAddress,
        data: &[u8],
    ) -> Result<(), Exception> {
        let mask = self.linear_mask();
        write_wrapping(state, environment, mask, linear, data, self.privilege)
    }

    fn probe(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        linear: LinearAddress,
        size: u32,
    ) -> Result<(), Exception> {
        let mask = self.linear_mask();
        probe_wrapping(state, environment, mask, linear, size, self.privilege)
    }

    /// Whether `total` bytes at `offset` are contiguous, since they do not wrap at the end of the
    /// stack pointer's range.
    fn is_contiguous(&self, offset: u64, total: u64) -> bool {
        offset
            .checked_add(total.saturating_sub(1))
            .is_some_and(|last| last <= self.mask())
    }

    /// The linear address of a frame of `total` bytes that is pushed in one piece. `None` if the
    /// frame wraps at the end of the stack pointer's range, or a push would raise #SS.
    #[inline]
    pub fn place_below(&self, total: u64) -> Option<LinearAddress> {
        let offset = self.pointer.wrapping_sub(total) & self.mask();
        if !self.is_contiguous(offset, total) {
            return None;
        }
        self.linear(offset, total as u32).ok()
    }

    /// Pushes all of `values` in order, each of `size` (2, 4 or 8) bytes, or none.
    ///
    /// # Errors
    ///
    /// #SS if a value does not fit, #AC, or the page fault; nothing was written.
    pub fn push_all(
        &mut self,
        state: &CpuState,
        environment: &mut dyn Environment,
        size: u32,
        values: &[u64],
    ) -> Result<(), Exception> {
        let count = values.len().min(MOST_VALUES);
        let width = (size as usize).clamp(1, 8);
        let total = (count * width) as u64;
        let offset = self.pointer.wrapping_sub(total) & self.mask();
        let mut image = [0; MOST_VALUES * 8];
        let image = frame_image(size, &values[..count], &mut image);
        if self.is_contiguous(offset, total) {
            let linear = self.linear(offset, total as u32)?;
            check_alignment(state, linear, size, self.privilege)?;
            if let Err(fault) = self.write(state, environment, linear, image) {
                // The processor pushes from the top, so that is where it faults first.
                for index in (0..count).rev() {
                    let place = offset.wrapping_add((index * width) as u64);
                    let linear = self.linear(place, size)?;
                    self.probe(state, environment, linear, size)?;
                }
                return Err(fault);
            }
        } else {
            let place = |index: usize| offset.wrapping_add((index * width) as u64) & self.mask();
            for index in (0..count).rev() {
                let linear = self.linear(place(index), size)?;
                check_alignment(state, linear, size, self.privilege)?;
                self.probe(state, environment, linear, size)?;
            }
            for (index, bytes) in image.chunks(width).enumerate() {
                let linear = self.linear(place(index), size)?;
                self.write(state, environment, linear, bytes)?;
            }
        }
        self.advance(-(total as i64));
        Ok(())
    }

    /// Pushes one value of `size` (2, 4 or 8) bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Stack::push_all`].
    pub fn push(
        &mut self,
        state: &CpuState,
        environment: &mut dyn Environment,
        size: u32,
        value: impl Into<u64>,
    ) -> Result<(), Exception> {
        self.push_all(state, environment, size, &[value.into()])
    }

    /// Checks that one value of `size` (2, 4 or 8) bytes can be pushed.
    ///
    /// # Errors
    ///
    /// Those of [`Stack::push_all`].
    pub fn probe_push(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        size: u32,
    ) -> Result<(), Exception> {
        let offset = self.pointer.wrapping_sub(u64::from(size)) & self.mask();
        let linear = self.linear(offset, size)?;
        check_alignment(state, linear, size, self.privilege)?;
        self.probe(state, environment, linear, size)
    }

    /// Pops `N` values of `size` (2, 4 or 8) bytes, zero-extended, lowest first.
    ///
    /// # Errors
    /// #SS if a value is outside the segment, #AC, or the page fault.
    pub fn pop_all<const N: usize>(
        &mut self,
        state: &CpuState,
        environment: &mut dyn Environment,
        size: u32,
    ) -> Result<[u64; N], Exception> {
        let mut values = [0; N];
        self.peek(state, environment, size, &mut values)?;
        self.advance(N as i64 * i64::from(size));
        Ok(values)
    }

    /// Pops one value of `size` (2, 4 or 8) bytes, zero-extended.
    ///
    /// # Errors
    ///
    /// Those of [`Stack::pop_all`].
    pub fn pop(
        &mut self,
        state: &CpuState,
        environment: &mut dyn Environment,
        size: u32,
    ) -> Result<u64, Exception> {
        self.pop_all::<1>(state, environment, size)
            .map(|[value]| value)
    }

    /// Reads up to 35 values of `size` (2, 4 or 8) bytes without moving the pointer, lowest first.
    ///
    /// # Errors
    ///
    /// Those of [`Stack::pop_all`].
    pub fn peek(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        size: u32,
        values: &mut [u64],
    ) -> Result<(), Exception> {
        let count = values.len().min(MOST_VALUES);
        let width = (size as usize).clamp(1, 8);
        let total = (count * width) as u64;
        let offset = self.pointer & self.mask();
        let mut image = [0; MOST_VALUES * 8];
        let image = &mut image[..count * width];
        if self.is_contiguous(offset, total) {
            let linear = self.linear(offset, total as u32)?;
            check_alignment(state, linear, size, self.privilege)?;
            self.read(state, environment, linear, image)?;
        } else {
            for (index, bytes) in image.chunks_mut(width).enumerate() {
                let place = offset.wrapping_add((index * width) as u64) & self.mask();
                let linear = self.linear(place, size)?;
                check_alignment(state, linear, size, self.privilege)?;
                self.read(state, environment, linear, bytes)?;
            }
        }
        for (value, bytes) in values.iter_mut().zip(image.chunks(width)) {
            let mut padded = [0; 8];
            padded[..width].copy_from_slice(bytes);
            *value = u64::from_le_bytes(padded);
        }
        Ok(())
    }
}

/// The bytes of pushed values, each of `size` (2, 4 or 8) bytes, as they lie in memory: the value
/// that was pushed last lies lowest. Values without room in `bytes` are left out.
#[inline]
pub fn frame_image<'a>(size: u32, values: &[u64], bytes: &'a mut [u8]) -> &'a [u8] {
    match size {
        2 => image_of::<2>(values, bytes),
        4 => image_of::<4>(values, bytes),
        _ => image_of::<8>(values, bytes),
    }
}

#[inline]
fn image_of<'a, const SIZE: usize>(values: &[u64], bytes: &'a mut [u8]) -> &'a [u8] {
    let mut used = 0;
    for (place, value) in bytes.chunks_exact_mut(SIZE).zip(values.iter().rev()) {
        place.copy_from_slice(&value.to_le_bytes()[..SIZE]);
        used += SIZE;
    }
    &bytes[..used]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{TestEnvironment, long_mode, protected_mode, real_mode};
    use tollgate_x86::exception::PageFaultCode;
    use tollgate_x86::{Attributes, Cr0, Flags, Vector};

    #[test]
    fn a_frame_lies_with_its_last_value_lowest() {
        let (mut state, mut environment) = protected_mode(0);
        let mut stack = Stack::current(&state);
        assert_eq!(
            stack.push_all(&state, &mut environment, 2, &[1, 2, 3]),
            Ok(())
        );
        assert_eq!(environment.u32(0x7ffa), 0x0002_0003);
        assert_eq!(state.register(Gpr::Rsp), 0x8000);
        stack.commit(&mut state);
        assert_eq!(state.register(Gpr::Rsp), 0x7ffa);
        let popped = stack.pop_all(&state, &mut environment, 2);
        assert_eq!(popped, Ok([3, 2, 1]));
        assert_eq!(stack.pointer, 0x8000);
    }

    #[test]
    fn a_frame_that_faults_in_its_middle_is_not_written_at_all() {
        let (mut state, mut environment) = real_mode();
        state.gpr[Gpr::Rsp as usize] = 2;
        environment.not_present.push(0x1_1ffc..0x1_1ffe);
        let mut stack = Stack::current(&state);
        let pushed = stack.push_all(&state, &mut environment, 2, &[1, 2, 3]);
        let fault = Exception::page_fault(LinearAddress(0x1_1ffc), PageFaultCode::WRITE);
        assert_eq!(pushed, Err(fault));
        assert_eq!(environment.u16(0x2000), 0);
        assert_eq!(stack.pointer, 2);
    }

    #[test]
    fn an_expand_down_stack_ends_above_its_limit() {
        let (mut state, mut environment) = protected_mode(0);
        let ss = state.segment_mut(tollgate_x86::SegmentRegister::Ss);
        ss.attributes |= Attributes::EXPAND_DOWN_OR_CONFORMING;
        ss.limit = 0x7ff7;
        let mut stack = Stack::current(&state);
        assert!(stack.push(&state, &mut environment, 4, 1u32).is_ok());
        assert!(stack.push(&state, &mut environment, 4, 2u32).is_ok());
        assert_eq!(
            stack.push(&state, &mut environment, 4, 3u32),
            Err(Exception::stack_fault(0))
        );
    }

    #[test]
    fn misaligned_pushes_fault_only_at_level_3_with_am_and_ac() {
        for (cpl, am, ac, faults) in [
            (3, true, true, true),
            (0, true, true, false),
            (3, false, true, false),
            (3, true, false, false),
        ] {
            let (mut state, mut environment) = protected_mode(cpl);
            state.gpr[Gpr::Rsp as usize] = 0x8002;
            if am {
                state.cr0 |= Cr0::AM.bits();
            }
            if ac {
                state.flags |= Flags::AC.bits();
            }
            let result = Stack::current(&state).push(&state, &mut environment, 4, 1u32);
            let expected = Err(Exception::new(Vector::AlignmentCheck));
            assert_eq!(result, if faults { expected } else { Ok(()) });
        }
    }

    #[test]
    fn a_push_from_zero_wraps_to_the_top_of_the_stack() {
        let (mut state, mut environment) = real_mode();
        state.gpr[Gpr::Rsp as usize] = 0;
        let mut stack = Stack::current(&state);
        assert!(stack.push(&state, &mut environment, 2, 0x1234u32).is_ok());
        assert_eq!(stack.pointer, 0xfffe);
        assert_eq!(environment.u16(0x1_1ffe), 0x1234);
        // In a flat 32-bit segment, the top of the address space is outside RAM here.
        let (mut state, _) = protected_mode(0);
        state.gpr[Gpr::Rsp as usize] = 0;
        let mut small = TestEnvironment::new(16);
        let pushed = Stack::current(&state).push(&state, &mut small, 4, 1u32);
        let fault = Exception::page_fault(LinearAddress(0xffff_fffc), PageFaultCode::WRITE);
        assert_eq!(pushed, Err(fault));
    }

    #[test]
    fn the_stack_of_64_bit_code_has_no_segment_but_canonical_addresses() {
        let (mut state, mut environment) = long_mode(3);
        let ss = state.segment_mut(tollgate_x86::SegmentRegister::Ss);
        (ss.base, ss.limit) = (0x1000, 0);
        let mut stack = Stack::current(&state);
        let value = 0x1122_3344_5566_7788u64;
        assert!(stack.push(&state, &mut environment, 8, value).is_ok());
        assert!(stack.push(&state, &mut environment, 2, value).is_ok());
        assert_eq!(stack.pointer, 0x7ff6);
        assert_eq!(environment.u64(0x7ff8), value);
        let popped = stack.pop_all(&state, &mut environment, 2);
        assert_eq!(popped, Ok([0x7788]));
        assert_eq!(stack.pop(&state, &mut environment, 8), Ok(value));
        stack.pointer = 0x8000_0000_0008;
        let fault = Exception::stack_fault(0);
        let pushed = stack.push(&state, &mut environment, 8, 1u64);
        assert_eq!(pushed, Err(fault));
        stack.pointer = 0x7fff_ffff_fffc;
        let popped = stack.pop(&state, &mut environment, 8);
        assert_eq!(popped, Err(fault));
    }
}
