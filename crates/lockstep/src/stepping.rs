//! Exact comparison: QEMU executes one instruction at a time under its gdb stub.

use crate::device_log::DeviceLog;
use crate::gdb::Stop;
use crate::packet::from_hex;
use crate::qemu::Qemu;
use crate::reference::{Expectation, Progress, Reference};
use crate::registers::Registers;
use std::fs::File;
use std::io;
use tollgate_x86::flags::Flags;

/// Enables single steps, without interrupts (2) and without timers (4).
const STEP_FLAGS: &str = "Qqemu.sstep=7";
/// Maximum number of repetitions for which a repeated instruction is stepped through.
const MAX_STEPPED_REPETITIONS: u32 = 64;
/// Sometimes QEMU stops before the instruction was executed. After this number of steps that
/// changed nothing, the instruction is taken to be a branch to itself.
const MAX_ATTEMPTS: u32 = 3;

/// QEMU under its gdb stub.
pub struct Stepping {
    qemu: Qemu,
    layout: Layout,
    registers: Registers,
}

impl Stepping {
    /// Takes over a stopped QEMU.
    ///
    /// # Errors
    ///
    /// The stub does not describe its registers, or refuses a command.
    pub fn new(mut qemu: Qemu) -> io::Result<Self> {
        qemu.gdb.command(STEP_FLAGS)?;
        let outer = qemu.gdb.read_object("features:read:target.xml")?;
        let annex = attribute(&outer, "href").unwrap_or("target.xml").to_owned();
        let description = qemu.gdb.read_object(&format!("features:read:{annex}"))?;
        let layout = Layout::parse(&description).ok_or_else(|| {
            io::Error::other("QEMU's gdb stub does not describe the registers of a PC")
        })?;
        let registers = qemu.registers()?.registers;
        Ok(Self {
            qemu,
            layout,
            registers,
        })
    }

    fn fetch_registers(&mut self) -> io::Result<Registers> {
        let answer = self.qemu.gdb.request(b"g")?;
        from_hex(&answer)
            .and_then(|bytes| self.layout.registers(&bytes))
            .ok_or_else(|| io::Error::other("QEMU's gdb stub sends too few registers"))
    }

    /// Completes a repeated instruction whose first repetition was made.
    fn finish_repetitions(
        &mut self,
        mut now: Registers,
        next: u64,
    ) -> io::Result<(Stop, Registers)> {
        let eip = now.rip;
        let mut steps = 0;
        while now.rip == eip {
            let interruptible = u64::from(now.eflags) & Flags::IF.bits() != 0;
            // Without paging and interrupts, the instruction completes without interruption.
            let direct = !interruptible && !now.has_paging() && steps > MAX_STEPPED_REPETITIONS;
            let stop = if direct {
                self.qemu.gdb.breakpoint(next, true)?;
                let stop = self.qemu.gdb.resume("c")?;
                self.qemu.gdb.breakpoint(next, false)?;
                stop
            } else {
                self.qemu.gdb.resume("s")?
            };
            if stop == Stop::Gone {
                return Ok((stop, now));
            }
            steps += 1;
            now = self.fetch_registers()?;
        }
        Ok((Stop::Stopped, now))
    }
}

impl Reference for Stepping {
    fn registers(&self) -> &Registers {
        &self.registers
    }

    fn step(&mut self, expected: Expectation) -> io::Result<Progress> {
        let eip = self.registers.rip;
        let mut now;
        let mut attempts = 0;
        loop {
            if self.qemu.gdb.resume("s")? == Stop::Gone {
                return Ok(Progress::Gone);
            }
            now = self.fetch_registers()?;
            attempts += 1;
            let unchanged = Registers {
                hidden: None,
                ..self.registers.clone()
            } == now;
            if !unchanged || attempts == MAX_ATTEMPTS {
                break;
            }
        }
        if expected.repeats && now.rip == eip {
            match self.finish_repetitions(now, expected.next)? {
                (Stop::Gone, _) => return Ok(Progress::Gone),
                (Stop::Stopped, after) => now = after,
            }
        }
        let loaded = now.selectors != self.registers.selectors
            || now.cr0 != self.registers.cr0
            || now.is_virtual_8086() != self.registers.is_virtual_8086();
        now.wide = self.registers.wide;
        self.registers = if expected.changes_hidden || loaded {
            self.qemu.registers()?.registers
        } else {
            now
        };
        Ok(Progress::Stepped)
    }

    fn takes_interrupts(&self) -> bool {
        false
    }

    fn devices(&self) -> Option<&DeviceLog> {
        None
    }

    fn memory(&self) -> Option<&File> {
        Some(&self.qemu.memory)
    }

    fn later_memory(&self) -> &File {
        &self.qemu.memory
    }
}

/// The places of registers in the answer to `g`.
struct Layout {
    /// Offset and size in bytes, in the order of the names; size zero if the register is missing.
    places: [(usize, usize); LAYOUT_NAMES.len()],
}

const LAYOUT_NAMES: [&str; 29] = [
    "eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip", "eflags", "es", "cs", "ss",
    "ds", "fs", "gs", "cr0", "cr2", "cr3", "cr4", "efer", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
/// The number of these registers that every PC has.
const REQUIRED: usize = 21;

/// The value of the first attribute with this name.
fn attribute<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = text.find(&format!(" {name}=\""))? + name.len() + 3;
    text[start..].split('"').next()
}

impl Layout {
    /// Parses a target description: registers follow each other in the order of the list.
    fn parse(description: &str) -> Option<Self> {
        let mut places = [(0, 0); LAYOUT_NAMES.len()];
        let mut offset = 0;
        for element in description
            .split("<reg")
            .skip(1)
            .map(|rest| rest.split('>').next().unwrap_or(""))
        {
            let bits: usize = attribute(element, "bitsize")?.parse().ok()?;
            let name = attribute(element, "name")?;
            let is_called = |known: &str| {
                known == name
                    || name
                        .strip_prefix('r')
                        .is_some_and(|rest| known == format!("e{rest}"))
            };
            if let Some(index) = LAYOUT_NAMES.iter().position(|known| is_called(known)) {
                places[index] = (offset, (bits / 8).min(8));
            }
            offset += bits / 8;
        }
        let complete = places[..REQUIRED].iter().all(|&(_, bytes)| bytes != 0);
        complete.then_some(Self { places })
    }

    fn registers(&self, bytes: &[u8]) -> Option<Registers> {
        let word = |index: usize| {
            let (start, length) = self.places[index];
            let word = bytes.get(start..start + length)?.iter().rev();
            Some(word.fold(0u64, |value, &byte| value << 8 | u64::from(byte)))
        };
        let mut registers = Registers {
            rip: word(8)?,
            eflags: word(9)? as u32,
            cr0: word(16)? as u32,
            cr2: word(17)?,
            cr3: word(18)?,
            cr4: word(19)? as u32,
            efer: word(20)? as u32,
            ..Registers::default()
        };
        for index in 0..8 {
            registers.general[index] = word(index)?;
            registers.general[8 + index] = word(REQUIRED + index)?;
        }
        for index in 0..6 {
            registers.selectors[index] = word(10 + index)? as u16;
        }
        Some(registers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> String {
        let mut text = String::from("<feature name=\"core\">");
        for name in LAYOUT_NAMES[..REQUIRED].iter().rev() {
            text += &format!("<reg name=\"{name}\" bitsize=\"32\" type=\"int32\"/>\n");
        }
        text.replace(
            "<reg name=\"cr0\"",
            "<reg name=\"st0\" bitsize=\"80\" type=\"i387_ext\"/><reg name=\"cr0\"",
        )
    }

    #[test]
    fn registers_lie_where_the_description_puts_them() {
        let layout = Layout::parse(&description()).unwrap();
        let mut bytes = vec![0; 21 * 4 + 10];
        bytes[0] = 5;
        bytes[4] = 4;
        let end = bytes.len();
        bytes[end - 4] = 1;
        let registers = layout.registers(&bytes).unwrap();
        assert_eq!(
            (registers.efer, registers.cr4, registers.general[0]),
            (5, 4, 1)
        );
        assert!(layout.registers(&bytes[..40]).is_none());
    }

    #[test]
    fn a_description_without_control_registers_is_refused() {
        assert!(Layout::parse(&description().replace("cr3", "xyz")).is_none());
    }
}
