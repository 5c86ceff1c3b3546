//! Reusable buffers for large requests to a disk image.
//!
//! Allocating and freeing a buffer of a megabyte for each request costs the host 256 page faults,
//! which is more time than copying the data, and half of it is spent on the thread that runs the
//! guest. So such buffers are returned to where they came from, and a few are kept.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers below this size are allocated each time, which is cheap.
const LEAST_KEPT: usize = 32 << 10;
/// The maximum number of bytes that are kept while unused.
const MOST_KEPT_BYTES: usize = 4 << 20;

/// A pool to which buffers are returned.
#[derive(Clone, Default)]
pub struct Buffers(Arc<Mutex<Spare>>);

#[derive(Default)]
struct Spare {
    buffers: Vec<Box<[u8]>>,
    bytes: usize,
}

impl Buffers {
    /// Returns a buffer of this size with arbitrary contents.
    pub fn take(&self, bytes: usize) -> Buffer {
        if bytes < LEAST_KEPT {
            return vec![0; bytes].into();
        }
        let known = self.spare().take(bytes);
        Buffer {
            bytes: known.unwrap_or_else(|| vec![0; bytes].into_boxed_slice()),
            length: bytes,
            home: Some(self.clone()),
        }
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Spare> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of unused bytes that are kept.
    #[cfg(test)]
    fn kept_bytes(&self) -> usize {
        self.spare().bytes
    }
}

impl Spare {
    /// Takes the smallest buffer that is large enough and not much too large.
    fn take(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        let fits = |size: usize| (bytes..=bytes.saturating_mul(4)).contains(&size);
        let sizes = self.buffers.iter().map(|it| it.len()).enumerate();
        let (index, size) = sizes.filter(|it| fits(it.1)).min_by_key(|it| it.1)?;
        self.bytes -= size;
        Some(self.buffers.swap_remove(index))
    }

    /// Keeps a buffer. The oldest ones are dropped if they would be too much together.
    fn keep(&mut self, buffer: Box<[u8]>) {
        if buffer.len() > MOST_KEPT_BYTES {
            return;
        }
        self.bytes += buffer.len();
        self.buffers.push(buffer);
        while self.bytes > MOST_KEPT_BYTES {
            self.bytes -= self.buffers.remove(0).len();
        }
    }
}

/// The data of a request. When it is dropped, its memory is returned to its pool.
pub struct Buffer {
    bytes: Box<[u8]>,
    /// The number of bytes that belong to the data.
    length: usize,
    home: Option<Buffers>,
}

impl From<Vec<u8>> for Buffer {
    /// Makes a buffer that belongs to no pool.
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            length: bytes.len(),
            bytes: bytes.into_boxed_slice(),
            home: None,
        }
    }
}

impl From<Buffer> for Vec<u8> {
    /// Takes the bytes out, which are then not returned to the pool.
    fn from(mut buffer: Buffer) -> Self {
        buffer.home = None;
        let mut bytes = std::mem::take(&mut buffer.bytes).into_vec();
        bytes.truncate(buffer.length);
        bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.spare().keep(std::mem::take(&mut self.bytes));
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_used_again_and_has_the_length_that_was_asked_for() {
        let buffers = Buffers::default();
        let mut first = buffers.take(1 << 20);
        first.fill(7);
        let place = first.as_ptr();
        drop(first);
        assert_eq!(buffers.kept_bytes(), 1 << 20);
        let second = buffers.take(600_000);
        assert_eq!((second.as_ptr(), second.len()), (place, 600_000));
        assert_eq!(buffers.kept_bytes(), 0);
        drop(second);
        // A kept buffer that is much too large is left for other requests.
        let third = buffers.take(LEAST_KEPT);
        assert_eq!(third.len(), LEAST_KEPT);
        assert_eq!(buffers.kept_bytes(), 1 << 20);
        assert_eq!(buffers.take(10).len(), 10);
    }

    #[test]
    fn few_bytes_are_kept() {
        let buffers = Buffers::default();
        let many: Vec<Buffer> = (0..64).map(|_| buffers.take(1 << 20)).collect();
        drop(many);
        drop(buffers.take(64 << 20));
        drop(buffers.take(LEAST_KEPT));
        assert!(buffers.kept_bytes() <= MOST_KEPT_BYTES);
        assert!(buffers.kept_bytes() > MOST_KEPT_BYTES / 2);
        // Small buffers and copies belong to no pool.
        let before = buffers.kept_bytes();
        drop(buffers.take(LEAST_KEPT - 1));
        drop(Buffer::from(vec![1; 1 << 20]));
        drop(buffers.take(1 << 20).clone());
        assert_eq!(buffers.kept_bytes(), before);
    }
}
