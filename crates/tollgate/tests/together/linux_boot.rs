//! Boots Debian's kernels to a shell that answers, and ends them in each way that a machine can
//! end.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::terminal::Terminal;
use crate::support::{self, GUEST_PATIENCE, finish, tollgate};
use serde_json::Value;

/// A user and group without any rights of their own.
const NOBODY: &str = "65534";

/// Boots with verified code, uses the shell, and powers off.
#[track_caller]
fn boots_answers_and_powers_off(kernel: &str) {
    let mut command = linux::run(kernel);
    command.args(["--memory", "512M", "--verify-code", "--verify-shadow"]);
    let mut guest = linux::boot(command);
    assert_eq!(guest.shell("echo $((6*7))"), "42");
    let machine = if kernel == DEBIAN_AMD64 {
        "x86_64"
    } else {
        "i686"
    };
    assert_eq!(guest.shell("uname -m"), machine);
    let version = fs::read_to_string(fetched(&format!("{kernel}/version"))).unwrap();
    let release = version
        .split_whitespace()
        .next()
        .and_then(|package| package.strip_prefix("linux-image-"))
        .unwrap();
    assert_eq!(
        guest.shell("uname -r"),
        release.trim_end_matches("-unsigned")
    );
    let processor = guest.shell("cat /proc/cpuinfo");
    let flags = processor
        .lines()
        .find_map(|line| line.strip_prefix("flags\t\t: "))
        .unwrap_or_else(|| panic!("{processor}"));
    let has = |flag: &str| flags.split(' ').any(|other| other == flag);
    for offered in [
        "fpu",
        "tsc",
        "apic",
        "sse2",
        "pae",
        "nx",
        "lm",
        "hypervisor",
    ] {
        assert!(has(offered), "{offered} is missing in {flags}");
    }
    // The guest has neither virtualization nor five-level paging.
    for refused in ["svm", "vmx", "la57"] {
        assert!(!has(refused), "{refused} is offered in {flags}");
    }
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    let end = guest.end();
    assert_eq!((end.code, end.errors.as_str()), (Some(0), ""));
    assert!(end.output.contains("reboot: Power down"), "{}", end.output);
}

#[test]
fn debian_686_boots_to_a_shell_and_powers_off() {
    boots_answers_and_powers_off(DEBIAN_686);
}

#[test]
fn debian_686_pae_boots_to_a_shell_and_powers_off() {
    boots_answers_and_powers_off(DEBIAN_686_PAE);
}

#[test]
fn debian_amd64_boots_to_a_shell_and_powers_off() {
    boots_answers_and_powers_off(DEBIAN_AMD64);
}

/// Statistics name the programs of address spaces, and attribute the kernel's code to no program.
#[test]
fn statistics_name_the_programs_of_all_kernels_without_symbols() {
    for kernel in [DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64] {
        let folder = Folder::new();
        let path = folder.path("statistics.json");
        let mut command = linux::run(kernel);
        command.args(["--stats-format", "json", "--stats-file"]);
        command.arg(&path);
        let mut guest = linux::boot(command);
        // The program is called by its path, so that the shell executes it. A space is examined only
        // at some of its program's exits, so a short program must run several times.
        guest.shell("for i in $(seq 16); do /bin/busybox md5sum /bin/busybox; done");
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
        let text = fs::read(&path).unwrap();
        let statistics: Value = serde_json::from_slice(&text).unwrap();
        let spaces = statistics["spaces"].as_array().unwrap();
        let programs: Vec<&str> = spaces
            .iter()
            .filter_map(|it| it["program"].as_str())
            .collect();
        let is_known = |program: &&str| program.split(',').any(|name| name == "busybox");
        assert!(programs.iter().any(is_known), "{kernel}: {programs:?}");
        let origins = statistics["origins"].as_array().unwrap();
        let (kernels, others): (Vec<_>, Vec<_>) =
            origins.iter().partition(|origin| origin["kernel"] == true);
        assert!(!kernels.is_empty() && !others.is_empty(), "{kernel}");
        for origin in kernels {
            assert_eq!(origin["space"], "0x0", "{origin}");
            assert_eq!(origin["program"], Value::Null, "{origin}");
        }
    }
}

#[test]
fn the_uncompressed_kernel_boots() {
    for kernel in [DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64] {
        let mut command = tollgate();
        command.args(["run", "-m", "512M", "--kernel"]);
        command.arg(fetched(&format!("{kernel}/vmlinux")));
        command
            .arg("--initrd")
            .arg(fetched(linux::initramfs(kernel)));
        command.args(["--append", "console=ttyS0 tollgate.autooff"]);
        ready_and_off(command);
    }
}

/// Runs a guest that switches itself off when it is ready; returns its console.
#[track_caller]
fn ready_and_off(mut command: Command) -> String {
    let output = finish(&mut command, GUEST_PATIENCE * 2);
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = support::tail(&console);
    assert_eq!(output.status.code(), Some(0), "{last}\n{errors}");
    assert!(console.contains(linux::READY), "{last}\n{errors}");
    console
}

/// Expects that user programs compute the same as elsewhere: checksums through a pipe, compression
/// and decompression, sorting, many processes.
#[track_caller]
fn user_programs_compute(kernel: &str) {
    let mut command = linux::run(kernel);
    command.args(["-m", "512M", "--verify-code"]);
    let mut guest = linux::boot(command);
    // The input is a million times "a", which is a published test vector of SHA-256; MD5 and CRC-32
    // are computed too.
    guest.shell("head -c 1000000 /dev/zero | tr '\\0' a > /tmp/a");
    let sum = guest.shell("sha256sum < /tmp/a");
    let expected = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
    assert_eq!(sum.split(' ').next(), Some(expected));
    let sum = guest.shell("gzip < /tmp/a | gunzip | md5sum");
    assert_eq!(sum, "7707d6ae4e027c70eea2a935c2296f21  -");
    let sorted = guest.shell("seq 1 3000 | sort -r | sort -n | uniq | wc -l");
    assert_eq!(sorted, "3000");
    let sum = guest
        .shell("i=0; s=0; while [ $i -lt 100 ]; do i=$((i+1)); s=$((s+$(echo $i))); done; echo $s");
    assert_eq!(sum, "5050");
    // awk computes in floating point.
    let newton = "BEGIN { x=1; while (i++ < 9) x=(x+2/x)/2; printf \"%.12f %.12f\", x, 2/3 }";
    let roots = guest.shell(&format!("awk '{newton}'"));
    assert_eq!(roots, "1.414213562373 0.666666666667");
    linux::assert_untroubled(&mut guest);
}

#[test]
fn user_programs_compute_correctly() {
    user_programs_compute(DEBIAN_686);
}

#[test]
fn user_programs_of_64_bits_compute_correctly() {
    user_programs_compute(DEBIAN_AMD64);
}

#[test]
fn a_reset_ends_the_machine_without_the_flag() {
    let mut command = linux::run(DEBIAN_686);
    command.args(["-m", "512M"]);
    let mut guest = linux::boot(command);
    guest.type_line("reboot -f");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn a_reset_starts_the_machine_again_with_the_flag() {
    for kernel in [DEBIAN_686_PAE, DEBIAN_AMD64] {
        let mut command = linux::run(kernel);
        command.args(["-m", "512M", "--reboot"]);
        let mut guest = linux::boot(command);
        guest.shell("echo before > /tmp/trace");
        guest.type_line("reboot -f");
        linux::wait_for_shell(&mut guest);
        assert_eq!(guest.shell("ls /tmp"), "");
        assert_eq!(guest.shell("echo $((6*7))"), "42");
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
    }
}

#[test]
fn a_person_at_a_terminal_uses_the_shell_and_quits() {
    let terminal = Terminal::new();
    let before = terminal.settings();
    let mut command = linux::run(DEBIAN_686);
    command.args(["-m", "512M"]);
    let mut guest = Session::on_terminal(&terminal, command);
    linux::wait_for_shell(&mut guest);
    assert_eq!(guest.shell("echo $((6*7))"), "42");
    guest.type_bytes(b"\x01h");
    guest.wait_for("Ctrl-A x       quit");
    // Ctrl-C reaches the guest's shell and ends the command there. The command itself reports that
    // it runs, because a shell that is about to start a command waits for it, whatever is typed.
    guest.type_line("sh -c 'echo on its way; exec sleep 1000'");
    guest.wait_for("on its way\n");
    guest.type_bytes(b"\x03");
    guest.wait_for(linux::PROMPT);
    guest.type_line("echo status: $?");
    guest.wait_for("\nstatus: 130\n");
    assert_ne!(terminal.settings(), before);
    guest.type_bytes(b"\x01x");
    assert_eq!(guest.end().code, Some(0));
    assert_eq!(terminal.settings(), before);
}

#[test]
fn the_serial_port_may_be_a_file() {
    let folder = Folder::new();
    let log = folder.file("serial.log", b"of an earlier run");
    let mut command = linux::run_and_power_off(DEBIAN_686);
    command.args(["-m", "512M", "--serial"]);
    command.arg(format!("file:{}", log.display()));
    let output = finish(&mut command, GUEST_PATIENCE);
    let console = fs::read_to_string(&log).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", support::tail(&console));
    assert!(console.contains(linux::READY), "{console}");
    assert!(!console.contains("earlier"), "{console}");
    assert_eq!((output.stdout, output.stderr), (Vec::new(), Vec::new()));
}

#[test]
fn the_serial_port_may_be_a_new_pseudo_terminal() {
    let mut command = linux::run(DEBIAN_686);
    command.args(["-m", "512M", "--serial", "pty"]);
    let mut guest = Session::over_pipes(command);
    let errors = guest.wait_for_error("/dev/pts/");
    let at = errors.find("/dev/pts/").unwrap();
    let path = errors[at..].lines().next().unwrap();
    let port = File::options().read(true).write(true).open(path).unwrap();
    let mut guest = guest.through(port);
    linux::wait_for_shell(&mut guest);
    assert_eq!(guest.shell("echo $((6*7))"), "42");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn linux_boots_with_a_code_cache_that_must_evict() {
    for kernel in [DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64] {
        let mut command = linux::run(kernel);
        command.args(["-m", "512M", "--code-cache", "1M", "--verify-code"]);
        let mut guest = linux::boot(command);
        assert_eq!(guest.shell("echo $((6*7))"), "42");
        linux::assert_untroubled(&mut guest);
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
    }
}

/// The size of RAM that Linux reports, in mebibytes.
#[track_caller]
fn total_memory(kernel: &str, size: &str) -> u64 {
    let mut command = linux::run(kernel);
    command.args(["--memory", size]);
    let mut guest = linux::boot(command);
    let total = guest.shell("grep MemTotal: /proc/meminfo");
    // All memory can be used, including the part above the hole for devices.
    guest.shell("mount -t tmpfs -o size=95% tmpfs /mnt && head -c 40m /dev/zero > /mnt/file");
    assert_eq!(guest.shell("wc -c < /mnt/file"), (40 << 20).to_string());
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
    let kibibytes = total.split_whitespace().nth(1).unwrap();
    kibibytes.parse::<u64>().unwrap() / 1024
}

#[test]
fn linux_boots_in_little_memory() {
    let total = total_memory(DEBIAN_686, "128M");
    assert!((90..128).contains(&total), "{total} MiB");
    let total = total_memory(DEBIAN_AMD64, "192M");
    assert!((110..192).contains(&total), "{total} MiB");
}

#[test]
fn ram_reaches_beyond_the_hole_for_devices() {
    // The part above 4 GiB needs PAE; without it the other kernel has 3 GiB.
    let total = total_memory(DEBIAN_686_PAE, "3584M");
    assert!((3450..3584).contains(&total), "{total} MiB");
    let total = total_memory(DEBIAN_AMD64, "3584M");
    assert!((3400..3584).contains(&total), "{total} MiB");
    let total = total_memory(DEBIAN_686, "3584M");
    assert!((2900..=3072).contains(&total), "{total} MiB");
}

/// `tollgate` as an unprivileged user, with copies of all its files that this user may read. Unless
/// the tests run as root, this is their own user.
fn as_nobody(folder: &Folder) -> Command {
    fs::set_permissions(folder.as_path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path("tollgate");
    // Another process makes the copy. If the copy were open for writing here while another test
    // starts a program, it could not be executed for a moment.
    let copied = Command::new("install")
        .args(["-m", "755", env!("CARGO_BIN_EXE_tollgate")])
        .arg(&program)
        .status()
        .unwrap();
    assert!(copied.success());
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command.args(["--inh-caps=-all", "--no-new-privs", "--"]);
    command.arg(program);
    command
}

#[test]
fn an_unprivileged_user_boots_linux_without_kvm() {
    let folder = Folder::new();
    let copy = |from: &str, name: &str| {
        let path = folder.file(name, &fs::read(fetched(from)).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    };
    let mut command = as_nobody(&folder);
    command.args(["run", "-m", "512M", "--kernel"]);
    command.arg(copy("debian-686/vmlinuz", "vmlinuz"));
    command
        .arg("--initrd")
        .arg(copy("initrd-i386.img", "initrd.img"));
    command.args(["--append", "console=ttyS0"]);
    let mut guest = linux::boot(command);
    assert_eq!(guest.shell("echo $((6*7))"), "42");

    let status = fs::read_to_string(format!("/proc/{}/status", guest.process())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_ne!(field("Uid:"), "0");
    assert_eq!(field("CapEff:"), "0000000000000000");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn no_device_of_the_host_is_open() {
    let mut command = linux::run(DEBIAN_686);
    command.args(["-m", "512M"]);
    let guest = linux::boot(command);
    let files: Vec<_> = fs::read_dir(format!("/proc/{}/fd", guest.process()))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| target.starts_with("/dev") && target.as_path() != "/dev/null")
        .collect();
    assert!(files.is_empty(), "{files:?}");
}
