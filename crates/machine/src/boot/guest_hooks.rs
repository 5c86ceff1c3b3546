//! `--guest-hooks`: code for the guest, as an option ROM, that takes BIOS vectors before any program.
//!
//! SeaBIOS calls it before it boots, as it does with the ROM of any card. Every call of a vector still goes through
//! the guest's own table: hooks of programs, which come later, run first and hand on to these. The source
//! is `guests/dos-hooks.S`.

use crate::devices::fw_cfg::FwCfgFile;

/// SeaBIOS runs all files in this folder that are option ROMs.
const FILE: &str = "genroms/tollgate-dos-hooks.rom";

/// For which system there are hooks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestHooks {
    /// DOS: INT 10h, 13h, 16h and 1Ah, with waits for keys in HLT.
    Dos,
}

impl GuestHooks {
    /// The option ROM, as a file that firmware finds.
    pub fn file(self) -> FwCfgFile {
        let Self::Dos = self;
        let mut content = include_bytes!(concat!(env!("OUT_DIR"), "/dos-hooks.rom")).to_vec();
        // All bytes together make 0.
        let sum = content
            .iter()
            .fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        if let Some(last) = content.last_mut() {
            *last = last.wrapping_sub(sum);
        }
        FwCfgFile {
            name: FILE.into(),
            content,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rom_is_one_that_firmware_takes() {
        let rom = GuestHooks::Dos.file().content;
        assert_eq!(rom[..2], [0x55, 0xaa]);
        assert_eq!(rom.len(), usize::from(rom[2]) * 512);
        assert_eq!(rom.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
    }
}
