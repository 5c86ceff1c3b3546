//! Tests `--gdb`: a client that speaks gdb's remote protocol stops, inspects and continues machines.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;

use crate::support::folder::Folder;
use crate::support::{self, PATIENCE, tollgate};

/// A client of the protocol.
pub struct Gdb(UnixStream);

impl Gdb {
    pub fn connect(path: &Path) -> Self {
        let stream = support::eventually("a socket for gdb", || UnixStream::connect(path).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.0.read_exact(&mut byte).unwrap();
        byte[0]
    }

    /// Receives a packet and acknowledges it.
    fn receive(&mut self) -> String {
        while self.byte() != b'$' {}
        let mut body = String::new();
        loop {
            match self.byte() {
                b'#' => break,
                // The character before is repeated.
                b'*' => {
                    let count = self.byte() - 29;
                    let last = body.chars().last().unwrap();
                    body.extend(std::iter::repeat_n(last, count.into()));
                }
                byte => body.push(byte.into()),
            }
        }
        let _checksum = [self.byte(), self.byte()];
        self.0.write_all(b"+").unwrap();
        body
    }

    pub fn send(&mut self, body: &str) {
        let sum = body.bytes().fold(0u8, u8::wrapping_add);
        let packet = format!("${body}#{sum:02x}");
        self.0.write_all(packet.as_bytes()).unwrap();
    }

    pub fn ask(&mut self, body: &str) -> String {
        self.send(body);
        self.receive()
    }

    pub fn memory(&mut self, address: u64, bytes: usize) -> String {
        self.ask(&format!("m{address:x},{bytes:x}"))
    }

    /// The values of the 64-bit registers, in gdb's order.
    fn registers(&mut self) -> Vec<u64> {
        let text = self.ask("g");
        let bytes: Vec<u8> = (0..text.len() / 2)
            .map(|place| u8::from_str_radix(&text[2 * place..2 * place + 2], 16).unwrap())
            .collect();
        let words = bytes[..17 * 8].chunks(8);
        words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    pub fn pointer(&mut self) -> u64 {
        self.registers()[16]
    }

    pub fn stack_pointer(&mut self) -> u64 {
        self.registers()[7]
    }
}

/// Counts at 0x7e00, and writes its sum to 0x7e02 every 256 rounds.
const COUNTER: [u8; 27] = [
    0x31, 0xc0, // 7c00: xor ax, ax
    0x8e, 0xd8, // 7c02: mov ds, ax
    0x31, 0xdb, // 7c04: xor bx, bx
    0xff, 0x06, 0x00, 0x7e, // 7c06: inc word [7e00]
    0x43, // 7c0a: inc bx
    0x84, 0xdb, // 7c0b: test bl, bl
    0x75, 0xf7, // 7c0d: jnz 7c06
    0x89, 0x1e, 0x02, 0x7e, // 7c0f: mov [7e02], bx
    0xa1, 0x02, 0x7e, // 7c13: mov ax, [7e02]
    0xeb, 0xee, // 7c16: jmp 7c06
    0, 0, 0,
];

/// A machine that counts and waits for gdb, and the client.
fn counting(folder: &Folder) -> (Child, Gdb) {
    let socket = folder.path("gdb");
    let mut command = tollgate();
    command.args(["run", "--gdb-wait", "--serial", "null", "--kernel"]);
    command.arg(folder.boot_sector(&COUNTER));
    command
        .arg("--gdb")
        .arg(format!("unix:{}", socket.display()));
    let child = command.spawn().unwrap();
    (child, Gdb::connect(&socket))
}

fn end(mut child: Child, mut gdb: Gdb) {
    gdb.send("k");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_machine_waits_steps_stops_at_breakpoints_and_is_killed() {
    let folder = Folder::new();
    let (child, mut gdb) = counting(&folder);
    let supported = gdb.ask("qSupported:swbreak+;hwbreak+");
    assert!(supported.contains("qXfer:features:read+"), "{supported}");
    let description = gdb.ask("qXfer:features:read:target.xml:0,4000");
    assert!(description.contains("i386:x86-64"), "{description}");
    // Nothing has been executed.
    assert_eq!(gdb.pointer(), 0x7c00);
    assert_eq!(gdb.memory(0x7c00, 4), "31c08ed8");
    for expected in [0x7c02, 0x7c04, 0x7c06, 0x7c0a] {
        assert_eq!(gdb.ask("s"), "S05");
        assert_eq!(gdb.pointer(), expected);
    }
    assert_eq!(gdb.memory(0x7e00, 2), "0100");
    // A breakpoint is reached again and again, and is not in memory.
    assert_eq!(gdb.ask("Z0,7c0f,1"), "OK");
    for round in 1..4 {
        assert_eq!(gdb.ask("c"), "S05");
        assert_eq!((gdb.pointer(), gdb.registers()[1]), (0x7c0f, round << 8));
        assert_eq!(gdb.memory(0x7c0f, 4), "891e027e");
    }
    assert_eq!(gdb.ask("z0,7c0f,1"), "OK");
    // Registers and memory change.
    let mut registers = gdb.ask("g");
    registers.replace_range(16..20, "0099");
    assert_eq!(gdb.ask(&format!("G{registers}")), "OK");
    assert_eq!(gdb.registers()[1], 0x9900);
    assert_eq!(gdb.ask("M7e00,2:3412"), "OK");
    assert_eq!(gdb.memory(0x7e00, 2), "3412");
    end(child, gdb);
}

#[test]
fn memory_is_watched_and_a_running_machine_interrupted() {
    let folder = Folder::new();
    let (child, mut gdb) = counting(&folder);
    assert_eq!(gdb.ask("Z2,7e02,2"), "OK");
    let stopped = gdb.ask("c");
    assert!(stopped.starts_with("T05thread:01;watch:7e02;"), "{stopped}");
    assert_eq!(gdb.pointer(), 0x7c13);
    assert_eq!(gdb.ask("z2,7e02,2"), "OK");
    assert_eq!(gdb.ask("Z3,7e02,1"), "OK");
    let stopped = gdb.ask("c");
    assert!(
        stopped.starts_with("T05thread:01;rwatch:7e02;"),
        "{stopped}"
    );
    assert_eq!(gdb.pointer(), 0x7c16);
    assert_eq!(gdb.ask("z3,7e02,1"), "OK");
    let before = gdb.memory(0x7e00, 2);
    gdb.send("c");
    // The guest counts until it is interrupted.
    std::thread::sleep(std::time::Duration::from_millis(50));
    gdb.0.write_all(b"\x03").unwrap();
    assert_eq!(gdb.receive(), "S02");
    assert!((0x7c06..0x7c18).contains(&gdb.pointer()));
    assert_ne!(gdb.memory(0x7e00, 2), before);
    // Physical memory, in QEMU's words, and our own commands.
    assert_eq!(gdb.ask("qqemu.PhyMemMode"), "0");
    assert_eq!(gdb.ask("Qqemu.PhyMemMode:1"), "OK");
    assert_eq!(gdb.ask("qqemu.PhyMemMode"), "1");
    assert_eq!(gdb.memory(0x7c00, 2), "31c0");
    assert_eq!(gdb.memory(0xffff_0000_0000, 2), "E0e");
    gdb.send("qRcmd,6578697473");
    let mut said = String::new();
    loop {
        match gdb.receive() {
            text if text == "OK" => break,
            text => said += &text,
        }
    }
    // "in all", in hexadecimal digits.
    assert!(said.contains("696e20616c6c"), "{said}");
    end(child, gdb);
}

#[test]
fn a_debugger_that_goes_leaves_the_machine_running_and_another_one_comes() {
    let folder = Folder::new();
    let (child, mut gdb) = counting(&folder);
    assert_eq!(gdb.ask("Z0,7c0f,1"), "OK");
    assert_eq!(gdb.ask("c"), "S05");
    drop(gdb);
    let mut gdb = Gdb::connect(&folder.path("gdb"));
    let count = gdb.memory(0x7e00, 2);
    assert_eq!(gdb.ask("D"), "OK");
    drop(gdb);
    let mut gdb = Gdb::connect(&folder.path("gdb"));
    support::eventually("the guest counts on", || {
        (gdb.memory(0x7e00, 2) != count).then_some(()).or_else(|| {
            assert_eq!(gdb.ask("s"), "S05");
            None
        })
    });
    end(child, gdb);
}

#[test]
fn hostile_packets_end_the_session_at_most() {
    let folder = Folder::new();
    let (child, mut gdb) = counting(&folder);
    for packet in [
        "m0,ffffffffffffffff",
        "m",
        "Z9,x",
        "qXfer:features:read:x:0,0",
        "vCont;x",
        "P",
    ] {
        gdb.send(packet);
        drop(gdb);
        gdb = Gdb::connect(&folder.path("gdb"));
        assert_eq!(gdb.ask("s"), "S05", "{packet}");
    }
    gdb.0.write_all(&[b'$'; 70_000]).unwrap();
    gdb.0.write_all(b"#00").unwrap();
    drop(gdb);
    let mut gdb = Gdb::connect(&folder.path("gdb"));
    assert_eq!(gdb.ask("s"), "S05");
    end(child, gdb);
}
