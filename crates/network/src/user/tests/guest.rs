//! A guest without a machine.

use crate::frame::Frame;
use crate::inner_service::InnerService;
use crate::link::{Adapter, Offloads, cable};
use crate::options::{MacAddress, UserOptions};
use crate::refusals::Refusals;
use crate::rules::Rules;
use crate::user::Network;
use crate::user::addresses::{Addresses, GATEWAY, GUEST};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The maximum time of any operation on a loaded host.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const MAC: MacAddress = MacAddress::of_adapter(0);

/// Returns options with which the guest reaches the host's loopback address, where tests have their
/// servers.
pub fn open() -> UserOptions {
    UserOptions {
        rules: Rules::open(),
        ..UserOptions::default()
    }
}

/// The adapter of a guest, with the network on a thread.
pub struct Guest {
    pub adapter: Adapter,
    pub forwards: Vec<SocketAddr>,
    pub refusals: Refusals,
    told: Receiver<()>,
    stopper: crate::link::Stopper,
    thread: Option<JoinHandle<()>>,
    start: Instant,
}

impl Guest {
    pub fn new(options: &UserOptions) -> Self {
        Self::with(options, Offloads::default(), "127.0.0.1:9".parse().unwrap())
    }

    pub fn with(options: &UserOptions, offloads: Offloads, resolver: SocketAddr) -> Self {
        let addresses = Addresses::with_resolver(true, &[resolver]);
        Self::at(options, offloads, addresses)
    }

    /// Makes a guest whose network has a service inside.
    pub fn with_service(options: &UserOptions, service: InnerService) -> Self {
        let resolver = "127.0.0.1:9".parse().unwrap();
        let addresses = Addresses::with_resolver(true, &[resolver]);
        Self::whole(options, Offloads::default(), addresses, Some(service))
    }

    /// Makes a guest of a host with these addresses.
    pub fn at(options: &UserOptions, offloads: Offloads, addresses: Addresses) -> Self {
        Self::whole(options, offloads, addresses, None)
    }

    fn whole(
        options: &UserOptions,
        offloads: Offloads,
        addresses: Addresses,
        service: Option<InnerService>,
    ) -> Self {
        let (adapter, wire) = cable().unwrap();
        let wire = wire.with_service(service);
        let stopper = wire.stopper();
        let addresses = Addresses {
            has_world: false,
            ..addresses
        };
        let network = Network::open_at(options, MAC, wire, addresses).unwrap();
        let forwards = network.forwards();
        let refusals = network.refusals();
        let (tell, told) = channel();
        adapter.connect(move || {
            let _ = tell.send(());
        });
        adapter.set_offloads(offloads);
        Self {
            adapter,
            forwards,
            refusals,
            told,
            stopper,
            thread: Some(std::thread::spawn(move || network.run())),
            start: Instant::now(),
        }
    }

    /// Takes the next frame, if there is one.
    pub fn take(&self) -> Option<Frame> {
        let taken: Result<_, Infallible> = self.adapter.take_if(|_| Ok(true));
        if let Some(frame) = taken.unwrap() {
            return Some(frame);
        }
        self.adapter.look();
        let taken: Result<_, Infallible> = self.adapter.take_if(|_| Ok(true));
        taken.unwrap()
    }

    /// Waits for the next frame.
    #[track_caller]
    pub fn wait(&self) -> Frame {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(frame) = self.take() {
                return frame;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no frame");
            let _ = self.told.recv_timeout(left.min(Duration::from_millis(50)));
        }
    }

    /// Makes a stack for connections, with an address of this guest.
    pub fn stack(self) -> Stack {
        let mut device = Device { guest: self };
        let mac = HardwareAddress::Ethernet(EthernetAddress(MAC.0));
        let mut interface = Interface::new(Config::new(mac), &mut device, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(GUEST.into(), 24)).unwrap();
        });
        interface
            .routes_mut()
            .add_default_ipv4_route(GATEWAY)
            .unwrap();
        Stack {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            next_port: 20_000,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the network failed");
        }
    }
}

/// A guest with smoltcp.
pub struct Stack {
    pub device: Device,
    pub interface: Interface,
    pub sockets: SocketSet<'static>,
    next_port: u16,
}

impl Stack {
    /// Performs one round of work.
    pub fn poll(&mut self) {
        let now = self.device.now();
        self.interface
            .poll(now, &mut self.device, &mut self.sockets);
    }

    /// Works until `is_done` returns a value.
    #[track_caller]
    pub fn until<T>(&mut self, mut is_done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            self.poll();
            if let Some(result) = is_done(self) {
                // This sends what the function has left to send.
                self.poll();
                return result;
            }
            assert!(Instant::now() < end, "the event does not happen");
            let _ = self
                .device
                .guest
                .told
                .recv_timeout(Duration::from_millis(1));
        }
    }

    /// Adds a socket that connects.
    pub fn connect(&mut self, address: Ipv4Addr, port: u16) -> SocketHandle {
        let mut socket = socket(64 << 10);
        self.next_port += 1;
        socket
            .connect(self.interface.context(), (address, port), self.next_port)
            .unwrap();
        self.sockets.add(socket)
    }

    /// Adds a socket that listens.
    pub fn listen(&mut self, port: u16) -> SocketHandle {
        let mut socket = socket(64 << 10);
        socket.listen(port).unwrap();
        self.sockets.add(socket)
    }

    pub fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut::<Socket<'_>>(handle)
    }

    /// Connects to a port of the host's loopback address and waits for the connection.
    #[track_caller]
    pub fn connected(&mut self, port: u16) -> SocketHandle {
        let handle = self.connect(GATEWAY, port);
        self.until(|stack| stack.socket(handle).may_send().then_some(()));
        handle
    }

    /// Sends all of the data.
    #[track_caller]
    pub fn send(&mut self, handle: SocketHandle, mut data: &[u8]) {
        self.until(|stack| {
            let sent = stack.socket(handle).send_slice(data).unwrap();
            data = &data[sent..];
            data.is_empty().then_some(())
        });
    }

    /// Receives data until the other half is closed.
    #[track_caller]
    pub fn receive_all(&mut self, handle: SocketHandle) -> Vec<u8> {
        let mut received = Vec::new();
        self.until(|stack| {
            let socket = stack.socket(handle);
            while socket.can_recv() {
                let taken = socket.recv(|data| (data.len(), data.to_vec()));
                received.extend(taken.unwrap());
            }
            let has_begun = !matches!(
                socket.state(),
                State::Listen | State::SynSent | State::SynReceived
            );
            (has_begun && !socket.may_recv()).then_some(())
        });
        received
    }
}

pub fn socket(buffer: usize) -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; buffer]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_ack_delay(None);
    socket
}

/// The guest's adapter as a smoltcp device.
pub struct Device {
    pub guest: Guest,
}

impl Device {
    fn now(&self) -> StackInstant {
        StackInstant::from_micros(self.guest.start.elapsed().as_micros() as i64)
    }
}

impl phy::Device for Device {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, _now: StackInstant) -> Option<(Received, Sender<'_>)> {
        let mut frame = self.guest.take()?;
        frame.complete_checksum();
        Some((Received(frame), Sender(&self.guest.adapter)))
    }

    fn transmit(&mut self, _now: StackInstant) -> Option<Sender<'_>> {
        let adapter = &self.guest.adapter;
        adapter.has_room().then_some(Sender(adapter))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        // All checksums are computed and verified.
        capabilities.checksum = ChecksumCapabilities::default();
        capabilities
    }
}

pub struct Received(Frame);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0.bytes)
    }
}

pub struct Sender<'a>(&'a Adapter);

impl phy::TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, f: F) -> R {
        let mut frame = vec![0; bytes];
        let result = f(&mut frame);
        self.0.send(frame);
        result
    }
}
