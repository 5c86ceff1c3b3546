//! Compiles the agent, the first process of the guests of `tollgate exec`, for this very target
//! but linked statically: `crates/agent`, by the compiler alone. The command includes the result.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let variable = |name: &str| std::env::var_os(name).unwrap_or_else(|| panic!("no {name}"));
    let sources = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../agent/src");
    println!("cargo::rerun-if-changed={}", sources.display());
    let out = PathBuf::from(variable("OUT_DIR"));
    let library = out.join("libtollgate_agent.rlib");
    let compile = |name: &str, crate_type: &str, source: &str, output: &PathBuf| {
        let mut rustc = Command::new(variable("RUSTC"));
        rustc
            .args(["--edition", "2024", "--crate-type", crate_type])
            .args(["--crate-name", name])
            .arg("--target")
            .arg(variable("TARGET"))
            .args(["-C", "opt-level=s", "-C", "panic=abort"])
            .args([
                "-C",
                "target-feature=+crt-static",
                "-C",
                "relocation-model=static",
            ])
            .args(["-C", "strip=symbols", "--cap-lints", "allow"])
            .arg("-o")
            .arg(output)
            .arg(sources.join(source));
        rustc
    };
    run(&mut compile("tollgate_agent", "rlib", "lib.rs", &library));
    let mut program = compile("agent", "bin", "main.rs", &out.join("agent"));
    let mut linked = std::ffi::OsString::from("tollgate_agent=");
    linked.push(&library);
    program.args(["-C", "lto=fat"]).arg("--extern").arg(linked);
    run(&mut program);
}

fn run(command: &mut Command) {
    let status = command.status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "the agent of tollgate exec cannot be built; it is linked statically, which needs the C \
         library's static form (libc6-dev has it, on Fedora glibc-static): {command:?}"
    );
}
