//! Tests of multiboot kernels in conventional memory, where the loader's own structures usually
//! are.

use super::*;

/// Boots a multiboot kernel by its header's addresses: all its bytes are B8h, it is loaded from
/// `start`, and its bss extends to `end`.
fn boot_low(name: &str, start: u32, end: u32, size: usize, modules: Option<&str>) -> LowKernel {
    let mut image = multiboot_header(0x1_0000);
    for word in [start, start, 0, end, start + 0x20] {
        image.extend(word.to_le_bytes());
    }
    image.resize(size, 0xb8);
    let mut memory = memory(4);
    let state = boot(name, &image, modules, "low", &mut memory).unwrap();
    assert_eq!(state.rip, u64::from(start) + 0x20);
    assert_eq!(read(&memory, start.into(), size), image);
    let bss = read(
        &memory,
        u64::from(start) + size as u64,
        end as usize - start as usize - size,
    );
    assert!(bss.iter().all(|byte| *byte == 0), "bss is not zero");
    LowKernel { memory, state }
}

struct LowKernel {
    memory: GuestMemory,
    state: CpuState,
}

impl LowKernel {
    /// Checks all structures and returns their addresses: descriptors, information, map, text.
    fn structures(&self) -> [u64; 4] {
        let code = u64_at(&read(&self.memory, self.state.gdtr.base + 0x10, 8), 0);
        assert_eq!(
            tollgate_x86::Descriptor(code).segment(tollgate_x86::Selector(0x10)),
            *self.state.segment(SegmentRegister::Cs)
        );
        let information = self.state.register(Gpr::Rbx);
        let fields = read(&self.memory, information, 116);
        assert_eq!(u32_at(&fields, 0), 0x24d);
        let map = u32_at(&fields, 48).into();
        assert_eq!(u32_at(&read(&self.memory, map, 24), 0), 20);
        let text = u32_at(&fields, 16).into();
        let line = read(&self.memory, text, 300);
        let line = line.split(|byte| *byte == 0).next().unwrap();
        assert!(line.ends_with(b" low"));
        [self.state.gdtr.base, information, map, text]
    }
}

#[test]
fn a_multiboot_kernel_may_cover_any_of_the_boot_structures() {
    for (name, start, end, size) in [
        ("at-7c00", 0x7c00, 0x7e00, 0x200),
        ("at-8000", 0x8000, 0x2_8000, 0x3000),
        ("at-500", 0x500, 0x6_0000, 0x8000),
        ("at-20000", 0x2_0000, 0x5_0000, 0x2000),
        ("everything", 0x600, 0x9_fc00, 0x9_0000),
        ("vectors-and-bios-data", 0, 0x8000, 0x100),
        ("bios-data-in-bss", 0x300, 0x1_0000, 0x80),
    ] {
        let low = boot_low(name, start, end, size, None);
        for structure in low.structures() {
            assert!(
                structure >= end.into() || structure + 0x200 <= start.into(),
                "{name}: {structure:#x}"
            );
        }
    }
}

#[test]
fn modules_of_a_low_kernel_lie_above_1_mib() {
    let module = TemporaryFile::new("low-module", &[0x4d; 0x1800]);
    let low = boot_low(
        "low-modules",
        0x600,
        0x9_fc00,
        0x1000,
        Some(module.0.to_str().unwrap()),
    );
    let [.., text] = low.structures();
    let fields = read(&low.memory, low.state.register(Gpr::Rbx), 116);
    let list = read(&low.memory, u32_at(&fields, 24).into(), 16);
    let [start, end] = [0, 4].map(|field| u64::from(u32_at(&list, field)));
    assert_eq!((start, end), (0x10_0000, 0x10_1800));
    assert_eq!(read(&low.memory, start, 0x1800), [0x4d; 0x1800]);
    assert!(text >= end);
}

#[test]
fn a_multiboot_kernel_may_not_cover_the_firmware_area() {
    let mut image = multiboot_header(0x1_0000);
    for word in [0x9_f000u32, 0x9_f000, 0, 0xa_0000, 0x9_f020] {
        image.extend(word.to_le_bytes());
    }
    let error = boot("firmware", &image, None, "", &mut memory(4)).unwrap_err();
    let BootError::Unsupported { what, .. } = error else {
        panic!("{error}");
    };
    assert!(
        what.contains("0x9f000") && what.contains("from 0x0 to 0x9fc00"),
        "{what}"
    );
}
