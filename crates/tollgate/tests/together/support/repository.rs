//! Serves a repository of packages from this machine, for apt-get in guests.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use super::exec::text;
use super::folder::Folder;

/// The name of the package in the repository.
pub const PACKAGE: &str = "tollgate-test-package";
/// The number of lines of the file in the package, which is named `file`.
pub const LINES: usize = 200_000;

/// Makes the repository in the folder and serves it on the loopback address until the tests end.
/// Returns its port.
#[track_caller]
pub fn serve(folder: &Folder) -> u16 {
    let control = format!(
        "Package: {PACKAGE}\nVersion: 1.0\nArchitecture: all\n\
         Maintainer: nobody <nobody@example.org>\nDescription: a file\n"
    );
    let tree = folder.path("tree");
    let files = tree.join("usr/share").join(PACKAGE);
    fs::create_dir_all(tree.join("DEBIAN")).unwrap();
    fs::create_dir_all(&files).unwrap();
    fs::write(tree.join("DEBIAN/control"), &control).unwrap();
    let content: String = (0..LINES).map(|n| format!("{n}\n")).collect();
    fs::write(files.join("file"), &content).unwrap();
    let repository = folder.path("repository");
    fs::create_dir(&repository).unwrap();
    let package = "repository/package.deb";
    let words = ["--root-owner-group", "-b", "tree", package];
    host(folder, "dpkg-deb", &words);
    let sum = host(folder, "sha256sum", &[package]);
    let bytes = fs::metadata(folder.path(package)).unwrap().len();
    let sum = sum.split(' ').next().unwrap();
    let index = format!("{control}Filename: ./package.deb\nSize: {bytes}\nSHA256: {sum}\n");
    fs::write(repository.join("Packages"), index).unwrap();
    serve_files(repository)
}

#[track_caller]
fn host(folder: &Folder, program: &str, words: &[&str]) -> String {
    let output = Command::new(program)
        .current_dir(folder.as_path())
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Serves the files of a folder on the loopback address until the tests end. Returns its port.
pub fn serve_files(folder: PathBuf) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(&folder, stream);
        }
    });
    port
}

/// Answers one request, with the file or with its headers only.
fn answer(folder: &Path, stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(&stream).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    // The rest of the request's head is skipped.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let name = path.trim_start_matches(['.', '/']);
    let (status, content) = match fs::read(folder.join(name)) {
        Ok(content) if !name.contains("..") => ("200 OK", content),
        _ => ("404 Not Found", Vec::new()),
    };
    let bytes = content.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
    (&stream).write_all(head.as_bytes())?;
    (&stream).write_all(&content)
}
