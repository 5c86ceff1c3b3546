//! What firmware and guest read: files by fw_cfg.

use crate::build::Builder;
use crate::configuration::{FirmwareFile, FirmwareText};
use crate::key_values::KeyValues;
use crate::refusal::Refusal;

impl Builder {
    /// `-fw_cfg`.
    pub fn firmware_file(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let name = list.required("name")?;
        let content = match (list.take("file"), list.take("string")) {
            (Some(path), None) => FirmwareText::File(path.into()),
            (None, Some(text)) => FirmwareText::Text(text),
            _ => return Err("give one of file= and string=".into()),
        };
        list.end()?;
        self.config
            .firmware_files
            .push(FirmwareFile { name, content });
        Ok(())
    }
}
