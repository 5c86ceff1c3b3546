//! The registers of a task in its TSS, in the 16-bit and the 32-bit format (SDM volume 3, 8.2.1 and
//! 8.6).

use crate::memory_access::{probe_system, read_system, write_system};
use tollgate_platform::Environment;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::{CpuState, Exception, Segment, SegmentRegister};

/// Start of the part of a 32-bit TSS that a task switch reads: CR3. It ends with the word that
/// contains the debug trap bit.
const READ32: u64 = 0x1c;
const READ32_SIZE: usize = 0x4a;
/// Start of the part that a switch away writes: EIP to GS.
const WRITTEN32: u64 = 0x20;
const WRITTEN32_SIZE: usize = 0x40;
/// Start of both parts in a 16-bit TSS: IP. The LDT's selector at the end is only read.
const READ16: u64 = 0x0e;
const READ16_SIZE: usize = 0x1e;
const WRITTEN16_SIZE: usize = 0x1c;

/// Whether a TSS has the 32-bit format.
fn is_wide(task: &Segment) -> bool {
    matches!(
        task.attributes.kind(),
        system_type::TSS32_AVAILABLE | system_type::TSS32_BUSY
    )
}

/// Offset of the last byte that a TSS must have: the minimum of its limit.
pub(super) fn last_byte(task: &Segment) -> u32 {
    if is_wide(task) { 0x67 } else { 0x2b }
}

/// The registers of a task, as in its TSS.
pub(super) struct TaskImage {
    /// The address of the page tables; `None` for a 16-bit TSS, which does not contain it.
    pub(super) cr3: Option<u32>,
    pub(super) eip: u32,
    pub(super) eflags: u32,
    /// EAX to EDI in encoding order. A 16-bit TSS has only their lower halves.
    pub(super) gpr: [u32; 8],
    /// Selectors of ES, CS, SS, DS, FS and GS; a 16-bit TSS does not contain the last two.
    pub(super) segments: [u16; 6],
    pub(super) ldt: u16,
    /// The debug trap bit: #DB as soon as the task is entered.
    pub(super) traps: bool,
}

/// Reads values from bytes, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        if let Some((head, tail)) = self.0.split_at_checked(N) {
            bytes.copy_from_slice(head);
            self.0 = tail;
        }
        bytes
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn doubleword(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

impl TaskImage {
    /// The current task's registers, for continuing at `rip` with `flags`.
    pub(super) fn of(state: &CpuState, rip: u64, flags: u64) -> Self {
        Self {
            cr3: None,
            eip: rip as u32,
            eflags: flags as u32,
            gpr: std::array::from_fn(|number| state.gpr[number] as u32),
            segments: SegmentRegister::ALL.map(|register| state.segment(register).selector.0),
            ldt: state.ldtr.selector.0,
            traps: false,
        }
    }

    /// Reads the image in a TSS.
    ///
    /// # Errors
    ///
    /// A page fault of the TSS.
    pub(super) fn read(
        state: &CpuState,
        environment: &mut dyn Environment,
        task: &Segment,
    ) -> Result<Self, Exception> {
        let mut bytes = [0; READ32_SIZE];
        if is_wide(task) {
            read_system(state, environment, task.base, READ32, &mut bytes)?;
            let mut fields = Fields(&bytes);
            let selector = |fields: &mut Fields<'_>| fields.doubleword() as u16;
            return Ok(Self {
                cr3: Some(fields.doubleword()),
                eip: fields.doubleword(),
                eflags: fields.doubleword(),
                gpr: std::array::from_fn(|_| fields.doubleword()),
                segments: std::array::from_fn(|_| selector(&mut fields)),
                ldt: selector(&mut fields),
                traps: fields.word() & 1 != 0,
            });
        }
        let bytes = &mut bytes[..READ16_SIZE];
        read_system(state, environment, task.base, READ16, bytes)?;
        let mut fields = Fields(bytes);
        let (ip, flags) = (fields.word(), fields.word());
        let gpr = std::array::from_fn(|_| u32::from(fields.word()));
        let mut segments = [0; 6];
        for selector in &mut segments[..4] {
            *selector = fields.word();
        }
        Ok(Self {
            cr3: None,
            eip: u32::from(ip),
            eflags: u32::from(flags),
            gpr,
            segments,
            ldt: fields.word(),
            traps: false,
        })
    }

    /// Checks that [`TaskImage::store`] will not fault.
    ///
    /// # Errors
    ///
    /// A page fault of the TSS.
    pub(super) fn probe_store(
        state: &CpuState,
        environment: &mut dyn Environment,
        task: &Segment,
    ) -> Result<(), Exception> {
        let (offset, size) = if is_wide(task) {
            (WRITTEN32, WRITTEN32_SIZE)
        } else {
            (READ16, WRITTEN16_SIZE)
        };
        probe_system(state, environment, task.base, offset, size as u32)
    }

    /// Writes the image to the TSS of the task that is left: everything except CR3 and the LDT's
    /// selector.
    ///
    /// # Errors
    ///
    /// A page fault of the TSS; nothing was written then.
    pub(super) fn store(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        task: &Segment,
    ) -> Result<(), Exception> {
        let wide = is_wide(task);
        let mut bytes = Vec::with_capacity(WRITTEN32_SIZE);
        let mut put = |value: u32| {
            let size = if wide { 4 } else { 2 };
            bytes.extend_from_slice(&value.to_le_bytes()[..size]);
        };
        put(self.eip);
        put(self.eflags);
        self.gpr.into_iter().for_each(&mut put);
        let segments = if wide { 6 } else { 4 };
        for selector in &self.segments[..segments] {
            put(u32::from(*selector));
        }
        let offset = if wide { WRITTEN32 } else { READ16 };
        write_system(state, environment, task.base, offset, &bytes)
    }
}
