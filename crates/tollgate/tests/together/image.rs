//! Compares `tollgate image` with QEMU's own `qemu-img` (Debian package qemu-utils, which
//! scripts/install-dependencies installs).

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("tollgate-image-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Runs `tollgate image` in the folder; `words` are separated by blanks.
    fn image(&self, words: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("image")
            .args(words.split(' '))
            .current_dir(&self.0)
            .output()
            .unwrap()
    }

    #[track_caller]
    fn done(&self, words: &str) -> String {
        let output = self.image(words);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), errors.as_str()),
            (Some(0), ""),
            "{words}"
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Expects that the words are refused with this exit code and one line that contains `why`.
    #[track_caller]
    fn refused(&self, words: &str, code: i32, why: &str) {
        let output = self.image(words);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words}: {errors}");
        assert!(
            errors.starts_with("tollgate: ") && errors.contains(why),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }

    #[track_caller]
    fn qemu_img(&self, words: &str) -> String {
        let output = Command::new("qemu-img")
            .args(words.split(' '))
            .current_dir(&self.0)
            .output()
            .expect("qemu-img (scripts/install-dependencies installs it)");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "qemu-img {words}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_made_is_what_qemu_makes() {
    let folder = Folder::new("create");
    for (name, options) in [
        ("a.img", "a.img 1000000"),
        ("b.qcow2", "-f qcow2 b.qcow2 3G"),
        ("c.qcow2", "-f qcow2 -b b.qcow2 -F qcow2 c.qcow2"),
        ("d.qcow2", "-f qcow2 -b a.img -F raw d.qcow2 64M"),
    ] {
        folder.done(&format!("create {options}"));
        let ours = folder.qemu_img(&format!("info --output json {name}"));
        fs::rename(folder.0.join(name), folder.0.join("ours")).unwrap();
        folder.qemu_img(&format!("create -q {options}"));
        let theirs = folder.qemu_img(&format!("info --output json {name}"));
        for field in [
            "virtual-size",
            "\"format\"",
            "cluster-size",
            "\"backing-filename\"",
            "backing-filename-format",
            "compat",
        ] {
            let of = |text: &str| -> Option<String> {
                let line = text.lines().find(|line| line.contains(field))?;
                Some(line.trim().trim_end_matches(',').to_owned())
            };
            assert_eq!(of(&ours), of(&theirs), "{name}: {field}");
        }
        fs::rename(folder.0.join("ours"), folder.0.join(name)).unwrap();
    }
}

#[test]
fn an_image_is_shown_for_people_and_programs() {
    let folder = Folder::new("info");
    folder.done("create base.img 1G");
    folder.done("create -f qcow2 -b base.img -F raw disk.qcow2");
    let text = folder.done("info disk.qcow2");
    for line in [
        "image: disk.qcow2",
        "file format: qcow2",
        "virtual size: 1 GiB (1073741824 bytes)",
        "cluster_size: 65536",
        "backing file: base.img",
        "backing file format: raw",
        "compat: 1.1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let json = folder.done("info --output=json disk.qcow2");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let theirs = folder.qemu_img("info --output=json disk.qcow2");
    let theirs: serde_json::Value = serde_json::from_str(&theirs).unwrap();
    for (name, value) in json.as_object().unwrap() {
        if name != "format-specific" {
            assert_eq!(theirs[name], *value, "{name}");
        }
    }
}

#[test]
fn a_copy_is_the_same_and_says_nothing_without_a_terminal() {
    let folder = Folder::new("convert");
    let mut content = vec![0; 3 << 20];
    content[70_000..80_000].fill(7);
    fs::write(folder.0.join("a.img"), &content).unwrap();
    assert_eq!(folder.done("convert -p -O qcow2 a.img b.qcow2"), "");
    folder.qemu_img("compare a.img b.qcow2");
    assert!(
        folder
            .done("check b.qcow2")
            .contains("No errors were found")
    );
    folder.done("convert b.qcow2 c.img");
    assert_eq!(fs::read(folder.0.join("c.img")).unwrap(), content);
    folder.refused("convert b.qcow2 c.img", 2, "it exists");
    folder.done("convert --overwrite b.qcow2 c.img");
}

#[test]
fn each_refusal_is_one_line() {
    let folder = Folder::new("refusals");
    folder.done("create -f qcow2 a.qcow2 1M");
    fs::copy(folder.0.join("a.qcow2"), folder.0.join("a.img")).unwrap();
    folder.refused("create -f qcow2 a.qcow2 1M", 2, "it exists");
    folder.refused("create b.img", 2, "missing SIZE");
    folder.refused("create b.img 1,5G", 2, "unknown unit");
    folder.refused("create -f vmdk b.vmdk 1G", 2, "expected raw or qcow2");
    folder.refused("create -b a.qcow2 -F qcow2 b.img", 2, "no backing file");
    folder.refused("create -f qcow2 -b a.qcow2 b.qcow2", 2, "--backing-format");
    folder.refused(
        "create -f qcow2 -b no.img -F raw b.qcow2",
        2,
        "no such file",
    );
    folder.refused("info no.img", 2, "no such file");
    folder.refused("info -f qcow2 .", 2, "folder");
    folder.refused("convert a.img b.img", 2, "looks like qcow2");
    folder.refused("convert -c a.qcow2 b.img", 2, "'-c'");
    folder.refused("check -f raw a.img", 1, "nothing to check");
    folder.refused("check no.qcow2", 1, "no such file");
    folder.refused(
        "shrink a.qcow2",
        2,
        "create, info, check, convert or unpack",
    );
}

/// Writes some bytes into a file of the folder.
fn edit(folder: &Folder, name: &str, offset: usize, bytes: &[u8]) {
    let path = folder.0.join(name);
    let mut content = fs::read(&path).unwrap();
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
    fs::write(path, content).unwrap();
}

#[test]
fn an_encrypted_image_is_shown_as_such_and_not_copied() {
    let folder = Folder::new("encrypted");
    folder.done("create -f qcow2 a.qcow2 1M");
    edit(&folder, "a.qcow2", 32, &[0, 0, 0, 1]);
    assert!(folder.done("info a.qcow2").contains("\nencrypted: yes\n"));
    let json: serde_json::Value =
        serde_json::from_str(&folder.done("info --output=json a.qcow2")).unwrap();
    assert_eq!(json["encrypted"], true);
    assert_eq!(json["format-specific"]["data"]["encrypt"]["format"], "aes");
    folder.refused("convert a.qcow2 b.img", 2, "it is encrypted (aes)");
    folder.refused("check a.qcow2", 1, "it is encrypted");
}

#[test]
fn an_image_that_was_not_closed_says_so_and_what_cures_it() {
    let folder = Folder::new("dirty");
    folder.done("create -f qcow2 a.qcow2 1M");
    edit(&folder, "a.qcow2", 79, &[1]);
    let text = folder.done("info a.qcow2");
    assert!(text.contains("dirty: ") && text.contains("qemu-img check -r all"));
    folder.refused("check -q missing.qcow2", 1, "no such file");
    let output = folder.image("check a.qcow2");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("marked as dirty"));
    let output = folder.image("convert a.qcow2 b.img");
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("marked as dirty") && said.lines().count() == 1,
        "{said}"
    );
    assert!(
        folder
            .done("check -r leaks a.qcow2")
            .contains("no longer marked")
    );
    assert!(folder.done("check a.qcow2").starts_with("No errors"));
    folder.qemu_img("check a.qcow2");
}

#[test]
fn a_copy_reads_only_the_files_that_it_may() {
    let folder = Folder::new("backing");
    fs::create_dir(folder.0.join("inner")).unwrap();
    folder.done("create near.img 1M");
    folder.done("create -f qcow2 -b ../near.img -F raw inner/a.qcow2");
    folder.done("create -f qcow2 -b near.img -F raw b.qcow2");
    folder.done("convert inner/a.qcow2 c.img");
    for (words, why) in [
        ("--backing same-dir inner/a.qcow2", "backing=same-dir"),
        ("--backing none inner/a.qcow2", "backing=none"),
        ("--backing none b.qcow2", "backing=none"),
        ("--backing some b.qcow2", "any, same-dir or none"),
    ] {
        folder.refused(&format!("convert {words} d.img"), 2, why);
    }
    folder.done("convert --backing same-dir b.qcow2 d.img");
}
