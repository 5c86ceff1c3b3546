//! Loading a guest into memory without firmware.
//!
//! The kernel is recognised by its bytes and entered as its own boot protocol requires. Every
//! loader returns a [`CpuState`] from which the processor starts, and needs nothing but guest RAM.
//!
//! The linux-loader crate was considered and rejected. It requires guest memory that implements the
//! traits of vm-memory, which would be a second way around [`GuestMemory`]'s gate, and it supports
//! neither multiboot nor flat images, nor the 32-bit entry. The adapter would be larger than the
//! code that it saves. The object crate would replace some thirty lines of [`elf`], but its errors
//! name neither the part that a truncated file lacks nor the number of bytes.

pub mod bzimage;
pub mod cpio;
pub mod e820;
pub mod elf;
mod error;
mod files;
pub mod firmware;
pub mod flat;
pub mod guest_hooks;
mod image;
pub mod layout;
pub mod linux;
mod modules;
pub mod multiboot;
pub mod multiboot2;
mod pvh;
mod room;
mod state;

pub use error::BootError;

use files::HostFile;
use image::Image;
use std::borrow::Cow;
use std::path::Path;
use tollgate_memory::GuestMemory;
use tollgate_x86::{CpuState, PhysicalAddress};

use crate::acpi;
use crate::config::VmConfig;
use crate::devices::virtio::mmio_transport;

/// What to boot.
#[derive(Clone, Debug)]
pub struct BootSource<'a> {
    /// The kernel's file.
    pub kernel: &'a Path,
    /// The initial RAM disk or the modules, see [`crate::config::VmConfig::initrd`].
    pub initrd: Option<&'a str>,
    /// An initial RAM disk in memory, see [`crate::config::VmConfig::initramfs`].
    pub initramfs: Option<&'a [u8]>,
    /// The command line.
    pub append: Cow<'a, str>,
    /// The hardware that the ACPI tables describe. `None` writes no tables.
    pub acpi: Option<acpi::Hardware>,
}

impl<'a> BootSource<'a> {
    /// Returns the parts of a configuration that concern booting.
    pub fn of(config: &'a VmConfig) -> Self {
        Self {
            kernel: &config.kernel,
            initrd: config.initrd.as_deref(),
            initramfs: config.initramfs.as_deref(),
            append: command_line(config),
            acpi: config.acpi.then(|| acpi::Hardware::of(config)),
        }
    }
}

/// Returns the command line for the guest. If the guest does not read ACPI, the addresses of virtio
/// devices that are not on PCI are put in front of the configured text, because words after `--`
/// are not for the kernel.
fn command_line(config: &VmConfig) -> Cow<'_, str> {
    let append = config.append.as_str();
    let reads_acpi = config.acpi && !append.split_whitespace().any(|word| word == "acpi=off");
    let count = config.virtio_devices() as u8;
    if config.pci || reads_acpi || count == 0 {
        return append.into();
    }
    let mut words: Vec<_> = (0..count).map(mmio_transport::kernel_parameter).collect();
    words.push(append.to_owned());
    words.join(" ").into()
}

/// The kinds of kernels, which are recognised by their first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelKind {
    /// Linux's compressed image with a setup header.
    BzImage,
    /// A multiboot 1 header lies in the first 8 KiB.
    Multiboot,
    /// A multiboot 2 header lies in the first 32 KiB.
    Multiboot2(multiboot2::Header),
    /// An ELF file without a multiboot header: a Linux vmlinux, or a PVH kernel.
    Elf,
    /// Code for real mode, with the signature AA55h at offset 510.
    BootSector,
    /// Code for 32-bit protected mode, without any header.
    Flat,
}

/// Loads the kernel and the files that belong to it, and returns the state of the processor at the
/// kernel's first instruction. Memory must be all zeros.
///
/// # Errors
/// [`BootError`]: what the user must correct. Each error prints as one line.
pub fn load(source: &BootSource, memory: &mut GuestMemory) -> Result<CpuState, BootError> {
    let name = source.kernel.display().to_string();
    let size = memory.ram().size();
    let kernel = HostFile::open("--kernel", source.kernel, size, |needed| {
        BootError::TooLittleMemory {
            needed,
            memory: size,
        }
    })?;
    let image = Image::new(kernel, name.clone())?;
    let kind = recognise(image.head(), &name)?;

    write_bios_data(memory);
    let tables = source.acpi.as_ref();
    let rsdp = tables.and_then(|hardware| acpi::write_tables(hardware, memory));
    match kind {
        KernelKind::BzImage | KernelKind::Elf => {
            let initrd = match source.initrd {
                Some(path) if path.contains(',') && !Path::new(path).exists() => {
                    let paths = path.to_owned();
                    return Err(BootError::SeveralInitrds { paths });
                }
                Some(path) => Some(HostFile::open_initrd(Path::new(path), memory)?),
                None => None,
            };
            let parameters = linux::Parameters {
                command_line: &source.append,
                initrd: match &initrd {
                    Some(file) => Some(linux::Initrd::File(file)),
                    None => source.initramfs.map(linux::Initrd::Bytes),
                },
                rsdp,
            };
            if kind == KernelKind::BzImage {
                bzimage::load(&image, &parameters, memory)
            } else {
                elf::load_kernel(&image, &parameters, memory)
            }
        }
        // The initial RAM disk was made for Linux.
        _ if source.initramfs.is_some() => Err(BootError::InitrdUnsupported { kernel: name }),
        KernelKind::Multiboot => {
            let modules = modules::open(source.initrd.unwrap_or(""), memory)?;
            multiboot::load(&image, &source.append, &modules, memory)
        }
        KernelKind::Multiboot2(header) => {
            let modules = modules::open(source.initrd.unwrap_or(""), memory)?;
            multiboot2::load(&image, header, &source.append, &modules, rsdp, memory)
        }
        KernelKind::BootSector | KernelKind::Flat if source.initrd.is_some() => {
            Err(BootError::InitrdUnsupported { kernel: name })
        }
        KernelKind::BootSector => flat::load_boot_sector(&image, memory),
        KernelKind::Flat => flat::load_flat(&image, memory),
    }
}

/// Determines the kind of a kernel from the first 32 KiB of its file, or from all of a shorter one;
/// `name` is for the message.
///
/// # Errors
/// [`BootError::NotAKernel`].
pub fn recognise(bytes: &[u8], name: &str) -> Result<KernelKind, BootError> {
    if bzimage::has_setup_header(bytes) {
        Ok(KernelKind::BzImage)
    } else if multiboot::find_header(bytes).is_some() {
        Ok(KernelKind::Multiboot)
    } else if let Some(header) = multiboot2::find_header(bytes) {
        Ok(KernelKind::Multiboot2(header))
    } else if elf::is_elf(bytes) {
        Ok(KernelKind::Elf)
    } else if flat::is_boot_sector(bytes) {
        Ok(KernelKind::BootSector)
    } else if flat::may_be_code(bytes) {
        Ok(KernelKind::Flat)
    } else {
        Err(BootError::NotAKernel {
            kernel: name.to_owned(),
            unpacked_by: unpacked_by(bytes),
        })
    }
}

/// Returns the command that decompresses a file. Boot loaders such as GRUB decompress kernels
/// themselves, so that some packages, like Xen's, contain compressed ones.
fn unpacked_by(bytes: &[u8]) -> Option<&'static str> {
    const COMMANDS: [(&[u8], &str); 4] = [
        (b"\x1f\x8b", "gzip -dc"),
        (b"BZh", "bzip2 -dc"),
        (b"\xfd7zXZ\0", "xz -dc"),
        (b"\x28\xb5\x2f\xfd", "zstd -dc"),
    ];
    let found = COMMANDS.iter().find(|(magic, _)| bytes.starts_with(magic));
    found.map(|&(_, command)| command)
}

/// Writes the few fields of the BIOS data area that software expects firmware to fill in.
fn write_bios_data(memory: &mut GuestMemory) {
    const SERIAL_PORTS: u64 = layout::BIOS_DATA;
    const EXTENDED_SEGMENT: u64 = layout::BIOS_DATA + 0x0e;
    const CONVENTIONAL_KIB: u64 = layout::BIOS_DATA + 0x13;
    let words = [
        (SERIAL_PORTS, 0x3f8u16),
        (EXTENDED_SEGMENT, (layout::EXTENDED_BIOS_DATA >> 4) as u16),
        (CONVENTIONAL_KIB, (layout::EXTENDED_BIOS_DATA / 1024) as u16),
    ];
    for (address, word) in words {
        memory.write(PhysicalAddress(address), &word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
