//! Where the counts of a guest instruction stand (see `translate/count.rs`).

/// Where the counts of the current instruction stand in its code.
#[derive(Clone, Copy)]
pub(crate) struct HostCodeCounts {
    /// Offsets of the 32-bit displacements: of host instructions, and of their bytes.
    pub(crate) instructions: usize,
    pub(crate) bytes: usize,
    /// Offset of what is counted.
    pub(crate) begin: usize,
}

impl HostCodeCounts {
    /// What stands behind `position` stands `length` bytes further on.
    pub(crate) fn move_on(&mut self, position: usize, length: usize) {
        for place in [&mut self.instructions, &mut self.bytes, &mut self.begin] {
            if *place > position {
                *place += length;
            }
        }
    }
}
