//! A value that can also be read through its address, without a reference to its owner: the table
//! of blocks, which signal handlers read.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A value in an allocation of its own. Its address does not change when the owner is moved. A
/// pointer from [`SignalReadable::address`] stays valid when the owner makes references, because all
/// of them are derived from the same pointer.
pub struct SignalReadable<T>(NonNull<T>);

// SAFETY: the structure owns its value, as a `Box` does.
unsafe impl<T: Send> Send for SignalReadable<T> {}

impl<T> SignalReadable<T> {
    /// Moves a value to an allocation of its own.
    pub fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    /// The value's address, valid until the owner is dropped. A reader must ensure that no
    /// exclusive reference to the value exists while it reads.
    pub fn address(&self) -> *const T {
        self.0.as_ptr()
    }
}

impl<T> Deref for SignalReadable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value lives as long as `self`, and only `self` makes references to it.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for SignalReadable<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value lives as long as `self`, which is borrowed exclusively here.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for SignalReadable<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box, and no reference to the value exists any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
