//! How many bytes of a stream may still be sent.

use crate::protocol::kept::WINDOW;
use std::sync::{Condvar, Mutex, PoisonError};

/// The credit of one stream. Its sender waits until there is some.
pub struct Credit {
    /// `None` if the other side takes no more bytes of the stream.
    left: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            left: Mutex::new(Some(WINDOW)),
            changed: Condvar::new(),
        }
    }
}

impl Credit {
    /// Waits for credit and takes at most `wanted` bytes of it; `None` if the other side takes no more bytes.
    pub fn take(&self, wanted: usize) -> Option<usize> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &mut *left {
                None => return None,
                Some(0) => {}
                Some(count) => {
                    let taken = wanted.min(*count);
                    *count -= taken;
                    return Some(taken);
                }
            }
            left = self
                .changed
                .wait(left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes credit for this many bytes if there is as much.
    pub fn try_take(&self, wanted: usize) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match left.as_mut().filter(|left| **left >= wanted) {
            Some(left) => {
                *left -= wanted;
                true
            }
            None => false,
        }
    }

    /// Adds credit. More than a whole window is never left.
    pub fn add(&self, count: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = &mut *left {
            *left = left.saturating_add(count).min(WINDOW);
        }
        self.changed.notify_all();
    }

    /// Notes that the other side takes no more bytes.
    pub fn close(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_taken_until_there_is_none() {
        let credit = Credit::default();
        assert_eq!(credit.take(WINDOW - 1), Some(WINDOW - 1));
        assert_eq!(credit.take(5), Some(1));
        credit.add(3);
        assert!(!credit.try_take(4));
        assert_eq!(credit.take(5), Some(3));
        credit.add(usize::MAX);
        credit.close();
        assert_eq!(credit.take(5), None);
    }
}
