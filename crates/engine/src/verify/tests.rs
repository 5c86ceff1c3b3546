//! Tests of the verifier's rules, one by one.

use super::{Rule, Subject, verify, verify_patched};
use crate::abi::context::{BIAS, Context};
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::abi::link_layout::{
    BranchTable, ENTRY_NEGATED_SLIDE, ENTRY_SLIDE, ENTRY_TARGET, FamilyId, INDEX_TURN, SLOT_BYTES,
    SLOT_STUB, SLOTS_OFFSET, from_links, table_offset,
};
use crate::abi::register_map::RegisterMap;
use crate::abi::sites::{BlockId, LinkPlace, NO_AFTER, Site, SiteKind, pack_site};
use crate::abi::state_map::Shadow;
use crate::abi::strings::{OPERATIONS, ROUTINES, StringRoutine};
use crate::emit::assembler::{Assembler, Mem, ShortBranch, Width};
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{Mode, ModeFlags, SegmentClass};
use iced_x86::{Decoder, DecoderOptions};
use std::mem::offset_of;
use tollgate_tlb::long_tlb::{LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT};
use tollgate_tlb::software_tlb::WRITE_TABLE_OFFSET;
use tollgate_x86::CpuState;

const BLOCK: BlockId = BlockId(5);

fn site(kind: SiteKind) -> Site {
    Site {
        kind,
        rip: 0,
        esp: 0,
        retry: 0,
        after: NO_AFTER,
        after_esp: 0,
        shadowed: Shadow::None,
    }
}

fn field(displacement: i32) -> Mem {
    Mem::base(R15, displacement)
}

/// Emits the exit with this number.
fn exit(assembler: &mut Assembler, number: usize) {
    let named = pack_site(BLOCK, number) as i32;
    assembler.store_imm(Width::Dword, field(at::EXIT_SITE), named);
    assembler.jmp_memory(field(at::EXIT_ENTRY));
}

/// The rules that a block's code breaks; its sites name these instructions for the monitor.
fn rules_with(
    code: &[u8],
    sites: &[Site],
    helpers: &[Helper],
    mode: &Mode,
    map: &RegisterMap,
) -> Vec<Rule> {
    let subject = Subject {
        code,
        sites,
        helpers,
        immediates: &[],
        completions: &[],
        mode,
        mode_id: 3,
        branch_table: shared_table(mode.flags),
        family: FamilyId(0),
        block: BLOCK,
        map,
    };
    let findings = verify(&subject);
    findings.iter().map(|finding| finding.rule).collect()
}

/// The table of indirect branches that modes with these flags share.
fn shared_table(flags: ModeFlags) -> BranchTable {
    match flags.contains(ModeFlags::USER) {
        true => BranchTable::SharedByPrograms,
        false => BranchTable::Shared,
    }
}

/// The mode after a reset with these flags in addition; its code has no base and limit.
fn mode_with(flags: ModeFlags) -> Mode {
    let mut mode = Mode::of(&CpuState::at_reset());
    mode.flags |= flags;
    (mode.code_base, mode.code_limit) = (0, u32::MAX);
    mode
}

fn rules_of(code: &[u8], sites: &[Site], flags: ModeFlags, map: &RegisterMap) -> Vec<Rule> {
    rules_with(code, sites, &[], &mode_with(flags), map)
}

/// The rules that a sequence with an exit after it breaks. The branches that it returns lead to
/// another exit.
fn rules_in(
    flags: ModeFlags,
    map: &RegisterMap,
    emit: impl FnOnce(&mut Assembler) -> Vec<ShortBranch>,
) -> Vec<Rule> {
    let mut assembler = Assembler::new();
    let misses = emit(&mut assembler);
    exit(&mut assembler, 0);
    let mut sites = vec![site(SiteKind::Continue)];
    if !misses.is_empty() {
        for miss in misses {
            assembler.patch_rel8_here(miss);
        }
        exit(&mut assembler, 1);
        sites.push(site(SiteKind::Continue));
    }
    rules_of(assembler.code(), &sites, flags, map)
}

fn rules(emit: impl FnOnce(&mut Assembler)) -> Vec<Rule> {
    rules_in(ModeFlags::empty(), &RegisterMap::LEGACY, |a| {
        emit(a);
        Vec::new()
    })
}

fn raw(bytes: &[u8]) -> Vec<Rule> {
    rules(|a| a.raw(bytes))
}

/// One step of a sequence; if the step returns a branch, that leads to the exit for misses.
type Step = fn(&mut Assembler) -> Option<ShortBranch>;

fn emit_steps(a: &mut Assembler, steps: &[Step]) -> Vec<ShortBranch> {
    steps.iter().filter_map(|step| step(a)).collect()
}

macro_rules! steps {
    ($($step:expr),+ $(,)?) => {
        [$({
            const STEP: Step = |a| {
                #[allow(clippy::redundant_closure_call, reason = "gives the closure its type")]
                ($step as fn(&mut Assembler))(a);
                None
            };
            STEP
        }),+]
    };
}

const BRANCH: Step = |a| Some(a.jrcxz());

/// The look-up for 4 bytes at the sum of RBX and 8.
fn look_up() -> Vec<Step> {
    let mut all = steps![
        |a| a.lea32(R8, Mem::base(RBX, 8)),
        |a| a.shrx(R9, R8, R15),
        |a| a.lea64(RCX, Mem::base(R8, 3)),
        |a| a.shrx(RCX, RCX, R15),
        |a| a.lea64(R9, Mem::indexed(R9, RCX, 1, 0)),
        |a| a.load(Width::Qword, RCX, Mem::indexed(R14, R9, 8, 0)),
    ]
    .to_vec();
    all.push(BRANCH);
    all.extend(steps![|a| a.lea64(R9, Mem::indexed(RCX, R8, 1, 0))]);
    all
}

/// The look-up for 4 bytes at the sum of RBX and 8 in 64-bit code.
fn long_look_up() -> Vec<Step> {
    let mut all = steps![
        |a| a.lea64(R8, Mem::base(RBX, 8)),
        |a| a.sarx(R9, R8, R15),
        |a| a.lea64(RCX, Mem::base(R8, 3)),
        |a| a.sarx(RCX, RCX, R15),
        |a| a.lea64(R9, Mem::indexed(R9, RCX, 1, 0)),
        |a| a.sarx(RCX, R8, R14),
        |a| a.load(
            Width::Qword,
            RCX,
            Mem::indexed(R14, RCX, 8, LONG_ROOT_DISPLACEMENT)
        ),
        |a| a.load(Width::Qword, RCX, Mem::indexed(RCX, R9, 8, 0)),
    ]
    .to_vec();
    all.push(BRANCH);
    all.extend(steps![|a| a.lea64(R9, Mem::indexed(RCX, R8, 1, 0))]);
    all
}

/// The rules that steps and an access after them break.
fn accessed(steps: &[Step], access: impl FnOnce(&mut Assembler)) -> Vec<Rule> {
    rules_in(ModeFlags::empty(), &RegisterMap::LEGACY, |a| {
        let misses = emit_steps(a, steps);
        access(a);
        misses
    })
}

fn long_accessed(steps: &[Step], access: impl FnOnce(&mut Assembler)) -> Vec<Rule> {
    let flags = ModeFlags::LONG | ModeFlags::CODE64;
    rules_in(flags, &RegisterMap::LONG, |a| {
        let misses = emit_steps(a, steps);
        access(a);
        misses
    })
}

const GUEST: Mem = Mem::base(R9, 0);

fn read(a: &mut Assembler) {
    a.load(Width::Dword, RAX, GUEST);
}

#[test]
fn memory_is_reached_through_what_a_look_up_has_yielded() {
    let hit = |access: &dyn Fn(&mut Assembler)| accessed(&look_up(), access).len();
    assert_eq!(accessed(&look_up(), read), [""; 0]);
    assert_eq!(hit(&|a| a.load(Width::Word, RAX, GUEST)), 0);
    // These accesses are larger than the look-up, have a displacement, use another register, or
    // store.
    assert_eq!(hit(&|a| a.load(Width::Qword, RAX, GUEST)), 1);
    assert_eq!(hit(&|a| a.load(Width::Byte, RAX, Mem::base(R9, 1))), 1);
    assert_eq!(hit(&|a| a.load(Width::Byte, RAX, Mem::base(R8, 0))), 1);
    assert_eq!(hit(&|a| a.load(Width::Byte, RAX, Mem::base(RBX, 0))), 1);
    assert_eq!(hit(&|a| a.store(Width::Byte, GUEST, RAX)), 1);
    let narrow: &[u8] = &[0x67, 0x41, 0x8b, 0x01]; // mov eax,[r9d]
    assert_eq!(hit(&|a| a.raw(narrow)), 1);
    // After an advance of the pointer fewer bytes may be accessed.
    let next = |by| move |a: &mut Assembler| a.lea64(R9, Mem::base(R9, by));
    let at = |by, width| {
        hit(&|a| {
            next(by)(a);
            a.load(width, RAX, GUEST);
        })
    };
    assert_eq!(at(2, Width::Word), 0);
    assert_eq!(at(2, Width::Dword), 1);
    assert_eq!(at(4, Width::Byte), 1);
    assert_eq!(at(-1, Width::Byte), 1);
}

#[test]
fn no_step_of_a_look_up_can_be_left_out() {
    for missing in 0..look_up().len() {
        let mut some = look_up();
        some.remove(missing);
        let is_found = !accessed(&some, read).is_empty();
        assert!(is_found, "{missing}");
    }
    for missing in 0..long_look_up().len() {
        let mut some = long_look_up();
        some.remove(missing);
        let is_found = !long_accessed(&some, read).is_empty();
        // Where an address may have any value, the LEA that adds 8 is not required.
        assert_eq!(is_found, missing != 0, "{missing}");
    }
}

#[test]
fn no_step_of_a_look_up_can_be_another() {
    let others = [
        (0, steps![|a| a.lea64(R8, Mem::base(RBX, 8))]),
        (1, steps![|a| a.shrx(R9, RBX, R15)]),
        (1, steps![|a| a.sarx(R9, R8, R15)]),
        (1, steps![|a| a.shrx(R9, R8, R11)]),
        (2, steps![|a| a.lea64(RCX, Mem::base(R8, 2))]),
        (2, steps![|a| a.lea64(RCX, Mem::base(R8, -3))]),
        (4, steps![|a| a.lea64(R9, Mem::indexed(R9, RCX, 2, 0))]),
        (4, steps![|a| a.lea64(R9, Mem::indexed(R9, RCX, 1, 1))]),
        (
            5,
            steps![|a| a.load(Width::Qword, RCX, Mem::indexed(R14, R9, 8, 8))],
        ),
        (
            5,
            steps![|a| a.load(Width::Qword, RCX, Mem::indexed(R14, R9, 4, 0))],
        ),
        (
            5,
            steps![|a| a.load(Width::Qword, RDX, Mem::indexed(R14, R9, 8, 0))],
        ),
        (7, steps![|a| a.lea64(R9, Mem::indexed(RCX, RBX, 1, 0))]),
        (7, steps![|a| a.lea64(R9, Mem::indexed(RCX, R8, 2, 0))]),
        (7, steps![|a| a.lea64(R9, Mem::indexed(RCX, R8, 1, 4))]),
    ];
    for (place, [other]) in others {
        let mut some = look_up();
        some[place] = other;
        assert_ne!(accessed(&some, read), [""; 0], "{place}");
    }
    let others = [
        (1, steps![|a| a.shrx(R9, R8, R15)]),
        (5, steps![|a| a.sarx(RCX, RBX, R14)]),
        (
            6,
            steps![|a| a.load(Width::Qword, RCX, Mem::indexed(R14, RCX, 8, 0))],
        ),
        (
            7,
            steps![|a| a.load(Width::Qword, RCX, Mem::indexed(RCX, R9, 8, 8))],
        ),
        (
            7,
            steps![|a| a.load(Width::Qword, RCX, Mem::indexed(RCX, R9, 4, 0))],
        ),
        (
            7,
            steps![|a| a.load(Width::Qword, RCX, Mem::indexed(RCX, R8, 8, 0))],
        ),
        (7, steps![|a| a.load(Width::Qword, RCX, Mem::base(RCX, 0))]),
        (
            7,
            steps![|a| a.load(Width::Dword, RCX, Mem::indexed(RCX, R9, 8, 0))],
        ),
    ];
    for (place, [other]) in others {
        let mut some = long_look_up();
        some[place] = other;
        assert_ne!(long_accessed(&some, read), [""; 0], "{place}");
    }
    // Neither look-up is allowed in the other mode.
    assert_ne!(accessed(&long_look_up(), read), [""; 0]);
    assert_ne!(long_accessed(&look_up(), read), [""; 0]);
}

#[test]
fn stores_go_where_the_table_for_stores_says() {
    let store = |a: &mut Assembler| a.store(Width::Dword, GUEST, RAX);
    let mut steps = look_up();
    let [load] = steps![|a| a.load(
        Width::Qword,
        RCX,
        Mem::indexed(R14, R9, 8, WRITE_TABLE_OFFSET)
    )];
    steps[5] = load;
    assert_eq!(accessed(&steps, store), [""; 0]);
    let mut steps = long_look_up();
    let [load] = steps![|a| a.load(
        Width::Qword,
        RCX,
        Mem::indexed(RCX, R9, 8, LONG_WRITE_DISPLACEMENT)
    )];
    steps[7] = load;
    assert_eq!(long_accessed(&steps, store), [""; 0]);
    assert_ne!(long_accessed(&long_look_up(), store), [""; 0]);
}

#[test]
fn the_sum_of_what_a_look_up_has_yielded_and_its_address_is_one_operand() {
    const SUM: Mem = Mem::indexed(RCX, R8, 1, 0);
    // The last step, which forms the sum, is left out.
    let short = look_up();
    let steps = &short[..short.len() - 1];
    let hit = |access: &dyn Fn(&mut Assembler)| accessed(steps, access).len();
    assert_eq!(hit(&|a| a.load(Width::Dword, RAX, SUM)), 0);
    assert_eq!(hit(&|a| a.load(Width::Byte, RAX, SUM)), 0);
    // These accesses are larger than the look-up, store, or go elsewhere.
    assert_eq!(hit(&|a| a.load(Width::Qword, RAX, SUM)), 1);
    assert_eq!(hit(&|a| a.store(Width::Byte, SUM, RAX)), 1);
    let others = [
        Mem::indexed(RCX, R8, 1, 1),
        Mem::indexed(RCX, R8, 2, 0),
        Mem::indexed(R8, RCX, 2, 0),
        Mem::indexed(RCX, RBX, 1, 0),
        Mem::indexed(RDX, R8, 1, 0),
        Mem::base(RCX, 0),
        Mem::scaled(RCX, 1),
    ];
    for other in others {
        assert_eq!(hit(&|a| a.load(Width::Byte, RAX, other)), 1, "{other:?}");
    }
    let narrow: &[u8] = &[0x67, 0x42, 0x8b, 0x04, 0x01]; // mov eax,[ecx+r8d]
    assert_eq!(hit(&|a| a.raw(narrow)), 1);
    // The operand is refused after either register has changed.
    for changed in [RCX, R8] {
        let changes = |a: &mut Assembler| {
            a.lea64(changed, Mem::base(changed, 1));
            a.load(Width::Byte, RAX, SUM);
        };
        assert_eq!(hit(&changes), 1);
    }
    // The operand is refused before the branch too.
    let load = |a: &mut Assembler| a.load(Width::Byte, RAX, SUM);
    assert_ne!(accessed(&steps[..steps.len() - 1], load), [""; 0]);
    let long = long_look_up();
    let steps = &long[..long.len() - 1];
    let load = |a: &mut Assembler| a.load(Width::Dword, RAX, SUM);
    assert_eq!(long_accessed(steps, load), [""; 0]);
    let load = |a: &mut Assembler| a.load(Width::Qword, RAX, SUM);
    assert_eq!(long_accessed(steps, load).len(), 1);
}

/// The shared look-up of 128 bytes for stores in 64-bit code, without its last step.
fn window_look_up() -> Vec<Step> {
    let mut steps = long_look_up();
    let [address, last, load] = steps![
        |a| a.lea64(R8, Mem::base(R12, -72)),
        |a| a.lea64(RCX, Mem::base(R8, 127)),
        |a| a.load(
            Width::Qword,
            RCX,
            Mem::indexed(RCX, R9, 8, LONG_WRITE_DISPLACEMENT)
        ),
    ];
    (steps[0], steps[2], steps[7]) = (address, last, load);
    steps.pop();
    steps
}

const POINT: Mem = Mem::indexed(RCX, R8, 1, 0);

#[test]
fn a_windows_accesses_lie_in_it_and_are_what_it_was_looked_up_for() {
    let hit = |place: i32, width: Width| {
        let found = long_accessed(&window_look_up(), |a| {
            a.lea64(R11, POINT);
            a.store(width, Mem::base(R11, 64), RAX);
            a.load(width, RAX, Mem::base(R11, place));
        });
        found.len()
    };
    assert_eq!(hit(0, Width::Qword), 0);
    assert_eq!(hit(120, Width::Qword), 0);
    assert_eq!(hit(127, Width::Byte), 0);
    assert_eq!(hit(121, Width::Qword), 1);
    assert_eq!(hit(128, Width::Byte), 1);
    assert_eq!(hit(-1, Width::Byte), 1);
    // A shared look-up for loads serves loads only.
    let mut steps = window_look_up();
    let [load] = steps![|a| a.load(Width::Qword, RCX, Mem::indexed(RCX, R9, 8, 0))];
    steps[7] = load;
    let stored = [false, true].map(|stores| {
        let found = long_accessed(&steps, |a| {
            a.lea64(R11, POINT);
            a.load(Width::Qword, RAX, Mem::base(R11, 120));
            if stores {
                a.store(Width::Byte, Mem::base(R11, 120), RAX);
            }
        });
        found.len()
    });
    assert_eq!(stored, [0, 1]);
    // Without R11 the pointer leads to one place only.
    let found = long_accessed(&window_look_up(), |a| {
        a.lea64(R9, POINT);
        a.load(Width::Byte, RAX, Mem::base(R9, 1));
    });
    assert_eq!(found.len(), 1);
}

#[test]
fn a_window_is_used_behind_an_entry_only_if_exits_that_lead_there_leave_it() {
    // The code is a shared look-up, an entry, a look-up whose miss exit resumes at the entry, and
    // an access through the shared look-up. `before` and `behind` say whether R11 changes before or
    // after the second look-up.
    let found = |before: bool, behind: bool, uses: bool| {
        let mut assembler = Assembler::new();
        let a = &mut assembler;
        let mut misses = emit_steps(a, &window_look_up());
        a.lea64(R11, POINT);
        let retry = a.position() as u32;
        if before {
            a.mov(R11, RAX);
        }
        misses.extend(emit_steps(a, &long_look_up()));
        a.load(Width::Dword, RAX, GUEST);
        if behind {
            a.mov(R11, RAX);
        }
        if uses {
            a.load(Width::Qword, RAX, Mem::base(R11, 8));
        }
        exit(a, 0);
        for (index, miss) in misses.into_iter().enumerate() {
            a.patch_rel8_here(miss);
            exit(a, index + 1);
        }
        let missed = SiteKind::Memory {
            size: 4,
            write: false,
        };
        let sites = [
            site(SiteKind::Continue),
            site(SiteKind::Continue),
            Site {
                retry,
                ..site(missed)
            },
        ];
        let flags = ModeFlags::LONG | ModeFlags::CODE64;
        rules_of(a.code(), &sites, flags, &RegisterMap::LONG)
    };
    assert_eq!(found(false, false, true), [""; 0]);
    assert_eq!(found(false, true, false), [""; 0]);
    assert_eq!(found(true, false, false), [""; 0]);
    // The result in R11 is lost in both cases.
    assert_ne!(found(false, true, true), [""; 0]);
    assert_ne!(found(true, false, true), [""; 0]);
    // A second shared look-up lies between the entry and the exit that resumes there.
    let mut assembler = Assembler::new();
    let a = &mut assembler;
    let mut misses = emit_steps(a, &window_look_up());
    a.lea64(R11, POINT);
    let retry = a.position() as u32;
    a.load(Width::Qword, RAX, Mem::base(R11, 8));
    misses.extend(emit_steps(a, &window_look_up()));
    a.lea64(R11, POINT);
    misses.extend(emit_steps(a, &long_look_up()));
    exit(a, 0);
    let mut sites = vec![site(SiteKind::Continue)];
    for (index, miss) in misses.into_iter().enumerate() {
        a.patch_rel8_here(miss);
        exit(a, index + 1);
        sites.push(match index {
            2 => Site {
                retry,
                ..site(SiteKind::Slow)
            },
            _ => site(SiteKind::Continue),
        });
    }
    let flags = ModeFlags::LONG | ModeFlags::CODE64;
    let found = rules_of(a.code(), &sites, flags, &RegisterMap::LONG);
    assert_eq!(
        found,
        ["R11 does not hold the shared look-up's result here"]
    );
}

#[test]
fn rcx_is_a_pointer_only_while_it_holds_a_checked_address() {
    let hit = |access: &[u8]| accessed(&look_up(), |a| a.raw(access)).len();
    assert_eq!(hit(&[0x4c, 0x89, 0xc9, 0x8a, 0x21]), 0); // mov rcx,r9; mov ah,[rcx]
    assert_eq!(hit(&[0x4a, 0x8d, 0x0c, 0x01, 0x8a, 0x21]), 0); // lea rcx,[rcx+r8]; mov ah,[rcx]
    assert_eq!(hit(&[0x8a, 0x21]), 1);
    assert_eq!(hit(&[0x4c, 0x89, 0xc9, 0x8a, 0x61, 1]), 1); // [rcx+1]
    assert_eq!(hit(&[0x4c, 0x89, 0xce, 0x8a, 0x26]), 1); // mov rsi,r9; mov ah,[rsi]
    assert_eq!(hit(&[0x4c, 0x89, 0xc9, 0xff, 0xc9, 0x8a, 0x21]), 1); // dec ecx
}

#[test]
fn fields_of_the_context_are_used_as_their_table_says() {
    let load = |at, width| rules(|a| a.load(width, RAX, field(at))).len();
    let store = |at, width| rules(|a| a.store(width, field(at), RAX)).len();
    let offset = |offset: usize| offset as i32 - BIAS;
    assert_eq!(load(at::EXIT_VALUE, Width::Qword), 0);
    assert_eq!(store(at::EXIT_VALUE, Width::Qword), 0);
    assert_eq!(store(at::slot(3), Width::Qword), 0);
    assert_eq!(store(at::slot(12), Width::Word), 0);
    // These fields may only be read.
    for at in [at::TIME_STAMP_OFFSET, at::INTERRUPT_REQUEST, at::TASK_LIMIT] {
        assert_eq!((load(at, Width::Qword), store(at, Width::Qword)), (0, 1));
    }
    // These fields may be neither read nor written.
    let hidden = [
        at::HOST_RSP,
        at::EXIT_ENTRY,
        at::LINKS,
        at::TLB,
        at::TARGET,
        at::CODE_LINES,
        at::CODE_BYTES,
        at::STORE_RETURN,
        at::BOUNCE_POINTER,
        at::slot(8) - 8,
        offset(offset_of!(Context, signal)),
        offset(offset_of!(Context, store_test.routines)),
        offset(size_of::<Context>()),
        -BIAS - 8,
        0x100_0000,
    ];
    for at in hidden {
        assert_eq!(
            (load(at, Width::Qword), store(at, Width::Qword)),
            (1, 1),
            "{at}"
        );
    }
    // These accesses reach parts of two fields, or have an index.
    assert_eq!(store(at::EXIT_VALUE + 4, Width::Qword), 1);
    assert_eq!(store(at::slot(2) + 4, Width::Qword), 1);
    assert_eq!(store(at::slot(7) + 4, Width::Qword), 1);
    assert_eq!(
        rules(|a| a.load(Width::Dword, R11, Mem::indexed(R15, R9, 1, at::EXIT_VALUE))).len(),
        1
    );
    // Of the context, only slots are operands of copies: add [r15+..],rax.
    let add = |at: i32| {
        let mut code = vec![0x49, 0x01, 0x87];
        code.extend_from_slice(&at.to_le_bytes());
        raw(&code).len()
    };
    assert_eq!((add(at::slot(9)), add(at::EXIT_VALUE)), (0, 1));
}

#[test]
fn registers_of_the_translator_stay_as_they_are_and_are_not_shown() {
    let refused: [&[u8]; 8] = [
        &[0x49, 0x89, 0xc7],       // mov r15,rax
        &[0x49, 0x89, 0xc6],       // mov r14,rax
        &[0x48, 0x89, 0xc4],       // mov rsp,rax
        &[0x4c, 0x89, 0xf8],       // mov rax,r15
        &[0x48, 0x89, 0xe0],       // mov rax,rsp
        &[0x49, 0x8d, 0x47, 8],    // lea rax,[r15+8]
        &[0x41, 0x0f, 0x94, 0xc6], // sete r14b
        &[0x4d, 0x87, 0xed],       // xchg r13,r13
    ];
    for code in refused {
        assert_eq!(raw(code).len(), 1, "{code:x?}");
    }
    assert_eq!(raw(&[0x49, 0x89, 0xc4]), [""; 0]); // mov r12,rax
}

#[test]
fn nothing_runs_that_is_not_on_a_list() {
    let refused: [&[u8]; 20] = [
        &[0x0f, 0x01, 0xd7],                   // enclu
        &[0x0f, 0x38, 0xf6, 0xc8],             // wrssd eax,ecx, undefined with a register
        &[0xf3, 0x48, 0x0f, 0xae, 0xe8],       // incsspq rax
        &[0xf3, 0x0f, 0x01, 0xec],             // uiret
        &[0xc4, 0xc2, 0x78, 0x49, 0x01],       // ldtilecfg [r9]
        &[0xc4, 0xc2, 0x7b, 0x4b, 0x04, 0x01], // tileloadd tmm0,[r9+rax]
        &[0x0f, 0xa2],                         // cpuid
        &[0x0f, 0x05],                         // syscall
        &[0xcd, 0x80],                         // int 80h
        &[0x0f, 0x01, 0xd0],                   // xgetbv
        &[0xfc],                               // cld
        &[0x9c],                               // pushfq
        &[0xa5],                               // movsd
        &[0xd7],                               // xlatb
        &[0xf0, 0x48, 0xff, 0xc0],             // lock inc rax
        &[0x64, 0x48, 0x89, 0xc0],             // mov rax,rax with FS
        &[0x8e, 0xd8],                         // mov ds,eax
        &[0x0f, 0xae, 0x00],                   // fxsave [rax]
        &[0xfa],                               // cli
        &[0x06],                               // undefined
    ];
    for code in refused {
        assert_ne!(raw(code), [""; 0], "{code:x?}");
    }
}

#[test]
fn vector_registers_are_used_once_they_are_loaded() {
    let addps: &[u8] = &[0x0f, 0x58, 0xc1];
    assert_eq!(raw(addps).len(), 1);
    let found = |tested: i32| {
        let mut assembler = Assembler::new();
        assembler.load(Width::Dword, RCX, field(tested));
        let loaded = assembler.jrcxz();
        exit(&mut assembler, 0);
        assembler.patch_rel8_here(loaded);
        assembler.raw(addps);
        exit(&mut assembler, 1);
        let sites = [site(SiteKind::VectorLoad), site(SiteKind::Continue)];
        let flags = ModeFlags::empty();
        rules_of(assembler.code(), &sites, flags, &RegisterMap::LEGACY).len()
    };
    assert_eq!(found(at::VECTORS_OFF), 0);
    assert_eq!(found(at::EXIT_VALUE), 1);
}

#[test]
fn branches_lead_forward_to_an_instruction() {
    assert_eq!(raw(&[0xeb, 1, 0x90]).len(), 1); // over a NOP, which is never emitted
    assert_eq!(raw(&[0xeb, 2, 0x89, 0xc0]), [""; 0]); // over mov eax,eax
    assert_eq!(
        raw(&[0xeb, 1, 0x89, 0xc0]),
        ["a branch or an entry leads into an instruction"]
    );
    assert_eq!(raw(&[0x89, 0xc0, 0xe3, 0xfc]), ["branch leaves the block"]);
    assert_eq!(raw(&[0xe3, 0x70]), ["branch leaves the block"]);
    assert_eq!(raw(&[0xe8, 0, 0, 0, 0]), ["must not run on the host"]);
    let mut assembler = Assembler::new();
    assembler.mov(RAX, RBX);
    let rules = rules_of(
        assembler.code(),
        &[],
        ModeFlags::empty(),
        &RegisterMap::LEGACY,
    );
    assert_eq!(rules, ["control leaves the block"]);
}

#[test]
fn exits_are_named_once_and_just_before_they_are_taken() {
    let sites = [site(SiteKind::Continue), site(SiteKind::Continue)];
    let found = |emit: &dyn Fn(&mut Assembler)| {
        let mut assembler = Assembler::new();
        emit(&mut assembler);
        let flags = ModeFlags::empty();
        rules_of(assembler.code(), &sites, flags, &RegisterMap::LEGACY).len()
    };
    let both = |a: &mut Assembler| {
        exit(a, 0);
        exit(a, 1);
    };
    assert_eq!(found(&both), 0);
    assert_eq!(found(&|a| exit(a, 0)), 1);
    assert_ne!(found(&|a| [0, 0].into_iter().for_each(|n| exit(a, n))), 0);
    assert_ne!(
        found(&|a| [0, 1, 2].into_iter().for_each(|n| exit(a, n))),
        0
    );
    let without_name = |a: &mut Assembler| {
        both(a);
        a.jmp_memory(field(at::EXIT_ENTRY));
    };
    assert_ne!(found(&without_name), 0);
    let elsewhere = |a: &mut Assembler| {
        both(a);
        a.jmp_memory(field(at::TARGET));
    };
    assert_ne!(found(&elsewhere), 0);
}

/// The rules that the call of a routine for `F3 A4` breaks, in flat 32-bit code, or in 64-bit code
/// if `long`.
fn string_rules(long: bool, map: &RegisterMap, emit: impl FnOnce(&mut Assembler)) -> Vec<Rule> {
    let mut assembler = Assembler::new();
    emit(&mut assembler);
    let behind = assembler.position() as u32;
    exit(&mut assembler, 1);
    let sites = [
        Site {
            after: behind,
            ..site(SiteKind::Helper(0))
        },
        site(SiteKind::Continue),
    ];
    let mut mode = mode_with(match long {
        true => ModeFlags::LONG | ModeFlags::CODE64,
        false => ModeFlags::CODE32,
    });
    mode.segments = [SegmentClass::Flat; 6];
    let bits = if long { 64 } else { 32 };
    let instruction = Decoder::new(bits, &[0xf3, 0xa4], DecoderOptions::NONE).decode();
    let helpers = [Helper::new(instruction)];
    rules_with(assembler.code(), &sites, &helpers, &mode, map)
}

/// Calls a routine with R11 set to the address `beyond` bytes after the instruction after the jump.
fn call_string(a: &mut Assembler, number: usize, routine: usize, beyond: usize) {
    let behind = a.lea_rip(R11);
    let named = pack_site(BLOCK, number) as i32;
    a.store_imm(Width::Dword, field(at::EXIT_SITE), named);
    a.jmp_memory(field(at::string_routine(StringRoutine(routine))));
    let position = a.position() + beyond;
    a.patch_rel32(behind, position);
}

#[test]
fn a_string_routine_is_that_of_the_exits_instruction_and_comes_back_behind_it() {
    const NOTHING: [Rule; 0] = [];
    let (flat, long) = (0, OPERATIONS);
    for (is_long, routine) in [(false, flat), (true, long)] {
        let found = string_rules(is_long, &RegisterMap::LEGACY, |a| {
            call_string(a, 0, routine, 0);
        });
        assert_eq!(found, NOTHING);
        // These routines have another width, another operation or another way to reach memory, or
        // do not exist.
        for other in [routine + 1, routine + 4, OPERATIONS - routine, ROUTINES] {
            let found = string_rules(is_long, &RegisterMap::LEGACY, |a| {
                call_string(a, 0, other, 0);
            });
            assert_eq!(found, ["is not the test of the look-up's store"], "{other}");
        }
    }
    // R11 leads to where exit 1 resumes, not to the instruction after the string instruction.
    let found = string_rules(false, &RegisterMap::LEGACY, |a| call_string(a, 0, flat, 8));
    assert!(found.contains(&"is not the test of the look-up's store"));
    // RSI and RDI do not hold the guest's values.
    let found = string_rules(false, &RegisterMap::SPILLED, |a| call_string(a, 0, flat, 0));
    assert!(found.contains(&"is not the test of the look-up's store"));
    // Another exit is named.
    let found = string_rules(false, &RegisterMap::LEGACY, |a| call_string(a, 1, flat, 0));
    assert!(found.contains(&"is not the test of the look-up's store"));
    // R11 does not hold the address.
    let found = string_rules(false, &RegisterMap::LEGACY, |a| {
        let named = pack_site(BLOCK, 0) as i32;
        a.store_imm(Width::Dword, field(at::EXIT_SITE), named);
        a.jmp_memory(field(at::string_routine(StringRoutine(flat))));
    });
    assert!(found.contains(&"is not the test of the look-up's store"));
}

/// A link within the page: a jump and its stub.
fn link() -> (Assembler, Site) {
    let mut assembler = Assembler::new();
    let jump = assembler.jmp();
    let stub = assembler.position();
    assembler.patch_rel32(jump, stub);
    exit(&mut assembler, 0);
    let place = LinkPlace::Direct {
        distance: jump.0 as u32,
        stub: stub as u32,
        windowless: None,
    };
    (assembler, site(SiteKind::Link(place)))
}

#[test]
fn a_link_leads_to_its_stub_or_to_a_block() {
    let (assembler, site) = link();
    let mode = Mode::of(&CpuState::at_reset());
    let found = |distance: i32, is_block: &dyn Fn(i64) -> bool| {
        let mut code = assembler.code().to_vec();
        code[1..5].copy_from_slice(&distance.to_le_bytes());
        let subject = Subject {
            code: &code,
            sites: &[site],
            helpers: &[],
            immediates: &[],
            completions: &[],
            mode: &mode,
            mode_id: 0,
            branch_table: BranchTable::Shared,
            family: FamilyId(0),
            block: BLOCK,
            map: &RegisterMap::LEGACY,
        };
        verify_patched(&subject, is_block).len()
    };
    assert_eq!(found(0, &|_| false), 0);
    assert_eq!(found(0x1000, &|target| target == 0x1005), 0);
    assert_eq!(found(-0x105, &|target| target == -0x100), 0);
    assert_ne!(found(0x1001, &|target| target == 0x1005), 0);
    assert_ne!(found(8, &|target| target == 0x1005), 0);
}

#[test]
fn a_link_through_a_slot_jumps_where_the_slot_of_its_site_leads() {
    let found = |slot: i32, listed: u32, part: i32| {
        let mut a = Assembler::new();
        a.jmp_memory(Mem::base(
            R13,
            from_links(SLOTS_OFFSET + slot * SLOT_BYTES + part),
        ));
        let stub = a.position();
        exit(&mut a, 0);
        let place = LinkPlace::Slot {
            slot: listed,
            stub: stub as u32,
        };
        let sites = [site(SiteKind::Link(place))];
        let flags = ModeFlags::empty();
        rules_of(a.code(), &sites, flags, &RegisterMap::LEGACY).len()
    };
    assert_eq!(found(7, 7, 0), 0);
    assert_ne!(found(7, 8, 0), 0);
    assert_ne!(found(7, 7, SLOT_STUB), 0);
    assert_ne!(found(7, 7, 4), 0);
    assert_ne!(found(-1, 7, 0), 0);
    assert_ne!(found(1 << 20, 1 << 20, 0), 0);
}

#[test]
fn what_a_slot_holds_is_only_jumped_to() {
    let found = rules_in(ModeFlags::empty(), &RegisterMap::LEGACY, |a| {
        a.load(Width::Qword, R8, Mem::base(R13, from_links(SLOTS_OFFSET)));
        Vec::new()
    });
    assert_ne!(found, Vec::<&str>::new());
    let found = rules_in(ModeFlags::empty(), &RegisterMap::LEGACY, |a| {
        a.jmp_register(R8);
        Vec::new()
    });
    assert_ne!(found, Vec::<&str>::new());
}

#[test]
fn an_indirect_branch_jumps_where_the_tag_was_the_targets() {
    let start = table_offset(BranchTable::Shared);
    let found = |constant: u64, table: i32, target: i32, branches: bool| {
        let (table, target) = (start + table, start + target);
        rules_in(ModeFlags::empty(), &RegisterMap::LEGACY, |a| {
            a.mov32(R8, RAX);
            a.rorx(R9, R8, INDEX_TURN);
            a.shrx(R9, R9, R13);
            a.lea64(R9, Mem::scaled(R9, 4));
            a.mov_imm64(R11, constant);
            a.load(
                Width::Qword,
                RCX,
                Mem::indexed(R13, R9, 8, from_links(table)),
            );
            a.lea64(RCX, Mem::indexed(RCX, R8, 1, 0));
            a.lea64(RCX, Mem::indexed(RCX, R11, 1, 0));
            if branches {
                let hit = a.jrcxz();
                let miss = a.jmp_short();
                a.patch_rel8_here(hit);
                a.jmp_memory(Mem::indexed(R13, R9, 8, from_links(target)));
                a.patch_rel8_here(miss);
            } else {
                a.jmp_memory(Mem::indexed(R13, R9, 8, from_links(target)));
            }
            Vec::new()
        })
        .len()
    };
    let tag = (3 << 32) + 1;
    assert_eq!(found(tag, 0, 8, true), 0);
    assert_ne!(found(tag, 0, 8, false), 0);
    assert_ne!(found(tag + 1, 0, 8, true), 0);
    assert_ne!(found(tag, 8, 16, true), 0);
    assert_ne!(found(tag, 0, 16, true), 0);
    // The next entry is the second choice; its tag says nothing about the target of the first.
    assert_eq!(found(tag, 32, 40, true), 0);
    assert_ne!(found(tag, 32, 8, true), 0);
    assert_ne!(found(tag, 0, 40, true), 0);
    assert_ne!(found(tag, 64, 72, true), 0);
}

#[test]
fn a_branch_to_relocatable_code_loads_its_targets_slide() {
    let program = ModeFlags::USER | ModeFlags::PROTECTED | ModeFlags::CODE32;
    let found = |flags: ModeFlags, delta: Option<i32>, stored: Host, early: bool| {
        let start = table_offset(shared_table(flags));
        let load_delta = |a: &mut Assembler| {
            let Some(delta) = delta else { return };
            a.load(
                Width::Qword,
                RDX,
                Mem::indexed(R13, R9, 8, from_links(start + delta)),
            );
            a.store(Width::Qword, Mem::base(R15, at::CODE_SLIDE), stored);
        };
        rules_in(flags, &RegisterMap::LEGACY, |a| {
            a.mov32(R8, RAX);
            a.rorx(R9, R8, INDEX_TURN);
            a.shrx(R9, R9, R13);
            a.lea64(R9, Mem::scaled(R9, 4));
            a.mov_imm64(R11, (3 << 32) + 1);
            a.load(
                Width::Qword,
                RCX,
                Mem::indexed(R13, R9, 8, from_links(start)),
            );
            a.lea64(RCX, Mem::indexed(RCX, R8, 1, 0));
            a.lea64(RCX, Mem::indexed(RCX, R11, 1, 0));
            if early {
                load_delta(a);
            }
            let hit = a.jrcxz();
            let miss = a.jmp_short();
            a.patch_rel8_here(hit);
            if !early {
                load_delta(a);
            }
            a.jmp_memory(Mem::indexed(R13, R9, 8, from_links(start + ENTRY_TARGET)));
            a.patch_rel8_here(miss);
            Vec::new()
        })
        .len()
    };
    assert_eq!(found(program, Some(ENTRY_SLIDE), RDX, false), 0);
    assert_eq!(found(ModeFlags::empty(), None, RDX, false), 0);
    assert_ne!(found(program, None, RDX, false), 0);
    assert_ne!(found(program, Some(ENTRY_TARGET), RDX, false), 0);
    assert_ne!(found(program, Some(ENTRY_SLIDE), R11, false), 0);
    // The slide is loaded before the tag has matched.
    assert_ne!(found(program, Some(ENTRY_SLIDE), RDX, true), 0);
}

#[test]
fn a_branch_leaves_the_delta_as_it_is_if_it_is_the_targets() {
    let program = ModeFlags::USER | ModeFlags::PROTECTED | ModeFlags::CODE32;
    let start = table_offset(shared_table(program));
    let found = |part: i32, added: Host, restores: bool, change: fn(&mut Assembler)| {
        rules_in(program, &RegisterMap::LEGACY, |a| {
            let entry = |part| Mem::indexed(R13, R9, 8, from_links(start + part));
            let active = Mem::base(R15, at::CODE_SLIDE);
            a.mov32(R8, RAX);
            a.rorx(R9, R8, INDEX_TURN);
            a.shrx(R9, R9, R13);
            a.lea64(R9, Mem::scaled(R9, 4));
            a.mov_imm64(R11, (3 << 32) + 1);
            a.load(Width::Qword, RCX, entry(0));
            a.lea64(RCX, Mem::indexed(RCX, R8, 1, 0));
            a.lea64(RCX, Mem::indexed(RCX, R11, 1, 0));
            let hit = a.jrcxz();
            let miss = a.jmp_short();
            a.patch_rel8_here(hit);
            a.load(Width::Qword, R11, active);
            a.load(Width::Qword, RCX, entry(part));
            a.lea64(RCX, Mem::indexed(RCX, added, 1, 0));
            change(a);
            let same = a.jrcxz();
            if restores {
                a.load(Width::Qword, R11, entry(ENTRY_SLIDE));
                a.store(Width::Qword, active, R11);
            }
            a.patch_rel8_here(same);
            a.jmp_memory(entry(ENTRY_TARGET));
            a.patch_rel8_here(miss);
            Vec::new()
        })
        .len()
    };
    let nothing = |_: &mut Assembler| {};
    assert_eq!(found(ENTRY_NEGATED_SLIDE, R11, true, nothing), 0);
    assert_ne!(found(ENTRY_NEGATED_SLIDE, R11, false, nothing), 0);
    assert_ne!(found(ENTRY_NEGATED_SLIDE, RDX, true, nothing), 0);
    assert_ne!(found(ENTRY_SLIDE, R11, true, nothing), 0);
    let zeroes = |a: &mut Assembler| a.mov32(RCX, RDX);
    assert_ne!(found(ENTRY_NEGATED_SLIDE, R11, true, zeroes), 0);
}
