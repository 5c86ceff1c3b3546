//! Tests real-mode code with direct memory access: every form of access, at offsets where a region
//! ends, has the result that it has instruction by instruction.

use crate::support::sixteen_bit::{END, Kind, Program, seen};
use tollgate_exits::ExitKind;
use tollgate_test_support::Random;
use tollgate_tlb::shadow_windows::have_place;
use tollgate_x86::{Segment, SegmentRegister};

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

fn program(code: &[u8]) -> Program {
    let mut program = Program::new(Kind::Real);
    program.is_direct = true;
    program.put(MAIN, code);
    program.put(MAIN + code.len() as u32, &END);
    program
}

#[test]
fn every_form_of_access_ends_as_it_does_alone() {
    let mut random = Random::new(16);
    let (mut ends, mut faults, mut exceptions) = (0, 0, 0);
    for shape in SHAPES {
        // Segments of data, the code itself, devices, and memory at 1 MiB and above.
        for selector in [0x4000, 0x1000, 0x9fff, 0xa000, 0xffff] {
            for _ in 0..3 {
                let code = [shape, shape].concat();
                let mut program = program(&code);
                // The places to which RET and CALL lead.
                program.put(MAIN + 0x101, &END);
                for (first, bytes) in [(0x4_0000, 0x2000), (0x4_f000, 0x1000), (0x9_fff0, 16)] {
                    program.put(first, &vec![1; bytes]);
                }
                program.put(0x10_0000, &[1; 0x1_0000]);
                for register in [SegmentRegister::Ds, SegmentRegister::Ss] {
                    *program.state.segment_mut(register) = Segment::real_mode(selector, 0);
                }
                let end = random.pick(&[0, 0x1000, 0xf000, 0x1_0000]);
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
                    continue;
                }
                let vcpu = program.run();
                ends += 1;
                faults += vcpu.exit_counts().get(ExitKind::WindowFault);
                exceptions += u32::from(seen(&vcpu).is_some());
            }
        }
    }
    assert!(ends > 200 && exceptions > 10, "{ends}, {exceptions}");
    assert!(!have_place() || faults > 100, "{faults}");
}

#[test]
fn a_loop_over_a_segment_faults_once_for_many_pages() {
    // again: inc byte [bx]; inc bx; jnz again
    let mut program = program(&[0xfe, 0x07, 0x43, 0x75, 0xfb]);
    program.state.gpr[3] = 0;
    // 64 KiB would take too long instruction by instruction.
    let (vcpu, _) = program.run_to_stop();
    assert_eq!(vcpu.state().gpr[3], 0);
    if have_place() {
        let faults = vcpu.exit_counts().get(ExitKind::WindowFault);
        assert!((1..=4).contains(&faults), "{faults}");
    }
}

#[test]
fn the_gate_of_address_line_20_moves_what_lies_at_1_mib() {
    // mov al,0; out 92h,al; mov word [10h],5678h; mov al,2; out 92h,al; mov bx,[10h]
    // mov al,0; out 92h,al; mov cx,[10h]; mov dx,es:[0]
    let mut program = program(&[
        0xb0, 0, 0xe6, 0x92, 0xc7, 0x06, 0x10, 0, 0x78, 0x56, 0xb0, 2, 0xe6, 0x92, 0x8b, 0x1e,
        0x10, 0, 0xb0, 0, 0xe6, 0x92, 0x8b, 0x0e, 0x10, 0, 0x26, 0x8b, 0x16, 0, 0,
    ]);
    program.put(0x10_0000, &[0x22, 0x11]);
    *program.state.segment_mut(SegmentRegister::Ds) = Segment::real_mode(0xffff, 0);
    *program.state.segment_mut(SegmentRegister::Es) = Segment::real_mode(0, 0);
    let vcpu = program.run();
    let words = [3, 1, 2].map(|register: usize| vcpu.state().gpr[register] & 0xffff);
    assert_eq!(words, [0x1122, 0x5678, 0x5678]);
}

#[test]
fn code_that_is_stored_to_among_its_data_is_seen_as_it_is() {
    // again: inc byte [n+2]; mov ax,[data]; inc word [data]; n: add bx,0; loop again
    let mut program = program(&[
        0xfe, 0x06, 0x0d, 0, 0xa1, 0x40, 0, 0xff, 0x06, 0x40, 0, 0x83, 0xc3, 0, 0xe2, 0xf0,
    ]);
    *program.state.segment_mut(SegmentRegister::Ds) = Segment::real_mode(0x1000, 0);
    (program.state.gpr[1], program.state.gpr[3]) = (20, 0);
    let vcpu = program.run();
    assert_eq!(vcpu.state().gpr[3], (1..=20).sum::<u64>());
    assert_eq!(vcpu.state().gpr[0] & 0xffff, 19);
}
