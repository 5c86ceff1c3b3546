//! The bytes of a block's packed tables: memory of their own, or a part of stored translations.
//!
//! Most blocks of a guest that starts were stored, and their tables are in a file that is mapped
//! and shared with other machines. So they are read there.

use std::ops::Deref;
use std::ptr::{NonNull, slice_from_raw_parts_mut};

/// Bytes in two words: [`Block`](crate::blocks::block::Block) has no room for more.
#[derive(Debug)]
pub(super) struct TableBytes {
    start: NonNull<u8>,
    length: u32,
    owner: Owner,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    /// The bytes were allocated as a boxed slice of this length.
    This,
    /// The bytes belong to another value, and do not change.
    Other,
}

const _: () = assert!(size_of::<Option<TableBytes>>() == 16);

// SAFETY: own bytes are those of a box, which may be sent, and the others do not change.
unsafe impl Send for TableBytes {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for TableBytes {}

impl TableBytes {
    /// Bytes of their own.
    ///
    /// # Panics
    /// There are more than four gigabytes.
    pub(super) fn own(bytes: Box<[u8]>) -> Self {
        let length = u32::try_from(bytes.len()).expect("tables are small");
        let bytes = NonNull::from(Box::leak(bytes));
        Self {
            start: bytes.cast(),
            length,
            owner: Owner::This,
        }
    }

    /// Bytes that belong to another value. `None` if there are too many.
    ///
    /// # Safety
    /// The bytes must stay where they are, and must not change, for as long as the result lives.
    pub(super) unsafe fn of_other(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            start: NonNull::from(bytes).cast(),
            length: u32::try_from(bytes.len()).ok()?,
            owner: Owner::Other,
        })
    }

    /// The bytes for changes, unless they belong to another value.
    pub(super) fn own_mut(&mut self) -> Option<&mut [u8]> {
        let bytes = slice_from_raw_parts_mut(self.start.as_ptr(), self.length as usize);
        // SAFETY: they are the bytes of the box that `own` leaked, borrowed as `self` is.
        (self.owner == Owner::This).then(|| unsafe { &mut *bytes })
    }
}

impl Deref for TableBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are those of a leaked box, or those that the caller of `of_other` keeps.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length as usize) }
    }
}

impl Drop for TableBytes {
    fn drop(&mut self) {
        if self.owner == Owner::This {
            let bytes = slice_from_raw_parts_mut(self.start.as_ptr(), self.length as usize);
            // SAFETY: `own` has leaked a box of this length, and no reference to it is left.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_bytes_can_be_changed() {
        for bytes in [&[][..], &[1, 2, 3]] {
            let mut own = TableBytes::own(bytes.into());
            assert_eq!(*own, *bytes);
            if let Some(first) = own.own_mut().and_then(<[u8]>::first_mut) {
                *first = 9;
            }
            assert_eq!(own.len(), bytes.len());
            assert_eq!(own.first().copied(), bytes.first().map(|_| 9));
            // SAFETY: the bytes are constants.
            let mut other = unsafe { TableBytes::of_other(bytes) }.unwrap();
            assert_eq!(*other, *bytes);
            assert_eq!(other.own_mut(), None);
        }
    }
}
