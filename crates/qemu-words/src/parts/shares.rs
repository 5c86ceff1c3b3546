//! Shared directories: `-fsdev`, `-virtfs`, and their device virtio-9p-pci.

use crate::build::Builder;
use crate::configuration::{Security, Share};
use crate::key_values::KeyValues;
use crate::refusal::Refusal;

/// Reads the directory of an `-fsdev` or a `-virtfs`, without its tag.
fn directory(list: &mut KeyValues) -> Result<Share, Refusal> {
    match list.required("fsdriver")?.as_str() {
        "local" => {}
        "proxy" | "synth" => return Err("directories are local ones".into()),
        name => return Err(format!("unknown fsdriver '{name}'").into()),
    }
    let path = list.required("path")?.into();
    let security = match list.take("security_model").as_deref() {
        Some("none") => Security::None,
        Some("passthrough") => Security::Passthrough,
        Some("mapped" | "mapped-xattr") => Security::Mapped,
        Some("mapped-file") => return Err("security_model: mapped-file is not there".into()),
        Some(_) => {
            return Err("security_model: expected none, passthrough or mapped-xattr".into());
        }
        None => return Err("security_model is missing: none, passthrough or mapped-xattr".into()),
    };
    let readonly = list.switch("readonly")?.unwrap_or(false);
    list.ignore_where(|key, value| {
        key == "multidevs" && matches!(value, "remap" | "warn" | "forbid")
            || key == "writeout" && value == "immediate"
            || key.starts_with("throttling.") && value == "0"
    });
    Ok(Share {
        path,
        tag: String::new(),
        readonly,
        security,
    })
}

impl Builder {
    /// `-fsdev`.
    pub fn fsdev(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let share = directory(&mut list)?;
        let id = list.required("id")?;
        list.end()?;
        if self.directories.iter().any(|(known, _)| *known == id) {
            return Err(format!("Duplicate ID '{id}' for fsdev").into());
        }
        self.directories.push((id, share));
        Ok(())
    }

    /// `-virtfs`: a directory and its device.
    pub fn virtfs(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let share = directory(&mut list)?;
        let tag = list.required("mount_tag")?;
        list.ignore(&["id"]);
        list.end()?;
        self.config.shares.push(Share { tag, ..share });
        Ok(())
    }

    /// The device of a directory.
    pub fn share_device(&mut self, list: &mut KeyValues) -> Result<(), Refusal> {
        let id = list.required("fsdev")?;
        let tag = list.required("mount_tag")?;
        let place = self.directories.iter().position(|(known, _)| *known == id);
        let place = place.ok_or_else(|| {
            Refusal(format!(
                "9pfs device couldn't find fsdev with the id = {id}"
            ))
        })?;
        let (_, share) = self.directories.remove(place);
        self.config.shares.push(Share { tag, ..share });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Share, Refusal> {
        directory(&mut KeyValues::parse(text, Some("fsdriver")).unwrap())
    }

    #[test]
    fn a_directory_has_a_path_and_a_security_model() {
        let share = read("local,path=/a,,b,security_model=none,readonly=on,multidevs=remap");
        let share = share.unwrap();
        assert_eq!(share.path.to_str(), Some("/a,b"));
        assert_eq!((share.security, share.readonly), (Security::None, true));
        for (text, why) in [
            ("local,path=/", "security_model is missing"),
            ("local,security_model=none", "'path' is missing"),
            ("local,path=/,security_model=mapped-file", "mapped-file"),
            ("proxy,socket=a", "local"),
            ("x,path=/", "unknown fsdriver"),
        ] {
            let refusal = read(text).unwrap_err().0;
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }
}
