//! The items of a kernel that firmware loads. UEFI firmware joins the two parts of the kernel's file
//! again, and executes it as a program, with a file system that contains the initial RAM disk.

/// The size of the setup code of Linux in units of 512 bytes, less one, is at this offset.
const SETUP_SECTORS: usize = 0x1f1;
/// Linux's signature is at this offset.
const SIGNATURE: usize = 0x202;

/// Selectors of the items: the size of each part, and its bytes.
mod item {
    pub const KERNEL: [u16; 2] = [0x08, 0x11];
    pub const INITRD: [u16; 2] = [0x0b, 0x12];
    pub const COMMAND_LINE: [u16; 2] = [0x14, 0x15];
    pub const SETUP: [u16; 2] = [0x17, 0x18];
}

/// A kernel that firmware loads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirmwareKernel {
    /// The kernel's file.
    pub kernel: Vec<u8>,
    /// The initial RAM disk.
    pub initrd: Vec<u8>,
    /// The command line.
    pub command_line: String,
}

impl FirmwareKernel {
    /// Returns the items, each with its selector.
    pub(super) fn items(self) -> Vec<(u16, Vec<u8>)> {
        let Self {
            kernel: mut setup,
            initrd,
            command_line,
        } = self;
        let kernel = setup.split_off(setup_bytes(&setup));
        let mut command_line = command_line.into_bytes();
        command_line.push(0);
        let parts = [
            (item::SETUP, setup),
            (item::KERNEL, kernel),
            (item::INITRD, initrd),
            (item::COMMAND_LINE, command_line),
        ];
        let items = parts.into_iter().flat_map(|([size, data], bytes)| {
            let length = (bytes.len() as u32).to_le_bytes().to_vec();
            [(size, length), (data, bytes)]
        });
        items.collect()
    }
}

/// Returns the size in bytes of Linux's setup code, or 0 if the file is another program.
fn setup_bytes(kernel: &[u8]) -> usize {
    if kernel.get(SIGNATURE..SIGNATURE + 4) != Some(b"HdrS") {
        return 0;
    }
    let sectors = match kernel[SETUP_SECTORS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    ((sectors + 1) * 512).min(kernel.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(kernel: Vec<u8>) -> Vec<(u16, Vec<u8>)> {
        let kernel = FirmwareKernel {
            kernel,
            initrd: b"disk".to_vec(),
            command_line: "quiet".into(),
        };
        kernel.items()
    }

    fn bytes(items: &[(u16, Vec<u8>)], selector: u16) -> &[u8] {
        &items.iter().find(|(of, _)| *of == selector).unwrap().1
    }

    #[test]
    fn linux_is_in_two_parts_and_other_programs_in_one() {
        let mut kernel = vec![1; 4096];
        kernel[SIGNATURE..SIGNATURE + 4].copy_from_slice(b"HdrS");
        kernel[SETUP_SECTORS] = 2;
        let linux = items(kernel);
        assert_eq!(bytes(&linux, 0x17), 1536u32.to_le_bytes());
        assert_eq!(bytes(&linux, 0x08), 2560u32.to_le_bytes());
        assert_eq!(bytes(&linux, 0x18).len() + bytes(&linux, 0x11).len(), 4096);
        assert_eq!(bytes(&linux, 0x12), b"disk");
        assert_eq!(bytes(&linux, 0x15), b"quiet\0");
        let other = items(vec![2; 700]);
        assert_eq!(bytes(&other, 0x17), [0; 4]);
        assert_eq!(bytes(&other, 0x11).len(), 700);
    }
}
