//! `--share`: parses the directories of the host that the guest can mount.

use std::ffi::OsString;
use std::path::PathBuf;

use tollgate_machine::comma_list;
use tollgate_machine::config::{SecurityModel, ShareOptions, ShareProtocol};

/// The form of a share, for messages.
const FORM: &str = "DIR[:TAG][,tag=TAG][,ro|rw][,type=virtiofs|9p][,cache=SECONDS][,owners=root|host]\
    [,security=mapped|none|passthrough]";

/// A share as the user has written it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareArgument {
    path: PathBuf,
    /// The name to mount it by. Without one, its place among the shares gives the name.
    tag: Option<String>,
    readonly: bool,
    cache_seconds: u32,
    keeps_owners: bool,
    protocol: ShareProtocol,
    security: SecurityModel,
}

/// Parses a share. The text after the last colon is the tag, so a directory with a colon in its
/// name needs a tag.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<ShareArgument, String> {
    let mut parts = comma_list::split(text).into_iter();
    let place = parts.next().unwrap_or_default();
    let (path, tag) = match place.rsplit_once(':') {
        None => (place.as_str(), None),
        Some((path, tag)) if ShareOptions::is_tag(tag) => (path, Some(tag.to_owned())),
        Some((_, tag)) => {
            return Err(format!(
                "'{tag}' is no tag: 1 to {} letters, digits, '.', '_' or '-'",
                ShareOptions::MAX_TAG_BYTES
            ));
        }
    };
    // Empty parts of the list are skipped, even the first one.
    let begins_with_comma = text.starts_with(',') && !text.starts_with(",,");
    if path.is_empty() || begins_with_comma {
        return Err(format!("it names no directory; expected {FORM}"));
    }
    let mut share = ShareArgument {
        path: OsString::from(path).into(),
        tag,
        readonly: false,
        cache_seconds: ShareOptions::DEFAULT_CACHE_SECONDS,
        keeps_owners: false,
        protocol: ShareProtocol::VirtioFs,
        security: SecurityModel::Mapped,
    };
    for part in parts {
        match part.split_once('=') {
            None if part == "ro" => share.readonly = true,
            None if part == "rw" => share.readonly = false,
            Some(("cache", seconds)) => {
                share.cache_seconds = seconds
                    .parse()
                    .map_err(|_| format!("{part}: expected a number of seconds"))?;
            }
            Some(("owners", "root")) => share.keeps_owners = false,
            Some(("owners", "host")) => share.keeps_owners = true,
            Some(("owners", _)) => return Err(format!("{part}: expected root or host")),
            Some(("tag", tag)) if ShareOptions::is_tag(&tag.replace('/', "_")) => {
                share.tag = Some(tag.to_owned());
            }
            Some(("tag", _)) => return Err(format!("{part}: this is no tag")),
            Some(("type", "virtiofs")) => share.protocol = ShareProtocol::VirtioFs,
            Some(("type", "9p")) => share.protocol = ShareProtocol::NineP,
            Some(("type", _)) => return Err(format!("{part}: expected virtiofs or 9p")),
            Some(("security", word)) => {
                share.security = security(word)
                    .ok_or_else(|| format!("{part}: expected mapped, none or passthrough"))?;
            }
            _ => return Err(format!("unknown word '{part}'; expected {FORM}")),
        }
    }
    Ok(share)
}

/// Returns the security model with this name, which is QEMU's or a shorter one.
fn security(word: &str) -> Option<SecurityModel> {
    Some(match word {
        "mapped" | "mapped-xattr" => SecurityModel::Mapped,
        "none" => SecurityModel::None,
        "passthrough" => SecurityModel::Passthrough,
        _ => return None,
    })
}

/// The shares with a tag each. If the user gave none, the tag is `share0`, `share1` and so on, by
/// the share's place.
pub fn with_tags(arguments: &[ShareArgument]) -> Vec<ShareOptions> {
    let shares = arguments.iter().enumerate();
    shares
        .map(|(index, share)| ShareOptions {
            readonly: share.readonly,
            cache_seconds: share.cache_seconds,
            keeps_owners: share.keeps_owners,
            protocol: share.protocol,
            security: share.security,
            ..ShareOptions::new(
                &share.path,
                share.tag.clone().unwrap_or(format!("share{index}")),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_directory_and_how_it_is_shared() {
        let shares = [
            "/a,,b",
            "dir:home,ro",
            "a:b:c,cache=60,rw,owners=host",
            ".",
            "d,tag=/dev/root,type=9p,security=mapped-xattr",
            "e:e,security=none,type=virtiofs",
        ];
        let arguments = shares.map(|text| parse(text).unwrap());
        let expected = [
            ShareOptions::new("/a,b", "share0"),
            ShareOptions {
                readonly: true,
                ..ShareOptions::new("dir", "home")
            },
            ShareOptions {
                cache_seconds: 60,
                keeps_owners: true,
                ..ShareOptions::new("a:b", "c")
            },
            ShareOptions::new(".", "share3"),
            ShareOptions {
                protocol: ShareProtocol::NineP,
                ..ShareOptions::new("d", "/dev/root")
            },
            ShareOptions {
                security: SecurityModel::None,
                ..ShareOptions::new("e", "e")
            },
        ];
        assert_eq!(with_tags(&arguments), expected);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (argument, why) in [
            ("", "names no directory"),
            (":tag", "names no directory"),
            (",ro", "names no directory"),
            ("a:", "'' is no tag"),
            ("a:b/c", "'b/c' is no tag"),
            ("a,readonly", "unknown word 'readonly'"),
            ("a,cache=x", "expected a number of seconds"),
            ("a,cache", "unknown word 'cache'"),
            ("a,owners=me", "expected root or host"),
            ("a,tag=a:b", "this is no tag"),
            ("a,type=nfs", "expected virtiofs or 9p"),
            ("a,security=some", "expected mapped, none or passthrough"),
        ] {
            let refusal = parse(argument).unwrap_err();
            assert!(refusal.contains(why), "{argument}: {refusal}");
        }
    }
}
