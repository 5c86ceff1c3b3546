//! Tests loads and stores of segment registers in real mode and V86 mode, and random 16-bit code
//! that has many of these and of far transfers: at full speed the code must do what it does one
//! instruction at a time.

use crate::support::sixteen_bit::{END, Kind, Program, seen};
use std::time::Instant;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, GuestTime, StopRequest};
use tollgate_test_support::{Computer, Random};
use tollgate_x86::{CpuState, PhysicalAddress, Segment, SegmentRegister};

/// Address of the programs, 1000:0000.
const MAIN: u32 = 0x1_0000;

#[test]
fn loads_and_stores_of_segment_registers_stay_in_translated_code() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        let round: &[&[u8]] = &[
            &[0x1e, 0x07],                   // push ds; pop es
            &[0x8c, 0xc0, 0x8e, 0xe0],       // mov ax, es; mov fs, ax
            &[0x8e, 0x2e, 0x00, 0x03],       // mov gs, [300]
            &[0xc4, 0x3e, 0x02, 0x03],       // les di, [302]
            &[0x66, 0xc5, 0x36, 0x06, 0x03], // lds esi, [306]
            &[0x36, 0x8c, 0x26, 0x00, 0x01], // mov ss:[100], fs
            &[0x8c, 0xd0, 0x8e, 0xd0, 0x90], // mov ax, ss; mov ss, ax; nop
            &[0x16, 0x17, 0x90],             // push ss; pop ss; nop
            &[0x0f, 0xb2, 0x26, 0x0c, 0x03], // lss sp, [30c]
        ];
        let mut code = round.concat();
        code.extend([0xe2, 0_u8.wrapping_sub(code.len() as u8 + 2)]); // loop
        code.extend(END);
        program.put(MAIN, &code);
        let data = [0x34, 0x12, 0x11, 0x22, 0x21, 0x43, 0x55, 0x44, 0x77, 0x66];
        program.put_data(
            0x300,
            &[&data[..], &[0x00, 0x40, 0x00, 0x08, 0x00, 0x50]].concat(),
        );
        program.state.gpr[1] = 1000;
        let vcpu = program.run();
        let state = vcpu.state();
        let selector = |register| state.segment(register).selector.0;
        assert_eq!(selector(SegmentRegister::Gs), 0x1234, "{kind:?}");
        assert_eq!(state.segment(SegmentRegister::Gs).base, 0x1_2340);
        assert_eq!(selector(SegmentRegister::Es), 0x4321);
        assert_eq!(state.gpr[7], 0x2211);
        assert_eq!(selector(SegmentRegister::Fs), 0x4000);
        assert_eq!(state.gpr[6], 0x6677_4455);
        assert_eq!(state.gpr[4], 0x800);
        let counts = vcpu.exit_counts();
        assert_eq!(counts.get(ExitKind::SegmentLoad), 0, "{kind:?}");
        assert_eq!(counts.get(ExitKind::OtherInstruction), 0, "{kind:?}");
        assert!(counts.total() < 40, "{kind:?}: {counts:?}");
    }
}

#[test]
fn a_far_pointer_at_the_end_of_a_segment_faults_and_changes_nothing() {
    for kind in Kind::ALL {
        for at in [0xfffd_u16, 0xfffe, 0xffff] {
            let mut program = Program::new(kind);
            let [low, high] = at.to_le_bytes();
            program.put(MAIN, &[0xc4, 0x3e, low, high]); // les di, [at]
            program.put(MAIN + 4, &END);
            program.state.gpr[7] = 0x5555;
            let mut vcpu = program.run();
            // The linear address of the selector wraps; the offset and the words themselves do not.
            let vector = seen(&vcpu);
            if at == 0xfffe {
                assert_eq!(vector, None, "{kind:?}");
                continue;
            }
            assert_eq!(vector, Some(13), "{kind:?} {at:x}");
            assert_eq!(program.faulted_at(&mut vcpu), (0x1000, 0, 0x800));
            assert_eq!(vcpu.state().gpr[7], 0x5555);
        }
    }
}

#[test]
fn an_operand_that_would_wrap_faults_and_one_that_ends_at_ffffh_does_not() {
    // Operations with the offset in BX, SI and DI: the code, and how many bytes it accesses.
    let operations: [(&[u8], u64); 8] = [
        (&[0x8a, 0x07], 1),       // mov al, [bx]
        (&[0x8b, 0x07], 2),       // mov ax, [bx]
        (&[0x89, 0x04], 2),       // mov [si], ax
        (&[0x66, 0x01, 0x05], 4), // add [di], eax
        (&[0xad], 2),             // lodsw
        (&[0x66, 0xab], 4),       // stosd
        (&[0xdd, 0x07], 8),       // fld qword [bx]
        (&[0x8e, 0x07], 2),       // mov es, [bx]
    ];
    for kind in Kind::ALL {
        for (code, size) in operations {
            for beyond in 0..size {
                let offset = 0x1_0000 - size + beyond;
                let mut program = Program::new(kind);
                program.put(MAIN, code);
                program.put(MAIN + code.len() as u32, &END);
                let registers = &mut program.state.gpr;
                (registers[3], registers[6], registers[7]) = (offset, offset, offset);
                let mut vcpu = program.run();
                let expected = (beyond != 0).then_some(13);
                let seen = seen(&vcpu);
                assert_eq!(seen, expected, "{kind:?} {code:x?} at {offset:x}");
                if beyond != 0 {
                    assert_eq!(program.faulted_at(&mut vcpu), (0x1000, 0, 0x800));
                }
            }
        }
    }
}

#[test]
fn a_segment_of_4_gib_in_real_mode_is_loaded_by_the_monitor() {
    let mut program = Program::new(Kind::Real);
    // mov ax, 2000; mov es, ax; mov eax, es:[ecx]; xor bx, bx; mov es, bx; mov ebx, es:[ecx]
    program.put(
        MAIN,
        &[
            0xb8, 0x00, 0x20, 0x8e, 0xc0, 0x67, 0x66, 0x26, 0x8b, 0x01, 0x31, 0xdb, 0x8e, 0xc3,
            0x67, 0x66, 0x26, 0x8b, 0x19,
        ],
    );
    program.put(MAIN + 19, &END);
    program.put(0xa_0000 - 8, &[1, 0, 0, 0, 2, 0, 0, 0]);
    program.put(0x8_0000 - 8, &[3, 0, 0, 0, 4, 0, 0, 0]);
    let es = program.state.segment_mut(SegmentRegister::Es);
    (es.selector.0, es.base, es.limit) = (0, 0, u32::MAX);
    program.state.gpr[1] = 0x7_fff8;
    let vcpu = program.run();
    assert_eq!((vcpu.state().gpr[0], vcpu.state().gpr[3]), (1, 3));
    assert_eq!(vcpu.state().segment(SegmentRegister::Es).limit, u32::MAX);
}

/// A machine with a fast timer on vector 20h, which ends at port F4h.
struct Ticking {
    start: Instant,
    acknowledged: u64,
    ended: bool,
}

/// Nanoseconds between interrupts.
const PERIOD: u64 = 200_000;

impl BareMachine for Ticking {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, port: u16, _size: u8, _value: u32) {
        self.ended |= port == 0xf4;
    }
    fn interrupt_pending(&mut self) -> bool {
        self.now().0 / PERIOD > self.acknowledged
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.acknowledged = self.now().0 / PERIOD;
        Some(0x20)
    }
    fn now(&self) -> GuestTime {
        GuestTime(self.start.elapsed().as_nanos() as u64)
    }
    fn next_deadline(&self) -> Option<GuestTime> {
        Some(GuestTime((self.acknowledged + 1) * PERIOD))
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.ended.then_some(StopRequest::DebugExit(0))
    }
}

/// Runs `round` in real mode repeatedly until 400 interrupts have come. Each stores CX in a frame
/// on the stack that it finds. The stacks are 5000:0800 and 6000:0400; the memory below 5000:0400
/// and 6000:0800 is returned.
fn interrupted(round: &[u8]) -> [Vec<u8>; 2] {
    let mut state = CpuState::at_reset();
    for (register, selector) in [
        (SegmentRegister::Cs, 0x1000),
        (SegmentRegister::Ss, 0x5000),
        (SegmentRegister::Ds, 0x4000),
    ] {
        *state.segment_mut(register) = Segment::real_mode(selector, 0);
    }
    state.rip = 0;
    state.flags = 0x200;
    state.gpr[4] = 0x800;
    state.gpr[0] = 0x5000; // AX:BX is one stack
    state.gpr[3] = 0x800;
    state.gpr[2] = 0x6000; // DX:SI is the other
    state.gpr[6] = 0x400;
    let mut memory = GuestMemory::new(2 << 20).unwrap();
    let mut put = |at: u64, bytes: &[u8]| assert!(memory.write(PhysicalAddress(at), bytes));
    let mut code = round.to_vec();
    code.extend([0x81, 0x3e, 0, 0, 0x90, 0x01]); // cmp word [0], 400
    code.extend([0x72, 0_u8.wrapping_sub(code.len() as u8 + 2)]); // jb
    code.extend(END);
    put(0x1_0000, &code);
    put(0x20 * 4, &[0x00, 0x00, 0x00, 0x20]);
    // 2000:0000: push cx; inc word [0]; pop cx; iret
    put(0x2_0000, &[0x51, 0xff, 0x06, 0, 0, 0x59, 0xcf]);
    let machine = Ticking {
        start: Instant::now(),
        acknowledged: 0,
        ended: false,
    };
    let mut vcpu = Computer::new(state, memory, machine, 1 << 20, true).unwrap();
    let stop = vcpu.run();
    assert!(matches!(stop, VcpuStop::Requested(_)), "{stop:?}");
    [0x5_0400 - 16, 0x6_0800 - 16].map(|at| {
        let mut bytes = vec![0; 16];
        assert!(vcpu.memory_mut().read(PhysicalAddress(at), &mut bytes));
        bytes
    })
}

#[test]
fn no_interrupt_comes_between_a_load_of_ss_and_that_of_sp() {
    // mov ss, dx; mov sp, si; mov ss, ax; mov sp, bx
    let moved = [0x8e, 0xd2, 0x89, 0xf4, 0x8e, 0xd0, 0x89, 0xdc];
    // push dx; pop ss; mov sp, si; push ax; pop ss; mov sp, bx
    let popped = [0x52, 0x17, 0x89, 0xf4, 0x50, 0x17, 0x89, 0xdc];
    for round in [moved, popped] {
        assert_eq!(interrupted(&round), [[0; 16], [0; 16]]);
    }
    // With an instruction in between, an interrupt does come, which shows that the test can detect
    // one.
    let apart = [0x8e, 0xd2, 0x90, 0x89, 0xf4, 0x8e, 0xd0, 0x90, 0x89, 0xdc];
    assert_ne!(interrupted(&apart), [[0; 16], [0; 16]]);
}

/// A random segment of data, away from all code.
fn selector(random: &mut Random) -> [u8; 2] {
    (0x3000 + random.below(0x6000) as u16).to_le_bytes()
}

/// A random offset, sometimes at the end of a segment.
fn offset(random: &mut Random) -> [u8; 2] {
    let at = match random.below(24) {
        0 => 0xfff8 + random.below(8),
        _ => random.below(0xff00),
    };
    (at as u16).to_le_bytes()
}

/// Appends a random piece of code for 1000:`code.len()`, which may be called by another selector.
fn random_piece(random: &mut Random, code: &mut Vec<u8>) {
    let [s0, s1] = selector(random);
    let [o0, o1] = offset(random);
    let sregs = [0_u8, 2, 3, 4, 5];
    let sreg = sregs[random.below(5)];
    let register = random.below(8) as u8;
    let start = code.len();
    match random.below(18) {
        0 => code.extend([0xb8, s0, s1, 0x8e, 0xc0 | sreg << 3]), // mov ax, imm; mov sreg, ax
        1 => {
            let pop: [&[u8]; 5] = [&[0x07], &[0x17], &[0x1f], &[0x0f, 0xa1], &[0x0f, 0xa9]];
            code.extend([0x68, s0, s1]); // push imm
            code.extend(random.pick(&pop));
        }
        2 => {
            // mov word [o], x; mov word [o+2], s; lxs r, [o]
            let behind = u16::from_le_bytes([o0, o1]).wrapping_add(2).to_le_bytes();
            code.extend([0xc7, 0x06, o0, o1, 0xf0, 0x7f]);
            code.extend([0xc7, 0x06, behind[0], behind[1], s0, s1]);
            let load: [&[u8]; 5] = [
                &[0xc4],
                &[0xc5],
                &[0x0f, 0xb2],
                &[0x0f, 0xb4],
                &[0x0f, 0xb5],
            ];
            code.extend(random.pick(&load));
            code.extend([register << 3 | 6, o0, o1]);
        }
        3 => {
            let push: [&[u8]; 8] = [
                &[0x06],
                &[0x0e],
                &[0x16],
                &[0x1e],
                &[0x0f, 0xa0],
                &[0x0f, 0xa8],
                &[0x66, 0x06],
                &[0x66, 0x0f, 0xa8],
            ];
            code.extend(random.pick(&push));
        }
        4 => code.extend([0x8c, 0xc0 | sreg << 3 | register]), // mov r16, sreg
        5 => code.extend([0x66, 0x8c, 0xc0 | sreg << 3 | register]),
        6 => code.extend([0x8c, sreg << 3 | 6, o0, o1]), // mov [o], sreg
        7 => {
            // An operation on memory through any segment register.
            let prefix: [&[u8]; 6] = [&[], &[0x26], &[0x36], &[0x64], &[0x65], &[0x66]];
            code.extend(random.pick(&prefix));
            let operation: [&[u8]; 5] = [&[0x89], &[0x8b], &[0x01], &[0x03], &[0x88]];
            code.extend(random.pick(&operation));
            if random.below(2) == 0 {
                code.extend([register << 3 | 6, o0, o1]);
            } else {
                // The operation is of the same kind, with BX as address.
                let operation = code.split_off(start);
                code.extend([0xbb, o0, o1]);
                code.extend(operation);
                code.push(register << 3 | 7);
            }
        }
        8 => code.extend([0xbc, o0, o1]), // mov sp, o
        9 | 10 => {
            // A far call to one of the routines.
            let (routine, wide) = (random.below(4), random.below(2) == 0);
            if wide {
                code.push(0x66);
            }
            code.push(0x9a);
            code.extend([0x10 * routine as u8 + 8 * u8::from(wide), 0]);
            code.extend(&[0; 2][..2 * usize::from(wide)]);
            code.extend([0x00, 0x20]);
        }
        11 => {
            // A far jump to the next instruction, by another selector.
            let back = random.below(0x100) as u16;
            let next = code.len() as u16 + 5 + 16 * back;
            code.push(0xea);
            code.extend(next.to_le_bytes());
            code.extend((0x1000 - back).to_le_bytes());
        }
        12 => {
            // A far transfer to the next instruction through a pointer on the stack.
            let next = code.len() as u16 + 7;
            code.extend([0x68, 0x00, 0x10, 0x68]);
            code.extend(next.to_le_bytes());
            code.push(0xcb);
        }
        13 => {
            let x87: [&[u8]; 4] = [&[0xd9, 0xe8], &[0xdd, 0xd8], &[0xd8, 0xc1], &[0xdb, 0xe3]];
            code.extend(random.pick(&x87));
            // fst, fld, fnstenv through a segment
            let memory: [&[u8]; 3] = [&[0xd9, 0x16], &[0x26, 0xd9, 0x06], &[0xd9, 0x36]];
            code.extend(random.pick(&memory));
            code.extend([o0, o1]);
        }
        14 => code.extend([0x50 | register, 0x58 | register & 3]), // push; pop
        15 => code.extend([0xcd, 0x40]),                           // int 40h
        16 => {
            // Instructions on the interrupt flag, alone and together with the other flags.
            let flags: [&[u8]; 4] = [&[0xfa], &[0xfb], &[0x9c, 0x9d], &[0x66, 0x9c, 0x58, 0x58]];
            code.extend(random.pick(&flags));
        }
        _ => code.extend([0x05, o0, o1, 0x11, 0xc0 | register << 3]), // add ax; adc ax, r
    }
}

#[test]
fn random_16_bit_code_does_what_it_does_one_instruction_at_a_time() {
    let mut ends = 0;
    for seed in 1..=600_u64 {
        let mut random = Random::new(seed);
        let kind = Kind::ALL[(seed % 3 / 2) as usize];
        let mut program = Program::new(kind);
        let mut code = Vec::new();
        for _ in 0..30 {
            random_piece(&mut random, &mut code);
        }
        // The code runs a second time, after the monitor has executed what needs it.
        code.extend([0x2e, 0xfe, 0x0e, 0xff, 0x0f]); // dec byte cs:[0fff]
        code.extend([0x0f, 0x84, 5, 0]); // jz over
        code.extend([0xea, 0, 0, 0x00, 0x10]);
        code.extend(END);
        assert!(code.len() < 0xf00);
        program.put(MAIN, &code);
        program.put(MAIN + 0xfff, &[3]);
        // The handler of int 40h is only an IRET. V86 mode has no such handler.
        program.put(4 * 0x40, &[0x80, 0x00, 0x00, 0x20]);
        program.put(0x2_0080, &[0xcf]);
        for routine in 0..4_u32 {
            let at = 0x2_0000 + 0x10 * routine;
            let [low, high] = selector(&mut random);
            let load = [0xbb, low, high, 0x8e, 0xc3]; // mov bx, s; mov es, bx
            program.put(at, &load[..5 * (routine as usize % 2)]);
            let end = at + 5 * (routine % 2);
            program.put(end, if routine < 2 { &[0xcb] } else { &[0xca, 6, 0] });
            // The routines for 32-bit calls.
            program.put(
                at + 8,
                if routine < 2 {
                    &[0x66, 0xcb]
                } else {
                    &[0x66, 0xca, 2, 0]
                },
            );
        }
        for register in program.state.gpr.iter_mut() {
            *register = random.next_u64() & 0xffff_ffff;
        }
        program.state.gpr[4] = random.below(0x7ff0) as u64 * 2 + 0x10;
        // Some programs jump to unused memory; the test compares what they stored before.
        if program.stepped_within(20_000).is_none() {
            continue;
        }
        let vcpu = program.run();
        ends += u32::from(seen(&vcpu).is_none());
    }
    // Not all programs end by an exception.
    assert!(ends > 80, "{ends}");
}
