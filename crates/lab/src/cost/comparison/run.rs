//! Runs the comparison of `tollgate cost --with`.

use super::machines::{OtherMachine, TOLLGATE, missing_in_qemu, missing_natively};
use super::merge::merged;
use super::{Comparison, Finding, Line, Participant};
use crate::cost::bench::{Bench, Machine, find};
use crate::cost::guest::Guest;
use crate::cost::image::{self, GuestMode, Loops};
use crate::cost::kinds::{self, Kind};
use crate::cost::native::{self, Native};
use crate::cost::pinning::Pinning;
use crate::cost::qemu::{QemuGuest, impossible};
use crate::cost::{CostError, Options, Row};
use crate::experiment::{Observer, Stop};
use tollgate_host_facts::processors::HostDescription;

/// The kinds that are compared unless others are requested: exits of the study's kind, then the events of the seven
/// nanobenchmarks that are not among them.
pub const KINDS: [&str; 12] = [
    "null-hypercall",
    "cpuid",
    "port-out",
    "mmio-read",
    "syscall-sysret",
    "port-in",
    "cr8-write",
    "call-return",
    "page-fault-iret",
    "divide-error-iret",
    "page-table-write",
    "page-table-use",
];
/// The modes that are tried for each kind, the first one that has it is used.
const MODES: [GuestMode; 2] = [GuestMode::Long, GuestMode::LongRing3];

/// What to compare.
#[derive(Clone, Debug)]
pub struct Request {
    /// Samples, rounds, kinds and modes.
    pub options: Options,
    /// The machines in addition to Tollgate.
    pub machines: Vec<OtherMachine>,
}

/// A kind, in the mode in which it is compared.
type Chosen = (&'static Kind, GuestMode);

/// The rounds of one kind in one machine, pinned or not.
struct Rounds {
    kind: Chosen,
    machine: Option<OtherMachine>,
    pinned: bool,
    rows: Vec<Row>,
    missing: Option<String>,
}

/// Runs the comparison on the calling thread.
///
/// # Errors
///
/// An unknown kind, a host that refuses resources, or a guest in Tollgate that did not do its work; or `stop` was
/// requested at the start. A machine that cannot run, or a kind that it does not have, is no error: the result says why.
pub fn run(
    request: &Request,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Comparison, CostError> {
    let table = image::table();
    let chosen = chosen(&request.options, &table)?;
    let pinning = Pinning::new(request.options.processor)?;
    let tsc_khz = Guest::start(GuestMode::Real, stop)?.tsc_khz();
    let mut machines = vec![None];
    machines.extend(request.machines.iter().copied().map(Some));
    let mut participants: Vec<Participant> = machines.iter().map(participant).collect();

    let mut all = Vec::new();
    for is_pinned in [true, false] {
        for &kind in &chosen {
            all.extend(machines.iter().map(|&machine| Rounds {
                kind,
                machine,
                pinned: is_pinned,
                rows: Vec::new(),
                missing: None,
            }));
        }
    }
    let options = Options {
        samples: request
            .options
            .samples
            .div_ceil(request.options.rounds.max(1)),
        ..request.options.clone()
    };
    let total = 2 * request.options.rounds * machines.len();
    let mut is_complete = true;
    let mut done = 0;
    'all: for is_pinned in [true, false] {
        for round in 1..=request.options.rounds {
            for (&machine, participant) in machines.iter().zip(&mut participants) {
                let turn = format!(
                    "{}, round {round} of {}",
                    participant.name, request.options.rounds
                );
                observer.progress(done, total, &turn);
                done += 1;
                if participant.not_run.is_some() {
                    continue;
                }
                let mut turn = Turn {
                    machine,
                    options: &options,
                    stop,
                    table: &table,
                    pinning: &pinning,
                    is_pinned,
                    tsc_khz,
                    model: None,
                };
                let mut of_machine: Vec<&mut Rounds> = all
                    .iter_mut()
                    .filter(|it| it.machine == machine && it.pinned == is_pinned)
                    .collect();
                let result = turn.measure(&mut of_machine);
                if let Some(model) = turn.model {
                    participant.processor = Some(model);
                }
                pinning.apply(false)?;
                match result {
                    Ok(()) => {}
                    Err(CostError::Interrupted) => {
                        is_complete = false;
                        break 'all;
                    }
                    Err(error) if machine.is_none() => return Err(error),
                    Err(error) => participant.not_run = Some(reason(&error)),
                }
            }
        }
    }
    let lines = all.into_iter().filter_map(|rounds| {
        let participant = participants
            .iter()
            .find(|it| it.name == name(rounds.machine))?;
        line(rounds, participant)
    });
    let lines = lines.collect();
    Ok(Comparison {
        host: HostDescription {
            processors: pinning.processors(),
            ..HostDescription::here(tsc_khz)
        },
        pinned_to: pinning.processor,
        is_complete,
        machines: participants,
        lines,
    })
}

fn name(machine: Option<OtherMachine>) -> &'static str {
    machine.map_or(TOLLGATE, OtherMachine::name)
}

fn participant(machine: &Option<OtherMachine>) -> Participant {
    let accelerator = machine.and_then(OtherMachine::accelerator);
    Participant {
        name: name(*machine),
        what: machine.map_or_else(
            || "call-outs of translated code inside one process: no protection boundary".to_owned(),
            OtherMachine::what,
        ),
        processor: None,
        not_run: accelerator.and_then(impossible),
    }
}

/// What went wrong, without what the reader knows already.
fn reason(error: &CostError) -> String {
    match error {
        CostError::WorkNotDone(why) => why.rsplit("): ").next().unwrap_or(why).to_owned(),
        other => other.to_string(),
    }
}

fn line(rounds: Rounds, participant: &Participant) -> Option<Line> {
    let (kind, mode) = rounds.kind;
    let finding = match (merged(&rounds.rows), rounds.missing, &participant.not_run) {
        (Some(measured), _, _) => Finding::Measured(Box::new(measured)),
        (None, Some(why), _) => Finding::None(why),
        (None, None, Some(why)) => Finding::None(format!("not run: {why}")),
        // The comparison was interrupted.
        (None, None, None) => return None,
    };
    Some(Line {
        kind: kind.name,
        what: kind.what,
        mode: mode.name(),
        machine: participant.name,
        pinned: rounds.pinned,
        finding,
    })
}

fn chosen(options: &Options, table: &[Loops]) -> Result<Vec<Chosen>, CostError> {
    let names: Vec<&str> = match options.kinds.is_empty() {
        true => KINDS.to_vec(),
        false => options.kinds.iter().map(String::as_str).collect(),
    };
    let modes = match options.modes.is_empty() {
        true => &MODES[..],
        false => &options.modes[..],
    };
    let mut chosen = Vec::new();
    for name in names {
        let kind = kinds::KINDS.iter().find(|kind| kind.name == name);
        let kind = kind.ok_or_else(|| CostError::UnknownKind(name.to_owned()))?;
        let mode = modes
            .iter()
            .find(|&&mode| find(table, name, mode).is_some());
        chosen.extend(mode.map(|&mode| (kind, mode)));
    }
    match chosen.is_empty() {
        true => Err(CostError::NothingChosen),
        false => Ok(chosen),
    }
}

/// One machine's turn in a round.
struct Turn<'a> {
    machine: Option<OtherMachine>,
    options: &'a Options,
    stop: &'a Stop,
    table: &'a [Loops],
    pinning: &'a Pinning,
    is_pinned: bool,
    tsc_khz: u64,
    /// The model of QEMU's processor, when it has been started.
    model: Option<&'static str>,
}

impl<'a> Turn<'a> {
    /// A machine whose guest waits for commands, for these kinds' loops.
    fn bench<M: Machine>(
        &self,
        machine: M,
        table: &'a [Loops],
        mode: GuestMode,
    ) -> Result<Bench<'a, M>, CostError> {
        Bench::new(machine, (self.options, self.stop), table, mode)
    }

    /// Starts the machine in each mode that is needed and measures all kinds.
    fn measure(&mut self, all: &mut [&mut Rounds]) -> Result<(), CostError> {
        for mode in GuestMode::ALL {
            let mut of_mode: Vec<&mut Rounds> = all
                .iter_mut()
                .map(|rounds| &mut **rounds)
                .filter(|rounds| rounds.kind.1 == mode && rounds.missing.is_none())
                .collect();
            if of_mode.is_empty() {
                continue;
            }
            // QEMU and programs inherit the set of processors.
            self.pinning.apply(self.is_pinned)?;
            match self.machine {
                None => {
                    let guest = Guest::start(mode, self.stop)?;
                    let mut bench = self.bench(guest, self.table, mode)?;
                    self.kinds(&mut bench, &mut of_mode)?;
                }
                Some(OtherMachine::Native) => {
                    let table = native::table(mode);
                    for rounds in &mut of_mode {
                        let why = missing_natively(rounds.kind.0.name, mode);
                        rounds.missing = why.map(str::to_owned);
                    }
                    let native = Turn {
                        table: &table,
                        ..*self
                    };
                    let mut bench = native.bench(Native::new(self.tsc_khz)?, &table, mode)?;
                    native.kinds(&mut bench, &mut of_mode)?;
                }
                Some(machine) => self.in_qemu(machine, mode, &mut of_mode)?,
            }
        }
        Ok(())
    }

    /// Measures kinds in QEMU, which is started again after a kind that the machine did not survive.
    fn in_qemu(
        &mut self,
        machine: OtherMachine,
        mode: GuestMode,
        all: &mut [&mut Rounds],
    ) -> Result<(), CostError> {
        let Some(accelerator) = machine.accelerator() else {
            return Ok(());
        };
        let (pinning, is_pinned, tsc_khz) = (self.pinning, self.is_pinned, self.tsc_khz);
        let stop = self.stop;
        let start = || {
            pinning.apply(is_pinned)?;
            let guest = QemuGuest::start(accelerator, mode, tsc_khz, stop);
            // This thread only waits for QEMU, and need not disturb it.
            pinning.apply(false)?;
            guest
        };
        let guest = start()?;
        self.model = Some(guest.model);
        let features = guest.features();
        for rounds in all.iter_mut() {
            let why = missing_in_qemu(accelerator, rounds.kind.0.name, features);
            rounds.missing = why.map(str::to_owned);
        }
        let mut bench = self.bench(guest, self.table, mode)?;
        for rounds in all.iter_mut().filter(|it| it.missing.is_none()) {
            match self.kinds(&mut bench, &mut [&mut **rounds]) {
                Ok(()) => {}
                Err(CostError::Interrupted) => return Err(CostError::Interrupted),
                Err(error) => {
                    rounds.missing = Some(format!("none: {}", reason(&error)));
                    bench = self.bench(start()?, self.table, mode)?;
                }
            }
        }
        Ok(())
    }

    /// Measures these kinds.
    fn kinds<M: Machine>(
        &self,
        bench: &mut Bench<M>,
        all: &mut [&mut Rounds],
    ) -> Result<(), CostError> {
        for rounds in all.iter_mut().filter(|it| it.missing.is_none()) {
            let (kind, mode) = rounds.kind;
            let Some(loops) = find(self.table, kind.name, mode) else {
                continue;
            };
            rounds.rows.push(bench.row(kind, loops, rounds.pinned)?);
        }
        Ok(())
    }
}
