//! The ACPI description of slots of the PCI bus whose functions come and go (ACPI 6.5, 5.6.6 and
//! 6.3.3): an object for each slot with a method that ejects its function, and the event by which
//! the guest learns that slots have changed.

use acpi_tables::aml::{
    Acquire, And, Device, Field, FieldAccessType, FieldEntry, FieldLockRule, FieldUpdateRule, IO,
    If, Local, Method, MethodCall, Mutex, Name, Notify, OpRegion, OpRegionSpace, Path, Release,
    Scope, Store, ZERO,
};
use acpi_tables::{Aml, AmlSink};

use super::table::{WORKING, bytes_of, device};
use crate::devices::pci::MAX_FUNCTIONS;
use crate::devices::pci::host::hot_plug::{EVENT, FIRST_PORT, PORT_COUNT};

/// Values of notifications: a function may have come or gone, and a function shall be ejected.
const DEVICE_CHECK: u8 = 1;
const EJECT_REQUEST: u8 = 3;
/// The timeout of an acquisition without an end.
const FOREVER: u16 = 0xffff;

/// The registers of hot plug, in their order: slots with a new function, slots to be vacated, the
/// ejection, the slots that can be ejected, and the selected bus.
const REGISTERS: [&[u8; 4]; 5] = [b"PCUP", b"PCDN", b"PCEJ", b"PCRM", b"PCBS"];

/// What the bus's device contains for these slots, a bit for each.
pub struct Slots(pub u32);

fn slot_name(slot: u8) -> String {
    // The name has the device and function number, as QEMU's has.
    format!("S{:02X}_", slot << 3)
}

impl Aml for Slots {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let slots = (0..MAX_FUNCTIONS as u8).filter(|slot| self.0 >> slot & 1 != 0);
        let slots: Vec<u8> = slots.collect();
        registers(sink);
        for slot in &slots {
            slot_object(*slot, sink);
        }
        follow(&slots, sink);
    }
}

/// The registers as fields, and the lock for those that belong together.
fn registers(sink: &mut dyn AmlSink) {
    let (first, length) = (FIRST_PORT, PORT_COUNT as u8);
    let region = OpRegion::new(Path::new("PCHP"), OpRegionSpace::SystemIO, &first, &length);
    let fields = REGISTERS.map(|name| FieldEntry::Named(*name, 32));
    let field = Field::new(
        Path::new("PCHP"),
        FieldAccessType::DWord,
        FieldLockRule::NoLock,
        FieldUpdateRule::WriteAsZeroes,
        fields.to_vec(),
    );
    region.to_aml_bytes(sink);
    field.to_aml_bytes(sink);
    Mutex::new(Path::new("PCLK"), 0).to_aml_bytes(sink);
}

/// A slot: its address and its number, and the method that ejects its function.
fn slot_object(slot: u8, sink: &mut dyn AmlSink) {
    let (address, bit) = (u32::from(slot) << 16, 1u32 << slot);
    let address = Name::new(Path::new("_ADR"), &address);
    let number = Name::new(Path::new("_SUN"), &slot);
    let (acquire, release) = lock();
    let (bus, eject) = (Path::new("PCBS"), Path::new("PCEJ"));
    let select = Store::new(&bus, &ZERO);
    let store = Store::new(&eject, &bit);
    let method: Vec<&dyn Aml> = vec![&acquire, &select, &store, &release];
    let eject = Method::new(Path::new("_EJ0"), 1, false, method);
    let name = slot_name(slot);
    let children: Vec<&dyn Aml> = vec![&address, &number, &eject];
    Device::new(Path::new(&name), children).to_aml_bytes(sink);
}

/// The method that reads what has changed, and notifies the slots of it.
fn follow(slots: &[u8], sink: &mut dyn AmlSink) {
    let (acquire, release) = lock();
    let (bus, up, down) = (Path::new("PCBS"), Path::new("PCUP"), Path::new("PCDN"));
    let (inserted, leaving) = (Local(0), Local(1));
    let select = Store::new(&bus, &ZERO);
    let read_inserted = Store::new(&inserted, &up);
    let read_leaving = Store::new(&leaving, &down);
    let notices: Vec<Notice> = slots
        .iter()
        .flat_map(|slot| {
            let notice = |local, value| Notice {
                slot: *slot,
                local,
                value,
            };
            [notice(0, DEVICE_CHECK), notice(1, EJECT_REQUEST)]
        })
        .collect();
    let mut method: Vec<&dyn Aml> =
        vec![&acquire, &select, &read_inserted, &read_leaving, &release];
    method.extend(notices.iter().map(|notice| notice as &dyn Aml));
    Method::new(Path::new("PCNT"), 0, false, method).to_aml_bytes(sink);
}

/// The notification of a slot, if its bit is set in a local variable.
struct Notice {
    slot: u8,
    local: u8,
    value: u8,
}

impl Aml for Notice {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let (local, bit) = (Local(self.local), 1u32 << self.slot);
        let is_set = And::new(&ZERO, &local, &bit);
        let slot = Path::new(&slot_name(self.slot));
        let notify = Notify::new(&slot, &self.value);
        If::new(&is_set, vec![&notify]).to_aml_bytes(sink);
    }
}

fn lock() -> (Acquire, Release) {
    let name = || Path::new("PCLK");
    (Acquire::new(name(), FOREVER), Release::new(name()))
}

/// The reservation of the registers' ports.
pub fn reservation() -> Vec<u8> {
    let ports = IO::new(FIRST_PORT, FIRST_PORT, 1, PORT_COUNT as u8);
    device("PCHR", "PNP0A06", &[&ports], WORKING)
}

/// The handler of the general-purpose event.
pub fn event() -> Vec<u8> {
    let follow = MethodCall::new(Path::new("\\_SB_.PCI0.PCNT"), Vec::new());
    // An edge: what changes while the method runs raises the event again.
    let name = format!("_E{EVENT:02X}");
    let handler = Method::new(Path::new(&name), 0, false, vec![&follow]);
    bytes_of(&Scope::new(Path::new("\\_GPE"), vec![&handler]))
}
