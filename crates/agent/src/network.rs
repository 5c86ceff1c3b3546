//! The network: the loopback interface in every guest, and the known addresses of the user network.

use crate::protocol::Start;
use crate::sys::{self, REQUEST_BYTES};
use std::ffi::c_ulong;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

// Requests of netdevice(7) and rtentry.
const SIOCADDRT: u32 = 0x890b;
const SIOCSIFFLAGS: u32 = 0x8914;
const SIOCSIFADDR: u32 = 0x8916;
const SIOCSIFNETMASK: u32 = 0x891c;
const AF_INET: u16 = 2;
const IFF_UP: u16 = 1;
const RTF_UP_GATEWAY: u16 = 1 | 2;

/// The guest's address in a user network, its mask, gateway and name server.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

/// The file with the addresses of name servers (resolv.conf(5)).
const RESOLVERS: &str = "/etc/resolv.conf";
/// The place of such a file if the root's own must not be changed.
const OWN_RESOLVERS: &str = "/run/tollgate-resolv.conf";

/// Reports a failure on the console, where it does no harm: a command may not need the network.
fn try_out(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("tollgate-agent: {what}: {error}");
    }
}

/// Switches the loopback interface on.
pub fn switch_loopback_on() {
    try_out("lo", switch_on("lo"));
}

/// Sets up the interface of the user network, if there is one.
pub fn set_up(start: &Start) {
    if start.has_user_network {
        try_out("eth0", configure("eth0"));
        try_out(RESOLVERS, tell_name_server(start.root_is_writable));
    }
}

/// Configures the network's name server, for this guest only.
fn tell_name_server(root_lasts: bool) -> io::Result<()> {
    let text = format!("nameserver {NAME_SERVER}\n");
    fs::create_dir_all("/etc")?;
    // The path may be a link to a file that a service of the host creates.
    let path = fs::canonicalize(RESOLVERS);
    if !root_lasts {
        let _ = fs::remove_file(RESOLVERS);
        return fs::write(RESOLVERS, text);
    }
    match (path, fs::read_link(RESOLVERS)) {
        (Ok(path), _) => {
            fs::write(OWN_RESOLVERS, text)?;
            sys::mount_at(OWN_RESOLVERS, path, "", sys::MS_BIND, "")
        }
        // The link leads to a file that a service of the guest would create, in /run.
        (Err(_), Ok(link)) => {
            let path = Path::new("/etc").join(link);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, text)
        }
        (Err(_), Err(_)) => fs::write(RESOLVERS, text),
    }
}

/// Returns a struct ifreq: the name in 16 bytes, and the value.
fn interface(name: &str, value: &[u8]) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..16 + value.len()].copy_from_slice(value);
    request
}

/// Returns a struct sockaddr_in without a port.
fn address(address: Ipv4Addr) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
    bytes[4..8].copy_from_slice(&address.octets());
    bytes
}

fn switch_on(name: &str) -> io::Result<()> {
    let socket = sys::interface_socket()?;
    let mut request = interface(name, &IFF_UP.to_ne_bytes());
    sys::interface_request(&socket, SIOCSIFFLAGS, &mut request)
}

fn configure(name: &str) -> io::Result<()> {
    let socket = sys::interface_socket()?;
    for (request, value) in [(SIOCSIFADDR, ADDRESS), (SIOCSIFNETMASK, MASK)] {
        let mut argument = interface(name, &address(value));
        sys::interface_request(&socket, request, &mut argument)?;
    }
    switch_on(name)?;
    // struct rtentry: an unsigned long, then destination, gateway and mask, then flags.
    let mut route = [0; REQUEST_BYTES];
    let any = address(Ipv4Addr::UNSPECIFIED);
    let mut offset = size_of::<c_ulong>();
    for value in [any, address(GATEWAY), any] {
        route[offset..offset + 16].copy_from_slice(&value);
        offset += 16;
    }
    route[offset..offset + 2].copy_from_slice(&RTF_UP_GATEWAY.to_ne_bytes());
    sys::interface_request(&socket, SIOCADDRT, &mut route)
}
