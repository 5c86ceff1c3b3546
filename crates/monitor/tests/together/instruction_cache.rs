//! Tests that guests compute the same results whichever source the monitor takes its instructions
//! from, and that the decode cache follows writes to code and to page tables. All emitted code is
//! verified.

use crate::support::long_mode::spaces::{make_empty_space, map, run_kernel, table};
use crate::support::long_mode::*;
use std::ops::RangeInclusive;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::instruction_cache::{InstructionCounts, InstructionSource};
use tollgate_platform::StopRequest;
use tollgate_test_support::Computer;
use tollgate_x86::{CpuState, PhysicalAddress};

use InstructionSource::{FastPath, Off, On, Physical, Site};

const SOURCES: [InstructionSource; 5] = [FastPath, Site, Off, On, Physical];
const RAX: usize = 0;
const RBX: usize = 3;
const R8: usize = 8;
const R9: usize = 9;
const WORD: u32 = 0x1122_3344;
/// Address of the kernel's page in all spaces.
const UPPER: u64 = 0xffff_ff00_0000_0000;

/// `in al,dx; ret`, and `in eax,dx; ret`.
const IN_BYTE: [u8; 2] = [0xec, 0xc3];
const IN_WORD: [u8; 2] = [0xed, 0xc3];

/// Runs a program whose instructions come from `source`.
fn run_from(
    source: InstructionSource,
    code: &[u8],
    setup: impl Fn(&mut CpuState, &mut GuestMemory),
) -> Computer<Bench> {
    let mut running = vcpu(code, setup);
    running.change_settings(|settings| settings.instruction_source = source);
    running.platform_mut().shows_word = true;
    running.platform_mut().word = WORD;
    let stop = running.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{source:?}: {stop:?}\n{}",
        running.dump()
    );
    running
}

/// The least and the largest number of exits at which the monitor may have executed an instruction:
/// some stores to code are executed by the monitor, others may pass.
fn emulated(vcpu: &Computer<Bench>) -> RangeInclusive<u64> {
    let counts = vcpu.exit_counts();
    let kinds = ExitKind::ALL.iter().filter(|kind| kind.is_emulated());
    let least = kinds.map(|&kind| counts.get(kind)).sum();
    least..=least + counts.get(ExitKind::CodeWrite)
}

/// Runs a program with all sources, which must have the same results. `check` receives the counts.
fn run_from_all(
    code: &[u8],
    setup: impl Fn(&mut CpuState, &mut GuestMemory),
    check: impl Fn(InstructionSource, InstructionCounts),
) -> Computer<Bench> {
    let plain = run_from(FastPath, code, &setup);
    for source in SOURCES {
        let vcpu = run_from(source, code, &setup);
        assert_eq!(vcpu.dump(), plain.dump(), "{source:?}");
        assert_eq!(vcpu.platform().word, plain.platform().word, "{source:?}");
        let counts = vcpu.counts().instruction_cache;
        let [hits, misses] = [counts.hits, counts.missed_new + counts.missed_void];
        assert_eq!(counts.disagreed, 0, "{source:?}");
        match source {
            FastPath | Site => assert_eq!(counts.found_anew, 0),
            Off => assert_eq!((counts.found_anew, hits + misses), (counts.walked, 0)),
            On | Physical => assert_eq!((counts.found_anew, counts.walked), (hits + misses, 0)),
        }
        if source.finds_anew() {
            let emulated = emulated(&vcpu);
            assert!(
                emulated.contains(&counts.found_anew),
                "{source:?} {emulated:?} {counts:?}"
            );
        }
        check(source, counts);
    }
    plain
}

#[test]
fn every_source_comes_to_the_same_and_every_exit_that_emulates_is_counted() {
    let code = guest_code!(
        all_sources,
        "mov ebx, 300",
        "mov edx, 0x100",
        "mov rdi, 0x1004000",
        "2:",
        "in eax, dx",
        "add eax, 0x1234567",
        "out dx, eax",
        "add r8, [rdi]",
        "mov [rdi], eax",
        "xor eax, eax",
        "mov rsi, rbx",
        "cpuid",
        "mov rbx, rsi",
        "mov edx, 0x100",
        "str ecx",
        "add r9, rcx",
        "dec ebx",
        "jnz 2b",
        "xor ecx, ecx",
        "out 0xf4, al",
    );
    let vcpu = run_from_all(
        code,
        |_, _| {},
        |source, counts| {
            if source == Off {
                assert!(counts.walked > 6 * 300, "{counts:?}");
            }
            if matches!(source, On | Physical) {
                // Each place is decoded once or twice, because the first block may be overwritten.
                assert!(counts.missed_new < 30, "{source:?} {counts:?}");
                assert!(counts.hits > 6 * 290, "{source:?} {counts:?}");
            }
        },
    );
    assert_eq!(vcpu.state().gpr[R9], 300 * 0x30);
}

#[test]
fn a_site_whose_code_is_written_is_decoded_anew() {
    let code = guest_code!(
        written_site,
        "mov ebx, 200",
        "mov edx, 0x100",
        "2:",
        "xor eax, eax",
        "mov byte ptr [rip + 3f], 0xec",
        "call 3f",
        "add r8, rax",
        "mov byte ptr [rip + 3f], 0xed",
        "call 3f",
        "add r9, rax",
        "dec ebx",
        "jnz 2b",
        "out 0xf4, al",
        // The data is in the same line as the code, so the store hits the line.
        "3:",
        "nop",
        "ret",
    );
    let vcpu = run_from_all(
        code,
        |_, _| {},
        |source, counts| {
            if matches!(source, On | Physical) {
                assert!(counts.dropped_code > 390, "{source:?} {counts:?}");
                assert!(counts.missed_void > 390, "{source:?} {counts:?}");
            }
        },
    );
    let state = vcpu.state();
    assert_eq!(state.gpr[R8], 200 * u64::from(WORD as u8));
    assert_eq!(state.gpr[R9], 200 * u64::from(WORD));
}

#[test]
fn a_page_that_is_mapped_elsewhere_has_its_own_instructions() {
    let code = guest_code!(
        remapped_page,
        "mov ebx, 100",
        "mov edx, 0x100",
        "mov edi, 0x1000000",
        "2:",
        "xor eax, eax",
        "mov dword ptr [0x7000], 0x300007",
        "invlpg [rdi]",
        "call rdi",
        "add r8, rax",
        "mov dword ptr [0x7000], 0x302007",
        "invlpg [rdi]",
        "call rdi",
        "add r9, rax",
        "dec ebx",
        "jnz 2b",
        "out 0xf4, al",
    );
    let setup = |_: &mut CpuState, memory: &mut GuestMemory| {
        memory.write(PhysicalAddress(SMALL_RAM[0]), &IN_BYTE);
        memory.write(PhysicalAddress(SMALL_RAM[1]), &IN_WORD);
    };
    let plain = run_from(FastPath, code, setup);
    for source in SOURCES {
        let vcpu = run_from(source, code, setup);
        assert_eq!(vcpu.dump(), plain.dump(), "{source:?}");
        let counts = vcpu.counts().instruction_cache;
        assert_eq!(counts.disagreed, 0, "{source:?}");
        match source {
            On => assert!(counts.dropped_tables > 190, "{counts:?}"),
            // Each place has its own instruction, and no store changes them.
            Physical => assert!(counts.missed_void == 0 && counts.hits > 190, "{counts:?}"),
            _ => {}
        }
    }
    assert_eq!(plain.state().gpr[R8], 100 * u64::from(WORD as u8));
    assert_eq!(plain.state().gpr[R9], 100 * u64::from(WORD));
}

#[test]
fn one_address_in_two_spaces_has_two_instructions() {
    const PROGRAM: u64 = 0x7f12_3456_7000;
    let code = guest_code!(
        two_spaces,
        "2:",
        "mov cr3, rdi",
        "xor eax, eax",
        "call rbx",
        "add r8, rax",
        "mov cr3, rsi",
        "call rbx",
        "add r9, rax",
        "dec ecx",
        "jnz 2b",
        "out 0xf4, al",
    );
    for source in SOURCES {
        let mut vcpu = vcpu(code, |state, memory| {
            for (space, (function, code)) in [(0x41_0000, IN_BYTE), (0x42_0000, IN_WORD)]
                .into_iter()
                .enumerate()
            {
                memory.write(PhysicalAddress(function), &code);
                make_empty_space(memory, space as u64);
                map(memory, space as u64, PROGRAM, &[function]);
                map(memory, space as u64, UPPER, &[CODE]);
            }
            (state.gpr[7], state.gpr[6]) = (table(0), table(1));
            (state.gpr[RBX], state.gpr[1], state.gpr[2]) = (PROGRAM, 100, 0x100);
            state.cr3 = table(0);
        });
        vcpu.change_settings(|settings| settings.instruction_source = source);
        vcpu.platform_mut().shows_word = true;
        vcpu.platform_mut().word = WORD;
        run_kernel(&mut vcpu, UPPER, table(0));
        let counts = vcpu.counts().instruction_cache;
        assert_eq!(
            vcpu.state().gpr[R8],
            100 * u64::from(WORD as u8),
            "{source:?}"
        );
        assert_eq!(vcpu.state().gpr[R9], 100 * u64::from(WORD), "{source:?}");
        assert_eq!(counts.disagreed, 0, "{source:?}");
        if matches!(source, On | Physical) {
            // Entries stay valid across loads of CR3.
            assert!(
                counts.hits > 350 && counts.missed_new < 20,
                "{source:?} {counts:?}"
            );
        }
    }
}

#[test]
fn an_instruction_in_two_pages_follows_writes_of_both() {
    // sldt eax or str eax, which begins two bytes before the second small page, and ret.
    let code = guest_code!(
        two_pages,
        "mov ebx, 100",
        "mov edi, 0x1000ffe",
        "mov word ptr [rdi], 0x000f",
        "mov byte ptr [rdi + 3], 0xc3",
        "2:",
        "mov byte ptr [rdi + 2], 0xc0",
        "call rdi",
        "add r8, rax",
        "mov byte ptr [rdi + 2], 0xc8",
        "call rdi",
        "add r9, rax",
        "call rdi",
        "add r9, rax",
        "dec ebx",
        "jnz 2b",
        "out 0xf4, al",
    );
    let vcpu = run_from_all(
        code,
        |_, _| {},
        |source, counts| {
            if matches!(source, On | Physical) {
                assert!(counts.dropped_code > 190, "{source:?} {counts:?}");
                assert!(counts.hits > 90, "{source:?} {counts:?}");
            }
        },
    );
    assert_eq!(vcpu.state().gpr[R8], 0);
    assert_eq!(vcpu.state().gpr[R9], 200 * 0x30);
    assert_eq!(vcpu.state().gpr[RAX] & 0xffff, 0x30);
}

#[test]
fn the_source_can_be_changed_between_runs() {
    let code = guest_code!(
        changed_source,
        "2:",
        "mov ebx, 50",
        "mov edx, 0x100",
        "3:",
        "in al, dx",
        "dec ebx",
        "jnz 3b",
        "out 0xf4, al",
        "jmp 2b",
    );
    let mut vcpu = vcpu(code, |_, _| {});
    vcpu.platform_mut().shows_word = true;
    let mut before = InstructionCounts::default();
    for source in [On, FastPath, Physical, Off, On, Site] {
        vcpu.change_settings(|settings| settings.instruction_source = source);
        assert_eq!(vcpu.settings().instruction_source, source);
        vcpu.run();
        let counts = vcpu.counts().instruction_cache;
        let found = counts.found_anew - before.found_anew;
        assert_eq!(
            found,
            if source.finds_anew() { 51 } else { 0 },
            "{source:?}"
        );
        if source == On {
            assert_eq!(
                counts.missed_new - before.missed_new,
                2,
                "the decode cache begins empty"
            );
        }
        before = counts;
    }
    assert!(before.dropped_all >= 6);
    // No line is held any more.
    assert_eq!(vcpu.memory_mut().code().held(CODE >> 12), 0);
}
