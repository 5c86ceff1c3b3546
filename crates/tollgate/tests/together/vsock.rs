//! Tests sockets between guest and host, with Debian's driver and programs of this host's own root.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::{GUEST_PATIENCE, ended, finish, tollgate};

/// The number of bytes that are sent each way.
const BYTES: usize = 3 << 20;

/// The constants that a program of the guest needs: AF_VSOCK is 40, an address is family, port and
/// identifier (vsock(7)).
const PERL: &str = "use strict; use Socket; $| = 1;
    sub address { pack 'SSLLx4', 40, 0, @_ }
    sub vsock { socket(my $s, 40, SOCK_STREAM, 0) || die \"socket: $!\"; $s }
    sub echo { my ($s) = @_; local $/; my $data = readline $s;
        select $s; $| = 1; print $data; shutdown $s, 1; select STDOUT; length $data }
";

/// `tollgate exec` in this folder, with sockets at `v`, and a Perl program on this host's root.
fn exec(folder: &Folder, program: &str) -> Command {
    folder.file("program", format!("{PERL}{program}").as_bytes());
    let mut command = tollgate();
    command.current_dir(folder.as_path());
    let guests = fetched("debian-amd64/vmlinuz");
    let modules = fetched("debian-amd64-modules/vmw_vsock_virtio_transport.ko");
    assert!(modules.exists());
    command.env("TOLLGATE_GUESTS", guests.ancestors().nth(2).unwrap());
    command.args(["exec", "--vsock"]);
    command.arg(format!("cid=42,path={}", folder.path("v").display()));
    // /dev/vsock belongs to root.
    command.args(["--user", "root", "--", "perl", "program"]);
    command
}

fn pattern(seed: usize) -> Vec<u8> {
    let bytes = (0..BYTES).map(|n| (n * 31 + n / 997 + seed) as u8);
    bytes.collect()
}

/// Connects to a port of the guest; returns the connection and the answer.
fn connect(path: &Path, port: u32) -> (UnixStream, String) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(GUEST_PATIENCE)).unwrap();
    writeln!(stream, "CONNECT {port}").unwrap();
    let mut answer = Vec::new();
    let mut byte = [0];
    while answer.last() != Some(&b'\n') && stream.read(&mut byte).unwrap() == 1 {
        answer.push(byte[0]);
    }
    (stream, text(&answer))
}

/// Sends data, closes the sending half, and reads the answer.
fn exchange(stream: &UnixStream, data: &[u8]) -> Vec<u8> {
    let mut sender = stream.try_clone().unwrap();
    let sent = data.to_vec();
    let writer = thread::spawn(move || {
        sender.write_all(&sent).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    (&*stream).read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    received
}

#[test]
fn the_guest_connects_to_the_host() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.path("v_80")).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        stream.set_read_timeout(Some(GUEST_PATIENCE)).unwrap();
        stream.read_to_end(&mut received).unwrap();
        stream.write_all(&received).unwrap();
        received.len()
    });
    let program = "my $s = vsock; connect $s, address(80, 2) or die \"connect: $!\";
        open my $device, '<', '/dev/vsock' or die \"device: $!\";
        my $own = pack 'L', 0; ioctl $device, 0x7b9, $own; $own = unpack 'L', $own;
        my $data = join '', map { \"line $_\\n\" } 1..200_000;
        print $s $data; $s->flush; shutdown $s, 1;
        { local $/; print readline($s) eq $data ? 'same' : 'other', \" $own\\n\" }
        my $t = vsock; connect $t, address(81, 2) and die 'somebody answers';
        print \"refused: $!\\n\"; print length $data, \"\\n\"";
    let output = finish(&mut exec(&folder, program), GUEST_PATIENCE);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    let bytes = server.join().unwrap();
    assert_eq!(
        said,
        format!("same 42\nrefused: Connection reset by peer\n{bytes}\n"),
        "{errors}"
    );
    assert!(!folder.path("v").exists());
}

#[test]
fn the_host_connects_to_the_guest() {
    const CONNECTIONS: usize = 50;
    let folder = Folder::new();
    let program = format!(
        "my $l = vsock; bind $l, address(1234, 0xffffffff) or die \"bind: $!\";
        listen $l, 128 or die \"listen: $!\"; print \"ready\\n\";
        accept(my $s, $l) or die $!; print echo($s), \"\\n\"; close $s;
        my @all; for (1..{CONNECTIONS}) {{ accept(my $s, $l) or die $!; push @all, $s }}
        echo $_ for @all; print \"all\\n\""
    );
    let mut child = exec(&folder, &program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    if line != "ready\n" {
        panic!("{}", text(&ended(child, GUEST_PATIENCE).stderr));
    }
    let path = folder.path("v");
    // No program listens on this port.
    assert_eq!(connect(&path, 99).1, "");
    let (stream, answer) = connect(&path, 1234);
    assert!(answer.starts_with("OK "), "{answer}");
    assert!(exchange(&stream, &pattern(1)) == pattern(1));
    // All of several connections are accepted before the first is read.
    let streams: Vec<_> = (0..CONNECTIONS).map(|_| connect(&path, 1234).0).collect();
    let words = |number: usize| format!("connection {number}\n").repeat(1000).into_bytes();
    for (number, mut stream) in streams.iter().enumerate() {
        stream.write_all(&words(number)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    for (number, mut stream) in streams.iter().enumerate() {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received == words(number), "{number}");
    }
    let output = ended(child, GUEST_PATIENCE);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), format!("{BYTES}\nall\n"));
}

#[test]
fn a_socket_in_use_is_refused_with_one_line() {
    let folder = Folder::new();
    let _listener = UnixListener::bind(folder.path("v")).unwrap();
    let output = finish(&mut exec(&folder, ""), GUEST_PATIENCE);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("vsock: cannot listen at"), "{errors}");
}
