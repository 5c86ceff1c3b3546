//! The pages that are mapped in a window, as runs of pages that are adjacent both in the guest's
//! linear addresses and in guest RAM.

use std::collections::BTreeMap;

/// Adjacent pages that are mapped with the same rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first linear page: its address divided by 4096.
    pub page: u64,
    /// The number of pages, at least one.
    pub count: u64,
    /// The physical page that the first page leads to.
    pub physical: u64,
    /// Whether stores are allowed.
    pub writable: bool,
    /// Whether the pages may be executed, which concerns [native](super::native) programs only.
    pub executable: bool,
}

impl Run {
    /// The page that follows the last page of the run.
    pub const fn end(&self) -> u64 {
        self.page + self.count
    }

    /// The part of the run that lies in the pages from `first` up to but not including `end`.
    fn part(&self, first: u64, end: u64) -> Option<Self> {
        let page = self.page.max(first);
        let end = self.end().min(end);
        (page < end).then(|| Self {
            page,
            count: end - page,
            physical: self.physical + (page - self.page),
            ..*self
        })
    }

    /// Whether `next` continues this run, in linear and physical addresses and with the same
    /// rights.
    pub const fn goes_on_with(&self, next: &Self) -> bool {
        self.end() == next.page
            && self.physical + self.count == next.physical
            && self.writable == next.writable
            && self.executable == next.executable
    }
}

/// Runs that do not overlap, by their first pages.
#[derive(Default, Debug)]
pub(super) struct Runs(BTreeMap<u64, Run>);

impl Runs {
    /// The number of mappings of the host.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.0.values()
    }

    /// The first mapped page, and the page that follows the last one.
    pub(super) fn extent(&self) -> Option<(u64, u64)> {
        let (first, _) = self.0.first_key_value()?;
        let (_, last) = self.0.last_key_value()?;
        Some((*first, last.end()))
    }

    /// The run that holds a page.
    pub(super) fn at(&self, page: u64) -> Option<Run> {
        let (_, run) = self.0.range(..=page).next_back()?;
        (page < run.end()).then_some(*run)
    }

    /// Removes the pages from `first` up to but not including `end`, and returns them.
    pub(super) fn remove(&mut self, first: u64, end: u64) -> Vec<Run> {
        let before = self.0.range(..=first).next_back().map(|(page, _)| *page);
        let start = before.unwrap_or(first);
        let touched: Vec<Run> = self.0.range(start..end).map(|(_, run)| *run).collect();
        let mut removed = Vec::new();
        for run in touched {
            let Some(part) = run.part(first, end) else {
                continue;
            };
            self.0.remove(&run.page);
            let rest = [run.part(0, first), run.part(end, u64::MAX)];
            for rest in rest.into_iter().flatten() {
                self.0.insert(rest.page, rest);
            }
            removed.push(part);
        }
        removed
    }

    /// Adds pages where there are none, and joins them with the neighbouring runs that they
    /// continue.
    pub(super) fn insert(&mut self, mut run: Run) {
        debug_assert!(self.remove(run.page, run.end()).is_empty());
        let before = self.0.range(..run.page).next_back().map(|(_, run)| *run);
        if let Some(before) = before.filter(|before| before.goes_on_with(&run)) {
            run = Run {
                count: before.count + run.count,
                ..before
            };
        }
        if let Some(behind) = self.0.get(&run.end()).copied()
            && run.goes_on_with(&behind)
        {
            self.0.remove(&behind.page);
            run.count += behind.count;
        }
        self.0.insert(run.page, run);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator of reproducible random numbers.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    #[test]
    fn runs_are_what_single_pages_would_be() {
        let mut random = Random(7);
        let mut runs = Runs::default();
        let mut pages: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        for _ in 0..20_000 {
            let (page, count) = (random.below(64), 1 + random.below(8));
            let removed = runs.remove(page, page + count);
            let expected: Vec<u64> = (page..page + count)
                .filter(|page| pages.remove(page).is_some())
                .collect();
            let gone: Vec<u64> = removed.iter().flat_map(|run| run.page..run.end()).collect();
            assert_eq!(gone, expected);
            if random.below(3) > 0 {
                let physical = match random.below(2) {
                    0 => page + 100,
                    _ => random.below(1000),
                };
                let writable = random.below(2) == 0;
                let run = Run {
                    page,
                    count,
                    physical,
                    writable,
                    executable: false,
                };
                runs.insert(run);
                pages.extend((0..count).map(|at| (page + at, (physical + at, writable))));
            }
            let listed = runs.iter().flat_map(|run| {
                (0..run.count).map(|at| (run.page + at, (run.physical + at, run.writable)))
            });
            assert!(listed.eq(pages.iter().map(|(page, what)| (*page, *what))));
            let joined: Vec<&Run> = runs.iter().collect();
            assert!(joined.windows(2).all(|it| !it[0].goes_on_with(it[1])));
            let asked = random.below(80);
            let found = runs.at(asked).map(|run| run.physical + (asked - run.page));
            assert_eq!(found, pages.get(&asked).map(|it| it.0));
        }
    }
}
