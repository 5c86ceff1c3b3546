//! Compares string instructions with a simple model that executes element by element.

use crate::Outcome;
use crate::cpuid::{Vendor, policy};
use crate::test_environment::{TestEnvironment, long_mode, protected_mode, real_mode, run};
use tollgate_test_support::Random;
use tollgate_x86::{CpuState, Cr0, Exception, Flags, LinearAddress, SegmentRegister, Vector};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Move,
    Store,
    Load,
    Compare,
    Scan,
}

const KINDS: [(Kind, u8); 5] = [
    (Kind::Move, 0xa4),
    (Kind::Store, 0xaa),
    (Kind::Load, 0xac),
    (Kind::Compare, 0xa6),
    (Kind::Scan, 0xae),
];

/// The flags of `left - right`, as the host computes them.
fn subtraction_flags(left: u32, right: u32, size: u32) -> u64 {
    let shift = 32 - 8 * size;
    let flags: u64;
    // AF depends on bit 3, so it cannot be computed from shifted operands.
    let (high_left, high_right) = (left << shift, right << shift);
    // SAFETY: arithmetic, and a push with its pop.
    unsafe {
        std::arch::asm!("cmp {left:e}, {right:e}", "pushfq", "pop {flags}",
            left = in(reg) high_left, right = in(reg) high_right, flags = lateout(reg) flags);
    }
    let flags = Flags::from_bits_truncate(flags) & (Flags::CF | Flags::ZF | Flags::SF | Flags::OF);
    let mut flags = flags;
    flags.set(Flags::AF, left & 15 < right & 15);
    let low = left.wrapping_sub(right) as u8;
    flags.set(Flags::PF, low.count_ones().is_multiple_of(2));
    flags.bits()
}

/// Executes one instruction element by element, as in the manual's pseudo-code.
fn model(
    state: &mut CpuState,
    ram: &mut [u8],
    kind: Kind,
    size: u32,
    prefix: Option<u8>,
    mask: u64,
) {
    let base = |segment: SegmentRegister, state: &CpuState| state.segment(segment).base;
    let width = size as usize;
    let value_mask = if size == 4 {
        u32::MAX
    } else {
        (1 << (8 * size)) - 1
    };
    loop {
        if prefix.is_some() && state.gpr[1] & mask == 0 {
            return;
        }
        let source = (base(SegmentRegister::Ds, state) + (state.gpr[6] & mask)) as usize;
        let destination = (base(SegmentRegister::Es, state) + (state.gpr[7] & mask)) as usize;
        let read = |ram: &[u8], at: usize| {
            let mut bytes = [0; 4];
            bytes[..width].copy_from_slice(&ram[at..at + width]);
            u32::from_le_bytes(bytes)
        };
        let accumulator = state.gpr[0] as u32 & value_mask;
        let mut compared = None;
        match kind {
            Kind::Move => {
                let value = read(ram, source);
                ram[destination..destination + width]
                    .copy_from_slice(&value.to_le_bytes()[..width]);
            }
            Kind::Store => ram[destination..destination + width]
                .copy_from_slice(&accumulator.to_le_bytes()[..width]),
            Kind::Load => {
                let value = u64::from(read(ram, source));
                state.gpr[0] = state.gpr[0] & !u64::from(value_mask) | value;
            }
            Kind::Compare => compared = Some((read(ram, source), read(ram, destination))),
            Kind::Scan => compared = Some((accumulator, read(ram, destination))),
        }
        let step = if state.flags().contains(Flags::DF) {
            u64::from(size).wrapping_neg()
        } else {
            u64::from(size)
        };
        let mut add = |register: usize, delta: u64| {
            let place = &mut state.gpr[register];
            *place = *place & !mask | place.wrapping_add(delta) & mask;
        };
        if matches!(kind, Kind::Move | Kind::Load | Kind::Compare) {
            add(6, step);
        }
        if kind != Kind::Load {
            add(7, step);
        }
        if prefix.is_some() {
            add(1, u64::MAX);
        }
        if let Some((left, right)) = compared {
            let kept = state.flags & !Flags::ARITHMETIC.bits();
            state.flags = kept | subtraction_flags(left, right, size);
            if prefix == Some(0xf3) && left != right || prefix == Some(0xf2) && left == right {
                return;
            }
        }
        if prefix.is_none() {
            return;
        }
    }
}

fn check(state: &CpuState, environment: &mut TestEnvironment, wide: bool, random: &mut Random) {
    let (kind, opcode) = KINDS[random.below(5)];
    let size = 1 << random.below(3);
    let prefix = [None, Some(0xf2), Some(0xf3)][random.below(3)];
    let mut code = Vec::new();
    code.extend(prefix);
    if (size == 4) != wide {
        code.push(0x66);
    }
    code.push(if size == 1 { opcode } else { opcode + 1 });
    let mask = if wide { 0xffff_ffff } else { 0xffff };

    let mut expected = state.clone();
    let mut expected_ram = environment.ram.clone();
    // In 16-bit code a 66h prefix on a byte instruction changes nothing.
    model(&mut expected, &mut expected_ram, kind, size, prefix, mask);
    expected.rip += code.len() as u64;

    let mut found = state.clone();
    let outcome = run(&mut found, environment, &code);
    assert_eq!(outcome, Ok(Outcome::Next), "{kind:?} {size} {prefix:x?}");
    assert_eq!(found, expected, "{kind:?} {size} {prefix:x?}");
    assert!(
        environment.ram == expected_ram,
        "{kind:?} {size} {prefix:x?} wrote something else"
    );
}

#[test]
fn with_tf_set_a_repeated_instruction_does_one_element_at_a_time() {
    for code in [
        [0xf3, 0xa4],
        [0xf3, 0xaa],
        [0xf3, 0xac],
        [0xf3, 0xa6],
        [0xf2, 0xae],
    ] {
        let (mut state, mut environment) = protected_mode(0);
        state.flags |= Flags::TF.bits();
        (state.gpr[0], state.gpr[1]) = (1, 3);
        (state.gpr[6], state.gpr[7]) = (0x6000, 0x7000);
        for left in [2, 1, 0] {
            let outcome = run(&mut state, &mut environment, &code);
            let expected = if left == 0 {
                Outcome::Next
            } else {
                Outcome::Repeat
            };
            assert_eq!((outcome, state.gpr[1]), (Ok(expected), left), "{code:x?}");
        }
    }
}

#[test]
fn runs_equal_element_by_element_execution() {
    let mut random = Random::new(0x1234_5678_9abc_def1);
    let (state, mut environment) = protected_mode(0);
    environment.ram.truncate(0x10000);
    for round in 0..400 {
        let mut state = state.clone();
        // Use few different values, so that comparisons continue for a while.
        for byte in &mut environment.ram {
            *byte = u8::from(random.below(2000) == 0);
        }
        environment.device.clear();
        if round % 4 == 0 {
            environment.device.push(0x6000..0x7000);
        }
        state.gpr[0] = random.below(2) as u64 * 0x0101_0101;
        state.gpr[1] = random.below(4000) as u64;
        state.gpr[6] = 0x5000 + random.below(0x1000) as u64;
        // Often close to the source, so that many copies overlap.
        state.gpr[7] = if round % 2 == 0 {
            state.gpr[6]
                .wrapping_add(random.below(17) as u64)
                .wrapping_sub(8)
        } else {
            0x5000 + random.below(0x2000) as u64
        };
        if random.below(2) == 0 {
            state.flags |= Flags::DF.bits();
            // Start high enough to stay in RAM on the way down.
            for register in [6, 7] {
                state.gpr[register] += 0x4000;
            }
        }
        check(&state, &mut environment, true, &mut random);
    }
}

#[test]
fn sixteen_bit_addresses_wrap_and_keep_the_upper_halves() {
    let mut random = Random::new(0xfeed_f00d_dead_beef);
    let (state, mut environment) = real_mode();
    environment.ram.truncate(0x20000);
    for round in 0..200 {
        let mut state = state.clone();
        for byte in &mut environment.ram {
            *byte = u8::from(random.below(2000) == 0);
        }
        state.gpr[0] = random.below(2) as u64 * 0x0101_0101;
        // Multiples of four, since an element across FFFFh would fault.
        state.gpr[1] = 0x7777_0000 | random.below(6000) as u64;
        state.gpr[6] = 0x5555_0000 + random.below(0x4000) as u64 * 4;
        state.gpr[7] = 0x6666_0000 + random.below(0x4000) as u64 * 4;
        if round % 2 == 0 {
            state.flags |= Flags::DF.bits();
        }
        check(&state, &mut environment, false, &mut random);
    }
}

#[test]
fn rep_movsb_smears_a_byte_over_an_overlap() {
    let (mut state, mut environment) = protected_mode(0);
    environment.ram[0x9000] = 0x5a;
    (state.gpr[1], state.gpr[6], state.gpr[7]) = (0x2000, 0x9000, 0x9001);
    run(&mut state, &mut environment, &[0xf3, 0xa4]).unwrap();
    assert!(environment.ram[0x9000..=0xb000].iter().all(|b| *b == 0x5a));
    assert_eq!(environment.ram[0xb001], 0);
}

#[test]
fn a_fault_leaves_exact_progress_and_names_the_element() {
    let (mut state, mut environment) = protected_mode(0);
    environment.not_present.push(0xa000..0xb000);
    (state.gpr[1], state.gpr[6], state.gpr[7]) = (100, 0x5000, 0x9ff2);
    // rep movsd: three elements fit, the fourth straddles.
    let fault = run(&mut state, &mut environment, &[0xf3, 0xa5]).unwrap_err();
    assert_eq!(fault.address, Some(LinearAddress(0xa000)));
    assert_eq!(
        (state.gpr[1], state.gpr[6], state.gpr[7]),
        (97, 0x500c, 0x9ffe)
    );

    // Downwards, the fault is at the first element below the boundary.
    let (mut state, mut environment) = protected_mode(0);
    environment.not_present.push(0xa000..0xb000);
    state.flags |= Flags::DF.bits();
    (state.gpr[1], state.gpr[7]) = (100, 0xb004);
    let fault = run(&mut state, &mut environment, &[0xf3, 0xab]).unwrap_err();
    assert_eq!(fault.address, Some(LinearAddress(0xaffc)));
    assert_eq!((state.gpr[1], state.gpr[7]), (98, 0xaffc));
}

#[test]
fn a_faulting_scan_keeps_the_old_flags_or_with_amd_shows_those_of_the_last_element() {
    let (mut state, mut environment) = protected_mode(0);
    environment.not_present.push(0xa000..0xb000);
    state.flags |= (Flags::CF | Flags::OF).bits();
    (state.gpr[0], state.gpr[1], state.gpr[7]) = (1, 0x2000, 0x9f00);
    assert!(run(&mut state, &mut environment, &[0xf2, 0xae]).is_err());
    assert_eq!((state.gpr[1], state.gpr[7]), (0x1f00, 0xa000));
    // These are the flags of 1 minus 0.
    let flags = match policy(&state).vendor() {
        Vendor::Amd => Flags::empty(),
        _ => Flags::CF | Flags::OF,
    };
    assert_eq!(state.flags(), flags);
    // No element was compared before this fault.
    state.flags |= Flags::CF.bits();
    let before = state.flags();
    assert!(run(&mut state, &mut environment, &[0xf2, 0xae]).is_err());
    assert_eq!(state.flags(), before);
}

#[test]
fn an_interrupt_stops_after_at_most_one_page() {
    let (mut state, mut environment) = protected_mode(0);
    environment.interrupted = true;
    (state.gpr[1], state.gpr[7]) = (0x3000, 0x9010);
    assert_eq!(
        run(&mut state, &mut environment, &[0xf3, 0xaa]),
        Ok(Outcome::Repeat)
    );
    assert_eq!((state.gpr[7], state.rip), (0xa000, 0x5000));
    assert_eq!(state.gpr[1], 0x3000 - 0xff0);
}

#[test]
fn a_count_of_zero_does_nothing_at_all() {
    let (mut state, mut environment) = protected_mode(0);
    state.flags |= Flags::CF.bits();
    (state.gpr[6], state.gpr[7]) = (0xffff_ffff, 0xffff_ffff);
    let before = state.clone();
    for opcode in 0xa4..=0xaf {
        if opcode == 0xa8 || opcode == 0xa9 {
            continue;
        }
        state.rip = before.rip;
        assert_eq!(
            run(&mut state, &mut environment, &[0xf3, opcode]),
            Ok(Outcome::Next)
        );
        state.rip = before.rip;
        assert_eq!(state, before);
    }
}

#[test]
fn the_segment_limit_stops_in_the_middle() {
    let (mut state, mut environment) = protected_mode(0);
    state.segment_mut(SegmentRegister::Es).limit = 0x9005;
    state.gpr[0] = 0x1111_1111;
    (state.gpr[1], state.gpr[7]) = (10, 0x8ff8);
    assert_eq!(
        run(&mut state, &mut environment, &[0xf3, 0xab]),
        Err(Exception::general_protection(0))
    );
    assert_eq!((state.gpr[1], state.gpr[7]), (7, 0x9004));
}

#[test]
fn an_element_across_ffff_faults_in_real_mode() {
    let (mut state, mut environment) = real_mode();
    (state.gpr[1], state.gpr[7]) = (4, 0xfffd);
    assert_eq!(
        run(&mut state, &mut environment, &[0xf3, 0xab]),
        Err(Exception::general_protection(0))
    );
    assert_eq!((state.gpr[1], state.gpr[7]), (3, 0xffff));
}

#[test]
fn the_source_segment_can_be_overridden_and_the_stack_faults_as_such() {
    let (mut state, mut environment) = protected_mode(0);
    environment.put(0x9100, b"x");
    state.segment_mut(SegmentRegister::Fs).base = 0x9000;
    (state.gpr[6], state.gpr[7]) = (0x100, 0x8000);
    run(&mut state, &mut environment, &[0x64, 0xa4]).unwrap();
    assert_eq!(environment.ram[0x8000], b'x');
    state.segment_mut(SegmentRegister::Ss).limit = 0xff;
    assert_eq!(
        run(&mut state, &mut environment, &[0x36, 0xac]),
        Err(Exception::stack_fault(0))
    );
}

#[test]
fn alignment_is_checked_for_each_element_of_user_code() {
    let (mut state, mut environment) = protected_mode(3);
    state.cr0 |= Cr0::AM.bits();
    state.flags |= Flags::AC.bits();
    (state.gpr[1], state.gpr[7]) = (4, 0x9002);
    assert_eq!(
        run(&mut state, &mut environment, &[0xf3, 0xab]),
        Err(Exception::new(Vector::AlignmentCheck))
    );
    assert!(run(&mut state, &mut environment, &[0xf3, 0xaa]).is_ok());
}

#[test]
fn quadwords_are_moved_stored_loaded_and_compared_whole() {
    let (mut state, mut environment) = long_mode(3);
    for index in 0..8 {
        environment.put_u64(
            0x9000 + index * 8,
            0x0101_0101_0101_0101 * (index as u64 + 1),
        );
    }
    (state.gpr[1], state.gpr[6], state.gpr[7]) = (8, 0x9000, 0xa004);
    run(&mut state, &mut environment, &[0xf3, 0x48, 0xa5]).unwrap();
    assert_eq!(
        (state.gpr[1], state.gpr[6], state.gpr[7]),
        (0, 0x9040, 0xa044)
    );
    assert_eq!(
        environment.ram[0x9000..0x9040],
        environment.ram[0xa004..0xa044]
    );
    // repne scasq finds the fifth.
    (state.gpr[0], state.gpr[1], state.gpr[7]) = (0x0505_0505_0505_0505, 8, 0xa004);
    run(&mut state, &mut environment, &[0xf2, 0x48, 0xaf]).unwrap();
    assert_eq!((state.gpr[1], state.gpr[7]), (3, 0xa02c));
    assert!(state.flags().contains(Flags::ZF));
    // A difference in the upper half is one.
    environment.ram[0xa03f] ^= 1;
    (state.gpr[1], state.gpr[6], state.gpr[7]) = (8, 0x9000, 0xa004);
    run(&mut state, &mut environment, &[0xf3, 0x48, 0xa7]).unwrap();
    assert_eq!(state.gpr[1], 0);
    assert!(!state.flags().contains(Flags::ZF));
    (state.gpr[1], state.gpr[7]) = (2, 0xb000);
    run(&mut state, &mut environment, &[0xf3, 0x48, 0xab]).unwrap();
    assert_eq!(environment.u64(0xb008), 0x0505_0505_0505_0505);
    (state.gpr[0], state.gpr[6]) = (0, 0x9008);
    run(&mut state, &mut environment, &[0x48, 0xad]).unwrap();
    assert_eq!(state.gpr[0], 0x0202_0202_0202_0202);
}

#[test]
fn with_67h_code_of_64_bits_counts_and_points_with_32() {
    let (mut state, mut environment) = long_mode(3);
    environment.put(0x9000, b"abcd");
    state.gpr[1] = 0xffff_ffff_0000_0004;
    state.gpr[6] = 0xffff_ffff_0000_9000;
    state.gpr[7] = 0xffff_ffff_0000_a000;
    run(&mut state, &mut environment, &[0x67, 0xf3, 0xa4]).unwrap();
    assert_eq!(
        (state.gpr[1], state.gpr[6], state.gpr[7]),
        (0, 0x9004, 0xa004)
    );
    assert_eq!(&environment.ram[0xa000..0xa004], b"abcd");
}

#[test]
fn a_string_of_64_bit_code_stops_where_addresses_are_not_canonical() {
    let (mut state, mut environment) = long_mode(3);
    (state.gpr[1], state.gpr[7]) = (4, 0x8000_0000_0000);
    let fault = run(&mut state, &mut environment, &[0xf3, 0xaa]);
    assert_eq!(fault, Err(tollgate_x86::Exception::general_protection(0)));
    // The base of ES is ignored.
    state.segment_mut(SegmentRegister::Es).base = 0x1000;
    state.gpr[7] = 0xc000;
    run(&mut state, &mut environment, &[0xf3, 0xaa]).unwrap();
    assert_eq!(state.gpr[7], 0xc004);
}
