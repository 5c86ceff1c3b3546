//! `--device`: parses the name of an optional device and lists these devices.

use std::ffi::OsString;

use tollgate_machine::config::OptionalDevice;

use crate::words;

/// The device with this name.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(name: &str) -> Result<OptionalDevice, String> {
    OptionalDevice::ALL
        .into_iter()
        .find(|device| device.name() == name)
        .ok_or_else(|| {
            let names = OptionalDevice::ALL.map(OptionalDevice::name).join(", ");
            format!("expected {names}; --device help says what each is")
        })
}

/// Whether the words are `tollgate run --device help`. No kernel is needed then.
pub fn are_asked_for(words: &[OsString]) -> bool {
    words::ask_for_help_on("--device", words)
}

/// The devices, one a line.
pub fn list() -> String {
    OptionalDevice::ALL
        .map(|device| format!("{}  {}\n", device.name(), device.description()))
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_found_by_its_name_and_listed() {
        for device in OptionalDevice::ALL {
            assert_eq!(parse(device.name()), Ok(device));
            assert!(list().lines().any(|line| line.starts_with(device.name())));
        }
        assert!(parse("virtio-blk").unwrap_err().contains("pc-testdev"));
    }
}
