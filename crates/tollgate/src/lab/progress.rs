//! Shows the progress of an experiment, or of several, while it runs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use tollgate_lab::experiment::Observer;

use crate::failure::say;

/// The shortest time between two progress messages on a terminal, and in a file.
const ON_TERMINAL: Duration = Duration::from_millis(100);
const IN_FILE: Duration = Duration::from_secs(2);

/// Shows progress on standard error.
pub struct Progress<'a> {
    is_terminal: bool,
    shown: Option<Instant>,
    begun: Instant,
    /// The number of samples that were there already, and the number at the latest message.
    samples: Option<(usize, usize)>,
    /// The studies of which this is one.
    whole: Option<&'a mut Whole>,
}

impl Progress<'_> {
    /// Makes a display that shows nothing yet.
    pub fn new() -> Self {
        Progress::with(None)
    }

    /// Erases the progress line; the experiment has ended.
    pub fn clear(&mut self) {
        if self.is_terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        let measured = self.measured();
        if let Some(whole) = &mut self.whole {
            whole.spend(self.begun.elapsed(), measured);
        }
    }

    /// The number of samples taken since the display was made.
    fn measured(&self) -> usize {
        self.samples.map_or(0, |(first, last)| last - first)
    }
}

impl<'a> Progress<'a> {
    /// Makes a display for the study that `whole` has begun.
    pub fn of(whole: &'a mut Whole) -> Self {
        Self::with(Some(whole))
    }

    fn with(whole: Option<&'a mut Whole>) -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            shown: None,
            begun: Instant::now(),
            samples: None,
            whole,
        }
    }
}

impl Observer for Progress<'_> {
    fn progress(&mut self, done: usize, total: usize, next: &str) {
        let first = self.samples.map_or(done, |(first, _)| first);
        self.samples = Some((first, done.max(first)));
        let pause = if self.is_terminal {
            ON_TERMINAL
        } else {
            IN_FILE
        };
        if self.shown.is_some_and(|shown| shown.elapsed() < pause) {
            return;
        }
        self.shown = Some(Instant::now());
        let elapsed = self.begun.elapsed();
        let measured = self.measured();
        let left = left(measured, total.saturating_sub(done), elapsed);
        let place = format!("{}/{total}", (done + 1).min(total));
        let line = match &self.whole {
            None => format!("[{place}{}] {next}", words(", ", left)),
            Some(whole) => {
                let all = whole.left(elapsed, measured, left);
                format!(
                    "[{}, {place}{}{}] {next}",
                    whole.place(),
                    words(", ", left),
                    words("; all studies: ", all)
                )
            }
        };
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[Ktollgate: {line}");
        } else {
            say(&line);
        }
    }
}

/// Several studies that run one after the other.
pub struct Whole {
    /// Their names, and the number of samples of each; 0 if it is not known.
    studies: Vec<(&'static str, usize)>,
    /// The index of the present one.
    present: usize,
    /// The time that studies with a known number of samples have taken, and the number of samples
    /// taken in it.
    spent: Duration,
    measured: usize,
    /// When everything should end.
    end: Option<Instant>,
}

impl Whole {
    /// The studies with these names and numbers of samples.
    pub fn new(studies: Vec<(&'static str, usize)>) -> Self {
        Self {
            studies,
            present: 0,
            spent: Duration::ZERO,
            measured: 0,
            end: None,
        }
    }

    /// A study begins; everything should have ended at `end`.
    pub fn begin(&mut self, name: &str, end: Option<Instant>) {
        let mut studies = self.studies.iter();
        self.present = studies.position(|study| study.0 == name).unwrap_or(0);
        self.end = end;
    }

    /// The present study has taken this time for this number of samples.
    fn spend(&mut self, time: Duration, measured: usize) {
        if self
            .studies
            .get(self.present)
            .is_some_and(|study| study.1 > 0)
        {
            self.spent += time;
            self.measured += measured;
        }
    }

    /// The present study and its number.
    fn place(&self) -> String {
        let name = self.studies.get(self.present).map_or("", |study| study.0);
        format!(
            "study {} of {}: {name}",
            self.present + 1,
            self.studies.len()
        )
    }

    /// The estimated time for everything that remains, if each sample takes as long as those that
    /// were taken; at most the time that is left.
    fn left(&self, elapsed: Duration, measured: usize, here: Option<Duration>) -> Option<Duration> {
        let here = here?;
        let count = self.measured + measured;
        let later = self.studies.iter().skip(self.present + 1);
        let later: usize = later.map(|study| study.1).sum();
        let each = (self.spent + elapsed).as_secs_f64() / count.max(1) as f64;
        let estimate = here + Duration::from_secs_f64(each * later as f64);
        let limit = self
            .end
            .map(|end| end.saturating_duration_since(Instant::now()));
        Some(limit.map_or(estimate, |limit| estimate.min(limit)))
    }
}

/// The estimated time for the remaining samples, if they take as long as the measured ones; `None`
/// before an estimate is possible.
fn left(measured: usize, remaining: usize, elapsed: Duration) -> Option<Duration> {
    if measured == 0 || remaining == 0 {
        return None;
    }
    Some(elapsed.mul_f64(remaining as f64 / measured as f64))
}

/// The time in words after `before`; empty for `None`.
fn words(before: &str, left: Option<Duration>) -> String {
    let Some(left) = left else {
        return String::new();
    };
    let seconds = left.as_secs_f64().ceil() as u64;
    match seconds {
        0..60 => format!("{before}{seconds} s left"),
        60..3600 => format!("{before}{} min left", seconds.div_ceil(60)),
        _ => {
            let minutes = seconds.div_ceil(60);
            format!("{before}{} h {} min left", minutes / 60, minutes % 60)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_what_is_done() {
        let seconds = Duration::from_secs;
        let words = |done, total, elapsed| words(", ", left(done, total - done, elapsed));
        assert_eq!(words(0, 10, seconds(5)), "");
        assert_eq!(words(10, 10, seconds(5)), "");
        assert_eq!(words(2, 10, seconds(5)), ", 20 s left");
        assert_eq!(words(1, 10, seconds(19)), ", 3 min left");
        assert_eq!(words(1, 101, seconds(70)), ", 1 h 57 min left");
    }

    #[test]
    fn the_time_of_all_studies_follows_from_their_samples() {
        let seconds = Duration::from_secs;
        let mut whole = Whole::new(vec![("cost", 0), ("vif", 10), ("shadow", 20)]);
        whole.begin("cost", None);
        whole.spend(seconds(100), 7);
        whole.begin("vif", None);
        assert_eq!(whole.place(), "study 2 of 3: vif");
        // Each of 5 samples took 2 s: 5 are left here, and 20 later.
        let all = whole.left(seconds(10), 5, Some(seconds(10)));
        assert_eq!(all, Some(seconds(50)));
        whole.spend(seconds(20), 10);
        whole.begin("shadow", Some(Instant::now()));
        assert_eq!(
            whole.left(seconds(1), 1, Some(seconds(19))),
            Some(Duration::ZERO)
        );
    }
}
