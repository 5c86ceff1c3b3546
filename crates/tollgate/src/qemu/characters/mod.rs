//! The places for characters, and the thread that moves characters between them and the guest.
//!
//! ```text
//!   guest                   pairs of sockets      Place: users, focus, keys     End
//!   serial port, ports of  ------------------->  --------------------------->  terminal, file,
//!   virtio consoles        <-------------------  <---------------------------  socket, pty, ring
//! ```
//!
//! Only input of the serial port goes another way: through the machine's handle, as it is paced by the
//! guest. While the host does not take output, at most 64 KiB of it wait, then the guest does.

mod end;
mod keys;
mod place;
mod telnet;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tollgate_confine::ThreadKind;
use tollgate_host_facts::file_words::writing;
use tollgate_machine::config::{OnLoss, PortOptions, PortTarget};
use tollgate_machine::vm::{Consoles, Vm};
use tollgate_machine::vm_handle::{State, VmHandle};
use tollgate_qemu_words::monitor::{Event, Hmp, Qmp};
use tollgate_qemu_words::{Configuration, MonitorMode};

use self::end::End;
use self::keys::Keys;
use self::place::{Place, Session, User};
use super::exit_code::failed;
use super::orders::Orders;
use crate::failure::{Failure, say};
use crate::host;
use tollgate_qemu_words::monitor::Machine;

/// How long to wait before input that found no room is offered again.
const INPUT_RETRY: Duration = Duration::from_millis(5);
/// How long the end waits for a reader of the guest's last output.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// The guest's ends, which the machine's devices use.
pub struct GuestEnds {
    /// Those of the first and the second serial port.
    serial: [Option<UnixStream>; 2],
    printer: Option<UnixStream>,
    debug: Option<UnixStream>,
    ports: Vec<Option<UnixStream>>,
}

/// All places, before the thread runs.
pub struct Characters {
    places: Vec<Place>,
    handle: VmHandle,
    orders: Orders,
}

/// Opens all places. The guest's ends stay with the caller, so that several machines after each
/// other can use them.
///
/// # Errors
/// One line says which place cannot be opened, and why.
pub fn open(
    config: &Configuration,
    handle: &VmHandle,
    mut orders: Orders,
) -> Result<(Characters, GuestEnds), Failure> {
    let mut places = Vec::new();
    for character in &config.characters {
        let end = End::open(&character.id, &character.backend)?;
        let log = match &character.log {
            None => None,
            Some((path, append)) => {
                let mut options = OpenOptions::new();
                options
                    .write(true)
                    .create(true)
                    .append(*append)
                    .truncate(!append);
                let refused =
                    |error| failed(format!("logfile '{}': {}", path.display(), writing(&error)));
                Some(options.open(path).map_err(refused)?)
            }
        };
        orders.labels.push(end.label.clone());
        if let Some(ring) = end.ring() {
            orders.rings.push((character.id.clone(), ring));
        }
        let keys = character.mux.then(|| Keys::new(config.escape));
        places.push(Place::new(&character.id, end, keys, log));
    }
    let mut characters = Characters {
        places,
        handle: handle.clone(),
        orders,
    };
    let refused = |error: io::Error| failed(format!("no descriptor for a console: {error}"));
    let mut serial = [None, None];
    for (number, end) in serial.iter_mut().enumerate() {
        if let Some(Some(id)) = config.serial.get(number) {
            let connected = characters.connect(id, Kind::Serial(number));
            *end = Some(connected.map_err(refused)?);
        }
    }
    let printer = config.parallel.as_ref();
    let printer = printer
        .map(|id| characters.connect(id, Kind::Output))
        .transpose();
    let debug = config.debug_console.as_ref();
    let debug = debug
        .map(|it| characters.connect(&it.character, Kind::Output))
        .transpose();
    let ends = GuestEnds {
        serial,
        printer: printer.map_err(refused)?,
        debug: debug.map_err(refused)?,
        ports: config
            .ports
            .iter()
            .map(|port| {
                let id = port.character.as_ref();
                id.map(|id| characters.connect(id, Kind::Port)).transpose()
            })
            .collect::<io::Result<_>>()
            .map_err(refused)?,
    };
    for monitor in &config.monitors {
        let mut places = characters.places.iter_mut();
        let place = places.find(|place| place.id == monitor.character);
        if let Some(place) = place {
            place.users.push(User::monitor(match monitor.mode {
                MonitorMode::Readline => Session::Readline(Hmp::default()),
                MonitorMode::Control(is_pretty) => Session::Control(Qmp::new(is_pretty)),
            }));
        }
    }
    Ok((characters, ends))
}

/// What uses a place.
enum Kind {
    Serial(usize),
    Output,
    Port,
}

impl Characters {
    /// Adds a user to a place and returns the guest's end.
    fn connect(&mut self, id: &str, kind: Kind) -> io::Result<UnixStream> {
        let (ours, guest) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        if let Some(place) = self.places.iter_mut().find(|place| place.id == id) {
            place.users.push(match kind {
                Kind::Serial(0) => User::serial(ours, self.handle.clone(), VmHandle::serial_input),
                Kind::Serial(_) => {
                    User::serial(ours, self.handle.clone(), VmHandle::second_serial_input)
                }
                Kind::Output => User::output(ours),
                Kind::Port => User::port(ours),
            });
        }
        Ok(guest)
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The host gives no thread or descriptor.
    pub fn start(self) -> io::Result<Running> {
        let shared = Arc::new(Shared {
            bell: host::event()?,
            ends: AtomicBool::new(false),
            events: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        // A monitor, a control client or a debugger stops the machine, or lets it continue.
        let (told, handle) = (Arc::clone(&shared), self.handle.clone());
        let was_paused = AtomicBool::new(self.orders.configuration().paused);
        self.handle.add_listener(Arc::new(move || {
            if handle.has_ejected() {
                host::raise(told.bell.as_fd());
            }
            let (is_paused, event) = match handle.status().state {
                State::Paused => (true, Event::Stop),
                State::Running | State::Halted => (false, Event::Resume),
                State::Starting | State::Stopped => return,
            };
            if was_paused.swap(is_paused, Ordering::AcqRel) != is_paused {
                told.tell(event);
            }
        }));
        let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
        let thread = Builder::new().name("characters".into()).spawn(move || {
            entry.enter();
            self.run(&theirs);
        })?;
        Ok(Running {
            thread: Some(thread),
            shared,
        })
    }

    fn run(mut self, shared: &Shared) {
        let mut fds = Vec::new();
        let mut end_by = None;
        for place in &mut self.places {
            place.begin();
        }
        loop {
            fds.clear();
            fds.push(host::interest(shared.bell.as_raw_fd(), libc::POLLIN));
            let places = self.places.iter();
            let slots: Vec<_> = places.map(|place| place.add_interests(&mut fds)).collect();
            let retry = self
                .places
                .iter()
                .any(Place::must_offer_again)
                .then_some(INPUT_RETRY);
            let left = end_by.map(|by: Instant| by.saturating_duration_since(Instant::now()));
            if let Err(error) = host::poll(&mut fds, retry.into_iter().chain(left).min()) {
                say(&format!("characters cannot be waited for: {error}"));
                return self.handle.quit();
            }
            if fds[0].revents != 0 {
                let _ = host::read(shared.bell.as_fd(), &mut [0; 8]);
            }
            for (place, slots) in self.places.iter_mut().zip(&slots) {
                if place.serve(slots, &fds, &mut self.orders) {
                    self.orders.quit();
                }
            }
            self.orders.note_ejected();
            let mut events = shared.events.lock().unwrap_or_else(PoisonError::into_inner);
            for event in self.orders.events.drain(..).chain(events.drain(..)) {
                for place in &mut self.places {
                    place.tell(&event);
                }
            }
            drop(events);
            if shared.ends.load(Ordering::Acquire) {
                let by = *end_by.get_or_insert_with(|| Instant::now() + LAST_WAIT);
                if self.places.iter().all(Place::is_done) || by <= Instant::now() {
                    return;
                }
            }
        }
    }
}

struct Shared {
    /// Wakes the thread.
    bell: OwnedFd,
    /// Whether the machine has ended.
    ends: AtomicBool,
    /// Events for monitors.
    events: Mutex<Vec<Event>>,
}

impl Shared {
    fn tell(&self, event: Event) {
        let events = self.events.lock();
        events.unwrap_or_else(PoisonError::into_inner).push(event);
        host::raise(self.bell.as_fd());
    }
}

/// The thread. Dropping this, after the guest's ends, waits until the guest's last output is
/// written.
pub struct Running {
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Running {
    /// Tells programs at monitors what happened.
    pub fn tell(&self, event: Event) {
        self.shared.tell(event);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        host::raise(self.shared.bell.as_fd());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of that thread.
            let _ = thread.join();
        }
    }
}

/// What writes to an end, or to nothing.
fn writer(end: &Option<UnixStream>) -> io::Result<Box<dyn Write + Send>> {
    Ok(match end {
        Some(stream) => Box::new(stream.try_clone()?),
        None => Box::new(io::sink()),
    })
}

impl GuestEnds {
    /// Connects the second serial port and the printer of a machine.
    ///
    /// # Errors
    /// The host gives no descriptor.
    pub fn connect_others(&self, vm: &mut Vm) -> io::Result<()> {
        vm.set_other_outputs(writer(&self.serial[1])?, writer(&self.printer)?);
        Ok(())
    }

    /// The consoles of a machine.
    ///
    /// # Errors
    /// The host gives no descriptor.
    pub fn consoles(&self) -> io::Result<Consoles> {
        Ok(Consoles {
            serial: writer(&self.serial[0])?,
            debug: writer(&self.debug)?,
        })
    }

    /// The ports of virtio consoles.
    ///
    /// # Errors
    /// A name cannot be one.
    pub fn ports(&self, config: &Configuration) -> Result<Vec<PortOptions>, Failure> {
        let mut ports = Vec::new();
        for (port, end) in config.ports.iter().zip(&self.ports) {
            if !PortOptions::is_name(&port.name) {
                return Err(failed(format!(
                    "port '{}': a name has 1 to 64 letters, digits, '.', '_' or '-'",
                    port.name
                )));
            }
            ports.push(PortOptions {
                name: port.name.clone(),
                target: match end {
                    Some(stream) => PortTarget::Descriptor(stream.as_raw_fd()),
                    None => PortTarget::File("/dev/null".into()),
                },
                is_console: port.is_console,
                on_loss: OnLoss::default(),
            });
        }
        Ok(ports)
    }
}
