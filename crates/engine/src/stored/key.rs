//! The key that signs stored translations.

use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// A secret with which a user's programs sign what they store: no other program can
/// make stored translations that have its tags.
#[derive(Clone, Copy)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

impl Key {
    /// The tag of some bytes, by SipHash-2-4, which was made for this purpose.
    pub(super) fn tag(&self, bytes: &[u8]) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }
}
