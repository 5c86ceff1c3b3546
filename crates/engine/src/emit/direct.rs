//! Operands in shadow windows.
//!
//! A table has *host minus linear address* for each part of the guest's addresses
//! ([`tollgate_tlb::shadow_windows`]), and what is near an address is in its part, but for the few
//! that lie at an end. So the part is that of what a register holds, and the displacement is left
//! to the access itself:
//!
//! ```text
//! mov rax,[rbx+8]         sarx rcx, rbx, r14              ; the part
//!                         mov  rcx, [r14+rcx*8+table]     ; host minus linear address
//!                         mov  rax, [rcx+rbx+8]
//! ```
//!
//! What goes on beyond its part's end faults, since nothing is ever mapped there, and is done by
//! the monitor. An address that is not canonical makes the load from the table fault.
//!
//! A guest that is not in IA-32e mode has one window for each view, whose delta stands behind the
//! view's tables. Its addresses wrap at 4 GiB, so they are formed whole first:
//!
//! ```text
//! mov eax,[ebx+8]         lea  r8d, [rbx+8]
//!                         mov  rcx, [r14+delta]           ; host minus linear address
//!                         mov  eax, [rcx+r8]
//! ```
//!
//! In real mode GS of the host leads to that window. The sum of a segment's base and an offset may
//! pass 4 GiB, where nothing is mapped and the monitor does the instruction:
//!
//! ```text
//! mov ax,[bx]             movzx r8d, bx
//!                         movzx ecx, byte [r14+r8+limit]  ; faults beyond FFFFh
//!                         mov   r9d, [ds.base]
//!                         mov   ax, gs:[r9+r8]
//! ```

use super::emitter::Emitter;
use super::look_up::{LookUpForm, Reach, segment_of};
use super::operands::{has_high_byte, uses_count_in_place};
use crate::abi::at;
use crate::abi::host::*;
use crate::emit::assembler::{Mem, Width};
use crate::policy::mode::SegmentClass;
use iced_x86::{Instruction, OpCodeTableKind, Register};
use tollgate_tlb::long_tlb::{DIRECT_TABLE_DISPLACEMENT, part_of_linear};
use tollgate_tlb::shadow_windows::BESIDE_WINDOW;
use tollgate_tlb::software_tlb::NARROW_DELTA_OFFSET;
use tollgate_x86::SegmentRegister;

/// Bytes between an address and what is taken to be near it: a larger displacement may be the
/// address itself, and the register an index.
const NEAR: i64 = 1 << 20;

impl Emitter {
    /// Puts the host address minus the linear one of what `address` holds into `to`. Uses RCX.
    pub(super) fn load_window_delta(&mut self, to: Host, address: Host) {
        self.make_room();
        let tlb = self.map.tlb;
        self.assembler.sarx(RCX, address, tlb);
        let entry = Mem::indexed(tlb, RCX, 8, DIRECT_TABLE_DISPLACEMENT);
        self.assembler.load(Width::Qword, to, entry);
    }

    /// Puts the host address minus the linear one of all 32-bit addresses into RCX.
    pub(super) fn load_narrow_delta(&mut self) {
        self.make_room();
        let entry = Mem::base(self.map.tlb, NARROW_DELTA_OFFSET);
        self.assembler.load(Width::Qword, RCX, entry);
    }

    /// Reaches what is `displacement` from what a host register holds, which it holds until the
    /// access.
    pub(super) fn reach_near(&mut self, base: Host, displacement: i32) -> Reach {
        self.load_window_delta(RCX, base);
        Reach::Near {
            delta: RCX,
            base: Some(base),
            displacement,
        }
    }

    /// Reaches a linear address that is known.
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

    /// Reaches what is so far from the (folded) stack pointer directly, if accesses do.
    pub(super) fn reach_stack_directly(&mut self, offset: i32) -> Option<Reach> {
        let displacement = self.esp.checked_add(offset)?;
        let is_near = self.is_direct64() && is_near(displacement.into());
        is_near.then(|| match self.is_anchored {
            true => self.reach_stack_anchored(displacement),
            false => self.reach_near(self.map.stack(), displacement),
        })
    }

    /// The same with the linear address in R8, where whoever follows a fault looks for it if the
    /// access itself does not name it.
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

    /// Loads the delta of relocatable code into R8, for an operand relative to RIP whose home is
    /// `displacement`: returned, if it is near.
    pub(super) fn load_code_delta(&mut self, displacement: i64) -> Option<i32> {
        let home = i32::try_from(displacement).ok()?;
        if !(0..BESIDE_WINDOW as i64).contains(&displacement) {
            return None;
        }
        let delta = self.field(at::CODE_DELTA);
        self.make_room();
        self.assembler.load(Width::Qword, R8, delta);
        Some(home)
    }

    /// Brings a segment's base and, if there is one, a register besides to R8. Uses R9.
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

    /// Reaches the instruction's memory operand directly, if accesses do and it lies near an
    /// address that is at hand.
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
                let home = self.load_code_delta(displacement)?;
                Some(self.reach_near(R8, home))
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

/// Whether an instruction with an operand in memory is one of the x87's.
pub(super) fn is_x87(instruction: &Instruction) -> bool {
    let code = instruction.op_code();
    code.table() == OpCodeTableKind::Normal && matches!(code.op_code(), 0xd8..=0xdf)
}

pub(super) fn is_near(displacement: i64) -> bool {
    (-NEAR..=NEAR).contains(&displacement)
}
