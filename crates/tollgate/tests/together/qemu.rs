//! Tests `tollgate-qemu`: QEMU's words, exit codes, consoles and ports, with firmware and with Linux.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::ide;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{CACHE, PATIENCE, eventually, finish};

/// The command under test.
pub fn qemu(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate-qemu"));
    command.env("XDG_CACHE_HOME", CACHE).args(words);
    command
}

fn said(words: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = finish(&mut qemu(words), PATIENCE);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Boots Debian's kernel to a shell on the serial port.
pub fn linux(words: &[&str]) -> Session {
    let mut command = qemu(words);
    command.arg("-kernel").arg(fetched("debian-amd64/vmlinuz"));
    command.args(["-m", "256", "-append", "console=ttyS0 quiet"]);
    let mut guest = Session::over_pipes(command);
    linux::wait_for_shell(&mut guest);
    guest
}

/// An initramfs with the modules of virtio devices.
pub fn modules(folder: &Folder) -> String {
    let archive = linux::initramfs_with_modules(DEBIAN_AMD64);
    folder.file("initrd", &archive).display().to_string()
}

fn in_folder(folder: &Folder, name: &str) -> String {
    folder.path(name).display().to_string()
}

#[test]
fn the_version_and_lists_have_qemu_s_form() {
    let (code, text, _) = said(&["--version"]);
    assert!(text.starts_with("QEMU emulator version ") && text.contains("Tollgate"));
    assert_eq!(code, Some(0));
    for (option, part) in [
        ("-machine", "\nq35 "),
        ("-cpu", "x86 qemu64\n"),
        ("-device", "name \"virtio-blk-pci\", bus virtio-bus"),
        ("-accel", "tcg"),
    ] {
        let (code, text, _) = said(&[option, "help"]);
        assert!(text.contains(part), "{option}: {text}");
        assert_eq!(code, Some(0));
    }
    assert!(said(&["-help"]).1.contains("\n-smp "));
}

#[test]
fn what_is_not_there_is_named_in_one_line() {
    for (words, why) in [
        (&["-foo"][..], "-foo: invalid option"),
        (&["-m", "1x"], "-m 1x: "),
        (&["-cpu", "foo"], "unable to find CPU model 'foo'"),
        (&["-machine", "virt"], "unsupported machine type"),
        (&["-device", "e1000"], "e1000"),
        (&["-device", "foo"], "'foo'"),
        (&["-gdb", "tcp::1"], "-gdb: "),
        (&["-drive", "file=a,foo=1"], "'foo'"),
        (
            &["-drive", "file=/none,if=virtio", "-kernel", "/none"],
            "-kernel: cannot read '/none'",
        ),
        (&["-netdev", "vde,id=n"], "vde"),
        (&["-chardev", "stdio,id=a", "-serial", "stdio"], "stdio"),
        (&["-append", "x"], "only allowed with -kernel"),
        (&["-icount", "1"], "-icount: "),
    ] {
        let (code, text, errors) = said(words);
        assert_eq!((code, &*text), (Some(1), ""), "{words:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{words:?}: {errors}");
        assert!(errors.starts_with("tollgate-qemu: "), "{errors}");
        assert!(errors.contains(why), "{words:?}: {errors}");
    }
}

#[test]
fn a_disk_boots_from_firmware_and_ends_the_machine_with_its_code() {
    let folder = Folder::new();
    let image = folder.file("disk.img", &ide::disk());
    let drive = format!("format=raw,file={},snapshot=on", image.display());
    let words = [
        "-drive",
        &drive,
        "-serial",
        "stdio",
        "-display",
        "none",
        "-device",
        "isa-debug-exit,iobase=0xf4,iosize=0x04",
    ];
    let (code, text, errors) = said(&words);
    assert_eq!(
        (code, &*text),
        (Some(0x2a << 1 | 1), "from ATA\n"),
        "{errors}"
    );
    let log = in_folder(&folder, "log");
    let serial = format!("file:{log}");
    let words = [
        "-hda",
        &image.display().to_string(),
        "-snapshot",
        "-serial",
        &serial,
    ];
    assert_eq!(said(&words).0, Some(0x2a << 1 | 1));
    assert_eq!(std::fs::read_to_string(log).unwrap(), "from ATA\n");
}

#[test]
fn linux_boots_with_disks_of_all_kinds_and_powers_off() {
    let folder = Folder::new();
    let image = |name: &str, text: &[u8]| {
        let mut content = text.to_vec();
        content.resize(1 << 20, 0);
        folder.file(name, &content).display().to_string()
    };
    let (a, b, c) = (
        image("a", b"first"),
        image("b", b"second"),
        image("c", b"third"),
    );
    let node = format!("driver=raw,node-name=b,file.driver=file,file.filename={b}");
    let mut guest = linux(&[
        "-nographic",
        "-no-reboot",
        "-nodefaults",
        "-serial",
        "mon:stdio",
        "-smp",
        "4",
        "-initrd",
        &modules(&folder),
        "-drive",
        &format!("file={a},format=raw,if=virtio"),
        "-blockdev",
        &node,
        "-device",
        "virtio-blk-pci,drive=b,serial=S1",
        "-hda",
        &c,
        "-device",
        "virtio-rng-pci",
        "-nic",
        "user,model=virtio-net-pci",
    ]);
    linux::load_modules(&mut guest);
    assert_eq!(
        guest.shell("head -c 5 /dev/vda; head -c 6 /dev/vdb"),
        "firstsecond"
    );
    assert_eq!(guest.shell("cat /sys/block/vdb/serial"), "S1");
    // Its driver is not in this initramfs.
    let ide = "grep -l 0x7010 /sys/bus/pci/devices/*/device | wc -l";
    assert_eq!(guest.shell(ide), "1");
    guest.type_line("poweroff -f");
    let end = guest.end();
    assert_eq!(end.code, Some(0));
    assert!(
        end.errors.contains("the guest has one processor, not 4"),
        "{}",
        end.errors
    );
}

#[test]
fn a_reset_ends_the_machine_or_starts_it_again() {
    let initrd = fetched(linux::initramfs(DEBIAN_AMD64))
        .display()
        .to_string();
    let mut guest = linux(&["-nographic", "-initrd", &initrd]);
    guest.type_line("reboot -f");
    linux::wait_for_shell(&mut guest);
    // C-a x ends the machine.
    guest.type_bytes(b"\x01x");
    assert_eq!(guest.end().code, Some(0));
    let mut guest = linux(&["-nographic", "-no-reboot", "-initrd", &initrd]);
    guest.type_line("reboot -f");
    assert_eq!(guest.end().code, Some(0));
}

/// Connects to a socket that will be there soon.
pub fn connected(path: &Path) -> UnixStream {
    let stream = eventually("the socket", || UnixStream::connect(path).ok());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn ports_of_virtio_consoles_have_names_and_places() {
    let folder = Folder::new();
    let (log, socket) = (in_folder(&folder, "log"), folder.path("agent"));
    let agent = format!(
        "socket,id=agent,path={},server=on,wait=off",
        socket.display()
    );
    let mut guest = linux(&[
        "-display",
        "none",
        "-serial",
        "stdio",
        "-monitor",
        "none",
        "-initrd",
        &modules(&folder),
        "-chardev",
        &format!("file,id=log,path={log}"),
        "-chardev",
        &agent,
        "-device",
        "virtio-serial-pci",
        "-device",
        "virtconsole,chardev=log",
        "-device",
        "virtio-serial-pci,id=second",
        "-device",
        "virtserialport,bus=second.0,chardev=agent,name=org.qemu.guest_agent.0",
    ]);
    linux::load_modules(&mut guest);
    let find = "grep -l org.qemu.guest_agent.0 /sys/class/virtio-ports/*/name | cut -d/ -f5";
    let port = guest.shell(find);
    guest.shell("echo to the console > /dev/hvc0");
    let mut client = connected(&socket);
    guest.shell(&format!("echo from the guest > /dev/{port}"));
    let mut text = [0; 15];
    client.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"from the guest\n");
    client.write_all(b"to the guest\n").unwrap();
    assert_eq!(
        guest.shell(&format!("head -n 1 /dev/{port}")),
        "to the guest"
    );
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.trim_end(), "to the console");
}

#[test]
fn a_machine_in_the_background_has_a_number_and_a_socket() {
    let folder = Folder::new();
    let (number, socket) = (in_folder(&folder, "pid"), folder.path("serial"));
    let initrd = fetched(linux::initramfs(DEBIAN_AMD64))
        .display()
        .to_string();
    let kernel = fetched("debian-amd64/vmlinuz").display().to_string();
    let serial = format!("unix:{},server,nowait", socket.display());
    let words = [
        "-daemonize",
        "-pidfile",
        &number,
        "-display",
        "none",
        "-serial",
        &serial,
        "-kernel",
        &kernel,
        "-initrd",
        &initrd,
        "-append",
        "console=ttyS0",
    ];
    let (code, text, errors) = said(&words);
    assert_eq!((code, &*text), (Some(0), ""), "{errors}");
    let process: u32 = std::fs::read_to_string(&number)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let mut client = connected(&socket);
    client
        .set_read_timeout(Some(crate::support::GUEST_PATIENCE))
        .unwrap();
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(linux::READY) {
        let count = client.read(&mut chunk).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend(&chunk[..count]);
    }
    crate::support::signal(process, libc::SIGTERM);
    eventually("the end", || (!Path::new(&number).exists()).then_some(()));
    let refused = said(&["-daemonize", "-kernel", "/none"]);
    assert_eq!(refused.0, Some(1));
    assert!(refused.2.contains("/none"), "{}", refused.2);
}

/// A client of QMP.
struct Qmp(BufReader<UnixStream>);

impl Qmp {
    /// A client that has been greeted and has negotiated capabilities.
    fn new(path: &Path) -> Self {
        let mut client = Self(BufReader::new(connected(path)));
        assert!(client.next()["QMP"]["version"]["qemu"]["major"].is_u64());
        client.ask(json!({"execute": "qmp_capabilities"}));
        client
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Sends a request and returns what is returned; events in between are dropped.
    fn ask(&mut self, request: Value) -> Value {
        write!(self.0.get_mut(), "{request}").unwrap();
        loop {
            let answer = self.next();
            if answer.get("event").is_none() {
                return answer["return"].clone();
            }
        }
    }

    /// Waits for an event and returns its data.
    fn event(&mut self, name: &str) -> Value {
        loop {
            let answer = self.next();
            if answer["event"] == name {
                return answer["data"].clone();
            }
        }
    }
}

#[test]
fn a_program_controls_a_machine_by_qmp() {
    let folder = Folder::new();
    let socket = folder.path("qmp");
    let place = format!("unix:{},server=on,wait=off", socket.display());
    let initrd = fetched(linux::initramfs(DEBIAN_AMD64))
        .display()
        .to_string();
    let mut guest = linux(&[
        "-qmp",
        &place,
        "-nodefaults",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-initrd",
        &initrd,
        "-name",
        "example",
    ]);
    let mut client = Qmp::new(&socket);
    let status =
        |client: &mut Qmp| client.ask(json!({"execute": "query-status"}))["status"].clone();
    assert_eq!(status(&mut client), "running");
    assert_eq!(
        client.ask(json!({"execute": "query-name"}))["name"],
        "example"
    );
    assert_eq!(
        client.ask(json!({"execute": "query-kvm"}))["enabled"],
        false
    );
    client.ask(json!({"execute": "stop"}));
    client.event("STOP");
    assert_eq!(status(&mut client), "paused");
    client.ask(json!({"execute": "cont"}));
    client.event("RESUME");
    assert_eq!(guest.shell("echo $((6 * 7))"), "42");
    let line =
        json!({"execute": "human-monitor-command", "arguments": {"command-line": "info status"}});
    assert_eq!(client.ask(line), "VM status: running\n");
    client.ask(json!({"execute": "system_reset"}));
    assert_eq!(client.event("RESET")["guest"], false);
    linux::wait_for_shell(&mut guest);
    client.ask(json!({"execute": "quit"}));
    assert_eq!(client.event("SHUTDOWN")["reason"], "host-qmp-quit");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn a_machine_that_is_off_stays_for_its_monitor() {
    let folder = Folder::new();
    let socket = folder.path("qmp");
    let place = format!("unix:{},server,nowait", socket.display());
    let initrd = fetched(linux::initramfs(DEBIAN_AMD64))
        .display()
        .to_string();
    let mut guest = linux(&[
        "-qmp",
        &place,
        "-nographic",
        "-no-shutdown",
        "-initrd",
        &initrd,
    ]);
    let mut client = Qmp::new(&socket);
    guest.type_line("poweroff -f");
    assert_eq!(client.event("SHUTDOWN")["guest"], true);
    let status = json!({"execute": "query-status"});
    eventually("the end", || {
        (client.ask(status.clone())["status"] == "shutdown").then_some(())
    });
    client.ask(json!({"execute": "system_reset"}));
    linux::wait_for_shell(&mut guest);
    client.ask(json!({"execute": "quit"}));
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn a_person_switches_between_console_and_monitor() {
    let initrd = fetched(linux::initramfs(DEBIAN_AMD64))
        .display()
        .to_string();
    let mut guest = linux(&["-nographic", "-initrd", &initrd]);
    guest.type_bytes(b"\x01c");
    guest.wait_for("(qemu) ");
    guest.type_bytes(b"info status\n");
    guest.wait_for("VM status: running");
    guest.wait_for("(qemu) ");
    guest.type_bytes(b"\x01c\n");
    assert_eq!(guest.shell("echo again"), "again");
    guest.type_bytes(b"\x01cquit\n");
    assert_eq!(guest.end().code, Some(0));
}
