//! The network and the sockets through which the guest reaches the outside world and the host:
//! flags that `tollgate run` and `tollgate exec` share.

use clap::Args;
use tollgate_machine::config::{NetworkOptions, VsockOptions};

use crate::net::{self, Network};
use crate::vsock;

/// Flags about networks and sockets.
#[derive(Args, Debug)]
#[command(next_help_heading = "Network")]
pub struct NetworkArguments {
    /// A network and how it is used; without a value: user. May be repeated
    ///
    /// user                  a network in this process, without privilege: the guest gets
    ///                       10.0.2.15 by DHCP; 10.0.2.3 is a name server, all other addresses
    ///                       are what the host reaches. This host's loopback address (10.0.2.2)
    ///                       and link-local and metadata addresses are closed unless allow=
    ///                       names them
    /// allow=HOST[:PORT],... (user) the guest reaches only these: names, *.NAME, addresses,
    ///                       ADDRESS/BITS, [IPV6]:PORT; host is this host's loopback address,
    ///                       any is everything that is open without allow=, dns is the name server
    ///                       for all names. May be repeated
    /// deny=HOST[:PORT],...  (user) the guest does not reach these, even if allow= has them
    /// log=refused|none      (user) refused: show what the guest could not reach, once each
    /// hostfwd=tcp|udp:[ADDR]:PORT-[GUEST]:PORT
    ///                       (user) forward a port of the host to a port of the guest, as in
    ///                       hostfwd=tcp:127.0.0.1:2222-:22. May be repeated. Without ADDR
    ///                       every machine that reaches this host can connect
    /// restrict=on|off       (user) on: the guest reaches nothing outside; hostfwd works
    /// passt                 the program passt, found in PATH, which Tollgate starts and ends
    ///                       with the machine; passt needs user namespaces
    /// socket=PATH           a stream socket that carries frames, each preceded by its length in
    ///                       four bytes, as QEMU's -netdev stream and passt have it
    /// tap=NAME              a tap interface of this host, which its owner and root may use
    /// fd=N                  an open descriptor of a tap, or of a socket that preserves the
    ///                       boundaries of frames (SOCK_SEQPACKET, SOCK_DGRAM)
    /// mac=XX:XX:XX:XX:XX:XX the adapter's address, default 52:54:00:12:34:56 and so on
    /// model=virtio|e1000    the adapter: virtio, or the slower Intel 82540EM on the PCI bus for
    ///                       systems without virtio drivers
    /// none                  no network, which is the default
    /// The guest finds adapters as eth0, eth1 ..., with the drivers virtio_pci and virtio_net.
    #[arg(
        long,
        value_name = "NETWORK",
        value_parser = net::parse,
        num_args = 0..=1,
        default_missing_value = "user",
        verbatim_doc_comment
    )]
    net: Vec<Network>,

    /// Sockets between guest and host (AF_VSOCK): cid=N,path=SOCKET
    ///
    /// N is the guest's context identifier, from 3 on. To connect to a port of the guest, a program
    /// of the host connects to the Unix socket SOCKET and writes "CONNECT PORT" and a newline; the
    /// answer is "OK" and a port. A guest connection to port P of CID 2, the host, is forwarded to
    /// the Unix socket SOCKET_P. Firecracker has the same protocol. The guest's driver is
    /// vmw_vsock_virtio_transport.
    #[arg(
        long,
        value_name = "VSOCK",
        value_parser = vsock::parse,
        verbatim_doc_comment
    )]
    pub vsock: Option<VsockOptions>,
}

impl NetworkArguments {
    /// The machine's networks, in the order of their adapters.
    pub fn networks(&self) -> Vec<NetworkOptions> {
        let networks = self.net.iter();
        networks.filter_map(|network| network.0.clone()).collect()
    }
}
