//! Writes the seeds of one fuzz target to a folder: `seeds TARGET FOLDER`.

use std::process::ExitCode;
use tollgate_hostile::TARGETS;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = arguments.as_slice() else {
        eprintln!("usage: seeds TARGET FOLDER");
        return ExitCode::from(2);
    };
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!(
            "'{name}' is not a target; the targets are {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    };
    for (seed, bytes) in (target.seeds)() {
        let path = std::path::Path::new(folder).join(&seed);
        if let Err(error) = std::fs::write(&path, bytes) {
            eprintln!("cannot write '{}': {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
