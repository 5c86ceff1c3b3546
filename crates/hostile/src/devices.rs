//! Hostile input for devices: a random guest that accesses ports and registers of the real PC, with
//! random times between the accesses. Sometimes the machine is saved, written as text, and read
//! back.

use crate::input::Input;
use crate::saving::saved;
use std::io;
use tollgate_machine::board::input::{Buttons, Key, MouseEvent};
use tollgate_machine::board::io_apic;
use tollgate_machine::config::{HotPlug, PluggedFunction, VmConfig};
use tollgate_machine::device_list::BackEnds;
use tollgate_machine::devices::chipset::rom::FirmwareRom;
use tollgate_machine::devices::flash::FlashImage;
use tollgate_machine::devices::virtio::entropy::Entropy;
use tollgate_machine::pc::{Pc, PcState};
use tollgate_memory::GuestMemory;
use tollgate_platform::Platform;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::local_apic_msrs::{APIC_BASE, APIC_DEFAULT_ADDRESS, TSC_DEADLINE};

/// Ports of devices, and adjacent ones.
const PORTS: [u16; 71] = [
    0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1, 0x40, 0x41, 0x42, 0x43, 0x61, 0x60, 0x64, 0x70, 0x71,
    0x72, 0x3f8, 0x3f9, 0x3fa, 0x3fb, 0x3fc, 0x3fd, 0x3fe, 0x3ff, 0x80, 0x92, 0xe9, 0x402, 0xf4,
    0xf5, 0xf6, 0xf7, 0xcf8, 0xcf9, 0xcfc, 0xf0, 0xf1, 0x600, 0x601, 0x602, 0x604, 0x605, 0x608,
    0x60b, 0x1f, 0x44, 0x3f7, 0xffff, 0x3b4, 0x3b5, 0x3c0, 0x3c1, 0x3c2, 0x3c4, 0x3c5, 0x3c8,
    0x3c9, 0x3ce, 0x3cf, 0x3d4, 0x3d5, 0x3da, 0x1ce, 0x1cf, 0x1d0, 0x510, 0xae00, 0xae04, 0xae08,
    0xae0c, 0xae10,
];
const LOCAL_APIC: u64 = APIC_DEFAULT_ADDRESS;
const MSRS: [u32; 4] = [APIC_BASE, TSC_DEADLINE, 0x10, 0x802];
/// Maximum number of steps of one input.
const MAX_STEPS: u32 = 2000;

/// Makes the guest's accesses that the input describes.
///
/// # Panics
///
/// Panics if a device breaks a promise.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    // A machine with firmware has a chip set and a display adapter.
    let choice = input.byte();
    let has_firmware = choice & 1 != 0;
    let flash = match choice & 2 != 0 {
        true => (0..2)
            .map(|_| FlashImage::in_memory(vec![0x90; 0x3_0000]))
            .collect(),
        false => Vec::new(),
    };
    let has_rom = flash.is_empty();
    let back_ends = BackEnds {
        flash,
        ..BackEnds::default()
    };
    let config = VmConfig {
        memory_bytes: 16 << 20,
        firmware: has_firmware.then(|| "rom".into()),
        hot_plug: Some(HotPlug::default()),
        ..VmConfig::default()
    };
    let memory = GuestMemory::new(config.memory_bytes).expect("memory");
    let sink = Box::new(io::sink());
    let mut pc = Pc::with_back_ends(&config, memory.clone(), sink, back_ends);
    if has_firmware {
        let bytes = 0x3_0000;
        let block = memory.new_block(bytes).expect("memory");
        let rom = has_rom.then_some(FirmwareRom { block, bytes });
        pc.set_firmware(rom).expect("memory");
    }
    pc.set_debug_output(Box::new(io::sink()));
    // Time passes only in the steps that the input describes.
    pc.pause();
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut pc, &mut input);
    }
    check_deadline(&mut pc);
    // The maximum time that can pass.
    pass(&mut pc, u64::MAX, u64::MAX);
    check_that_it_works_after_a_reset(&mut pc);
}

/// Checks that a guest that begins again finds devices that do what it asks for: the interrupt
/// controllers, the clock's memory and the serial port.
fn check_that_it_works_after_a_reset(pc: &mut Pc) {
    pc.reset();
    for (port, value) in [
        (0x20, 0x11),
        (0x21, 0x20),
        (0x21, 4),
        (0x21, 1),
        (0x21, 0xa5),
        (0x70, 0x50),
        (0x71, 0x5a),
        (0x3ff, 0x3c),
    ] {
        pc.port_write(port, 1, value);
    }
    let found = [0x21, 0x71, 0x3ff].map(|port| pc.port_read(port, 1));
    assert_eq!(found, [0xa5, 0x5a, 0x3c], "{found:x?}");
}

fn step(pc: &mut Pc, input: &mut Input<'_>) {
    let what = input.byte();
    match what & 15 {
        0..=2 => {
            let (port, size) = (port(input), size(what));
            let value = input.dword() & (u32::MAX >> (32 - 8 * u32::from(size)));
            pc.port_write(port, size, value);
        }
        3 if what & 0x10 == 0 => pc.port_write(port(input), 1, input.byte().into()),
        3 => configuration(pc, input),
        4 | 5 => {
            let size = size(what);
            let value = pc.port_read(port(input), size);
            assert!(u64::from(value) >> (8 * size) == 0, "{value:#x} of {size}");
        }
        6 => pc.memory_write(register(input), &input.dword().to_le_bytes()),
        7 => {
            let (address, count) = (register(input), 1 + input.byte() % 64);
            let mut bytes = input.bytes(count.into()).to_vec();
            bytes.resize(count.into(), 0xa5);
            if what & 0x10 == 0 {
                pc.memory_write(address, &bytes);
            } else {
                pc.memory_read(address, &mut bytes);
            }
        }
        8 => pass(pc, input.byte().into(), input.byte().into()),
        9 => {
            let nanoseconds = input.dword();
            pass(pc, nanoseconds.into(), u64::from(nanoseconds) * 3);
        }
        10 if what & 0x10 == 0 => pass(pc, input.qword() >> (what >> 5), input.qword()),
        10 => pass_to_deadline(pc),
        11 => msr(pc, input),
        12 => {
            let waited = pc.interrupt_pending();
            let vector = pc.acknowledge_interrupt();
            assert!(
                waited || vector.is_none(),
                "{vector:?} is an interrupt without a source"
            );
            pc.take_nmi();
        }
        13 => {
            let space = pc.serial_input_space();
            let count = usize::from(input.byte());
            let taken = pc.serial_input(input.bytes(count));
            assert!(taken <= space);
        }
        14 => match what >> 4 {
            0 => pc.press_power_button(),
            1 => pc.raise_nmi(),
            2 => pc.signal_fpu_error(),
            3 => pc.reset(),
            4 => _ = pc.take_stop_request(),
            5 => pc.flush_output(),
            6 => _ = pc.picture(),
            8 => pc.mouse(MouseEvent {
                right: input.dword() as i32,
                down: (input.byte() as i8).into(),
                wheel: (input.byte() as i8).into(),
                buttons: Buttons::from_bits_truncate(input.byte()),
            }),
            9 => come_or_go(pc, input.byte()),
            _ => pc.key(Key::extended(input.byte()), what & 0x80 != 0),
        },
        _ => save_and_restore(pc),
    }
}

/// Plugs a device into a slot of the PCI bus, or asks the guest to eject the one that is there.
fn come_or_go(pc: &mut Pc, choice: u8) {
    let slot = choice % 8;
    if choice & 0x80 == 0 {
        let device = Entropy::numbered(PluggedFunction::number(slot));
        // The slot may be occupied.
        let _ = pc.plug(slot, Box::new(device));
    } else {
        let _ = pc.ask_for_ejection(slot);
    }
    drop(pc.take_ejected());
}

/// Writes a register of a PCI function's configuration space.
fn configuration(pc: &mut Pc, input: &mut Input<'_>) {
    let function = u32::from(input.byte() % 8) << 11;
    let address = 1 << 31 | function | u32::from(input.byte() & 0xfc);
    pc.port_write(0xcf8, 4, address);
    pc.port_write(0xcfc, 4, input.dword());
}

fn size(what: u8) -> u8 {
    [1, 1, 2, 4][usize::from(what >> 4 & 3)]
}

fn port(input: &mut Input<'_>) -> u16 {
    let choice = input.byte();
    match PORTS.get(usize::from(choice)) {
        Some(port) => *port,
        None if choice >= 0xf0 => input.word(),
        None => PORTS[usize::from(choice) % PORTS.len()],
    }
}

/// A register of one of the APICs, or an address next to them.
fn register(input: &mut Input<'_>) -> PhysicalAddress {
    let choice = input.byte();
    let offset = u64::from(choice >> 2) * 0x10;
    if choice >= 0xf8 {
        // An address in flash memory.
        return PhysicalAddress(0xfffa_0000 + u64::from(input.word()) * 6);
    }
    if choice >= 0xf0 {
        // An address in the display's window or the chip set's area.
        return PhysicalAddress(0xa_0000 + 6 * u64::from(input.word()));
    }
    PhysicalAddress(match choice & 3 {
        0 => LOCAL_APIC + offset,
        1 => io_apic::BASE_ADDRESS + (offset & 0x10),
        2 => LOCAL_APIC + u64::from(input.word()) % 0x1100,
        _ => io_apic::BASE_ADDRESS.wrapping_add(input.qword() >> (choice >> 2)),
    })
}

fn msr(pc: &mut Pc, input: &mut Input<'_>) {
    let choice = input.byte();
    let index = MSRS[usize::from(choice & 3)];
    if choice & 0x80 != 0 {
        pc.msr_read(index);
    } else {
        pc.msr_write(index, input.qword());
    }
}

/// Lets time pass, and handles what has become due.
fn pass(pc: &mut Pc, nanoseconds: u64, ticks: u64) {
    let state = pc.save().expect("idle").later(nanoseconds, ticks);
    pc.restore(state).expect("its own version");
    check_deadline(pc);
}

/// Checks that everything due was done: the next deadline lies in the future.
fn check_deadline(pc: &mut Pc) {
    pc.advance();
    let (now, deadline) = (pc.now(), pc.next_deadline());
    assert!(
        deadline.is_none_or(|deadline| deadline > now || now.0 == u64::MAX),
        "{deadline:?} is not after {now:?}"
    );
}

fn pass_to_deadline(pc: &mut Pc) {
    let wait = pc.next_deadline().map_or(0, |next| next.since(pc.now()));
    pass(pc, wait, wait);
}

/// Checks that the machine is unchanged after it was saved to a file and restored.
fn save_and_restore(pc: &mut Pc) {
    let Some(state) = saved(pc) else {
        return;
    };
    let text = serde_json::to_string(&state).expect("plain data");
    let state: PcState = serde_json::from_str(&text).expect("what was just written");
    pc.restore(state).expect("its own version");
    let again = serde_json::to_string(&pc.save().expect("idle")).expect("plain data");
    assert_eq!(again, text);
}

/// Devices that are programmed as kernels do, and read back.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let index = |port| PORTS.iter().position(|known| *known == port).unwrap_or(0) as u8;
    let out = |writes: &[(u16, u8)]| -> Vec<u8> {
        let each = writes.iter().map(|(port, value)| [3, index(*port), *value]);
        each.flatten().collect()
    };
    let apic = |writes: &[(u8, u32)]| -> Vec<u8> {
        let each = writes.iter().map(|(number, value)| {
            let mut step = vec![6, number << 2];
            step.extend(value.to_le_bytes());
            step
        });
        each.flatten().collect()
    };
    let go_on: &[u8] = &[0x1a, 12, 0x1a, 12, 4, 0, 0x1a, 15, 0x1a, 12];
    let interrupt_controller = out(&[
        (0x20, 0x11),
        (0x21, 0x20),
        (0x21, 4),
        (0x21, 1),
        (0xa0, 0x11),
        (0xa1, 0x28),
        (0xa1, 2),
        (0xa1, 1),
        (0x21, 0),
        (0xa1, 0),
    ]);
    let timer = out(&[(0x43, 0x34), (0x40, 0x9c), (0x40, 0x2e), (0x43, 0xb6)]);
    let clock = out(&[(0x70, 0x0a), (0x71, 0x26), (0x70, 0x0b), (0x71, 0x72)]);
    let serial = out(&[
        (0x3fb, 3),
        (0x3f9, 3),
        (0x3fa, 7),
        (0x3fc, 0x1b),
        (0x3f8, 65),
    ]);
    let keyboard = out(&[
        (0x64, 0x60),
        (0x60, 0x47),
        (0x60, 0xf4),
        (0x64, 0xd1),
        (0x60, 3),
    ]);
    // The mouse, reached by command D4h: with a wheel, reporting, moved.
    let to_mouse = [0xf3, 200, 0xf3, 100, 0xf3, 80, 0xf4].map(|byte| [(0x64, 0xd4), (0x60, byte)]);
    let mut mouse = out(to_mouse.as_flattened());
    mouse.extend([0x8e, 3, 0, 0, 0, 0xfe, 1, 1]);
    let local_apic = apic(&[(0x0f, 0x1ff), (0x32, 0x2_0040), (0x3e, 3), (0x38, 1000)]);
    let one_each: [(&str, &[u8]); 6] = [
        ("timer", &timer),
        ("clock", &clock),
        ("serial", &serial),
        ("keyboard", &keyboard),
        ("mouse", &mouse),
        ("local-apic", &local_apic),
    ];
    let mut seeds: Vec<_> = one_each
        .iter()
        .map(|(name, steps)| {
            let input = [interrupt_controller.as_slice(), steps, go_on].concat();
            ((*name).to_owned(), input)
        })
        .collect();
    let all = one_each.iter().flat_map(|(_, steps)| *steps).copied();
    seeds.push(("all".into(), all.chain(go_on.iter().copied()).collect()));
    seeds
}
