//! Compiles the agent (`crates/agent`), the first process of the guests of `tollgate exec`. The
//! compiler builds it alone, statically linked: once for the target of this build, and once for
//! 32-bit kernels if the standard library for them is installed. The command includes the results.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target of the agent for 32-bit kernels. Its standard library has everything that linking
/// needs.
const TARGET_32_BIT: &str = "i686-unknown-linux-musl";

fn main() {
    let sources = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../agent/src");
    println!("cargo::rerun-if-changed={}", sources.display());
    let out = PathBuf::from(variable("OUT_DIR"));
    compile(&sources, &variable("TARGET"), &out.join("agent"));
    let agent = out.join("agent-32");
    if has_library(TARGET_32_BIT) {
        compile(&sources, OsStr::new(TARGET_32_BIT), &agent);
    } else {
        std::fs::write(&agent, "").unwrap_or_else(|error| panic!("{}: {error}", agent.display()));
    }
}

fn variable(name: &str) -> OsString {
    std::env::var_os(name).unwrap_or_else(|| panic!("no {name}"))
}

/// Whether the compiler has the standard library for a target. Cargo runs the build script again
/// when rustup has added or removed one.
fn has_library(target: &str) -> bool {
    let mut rustc = Command::new(variable("RUSTC"));
    let output = rustc.args(["--print", "target-libdir", "--target", target]);
    let output = output.output().unwrap_or_else(|error| panic!("{error}"));
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // `folder` is lib/rustlib/TARGET/lib.
    let components = folder.join("../../components");
    if components.is_file() {
        println!("cargo::rerun-if-changed={}", components.display());
    }
    let mut files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

fn compile(sources: &Path, target: &OsStr, program: &Path) {
    let library = program.with_file_name("libtollgate_agent.rlib");
    let rustc = |name: &str, crate_type: &str, source: &str, output: &Path| {
        let mut rustc = Command::new(variable("RUSTC"));
        rustc
            .args(["--edition", "2024", "--crate-type", crate_type])
            .args(["--crate-name", name])
            .arg("--target")
            .arg(target)
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
    run(&mut rustc("tollgate_agent", "rlib", "lib.rs", &library));
    let mut linked = OsString::from("tollgate_agent=");
    linked.push(&library);
    let mut program = rustc("agent", "bin", "main.rs", program);
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
