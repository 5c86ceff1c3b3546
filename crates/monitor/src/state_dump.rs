//! Registers as text, for people who must find out what went wrong.

use std::fmt::Write;
use tollgate_x86::{CpuState, SegmentRegister};

/// All registers that matter, in lines of at most 80 columns.
pub fn dump(cpu: &CpuState) -> String {
    let mut text = String::new();
    if cpu.is_long_mode() {
        return dump_long(cpu);
    }
    let names = ["EAX", "ECX", "EDX", "EBX", "ESP", "EBP", "ESI", "EDI"];
    for (index, name) in names.iter().enumerate() {
        let end = if index % 4 == 3 { "\n" } else { "  " };
        let _ = write!(text, "{name}={:08x}{end}", cpu.gpr[index]);
    }
    let _ = writeln!(
        text,
        "EIP={:08x}  EFLAGS={:08x}  CPL={}",
        cpu.rip,
        cpu.flags().image(),
        cpu.cpl()
    );
    for register in SegmentRegister::ALL {
        let segment = cpu.segment(register);
        let _ = writeln!(
            text,
            "{}={:04x}  base={:08x}  limit={:08x}  attributes={:04x}",
            format!("{register:?}").to_uppercase(),
            segment.selector.0,
            segment.base,
            segment.limit,
            segment.attributes.bits()
        );
    }
    let _ = writeln!(
        text,
        "CR0={:08x}  CR2={:08x}  CR3={:08x}  CR4={:08x}  EFER={:08x}",
        cpu.cr0, cpu.cr2, cpu.cr3, cpu.cr4, cpu.efer
    );
    let _ = writeln!(
        text,
        "GDT={:08x}/{:04x}  IDT={:08x}/{:04x}  TR={:04x}  LDT={:04x}",
        cpu.gdtr.base,
        cpu.gdtr.limit,
        cpu.idtr.base,
        cpu.idtr.limit,
        cpu.tr.selector.0,
        cpu.ldtr.selector.0
    );
    text
}

/// The same in IA-32e mode, where registers have 64 bits.
fn dump_long(cpu: &CpuState) -> String {
    let mut text = String::new();
    let names = [
        "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI", "R8 ", "R9 ", "R10", "R11", "R12",
        "R13", "R14", "R15",
    ];
    for (index, name) in names.iter().enumerate() {
        let end = if index % 3 == 2 { "\n" } else { "  " };
        let _ = write!(text, "{name}={:016x}{end}", cpu.gpr[index]);
    }
    let _ = writeln!(
        text,
        "\nRIP={:016x}  EFLAGS={:08x}  CPL={}",
        cpu.rip,
        cpu.flags().image(),
        cpu.cpl()
    );
    for register in SegmentRegister::ALL {
        let segment = cpu.segment(register);
        let _ = writeln!(
            text,
            "{}={:04x}  base={:016x}  limit={:08x}  attributes={:04x}",
            format!("{register:?}").to_uppercase(),
            segment.selector.0,
            segment.base,
            segment.limit,
            segment.attributes.bits()
        );
    }
    let _ = writeln!(
        text,
        "CR0={:08x}  CR2={:016x}  CR3={:010x}  CR4={:08x}  EFER={:04x}",
        cpu.cr0, cpu.cr2, cpu.cr3, cpu.cr4, cpu.efer
    );
    let _ = writeln!(
        text,
        "GDT={:016x}/{:04x}  IDT={:016x}/{:04x}  TR={:04x}  LDT={:04x}",
        cpu.gdtr.base,
        cpu.gdtr.limit,
        cpu.idtr.base,
        cpu.idtr.limit,
        cpu.tr.selector.0,
        cpu.ldtr.selector.0
    );
    let _ = writeln!(text, "kernel GS base={:016x}", cpu.kernel_gs_base);
    text
}
