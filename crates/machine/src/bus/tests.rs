//! Tests of the bus, with a device that records its calls.

use super::testing::Bench;
use super::*;
use crate::board::IrqLine;

/// Answers everywhere. Each read returns the next number.
struct Probe {
    name: &'static str,
    claims: Claims,
    seen: Vec<(u64, usize, u64)>,
    deadline: Option<GuestTime>,
    state: u32,
    moves_to: Option<Claims>,
}

impl Probe {
    fn new(name: &'static str, claims: Claims) -> Self {
        Self {
            name,
            claims,
            seen: Vec::new(),
            deadline: None,
            state: 1,
            moves_to: None,
        }
    }
}

impl Device for Probe {
    fn name(&self) -> &str {
        self.name
    }

    fn claims(&self) -> Claims {
        self.claims.clone()
    }

    fn port_read(&mut self, port: u16, size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        self.seen.push((port.into(), size.into(), u64::MAX));
        0x4433_2200 | self.seen.len() as u32
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32, context: &mut DeviceContext<'_>) {
        self.seen.push((port.into(), size.into(), value.into()));
        self.deadline = Some(GuestTime(value.into()));
        if let Some(claims) = self.moves_to.take() {
            self.claims = claims;
            context.claims_changed();
        }
    }

    fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        self.seen.push((address.0, data.len(), u64::MAX));
        data.fill(0x5a);
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        self.seen.push((address.0, data.len(), data[0].into()));
        context.memory().write(PhysicalAddress(0x100), data);
    }

    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        self.deadline
    }

    fn advance(&mut self, _context: &mut DeviceContext<'_>) {
        self.deadline = None;
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        self.state = 0;
    }

    fn save(&self) -> SavedState {
        SavedState::of(2, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        // Version 1 stored the complement of the state.
        self.state = match saved.version() {
            1 => !saved.read::<u32>(1)?,
            _ => saved.read(2)?,
        };
        Ok(())
    }
}

struct Machine {
    bus: Bus,
    bench: Bench,
}

impl Machine {
    fn new(devices: Vec<Probe>) -> Self {
        let (mut bus, mut bench) = (Bus::new(), Bench::new());
        for device in devices {
            let device = Box::new(device);
            bus.add(device, &mut bench.board, &bench.clock).unwrap();
        }
        Self { bus, bench }
    }

    fn read(&mut self, port: u16, size: u8) -> u32 {
        let Bench { board, clock } = &mut self.bench;
        self.bus.port_read(port, size, board, clock)
    }

    fn write(&mut self, port: u16, size: u8, value: u32) {
        let Bench { board, clock } = &mut self.bench;
        self.bus.port_write(port, size, value, board, clock);
    }

    fn load(&mut self, address: u64) -> u8 {
        let Bench { board, clock } = &mut self.bench;
        let mut byte = [0];
        let address = PhysicalAddress(address);
        self.bus.memory_read(address, &mut byte, board, clock);
        byte[0]
    }

    fn seen(&mut self) -> Vec<(u64, usize, u64)> {
        let Bench { board, clock } = &mut self.bench;
        let take = |probe: &mut Probe, _: &mut DeviceContext<'_>| std::mem::take(&mut probe.seen);
        self.bus.with(board, clock, take).unwrap()
    }
}

#[test]
fn a_wide_access_of_byte_ports_is_one_for_each_byte_and_unclaimed_ones_are_ones() {
    let mut machine = Machine::new(vec![Probe::new(
        "probe",
        Claims::none().with_byte_ports(0x20..=0x21),
    )]);
    assert_eq!(machine.read(0x1f, 4), 0xff02_01ff);
    machine.write(0x21, 2, 0xabcd);
    assert_eq!(
        machine.seen(),
        [(0x20, 1, u64::MAX), (0x21, 1, u64::MAX), (0x21, 1, 0xcd)]
    );
    assert_eq!(machine.read(0xffff, 4), 0xffff_ffff);
}

#[test]
fn only_devices_whose_deadline_has_come_are_called_for_a_timer() {
    let probe = |name, port| Probe::new(name, Claims::none().with_byte_ports(port..=port));
    let mut machine = Machine::new(vec![probe("due", 0x20), probe("later", 0x21)]);
    machine.write(0x20, 1, 5);
    machine.write(0x21, 1, 9);
    let Machine { bus, bench } = &mut machine;
    assert_eq!(bus.deadline(), Some(GuestTime(5)));
    bus.advance_due(&mut bench.board, &bench.clock, GuestTime(4));
    assert_eq!(bus.deadline(), Some(GuestTime(5)));
    bus.advance_due(&mut bench.board, &bench.clock, GuestTime(5));
    assert_eq!(bus.deadline(), Some(GuestTime(9)));
    bus.advance_due(&mut bench.board, &bench.clock, GuestTime(10));
    assert_eq!(bus.deadline(), None);
}

#[test]
fn a_device_of_any_width_gets_the_access_as_it_is_made() {
    let ports = Claims::none().with_ports(0x600..=0x603, PortWidth::Any);
    let mut machine = Machine::new(vec![Probe::new("probe", ports)]);
    assert_eq!(machine.read(0x602, 4), 0x4433_2201);
    assert_eq!(machine.read(0x602, 2), 0x2202);
    machine.write(0x603, 1, 0x1ff);
    assert_eq!(machine.seen()[2], (0x603, 1, 0xff));
}

#[test]
fn a_claim_of_one_width_leaves_other_widths_to_others() {
    let mut machine = Machine::new(vec![
        Probe::new("byte", Claims::none().with_byte_ports(0xcf9..=0xcf9)),
        Probe::new(
            "dword",
            Claims::none().with_ports(0xcf8..=0xcf8, PortWidth::Exactly(4)),
        ),
    ]);
    machine.write(0xcf8, 4, 0x600);
    assert_eq!(machine.seen(), []);
    machine.write(0xcf8, 2, 0x0600);
    assert_eq!(machine.seen(), [(0xcf9, 1, 6)]);
}

#[test]
fn of_two_claims_the_first_wins_and_the_other_keeps_the_rest() {
    let mut machine = Machine::new(vec![
        Probe::new("first", Claims::none().with_memory(0x2000, 0x1000)),
        Probe::new("second", Claims::none().with_memory(0x1000, 0x3000)),
        Probe::new("top", Claims::none().with_memory(u64::MAX - 1, 0x1000)),
    ]);
    for address in [0x1000, 0x1fff, 0x2000, 0x3000, 0x3fff, u64::MAX] {
        assert_eq!(machine.load(address), 0x5a, "{address:#x}");
    }
    for address in [0xfff, 0x4000, u64::MAX - 2] {
        assert_eq!(machine.load(address), 0xff, "{address:#x}");
    }
    assert_eq!(machine.seen(), [(0x2000, 1, u64::MAX)]);
}

#[test]
fn a_device_that_moves_answers_at_its_new_place_alone() {
    let mut probe = Probe::new("probe", Claims::none().with_byte_ports(0x80..=0x80));
    probe.moves_to = Some(
        Claims::none()
            .with_byte_ports(0x90..=0x90)
            .with_memory(0x9000, 16),
    );
    let mut machine = Machine::new(vec![probe]);
    machine.write(0x80, 1, 1);
    assert_eq!(machine.read(0x80, 1), 0xff);
    assert_eq!(machine.read(0x90, 1), 2);
    assert_eq!(machine.load(0x900f), 0x5a);
}

#[test]
fn the_earliest_deadline_of_all_devices_is_the_bus_s() {
    let mut machine = Machine::new(vec![
        Probe::new("a", Claims::none().with_byte_ports(1..=1)),
        Probe::new("b", Claims::none().with_byte_ports(2..=2)),
    ]);
    assert_eq!(machine.bus.deadline(), None);
    machine.write(1, 1, 70);
    machine.write(2, 1, 50);
    assert_eq!(machine.bus.deadline(), Some(GuestTime(50)));
    machine.write(2, 1, 90);
    assert_eq!(machine.bus.deadline(), Some(GuestTime(70)));
    let Bench { board, clock } = &mut machine.bench;
    machine.bus.advance(board, clock);
    assert_eq!(machine.bus.deadline(), None);
}

#[test]
fn devices_write_memory_through_the_gate() {
    let claims = Claims::none().with_memory(0xc000_0000, 0x1000);
    let mut machine = Machine::new(vec![Probe::new("probe", claims)]);
    let Bench { board, clock } = &mut machine.bench;
    board.memory.code().mark(PhysicalAddress(0x100), 4);
    let address = PhysicalAddress(0xc000_0ff0);
    machine.bus.memory_write(address, &[1, 2], board, clock);
    assert_eq!(board.memory.read_u32(PhysicalAddress(0x100)), 0x0201);
    assert!(board.memory.has_code_writes());
}

#[test]
fn names_are_unique_and_places_are_limited() {
    let (mut bus, mut bench) = (Bus::new(), Bench::new());
    let names: Vec<&'static str> = (0..MAX_DEVICES)
        .map(|number| &*Box::leak(format!("probe {number}").into_boxed_str()))
        .collect();
    for name in &names {
        let probe = Box::new(Probe::new(name, Claims::none()));
        bus.add(probe, &mut bench.board, &bench.clock).unwrap();
        let again = Box::new(Probe::new(name, Claims::none()));
        let error = bus.add(again, &mut bench.board, &bench.clock).unwrap_err();
        assert_eq!(error.device, *name);
    }
    let late = Box::new(Probe::new("late", Claims::none()));
    assert!(bus.add(late, &mut bench.board, &bench.clock).is_err());
}

#[test]
fn older_layouts_are_converted_by_the_device_and_unknown_ones_refused() {
    let mut machine = Machine::new(vec![Probe::new("probe", Claims::none())]);
    let old = vec![("probe".to_owned(), SavedState::of(1, &!7u32))];
    machine.bus.restore(&old).unwrap();
    assert_eq!(machine.bus.save()[0].1, SavedState::of(2, &7u32));
    let newer = vec![("probe".to_owned(), SavedState::of(3, &8u32))];
    let error = machine.bus.restore(&newer).unwrap_err();
    assert_eq!(
        error.to_string(),
        "saved state of 'probe' has version 3, this program reads version 2"
    );
    assert_eq!(machine.bus.save()[0].1, SavedState::of(2, &7u32));
}

/// Squares numbers on a thread of its own, which answers when the test allows it.
#[derive(Default)]
struct Worker {
    completer: Option<completion::Completer>,
    under_way: usize,
    done: Vec<u64>,
}

impl Device for Worker {
    fn name(&self) -> &str {
        "worker"
    }

    fn claims(&self) -> Claims {
        Claims::none()
    }

    fn connect(&mut self, completer: completion::Completer) {
        self.completer = Some(completer);
    }

    fn complete(&mut self, token: u64, context: &mut DeviceContext<'_>) {
        self.under_way -= 1;
        self.done.push(token);
        context
            .memory()
            .write_u32(PhysicalAddress(0x100), token as u32);
    }

    fn has_pending_work(&self) -> bool {
        self.under_way > 0
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn save(&self) -> SavedState {
        SavedState::of(1, &self.done)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        self.done = saved.read(1)?;
        Ok(())
    }
}

#[test]
fn what_threads_have_done_reaches_their_device_before_its_state_is_saved() {
    let (mut bus, mut bench) = (Bus::new(), Bench::new());
    let (board, clock) = (&mut bench.board, &bench.clock);
    let other = Probe::new("probe", Claims::none());
    bus.add(Box::new(other), board, clock).unwrap();
    bus.add(Box::new(Worker::default()), board, clock).unwrap();
    let (ask, asked) = std::sync::mpsc::channel::<u64>();
    let completer = bus
        .with(board, clock, |worker: &mut Worker, _| {
            worker.under_way = 3;
            worker.completer.clone().unwrap()
        })
        .unwrap();
    let thread = std::thread::spawn(move || {
        for number in asked {
            completer.send(number * number).unwrap();
        }
    });
    let busy = bus.quiesce(board, clock, Duration::ZERO).unwrap_err();
    assert_eq!(busy.to_string(), "'worker' still has unfinished work");
    (1..=3).for_each(|number| ask.send(number).unwrap());
    bus.quiesce(board, clock, Duration::from_secs(60)).unwrap();
    assert_eq!(bus.get::<Worker>().unwrap().done, [1, 4, 9]);
    assert_eq!(board.memory.read_u32(PhysicalAddress(0x100)), 9);
    drop(ask);
    thread.join().unwrap();
}

#[test]
fn completions_that_are_left_for_an_interrupt_come_next() {
    let (mut bus, mut bench) = (Bus::new(), Bench::new());
    let (board, clock) = (&mut bench.board, &bench.clock);
    bus.add(Box::new(Worker::default()), board, clock).unwrap();
    let completer = bus
        .with(board, clock, |worker: &mut Worker, _| {
            worker.under_way = 5;
            worker.completer.clone().unwrap()
        })
        .unwrap();
    let send = |tokens: std::ops::RangeInclusive<u64>| {
        let completer = completer.clone();
        let sent = move || tokens.for_each(|token| completer.send(token).unwrap());
        std::thread::spawn(sent).join().unwrap();
    };
    let done = |bus: &Bus| bus.get::<Worker>().unwrap().done.clone();
    send(1..=3);
    assert!(bus.take_completions_until(board, clock, |_| true));
    assert_eq!(done(&bus), [1]);
    send(4..=5);
    for last in 2..=4 {
        assert!(bus.take_completions_until(board, clock, |_| true));
        assert!(done(&bus).into_iter().eq(1..=last));
    }
    // After the last completion there is nothing to stop for.
    assert!(!bus.take_completions_until(board, clock, |_| true));
    assert_eq!(done(&bus), [1, 2, 3, 4, 5]);
}

#[test]
fn a_shared_line_is_asserted_while_any_device_asserts_it() {
    let mut bench = Bench::new();
    program_pin(&mut bench, 17, 0x8051);
    bench.context(3).set_line(17, true);
    bench.context(4).set_line(17, true);
    bench.context(3).set_line(17, false);
    let interrupts = &mut bench.board.interrupts;
    assert_eq!(interrupts.acknowledge(), Some(0x51));
    end_of_interrupt(&mut bench, 0x51);
    assert_eq!(bench.board.interrupts.acknowledge(), Some(0x51));
    bench.context(4).set_line(17, false);
    end_of_interrupt(&mut bench, 0x51);
    assert!(!bench.board.interrupts.pending());
}

#[test]
fn every_line_of_the_io_apic_can_be_driven_and_no_other() {
    for pin in 16..24 {
        let mut bench = Bench::new();
        program_pin(&mut bench, pin, 0x40 + u32::from(pin));
        let mut line = IrqLine::low();
        line.record(3, false);
        assert_eq!(bench.context(0).forward(pin, &mut line), 3);
        let vector = bench.board.interrupts.acknowledge();
        assert_eq!(vector, Some(0x40 + pin));
        assert!(!bench.board.interrupts.pending());
    }
    let mut bench = Bench::new();
    for line in 24..=255 {
        bench.context(255).set_line(line, true);
    }
    assert!(!bench.board.interrupts.pending());
}

#[test]
fn messages_arrive_in_every_delivery_mode() {
    let mut bench = Bench::new();
    assert!(bench.context(0).send_message(0xfee0_0000, 0x61));
    assert!(bench.context(0).send_message(0xfeef_f000, 0x162));
    assert_eq!(bench.board.interrupts.acknowledge(), Some(0x62));
    end_of_interrupt(&mut bench, 0x62);
    assert_eq!(bench.board.interrupts.acknowledge(), Some(0x61));
    end_of_interrupt(&mut bench, 0x61);
    assert!(bench.context(0).send_message(0xfee0_0000, 0x400));
    assert!(bench.board.interrupts.take_nmi());
    assert!(!bench.board.interrupts.pending());
    // The vector comes from the 8259: the spurious one, because no device requests an interrupt.
    assert!(bench.context(0).send_message(0xfee0_0000, 0x700));
    assert!(bench.board.interrupts.pending());
    assert_eq!(bench.board.interrupts.acknowledge(), Some(7));
    assert!(!bench.board.interrupts.pending());
    // A message to another APIC, one with a reserved mode, and a write that is no message.
    assert!(!bench.context(0).send_message(0xfee0_1000, 0x61));
    assert!(!bench.context(0).send_message(0xfee0_0000, 0x361));
    assert!(!bench.context(0).send_message(0xfed0_0000, 0x61));
    assert!(!bench.board.interrupts.pending());
}

fn program_pin(bench: &mut Bench, pin: u8, entry: u32) {
    let interrupts = &mut bench.board.interrupts;
    let local_apic = &mut interrupts.local_apic;
    let io_apic = &mut interrupts.io_apic;
    io_apic.write(0, &[0x10 + 2 * pin], local_apic);
    io_apic.write(0x10, &entry.to_le_bytes(), local_apic);
}

fn end_of_interrupt(bench: &mut Bench, vector: u8) {
    let interrupts = &mut bench.board.interrupts;
    let ended = interrupts
        .local_apic
        .write(0xb0, &[0; 4], &bench.clock)
        .unwrap_or(vector);
    assert_eq!(ended, vector);
    interrupts.end_of_interrupt(vector);
}
