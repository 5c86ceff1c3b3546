//! `--guest-hooks`: an option ROM whose code in the guest hooks BIOS vectors before any program
//! does.
//!
//! SeaBIOS calls the ROM before it boots, as it calls the ROM of any card. Every call of a vector
//! still goes through the guest's own table: the hooks of programs are installed later, so they run
//! first and pass calls on to these hooks. The source is `guests/dos-hooks.S`.

use crate::devices::fw_cfg::FwCfgFile;

/// SeaBIOS runs all files in this folder that are option ROMs.
const FILE: &str = "genroms/tollgate-dos-hooks.rom";

/// The guest system that the hooks are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestHooks {
    /// DOS: hooks of INT 10h, 13h, 16h and 1Ah, which wait for keys in HLT.
    Dos,
}

impl GuestHooks {
    /// Returns the option ROM as a file that firmware finds.
    pub fn file(self) -> FwCfgFile {
        let Self::Dos = self;
        let mut content = include_bytes!(concat!(env!("OUT_DIR"), "/dos-hooks.rom")).to_vec();
        // The sum of all bytes of an option ROM must be 0 modulo 256.
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
