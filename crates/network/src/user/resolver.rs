//! The host's name servers, from /etc/resolv.conf.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::addresses::DNS_PORT;

const FILE: &str = "/etc/resolv.conf";
/// How long the contents of the file are considered current.
const FRESH: Duration = Duration::from_secs(5);

/// The maximum number of servers that are used (resolv.conf(5), MAXNS).
const MAX_SERVERS: usize = 3;

/// The servers that are asked.
pub struct Resolver {
    servers: Vec<SocketAddr>,
    /// When the file was read. `None` means that the file is not used.
    read: Option<Instant>,
}

impl Resolver {
    /// Makes the resolver of this host.
    pub fn of_host() -> Self {
        // A missing file names no servers.
        let text = fs::read_to_string(FILE).unwrap_or_default();
        Self {
            servers: servers(&text),
            read: Some(Instant::now()),
        }
    }

    #[cfg(test)]
    pub fn fixed(servers: &[SocketAddr]) -> Self {
        Self {
            servers: servers.to_vec(),
            read: None,
        }
    }

    /// Returns the servers in the order in which they are asked. There is at least one.
    pub fn servers(&mut self) -> &[SocketAddr] {
        if self.read.is_some_and(|read| read.elapsed() > FRESH) {
            *self = Self::of_host();
        }
        &self.servers
    }
}

/// Returns the servers whose address is not bound to an interface. If there is none, the host's own
/// resolver asks the host itself (resolv.conf(5)).
fn servers(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        let address: IpAddr = words.next().filter(|_| is_server)?.parse().ok()?;
        Some(SocketAddr::from((address, DNS_PORT)))
    });
    let mut servers: Vec<_> = servers.take(MAX_SERVERS).collect();
    if servers.is_empty() {
        servers.push((Ipv4Addr::LOCALHOST, DNS_PORT).into());
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<String> {
        let servers = servers(text);
        servers.iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn the_first_usable_servers_count() {
        let text = "# nameserver 192.0.2.9\nsearch example.org\nnameserver fe80::1%eth0\n\
            nameserver\n  nameserver 192.0.2.1 # main\nnameserver 192.0.2.2\n";
        assert_eq!(named(text), ["192.0.2.1:53", "192.0.2.2:53"]);
        assert_eq!(named("nameserver 2001:db8::1"), ["[2001:db8::1]:53"]);
        let four = "nameserver 192.0.2.1\n".repeat(4);
        assert_eq!(named(&four).len(), MAX_SERVERS);
    }

    #[test]
    fn without_servers_the_host_itself_is_asked() {
        for text in [
            "",
            "options rotate",
            "nameserver",
            "nameserver example.org\n",
        ] {
            assert_eq!(named(text), ["127.0.0.1:53"], "{text}");
        }
    }
}
