//! Orders: requests with data of their own, whose results are kept until they are fetched.

use std::collections::VecDeque;

/// The maximum number of results that are kept for waiting threads.
const RESULTS: usize = 16;

/// Orders of one kind, with results of another kind.
pub(super) struct Orders<T, R = ()> {
    /// The waiting orders, the oldest first, each with its number.
    waiting: VecDeque<(u64, T)>,
    /// The results, the latest last.
    results: VecDeque<(u64, Result<R, String>)>,
    /// The number of orders so far.
    count: u64,
}

impl<T, R> Default for Orders<T, R> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            results: VecDeque::new(),
            count: 0,
        }
    }
}

impl<T, R: Clone> Orders<T, R> {
    /// Adds an order and returns its number.
    pub fn add(&mut self, order: T) -> u64 {
        self.count += 1;
        self.waiting.push_back((self.count, order));
        self.count
    }

    /// Takes the waiting orders.
    pub fn take(&mut self) -> VecDeque<(u64, T)> {
        std::mem::take(&mut self.waiting)
    }

    /// Keeps the result of an order. An old result is dropped if there are many.
    pub fn publish(&mut self, number: u64, result: Result<R, String>) {
        self.results.push_back((number, result));
        if self.results.len() > RESULTS {
            self.results.pop_front();
        }
    }

    /// Returns the result of an order, or `None` before it is executed. An error is one line.
    pub fn result(&self, number: u64) -> Option<Result<R, String>> {
        let mut results = self.results.iter();
        let (_, result) = results.find(|(known, _)| *known == number)?;
        Some(result.clone())
    }
}
