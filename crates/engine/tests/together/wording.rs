//! Comments and documents are written in plain English: the phrases of [`REFUSED`], and doc
//! comments that say nothing, may only become fewer.
//!
//! `tests/wording.txt` says how many each file still has. A file with more fails. A file with
//! fewer passes, and this command lowers its count (it never raises one):
//!
//! ```text
//! TOLLGATE_BLESS=1 cargo test --release -p tollgate-engine --test together wording::
//! ```
//!
//! With `TOLLGATE_STRICT_WORDING` set, a file with fewer fails too. A file that moves to another
//! folder keeps its count; for one that gets another name, its line in the list is renamed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// A phrase, and what to write in its place. A phrase is words separated by blanks; `a|b` is one
/// of several words.
const REFUSED: &[(&str, &str)] = &[
    ("behind", "after, following, past"),
    ("beside|besides", "in addition to, next to"),
    (
        "nobody|somebody|anybody|everybody|whoever",
        "no instruction, a caller, the code that",
    ),
    ("so|that many", "the number, `count`, as many as"),
    ("so much", "the amount, as much as"),
    ("in force", "active, valid"),
    ("out of force", "inactive, invalid"),
    (
        "go|goes|going|gone|went on with|at",
        "continues, resumes; must not be resumed",
    ),
    ("tell|tells|telling|told of", "is notified of, reports"),
    ("tell|tells|telling|told apart", "distinguished"),
    ("but for", "except, apart from"),
    ("anew", "again"),
    ("meanwhile", "in the meantime, until then"),
    ("at last", "finally"),
    ("once more", "again, a second time"),
    ("is|are|was|were to be", "must, should, will be"),
    ("is|are|was|were not to be", "must not, cannot be"),
    ("to be had", "available"),
];

/// Uses of a refused phrase that are good English.
const ALLOWED: &[&str] = &[
    "behind a|an|the|its|this guard",
    "fall|falls|fell|lag|lags|lagged|left behind",
    "behind nat",
    "but for which",
    "so that many",
];

/// A doc comment of one or two words that begins or ends with one of these says no more than the
/// name below it ("The file."), or less ("As before.", "Forgets all.").
const EMPTY_FIRST: &str = "a|all|an|as|at|by|each|for|from|in|it|its|likewise|no|none|nothing|of|on|same|such|that|the|this|to|what|where|with";
const EMPTY_LAST: &str = "all|it|likewise|one|same|so|them|this";

/// Folders whose files are read, with those below them.
const FOLDERS: [&str; 6] = ["crates", "docs", "benches", "fuzz", "scripts", "tests"];

/// Documents that are generated from comments and help texts, where their phrases are counted.
const GENERATED: [&str; 3] = [
    "docs/develop/unsafe.md",
    "docs/develop/where-is-it.md",
    "docs/reference/command-line.md",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn list_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wording.txt")
}

/// Consecutive lines of one comment, or one paragraph of a document, without markers.
struct Block {
    line: usize,
    is_doc_comment: bool,
    text: String,
}

/// The marker that a line of a source file starts with, if it is a comment, and the rest.
fn comment(name: &str, line: &str) -> Option<(&'static str, String)> {
    let markers: &[&str] = match name.rsplit_once('.') {
        Some((_, "rs")) => &["///", "//!", "//"],
        Some((_, "c" | "h")) => &["//", "/*", "*"],
        Some((_, "S" | "inc")) => &["//", "#", ";", "/*", "*"],
        Some((_, "py" | "sh")) | None => &["#"],
        Some(_) => &[],
    };
    let line = line.trim_start();
    let marker = markers.iter().find(|marker| line.starts_with(**marker))?;
    Some((marker, line[marker.len()..].trim().to_owned()))
}

/// The paragraphs of a document, without code.
fn paragraphs(source: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_fenced, mut continues) = (false, false);
    for (index, line) in source.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if is_fence || is_fenced || line.starts_with("    ") || line.trim().is_empty() {
            continues = false;
            continue;
        }
        match blocks.last_mut().filter(|_| continues) {
            Some(block) => write!(block.text, " {}", line.trim()).unwrap(),
            None => blocks.push(Block {
                line: index + 1,
                is_doc_comment: false,
                text: line.trim().to_owned(),
            }),
        }
        continues = true;
    }
    blocks
}

/// The comments of a source file.
fn comments(name: &str, source: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut last = None;
    for (index, line) in source.lines().enumerate() {
        let found = comment(name, line);
        let marker = found.as_ref().map(|(marker, _)| *marker);
        if let Some((marker, text)) = found {
            match blocks.last_mut().filter(|_| last == Some(marker)) {
                Some(block) => write!(block.text, " {text}").unwrap(),
                None => blocks.push(Block {
                    line: index + 1,
                    is_doc_comment: matches!(marker, "///" | "//!"),
                    text,
                }),
            }
        }
        last = marker;
    }
    blocks
}

/// The words in lower case, without code in backticks. An empty word stands for punctuation that
/// ends a phrase.
fn words(text: &str) -> Vec<String> {
    let prose = text
        .split('`')
        .enumerate()
        .map(|(index, part)| if index % 2 == 0 { part } else { "_" });
    let mut words = Vec::new();
    for word in prose.collect::<String>().split_whitespace() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '\'';
        words.push(word.trim_matches(|c| !is_part(c)).to_lowercase());
        if word.ends_with(['.', ':', ';', ',']) {
            words.push(String::new());
        }
    }
    words
}

/// Whether a phrase stands at the start of these words.
fn starts_with(words: &[String], phrase: &str) -> bool {
    let mut words = words.iter();
    phrase.split(' ').all(|alternatives| {
        let word = words.next();
        word.is_some_and(|word| alternatives.split('|').any(|it| it == word))
    })
}

/// Whether an allowed phrase covers the word at this place.
fn is_allowed(words: &[String], place: usize) -> bool {
    ALLOWED.iter().any(|phrase| {
        let before = phrase.split(' ').count() - 1;
        let starts = place.saturating_sub(before)..=place;
        starts.into_iter().any(|start| {
            let covers = start + phrase.split(' ').count() > place;
            covers && starts_with(&words[start..], phrase)
        })
    })
}

/// The refused phrases of a block, each with what to write instead.
fn hits(block: &Block) -> Vec<String> {
    let words = words(&block.text);
    let mut hits = Vec::new();
    for place in 0..words.len() {
        for (phrase, instead) in REFUSED {
            if starts_with(&words[place..], phrase) && !is_allowed(&words, place) {
                let end = words.len().min(place + 6);
                let around = &words[place.saturating_sub(5)..end];
                let around = around.join(" ").replace("  ", " ");
                hits.push(format!("\"{phrase}\" in \"{around}\": write {instead}"));
            }
        }
    }
    let words: Vec<&String> = words.iter().filter(|word| !word.is_empty()).collect();
    let is_listed = |word: &String, list: &str| list.split('|').any(|it| it == word);
    let says_nothing = |words: &[&String]| {
        is_listed(words[0], EMPTY_FIRST) || is_listed(words[words.len() - 1], EMPTY_LAST)
    };
    if block.is_doc_comment && (1..=2).contains(&words.len()) && says_nothing(&words) {
        let text = &block.text;
        hits.push(format!(
            "\"{text}\": a doc comment adds something to the name"
        ));
    }
    hits
}

/// All files to read, by their path from the workspace.
fn files() -> BTreeMap<String, PathBuf> {
    let workspace = workspace();
    let mut found = BTreeMap::new();
    let top = fs::read_dir(&workspace)
        .unwrap()
        .map(|it| it.unwrap().path());
    let mut left: Vec<PathBuf> = top
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .chain(FOLDERS.map(|folder| workspace.join(folder)))
        .collect();
    while let Some(path) = left.pop() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if name != "target" && name != "corpus" && !name.starts_with('.') {
                left.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
            }
        } else {
            let relative = path.strip_prefix(&workspace).unwrap();
            let relative = relative.to_str().unwrap().to_owned();
            if !GENERATED.contains(&relative.as_str()) {
                found.insert(relative, path);
            }
        }
    }
    found
}

fn hits_of_file(path: &Path) -> Vec<String> {
    // A file that is not text has no comments.
    let Ok(source) = fs::read_to_string(path) else {
        return Vec::new();
    };
    let name = path.file_name().unwrap().to_str().unwrap();
    let blocks = if name.ends_with(".md") {
        paragraphs(&source)
    } else {
        comments(name, &source)
    };
    let with_line = |block: &Block| {
        let line = block.line;
        let hits = hits(block).into_iter();
        hits.map(move |hit| format!("line {line}: {hit}"))
            .collect::<Vec<_>>()
    };
    blocks.iter().flat_map(with_line).collect()
}

/// The list: how many hits each file may have.
fn allowed() -> BTreeMap<String, usize> {
    let list = fs::read_to_string(list_path()).unwrap_or_default();
    let lines = list.lines().map(|line| {
        let (name, count) = line.rsplit_once(' ').expect("a path and a count");
        (name.to_owned(), count.parse().expect("a count"))
    });
    lines.collect()
}

/// The count of a file: its own, or that of a file of this name which is no longer there.
fn limit(allowed: &BTreeMap<String, usize>, name: &str) -> usize {
    let file_name = |path: &str| path.rsplit('/').next().map(str::to_owned);
    let is_moved = |old: &str| file_name(old) == file_name(name) && !workspace().join(old).exists();
    let mut moved = allowed.iter().filter(|(old, _)| is_moved(old));
    let own = allowed
        .get(name)
        .or_else(|| moved.next().map(|(_, count)| count));
    own.copied().unwrap_or(0)
}

#[test]
fn refused_phrases_only_become_fewer() {
    let allowed = allowed();
    let (mut failures, mut lowered) = (String::new(), String::new());
    let mut is_list_too_high = allowed.keys().any(|name| !workspace().join(name).exists());
    for (name, path) in files() {
        let hits = hits_of_file(&path);
        let limit = limit(&allowed, &name);
        if hits.len() > limit {
            let hits = hits.join("\n  ");
            writeln!(failures, "{name}: {limit} allowed, found\n  {hits}").unwrap();
        }
        is_list_too_high |= hits.len() < limit;
        let count = hits.len().min(limit);
        if count > 0 {
            writeln!(lowered, "{name} {count}").unwrap();
        }
    }
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        fs::write(list_path(), lowered).unwrap();
        is_list_too_high = false;
    }
    assert!(
        failures.is_empty(),
        "comments or documents contain more refused phrases than tests/wording.txt allows \
         (older hits of the file are listed with the new ones):\n{failures}"
    );
    assert!(
        !is_list_too_high || std::env::var_os("TOLLGATE_STRICT_WORDING").is_none(),
        "tests/wording.txt allows more than the files contain: run this with TOLLGATE_BLESS=1"
    );
}

#[test]
fn phrases_are_found_across_lines_but_not_in_code() {
    let count = |name: &str, source: &str| -> usize {
        comments(name, source).iter().map(|it| hits(it).len()).sum()
    };
    assert_eq!(count("a.rs", "// This page is\n// to be forgotten.\n"), 1);
    assert_eq!(count("a.rs", "// This page `is to be` forgotten.\n"), 0);
    assert_eq!(count("a.rs", "// This is. To be sure, it is.\n"), 0);
    assert_eq!(count("a.rs", "let anew = 1;\n"), 0);
    assert_eq!(count("a.rs", "/// The file.\nfile: File,\n"), 1);
    assert_eq!(
        count("a.rs", "/// The file with the rows.\nfile: File,\n"),
        0
    );
    assert_eq!(count("a.rs", "// The page lies behind a guard.\n"), 0);
    assert_eq!(count("a.rs", "// The page lies behind a wall.\n"), 1);
    assert_eq!(count("build", "# Built anew.\n"), 1);
    let document = "Run it\nanew:\n\n    anew\n\n```text\nanew\n```\n";
    let found: usize = paragraphs(document).iter().map(|it| hits(it).len()).sum();
    assert_eq!(found, 1);
}
