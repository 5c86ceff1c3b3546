//! Tests random programs that write to their own code: with all data about code that is remembered,
//! they must have the results that they have when each instruction is translated again.

use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_engine::stored::StoredTranslations;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::{Computer, Random, flat_state};
use tollgate_x86::{CpuState, PhysicalAddress, Segment, SegmentRegister};

/// The vector of the one interrupt that a machine may raise.
const VECTOR: u8 = 0x20;

/// A machine that stops when the guest writes to a port.
#[derive(Default)]
struct Bench {
    stop: Option<StopRequest>,
    interrupt: bool,
}

impl BareMachine for Bench {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0
    }
    fn port_write(&mut self, _port: u16, _size: u8, value: u32) {
        self.stop = Some(StopRequest::DebugExit(value as u8));
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        data.fill(0);
    }
    fn interrupt_pending(&mut self) -> bool {
        self.interrupt
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        std::mem::take(&mut self.interrupt).then_some(VECTOR)
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

/// Address of the main loop, which is at the end of a page so that the routines are on the next.
const MAIN: u32 = 0x1_0f00;
const ROUTINES: u32 = 0x1_1000;
/// Size of a slot, which has one instruction and NOPs.
const SLOT: u32 = 12;
const MAIN_SLOTS: u32 = 20;
const ROUTINE_SLOTS: u32 = 3;
const ROUTINE_BYTES: u32 = ROUTINE_SLOTS * SLOT + 1;
const ROUNDS: u32 = 40;

/// Instructions on EAX and an immediate doubleword, whose opcodes may replace each other.
const ON_EAX: [u8; 6] = [0x05, 0x0d, 0x25, 0x2d, 0x35, 0xb8];
/// INC and DEC of EDX, EBX, EBP and ESI.
const SHORT: [u8; 8] = [0x42, 0x43, 0x45, 0x46, 0x4a, 0x4b, 0x4d, 0x4e];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    OnEax,
    Short,
    Other,
}

struct Program {
    bytes: Vec<u8>,
    /// The address and the kind of each slot.
    slots: Vec<(u32, Kind)>,
    routines: u32,
}

impl Program {
    fn random(random: &mut Random) -> Self {
        let routines = 1 + random.below(5) as u32;
        let mut program = Program {
            bytes: vec![0x90; 0x1000],
            slots: Vec::new(),
            routines,
        };
        // The slots that can be written to come first, so that their addresses are known.
        let main: Vec<_> = (0..MAIN_SLOTS)
            .map(|slot| (MAIN + 5 + slot * SLOT, random.below(3)))
            .collect();
        let routine_slots = (0..routines).flat_map(|routine| {
            let start = ROUTINES + routine * ROUTINE_BYTES;
            (0..ROUTINE_SLOTS).map(move |slot| start + slot * SLOT)
        });
        let all: Vec<_> = routine_slots
            .map(|at| (at, random.below(2)))
            .chain(main)
            .collect();
        for &(at, kind) in &all {
            let kind = [Kind::OnEax, Kind::Short, Kind::Other][kind];
            program.slots.push((at, kind));
        }
        program.put(MAIN, &[0xb9, ROUNDS as u8, 0, 0, 0]);
        for (at, kind) in program.slots.clone() {
            let code = match kind {
                Kind::OnEax => {
                    let mut code = vec![random.pick(&ON_EAX)];
                    code.extend_from_slice(&random.next_u32().to_le_bytes());
                    code
                }
                Kind::Short => vec![random.pick(&SHORT)],
                Kind::Other => program.store_or_call(at, random),
            };
            program.put(at, &code);
        }
        for routine in 0..routines {
            program.put(ROUTINES + (routine + 1) * ROUTINE_BYTES - 1, &[0xc3]);
        }
        let end = MAIN + 5 + MAIN_SLOTS * SLOT;
        let back = (MAIN + 5).wrapping_sub(end + 7);
        program.put(end, &[0x49, 0x0f, 0x85]); // dec ecx; jnz
        program.put(end + 3, &back.to_le_bytes());
        program.put(end + 7, &[0xe6, 0xf4]); // out 0xf4, al
        program
    }

    fn put(&mut self, at: u32, code: &[u8]) {
        let at = (at - MAIN) as usize;
        self.bytes[at..at + code.len()].copy_from_slice(code);
    }

    fn store_or_call(&self, at: u32, random: &mut Random) -> Vec<u8> {
        let of = |kind: Kind| -> Vec<u32> {
            let slots = self.slots.iter().filter(|slot| slot.1 == kind);
            slots.map(|slot| slot.0).collect()
        };
        let (on_eax, short) = (of(Kind::OnEax), of(Kind::Short));
        let with_address =
            |code: &[u8], address: u32, rest: &[u8]| [code, &address.to_le_bytes(), rest].concat();
        let starts: Vec<_> = on_eax
            .iter()
            .copied()
            .filter(|&at| at > ROUTINES && (at - ROUTINES).is_multiple_of(ROUTINE_BYTES))
            .collect();
        match random.below(11) {
            0 if !on_eax.is_empty() => {
                // mov [immediate], eax
                with_address(&[0xa3], random.pick(&on_eax) + 1, &[])
            }
            1 if !on_eax.is_empty() => {
                // mov byte [opcode], another
                let opcode = random.pick(&ON_EAX);
                with_address(&[0xc6, 0x05], random.pick(&on_eax), &[opcode])
            }
            2 if !on_eax.is_empty() => {
                // inc byte [immediate]
                let byte = random.pick(&on_eax) + 1 + random.below(4) as u32;
                with_address(&[0xfe, 0x05], byte, &[])
            }
            3 if !short.is_empty() => {
                // xor byte [opcode], 8: INC becomes DEC and the reverse
                with_address(&[0x80, 0x35], random.pick(&short), &[8])
            }
            4 if !short.is_empty() => {
                // mov byte [opcode], another
                let opcode = random.pick(&SHORT);
                with_address(&[0xc6, 0x05], random.pick(&short), &[opcode])
            }
            5 if !on_eax.is_empty() => {
                // mov edi, immediate; stosd
                with_address(&[0xbf], random.pick(&on_eax) + 1, &[0xab])
            }
            6 if !starts.is_empty() => {
                // mov dword [start - 1], RET and the beginning of another instruction
                let code = [0xc3, random.pick(&ON_EAX), 1, 2];
                with_address(&[0xc7, 0x05], random.pick(&starts) - 1, &code)
            }
            7 => {
                // xchg with a data word that lies among the routines' lines
                let beside = ROUTINES + self.routines * ROUTINE_BYTES + random.below(8) as u32;
                with_address(&[0x87, 0x05], beside, &[])
            }
            _ => {
                let target = ROUTINES + random.next_u32() % self.routines * ROUTINE_BYTES;
                with_address(&[0xe8], target.wrapping_sub(at + 5), &[])
            }
        }
    }
}

fn vcpu(program: &Program, map: &'static RegisterMap) -> Computer<Bench> {
    let mut state = flat_state(u64::from(MAIN));
    state.gpr[4] = 0x8000;
    let mut memory = GuestMemory::new(1 << 20).unwrap();
    memory.write(PhysicalAddress(u64::from(MAIN)), &program.bytes);
    let mut vcpu = Computer::new(state, memory, Bench::default(), 1 << 20, true).unwrap();
    vcpu.set_register_map(map);
    vcpu
}

/// Registers and the program's bytes at its end.
fn result(vcpu: &mut Computer<Bench>) -> ([u64; 8], Vec<u8>) {
    let mut bytes = vec![0; 0x1000];
    vcpu.memory_mut()
        .read(PhysicalAddress(u64::from(MAIN)), &mut bytes);
    let registers = vcpu.state().gpr[..8].try_into().unwrap();
    (registers, bytes)
}

fn run(program: &Program, map: &'static RegisterMap) -> ([u64; 8], Vec<u8>) {
    let mut vcpu = vcpu(program, map);
    let stop = vcpu.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}"
    );
    result(&mut vcpu)
}

/// Runs a program with nothing remembered from one instruction to the next.
fn run_without_memory(program: &Program) -> ([u64; 8], Vec<u8>) {
    let mut vcpu = vcpu(program, &RegisterMap::LEGACY);
    loop {
        vcpu.set_register_map(&RegisterMap::LEGACY);
        match vcpu.step_one() {
            Ok(()) => {}
            Err(VcpuStop::Requested(StopRequest::DebugExit(_))) => return result(&mut vcpu),
            Err(stop) => panic!("{stop:?}"),
        }
    }
}

#[test]
fn programs_that_write_their_code_run_what_they_have_written() {
    let programs = std::env::var("TOLLGATE_RANDOM_PROGRAMS")
        .map_or(60, |count| count.parse().expect("a number"));
    for seed in 1..=programs {
        let mut random = Random::new(seed);
        let program = Program::random(&mut random);
        let expected = run_without_memory(&program);
        for map in [&RegisterMap::LEGACY, &RegisterMap::SPILLED] {
            let found = run(&program, map);
            assert_eq!(
                found.0, expected.0,
                "registers, program {seed}, {}",
                map.name
            );
            assert!(
                found.1 == expected.1,
                "memory, program {seed}, {}",
                map.name
            );
        }
    }
}

/// The translations of one run are used in the next, at whose beginning other code is in memory than
/// at the end of the first.
#[test]
fn stored_translations_run_only_where_their_code_is_in_memory() {
    let mut taken = 0;
    for seed in 1..=60 {
        let program = Program::random(&mut Random::new(seed));
        for map in [&RegisterMap::LEGACY, &RegisterMap::SPILLED] {
            let mut first = vcpu(&program, map);
            first.run();
            let expected = result(&mut first);
            let stored = first.store_translations(seed, None).expect("there is room");
            let mut second = vcpu(&program, map);
            let stored = StoredTranslations::open(Box::new(stored), seed, None).unwrap();
            assert!(second.use_stored_translations(stored));
            second.run();
            assert!(result(&mut second) == expected, "{seed}, {}", map.name);
            taken += second.counts().engine.brought;
            // What was taken and what was made since then can be stored again.
            let again = second
                .store_translations(seed, None)
                .expect("there is room");
            let again = StoredTranslations::open(Box::new(again), seed, None).unwrap();
            let mut third = vcpu(&program, map);
            assert!(third.use_stored_translations(again));
            third.run();
            assert!(result(&mut third) == expected, "{seed}, {}", map.name);
        }
    }
    assert!(taken > 100, "{taken} blocks were taken");
}

/// A fixed program, with the type of a random one.
fn fixed(code: &[u8]) -> Program {
    let mut bytes = vec![0x90; 0x1000];
    bytes[..code.len()].copy_from_slice(code);
    Program {
        bytes,
        slots: Vec::new(),
        routines: 0,
    }
}

#[test]
fn a_request_to_leave_during_a_store_beside_code_loses_and_repeats_nothing() {
    const STORES: u32 = 2_000_000;
    // mov ecx, STORES; mov ebx, MAIN + 80h; l: inc dword [ebx]; add [ebx+4], ecx
    // adc dword [ebx+8], 0; dec ecx; jnz l; out 0xf4, al
    let mut code = vec![0xb9];
    code.extend_from_slice(&STORES.to_le_bytes());
    code.push(0xbb);
    code.extend_from_slice(&(MAIN + 0x80).to_le_bytes());
    code.extend_from_slice(&[
        0xff, 3, 0x01, 0x4b, 4, 0x83, 0x53, 8, 0, 0x49, 0x75, 0xf4, 0xe6, 0xf4,
    ]);
    let mut program = fixed(&code);
    program.bytes[0x80..0x8c].fill(0);
    let mut vcpu = vcpu(&program, &RegisterMap::LEGACY);
    let stop = vcpu.run_beside(|kick| {
        kick.kick();
        std::thread::sleep(std::time::Duration::from_micros(20));
    });
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}"
    );
    let counts = vcpu.exit_counts();
    assert_eq!(counts.get(ExitKind::CodeWrite), 0);
    assert!(counts.get(ExitKind::Interrupted) > 0);
    let bytes = result(&mut vcpu).1;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let sum = u64::from(STORES) * u64::from(STORES + 1) / 2;
    assert_eq!(word(0x80), STORES);
    assert_eq!(u64::from(word(0x84)) | u64::from(word(0x88)) << 32, sum);
}

/// Runs real-mode code at 8000h, with a waiting interrupt whose handler is IRET.
fn run_interrupted(code: &[u8]) -> Computer<Bench> {
    let mut state = CpuState::at_reset();
    state.rip = 0x8000;
    *state.segment_mut(SegmentRegister::Cs) = Segment::real_mode(0, 0);
    state.gpr[4] = 0x7000;
    let mut memory = GuestMemory::new(1 << 20).unwrap();
    memory.write(PhysicalAddress(0x8000), code);
    memory.write_u32(PhysicalAddress(u64::from(VECTOR) * 4), 0x9000);
    memory.write(PhysicalAddress(0x9000), &[0xcf]);
    let bench = Bench {
        interrupt: true,
        ..Bench::default()
    };
    let mut vcpu = Computer::new(state, memory, bench, 1 << 20, true).unwrap();
    let stop = vcpu.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}"
    );
    assert!(!vcpu.platform().interrupt);
    vcpu
}

#[test]
fn a_store_beside_its_own_code_completes_in_the_shadow_of_sti() {
    // sti; inc byte [8020h]; out 0xf4, al
    let mut vcpu = run_interrupted(&[0xfb, 0xfe, 0x06, 0x20, 0x80, 0xe6, 0xf4]);
    let mut byte = [0];
    vcpu.memory_mut().read(PhysicalAddress(0x8020), &mut byte);
    assert_eq!(byte, [1]);
}

#[test]
fn a_store_into_the_next_instruction_completes_in_the_shadow_of_sti() {
    // sti; inc byte [8006h]; mov al, 7; out 0xf4, al
    let vcpu = run_interrupted(&[0xfb, 0xfe, 0x06, 0x06, 0x80, 0xb0, 7, 0xe6, 0xf4]);
    assert_eq!(vcpu.state().gpr[0] & 0xff, 8);
}

#[test]
fn a_store_into_its_own_bytes_takes_effect_the_next_time() {
    // mov cx, 2; l: add byte [8007h], 5; loop l; out 0xf4, al: the second adds 10
    let mut vcpu = run_interrupted(&[
        0xb9, 2, 0, 0x80, 0x06, 0x07, 0x80, 5, 0xe2, 0xf9, 0xfb, 0x90, 0xe6, 0xf4,
    ]);
    let mut byte = [0];
    vcpu.memory_mut().read(PhysicalAddress(0x8007), &mut byte);
    assert_eq!(byte, [20]);
}

#[test]
fn code_that_is_generated_anew_at_the_same_place_runs_with_its_new_operands() {
    const GENERATIONS: u8 = 6;
    const INSTRUCTIONS: u32 = 256;
    // Blocks of 64 instructions with 5 bytes each begin and end at line boundaries.
    let end = ROUTINES + 5 * INSTRUCTIONS;
    // outer: mov edi, ROUTINES; inner: mov [edi+1], edx; mov byte [edi], 5 (add eax, imm32)
    let mut code = vec![0xbf];
    code.extend_from_slice(&ROUTINES.to_le_bytes());
    code.extend_from_slice(&[0x89, 0x57, 1, 0xc6, 0x07, 0x05]);
    // add edi, 5; inc edx; cmp edi, end; jne inner; mov byte [edi], 0xc3 (ret)
    code.extend_from_slice(&[0x83, 0xc7, 5, 0x42, 0x81, 0xff]);
    code.extend_from_slice(&end.to_le_bytes());
    code.extend_from_slice(&[0x75, 0xee, 0xc6, 0x07, 0xc3]);
    // xor eax, eax; call ROUTINES; add esi, eax; inc ebp; cmp ebp, GENERATIONS; jne outer
    code.extend_from_slice(&[0x31, 0xc0, 0xe8]);
    let behind_call = MAIN + code.len() as u32 + 4;
    code.extend_from_slice(&ROUTINES.wrapping_sub(behind_call).to_le_bytes());
    code.extend_from_slice(&[0x01, 0xc6, 0x45, 0x83, 0xfd, GENERATIONS, 0x75]);
    code.push((code.len() as u8 + 1).wrapping_neg());
    // out 0xf4, al
    code.extend_from_slice(&[0xe6, 0xf4]);
    let (registers, _) = run(&fixed(&code), &RegisterMap::LEGACY);
    let sum = (0..INSTRUCTIONS * u32::from(GENERATIONS)).fold(0, u32::wrapping_add);
    assert_eq!(registers[6], u64::from(sum));
}
