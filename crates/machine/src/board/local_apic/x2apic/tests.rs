//! Tests of x2APIC mode.

use super::super::{Clock, InterruptBus, InterruptMessage};
use super::*;
use crate::board::local_apic::message::DeliveryMode;
use tollgate_platform::GuestTime;
use tollgate_x86::local_apic_msrs::X2APIC_LAST;

const XAPIC: u64 = 0xfee0_0900;
const X2APIC: u64 = 0xfee0_0d00;
const DISABLED: u64 = 0xfee0_0100;
const INVALID: u64 = 0xfee0_0500;

const ID: u32 = 0x802;
const TASK_PRIORITY: u32 = 0x808;
const END_OF_INTERRUPT: u32 = 0x80b;
const LOGICAL_DESTINATION: u32 = 0x80d;
const SPURIOUS_VECTOR: u32 = 0x80f;
const IN_SERVICE: u32 = 0x810;
const ERROR_STATUS: u32 = 0x828;
const COMMAND: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;
const LVT_LINT0: u32 = 0x835;
const INITIAL_COUNT: u32 = 0x838;
const CURRENT_COUNT: u32 = 0x839;
const DIVIDE: u32 = 0x83e;
const SELF_INTERRUPT: u32 = 0x83f;

const NOW: Clock = Clock {
    now: GuestTime(1000),
    tsc: 2000,
    tsc_khz: 2_000_000,
};

/// Makes an APIC in x2APIC mode that is also enabled by software.
fn enabled() -> LocalApic {
    let mut apic = LocalApic::new();
    assert!(apic.set_base_msr(X2APIC));
    assert_eq!(write(&mut apic, SPURIOUS_VECTOR, 0x1ff), Some(None));
    apic
}

fn write(apic: &mut LocalApic, index: u32, value: u64) -> Option<Option<u8>> {
    apic.msr_write(index, value, &NOW)
}

fn read(apic: &mut LocalApic, index: u32) -> Option<u64> {
    apic.msr_read(index, &NOW)
}

#[test]
fn modes_change_as_the_manuals_figure_allows() {
    let modes = [DISABLED, XAPIC, X2APIC];
    let steps: [&[u64]; 3] = [&[DISABLED], &[XAPIC], &[XAPIC, X2APIC]];
    // Rows are old modes and columns new ones (SDM volume 3, figure 11-27). The invalid mode is
    // never allowed.
    let allowed = [
        [true, true, false, false],
        [true, true, true, false],
        [true, false, true, false],
    ];
    for (from, row) in steps.iter().zip(allowed) {
        for (to, is_allowed) in modes.iter().chain(&[INVALID]).zip(row) {
            let mut apic = LocalApic::new();
            for step in *from {
                assert!(apic.set_base_msr(*step));
            }
            let before = apic.base_msr();
            assert_eq!(apic.set_base_msr(*to), is_allowed, "{before:#x} {to:#x}");
            assert_eq!(apic.base_msr(), if is_allowed { *to } else { before });
        }
    }
}

#[test]
fn registers_are_a_page_or_msrs_and_never_both() {
    let mut apic = LocalApic::new();
    assert!(apic.page().is_some());
    for index in X2APIC_FIRST..=X2APIC_LAST {
        assert_eq!(read(&mut apic, index), None);
        assert_eq!(write(&mut apic, index, 0), None);
    }
    apic.set_base_msr(X2APIC);
    assert_eq!(apic.page(), None);
    assert_eq!(read(&mut apic, ID), Some(0));
    apic.set_base_msr(DISABLED);
    assert_eq!((apic.page(), read(&mut apic, ID)), (None, None));
}

#[test]
fn which_registers_can_be_read_and_written_is_as_in_the_manuals_table() {
    let readable = |index: u32| {
        matches!(index, 0x802 | 0x803 | 0x808 | 0x80a | 0x80d | 0x80f..=0x828)
            || matches!(index, 0x830 | 0x832..=0x839 | 0x83e)
    };
    let writable = |index: u32| {
        matches!(index, 0x808 | 0x80b | 0x80f | 0x828 | 0x830 | 0x832..=0x838)
            || matches!(index, 0x83e | 0x83f)
    };
    for index in X2APIC_FIRST..=X2APIC_LAST {
        let mut apic = enabled();
        assert_eq!(
            read(&mut apic, index).is_some(),
            readable(index),
            "{index:#x}"
        );
        // Zero is a valid value of every register. In the command register it sends an illegal
        // vector to the processor itself.
        let written = write(&mut apic, index, 0);
        assert_eq!(written.is_some(), writable(index), "{index:#x}");
    }
}

#[test]
fn reserved_bits_are_refused_and_change_nothing() {
    for (index, reserved) in [
        (TASK_PRIORITY, 1 << 8),
        (END_OF_INTERRUPT, 1),
        (SPURIOUS_VECTOR, 1 << 10),
        (SPURIOUS_VECTOR, 1 << 12),
        (ERROR_STATUS, 1),
        (COMMAND, 1 << 13),
        (COMMAND, 1 << 16),
        (COMMAND, 1 << 20),
        (LVT_TIMER, 1 << 19),
        (LVT_TIMER, 1 << 8),
        (LVT_LINT0, 1 << 17),
        (INITIAL_COUNT, 1 << 32),
        (DIVIDE, 1 << 2),
        (SELF_INTERRUPT, 1 << 8),
        (TASK_PRIORITY, 1 << 63),
    ] {
        let mut apic = enabled();
        let before = apic.clone();
        assert!(
            !apic.is_near_msr(index, reserved),
            "{index:#x} {reserved:#x}"
        );
        assert_eq!(
            write(&mut apic, index, reserved),
            None,
            "{index:#x} {reserved:#x}"
        );
        assert_eq!(apic, before);
    }
}

#[test]
fn the_command_register_is_one_of_64_bits() {
    let mut apic = enabled();
    write(&mut apic, COMMAND, 0x0000_0005_0000_0041);
    assert_eq!(read(&mut apic, COMMAND), Some(0x0000_0005_0000_0041));
    assert_eq!(apic.pending(), None, "it is for processor 5");
    for (destination, logical, is_own) in [
        (0, false, true),
        (u32::MAX, false, true),
        (0xff, false, false),
        (1, false, false),
        (1, true, true),
        (0xffff, true, true),
        (2, true, false),
        (0, true, false),
        (0x1_0001, true, false),
        (u32::MAX, true, true),
    ] {
        let mut apic = enabled();
        let command = u64::from(destination) << 32 | u64::from(logical) << 11 | 0x41;
        write(&mut apic, COMMAND, command);
        assert_eq!(
            apic.pending().is_some(),
            is_own,
            "{destination:#x} {logical}"
        );
    }
}

#[test]
fn a_processor_interrupts_itself_by_a_write_of_the_vector() {
    let mut apic = enabled();
    assert!(apic.is_near_msr(SELF_INTERRUPT, 0x51));
    assert_eq!(write(&mut apic, SELF_INTERRUPT, 0x51), Some(None));
    assert_eq!(apic.acknowledge(), Some(0x51));
    assert_eq!(read(&mut apic, IN_SERVICE + 2), Some(1 << 0x11));
    assert_eq!(write(&mut apic, END_OF_INTERRUPT, 0), Some(None));
    assert_eq!(read(&mut apic, IN_SERVICE + 2), Some(0));
    write(&mut apic, SELF_INTERRUPT, 15);
    write(&mut apic, ERROR_STATUS, 0);
    assert_eq!(read(&mut apic, ERROR_STATUS), Some(1 << 5));
}

#[test]
fn an_end_of_interrupt_tells_which_level_has_ended() {
    let mut apic = enabled();
    apic.deliver(&InterruptMessage {
        vector: 0x61,
        mode: DeliveryMode::Fixed,
        destination: 1,
        logical: true,
        level: true,
    });
    assert_eq!(apic.acknowledge(), Some(0x61));
    assert_eq!(write(&mut apic, END_OF_INTERRUPT, 0), Some(Some(0x61)));
}

#[test]
fn the_timer_counts_and_its_registers_are_near() {
    let mut apic = enabled();
    for (index, value) in [(LVT_TIMER, 0x50), (DIVIDE, 0b1011), (INITIAL_COUNT, 700)] {
        assert!(apic.is_near_msr(index, value));
        write(&mut apic, index, value);
    }
    let later = Clock {
        now: GuestTime(1300),
        ..NOW
    };
    assert_eq!(apic.msr_read(CURRENT_COUNT, &later), Some(400));
    assert_eq!(apic.next_deadline(), Some(GuestTime(1700)));
}

#[test]
fn messages_that_do_more_than_change_the_apics_state_are_not_near() {
    let apic = enabled();
    assert!(apic.is_near_msr(COMMAND, 0x4_0041));
    for mode in 1..8 {
        assert!(!apic.is_near_msr(COMMAND, 0x4_0041 | mode << 8), "{mode}");
    }
    assert!(!LocalApic::new().is_near_msr(TASK_PRIORITY, 0));
}

#[test]
fn init_keeps_the_mode_and_identifiers_and_resets_the_rest() {
    let mut apic = enabled();
    write(&mut apic, TASK_PRIORITY, 0x70);
    apic.init();
    assert_eq!(apic.base_msr(), X2APIC);
    assert_eq!(read(&mut apic, TASK_PRIORITY), Some(0));
    assert_eq!(read(&mut apic, LOGICAL_DESTINATION), Some(1));
    assert_eq!(read(&mut apic, SPURIOUS_VECTOR), Some(0xff));
}
