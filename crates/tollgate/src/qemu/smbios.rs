//! What a machine in QEMU's words says of itself: the words of `-smbios`, and what QEMU says without them.

use tollgate_machine::config::{Labels, Smbios};
use tollgate_qemu_words::{self as words, Configuration, FirmwareText, MachineKind, VERSION};

use crate::failure::Failure;
use crate::files;

/// The maximum size of a text from a file in bytes.
const MOST_BYTES: u64 = 32 << 10;

/// The tables of a machine.
///
/// # Errors
/// A file with a text cannot be read, or is not UTF-8.
pub fn smbios(config: &Configuration) -> Result<Smbios, Failure> {
    let given = &config.smbios;
    let (major, minor, _) = VERSION;
    let (product, version) = match config.machine {
        MachineKind::Q35 => ("Standard PC (Q35 + ICH9, 2009)", "pc-q35"),
        _ => ("Standard PC (i440FX + PIIX, 1996)", "pc-i440fx"),
    };
    let own = Labels {
        manufacturer: "QEMU".into(),
        version: format!("{version}-{major}.{minor}"),
        ..Labels::default()
    };
    let system = Labels {
        product: product.into(),
        ..own.clone()
    };
    let firmware = Labels {
        manufacturer: "Tollgate".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        // QEMU's date. Of firmware from 2015 on Linux expects the clock's alarm as an event of ACPI
        // while the HPET has the clock's interrupt, which this machine does not have.
        product: "04/01/2014".into(),
        ..Labels::default()
    };
    let memory = Labels {
        manufacturer: "QEMU".into(),
        ..Labels::default()
    };
    let strings = given.strings.iter().map(|text| match text {
        FirmwareText::Text(text) => Ok(text.clone()),
        FirmwareText::File(path) => {
            let bytes = files::read(path, "-smbios", MOST_BYTES)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    });
    Ok(Smbios {
        firmware: with(&given.firmware, firmware),
        system: with(&given.system, system),
        uuid: config.uuid.as_deref().map(uuid).unwrap_or_default(),
        board: given.board.as_ref().map(|board| with(board, own.clone())),
        chassis: with(&given.chassis, own.clone()),
        processor: with(&given.processor, own),
        memory: with(&given.memory, memory),
        strings: strings.collect::<Result<_, Failure>>()?,
    })
}

/// The texts that were given, and others where none was.
fn with(given: &words::Labels, others: Labels) -> Labels {
    let or = |given: &String, other: String| match given.as_str() {
        "" => other,
        given => given.to_owned(),
    };
    Labels {
        manufacturer: or(&given.manufacturer, others.manufacturer),
        product: or(&given.product, others.product),
        version: or(&given.version, others.version),
        serial: or(&given.serial, others.serial),
        asset: or(&given.asset, others.asset),
        sku: or(&given.sku, others.sku),
        family: or(&given.family, others.family),
        location: or(&given.location, others.location),
    }
}

/// The bytes of an identifier, which the parser has checked.
fn uuid(text: &str) -> [u8; 16] {
    let digits: String = text.chars().filter(|it| *it != '-').collect();
    u128::from_str_radix(&digits, 16)
        .unwrap_or_default()
        .to_be_bytes()
}
