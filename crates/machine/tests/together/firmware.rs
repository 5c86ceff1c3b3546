//! Tests of a machine that starts from a ROM made here: the reset vector, and the ROM and RAM that
//! the chip set shows below 1 MiB.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tollgate_machine::config::{MIB, TripleFaultAction, VmConfig};
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;

/// The bytes that were written to port E9h.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const ROM_BYTES: usize = 0x1_0000;
/// The address of the ROM's data byte, and its value.
const DATA: u16 = 0x8000;
const IN_ROM: u8 = 0x5a;

/// Makes a ROM that copies `code` to 7C00h and jumps there, with DS pointing to the ROM.
fn rom(code: &[u8]) -> Vec<u8> {
    let mut rom = vec![0; ROM_BYTES];
    let start = [
        0xb8, 0x00, 0xf0, 0x8e, 0xd8, // mov ax, F000h; mov ds, ax
        0x31, 0xc0, 0x8e, 0xc0, // xor ax, ax; mov es, ax
        0xbe, 0x00, 0x01, 0xbf, 0x00, 0x7c, // mov si, 100h; mov di, 7C00h
        0xb9, 0x00, 0x02, 0xf3, 0xa4, // mov cx, 200h; rep movsb
        0xea, 0x00, 0x7c, 0x00, 0x00, // jmp 0:7C00h
    ];
    rom[..start.len()].copy_from_slice(&start);
    rom[0x100..0x100 + code.len()].copy_from_slice(code);
    rom[usize::from(DATA)] = IN_ROM;
    // jmp F000:0
    rom[0xfff0..0xfff5].copy_from_slice(&[0xea, 0x00, 0x00, 0x00, 0xf0]);
    rom
}

/// Runs a machine from a ROM. Returns its outcome, and the bytes that it wrote to port E9h.
fn run(name: &str, rom: &[u8]) -> (RunOutcome, Vec<u8>) {
    let name = format!("tollgate-rom-{}-{name}.bin", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, rom).unwrap();
    let config = VmConfig {
        memory_bytes: 4 * MIB,
        code_cache_bytes: MIB,
        verify_code: true,
        triple_fault: TripleFaultAction::Reset,
        firmware: Some(path.clone()),
        ..VmConfig::default()
    };
    let told = Told::default();
    let consoles = Consoles {
        serial: Box::new(io::sink()),
        debug: Box::new(told.clone()),
    };
    let mut vm = Vm::build(&config, consoles, &VmHandle::new()).unwrap();
    std::fs::remove_file(path).unwrap();
    let outcome = vm.run();
    let told = told.0.lock().unwrap().clone();
    (outcome, told)
}

/// out E9h, the byte at an offset in DS
fn tell(offset: u16) -> Vec<u8> {
    let [low, high] = offset.to_le_bytes();
    vec![0xa0, low, high, 0xe6, 0xe9]
}

/// mov byte [offset], value
fn store(offset: u16, value: u8) -> Vec<u8> {
    let [low, high] = offset.to_le_bytes();
    vec![0xc6, 0x06, low, high, value]
}

/// Selects the doubleword of the host bridge's registers that holds 59h.
const SELECT_ATTRIBUTES: [u8; 11] = [
    0x66, 0xb8, 0x58, 0x00, 0x00, 0x80, // mov eax, 80000058h
    0xba, 0xf8, 0x0c, 0x66, 0xef, // mov dx, CF8h; out dx, eax
];

/// Writes the attributes of F0000h-FFFFFh in register 59h.
fn set_attributes(value: u8) -> Vec<u8> {
    vec![0xba, 0xfd, 0x0c, 0xb0, value, 0xee]
}

/// mov al, 2Ah; out F4h, al
const END: [u8; 4] = [0xb0, 0x2a, 0xe6, 0xf4];

#[test]
fn loads_and_stores_reach_rom_or_ram_as_the_chip_set_is_told() {
    const ROM: u8 = 0x00;
    const READ_RAM: u8 = 0x10;
    const WRITE_RAM: u8 = 0x20;
    const RAM: u8 = 0x30;
    let code = [
        SELECT_ATTRIBUTES.to_vec(),
        [store(DATA, 1), tell(DATA)].concat(),
        [set_attributes(WRITE_RAM), store(DATA, 0x77), tell(DATA)].concat(),
        [
            set_attributes(READ_RAM),
            tell(DATA),
            store(DATA, 2),
            tell(DATA),
        ]
        .concat(),
        [set_attributes(RAM), store(DATA, 3), tell(DATA)].concat(),
        [set_attributes(ROM), tell(DATA)].concat(),
        [set_attributes(READ_RAM), tell(DATA)].concat(),
        END.to_vec(),
    ]
    .concat();
    let (outcome, told) = run("attributes", &rom(&code));
    assert_eq!(outcome, RunOutcome::DebugExit(0x2a));
    assert_eq!(told, [IN_ROM, IN_ROM, 0x77, 0x77, 3, IN_ROM, 3]);
}

#[test]
fn images_of_every_customary_size_start_at_their_end_and_show_it_below_1_mib() {
    // mov ax, E000h; mov ds, ax
    let other_half = [0xb8, 0x00, 0xe0, 0x8e, 0xd8];
    let code = [&tell(DATA)[..], &other_half, &tell(4), &END].concat();
    for kib in [64, 128, 256, 512, 1024, 2048] {
        let mut image = vec![0x33; kib << 10];
        let end = image.len() - ROM_BYTES;
        image[end..].copy_from_slice(&rom(&code));
        // Only the last 128 KiB appear there. If the image has fewer bytes, the rest is empty.
        let shown = if kib == 64 { 0xff } else { 0x33 };
        let (_, told) = run(&format!("{kib}k"), &image);
        assert_eq!(told, [IN_ROM, shown], "{kib} KiB");
    }
}

#[test]
fn nothing_answers_where_neither_rom_nor_ram_is_shown() {
    let code = [
        &[0xb8, 0x00, 0xe0, 0x8e, 0xd8][..], // mov ax, E000h; mov ds, ax
        &tell(DATA),
        &store(DATA, 7),
        &tell(DATA),
        &END,
    ]
    .concat();
    assert_eq!(run("nothing", &rom(&code)).1, [0xff, 0xff]);
}

/// After a reset of the processor the ROM runs again, and memory is unchanged: INIT comes from the
/// keyboard controller, and the second time the byte at 0600h is set.
#[test]
fn a_reset_of_the_processor_starts_the_firmware_again_with_memory_as_it_was() {
    let code = [
        0x8e, 0xd8, // mov ds, ax, which is 0
        0x80, 0x3e, 0x00, 0x06, 0x2a, 0x74, 0x0b, // cmp byte [600h], 2Ah; je end
        0xc6, 0x06, 0x00, 0x06, 0x2a, // mov byte [600h], 2Ah
        0xb0, 0xfe, 0xe6, 0x64, 0xeb, 0xfe, // mov al, FEh; out 64h, al; jmp to itself
        0xb0, 0x2a, 0xe6, 0xf4, // end
    ];
    let (outcome, _) = run("again", &rom(&code));
    assert_eq!(outcome, RunOutcome::DebugExit(0x2a));
}

/// The local APIC's page moves over the ROM and away again.
#[test]
fn a_rom_that_the_apic_s_page_hid_comes_back() {
    let set_base = |base: u32| {
        let bytes = (base | 0x900).to_le_bytes();
        let mut code = vec![0x66, 0xb9, 0x1b, 0, 0, 0, 0x66, 0x31, 0xd2, 0x66, 0xb8];
        code.extend(bytes);
        code.extend([0x0f, 0x30]); // mov ecx, 1Bh; xor edx, edx; mov eax, base; wrmsr
        code
    };
    // The version at offset 30h of the page: its lowest byte is 10h to 1Fh.
    let version = [&tell(DATA + 0x30)[..3], &[0x24, 0xf0, 0xe6, 0xe9]].concat();
    let code = [
        set_base(0xf_8000),
        version,
        SELECT_ATTRIBUTES.to_vec(),
        set_attributes(0x30),
        [&tell(DATA + 0x30)[..3], &[0x24, 0xf0, 0xe6, 0xe9]].concat(),
        set_attributes(0),
        set_base(0xfee0_0000),
        tell(DATA),
        END.to_vec(),
    ]
    .concat();
    let (outcome, told) = run("apic", &rom(&code));
    assert_eq!(outcome, RunOutcome::DebugExit(0x2a));
    assert_eq!(told, [0x10, 0x10, IN_ROM]);
}
