//! Answers flags of other monitors, above all QEMU's, that have another name here. A flag that is
//! typed from habit is answered with the flag that does the same.

use std::ffi::OsString;

use clap::{Arg, Command};

use crate::cli::definition;
use crate::failure::Failure;
use crate::words::{begins_command, takes_next_word};

/// QEMU's flags, and what does the same here. Flags that have the same name here, but with two
/// dashes, are among them.
const QEMU: &[(&[&str], &str)] = &[
    (&["-kernel"], "it is --kernel FILE"),
    (&["-initrd"], "it is --initrd FILE"),
    (&["-append"], "it is --append 'WORDS'"),
    (&["-bios"], "it is --bios FILE"),
    (&["-pflash"], "it is --pflash FILE"),
    (
        &["-drive"],
        "it is --drive file=FILE, with if=ide for systems that know no virtio",
    ),
    (
        &["-hda", "-hdb", "-hdc", "-hdd", "-sd", "-blockdev"],
        "it is --drive file=FILE, or --drive file=FILE,if=ide for systems that know no virtio",
    ),
    (&["-fda", "-fdb"], "it is --floppy FILE"),
    (&["-cdrom"], "it is --cdrom FILE"),
    (&["-boot"], "it is --boot ORDER"),
    (&["-snapshot"], "it is --snapshot"),
    (
        &["-nographic", "-curses"],
        "leave it out: the serial port is this terminal; --display text shows the screen of a \
         machine with firmware",
    ),
    (
        &["-display", "-vga", "-sdl", "-gtk", "-spice"],
        "it is --display none, text, png:DIR or vnc=WHERE",
    ),
    (
        &["-vnc"],
        "it is --display vnc=unix:PATH or --display vnc=ADDR[:PORT],password=FILE",
    ),
    (
        &["-smp"],
        "leave it out: a guest has one processor (--cpus 1)",
    ),
    (&["-cpu"], "it is --cpu MODEL, and --cpu help lists them"),
    (
        &["-accel", "-enable-kvm", "-no-kvm", "-accelerator"],
        "leave it out: Tollgate is its own accelerator, and uses no KVM",
    ),
    (
        &["-machine", "-M"],
        "leave it out: there is one machine, a PC (tollgate run --help)",
    ),
    (
        &["-mem-path", "-mem-prealloc"],
        "it is --memory-backing WHAT",
    ),
    (
        &["-netdev", "-nic", "-net"],
        "it is --net user[,hostfwd=tcp:ADDR:PORT-:PORT], tap=NAME, socket=PATH or passt",
    ),
    (
        &["-device"],
        "disks are --drive, networks --net, shares --share, and other devices --device NAME",
    ),
    (
        &["-virtfs", "-fsdev"],
        "a directory is shared by --share DIR[:TAG][,type=9p] (virtio-fs or 9P)",
    ),
    (&["-serial"], "it is --serial stdio, file:PATH, pty or null"),
    (
        &["-chardev", "-virtioconsole"],
        "streams are --port NAME=WHERE and --hvc WHERE",
    ),
    (
        &["-monitor", "-qmp", "-mon", "-qmp-pretty"],
        "it is --control PATH, a socket that tollgate control and others talk to",
    ),
    (
        &["-loadvm", "-incoming"],
        "it is --restore FILE, and 'tollgate snapshot create' writes such files",
    ),
    (&["-no-hpet"], "it is --hpet off"),
    (&["-debugcon"], "it is --debug-console WHERE"),
    (
        &["-fw_cfg"],
        "it is --fw-cfg NAME,file=PATH or --fw-cfg NAME,string=TEXT",
    ),
    (
        &["-no-reboot"],
        "leave it out: a reset ends the machine, unless --reboot is given",
    ),
    (
        &["-no-shutdown", "-nodefaults", "-no-user-config", "-no-acpi"],
        "leave it out: there is nothing of the kind",
    ),
    (
        &["-daemonize", "-pidfile"],
        "run it in the background by the shell: tollgate run ... &",
    ),
    (
        &["-gdb"],
        "it is --gdb tcp:[HOST]:PORT or unix:PATH, and --gdb-wait for -S",
    ),
];

/// Flags of Firecracker and Cloud Hypervisor.
const OTHERS: &[(&[&str], &str)] = &[
    (
        &["--api-sock", "--api-socket"],
        "there is no HTTP interface; --control PATH is a socket with a protocol of its own \
         (docs/reference/control-socket.md)",
    ),
    (
        &["--config-file", "--no-api"],
        "there is no configuration file; all is said by flags",
    ),
    (&["--disk"], "it is --drive file=FILE"),
    (&["--fs"], "it is --share DIR[:TAG]"),
    (&["--firmware"], "it is --bios FILE"),
    (
        &["--console"],
        "it is --serial WHERE, or --hvc WHERE for virtio",
    ),
    (&["--rng"], "it is --device virtio-rng"),
    (&["--balloon"], "it is --device virtio-balloon"),
    (&["--smp"], "it is --cpus, and a guest has one processor"),
];

/// The answer to a command line with another monitor's flag. The command is `tollgate run`,
/// `tollgate exec`, or missing.
pub fn answer(words: &[OsString]) -> Option<Failure> {
    let (first, rest) = words.get(1..)?.split_first()?;
    let definition = definition();
    let (name, rest) = match first.to_str()? {
        name @ ("run" | "exec") => (name, rest),
        word if is_in(QEMU, word).is_some() => ("run", &words[1..]),
        _ => return None,
    };
    let command = definition.find_subcommand(name)?;
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let Some(word) = word.to_str() else { continue };
        // The words of the guest's command are not flags of Tollgate.
        if word == "--" || name == "exec" && begins_command(word) {
            break;
        }
        let flag = word.split('=').next().unwrap_or_default();
        if let Some(advice) = is_in(QEMU, word) {
            return Some(refusal(word, "QEMU's", advice, command));
        }
        if let Some(advice) = is_in(OTHERS, flag) {
            return Some(refusal(flag, "another monitor's", advice, command));
        }
        if takes_next_word(command, word) {
            words.next();
        }
    }
    None
}

fn refusal(word: &str, whose: &str, advice: &str, command: &Command) -> Failure {
    let name = command.get_name();
    let flags: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
    let is_there = |flag: String| flags.contains(&&*flag);
    let advice = match flags_in(advice).all(is_there) {
        true => format!("here {advice}"),
        false => format!("'tollgate {name}' has nothing like it"),
    };
    Failure::usage(format!(
        "'{word}' is {whose}; {advice}; try 'tollgate {name} --help'"
    ))
}

/// The names of the flags that a piece of advice mentions.
fn flags_in(advice: &str) -> impl Iterator<Item = String> {
    let is_of_name = |it: char| it.is_ascii_lowercase() || it == '-';
    let flags = advice.split("--").skip(1);
    let names = flags.map(move |flag| flag.chars().take_while(|&it| is_of_name(it)).collect());
    names.filter(|name: &String| name != "help")
}

fn is_in(table: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    let row = table.iter().find(|(words, _)| words.contains(&word))?;
    Some(row.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        answer(&words).map(|failure| failure.message)
    }

    #[test]
    fn what_qemu_s_users_type_is_answered_by_the_flag_that_does_it() {
        for (line, flag) in [
            ("tollgate run -kernel k", "--kernel FILE"),
            ("tollgate -kernel k -append x", "--kernel FILE"),
            ("tollgate run --kernel k -hda disk", "--drive file=FILE"),
            ("tollgate run -m 1G -smp 4", "one processor"),
            ("tollgate run -monitor none", "--control PATH"),
            ("tollgate run --kernel k --api-sock s", "--control PATH"),
            ("tollgate run --disk path=x", "--drive"),
            ("tollgate run -loadvm x", "--restore FILE"),
            ("tollgate exec -no-hpet true", "--hpet off"),
            (
                "tollgate exec -m 1G -hda disk -- true",
                "has nothing like it",
            ),
        ] {
            let message = answered(line).unwrap();
            assert!(message.contains(flag), "{line}: {message}");
        }
    }

    #[test]
    fn values_of_flags_are_no_flags() {
        for line in [
            "tollgate run --append -initrd --kernel k",
            "tollgate run --kernel=-kernel",
            "tollgate exec qemu -kernel k",
            "tollgate exec -n -m 1G -- qemu -kernel k",
            "tollgate exec - -kernel k",
            "tollgate run -m512M --kernel k",
            "tollgate",
            "tollgate doctor",
        ] {
            assert_eq!(answered(line), None, "{line}");
        }
    }

    #[test]
    fn advice_names_flags_that_there_are() {
        let definition = definition();
        let run = definition.find_subcommand("run").unwrap();
        let flags: Vec<&str> = run.get_arguments().filter_map(Arg::get_long).collect();
        for (words, advice) in QEMU.iter().chain(OTHERS) {
            for name in flags_in(advice) {
                assert!(flags.contains(&&*name), "{words:?}: --{name}");
            }
        }
    }
}
