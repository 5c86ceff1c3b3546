//! The processor's registers as QEMU's monitor shows them, and by their names.

use std::fmt::Write;

use tollgate_machine::inspection::CpuState;

/// The general registers in the order of their numbers in instructions.
const GENERAL: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
/// The numbers of the first eight in the order in which they are shown.
const SHOWN: [usize; 16] = [0, 3, 1, 2, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
/// The segment registers in the order of their numbers.
const SEGMENTS: [&str; 6] = ["ES", "CS", "SS", "DS", "FS", "GS"];

/// The letters of the arithmetic flags, each with its bit.
const FLAGS: [(u32, char); 7] = [
    (10, 'D'),
    (11, 'O'),
    (7, 'S'),
    (6, 'Z'),
    (4, 'A'),
    (2, 'P'),
    (0, 'C'),
];

/// The value of a register by its name.
pub fn value(cpu: &CpuState, name: &str) -> Option<u64> {
    let name = name.to_ascii_lowercase();
    let narrow = name.strip_prefix('e').map(|rest| format!("r{rest}"));
    let number = |name: &str| GENERAL.iter().position(|known| *known == name);
    if let Some(number) = number(&name) {
        return Some(cpu.gpr[number]);
    }
    if let Some(number) = narrow.as_deref().and_then(number) {
        return Some(cpu.gpr[number] & 0xffff_ffff);
    }
    let segment = SEGMENTS
        .iter()
        .position(|known| known.eq_ignore_ascii_case(&name));
    if let Some(segment) = segment {
        return Some(cpu.segments[segment].selector.0.into());
    }
    Some(match name.as_str() {
        // The address of the next instruction, as for `x /2i $eip`.
        "pc" | "rip" | "eip" => cpu.cs().base.wrapping_add(cpu.rip),
        "eflags" | "rflags" => cpu.flags,
        "cr0" => cpu.cr0,
        "cr2" => cpu.cr2,
        "cr3" => cpu.cr3,
        "cr4" => cpu.cr4,
        "efer" => cpu.efer,
        _ => return None,
    })
}

/// The size in bits of the code that runs.
pub fn code_bits(cpu: &CpuState) -> u32 {
    match (cpu.is_64_bit(), cpu.cs().is_big()) {
        (true, _) => 64,
        (false, true) => 32,
        (false, false) => 16,
    }
}

/// All registers, in QEMU's form.
pub fn text(cpu: &CpuState, is_halted: bool) -> String {
    let mut text = String::from("\nCPU#0\n");
    let is_long = cpu.is_long_mode();
    let width = if is_long { 16 } else { 8 };
    let count = if is_long { 16 } else { 8 };
    for (place, number) in SHOWN.into_iter().take(count).enumerate() {
        let name = match is_long {
            true => format!("{:<3}", GENERAL[number].to_uppercase()),
            false => format!("E{}", GENERAL[number][1..].to_uppercase()),
        };
        let value = cpu.gpr[number] & if is_long { u64::MAX } else { 0xffff_ffff };
        let end = if place % 4 == 3 { "\n" } else { " " };
        let _ = write!(text, "{name}={value:0width$x}{end}");
    }
    let flags = FLAGS.map(|(bit, letter)| match cpu.flags >> bit & 1 {
        1 => letter,
        _ => '-',
    });
    let flags: String = flags.iter().collect();
    let pointer = if is_long { "RIP" } else { "EIP" };
    let short = if is_long { "RFL" } else { "EFL" };
    let _ = writeln!(
        text,
        "{pointer}={:0width$x} {short}={:08x} [{flags}] CPL={} II=0 A20={} SMM=0 HLT={}",
        cpu.rip,
        cpu.flags,
        cpu.cpl(),
        u8::from(cpu.a20_mask >> 20 & 1 != 0),
        u8::from(is_halted),
    );
    let named = SEGMENTS.iter().zip(&cpu.segments);
    for (name, segment) in named.chain([(&"LDT", &cpu.ldtr), (&"TR", &cpu.tr)]) {
        let _ = writeln!(
            text,
            "{name:<3}={:04x} {:0width$x} {:08x} {:08x}",
            segment.selector.0,
            segment.base,
            segment.limit,
            u32::from(segment.attributes.bits()) << 8,
        );
    }
    for (name, table) in [("GDT", &cpu.gdtr), ("IDT", &cpu.idtr)] {
        let _ = writeln!(
            text,
            "{name}=     {:0width$x} {:08x}",
            table.base, table.limit
        );
    }
    let _ = writeln!(
        text,
        "CR0={:08x} CR2={:0width$x} CR3={:0width$x} CR4={:08x}",
        cpu.cr0, cpu.cr2, cpu.cr3, cpu.cr4
    );
    for number in 0..4 {
        let end = if number == 3 { "\n" } else { " " };
        let _ = write!(text, "DR{number}={:0width$x}{end}", cpu.dr[number]);
    }
    let _ = writeln!(
        text,
        "DR6={:0width$x} DR7={:0width$x}",
        cpu.dr[6], cpu.dr[7]
    );
    let _ = writeln!(text, "EFER={:016x}", cpu.efer);
    vectors(cpu, count, &mut text);
    text
}

/// The x87 and SSE registers, from the area that XSAVE writes (SDM volume 1, 13.4).
fn vectors(cpu: &CpuState, count: usize, text: &mut String) {
    let area = &cpu.vector.0;
    let word = |at: usize| u16::from_le_bytes([area[at], area[at + 1]]);
    let long = |at: usize| {
        let bytes: [u8; 8] = area[at..at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(bytes)
    };
    let _ = writeln!(
        text,
        "FCW={:04x} FSW={:04x} [ST={}] FTW={:02x} MXCSR={:08x}",
        word(0),
        word(2),
        word(2) >> 11 & 7,
        area[4],
        long(24) & 0xffff_ffff,
    );
    for number in 0..8 {
        let at = 32 + 16 * number;
        let end = if number % 2 == 1 { "\n" } else { " " };
        let _ = write!(
            text,
            "FPR{number}={:016x} {:04x}{end}",
            long(at),
            word(at + 8)
        );
    }
    for number in 0..count {
        let at = 160 + 16 * number;
        let end = if number % 2 == 1 { "\n" } else { " " };
        let _ = write!(
            text,
            "XMM{number:02}={:016x}{:016x}{end}",
            long(at + 8),
            long(at)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_names_in_both_widths() {
        let mut cpu = CpuState::at_reset();
        cpu.gpr[0] = 0x1_2345_6789;
        cpu.flags = 0x0844;
        assert_eq!(value(&cpu, "rax"), Some(0x1_2345_6789));
        assert_eq!(value(&cpu, "eax"), Some(0x2345_6789));
        // The linear address, as in QEMU.
        assert_eq!(value(&cpu, "pc"), Some(0xffff_fff0));
        assert_eq!(value(&cpu, "cs"), Some(0xf000));
        assert_eq!(value(&cpu, "foo"), None);
        let shown = text(&cpu, false);
        assert!(shown.contains("EAX=23456789 EBX="), "{shown}");
        assert!(
            shown.contains("EIP=0000fff0 EFL=00000844 [-O-Z-P-] CPL=0"),
            "{shown}"
        );
        assert!(shown.contains("\nCS =f000 ffff0000 0000ffff "), "{shown}");
    }
}
