//! Tests FreeDOS from a qcow2 image in QEMU's words: a monitor types and reads the screen, a debugger stops it.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::gdb::Gdb;
use crate::qemu::{Qmp, qemu};
use crate::support::cd::made;
use crate::support::dos::freedos;
use crate::support::eventually;
use crate::support::folder::Folder;

fn human(client: &mut Qmp, line: &str) -> String {
    let arguments = json!({"command-line": line});
    let request = json!({"execute": "human-monitor-command", "arguments": arguments});
    client.ask(request).as_str().unwrap().to_owned()
}

/// The characters of the screen, without their colours.
fn screen(client: &mut Qmp) -> String {
    let dump = human(client, "xp /4000xb 0xb8000");
    let bytes = dump.lines().flat_map(|line| line.split(' ').skip(1));
    let bytes = bytes.filter_map(|byte| u8::from_str_radix(byte.strip_prefix("0x")?, 16).ok());
    let characters: Vec<u8> = bytes.step_by(2).collect();
    let lines = characters.chunks(80);
    let lines = lines.map(|line| String::from_utf8_lossy(line).trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn converted(folder: &Folder, raw: &Path) -> String {
    let image = folder.path("dos.qcow2");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]);
    made(convert.arg(raw).arg(&image));
    image.display().to_string()
}

#[test]
fn dos_boots_from_a_qcow2_image_after_a_breakpoint_and_answers_keys() {
    let folder = Folder::new();
    let Some(raw) = freedos(&folder) else {
        return;
    };
    let image = converted(&folder, &raw);
    let (gdb, qmp) = (folder.path("gdb"), folder.path("qmp"));
    let words = [
        "-display",
        "none",
        "-drive",
        &format!("file={image},if=floppy,format=qcow2"),
        "-boot",
        "a",
        "-S",
        "-gdb",
        &format!("unix:{},server,nowait", gdb.display()),
        "-qmp",
        &format!("unix:{},server,nowait", qmp.display()),
    ];
    let mut child = qemu(&words).spawn().unwrap();
    let mut client = Qmp::new(&qmp);
    let mut gdb = Gdb::connect(&gdb);
    gdb.ask("Z0,7c00,1");
    assert_eq!(gdb.ask("c"), "S05");
    let registers = human(&mut client, "info registers");
    assert!(registers.contains("EIP=00007c00"), "{registers}");
    assert_eq!(
        human(&mut client, "xp /1xh 0x7dfe"),
        "0000000000007dfe: 0xaa55\n"
    );
    gdb.ask("z0,7c00,1");
    gdb.send("D");
    drop(gdb);
    eventually("a prompt", || {
        let screen = screen(&mut client);
        screen.trim_end().ends_with('>').then_some(())
    });
    for key in ["v", "e", "r", "ret"] {
        human(&mut client, &format!("sendkey {key}"));
    }
    eventually("the version", || {
        screen(&mut client).contains("FreeCom").then_some(())
    });
    client.ask(json!({"execute": "quit"}));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
