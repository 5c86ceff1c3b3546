//! The addresses of a name, from the host's name servers, while the network starts.

use super::names::{self, Asked};
use crate::rules::HostName;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// How long a server may take for each of the two answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// The types of records with addresses (RFC 1035, RFC 3596).
const TYPES: [u8; 2] = [1, 28];

/// Returns the addresses of a name, which are none if there is no such name.
///
/// # Errors
/// No server answers.
pub fn addresses(name: &HostName, servers: &[SocketAddr]) -> Result<Vec<IpAddr>, String> {
    let mut why = String::from("there is no name server");
    for server in servers {
        let answers = TYPES.map(|kind| ask(name, kind, *server));
        match answers {
            [Ok(mut addresses), Ok(others)] => {
                addresses.extend(others);
                return Ok(addresses);
            }
            [Err(error), _] | [_, Err(error)] => why = format!("{server}: {error}"),
        }
    }
    Err(format!(
        "no name server tells the addresses of {name} ({why})"
    ))
}

fn ask(name: &HostName, kind: u8, server: SocketAddr) -> io::Result<Vec<IpAddr>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    let asked = Asked::for_records(name, kind);
    let identification = names::identification();
    socket.send(&asked.query(identification))?;
    let end = Instant::now() + PATIENCE;
    let mut buffer = [0; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let bytes = match socket.recv(&mut buffer) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        };
        let message = &buffer[..bytes];
        let is_ours = message.get(..2) == Some(&identification);
        if let Some(answer) = asked.answer(message).filter(|_| is_ours) {
            // "No such name" is an answer; a failure of the server is none.
            return match message[3] & 0xf {
                0 | 3 => Ok(answer.addresses.into_iter().map(|it| it.0).collect()),
                _ => Err(io::Error::other("it fails")),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers queries for IPv4 with an address, others without.
    fn server(code: u8) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
                let mut answer = buffer[..bytes].to_vec();
                answer[2] |= 0x80;
                answer[3] = code;
                if answer[bytes - 3] == 1 && code == 0 {
                    answer[7] = 1;
                    answer.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\xc0\0\x02\x01");
                }
                socket.send_to(&answer, from).unwrap();
            }
        });
        address
    }

    #[test]
    fn a_server_is_asked_for_both_kinds_of_addresses() {
        let name: HostName = "a.example".parse().unwrap();
        let expected: Vec<IpAddr> = vec![[192, 0, 2, 1].into()];
        assert_eq!(addresses(&name, &[server(0)]), Ok(expected.clone()));
        assert_eq!(addresses(&name, &[server(2), server(0)]), Ok(expected));
        assert_eq!(addresses(&name, &[server(3)]), Ok(Vec::new()));
        let error = addresses(&name, &[server(2)]).unwrap_err();
        assert!(error.contains("a.example"), "{error}");
        assert!(addresses(&name, &[]).is_err());
    }
}
