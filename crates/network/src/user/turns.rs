//! Whose turn it is: sockets that may have something to read, first come, first served. A socket
//! that had its turn and has more goes to the end, so that none keeps the others waiting.

use std::collections::{HashSet, VecDeque};

/// Datagrams that a socket may bring in one turn.
pub const BATCH: usize = 32;
/// Turns in one round of work; connections, and frames of the guest, come between two rounds.
pub const TURNS: usize = 8;

/// Sockets by their tokens, each once.
#[derive(Default)]
pub struct Turns {
    order: VecDeque<u64>,
    waiting: HashSet<u64>,
}

impl Turns {
    /// A socket may have something.
    pub fn push(&mut self, token: u64) {
        if self.waiting.insert(token) {
            self.order.push_back(token);
        }
    }

    /// Who is next.
    pub fn pop(&mut self) -> Option<u64> {
        let token = self.order.pop_front()?;
        self.waiting.remove(&token);
        Some(token)
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// What a socket has left after its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Nothing: it will be said when there is more.
    Nothing,
    /// There may be more.
    Something,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waits_once_and_the_first_is_first() {
        let mut turns = Turns::default();
        for token in [3, 1, 3, 2] {
            turns.push(token);
        }
        assert_eq!(turns.pop(), Some(3));
        turns.push(3);
        let rest: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(rest, [1, 2, 3]);
        assert!(turns.is_empty());
    }
}
