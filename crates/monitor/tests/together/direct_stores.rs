//! Tests instructions that store to pages whose shadow window allows only loads, or does not allow
//! stores yet, or never will: however far they have come when the host faults, they have the result
//! that they have when run alone.

use crate::support::long_mode::*;
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, OpKind};
use std::collections::HashSet;
use tollgate_exits::ExitKind;
use tollgate_monitor::VcpuStop;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_platform::StopRequest;
use tollgate_test_support::Computer;
use tollgate_x86::{CpuState, Flags, PhysicalAddress};

/// mov al,[rbx]: puts the page into its window, for loads only while the page is not dirty.
const LOAD: [u8; 2] = [0x8a, 0x03];
/// The instruction `out 0xf4, al`, which ends the run.
const END: [u8; 2] = [0xe6, 0xf4];

/// Values of RBX: in a page that may be stored to, at its end, and in a page that is read-only.
const PLACES: [u64; 3] = [SMALL + 0x100, SMALL + 0xffe, SMALL + 0x3100];
/// Addresses to which programs may not store: at the end of a page that may be stored to, before an
/// absent page, and in a page of the kernel.
const BARRED: [u64; 2] = [SMALL + 0x1fff, KERNEL + 0x30_0100];

/// Whether an instruction stores to memory, or may store.
fn stores(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    let known = info.info(instruction);
    (0..instruction.op_count()).any(|index| {
        let is_memory = instruction.op_kind(index) == OpKind::Memory;
        let access = known.op_access(index);
        is_memory && !matches!(access, OpAccess::Read | OpAccess::NoMemAccess)
    })
}

/// Instructions of these opcode maps that store at or near RBX.
fn instructions() -> Vec<Vec<u8>> {
    let (mut info, mut found) = (InstructionInfoFactory::new(), Vec::new());
    let mut known = HashSet::new();
    let prefixes: [&[u8]; 4] = [&[], &[0x66], &[0x48], &[0xf0]];
    let maps: [&[u8]; 2] = [&[], &[0x0f]];
    for number in 0..prefixes.len() * maps.len() * 256 * 8 {
        let (register, opcode) = (number % 8, number / 8 % 256);
        let (map, prefix) = (maps[number / 2048 % 2], prefixes[number / 4096]);
        let mod_rm = (register << 3 | 3) as u8;
        let bytes = [prefix, map, &[opcode as u8, mod_rm, 0x15, 0, 0, 0]].concat();
        let instruction = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
        if !instruction.is_invalid() && stores(&instruction, &mut info) {
            // With another register, the opcode is another instruction only in an opcode group.
            let is_known = known.contains(&(prefix, instruction.code()));
            if register < 3 || !is_known {
                found.push(bytes[..instruction.len()].to_vec());
                known.insert((prefix, instruction.code()));
            }
        }
    }
    found
}

fn prepare(state: &mut CpuState, place: u64) {
    as_user(state);
    state.gpr = [
        0x1122_3344_5566_7788,
        3,
        0x99aa_bbcc_ddee_ff00,
        place,
        state.gpr[4],
        37,
        DATA,
        DATA + 0x100,
        8,
        9,
        10,
        11,
        12,
        13,
        14,
        15,
    ];
    state.flags |= (Flags::CF | Flags::ZF | Flags::OF).bits();
}

/// Memory and registers after a program, without pages that hold no data.
fn end(vcpu: &mut Computer<Bench>) -> (String, Vec<u8>) {
    let mut data = vec![0; 3 * 4096];
    let (first, rest) = data.split_at_mut(4096);
    vcpu.memory_mut().read(PhysicalAddress(SMALL_RAM[0]), first);
    let (second, third) = rest.split_at_mut(4096);
    vcpu.memory_mut()
        .read(PhysicalAddress(SMALL_RAM[1]), second);
    vcpu.memory_mut()
        .read(PhysicalAddress(READ_ONLY_RAM), third);
    (vcpu.dump(), data)
}

fn has_ended(stop: &VcpuStop) -> bool {
    matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_)))
}

#[test]
fn stores_that_fault_on_the_host_leave_nothing_half_done() {
    let instructions = instructions();
    assert!(instructions.len() > 400, "{}", instructions.len());
    let mut faults = 0;
    for (instruction, place) in instructions.iter().flat_map(|i| PLACES.map(|p| (i, p))) {
        for begin in [&LOAD[..], &[]] {
            if begin.is_empty() && place != PLACES[0] {
                continue;
            }
            let code = [begin, instruction, &END].concat();
            let set_up = |state: &mut CpuState, _: &mut _| prepare(state, place);
            let mut direct = vcpu(&code, set_up);
            direct.change_settings(|settings| settings.memory_access = MemoryAccess::Direct);
            let stop = direct.run();
            assert!(has_ended(&stop), "{code:x?} at {place:x}: {stop:?}");
            let mut alone = vcpu(&code, set_up);
            let stop = (0..100).find_map(|_| alone.step_one().err());
            assert!(stop.is_some_and(|stop| has_ended(&stop)), "{code:x?}");
            assert_eq!(end(&mut direct), end(&mut alone), "{code:x?} at {place:x}");
            faults += direct.exit_counts().get(ExitKind::WindowFault);
        }
    }
    assert!(faults > instructions.len() as u64, "{faults}");
}

#[test]
fn what_may_not_store_faults_as_a_store() {
    let mut compared = 0;
    let instructions = instructions();
    for (instruction, place) in instructions.iter().flat_map(|i| BARRED.map(|p| (i, p))) {
        let code = [instruction, &END[..]].concat();
        let set_up = |state: &mut CpuState, _: &mut _| prepare(state, place);
        let mut direct = vcpu(&code, set_up);
        direct.change_settings(|settings| settings.memory_access = MemoryAccess::Direct);
        let stop = direct.run();
        assert!(has_ended(&stop), "{code:x?} at {place:x}: {stop:?}");
        let mut alone = vcpu(&code, set_up);
        let stop = (0..100).find_map(|_| alone.step_one().err());
        assert!(stop.is_some_and(|stop| has_ended(&stop)), "{code:x?}");
        assert_eq!(end(&mut direct), end(&mut alone), "{code:x?} at {place:x}");
        if direct.state().cpl() == 0 {
            let (direct, alone) = (caught(&mut direct), caught(&mut alone));
            assert_eq!(direct, alone, "{code:x?} at {place:x}");
            compared += 1;
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn a_movs_to_where_no_window_is_leaves_the_source_s_page_clean() {
    const DIRTY: u64 = 1 << 6;
    // mov rax,[rsi], followed by MOVS of each width.
    const FIRST: [u8; 3] = [0x48, 0x8b, 0x06];
    for movs in [&[0xa4][..], &[0x66, 0xa5], &[0xa5], &[0x48, 0xa5]] {
        for destination in COMMON.map(|common| common + DATA + 0x200) {
            let code = [&FIRST, movs, &END].concat();
            let set_up = |state: &mut CpuState, _: &mut _| {
                prepare(state, DATA);
                state.gpr[6] = SMALL + 0x100;
                state.gpr[7] = destination;
            };
            let mut direct = vcpu(&code, set_up);
            direct.change_settings(|settings| settings.memory_access = MemoryAccess::Direct);
            let stop = direct.run();
            assert!(has_ended(&stop), "{movs:x?} to {destination:x}: {stop:?}");
            let mut alone = vcpu(&code, set_up);
            let stop = (0..100).find_map(|_| alone.step_one().err());
            assert!(stop.is_some_and(|stop| has_ended(&stop)), "{code:x?}");
            assert_eq!(end(&mut direct), end(&mut alone), "{code:x?}");
            let entry = read_u64(&mut direct, SMALL_TABLE);
            assert_eq!(entry & DIRTY, 0, "{movs:x?} to {destination:x}");
        }
    }
}
