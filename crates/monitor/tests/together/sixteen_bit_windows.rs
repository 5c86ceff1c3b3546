//! Tests 16-bit code with direct memory access, in real mode, in V86 mode and in segments of
//! protected mode: every form of access, at offsets where a region or a segment ends, has the result
//! that it has instruction by instruction, with the same fault.

use crate::support::sixteen_bit::{END, INVALIDATES, Kind, Program, seen};
use tollgate_exits::ExitKind;
use tollgate_test_support::Random;
use tollgate_tlb::shadow_windows::have_place;
use tollgate_x86::{Attributes, Segment, SegmentRegister};

/// Address of the programs, 1000:0000.
const MAIN: u32 = 0x1_0000;

/// Instructions that access memory at or near BX or EBX, with CX as index or count.
const SHAPES: [&[u8]; 26] = [
    &[0x8a, 0x07],                                     // mov al,[bx]
    &[0x8b, 0x07],                                     // mov ax,[bx]
    &[0x89, 0x07],                                     // mov [bx],ax
    &[0x66, 0x89, 0x77, 0x7f],                         // mov [bx+7Fh],esi
    &[0x66, 0x8b, 0x87, 0xff, 0x7f],                   // mov eax,[bx+7FFFh]
    &[0x03, 0x00],                                     // add ax,[bx+si]
    &[0x67, 0x8b, 0x03],                               // mov ax,[ebx]
    &[0x67, 0x8a, 0x43, 0xf0],                         // mov al,[ebx-10h]
    &[0x67, 0x66, 0x89, 0x04, 0x8b],                   // mov [ebx+ecx*4],eax
    &[0x67, 0x89, 0x83, 0, 0, 0xff, 0xff],             // mov [ebx-10000h],ax
    &[0xfe, 0x07],                                     // inc byte [bx]
    &[0x88, 0x27],                                     // mov [bx],ah
    &[0xd3, 0x27],                                     // shl word [bx],cl
    &[0xf0, 0x0f, 0xb1, 0x0f],                         // lock cmpxchg [bx],cx
    &[0x87, 0x07],                                     // xchg [bx],ax
    &[0x0f, 0xab, 0x0f],                               // bts [bx],cx
    &[0xd9, 0x07, 0xdd, 0x5f, 0x08],                   // fld dword [bx]; fstp qword [bx+8]
    &[0x87, 0xe3, 0x50, 0x53],                         // xchg sp,bx; push ax; push bx
    &[0x87, 0xe3, 0x66, 0x58, 0x59],                   // xchg sp,bx; pop eax; pop cx
    &[0x87, 0xe3, 0xff, 0x36, 0, 1, 0x8f, 0x06, 0, 2], // xchg sp,bx; push [100h]; pop [200h]
    &[0x89, 0xdd, 0xc9],                               // mov bp,bx; leave
    &[0x87, 0xe3, 0xe8, 0, 0],                         // xchg sp,bx; call the next instruction
    &[0x87, 0xe3, 0xc3],                               // xchg sp,bx; ret
    &[0xff, 0x17],                                     // call [bx]
    &[0x67, 0xd7],                                     // xlat [ebx]
    &[0x8e, 0x07, 0x26, 0x8a, 0x07],                   // mov es,[bx]; mov al,es:[bx]
];

const KINDS: [Kind; 5] = [
    Kind::Real,
    Kind::Virtual8086,
    Kind::Protected(0),
    Kind::Protected(1),
    Kind::Protected(3),
];

/// Page-table entries in the data segment: for all code, writable and dirty.
const USUAL: u32 = 0x67;
/// Pages of the data segment, 4000:0000, that differ from the others: not dirty, read-only, not
/// present, for the supervisor alone, neither accessed nor dirty, and two that are exchanged.
const PAGES: [(u32, u32); 7] = [
    (0x41, 0x4_1000 | 0x27),
    (0x42, 0x4_2000 | 0x25),
    (0x43, 0),
    (0x44, 0x4_4000 | 0x63),
    (0x45, 0x4_5000 | 0x07),
    (0x46, 0x4_7000 | USUAL),
    (0x47, 0x4_6000 | USUAL),
];

fn program(kind: Kind, code: &[u8]) -> Program {
    let mut program = Program::new(kind);
    program.is_direct = true;
    program.put(MAIN, code);
    program.put(MAIN + code.len() as u32, &END);
    program
}

/// What the programs of a test had in common.
#[derive(Default)]
struct Counts {
    ends: u32,
    faults: u64,
    exceptions: u32,
}

/// Runs a form of access near the end of something, with the segments `data` and `stack`, whose
/// base is that of `selector` in real mode.
fn try_near_an_end(shape: &[u8], program: &mut Program, random: &mut Random, counts: &mut Counts) {
    // The places to which RET and CALL lead.
    program.put(MAIN + 0x101, &END);
    for (first, bytes) in [(0x4_0000, 0x2000), (0x4_f000, 0x1000), (0x9_fff0, 16)] {
        program.put(first, &vec![1; bytes]);
    }
    program.put(0x10_0000, &[1; 0x1_0000]);
    let limit = program.state.segment(SegmentRegister::Ds).limit;
    let end = random.pick(&[
        0,
        0x1000,
        0x2000,
        0x3000,
        0x4000,
        0x5000,
        0x6000,
        0x7000,
        0x8000,
        0xf000,
        0x1_0000,
        i64::from(limit) + 1,
    ]);
    let beside = random.pick(&[0, 1, 2, 3, 4, 7, 8, 0x10, 0x80]);
    let place = match random.one_in(2) {
        true => end + beside,
        false => end - beside,
    };
    let upper = random.pick(&[0, 0, 0x1_0000, 0x8000_0000, 0xffff_0000]);
    program.state.gpr[3] = (place as u32 as u64 & 0xffff_ffff) ^ upper;
    program.state.gpr[1] = random.pick(&[0, 3, 0xffff]);
    program.state.gpr[6] = random.pick(&[0, 1, 0xfff, 0xffff]);
    program.state.gpr[0] = 0x1234;
    if program.stepped_within(2000).is_none() {
        // The program runs for too long, or ends in another way.
        return;
    }
    let vcpu = program.run();
    assert!(shape.len() <= 16);
    counts.ends += 1;
    counts.faults += vcpu.exit_counts().get(ExitKind::WindowFault);
    counts.exceptions += u32::from(seen(&vcpu).is_some());
}

#[test]
fn every_form_of_access_ends_as_it_does_alone() {
    let mut random = Random::new(16);
    for kind in [Kind::Real, Kind::Virtual8086] {
        let mut counts = Counts::default();
        for shape in SHAPES {
            // Segments of data, the code itself, devices, and memory at 1 MiB and above.
            for selector in [0x4000, 0x1000, 0x9fff, 0xa000, 0xffff] {
                for _ in 0..3 {
                    let mut program = program(kind, &[shape, shape].concat());
                    for register in [SegmentRegister::Ds, SegmentRegister::Ss] {
                        *program.state.segment_mut(register) = kind.segment(selector);
                    }
                    try_near_an_end(shape, &mut program, &mut random, &mut counts);
                }
            }
        }
        let Counts {
            ends,
            faults,
            exceptions,
        } = counts;
        assert!(ends > 200 && exceptions > 10, "{ends}, {exceptions}");
        assert!(!have_place() || faults > 100, "{faults}");
    }
}

/// A data segment of protected mode at `base`: one of 64 KiB, or one with another limit, size of
/// the stack pointer or type.
fn any_segment(kind: Kind, base: u64, random: &mut Random) -> Segment {
    let mut segment = kind.segment((base >> 4) as u16);
    segment.limit = random.pick(&[0xffff, 0xffff, 0x1fff, 0x7ffe, 0, 0x1_0005, u32::MAX]);
    let read_only = Attributes::from_bits_retain(2);
    match random.below(8) {
        0 => segment.attributes -= read_only,
        1 => segment.attributes |= Attributes::EXPAND_DOWN_OR_CONFORMING,
        _ => {}
    }
    if random.one_in(4) {
        segment.attributes |= Attributes::DEFAULT_BIG;
    }
    segment
}

#[test]
fn segments_of_protected_mode_and_pages_have_the_limits_that_they_have_alone() {
    let mut random = Random::new(86);
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Real) {
        for paged in [false, true] {
            let mut counts = Counts::default();
            for shape in SHAPES {
                for _ in 0..8 {
                    let mut program = program(kind, &[shape, shape].concat());
                    if paged {
                        program.page(&PAGES);
                        program.state.cr0 |= u64::from(random.one_in(2)) << 16;
                    }
                    let base = random.pick(&[0x4_0000, 0x4_0000, 0x4_0ff0, 0x1_0000, 0x9_fff0]);
                    for register in [SegmentRegister::Ds, SegmentRegister::Ss] {
                        let segment = match kind {
                            Kind::Protected(_) => any_segment(kind, base, &mut random),
                            _ => kind.segment((base >> 4) as u16),
                        };
                        *program.state.segment_mut(register) = segment;
                    }
                    try_near_an_end(shape, &mut program, &mut random, &mut counts);
                }
            }
            let Counts {
                ends,
                faults,
                exceptions,
            } = counts;
            assert!(
                ends > 100 && exceptions > 10,
                "{kind:?}: {ends}, {exceptions}"
            );
            assert!(!have_place() || faults > 50, "{kind:?}: {faults}");
        }
    }
}

#[test]
fn a_loop_over_a_segment_faults_once_for_many_pages() {
    for kind in KINDS {
        for paged in [false, true] {
            // again: inc byte [bx]; inc bx; jnz again
            let mut program = program(kind, &[0xfe, 0x07, 0x43, 0x75, 0xfb]);
            if paged {
                match kind {
                    Kind::Real => continue,
                    _ => program.page(&[]),
                }
            }
            program.state.gpr[3] = 0;
            // 64 KiB would take too long instruction by instruction.
            let (vcpu, _) = program.run_to_stop();
            assert_eq!(vcpu.state().gpr[3], 0);
            if have_place() {
                let faults = vcpu.exit_counts().get(ExitKind::WindowFault);
                assert!((1..=5).contains(&faults), "{kind:?}, {paged}: {faults}");
            }
        }
    }
}

#[test]
fn the_gate_of_address_line_20_moves_what_lies_at_1_mib() {
    for kind in KINDS {
        // mov al,0; out 92h,al; mov word [10h],5678h; mov al,2; out 92h,al; mov bx,[10h]
        // mov al,0; out 92h,al; mov cx,[10h]; mov dx,es:[0]
        let mut program = program(
            kind,
            &[
                0xb0, 0, 0xe6, 0x92, 0xc7, 0x06, 0x10, 0, 0x78, 0x56, 0xb0, 2, 0xe6, 0x92, 0x8b,
                0x1e, 0x10, 0, 0xb0, 0, 0xe6, 0x92, 0x8b, 0x0e, 0x10, 0, 0x26, 0x8b, 0x16, 0, 0,
            ],
        );
        program.put(0x10_0000, &[0x22, 0x11]);
        *program.state.segment_mut(SegmentRegister::Ds) = kind.segment(0xffff);
        *program.state.segment_mut(SegmentRegister::Es) = kind.segment(0);
        let vcpu = program.run();
        let words = [3, 1, 2].map(|register: usize| vcpu.state().gpr[register] & 0xffff);
        assert_eq!(words, [0x1122, 0x5678, 0x5678]);
    }
}

#[test]
fn code_that_is_stored_to_among_its_data_is_seen_as_it_is() {
    for kind in KINDS {
        // again: inc byte [n+2]; mov ax,[data]; inc word [data]; n: add bx,0; loop again
        let mut program = program(
            kind,
            &[
                0xfe, 0x06, 0x0d, 0, 0xa1, 0x40, 0, 0xff, 0x06, 0x40, 0, 0x83, 0xc3, 0, 0xe2, 0xf0,
            ],
        );
        *program.state.segment_mut(SegmentRegister::Ds) = kind.segment(0x1000);
        (program.state.gpr[1], program.state.gpr[3]) = (20, 0);
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[3], (1..=20).sum::<u64>());
        assert_eq!(vcpu.state().gpr[0] & 0xffff, 19);
    }
}

#[test]
fn a_page_that_the_guest_moves_is_seen_where_it_is() {
    for kind in KINDS.into_iter().filter(|kind| kind.level() == 3) {
        // mov ax,[0]; inc word [2]; mov es:[0],cx; int INVALIDATES; mov bx,[0]; inc word [2]
        let code = [
            &[0xa1, 0, 0, 0xff, 0x06, 2, 0, 0x26, 0x89, 0x0e, 0, 0][..],
            &[0xcd, INVALIDATES],
            &[0x8b, 0x1e, 0, 0, 0xff, 0x06, 2, 0],
        ];
        for moved in [0x4_1000 | USUAL, 0x4_1000 | 0x25, 0x4_1000 | 0x63, 0] {
            let mut program = program(kind, &code.concat());
            program.page(&[]);
            program.put(0x4_0000, &[0x11, 0x11, 5, 0]);
            program.put(0x4_1000, &[0x22, 0x22, 7, 0]);
            // The low half of the page-table entry of 4_0000h.
            program.state.segment_mut(SegmentRegister::Es).base = program.entry_of(0x4_0000).into();
            program.state.gpr[1] = moved.into();
            let vcpu = program.run();
            assert_eq!(vcpu.state().gpr[0] & 0xffff, 0x1111);
            assert_eq!(seen(&vcpu), (moved != 0x4_1000 | USUAL).then_some(14));
        }
    }
}
