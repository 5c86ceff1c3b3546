//! Assembles the guests: flat images and programs that the crate includes.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=guests");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let flat = ["-Ttext", "0", "--oformat", "binary"];
    for name in ["shadow", "apic-loop", "apic-sites"] {
        assemble(name, name, NARROW, &flat, &out);
        assemble(name, &format!("{name}-64"), WIDE, &flat, &out);
    }
    let program = ["-N", "-z", "noexecstack"];
    assemble("cost", "cost", WIDE, &["-T", "guests/cost.ld"], &out);
    for name in [
        "hypercall-linux",
        "linux-spaces",
        "linux-repeat",
        "linux-latency",
        "linux-datagrams",
        "linux-two-calls",
    ] {
        assemble(name, name, NARROW, &program, &out);
        assemble(name, &format!("{name}-64"), WIDE, &program, &out);
    }
    for name in ["nano-native", "linux-user-work"] {
        assemble(name, name, WIDE, &program, &out);
    }
    // GNU Mach loads whole pages of a program.
    assemble(
        "mach-prompt",
        "mach-prompt",
        NARROW,
        &["-z", "noexecstack"],
        &out,
    );
    run(Command::new("guests/small-system/build").arg(out.join("small-system.bin")));
    let computing = ["small-system/compute", "dos/support"];
    for (name, others) in [
        ("compute", &computing[..]),
        ("sheet", &computing),
        ("edit", &[]),
        ("rpn", &[]),
        ("hooks", &[]),
    ] {
        program_for_dos(name, others, &out);
    }
}

/// Builds `OUT/NAME.com` from `guests/dos/NAME.S` and each `guests/OTHER.S`.
fn program_for_dos(name: &str, others: &[&str], out: &Path) {
    let first = format!("dos/{name}");
    let sources = std::iter::once(&*first).chain(others.iter().copied());
    let objects: Vec<PathBuf> = sources
        .map(|source| {
            let object = out.join(format!("{}-{name}-com.o", source.replace('/', "-")));
            run(Command::new("as")
                .args(["--32", "--fatal-warnings", "-I", "guests/dos"])
                .args(["-I", "guests/small-system", "-o"])
                .arg(&object)
                .arg(format!("guests/{source}.S")));
            object
        })
        .collect();
    run(Command::new("ld")
        .args(["-m", "elf_i386", "--no-warn-rwx-segments"])
        .args(["-T", "guests/dos/com.ld", "-o"])
        .arg(out.join(format!("{name}.com")))
        .args(objects));
}

/// The flags for assembler and linker, for 32-bit or 64-bit objects.
type Width = (&'static [&'static str], &'static str);
const NARROW: Width = (&["--32"], "elf_i386");
const WIDE: Width = (&["--64", "--defsym", "WIDE=1"], "elf_x86_64");

/// Builds `OUT/NAME.bin` from `guests/SOURCE.S`.
fn assemble(source: &str, name: &str, (flags, emulation): Width, linking: &[&str], out: &Path) {
    let source = format!("guests/{source}.S");
    let object = out.join(format!("{name}.o"));
    run(Command::new("as")
        .args(flags)
        .args(["--fatal-warnings", "-I", "guests", "-o"])
        .arg(&object)
        .arg(source));
    run(Command::new("ld")
        .args(["-m", emulation, "--no-warn-rwx-segments"])
        .args(linking)
        .arg("-o")
        .arg(out.join(format!("{name}.bin")))
        .arg(&object));
}

fn run(command: &mut Command) {
    let tool = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?}: {status}"),
        Err(error) => panic!(
            "cannot run '{tool}', which assembles the guests of the experiments: {error}; \
             install binutils (Debian: apt install binutils)"
        ),
    }
}
