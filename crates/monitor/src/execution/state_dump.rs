//! Prints the processor's registers as text, for people who must find out what went wrong.

use std::fmt::Write;
use tollgate_x86::{CpuState, Exception, SegmentRegister, Vector};

/// How registers are printed: their names, and their widths in hexadecimal digits.
struct Format {
    registers: &'static [&'static str],
    /// The number of general registers in a line.
    columns: usize,
    instruction_pointer: &'static str,
    /// The width of general registers and addresses.
    wide: usize,
    cr3: usize,
    efer: usize,
}

const LEGACY: Format = Format {
    registers: &["EAX", "ECX", "EDX", "EBX", "ESP", "EBP", "ESI", "EDI"],
    columns: 4,
    instruction_pointer: "EIP",
    wide: 8,
    cr3: 8,
    efer: 8,
};

/// The format for IA-32e mode, in which registers have 64 bits.
const LONG: Format = Format {
    registers: &[
        "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI", "R8 ", "R9 ", "R10", "R11", "R12",
        "R13", "R14", "R15",
    ],
    columns: 3,
    instruction_pointer: "RIP",
    wide: 16,
    cr3: 10,
    efer: 4,
};

/// All registers that matter for finding errors, in lines of at most 80 columns.
pub fn dump(cpu: &CpuState) -> String {
    let is_long = cpu.is_long_mode();
    let Format {
        registers,
        columns,
        instruction_pointer,
        wide,
        cr3,
        efer,
    } = if is_long { LONG } else { LEGACY };
    let mut text = String::new();
    for (index, name) in registers.iter().enumerate() {
        let is_last = index + 1 == registers.len() || index % columns == columns - 1;
        let end = if is_last { "\n" } else { "  " };
        let _ = write!(text, "{name}={:0wide$x}{end}", cpu.gpr[index]);
    }
    let _ = writeln!(
        text,
        "{instruction_pointer}={:0wide$x}  EFLAGS={:08x}  CPL={}",
        cpu.rip,
        cpu.flags().image(),
        cpu.cpl()
    );
    for register in SegmentRegister::ALL {
        let segment = cpu.segment(register);
        let _ = writeln!(
            text,
            "{}={:04x}  base={:0wide$x}  limit={:08x}  attributes={:04x}",
            format!("{register:?}").to_uppercase(),
            segment.selector.0,
            segment.base,
            segment.limit,
            segment.attributes.bits()
        );
    }
    let _ = writeln!(
        text,
        "CR0={:08x}  CR2={:0wide$x}  CR3={:0cr3$x}  CR4={:08x}  EFER={:0efer$x}",
        cpu.cr0, cpu.cr2, cpu.cr3, cpu.cr4, cpu.efer
    );
    let _ = writeln!(
        text,
        "GDT={:0wide$x}/{:04x}  IDT={:0wide$x}/{:04x}  TR={:04x}  LDT={:04x}",
        cpu.gdtr.base,
        cpu.gdtr.limit,
        cpu.idtr.base,
        cpu.idtr.limit,
        cpu.tr.selector.0,
        cpu.ldtr.selector.0
    );
    if is_long {
        let _ = writeln!(text, "kernel GS base={:016x}", cpu.kernel_gs_base);
    }
    text
}
/// An exception in the notation of the manuals, as in `#PF(0002h) at 00000000C0001000h`.
pub(crate) fn named(exception: &Exception) -> String {
    let name = match exception.vector {
        Vector::DivideError => "#DE",
        Vector::Debug => "#DB",
        Vector::NonMaskableInterrupt => "NMI",
        Vector::Breakpoint => "#BP",
        Vector::Overflow => "#OF",
        Vector::BoundRange => "#BR",
        Vector::InvalidOpcode => "#UD",
        Vector::DeviceNotAvailable => "#NM",
        Vector::DoubleFault => "#DF",
        Vector::CoprocessorOverrun => "coprocessor segment overrun",
        Vector::InvalidTss => "#TS",
        Vector::SegmentNotPresent => "#NP",
        Vector::StackFault => "#SS",
        Vector::GeneralProtection => "#GP",
        Vector::PageFault => "#PF",
        Vector::FloatingPoint => "#MF",
        Vector::AlignmentCheck => "#AC",
        Vector::MachineCheck => "#MC",
        Vector::SimdFloatingPoint => "#XM",
    };
    let code = match exception.vector.has_error_code() {
        true => format!("({:04X}h)", exception.error_code),
        false => String::new(),
    };
    match exception.address {
        Some(address) => format!("{name}{code} at {:016X}h", address.0),
        None => format!("{name}{code}"),
    }
}
