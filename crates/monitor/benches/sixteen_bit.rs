//! Compares the speed of loops in 16-bit real mode, 16-bit V86 mode and 32-bit flat code.
//!
//! Runs are short and take turns. For each loop the program prints nanoseconds per round (the
//! median of all runs), and the ratio to 32-bit code. Loops of far transfers and segment loads,
//! which 32-bit flat code does not have, are compared with near calls.

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/together/support/sixteen_bit.rs"]
mod sixteen_bit;

use sixteen_bit::{END, Kind, Machine, Program};
use std::time::Instant;
use tollgate_memory::GuestMemory;
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::PhysicalAddress;

/// Number of runs of each loop in each mode.
const RUNS: usize = 15;
/// Address of the code in all modes.
const MAIN: u32 = 0x1_0000;

/// A loop: the bytes of one round for 16-bit and for 32-bit code, and the number of rounds of a
/// run.
struct Loop {
    name: &'static str,
    narrow: Vec<u8>,
    wide: Vec<u8>,
    rounds: u32,
}

fn loops() -> Vec<Loop> {
    let of = |name, rounds, narrow: &[&[u8]], wide: &[&[u8]]| Loop {
        name,
        narrow: narrow.concat(),
        wide: wide.concat(),
        rounds,
    };
    vec![
        of(
            "bytes",
            100_000,
            // mov al, [si+5]; mov es:[di+7], al; add al, [bx+si]; mov [bx+3], al
            &[
                &[0x8a, 0x44, 5],
                &[0x26, 0x88, 0x45, 7],
                &[0x02, 0x00],
                &[0x88, 0x47, 3],
            ],
            &[
                &[0x8a, 0x46, 5],
                &[0x26, 0x88, 0x47, 7],
                &[0x02, 0x04, 0x33],
                &[0x88, 0x43, 3],
            ],
        ),
        of(
            "words",
            100_000,
            // mov ax, [si+4]; add ax, [bx+di]; mov es:[di+8], ax; inc word [bx]; xor dx, ax
            &[
                &[0x8b, 0x44, 4],
                &[0x03, 0x01],
                &[0x26, 0x89, 0x45, 8],
                &[0xff, 0x07],
                &[0x31, 0xc2],
            ],
            &[
                &[0x8b, 0x46, 4],
                &[0x03, 0x04, 0x3b],
                &[0x26, 0x89, 0x47, 8],
                &[0xff, 0x03],
                &[0x31, 0xc2],
            ],
        ),
        of(
            "stack and near calls",
            50_000,
            // call over; push ax; push dx; pop bx; pop bx; jmp on; over: push bp; pop bp; ret; on:
            &[
                &[0xe8, 6, 0],
                &[0x50, 0x52, 0x5b, 0x5b, 0xeb, 3],
                &[0x55, 0x5d, 0xc3],
            ],
            &[
                &[0xe8, 6, 0, 0, 0],
                &[0x50, 0x52, 0x5b, 0x5b, 0xeb, 3],
                &[0x55, 0x5d, 0xc3],
            ],
        ),
        of(
            "single string instructions",
            100_000,
            // mov si, 100; mov di, 200; lodsw; stosw; movsw; movsb
            &[&[0xbe, 0, 1, 0xbf, 0, 2], &[0xad, 0xab, 0xa5, 0xa4]],
            &[
                &[0xbe, 0, 1, 4, 0, 0xbf, 0, 2, 4, 0],
                &[0xad, 0xab, 0xa5, 0xa4],
            ],
        ),
        of(
            "short repeated stores",
            5_000,
            // push cx; mov di, 200; mov cx, 8; rep stosw; pop cx
            &[&[0x51, 0xbf, 0, 2, 0xb9, 8, 0, 0xf3, 0xab, 0x59]],
            &[&[0x51, 0xbf, 0, 2, 4, 0, 0xb9, 8, 0, 0, 0, 0xf3, 0xab, 0x59]],
        ),
        of(
            "patched operand",
            2_000,
            // inc byte [patched], through CS in 16-bit code; patched: mov dl, n (at 40h)
            &[
                &[0x2e, 0xfe, 0x06, 0x41, 0, 0xeb, 0x39],
                &[0x90; 0x39],
                &[0xb2, 0],
            ],
            &[
                &[0x90, 0xfe, 0x05, 0x41, 0, 1, 0, 0xeb, 0x37],
                &[0x90; 0x37],
                &[0xb2, 0],
            ],
        ),
        of(
            "far calls (near in 32-bit code)",
            50_000,
            // call 1000:over; jmp on; over: retf; on:
            &[&[0x9a, 7, 0, 0, 0x10, 0xeb, 1, 0xcb]],
            &[&[0xe8, 2, 0, 0, 0, 0xeb, 1, 0xc3]],
        ),
        of(
            "segment loads (stack moves in 32-bit code)",
            50_000,
            // push ds; pop es; mov ax, es; mov es, ax
            &[&[0x1e, 0x07, 0x8c, 0xc0, 0x8e, 0xc0]],
            &[&[0x52, 0x58, 0x89, 0xc2, 0x89, 0xd0]],
        ),
    ]
}

/// Adds the end of the loop: dec cx; jnz; out. Both 16-bit and 32-bit code begin a page.
fn with_end(round: &[u8], wide: bool) -> Vec<u8> {
    let mut code = round.to_vec();
    code.push(0x49);
    if wide {
        code.extend([0x0f, 0x85]);
        let back = -(code.len() as i32 + 4);
        code.extend(back.to_le_bytes());
    } else {
        code.extend([0x0f, 0x85]);
        let back = -(code.len() as i16 + 2);
        code.extend(back.to_le_bytes());
    }
    code.extend(END);
    code
}

fn sixteen(kind: Kind, of: &Loop) -> Computer<Machine> {
    let mut program = Program::new(kind);
    program.put(MAIN, &with_end(&of.narrow, false));
    let registers = &mut program.state.gpr;
    registers[1] = 60_000;
    (registers[3], registers[6], registers[7]) = (0x300, 0x400, 0x500);
    program.vcpu()
}

fn flat(of: &Loop) -> Computer<Machine> {
    let mut state = flat_state(MAIN.into());
    let registers = &mut state.gpr;
    registers[1] = 60_000;
    (registers[3], registers[6], registers[7]) = (0x300, 0x4_0400, 0x4_0500);
    registers[4] = 0x5_0800;
    let mut memory = GuestMemory::new(2 << 20).expect("memory");
    memory.write(PhysicalAddress(MAIN.into()), &with_end(&of.wide, true));
    Computer::new(state, memory, Machine::default(), 1 << 20, false).expect("a vCPU")
}

/// Runs a loop once, and returns nanoseconds per round.
fn time(vcpu: &mut Computer<Machine>, of: &Loop) -> f64 {
    let mut left = of.rounds;
    let mut spent = 0.0;
    while left != 0 {
        let rounds = left.min(60_000);
        left -= rounds;
        vcpu.platform_mut().ended = false;
        vcpu.change_state(|cpu| {
            cpu.rip = if cpu.segments[1].base == 0 {
                MAIN.into()
            } else {
                0
            };
            cpu.gpr[1] = rounds.into();
        });
        let start = Instant::now();
        vcpu.run();
        spent += start.elapsed().as_nanos() as f64;
        assert!(vcpu.platform().ended, "{}: {}", of.name, vcpu.dump());
    }
    spent / f64::from(of.rounds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    println!(
        "{:<44}{:>8}{:>16}{:>16}",
        "", "32-bit", "real mode", "V86 mode"
    );
    for of in loops() {
        let mut vcpus = [
            flat(&of),
            sixteen(Kind::Real, &of),
            sixteen(Kind::Virtual8086, &of),
        ];
        let mut times = [const { Vec::new() }; 3];
        for run in 0..=RUNS {
            for (vcpu, times) in vcpus.iter_mut().zip(&mut times) {
                let spent = time(vcpu, &of);
                // The first run translates the code, so it does not count.
                if run != 0 {
                    times.push(spent);
                }
            }
        }
        let [wide, real, virtual_8086] = times.map(median);
        println!(
            "{:<44}{wide:>8.1}{real:>8.1}{:>7.2}x{virtual_8086:>8.1}{:>7.2}x",
            of.name,
            real / wide,
            virtual_8086 / wide
        );
    }
}
