//! The machines that can be looked at, and what one of them says.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::model::{Model, Shown};
use crate::control::client::talk;
use crate::control::protocol::Name;
use crate::control::run_time;
use crate::control::stats::{Additions, private_mark, snapshot_in};
use crate::failure::Failure;

/// The machines, of which one is looked at.
pub struct Machines {
    /// The one that was named; `None`: all that are found.
    named: Option<PathBuf>,
    current: Option<PathBuf>,
    /// Our mark is set in the current one.
    is_marked: bool,
    /// What is put to what it says.
    additions: Additions,
}

impl Machines {
    /// Looks for machines.
    ///
    /// # Errors
    /// Nothing answers at the path, or there is no machine at all.
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

    /// Goes on to the next machine.
    pub fn next(&mut self) {
        let all = self.all();
        let index = all
            .iter()
            .position(|path| Some(path) == self.current.as_ref());
        let next = index.map_or(0, |index| (index + 1) % all.len().max(1));
        self.current = all.get(next).cloned();
        self.is_marked = false;
    }

    /// Asks the current machine what happened since the last time. When it has ended, another one
    /// is looked for.
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

    /// Its status and, if something was marked before, its statistics.
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
