//! The host code of exits, which is assembled once: exits differ only in the numbers of their sites.

use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::abi::register_map::CONTEXT;
use crate::emit::assembler::{Assembler, Kept, Mem, Patch, Width};

/// Placeholder for `Site::after` until the instruction is complete.
pub(crate) const RESUME_AFTER: u32 = u32::MAX;

/// A sequence that names a site and leaves the block.
#[derive(Clone, Copy)]
pub(in crate::emit) struct ExitSequence {
    pub(in crate::emit) code: Kept,
    /// Offset in the sequence of the site's number.
    pub(in crate::emit) number: usize,
}

impl ExitSequence {
    /// Makes a sequence: the code that `prepare` emits, then the store of the site's number, then a
    /// jump to the address in the context's field at `to`.
    pub(in crate::emit) fn new(prepare: impl FnOnce(&mut Assembler), to: i32) -> Self {
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

/// The code of exits. Exits differ only in the numbers of their sites, because every register map
/// has the context in the same register.
pub(in crate::emit) struct ExitCode {
    pub(in crate::emit) plain: ExitSequence,
    /// The exit that also passes the value of R8 to the monitor.
    pub(in crate::emit) with_value: ExitSequence,
    /// The exit of a miss, which passes the value of R8 too; the software TLB may be filled without
    /// an exit.
    pub(in crate::emit) miss: ExitSequence,
    /// Exits that test a store for translated code, each with the field that holds the test's
    /// address.
    pub(in crate::emit) store_tests: Vec<(i32, ExitSequence)>,
}

/// Offset, in the sequence of a store's test, of the distance back to the look-up.
pub(in crate::emit) const BACK: usize = 3;

impl ExitCode {
    pub(in crate::emit) fn new() -> Self {
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

    /// The sequence for the test whose address is in the context's field at `test`.
    pub(in crate::emit) fn store_test(&mut self, test: i32) -> ExitSequence {
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
