//! The ACPI description of the generation ID, by which guests find it ("Virtual Machine Generation
//! ID", Microsoft, 2012, section "Design").

use acpi_tables::aml::{Device, Method, Name, Notify, Package, Path, Scope};

use super::table::{WORKING, bytes_of};
use crate::devices::generation_id::{BASE_ADDRESS, EVENT};

/// The value of a notification that the ID has changed.
const ID_CHANGED: u8 = 0x80;

/// The board's device: ADDR has the two halves of the ID's address.
pub fn device() -> Vec<u8> {
    let id = Name::new(Path::new("_HID"), &"TLGT0001");
    let compatible = Name::new(Path::new("_CID"), &"VM_Gen_Counter");
    let description = Name::new(Path::new("_DDN"), &"VM_Gen_Counter");
    let status = Name::new(Path::new("_STA"), &WORKING);
    let (low, high) = (BASE_ADDRESS as u32, (BASE_ADDRESS >> 32) as u32);
    let halves = Package::new(vec![&low, &high]);
    let address = Name::new(Path::new("ADDR"), &halves);
    bytes_of(&Device::new(
        Path::new("VGEN"),
        vec![&id, &compatible, &description, &status, &address],
    ))
}

/// The handler of the general-purpose event: it notifies the driver of the device.
pub fn event() -> Vec<u8> {
    let place = Path::new("\\_SB_.VGEN");
    let notify = Notify::new(&place, &ID_CHANGED);
    // An edge, because the event's status is set once for each new ID.
    let name = format!("_E{EVENT:02X}");
    let handler = Method::new(Path::new(&name), 0, false, vec![&notify]);
    bytes_of(&Scope::new(Path::new("\\_GPE"), vec![&handler]))
}
