//! The tokens of sessions, which a guest's client asks for and then shows with each request.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};

/// The maximum number of tokens that are valid at the same time. For one more, the token that ends
/// first is dropped: a guest cannot make this process remember any number of them.
const MAX_TOKENS: usize = 4096;
/// The shortest and the longest time for which a token can be valid, in seconds.
pub const LIFETIME: std::ops::RangeInclusive<u64> = 1..=21_600;

/// Valid tokens, each with its end.
#[derive(Debug, Default)]
pub struct Tokens(HashMap<String, Instant>);

impl Tokens {
    /// Makes a token that is valid for this number of seconds; `None` if the host has no random
    /// numbers.
    pub fn issue(&mut self, seconds: u64, now: Instant) -> Option<String> {
        let mut bytes = [0_u8; 32];
        // The kernel returns as many as this at once.
        let count = getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
        if count != bytes.len() {
            return None;
        }
        let token = bytes.iter().fold(String::new(), |mut token, byte| {
            let _ = write!(token, "{byte:02x}");
            token
        });
        self.0.retain(|_, end| *end > now);
        if self.0.len() >= MAX_TOKENS
            && let Some(first) = self.0.iter().min_by_key(|(_, end)| **end)
        {
            let first = first.0.clone();
            self.0.remove(&first);
        }
        self.0
            .insert(token.clone(), now + Duration::from_secs(seconds));
        Some(token)
    }

    /// Whether a token is valid.
    pub fn has(&self, token: &str, now: Instant) -> bool {
        self.0.get(token).is_some_and(|end| *end > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ends_and_only_so_many_are_valid() {
        let mut tokens = Tokens::default();
        let now = Instant::now();
        let first = tokens.issue(5, now).unwrap();
        assert!(tokens.has(&first, now + Duration::from_secs(4)));
        assert!(!tokens.has(&first, now + Duration::from_secs(5)));
        assert!(!tokens.has("", now));
        let mut last = String::new();
        for _ in 0..MAX_TOKENS {
            last = tokens.issue(60, now).unwrap();
        }
        assert!(!tokens.has(&first, now));
        assert!(tokens.has(&last, now));
        assert_eq!(tokens.0.len(), MAX_TOKENS);
    }
}
