//! Tests that a debugger's breakpoints stop the guest before their instructions and nowhere else, as
//! often as the instructions are executed, and that the guest's results stay the same.

use crate::relocation::{
    IMAGE, NUMBER, PLACES, check, enter, library, make_space, prepared, switch,
};
use crate::support::long_mode::{Bench, STACK};
use crate::support::sixteen_bit::{END, Kind, Program};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use std::collections::BTreeMap;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{DebugStop, VcpuStop, WatchedAccess, WatchedMemory, code_address};
use tollgate_platform::{BareMachine, Platform, StopRequest};
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::PhysicalAddress;
use tollgate_x86::state::TableRegister;

/// Runs the guest to its end, and executes each instruction at which it stops alone. Returns how often
/// it has stopped at each address.
fn stops<P: Platform>(computer: &mut Computer<P>) -> BTreeMap<u64, u64> {
    let mut stops = BTreeMap::new();
    loop {
        match computer.run() {
            VcpuStop::Requested(StopRequest::Attention) => {}
            _ => return stops,
        }
        let mut stop = None;
        computer.watch(|watched| stop = watched.take_stop());
        assert_eq!(stop, Some(DebugStop::Breakpoint));
        *stops.entry(code_address(computer.state())).or_default() += 1;
        if computer.step_one().is_err() {
            return stops;
        }
    }
}

/// Offsets of the library's instructions that are executed, and how often.
fn executed() -> Vec<(u64, u64)> {
    let mut executed = Vec::new();
    for instruction in Decoder::with_ip(64, library(), 0, DecoderOptions::NONE) {
        let times = match (instruction.mnemonic(), instruction.ip()) {
            // Padding, and what follows the end.
            (Mnemonic::Int3 | Mnemonic::Ud2, _) => continue,
            (Mnemonic::Jmp, _) | (_, ..8 | 0x1100..) => 1,
            // The second page's function is called three times in each of three rounds.
            (_, 0x1000..) => 9,
            _ => 3,
        };
        executed.push((instruction.ip(), times));
    }
    executed
}

fn run_with_stops(computer: &mut Computer<Bench>, space: u64) -> BTreeMap<u64, u64> {
    let linear = PLACES[space as usize];
    switch(computer, space);
    computer.change_state(|cpu| enter(cpu, linear));
    let stops = stops(computer);
    check(computer, space, linear);
    stops
}

#[test]
fn each_instruction_of_a_relocatable_library_stops_at_its_own_place() {
    let mut computer = prepared();
    for (space, linear) in (0..).zip(PLACES) {
        make_space(computer.memory_mut(), space, linear);
    }
    for space in [0, 1, 0] {
        assert!(run_with_stops(&mut computer, space).is_empty());
    }
    for (offset, times) in executed() {
        let address = PLACES[0] + offset;
        computer.watch(|watched| {
            watched.code.insert(address);
        });
        let stops = run_with_stops(&mut computer, 0);
        assert_eq!(stops, BTreeMap::from([(address, times)]), "{offset:x}");
        // The same code elsewhere has no breakpoint.
        assert!(run_with_stops(&mut computer, 1).is_empty(), "{offset:x}");
        computer.watch(|watched| watched.code.clear());
        assert!(run_with_stops(&mut computer, 0).is_empty(), "{offset:x}");
    }
}

#[test]
fn all_instructions_may_have_breakpoints_at_the_same_time() {
    let mut computer = prepared();
    make_space(computer.memory_mut(), 2, PLACES[2]);
    assert!(run_with_stops(&mut computer, 2).is_empty());
    let all: BTreeMap<u64, u64> = (executed().into_iter())
        .map(|(offset, times)| (PLACES[2] + offset, times))
        .collect();
    computer.watch(|watched| watched.code = all.keys().copied().collect());
    assert_eq!(run_with_stops(&mut computer, 2), all);
}

#[test]
fn what_lies_between_two_stops_runs_as_translated_code() {
    let mut computer = prepared();
    make_space(computer.memory_mut(), 0, PLACES[0]);
    run_with_stops(&mut computer, 0);
    let steps = computer.exit_counts().get(ExitKind::SingleStep);
    // Never reached, and at an offset at which no instruction begins.
    computer.watch(|watched| {
        watched.code.insert(PLACES[0] + 0x1001);
    });
    assert!(run_with_stops(&mut computer, 0).is_empty());
    assert_eq!(computer.exit_counts().get(ExitKind::SingleStep), steps);
}

/// Runs the library while memory is watched. Returns the offsets of the instructions that come next
/// after accesses to it.
fn hits(computer: &mut Computer<Bench>, memory: WatchedMemory) -> Vec<u64> {
    computer.watch(|watched| watched.memory = vec![memory]);
    switch(computer, 0);
    computer.change_state(|cpu| enter(cpu, PLACES[0]));
    let mut hits = Vec::new();
    while matches!(computer.run(), VcpuStop::Requested(StopRequest::Attention)) {
        let mut stop = None;
        computer.watch(|watched| stop = watched.take_stop());
        assert_eq!(stop, Some(DebugStop::Accessed(memory)));
        hits.push(computer.state().rip - PLACES[0]);
    }
    computer.watch(|watched| watched.memory.clear());
    check(computer, 0, PLACES[0]);
    hits
}

#[test]
fn accesses_to_watched_memory_stop_after_their_instruction() {
    let mut computer = prepared();
    make_space(computer.memory_mut(), 0, PLACES[0]);
    assert!(run_with_stops(&mut computer, 0).is_empty());
    let next: BTreeMap<Mnemonic, u64> = (Decoder::with_ip(64, library(), 0, DecoderOptions::NONE)
        .into_iter())
    .map(|instruction| (instruction.mnemonic(), instruction.next_ip()))
    .collect();
    let watched = |offset, bytes, access| WatchedMemory {
        address: PLACES[0] + 0x2000 + offset,
        bytes,
        access,
    };
    let steps = computer.exit_counts().get(ExitKind::SingleStep);
    // The number is read once in each round, and by each call of the second page's function.
    for access in [WatchedAccess::Read, WatchedAccess::Any] {
        let hits = hits(&mut computer, watched(NUMBER + 7, 1, access));
        let added = next[&Mnemonic::Add];
        assert_eq!(hits.iter().filter(|&&it| it == added).count(), 9);
        assert_eq!(hits.len(), 12, "{hits:x?}");
    }
    let stored = hits(&mut computer, watched(IMAGE, 4, WatchedAccess::Write));
    assert_eq!(stored, [next[&Mnemonic::Fnstenv]; 3]);
    for missed in [
        watched(NUMBER, 8, WatchedAccess::Write),
        watched(IMAGE, 28, WatchedAccess::Read),
        watched(NUMBER + 8, 8, WatchedAccess::Any),
    ] {
        assert_eq!(hits(&mut computer, missed), []);
    }
    // The stack of the last call.
    let pushed = WatchedMemory {
        address: STACK - 8,
        bytes: 1,
        access: WatchedAccess::Write,
    };
    assert_eq!(hits(&mut computer, pushed).len(), 13);
    // All other instructions have run as translated code.
    assert_eq!(computer.exit_counts().get(ExitKind::SingleStep), steps);
}

#[test]
fn code_of_sixteen_bits_stops_at_linear_addresses() {
    /// Address of the program, 1000:0000.
    const MAIN: u32 = 0x1_0000;
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: mov ax, ss; mov ss, ax; push bx; pop bx; call 0200; dec si; jnz again
        program.put(
            MAIN,
            &[
                0x8c, 0xd0, 0x8e, 0xd0, 0x53, 0x5b, 0xe8, 0xf7, 0x01, 0x4e, 0x75, 0xf4,
            ],
        );
        program.put(MAIN + 12, &END);
        program.put(MAIN + 0x200, &[0x43, 0xc3]); // inc bx; ret
        program.state.gpr[3] = 0;
        program.state.gpr[6] = 300;
        for (at, times) in [(0u32, 300), (4, 300), (5, 300), (0x200, 300), (0x201, 300)] {
            let mut computer = program.vcpu();
            let address = u64::from(MAIN + at);
            computer.watch(|watched| {
                watched.code.insert(address);
            });
            let stops = stops(&mut computer);
            assert_eq!(stops, BTreeMap::from([(address, times)]), "{kind:?} {at:x}");
            assert_eq!(computer.state().gpr[3], 300, "{kind:?}");
        }
    }
}

/// A machine that stops when the guest writes to a port.
#[derive(Default)]
struct Ending(Option<StopRequest>);

impl BareMachine for Ending {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, _port: u16, _size: u8, value: u32) {
        self.0 = Some(StopRequest::DebugExit(value as u8));
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn memory_write(&mut self, _address: PhysicalAddress, _data: &[u8]) {}
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.0.take()
    }
}

#[test]
fn code_that_the_guest_must_bring_into_memory_stops_once() {
    const DIRECTORY: u64 = 0x1000;
    const TABLE: u64 = 0x2000;
    const GDT: u64 = 0x3000;
    const IDT: u64 = 0x4000;
    const HANDLER: u32 = 0x5000;
    const CODE: u32 = 0x1_0000;
    /// Two pages that are not present at the start.
    const ABSENT: u32 = 0x3_0000;
    let mut memory = GuestMemory::new(4 << 20).unwrap();
    let mut put =
        |address: u64, bytes: &[u8]| assert!(memory.write(PhysicalAddress(address), bytes));
    put(DIRECTORY, &(TABLE as u32 | 3).to_le_bytes());
    for page in 0..1024u32 {
        let is_there = !(ABSENT >> 12..(ABSENT >> 12) + 2).contains(&page);
        let entry = page << 12 | 2 | u32::from(is_there);
        put(TABLE + u64::from(page) * 4, &entry.to_le_bytes());
    }
    put(GDT + 0x10, &[0xff, 0xff, 0, 0, 0, 0x9b, 0xcf, 0]);
    put(IDT + 14 * 8, &(0x0010_0000 | HANDLER).to_le_bytes());
    put(IDT + 14 * 8 + 4, &0x8e00u32.to_le_bytes());
    // push eax; mov eax, cr2; shr eax, 12; or dword ptr [eax * 4 + TABLE], 1; pop eax; inc ebx;
    // add esp, 4; iretd
    let mut handler = vec![0x50, 0x0f, 0x20, 0xd0, 0xc1, 0xe8, 12, 0x83, 0x0c, 0x85];
    handler.extend((TABLE as u32).to_le_bytes());
    handler.extend([1, 0x58, 0x43, 0x83, 0xc4, 4, 0xcf]);
    put(HANDLER.into(), &handler);
    // call ABSENT + 800h; out 0, al
    let mut code = vec![0xe8];
    code.extend((ABSENT + 0x800 - (CODE + 5)).to_le_bytes());
    code.extend([0xe6, 0]);
    put(CODE.into(), &code);
    // inc esi; jmp ABSENT + 0ffeh
    put((ABSENT + 0x800).into(), &[0x46, 0xe9, 0xf8, 7, 0, 0]);
    // mov edx, 12345678h, across the pages; inc esi; ret
    put(
        (ABSENT + 0xffe).into(),
        &[0xba, 0x78, 0x56, 0x34, 0x12, 0x46, 0xc3],
    );
    let mut state = flat_state(CODE.into());
    state.cr0 = 0x8000_0021;
    state.cr3 = DIRECTORY;
    state.gdtr = TableRegister {
        base: GDT,
        limit: 0x1f,
    };
    state.idtr = TableRegister {
        base: IDT,
        limit: 0x7f,
    };
    state.gpr[3] = 0;
    state.gpr[4] = 0x2_0000;
    state.gpr[6] = 0;
    let mut computer = Computer::new(state, memory, Ending::default(), 1 << 20, true).unwrap();
    let places = [0x800, 0xffe, 0x1003].map(|offset| u64::from(ABSENT + offset));
    computer.watch(|watched| watched.code.extend(places));
    assert_eq!(
        stops(&mut computer),
        BTreeMap::from(places.map(|place| (place, 1)))
    );
    let [ebx, edx, esi] = [3, 2, 6].map(|register: usize| computer.state().gpr[register]);
    assert_eq!((ebx, edx, esi), (2, 0x1234_5678, 2));
}
