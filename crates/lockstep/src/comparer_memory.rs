//! Compares memory of both sides: operands, exception frames, devices, ports.

use crate::compare::Difference;
use crate::comparer::Comparer;
use crate::instruction_kind::repeats;
use crate::reference::Reference;
use crate::registers::Registers;
use crate::subject::Access;
use iced_x86::Instruction;
use std::io;
use std::os::unix::fs::FileExt;
use tollgate_x86::PhysicalAddress;

/// Number of bytes at the top of the stack that are compared after control transfers.
const STACK_BYTES: u64 = 64;
/// Maximum number of words that are reported.
const MAX_REPORTED: usize = 8;

const PAGE: usize = 4096;
/// The first address of display memory and firmware below 1 MiB,
const LOW_MEMORY: u64 = 0xa_0000;
/// and the first address after them.
const HIGH_MEMORY: u64 = 0x10_0000;
/// Ports have addresses below this; device memory is above.
const PORTS: u64 = 0x1_0000;

impl<R: Reference> Comparer<R> {
    /// Copies from QEMU's memory what the floppy drive has written.
    pub(crate) fn take_moved(&mut self) -> io::Result<()> {
        let Some(moved) = self.subject.take_moved() else {
            return Ok(());
        };
        let mut data = vec![0; moved.bytes];
        self.reference
            .later_memory()
            .read_exact_at(&mut data, moved.physical)?;
        self.inputs += 1;
        self.subject.write(PhysicalAddress(moved.physical), &data);
        Ok(())
    }

    /// Compares all RAM except for the range of devices and firmware below 1 MiB. Returns the
    /// number of bytes that differ, and the address of the first one. If QEMU runs freely, it is
    /// some instructions ahead.
    ///
    /// # Errors
    ///
    /// QEMU's memory cannot be read.
    pub fn compare_all_memory(
        &mut self,
        bytes: u64,
    ) -> io::Result<(usize, Option<PhysicalAddress>)> {
        let (mut count, mut first) = (0, None);
        let low = 0..LOW_MEMORY;
        let high = HIGH_MEMORY..bytes;
        for page in low.chain(high).step_by(PAGE) {
            let (mut ours, mut theirs) = ([0; PAGE], [0; PAGE]);
            self.reference
                .later_memory()
                .read_exact_at(&mut theirs, page)?;
            if !self.subject.read(PhysicalAddress(page), &mut ours) {
                continue;
            }
            for (at, (our, their)) in (page..).zip(ours.iter().zip(&theirs)) {
                if our != their {
                    count += 1;
                    first = first.or(Some(PhysicalAddress(at)));
                }
            }
        }
        Ok((count, first))
    }

    /// Compares the bytes that were written to ports. Device memory is left out: some of it is RAM
    /// in Tollgate.
    pub(crate) fn device_differences(&self) -> Vec<Difference> {
        let Some(devices) = self.reference.devices() else {
            return Vec::new();
        };
        let theirs = devices.written.iter();
        let theirs = theirs.filter(|byte| byte.address < PORTS);
        // QEMU does not log writes that no device accepts.
        let pairs = self.subject.told_devices().iter().zip(theirs);
        pairs
            .filter(|(ours, theirs)| ours != theirs)
            .map(|(ours, theirs)| Difference {
                name: format!("port {:04x} ({:04x})", ours.address, theirs.address),
                physical: None,
                ours: ours.value.into(),
                theirs: theirs.value.into(),
            })
            .collect()
    }

    /// Copies written operands from QEMU's memory.
    pub(crate) fn take_memory(&mut self, accesses: &[Access]) -> io::Result<()> {
        for access in accesses.iter().filter(|access| access.written) {
            for (physical, length) in self.pieces(access.linear, access.size) {
                let mut data = vec![0; length];
                if let Some(memory) = self.reference.memory()
                    && memory.read_exact_at(&mut data, physical.0).is_ok()
                {
                    self.subject.write(physical, &data);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn reads_device(
        &mut self,
        before: &Registers,
        instruction: Option<&Instruction>,
        accesses: &[Access],
    ) -> bool {
        let Some(instruction) = instruction else {
            return false;
        };
        if !accesses.is_empty() {
            return accesses
                .iter()
                .any(|access| self.subject.is_device(access.linear));
        }
        // The accesses were not determined before the instruction, so its registers are restored
        // for a moment.
        let after = self.subject.registers();
        self.subject.change(|state| before.put_general(state));
        let accesses = self.subject.accesses(instruction);
        let found = accesses
            .iter()
            .any(|access| self.subject.is_device(access.linear));
        self.subject.change(|state| after.put_general(state));
        found
    }

    /// Compares written operands and, after a transfer of control, the stack.
    pub(crate) fn memory_differences(
        &mut self,
        before: &Registers,
        instruction: Option<&Instruction>,
        accesses: &[Access],
    ) -> io::Result<Vec<Difference>> {
        if self.reference.memory().is_none() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for access in accesses.iter().filter(|access| access.written) {
            let (mut linear, mut size) = (access.linear, access.size);
            if instruction.is_some_and(repeats) {
                let after = self.subject.registers().general[7];
                let moved = after.wrapping_sub(before.general[7]) as i64;
                if moved < 0 {
                    linear = linear.wrapping_add(moved as u64);
                }
                size = moved.unsigned_abs();
            }
            self.compare_memory(linear, size, &mut found)?;
        }
        let transferred = instruction.is_none_or(|instruction| {
            self.subject.registers().rip != before.rip.wrapping_add(instruction.len() as u64)
        });
        if transferred {
            let top = self.subject.stack_top();
            self.compare_memory(top, STACK_BYTES, &mut found)?;
        }
        Ok(found)
    }

    /// The physical pieces of a linear range, without those that are not mapped.
    fn pieces(&mut self, linear: u64, size: u64) -> Vec<(PhysicalAddress, usize)> {
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < size {
            let at = linear.wrapping_add(done);
            let length = (size - done).min(4096 - at % 4096);
            if let Some(physical) = self.subject.physical(at) {
                pieces.push((physical, length as usize));
            }
            done += length;
        }
        pieces
    }

    fn compare_memory(
        &mut self,
        linear: u64,
        size: u64,
        found: &mut Vec<Difference>,
    ) -> io::Result<()> {
        for (physical, length) in self.pieces(linear, size) {
            let (mut ours, mut theirs) = (vec![0; length], vec![0; length]);
            let Some(memory) = self.reference.memory() else {
                return Ok(());
            };
            if memory.read_exact_at(&mut theirs, physical.0).is_err()
                || !self.subject.read(physical, &mut ours)
            {
                continue;
            }
            if ours == theirs {
                continue;
            }
            for (index, (our, their)) in ours.chunks(4).zip(theirs.chunks(4)).enumerate() {
                let value = |bytes: &[u8]| {
                    bytes
                        .iter()
                        .rev()
                        .fold(0u64, |value, &byte| value << 8 | u64::from(byte))
                };
                let (our, their) = (value(our), value(their));
                let at = physical.0 + 4 * index as u64;
                if our != their && found.len() < MAX_REPORTED {
                    let physical = Some(PhysicalAddress(at));
                    found.push(Difference {
                        name: format!("physical {at:08x}"),
                        physical,
                        ours: our,
                        theirs: their,
                    });
                }
            }
        }
        Ok(())
    }
}
