//! Assembles the guests: flat images and programs that the crate includes.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=guests");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    assemble("cost", &["-T", "guests/cost.ld"], &out);
    assemble("hypercall-linux", &["-N", "-z", "noexecstack"], &out);
    run(Command::new("guests/small-system/build").arg(out.join("small-system.bin")));
}

/// `guests/NAME.S` becomes `OUT/NAME.bin`.
fn assemble(name: &str, linking: &[&str], out: &Path) {
    let source = format!("guests/{name}.S");
    let object = out.join(format!("{name}.o"));
    run(Command::new("as")
        .args(["--32", "--fatal-warnings", "-I", "guests", "-o"])
        .arg(&object)
        .arg(source));
    run(Command::new("ld")
        .args(["-m", "elf_i386", "--no-warn-rwx-segments"])
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
