//! Knobs: the settings of a machine that experiments compare, in one list.
//!
//! A knob has a name and a few values. `tollgate run --knob NAME=VALUE` gives a knob a value,
//! `tollgate set` changes knobs of a running machine, `tollgate lab` compares machines that differ
//! in them, and statistics report their values. A knob changes how fast a guest runs and which
//! exits it takes, but never what it computes.
//!
//! To add a knob, add a field to [`VmConfig`], an entry to [`KNOBS`], and if it can be changed
//! while the machine runs, a line to [`turn`].

use crate::config::{
    DoubleInvalidation, InstructionSource, Interruptible, Invalidation, MemoryAccess, SpaceSwitch,
    UserCode, VmConfig,
};
use serde::{Serialize, Serializer};
use std::fmt;
use tollgate_engine::policy::virtual_interrupts::Transition;
use tollgate_monitor::{Vcpu, VcpuSettings};

/// One knob.
pub struct Knob {
    /// The knob's name: the flag of `tollgate run`, and the word before the `=` of `tollgate set`.
    pub name: &'static str,
    /// The values that the knob can have.
    pub values: &'static [&'static str],
    /// What the knob does, in one line.
    pub what: &'static str,
    /// The experiment of `tollgate lab` that compares the knob's values.
    pub experiment: &'static str,
    /// The field of a configuration that has the knob's value.
    field: Field,
}

/// A field of a configuration, as an index in the values of a knob.
struct Field {
    get: fn(&VmConfig) -> usize,
    set: fn(&mut VmConfig, usize),
}

/// The field `$field`, which is a `bool`.
macro_rules! switch {
    ($($field:ident).+) => {
        Field {
            get: |config| usize::from(config.$($field).+),
            set: |config, value| config.$($field).+ = value == ON,
        }
    };
}

/// The field `$field`, whose variants are given in the order of the knob's values.
macro_rules! choice {
    ($($field:ident).+: $kind:ident::{$($variant:ident),+}) => {
        Field {
            get: |config| {
                let mut values = [$($kind::$variant),+].into_iter();
                values.position(|value| value == config.$($field).+).unwrap_or(0)
            },
            set: |config, value| {
                if let Some(value) = [$($kind::$variant),+].get(value) {
                    config.$($field).+ = *value;
                }
            },
        }
    };
}

const SWITCH: &[&str] = &["off", "on"];
const ON: usize = 1;

/// The list of all knobs.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "vif",
        values: SWITCH,
        what: "CLI, STI, PUSHF, POPF, IRET and INT n run without an exit, on a virtual \
               interrupt flag",
        experiment: "vif",
        field: switch!(virtual_interrupts.flag),
    },
    Knob {
        name: "vir",
        values: SWITCH,
        what: "setting the virtual interrupt flag exits only while an interrupt waits; needs \
               vif=on",
        experiment: "vif",
        field: switch!(virtual_interrupts.request),
    },
    Knob {
        name: "transition",
        values: &["call", "trap", "task"],
        what: "how instructions on the interrupt flag leave translated code: by a call, by a \
               #GP or by a #UD of the host",
        experiment: "vif",
        field: choice!(virtual_interrupts.transition: Transition::{Call, Trap, Task}),
    },
    Knob {
        name: "memory-access",
        values: &["checked", "direct", "adaptive"],
        what: "how 32- and 64-bit code reaches memory: each access looks its page up, the \
               host's page tables translate it, or they do so once a program has run for some \
               milliseconds",
        experiment: "shadow",
        field: choice!(memory_access: MemoryAccess::{Checked, Direct, Adaptive}),
    },
    Knob {
        name: "anchors",
        values: SWITCH,
        what: "direct accesses of 64-bit programs reach most of their memory through one \
               register; off: each part of the address has its own offset",
        experiment: "shadow",
        field: switch!(anchors),
    },
    Knob {
        name: "user-code",
        values: &["translated", "native", "adaptive"],
        what: "64-bit programs of 64-bit systems are translated, run as they are in processes of \
               the host, or do so while they seldom enter the kernel",
        experiment: "native",
        field: choice!(user_code: UserCode::{Translated, Native, Adaptive}),
    },
    Knob {
        name: "switch",
        values: &["exit", "inline"],
        what: "a load of CR3 that keeps the translations of the space exits, or runs in \
               translated code",
        experiment: "shadow",
        field: choice!(space_switch: SpaceSwitch::{Exit, Inline}),
    },
    Knob {
        name: "shadow-tables",
        values: &[
            "auto", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14",
            "15", "16",
        ],
        what: "how many address spaces keep their tables, the loaded one included; auto \
               starts with 4",
        experiment: "shadow",
        field: Field {
            get: |config| usize::from(config.shadow.tables.unwrap_or(0)),
            set: |config, value| config.shadow.tables = (value != 0).then_some(value as u8),
        },
    },
    Knob {
        name: "invalidation",
        values: &["full", "selective", "inline"],
        what: "INVLPG exits and drops the whole space, exits and drops one page, or drops one \
               page without an exit",
        experiment: "shadow",
        field: choice!(shadow.invalidation: Invalidation::{Full, Selective, Inline}),
    },
    Knob {
        name: "reverse-map",
        values: SWITCH,
        what: "the entries that lead to a physical page are found through a reverse map; off: \
               all tables are purged",
        experiment: "shadow",
        field: switch!(shadow.reverse_map),
    },
    Knob {
        name: "double-invalidation",
        values: &["allow", "selection-flag", "entry-count"],
        what: "an invalidation of all spaces purges every table, only the tables that were \
               used since the last one, or each table when its place is needed",
        experiment: "shadow",
        field: choice!(shadow.double_invalidation: DoubleInvalidation::{Allow, SelectionFlag, EntryCount}),
    },
    Knob {
        name: "compare-entries",
        values: SWITCH,
        what: "a load of CR3 that invalidates a space keeps translations whose page-table \
               entries have not changed; off: it keeps none",
        experiment: "shadow",
        field: switch!(shadow.compares_entries),
    },
    Knob {
        name: "icache",
        values: &["fast-path", "site", "off", "on", "physical"],
        what: "how an instruction that the monitor must emulate is found: it runs in a fast path \
               without an exit, is known since translation, is fetched and decoded at each exit, \
               or is looked up in a dictionary by linear or by physical address",
        experiment: "icache",
        field: choice!(instruction_source: InstructionSource::{FastPath, Site, Off, On, Physical}),
    },
    Knob {
        name: "interruptible",
        values: &["off", "restart", "resume"],
        what: "what long work of the monitor does when an interrupt waits: it finishes, it \
               stops and the guest's instruction starts again after the handler, or it stops \
               and resumes after the handler",
        experiment: "interruptible",
        field: choice!(interruptible: Interruptible::{Off, Restart, Resume}),
    },
];

/// Configures a processor as `config` says. Must not be called while it runs.
pub fn turn(vcpu: &mut Vcpu, config: &VmConfig) {
    vcpu.change_settings(|settings| {
        *settings = VcpuSettings {
            virtual_interrupts: config.virtual_interrupts,
            instruction_source: config.instruction_source,
            shadow: config.shadow,
            memory_access: config.memory_access,
            anchors: config.anchors,
            user_code: config.user_code,
            space_switch: config.space_switch,
            interruptible: config.interruptible,
        }
    });
}

/// Why a knob's name or value was refused. It prints as one line that lists the valid ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KnobError {
    /// The text is not `knob=value`.
    NotAnAssignment(String),
    /// No knob has this name.
    UnknownKnob(String),
    /// The knob does not have this value.
    UnknownValue {
        /// The knob's name.
        knob: &'static str,
        /// The value that was given.
        value: String,
        /// The values that the knob has.
        values: &'static [&'static str],
    },
    /// The knob was given twice.
    Twice(&'static str),
}

impl fmt::Display for KnobError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = || KNOBS.iter().map(|knob| knob.name).collect::<Vec<_>>();
        match self {
            Self::NotAnAssignment(text) => write!(
                formatter,
                "'{text}' is not knob=value; knobs are: {}",
                known().join(", ")
            ),
            Self::UnknownKnob(name) => write!(
                formatter,
                "no knob is called '{name}'; knobs are: {}",
                known().join(", ")
            ),
            Self::UnknownValue {
                knob,
                value,
                values,
            } => write!(
                formatter,
                "the knob {knob} has no value '{value}'; values are: {}",
                values.join(", ")
            ),
            Self::Twice(name) => write!(formatter, "the knob {name} was given twice"),
        }
    }
}

impl std::error::Error for KnobError {}

/// Returns the knob with this name.
pub fn find(name: &str) -> Option<&'static Knob> {
    KNOBS.iter().find(|knob| knob.name == name)
}

/// A knob together with one of its values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assignment {
    knob: usize,
    value: usize,
}

impl Assignment {
    /// Makes the assignment of the value called `value` to the knob called `name`.
    ///
    /// # Errors
    /// There is no such knob or value.
    pub fn of(name: &str, value: &str) -> Result<Self, KnobError> {
        let index = KNOBS.iter().position(|knob| knob.name == name);
        let index = index.ok_or_else(|| KnobError::UnknownKnob(name.to_owned()))?;
        let knob = &KNOBS[index];
        // The value of --icache had another name until version 0.1.
        let value = if value == "leaf" { "fast-path" } else { value };
        let found = knob.values.iter().position(|known| *known == value);
        let value = found.ok_or_else(|| KnobError::UnknownValue {
            knob: knob.name,
            value: value.to_owned(),
            values: knob.values,
        })?;
        Ok(Self { knob: index, value })
    }

    /// Parses `knob=value`.
    ///
    /// # Errors
    /// The text is not an assignment, or there is no such knob or value.
    pub fn parse(text: &str) -> Result<Self, KnobError> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| KnobError::NotAnAssignment(text.to_owned()))?;
        Self::of(name, value)
    }

    /// Returns the knob.
    pub fn knob(self) -> &'static Knob {
        &KNOBS[self.knob]
    }

    /// Returns the value's name.
    pub fn value(self) -> &'static str {
        KNOBS[self.knob].values[self.value]
    }

    /// Gives `config` this value.
    pub fn apply(self, config: &mut VmConfig) {
        (self.knob().field.set)(config, self.value);
    }
}

/// Checks that no knob occurs twice.
///
/// # Errors
/// [`KnobError::Twice`] with the first knob that does.
pub fn check_distinct(assignments: &[Assignment]) -> Result<(), KnobError> {
    for (index, assignment) in assignments.iter().enumerate() {
        let knob = assignment.knob();
        if assignments[..index]
            .iter()
            .any(|earlier| earlier.knob().name == knob.name)
        {
            return Err(KnobError::Twice(knob.name));
        }
    }
    Ok(())
}

/// The values of all knobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings([usize; KNOBS.len()]);

impl Default for Settings {
    fn default() -> Self {
        Self::of(&VmConfig::default())
    }
}

impl Settings {
    /// Returns the values in a configuration.
    pub fn of(config: &VmConfig) -> Self {
        let mut values = [0; KNOBS.len()];
        for (knob, value) in KNOBS.iter().zip(&mut values) {
            // A value without a name could only be a mistake in the list above.
            *value = (knob.field.get)(config).min(knob.values.len() - 1);
        }
        Self(values)
    }

    /// Returns each knob with its value, in the order of [`KNOBS`].
    pub fn assignments(self) -> impl Iterator<Item = Assignment> {
        let values = self.0.into_iter().enumerate();
        values.map(|(knob, value)| Assignment { knob, value })
    }

    /// Returns each knob's name with the name of its value.
    pub fn names(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.assignments()
            .map(|assignment| (assignment.knob().name, assignment.value()))
    }

    /// Whether the knob has the value of the assignment.
    pub fn holds(self, assignment: Assignment) -> bool {
        self.0[assignment.knob] == assignment.value
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self
            .names()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        formatter.write_str(&texts.join(" "))
    }
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.names())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_every_knob_comes_back_as_it_was_set() {
        for knob in KNOBS {
            assert!(knob.values.len() > 1, "{}", knob.name);
            for value in knob.values {
                let mut config = VmConfig::default();
                let assignment = Assignment::of(knob.name, value).unwrap();
                assignment.apply(&mut config);
                assert!(Settings::of(&config).holds(assignment));
                let others = |config: &VmConfig| {
                    let names = Settings::of(config).names();
                    names
                        .filter(|(name, _)| *name != knob.name)
                        .collect::<Vec<_>>()
                };
                assert_eq!(others(&config), others(&VmConfig::default()));
            }
        }
    }

    #[test]
    fn names_are_unique_and_can_be_flags() {
        for (index, knob) in KNOBS.iter().enumerate() {
            assert!(KNOBS[..index].iter().all(|other| other.name != knob.name));
            let is_plain = |text: &str| {
                text.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            };
            assert!(is_plain(knob.name) && knob.values.iter().all(|value| is_plain(value)));
        }
    }

    #[test]
    fn what_is_not_known_is_answered_with_what_is() {
        let error = |text: &str| Assignment::parse(text).unwrap_err().to_string();
        assert_eq!(
            error("vid=on"),
            "no knob is called 'vid'; knobs are: vif, vir, transition, memory-access, anchors, user-code, \
             switch, shadow-tables, invalidation, reverse-map, double-invalidation, compare-entries, icache, interruptible"
        );
        assert_eq!(
            error("transition=jump"),
            "the knob transition has no value 'jump'; values are: call, trap, task"
        );
        assert_eq!(
            error("vif"),
            "'vif' is not knob=value; knobs are: vif, vir, transition, memory-access, anchors, user-code, \
             switch, shadow-tables, invalidation, reverse-map, double-invalidation, compare-entries, icache, interruptible"
        );
        let on = Assignment::parse("vif=on").unwrap();
        let off = Assignment::parse("vif=off").unwrap();
        assert_eq!(check_distinct(&[on, off]), Err(KnobError::Twice("vif")));
        assert_eq!(check_distinct(&[on]), Ok(()));
    }

    #[test]
    fn settings_are_shown_in_the_order_of_the_list() {
        assert_eq!(
            Settings::default().to_string(),
            "vif=on vir=on transition=call memory-access=adaptive anchors=on user-code=translated switch=inline shadow-tables=auto \
             invalidation=inline reverse-map=on double-invalidation=entry-count \
             compare-entries=on icache=fast-path interruptible=restart"
        );
    }
}
