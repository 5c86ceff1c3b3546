//! The layer diagrams and tables of ARCHITECTURE.md and of the engine's README are compared with
//! the sources: a crate, and a folder of the engine, uses what the document says, and only what is
//! below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Names = BTreeSet<String>;

/// What a document says of some parts: a picture, whose lines are floors, and a table.
struct Documented {
    /// The parts on each floor, from the top floor down.
    floors: Vec<Names>,
    /// The parts, each with the parts that it uses, from the top down.
    rows: Vec<(String, Names)>,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names in backticks.
fn quoted(text: &str) -> Names {
    let parts = text.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

impl Documented {
    /// Reads the section of a document of the workspace under this heading.
    fn under(document: &str, heading: &str) -> Self {
        let document = read(&workspace().join(document));
        let start = document.find(&format!("\n## {heading}\n"));
        let section = &document[start.expect("no such heading") + 4..];
        let section = &section[..section.find("\n## ").unwrap_or(section.len())];
        let rows: Vec<(String, Names)> = section
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| {
                let cells: Vec<&str> = line.split('|').collect();
                let name = cells[1].trim().trim_matches('`').to_owned();
                (name, quoted(cells[3]))
            })
            .collect();
        let picture = section.split("```text\n").nth(1).expect("no picture");
        let picture = &picture[..picture.find("```").expect("the picture ends")];
        let is_part = |word: &&str| rows.iter().any(|(name, _)| name == word);
        // The text before two blanks is the floor's title.
        let floors = picture.lines().map(|line| {
            let parts = line.split_once("  ").map_or(line, |(_, parts)| parts);
            let names = parts.split_whitespace().filter(is_part);
            names.map(str::to_owned).collect()
        });
        let floors = floors.collect();
        Self { floors, rows }
    }

    /// Asserts that the document agrees with the sources, and that all uses lead down.
    fn check(&self, found: &BTreeMap<String, Names>) {
        let listed: Names = self.rows.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(listed, found.keys().cloned().collect(), "the parts listed");
        let drawn: Vec<&String> = self.floors.iter().flatten().collect();
        assert_eq!(drawn.len(), listed.len(), "each part is drawn once");
        for (index, (name, uses)) in self.rows.iter().enumerate() {
            assert_eq!(uses, &found[name], "what {name} uses");
            let below: Names = self.rows[index + 1..]
                .iter()
                .map(|(name, _)| name.clone())
                .collect();
            let up: Vec<&String> = uses.difference(&below).collect();
            assert!(up.is_empty(), "{name} uses {up:?} above it in the table");
            let floor = |name: &str| {
                let at = self.floors.iter().position(|floor| floor.contains(name));
                at.unwrap_or_else(|| panic!("{name} is not drawn"))
            };
            for used in uses {
                let is_below = floor(used) > floor(name);
                assert!(is_below, "{name} uses {used}, which is not drawn below it");
            }
        }
    }
}

/// A source file's text without comments and tests.
fn code(source: &str) -> String {
    let source = &source[..source
        .find("#[cfg(test)]\nmod tests {")
        .unwrap_or(source.len())];
    let lines = source.lines().map(|line| line.trim_start());
    let code = lines.filter(|line| !line.starts_with("//"));
    code.flat_map(|line| [line, "\n"]).collect()
}

/// The files of a module: `name.rs` and the folder `name`, except files of tests.
fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.join(name)];
    found.push(folder.join(format!("{name}.rs")));
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                found.push(path);
            }
        }
    }
    found.retain(|path| path.exists());
    found
}

/// The modules of the crate that a module's code names: the first part of each `crate::` path.
fn uses_of_module(folder: &Path, name: &str) -> Names {
    let mut uses = Names::new();
    for path in files(folder, name) {
        let source = code(&read(&path));
        let shown = path.display();
        assert!(
            !source.contains("super::super"),
            "{shown}: write crate:: instead of super::super"
        );
        for rest in source.split("crate::").skip(1) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            let part = &rest[..end.unwrap_or(rest.len())];
            let is_module = part.starts_with(|c: char| c.is_ascii_lowercase());
            assert!(
                is_module,
                "{shown}: crate::{part} does not say which module"
            );
            uses.insert(part.to_owned());
        }
    }
    uses.remove(name);
    uses
}

#[test]
fn the_engines_folders_use_what_the_document_says() {
    let folder = workspace().join("crates/engine/src");
    let library = read(&folder.join("lib.rs"));
    let modules = library.lines().filter_map(|line| {
        let name = line
            .strip_prefix("pub mod ")
            .or(line.strip_prefix("mod "))?;
        name.strip_suffix(';')
    });
    let found = modules
        .map(|name| (name.to_owned(), uses_of_module(&folder, name)))
        .collect();
    Documented::under("crates/engine/README.md", "The engine's folders").check(&found);
}

#[test]
fn the_crates_depend_on_what_the_document_says() {
    let mut found = BTreeMap::new();
    let crates = fs::read_dir(workspace().join("crates")).expect("the crates");
    for entry in crates.flatten() {
        let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) else {
            continue;
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        // Tests may depend on any crate.
        let mut is_wanted = false;
        let uses = manifest.lines().filter_map(|line| {
            if line.starts_with('[') {
                is_wanted = line == "[dependencies]";
            }
            let name = line.strip_prefix("tollgate-").filter(|_| is_wanted)?;
            Some(name.split(['.', ' ', '=']).next()?.to_owned())
        });
        found.insert(name, uses.collect());
    }
    for (name, uses) in &found {
        let readme = read(&workspace().join(format!("crates/{name}/README.md")));
        let (_, rest) = readme
            .split_once("It depends on ")
            .unwrap_or_else(|| panic!("the README of {name} does not say what it depends on"));
        let sentence = rest.split('.').next().expect("a sentence");
        assert_eq!(uses, &quoted(sentence), "what the README of {name} says");
    }
    Documented::under("ARCHITECTURE.md", "The crates").check(&found);
}
