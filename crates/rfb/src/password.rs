//! VNC's password (RFC 6143, 7.2.2), with which the viewer encrypts a challenge.

use des::Des;
use des::cipher::{Block, BlockEncrypt, KeyInit};

/// The size in bytes of a challenge and of the answer to it.
pub const CHALLENGE_BYTES: usize = 16;

/// A password. VNC uses at most eight bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Password([u8; Password::MAX_BYTES]);

impl std::fmt::Debug for Password {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Password")
    }
}

impl Password {
    /// The maximum length of a password in bytes.
    pub const MAX_BYTES: usize = 8;

    /// Makes a password. Returns `None` if it is empty or too long.
    pub fn new(text: &[u8]) -> Option<Self> {
        if text.is_empty() || text.len() > Self::MAX_BYTES {
            return None;
        }
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..text.len()].copy_from_slice(text);
        Some(Self(bytes))
    }

    /// Returns the answer of a viewer that knows the password.
    pub fn answer(&self, challenge: [u8; CHALLENGE_BYTES]) -> [u8; CHALLENGE_BYTES] {
        // VNC uses the key with the bits of each byte reversed.
        let key = self.0.map(u8::reverse_bits);
        let cipher = Des::new(&key.into());
        let mut answer = challenge;
        for block in answer.chunks_exact_mut(8) {
            cipher.encrypt_block(Block::<Des>::from_mut_slice(block));
        }
        answer
    }

    /// Whether the answer is correct. The comparison takes the same time for every answer.
    pub(crate) fn accepts(&self, challenge: [u8; CHALLENGE_BYTES], answer: &[u8]) -> bool {
        let right = self.answer(challenge);
        let differences = right
            .iter()
            .zip(answer)
            .fold(0, |all, (a, b)| all | (a ^ b));
        answer.len() == right.len() && std::hint::black_box(differences) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cipher_is_des_with_mirrored_keys() {
        // DES of zeros with the key 01 23 45 67 89 AB CD EF, whose bytes are reversed here.
        let key = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef].map(u8::reverse_bits);
        let password = Password::new(&key).unwrap();
        let block = [0xd5, 0xd4, 0x4f, 0xf7, 0x20, 0x68, 0x3d, 0x0d];
        assert_eq!(password.answer([0; 16]), [block, block].concat()[..]);
    }

    #[test]
    fn one_wrong_bit_is_wrong() {
        let password = Password::new(b"secret").unwrap();
        let challenge = *b"0123456789abcdef";
        let mut answer = password.answer(challenge);
        assert!(password.accepts(challenge, &answer));
        assert!(!password.accepts(challenge, &answer[..15]));
        answer[15] ^= 1;
        assert!(!password.accepts(challenge, &answer));
        let other = Password::new(b"secreT").unwrap();
        assert!(!other.accepts(challenge, &password.answer(challenge)));
    }

    #[test]
    fn a_password_has_one_to_eight_bytes() {
        assert!(Password::new(b"").is_none());
        assert!(Password::new(b"12345678").is_some());
        assert!(Password::new(b"123456789").is_none());
    }
}
