//! Systems that are neither Linux nor DOS: they boot to a shell, which does what is typed.

use crate::support::cd::made;
use crate::support::folder::Folder;
use crate::support::guests::{fetched, repository};
use crate::support::session::Session;
use crate::support::system::{other_system, overlay, turn};
use crate::support::{GUEST_PATIENCE, finish, tollgate};
use std::path::Path;
use std::process::Command;

/// The end of the prompt of MOROS, after the sequence that ends its colour.
const MOROS_PROMPT: &str = ">\x1b[0m ";

/// Starts MOROS from an IDE disk, with its console on the serial port.
fn moros(disk: &Path) -> Session {
    let mut command = tollgate();
    command.args(["run", "-m", "64M", "--verify-code", "--drive"]);
    command.arg(format!("file={},if=ide", disk.display()));
    Session::over_pipes(command)
}

/// Types a line at the prompt of MOROS.
fn type_at_prompt(guest: &mut Session, line: &str) {
    guest.wait_for(MOROS_PROMPT);
    guest.type_line(line);
}

#[test]
fn moros_computes_installs_itself_on_its_disk_and_boots_from_it() {
    let Some(system) = other_system("moros") else {
        return;
    };
    let _turn = turn();
    let folder = Folder::new();
    let disk = overlay(&folder, &system.join("disk.img"));

    // All keys of a line arrive at once, but its driver takes one with each interrupt.
    let mut guest = moros(&disk);
    guest.wait_for("MFS not found, run 'install' to setup the system");
    type_at_prompt(&mut guest, "calc \"600 * 7\"");
    guest.wait_for("\n4200\n");
    type_at_prompt(&mut guest, "install -y");
    for (question, answer) in [
        ("Enter path of disk to format: ", "/dev/ata/0/0"),
        ("Username: ", "alice"),
        ("Password: ", "secret"),
        ("Confirm: ", "secret"),
    ] {
        guest.wait_for(question);
        guest.type_line(answer);
    }
    guest.wait_for("Installation successful!");
    type_at_prompt(&mut guest, "copy /ini/version.txt /tmp/copied.txt");
    type_at_prompt(&mut guest, "halt");
    assert_eq!(guest.end().code, Some(0));

    let mut guest = moros(&disk);
    guest.wait_for("Username: ");
    guest.type_line("alice");
    guest.wait_for("Password: ");
    guest.type_line("secret");
    type_at_prompt(&mut guest, "read /tmp/copied.txt");
    guest.wait_for("MOROS v0.13.0");
    type_at_prompt(&mut guest, "halt");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn ways_to_find_an_instruction_are_compared_on_moros() {
    let Some(system) = other_system("moros") else {
        return;
    };
    let _turn = turn();
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", system.parent().unwrap());
    command.args(["lab", "icache", "--quick", "--full", "--guest", "moros"]);
    command.args(["--arm", "on"]);
    let output = finish(&mut command, GUEST_PATIENCE);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for cell in ["moros, lines", "moros, boot"] {
        assert!(shown.contains(cell), "{cell}: {shown}");
    }
    assert!(!shown.contains("not run:"), "{shown}");
}

/// The prompt of the task of ours on GNU Mach.
const MACH_PROMPT: &str = "mach> ";

#[test]
fn a_task_on_gnu_mach_sends_messages_uses_memory_and_starts_tasks() {
    let folder = Folder::new();
    let program = folder.path("mach-prompt");
    let object = folder.path("mach-prompt.o");
    let source = repository().join("crates/lab/guests/mach-prompt.S");
    let mut assemble = Command::new("as");
    assemble.args(["--32", "--fatal-warnings", "-o"]);
    made(assemble.arg(&object).arg(source));
    let mut link = Command::new("ld");
    link.args(["-m", "elf_i386", "-z", "noexecstack", "-o"]);
    made(link.arg(&program).arg(&object));

    let mut command = tollgate();
    command.args([
        "run",
        "-m",
        "128M",
        "--verify-code",
        "--append",
        "console=com0",
    ]);
    command.arg("--kernel").arg(fetched("gnumach/gnumach"));
    let arguments = "${device-port} ${host-port} $(task-create) $(task-resume)";
    let module = format!("{} {arguments}", program.display());
    command.args(["--module", &module]);
    let mut guest = Session::over_pipes(command);
    for line in ["messages 1000", "memory 100", "tasks 20"] {
        guest.wait_for(MACH_PROMPT);
        guest.type_line(line);
        guest.wait_for(&format!("{line}: done"));
    }
    guest.wait_for(MACH_PROMPT);
    guest.type_line("help");
    guest.wait_for("one of: messages, memory, tasks, reboot");
    guest.wait_for(MACH_PROMPT);
    guest.type_line("reboot");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn ways_to_find_an_instruction_are_compared_on_gnu_mach() {
    let kernel = fetched("gnumach/gnumach");
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", kernel.ancestors().nth(2).unwrap());
    command.args(["lab", "icache", "--quick", "--full", "--guest", "gnumach"]);
    command.args(["--workload", "lines", "--arm", "on"]);
    let output = finish(&mut command, GUEST_PATIENCE);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(shown.contains("gnumach, lines"), "{shown}");
    assert!(!shown.contains("not run:"), "{shown}");
}
