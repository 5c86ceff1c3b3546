//! Tests of what the engine says about places: which site a host address belongs to, and that two
//! blocks of one place are distinguished by the way in which they reach memory.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};
use tollgate_engine::Engine;
use tollgate_engine::abi::sites::SiteKind;
use tollgate_engine::engine::written_code::Moment;
use tollgate_engine::engine::{CodeAddress, LookUp};
use tollgate_engine::policy::access::{Access, AccessUnavailable};
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_memory::GuestMemory;
use tollgate_memory::gate::CodeWrite;
use tollgate_test_support::flat_state;
use tollgate_x86::PhysicalAddress;

const START: u64 = 0x1000;
const PLACE: CodeAddress = CodeAddress {
    physical: START,
    next_page: None,
    rip: START,
    linear: START,
    global: false,
    link_address: None,
};

/// The mode of flat 32-bit code and data.
fn flat() -> Mode {
    Mode::of(&flat_state(START))
}

fn engine_and_memory(code: &[u8]) -> (Engine, GuestMemory) {
    let mut memory = GuestMemory::new(1 << 20).unwrap();
    assert!(memory.write(PhysicalAddress(START), code));
    let engine = Engine::new(0, Features::new(|_| true), true).unwrap();
    (engine, memory)
}

#[test]
fn a_host_address_belongs_to_the_site_of_the_instruction_in_work_there() {
    // mov eax,[ebx]; inc eax; add [ecx],edx; in al,dx; hlt
    let code = [0x8b, 0x03, 0x40, 0x01, 0x11, 0xec, 0xf4];
    let (mut engine, mut memory) = engine_and_memory(&code);
    let mode = engine.intern(flat(), &mut memory);
    let LookUp::Block(id) = engine.translate(&PLACE, mode, &mut memory) else {
        panic!("the code lies in one page");
    };
    let length = engine.block(id).unwrap().host_length;
    let start = engine.address(id, 0).unwrap() as u64;
    let bytes: Vec<u8> = (0..length)
        // SAFETY: the block's code lies there as long as the engine lives.
        .map(|offset| unsafe { *engine.address(id, offset).unwrap() })
        .collect();
    let mut found = Vec::new();
    for instruction in Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE) {
        let site = engine.site_at(instruction.ip());
        let site = site.map(|(block, site)| {
            assert_eq!(block, id);
            engine.block(id).unwrap().site(site).unwrap()
        });
        let is_access = instruction.memory_base() == Register::RCX
            && instruction.memory_index() == Register::R8
            && instruction.mnemonic() != Mnemonic::Lea;
        match site {
            Some(site) if is_access => found.push((site.rip, site.kind)),
            Some(site) => assert!(site.retry <= (instruction.ip() - start) as u32),
            None => assert!(!is_access, "an access has a site"),
        }
    }
    let memory = |write| SiteKind::Memory { size: 4, write };
    assert_eq!(
        found,
        [(START, memory(false)), (START + 3, memory(true))],
        "each access, in the order of the code"
    );
    let block = engine.block(id).unwrap();
    let inc = block.state_map().find(|entry| entry.rip == START + 2);
    assert_eq!(engine.site_at(start + u64::from(inc.unwrap().host)), None);
    assert_eq!(engine.site_at(engine.code_range().end), None);
    assert_eq!(engine.site_at(START), None);
}

fn direct_and_flat() -> Mode {
    flat().with_access(Access::Direct)
}

/// The mode of the same code on a 16-bit stack.
fn on_narrow_stack() -> Mode {
    Mode {
        flags: flat().flags - ModeFlags::STACK32,
        ..flat()
    }
}

/// A mode that no processor can be in.
fn direct_on_narrow_stack() -> Mode {
    Mode {
        access: Access::Direct,
        ..on_narrow_stack()
    }
}

#[test]
fn a_block_is_of_one_way_to_reach_memory() {
    let (mut engine, mut memory) = engine_and_memory(&[0x8b, 0x03, 0xf4]);
    let checked = engine.intern(flat(), &mut memory);
    let direct = engine.intern(direct_and_flat(), &mut memory);
    assert_ne!(checked, direct);
    let LookUp::Block(id) = engine.translate(&PLACE, checked, &mut memory) else {
        panic!("the code lies in one page");
    };
    assert_eq!(engine.find(&PLACE, checked), Some(id));
    assert_eq!(engine.find(&PLACE, direct), None);
}

#[test]
fn code_of_16_bits_has_direct_access_in_protected_mode() {
    let narrow = Mode {
        flags: flat().flags - ModeFlags::CODE32,
        ..flat()
    };
    assert_eq!(narrow.with_access(Access::Direct).access, Access::Direct);
    assert_eq!(narrow.with_access(Access::Anchored).access, Access::Direct);
}

#[test]
fn code_of_32_bits_has_no_direct_access_on_a_16_bit_stack() {
    assert_eq!(
        on_narrow_stack().with_access(Access::Direct),
        on_narrow_stack()
    );
    let (mut engine, mut memory) = engine_and_memory(&[0x8b, 0x03, 0xf4]);
    let direct = engine.intern(direct_on_narrow_stack(), &mut memory);
    let refusal = LookUp::Unavailable(AccessUnavailable(Access::Direct));
    // The refusal loses no block number, however often it is repeated.
    for _ in 0..3 {
        assert_eq!(engine.translate(&PLACE, direct, &mut memory), refusal);
    }
    assert_eq!(engine.block_count(), 0);
    let checked = engine.intern(on_narrow_stack(), &mut memory);
    let LookUp::Block(id) = engine.translate(&PLACE, checked, &mut memory) else {
        panic!("the code lies in one page");
    };
    assert_eq!(id.0, 0);
}

#[test]
fn what_was_found_before_is_found_only_while_it_is_active() {
    // The second block has the number that the first one had.
    for moment in [Moment::Before, Moment::After] {
        let (mut engine, mut memory) = engine_and_memory(&[0x40, 0xf4]);
        let mode = engine.intern(flat(), &mut memory);
        assert_eq!(engine.find(&PLACE, mode), None);
        let LookUp::Block(id) = engine.translate(&PLACE, mode, &mut memory) else {
            panic!("the code lies in one page");
        };
        assert_eq!(engine.find(&PLACE, mode), Some(id));
        assert_eq!(engine.find(&PLACE, mode), Some(id));
        engine.code_written(
            CodeWrite {
                page: START >> 12,
                first: 0,
                last: 1,
            },
            moment,
            &mut memory,
        );
        assert_eq!(engine.find(&PLACE, mode), None);
        let revived = engine.revive(&PLACE, mode, &mut memory);
        assert_eq!(revived, (moment == Moment::Before).then_some(id));
        assert_eq!(engine.find(&PLACE, mode), revived);
        let elsewhere = CodeAddress {
            physical: START + 1,
            rip: START + 1,
            linear: START + 1,
            ..PLACE
        };
        engine.translate(&elsewhere, mode, &mut memory);
        assert_eq!(engine.find(&PLACE, mode), revived);
        engine.flush(&mut memory);
        assert_eq!(engine.find(&PLACE, mode), None);
    }
}
