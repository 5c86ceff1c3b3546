//! Tests functions that come and go, and the registers by which the guest follows them.

use super::*;
use crate::bus::Bus;
use crate::bus::completion::Completer;
use tollgate_platform::StopRequest;
use tollgate_test_support::Random;

const INSERTED: u16 = 0xae00;
const LEAVING: u16 = 0xae04;
const EJECT: u16 = 0xae08;
const REMOVABLE: u16 = 0xae0c;
const BUS: u16 = 0xae10;

/// The slots after those of the nine functions that every guest here has.
const SLOTS: u32 = !0x3ff;

impl Guest {
    fn with_slots() -> Self {
        let guest = Self::new();
        Self {
            host: guest.host.with_hot_plug(SLOTS),
            ..guest
        }
    }

    fn plug(&mut self, slot: u8, name: &str) -> Result<(), String> {
        let context = &mut self.bench.context(0);
        self.host.plug(slot, Memory::boxed(name), context)
    }

    fn port(&mut self, port: u16) -> u32 {
        self.host.port_read(port, 4, &mut self.bench.context(0))
    }

    fn set_port(&mut self, port: u16, value: u32) {
        let context = &mut self.bench.context(0);
        self.host.port_write(port, 4, value, context);
    }

    fn ejected(&mut self) -> Vec<u8> {
        let ejected = self.host.take_ejected();
        ejected.into_iter().map(|(slot, _)| slot).collect()
    }

    fn names(&self) -> Vec<&str> {
        self.host.functions().map(PciFunction::name).collect()
    }
}

#[test]
fn a_function_comes_and_goes_when_the_guest_ejects_it() {
    let mut guest = Guest::with_slots();
    guest.plug(12, "new").unwrap();
    guest.plug(11, "other").unwrap();
    assert_eq!(guest.names()[10..], ["other", "new"]);
    assert_eq!(guest.port(INSERTED), 3 << 11);
    assert_eq!(guest.port(INSERTED), 0, "a read clears it");
    assert_eq!(guest.port(REMOVABLE), 3 << 11);
    // It works as the others do, with its line.
    guest.set_config(12, 0x14, 4, 0xc010_0000);
    guest.set_config(12, 4, 2, 7);
    guest.write(0xc010_003f, &[1]);
    assert!(guest.line(12));
    assert_eq!(guest.read(0xc010_003f) & 0xff, 1);

    guest.host.ask_for_ejection(12).unwrap();
    assert_eq!(guest.port(LEAVING), 1 << 12);
    assert_eq!(guest.read(0xc010_003f) & 0xff, 1, "it is still there");
    assert!(guest.bench.board.stop.is_none());
    guest.set_port(EJECT, 1 << 12);
    assert_eq!(guest.bench.board.stop, Some(StopRequest::Attention));
    assert_eq!(guest.port(LEAVING), 0);
    assert_eq!(guest.port(REMOVABLE), 1 << 11);
    assert!(!guest.line(12));
    assert_eq!(guest.config(12, 0, 4), u32::MAX);
    assert_eq!(guest.read(0xc010_003f), u32::MAX);
    assert_eq!(guest.ejected(), [12]);
    // The slot is free again, and what comes there knows nothing of its predecessor.
    guest.plug(12, "next").unwrap();
    assert_eq!(guest.config(12, 0x14, 4), 0);
    assert_eq!(guest.port(INSERTED), 1 << 12);
}

#[test]
fn only_free_slots_of_a_bus_with_hot_plug_take_functions() {
    let mut guest = Guest::new();
    assert!(guest.plug(12, "new").is_err());
    assert_eq!(guest.host.claims().ports.len(), 2);
    let mut guest = Guest::with_slots();
    assert_eq!(guest.host.claims().ports.len(), 3);
    for slot in [0, 9, 32, 255] {
        assert!(guest.plug(slot, "new").is_err(), "{slot}");
        assert!(guest.host.ask_for_ejection(slot).is_err(), "{slot}");
    }
    assert!(guest.host.ask_for_ejection(10).is_err());
    guest.plug(10, "new").unwrap();
    assert!(guest.plug(10, "more").unwrap_err().contains("occupied"));
}

#[test]
fn a_guest_may_eject_what_no_caller_has_asked_for_but_nothing_else() {
    let mut guest = Guest::with_slots();
    guest.plug(10, "x").unwrap();
    let at_start = guest.names().len() - 1;
    guest.set_port(EJECT, u32::MAX);
    assert_eq!(guest.ejected(), [10]);
    assert_eq!(guest.names().len(), at_start);
    guest.set_port(EJECT, u32::MAX);
    assert!(guest.ejected().is_empty());
    // There is no other bus.
    guest.plug(10, "y").unwrap();
    guest.set_port(BUS, 1);
    guest.set_port(EJECT, u32::MAX);
    assert_eq!(guest.port(REMOVABLE), 0);
    guest.set_port(BUS, 0);
    assert_eq!(guest.port(REMOVABLE), 1 << 10);
}

#[test]
fn a_reset_ends_the_wait_for_the_guest() {
    let mut guest = Guest::with_slots();
    for slot in [10, 11] {
        guest.plug(slot, &format!("new{slot}")).unwrap();
    }
    guest.host.ask_for_ejection(11).unwrap();
    guest.set_port(BUS, 7);
    guest.host.reset(&mut guest.bench.context(0));
    assert_eq!(guest.ejected(), [11]);
    let registers = [INSERTED, LEAVING, REMOVABLE, BUS].map(|port| guest.port(port));
    assert_eq!(registers, [0, 0, 1 << 10, 0]);
}

#[test]
fn what_waits_for_the_guest_is_saved() {
    let mut guest = Guest::with_slots();
    guest.plug(20, "new").unwrap();
    guest.host.ask_for_ejection(20).unwrap();
    let saved = guest.host.save();
    let mut other = Guest::with_slots();
    assert!(other.host.restore(&saved).is_err(), "a function is missing");
    other.host.insert(20, Memory::boxed("new")).unwrap();
    assert_eq!(other.port(INSERTED), 0);
    other.host.restore(&saved).unwrap();
    assert_eq!(other.host.save(), saved);
    assert_eq!(other.port(INSERTED), 1 << 20);
    assert_eq!(other.port(LEAVING), 1 << 20);
}

/// A function that notes the tokens of its threads.
struct Worker(Memory, std::sync::mpsc::Sender<Completer>, Vec<u64>);

impl PciFunction for Worker {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn config(&self) -> &ConfigSpace {
        self.0.config()
    }
    fn config_mut(&mut self) -> &mut ConfigSpace {
        self.0.config_mut()
    }
    fn connect(&mut self, completer: Completer) {
        self.1.send(completer).unwrap();
    }
    fn complete(&mut self, token: u64, _: &mut DeviceContext<'_>) {
        self.2.push(token);
    }
}

#[test]
fn work_of_threads_finds_its_function_whatever_comes_and_goes() {
    let Guest { mut bench, host } = Guest::with_slots();
    let mut bus = Bus::new();
    let (board, clock) = (&mut bench.board, &bench.clock);
    bus.add(Box::new(host), board, clock).unwrap();
    let (sender, completers) = std::sync::mpsc::channel();
    let mut plug = |bus: &mut Bus, slot: u8| {
        let memory = Memory::named(&format!("w{slot}"));
        let worker = Worker(memory, sender.clone(), Vec::new());
        let plugged = bus.with(board, clock, |host: &mut PciHost, context| {
            host.plug(slot, Box::new(worker), context)
        });
        plugged.unwrap().unwrap();
        completers.recv().unwrap()
    };
    let third = plug(&mut bus, 30);
    let first = plug(&mut bus, 10);
    let second = plug(&mut bus, 20);
    for (completer, token) in [(&first, 1), (&second, 2), (&third, 3)] {
        completer.send(token).unwrap();
    }
    // The first has gone when its thread is done.
    let board = &mut bench.board;
    bus.port_write(EJECT, 4, 1 << 10, board, clock);
    bus.take_completions(board, clock);
    let host: &PciHost = bus.get().unwrap();
    let functions = host.functions();
    let workers = functions.filter_map(|it| (it as &dyn std::any::Any).downcast_ref::<Worker>());
    let tokens: Vec<_> = workers.map(|worker| worker.2.clone()).collect();
    assert_eq!(tokens, [[2], [3]]);
}

#[test]
fn random_accesses_to_the_registers_are_survived() {
    let mut guest = Guest::with_slots();
    let mut random = Random::new(0x0bad_5107);
    let at_start = guest.names().len();
    for _ in 0..50_000 {
        let slot = random.below(40) as u8;
        let port = INSERTED + random.below(0x18) as u16;
        let size = 1 << random.below(3);
        let value = match random.below(4) {
            0 => 0,
            1 => 1 << (slot % 32),
            _ => random.next_u64() as u32,
        };
        match random.below(8) {
            0 => _ = guest.plug(slot, &format!("f{slot}")),
            1 => _ = guest.host.ask_for_ejection(slot),
            2 => {
                _ = guest
                    .host
                    .port_read(port, size, &mut guest.bench.context(0))
            }
            3 => guest.set_config(slot.into(), 4, 2, value),
            4 => guest.set_config(slot.into(), 0x10 + (value & 4), 4, value),
            5 => {
                let saved = guest.host.save();
                guest.host.restore(&saved).unwrap();
            }
            _ => {
                let context = &mut guest.bench.context(0);
                guest.host.port_write(port, size, value, context);
            }
        }
        if random.below(100) == 0 {
            assert!(guest.ejected().iter().all(|slot| SLOTS >> slot & 1 != 0));
        }
    }
    // The registers still work, and what was there from the start is there.
    guest.set_port(BUS, 0);
    guest.set_port(EJECT, u32::MAX);
    assert_eq!(guest.names().len(), at_start);
    assert_eq!(guest.port(REMOVABLE), 0);
    guest.plug(31, "last").unwrap();
    assert_eq!(guest.port(REMOVABLE), 1 << 31);
}
