//! The ACPI description of the panic port, with QEMU's names.

use acpi_tables::aml::{
    Arg, Device, Field, FieldAccessType, FieldEntry, FieldLockRule, FieldUpdateRule, IO, Method,
    Name, OpRegion, OpRegionSpace, Path, ResourceTemplate, Return, Store,
};

use super::table::{WORKING, bytes_of};
use crate::devices::pvpanic::PvPanic;

/// The board's device: the port as a resource, and methods that read and write it.
pub fn device() -> Vec<u8> {
    let id = Name::new(Path::new("_HID"), &"QEMU0001");
    let port = IO::new(PvPanic::PORT, PvPanic::PORT, 1, 1);
    let resources = Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&port]));
    let (first, length) = (PvPanic::PORT, 1u8);
    let region = OpRegion::new(Path::new("PEOR"), OpRegionSpace::SystemIO, &first, &length);
    let field = Field::new(
        Path::new("PEOR"),
        FieldAccessType::Byte,
        FieldLockRule::NoLock,
        FieldUpdateRule::Preserve,
        vec![FieldEntry::Named(*b"PEPT", 8)],
    );
    let status = Name::new(Path::new("_STA"), &WORKING);
    let register = Path::new("PEPT");
    let answer = Return::new(&register);
    let read = Method::new(Path::new("RDPT"), 0, false, vec![&answer]);
    let store = Store::new(&register, &Arg(0));
    let write = Method::new(Path::new("WRPT"), 1, false, vec![&store]);
    bytes_of(&Device::new(
        Path::new("PEVT"),
        vec![&id, &resources, &region, &field, &status, &read, &write],
    ))
}
