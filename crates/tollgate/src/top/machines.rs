//! Finds the machines that `tollgate top` can show, and asks one of them for its statistics.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::model::{Model, Shown};
use crate::control::client::talk;
use crate::control::command::Name;
use crate::control::run_time;
use crate::control::stats::{Additions, private_mark, snapshot_in};
use crate::failure::Failure;

/// The machines, one of which is shown.
pub struct Machines {
    /// The machine that was named; `None` for all that are found.
    named: Option<PathBuf>,
    current: Option<PathBuf>,
    /// Whether our mark is set in the current machine.
    is_marked: bool,
    /// The names and prices that are added to its statistics.
    additions: Additions,
}

impl Machines {
    /// Searches for machines.
    ///
    /// # Errors
    ///
    /// Nothing answers at the path, or no machine is found.
    pub fn open(named: Option<PathBuf>, additions: Additions) -> Result<Self, Failure> {
        let current = match &named {
            Some(path) => {
                talk(path, &json!({"command": Name::Status}))?;
                Some(path.clone())
            }
            None => run_time::sockets().into_iter().next(),
        };
        if current.is_none() {
            return Err(Failure::host(
                "no machine of this user is running; 'tollgate run' starts one",
            ));
        }
        Ok(Self {
            named,
            current,
            is_marked: false,
            additions,
        })
    }

    fn all(&self) -> Vec<PathBuf> {
        match &self.named {
            Some(path) => vec![path.clone()],
            None => run_time::sockets(),
        }
    }

    /// Switches to the next machine.
    pub fn next(&mut self) {
        let all = self.all();
        let index = all
            .iter()
            .position(|path| Some(path) == self.current.as_ref());
        let next = index.map_or(0, |index| (index + 1) % all.len().max(1));
        self.current = all.get(next).cloned();
        self.is_marked = false;
    }

    /// Asks the current machine what happened since the last time. If it has ended, another machine
    /// is selected.
    pub fn look(&mut self, model: &mut Model) {
        if self.current.is_none() {
            self.next();
        }
        let all = self.all();
        let Some(path) = self.current.clone() else {
            model.ended("no machine of this user is running");
            return;
        };
        let index = all.iter().position(|other| *other == path).unwrap_or(0);
        match self.ask(&path, model.shows_total) {
            Ok((status, snapshot)) => model.take(Shown {
                status,
                snapshot,
                number: index + 1,
                machines: all.len().max(1),
            }),
            Err(failure) => {
                model.ended(&failure.message);
                self.is_marked = false;
                if self.named.is_none() {
                    self.current = None;
                }
            }
        }
    }

    /// The machine's status and, if a mark was set before, its statistics since then.
    fn ask(
        &mut self,
        path: &std::path::Path,
        total: bool,
    ) -> Result<(Value, Option<tollgate_exits::snapshot::Snapshot>), Failure> {
        let checked = |answer: Value| match answer["ok"].as_bool() {
            Some(true) => Ok(answer),
            _ => Err(Failure::host(
                answer["error"].as_str().unwrap_or("it refused").to_owned(),
            )),
        };
        let status = checked(talk(path, &json!({"command": Name::Status}))?)?;
        let mark = private_mark();
        if !self.is_marked {
            checked(talk(path, &json!({"command": Name::Mark, "mark": mark}))?)?;
            self.is_marked = true;
            if !total {
                return Ok((status["status"].clone(), None));
            }
        }
        let since = (!total).then_some(&mark);
        let request = json!({"command": Name::Stats, "since": since, "mark": mark});
        let answer = checked(talk(path, &request)?)?;
        let snapshot = self.additions.add_to(snapshot_in(&answer)?);
        Ok((status["status"].clone(), Some(snapshot)))
    }
}
