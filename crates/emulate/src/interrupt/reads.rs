//! What a delivery reads from memory while it is planned, word by word.

use std::ops::Deref;
use tollgate_platform::{Environment, Platform};
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{
    CpuState, Exception, LinearAddress, PhysicalAddress, TranslationChange, Watched,
};

/// The most words that are listed. A delivery to an inner level outside IA-32e mode reads four: the
/// gate, two descriptors, and SS in the TSS.
const MOST_WORDS: usize = 6;

/// The words of memory from which a plan follows. It dereferences to the list.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    words: [Watched; MOST_WORDS],
    used: usize,
    is_complete: bool,
}

impl Default for Reads {
    fn default() -> Self {
        Self::NONE
    }
}

impl Deref for Reads {
    type Target = [Watched];

    #[inline]
    fn deref(&self) -> &[Watched] {
        &self.words[..self.used]
    }
}

impl Reads {
    /// The words of a plan that has read nothing.
    pub const NONE: Self = Self {
        words: [Watched::NONE; MOST_WORDS],
        used: 0,
        is_complete: true,
    };

    /// Whether the words are all that was read, and planning has changed no memory: a plan with the
    /// same words is the same plan.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn add(&mut self, place: u64, bytes: &[u8]) {
        for (place, bytes) in (place..).step_by(8).zip(bytes.chunks(8)) {
            let Some(word) = self.words.get_mut(self.used) else {
                self.is_complete = false;
                return;
            };
            let value = if let Ok(bytes) = bytes.try_into() {
                u64::from_le_bytes(bytes)
            } else if let Ok(bytes) = bytes.try_into() {
                u64::from(u32::from_le_bytes(bytes))
            } else {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(padded)
            };
            *word = Watched::of(place, u64::MAX >> (64 - 8 * bytes.len()), value);
            self.used += 1;
        }
    }

    /// Removes `size` bytes at a place from the words, because the plan says where they are instead
    /// of using their value. A word must begin there.
    pub(super) fn exempt(&mut self, place: u64, size: u8) {
        let words = &mut self.words[..self.used];
        let Some(index) = words.iter().position(|word| word.place == place) else {
            return;
        };
        let word = &mut words[index];
        // The value is the whole word, since the bits of the mask begin with the lowest one.
        let mask = word.mask & !(u64::MAX >> (64 - 8 * size));
        *word = Watched::of(place, mask, word.value);
        if word.mask == 0 {
            words[index..].rotate_left(1);
            self.used -= 1;
        }
    }
}

/// Memory, of which all reads are listed.
pub(super) struct Reader<'a> {
    environment: &'a mut dyn Environment,
    /// The words that were read.
    pub reads: &'a mut Reads,
}

impl<'a> Reader<'a> {
    /// Reads through `environment`.
    pub fn new(environment: &'a mut dyn Environment, reads: &'a mut Reads) -> Self {
        (reads.used, reads.is_complete) = (0, true);
        Self { environment, reads }
    }
}

impl Environment for Reader<'_> {
    fn read(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &mut [u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.environment.read(state, address, data, privilege)?;
        self.reads.add(address.0, data);
        Ok(())
    }

    fn write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &[u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.reads.is_complete = false;
        self.environment.write(state, address, data, privilege)
    }

    fn probe_write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        size: u32,
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.environment
            .probe_write(state, address, size, privilege)
    }

    fn ram(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        bytes: u32,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Option<(*mut u8, u32)>, Exception> {
        self.reads.is_complete = false;
        self.environment.ram(state, address, bytes, kind, privilege)
    }

    fn call_machine(&mut self, call: &mut dyn FnMut(&mut dyn Platform)) {
        self.environment.call_machine(call);
    }

    fn port_read(&mut self, state: &CpuState, port: u16, size: u8) -> u32 {
        self.environment.port_read(state, port, size)
    }

    fn port_write(&mut self, state: &CpuState, port: u16, size: u8, value: u32) {
        self.environment.port_write(state, port, size, value);
    }

    fn read_physical_u64(&mut self, address: PhysicalAddress) -> u64 {
        self.environment.read_physical_u64(address)
    }

    fn translations_changed(&mut self, state: &CpuState, change: TranslationChange) {
        self.environment.translations_changed(state, change);
    }

    fn sync_vector_state(&mut self, state: &mut CpuState) {
        self.environment.sync_vector_state(state);
    }

    fn is_interrupted(&self) -> bool {
        self.environment.is_interrupted()
    }
}
