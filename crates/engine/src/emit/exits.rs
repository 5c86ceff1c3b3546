//! Exits: the sites at which control passes from the block to the monitor, and the code that
//! names them.

use super::emitter::Emitter;
use crate::abi::at;
use crate::abi::host::*;
use crate::abi::marks::{Restore, Shadow};
use crate::abi::register_map::CONTEXT;
use crate::abi::sites::{Site, SiteKind, pack_site};
use crate::emit::assembler::{Assembler, Kept, Mem, Patch, Width};
use crate::policy::instruction_kind::Effects;
use crate::policy::virtual_interrupts::{TASK_SWITCH, TRAP, Transition};
use iced_x86::Instruction;

/// Placeholder for `Site::after` until the instruction is complete.
pub(crate) const RESUME_AFTER: u32 = u32::MAX;

/// A sequence that names a site and leaves.
#[derive(Clone, Copy)]
pub(super) struct ExitSequence {
    code: Kept,
    /// Where it has the site's number.
    number: usize,
}

impl ExitSequence {
    /// What `prepare` emits, then the naming and a jump to the address in the field at `to`.
    fn new(prepare: impl FnOnce(&mut Assembler), to: i32) -> Self {
        let mut number = 0;
        let code = Kept::new(|assembler| {
            prepare(assembler);
            let site = Mem::base(CONTEXT, at::EXIT_SITE);
            assembler.store_imm(Width::Dword, site, 0);
            number = assembler.position() - 4;
            assembler.jmp_memory(Mem::base(CONTEXT, to));
        });
        Self { code, number }
    }
}

/// The code of exits, which differ in nothing but their sites' numbers: every map has the context
/// in the same register.
pub(super) struct ExitCode {
    plain: ExitSequence,
    /// The monitor is told what R8 holds.
    with_value: ExitSequence,
    /// The same, and the software TLB may be filled without an exit.
    miss: ExitSequence,
    /// Those that have a store tested for code, by the field with the test's address.
    store_tests: Vec<(i32, ExitSequence)>,
}

/// Where the sequence of a store's test has the distance back to the look-up.
const BACK: usize = 3;

impl ExitCode {
    pub(super) fn new() -> Self {
        let with_value = |assembler: &mut Assembler| {
            let value = Mem::base(CONTEXT, at::EXIT_VALUE);
            assembler.store(Width::Qword, value, R8);
        };
        Self {
            plain: ExitSequence::new(|_| {}, at::EXIT_ENTRY),
            with_value: ExitSequence::new(with_value, at::EXIT_ENTRY),
            miss: ExitSequence::new(with_value, at::MISS_ENTRY),
            store_tests: Vec::new(),
        }
    }

    /// The sequence for the test whose address is in the field at `test`.
    fn store_test(&mut self, test: i32) -> ExitSequence {
        if let Some((_, known)) = self.store_tests.iter().find(|(known, _)| *known == test) {
            return *known;
        }
        let back = |assembler: &mut Assembler| {
            let back = assembler.lea_rip(RCX);
            debug_assert_eq!(back, Patch(BACK));
        };
        let sequence = ExitSequence::new(back, test);
        self.store_tests.push((test, sequence));
        sequence
    }
}

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

    /// Leaves for the monitor here, unconditionally, at the current instruction.
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

    /// As [`Emitter::emit_exit`]; the monitor is told what R8 holds.
    pub(super) fn emit_exit_with_value(&mut self, site: usize) {
        if self.is_sensitive_exit(site) {
            let value = self.field(at::EXIT_VALUE);
            self.assembler.store(Width::Qword, value, R8);
            return self.emit_sensitive_exit(site);
        }
        self.emit_sequence(self.exit_code.with_value, site);
    }

    /// The access at `site` has missed in the software TLB, at the address in R8.
    pub(super) fn emit_miss(&mut self, site: usize) {
        match self.mode.is_watched() || self.is_sensitive_exit(site) {
            true => self.emit_exit_with_value(site),
            false => self.emit_sequence(self.exit_code.miss, site),
        }
    }

    /// Has the store at `site` tested for code (see [`crate::gate::store_test`]), at the address
    /// in the field at `test`: leaves if it must, or goes back to the look-up at `back`.
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

    /// The exit of a sensitive instruction goes to the monitor as the choice of
    /// [`crate::policy::virtual_interrupts::Transition`] says: the only place that knows.
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

    /// Names the exit that the code which is jumped to next may take, and behind which it goes
    /// on if it does not.
    pub(crate) fn name_exit(&mut self, kind: SiteKind) {
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.name_site(site);
    }

    /// Tells the monitor, should guest code be left now, that it is at this site.
    pub(crate) fn name_site(&mut self, site: usize) {
        let packed = pack_site(self.block, site);
        self.assembler
            .store_imm(Width::Dword, self.field(at::EXIT_SITE), packed as i32);
    }

    pub(crate) fn leave_and_return(&mut self, kind: SiteKind) {
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.emit_exit(site);
        // The monitor puts the whole ESP into its home and does not keep vectors loaded.
        self.end_window();
        self.forget_checks();
        self.esp = 0;
        self.vectors_loaded = false;
    }

    /// What the monitor is told if the current instruction turns out to be its own.
    pub(crate) fn helper_kind(&mut self, instruction: &Instruction) -> SiteKind {
        let known = self.helpers.last();
        if known.is_none_or(|known| known.instruction.ip() != instruction.ip()) {
            self.add_helper(instruction);
        }
        // It comes back without them.
        self.vectors_loaded = false;
        SiteKind::Helper(self.helpers.len() as u16 - 1)
    }

    /// Leaves for the monitor if the sum of two registers and a number is zero.
    pub(crate) fn leave_if_zero(&mut self, kind: SiteKind, sum: Mem) {
        self.make_room();
        self.assembler.lea64(RCX, sum);
        self.miss_if_zero(kind);
    }

    /// Leaves for the monitor unless the sum of two registers and a number is zero.
    pub(crate) fn leave_unless_zero(&mut self, kind: SiteKind, sum: Mem) {
        self.make_room();
        self.assembler.lea64(RCX, sum);
        let zero = self.skip_if_zero();
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.emit_exit(site);
        self.land(zero);
        self.mark(Restore::NONE);
    }
}

/// Whether the instruction has completed where a site of this kind leaves.
fn is_done(kind: SiteKind) -> bool {
    matches!(
        kind,
        SiteKind::Link(_) | SiteKind::Indirect | SiteKind::Far | SiteKind::Continue
    )
}
