//! The documents are compared with the sources: links lead to existing targets, and generated
//! documents are up to date.
//!
//! The generated documents are `docs/develop/where-is-it.md`, with the first sentence of each file,
//! and `docs/develop/unsafe.md`, with the files that contain `unsafe`. After a change of the
//! sources, this command writes them again:
//!
//! ```text
//! TOLLGATE_BLESS=1 cargo test --release -p tollgate-engine --test together documents::
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Component, Path, PathBuf};

const COMMAND: &str =
    "TOLLGATE_BLESS=1 cargo test --release -p tollgate-engine --test together documents::";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below a folder whose names end with `ending`, in order, except those of builds and
/// git.
fn files_below(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if !is_folder && name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The crates by name, each with the files in its `src` that are not tests.
fn sources() -> BTreeMap<String, Vec<PathBuf>> {
    let crates = fs::read_dir(workspace().join("crates")).expect("the crates");
    let crates = crates
        .flatten()
        .filter(|entry| entry.path().join("Cargo.toml").exists());
    crates
        .map(|entry| {
            let source = entry.path().join("src");
            let mut files = files_below(&source, ".rs");
            files.retain(|file| {
                let below = file.strip_prefix(&source).expect("a file of the crate");
                !below.iter().any(|part| {
                    let part = part.to_string_lossy();
                    part == "tests" || part.ends_with("tests.rs")
                })
            });
            (entry.file_name().to_string_lossy().into_owned(), files)
        })
        .collect()
}

/// A file's path as documents name it: below its crate's `src`.
fn short_name(file: &Path) -> String {
    let name = file.display().to_string();
    let start = name.rfind("/src/").expect("a file of a crate") + 5;
    name[start..].to_owned()
}

/// The first sentence of a file's introduction, as Markdown that needs no context.
fn first_sentence(file: &Path) -> String {
    let source = read(file);
    let paragraph: Vec<&str> = source
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let paragraph = without_links(&paragraph.join(" "));
    assert!(
        !paragraph.is_empty(),
        "{}: say in a first line '//! ...' what the file is about",
        file.display()
    );
    let end = paragraph.find(". ").map_or(paragraph.len(), |end| end + 1);
    paragraph[..end].to_owned()
}

/// Turns `[text](target)` and `[text]` into `text`, since a link that is right in one file leads
/// nowhere in another.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, inside)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((words, after)) = inside.split_once(']') else {
            plain.push('[');
            rest = inside;
            continue;
        };
        plain.push_str(words);
        rest = match after.strip_prefix('(').and_then(|it| it.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    plain.push_str(rest);
    plain
}

/// Compares a generated document with the file, or writes the file if that was requested.
fn check_generated(path: &str, generated: &str) {
    let file = workspace().join(path);
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        fs::write(&file, generated).expect("the document can be written");
        return;
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    let differs = written
        .lines()
        .zip(generated.lines())
        .find(|(old, new)| old != new);
    assert!(
        written == generated,
        "{path} does not agree with the sources (first difference: {differs:?}). Run\n{COMMAND}"
    );
}

#[test]
fn where_is_it_has_the_first_sentence_of_every_file() {
    let mut text = String::from(
        "# Where is it?\n\n\
         The first sentence of every source file that is not a test, by crate. This page is\n\
         generated from the files:\n\n",
    );
    writeln!(text, "    {COMMAND}").unwrap();
    for (name, files) in sources() {
        let folder = format!("../../crates/{name}");
        write!(text, "\n## {name}\n\n[README]({folder}/README.md), ").unwrap();
        writeln!(text, "[sources]({folder}/src)\n").unwrap();
        for file in files {
            let (name, sentence) = (short_name(&file), first_sentence(&file));
            writeln!(text, "- `{name}`: {sentence}").unwrap();
        }
    }
    check_generated("docs/develop/where-is-it.md", &text);
}

/// Whether code of this file, apart from its tests and comments, contains `unsafe`.
fn has_unsafe(file: &Path) -> bool {
    let source = read(file);
    let end = source
        .find("#[cfg(test)]\nmod tests {")
        .unwrap_or(source.len());
    let lines = source[..end].lines().map(str::trim_start);
    let mut code = lines.filter(|line| !line.starts_with("//"));
    code.any(|line| {
        let mut after = line.split("unsafe ").skip(1);
        after.any(|it| {
            ["{", "impl", "fn", "extern"]
                .iter()
                .any(|word| it.starts_with(word))
        })
    })
}

#[test]
fn the_list_of_unsafe_files_is_complete() {
    let mut text = String::from(
        "# Where the code is unsafe\n\n\
         All files with an `unsafe` block, function, implementation or `extern`, apart from tests, with\n\
         the first sentence of each. Every block has a SAFETY comment, which clippy enforces. A crate\n\
         that is not listed has none. This page is generated from the files:\n\n",
    );
    writeln!(text, "    {COMMAND}").unwrap();
    for (name, mut files) in sources() {
        files.retain(|file| has_unsafe(file));
        if files.is_empty() {
            continue;
        }
        write!(text, "\n## {name}\n\n| file | subject |\n|---|---|\n").unwrap();
        for file in files {
            let (short, sentence) = (short_name(&file), first_sentence(&file));
            let sentence = sentence.replace('|', "\\|");
            let link = format!("../../crates/{name}/src/{short}");
            writeln!(text, "| [`{short}`]({link}) | {sentence} |").unwrap();
        }
    }
    check_generated("docs/develop/unsafe.md", &text);
}

#[test]
fn the_introduction_stays_short() {
    let length = read(&workspace().join("ARCHITECTURE.md")).len();
    assert!(
        length <= 25 * 1024,
        "ARCHITECTURE.md has {length} bytes, of 25 KiB: details belong in the README of a crate"
    );
}

/// The name by which links reach a heading, as sites that show Markdown form it.
fn anchor(heading: &str) -> String {
    let plain = without_links(heading).to_lowercase();
    let kept = plain
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// A document without its blocks of code.
fn prose(document: &str) -> String {
    let parts = document.split("```");
    parts.step_by(2).collect::<Vec<_>>().join("\n")
}

fn anchors(document: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let text = prose(document);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let name = anchor(line.trim_start_matches('#').trim());
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            match *count {
                1 => name,
                again => format!("{name}-{}", again - 1),
            }
        })
        .collect()
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The names of source files in backticks, such as `pc.rs` or `monitor/src/near.rs`.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    let code = text
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    code.filter(|name| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        name.ends_with(".rs") && name.chars().all(is_part)
    })
}

#[test]
fn every_source_file_that_a_document_names_exists() {
    let crates = files_below(&workspace().join("crates"), ".rs");
    let is_there = |name: &str| crates.iter().any(|file| file.ends_with(name));
    let mut wrong = String::new();
    let mut names = 0;
    for file in files_below(&workspace(), ".md") {
        let text = prose(&read(&file));
        for name in named_files(&text).filter(|name| !is_there(name)) {
            writeln!(wrong, "{}: {name}", file.display()).unwrap();
        }
        names += named_files(&text).count();
    }
    assert!(wrong.is_empty(), "there are no such files:\n{wrong}");
    assert!(names > 100, "only {names} names found");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_exist() {
    let mut wrong = String::new();
    let mut links = 0;
    for file in files_below(&workspace(), ".md") {
        let text = prose(&read(&file));
        for target in text.split("](").skip(1) {
            let target = target.split(')').next().unwrap_or_default();
            if target.contains(':') || target.contains(char::is_whitespace) {
                continue;
            }
            links += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match path {
                "" => file.clone(),
                path => normal(&file.parent().expect("a folder").join(path)),
            };
            let is_document = path.extension().is_some_and(|kind| kind == "md");
            let exists = path.exists()
                && (heading.is_empty() || !is_document || anchors(&read(&path)).contains(heading));
            if !exists {
                writeln!(wrong, "{}: {target}", file.display()).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{wrong}");
    assert!(links > 100, "only {links} links found");
}
