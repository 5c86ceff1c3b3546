//! Four machines pinned to one processor: three are busy, one echoes what is typed.
//!
//! The time is measured from a key (the carriage return of a line, as a byte on the serial port) to
//! the line feed of its echo, at the place where the guest's output arrives. The monitor writes a
//! line feed immediately, other output only when more has accumulated.

use super::about::ECHO_P99;
use super::machine::{base_config, checked, refused};
use crate::experiment::{Arm, Bench, LabError, Stop, Timed};
use crate::small_system::{self, Mode, Setup, Workload};
use crate::statistics::Summary;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use tollgate_exits::reading::Reading;
use tollgate_host_facts::processors::{Affinity, current_processor};
use tollgate_machine::config::VmConfig;
use tollgate_machine::vm::RunOutcome;
use tollgate_machine::vm_handle::VmHandle;

/// Number of busy machines.
pub(super) const OTHERS: usize = 3;
/// Number of keys whose echo is timed.
pub(super) const KEYS: u16 = 300;
pub(super) const QUICK_KEYS: u16 = 20;
/// Number of first echoes that are ignored because they wait for translation.
const WARM_UP: usize = 10;
/// Rounds of the busy machines, which are ended from outside.
const FOR_EVER: u16 = 65_535;
/// How long an echo may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pauses between keys in microseconds; they vary.
pub(super) const PAUSES: [u64; 7] = [1_300, 4_100, 700, 2_900, 5_300, 1_900, 3_700];

/// The bench: it builds new machines for each repetition.
pub struct FourMachines {
    mode: Mode,
    keys: u16,
    processor: usize,
}

impl FourMachines {
    /// Selects the processor.
    ///
    /// # Errors
    ///
    /// The mode is not available here.
    pub fn open(mode: Mode, quick: bool, stop: &Stop) -> Result<Self, LabError> {
        let bench = Self {
            mode,
            keys: if quick { QUICK_KEYS } else { KEYS },
            processor: current_processor(),
        };
        // Running this guest alone shows whether it is available here.
        bench.echoes(&base_config(), 0, WARM_UP as u16 + 1, stop)?;
        Ok(bench)
    }

    /// Runs the echoing machine next to `others` busy ones. Returns the microseconds of each echo,
    /// and the echoing machine's ledger.
    fn echoes(
        &self,
        config: &VmConfig,
        others: usize,
        keys: u16,
        stop: &Stop,
    ) -> Result<(Vec<u64>, Reading), LabError> {
        let affinity = Affinity::only(self.processor)
            .ok_or_else(|| LabError::Host("the processor's number is too large".into()))?;
        let busy: Vec<VmHandle> = (0..others).map(|_| VmHandle::new()).collect();
        let foreground = VmHandle::new();
        thread::scope(|scope| {
            let background: Vec<_> = busy
                .iter()
                .map(|handle| {
                    let (affinity, setup) =
                        (&affinity, self.setup(Workload::Mix { rounds: FOR_EVER }));
                    scope.spawn(move || run_busy(&setup, config, affinity, handle, stop))
                })
                .collect();
            let setup = self.setup(Workload::Echo { lines: keys });
            let (send, receive) = mpsc::channel();
            let printed = Printed::new(send);
            let echoing = {
                let (affinity, handle) = (&affinity, &foreground);
                scope.spawn(move || run_echoing(&setup, config, affinity, handle, printed, stop))
            };
            let typed = type_keys(&foreground, &receive, keys);
            if typed.is_err() {
                foreground.quit();
            }
            let echoed = echoing.join();
            busy.iter().for_each(VmHandle::quit);
            let busy: Result<Vec<()>, LabError> = background
                .into_iter()
                .map(|machine| machine.join().unwrap_or_else(|_| Err(panicked())))
                .collect();
            let reading = echoed.unwrap_or_else(|_| Err(panicked()));
            if stop.is_requested() {
                return Err(LabError::Interrupted);
            }
            busy?;
            // The reason why the machine ended is more useful than the error that no echo arrived.
            let reading = reading?;
            Ok((typed?, reading))
        })
    }

    fn setup(&self, workload: Workload) -> Setup {
        Setup {
            workload,
            mode: self.mode,
            rate: None,
        }
    }
}

fn panicked() -> LabError {
    LabError::Host("a machine's thread failed".into())
}

impl Bench for FourMachines {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let config = arm.config(&base_config())?;
        let (alone, _) = self.echoes(&config, 0, self.keys, stop)?;
        let started = Instant::now();
        let (beside, reading) = self.echoes(&config, OTHERS, self.keys, stop)?;
        let mut timed = Timed::new(started.elapsed().as_secs_f64(), &reading);
        timed.work.insert("keys".into(), u64::from(self.keys));
        add_echoes(&mut timed, &alone, &beside);
        Ok(timed)
    }
}

/// Adds the times of echoes, in microseconds: of the machine alone, and next to the others.
pub(super) fn add_echoes(timed: &mut Timed, alone: &[u64], beside: &[u64]) {
    let mut add = |name: &str, value: u64| {
        timed.values.insert(name.to_owned(), value as f64);
    };
    if let Some(summary) = Summary::of(&beside[WARM_UP.min(beside.len())..]) {
        add("echo-p50", summary.p50);
        add(ECHO_P99, summary.p99);
        add("echo-max", summary.max);
    }
    if let Some(summary) = Summary::of(&alone[WARM_UP.min(alone.len())..]) {
        add("echo-alone-p50", summary.p50);
        add("echo-alone-p99", summary.p99);
    }
}

/// Runs a busy machine until it is ended.
fn run_busy(
    setup: &Setup,
    config: &VmConfig,
    affinity: &Affinity,
    handle: &VmHandle,
    stop: &Stop,
) -> Result<(), LabError> {
    pin(affinity)?;
    let vm = small_system::build(setup, config, Box::new(io::sink()), handle);
    let mut vm = vm.map_err(|error| LabError::Host(error.to_string()))?;
    match stop.while_running(handle, || vm.run()) {
        RunOutcome::Quit => Ok(()),
        other => Err(refused(&other).unwrap_or_else(|| {
            LabError::WorkNotDone(format!("the end of a busy machine: {other}"))
        })),
    }
}

fn run_echoing(
    setup: &Setup,
    config: &VmConfig,
    affinity: &Affinity,
    handle: &VmHandle,
    printed: Printed,
    stop: &Stop,
) -> Result<Reading, LabError> {
    pin(affinity)?;
    let text = printed.text.clone();
    let vm = small_system::build(setup, config, Box::new(printed), handle);
    let mut vm = vm.map_err(|error| LabError::Host(error.to_string()))?;
    let outcome = stop.while_running(handle, || vm.run());
    let text = text.lock().map(|text| text.clone()).unwrap_or_default();
    checked(setup, outcome, &String::from_utf8_lossy(&text))?;
    Ok(vm.reading())
}

fn pin(affinity: &Affinity) -> Result<(), LabError> {
    let refused = |error: io::Error| LabError::Host(format!("processor affinity: {error}"));
    affinity.apply().map_err(refused)
}

/// Output of the echoing machine: it is stored, and each part is sent with its time.
struct Printed {
    announce: Sender<(Instant, Vec<u8>)>,
    text: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
}

impl Printed {
    fn new(announce: Sender<(Instant, Vec<u8>)>) -> Self {
        Self {
            announce,
            text: std::sync::Arc::default(),
        }
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let now = Instant::now();
        if let Ok(mut text) = self.text.lock() {
            text.extend_from_slice(bytes);
        }
        // This fails only if the receiver is gone, and then the output is not needed.
        let _ = self.announce.send((now, bytes.to_vec()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Receives the output of the echoing machine.
struct Listener<'a> {
    printed: &'a Receiver<(Instant, Vec<u8>)>,
    /// The output since the latest key.
    text: Vec<u8>,
}

impl Listener<'_> {
    /// Waits until the text satisfies `reached`. Returns when its last part arrived.
    fn wait(&mut self, reached: impl Fn(&[u8]) -> bool) -> Result<Instant, LabError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (when, bytes) = self.printed.recv_timeout(left).map_err(|error| {
                LabError::WorkNotDone(match error {
                    RecvTimeoutError::Timeout => "a key was not echoed".to_owned(),
                    RecvTimeoutError::Disconnected => "it ended before all was typed".to_owned(),
                })
            })?;
            self.text.extend_from_slice(&bytes);
            if reached(&self.text) {
                return Ok(when);
            }
        }
    }
}

/// Types the lines that the guest expects. Returns the microseconds from each line's last key to
/// the line feed after it.
fn type_keys(
    machine: &VmHandle,
    printed: &Receiver<(Instant, Vec<u8>)>,
    keys: u16,
) -> Result<Vec<u64>, LabError> {
    let mut echoes = Vec::new();
    let text = Vec::new();
    let mut listener = Listener { printed, text };
    let has_prompt = |text: &[u8]| text.ends_with(b"> ");
    listener.wait(has_prompt)?;
    for (number, line) in small_system::expected::echo_lines(keys).enumerate() {
        listener.text.clear();
        machine.serial_input(line.as_bytes());
        listener.wait(|text| text == line.as_bytes())?;
        thread::sleep(Duration::from_micros(PAUSES[number % PAUSES.len()]));
        listener.text.clear();
        let typed = Instant::now();
        machine.serial_input(b"\r");
        let when = listener.wait(|text| text.contains(&b'\n'))?;
        let took = when.saturating_duration_since(typed).as_micros();
        echoes.push(u64::try_from(took).unwrap_or(u64::MAX));
        if number + 1 < usize::from(keys) && !has_prompt(&listener.text) {
            listener.wait(has_prompt)?;
        }
    }
    Ok(echoes)
}
