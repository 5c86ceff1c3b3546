//! Assembles the option ROM of `--guest-hooks dos`, which the crate includes.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=guests");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join("dos-hooks.o");
    run(Command::new("as")
        .args(["--32", "--fatal-warnings", "-o"])
        .arg(&object)
        .arg("guests/dos-hooks.S"));
    run(Command::new("ld")
        .args(["-m", "elf_i386", "-Ttext", "0", "-e", "0"])
        .args(["--oformat", "binary", "-o"])
        .arg(out.join("dos-hooks.rom"))
        .arg(object));
}

fn run(command: &mut Command) {
    let tool = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?}: {status}"),
        Err(error) => panic!(
            "cannot run '{tool}', which assembles an option ROM: {error}; install binutils \
             (Debian: apt install binutils)"
        ),
    }
}
