//! Tests a V86 task and the guest's own monitor: INT n, instructions that raise #GP, and the
//! monitor's IRETD back to the task need no exit once each has been executed, and only the exits
//! show the difference. All emitted code is verified.

use crate::support::virtual_interrupts::*;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::Computer;
use tollgate_x86::{
    Attributes, CpuState, Flags, PhysicalAddress, Segment, SegmentRegister, Selector,
};

const CLI: u8 = 0xfa;
const STI: u8 = 0xfb;
const PUSHF: u8 = 0x9c;
const POPF: u8 = 0x9d;
const INT: u8 = 0xcd;
const NOP: u8 = 0x90;
const ROUNDS: u64 = 500;

const IDT: u64 = 0x3_0000;
const GDT: u64 = 0x3_1000;
const TASK: u64 = 0x3_2000;
const IO_BITMAP: u64 = 0x68;
/// Address of the monitor's stack.
const INNER_STACK: u32 = 0x6000;
/// Address of the counts of how often each handler was entered, and of the last error code.
const COUNTS: u64 = 0x5_0000;
const ERROR: u64 = COUNTS + 0x40;

/// Addresses of the monitor's handlers: of INT n, of #GP, and another one of INT n.
const RETURNS_TO_TASK: u64 = 0x2_0100;
const SKIPS: u64 = 0x2_0140;
const RETURNS_TOO: u64 = 0x2_0180;
/// Address of the handler of external interrupts.
const IGNORES: u64 = 0x2_01c0;

fn gate(handler: u64, level: u64) -> u64 {
    handler & 0xffff | 0x10 << 16 | (0x8e | level << 5) << 40 | handler >> 16 << 48
}

fn set_gate(memory: &mut GuestMemory, vector: u64, handler: u64, level: u64) {
    memory.write_u64(PhysicalAddress(IDT + vector * 8), gate(handler, level));
}

/// inc dword ss:[COUNTS + 4 * number]
fn counts(number: u8) -> Vec<u8> {
    let place = COUNTS as u32 + 4 * u32::from(number);
    [&[0x36, 0xff, 0x05][..], &place.to_le_bytes()].concat()
}

/// A task at this IOPL. The gate of vector 90h has this privilege level. A fault is counted, and
/// the task continues one byte further.
fn task(
    code: &[u8],
    privilege: u64,
    gate_level: u64,
    arm: VirtualInterrupts,
    change: impl FnOnce(&mut CpuState, &mut GuestMemory),
) -> Computer<Bench> {
    vcpu_with(GuestMode::Virtual8086, code, arm, |state, memory| {
        state.flags &= !Flags::IOPL.bits();
        state.flags |= Flags::IF.bits() | privilege << 12;
        state.gpr[1] = ROUNDS;
        state.tr = Segment {
            base: TASK,
            limit: IO_BITMAP as u32 + 0x20,
            selector: Selector(0x30),
            attributes: Attributes::from_bits_retain(0x8b),
        };
        let mut bytes = [0; IO_BITMAP as usize + 0x21];
        bytes[4..8].copy_from_slice(&INNER_STACK.to_le_bytes());
        bytes[8..12].copy_from_slice(&0x18_u32.to_le_bytes());
        bytes[0x66..0x68].copy_from_slice(&(IO_BITMAP as u16).to_le_bytes());
        bytes[IO_BITMAP as usize + 0x20] = 0xff;
        memory.write(PhysicalAddress(TASK), &bytes);
        let mut put = |at: u64, code: &[&[u8]]| memory.write(PhysicalAddress(at), &code.concat());
        put(RETURNS_TO_TASK, &[&counts(0), &[0xcf]]);
        // pop dword ss:[ERROR]; inc dword [esp]; iretd
        let error = (ERROR as u32).to_le_bytes();
        put(
            SKIPS,
            &[
                &counts(1),
                &[0x36, 0x8f, 0x05],
                &error,
                &[0xff, 0x04, 0x24, 0xcf],
            ],
        );
        put(RETURNS_TOO, &[&counts(2), &[0xcf]]);
        put(IGNORES, &[&[0xcf]]);
        set_gate(memory, 0x90, RETURNS_TO_TASK, gate_level);
        set_gate(memory, 13, SKIPS, 0);
        set_gate(memory, 3, RETURNS_TOO, 3);
        set_gate(memory, 0x20, IGNORES, 0);
        change(state, memory);
    })
}

fn dword(vcpu: &mut Computer<Bench>, at: u64) -> u32 {
    let mut bytes = [0; 4];
    assert!(vcpu.memory_mut().read(PhysicalAddress(at), &mut bytes));
    u32::from_le_bytes(bytes)
}

/// Repeats `body` [`ROUNDS`] times, by CX.
fn repeated(body: &[u8]) -> Vec<u8> {
    let back = -(body.len() as i8 + 3);
    [body, &[0x49, 0x75, back as u8]].concat()
}

/// The results of a task, without memory below stack pointers.
fn result(vcpu: &mut Computer<Bench>) -> (String, Vec<u8>) {
    let (registers, mut memory) = end_state(vcpu);
    memory[INNER_STACK as usize - 0x100..INNER_STACK as usize].fill(0);
    memory[STACK as usize - 0x200..STACK as usize].fill(0);
    (registers, memory)
}

fn fast_path_counts(vcpu: &Computer<Bench>) -> [u64; 3] {
    [FastPath::Interrupt, FastPath::Refusal, FastPath::Return]
        .map(|fast_path| vcpu.counts().fast_path(fast_path))
}

/// The number of exits of the kinds that these fast paths replace.
fn exits(vcpu: &Computer<Bench>) -> [u64; 3] {
    [
        ExitKind::SoftwareInterrupt,
        ExitKind::GuestException,
        ExitKind::Iret,
    ]
    .map(|kind| vcpu.exit_counts().get(kind))
}

/// Runs a task with fast paths and without, and instruction by instruction. Returns the numbers of
/// exits and of instructions that fast paths executed.
fn compared(make: impl Fn(VirtualInterrupts) -> Computer<Bench>) -> (Computer<Bench>, [u64; 3]) {
    let mut stepping = make(VirtualInterrupts::default());
    step(&mut stepping);
    let expected = result(&mut stepping);
    let [on, _, off] = arms();
    let mut without = make(off);
    run(&mut without);
    assert_eq!(result(&mut without).0, expected.0);
    assert!(result(&mut without) == expected);
    assert_eq!(fast_path_counts(&without), [0; 3]);
    let mut with = make(on);
    run(&mut with);
    assert_eq!(result(&mut with).0, expected.0);
    assert!(result(&mut with) == expected);
    let exits = exits(&without);
    (with, exits)
}

#[test]
fn int_n_and_the_monitor_s_return_need_no_exit() {
    let code = repeated(&[INT, 0x90, 0xcc, INT, 0x90]);
    let (mut vcpu, before) = compared(|arm| task(&code, 3, 3, arm, |_, _| {}));
    assert_eq!(before, [3 * ROUNDS, 0, 3 * ROUNDS]);
    assert_eq!(dword(&mut vcpu, COUNTS), 2 * ROUNDS as u32);
    assert_eq!(dword(&mut vcpu, COUNTS + 8), ROUNDS as u32);
    let [interrupts, faults, returns] = exits(&vcpu);
    assert!(
        interrupts <= 4 && returns <= 4 && faults == 0,
        "{:?}",
        vcpu.exit_counts()
    );
    let done = fast_path_counts(&vcpu);
    assert!(
        done[0] >= 3 * ROUNDS - 4 && done[2] >= 3 * ROUNDS - 4,
        "{done:?}"
    );
    assert!(vcpu.exit_counts().total() < 60, "{:?}", vcpu.exit_counts());
}

#[test]
fn what_is_refused_below_iopl_3_needs_no_exit() {
    // The second byte of INT 90h, where the monitor continues, is a NOP.
    let code = repeated(&[CLI, STI, PUSHF, POPF, INT, 0x90, NOP]);
    for privilege in 0..3 {
        let (mut vcpu, _) = compared(|arm| task(&code, privilege, 3, arm, |_, _| {}));
        assert_eq!(dword(&mut vcpu, COUNTS + 4), 5 * ROUNDS as u32);
        assert_eq!(dword(&mut vcpu, ERROR), 0);
        let [interrupts, faults, returns] = exits(&vcpu);
        assert!(
            interrupts == 0 && faults <= 4 && returns <= 4,
            "{:?}",
            vcpu.exit_counts()
        );
        let done = fast_path_counts(&vcpu);
        assert!(
            done[1] >= 5 * ROUNDS - 4 && done[2] >= 5 * ROUNDS - 4,
            "{done:?}"
        );
        assert!(vcpu.exit_counts().total() < 60, "{:?}", vcpu.exit_counts());
    }
}

#[test]
fn int_n_whose_gate_is_the_monitor_s_or_none_is_a_fault_without_an_exit() {
    let code = repeated(&[INT, 0x90, NOP]);
    // Privilege levels of the gate. At level 3 the entry is not a gate.
    for level in 0..4 {
        let (mut vcpu, _) = compared(|arm| {
            task(&code, 3, level, arm, |_, memory| {
                if level == 3 {
                    memory.write_u64(PhysicalAddress(IDT + 0x90 * 8), 0);
                }
            })
        });
        assert_eq!(dword(&mut vcpu, COUNTS + 4), ROUNDS as u32);
        assert_eq!(dword(&mut vcpu, ERROR), 0x90 * 8 + 2);
        let [interrupts, faults, returns] = exits(&vcpu);
        assert!(
            interrupts <= 2 && faults <= 2 && returns <= 4,
            "{:?}",
            vcpu.exit_counts()
        );
        assert!(fast_path_counts(&vcpu)[0] >= ROUNDS - 2);
    }
}

#[test]
fn a_frame_holds_all_segments_and_the_handler_finds_none() {
    // mov ax, fs; int 90h; cli; out. The second handler ends the run.
    for (privilege, instruction, faults) in [(3, vec![INT, 0x90], false), (0, vec![CLI], true)] {
        let again = [&instruction[..], &[NOP, 0xeb]].concat();
        let back = -(again.len() as i8 + 1);
        let code = [&again[..], &[back as u8]].concat();
        let mut vcpu = task(
            &code,
            privilege,
            3,
            VirtualInterrupts::default(),
            |state, memory| {
                for (register, selector) in [
                    (SegmentRegister::Es, 0x1111),
                    (SegmentRegister::Ds, 0x2222),
                    (SegmentRegister::Fs, 0x3333),
                    (SegmentRegister::Gs, 0x4444),
                ] {
                    *state.segment_mut(register) = Segment::real_mode(selector, 3);
                }
                state.gpr[4] = 0xabcd_0000 | STACK;
                state.flags |= (Flags::CF | Flags::DF | Flags::ID).bits();
                // inc dword ss:[COUNTS]; cmp dword ss:[COUNTS], 3; je END's handler; go on
                let handler = if faults { SKIPS } else { RETURNS_TO_TASK };
                let place = (COUNTS as u32).to_le_bytes();
                let rest: &[u8] = match faults {
                    true => &[0x83, 0xc4, 4, 0xff, 0x04, 0x24, 0xcf],
                    false => &[0xcf],
                };
                let code = [
                    &counts(0)[..],
                    &[0x36, 0x83, 0x3d],
                    &place,
                    &[3, 0x0f, 0x84],
                    &(HANDLER as u32)
                        .wrapping_sub(handler as u32 + 7 + 8 + 6)
                        .to_le_bytes(),
                    rest,
                ]
                .concat();
                memory.write(PhysicalAddress(handler), &code);
            },
        );
        run(&mut vcpu);
        assert_eq!(vcpu.state().rip, HANDLER + 2);
        let size = if faults { 40 } else { 36 };
        let top = u64::from(INNER_STACK - size);
        assert_eq!(vcpu.state().gpr[4], top);
        let at = if faults { top + 4 } else { top };
        let frame = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|it| dword(&mut vcpu, at + 4 * it));
        let flags = Flags::VM | Flags::IF | Flags::CF | Flags::DF | Flags::ID;
        let shown = flags.bits() as u32 | 2 | (privilege as u32) << 12;
        let resume = if faults { Flags::RF.bits() as u32 } else { 0 };
        let eip = if faults { 0 } else { 2 };
        let expected = [
            eip,
            CODE as u32 >> 4,
            shown | resume,
            0xabcd_0000 | STACK as u32,
            0,
            0x1111,
            0x2222,
            0x3333,
            0x4444,
        ];
        assert_eq!(frame, expected, "{instruction:x?}");
        if faults {
            assert_eq!(dword(&mut vcpu, top), 0);
        }
        let done = fast_path_counts(&vcpu);
        assert_eq!(done[usize::from(faults)], 2, "{done:?}");
        let state = vcpu.state();
        for register in [
            SegmentRegister::Es,
            SegmentRegister::Ds,
            SegmentRegister::Fs,
            SegmentRegister::Gs,
        ] {
            assert_eq!(*state.segment(register), Segment::null(Selector(0)));
        }
        assert_eq!(state.cs().selector, Selector(0x10));
        assert_eq!(state.ss().selector, Selector(0x18));
        let left = state.flags & (Flags::VM | Flags::IF | Flags::RF | Flags::ID).bits();
        assert_eq!(left, Flags::ID.bits());
        assert_eq!(state.flags().iopl(), privilege as u8);
    }
}

#[test]
fn tables_that_are_written_count_from_the_next_delivery_on() {
    // Each handler changes what the delivery depends on, so that every other delivery is a
    // different one.
    let change = |place: u64, value: u32| {
        let place = (place as u32).to_le_bytes();
        // xor dword ss:[place], value
        [&[0x36, 0x81, 0x35][..], &place, &value.to_le_bytes()].concat()
    };
    let other = (RETURNS_TO_TASK ^ RETURNS_TOO) as u32;
    let places = [
        (IDT + 0x90 * 8, other),   // the gate
        (TASK + 4, 0x40),          // ESP0
        (GDT + 0x18 + 4, 1 << 20), // AVL in the stack's descriptor
        (GDT + 0x10 + 4, 1 << 20), // and of the code's
        (TASK + 8, 3 << 16),       // next to SS0: has no effect
    ];
    for (place, value) in places {
        let code = repeated(&[INT, 0x90, INT, 0x90, 0xcc]);
        let (mut vcpu, _) = compared(|arm| {
            task(&code, 3, 3, arm, |_, memory| {
                for (handler, number) in [(RETURNS_TO_TASK, 0), (RETURNS_TOO, 2)] {
                    let code = [&counts(number)[..], &change(place, value), &[0xcf]].concat();
                    memory.write(PhysicalAddress(handler), &code);
                }
            })
        });
        let counted = dword(&mut vcpu, COUNTS) + dword(&mut vcpu, COUNTS + 8);
        assert_eq!(counted, 3 * ROUNDS as u32, "{place:x}");
    }
}

#[test]
fn without_fast_paths_each_of_the_kinds_is_an_exit() {
    let code = repeated(&[INT, 0x90]);
    let [_, no_request, _] = arms();
    // Each change of the flag is an exit: an IRETD that loads it.
    let mut vcpu = task(&code, 3, 3, no_request, |_, _| {});
    run(&mut vcpu);
    assert_eq!(exits(&vcpu)[2], ROUNDS);
    assert_eq!(fast_path_counts(&vcpu)[2], 0);
}

/// A generator of numbers, which need only differ from one another.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// A random loop that counts down CX.
fn random_loop(numbers: &mut Numbers) -> Vec<u8> {
    let mut code = vec![0x89, 0xe5]; // mov bp, sp
    let start = code.len();
    for _ in 0..10 + numbers.below(16) {
        let selector = [numbers.below(256) as u8, numbers.below(16) as u8];
        // mov si, selector; mov es, si, or another segment register
        let register = [0xc6, 0xe6, 0xee][numbers.below(3)];
        let load = [0xbe, selector[0], selector[1], 0x8e, register];
        // Jumps to the next instruction by another CS: jmp 0fff:next + 10h
        let next = (code.len() + 5 + 0x10) as u16;
        let [low, high] = next.to_le_bytes();
        let elsewhere = [0xea, low, high, 0xff, 0x0f];
        let next = (code.len() + 5) as u16;
        let [low, high] = next.to_le_bytes();
        let home = [0xea, low, high, 0x00, 0x10];
        let pieces: [&[u8]; 14] = [
            &[CLI],
            &[STI],
            &[0x43],       // inc bx
            &[0x11, 0xc2], // adc dx, ax
            &[PUSHF, POPF],
            &[INT, 0x90],
            &[INT, 0x90],
            &[0xcc],
            &load,
            &elsewhere,
            &home,
            &[0x8c, 0xe6, 0x01, 0xf2], // mov si, fs; add dx, si
            &[0x8c, 0xc6, 0x01, 0xf0], // mov si, es; add ax, si
            &[0x66, 0x40],             // inc eax
        ];
        code.extend(pieces[numbers.below(pieces.len())]);
    }
    // jmp 1000:next; mov sp, bp; dec cx; jnz near
    let next = (code.len() + 5) as u16;
    let [low, high] = next.to_le_bytes();
    code.extend([0xea, low, high, 0x00, 0x10]);
    code.extend([0x89, 0xec, 0x49, 0x0f, 0x85]);
    let back = start as i32 - (code.len() as i32 + 2);
    code.extend((back as i16).to_le_bytes());
    code
}

fn random_task(
    code: &[u8],
    rounds: u64,
    [privilege, level]: [u64; 2],
    arm: VirtualInterrupts,
) -> Computer<Bench> {
    task(code, privilege, level, arm, |state, _| {
        state.gpr[1] = rounds;
        state.gpr[4] = 0x55aa_0000 | STACK;
    })
}

#[test]
fn random_tasks_end_the_same_in_every_arm_and_step_by_step() {
    let mut numbers = Numbers(7);
    let mut done = [0; 3];
    for _ in 0..120 {
        let code = random_loop(&mut numbers);
        let levels = [[0, 3][numbers.below(2)], [0, 3][numbers.below(2)]];
        let mut stepping = random_task(&code, 6, levels, VirtualInterrupts::default());
        step(&mut stepping);
        let expected = result(&mut stepping);
        for arm in arms() {
            let mut running = random_task(&code, 6, levels, arm);
            run(&mut running);
            assert_eq!(result(&mut running).0, expected.0, "{arm:?} {code:02x?}");
            assert!(result(&mut running) == expected, "{arm:?} {code:02x?}");
            let counts = fast_path_counts(&running);
            for (sum, count) in done.iter_mut().zip(counts) {
                *sum += count;
            }
        }
    }
    assert!(done.iter().all(|&it| it > 500), "{done:?}");
}

#[test]
fn interrupts_from_outside_change_nothing() {
    let mut numbers = Numbers(8);
    let mut came = 0;
    for levels in [[0, 0], [3, 0], [3, 3], [3, 3]] {
        let code = random_loop(&mut numbers);
        let rounds = 3_000;
        let mut quiet = random_task(&code, rounds, levels, VirtualInterrupts::default());
        run(&mut quiet);
        let expected = result(&mut quiet);
        // On a loaded host the other thread may get the processor too late.
        let mut came_here = 0;
        for _ in 0..200 {
            let mut noisy = random_task(&code, rounds, levels, VirtualInterrupts::default());
            came_here += run_interrupted(&mut noisy);
            assert_eq!(result(&mut noisy).0, expected.0, "{code:02x?}");
            assert!(result(&mut noisy) == expected, "{code:02x?}");
            if came_here >= 20 {
                break;
            }
        }
        came += came_here;
    }
    assert!(came > 0);
}
