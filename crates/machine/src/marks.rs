//! Marks: named snapshots of the ledger, so that events between two of them can be counted.

use tollgate_exits::ledger::Accounts;
use tollgate_exits::reading::{Counters, Reading};
pub use tollgate_platform::MarkName;

/// The maximum number of marks that are kept. Each may take some megabytes.
pub const MOST: usize = 16;

/// The ledger at one moment.
#[derive(Clone, Default)]
pub struct Moment {
    /// The ledger's accounts.
    pub accounts: Accounts,
    /// All other counters.
    pub counters: Counters,
}

/// A moment with a name.
struct Mark {
    name: MarkName,
    /// When the mark was set, in nanoseconds of guest time.
    guest_time_ns: u64,
    moment: Moment,
}

/// The marks of a machine, in the order in which they were set.
#[derive(Default)]
pub struct Marks(Vec<Mark>);

/// The marks between which to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The first mark. `None` counts from the machine's start, or from the last reset of the ledger.
    pub since: Option<MarkName>,
    /// The last mark. `None` counts up to now.
    pub until: Option<MarkName>,
}

impl Marks {
    /// Sets a mark. It replaces a mark of the same name; if there are too many marks, the oldest is
    /// dropped.
    pub fn set(&mut self, name: MarkName, guest_time_ns: u64, moment: Moment) {
        self.0.retain(|mark| mark.name != name);
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push(Mark {
            name,
            guest_time_ns,
            moment,
        });
    }

    /// Removes all marks.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Drops the counters of all marks, except those of exits. They are no longer comparable when a
    /// new machine has begun to count.
    pub fn forget_counters(&mut self) {
        for mark in &mut self.0 {
            mark.moment.counters = Counters::default();
        }
    }

    /// Returns the name of each mark, and when it was set in nanoseconds of guest time.
    pub fn names(&self) -> Vec<(MarkName, u64)> {
        let marks = self.0.iter();
        marks.map(|mark| (mark.name, mark.guest_time_ns)).collect()
    }

    fn find(&self, name: MarkName) -> Result<usize, String> {
        let index = self.0.iter().position(|mark| mark.name == name);
        index.ok_or_else(|| {
            // A name that a program has chosen begins with a point.
            let names = self.0.iter().map(|mark| mark.name.as_str());
            let known: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
            match known.as_slice() {
                [] => format!("no mark is called '{name}': none was set"),
                known => format!(
                    "no mark is called '{name}'; there are: {}",
                    known.join(", ")
                ),
            }
        })
    }

    /// Returns what was counted in `span`. A span without a first mark begins at `start`, where the
    /// ledger begins; a span without a last mark ends at `now`.
    ///
    /// # Errors
    /// A mark was not set, or the marks are in the wrong order.
    pub fn count(&self, span: Span, start: &Counters, now: Moment) -> Result<Moment, String> {
        let since = span.since.map(|name| self.find(name)).transpose()?;
        let until = span.until.map(|name| self.find(name)).transpose()?;
        if let (Some(first), Some(last)) = (since, until)
            && last <= first
        {
            let [first, last] = [first, last].map(|index| self.0[index].name);
            return Err(format!("the mark '{last}' was not set after '{first}'"));
        }
        let end = until.map_or(now, |index| self.0[index].moment.clone());
        Ok(match since {
            None => Moment {
                accounts: end.accounts,
                counters: end.counters.since(start),
            },
            Some(index) => {
                let begin = &self.0[index].moment;
                Moment {
                    accounts: end.accounts.since(&begin.accounts),
                    counters: end.counters.since(&begin.counters),
                }
            }
        })
    }
}

impl Moment {
    /// Returns these counts as a reading of the ledger.
    pub fn reading(self, tsc_khz: u64, system_call_entry: u64) -> Reading {
        Reading::of_accounts(&self.accounts, tsc_khz, system_call_entry)
            .with_counters(self.counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> MarkName {
        text.parse().unwrap()
    }

    fn at(instructions: u64) -> Moment {
        Moment {
            counters: Counters {
                instructions: Some(instructions),
                ..Counters::default()
            },
            ..Moment::default()
        }
    }

    fn counted(marks: &Marks, since: Option<&str>, until: Option<&str>) -> Result<u64, String> {
        let span = Span {
            since: since.map(name),
            until: until.map(name),
        };
        let moment = marks.count(span, &at(10).counters, at(100))?;
        Ok(moment.counters.instructions.unwrap())
    }

    #[test]
    fn one_counts_between_marks_from_the_start_and_to_now() {
        let mut marks = Marks::default();
        marks.set(name("begin"), 1, at(30));
        marks.set(name("end"), 2, at(70));
        assert_eq!(counted(&marks, None, None), Ok(90));
        assert_eq!(counted(&marks, Some("begin"), None), Ok(70));
        assert_eq!(counted(&marks, Some("begin"), Some("end")), Ok(40));
        assert_eq!(counted(&marks, None, Some("begin")), Ok(20));
        let error = counted(&marks, Some("end"), Some("begin")).unwrap_err();
        assert_eq!(error, "the mark 'begin' was not set after 'end'");
        let error = counted(&marks, Some("middle"), None).unwrap_err();
        assert_eq!(error, "no mark is called 'middle'; there are: begin, end");
    }

    #[test]
    fn a_mark_that_is_set_again_is_a_new_one() {
        let mut marks = Marks::default();
        marks.set(name("a"), 1, at(30));
        marks.set(name("b"), 2, at(40));
        marks.set(name("a"), 3, at(50));
        assert_eq!(marks.names(), [(name("b"), 2), (name("a"), 3)]);
        assert_eq!(counted(&marks, Some("b"), Some("a")), Ok(10));
    }

    #[test]
    fn of_too_many_the_oldest_goes() {
        let mut marks = Marks::default();
        for number in 0..=MOST {
            marks.set(name(&format!("m{number}")), 0, at(0));
        }
        assert_eq!(marks.names().len(), MOST);
        assert!(counted(&marks, Some("m0"), None).is_err());
    }
}
