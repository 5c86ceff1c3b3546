//! Every test file in the workspace is compiled: Cargo ignores a file next to a `main.rs` that does
//! not name it, without a warning.

use std::fs;
use std::path::{Path, PathBuf};

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn test_programs_name_all_of_their_files() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let folders = entries(crates).into_iter().map(|it| it.join("tests"));
    let programs = folders.flat_map(|folder| entries(&folder));
    let mut checked = 0;
    for program in programs {
        let Ok(main) = fs::read_to_string(program.join("main.rs")) else {
            continue;
        };
        let named: Vec<&str> = main
            .lines()
            .filter_map(|line| line.trim().strip_prefix("mod ")?.strip_suffix(';'))
            .collect();
        for file in entries(&program) {
            let is_module = file.is_dir() || file.extension().is_some_and(|it| it == "rs");
            let name = file.file_stem().unwrap().to_str().unwrap();
            assert!(
                !is_module || name == "main" || named.contains(&name),
                "{} is not compiled",
                file.display()
            );
            checked += usize::from(is_module);
        }
    }
    assert!(checked > 100, "only {checked} files were found");
}
