//! Taps of the host: requests of /dev/net/tun, and descriptors by number. All of the crate's unsafe
//! code is here.

use rustix::fs::{Mode, OFlags};
use rustix::net::SocketType;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The size of an interface's name in bytes, including the terminating zero (netdevice(7)).
const NAME_BYTES: usize = libc::IFNAMSIZ;

/// The fields of `struct ifreq` that these requests use: name and flags, in 40 bytes.
#[repr(C)]
struct Request {
    name: [u8; NAME_BYTES],
    flags: libc::c_short,
    rest: [u8; 22],
}

impl Request {
    const fn new() -> Self {
        Self {
            name: [0; NAME_BYTES],
            flags: 0,
            rest: [0; 22],
        }
    }
}

/// Opens a tap interface, which is created if it does not exist.
///
/// # Errors
/// A description of the failure.
pub fn open(name: &str) -> Result<OwnedFd, String> {
    let mut request = Request::new();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_name || name.contains('/') {
        return Err("it is not the name of an interface".into());
    }
    if name.len() >= NAME_BYTES {
        return Err(format!("a name has at most {} letters", NAME_BYTES - 1));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    request.flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tap = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .map_err(|error| format!("/dev/net/tun: {error}"))?;
    // SAFETY: the request reads and writes a structure of 40 bytes, which this one is.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EPERM) => format!(
                "{error}; root can make one for you: ip tuntap add {name} mode tap user $USER"
            ),
            Some(libc::EBUSY) => format!("{error}: another process has it open"),
            _ => error.to_string(),
        });
    }
    Ok(tap)
}

/// Duplicates a descriptor that this process was started with.
///
/// # Errors
/// A description of the failure.
pub fn inherited(number: RawFd) -> Result<OwnedFd, String> {
    // SAFETY: fcntl with this command takes and returns integers only.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    // SAFETY: the call has just returned this descriptor, so no other code owns it.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    let is_socket = rustix::net::sockopt::socket_type(&copy)
        .is_ok_and(|kind| kind == SocketType::DGRAM || kind == SocketType::SEQPACKET);
    let is_tap = flags(&copy).is_some_and(|flags| flags & libc::IFF_TAP != 0);
    match is_socket || is_tap {
        true => Ok(copy),
        false => Err("it is neither a tap nor a socket that preserves frame boundaries".into()),
    }
}

/// Returns the flags of a tap or a similar device.
fn flags(descriptor: &OwnedFd) -> Option<libc::c_int> {
    let mut request = Request::new();
    // SAFETY: the request writes a structure of 40 bytes, which this one is.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::TUNGETIFF, &raw mut request) };
    (result >= 0).then(|| libc::c_int::from(request.flags as u16))
}

/// Returns the size of the headers before frames, in bytes. It is zero except for taps that were
/// opened with headers.
pub fn header_bytes(descriptor: &OwnedFd) -> usize {
    let Some(flags) = flags(descriptor) else {
        return 0;
    };
    let mut bytes = 0;
    if flags & libc::IFF_NO_PI == 0 {
        bytes += 4;
    }
    if flags & libc::IFF_VNET_HDR != 0 {
        let mut header: libc::c_int = 10;
        // SAFETY: the request writes an integer.
        unsafe {
            libc::ioctl(
                descriptor.as_raw_fd(),
                libc::TUNGETVNETHDRSZ,
                &raw mut header,
            )
        };
        bytes += usize::try_from(header).unwrap_or(0);
    }
    bytes
}
