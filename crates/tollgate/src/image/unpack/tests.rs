//! Unpacks images that are right, and images that a stranger has made to reach other files.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::manifest::hexadecimal;
use super::{Advice, UnpackArguments, command_line, run};

/// A folder of one test, with a file that no image may change or show.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-unpack-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::create_dir(path.join("outside")).unwrap();
        fs::write(path.join("outside/file"), "mine").unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Unpacks a file or folder of this place into the folder `root`.
    fn unpack(&self, image: &str, tag: Option<&str>) -> Result<(), String> {
        let arguments = UnpackArguments {
            tag: tag.map(str::to_owned),
            architecture: "amd64".into(),
            limit: 1 << 20,
            image: self.path(image),
            directory: self.path("root"),
        };
        run(&arguments).map_err(|failure| failure.message)
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("root").join(name)).ok()
    }

    /// Writes a layout of an image with these layers, and unpacks it.
    fn unpack_layers(&self, layers: &[Vec<u8>]) -> Result<(), String> {
        let folder = self.path("layout");
        let _ = fs::remove_dir_all(&folder);
        write_layout(&folder, layers, layers);
        self.unpack("layout", None)
    }

    /// Expects that an image with these layers is refused, and that nothing remains of it.
    #[track_caller]
    fn refused(&self, layers: &[Vec<u8>], why: &str) {
        let refusal = self.unpack_layers(layers).unwrap_err();
        assert!(refusal.contains(why), "{refusal}");
        assert_eq!(fs::read_dir(self.path("root")).unwrap().count(), 0);
        self.check_outside();
    }

    #[track_caller]
    fn check_outside(&self) {
        assert_eq!(
            fs::read_to_string(self.path("outside/file")).unwrap(),
            "mine"
        );
        assert_eq!(fs::read_dir(self.path("outside")).unwrap().count(), 1);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An entry of a layer: type, path, target of a link, content.
type Entry<'a> = (EntryType, &'a str, &'a str, &'a [u8]);

fn file<'a>(path: &'a str, content: &'a str) -> Entry<'a> {
    (EntryType::Regular, path, "", content.as_bytes())
}

fn folder(path: &str) -> Entry<'_> {
    (EntryType::Directory, path, "", b"")
}

fn link<'a>(path: &'a str, target: &'a str) -> Entry<'a> {
    (EntryType::Symlink, path, target, b"")
}

fn name<'a>(path: &'a str, target: &'a str) -> Entry<'a> {
    (EntryType::Link, path, target, b"")
}

/// A layer. Paths are written as they are, which the library that writes archives would refuse.
fn layer(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, target, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o4755);
        header.set_mtime(1_000_000);
        header.set_size(content.len() as u64);
        let fields = header.as_gnu_mut().unwrap();
        fields.name[..path.len()].copy_from_slice(path.as_bytes());
        fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn hash(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn configuration(layers: &[Vec<u8>]) -> Value {
    let hashes: Vec<_> = layers
        .iter()
        .map(|layer| format!("sha256:{}", hash(layer)))
        .collect();
    json!({
        "architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": hashes},
        "config": {"Cmd": ["sh"], "Env": ["PATH=/bin"], "WorkingDir": "/w"},
    })
}

/// Writes a layout with these layers as blobs; their hashes are those of `archives`.
fn write_layout(at: &Path, blobs: &[Vec<u8>], archives: &[Vec<u8>]) {
    fs::create_dir_all(at.join("blobs/sha256")).unwrap();
    let blob = |bytes: &[u8]| {
        fs::write(at.join("blobs/sha256").join(hash(bytes)), bytes).unwrap();
        json!({"digest": format!("sha256:{}", hash(bytes)), "size": bytes.len()})
    };
    let config = blob(&serde_json::to_vec(&configuration(archives)).unwrap());
    let layers: Vec<Value> = blobs.iter().map(|bytes| blob(bytes)).collect();
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let manifest = blob(&serde_json::to_vec(&manifest).unwrap());
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(at.join("index.json"), index.to_string()).unwrap();
}

#[test]
fn layers_lie_on_each_other() {
    let place = Place::new();
    let lower = layer(&[
        folder("./"),
        folder("usr/bin/"),
        link("bin", "usr/bin"),
        file("usr/bin/sh", "shell"),
        name("usr/bin/ash", "/bin/sh"),
        file("etc/old", "old"),
        file("etc/kept", "kept"),
        file("var/cache/a", "a"),
        file("swapped", "file"),
    ]);
    let upper = layer(&[
        file("var/cache/b", "b"),
        file("var/cache/.wh..wh..opq", ""),
        file("etc/.wh.old", ""),
        file("bin/tool", "through a link"),
        file("swapped/inside", "folder"),
        (EntryType::Char, "dev/null", "", b""),
    ]);
    // A file makes way for a folder only if an entry says so.
    place.refused(&[lower.clone(), upper.clone()], "layer 2: 'swapped/inside'");
    let swap = layer(&[folder("swapped")]);
    place.unpack_layers(&[lower, swap, upper]).unwrap();
    for (name, content) in [
        ("usr/bin/sh", Some("shell")),
        ("usr/bin/ash", Some("shell")),
        ("usr/bin/tool", Some("through a link")),
        ("etc/old", None),
        ("etc/kept", Some("kept")),
        ("var/cache/a", None),
        ("var/cache/b", Some("b")),
        ("swapped/inside", Some("folder")),
        ("dev/null", None),
    ] {
        assert_eq!(place.read(name).as_deref(), content, "{name}");
    }
    let metadata = fs::metadata(place.path("root/usr/bin/sh")).unwrap();
    // Set-user-ID programs of an image would act as this user.
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o755);
    assert_eq!(
        metadata
            .modified()
            .unwrap()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs(),
        1_000_000
    );
}

#[test]
fn no_entry_reaches_what_lies_outside() {
    let place = Place::new();
    let outside = place.path("outside");
    let outside = outside.to_str().unwrap();
    place.refused(
        &[layer(&[file("../outside/file", "x")])],
        "leads out of the image",
    );
    place.refused(
        &[layer(&[file("a/../../outside/file", "x")])],
        "leads out of the image",
    );
    place.refused(
        &[layer(&[file("../outside/.wh.file", "")])],
        "leads out of the image",
    );
    place.refused(&[layer(&[file("a/.wh...", "")])], "removes no name");
    place.refused(&[layer(&[file("a/.wh.", "")])], "removes no name");
    place.refused(
        &[layer(&[name("a", "../outside/file")])],
        "leads out of the image",
    );
    // Links that lead outside lead elsewhere in the image, as they do for the guest.
    let through = [link("out", outside), file("out/file", "x")];
    place.refused(&[layer(&through)], "'out/file'");
    let above = format!("../../../../../../..{outside}");
    place.refused(
        &[layer(&[link("out", &above), name("a", "out/file")])],
        "'a'",
    );
    let layers = [
        layer(&[link("out", outside)]),
        layer(&[file("out/.wh.file", ""), file("out/.wh..wh..opq", "")]),
    ];
    place.unpack_layers(&layers).unwrap();
    place.check_outside();
    fs::remove_dir_all(place.path("root")).unwrap();
    // A link that a later file replaces is not written through.
    let file_outside = format!("{outside}/file");
    place
        .unpack_layers(&[layer(&[link("a", &file_outside), file("a", "x")])])
        .unwrap();
    assert_eq!(place.read("a").as_deref(), Some("x"));
    place.check_outside();
    fs::remove_dir_all(place.path("root")).unwrap();
    // Names that begin with a slash are names in the image.
    place
        .unpack_layers(&[layer(&[file("/etc/a", "x"), folder("/")])])
        .unwrap();
    assert_eq!(place.read("etc/a").as_deref(), Some("x"));
    fs::remove_dir_all(place.path("root")).unwrap();
    // Another name of a link is a link.
    place
        .unpack_layers(&[layer(&[link("a", &file_outside), name("b", "a")])])
        .unwrap();
    assert!(
        fs::symlink_metadata(place.path("root/b"))
            .unwrap()
            .is_symlink()
    );
}

#[test]
fn damaged_and_greedy_images_are_refused() {
    let place = Place::new();
    let good = layer(&[file("a", "x")]);
    place.refused(&[b"no archive".repeat(100)], "layer 1");
    place.refused(
        &[layer(&[file("a", &"x".repeat(2 << 20))])],
        "larger than --limit",
    );
    place.refused(
        &[layer(&[(EntryType::new(b'S'), "a", "", b"")])],
        "entries of type 'S'",
    );
    place.refused(&[good[..600].to_vec()], "layer 1");
    let long = vec![b'a'; 5000];
    place.refused(
        &[layer(&[
            (EntryType::GNULongName, "l", "", &long),
            file("a", "x"),
        ])],
        "its name is too long",
    );
    let huge = vec![b'a'; 2 << 20];
    place.refused(
        &[layer(&[
            (EntryType::GNULongName, "l", "", &huge),
            file("a", "x"),
        ])],
        "a name is too long",
    );

    let layout = place.path("layout");
    fs::remove_dir_all(&layout).unwrap();
    write_layout(
        &layout,
        std::slice::from_ref(&good),
        &[layer(&[file("a", "y")])],
    );
    let refusal = place.unpack("layout", None).unwrap_err();
    assert!(refusal.contains("layer 1: it is damaged"), "{refusal}");
    // A layer that is a link to a file of this host is not read.
    fs::remove_dir_all(&layout).unwrap();
    write_layout(
        &layout,
        std::slice::from_ref(&good),
        std::slice::from_ref(&good),
    );
    let blob = layout.join("blobs/sha256").join(hash(&good));
    fs::rename(&blob, place.path("outside.tar")).unwrap();
    symlink(place.path("outside.tar"), &blob).unwrap();
    assert!(
        place
            .unpack("layout", None)
            .unwrap_err()
            .contains("layer 1")
    );

    fs::write(place.path("root/there"), "x").unwrap();
    let refusal = place.unpack("layout", None).unwrap_err();
    assert!(refusal.contains("it is not empty"), "{refusal}");
    assert!(
        place
            .unpack("outside", None)
            .unwrap_err()
            .contains("no index.json")
    );
    assert!(
        place
            .unpack("nothing", None)
            .unwrap_err()
            .contains("No such file")
    );
}

#[test]
fn layers_may_be_compressed() {
    let place = Place::new();
    let plain = layer(&[file("a", "x")]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(&plain[..], level);
    for (number, blob) in [gzip, zstd].into_iter().enumerate() {
        let layout = place.path(&format!("layout{number}"));
        write_layout(&layout, &[blob], std::slice::from_ref(&plain));
        place.unpack(&format!("layout{number}"), None).unwrap();
        assert_eq!(place.read("a").as_deref(), Some("x"));
        fs::remove_dir_all(place.path("root")).unwrap();
    }
}

#[test]
fn the_output_of_docker_save_is_understood() {
    let place = Place::new();
    let [one, other] = ["one", "other"].map(|it| vec![layer(&[file("a", it)])]);
    let manifest = json!([
        {"Config": "1.json", "RepoTags": ["box:1"], "Layers": ["1/layer.tar"]},
        {"Config": "2.json", "RepoTags": ["box:2"], "Layers": ["3/layer.tar"]},
    ]);
    let archive = layer(&[
        file("1.json", &configuration(&one).to_string()),
        (EntryType::Regular, "1/layer.tar", "", &one[0]),
        file("2.json", &configuration(&other).to_string()),
        (EntryType::Regular, "2/layer.tar", "", &other[0]),
        // Older versions store a layer that two images have once.
        link("3/layer.tar", "../2/layer.tar"),
        file("manifest.json", &manifest.to_string()),
    ]);
    fs::write(place.path("saved.tar"), archive).unwrap();
    let refusal = place.unpack("saved.tar", None).unwrap_err();
    assert!(
        refusal.contains("--tag names one of: box:1, box:2"),
        "{refusal}"
    );
    assert!(place.unpack("saved.tar", Some("box:3")).is_err());
    place.unpack("saved.tar", Some("box:2")).unwrap();
    assert_eq!(place.read("a").as_deref(), Some("other"));
}

#[test]
fn the_advice_of_an_image_is_quoted() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let advice = Advice {
        command: words(&["sh", "-c", "echo 'a' $B"]),
        environment: words(&["PATH=/bin"]),
        directory: Some("/w".into()),
        user: None,
    };
    let line = command_line(Path::new("root"), &advice).unwrap();
    let expected = r"tollgate exec --sandbox --root=root --env=PATH=/bin --workdir=/w -- sh -c 'echo '\''a'\'' $B'";
    assert_eq!(line, expected);
    let hostile = Advice {
        command: words(&["sh\x1b[2J"]),
        ..Advice::default()
    };
    assert_eq!(command_line(Path::new("root"), &hostile), None);
}
