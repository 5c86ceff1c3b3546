//! The positions in an instruction's code that its counters need (see `translate/count.rs`).

/// Positions in the code of the current guest instruction, if host instructions are counted.
#[derive(Clone, Copy)]
pub(crate) struct HostCodeCounts {
    /// Offset of the 32-bit displacement that becomes the number of host instructions. `bytes` is
    /// that of the displacement that becomes the number of their bytes.
    pub(crate) instructions: usize,
    pub(crate) bytes: usize,
    /// Offset at which the counted code begins.
    pub(crate) begin: usize,
}

impl HostCodeCounts {
    /// Adapts the offsets to code of `length` bytes that was inserted at `position`.
    pub(crate) fn move_on(&mut self, position: usize, length: usize) {
        for place in [&mut self.instructions, &mut self.bytes, &mut self.begin] {
            if *place > position {
                *place += length;
            }
        }
    }
}
