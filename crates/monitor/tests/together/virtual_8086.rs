//! Tests programs at IOPL below 3 that run CLI, STI, PUSHF, POPF, IRET and INT n on EFLAGS.VIF
//! without the monitor where CR4.VME or CR4.PVI allow it; only the exits show the difference. Where
//! nothing allows them, each is a fault and not an exit of its own kind.

use crate::support::virtual_interrupts::*;
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::Computer;
use tollgate_x86::{
    Attributes, CpuState, Cr4, Flags, PhysicalAddress, Segment, SegmentRegister, Selector,
};

const CLI: u8 = 0xfa;
const STI: u8 = 0xfb;
const PUSHF: u8 = 0x9c;
const POPF: u8 = 0x9d;
const IRET: u8 = 0xcf;
const NOP: u8 = 0x90;
const INT: u8 = 0xcd;
const ROUNDS: u64 = 500;

const TASK: u64 = 0x3_2000;
const IO_BITMAP: u64 = 0x88;
/// Address of the monitor's stack.
const INNER_STACK: u32 = 0x6000;
/// Address of a handler that counts the faults of the program, and continues one byte further.
const SKIPS: u64 = 0x2_0100;
/// Address of a handler that returns from an external interrupt.
const IGNORES: u64 = 0x2_0140;
const FAULTS: u32 = 0x5_0000;

fn gate(handler: u64) -> u64 {
    handler & 0xffff | 0x10 << 16 | 0x8e << 40 | handler >> 16 << 48
}

fn set_gate(memory: &mut GuestMemory, vector: u64, handler: u64) {
    memory.write_u64(PhysicalAddress(0x3_0000 + vector * 8), gate(handler));
}

/// Sets up a guest monitor that ends the run at the first fault of its task. The task may use all
/// ports and its own INT n.
fn prepare_monitor(state: &mut CpuState, memory: &mut GuestMemory) {
    state.tr = Segment {
        base: TASK,
        limit: IO_BITMAP as u32 + 0x20,
        selector: Selector(0x30),
        attributes: Attributes::from_bits_retain(0x8b),
    };
    let mut task = [0; IO_BITMAP as usize + 0x20];
    task[4..8].copy_from_slice(&INNER_STACK.to_le_bytes());
    task[8..12].copy_from_slice(&0x18_u32.to_le_bytes());
    task[0x66..0x68].copy_from_slice(&(IO_BITMAP as u16).to_le_bytes());
    memory.write(PhysicalAddress(TASK), &task);
    memory.write(PhysicalAddress(TASK + IO_BITMAP + 0x20), &[0xff]);
    set_gate(memory, 13, HANDLER);
}

/// Makes the guest's monitor continue after faults and interrupts.
fn go_on(memory: &mut GuestMemory) {
    // inc dword ss:[FAULTS]; add esp, 4; inc dword [esp]; iretd
    let [a, b, c, d] = FAULTS.to_le_bytes();
    let skips = [
        0x36, 0xff, 0x05, a, b, c, d, 0x83, 0xc4, 4, 0xff, 0x04, 0x24, 0xcf,
    ];
    memory.write(PhysicalAddress(SKIPS), &skips);
    memory.write(PhysicalAddress(IGNORES), &[0xcf]);
    set_gate(memory, 13, SKIPS);
    set_gate(memory, 0x20, IGNORES);
}

/// A V86 task at IOPL 0.
fn task(
    code: &[u8],
    cr4: Cr4,
    arm: VirtualInterrupts,
    change: impl FnOnce(&mut CpuState, &mut GuestMemory),
) -> Computer<Bench> {
    vcpu_with(GuestMode::Virtual8086, code, arm, |state, memory| {
        state.flags &= !Flags::IOPL.bits();
        state.flags |= Flags::IF.bits();
        state.cr4 |= cr4.bits();
        prepare_monitor(state, memory);
        change(state, memory);
    })
}

/// A program of 32-bit code at CPL 3 and IOPL 0.
fn ring_3(code: &[u8], cr4: Cr4, arm: VirtualInterrupts) -> Computer<Bench> {
    vcpu_with(GuestMode::Flat, code, arm, |state, memory| {
        for register in SegmentRegister::ALL {
            let segment = state.segment_mut(register);
            segment.selector = Selector(segment.selector.0 | 3);
            segment.attributes |= Attributes::from_bits_retain(0x60);
        }
        state.flags |= Flags::IF.bits();
        state.cr4 |= cr4.bits();
        state.gpr[1] = ROUNDS;
        prepare_monitor(state, memory);
    })
}

/// The error code, EIP and EFLAGS of the fault that ended the run.
fn fault(vcpu: &mut Computer<Bench>) -> [u32; 3] {
    assert_eq!(vcpu.state().rip, HANDLER + 2, "{}", vcpu.dump());
    let top = vcpu.state().gpr[4];
    [0, 4, 12].map(|offset| {
        let mut value = [0; 4];
        vcpu.memory_mut()
            .read(PhysicalAddress(top + offset), &mut value);
        u32::from_le_bytes(value)
    })
}

/// Repeats `body` [`ROUNDS`] times, by CX or ECX.
fn repeated(body: &[u8]) -> Vec<u8> {
    let back = -(body.len() as i8 + 4);
    [body, &[0xff, 0xc9, 0x75, back as u8]].concat()
}

#[test]
fn nothing_leaves_where_vme_lets_it_through() {
    // pushf; push cs; call over an iret: these make the frame of the iret
    let returns = [PUSHF, 0x0e, 0xe8, 2, 0, 0xeb, 1, IRET];
    let body = [
        &[STI, PUSHF, CLI, POPF, PUSHF, POPF][..],
        &returns,
        &[INT, 0x60, CLI, INT, 0x60],
    ]
    .concat();
    let code = repeated(&body);
    for (arm, each) in arms().into_iter().zip([0, 0, ROUNDS]) {
        for flags in [Flags::empty(), Flags::IOPL] {
            if flags == Flags::IOPL && arm.flag && !arm.request {
                // In this mode the instruction changes IF, which takes an exit.
                continue;
            }
            let mut vcpu = task(&code, Cr4::VME, arm, |state, _| {
                state.flags |= flags.bits();
                state.gpr[1] = ROUNDS;
            });
            run(&mut vcpu);
            let expected = [2, 1, 3, 2, 2, 3].map(|count| count * each);
            assert_eq!(sensitive_exits(&vcpu), expected, "{arm:?} {flags:?}");
            assert_eq!(vcpu.exit_counts().get(ExitKind::GuestException), 0);
            assert_eq!(vcpu.state().gpr[4], STACK);
        }
    }
}

#[test]
fn without_vme_each_is_a_fault_and_no_exit_of_its_kind() {
    let instructions: [&[u8]; 9] = [
        &[CLI],
        &[STI],
        &[PUSHF],
        &[POPF],
        &[IRET],
        &[INT, 0x60],
        &[0x66, PUSHF],
        &[0x66, POPF],
        &[0x66, IRET],
    ];
    for cr4 in [Cr4::empty(), Cr4::PVI, Cr4::VME] {
        for (number, instruction) in instructions.into_iter().enumerate() {
            // With VME, only the instructions with 32-bit operands fault.
            if cr4 == Cr4::VME && number < 6 {
                continue;
            }
            // A push ax before the instruction, so that the exactness of the stack pointer is
            // tested, too.
            let code = [&[0x50], instruction].concat();
            for arm in arms() {
                let mut vcpu = task(&code, cr4, arm, |_, _| {});
                run(&mut vcpu);
                let [error, eip, flags] = fault(&mut vcpu);
                assert_eq!((error, eip), (0, 1), "{instruction:x?} {arm:?}");
                assert_eq!(u64::from(flags) & Flags::IF.bits(), Flags::IF.bits());
                let top = vcpu.state().gpr[4];
                let mut esp = [0; 4];
                vcpu.memory_mut().read(PhysicalAddress(top + 16), &mut esp);
                assert_eq!(u64::from(u32::from_le_bytes(esp)), STACK - 2);
                assert_eq!(vcpu.exit_counts().get(ExitKind::GuestException), 1);
                let exits: u64 = sensitive_exits(&vcpu).iter().sum();
                assert_eq!(exits, u64::from(!arm.flag), "{instruction:x?} {arm:?}");
            }
        }
    }
}

#[test]
fn at_cpl_3_cli_and_sti_are_faults_without_pvi_and_need_no_exit_with_it() {
    for arm in arms() {
        for cr4 in [Cr4::empty(), Cr4::VME] {
            for instruction in [CLI, STI] {
                let mut vcpu = ring_3(&[0x50, instruction], cr4, arm);
                run(&mut vcpu);
                let [error, eip, _] = fault(&mut vcpu);
                assert_eq!((error, u64::from(eip)), (0, CODE + 1), "{arm:?}");
                let exits: u64 = sensitive_exits(&vcpu).iter().sum();
                assert_eq!(exits, u64::from(!arm.flag), "{arm:?}");
            }
        }
        for (last, vif) in [(CLI, 0), (STI, Flags::VIF.bits())] {
            let code = repeated(&[STI, PUSHF, CLI, 0x58, STI, CLI, last]);
            let mut vcpu = ring_3(&code, Cr4::PVI, arm);
            run(&mut vcpu);
            if arm.flag {
                assert_eq!(sensitive_exits(&vcpu), [0; 6], "{arm:?}");
            }
            let flags = Flags::VIF | Flags::IF;
            assert_eq!(vcpu.state().flags & flags.bits(), vif | Flags::IF.bits());
            assert_eq!(vcpu.state().gpr[0] & flags.bits(), flags.bits());
        }
    }
}

#[test]
fn what_sets_vif_while_vip_is_set_faults_before_it_changes_anything() {
    let programs: [&[u8]; 3] = [
        &[NOP, CLI, STI],
        &[0x68, 2, 2, POPF],                   // push 202h
        &[0x68, 2, 2, 0x0e, 0x6a, 0x20, IRET], // push cs; push 20h
    ];
    for code in programs {
        for arm in arms() {
            let mut vcpu = task(code, Cr4::VME, arm, |state, _| {
                state.flags |= (Flags::VIP | Flags::CF).bits();
            });
            run(&mut vcpu);
            let [error, eip, flags] = fault(&mut vcpu);
            assert_eq!((error, eip as usize), (0, code.len() - 1), "{arm:?}");
            let expected = Flags::VIP | Flags::CF | Flags::IF | Flags::VM;
            let ignored = Flags::RF.bits() | 2;
            assert_eq!(u64::from(flags) & !ignored, expected.bits(), "{arm:?}");
        }
    }
}

#[test]
fn pushf_shows_vif_and_iopl_3_and_int_n_pushes_the_same() {
    for arm in arms() {
        // stc; std; sti; pushf; cli; pushf; sti; int 20h, whose handler ends the run
        let code = [0xf9, 0xfd, STI, PUSHF, CLI, PUSHF, STI, INT, 0x20];
        let mut vcpu = task(&code, Cr4::VME, arm, |state, _| {
            state.flags |= (Flags::IOPL.bits() & 0x1000) | Flags::ID.bits();
        });
        run(&mut vcpu);
        assert_eq!(interrupted_at(GuestMode::Virtual8086, &mut vcpu), 9);
        let mut stack = [0; 10];
        let top = PhysicalAddress(STACK - 10);
        vcpu.memory_mut().read(top, &mut stack);
        let expected = [9, 0, 0, 0x10, 0x03, 0x36, 0x03, 0x34, 0x03, 0x36];
        assert_eq!(stack, expected, "{arm:?}");
        let flags = Flags::VIF | Flags::IF | Flags::IOPL;
        let left = Flags::IF.bits() | 0x1000;
        assert_eq!(vcpu.state().flags & flags.bits(), left, "{arm:?}");
    }
}

#[test]
fn the_bitmap_is_looked_at_each_time() {
    // The task sets the bit of vector 60h in its own TSS:
    // mov ax, 3206h; mov ds, ax; or byte [14h], 1
    let sets = [0xb8, 0x06, 0x32, 0x8e, 0xd8, 0x80, 0x0e, 0x14, 0, 1];
    let code = [&[INT, 0x60, INT, 0x60][..], &sets, &[INT, 0x60]].concat();
    for arm in arms() {
        let mut vcpu = task(&code, Cr4::VME, arm, |_, _| {});
        run(&mut vcpu);
        let [error, eip, _] = fault(&mut vcpu);
        assert_eq!((error, eip), (0, 14), "{arm:?}");
    }
}

#[test]
fn a_bitmap_that_is_not_in_a_tss_of_32_bits_is_a_fault() {
    let changes: [fn(&mut CpuState, &mut GuestMemory); 4] = [
        |state, _| state.tr.limit = 0x66,
        // The byte of the vector is the first one beyond the limit, and the last one inside.
        |state, _| state.tr.limit = 0x68 + 0xc - 1,
        |_, memory| {
            memory.write(PhysicalAddress(TASK + 0x66), &[0x13, 0]);
        },
        |state, memory| {
            state.tr.attributes = Attributes::from_bits_retain(0x83);
            memory.write(PhysicalAddress(TASK + 2), &[0, 0x60, 0x18, 0]);
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for arm in arms() {
            let mut vcpu = task(&[NOP, INT, 0x60], Cr4::VME, arm, change);
            run(&mut vcpu);
            assert_eq!(fault(&mut vcpu)[..2], [0, 1], "{number} {arm:?}");
            assert_eq!(vcpu.exit_counts().get(ExitKind::GuestException), 1);
        }
    }
    for arm in arms() {
        let mut vcpu = task(
            &[INT, 0x60, CLI, 0x66, CLI, 0xf4],
            Cr4::VME,
            arm,
            |state, _| {
                state.tr.limit = 0x68 + 0xc;
            },
        );
        run(&mut vcpu);
        // HLT has faulted, INT n has not.
        assert_eq!(fault(&mut vcpu)[..2], [0, 5], "{arm:?}");
    }
}

/// A generator of numbers, which need only differ from one another.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// A random loop of 16-bit code that restores the stack unless it faults, and counts down CX.
fn random_loop(numbers: &mut Numbers) -> Vec<u8> {
    let mut code = vec![0x89, 0xe5]; // mov bp, sp
    let start = code.len();
    for _ in 0..12 + numbers.below(20) {
        let image = [numbers.below(256) as u8, numbers.below(256) as u8 & 0xfe];
        let [low, high] = image;
        let pieces: [&[u8]; 18] = [
            &[CLI],
            &[STI],
            &[NOP],
            &[0x43],       // inc bx
            &[0x01, 0xd8], // add ax, bx
            &[0x11, 0xc2], // adc dx, ax
            &[PUSHF, POPF],
            &[PUSHF, CLI, POPF],
            &[PUSHF, STI, POPF],
            &[INT, 0x60],
            &[INT, 0x90],
            &[0x68, low, high & 0x8f, POPF],
            &[PUSHF, 0x5e, 0x01, 0xf2], // pop si; add dx, si
            // pushf; push cs; call over an iret
            &[PUSHF, 0x0e, 0xe8, 2, 0, 0xeb, 1, IRET],
            &[0x68, low, high & 0x8e, 0x0e, 0xe8, 2, 0, 0xeb, 1, IRET],
            &[0x66, PUSHF, 0x89, 0xec], // mov sp, bp
            &[0xa3, 0, 0x50],           // mov [5000h], ax
            &[0xfc],                    // cld
        ];
        code.extend(pieces[numbers.below(pieces.len())]);
    }
    code.extend([0x89, 0xec, 0x49, 0x0f, 0x85]); // mov sp, bp; dec cx; jnz near
    let back = start as i32 - (code.len() as i32 + 2);
    code.extend((back as i16).to_le_bytes());
    code.push(0xfc);
    code
}

fn random_task(code: &[u8], rounds: u64, flags: u64, arm: VirtualInterrupts) -> Computer<Bench> {
    task(code, Cr4::VME, arm, |state, memory| {
        state.flags |= flags;
        state.gpr[1] = rounds;
        go_on(memory);
        // The bit of vector 90h is set; the second byte of the instruction is a NOP.
        memory.write(PhysicalAddress(TASK + 0x68 + 0x12), &[1]);
    })
}

/// The results of a task, without memory below stack pointers.
fn result(vcpu: &mut Computer<Bench>) -> (String, Vec<u8>) {
    let (registers, mut memory) = end_state(vcpu);
    memory[INNER_STACK as usize - 0x100..INNER_STACK as usize].fill(0);
    memory[STACK as usize - 0x200..STACK as usize].fill(0);
    (registers, memory)
}

/// Sets VIP, or another privilege level below 3.
fn random_flags(numbers: &mut Numbers) -> u64 {
    let vip = [0, 0, Flags::VIP.bits()][numbers.below(3)];
    vip | (numbers.below(3) as u64) << 12 | [0, Flags::AC.bits()][numbers.below(2)]
}

#[test]
fn random_tasks_end_the_same_in_every_arm_and_step_by_step() {
    let mut numbers = Numbers(5);
    let mut faults = 0;
    for _ in 0..100 {
        let code = random_loop(&mut numbers);
        let flags = random_flags(&mut numbers);
        let mut stepping = random_task(&code, 3, flags, VirtualInterrupts::default());
        step(&mut stepping);
        let expected = result(&mut stepping);
        faults += u32::from(expected.1[FAULTS as usize]);
        for arm in arms() {
            let mut running = random_task(&code, 3, flags, arm);
            run(&mut running);
            assert_eq!(result(&mut running).0, expected.0, "{arm:?} {code:02x?}");
            assert_eq!(result(&mut running), expected, "{arm:?} {code:02x?}");
        }
    }
    assert!(faults > 50, "{faults}");
}

#[test]
fn interrupts_from_outside_change_nothing_of_a_task() {
    let mut numbers = Numbers(6);
    let mut came = 0;
    for _ in 0..5 {
        let code = random_loop(&mut numbers);
        let flags = random_flags(&mut numbers);
        let rounds = 1_000;
        let mut quiet = random_task(&code, rounds, flags, VirtualInterrupts::default());
        run(&mut quiet);
        let expected = result(&mut quiet);
        for arm in arms() {
            let mut vcpu = random_task(&code, rounds, flags, arm);
            came += run_interrupted(&mut vcpu);
            let found = result(&mut vcpu);
            assert_eq!(found.0, expected.0, "{arm:?} {code:02x?}");
            assert!(found == expected, "{arm:?} {code:02x?}");
        }
    }
    assert!(came > 0);
}
