//! Tests of reading kernels: from files and pipes, into guest RAM without a copy in between.

use super::*;
use std::io::Write;
use std::os::fd::AsRawFd;

/// A bzImage whose code is longer than what is read to recognise a kernel, and no two pages of which
/// are the same.
fn long_bzimage() -> Vec<u8> {
    let mut image = bzimage(100_003);
    for (index, byte) in image[1024..].iter_mut().enumerate() {
        *byte = (index ^ index >> 8) as u8;
    }
    image
}

#[test]
fn all_of_a_long_kernel_is_in_memory_and_nothing_after_it() {
    let (image, mut memory) = (long_bzimage(), memory(64));
    boot("long", &image, None, "", &mut memory).unwrap();
    let loaded = read(&memory, layout::KERNEL, image.len() - 1024 + 4096);
    assert_eq!(loaded[..image.len() - 1024], image[1024..]);
    assert_eq!(loaded[image.len() - 1024..], [0; 4096]);
}

#[test]
fn a_kernel_from_a_pipe_is_loaded_as_from_a_file() {
    let image = long_bzimage();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    let mut from_pipe = memory(64);
    let state = std::thread::scope(|scope| {
        let bytes = &image[..];
        scope.spawn(move || writer.write_all(bytes).unwrap());
        let source = BootSource {
            kernel: &path,
            initrd: None,
            initramfs: None,
            append: "".into(),
            acpi: Some(crate::acpi::Hardware::default()),
        };
        load(&source, &mut from_pipe).unwrap()
    });
    let mut from_file = memory(64);
    assert_eq!(
        boot("file", &image, None, "", &mut from_file).unwrap(),
        state
    );
    let whole = |memory: &GuestMemory| read(memory, layout::KERNEL, 1 << 20);
    assert!(whole(&from_pipe) == whole(&from_file));
}

#[test]
fn a_kernel_without_end_is_too_large() {
    let source = BootSource {
        kernel: Path::new("/dev/zero"),
        initrd: None,
        initramfs: None,
        append: "".into(),
        acpi: None,
    };
    let error = load(&source, &mut memory(4)).unwrap_err();
    assert!(matches!(error, BootError::TooLittleMemory { .. }));
}
