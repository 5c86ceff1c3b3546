//! The order in which sockets are served that may have something to read: first come, first served.
//! A socket that still has more after its turn goes to the end, so that no socket makes the others
//! wait.

use std::collections::{HashSet, VecDeque};

/// The maximum number of datagrams that a socket delivers in one turn.
pub const BATCH: usize = 32;
/// The number of turns in one round of work. Connections and frames of the guest are handled
/// between two rounds.
pub const TURNS: usize = 8;

/// The sockets by their tokens, each at most once.
#[derive(Default)]
pub struct Turns {
    order: VecDeque<u64>,
    waiting: HashSet<u64>,
}

impl Turns {
    /// Adds a socket that may have something to read.
    pub fn push(&mut self, token: u64) {
        if self.waiting.insert(token) {
            self.order.push_back(token);
        }
    }

    /// Takes the next socket.
    pub fn pop(&mut self) -> Option<u64> {
        let token = self.order.pop_front()?;
        self.waiting.remove(&token);
        Some(token)
    }

    /// Whether no socket waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// Whether a socket has something left after its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It has nothing: more data will be reported.
    Nothing,
    /// It may have more.
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
