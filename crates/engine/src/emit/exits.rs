//! Exits: the code that names a site and passes control from the block to the monitor.

use super::emitter::Emitter;
use super::emitter::exit_code::{BACK, ExitSequence, RESUME_AFTER};
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::abi::sites::{Site, SiteKind, pack_site};
use crate::abi::state_map::{Restore, Shadow};
use crate::emit::assembler::{Mem, Patch, Width};
use crate::policy::instruction_kind::Effects;
use crate::policy::virtual_interrupts::{TASK_SWITCH, TRAP, Transition};
use iced_x86::Instruction;

impl Emitter {
    pub(crate) fn new_site(&mut self, kind: SiteKind, rip: u64, esp: i32, after: u32) -> usize {
        self.sites.push(Site {
            kind,
            rip,
            esp,
            retry: self.start as u32,
            after,
            after_esp: 0,
            shadowed: match is_done(kind) {
                true => Shadow::None,
                false => self.shadowed,
            },
        });
        self.sites.len() - 1
    }

    /// Emits an unconditional exit to the monitor at the current instruction.
    pub(crate) fn exit(&mut self, kind: SiteKind) {
        let site = self.new_site(kind, self.rip, self.esp_at_start, 0);
        self.emit_exit(site);
    }

    pub(crate) fn emit_exit(&mut self, site: usize) {
        if self.is_sensitive_exit(site) {
            return self.emit_sensitive_exit(site);
        }
        self.emit_sequence(self.exit_code.plain, site);
    }

    /// Emits an exit that also passes the value of R8 to the monitor.
    pub(super) fn emit_exit_with_value(&mut self, site: usize) {
        if self.is_sensitive_exit(site) {
            let value = self.field(at::EXIT_VALUE);
            self.assembler.store(Width::Qword, value, R8);
            return self.emit_sensitive_exit(site);
        }
        self.emit_sequence(self.exit_code.with_value, site);
    }

    /// Emits the exit for an access that has missed in the software TLB. R8 has the linear address.
    pub(super) fn emit_miss(&mut self, site: usize) {
        match self.mode.is_watched() || self.is_sensitive_exit(site) {
            true => self.emit_exit_with_value(site),
            false => self.emit_sequence(self.exit_code.miss, site),
        }
    }

    /// Emits the test for translated code (see [`crate::gate::store_check`]) for the store at
    /// `site`. The field at `test` holds the test's address. The test leaves the block if
    /// necessary; otherwise it returns to the look-up at `back`.
    pub(super) fn emit_store_test(&mut self, site: usize, back: usize, test: i32) {
        let position = self.assembler.position();
        let sequence = self.exit_code.store_test(test);
        self.emit_sequence(sequence, site);
        self.assembler.patch_rel32(Patch(position + BACK), back);
    }

    fn emit_sequence(&mut self, sequence: ExitSequence, site: usize) {
        let number = self.assembler.position() + sequence.number;
        self.assembler.kept(&sequence.code);
        self.assembler
            .patch_imm32(number, pack_site(self.block, site));
    }

    /// Emits the exit of a sensitive instruction in the form that
    /// [`crate::policy::virtual_interrupts::Transition`] chooses. No other function knows these
    /// forms.
    pub(crate) fn emit_sensitive_exit(&mut self, site: usize) {
        self.name_site(site);
        match self.transition {
            Transition::Call => self.assembler.jmp_memory(self.field(at::EXIT_ENTRY)),
            Transition::Trap => self.assembler.raw(&TRAP),
            Transition::Task => self.assembler.raw(&TASK_SWITCH),
        }
    }

    /// Whether a site is the exit of a sensitive instruction.
    pub(crate) fn is_sensitive_exit(&self, site: usize) -> bool {
        match self.sites[site].kind {
            SiteKind::Helper(helper) => {
                let kind = self.helpers[usize::from(helper)].kind;
                kind.effects.contains(Effects::SENSITIVE)
            }
            _ => false,
        }
    }

    /// Names the exit that the routine to which the code jumps next may take. If the routine does
    /// not take the exit, execution continues after the instruction.
    pub(crate) fn name_exit(&mut self, kind: SiteKind) {
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.name_site(site);
    }

    /// Stores the site's number in the context, so that the monitor knows where the guest is if
    /// guest code is left now.
    pub(crate) fn name_site(&mut self, site: usize) {
        let packed = pack_site(self.block, site);
        self.assembler
            .store_imm(Width::Dword, self.field(at::EXIT_SITE), packed as i32);
    }

    pub(crate) fn leave_and_return(&mut self, kind: SiteKind) {
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.emit_exit(site);
        // The monitor puts the whole ESP into its home and does not keep the vector registers
        // loaded.
        self.end_window();
        self.forget_checks();
        self.esp = 0;
        self.vectors_loaded = false;
    }

    /// The kind of site for the case that the monitor must execute the current instruction.
    pub(crate) fn helper_kind(&mut self, instruction: &Instruction) -> SiteKind {
        let known = self.helpers.last();
        if known.is_none_or(|known| known.instruction.ip() != instruction.ip()) {
            self.add_helper(instruction);
        }
        // The monitor does not keep the vector registers loaded.
        self.vectors_loaded = false;
        SiteKind::Helper(self.helpers.len() as u16 - 1)
    }

    /// Emits an exit that is taken if the sum of two registers and a constant is zero.
    pub(crate) fn leave_if_zero(&mut self, kind: SiteKind, sum: Mem) {
        self.make_room();
        self.assembler.lea64(RCX, sum);
        self.miss_if_zero(kind);
    }

    /// Emits an exit that is taken unless the sum of two registers and a constant is zero.
    pub(crate) fn leave_unless_zero(&mut self, kind: SiteKind, sum: Mem) {
        self.make_room();
        self.assembler.lea64(RCX, sum);
        let zero = self.skip_if_zero();
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.emit_exit(site);
        self.land(zero);
        self.note_state(Restore::NONE);
    }
}

/// Whether the instruction is complete where a site of this kind leaves the block.
fn is_done(kind: SiteKind) -> bool {
    matches!(
        kind,
        SiteKind::Link(_) | SiteKind::Indirect | SiteKind::Far | SiteKind::Continue
    )
}
