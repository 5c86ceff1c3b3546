//! Tests that statistics and traces name a program in Linux by its own ELF file.

use std::fs;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::tollgate;
use serde_json::Value;

/// The program executes ENTER, which exits, in a function of its own; then it ends with 0.
const PROGRAM: &str = "
    .globl _start
_start:
    mov $100000, %r12d
1:  call make_room
    dec %r12d
    jnz 1b
    mov $231, %eax
    xor %edi, %edi
    syscall
    .globl make_room
make_room:
    enter $16, $1
    leave
    ret
";

/// The program as a file that is linked to the address at which it runs.
fn program(folder: &Folder) -> std::path::PathBuf {
    let source = folder.file("program.s", PROGRAM.as_bytes());
    let (object, program) = (folder.path("program.o"), folder.path("program"));
    let run = |tool: &str, arguments: &[&std::path::Path]| {
        let status = Command::new(tool).args(arguments).status().unwrap();
        assert!(status.success(), "{tool}");
    };
    run("as", &["--64".as_ref(), "-o".as_ref(), &object, &source]);
    run("ld", &["-o".as_ref(), &program, &object]);
    program
}

/// Runs the program in a guest with more flags; returns the statistics.
fn run(folder: &Folder, program: &std::path::Path, flags: &[&str]) -> Value {
    let content = fs::read(program).unwrap();
    let initramfs = linux::initramfs_with(DEBIAN_AMD64, "bin/program", &content);
    let statistics = folder.path("stats.json");
    let mut command = tollgate();
    command.args(["run", "-m", "256M", "--kernel"]);
    command.arg(fetched("debian-amd64/vmlinuz"));
    command
        .arg("--initrd")
        .arg(folder.file("initrd.img", &initramfs));
    command.args(["--append", "console=ttyS0", "--stats-format", "json"]);
    // Exits of translated code have names.
    command.args(["--knob", "user-code=translated"]);
    command.arg("--stats-file").arg(&statistics).args(flags);
    let mut guest = linux::boot(command);
    assert_eq!(guest.shell("program; echo $?"), "0");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
    serde_json::from_str(&fs::read_to_string(statistics).unwrap()).unwrap()
}

/// The number of exits for ENTER that are attributed to the program's function by name.
fn named(statistics: &Value) -> u64 {
    let rows = statistics["symbols"].as_array().unwrap().iter();
    let rows =
        rows.filter(|row| row["kind"] == "other-instruction" && row["symbol"] == "make_room");
    rows.filter_map(|row| row["exits"].as_u64()).sum()
}

#[test]
fn a_program_s_functions_have_names_in_statistics_and_traces() {
    let folder = Folder::new();
    let program = program(&folder);
    let symbols = program.to_str().unwrap();
    let trace = folder.path("trace.json");
    let traced = [
        "--trace",
        trace.to_str().unwrap(),
        "--trace-limit",
        "8M",
        "--trace-ring",
    ];
    let statistics = run(
        &folder,
        &program,
        &[&["--symbols", symbols], &traced[..]].concat(),
    );
    let blamed = named(&statistics);
    // Traced exits are all attributed.
    assert!(
        (90_000..=110_000).contains(&blamed),
        "{}",
        statistics["symbols"]
    );
    let trace = fs::read_to_string(&trace).unwrap();
    assert!(trace.contains("make_room"));
}

#[test]
fn names_of_one_address_space_are_not_another_s() {
    let folder = Folder::new();
    let program = program(&folder);
    // No process has its page tables there.
    let elsewhere = format!("{},space=0x1000", program.display());
    let statistics = run(&folder, &program, &["--symbols", &elsewhere]);
    assert_eq!(named(&statistics), 0, "{}", statistics["symbols"]);
}
