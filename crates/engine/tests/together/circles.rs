//! Files of a crate do not use each other in circles of more than three: every file can be read and
//! changed with no more than two others in mind.
//!
//! A file uses another if a path in its code (`use crate::...`, `super::...`, `child::...`) leads
//! to something that is defined there. Re-exports are followed to the definition, so a `mod.rs`
//! that only declares its children and hands on their names is part of no circle. Methods count
//! nowhere: only the type whose method is called has a path. Tests are left out.
//!
//! This command shows all circles with their arrows, and what each file takes from the others:
//!
//! ```text
//! cargo test --release -p tollgate-engine --test together circles:: -- --nocapture
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The largest number of files in a circle.
const MOST: usize = 3;

/// Crates that may have larger circles for now, each with the files of its largest one. The numbers
/// may only become smaller.
const LARGER: &[(&str, usize)] = &[];

/// The tokens of a source file without comments and literals: names, `::` and single characters.
fn tokens(source: &str) -> Vec<String> {
    let text: Vec<char> = source.chars().collect();
    let at = |index: usize| text.get(index).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut index = 0;
    while index < text.len() {
        let c = text[index];
        if c == '/' && at(index + 1) == '/' {
            while index < text.len() && text[index] != '\n' {
                index += 1;
            }
        } else if c == '/' && at(index + 1) == '*' {
            index += 2;
            while index < text.len() && !(text[index] == '*' && at(index + 1) == '/') {
                index += 1;
            }
            index += 2;
        } else if c == '"' {
            index += 1;
            while index < text.len() && text[index] != '"' {
                index += if text[index] == '\\' { 2 } else { 1 };
            }
            index += 1;
        } else if c == '\'' {
            let is_character = at(index + 1) == '\\' || at(index + 2) == '\'';
            index += 1;
            if is_character {
                index += if at(index) == '\\' { 2 } else { 1 };
                while index < text.len() && text[index] != '\'' {
                    index += 1;
                }
                index += 1;
            }
        } else if is_word(c) {
            let start = index;
            while is_word(at(index)) {
                index += 1;
            }
            let hashes = (index..).take_while(|&place| at(place) == '#').count();
            let is_raw = matches!(&text[start..index], ['r'] | ['b', 'r'] | ['c', 'r']);
            if is_raw && at(index + hashes) == '"' {
                index += hashes + 1;
                let ends = |place: usize| {
                    at(place) == '"' && (1..=hashes).all(|hash| at(place + hash) == '#')
                };
                while index < text.len() && !ends(index) {
                    index += 1;
                }
                index += hashes + 1;
            } else {
                found.push(text[start..index].iter().collect());
            }
        } else if c == ':' && at(index + 1) == ':' {
            found.push("::".to_owned());
            index += 2;
        } else {
            if !c.is_whitespace() {
                found.push(c.to_string());
            }
            index += 1;
        }
    }
    found
}

/// Whether a token is a name.
fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The index after the bracket that closes the one at `open`.
fn after_brackets(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// The index after the item that begins at `start`: after its block or its semicolon.
fn after_item(tokens: &[String], start: usize) -> usize {
    let mut index = start;
    while index < tokens.len() {
        match tokens[index].as_str() {
            ";" => return index + 1,
            "{" => return after_brackets(tokens, index),
            "(" | "[" => index = after_brackets(tokens, index),
            _ => index += 1,
        }
    }
    index
}

/// A path of names, as it is written.
type Names = Vec<String>;

/// A module: a file, or a part of one in braces.
#[derive(Default)]
struct Module {
    /// The file, as an index into the crate's files.
    file: usize,
    /// What it defines itself.
    defines: BTreeSet<String>,
    /// What it imports: the name here, and the path that the name stands for.
    imports: BTreeMap<String, Names>,
    /// The modules from which it imports everything.
    globs: Vec<Names>,
    /// The paths in its code.
    paths: Vec<Names>,
}

/// The modules of one library or program.
#[derive(Default)]
struct Sources {
    files: Vec<PathBuf>,
    modules: BTreeMap<Names, Module>,
    /// The modules that define macros, by the macros' names.
    macros: BTreeMap<String, Names>,
}

/// Reads the tree of an import: each name with its path. `*` stands for everything.
fn read_import(tokens: &[String], before: &Names, imports: &mut Vec<(String, Names)>) {
    let mut path = before.clone();
    let mut alias = None;
    let mut index = 0;
    while index < tokens.len() {
        match tokens[index].as_str() {
            "{" => {
                let end = after_brackets(tokens, index) - 1;
                let mut start = index + 1;
                for place in index + 1..=end {
                    let depth = |token: &&String| match token.as_str() {
                        "{" => 1,
                        "}" => -1,
                        _ => 0,
                    };
                    let inside: i32 = tokens[index + 1..place].iter().map(|it| depth(&it)).sum();
                    if inside == 0 && (tokens[place] == "," || place == end) {
                        if start < place {
                            read_import(&tokens[start..place], &path, imports);
                        }
                        start = place + 1;
                    }
                }
                return;
            }
            "as" => {
                alias = tokens.get(index + 1).cloned();
                index += 1;
            }
            "::" => {}
            name => path.push(name.to_owned()),
        }
        index += 1;
    }
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    if let Some(last) = path.last().cloned() {
        imports.push((alias.unwrap_or(last), path));
    }
}

impl Sources {
    /// Reads a file and the files of the modules that it declares. `children` is the folder with
    /// the files of these.
    fn read(&mut self, file: &Path, children: &Path, name: Names) {
        let source = fs::read_to_string(file);
        let source = source.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.files.push(file.to_owned());
        let number = self.files.len() - 1;
        self.read_module(number, children, name, &tokens(&source));
    }

    /// Reads the tokens of a module.
    fn read_module(&mut self, file: usize, children: &Path, name: Names, tokens: &[String]) {
        let mut module = Module {
            file,
            ..Module::default()
        };
        let mut index = 0;
        let mut depth = 0;
        let token = |index: usize| tokens.get(index).map_or("", String::as_str);
        let is_test = ["#", "[", "cfg", "(", "test", ")", "]"];
        while index < tokens.len() {
            if (0..is_test.len()).all(|place| token(index + place) == is_test[place]) {
                index += is_test.len();
                while token(index) == "#" {
                    index = after_brackets(tokens, index + 1);
                }
                index = after_item(tokens, index);
                continue;
            }
            match token(index) {
                // The path of `pub(in ...)` is no use.
                "pub" if token(index + 2) == "in" => {
                    index = after_brackets(tokens, index + 1);
                    continue;
                }
                "{" => depth += 1,
                "}" => depth -= 1,
                "mod" if depth == 0 && is_name(token(index + 1)) => {
                    let child = token(index + 1);
                    let mut path = name.clone();
                    path.push(child.to_owned());
                    let folder = children.join(child);
                    if token(index + 2) == ";" {
                        let inside = folder.join("mod.rs");
                        let beside = children.join(format!("{child}.rs"));
                        let file = if inside.exists() { inside } else { beside };
                        self.read(&file, &folder, path);
                        index += 3;
                    } else {
                        let end = after_brackets(tokens, index + 2);
                        self.read_module(file, &folder, path, &tokens[index + 3..end - 1]);
                        index = end;
                    }
                    continue;
                }
                "macro_rules" if token(index + 1) == "!" => {
                    module.defines.insert(token(index + 2).to_owned());
                    self.macros
                        .insert(token(index + 2).to_owned(), name.clone());
                }
                "fn" | "struct" | "enum" | "trait" | "const" | "static" | "type" | "union"
                    if depth == 0 && is_name(token(index + 1)) =>
                {
                    module.defines.insert(token(index + 1).to_owned());
                }
                "use" => {
                    let mut end = index;
                    while end < tokens.len() && tokens[end] != ";" {
                        end += 1;
                    }
                    let mut imports = Vec::new();
                    read_import(&tokens[index + 1..end], &Vec::new(), &mut imports);
                    for (known_as, mut path) in imports {
                        if known_as == "*" {
                            path.pop();
                            module.globs.push(path.clone());
                        } else {
                            module.imports.insert(known_as, path.clone());
                        }
                        module.paths.push(path);
                    }
                    index = end;
                    continue;
                }
                first if is_name(first) && token(index + 1) == "::" => {
                    let is_first = index == 0 || token(index - 1) != "::";
                    let mut path = vec![first.to_owned()];
                    let mut end = index + 1;
                    while token(end) == "::" && is_name(token(end + 1)) {
                        path.push(token(end + 1).to_owned());
                        end += 2;
                    }
                    if is_first {
                        module.paths.push(path);
                    }
                    index = end;
                    continue;
                }
                _ => {}
            }
            index += 1;
        }
        self.modules.insert(name, module);
    }

    /// The module in which what a path names is defined, if it is in these sources. `from` is the
    /// module with the path. `left` bounds the number of imports that are followed.
    fn defining(&self, from: &Names, path: &[String], left: usize) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        let left = left.checked_sub(1)?;
        let mut current = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            name => {
                let module = &self.modules[from];
                let child = [from.as_slice(), &[name.to_owned()]].concat();
                if self.modules.contains_key(&child) {
                    child
                } else if let Some(import) = module.imports.get(name) {
                    if import.first() == Some(first) {
                        return None;
                    }
                    let whole = [import.as_slice(), rest].concat();
                    return self.defining(from, &whole, left);
                } else {
                    return None;
                }
            }
        };
        for (index, name) in rest.iter().enumerate() {
            let child = [current.as_slice(), std::slice::from_ref(name)].concat();
            if name == "super" {
                current.pop()?;
            } else if self.modules.contains_key(&child) {
                current = child;
            } else {
                let module = &self.modules[&current];
                if module.defines.contains(name) {
                    return Some(current);
                }
                if let Some(import) = module.imports.get(name) {
                    let whole = [import.as_slice(), &rest[index + 1..]].concat();
                    return self.defining(&current, &whole, left);
                }
                for glob in &module.globs {
                    let whole = [glob.as_slice(), &rest[index..]].concat();
                    if let Some(found) = self.defining(&current, &whole, left)
                        && self.modules[&found].defines.contains(name)
                    {
                        return Some(found);
                    }
                }
                return Some(self.macros.get(name).cloned().unwrap_or(current));
            }
        }
        Some(current)
    }

    /// For each pair of files of which the first uses the second: what the first names there.
    fn arrows(&self) -> BTreeMap<(usize, usize), BTreeSet<String>> {
        let mut arrows: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for (name, module) in &self.modules {
            for path in &module.paths {
                let Some(found) = self.defining(name, path, 20) else {
                    continue;
                };
                let to = self.modules[&found].file;
                if to != module.file {
                    let place = path.iter().position(|part| found.last() == Some(part));
                    let taken = path.get(place.map_or(path.len() - 1, |place| place + 1));
                    let names = arrows.entry((module.file, to)).or_default();
                    names.insert(taken.map_or("*", String::as_str).to_owned());
                }
            }
        }
        arrows
    }
}

/// The circles: sets of two or more files each of which leads to every other one.
fn circles(files: usize, arrows: &BTreeSet<(usize, usize)>) -> Vec<BTreeSet<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..files)
        .map(|start| {
            let mut reached = BTreeSet::new();
            let mut next = vec![start];
            while let Some(file) = next.pop() {
                for &(_, to) in arrows.range((file, 0)..(file + 1, 0)) {
                    if reached.insert(to) {
                        next.push(to);
                    }
                }
            }
            reached
        })
        .collect();
    let circles: BTreeSet<BTreeSet<usize>> = (0..files)
        .map(|file| {
            let reached_back = |&&other: &&usize| reached[other].contains(&file);
            reached[file].iter().filter(reached_back).copied().collect()
        })
        .filter(|circle: &BTreeSet<usize>| circle.len() > 1)
        .collect();
    circles.into_iter().collect()
}

/// The files at which the library and the programs of a crate begin.
fn roots(source: &Path) -> Vec<PathBuf> {
    let mut roots = vec![source.join("lib.rs"), source.join("main.rs")];
    for entry in fs::read_dir(source.join("bin")).into_iter().flatten() {
        let path = entry.expect("a program").path();
        roots.push(if path.is_dir() {
            path.join("main.rs")
        } else {
            path
        });
    }
    roots.retain(|root| root.exists());
    roots
}

/// The sizes of a crate's circles. Prints the circles.
fn sizes_of_circles(name: &str, folder: &Path) -> Vec<usize> {
    let source = folder.join("src");
    let mut sizes = Vec::new();
    for root in roots(&source) {
        let mut sources = Sources::default();
        sources.read(&root, root.parent().expect("a folder"), Vec::new());
        let arrows = sources.arrows();
        let shown = |file: usize| {
            let path = &sources.files[file];
            path.strip_prefix(&source).expect("in src").display()
        };
        let pairs = arrows.keys().copied().collect();
        for circle in circles(sources.files.len(), &pairs) {
            println!("{name}: a circle of {} files", circle.len());
            for (&(from, to), names) in &arrows {
                if circle.contains(&from) && circle.contains(&to) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    println!("  {} -> {}: {}", shown(from), shown(to), names.join(", "));
                }
            }
            sizes.push(circle.len());
        }
    }
    sizes
}

#[test]
fn no_circle_has_more_than_three_files() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut failed = Vec::new();
    let mut folders: Vec<PathBuf> = fs::read_dir(crates)
        .expect("the crates")
        .map(|entry| entry.expect("a crate").path())
        .collect();
    folders.sort();
    for folder in folders {
        let name = folder.file_name().expect("a name").to_string_lossy();
        let sizes = sizes_of_circles(&name, &folder);
        let largest = sizes.into_iter().max().unwrap_or(0);
        let larger = LARGER.iter().find(|(allowed, _)| *allowed == name);
        let most = larger.map_or(MOST, |&(_, most)| most);
        if largest > most {
            failed.push(format!("{name} has a circle of {largest} files"));
        } else if largest < most && larger.is_some() {
            failed.push(format!("{name}: the largest circle is {largest}, lower it"));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
