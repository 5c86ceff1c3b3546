//! The host's name server: the first that /etc/resolv.conf names.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use super::addresses::DNS_PORT;

const FILE: &str = "/etc/resolv.conf";
/// How long what the file says is taken for current.
const FRESH: Duration = Duration::from_secs(5);

/// Which server is asked.
pub struct Resolver {
    server: Option<SocketAddr>,
    /// When the file was read; `None`: it is not asked.
    read: Option<Instant>,
}

impl Resolver {
    /// The host's.
    pub fn of_host() -> Self {
        Self {
            server: server_of(Path::new(FILE)),
            read: Some(Instant::now()),
        }
    }

    #[cfg(test)]
    pub const fn fixed(server: SocketAddr) -> Self {
        Self {
            server: Some(server),
            read: None,
        }
    }

    /// The server to ask, if the host has one.
    pub fn server(&mut self) -> Option<SocketAddr> {
        if self.read.is_some_and(|read| read.elapsed() > FRESH) {
            *self = Self::of_host();
        }
        self.server
    }
}

fn server_of(file: &Path) -> Option<SocketAddr> {
    first_server(&fs::read_to_string(file).ok()?)
}

/// The first server with an address that is not bound to an interface.
fn first_server(text: &str) -> Option<SocketAddr> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        let address: IpAddr = words.next().filter(|_| is_server)?.parse().ok()?;
        Some((address, DNS_PORT).into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_usable_server_counts() {
        let text = "# nameserver 192.0.2.9\nsearch example.org\nnameserver fe80::1%eth0\n\
            nameserver\n  nameserver 192.0.2.1 # main\nnameserver 192.0.2.2\n";
        assert_eq!(first_server(text), Some("192.0.2.1:53".parse().unwrap()));
        assert_eq!(
            first_server("nameserver 2001:db8::1"),
            Some("[2001:db8::1]:53".parse().unwrap())
        );
        assert_eq!(first_server("options rotate"), None);
    }
}
