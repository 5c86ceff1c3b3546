//! Stubs: code away from the block's main path, for exits of misses and for branches without a
//! link.

use super::emitter::Emitter;
use super::emitter::exit_code::RESUME_AFTER;
use super::emitter::look_up_form::LookUpForm;
use super::emitter::stub_record::{Stub, StubKind};
use crate::abi::context_displacements as at;
use crate::abi::link_layout::{from_links, slot_offset};
use crate::abi::sites::{LinkPlace, SiteKind, WindowMiss};
use crate::abi::state_map::{Restore, Shadow};
use crate::decode::length::MAX_INSTRUCTION_LENGTH;
use crate::emit::assembler::{Mem, Patch};
use crate::policy::mode::ModeFlags;

impl Emitter {
    /// Emits a branch to the exit of a miss, taken if RCX is zero.
    pub(crate) fn miss_if_zero(&mut self, kind: SiteKind) {
        self.make_room();
        let branch = self.assembler.jrcxz();
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.stubs.push(Stub {
            kind: StubKind::Miss,
            site,
            incoming: None,
            rip: self.rip,
            esp: self.esp_at_start,
            back: self.assembler.position(),
            shadowed: self.shadowed,
        });
        self.misses.push((branch, self.stubs.len() - 1));
        self.make_room();
    }

    /// Emits a branch to the current instruction in the mode without shared look-ups, taken if RCX
    /// is zero.
    pub(super) fn leave_windows_if_zero(&mut self, miss: WindowMiss) {
        self.make_room();
        let branch = self.assembler.jrcxz();
        let place = LinkPlace::Direct {
            distance: 0,
            stub: 0,
            windowless: Some(miss),
        };
        let site = self.new_site(SiteKind::Link(place), self.rip, 0, 0);
        self.sites[site].after_esp = self.esp_at_start;
        self.stubs.push(Stub {
            kind: StubKind::Windowless,
            site,
            incoming: None,
            rip: self.rip,
            esp: self.esp_at_start,
            back: 0,
            shadowed: self.shadowed,
        });
        self.misses.push((branch, self.stubs.len() - 1));
        self.make_room();
    }

    /// Emits the link of a shared look-up that has missed. After the link the whole ESP is in its
    /// home. As long as the link has no target, the block exits, and R8 has the linear address of
    /// the look-up.
    fn emit_windowless_link(&mut self, stub: &Stub) {
        if stub.esp != 0 {
            let stack = self.map.stack();
            self.lea_stack(stack, Mem::base(stack, stub.esp));
        }
        self.push_state(stub.rip, 0, Restore::NONE, stub.shadowed);
        let jump = self.assembler.jmp();
        let behind = self.assembler.position();
        self.assembler.patch_rel32(jump, behind);
        if let SiteKind::Link(LinkPlace::Direct { distance, .. }) = &mut self.sites[stub.site].kind
        {
            *distance = jump.0 as u32;
        }
    }

    /// Whether the target and its whole first instruction are in this page, so that no other page's
    /// translation matters for the target's meaning.
    pub(crate) fn stays_in_page(&self, target: u64) -> bool {
        let linear = self.mode.linear(target);
        linear >> 12 == self.linear_page && linear as usize % 4096 + MAX_INSTRUCTION_LENGTH <= 4096
    }

    fn new_link(
        &mut self,
        kind: StubKind,
        target: u64,
        incoming: Option<Patch>,
        place: SiteKind,
    ) -> usize {
        let site = self.new_site(place, target, 0, 0);
        self.stubs.push(Stub {
            kind,
            site,
            incoming,
            rip: target,
            esp: 0,
            back: 0,
            shadowed: Shadow::None,
        });
        self.stubs.len() - 1
    }

    /// Takes a slot for a link that leaves the page.
    pub(crate) fn take_slot(&mut self) -> Option<u32> {
        let slot = self.slots.get(self.slots_used).copied()?;
        self.slots_used += 1;
        Some(slot)
    }

    /// Whether at least `count` slots are left.
    pub(crate) fn has_slots(&self, count: usize) -> bool {
        self.slots.len() >= self.slots_used + count
    }

    /// Makes the 32-bit branch at `branch` lead to `target`. The whole ESP must be in its home.
    pub(crate) fn link_branch(&mut self, branch: Patch, target: u64) {
        let incoming = Some(branch);
        if self.mode.flags.contains(ModeFlags::SINGLE) {
            self.new_link(StubKind::DirectLink, target, incoming, SiteKind::Continue);
        } else if self.stays_in_page(target) {
            let place = LinkPlace::Direct {
                distance: branch.0 as u32,
                stub: 0,
                windowless: None,
            };
            self.new_link(
                StubKind::DirectLink,
                target,
                incoming,
                SiteKind::Link(place),
            );
        } else if let Some(slot) = self.take_slot() {
            let place = LinkPlace::Slot { slot, stub: 0 };
            self.new_link(StubKind::SlotJump, target, incoming, SiteKind::Link(place));
        } else {
            self.new_link(StubKind::DirectLink, target, incoming, SiteKind::Continue);
        }
    }

    /// Emits a jump to `target`. The whole ESP must be in its home.
    pub(crate) fn link_jump(&mut self, target: u64) {
        let single = self.mode.flags.contains(ModeFlags::SINGLE);
        if !single
            && !self.stays_in_page(target)
            && let Some(slot) = self.take_slot()
        {
            self.note_state_as(target, 0, Restore::NONE);
            self.slot_jump(slot);
            let place = LinkPlace::Slot { slot, stub: 0 };
            self.new_link(StubKind::SlotLink, target, None, SiteKind::Link(place));
            return;
        }
        self.note_state_as(target, 0, Restore::NONE);
        let jump = self.assembler.jmp();
        self.link_branch(jump, target);
    }

    /// Emits a jump to `target` in the code segment that was just loaded. The whole ESP must be in
    /// its home.
    pub(crate) fn link_far_jump(&mut self, target: u64) {
        self.note_state_as(target, 0, Restore::NONE);
        let (incoming, place) = match self.take_slot() {
            Some(slot) => {
                self.slot_jump(slot);
                let place = SiteKind::Link(LinkPlace::Slot { slot, stub: 0 });
                (None, place)
            }
            None => (Some(self.assembler.jmp()), SiteKind::Continue),
        };
        self.new_link(StubKind::SlotLink, target, incoming, place);
    }

    /// Emits a jump through a slot.
    fn slot_jump(&mut self, slot: u32) {
        let place = Mem::base(self.map.links, from_links(slot_offset(slot)));
        self.assembler.jmp_memory(place);
    }

    /// Makes the 32-bit branch at `branch` lead to the exit of `site`, at the current instruction.
    pub(crate) fn fault_branch(&mut self, branch: Patch, site: usize) {
        let (rip, esp) = (self.rip, self.esp_at_start);
        self.stubs.push(Stub {
            kind: StubKind::DirectLink,
            site,
            incoming: Some(branch),
            rip,
            esp,
            back: 0,
            shadowed: self.shadowed,
        });
    }

    /// Emits what remains at the end of the block: the last island (see `islands`) and all stubs.
    pub(crate) fn emit_stubs(&mut self) {
        self.emit_last_island();
        let mut stubs = std::mem::take(&mut self.stubs);
        for stub in stubs.drain(..) {
            let entry = self.assembler.position();
            self.push_state(stub.rip, stub.esp, Restore::NONE, stub.shadowed);
            if let Some(patch) = stub.incoming {
                self.assembler.patch_rel32(patch, entry);
            }
            if stub.kind == StubKind::SlotJump {
                let SiteKind::Link(LinkPlace::Slot { slot, .. }) = self.sites[stub.site].kind
                else {
                    unreachable!("a slot jump needs a slot");
                };
                self.slot_jump(slot);
            }
            if stub.kind == StubKind::Windowless {
                self.emit_windowless_link(&stub);
            }
            let position = self.assembler.position() as u32;
            if let SiteKind::Link(place) = &mut self.sites[stub.site].kind {
                match place {
                    LinkPlace::Direct { stub, .. } | LinkPlace::Slot { stub, .. } => {
                        *stub = position
                    }
                }
            }
            if let SiteKind::Memory { size, write: true } = self.sites[stub.site].kind
                && let Some(test) = self.store_test(size)
            {
                self.emit_store_test(stub.site, stub.back, test);
            } else if matches!(
                self.sites[stub.site].kind,
                SiteKind::Memory { .. } | SiteKind::SystemRead { .. }
            ) && stub.kind == StubKind::Miss
            {
                self.emit_miss(stub.site);
            } else if matches!(stub.kind, StubKind::Miss | StubKind::Windowless) {
                self.emit_exit_with_value(stub.site);
            } else {
                self.emit_exit(stub.site);
            }
        }
        self.stubs = stubs;
    }

    /// The context's field that holds the address of the test for stores of `size` bytes.
    pub(crate) fn store_test(&self, size: u8) -> Option<i32> {
        match self.look_up {
            LookUpForm::Flat | LookUpForm::NarrowDirect | LookUpForm::SegmentDirect => {
                at::code_store(size)
            }
            LookUpForm::Long | LookUpForm::Direct => at::long_code_store(size),
        }
    }
}
