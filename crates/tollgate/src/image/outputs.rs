//! Formats what `tollgate image` prints, as qemu-img does.

use std::io::{IsTerminal, Write};

use serde_json::{Map, Value};
use tollgate_disk::{CheckReport, ImageInfo};

use crate::failure::one_line;

/// The information about an image, for people.
pub fn human(info: &ImageInfo) -> String {
    let mut text = format!(
        "image: {}\nfile format: {}\nvirtual size: {} ({} bytes)\ndisk size: {}\n",
        one_line(&info.path.display().to_string()),
        info.format.name(),
        rounded(info.virtual_bytes),
        info.virtual_bytes,
        rounded(info.disk_bytes),
    );
    let Some(qcow2) = &info.qcow2 else {
        return text;
    };
    text += &format!("cluster_size: {}\n", qcow2.cluster_bytes);
    if qcow2.encryption.is_some() {
        text += "encrypted: yes\n";
    }
    if let Some(name) = &qcow2.backing {
        text += &format!("backing file: {}\n", one_line(name));
    }
    if let Some(format) = &qcow2.backing_format {
        text += &format!("backing file format: {}\n", one_line(format));
    }
    if let Some(name) = &qcow2.data_file {
        text += &format!("data file: {}\n", one_line(name));
    }
    if qcow2.snapshots > 0 {
        text += &format!("snapshots: {}\n", qcow2.snapshots);
    }
    text += &format!("compat: {}\n", compat(qcow2.version));
    if qcow2.has_zstd {
        text += "compression type: zstd\n";
    }
    if let Some(encryption) = qcow2.encryption {
        text += &format!("encrypt format: {}\n", encryption.name());
    }
    if qcow2.has_extended_l2 {
        text += "extended l2: true\n";
    }
    if qcow2.is_dirty {
        text += "dirty: it was not closed; 'qemu-img check -r all' cures it\n";
    }
    if qcow2.is_corrupt {
        text += "corrupt: true; 'qemu-img check -r all' repairs it\n";
    }
    text
}

/// The information about an image for programs, with the names of `qemu-img info --output json`.
pub fn json(info: &ImageInfo) -> String {
    let mut object = Map::new();
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    set("filename", info.path.to_string_lossy().into());
    set("format", info.format.name().into());
    set("virtual-size", info.virtual_bytes.into());
    set("actual-size", info.disk_bytes.into());
    set(
        "dirty-flag",
        info.qcow2
            .as_ref()
            .is_some_and(|qcow2| qcow2.is_dirty)
            .into(),
    );
    if let Some(qcow2) = &info.qcow2 {
        set("cluster-size", qcow2.cluster_bytes.into());
        if let Some(name) = &qcow2.backing {
            set("backing-filename", name.as_str().into());
        }
        if let Some(format) = &qcow2.backing_format {
            set("backing-filename-format", format.as_str().into());
        }
        if qcow2.encryption.is_some() {
            set("encrypted", true.into());
        }
        let mut data = serde_json::json!({
            "compat": compat(qcow2.version),
            "corrupt": qcow2.is_corrupt,
            "compression-type": if qcow2.has_zstd { "zstd" } else { "zlib" },
            "extended-l2": qcow2.has_extended_l2,
        });
        if let Some(encryption) = qcow2.encryption {
            data["encrypt"] = serde_json::json!({"format": encryption.name()});
        }
        if let Some(name) = &qcow2.data_file {
            data["data-file"] = name.as_str().into();
        }
        set(
            "format-specific",
            serde_json::json!({"type": "qcow2", "data": data}),
        );
    }
    format!("{:#}\n", Value::Object(object))
}

/// QEMU's name for a version of qcow2.
const fn compat(version: u32) -> &'static str {
    if version == 2 { "0.10" } else { "1.1" }
}

/// A number of bytes rounded to about three digits.
fn rounded(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = match value {
        value if (value - value.round()).abs() < 0.005 || value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {}", units[unit])
}

/// The result of a check.
pub fn report(report: &CheckReport) -> String {
    let mut text = String::new();
    if report.mended_leaks > 0 {
        text += &format!("{} leaked clusters are free again.\n", report.mended_leaks);
    }
    if report.removed_marks > 0 {
        text += "The image is no longer marked as dirty or corrupt.\n";
    }
    if report.damage > 0 {
        text += &format!(
            "{} errors were found on the image. Data may be damaged; do not write to it.\n",
            report.damage
        );
    }
    if report.leaks > 0 {
        text += &format!(
            "{} leaked clusters were found on the image: room is wasted, data are not harmed \
             ('-r leaks' frees it).\n",
            report.leaks
        );
    }
    if report.damage == 0 && report.leaks == 0 {
        text += "No errors were found on the image.\n";
    }
    let share = 100.0 * report.allocated as f64 / report.total.max(1) as f64;
    text + &format!(
        "{}/{} = {share:.2}% allocated\n",
        report.allocated, report.total
    )
}

/// Shows the progress of a copy on a terminal.
pub struct Progress {
    is_terminal: bool,
    shown: Option<u64>,
}

impl Progress {
    /// Makes a display that shows nothing yet.
    pub fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            shown: None,
        }
    }

    /// Shows the progress in whole per cent.
    pub fn show(&mut self, done: u64, all: u64) {
        let percent = (u128::from(done) * 100 / u128::from(all.max(1))) as u64;
        if self.is_terminal && self.shown != Some(percent) {
            self.shown = Some(percent);
            let _ = write!(std::io::stderr(), "\r\x1b[Ktollgate: {percent} % copied");
        }
    }

    /// Erases the progress line.
    pub fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_or_so() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (196_608, "192 KiB"),
            (20 << 30, "20 GiB"),
            (1_600_000, "1.53 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(rounded(bytes), text);
        }
    }
}
