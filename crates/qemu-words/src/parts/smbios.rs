//! `-smbios`: what the machine says of itself.

use crate::build::Builder;
use crate::configuration::{FirmwareText, Labels};
use crate::key_values::KeyValues;
use crate::refusal::Refusal;

/// Takes the texts of a part. `product` is the key of what is kept as the product.
fn labels(list: &mut KeyValues, labels: &mut Labels, product: &str) {
    let fields = [
        ("manufacturer", &mut labels.manufacturer),
        (product, &mut labels.product),
        ("version", &mut labels.version),
        ("serial", &mut labels.serial),
        ("asset", &mut labels.asset),
        ("sku", &mut labels.sku),
        ("family", &mut labels.family),
        ("location", &mut labels.location),
    ];
    for (key, field) in fields {
        if let Some(text) = list.take(key) {
            *field = text;
        }
    }
}

impl Builder {
    /// `-smbios`.
    pub fn smbios(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        if list.take("file").is_some() {
            return Err("file: tables are not read from files".into());
        }
        let smbios = &mut self.config.smbios;
        match list.number("type")? {
            Some(0) => {
                if let Some(vendor) = list.take("vendor") {
                    smbios.firmware.manufacturer = vendor;
                }
                labels(&mut list, &mut smbios.firmware, "date");
                list.ignore(&["release", "uefi"]);
            }
            Some(1) => {
                labels(&mut list, &mut smbios.system, "product");
                if let Some(uuid) = list.take("uuid") {
                    self.uuid(&uuid)?;
                }
            }
            Some(2) => labels(&mut list, smbios.board.get_or_insert_default(), "product"),
            Some(3) => labels(&mut list, &mut smbios.chassis, "product"),
            Some(4) => {
                if let Some(location) = list.take("sock_pfx") {
                    smbios.processor.location = format!("{location} 0");
                }
                labels(&mut list, &mut smbios.processor, "part");
                list.ignore(&[
                    "max-speed",
                    "current-speed",
                    "processor-family",
                    "processor-id",
                ]);
            }
            Some(11) => {
                let texts = list.all("value").into_iter().map(FirmwareText::Text);
                smbios.strings.extend(texts);
                let files = list.all("path").into_iter();
                let files = files.map(|path| FirmwareText::File(path.into()));
                smbios.strings.extend(files);
            }
            Some(17) => {
                if let Some(location) = list.take("loc_pfx") {
                    smbios.memory.location = format!("{location} 0");
                }
                labels(&mut list, &mut smbios.memory, "part");
                list.ignore(&["bank", "speed"]);
            }
            Some(kind) => return Err(format!("there are no tables of type {kind}").into()),
            None => return Err("Parameter 'type' is missing".into()),
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_its_texts_and_strings_add_up() {
        let mut builder = Builder::default();
        let mut add = |text: &str| builder.smbios(KeyValues::parse(text, None).unwrap());
        add("type=1,manufacturer=M,serial=ds=nocloud").unwrap();
        add("type=1,uuid=00112233-4455-6677-8899-aabbccddeeff").unwrap();
        add("type=11,value=a,value=b").unwrap();
        add("type=11,path=/f").unwrap();
        assert!(add("type=1,foo=1").is_err());
        assert!(add("type=41").unwrap_err().0.contains("41"));
        assert!(add("file=x").is_err());
        let config = builder.config;
        assert_eq!(config.smbios.system.serial, "ds=nocloud");
        assert_eq!(config.smbios.system.manufacturer, "M");
        assert_eq!(
            config.uuid.as_deref(),
            Some("00112233-4455-6677-8899-aabbccddeeff")
        );
        let text = |text: &str| FirmwareText::Text(text.into());
        let file = FirmwareText::File("/f".into());
        assert_eq!(config.smbios.strings, [text("a"), text("b"), file]);
    }
}
