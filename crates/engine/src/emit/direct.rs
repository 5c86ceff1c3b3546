//! Operands that are reached through shadow windows, without a look-up.
//!
//! A table has *host minus linear address* for each part of the guest's addresses
//! ([`tollgate_tlb::shadow_windows`]). Addresses near each other are in the same part, except the
//! few at a part's ends. So the code uses the part of the base register's value, and leaves the
//! displacement to the access itself:
//!
//! ```text
//! mov rax,[rbx+8]         sarx rcx, rbx, r14              ; the part
//!                         mov  rcx, [r14+rcx*8+table]     ; host minus linear address
//!                         mov  rax, [rcx+rbx+8]
//! ```
//!
//! An access that crosses the end of its part faults, since nothing is ever mapped there, and the
//! monitor executes the instruction. An address that is not canonical makes the load from the table
//! fault.
//!
//! A guest that is not in IA-32e mode has one shadow window for each view, whose *host minus linear
//! address* is stored after the view's tables. The guest's addresses wrap at 4 GiB, so the whole
//! address is formed first:
//!
//! ```text
//! mov eax,[ebx+8]         lea  r8d, [rbx+8]
//!                         mov  rcx, [r14+delta]           ; host minus linear address
//!                         mov  eax, [rcx+r8]
//! ```
//!
//! In real mode, and for 16-bit code at level 3, the host's GS base leads to that shadow window. The
//! sum of a segment's base and an offset may exceed 4 GiB, where nothing is mapped; then the monitor
//! executes the instruction:
//!
//! ```text
//! mov ax,[bx]             movzx r8d, bx
//!                         movzx ecx, byte [r14+r8+limit]  ; faults beyond FFFFh
//!                         mov   r9d, [ds.base]
//!                         mov   ax, gs:[r9+r8]
//! ```

use super::emitter::Emitter;
use super::emitter::look_up_form::LookUpForm;
use super::guest_operand_form::Reach;
use super::guest_operand_form::is_near;
use super::named_operands::is_x87;
use super::named_operands::segment_of;
use super::named_operands::{has_high_byte, uses_count_in_place};
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::emit::assembler::{Mem, Width};
use crate::policy::mode::SegmentClass;
use iced_x86::{Instruction, Register};
use tollgate_tlb::long_tlb::{DIRECT_TABLE_DISPLACEMENT, part_of_linear};
use tollgate_tlb::shadow_windows::BESIDE_WINDOW;
use tollgate_tlb::software_tlb::NARROW_DELTA_OFFSET;
use tollgate_x86::SegmentRegister;

impl Emitter {
    /// Loads *host minus linear address* for the part of the address in `address` into `to`. Uses
    /// RCX.
    pub(super) fn load_window_delta(&mut self, to: Host, address: Host) {
        self.make_room();
        let tlb = self.map.tlb;
        self.assembler.sarx(RCX, address, tlb);
        let entry = Mem::indexed(tlb, RCX, 8, DIRECT_TABLE_DISPLACEMENT);
        self.assembler.load(Width::Qword, to, entry);
    }

    /// Loads *host minus linear address* of the one shadow window for 32-bit addresses into RCX.
    pub(super) fn load_narrow_delta(&mut self) {
        self.make_room();
        let entry = Mem::base(self.map.tlb, NARROW_DELTA_OFFSET);
        self.assembler.load(Width::Qword, RCX, entry);
    }

    /// Reaches the operand at `displacement` from the value of the host register `base`, which must
    /// not change before the access.
    pub(super) fn reach_near(&mut self, base: Host, displacement: i32) -> Reach {
        self.load_window_delta(RCX, base);
        Reach::Near {
            delta: RCX,
            base: Some(base),
            displacement,
        }
    }

    /// Reaches an operand whose linear address is a constant.
    fn reach_constant(&mut self, linear: i64) -> Option<Reach> {
        let displacement = i32::try_from(linear).ok()?;
        self.make_room();
        let entry = DIRECT_TABLE_DISPLACEMENT + 8 * part_of_linear(linear) as i32;
        self.assembler
            .load(Width::Qword, RCX, Mem::base(self.map.tlb, entry));
        Some(Reach::Near {
            delta: RCX,
            base: None,
            displacement,
        })
    }

    /// Reaches the operand `offset` bytes above the (folded) stack pointer directly. `None` if
    /// accesses of the mode use look-ups, or the distance is large.
    pub(super) fn reach_stack_directly(&mut self, offset: i32) -> Option<Reach> {
        let displacement = self.esp.checked_add(offset)?;
        let is_near = self.is_direct64() && is_near(displacement.into());
        is_near.then(|| match self.is_anchored {
            true => self.reach_stack_anchored(displacement),
            false => self.reach_near(self.map.stack(), displacement),
        })
    }

    /// Reaches the same operand with its linear address in R8. The code that handles a fault reads
    /// the address there if it cannot derive it from the access.
    pub(super) fn with_address(&mut self, reach: Reach) -> Reach {
        if let Reach::Anchored { base, displacement } = reach {
            return self.leave_anchor(base, displacement);
        }
        if reach == Reach::InSegment {
            self.assembler.lea32(R8, Mem::indexed(R8, R9, 1, 0));
            self.load_narrow_delta();
            return Reach::Sum;
        }
        let Reach::Near {
            delta,
            base,
            displacement,
        } = reach
        else {
            return reach;
        };
        match base {
            Some(base) => self.assembler.lea64(R8, Mem::base(base, displacement)),
            None => self.assembler.mov_value(R8, displacement as i64 as u64),
        }
        Reach::Near {
            delta,
            base: Some(R8),
            displacement: 0,
        }
    }

    /// Loads the slide of relocatable code into R8, for an operand relative to RIP whose link
    /// address is `displacement`. Returns the link address if it is small enough to be a
    /// displacement.
    pub(super) fn load_code_slide(&mut self, displacement: i64) -> Option<i32> {
        let link = i32::try_from(displacement).ok()?;
        if !(0..BESIDE_WINDOW as i64).contains(&displacement) {
            return None;
        }
        let delta = self.field(at::CODE_SLIDE);
        self.make_room();
        self.assembler.load(Width::Qword, R8, delta);
        Some(link)
    }

    /// Computes the sum of a segment's base and of `register`, if that is not `None`, in R8. Uses
    /// R9.
    pub(super) fn add_to_segment_base(&mut self, segment: SegmentRegister, register: Register) {
        self.make_room();
        let start = self.field(at::segment_base(segment));
        self.assembler.load(Width::Qword, R8, start);
        if register != Register::None {
            let offset = self.value(register, R9);
            self.assembler.lea64(R8, Mem::indexed(R8, offset, 1, 0));
        }
    }

    pub(super) fn is_direct64(&self) -> bool {
        self.look_up == LookUpForm::Direct && self.is_64_bit()
    }

    /// Reaches the instruction's memory operand directly. `None` if accesses of the mode use
    /// look-ups or the operand is not near an address in a register.
    pub(super) fn reach_operand_directly(
        &mut self,
        instruction: &Instruction,
        write: bool,
    ) -> Option<Reach> {
        if self.is_anchored
            && !has_high_byte(instruction)
            && !uses_count_in_place(instruction)
            && let Some(reach) = self.reach_operand_anchored(instruction, write)
        {
            return Some(reach);
        }
        // The notes of x87 instructions take the operand's address from R8.
        if !self.is_direct64() || is_x87(instruction) {
            return None;
        }
        let displacement = instruction.memory_displacement64() as i64;
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let is_wide = match base {
            Register::None => instruction.memory_displ_size() == 8,
            base => base == Register::RIP || base.is_gpr64(),
        };
        if index != Register::None || !is_wide {
            return None;
        }
        let segment = segment_of(instruction.memory_segment());
        match self.mode.segment(segment, write) {
            SegmentClass::Flat if base == Register::RIP && self.relocates => {
                let link = self.load_code_slide(displacement)?;
                Some(self.reach_near(R8, link))
            }
            SegmentClass::Flat if matches!(base, Register::RIP | Register::None) => {
                self.reach_constant(displacement)
            }
            SegmentClass::Flat => {
                if base == Register::RSP {
                    return self.reach_stack_directly(i32::try_from(displacement).ok()?);
                }
                let displacement = i32::try_from(displacement).ok()?;
                if !is_near(displacement.into()) {
                    return None;
                }
                let base = self.value(base, R8);
                Some(self.reach_near(base, displacement))
            }
            SegmentClass::Based if base != Register::RIP && base != Register::RSP => {
                if !is_near(displacement) {
                    return None;
                }
                self.add_to_segment_base(segment, base);
                Some(self.reach_near(R8, displacement as i32))
            }
            _ => None,
        }
    }
}
