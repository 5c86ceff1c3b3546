//! Tests `tollgate-qemu`: QEMU's words, exit codes, consoles and ports, with firmware and with Linux.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::gdb::Gdb;
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
        (&["-device", "rtl8139"], "virtio-net-pci and e1000"),
        (&["-device", "foo"], "'foo'"),
        (&["-gdb", "stdio"], "-gdb stdio: expected tcp:"),
        (&["-device", "scsi-hd"], "scsi-hd: drive property not set"),
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
        "-device",
        "isa-debug-exit,iobase=0xf4",
    ];
    assert_eq!(said(&words).0, Some(0x2a << 1 | 1));
    assert_eq!(std::fs::read_to_string(log).unwrap(), "from ATA\n");
}

/// Says that it runs, and writes 2Ah to port 502h.
const EXIT: [u8; 14] = [
    0xba, 0xf8, 0x03, // mov dx, 3f8h
    0xb0, b'S', // mov al, 'S'
    0xee, // out dx, al
    0xba, 0x02, 0x05, // mov dx, 502h
    0xb0, 0x2a, // mov al, 2ah
    0xee, // out dx, al
    0xeb, 0xfe, // jmp $
];

#[test]
fn a_scsi_disk_boots_and_the_exit_port_is_where_it_was_asked_for() {
    let folder = Folder::new();
    let mut content = vec![0; 1 << 20];
    content[..EXIT.len()].copy_from_slice(&EXIT);
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    let disk = folder.file("disk.img", &content).display().to_string();
    let [other, disc] = ["other.img", "disc.iso"].map(|name| {
        let file = folder.file(name, &ide::disk());
        file.display().to_string()
    });
    let words = [
        "-nographic",
        "-monitor",
        "none",
        "-device",
        "virtio-scsi-pci,id=scsi0",
        "-drive",
        &format!("if=none,id=d,file={disk},format=raw"),
        "-device",
        "scsi-hd,bus=scsi0.0,drive=d,scsi-id=3,lun=1,bootindex=0",
        "-drive",
        &format!("if=scsi,media=cdrom,file={disc},format=raw"),
        "-hda",
        &other,
        "-device",
        "isa-debug-exit",
    ];
    let (code, text, errors) = said(&words);
    assert_eq!(code, Some(0x2a << 1 | 1), "{text}{errors}");
    assert!(text.ends_with('S'), "{text}{errors}");
}

#[test]
fn a_debugger_lets_a_machine_go_that_was_started_stopped() {
    let folder = Folder::new();
    let mut content = vec![0; 1 << 20];
    content[..EXIT.len()].copy_from_slice(&EXIT);
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    let disk = folder.file("disk.img", &content).display().to_string();
    let (gdb, qmp) = (folder.path("gdb"), folder.path("qmp"));
    let mut command = qemu(&[
        "-display",
        "none",
        "-hda",
        &disk,
        "-S",
        "-device",
        "isa-debug-exit",
    ]);
    command
        .arg("-gdb")
        .arg(format!("unix:{},server=on,wait=off", gdb.display()));
    command
        .arg("-qmp")
        .arg(format!("unix:{},server,nowait", qmp.display()));
    let mut child = command.spawn().unwrap();
    let mut client = Qmp::new(&qmp);
    let ask = |client: &mut Qmp| client.ask(json!({"execute": "query-status"}))["status"].clone();
    assert_eq!(ask(&mut client), "prelaunch");
    let mut gdb = Gdb::connect(&gdb);
    assert_eq!(gdb.pointer(), 0xfff0);
    gdb.ask("Z0,7c00,1");
    assert_eq!(gdb.ask("c"), "S05");
    assert_eq!(gdb.pointer(), 0x7c00);
    // The answer to the debugger may precede the report of the pause.
    eventually("the pause", || (ask(&mut client) == "paused").then_some(()));
    client.event("RESUME");
    client.event("STOP");
    gdb.ask("z0,7c00,1");
    gdb.send("c");
    assert_eq!(child.wait().unwrap().code(), Some(0x2a << 1 | 1));
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

#[test]
fn the_alarm_of_the_real_time_clock_interrupts_linux() {
    let initrd = fetched(linux::initramfs(DEBIAN_AMD64))
        .display()
        .to_string();
    let mut guest = linux(&["-nographic", "-initrd", &initrd]);
    let alarm = "/sys/class/rtc/rtc0/wakealarm";
    guest.shell(&format!("echo +1 > {alarm}"));
    // The file is empty once the alarm has gone off.
    guest.shell(&format!(
        "for i in $(seq 100); do [ -n \"$(cat {alarm})\" ] || break; sleep 0.1; done"
    ));
    assert_eq!(guest.shell(&format!("cat {alarm}")), "");
    guest.type_line("poweroff -f");
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
pub struct Qmp {
    stream: BufReader<UnixStream>,
    /// Events that came before an answer.
    events: VecDeque<Value>,
}

impl Qmp {
    /// A client that has been greeted and has negotiated capabilities.
    pub fn new(path: &Path) -> Self {
        let mut client = Self {
            stream: BufReader::new(connected(path)),
            events: VecDeque::new(),
        };
        assert!(client.next()["QMP"]["version"]["qemu"]["major"].is_u64());
        client.ask(json!({"execute": "qmp_capabilities"}));
        client
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Sends a request and returns what is returned; events in between are dropped.
    pub fn ask(&mut self, request: Value) -> Value {
        self.answer(request)["return"].clone()
    }

    /// Sends a request and returns the whole answer; events in between are kept.
    pub fn answer(&mut self, request: Value) -> Value {
        write!(self.stream.get_mut(), "{request}").unwrap();
        loop {
            let answer = self.next();
            if answer.get("event").is_none() {
                return answer;
            }
            self.events.push_back(answer);
        }
    }

    /// Waits for an event and returns its data. Events before it are dropped.
    pub fn event(&mut self, name: &str) -> Value {
        loop {
            let answer = match self.events.pop_front() {
                Some(event) => event,
                None => self.next(),
            };
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
        "-uuid",
        "00112233-4455-6677-8899-aabbccddeeff",
        "-smbios",
        "type=1,serial=ds=nocloud;i=1",
        "-smbios",
        "type=11,value=io.systemd.credential:a=b",
    ]);
    let dmi = |name: &str| format!("cat /sys/class/dmi/id/{name}");
    assert_eq!(guest.shell(&dmi("sys_vendor")), "QEMU");
    assert_eq!(guest.shell(&dmi("product_serial")), "ds=nocloud;i=1");
    let uuid = guest.shell(&dmi("product_uuid"));
    assert_eq!(uuid, "00112233-4455-6677-8899-aabbccddeeff");
    let strings = guest.shell("cat /sys/firmware/dmi/entries/11-0/raw");
    assert!(strings.contains("io.systemd.credential:a=b"), "{strings}");
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

#[test]
fn a_snapshot_has_a_name_and_brings_back_the_machine_and_its_disk() {
    let folder = Folder::new();
    let disk = folder
        .sparse_file("disk.img", 4 << 20)
        .display()
        .to_string();
    let monitor = folder.path("monitor");
    let (drive, initrd) = (
        format!("file={disk},format=raw,if=virtio"),
        modules(&folder),
    );
    let place = format!("unix:{},server=on,wait=off", monitor.display());
    let words = [
        "-nodefaults",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-initrd",
        &initrd,
        "-drive",
        &drive,
        "-qmp",
        &place,
    ];
    let mut guest = linux(&words);
    linux::load_modules(&mut guest);
    let write = |text: &str| {
        format!(
            "echo {text} > /tmp/mark; echo {text} | dd of=/dev/vda conv=notrunc 2>/dev/null; sync"
        )
    };
    let read = "cat /tmp/mark; echo 3 > /proc/sys/vm/drop_caches; head -n 1 /dev/vda";
    guest.shell(&write("one"));
    let mut client = Qmp::new(&monitor);
    let human = |line: &str| {
        let arguments = json!({"command-line": line});
        json!({"execute": "human-monitor-command", "arguments": arguments})
    };
    assert_eq!(client.ask(human("savevm first")), "");
    guest.shell(&write("two"));
    assert_eq!(guest.shell(read), "two\ntwo");
    let list = client.ask(human("info snapshots"));
    assert!(list.as_str().unwrap().contains("first"), "{list}");
    let absent = client.ask(human("loadvm second"));
    assert_eq!(absent, "Error: there is no snapshot 'second'\n");
    assert_eq!(client.ask(human("loadvm first")), "");
    assert_eq!(guest.shell(read), "one\none");
    guest.shell(&write("three"));
    client.ask(json!({"execute": "quit"}));
    assert_eq!(guest.end().code, Some(0));
    // A new process continues there too.
    let mut command = qemu(&words);
    command.arg("-kernel").arg(fetched("debian-amd64/vmlinuz"));
    command.args([
        "-m",
        "256",
        "-append",
        "console=ttyS0 quiet",
        "-loadvm",
        "first",
    ]);
    let mut guest = Session::over_pipes(command);
    assert_eq!(guest.shell(read), "one\none");
    let mut client = Qmp::new(&monitor);
    assert_eq!(client.ask(human("delvm first")), "");
    let list = client.ask(human("info snapshots"));
    assert_eq!(list, "There is no snapshot available.\n");
    client.ask(json!({"execute": "quit"}));
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn a_monitor_shows_registers_memory_and_pages() {
    let folder = Folder::new();
    let monitor = folder.path("monitor");
    let place = format!("unix:{},server=on,wait=off", monitor.display());
    let mut content = vec![0; 1 << 20];
    // hlt; jmp back
    content[..4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    let disk = folder.file("disk.img", &content).display().to_string();
    let mut child = qemu(&["-display", "none", "-hda", &disk, "-qmp", &place])
        .spawn()
        .unwrap();
    let mut client = Qmp::new(&monitor);
    let mut human = |line: &str| {
        let arguments = json!({"command-line": line});
        let request = json!({"execute": "human-monitor-command", "arguments": arguments});
        client.ask(request).as_str().unwrap().to_owned()
    };
    eventually("the boot sector", || {
        human("info registers")
            .contains("EIP=00007c02")
            .then_some(())
    });
    assert_eq!(
        human("x /4xb 0x7c00"),
        "0000000000007c00: 0xfa 0xf4 0xeb 0xfd\n"
    );
    let code = human("x /3i 0x7c00");
    let words: Vec<&str> = code.lines().map(|line| line[37..].trim()).collect();
    assert_eq!(words, ["cli", "hlt", "jmp      short 7C01h"], "{code}");
    assert_eq!(human("xp /1xh $eip+0x1fc"), "0000000000007dfe: 0xaa55\n");
    assert_eq!(human("info mem"), "PG disabled\n");
    assert!(
        human("info pic").contains("pic0: irr="),
        "{}",
        human("info pic")
    );
    assert!(human("info pci").contains("8086:7010"));
    assert!(human("x 0xfff0000000").contains("Cannot access memory"));
    client.ask(json!({"execute": "quit"}));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut guest = linux(&[
        "-nodefaults",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-initrd",
        &fetched(linux::initramfs(DEBIAN_AMD64))
            .display()
            .to_string(),
        "-qmp",
        &format!("unix:{},server=on,wait=off", folder.path("qmp").display()),
    ]);
    let mut client = Qmp::new(&folder.path("qmp"));
    let line =
        json!({"execute": "human-monitor-command", "arguments": {"command-line": "info mem"}});
    let pages = client.ask(line).as_str().unwrap().to_owned();
    assert!(
        pages
            .lines()
            .any(|line| line.starts_with("ffffffff") && line.ends_with(" -rw"))
    );
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

/// Writes 'A' to COM1 and 'B' to COM2, prints 'C', echoes a byte of COM2 there, and ends the machine.
const PORTS: [u8; 56] = [
    0xba, 0xf8, 0x03, 0xb0, b'A', 0xee, // mov dx, 3f8h; mov al, 'A'; out dx, al
    0xba, 0xf8, 0x02, 0xb0, b'B', 0xee, // mov dx, 2f8h; mov al, 'B'; out dx, al
    0xba, 0x78, 0x03, 0xb0, b'C', 0xee, // mov dx, 378h; mov al, 'C'; out dx, al
    0xba, 0x7a, 0x03, 0xb0, 0x0d, 0xee, // mov dx, 37ah; mov al, 0dh; out dx, al
    0xb0, 0x0c, 0xee, // mov al, 0ch; out dx, al
    0xba, 0xfd, 0x02, // mov dx, 2fdh
    0xec, 0xa8, 0x01, 0x74, 0xfb, // in al, dx; test al, 1; jz in
    0xba, 0xf8, 0x02, 0xec, 0xee, // mov dx, 2f8h; in al, dx; out dx, al
    0xba, 0x01, 0x05, 0xb0, 0x2a, 0xee, // mov dx, 501h; mov al, 2ah; out dx, al
    0xf4, 0xeb, 0xfd, // hlt; jmp hlt
    0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn two_serial_ports_and_a_printer_have_places() {
    let folder = Folder::new();
    let mut content = vec![0; 1 << 20];
    content[..PORTS.len()].copy_from_slice(&PORTS);
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    let disk = folder.file("disk.img", &content).display().to_string();
    let (first, printed, second) = (
        in_folder(&folder, "first"),
        in_folder(&folder, "printed"),
        folder.path("second"),
    );
    let words = [
        "-display",
        "none",
        "-hda",
        &disk,
        "-device",
        "isa-debug-exit",
        "-serial",
        &format!("file:{first}"),
        "-serial",
        &format!("unix:{},server,nowait", second.display()),
        "-parallel",
        &format!("file:{printed}"),
    ];
    let mut child = qemu(&words).spawn().unwrap();
    let mut client = connected(&second);
    client.write_all(b"x").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0x2a << 1 | 1));
    let mut text = Vec::new();
    client.read_to_end(&mut text).unwrap();
    assert!(text.ends_with(b"x"), "{text:?}");
    assert!(std::fs::read_to_string(first).unwrap().ends_with('A'));
    assert_eq!(std::fs::read_to_string(printed).unwrap(), "C");
}
