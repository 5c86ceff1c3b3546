//! Reports of the host about datagrams that did not arrive: the error queue of a socket (ip(7),
//! IP_RECVERR). An error there contains the destination and a part of the data, unlike an error
//! that `recv` returns.

use super::icmp::Unreachable;
use nix::cmsg_space;
use nix::libc::{SO_EE_ORIGIN_NONE, sock_extended_err, sockaddr_in6};
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use rustix::io::Errno;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

/// A datagram that did not arrive.
pub struct HostError {
    /// The address that it was sent to.
    pub destination: SocketAddr,
    pub reason: Unreachable,
    /// The number of bytes of its data that the error contains, in the buffer.
    pub quoted: usize,
}

/// Makes the host queue a socket's errors.
pub fn enable(socket: &impl AsFd, is_ipv4: bool) -> rustix::io::Result<()> {
    let enabled = match is_ipv4 {
        true => setsockopt(socket, Ipv4RecvErr, &true),
        false => setsockopt(socket, Ipv6RecvErr, &true),
    };
    enabled.map_err(|error| Errno::from_raw_os_error(error as i32))
}

/// Permits or forbids the host to fragment the packets of an IPv4 socket (ip(7), IP_MTU_DISCOVER).
/// If it is forbidden, a datagram that is too long causes an error in the queue.
pub fn set_fragmenting(socket: &impl AsFd, may_fragment: bool) -> rustix::io::Result<()> {
    let discovery = match may_fragment {
        true => Ipv4PathMtuDiscovery::WANT,
        false => Ipv4PathMtuDiscovery::DO,
    };
    set_ip_mtu_discover(socket, discovery)
}

/// Takes the next error that concerns the delivery of a datagram.
pub fn take(socket: &impl AsFd, buffer: &mut [u8]) -> Option<HostError> {
    loop {
        let mut control = cmsg_space!(sock_extended_err, sockaddr_in6);
        let mut parts = [IoSliceMut::new(&mut *buffer)];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let descriptor = socket.as_fd().as_raw_fd();
        let message = recvmsg::<SockaddrStorage>(descriptor, &mut parts, Some(&mut control), flags);
        let message = match message {
            Ok(message) => message,
            Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => return None,
        };
        let destination = message.address.as_ref().and_then(address);
        let error = message.cmsgs().ok().and_then(|mut messages| {
            messages.find_map(|message| match message {
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _) => Some(error),
                _ => None,
            })
        });
        let reason = error.as_ref().and_then(reason);
        if let (Some(destination), Some(reason)) = (destination, reason) {
            return Some(HostError {
                destination,
                reason,
                quoted: message.bytes,
            });
        }
    }
}

fn reason(error: &sock_extended_err) -> Option<Unreachable> {
    if error.ee_origin == SO_EE_ORIGIN_NONE {
        return None;
    }
    match Errno::from_raw_os_error(error.ee_errno as i32) {
        Errno::MSGSIZE => Some(Unreachable::TooLong {
            mtu: u16::try_from(error.ee_info).unwrap_or(u16::MAX),
        }),
        other => Unreachable::of_errno(other),
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some((v4.ip(), v4.port()).into());
    }
    let v6 = storage.as_sockaddr_in6()?;
    Some((v6.ip(), v6.port()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::{Duration, Instant};

    #[test]
    fn a_refused_datagram_is_an_error_that_names_it() {
        let closed = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let destination = closed.local_addr().unwrap();
        drop(closed);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        enable(&socket, true).unwrap();
        let mut buffer = [0; 100];
        assert!(take(&socket, &mut buffer).is_none());
        socket.send_to(b"to a closed port", destination).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let error = loop {
            if let Some(error) = take(&socket, &mut buffer) {
                break error;
            }
            assert!(Instant::now() < end, "no error");
            std::thread::yield_now();
        };
        assert_eq!(error.destination, destination);
        assert_eq!(error.reason, Unreachable::Port);
        assert_eq!(&buffer[..error.quoted], b"to a closed port");
        assert!(take(&socket, &mut buffer).is_none());
    }
}
