//! Tests of the local APIC.

use super::*;

const TSC_KHZ: u64 = 2_000_000;

fn at(nanoseconds: u64) -> Clock {
    Clock {
        now: GuestTime(nanoseconds),
        tsc: nanoseconds * 2,
        tsc_khz: TSC_KHZ,
    }
}

fn enabled() -> LocalApic {
    let mut apic = LocalApic::new();
    write(&mut apic, register::SPURIOUS_VECTOR, 0x1ff, 0);
    apic
}

fn write(apic: &mut LocalApic, offset: u16, value: u32, now: u64) -> Option<u8> {
    apic.write(offset, &value.to_le_bytes(), &at(now))
}

fn read(apic: &mut LocalApic, offset: u16, now: u64) -> u32 {
    let mut bytes = [0; 4];
    apic.read(offset, &mut bytes, &at(now));
    u32::from_le_bytes(bytes)
}

fn fixed(vector: u8, level: bool) -> InterruptMessage {
    InterruptMessage {
        vector,
        mode: DeliveryMode::Fixed,
        destination: 0,
        logical: false,
        level,
    }
}

#[test]
fn power_up_values_are_the_manuals() {
    let mut apic = LocalApic::new();
    assert_eq!(apic.base_msr(), 0xfee0_0900);
    assert_eq!(read(&mut apic, register::VERSION, 0), 0x0005_0014);
    assert_eq!(read(&mut apic, register::SPURIOUS_VECTOR, 0), 0xff);
    assert_eq!(read(&mut apic, register::DESTINATION_FORMAT, 0), u32::MAX);
    for entry in (0x320..=0x370).step_by(16) {
        assert_eq!(read(&mut apic, entry, 0), 0x1_0000);
    }
}

#[test]
fn the_highest_class_is_delivered_first_and_nests() {
    let mut apic = enabled();
    assert!(apic.deliver(&fixed(0x31, false)));
    assert!(apic.deliver(&fixed(0x52, false)));
    assert_eq!(apic.acknowledge(), Some(0x52));
    assert_eq!(apic.pending(), None);
    assert_eq!(read(&mut apic, register::PROCESSOR_PRIORITY, 0), 0x50);
    apic.deliver(&fixed(0x61, false));
    assert_eq!(apic.acknowledge(), Some(0x61));
    assert_eq!(write(&mut apic, register::END_OF_INTERRUPT, 0, 0), None);
    assert_eq!(apic.pending(), None);
    write(&mut apic, register::END_OF_INTERRUPT, 0, 0);
    assert_eq!(apic.acknowledge(), Some(0x31));
}

#[test]
fn task_priority_holds_back_its_class_and_below() {
    let mut apic = enabled();
    write(&mut apic, register::TASK_PRIORITY, 0x30, 0);
    apic.deliver(&fixed(0x3f, false));
    assert_eq!(apic.pending(), None);
    write(&mut apic, register::TASK_PRIORITY, 0x2f, 0);
    assert_eq!(apic.pending(), Some(0x3f));
}

#[test]
fn eoi_of_a_level_interrupt_names_its_vector() {
    let mut apic = enabled();
    apic.deliver(&fixed(0x40, true));
    apic.acknowledge();
    assert_eq!(
        write(&mut apic, register::END_OF_INTERRUPT, 0, 0),
        Some(0x40)
    );
    assert_eq!(write(&mut apic, register::END_OF_INTERRUPT, 0, 0), None);
}

#[test]
fn software_disable_masks_the_table_and_refuses_messages() {
    let mut apic = enabled();
    write(&mut apic, register::LVT_TIMER, 0x30, 0);
    assert_eq!(read(&mut apic, register::LVT_TIMER, 0), 0x30);
    write(&mut apic, register::SPURIOUS_VECTOR, 0xff, 0);
    assert_eq!(read(&mut apic, register::LVT_TIMER, 0), 0x1_0030);
    write(&mut apic, register::LVT_TIMER, 0x30, 0);
    assert_eq!(read(&mut apic, register::LVT_TIMER, 0), 0x1_0030);
    assert!(!apic.deliver(&fixed(0x40, false)));
}

#[test]
fn logical_destinations_match_flat_and_cluster_models() {
    let mut apic = enabled();
    write(&mut apic, register::LOGICAL_DESTINATION, 0x1200_0000, 0);
    let logical = |destination| InterruptMessage {
        destination,
        logical: true,
        ..fixed(0x40, false)
    };
    assert!(apic.deliver(&logical(0x02)));
    assert!(!apic.deliver(&logical(0x04)));
    write(&mut apic, register::DESTINATION_FORMAT, 0, 0);
    assert!(apic.deliver(&logical(0x12)));
    assert!(!apic.deliver(&logical(0x22)));
    assert!(apic.deliver(&logical(0xf2)));
    assert!(!apic.deliver(&logical(0x11)));
}

#[test]
fn commands_reach_oneself_and_nobody_else() {
    let mut apic = enabled();
    write(&mut apic, register::COMMAND_LOW, 0x4_0050, 0);
    assert_eq!(apic.acknowledge(), Some(0x50));
    write(&mut apic, register::COMMAND_LOW, 0xc_0060, 0);
    assert_eq!(apic.pending(), None);
    write(&mut apic, register::COMMAND_HIGH, 1 << 24, 0);
    write(&mut apic, register::COMMAND_LOW, 0x60, 0);
    assert_eq!(apic.pending(), None);
    write(&mut apic, register::COMMAND_HIGH, 0, 0);
    write(&mut apic, register::COMMAND_LOW, 0x60, 0);
    assert_eq!(apic.pending(), Some(0x60));
    // Start-up and SMI messages change nothing, and the command register is never busy.
    write(&mut apic, register::COMMAND_LOW, 0x4200, 0);
    write(&mut apic, register::COMMAND_LOW, 0x0608, 0);
    assert!(!apic.take_nmi() && !apic.take_init());
    assert_eq!(read(&mut apic, register::COMMAND_LOW, 0) & 1 << 12, 0);
    write(&mut apic, register::COMMAND_LOW, 0x0400, 0);
    assert!(apic.take_nmi());
    assert!(!apic.take_nmi());
}

/// The low half of the command register for INIT.
const INIT: u32 = 0x500;

#[test]
fn init_messages_reach_oneself_with_and_without_a_shorthand() {
    let mut apic = enabled();
    write(&mut apic, register::COMMAND_HIGH, 0, 0);
    // Edge-triggered; level-triggered and asserted; to itself; to all including itself.
    for low in [INIT, INIT | 0xc000, INIT | 0x4_0000, INIT | 0x8_4000] {
        write(&mut apic, register::COMMAND_LOW, low, 0);
        assert!(apic.take_init(), "{low:#x}");
        assert!(!apic.take_init());
    }
    // De-assert, which goes to all; INIT to all but itself; INIT to another processor.
    write(&mut apic, register::COMMAND_LOW, INIT | 0x8_8000, 0);
    write(&mut apic, register::COMMAND_LOW, INIT | 0xc_4000, 0);
    write(&mut apic, register::COMMAND_HIGH, 1 << 24, 0);
    write(&mut apic, register::COMMAND_LOW, INIT | 0x4000, 0);
    assert!(!apic.take_init());
}

#[test]
fn nmi_and_init_are_taken_while_software_has_the_apic_disabled() {
    let mut apic = enabled();
    write(&mut apic, register::SPURIOUS_VECTOR, 0xff, 0);
    for (mode, number) in [(DeliveryMode::Nmi, 4), (DeliveryMode::Init, 5)] {
        let message = InterruptMessage {
            mode,
            ..fixed(0, false)
        };
        assert!(apic.deliver(&message));
        let taken = (apic.take_nmi(), apic.take_init());
        assert_eq!(taken, (number == 4, number == 5));
        write(&mut apic, register::COMMAND_LOW, number << 8, 0);
        assert_eq!((apic.take_nmi(), apic.take_init()), taken);
    }
    let smi = InterruptMessage {
        mode: DeliveryMode::Smi,
        ..fixed(0, false)
    };
    assert!(!apic.deliver(&smi));
}

#[test]
fn illegal_vectors_show_in_the_error_status_after_a_write() {
    let mut apic = enabled();
    write(&mut apic, register::LVT_ERROR, 0x45, 0);
    write(&mut apic, register::COMMAND_LOW, 0x4_0005, 0);
    assert_eq!(read(&mut apic, register::ERROR_STATUS, 0), 0);
    write(&mut apic, register::ERROR_STATUS, 0, 0);
    assert_eq!(read(&mut apic, register::ERROR_STATUS, 0), 1 << 5);
    assert_eq!(apic.pending(), Some(0x45));
    write(&mut apic, register::ERROR_STATUS, 0, 0);
    assert_eq!(read(&mut apic, register::ERROR_STATUS, 0), 0);
}

#[test]
fn the_one_shot_timer_counts_down_and_fires_once() {
    let mut apic = enabled();
    write(&mut apic, register::DIVIDE, 0b0011, 0); // by 16
    write(&mut apic, register::LVT_TIMER, 0x30, 0);
    write(&mut apic, register::INITIAL_COUNT, 1000, 100);
    assert_eq!(
        read(&mut apic, register::CURRENT_COUNT, 100 + 16 * 400),
        600
    );
    assert_eq!(apic.next_deadline(), Some(GuestTime(100 + 16_000)));
    apic.advance(&at(100 + 15_999));
    assert_eq!(apic.pending(), None);
    apic.advance(&at(100 + 16_000));
    assert_eq!(apic.acknowledge(), Some(0x30));
    assert_eq!(read(&mut apic, register::CURRENT_COUNT, 20_000), 0);
    assert_eq!(apic.next_deadline(), None);
}

#[test]
fn the_periodic_timer_stays_on_its_grid_when_late() {
    let mut apic = enabled();
    write(&mut apic, register::DIVIDE, 0b1011, 0); // by 1
    write(&mut apic, register::LVT_TIMER, 0x2_0030, 0);
    write(&mut apic, register::INITIAL_COUNT, 1000, 0);
    apic.advance(&at(3_500));
    assert_eq!(apic.acknowledge(), Some(0x30));
    assert_eq!(apic.next_deadline(), Some(GuestTime(4_000)));
    assert_eq!(read(&mut apic, register::CURRENT_COUNT, 3_500), 500);
    assert_eq!(read(&mut apic, register::CURRENT_COUNT, 5_250), 750);
}

#[test]
fn a_masked_timer_counts_but_does_not_interrupt() {
    let mut apic = enabled();
    write(&mut apic, register::DIVIDE, 0b1011, 0);
    write(&mut apic, register::INITIAL_COUNT, 1000, 0);
    assert_eq!(read(&mut apic, register::CURRENT_COUNT, 400), 600);
    assert_eq!(apic.next_deadline(), None);
    apic.advance(&at(2000));
    assert_eq!(apic.pending(), None);
    assert_eq!(read(&mut apic, register::CURRENT_COUNT, 2000), 0);
}

#[test]
fn an_expiry_under_the_mask_is_lost() {
    let mut apic = enabled();
    write(&mut apic, register::DIVIDE, 0b1011, 0);
    write(&mut apic, register::INITIAL_COUNT, 1000, 0);
    write(&mut apic, register::LVT_TIMER, 0x30, 2000);
    apic.advance(&at(3000));
    assert_eq!(apic.pending(), None);
}

#[test]
fn an_expired_timer_that_becomes_periodic_stays_stopped() {
    let mut apic = enabled();
    write(&mut apic, register::DIVIDE, 0b1011, 0);
    write(&mut apic, register::INITIAL_COUNT, 1000, 0);
    write(&mut apic, register::LVT_TIMER, 0x2_0030, 2000);
    assert_eq!(read(&mut apic, register::CURRENT_COUNT, 2500), 0);
    assert_eq!(apic.next_deadline(), None);
}

#[test]
fn changing_the_divider_keeps_the_count() {
    let mut apic = enabled();
    write(&mut apic, register::DIVIDE, 0b1011, 0);
    write(&mut apic, register::LVT_TIMER, 0x30, 0);
    write(&mut apic, register::INITIAL_COUNT, 1000, 0);
    write(&mut apic, register::DIVIDE, 0b0000, 400); // by 2
    assert_eq!(read(&mut apic, register::CURRENT_COUNT, 400), 600);
    assert_eq!(apic.next_deadline(), Some(GuestTime(1600)));
}

#[test]
fn the_tsc_deadline_fires_by_the_counter_not_by_time() {
    let mut apic = enabled();
    apic.set_tsc_deadline_msr(5, &at(0));
    assert_eq!(apic.tsc_deadline_msr(), 0);
    write(&mut apic, register::LVT_TIMER, 0x4_0030, 0);
    apic.set_tsc_deadline_msr(2_000, &at(0));
    assert_eq!(apic.next_deadline(), Some(GuestTime(1_000)));
    let slow = Clock {
        now: GuestTime(1_000),
        tsc: 1_999,
        tsc_khz: TSC_KHZ,
    };
    apic.advance(&slow);
    assert_eq!(apic.pending(), None);
    assert_eq!(apic.next_deadline(), Some(GuestTime(1_001)));
    apic.advance(&at(1_001));
    assert_eq!(apic.acknowledge(), Some(0x30));
    assert_eq!(apic.tsc_deadline_msr(), 0);
    assert_eq!(apic.next_deadline(), None);
}

#[test]
fn a_tsc_deadline_in_the_past_fires_at_once() {
    let mut apic = enabled();
    write(&mut apic, register::LVT_TIMER, 0x4_0030, 0);
    apic.set_tsc_deadline_msr(1, &at(1_000));
    assert_eq!(apic.pending(), Some(0x30));
}

#[test]
fn leaving_tsc_deadline_mode_disarms() {
    let mut apic = enabled();
    write(&mut apic, register::LVT_TIMER, 0x4_0030, 0);
    apic.set_tsc_deadline_msr(10_000, &at(0));
    write(&mut apic, register::LVT_TIMER, 0x30, 0);
    assert_eq!(apic.next_deadline(), None);
    assert_eq!(apic.tsc_deadline_msr(), 0);
}

#[test]
fn virtual_wire_mode_passes_external_interrupts() {
    let mut apic = LocalApic::new();
    assert!(!apic.passes_external_interrupts());
    apic.enter_virtual_wire_mode();
    assert!(apic.passes_external_interrupts());
    write(&mut apic, 0x350, 0x1_0700, 0);
    assert!(!apic.passes_external_interrupts());
}

#[test]
fn lint0_can_be_an_ordinary_edge_interrupt() {
    let mut apic = enabled();
    write(&mut apic, 0x350, 0x30, 0);
    apic.set_lint(0, true);
    assert_eq!(apic.acknowledge(), Some(0x30));
    apic.set_lint(0, true);
    assert_eq!(apic.pending(), None);
}

#[test]
fn a_level_lint_requests_again_after_eoi() {
    let mut apic = enabled();
    write(&mut apic, 0x350, 0x8030, 0);
    apic.set_lint(0, true);
    assert_eq!(apic.acknowledge(), Some(0x30));
    write(&mut apic, register::END_OF_INTERRUPT, 0, 0);
    assert_eq!(apic.acknowledge(), Some(0x30));
    apic.set_lint(0, false);
    write(&mut apic, register::END_OF_INTERRUPT, 0, 0);
    assert_eq!(apic.pending(), None);
}

#[test]
fn the_base_register_refuses_reserved_bits() {
    let mut apic = enabled();
    for value in [0xfee0_0901, 0xfee0_0b00, 0x100_fee0_0900, u64::MAX] {
        assert!(!apic.set_base_msr(value));
        assert_eq!(apic.base_msr(), 0xfee0_0900);
    }
    assert!(apic.set_base_msr(0xfee0_0100));
    assert!(!apic.is_enabled());
    assert!(!apic.deliver(&fixed(0x40, false)));
    assert!(apic.set_base_msr(0xfee0_0900));
    assert_eq!(read(&mut apic, register::SPURIOUS_VECTOR, 0), 0xff);
}

#[test]
fn the_register_page_may_lie_on_any_page_that_cpuid_offers() {
    let mut apic = enabled();
    for address in [0xfed4_0000, 0xff_ffff_f000, 0, 0xfee0_0000] {
        assert!(apic.set_base_msr(address | 0x900));
        assert_eq!(apic.base_address(), address);
        assert_eq!(apic.base_msr(), address | 0x900);
        assert!(apic.is_enabled());
    }
    // The bootstrap processor's bit stays.
    assert!(apic.set_base_msr(0xfed4_0800));
    assert_eq!(apic.base_msr(), 0xfed4_0900);
    // Moving is not disabling.
    write(&mut apic, register::TASK_PRIORITY, 0x30, 0);
    assert!(apic.set_base_msr(0xfee0_0900));
    assert_eq!(read(&mut apic, register::TASK_PRIORITY, 0), 0x30);
}

#[test]
fn odd_accesses_are_harmless() {
    let mut apic = enabled();
    let mut bytes = [0; 64];
    for offset in 0..0x1000u16 {
        apic.read(offset, &mut bytes, &at(u64::MAX / 4));
        apic.write(offset, &bytes[..(offset as usize % 64) + 1], &at(0));
        apic.write(offset, &u32::MAX.to_le_bytes(), &at(u64::MAX / 4));
        apic.advance(&at(u64::MAX / 2));
    }
    // It still is what it was, and a guest that programs it gets interrupts.
    let end = u64::MAX / 2;
    assert_eq!(read(&mut apic, register::VERSION, end), 0x0005_0014);
    write(&mut apic, register::SPURIOUS_VECTOR, 0x1ff, end);
    write(&mut apic, register::TASK_PRIORITY, 0, end);
    write(&mut apic, register::ID, 0, end);
    while apic.acknowledge().is_some() {
        write(&mut apic, register::END_OF_INTERRUPT, 0, end);
    }
    assert!(apic.deliver(&fixed(0x52, false)));
    assert_eq!(apic.acknowledge(), Some(0x52));
}
