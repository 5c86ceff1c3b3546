//! Tests Linux with virtio network adapters: it gets its address, talks to servers on this machine,
//! and is reached from it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{GUEST_PATIENCE, PATIENCE, eventually, finish, tollgate};
use tollgate_test_support::skip;

/// The number of bytes that are sent each way.
const BYTES: usize = 8 << 20;

/// `tollgate run` with the kernel, its modules, and this network.
fn command(folder: &Folder, kernel: &str, network: &str) -> Command {
    let mut command = linux::run_with_modules(folder, kernel);
    command.args(["--net", network]);
    command
}

/// Boots a guest and waits until it has its address.
fn boot(command: Command) -> Session {
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    guest.shell("ifconfig lo up; ifconfig eth0 up");
    let lease = guest.shell("udhcpc -q -n -t 20 -i eth0 -s /mnt/lease 2>&1 | tail -n 1");
    assert!(lease.contains("10.0.2.15"), "{lease}");
    guest
}

fn power_off(mut guest: Session) {
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

/// A port of this machine on which `serve` answers each connection.
fn serve(serve: impl Fn(TcpStream) + Send + Clone + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    port
}

/// A port on which no program listens, as far as that can be known.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|n| (n * 31 + n / 997) as u8).collect()
}

/// Sends `question` to a port of this machine, closes the sending half, and reads the answer.
fn ask(port: u16, question: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(GUEST_PATIENCE)).unwrap();
    stream.write_all(question).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// A guest with this kernel uses a network in every way. `adapter` is what else is said of the network.
fn talks(kernel: &str, adapter: &str, more: &[&str]) {
    let folder = Folder::new();
    let forwarded = free_port();
    let network = format!("user,allow=any,host,hostfwd=tcp:127.0.0.1:{forwarded}-:7{adapter}");
    let mut command = command(&folder, kernel, &network);
    command.args(more);
    let mut guest = boot(command);
    let ping = guest.shell("ping -c 3 10.0.2.2 | grep -c 'bytes from 10.0.2.2'");
    assert_eq!(ping, "3");
    // The guest reads from a server.
    let port = serve(|mut stream| {
        let mut request = [0; 512];
        let _ = stream.read(&mut request);
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {BYTES}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&pattern());
    });
    let bytes = guest.shell(&format!(
        "wget -q -O /tmp/file http://10.0.2.2:{port}/ && wc -c </tmp/file"
    ));
    assert_eq!(bytes, BYTES.to_string(), "{kernel}");
    // The guest sends to a server, which sees what the guest has received.
    let port = serve(|mut stream| {
        let mut data = Vec::new();
        let _ = stream.read_to_end(&mut data);
        let answer = if data == pattern() { "same" } else { "other" };
        let _ = writeln!(stream, "{answer}");
    });
    let sent = guest.shell(&format!("nc 10.0.2.2 {port} </tmp/file"));
    assert_eq!(sent, "same", "{kernel}");
    // The guest connects to a port on which no program listens.
    let nobody = free_port();
    let refused = guest.shell(&format!("nc 10.0.2.2 {nobody} </dev/null 2>&1"));
    assert!(refused.contains("refused"), "{refused}");
    // This machine connects to the guest.
    guest.shell("nc -l -p 7 -e cat & sleep 1");
    let data = &pattern()[..1 << 20];
    assert!(ask(forwarded, data) == data, "{kernel}");
    let statistics = guest.shell("cat /sys/class/net/eth0/statistics/rx_errors");
    assert_eq!(statistics, "0");
    linux::assert_untroubled(&mut guest);
    power_off(guest);
}

#[test]
fn a_64_bit_guest_talks_to_this_machine() {
    talks(DEBIAN_AMD64, "", &[]);
}

#[test]
fn a_32_bit_guest_talks_to_this_machine() {
    talks(DEBIAN_686, "", &[]);
    talks(DEBIAN_686_PAE, "", &[]);
}

#[test]
fn without_pci_too() {
    talks(DEBIAN_AMD64, "", &["--pci", "off"]);
}

#[test]
fn an_e1000_carries_the_same() {
    talks(DEBIAN_686, ",model=e1000", &[]);
}

#[test]
fn an_e1000_needs_the_pci_bus() {
    let folder = Folder::new();
    let mut command = command(&folder, DEBIAN_686, "user,model=e1000");
    let output = finish(command.args(["--pci", "off"]), PATIENCE);
    let errors = text(&output.stderr);
    assert!(errors.contains("model e1000 needs the PCI bus"), "{errors}");
    assert_eq!((errors.lines().count(), output.status.code()), (1, Some(2)));
}

#[test]
fn a_restricted_guest_reaches_nothing_and_is_reached() {
    let folder = Folder::new();
    let forwarded = free_port();
    let network = format!("user,restrict=on,hostfwd=tcp:127.0.0.1:{forwarded}-:7");
    let mut guest = boot(command(&folder, DEBIAN_AMD64, &network));
    let port = serve(|mut stream| {
        let _ = stream.write_all(b"reached\n");
    });
    let reached = guest.shell(&format!("nc 10.0.2.2 {port} </dev/null 2>&1"));
    assert!(!reached.contains("reached"), "{reached}");
    guest.shell("nc -l -p 7 -e cat & sleep 1");
    assert_eq!(ask(forwarded, b"through"), b"through");
    power_off(guest);
}

#[test]
fn a_socket_carries_frames() {
    const GUEST: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0x42];
    const PEER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0x99];
    let folder = Folder::new();
    let path = folder.path("network.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let network = format!("socket={},mac=52:54:00:00:00:42", path.display());
    let mut guest = linux::boot(command(&folder, DEBIAN_AMD64, &network));
    linux::load_modules(&mut guest);
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    guest.shell("ifconfig eth0 192.168.9.2 up");
    let mut request = vec![0xff; 6];
    request.extend(PEER);
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend(PEER);
    request.extend([192, 168, 9, 1, 0, 0, 0, 0, 0, 0, 192, 168, 9, 2]);
    peer.write_all(&(request.len() as u32).to_be_bytes())
        .unwrap();
    peer.write_all(&request).unwrap();
    // The guest sends other frames too.
    loop {
        let mut length = [0; 4];
        peer.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        peer.read_exact(&mut frame).unwrap();
        assert_eq!(frame[6..12], GUEST);
        if frame[12..14] == [8, 6] && frame[20..22] == [0, 2] {
            assert_eq!(frame[..6], PEER);
            assert_eq!(frame[28..32], [192, 168, 9, 2]);
            break;
        }
    }
    power_off(guest);
}

#[test]
fn a_descriptor_carries_frames() {
    let folder = Folder::new();
    let (own, guests) = packet_sockets();
    let network = format!("fd={},mac=52:54:00:00:00:42", guests.as_raw_fd());
    let mut command = command(&folder, DEBIAN_AMD64, &network);
    // SAFETY: between fork and exec only fcntl(2) is called, which is async-signal-safe. The other
    // tests' processes do not inherit the descriptor.
    unsafe {
        command.pre_exec(
            move || match libc::fcntl(guests.as_raw_fd(), libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        );
    }
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    guest.shell("ifconfig eth0 192.168.9.2 up");
    guest.shell("ping -c 1 -W 1 192.168.9.1");
    // The guest asks who has the address, and sends other frames too.
    let mut frame = [0; 2000];
    loop {
        let count = (&own).read(&mut frame).unwrap();
        if frame[12..14] == [8, 6] {
            assert!(count >= 42, "{count}");
            assert_eq!(frame[6..12], [0x52, 0x54, 0, 0, 0, 0x42]);
            assert_eq!(frame[38..42], [192, 168, 9, 1]);
            break;
        }
    }
    power_off(guest);
}

#[test]
fn a_tap_that_may_not_be_used_is_refused_with_one_line() {
    let mut command = tollgate();
    command.args(["run", "--kernel"]);
    command.arg(fetched("debian-amd64/vmlinuz"));
    command.args(["--net", "tap=no/such"]);
    let output = finish(&mut command, PATIENCE);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("tap: cannot use 'no/such'"), "{errors}");
}

/// Makes a tap interface with an address in a network namespace of its own, which needs no
/// privilege where the host lets users make namespaces, and runs the arguments there.
const WITH_TAP: &str = "ip tuntap add tollgate0 mode tap &&
ip address add 192.0.2.1/24 dev tollgate0 && ip link set tollgate0 up && exec \"$0\" \"$@\"";

fn with_tap(program: &Command) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", WITH_TAP]);
    command.arg(program.get_program()).args(program.get_args());
    command
}

#[test]
fn a_tap_interface_carries_frames_between_guest_and_host() {
    let probe = with_tap(&Command::new("true")).output();
    let refusal = match probe {
        Ok(probe) if probe.status.success() => None,
        Ok(probe) => Some(text(&probe.stderr)),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = refusal {
        skip::impossible(&format!(
            "this host lets the user make no tap interface in a namespace: {why}"
        ));
        return;
    }
    eprintln!("ran: a guest on a tap interface, in a network namespace of the user's own");
    let folder = Folder::new();
    let mut guest = linux::boot(with_tap(&command(
        &folder,
        DEBIAN_AMD64,
        "tap=tollgate0,mac=52:54:00:00:00:42",
    )));
    linux::load_modules(&mut guest);
    guest.shell("ifconfig eth0 192.0.2.2 up");
    for size in [8, 1400, 9000] {
        let answer = guest.shell(&format!("ping -c 3 -s {size} 192.0.2.1 | grep received"));
        let expected = "3 packets transmitted, 3 packets received";
        assert!(answer.starts_with(expected), "{size}: {answer}");
    }
    power_off(guest);
}

/// Two connected sockets that preserve the boundaries of frames.
fn packet_sockets() -> (std::fs::File, std::fs::File) {
    let mut pair = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the call writes two descriptors, which nothing else owns.
    let [own, other] = unsafe {
        assert_eq!(
            libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()),
            0
        );
        pair.map(|number| std::fs::File::from_raw_fd(number))
    };
    (own, other)
}

#[test]
fn several_adapters_have_addresses_of_their_own() {
    let folder = Folder::new();
    let mut command = command(&folder, DEBIAN_AMD64, "user");
    command.args(["--net", "user,mac=52:54:00:00:00:42"]);
    let mut guest = boot(command);
    let addresses = guest.shell("cat /sys/class/net/eth0/address /sys/class/net/eth1/address");
    assert_eq!(addresses, "52:54:00:12:34:56\n52:54:00:00:00:42");
    power_off(guest);
}

#[test]
fn connections_are_limited_by_the_hard_limit_of_descriptors() {
    // The guest halts.
    let folder = Folder::new();
    let image = folder.boot_sector(&[0xf4, 0xeb, 0xfd]);
    let run = tollgate();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 256; exec \"$@\"", "sh"]);
    command.arg(run.get_program());
    command.args(["run", "--serial", "null", "--net", "user", "--kernel"]);
    let mut child = command.arg(image).spawn().unwrap();
    let process = format!("/proc/{}", child.id());
    eventually("the limit is raised", || {
        let limits = std::fs::read_to_string(format!("{process}/limits")).ok()?;
        // The shell's own limits may be equal, so the program's name is checked first.
        let program = std::fs::read_link(format!("{process}/exe")).ok()?;
        (program.file_name()? == "tollgate").then_some(())?;
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max open files"))?;
        let mut words = line.split_whitespace().skip(3);
        (words.next()? == words.next()?).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_port_in_use_is_refused_with_one_line() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut command = tollgate();
    command.args(["run", "--kernel"]);
    command.arg(fetched("debian-amd64/vmlinuz"));
    let forward = format!("user,hostfwd=tcp:127.0.0.1:{port}-:22");
    command.args(["--net", &forward]);
    let output = finish(&mut command, PATIENCE);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let expected = format!("cannot listen on 127.0.0.1:{port}");
    assert!(errors.contains(&expected), "{errors}");
}
