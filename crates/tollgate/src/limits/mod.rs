//! `--limit`: what a machine may take of this host, by a control group where this process can have one of
//! its own, and otherwise inside the process.

mod bucket;
mod control_group;
mod watch;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_machine::comma_list;
use tollgate_machine::config::{UserCode, VmConfig};
use tollgate_machine::vm_handle::VmHandle;

pub use control_group::{ControlGroup, is_usable as control_groups_are_usable};

use crate::failure::Failure;
use crate::size;

const FORM: &str = "cpu=PROCESSORS,memory=SIZE,io=SIZE, such as cpu=50%,memory=1G,io=20M";
/// The memory that the monitor takes at most in addition to the guest's, in most cases.
const MONITOR_BYTES: u64 = 256 << 20;
/// Less processor time than this starts no machine in a useful time.
const LEAST_PROCESSORS: f64 = 0.01;
/// More processors than this are no limit.
const MOST_PROCESSORS: f64 = 1024.0;

/// Whether this process's machine was ended because it took more than its limits allow.
static ARE_EXCEEDED: AtomicBool = AtomicBool::new(false);

/// Whether the machine was ended because it took more of this host than its limits allow; one line has
/// said so.
pub fn are_exceeded() -> bool {
    ARE_EXCEEDED.load(Ordering::Relaxed)
}

/// What a machine may take.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct HostLimits {
    /// Processor time: the number of processors.
    pub processors: Option<f64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes per second that are read from storage or written to it.
    pub storage: Option<u64>,
}

impl HostLimits {
    /// Parses the value of the flag.
    ///
    /// # Errors
    /// The reason, for a line that names the flag and the value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        if text.is_empty() {
            return Err(format!("no limit; expected {FORM}"));
        }
        for part in comma_list::split(text) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' has no value; expected {FORM}"))?;
            let of_value = |why: String| format!("{key}={value}: {why}");
            let is_given = match key {
                "cpu" => limits
                    .processors
                    .replace(processors(value).map_err(of_value)?)
                    .is_some(),
                "memory" => limits
                    .memory
                    .replace(size::parse(value).map_err(of_value)?)
                    .is_some(),
                "io" => {
                    let bytes = value.strip_suffix("/s").unwrap_or(value);
                    limits
                        .storage
                        .replace(size::parse(bytes).map_err(of_value)?)
                        .is_some()
                }
                _ => return Err(format!("unknown key '{key}'; expected {FORM}")),
            };
            if is_given {
                return Err(format!("'{key}' is given twice"));
            }
        }
        Ok(limits)
    }

    /// Has a control group of the host enforce the limits on this process and all that it starts from
    /// now on, if it can have one; [`Self::watch`] must enforce the rest. Without a group only the time
    /// of this process can be counted, so programs are translated if that is limited.
    ///
    /// # Errors
    /// One line says that the limits are too small for the machine.
    pub fn enter(self, config: &mut VmConfig) -> Result<Option<ControlGroup>, Failure> {
        self.check(config.memory_bytes)
            .map_err(|why| Failure::usage(format!("{why}; give that, or less with --memory")))?;
        let group = self.enter_group();
        self.adapt(group.as_ref(), config);
        Ok(group)
    }

    /// Checks that a guest with this much memory fits into the limits.
    ///
    /// # Errors
    /// The reason, as the beginning of a line.
    pub fn check(self, guest_bytes: u64) -> Result<(), String> {
        let needed = guest_bytes.saturating_add(MONITOR_BYTES);
        match self.memory.is_some_and(|memory| memory < needed) {
            true => Err(format!(
                "--limit memory=: the guest's {} MiB and the monitor need {} MiB",
                guest_bytes >> 20,
                needed >> 20
            )),
            false => Ok(()),
        }
    }

    /// Like [`Self::enter`], before there is a machine, which [`Self::check`] and [`Self::adapt`] are for.
    pub fn enter_group(self) -> Option<ControlGroup> {
        ControlGroup::enter(self)
    }

    /// Configures a machine so that the limits can be enforced.
    pub fn adapt(self, group: Option<&ControlGroup>, config: &mut VmConfig) {
        if group.is_none() && self.processors.is_some() {
            config.user_code = UserCode::Translated;
        }
    }

    /// Enforces what the control group, if there is one, does not, from a thread of this process.
    ///
    /// # Errors
    /// One line says what this host lacks.
    pub fn watch(self, group: Option<&ControlGroup>, handle: &VmHandle) -> Result<(), Failure> {
        let rest = Self {
            processors: self.processors.filter(|_| group.is_none()),
            ..self
        };
        if rest != Self::default() {
            let refused = |error: io::Error| {
                Failure::host(format!("--limit: this host cannot count: {error}"))
            };
            watch::begin(rest, handle.clone()).map_err(refused)?;
        }
        Ok(())
    }
}

/// A number of processors: a number, or parts of a hundred of one.
fn processors(text: &str) -> Result<f64, String> {
    const EXPECTED: &str = "expected a number of processors such as 0.5, or 50%";
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let count = number.parse::<f64>().map_err(|_| EXPECTED.to_owned())? / unit;
    match count {
        LEAST_PROCESSORS..=MOST_PROCESSORS => Ok(count),
        _ => Err(format!("too little or too much; {EXPECTED}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_keys_and_values() {
        let all = HostLimits {
            processors: Some(0.5),
            memory: Some(1 << 30),
            storage: Some(20 << 20),
        };
        assert_eq!(HostLimits::parse("cpu=50%,memory=1G,io=20M"), Ok(all));
        assert_eq!(HostLimits::parse("io=20M/s,cpu=0.5,memory=1024"), Ok(all));
        for (text, why) in [
            ("", "no limit"),
            ("cpu", "'cpu' has no value"),
            ("cpu=", "cpu=: expected a number of processors"),
            ("cpu=0", "too little or too much"),
            ("cpu=nan", "too little or too much"),
            ("cpu=-1", "too little or too much"),
            ("memory=x", "memory=x: not a size"),
            ("io=1/m", "io=1/m: unknown unit"),
            ("disk=1", "unknown key 'disk'"),
            ("cpu=1,cpu=2", "'cpu' is given twice"),
        ] {
            let refusal = HostLimits::parse(text).unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn memory_holds_the_guest_and_the_monitor() {
        let limits = HostLimits::parse("memory=512M").unwrap();
        let mut config = VmConfig {
            memory_bytes: 512 << 20,
            ..VmConfig::default()
        };
        let refusal = limits.enter(&mut config).err().unwrap();
        assert!(
            refusal.message.contains("need 768 MiB"),
            "{}",
            refusal.message
        );
    }
}
