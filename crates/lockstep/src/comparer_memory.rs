//! The memory side of the comparison: operands, exception frames, devices.

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

/// Bytes at the top of the stack that are compared behind control transfers.
const STACK_BYTES: u64 = 64;
/// Most words that are reported.
const MAX_REPORTED: usize = 8;

impl<R: Reference> Comparer<R> {
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
        // Not gathered beforehand: put the registers back for a moment.
        let after = self.subject.registers();
        self.subject.change(|state| before.put_general(state));
        let accesses = self.subject.accesses(instruction);
        let found = accesses
            .iter()
            .any(|access| self.subject.is_device(access.linear));
        self.subject.change(|state| after.put_general(state));
        found
    }

    /// Compares written operands, and the stack behind a transfer of control.
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

    /// Physical pieces of a linear range, without what is not mapped.
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
