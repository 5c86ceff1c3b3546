//! Tests segments whose limit is neither that of real mode nor 4 GiB, and 16-bit stacks in larger
//! segments: a 16-bit stack pointer wraps at 64 KiB whatever the limit is, for each value of a
//! frame separately, and an access faults exactly where one of its bytes is outside (SDM volume 1,
//! 6.2.3; volume 3, 5.3 and 6.15, #SS; AMD volume 2, 4.7.4 and 4.12).
//!
//! A small model predicts what each instruction does. The instruction runs freely, in translated
//! code; one instruction at a time; and with a breakpoint on unrelated memory, which makes the
//! monitor perform every access. All three runs must have the same result.

use crate::support::sixteen_bit::{END, Kind, Machine, Program};
use std::ops::Range;
use tollgate_monitor::VcpuStop;
use tollgate_test_support::Computer;
use tollgate_x86::{
    Attributes, CpuState, Flags, PhysicalAddress, Segment, SegmentRegister, Selector,
};

/// The base of CS, and so the address of the code of all programs.
const MAIN: u32 = 0x1_0000;
/// Bases of the stack segment and of the data segments.
const STACK: u32 = 0x13_0000;
const DATA: u32 = 0x15_0000;
/// The addresses at which [`Program`] puts the top of the inner stack and the GDT.
const INNER_STACK: u32 = 0x11_6000;
const CODE_SELECTOR: u16 = 0x1b;
const STACK_SELECTOR: u16 = 0x23;
const INNER_SELECTOR: u16 = 0x28;
/// Address of the handler of INT 60h, which returns.
const RETURNS: u32 = 0x11_8000;
const EXPAND_DOWN: Attributes = Attributes::EXPAND_DOWN_OR_CONFORMING;
/// A watched address that no program accesses.
const UNUSED: u64 = 0x1f_fff0;

const RAX: usize = 0;
const RBX: usize = 3;
const RSP: usize = 4;
const RBP: usize = 5;

/// The kinds of segment, by limit, B flag and direction of expansion.
#[derive(Clone, Copy, Debug)]
struct Shape {
    limit: u32,
    big: bool,
    down: bool,
}

impl Shape {
    fn all() -> impl Iterator<Item = Self> {
        [
            0xfff, 0xfffe, 0xffff, 0x1_0000, 0x1_0001, 0x1_2345, 0x4_ffff,
        ]
        .into_iter()
        .flat_map(|limit| {
            [(false, false), (true, false), (false, true), (true, true)].map(|(big, down)| Self {
                limit,
                big,
                down,
            })
        })
    }

    /// A mask of the stack pointer's bits.
    fn mask(self) -> u32 {
        if self.big { u32::MAX } else { 0xffff }
    }

    /// Whether all of these bytes are inside the segment.
    fn holds(self, offset: u32, size: u32) -> bool {
        let last = u64::from(offset) + u64::from(size) - 1;
        match self.down {
            false => last <= u64::from(self.limit),
            true => offset > self.limit && last <= u64::from(self.mask()),
        }
    }

    /// Stack pointers near all edges.
    fn pointers(self) -> Vec<u32> {
        let edges = [0, 0x1_0000, self.limit.wrapping_add(1)];
        let mut pointers: Vec<u32> = edges
            .into_iter()
            .flat_map(|edge| (-9..=9).map(move |near: i32| edge.wrapping_add_signed(near)))
            .chain([0x20, 0x8000])
            .map(|pointer| match self.big {
                true => pointer,
                // The bits above SP must not change.
                false => pointer & 0xffff | 0x7001_0000,
            })
            .collect();
        pointers.sort_unstable();
        pointers.dedup();
        pointers
    }

    /// Whether all memory near this stack pointer is in RAM, away from the tables.
    fn is_in_reach(self, pointer: u32) -> bool {
        (0x100..0x6_0000).contains(&(pointer & self.mask()).wrapping_add(0x200))
    }

    fn segment(self, base: u32, selector: u16, level: u16) -> Segment {
        let mut attributes = Attributes::from_bits_retain(0x93 | level << 5);
        attributes.set(Attributes::DEFAULT_BIG, self.big);
        attributes.set(EXPAND_DOWN, self.down);
        Segment {
            base: base.into(),
            limit: self.limit,
            selector: Selector(selector),
            attributes,
        }
    }
}

/// The descriptor that such a segment is loaded from, with a limit in bytes.
fn descriptor(segment: &Segment) -> u64 {
    let (base, limit) = (segment.base, u64::from(segment.limit));
    let attributes = u64::from(segment.attributes.bits());
    limit & 0xffff
        | (base & 0xff_ffff) << 16
        | (attributes & 0xff) << 40
        | (limit >> 16 & 0xf) << 48
        | (attributes >> 12 & 0xf) << 52
        | (base >> 24) << 56
}

/// How the program's segments are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Protected mode at level 3, in 16-bit or 32-bit code.
    Protected { wide: bool },
    /// Real mode with limits that were loaded in protected mode.
    Real,
}

const MODES: [Mode; 3] = [
    Mode::Protected { wide: false },
    Mode::Protected { wide: true },
    Mode::Real,
];

/// One vCPU for each of the three ways to run a program.
struct Bench {
    free: Computer<Machine>,
    stepped: Computer<Machine>,
    watched: Computer<Machine>,
    state: CpuState,
}

/// The state that is compared: registers, and memory around all places where stacks and data end.
#[derive(PartialEq, Eq)]
struct End {
    gpr: [u64; 16],
    rip: u64,
    flags: u64,
    segments: [Segment; 6],
    memory: Vec<u8>,
}

/// The pieces of memory that a program can reach.
fn pieces() -> Vec<Range<u32>> {
    let mut pieces = Vec::new();
    pieces.push(INNER_STACK - 0x40..INNER_STACK);
    for base in [STACK, DATA] {
        for edge in [0, 0xfff, 0x8000, 0x1_0000, 0x1_2345] {
            let low = if edge == 0 { 0 } else { 0x80 };
            pieces.push(base + edge - low..base + edge + 0x80);
        }
    }
    pieces.push(STACK + 0x5_0000 - 0x80..STACK + 0x5_0080);
    pieces
}

fn filling(at: u32) -> u8 {
    (at.wrapping_add(77).wrapping_mul(0x9e37_79b1) >> 24) as u8
}

impl Bench {
    fn new(mode: Mode) -> Self {
        let kind = match mode {
            Mode::Real => Kind::Real,
            Mode::Protected { .. } => Kind::Virtual8086,
        };
        let mut program = Program::new(kind);
        if let Mode::Protected { wide } = mode {
            let gdt = program.state.gdtr.base as u32;
            let state = &mut program.state;
            state.flags &= !Flags::VM.bits();
            let mut code = Segment {
                base: MAIN.into(),
                limit: 0xffff,
                selector: Selector(CODE_SELECTOR),
                attributes: Attributes::from_bits_retain(0xfb),
            };
            code.attributes.set(Attributes::DEFAULT_BIG, wide);
            let data = Segment {
                base: DATA.into(),
                selector: Selector(STACK_SELECTOR),
                attributes: Attributes::from_bits_retain(0xf3),
                ..code
            };
            for register in SegmentRegister::ALL {
                *state.segment_mut(register) = data;
            }
            *state.segment_mut(SegmentRegister::Cs) = code;
            state.tr.attributes = Attributes::from_bits_retain(0x8b);
            state.gdtr.limit = 0x2f;
            state.idtr.limit = 0x307;
            let idt = program.state.idtr.base as u32;
            program.put(
                gdt + u32::from(CODE_SELECTOR & !7),
                &descriptor(&code).to_le_bytes(),
            );
            let gate = u64::from(RETURNS & 0xffff)
                | 8 << 16
                | 0xee00 << 32
                | u64::from(RETURNS >> 16) << 48;
            program.put(idt + 8 * 0x60, &gate.to_le_bytes());
            // mov ebx, esp; iretd
            program.put(RETURNS, &[0x89, 0xe3, 0xcf]);
        } else {
            // mov bx, sp; iret
            program.put(4 * 0x60, &0x0000_0500_u32.to_le_bytes());
            program.put(0x500, &[0x89, 0xe3, 0xcf]);
            let data = Segment {
                base: DATA.into(),
                ..Segment::real_mode(0x5a5a, 0)
            };
            for register in [SegmentRegister::Ds, SegmentRegister::Es] {
                *program.state.segment_mut(register) = data;
            }
        }
        let vcpu = || program.vcpu();
        Self {
            free: vcpu(),
            stepped: vcpu(),
            watched: vcpu(),
            state: program.state.clone(),
        }
    }

    /// Runs `code` from this state in all three ways, with `put` written to memory. Returns how it
    /// ends.
    fn run(&mut self, code: &[u8], state: &CpuState, put: &[(u32, Vec<u8>)]) -> (End, bool) {
        let mut ends = Vec::new();
        for (index, vcpu) in [&mut self.free, &mut self.stepped, &mut self.watched]
            .into_iter()
            .enumerate()
        {
            let mut write = |at: u32, bytes: &[u8]| {
                assert!((vcpu.memory_mut()).write(PhysicalAddress(at.into()), bytes));
            };
            for piece in pieces() {
                let bytes: Vec<u8> = piece.clone().map(filling).collect();
                write(piece.start, &bytes);
            }
            for (at, bytes) in put {
                write(*at, bytes);
            }
            write(MAIN, &[code, &END].concat());
            let mut state = state.clone();
            if index == 2 {
                // DR7: L0, writes.
                (state.dr[0], state.dr[7]) = (UNUSED, 0x1_0401);
            }
            vcpu.change_state(|cpu| *cpu = state);
            *vcpu.platform_mut() = Machine::default();
            let stop = match index {
                1 => loop {
                    if let Err(stop) = vcpu.step_one() {
                        break stop;
                    }
                },
                _ => vcpu.run(),
            };
            let shut_down = matches!(stop, VcpuStop::TripleFault(_));
            assert!(vcpu.platform().ended || shut_down, "{stop:?}");
            let cpu = vcpu.state().clone();
            let mut memory = Vec::new();
            for piece in pieces() {
                let mut bytes = vec![0; piece.len()];
                let at = PhysicalAddress(piece.start.into());
                assert!(vcpu.memory_mut().read(at, &mut bytes));
                memory.extend(bytes);
            }
            let end = End {
                gpr: cpu.gpr,
                rip: cpu.rip,
                flags: cpu.flags,
                segments: cpu.segments,
                memory,
            };
            ends.push((end, shut_down));
        }
        let names = ["freely", "step by step", "watched"];
        let (free, others) = ends.split_first().unwrap();
        for ((other, shut_down), name) in others.iter().zip(&names[1..]) {
            let how = format!("{name}: {code:02x?} from {:x?}", &state.gpr[..8]);
            assert_eq!(free.1, *shut_down, "{how}");
            assert_eq!(free.0.rip, other.rip, "{how}");
            assert_eq!(free.0.gpr, other.gpr, "{how}");
            assert_eq!(free.0.flags, other.flags, "{how}");
            assert_eq!(free.0.segments, other.segments, "{how}");
            assert!(free.0.memory == other.memory, "memory differs, {how}");
        }
        ends.swap_remove(0)
    }

    /// A value of `size` bytes in memory after the last run.
    fn value(&mut self, at: u32, size: u32) -> u32 {
        let mut bytes = [0; 4];
        let place = PhysicalAddress(at.into());
        let bytes_read = &mut bytes[..size as usize];
        assert!(self.free.memory_mut().read(place, bytes_read));
        u32::from_le_bytes(bytes)
    }
}

/// What an instruction does to the stack.
enum Does {
    /// Pushes this many values.
    Pushes(u32),
    /// Pops these values.
    Pops(Vec<u32>),
    /// Pops a value from the place that BP points to.
    Leaves,
}

/// The instructions, with the code that follows each, for an operand size.
fn instructions(mode: Mode, size: u32) -> Vec<(Vec<u8>, Does)> {
    use Does::{Leaves, Pops, Pushes};
    let is_wide_code = mode == Mode::Protected { wide: true };
    let prefix: &[u8] = match is_wide_code == (size == 4) {
        true => &[],
        false => &[0x66],
    };
    let selector = match mode {
        Mode::Real => (MAIN >> 4) as u16,
        Mode::Protected { .. } => CODE_SELECTOR,
    };
    let next = |length: usize| (prefix.len() + length) as u32;
    let zeros = vec![0; size as usize];
    let mut call = vec![0x9a];
    let target = next(1 + size as usize + 2);
    call.extend(&target.to_le_bytes()[..size as usize]);
    call.extend(selector.to_le_bytes());
    let plain = |bytes: &[u8]| [prefix, bytes].concat();
    let selector = u32::from(selector);
    vec![
        (plain(&[0x50]), Pushes(1)),       // push ax
        (plain(&[0x6a, 0x12]), Pushes(1)), // push 12h
        (plain(&[0xff, 0x36]), Pushes(1)), // completed below: push [0]
        (plain(&[0x60]), Pushes(8)),       // pusha
        (plain(&[0x9c]), Pushes(1)),       // pushf
        (plain(&[&[0xe8][..], &zeros].concat()), Pushes(1)),
        (plain(&call), Pushes(2)),
        (plain(&[0x58]), Pops(vec![0x1234_5678])), // pop ax
        (
            plain(&[0x61]),
            Pops((1..=8).map(|n| n * 0x0123_4567).collect()),
        ), // popa
        (plain(&[0x9d]), Pops(vec![0x3802])),      // popf
        (plain(&[0xc3]), Pops(vec![next(1)])),     // ret
        (plain(&[0xcb]), Pops(vec![next(1), selector])), // retf
        (plain(&[0xcf]), Pops(vec![next(1), selector, 0x3002])), // iret
        (plain(&[0xc9]), Leaves),
    ]
    .into_iter()
    .map(|(mut code, does)| {
        if code.ends_with(&[0xff, 0x36]) {
            // The ModR/M byte of [disp32] in 32-bit code.
            let length = code.len();
            code[length - 1] = if is_wide_code { 0x35 } else { 0x36 };
            code.extend(if is_wide_code { vec![0; 4] } else { vec![0; 2] });
        }
        (code, does)
    })
    .collect()
}

#[test]
fn each_stack_instruction_faults_and_wraps_exactly_where_it_should() {
    let (mut fitted, mut wrapped, mut refused) = (0, 0, 0);
    let mut number = 0_u32;
    for mode in MODES {
        let mut bench = Bench::new(mode);
        for (shape, size) in Shape::all().flat_map(|shape| [(shape, 2), (shape, 4)]) {
            for (code, does) in instructions(mode, size) {
                for pointer in shape.pointers() {
                    number = number.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                    if !shape.is_in_reach(pointer) || !(number >> 24).is_multiple_of(13) {
                        continue;
                    }
                    let offset = |step: u32| pointer.wrapping_add(step) & shape.mask();
                    let (places, moved): (Vec<u32>, u32) = match &does {
                        Does::Pushes(count) => {
                            let place = |index: u32| offset((size * (index + 1)).wrapping_neg());
                            (
                                (0..*count).map(place).collect(),
                                (size * count).wrapping_neg(),
                            )
                        }
                        Does::Pops(values) => {
                            let count = values.len() as u32;
                            (
                                (0..count).map(|it| offset(size * it)).collect(),
                                size * count,
                            )
                        }
                        Does::Leaves => (vec![offset(0)], size),
                    };
                    let fits = places.iter().all(|&place| shape.holds(place, size));
                    if mode == Mode::Real && !fits {
                        // The frame of the fault would be on the same stack.
                        continue;
                    }
                    let mut state = bench.state.clone();
                    let level = u16::from(mode != Mode::Real) * 3;
                    let selector = match mode {
                        Mode::Real => (STACK >> 4) as u16,
                        Mode::Protected { .. } => STACK_SELECTOR,
                    };
                    *state.segment_mut(SegmentRegister::Ss) = shape.segment(STACK, selector, level);
                    state.gpr[RSP] = pointer.into();
                    if matches!(does, Does::Leaves) {
                        state.gpr[RBP] = pointer.into();
                        state.gpr[RSP] = u64::from(pointer ^ 0x30);
                    }
                    let mut put = Vec::new();
                    if let Does::Pops(values) = &does {
                        for (&place, value) in places.iter().zip(values) {
                            let bytes = value.to_le_bytes()[..size as usize].to_vec();
                            put.push((STACK.wrapping_add(place), bytes));
                        }
                        if !fits {
                            put.clear();
                        }
                    }
                    let how = format!(
                        "{mode:x?} {shape:x?}: {code:02x?} with {pointer:x}, at {places:x?}"
                    );
                    let (end, shut_down) = bench.run(&code, &state, &put);
                    assert!(!shut_down, "{how}");
                    if !fits {
                        // Error code, EIP, CS, EFLAGS, ESP on the stack of the V86 monitor or
                        // kernel.
                        let frame = [0, 4, 16].map(|at| bench.value(INNER_STACK - 24 + at, 4));
                        let esp = state.gpr[RSP] as u32;
                        assert_eq!((end.gpr[RBP], frame), (12, [0, 0, esp]), "{how}");
                        refused += 1;
                        continue;
                    }
                    let behind = code.len() + END.len();
                    assert_eq!(end.rip, behind as u64, "{how}");
                    let moved = pointer.wrapping_add(moved) & shape.mask();
                    let expected = moved | pointer & !shape.mask();
                    assert_eq!(end.gpr[RSP], u64::from(expected), "{how}");
                    if code.ends_with(&[0x50]) {
                        let pushed = bench.value(STACK + places[0], size);
                        let ax = state.gpr[RAX] as u32 & (u32::MAX >> (32 - 8 * size));
                        assert_eq!(pushed, ax, "{how}");
                    }
                    if let Does::Pushes(2) = does {
                        // CS is above IP.
                        let frame = [0, 1].map(|it: usize| bench.value(STACK + places[it], size));
                        let selector = u32::from(state.cs().selector.0);
                        assert_eq!(frame, [selector, code.len() as u32], "{how}");
                    }
                    fitted += 1;
                    wrapped += u32::from(!places.is_sorted() && !places.is_sorted_by(|a, b| a > b));
                }
            }
        }
    }
    assert!(
        fitted > 1000 && wrapped > 30 && refused > 300,
        "{fitted} {wrapped} {refused}"
    );
}

#[test]
fn interrupts_wrap_on_a_16_bit_stack_whatever_its_limit_is() {
    let mut bench = Bench::new(Mode::Real);
    for shape in Shape::all().filter(|shape| !shape.down) {
        for pointer in shape.pointers() {
            let offset = |step: u32| pointer.wrapping_sub(step) & shape.mask();
            let places = [2, 4, 6].map(offset);
            let fits = places.iter().all(|&place| shape.holds(place, 2));
            if !fits || !shape.is_in_reach(pointer) {
                continue;
            }
            let mut state = bench.state.clone();
            *state.segment_mut(SegmentRegister::Ss) = shape.segment(STACK, (STACK >> 4) as u16, 0);
            state.gpr[RSP] = pointer.into();
            let how = format!("{shape:x?}: {pointer:x}");
            let (end, _) = bench.run(&[0xcd, 0x60], &state, &[]);
            assert_eq!(end.gpr[RSP], u64::from(pointer), "{how}");
            assert_eq!(
                end.gpr[RBX] & 0xffff,
                u64::from(places[2] & 0xffff),
                "{how}"
            );
            let frame = places.map(|place| bench.value(STACK + place, 2));
            let flags = state.flags as u32 & 0xffff | 2;
            assert_eq!(frame, [flags, MAIN >> 4, 2], "{how}");
        }
    }
}

#[test]
fn a_frame_on_an_inner_stack_of_16_bits_wraps_and_one_that_does_not_fit_is_a_double_fault() {
    let (mut fitted, mut refused) = (0, 0);
    for wide in [false, true] {
        let mut bench = Bench::new(Mode::Protected { wide });
        let (gdt, task) = (bench.state.gdtr.base as u32, bench.state.tr.base as u32);
        for shape in Shape::all() {
            let inner = shape.segment(STACK, INNER_SELECTOR, 0);
            let entry = (
                gdt + u32::from(INNER_SELECTOR),
                descriptor(&inner).to_le_bytes().to_vec(),
            );
            for pointer in shape.pointers() {
                let offset = |step: u32| pointer.wrapping_sub(step) & shape.mask();
                let places = [4, 8, 12, 16, 20].map(offset);
                let fits = places.iter().all(|&place| shape.holds(place, 4));
                if !shape.is_in_reach(pointer) {
                    continue;
                }
                let slot = [&pointer.to_le_bytes()[..], &INNER_SELECTOR.to_le_bytes()].concat();
                let mut state = bench.state.clone();
                let flat = Shape {
                    limit: 0xffff,
                    big: false,
                    down: false,
                };
                let outer = flat.segment(DATA, STACK_SELECTOR, 3);
                *state.segment_mut(SegmentRegister::Ss) = outer;
                state.gpr[RSP] = 0xabcd_8000;
                let returns = (
                    gdt + u32::from(STACK_SELECTOR & !7),
                    descriptor(&outer).to_le_bytes().to_vec(),
                );
                let put = [(task + 4, slot), entry.clone(), returns];
                let how = format!("{shape:x?}: {pointer:x}");
                let (end, shut_down) = bench.run(&[0xcd, 0x60], &state, &put);
                // The frames of the stack fault and of the double fault would be on that stack.
                assert_eq!(shut_down, !fits, "{how}");
                if shut_down {
                    refused += 1;
                    continue;
                }
                fitted += 1;
                let esp = places[4] | pointer & !shape.mask();
                assert_eq!(end.gpr[RBX], u64::from(esp), "{how}");
                let frame = places.map(|place| bench.value(STACK + place, 4));
                let flags = state.flags as u32 | 2;
                let expected = [
                    u32::from(STACK_SELECTOR),
                    0xabcd_8000,
                    flags,
                    u32::from(CODE_SELECTOR),
                    2,
                ];
                assert_eq!(frame, expected, "{how}");
                // The return loads SP alone, because SS is a 16-bit segment.
                assert_eq!(end.gpr[RSP] & 0xffff, 0x8000, "{how}");
            }
        }
    }
    assert!(fitted > 100 && refused > 100, "{fitted} {refused}");
}

#[test]
fn data_of_16_bit_addresses_goes_on_beyond_64_kib_but_a_far_pointer_s_selector_wraps() {
    for limit in [0xffff, 0x1_0000, 0x1_2345, u32::MAX] {
        let mut bench = Bench::new(Mode::Real);
        for bx in 0xfff8..=0xffff_u32 {
            // The code, the size of each operand, and the offset of the second operand if there is
            // one.
            let cases: [(&[u8], u32, u32); 8] = [
                (&[0x8b, 0x07], 2, 0),       // mov ax, [bx]
                (&[0x66, 0x8b, 0x07], 4, 0), // mov eax, [bx]
                (&[0x66, 0x01, 0x07], 4, 0), // add [bx], eax
                (&[0xc4, 0x07], 2, 2),       // les ax, [bx]
                (&[0x66, 0xc4, 0x07], 4, 2), // les eax, [bx]
                (&[0x0f, 0xb4, 0x07], 2, 2), // lfs ax, [bx]
                (&[0xff, 0x2f], 2, 2),       // jmp far [bx]
                (&[0x66, 0xff, 0x1f], 4, 2), // call far dword [bx]
            ];
            for (code, first, second) in cases {
                let mut state = bench.state.clone();
                state.segment_mut(SegmentRegister::Ds).limit = limit;
                state.gpr[RBX] = u64::from(bx | 0x7777_0000);
                let behind = bx.wrapping_add(first) & 0xffff;
                let holds = |offset: u32, size: u32| {
                    u64::from(offset) + u64::from(size) <= u64::from(limit) + 1
                };
                let fits = holds(bx, first) && (second == 0 || holds(behind, second));
                let jumps = code.contains(&0xff);
                let mut put = Vec::new();
                if jumps {
                    // The transfer leads to the next instruction, in the same segment.
                    let next = (code.len() as u32).to_le_bytes();
                    let selector = ((MAIN >> 4) as u16).to_le_bytes();
                    put.push((DATA + bx, next[..first as usize].to_vec()));
                    put.push((DATA + behind, selector.to_vec()));
                }
                let how = format!("{code:02x?} at {bx:x}, limit {limit:x}");
                let (end, _) = bench.run(code, &state, &put);
                if !fits {
                    assert_eq!(end.gpr[RBP] & 0xffff, 13, "{how}");
                    continue;
                }
                assert_eq!(end.rip, (code.len() + END.len()) as u64, "{how}");
                let bytes = |at: u32, size: u32| {
                    (0..size).fold(0, |sum, it| {
                        sum | u32::from(filling(DATA + at + it)) << (8 * it)
                    })
                };
                if code == [0xc4, 0x07] {
                    let es = u32::from(end.segments[SegmentRegister::Es as usize].selector.0);
                    let expected = (bytes(bx, 2), bytes(behind, 2));
                    assert_eq!((end.gpr[RAX] as u32 & 0xffff, es), expected, "{how}");
                }
                if code == [0x66, 0x8b, 0x07] {
                    assert_eq!(end.gpr[RAX] as u32, bytes(bx, 4), "{how}");
                }
            }
        }
    }
}

#[test]
fn data_of_16_bit_code_faults_exactly_beyond_its_limit() {
    let (mut fitted, mut refused) = (0, 0);
    for wide in [false, true] {
        let mut bench = Bench::new(Mode::Protected { wide });
        for shape in Shape::all() {
            // The code, and the size of its access at [ebx].
            let cases: [(&[u8], u32); 9] = [
                (&[0x8a, 0x03], 1),              // mov al, [ebx]
                (&[0x88, 0x03], 1),              // mov [ebx], al
                (&[0x66, 0x8b, 0x03], 2),        // mov ax, [ebx], or of 32 bits
                (&[0x66, 0x89, 0x03], 2),        // mov [ebx], ax
                (&[0xd7], 1),                    // xlat with AL = 0
                (&[0xf3, 0x0f, 0x6f, 0x03], 16), // movdqu xmm0, [ebx]
                (&[0xdd, 0x03], 8),              // fld qword [ebx]
                (&[0xac], 1),                    // lodsb
                (&[0xaa], 1),                    // stosb
            ];
            for (code, size) in cases {
                let size = match size {
                    2 if !wide => 4,
                    size => size,
                };
                let code = match wide {
                    true => code.to_vec(),
                    false => [&[0x67], code].concat(),
                };
                for offset in shape.pointers() {
                    if !shape.is_in_reach(offset) {
                        continue;
                    }
                    let mut state = bench.state.clone();
                    state.cr4 |= 0x600;
                    let data = shape.segment(DATA, STACK_SELECTOR, 3);
                    for register in [SegmentRegister::Ds, SegmentRegister::Es] {
                        *state.segment_mut(register) = data;
                    }
                    state.gpr[RAX] = 0;
                    for register in [RBX, 6, 7] {
                        state.gpr[register] = u64::from(offset);
                    }
                    let how = format!("{shape:x?}: {code:02x?} at {offset:x}");
                    let (end, _) = bench.run(&code, &state, &[]);
                    if shape.holds(offset, size) {
                        assert_eq!(end.rip, (code.len() + END.len()) as u64, "{how}");
                        fitted += 1;
                    } else {
                        let frame = [0, 4].map(|at| bench.value(INNER_STACK - 24 + at, 4));
                        assert_eq!((end.gpr[RBP], frame), (13, [0, 0]), "{how}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(fitted > 500 && refused > 500, "{fitted} {refused}");
}
