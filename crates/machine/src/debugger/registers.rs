//! The processor's registers in the order and form of the descriptions that gdb gets.
//!
//! The first groups are those of gdb's own descriptions of x86 processors; the last one holds system
//! registers, with the names that QEMU gives them.

use std::fmt::Write;
use tollgate_x86::{CpuState, SegmentRegister};

/// The general registers in gdb's order, by their number in instructions.
const GENERAL_32: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const GENERAL_64: [usize; 16] = [0, 3, 1, 2, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
const NAMES_32: [&str; 8] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];
const NAMES_64: [&str; 16] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
const SEGMENTS: [(&str, SegmentRegister); 6] = [
    ("cs", SegmentRegister::Cs),
    ("ss", SegmentRegister::Ss),
    ("ds", SegmentRegister::Ds),
    ("es", SegmentRegister::Es),
    ("fs", SegmentRegister::Fs),
    ("gs", SegmentRegister::Gs),
];
/// The x87 control registers, each at a place of the XSAVE area and with this many bytes there.
const X87: [(&str, usize, usize); 8] = [
    ("fctrl", 0, 2),
    ("fstat", 2, 2),
    ("ftag", 4, 1),
    ("fiseg", 12, 2),
    ("fioff", 8, 4),
    ("foseg", 20, 2),
    ("fooff", 16, 4),
    ("fop", 6, 2),
];
/// System registers that gdb shows.
const SYSTEM: [&str; 18] = [
    "cs_base",
    "ss_base",
    "ds_base",
    "es_base",
    "k_gs_base",
    "cr0",
    "cr2",
    "cr3",
    "cr4",
    "efer",
    "dr0",
    "dr1",
    "dr2",
    "dr3",
    "dr6",
    "dr7",
    "gdt_base",
    "idt_base",
];
/// The places in the XSAVE area of the x87 registers, of the SSE registers, of MXCSR, and of the upper
/// halves of the AVX registers.
const ST: usize = 32;
const XMM: usize = 160;
const MXCSR: usize = 24;
const YMM_HIGH: usize = 576;

/// The width of addresses in what gdb sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Width {
    /// The registers of 32-bit processors.
    Bits32,
    /// The registers of 64-bit processors, whatever mode the guest is in.
    #[default]
    Bits64,
}

/// One register: where its value is, and how many bytes gdb sees of it.
#[derive(Clone, Copy, Debug)]
enum Place {
    General(usize),
    Pointer,
    Flags,
    Selector(SegmentRegister),
    /// Bytes of the XSAVE area, padded with zeros.
    Vector {
        at: usize,
        bytes: usize,
    },
    /// Two parts of the base of a segment.
    Base(SegmentRegister),
    System(&'static str),
}

/// A register as gdb knows it.
#[derive(Clone, Copy, Debug)]
struct Register {
    place: Place,
    bytes: usize,
}

impl Width {
    const fn bytes(self) -> usize {
        match self {
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }

    const fn vectors(self) -> usize {
        match self {
            Self::Bits32 => 8,
            Self::Bits64 => 16,
        }
    }

    /// Returns all registers in order.
    fn registers(self) -> Vec<Register> {
        let word = self.bytes();
        let register = |place, bytes| Register { place, bytes };
        let mut all = Vec::new();
        let general: &[usize] = match self {
            Self::Bits32 => &GENERAL_32,
            Self::Bits64 => &GENERAL_64,
        };
        all.extend(
            general
                .iter()
                .map(|number| register(Place::General(*number), word)),
        );
        all.push(register(Place::Pointer, word));
        all.push(register(Place::Flags, 4));
        all.extend(SEGMENTS.map(|(_, segment)| register(Place::Selector(segment), 4)));
        all.extend((0..8).map(|number| {
            let at = ST + 16 * number;
            register(Place::Vector { at, bytes: 10 }, 10)
        }));
        all.extend(X87.map(|(_, at, bytes)| register(Place::Vector { at, bytes }, 4)));
        all.extend((0..self.vectors()).map(|number| {
            let at = XMM + 16 * number;
            register(Place::Vector { at, bytes: 16 }, 16)
        }));
        let mxcsr = Place::Vector {
            at: MXCSR,
            bytes: 4,
        };
        all.push(register(mxcsr, 4));
        if self == Self::Bits64 {
            all.push(register(Place::Base(SegmentRegister::Fs), 8));
            all.push(register(Place::Base(SegmentRegister::Gs), 8));
        }
        all.extend((0..self.vectors()).map(|number| {
            let at = YMM_HIGH + 16 * number;
            register(Place::Vector { at, bytes: 16 }, 16)
        }));
        all.extend(SYSTEM.map(|name| register(Place::System(name), 8)));
        all
    }

    /// Returns the values of all registers, as gdb's `g` packet has them.
    pub fn read(self, cpu: &CpuState) -> Vec<u8> {
        let mut values = Vec::new();
        for register in self.registers() {
            let start = values.len();
            match register.place {
                Place::Vector { at, bytes } => values.extend(vector(cpu, at, bytes)),
                place => values.extend(value(cpu, place).to_le_bytes()),
            }
            values.resize(start + register.bytes, 0);
        }
        values
    }

    /// Sets all registers that a debugger may change. Selectors keep their segments, and system
    /// registers their values.
    pub fn write(self, cpu: &mut CpuState, values: &[u8]) {
        let mut rest = values;
        for register in self.registers() {
            let Some((bytes, left)) = rest.split_at_checked(register.bytes) else {
                return;
            };
            rest = left;
            set(cpu, register.place, bytes);
        }
    }

    /// Returns the description that gdb asks for.
    pub fn description(self) -> String {
        let (architecture, prefix) = match self {
            Self::Bits32 => ("i386", ""),
            Self::Bits64 => ("i386:x86-64", ""),
        };
        let bits = self.bytes() * 8;
        let mut text = format!(
            "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target>\
             <architecture>{architecture}</architecture><feature name=\"org.gnu.gdb.i386.core\">"
        );
        let mut put = |name: &str, bits: usize, kind: &str| {
            let _ = write!(
                text,
                "<reg name=\"{prefix}{name}\" bitsize=\"{bits}\" type=\"{kind}\"/>"
            );
        };
        let names: &[&str] = match self {
            Self::Bits32 => &NAMES_32,
            Self::Bits64 => &NAMES_64,
        };
        for name in names {
            let kind = match *name {
                "esp" | "ebp" | "rsp" | "rbp" => "data_ptr",
                _ => ["int32", "int64"][usize::from(self == Self::Bits64)],
            };
            put(name, bits, kind);
        }
        put(
            ["eip", "rip"][usize::from(self == Self::Bits64)],
            bits,
            "code_ptr",
        );
        put("eflags", 32, "int32");
        for (name, _) in SEGMENTS {
            put(name, 32, "int32");
        }
        for number in 0..8 {
            put(&format!("st{number}"), 80, "i387_ext");
        }
        for (name, ..) in X87 {
            put(name, 32, "int");
        }
        text += "</feature><feature name=\"org.gnu.gdb.i386.sse\">\
            <vector id=\"v4f\" type=\"ieee_single\" count=\"4\"/>\
            <vector id=\"v2d\" type=\"ieee_double\" count=\"2\"/>\
            <vector id=\"v16i8\" type=\"int8\" count=\"16\"/>\
            <vector id=\"v8i16\" type=\"int16\" count=\"8\"/>\
            <vector id=\"v4i32\" type=\"int32\" count=\"4\"/>\
            <vector id=\"v2i64\" type=\"int64\" count=\"2\"/>\
            <union id=\"vec128\"><field name=\"v4_float\" type=\"v4f\"/>\
            <field name=\"v2_double\" type=\"v2d\"/><field name=\"v16_int8\" type=\"v16i8\"/>\
            <field name=\"v8_int16\" type=\"v8i16\"/><field name=\"v4_int32\" type=\"v4i32\"/>\
            <field name=\"v2_int64\" type=\"v2i64\"/><field name=\"uint128\" type=\"uint128\"/>\
            </union>";
        for number in 0..self.vectors() {
            let _ = write!(
                text,
                "<reg name=\"xmm{number}\" bitsize=\"128\" type=\"vec128\"/>"
            );
        }
        text += "<reg name=\"mxcsr\" bitsize=\"32\" type=\"int\" group=\"vector\"/></feature>";
        if self == Self::Bits64 {
            text += "<feature name=\"org.gnu.gdb.i386.segments\">\
                <reg name=\"fs_base\" bitsize=\"64\" type=\"int\"/>\
                <reg name=\"gs_base\" bitsize=\"64\" type=\"int\"/></feature>";
        }
        text += "<feature name=\"org.gnu.gdb.i386.avx\">";
        for number in 0..self.vectors() {
            let _ = write!(
                text,
                "<reg name=\"ymm{number}h\" bitsize=\"128\" type=\"uint128\"/>"
            );
        }
        text += "</feature><feature name=\"org.tollgate.system\">";
        for name in SYSTEM {
            let _ = write!(
                text,
                "<reg name=\"{name}\" bitsize=\"64\" type=\"int64\" group=\"system\"/>"
            );
        }
        text + "</feature></target>"
    }
}

/// The bit of EFLAGS that is always set.
const ALWAYS_SET: u64 = 2;
/// The place of the mask of the parts of the XSAVE area that have values, and its bit for the upper
/// halves of the AVX registers.
const PARTS: usize = 512;
const PART_AVX: u8 = 1 << 2;

/// Returns bytes of the XSAVE area, which are zero if their part has no values.
fn vector(cpu: &CpuState, at: usize, bytes: usize) -> Vec<u8> {
    let area = &cpu.vector.0;
    if at >= YMM_HIGH && area[PARTS] & PART_AVX == 0 {
        return vec![0; bytes];
    }
    area[at..at + bytes].to_vec()
}

/// Returns the value of a register that is a number.
fn value(cpu: &CpuState, place: Place) -> u64 {
    match place {
        Place::General(number) => cpu.gpr[number],
        Place::Pointer => cpu.rip,
        Place::Flags => cpu.flags | ALWAYS_SET,
        Place::Selector(segment) => cpu.segment(segment).selector.0.into(),
        Place::Base(segment) => cpu.segment(segment).base,
        Place::Vector { .. } => 0,
        Place::System(name) => system(cpu, name),
    }
}

fn system(cpu: &CpuState, name: &str) -> u64 {
    match name {
        "cs_base" => cpu.segment(SegmentRegister::Cs).base,
        "ss_base" => cpu.segment(SegmentRegister::Ss).base,
        "ds_base" => cpu.segment(SegmentRegister::Ds).base,
        "es_base" => cpu.segment(SegmentRegister::Es).base,
        "k_gs_base" => cpu.kernel_gs_base,
        "cr0" => cpu.cr0,
        "cr2" => cpu.cr2,
        "cr3" => cpu.cr3,
        "cr4" => cpu.cr4,
        "efer" => cpu.efer,
        "dr0" => cpu.dr[0],
        "dr1" => cpu.dr[1],
        "dr2" => cpu.dr[2],
        "dr3" => cpu.dr[3],
        "dr6" => cpu.dr[6],
        "dr7" => cpu.dr[7],
        "gdt_base" => cpu.gdtr.base,
        _ => cpu.idtr.base,
    }
}

/// Sets a register from gdb's bytes.
fn set(cpu: &mut CpuState, place: Place, bytes: &[u8]) {
    /// The flags that a debugger may change: those of arithmetic, TF to DF, and IF.
    const FLAGS: u64 = 0xfd5;
    let mut wide = [0; 8];
    let count = bytes.len().min(8);
    wide[..count].copy_from_slice(&bytes[..count]);
    let number = u64::from_le_bytes(wide);
    match place {
        Place::General(register) => cpu.gpr[register] = number,
        Place::Pointer => cpu.rip = number,
        Place::Flags => cpu.flags = cpu.flags & !FLAGS | number & FLAGS,
        Place::Vector { at, bytes: held } => {
            if vector(cpu, at, held) != bytes[..held] {
                if at >= YMM_HIGH && cpu.vector.0[PARTS] & PART_AVX == 0 {
                    cpu.vector.0[YMM_HIGH..YMM_HIGH + 256].fill(0);
                }
                cpu.vector.0[PARTS] |= 3 | if at >= YMM_HIGH { PART_AVX } else { 0 };
                cpu.vector.0[at..at + held].copy_from_slice(&bytes[..held]);
            }
        }
        Place::Base(segment) => {
            if cpu.is_64_bit() {
                cpu.segments[segment as usize].base = number;
            }
        }
        Place::Selector(_) | Place::System(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_gdbs_places_and_survive_a_round_trip() {
        let mut cpu = CpuState::at_reset();
        cpu.gpr = std::array::from_fn(|number| 0x1111 * number as u64);
        cpu.rip = 0x7c00;
        cpu.vector.0[XMM] = 0xab;
        for (width, pointer, length) in [(Width::Bits32, 32, 0), (Width::Bits64, 128, 1)] {
            let values = width.read(&cpu);
            let word = width.bytes();
            assert_eq!(values[pointer..pointer + 2], [0x00, 0x7c]);
            // The second register: rbx is register 3, ecx register 1.
            let second = if length == 1 { 0x33 } else { 0x11 };
            assert_eq!(values[word], second);
            let mut other = CpuState::at_reset();
            width.write(&mut other, &values);
            assert_eq!(other.rip, cpu.rip);
            assert_eq!(other.gpr[1], cpu.gpr[1]);
            assert_eq!(other.vector.0[XMM], 0xab);
            let described = width.description().matches("<reg ").count();
            assert_eq!(described, width.registers().len());
        }
    }
}
