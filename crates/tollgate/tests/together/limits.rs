//! Tests small limits: of the shell (`ulimit -v`, `ulimit -s`, closed standard streams), and of memory
//! by `--limit`.

use std::process::{Child, Command, Output};

use crate::qemu::qemu;
use crate::support::control::{ask, connect_to_running};
use crate::support::folder::Folder;
use crate::support::{PATIENCE, eventually, finish, tollgate};
use serde_json::json;

/// Runs `tollgate run` in a shell with these limits; the guest writes 0 to isa-debug-exit.
fn run(limits: &str, redirection: &str) -> Output {
    let folder = Folder::new();
    // The code is: xor al, al; out F4h, al
    let kernel = folder.boot_sector(&[0x30, 0xc0, 0xe6, 0xf4]);
    let line =
        format!("{limits}; exec \"$0\" run -m 16M --serial null --kernel \"$1\" {redirection}");
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", &line, env!("CARGO_BIN_EXE_tollgate")])
        .arg(kernel);
    finish(&mut shell, PATIENCE)
}

#[track_caller]
fn ends_well(output: &Output) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_small_stack_will_do() {
    for kilobytes in [64, 128, 1024] {
        let output = run(&format!("ulimit -s {kilobytes}"), "");
        ends_well(&output);
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn too_few_addresses_are_one_clear_line() {
    let output = run("ulimit -v 4000000", "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("address space (3906 MiB, 'ulimit -v' with 67108864 at least)"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn few_addresses_are_warned_of() {
    let output = run("ulimit -v 80000000", "");
    ends_well(&output);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("guests may run slowly"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn closed_streams_are_as_good_as_null() {
    for redirection in ["<&-", "<&- >&-", "<&- >&- 2>&-"] {
        ends_well(&run("true", redirection));
    }
}

#[test]
fn too_few_open_files_are_one_clear_line() {
    for (command, code, count) in [("run", 2, 8), ("exec", 125, 64)] {
        let folder = Folder::new();
        let kernel = folder.boot_sector(&[0xf4]);
        let line = format!(
            "ulimit -n {count}; exec \"$0\" {command} -m 16M --kernel \"$1\" {}",
            match command {
                "run" => "--serial null --port a=stdout --port b=stdout --port c=stdout",
                _ => "true",
            }
        );
        let mut shell = Command::new("/bin/sh");
        let program = env!("CARGO_BIN_EXE_tollgate");
        shell.args(["-c", &line, program]).arg(kernel);
        let output = finish(&mut shell, PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("'ulimit -n'"), "{command}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{command}: {errors}");
        assert_eq!(output.status.code(), Some(code), "{command}: {errors}");
    }
}

/// A multiboot kernel that makes the monitor take memory: it fills 56 MiB with instructions, whose
/// translations need several times as much, and runs them.
fn greedy_kernel() -> Vec<u8> {
    const START: u32 = 0x10_0000;
    const FLAGS: u32 = 1 << 16;
    const MAGIC: u32 = 0x1bad_b002;
    let checksum = 0_u32.wrapping_sub(MAGIC).wrapping_sub(FLAGS);
    // The header and where it, the code and the first instruction are loaded.
    let header = [MAGIC, FLAGS, checksum, START, START, 0, 0, START + 0x20];
    let mut image: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    image.extend([
        0xbb, 0x00, 0x00, 0x20, 0x00, // mov ebx, 200000h
        0xbf, 0x00, 0x00, 0x40, 0x00, // mov edi, 400000h
        0xb9, 0x00, 0x00, 0xe0, 0x00, // mov ecx, 56 MiB / 4
        0xb8, 0x03, 0x03, 0x03, 0x03, // mov eax, 'add eax, [ebx]' twice
        0xfc, 0xf3, 0xab, // cld; rep stosd
        0x66, 0xc7, 0x07, 0xeb, 0xfe, // mov word [edi], 'jmp' to itself
        0xb9, 0x00, 0x00, 0x40, 0x00, 0xff, 0xe1, // mov ecx, 400000h; jmp ecx
    ]);
    image
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_machine_that_takes_more_memory_than_its_limit_ends_and_another_does_not() {
    let folder = Folder::new();
    let path = folder.path("other.sock");
    // The code is: cli; hlt; and a jump to both.
    let waits = folder.boot_sector(&[0xfa, 0xf4, 0xeb, 0xfc]);
    let mut other = tollgate();
    other.args(["run", "-m", "16M", "--serial", "null", "--control"]);
    let mut other = Ended((other.arg(&path).arg("--kernel").arg(waits).spawn()).unwrap());
    let control = connect_to_running(&path);

    let kernel = folder.file("greedy", &greedy_kernel());
    let mut command = tollgate();
    command.args(["run", "-m", "64M", "--serial", "null", "--code-cache", "1G"]);
    command.args(["--limit", "memory=320M", "--kernel"]);
    let output = finish(command.arg(kernel), PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(
        errors.contains("more than --limit memory= allows, and was ended"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");

    let status = ask(&control, &json!({"command": "status"}));
    assert_eq!(status["status"]["state"], "halted", "{status}");
    ask(&control, &json!({"command": "quit"}));
    let ended = eventually("the end of the other machine", || {
        other.0.try_wait().unwrap()
    });
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn qemu_s_words_have_the_limits_too() {
    let folder = Folder::new();
    // The code is: mov al, 12h; out F4h, al
    let mut sectors = vec![0; 1 << 20];
    sectors[..4].copy_from_slice(&[0xb0, 0x12, 0xe6, 0xf4]);
    sectors[510..512].copy_from_slice(&[0x55, 0xaa]);
    let disk = folder.file("disk.img", &sectors);
    let drive = format!("format=raw,file={}", disk.display());
    let run = |limit: &str| {
        let device = "isa-debug-exit,iobase=0xf4,iosize=4";
        let mut command = qemu(&["-m", "16", "-display", "none", "-device", device]);
        let output = finish(command.args(["-drive", &drive, "-limit", limit]), PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), errors)
    };
    let (code, errors) = run("cpu=1,memory=1G,io=100M");
    assert_eq!(code, Some(0x12 << 1 | 1), "{errors}");
    for (limit, why) in [
        ("disk=1", "-limit disk=1: unknown key 'disk'"),
        (
            "memory=100M",
            "the monitor need 272 MiB; give that, or less with -m",
        ),
    ] {
        let (code, errors) = run(limit);
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains(why), "{errors}");
    }
}
