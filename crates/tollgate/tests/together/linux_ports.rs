//! Tests Linux with ports: streams between programs in the guest and the host's files, standard
//! streams and sockets.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::support::folder::Folder;
use crate::support::linux::{self, DEBIAN_686, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{GUEST_PATIENCE, tollgate};

fn command(folder: &Folder, kernel: &str, ports: &[String]) -> Command {
    let mut command = linux::run_with_modules(folder, kernel);
    for port in ports {
        command.args(["--port", port]);
    }
    command
}

fn boot(command: Command) -> Session {
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    guest
}

/// A sample of arbitrary bytes, including non-text ones.
fn sample(count: usize) -> Vec<u8> {
    let mut random = 1u32;
    let bytes = std::iter::repeat_with(|| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 24) as u8
    });
    bytes.take(count).collect()
}

#[test]
fn ports_have_names_and_carry_bytes_both_ways() {
    for (kernel, pci) in [(DEBIAN_AMD64, "on"), (DEBIAN_686, "off")] {
        let folder = Folder::new();
        let (file, socket) = (folder.path("out"), folder.path("socket"));
        let ports = [
            format!("log=file:{}", file.display()),
            format!("talk=socket:{}", socket.display()),
        ];
        let mut command = command(&folder, kernel, &ports);
        command.args(["--pci", pci]);
        let mut guest = boot(command);
        let names = guest.shell("cat /sys/class/virtio-ports/*/name");
        assert_eq!(names, "log\ntalk");
        let devices = guest.shell("ls -1 /dev/vport*");
        assert_eq!(devices, "/dev/vport0p1\n/dev/vport0p2");
        guest.shell("seq 1 50000 > /dev/vport0p1");

        let bytes = sample(300_000);
        let mut client = UnixStream::connect(&socket).unwrap();
        guest.shell("cat /dev/vport0p2 > /tmp/got & true");
        client.write_all(&bytes).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        // The end of the stream ends the program.
        guest.shell("wait");
        drop(client);
        assert_eq!(guest.shell("wc -c < /tmp/got"), "300000");
        let mut client = UnixStream::connect(&socket).unwrap();
        guest.shell("(cat /tmp/got; sleep 1) > /dev/vport0p2 & true");
        let mut back = vec![0; bytes.len()];
        client.read_exact(&mut back).unwrap();
        assert!(back == bytes);
        drop(client);
        linux::assert_untroubled(&mut guest);
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
        let numbers: String = (1..=50_000).map(|number| format!("{number}\n")).collect();
        assert!(fs::read_to_string(&file).unwrap() == numbers);
        assert!(!socket.exists());
    }
}

#[test]
fn a_console_carries_the_kernels_messages_and_a_terminal() {
    let folder = Folder::new();
    let socket = folder.path("console");
    let mut command = command(&folder, DEBIAN_AMD64, &["first=stderr".to_owned()]);
    command.args(["--hvc", &format!("socket:{}", socket.display())]);
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut command = tollgate();
    command.args(words.iter().map(|word| match word.to_str() {
        Some("console=ttyS0") => "console=hvc0 console=ttyS0".into(),
        _ => word.clone(),
    }));
    let mut guest = linux::boot(command);
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(GUEST_PATIENCE)).unwrap();
    linux::load_modules(&mut guest);
    let names = guest.shell("cat /sys/class/virtio-ports/*/name");
    assert_eq!(names, "first\nhvc0");
    guest.shell("while [ ! -c /dev/hvc0 ]; do :; done");
    guest.shell("dmesg -n 8; echo a message >/dev/kmsg; dmesg -n 1; echo a line >/dev/hvc0");
    let mut received = String::new();
    while !(received.contains("a message") && received.contains("a line")) {
        let mut piece = [0; 1000];
        let count = client.read(&mut piece).unwrap();
        assert!(count > 0, "{received}");
        received.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    // An open terminal keeps what is typed until a program reads it.
    guest.shell("exec 9</dev/hvc0");
    client.write_all(b"an answer\r").unwrap();
    assert_eq!(guest.shell("head -n 1 <&9"), "an answer");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn what_a_full_disk_does_not_take_is_said_once_for_each_port() {
    let folder = Folder::new();
    let fine = folder.path("fine");
    let ports = [
        "log=file:/dev/full".to_owned(),
        format!("fine=file:{}", fine.display()),
    ];
    let mut command = command(&folder, DEBIAN_AMD64, &ports);
    command.args(["--hvc", "file:/dev/full"]);
    let mut guest = boot(command);
    guest.shell("for i in 1 2 3; do seq 1 5000 >/dev/vport0p1; done; echo text >/dev/vport0p2");
    guest.shell("while [ ! -c /dev/hvc0 ]; do :; done; echo a line >/dev/hvc0");
    guest.type_line("poweroff -f");
    let end = guest.end();
    assert_eq!(end.code, Some(8), "{}", end.errors);
    let lost = "cannot write '/dev/full': the disk is full; what cannot be written is lost";
    for flag in ["--port log", "--hvc"] {
        let line = format!("tollgate: {flag}: {lost}\n");
        assert_eq!(end.errors.matches(&line).count(), 1, "{}", end.errors);
    }
    assert_eq!(fs::read_to_string(&fine).unwrap(), "text\n");
}

#[test]
fn standard_streams_are_ports() {
    let folder = Folder::new();
    let ports = ["in=stdin", "out=stdout", "err=stderr"].map(str::to_owned);
    let mut command = command(&folder, DEBIAN_AMD64, &ports);
    // The serial port has no shell: the first process does everything.
    let script = "#!/bin/sh\nmount -t devtmpfs d /dev\nmount -t proc p /proc\ncd /mnt\n\
        for m in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci \
        virtio_console; do [ ! -e $m.ko ] || insmod $m.ko; done\n\
        while [ ! -c /dev/vport0p3 ]; do :; done\n\
        until echo message > /dev/vport0p3; do :; done\ncat /dev/vport0p1 > /dev/vport0p2\necho message > /dev/vport0p3\npoweroff -f\n";
    let mut archive = linux::initramfs_with_modules(DEBIAN_AMD64);
    archive.resize(archive.len().next_multiple_of(4), 0);
    linux::cpio_entry(&mut archive, "start", 0o100_755, script.as_bytes());
    linux::cpio_entry(&mut archive, "TRAILER!!!", 0, &[]);
    folder.file("initrd.img", &archive);
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = tollgate();
    command.args(words.iter().map(|word| match word.to_str() {
        Some("console=ttyS0") => "console=ttyS0 rdinit=/start".into(),
        _ => word.clone(),
    }));
    command.args(["--serial", "null"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The sample is larger than pipe and buffer, and smaller than these and the queue.
    let bytes = sample(200_000);
    let mut input = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent));
    writer.join().unwrap().unwrap();
    // The guest switches itself off before anything reads its output. Linux shows a port before it
    // can be opened. The first message waits until the ports are connected, because before that a
    // read ends immediately.
    let mut message = [0; 16];
    let mut errors = child.stderr.take().unwrap();
    errors.read_exact(&mut message).unwrap();
    assert_eq!(&message, b"message\nmessage\n");
    std::thread::sleep(std::time::Duration::from_millis(300));
    child.stderr = Some(errors);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout == bytes);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
