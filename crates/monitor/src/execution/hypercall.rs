//! Hypercalls: VMCALL and VMMCALL, which mean the same here (docs/reference/hypercalls.md).
//!
//! EAX selects the call. The null call exists for measurements: it changes nothing except EIP and
//! returns before any other work, so its cost is the cost of leaving guest code and entering it
//! again. Every ring and every mode may make the null call and ask for the version, because both
//! reveal nothing and change nothing outside the caller's registers. For the same reason, programs
//! may set marks in the statistics. Only CPL 0 may invalidate translations, as with INVLPG.

use iced_x86::{Instruction, Mnemonic};
use tollgate_emulate::Outcome;
use tollgate_emulate::cpuid::{Vendor, policy};
use tollgate_emulate::memory_access::linear_mask;
use tollgate_emulate::operand::{next_rip, require_cpl0};
use tollgate_engine::policy::instruction_kind::Executor;
use tollgate_platform::mark::MarkName;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paravirtual::kvm;
use tollgate_x86::{
    CpuState, Exception, Flags, Gpr, LinearAddress, Paravirtual, Space, TranslationChange,
};

/// EAX of the null hypercall, which returns immediately and changes no register and no flag.
pub const NULL: u32 = 0x544f_4c00;
/// EAX of the call that returns [`VERSION`] in EAX.
pub const GET_VERSION: u32 = 0x544f_4c01;
/// EAX of the call that invalidates the translations of ECX pages, beginning at the linear address
/// in EBX (RBX in 64-bit code), like ECX instructions INVLPG.
pub const INVALIDATE: u32 = 0x544f_4c02;
/// EAX of the call that sets a mark in the statistics. EBX, ECX, EDX and ESI contain the mark's
/// name, see [`MarkName::of_registers`]. The call sets EAX to 0, or to -1 if the name is invalid.
pub const MARK: u32 = 0x544f_4c03;
/// The version of this interface. It increases when calls are added.
pub const VERSION: u32 = 3;

/// The most pages that are forgotten one by one. For more pages, all data derived from page tables
/// is forgotten.
const MOST_PAGES: u32 = 256;
const PAGE: u64 = 4096;

fn selector(state: &CpuState) -> u32 {
    state.register(Gpr::Rax) as u32
}

/// Whether an instruction that `executor` executes is, with the present registers, the null
/// hypercall.
pub(crate) fn is_null(state: &CpuState, executor: Executor) -> bool {
    executor == Executor::Hypercall && selector(state) == NULL
}

/// Whether an instruction that `executor` executes is the hypercall that invalidates translations.
pub(crate) fn invalidates(state: &CpuState, executor: Executor) -> bool {
    executor == Executor::Hypercall && selector(state) == INVALIDATE
}

/// Executes VMCALL or VMMCALL. `translations_changed` receives the translations to forget; it
/// returns false if it has stopped and must be called again. `set_mark` receives the name of a mark
/// to set.
///
/// # Errors
/// #UD for calls that do not exist, as on a processor without a hypervisor. A guest that sees KVM's
/// interface gets one of KVM's error numbers in RAX instead, or #GP(0) in a program that uses the
/// other maker's instruction. #GP(0) if translations would be invalidated above CPL 0.
pub(crate) fn execute(
    state: &mut CpuState,
    translations_changed: &mut dyn FnMut(&CpuState, TranslationChange) -> bool,
    set_mark: &mut dyn FnMut(MarkName),
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    match selector(state) {
        NULL => {}
        MARK => {
            let registers = [Gpr::Rbx, Gpr::Rcx, Gpr::Rdx, Gpr::Rsi];
            let name = MarkName::of_registers(registers.map(|it| state.register(it) as u32));
            state.gpr[Gpr::Rax as usize] = match name {
                Some(name) => {
                    set_mark(name);
                    0
                }
                None => u64::from(u32::MAX),
            };
        }
        GET_VERSION => state.gpr[Gpr::Rax as usize] = u64::from(VERSION),
        INVALIDATE => {
            require_cpl0(state)?;
            if !invalidate(state, translations_changed) {
                return Ok(Outcome::Repeat);
            }
        }
        _ if state.paravirtual == Paravirtual::Kvm => {
            let is_program = state.is_protected() && state.cpl() != 0;
            if is_program && is_other_makers(state, instruction) {
                return Err(Exception::general_protection(0));
            }
            let answer = match is_program {
                true => kvm::NOT_PERMITTED,
                false => kvm::NO_SUCH_CALL,
            };
            state.gpr[Gpr::Rax as usize] = match state.is_64_bit() {
                true => answer as u64,
                false => u64::from(answer as u32),
            };
        }
        _ => return Err(Exception::invalid_opcode()),
    }
    state.rip = next_rip(state, instruction);
    state.flags &= !Flags::RF.bits();
    Ok(Outcome::Next)
}

/// Whether the other maker's instruction for hypercalls was used. KVM then emulates the
/// instruction, but only for the supervisor.
fn is_other_makers(state: &CpuState, instruction: &Instruction) -> bool {
    let own = match policy(state).vendor() {
        Vendor::Amd => Mnemonic::Vmmcall,
        _ => Mnemonic::Vmcall,
    };
    instruction.mnemonic() != own
}

/// Executes the call that invalidates translations. Returns false if the work has stopped.
fn invalidate(
    state: &CpuState,
    translations_changed: &mut dyn FnMut(&CpuState, TranslationChange) -> bool,
) -> bool {
    let (first, pages) = (state.register(Gpr::Rbx), state.register(Gpr::Rcx) as u32);
    let Some(others) = pages.checked_sub(1) else {
        return true;
    };
    let mask = linear_mask(state);
    let first = first & mask;
    let last = first.checked_add(u64::from(others) * PAGE);
    // The range extends beyond the last address, or is not in one half of the addresses. In this
    // case more may be forgotten than the guest asked for.
    let in_one_half = |last: u64| last & mask == last && is_canonical(last) && is_canonical(first);
    let change = match last {
        Some(last) if pages <= MOST_PAGES && in_one_half(last) => TranslationChange::Pages {
            space: Space::loaded(state),
            first: LinearAddress(first),
            last: LinearAddress(last),
        },
        _ => TranslationChange::Everything,
    };
    translations_changed(state, change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};
    use tollgate_x86::{Attributes, SegmentRegister};

    fn vmcall() -> Instruction {
        Decoder::with_ip(32, &[0x0f, 0x01, 0xc1], 0x1000, DecoderOptions::NONE).decode()
    }

    /// Executes VMCALL for a call that must forget no translations.
    fn execute(state: &mut CpuState) -> Result<Outcome, Exception> {
        let forget = &mut |_: &CpuState, change| panic!("{change:?}");
        super::execute(state, forget, &mut |name| panic!("{name}"), &vmcall())
    }

    fn calling(eax: u32) -> CpuState {
        let mut state = CpuState::at_reset();
        state.rip = 0x1000;
        state.gpr[Gpr::Rax as usize] = u64::from(eax);
        state
    }

    #[test]
    fn the_null_call_changes_only_the_instruction_pointer() {
        let mut state = calling(NULL);
        let mut expected = state.clone();
        expected.rip = 0x1003;
        assert!(is_null(&state, Executor::Hypercall));
        assert_eq!(execute(&mut state), Ok(Outcome::Next));
        assert_eq!(state, expected);
    }

    #[test]
    fn the_version_is_answered_in_eax() {
        let mut state = calling(GET_VERSION);
        assert_eq!(execute(&mut state), Ok(Outcome::Next));
        assert_eq!(state.gpr[Gpr::Rax as usize], u64::from(VERSION));
        assert_eq!(state.rip, 0x1003);
    }

    #[test]
    fn a_mark_has_its_name_in_registers() {
        let marked = |ebx: &[u8; 4]| {
            let mut state = calling(MARK);
            state.gpr[Gpr::Rbx as usize] = u64::from(u32::from_le_bytes(*ebx));
            state.gpr[Gpr::Rcx as usize] = u64::from(b'n');
            for zero in [Gpr::Rdx, Gpr::Rsi] {
                state.gpr[zero as usize] = 0;
            }
            let mut marks = Vec::new();
            let mut set = |name: MarkName| marks.push(name.to_string());
            let result = super::execute(&mut state, &mut |_, _| true, &mut set, &vmcall());
            assert_eq!(result, Ok(Outcome::Next));
            (marks, state.gpr[Gpr::Rax as usize])
        };
        assert_eq!(marked(b"begi"), (vec!["begin".into()], 0));
        assert_eq!(marked(b"b\0gi"), (vec![], 0xffff_ffff));
    }

    #[test]
    fn a_call_that_kvm_does_not_know_has_its_answer() {
        let mut state = calling(11);
        state.paravirtual = Paravirtual::Kvm;
        assert_eq!(execute(&mut state), Ok(Outcome::Next));
        assert_eq!(state.gpr[Gpr::Rax as usize], 0xffff_fc18);
        assert_eq!(state.rip, 0x1003);
    }

    #[test]
    fn a_call_that_does_not_exist_is_an_invalid_opcode() {
        let mut state = calling(7);
        let before = state.clone();
        assert_eq!(execute(&mut state), Err(Exception::invalid_opcode()));
        assert_eq!(state, before);
    }

    fn invalidated(first: u64, pages: u32) -> Vec<TranslationChange> {
        let mut state = calling(INVALIDATE);
        state.gpr[Gpr::Rbx as usize] = first;
        state.gpr[Gpr::Rcx as usize] = pages.into();
        let mut changes = Vec::new();
        let mut note = |_: &CpuState, change| {
            changes.push(change);
            true
        };
        let mark = &mut |name| panic!("{name}");
        let result = super::execute(&mut state, &mut note, mark, &vmcall());
        assert_eq!((result, state.rip), (Ok(Outcome::Next), 0x1003));
        changes
    }

    #[test]
    fn a_range_is_invalidated_at_once() {
        let pages = |first, last| {
            [TranslationChange::Pages {
                space: Space::loaded(&calling(INVALIDATE)),
                first: LinearAddress(first),
                last: LinearAddress(last),
            }]
        };
        assert_eq!(invalidated(0x5000, 0), []);
        assert_eq!(invalidated(0x5123, 2), pages(0x5123, 0x6123));
        assert_eq!(invalidated(0xffff_f000, 1), pages(0xffff_f000, 0xffff_f000));
        // More pages than follow the address, and more than are forgotten one by one.
        for (first, count) in [(0xffff_f000, 2), (0, 257), (0, u32::MAX)] {
            assert_eq!(invalidated(first, count), [TranslationChange::Everything]);
        }
    }

    #[test]
    fn an_invalidation_that_stops_is_called_for_again() {
        let mut state = calling(INVALIDATE);
        state.gpr[Gpr::Rcx as usize] = 1;
        assert!(invalidates(&state, Executor::Hypercall));
        let before = state.clone();
        let mark = &mut |name| panic!("{name}");
        let result = super::execute(&mut state, &mut |_, _| false, mark, &vmcall());
        assert_eq!((result, state), (Ok(Outcome::Repeat), before));
    }

    #[test]
    fn translations_are_for_level_0_to_invalidate() {
        let mut state = calling(INVALIDATE);
        state.cr0 |= 1;
        state.segment_mut(SegmentRegister::Ss).attributes = Attributes::from_bits_retain(0xc0f3);
        state.segment_mut(SegmentRegister::Cs).attributes = Attributes::from_bits_retain(0xc0fb);
        let before = state.clone();
        assert_eq!(execute(&mut state), Err(Exception::general_protection(0)));
        assert_eq!(state, before);
    }
}
