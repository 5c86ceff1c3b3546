//! What all tables and all devices in them have in common.

use acpi_tables::aml::{Device, EISAName, Name, Path, ResourceTemplate};
use acpi_tables::sdt::Sdt;
use acpi_tables::{Aml, aml};

/// What identifies the tables as ours.
pub const OEM_ID: [u8; 6] = *b"TOLLGT";
pub const OEM_TABLE_ID: [u8; 8] = *b"TOLLGATE";
pub const OEM_REVISION: u32 = 1;
/// The size in bytes of the header that system description tables share.
pub const HEADER_BYTES: u32 = 36;

/// The value of _STA for a device that is present, enabled, shown and working.
pub const WORKING: u8 = 0xf;

/// Returns the bytes of a table or of a device.
pub fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// Makes a table that has only its header.
pub fn table(signature: [u8; 4], revision: u8) -> Sdt {
    Sdt::new(
        signature,
        HEADER_BYTES,
        revision,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    )
}

/// Returns a device of the board with these resources and this value of _STA.
pub fn device(name: &str, hardware_id: &str, resources: &[&dyn Aml], status: u8) -> Vec<u8> {
    let id = Name::new(Path::new("_HID"), &EISAName::new(hardware_id));
    let unique = Name::new(Path::new("_UID"), &aml::ZERO);
    let status = Name::new(Path::new("_STA"), &status);
    let resources = Name::new(
        Path::new("_CRS"),
        &ResourceTemplate::new(resources.to_vec()),
    );
    bytes_of(&Device::new(
        Path::new(name),
        vec![&id, &unique, &status, &resources],
    ))
}
