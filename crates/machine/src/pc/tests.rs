//! Tests of the board, driven through [`Platform`] alone.

use super::*;
use crate::board::io_apic;
use crate::bus::testing::PIC_PROGRAM;
use crate::config::HotPlug;
use crate::devices::virtio::entropy::Entropy;
use std::io;
use std::time::{Duration, Instant};
use tollgate_platform::PanicReport;
use tollgate_test_support::Transcript;

const LOCAL_APIC: u64 = local_apic_msrs::APIC_DEFAULT_ADDRESS;
const IO_APIC: u64 = io_apic::BASE_ADDRESS;

fn pc_with(serial: Box<dyn Write + Send>) -> Pc {
    let memory = GuestMemory::new(2 << 20).unwrap();
    Pc::new(&VmConfig::default(), memory, serial)
}

fn pc() -> Pc {
    pc_with(Box::new(io::sink()))
}

fn out(pc: &mut Pc, port: u16, value: u8) {
    pc.port_write(port, 1, value.into());
}

fn store(pc: &mut Pc, address: u64, value: u32) {
    pc.memory_write(PhysicalAddress(address), &value.to_le_bytes());
}

fn load(pc: &mut Pc, address: u64) -> u32 {
    let mut bytes = [0; 4];
    pc.memory_read(PhysicalAddress(address), &mut bytes);
    u32::from_le_bytes(bytes)
}

/// Programs the 8259 pair: vectors from 20h and 28h, all lines unmasked.
fn program_pic(pc: &mut Pc) {
    for (port, value) in PIC_PROGRAM {
        out(pc, port, value);
    }
}

/// Masks every line of the 8259 pair, because firmware leaves some unmasked.
fn mask_pic(pc: &mut Pc) {
    out(pc, 0x21, 0xff);
    out(pc, 0xa1, 0xff);
}

fn redirect(pc: &mut Pc, pin: u32, entry: u32) {
    store(pc, IO_APIC, 0x10 + 2 * pin);
    store(pc, IO_APIC + 0x10, entry);
}

/// Programs channel 0 of the interval timer to expire once, some microseconds from now.
fn start_one_shot(pc: &mut Pc) {
    out(pc, 0x43, 0x30);
    out(pc, 0x40, 10);
    out(pc, 0x40, 0);
}

fn wait_for_deadline(pc: &mut Pc) {
    let due = pc.next_deadline().expect("something is due");
    while pc.now() < due {
        std::thread::sleep(Duration::from_micros(50));
    }
    pc.advance();
}

#[test]
fn unclaimed_ports_and_memory_read_as_ones() {
    let mut pc = pc();
    assert_eq!(pc.port_read(0x1234, 1), 0xff);
    assert_eq!(pc.port_read(0x1234, 2), 0xffff);
    assert_eq!(pc.port_read(0xcf0, 4), u32::MAX);
    pc.port_write(0x1234, 4, 0);
    assert_eq!(load(&mut pc, 0xa_0000), u32::MAX);
    store(&mut pc, 0xa_0000, 0);
    let mut bytes = [0; 64];
    pc.memory_read(PhysicalAddress(u64::MAX), &mut bytes);
    assert_eq!(bytes, [0xff; 64]);
}

#[test]
fn a_wide_access_is_one_for_each_byte() {
    let mut pc = pc();
    out(&mut pc, 0x70, 0x20);
    // Writes index 21h to port 70h and value 5Ah to port 71h.
    pc.port_write(0x70, 2, 0x5a21);
    out(&mut pc, 0x70, 0x21);
    assert_eq!(pc.port_read(0x71, 1), 0x5a);
}

#[test]
fn the_timer_reaches_the_processor_through_the_virtual_wire() {
    let mut pc = pc();
    program_pic(&mut pc);
    start_one_shot(&mut pc);
    assert!(!pc.interrupt_pending());
    wait_for_deadline(&mut pc);
    assert!(pc.interrupt_pending());
    assert_eq!(pc.acknowledge_interrupt(), Some(0x20));
    assert!(!pc.interrupt_pending());
    assert_eq!(pc.acknowledge_interrupt(), None);
}

#[test]
fn the_8259_reaches_the_processor_directly_while_the_apic_is_disabled() {
    let mut pc = pc();
    program_pic(&mut pc);
    store(&mut pc, LOCAL_APIC + 0x350, 0x1_0700);
    start_one_shot(&mut pc);
    wait_for_deadline(&mut pc);
    assert!(!pc.interrupt_pending(), "LINT0 is masked");
    let base = pc.msr_read(local_apic_msrs::APIC_BASE).unwrap();
    assert_eq!(
        pc.msr_write(local_apic_msrs::APIC_BASE, base & !(1 << 11)),
        Some(true)
    );
    assert_eq!(load(&mut pc, LOCAL_APIC + 0x30), u32::MAX);
    assert_eq!(pc.acknowledge_interrupt(), Some(0x20));
}

#[test]
fn the_task_priority_is_held_while_the_apic_is_disabled() {
    let mut pc = pc();
    pc.set_task_priority(5);
    assert_eq!(load(&mut pc, LOCAL_APIC + 0x80), 0x50);
    store(&mut pc, LOCAL_APIC + 0x80, 0x7a);
    assert_eq!(pc.task_priority(), 7);
    pc.set_task_priority(7);
    assert_eq!(
        load(&mut pc, LOCAL_APIC + 0x80),
        0x70,
        "the subclass is cleared"
    );
    pc.msr_write(local_apic_msrs::APIC_BASE, LOCAL_APIC | 0x100);
    pc.set_task_priority(9);
    assert_eq!(pc.task_priority(), 9);
    pc.msr_write(local_apic_msrs::APIC_BASE, LOCAL_APIC | 0x900);
    assert_eq!(pc.task_priority(), 9);
    assert_eq!(load(&mut pc, LOCAL_APIC + 0x80), 0x90);
}

#[test]
fn the_local_apics_page_answers_where_its_base_says_and_nowhere_else() {
    let mut pc = pc();
    let version = load(&mut pc, LOCAL_APIC + 0x30);
    // These addresses are away from all devices, above 4 GiB, and over the I/O APIC.
    for address in [0xfed4_0000, 0x80_0000_0000, IO_APIC] {
        let base = address | 0x900;
        assert_eq!(pc.msr_write(local_apic_msrs::APIC_BASE, base), Some(true));
        assert_eq!(pc.msr_read(local_apic_msrs::APIC_BASE), Some(base));
        assert_eq!(load(&mut pc, address + 0x30), version);
        assert_eq!(load(&mut pc, LOCAL_APIC + 0x30), u32::MAX);
        store(&mut pc, address + 0x80, 0x40);
        assert_eq!(pc.task_priority(), 4);
    }
    pc.msr_write(local_apic_msrs::APIC_BASE, LOCAL_APIC | 0x900);
    assert_eq!(load(&mut pc, LOCAL_APIC + 0x30), version);
    store(&mut pc, IO_APIC, 1);
    assert_eq!(load(&mut pc, IO_APIC + 0x10), 0x0017_0020);
}

#[test]
fn the_timer_is_pin_2_of_the_io_apic() {
    let mut pc = pc();
    mask_pic(&mut pc);
    redirect(&mut pc, 2, 0x41);
    start_one_shot(&mut pc);
    wait_for_deadline(&mut pc);
    assert_eq!(pc.acknowledge_interrupt(), Some(0x41));
}

#[test]
fn the_apic_timer_interrupts_and_is_acknowledged_once() {
    let mut pc = pc();
    mask_pic(&mut pc);
    store(&mut pc, LOCAL_APIC + 0x3e0, 0b1011);
    store(&mut pc, LOCAL_APIC + 0x320, 0x50);
    store(&mut pc, LOCAL_APIC + 0x380, 100_000);
    wait_for_deadline(&mut pc);
    assert_eq!(pc.acknowledge_interrupt(), Some(0x50));
    assert!(!pc.interrupt_pending());
    store(&mut pc, LOCAL_APIC + 0xb0, 0);
    assert_eq!(pc.next_deadline(), None);
}

#[test]
fn the_tsc_deadline_timer_fires_when_the_counter_is_there() {
    let mut pc = pc();
    mask_pic(&mut pc);
    store(&mut pc, LOCAL_APIC + 0x320, 0x4_0050);
    let deadline = pc.time_stamp() + pc.tsc_khz();
    assert_eq!(
        pc.msr_write(local_apic_msrs::TSC_DEADLINE, deadline),
        Some(true)
    );
    assert_eq!(pc.msr_read(local_apic_msrs::TSC_DEADLINE), Some(deadline));
    while !pc.interrupt_pending() {
        wait_for_deadline(&mut pc);
    }
    assert!(pc.time_stamp() >= deadline);
    assert_eq!(pc.acknowledge_interrupt(), Some(0x50));
}

#[test]
fn a_level_interrupt_comes_again_until_its_cause_is_gone() {
    let mut pc = pc();
    redirect(&mut pc, 9, 0x8049);
    pc.port_write(0x602, 2, 1 << 8);
    pc.press_power_button();
    assert_eq!(pc.acknowledge_interrupt(), Some(0x49));
    store(&mut pc, LOCAL_APIC + 0xb0, 0);
    assert_eq!(pc.acknowledge_interrupt(), Some(0x49));
    pc.port_write(0x600, 2, 1 << 8);
    store(&mut pc, LOCAL_APIC + 0xb0, 0);
    assert!(!pc.interrupt_pending());
}

#[test]
fn serial_input_interrupts_and_output_reaches_the_sink() {
    let sink = Transcript::default();
    let mut pc = pc_with(Box::new(sink.clone()));
    redirect(&mut pc, 4, 0x34);
    out(&mut pc, 0x3fc, 0x0b);
    out(&mut pc, 0x3f9, 1);
    assert_eq!(pc.serial_input(b"hi"), 2);
    assert_eq!(pc.acknowledge_interrupt(), Some(0x34));
    assert_eq!(pc.port_read(0x3f8, 1), u32::from(b'h'));
    for byte in b"ok\n" {
        out(&mut pc, 0x3f8, *byte);
    }
    assert_eq!(sink.bytes(), b"ok\n");
    out(&mut pc, 0x3f8, b'#');
    drop(pc);
    assert_eq!(sink.bytes(), b"ok\n#");
}

#[test]
fn debug_consoles_write_to_their_sink() {
    let sink = Transcript::default();
    let mut pc = pc();
    pc.set_debug_output(Box::new(sink.clone()));
    assert_eq!(pc.port_read(0xe9, 1), 0xe9);
    out(&mut pc, 0xe9, b'A');
    out(&mut pc, 0x402, b'\n');
    assert_eq!(sink.bytes(), b"A\n");
}

#[test]
fn a_request_of_the_guest_comes_before_commands() {
    let mut pc = pc();
    pc.attention = true;
    out(&mut pc, 0xf4, 0x10);
    let requests: Vec<_> = std::iter::from_fn(|| pc.take_stop_request()).collect();
    let expected = [StopRequest::DebugExit(0x10), StopRequest::Attention];
    assert_eq!(requests, expected);
}

#[test]
fn each_way_to_stop_is_told_apart() {
    let stop = |accesses: &[(u16, u8, u32)]| {
        let mut pc = pc();
        for &(port, size, value) in accesses {
            pc.port_write(port, size, value);
        }
        let request = pc.take_stop_request();
        assert_eq!(pc.take_stop_request(), None);
        request
    };
    assert_eq!(
        stop(&[(0x604, 2, 5 << 10 | 1 << 13)]),
        Some(StopRequest::PowerOff)
    );
    let reset = |cause| Some(StopRequest::ProcessorReset(cause));
    let register = ResetCause::ResetRegister;
    assert_eq!(stop(&[(0xcf9, 1, 6)]), Some(StopRequest::Reset(register)));
    assert_eq!(stop(&[(0xcf9, 1, 4)]), reset(register));
    assert_eq!(
        stop(&[(0x64, 1, 0xfe)]),
        reset(ResetCause::KeyboardController)
    );
    assert_eq!(stop(&[(0x92, 1, 3)]), reset(ResetCause::SystemControlPort));
    let panic = |report| Some(StopRequest::Panic(report));
    assert_eq!(stop(&[(0x505, 1, 1)]), panic(PanicReport::Fatal));
    assert_eq!(stop(&[(0x505, 1, 2)]), panic(PanicReport::HandledByGuest));
    assert_eq!(stop(&[(0x505, 1, 0xfc)]), None);
    assert_eq!(stop(&[(0xf4, 4, 0x10)]), Some(StopRequest::DebugExit(0x10)));
    assert_eq!(stop(&[(0xcf8, 4, 0x8000_0600)]), None);
}

#[test]
fn both_gates_of_a20_agree() {
    let mut pc = pc();
    assert!(pc.a20_enabled());
    out(&mut pc, 0x92, 0);
    assert!(!pc.a20_enabled());
    out(&mut pc, 0x64, 0xd1);
    out(&mut pc, 0x60, 0xdf);
    assert!(pc.a20_enabled());
    assert_eq!(pc.port_read(0x92, 1) & 2, 2);
}

#[test]
fn an_x87_error_is_line_13_until_it_is_cleared() {
    let mut pc = pc();
    program_pic(&mut pc);
    pc.signal_fpu_error();
    assert_eq!(pc.acknowledge_interrupt(), Some(0x2d));
    out(&mut pc, 0xf0, 0);
    out(&mut pc, 0xa0, 0x20);
    out(&mut pc, 0x20, 0x20);
    assert!(!pc.interrupt_pending());
}

#[test]
fn an_nmi_waits_while_port_70h_holds_it_back() {
    let mut pc = pc();
    out(&mut pc, 0x70, 0x80);
    pc.raise_nmi();
    assert!(!pc.take_nmi());
    out(&mut pc, 0x70, 0);
    assert!(pc.take_nmi());
    assert!(!pc.take_nmi());
}

#[test]
fn timers_stand_still_while_paused() {
    let mut pc = pc();
    mask_pic(&mut pc);
    store(&mut pc, LOCAL_APIC + 0x3e0, 0b1011);
    store(&mut pc, LOCAL_APIC + 0x320, 0x50);
    store(&mut pc, LOCAL_APIC + 0x380, 20_000_000);
    pc.pause();
    let count = load(&mut pc, LOCAL_APIC + 0x390);
    std::thread::sleep(Duration::from_millis(30));
    pc.advance();
    assert!(!pc.interrupt_pending());
    assert_eq!(load(&mut pc, LOCAL_APIC + 0x390), count);
    pc.resume();
    wait_for_deadline(&mut pc);
    assert!(pc.interrupt_pending());
}

#[test]
fn reset_forgets_devices_but_not_the_time_of_day() {
    let mut pc = pc();
    redirect(&mut pc, 4, 0x34);
    pc.port_write(0x70, 2, 0x5a21);
    out(&mut pc, 0x92, 0);
    out(&mut pc, 0xcf9, 6);
    let before = pc.now();
    pc.reset();
    assert_eq!(pc.take_stop_request(), None);
    assert!(pc.a20_enabled());
    assert!(pc.now() >= before);
    store(&mut pc, IO_APIC, 0x18);
    assert_eq!(load(&mut pc, IO_APIC + 0x10), 0x1_0000);
    out(&mut pc, 0x70, 0x21);
    assert_eq!(pc.port_read(0x71, 1), 0x5a);
}

#[test]
fn no_access_to_any_port_harms() {
    let mut pc = pc();
    pc.set_debug_output(Box::new(io::sink()));
    for size in [1, 2, 4] {
        for port in 0..=u16::MAX {
            pc.port_read(port, size);
            pc.port_write(port, size, 0xa5a5_a5a5);
        }
        pc.advance();
        pc.next_deadline();
        pc.interrupt_pending();
    }
    // After a reset the machine works: a byte of the clock's memory, and an interrupt.
    pc.reset();
    _ = pc.take_stop_request();
    pc.port_write(0x70, 2, 0x5a21);
    out(&mut pc, 0x70, 0x21);
    assert_eq!(pc.port_read(0x71, 1), 0x5a);
    program_pic(&mut pc);
    mask_pic(&mut pc);
    out(&mut pc, 0x21, 0xfe);
    for (port, value) in [(0x43, 0x34), (0x40, 0xff), (0x40, 0xff)] {
        out(&mut pc, port, value);
    }
    wait_for_deadline(&mut pc);
    assert_eq!(pc.acknowledge_interrupt(), Some(0x20));
}

/// The bytes that wait for the serial port, whether a request is pending, and how many more times
/// the key A will be pressed and released.
struct Typist(Vec<u8>, bool, usize);

impl Outside for Typist {
    fn serial_input(&mut self, room: usize) -> Vec<u8> {
        let taken = self.0.len().min(room);
        self.0.drain(..taken).collect()
    }

    fn key(&mut self) -> Option<(Key, bool)> {
        self.2 = self.2.checked_sub(1)?;
        Some((Key::A, self.2 % 2 == 1))
    }

    fn wants_attention(&mut self) -> bool {
        std::mem::take(&mut self.1)
    }
}

#[test]
fn serial_input_from_outside_follows_as_the_guest_makes_room() {
    let mut pc = pc();
    let text: Vec<u8> = (0..u32::from(u16::MAX)).map(|at| at as u8).collect();
    pc.connect(Box::new(Typist(text.clone(), false, 0)));
    let room = pc.serial_input_space();
    assert!(room < text.len());
    pc.advance();
    let read: Vec<u8> = text.iter().map(|_| pc.port_read(0x3f8, 1) as u8).collect();
    assert!(read == text);
    assert_eq!(pc.port_read(0x3fd, 1) & 1, 0);
}

#[test]
fn keys_from_outside_follow_as_the_guest_reads_them() {
    const PRESSES: usize = 100;
    let mut pc = pc();
    pc.connect(Box::new(Typist(Vec::new(), false, 2 * PRESSES)));
    let mut read = Vec::new();
    while read.len() < 2 * PRESSES {
        pc.advance();
        if pc.port_read(0x64, 1) & 1 != 0 {
            read.push(pc.port_read(0x60, 1));
        }
    }
    assert!(read.chunks(2).all(|pair| pair == [0x1e, 0x9e]));
}

/// Acts as a BIOS and a program that reads its keys slowly: every key arrives, none twice.
#[test]
fn keys_from_outside_wait_while_the_bios_has_no_room_for_them() {
    const PRESSES: usize = 60;
    const PLACES: u16 = 16;
    let config = VmConfig::default();
    let memory = GuestMemory::new(config.memory_bytes).unwrap();
    let mut pc = Pc::new(&config, memory.clone(), Box::new(io::sink()));
    let put = |address, word: u16| {
        let bytes = word.to_le_bytes();
        assert!(memory.clone().write(PhysicalAddress(address), &bytes));
    };
    let place = |number: usize| 0x1e + 2 * (number as u16 % PLACES);
    for (address, word) in [(0x41a, 0x1e), (0x41c, 0x1e), (0x480, 0x1e), (0x482, 0x3e)] {
        put(address, word);
    }
    pc.connect(Box::new(Typist(Vec::new(), false, 2 * PRESSES)));
    let (mut came, mut taken) = (0, 0);
    let patience = Instant::now() + Duration::from_secs(60);
    while taken < PRESSES {
        assert!(Instant::now() < patience, "{came} keys came");
        // Makes only the calls that the machine has asked for.
        let due = pc.next_deadline().map_or(0, |at| at.since(pc.now()));
        std::thread::sleep(Duration::from_nanos(due.min(20_000_000)));
        pc.advance();
        if pc.port_read(0x64, 1) & 1 != 0 && pc.port_read(0x60, 1) == 0x1e {
            came += 1;
            assert!(came - taken < usize::from(PLACES), "the BIOS drops a key");
            put(0x41c, place(came));
        }
        // The program takes a key when the ring is full or all keys have come.
        if came - taken == usize::from(PLACES) - 1 || came == PRESSES {
            taken += 1;
            put(0x41a, place(taken));
        }
    }
    assert_eq!(came, PRESSES);
}

#[test]
fn attention_is_asked_for_once_by_connecting_and_once_by_each_request() {
    let mut pc = pc();
    assert_eq!(pc.take_stop_request(), None);
    pc.connect(Box::new(Typist(Vec::new(), true, 0)));
    assert_eq!(pc.take_stop_request(), Some(StopRequest::Attention));
    assert_eq!(pc.take_stop_request(), None);
    pc.request_stop(StopRequest::PowerOff);
    pc.advance();
    assert_eq!(pc.take_stop_request(), Some(StopRequest::PowerOff));
    assert_eq!(pc.take_stop_request(), Some(StopRequest::Attention));
}

#[test]
fn a_test_kernel_counts_processors_and_memory_by_fw_cfg() {
    let mut pc = pc();
    let mut read = |item: u32, bytes: u32| {
        pc.port_write(0x510, 2, item);
        (0..bytes).fold(0, |value, byte| {
            value | u64::from(pc.port_read(0x511, 1)) << (8 * byte)
        })
    };
    assert_eq!(read(0, 4), u64::from(u32::from_le_bytes(*b"QEMU")));
    assert_eq!(read(5, 2), 1);
    assert_eq!(read(3, 8), VmConfig::default().memory_bytes);
    // The selector is 16 bits wide.
    pc.port_write(0x510, 2, 0);
    pc.port_write(0x510, 1, 5);
    assert_eq!(pc.port_read(0x511, 1), u32::from(b'Q'));
    assert_eq!(pc.port_read(0x510, 2), 0xffff);
    assert_eq!(pc.port_read(0x514, 4), u32::from_le_bytes(*b"QEMU"));
}

#[test]
fn pc_testdev_drives_every_interrupt_line_if_it_is_there() {
    let config = VmConfig {
        devices: vec![crate::config::OptionalDevice::PcTestdev],
        ..VmConfig::default()
    };
    let memory = GuestMemory::new(config.memory_bytes).unwrap();
    let mut with = Pc::new(&config, memory, Box::new(io::sink()));
    mask_pic(&mut with);
    for (line, pin) in [(0, 2), (1, 1), (15, 15), (16, 16), (23, 23)] {
        redirect(&mut with, pin, 0x8060);
        out(&mut with, 0x2000 + line, 1);
        assert_eq!(with.acknowledge_interrupt(), Some(0x60), "line {line}");
        out(&mut with, 0x2000 + line, 0);
        store(&mut with, LOCAL_APIC + 0xb0, 0);
        assert!(!with.interrupt_pending(), "line {line}");
        redirect(&mut with, pin, 0x1_0000);
    }
    with.port_write(0xe0, 4, 0x1234_5678);
    assert_eq!(with.port_read(0xe8, 4), 0x1234_5678);
    assert_eq!(with.port_read(0xe9, 1), 0xe9, "the debug console's");
    store(&mut with, 0xff00_0000, 0x5555);
    assert_eq!(load(&mut with, 0xff00_0000), 0x5555);

    let mut without = pc();
    redirect(&mut without, 1, 0x8060);
    out(&mut without, 0x2001, 1);
    assert!(!without.interrupt_pending());
    without.port_write(0xe0, 4, 0);
    assert_eq!(without.port_read(0xe0, 4), u32::MAX);
    assert_eq!(load(&mut without, 0xff00_0000), u32::MAX);
}

#[test]
fn the_pci_bus_is_found_by_the_first_configuration_mechanism() {
    let mut pc = pc();
    // Linux detects PCI in this way.
    pc.port_write(0xcfb, 1, 1);
    pc.port_write(0xcf8, 4, 0x8000_0000);
    assert_eq!(pc.port_read(0xcf8, 4), 0x8000_0000);
    assert_eq!(pc.port_read(0xcfc, 4), 0x0008_1b36);
    pc.port_write(0xcf8, 4, 0x8000_0008);
    assert_eq!(pc.port_read(0xcfe, 2), 0x0600);
    // The reset register lies inside the address register and is not part of it.
    assert_eq!(pc.port_read(0xcf9, 1), 0);
    let config = VmConfig {
        pci: false,
        ..VmConfig::default()
    };
    let memory = GuestMemory::new(config.memory_bytes).unwrap();
    let mut pc = Pc::new(&config, memory, Box::new(io::sink()));
    pc.port_write(0xcf8, 4, 0x8000_0000);
    assert_eq!(pc.port_read(0xcf8, 4), u32::MAX);
    assert_eq!(pc.port_read(0xcfc, 4), u32::MAX);
}

#[test]
fn a_device_that_comes_or_goes_is_reported_by_a_general_event() {
    const GPE_STATUS: u16 = 0x620;
    let config = VmConfig {
        hot_plug: Some(HotPlug::default()),
        ..VmConfig::default()
    };
    let memory = GuestMemory::new(1 << 20).unwrap();
    let mut pc = Pc::new(&config, memory, Box::new(io::sink()));
    let reported = |pc: &mut Pc| {
        let status = pc.port_read(GPE_STATUS, 1);
        pc.port_write(GPE_STATUS, 1, 0xff);
        status
    };
    pc.plug(4, Box::new(Entropy::default())).unwrap();
    assert_eq!(reported(&mut pc), 1 << 1);
    assert!(pc.plug(4, Box::new(Entropy::default())).is_err());
    assert_eq!(reported(&mut pc), 0);
    pc.ask_for_ejection(4).unwrap();
    assert_eq!(reported(&mut pc), 1 << 1);
    // The guest may have missed it.
    pc.ask_for_ejection(4).unwrap();
    assert_eq!(reported(&mut pc), 1 << 1);
    pc.port_write(0xae08, 4, 1 << 4);
    assert_eq!(pc.take_stop_request(), Some(StopRequest::Attention));
    let slots: Vec<u8> = pc.take_ejected().iter().map(|(slot, _)| *slot).collect();
    assert_eq!(slots, [4]);
    assert!(pc.ask_for_ejection(4).is_err());
    assert_eq!(reported(&mut pc), 0);
}

#[test]
fn the_clocks_alarm_reaches_the_processor_as_an_event_of_acpi() {
    const PM1_STATUS: u16 = 0x600;
    const RTC_EVENT: u32 = 1 << 10;
    let mut pc = pc();
    mask_pic(&mut pc);
    redirect(&mut pc, 9, 0x0000_8051);
    pc.port_write(PM1_STATUS + 2, 2, RTC_EVENT);
    // Any second matches. The alarm's interrupt is enabled.
    for (register, value) in [(1, 0xff), (3, 0xff), (5, 0xff), (0x0b, 0x22)] {
        out(&mut pc, 0x70, register);
        out(&mut pc, 0x71, value);
    }
    while pc.port_read(PM1_STATUS, 2) & RTC_EVENT == 0 {
        assert!(!pc.interrupt_pending());
        wait_for_deadline(&mut pc);
    }
    assert_eq!(pc.acknowledge_interrupt(), Some(0x51));
}
