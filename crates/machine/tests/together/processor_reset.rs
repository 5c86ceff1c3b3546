//! Tests that INIT of the processor and a reset of the machine are two things, and that a saved
//! machine includes its processor.

use std::io;
use tollgate_machine::config::{MIB, TripleFaultAction, VmConfig};
use tollgate_machine::saved::MachineState;
use tollgate_machine::vm::{Consoles, PanicReport, ResetCause, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;
use tollgate_memory::{Region, RegionKind};
use tollgate_x86::PhysicalAddress;

/// The byte that a guest stores for the code at the reset vector.
const MARKER: u8 = 0x2a;

/// Makes a machine with a boot sector that begins with `code`.
fn vm(name: &str, code: &[u8]) -> Vm {
    let mut sector = [0; 512];
    sector[..code.len()].copy_from_slice(code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let name = format!("tollgate-reset-{}-{name}.img", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, sector).unwrap();
    let config = VmConfig {
        memory_bytes: 4 * MIB,
        code_cache_bytes: MIB,
        verify_code: true,
        triple_fault: TripleFaultAction::Reset,
        kernel: path.clone(),
        ..VmConfig::default()
    };
    let consoles = Consoles {
        serial: Box::new(io::sink()),
        debug: Box::new(io::sink()),
    };
    let vm = Vm::build(&config, consoles, &VmHandle::new()).unwrap();
    std::fs::remove_file(path).unwrap();
    vm
}

/// Puts code at the reset vector that ends the machine with the marker: mov al, [0600h]; out F4h,
/// al
fn add_firmware(vm: &Vm) {
    let mut memory = vm.memory();
    let rom = memory.new_block(0x1000).unwrap();
    memory
        .write_block(rom, 0xff0, &[0xa0, 0x00, 0x06, 0xe6, 0xf4])
        .unwrap();
    memory
        .set_region(Region {
            start: PhysicalAddress(0xffff_f000),
            bytes: 0x1000,
            kind: RegionKind::Rom,
            block: Some((rom, 0)),
        })
        .unwrap();
}

/// mov byte [0600h], the marker; the code `reset`; jmp to itself
fn guest(reset: &[u8]) -> Vec<u8> {
    let mark = [0xc6, 0x06, 0x00, 0x06, MARKER];
    [&mark, reset, &[0xeb, 0xfe]].concat()
}

/// mov dx, port; mov al, value; out dx, al
fn out(port: u16, value: u8) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    vec![0xba, low, high, 0xb0, value, 0xee]
}

/// lidt [0700h], where memory is zero, so that no interrupt can be delivered; ud2
const TRIPLE_FAULT: [u8; 7] = [0x0f, 0x01, 0x1e, 0x00, 0x07, 0x0f, 0x0b];

/// Makes DS flat in protected mode and writes `command` to the local APIC's interrupt command
/// register. The code must be at 7C05h, where [`guest`] puts it.
fn command_to_self(command: u16) -> Vec<u8> {
    let [low, high] = command.to_le_bytes();
    let code = [
        0x0f, 0x01, 0x16, 0x25, 0x7c, // lgdt [7C25h]
        0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0, // mov eax,cr0; or al,1; mov cr0,eax
        0xb8, 0x08, 0x00, 0x8e, 0xd8, // mov ax,8; mov ds,ax
        0x67, 0x66, 0xc7, 0x05, 0x00, 0x03, 0xe0, 0xfe, low, high, 0, 0, // mov [FEE00300h],..
        0xeb, 0xfe, // jmp to itself
        0x0f, 0x00, 0x2b, 0x7c, 0x00, 0x00, // limit and base of the GDT, which follows
    ];
    let data = [0xff, 0xff, 0x00, 0x00, 0x00, 0x93, 0xcf, 0x00];
    [&code[..], &[0; 8], &data].concat()
}

#[test]
fn init_of_the_processor_keeps_memory_and_goes_on_in_the_firmware() {
    let resets = [
        ("8042", out(0x64, 0xfe)),
        ("92", out(0x92, 3)),
        ("cf9", out(0xcf9, 4)),
        ("shutdown", TRIPLE_FAULT.to_vec()),
        ("message", command_to_self(0x4500)),
    ];
    for (name, reset) in resets {
        let mut vm = vm(name, &guest(&reset));
        add_firmware(&vm);
        assert_eq!(vm.run(), RunOutcome::DebugExit(MARKER), "{name}");
    }
}

#[test]
fn without_firmware_every_reset_is_the_machine_s() {
    use ResetCause::*;
    let resets = [
        ("8042-bare", out(0x64, 0xfe), KeyboardController),
        ("92-bare", out(0x92, 3), SystemControlPort),
        ("cf9-bare", out(0xcf9, 4), ResetRegister),
        ("shutdown-bare", TRIPLE_FAULT.to_vec(), TripleFault),
        ("message-bare", command_to_self(0x4500), InitMessage),
    ];
    for (name, reset, cause) in resets {
        let outcome = vm(name, &guest(&reset)).run();
        assert_eq!(outcome, RunOutcome::Reset(cause), "{name}");
    }
}

#[test]
fn a_full_reset_is_the_machine_s_with_firmware_too() {
    let mut vm = vm("full", &guest(&out(0xcf9, 6)));
    add_firmware(&vm);
    assert_eq!(vm.run(), RunOutcome::Reset(ResetCause::ResetRegister));
}

#[test]
fn a_guest_that_reports_a_panic_may_go_on() {
    // out 505h; then the byte 7 to port F4h
    let mut vm = vm("panic", &[out(0x505, 1), out(0xf4, 7)].concat());
    assert_eq!(vm.run(), RunOutcome::Panicked(PanicReport::Fatal));
    assert_eq!(vm.run(), RunOutcome::DebugExit(7));
}

#[test]
fn a_saved_machine_goes_on_in_another_one_with_the_nmi_that_waited() {
    // mov word [8], handler; mov word [10], cs; mov bl, 7; out F4h, al; jmp to itself;
    // handler: mov al, bl; out F4h, al
    let code = [
        0xc7, 0x06, 0x08, 0x00, 0x14, 0x7c, 0x8c, 0x0e, 0x0a, 0x00, 0xb3, 0x07, 0xb0, 0x01, 0xe6,
        0xf4, 0xeb, 0xfe, 0x90, 0x90, 0x88, 0xd8, 0xe6, 0xf4,
    ];
    let mut first = vm("first", &code);
    assert_eq!(first.run(), RunOutcome::DebugExit(1));
    let mut saved = serde_json::to_value(first.save().unwrap()).unwrap();
    saved["processor"]["data"]["non_register"]["nmi_pending"] = true.into();

    let mut second = vm("second", &code);
    let (from, mut to) = (first.memory(), second.memory());
    let mut page = [0; 4096];
    for address in (0..0x1_0000).step_by(page.len()) {
        from.read(PhysicalAddress(address), &mut page);
        to.write(PhysicalAddress(address), &page);
    }
    let state: MachineState = serde_json::from_value(saved.clone()).unwrap();
    second.restore(state).unwrap();
    let again = serde_json::to_value(second.save().unwrap()).unwrap();
    assert_eq!(again["processor"], saved["processor"]);
    assert_eq!(second.run(), RunOutcome::DebugExit(7));
}

#[test]
fn a_processor_of_another_layout_or_model_is_refused() {
    let mut vm = vm("refused", &[0xeb, 0xfe]);
    let saved = serde_json::to_value(vm.save().unwrap()).unwrap();
    let mut refuse = |path: &[&str], value: serde_json::Value| {
        let mut saved = saved.clone();
        *path.iter().fold(&mut saved, |at, key| &mut at[*key]) = value;
        let state: MachineState = serde_json::from_value(saved).unwrap();
        vm.restore(state).unwrap_err().to_string()
    };
    assert!(refuse(&["version"], 9.into()).contains("version 9"));
    assert!(refuse(&["processor", "version"], 9.into()).starts_with("saved state of 'processor'"));
    assert!(refuse(&["processor", "data", "non_register"], 9.into()).contains("cannot be read"));
}
