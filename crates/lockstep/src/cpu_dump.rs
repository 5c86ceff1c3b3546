//! QEMU's text format for a processor: `info registers`, and the records of its CPU log.

use crate::registers::{Hidden, Registers};
use tollgate_x86::state::{TableRegister, VectorState};
use tollgate_x86::{Attributes, CpuState, Descriptor, PhysicalAddress, Segment, Selector};

/// The content of a dump.
#[derive(Clone, Default)]
pub struct CpuDump {
    /// The registers that are compared; always with hidden parts.
    pub registers: Registers,
    debug: [u64; 8],
    floating: Floating,
}

/// The x87 and SSE registers.
#[derive(Clone, Default)]
struct Floating {
    control: u16,
    status: u16,
    /// A set bit means that the physical register holds a value.
    valid: u8,
    mxcsr: u32,
    /// By physical number: mantissa, then sign and exponent.
    physical: [(u64, u16); 8],
    sse: [(u64, u64); 16],
}

/// Parses hexadecimal digits at a fixed place in a line.
fn hex(line: &[u8], start: usize, digits: usize) -> Option<u64> {
    line.get(start..start + digits)?
        .iter()
        .try_fold(0u64, |value, &byte| {
            Some(value << 4 | u64::from((byte as char).to_digit(16)?))
        })
}

fn hex32(line: &[u8], start: usize) -> Option<u32> {
    hex(line, start, 8).map(|value| value as u32)
}

/// Parses lines such as `EAX=00000000 EBX=...`: values of `digits`, each after four columns.
fn four(line: &[u8], digits: usize) -> Option<[u64; 4]> {
    let value = |index: usize| hex(line, 4 + index * (digits + 5), digits);
    Some([value(0)?, value(1)?, value(2)?, value(3)?])
}

/// The number of hexadecimal digits of the value that starts there.
fn digits_at(line: &[u8], start: usize) -> usize {
    let digits = line.get(start..).unwrap_or_default().iter();
    digits.take_while(|byte| byte.is_ascii_hexdigit()).count()
}

/// Parses `ES =0010 00000000 ffffffff 00cf9300 ...`: selector, base (16 digits in 64-bit code),
/// limit, high half of the descriptor.
fn segment(line: &[u8]) -> Option<Segment> {
    let digits = digits_at(line, 9);
    let attributes = Descriptor(u64::from(hex32(line, digits + 19)?) << 32).attributes();
    Some(Segment {
        base: hex(line, 9, digits)?,
        limit: hex32(line, digits + 10)?,
        selector: Selector(hex(line, 4, 4)? as u16),
        attributes: attributes & Attributes::all(),
    })
}

fn table(line: &[u8]) -> Option<TableRegister> {
    Some(TableRegister {
        base: hex(line, 9, digits_at(line, 9))?,
        limit: hex(line, digits_at(line, 9) + 10, 8)? as u16,
    })
}

/// The result of parsing one line of a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// The line was stored or is irrelevant.
    Taken,
    /// The line is the last one of a record of the CPU log.
    EndOfRecord,
}

impl CpuDump {
    /// Parses the output of `info registers`; `None` if it is not the dump of a processor.
    pub fn parse(text: &str) -> Option<Self> {
        let mut dump = Self::default();
        let mut complete = false;
        for line in text.lines() {
            complete |= dump.take_line(line.trim_end().as_bytes())? == Line::EndOfRecord;
        }
        complete.then_some(dump)
    }

    /// Parses one line. `None` if the line should be known but could not be parsed.
    pub fn take_line(&mut self, line: &[u8]) -> Option<Line> {
        let registers = &mut self.registers;
        let Some(name) = line.get(..4) else {
            return Some(Line::Taken);
        };
        match name {
            b"EAX=" => {
                let [rax, rbx, rcx, rdx] = four(line, 8)?;
                registers.general[..4].copy_from_slice(&[rax, rcx, rdx, rbx]);
                registers.wide = false;
                registers.hidden = Some(Hidden::default());
            }
            b"RAX=" => {
                let [rax, rbx, rcx, rdx] = four(line, 16)?;
                registers.general[..4].copy_from_slice(&[rax, rcx, rdx, rbx]);
                registers.wide = true;
                registers.hidden = Some(Hidden::default());
            }
            b"ESI=" | b"RSI=" => {
                let [rsi, rdi, rbp, rsp] = four(line, digits_at(line, 4))?;
                registers.general[4..8].copy_from_slice(&[rsp, rbp, rsi, rdi]);
            }
            b"R8 =" => registers.general[8..12].copy_from_slice(&four(line, 16)?),
            b"R12=" => registers.general[12..].copy_from_slice(&four(line, 16)?),
            b"EIP=" | b"RIP=" => {
                let digits = digits_at(line, 4);
                registers.rip = hex(line, 4, digits)?;
                registers.eflags = hex32(line, digits + 9)?;
            }
            b"ES =" => self.take_segment(0, line)?,
            b"CS =" => self.take_segment(1, line)?,
            b"SS =" => self.take_segment(2, line)?,
            b"DS =" => self.take_segment(3, line)?,
            b"FS =" => self.take_segment(4, line)?,
            b"GS =" => self.take_segment(5, line)?,
            b"LDT=" => registers.hidden.as_mut()?.ldtr = segment(line)?,
            b"TR =" => registers.hidden.as_mut()?.tr = segment(line)?,
            b"GDT=" => registers.hidden.as_mut()?.gdtr = table(line)?,
            b"IDT=" => registers.hidden.as_mut()?.idtr = table(line)?,
            b"CR0=" => {
                // CR0 and CR4 always have 8 digits.
                let digits = digits_at(line, 17);
                registers.cr0 = hex32(line, 4)?;
                registers.cr2 = hex(line, 17, digits)?;
                registers.cr3 = hex(line, digits + 22, digits)?;
                registers.cr4 = hex32(line, 2 * digits + 27)?;
            }
            b"DR0=" => self.debug[..4].copy_from_slice(&four(line, digits_at(line, 4))?),
            b"DR6=" => {
                let digits = digits_at(line, 4);
                self.debug[6] = hex(line, 4, digits)?;
                self.debug[7] = hex(line, digits + 9, digits)?;
            }
            b"EFER" => {
                registers.efer = hex(line, 5, 16)? as u32;
                return Some(Line::EndOfRecord);
            }
            b"FCW=" => self.take_floating_control(line)?,
            name if name.starts_with(b"FPR") => self.take_x87(line)?,
            name if name.starts_with(b"XMM") => self.take_sse(line)?,
            _ => {}
        }
        Some(Line::Taken)
    }

    fn take_segment(&mut self, index: usize, line: &[u8]) -> Option<()> {
        let segment = segment(line)?;
        self.registers.selectors[index] = segment.selector.0;
        self.registers.hidden.as_mut()?.segments[index] = segment;
        Some(())
    }

    /// Parses `FCW=037f FSW=0000 [ST=0] FTW=00 MXCSR=00001f80`.
    fn take_floating_control(&mut self, line: &[u8]) -> Option<()> {
        self.floating.control = hex(line, 4, 4)? as u16;
        self.floating.status = hex(line, 13, 4)? as u16;
        self.floating.valid = hex(line, 29, 2)? as u8;
        self.floating.mxcsr = hex32(line, 38)?;
        Some(())
    }

    /// Parses `FPR0=0000000000000000 0000 FPR1=0000000000000000 0000`.
    fn take_x87(&mut self, line: &[u8]) -> Option<()> {
        for start in [0, 27] {
            let index = hex(line, start + 3, 1)? as usize;
            *self.floating.physical.get_mut(index)? =
                (hex(line, start + 5, 16)?, hex(line, start + 22, 4)? as u16);
        }
        Some(())
    }

    /// Parses `XMM00=0000000000000000 0000000000000000 XMM01=...`: high half first.
    fn take_sse(&mut self, line: &[u8]) -> Option<()> {
        for start in [0, 40] {
            let digit = |at: usize| (*line.get(at)? as char).to_digit(10);
            let index = (digit(start + 3)? * 10 + digit(start + 4)?) as usize;
            *self.floating.sse.get_mut(index)? =
                (hex(line, start + 23, 16)?, hex(line, start + 6, 16)?);
        }
        Some(())
    }

    /// Sets a processor of ours to this state, as far as the dump contains it. PDPTEs are read from
    /// memory, at the address where QEMU reads them too.
    pub fn put_into(&self, state: &mut CpuState, memory: &tollgate_memory::GuestMemory) {
        self.registers.put_all(state);
        for (to, from) in state.dr.iter_mut().zip(self.debug) {
            *to = from;
        }
        state.a20_mask = u64::MAX;
        let table = self.registers.cr3 & 0xffff_ffe0;
        state.pdpte =
            std::array::from_fn(|index| memory.read_u64(PhysicalAddress(table + 8 * index as u64)));
        self.put_floating(&mut state.vector);
    }

    fn put_floating(&self, area: &mut VectorState) {
        let floating = &self.floating;
        let bytes = &mut area.0;
        bytes[0..2].copy_from_slice(&floating.control.to_le_bytes());
        bytes[2..4].copy_from_slice(&floating.status.to_le_bytes());
        bytes[4] = floating.valid;
        bytes[24..28].copy_from_slice(&floating.mxcsr.to_le_bytes());
        let top = usize::from(floating.status >> 11 & 7);
        for index in 0..8 {
            // The area holds ST(0) to ST(7).
            let (mantissa, exponent) = floating.physical[(top + index) % 8];
            let start = 32 + 16 * index;
            bytes[start..start + 8].copy_from_slice(&mantissa.to_le_bytes());
            bytes[start + 8..start + 10].copy_from_slice(&exponent.to_le_bytes());
        }
        for (index, (low, high)) in floating.sse.into_iter().enumerate() {
            let start = 160 + 16 * index;
            bytes[start..start + 8].copy_from_slice(&low.to_le_bytes());
            bytes[start + 8..start + 16].copy_from_slice(&high.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\nCPU#0\r
EAX=2badb002 EBX=00009500 ECX=0010000c EDX=00000511\r
ESI=00000001 EDI=00001000 EBP=00000002 ESP=00006f08\r
EIP=0010000c EFL=00000006 [-----P-] CPL=0 II=0 A20=1 SMM=0 HLT=0\r
ES =0010 00000000 ffffffff 00cf9300 DPL=0 DS   [-WA]\r
CS =0008 00000000 ffffffff 00cf9a00 DPL=0 CS32 [-R-]\r
SS =0010 00000000 ffffffff 00cf9300 DPL=0 DS   [-WA]\r
DS =0010 00000000 ffffffff 00cf9300 DPL=0 DS   [-WA]\r
FS =0010 00000000 ffffffff 00cf9300 DPL=0 DS   [-WA]\r
GS =0010 00000000 ffffffff 00cf9300 DPL=0 DS   [-WA]\r
LDT=0000 00000000 0000ffff 00008200 DPL=0 LDT\r
TR =0000 00000000 0000ffff 00008b00 DPL=0 TSS32-busy\r
GDT=     000cb2b8 00000027\r
IDT=     00000000 000003ff\r
CR0=00000011 CR2=00000000 CR3=00000000 CR4=00000000\r
DR0=00000000 DR1=00000000 DR2=00000000 DR3=00000000 \r
DR6=ffff0ff0 DR7=00000400\r
EFER=0000000000000000\r
FCW=037f FSW=3800 [ST=7] FTW=80 MXCSR=00001f80\r
FPR0=0000000000000000 0000 FPR1=0000000000000000 0000\r
FPR2=0000000000000000 0000 FPR3=0000000000000000 0000\r
FPR4=0000000000000000 0000 FPR5=0000000000000000 0000\r
FPR6=0000000000000000 0000 FPR7=8000000000000000 3fff\r
XMM00=0000000000000001 0000000000000002 XMM01=0000000000000000 0000000000000000\r
";

    #[test]
    fn a_dump_is_understood() {
        let dump = CpuDump::parse(TEXT).unwrap();
        let registers = &dump.registers;
        assert_eq!(
            registers.general,
            [
                0x2bad_b002,
                0x10_000c,
                0x511,
                0x9500,
                0x6f08,
                2,
                1,
                0x1000,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0
            ]
        );
        assert_eq!((registers.rip, registers.eflags), (0x10_000c, 6));
        assert_eq!(registers.selectors, [16, 8, 16, 16, 16, 16]);
        assert_eq!((registers.cr0, registers.efer), (0x11, 0));
        let hidden = registers.hidden.as_ref().unwrap();
        assert!(hidden.segments[1].attributes.is_code());
        assert_eq!(hidden.segments[1].limit, u32::MAX);
        assert_eq!(
            hidden.gdtr,
            TableRegister {
                base: 0xc_b2b8,
                limit: 0x27
            }
        );
        assert_eq!(hidden.tr.attributes.kind(), 11);
    }

    const LONG_TEXT: &str = "\
RAX=0000000000000001 RBX=ffff888000000002 RCX=0000000000000003 RDX=0000000000000004
RSI=0000000000000005 RDI=0000000000000006 RBP=0000000000000007 RSP=ffffc90000000008
R8 =0000000000000009 R9 =000000000000000a R10=000000000000000b R11=000000000000000c
R12=000000000000000d R13=000000000000000e R14=000000000000000f R15=0000000000000010
RIP=ffffffff81000000 RFL=00000046 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=0
ES =0000 0000000000000000 ffffffff 00c00000
CS =0010 0000000000000000 ffffffff 00af9b00 DPL=0 CS64 [-RA]
SS =0018 0000000000000000 ffffffff 00cf9300 DPL=0 DS   [-WA]
DS =0000 0000000000000000 ffffffff 00c00000
FS =0000 00007f0000000000 ffffffff 00c00000
GS =0000 ffff88807dc00000 ffffffff 00c00000
LDT=0000 0000000000000000 00000000 00008200 DPL=0 LDT
TR =0040 fffffe0000003000 00004087 00008b00 DPL=0 TSS64-busy
GDT=     fffffe0000001000 0000007f
IDT=     fffffe0000000000 00000fff
CR0=80050033 CR2=00007f0000001000 CR3=0000000002610000 CR4=000006f0
DR0=0000000000000000 DR1=0000000000000000 DR2=0000000000000000 DR3=ffff888000000000 
DR6=00000000ffff0ff0 DR7=0000000000000400
EFER=0000000000000d01
XMM14=0000000000000001 0000000000000002 XMM15=0000000000000003 0000000000000004
";

    #[test]
    fn a_dump_of_64_bit_code_is_understood() {
        let dump = CpuDump::parse(LONG_TEXT).unwrap();
        let registers = &dump.registers;
        assert!(registers.wide);
        assert_eq!(
            registers.general,
            [
                1,
                3,
                4,
                0xffff_8880_0000_0002,
                0xffff_c900_0000_0008,
                7,
                5,
                6,
                9,
                10,
                11,
                12,
                13,
                14,
                15,
                16
            ]
        );
        assert_eq!(
            (registers.rip, registers.eflags),
            (0xffff_ffff_8100_0000, 0x46)
        );
        assert_eq!((registers.cr0, registers.cr4), (0x8005_0033, 0x6f0));
        assert_eq!(
            (registers.cr2, registers.cr3),
            (0x7f00_0000_1000, 0x261_0000)
        );
        assert_eq!(
            (dump.debug[3], dump.debug[7]),
            (0xffff_8880_0000_0000, 0x400)
        );
        let hidden = registers.hidden.as_ref().unwrap();
        assert_eq!(hidden.segments[5].base, 0xffff_8880_7dc0_0000);
        assert!(hidden.segments[1].attributes.contains(Attributes::LONG));
        assert_eq!(hidden.tr.base, 0xffff_fe00_0000_3000);
        assert_eq!((hidden.gdtr.limit, hidden.idtr.limit), (0x7f, 0xfff));
        assert_eq!(dump.floating.sse[15], (4, 3));
    }

    #[test]
    fn physical_x87_registers_become_a_stack() {
        let mut area = VectorState::initial();
        CpuDump::parse(TEXT).unwrap().put_floating(&mut area);
        assert_eq!(area.0[32..42], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
        assert_eq!((area.0[160], area.0[168]), (2, 1));
    }

    #[test]
    fn what_is_no_dump_is_refused() {
        assert!(CpuDump::parse("").is_none());
        assert!(CpuDump::parse("EAX=xx\n").is_none());
        assert!(CpuDump::parse("RAX=0000000000000000 RBX=0000000000000000\n").is_none());
        assert!(CpuDump::parse("RAX=00000000 RBX=00000000 RCX=00000000 RDX=00000000\n").is_none());
    }
}
