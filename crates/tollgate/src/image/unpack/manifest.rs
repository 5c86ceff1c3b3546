//! What an image consists of: its layers, and the description of the command that it is for.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::source::Source;

/// How deep lists of images may refer to each other.
const MOST_LISTS: usize = 4;
/// The most layers of an image; storage drivers have had less.
const MOST_LAYERS: usize = 1024;

/// What an image consists of.
#[derive(PartialEq, Eq, Debug)]
pub struct Image {
    /// The layers, the lowest first.
    pub layers: Vec<Layer>,
    /// What the image's author has said about running it.
    pub advice: Advice,
}

/// One of the layers that lie on each other.
#[derive(PartialEq, Eq, Debug)]
pub struct Layer {
    /// The path of its file in the source.
    pub path: String,
    /// The SHA-256 of its archive without compression, in hexadecimal.
    pub hash: String,
}

/// How an image's author wants it to be run.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Advice {
    /// The words of the command, the program first.
    pub command: Vec<String>,
    /// Variables, `NAME=VALUE`.
    pub environment: Vec<String>,
    /// Where the command starts.
    pub directory: Option<String>,
    /// Who runs it: a name or number, perhaps with a group.
    pub user: Option<String>,
}

/// Finds the image of a source: the only one, or the one with a tag, for a processor's architecture.
///
/// # Errors
/// One line says what is wrong with the image, or which tags there are.
pub fn find(source: &Source, tag: Option<&str>, architecture: &str) -> Result<Image, String> {
    // Newer versions of 'docker save' write both forms.
    if source.text("index.json").is_ok() {
        return of_layout(source, tag, architecture);
    }
    match source.text("manifest.json") {
        Ok(bytes) => of_docker(source, &json("manifest.json", &bytes)?, tag, architecture),
        Err(_) => Err(
            "it has no index.json (an OCI image layout) and no manifest.json \
                       ('docker save')"
                .into(),
        ),
    }
}

fn json(path: &str, bytes: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("{path}: {error}"))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value[key]
        .as_str()
        .ok_or_else(|| format!("a description lacks '{key}'"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    let list = value[key]
        .as_array()
        .ok_or_else(|| format!("a description lacks '{key}'"))?;
    Ok(list)
}

/// The path of the file with a digest, and the digest in hexadecimal.
fn blob(descriptor: &Value) -> Result<(String, &str), String> {
    let digest = text(descriptor, "digest")?;
    match digest.strip_prefix("sha256:") {
        Some(hash) if is_hash(hash) => Ok((format!("blobs/sha256/{hash}"), hash)),
        _ => Err(format!("the digest '{digest}' is no sha256")),
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Bytes in hexadecimal.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the description to which a descriptor refers.
fn described(source: &Source, descriptor: &Value) -> Result<Value, String> {
    let (path, hash) = blob(descriptor)?;
    let bytes = source
        .text(&path)
        .map_err(|error| format!("{path}: {error}"))?;
    if hexadecimal(&Sha256::digest(&bytes)) != hash {
        return Err(format!("{path} is damaged: its SHA-256 is another"));
    }
    json(&path, &bytes)
}

fn of_layout(source: &Source, tag: Option<&str>, architecture: &str) -> Result<Image, String> {
    const TAG: &str = "org.opencontainers.image.ref.name";
    let bytes = source
        .text("index.json")
        .map_err(|error| error.to_string())?;
    let index = json("index.json", &bytes)?;
    let images = list(&index, "manifests")?;
    let names: Vec<&str> = images
        .iter()
        .filter_map(|image| image["annotations"][TAG].as_str())
        .collect();
    let chosen: Vec<&Value> = images
        .iter()
        .filter(|image| tag.is_none() || image["annotations"][TAG].as_str() == tag)
        .collect();
    let mut descriptor = one(&chosen, &names, tag, architecture)?.clone();
    for _ in 0..MOST_LISTS {
        let description = described(source, &descriptor)?;
        if description["layers"].is_array() {
            return of_manifest(source, &description, architecture);
        }
        let choice: Vec<&Value> = list(&description, "manifests")?.iter().collect();
        descriptor = one(&choice, &[], None, architecture)?.clone();
    }
    Err("its lists of images are nested too deeply".into())
}

/// The only one of several images that runs on the architecture.
fn one<'a>(
    images: &[&'a Value],
    names: &[&str],
    tag: Option<&str>,
    architecture: &str,
) -> Result<&'a Value, String> {
    let fits = |image: &&&Value| {
        let platform = &image["platform"];
        let is = |key: &str, word: &str| platform[key].as_str().is_none_or(|it| it == word);
        is("architecture", architecture) && is("os", "linux")
    };
    let fitting: Vec<_> = images.iter().filter(fits).collect();
    let names = match names {
        [] => String::new(),
        names => format!("; --tag names one of: {}", names.join(", ")),
    };
    match (fitting.as_slice(), tag) {
        ([image], _) => Ok(image),
        ([], Some(tag)) => Err(format!(
            "it has no image '{tag}' for linux/{architecture}{names}"
        )),
        ([], None) => Err(format!("it has no image for linux/{architecture}{names}")),
        _ => Err(format!("it has several images{names}")),
    }
}

fn of_manifest(source: &Source, manifest: &Value, architecture: &str) -> Result<Image, String> {
    let configuration = described(source, &manifest["config"])?;
    let paths = list(manifest, "layers")?.iter();
    let paths = paths.map(|layer| blob(layer).map(|(path, _)| path));
    image(
        paths.collect::<Result<_, _>>()?,
        &configuration,
        architecture,
    )
}

fn of_docker(
    source: &Source,
    manifest: &Value,
    tag: Option<&str>,
    architecture: &str,
) -> Result<Image, String> {
    let images = manifest.as_array().ok_or("manifest.json is no list")?;
    let tags = |image: &Value| -> Vec<String> {
        let tags = image["RepoTags"].as_array().into_iter().flatten();
        tags.filter_map(|tag| tag.as_str().map(str::to_owned))
            .collect()
    };
    let names: Vec<String> = images.iter().flat_map(tags).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let chosen: Vec<&Value> = images
        .iter()
        .filter(|image| tag.is_none_or(|tag| tags(image).iter().any(|it| it == tag)))
        .collect();
    let chosen = one(&chosen, &names, tag, architecture)?;
    let path = text(chosen, "Config")?;
    let bytes = source
        .text(path)
        .map_err(|error| format!("{path}: {error}"))?;
    let configuration = json(path, &bytes)?;
    let paths = list(chosen, "Layers")?.iter();
    let paths = paths.map(|path| path.as_str().map(str::to_owned));
    let paths = paths.collect::<Option<_>>().ok_or("a layer has no path")?;
    image(paths, &configuration, architecture)
}

fn image(paths: Vec<String>, configuration: &Value, architecture: &str) -> Result<Image, String> {
    let made_for = configuration["architecture"]
        .as_str()
        .unwrap_or(architecture);
    if made_for != architecture {
        return Err(format!("it is made for {made_for}, not for {architecture}"));
    }
    let hashes = list(&configuration["rootfs"], "diff_ids")?;
    if hashes.len() != paths.len() || paths.len() > MOST_LAYERS {
        let (layers, hashes) = (paths.len(), hashes.len());
        return Err(format!(
            "it has {layers} layers, and {hashes} hashes of layers"
        ));
    }
    let layers = paths.into_iter().zip(hashes).map(|(path, hash)| {
        let hash = hash.as_str().and_then(|hash| hash.strip_prefix("sha256:"));
        let hash = hash
            .filter(|hash| is_hash(hash))
            .ok_or("a layer's hash is no sha256")?;
        let hash = hash.to_owned();
        Ok(Layer { path, hash })
    });
    Ok(Image {
        layers: layers.collect::<Result<_, String>>()?,
        advice: advice(&configuration["config"]),
    })
}

/// What the configuration says about running the image; what it says wrongly is left out.
fn advice(configuration: &Value) -> Advice {
    let words = |key: &str| -> Vec<String> {
        let words = configuration[key].as_array().into_iter().flatten();
        words
            .filter_map(|word| word.as_str().map(str::to_owned))
            .collect()
    };
    let word = |key: &str| configuration[key].as_str().filter(|word| !word.is_empty());
    Advice {
        command: [words("Entrypoint"), words("Cmd")].concat(),
        environment: words("Env"),
        directory: word("WorkingDir").map(str::to_owned),
        user: word("User").map(str::to_owned),
    }
}
